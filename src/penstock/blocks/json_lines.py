"""JSON lines: one object per line, its keys the columns. `convert` reads them; they cannot be read in blocks.

A first pass finds the columns and their types, so that a key which comes late, or a number that turns out to be a
fraction, is no surprise in the second. Numbers are int64 or float64, text stays text, a missing key is a null (and so is
NaN in a column of text), lists of numbers or text are kept. Objects within a row are structs, as those of Parquet. Lists of
objects and columns of mixed types are refused with the line.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.blocks.file_kinds import refuse_foreign
from penstock.blocks.row_streams import Batches, Reached, RowStream, decompressed, position, read_chunk, whole_lines
from penstock.blocks.storage import ReadAt, open_file, show_names
from penstock.blocks.text import BYTE_ORDER_MARK, show_text
from penstock.errors import DataChangedError, DataError, ParseError, UnknownOptionError
from penstock.messages import Location

# NaN, or a text that may hold it.
_NAN = re.compile(rb'"(?:[^"\\]|\\.)*"|\bNaN\b')


def json_lines_rows(files: Sequence[str], options: dict[str, Any]) -> RowStream:
    """Return the rows of files of JSON lines, compressed or not."""
    for name in options:
        raise UnknownOptionError("is not an option of JSON lines", option=name, fixes=["leave it out"])
    opened = [open_file(name) for name in files]
    try:
        schema = _survey(opened)
    except BaseException:
        _close(opened)
        raise

    reached = Reached()

    def batches(columns: Sequence[str] | None) -> Batches:
        names = schema.names if columns is None else list(columns)
        for file in opened:
            for chunk, _, nbytes in _chunks(file):
                try:
                    table = _read(chunk, schema)
                except pa.ArrowInvalid as error:
                    raise DataChangedError(
                        f"{file.name} was changed while it was read ({error}); start afresh"
                    ) from None
                reached.file = file.name
                for batch in table.select(names).combine_chunks().to_batches():
                    yield batch, nbytes
                    nbytes = 0

    total = sum(file.size for file in opened)
    return RowStream(
        show_names(files), schema, total, tuple(files), batches, lambda: _close(opened), typed=False, reached=reached
    )


def _survey(files: Sequence[ReadAt]) -> pa.Schema:
    """Read all files once, and return the columns with the types that hold for every row."""
    types: dict[str, pa.DataType] = {}
    rows = 0
    for file in files:
        for chunk, line, _ in _chunks(file):
            try:
                table = _read(chunk, None)
                table.validate(full=True)  # Arrow's reader lets text pass that is not UTF-8
                found = {name: _stored(_known_type(table.column(name))) for name in table.schema.names}
                merged = {name: _merge(types.get(name, pa.null()), kind) for name, kind in found.items()}
                if len(table) != sum(1 for each in chunk.split(b"\n") if each.strip()):
                    raise _MixedError
            except (pa.ArrowInvalid, UnicodeDecodeError, _MixedError) as error:
                raise _fault(chunk, types, name=file.name, first_line=line, reason=str(error)) from None
            types.update(merged)
            rows += len(table)
    if not rows:
        raise DataError(
            f"{show_names([file.name for file in files])} has no rows; give a file with at least one object"
        )
    return pa.schema([(name, _settled(kind)) for name, kind in types.items()])


class _MixedError(Exception):
    """Values of a chunk do not fit together, or not those before; the line is found afterwards."""


def _chunks(file: ReadAt) -> Iterator[tuple[bytes, int, int]]:
    """Yield whole lines, with the number of the first and the stored bytes that they came from."""
    with closing(decompressed(file)) as stream:
        head = read_chunk(stream, file.name)
        refuse_foreign(head, name=file.name)
        line, before = 1, 0
        for chunk in whole_lines(head.removeprefix(BYTE_ORDER_MARK), stream, file.name):
            if chunk.strip():
                yield chunk, line, position(stream) - before
                before = position(stream)
            line += chunk.count(b"\n")


def _read(chunk: bytes, schema: pa.Schema | None) -> pa.Table:
    try:
        return _parsed(chunk, schema)
    except pa.ArrowInvalid:
        if b"NaN" not in chunk:
            raise
        return _parsed(_NAN.sub(lambda found: b"null" if found[0] == b"NaN" else found[0], chunk), schema)


def _parsed(chunk: bytes, schema: pa.Schema | None) -> pa.Table:
    import pyarrow.json as arrow_json

    return arrow_json.read_json(
        io.BytesIO(chunk),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema),
    )


def _known_type(column: pa.ChunkedArray) -> pa.DataType:
    """Return the type that Arrow sees in a column; none where nothing but NaN is in it, as Python writes what is missing."""
    if pa.types.is_struct(column.type):
        return pa.struct(
            [(field.name, _known_type(part)) for field, part in zip(column.type, column.flatten(), strict=True)]
        )
    if pa.types.is_floating(column.type) and pc.all(pc.is_nan(column), min_count=0).as_py():
        return pa.null()
    return column.type


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column is kept in, for the one that Arrow sees."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _stored(field.type)) for field in kind])
    if pa.types.is_list(kind):
        if pa.types.is_struct(kind.value_type):
            raise _MixedError
        return pa.list_(_stored(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) else kind  # text that happens to look like dates


def _settled(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column whose rows were all seen: of nulls alone, numbers, as in CSV."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _settled(field.type)) for field in kind])
    return pa.float64() if kind == pa.null() else kind


def _merge(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that holds the values of both."""
    if one == other or other == pa.null():
        return one
    if one == pa.null():
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        kinds = {field.name: field.type for field in one}
        kinds |= {field.name: _merge(kinds.get(field.name, pa.null()), field.type) for field in other}
        return pa.struct(list(kinds.items()))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_merge(one.value_type, other.value_type))
    raise _MixedError


def _fault(chunk: bytes, types: dict[str, pa.DataType], *, name: str, first_line: int, reason: str) -> ParseError:
    """Find the first line of a chunk that cannot be used, by a slow second reading."""
    kinds = dict(_kinds_of_types(types))
    for number, line in enumerate(chunk.split(b"\n"), first_line):
        if not line.strip():
            continue
        place = Location(name, line=number)
        try:
            row = json.loads(line, object_pairs_hook=_pairs)
        except UnicodeDecodeError:
            return ParseError(
                "text that is not UTF-8", place=place, fixes=[f"convert the file: iconv -f LATIN1 -t UTF-8 {name}"]
            )
        except (ValueError, RecursionError) as error:
            shown = show_text(line.decode("utf-8", "replace"))
            return ParseError(
                f"the line {shown} is not one JSON object ({error})", place=place, fixes=["write one object per line"]
            )
        if not isinstance(row, dict):
            return ParseError(
                f"here {_kind(row)} instead of an object", place=place, fixes=["write one object per line"]
            )
        for column, value in _leaves(row):
            kind = _kind(value)
            if "object" in kind and isinstance(value, list):
                return ParseError(
                    f"column {column!r} holds {kind}",
                    place=place,
                    fixes=["keep what is to be learned from as lists of numbers or text, or leave the key out"],
                )
            if " and " in kind:
                return ParseError(
                    f"column {column!r} holds {kind}", place=place, fixes=["make the items of a list alike"]
                )
            before = kinds.setdefault(column, kind)
            if kind != before and "null" not in (kind, before):
                return ParseError(
                    f"column {column!r} holds {kind}, but {before} before",
                    place=place,
                    fixes=["make the values of a column alike"],
                )
            kinds[column] = before if kind == "null" else kind
    return ParseError(f"lines from here on cannot be read: {reason}", place=Location(name, line=first_line))


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands in it twice")
        found[key] = value
    return found


def _leaves(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of an object, and those within its objects, by their names."""
    for key, value in row.items():
        yield above + key, value
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")


def _kinds_of_types(types: Mapping[str, pa.DataType], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield what columns, and what is within them, hold in words, by their names."""
    for name, kind in types.items():
        yield above + name, _kind_of_type(kind)
        if pa.types.is_struct(kind):
            yield from _kinds_of_types({field.name: field.type for field in kind}, f"{above}{name}.")


def _kind(value: Any) -> str:
    """Return what a value is, in words; lists with that of their first item that is not null."""
    if isinstance(value, list):
        kinds = dict.fromkeys(_kind(item) for item in value if item is not None)
        return "a list" if not kinds else f"a list of {' and '.join(kinds)}"
    names = {bool: "true or false", int: "numbers", float: "numbers", str: "text", dict: "an object"}
    return "null" if value is None or value != value else names[type(value)]


def _kind_of_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "an object"
    if pa.types.is_list(kind):
        inner = _kind_of_type(kind.value_type)
        return "a list" if inner == "null" else f"a list of {inner}"
    names = {pa.bool_(): "true or false", pa.string(): "text", pa.null(): "null"}
    return names.get(kind, "numbers")


def _close(files: Sequence[ReadAt]) -> None:
    for file in files:
        file.close()
