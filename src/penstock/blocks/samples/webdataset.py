"""WebDataset tars as rows: files that stand together and share a name up to its first dot are a row.

The rest of the name, in small letters, is the column: `cls`, `index` and the like become int64 where all parse, `txt`
and `json` text, everything else stays the file's bytes; `__key__` is the shared name. Columns are told from the first
megabytes; a row without one of them has a null there, and one that comes later is an error that says how to ask for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.blocks.row_streams import RowStream, decompressed, position, read_errors
from penstock.blocks.samples.features import note_features
from penstock.blocks.samples.folders import batched
from penstock.blocks.samples.formats import IMAGES, TARS
from penstock.blocks.samples.tar import members
from penstock.blocks.storage import PathLike, ReadAt, expand, is_remote, open_file, show_names
from penstock.errors import CorruptFileError, DataError, UnknownOptionError, UsageError, some_of
from penstock.messages import Text, Use

KEY = "__key__"
LOOK_BYTES = 8 << 20
LOOK_ROWS = 1000
NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
TEXTS = ("txt", "text", "transcript", "json", "jsn")
TYPES = {"int": pa.int64(), "string": pa.string(), "binary": pa.binary()}
_NAME = re.compile(r"(?P<key>(?:.*/)?[^./][^./]*)\.(?P<extension>[^/]+)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")
_NUMBER = re.compile(rb"\s*[+-]?\d{1,18}\s*")
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(slots=True)
class _Sample:
    """A row on its way: its parts by extension, and where it stood."""

    key: str
    shard: str
    place: int
    parts: dict[str, bytes] = field(default_factory=dict)
    stored: int = 0

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.parts.values()))


def webdataset_rows(
    data: PathLike | Sequence[PathLike],
    *,
    split: str | None = None,
    extensions: Sequence[str] | Mapping[str, str] | None = None,
) -> RowStream:
    """Return the rows of WebDataset tars: one, a list, a glob, a range ``{000..012}``, or a folder of them.

    ``extensions`` names the columns where the first rows do not tell: a list, or a dict to ``int``, ``string`` or
    ``binary``. Others are then left out.
    """
    if split is not None:
        raise UsageError(
            ": tars have no splits",
            option="split",
            value=split,
            fixes=["name the shards of one, such as 'train-*.tar'"],
        )
    shards = _shards(data)
    asked = _asked(extensions)
    samples = _samples(shards, asked)
    first: list[_Sample] = []
    seen = 0
    try:
        while seen < LOOK_BYTES and len(first) < LOOK_ROWS and (sample := next(samples, None)) is not None:
            first.append(sample)
            seen += sample.nbytes
        if not first:
            raise CorruptFileError(f"{show_names(shards)} holds no sample: no file with an extension")
        _require_together(first)
        types = _types(first, asked)
    except BaseException:
        samples.close()
        raise
    fields = [pa.field(KEY, pa.string()), *(pa.field(name, TYPES[kind]) for name, kind in types.items())]
    images = {
        name: {"_type": "Image"}
        for name, kind in types.items()
        if kind == "binary" and name.rpartition(".")[2] in {suffix[1:] for suffix in IMAGES}
    }
    schema = note_features(pa.schema(fields), images)
    return RowStream(
        show_names(shards),
        schema,
        sum(_size(shard) for shard in shards),
        tuple(shards),
        lambda columns: _batches(first, samples, schema, columns),
        samples.close,
    )


def _shards(data: Any) -> list[str]:
    if isinstance(data, (list, tuple)):
        if not data:
            raise UsageError("no tars were given; name at least one path")
        return [shard for item in data for shard in _shards(item)]
    path = os.fspath(data)
    ranged = _RANGE.search(path)
    if ranged:
        low, high = int(ranged[1]), int(ranged[2])
        numbers = [str(number).zfill(len(ranged[1])) for number in range(low, high + 1)]
        return [
            shard for number in numbers for shard in _shards(path[: ranged.start()] + number + path[ranged.end() :])
        ]
    if not is_remote(path) and os.path.isdir(path):
        return expand(path, suffixes=TARS)
    return expand(path)


def _size(path: str) -> int:
    file = open_file(path)
    try:
        return file.size
    finally:
        file.close()


def _samples(shards: Sequence[str], asked: Mapping[str, str | None] | None) -> Generator[_Sample, None, None]:
    """Yield rows, one shard after another; a row never goes from one shard into the next."""
    for shard in shards:
        file = open_file(shard)
        try:
            stream = decompressed(file)
            with closing(stream), read_errors(shard):
                yield from _of_shard(stream, file, asked)
        finally:
            file.close()


def _of_shard(stream: Any, file: ReadAt, asked: Mapping[str, str | None] | None) -> Iterator[_Sample]:
    sample: _Sample | None = None
    before = 0
    for member in members(stream, file.name):
        name = _NAME.fullmatch(member.name.removeprefix("./"))
        if name is None or _META.match(member.name):
            continue
        extension = name["extension"].lower()
        if sample is None or sample.key != name["key"]:
            if sample is not None:
                now = position(stream)
                sample.stored, before = now - before, now
                yield sample
            sample = _Sample(name["key"], file.name, member.place)
        if extension in sample.parts:
            raise DataError(
                f"{file.name}: {member.name!r} at byte {member.place} stands twice in the sample {sample.key!r}"
            )
        if asked is None or extension in asked:
            sample.parts[extension] = member.content
    if sample is not None:
        sample.stored = file.size - before
        yield sample


def _batches(
    first: list[_Sample], samples: Iterator[_Sample], schema: pa.Schema, columns: Sequence[str] | None
) -> Generator[tuple[pa.RecordBatch, int], None, None]:
    names = list(schema.names if columns is None else columns)
    chosen = pa.schema([schema.field(name) for name in names], schema.metadata)

    def known() -> Iterator[_Sample]:
        while first:
            yield _require_known(first.pop(0), schema)
        for sample in samples:
            yield _require_known(sample, schema)

    for held in batched(known(), weigh=lambda sample: sample.nbytes):
        yield _batch(held, chosen), sum(sample.stored for sample in held)


def _require_known(sample: _Sample, schema: pa.Schema) -> _Sample:
    """Return the row unless it has a column that the first rows had not."""
    for extension in sample.parts:
        if extension not in schema.names:
            known = [name for name in schema.names if name != KEY]
            raise DataError(
                f"the sample {sample.key!r} at byte {sample.place} has a {extension!r}, which the first samples had not"
                f" ({some_of(known)})",
                place=sample.shard,
                fixes=[Text("name the columns wanted: ", Use("extensions", [*known, extension]))],
            )
    return sample


def _batch(samples: Sequence[_Sample], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for column in schema:
        if column.name == KEY:
            arrays.append(pa.array([sample.key for sample in samples], pa.string()))
            continue
        values = [sample.parts.get(column.name) for sample in samples]
        if column.type == pa.binary():
            arrays.append(pa.array(values, column.type))
            continue
        arrays.append(pa.array([_value(v, s, column) for v, s in zip(values, samples)], column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(content: bytes | None, sample: _Sample, column: pa.Field) -> int | str | None:
    if content is None:
        return None
    other = "string"
    if column.type == pa.int64():
        if _NUMBER.fullmatch(content):
            return int(content)
    else:
        try:
            return content.decode()
        except UnicodeDecodeError:
            other = "binary"
    what = "a whole number" if other == "string" else "UTF-8 text"
    raise DataError(
        f"{column.name!r} of the sample {sample.key!r} at byte {sample.place} is not {what} ({content[:40]!r})",
        place=sample.shard,
        fixes=[Text("take the column as it is: ", Use("extensions", {column.name: other}), ", beside the others")],
    )


def _types(first: Sequence[_Sample], asked: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return each column's type, from what was asked for and what the first rows hold."""
    names = list(dict.fromkeys(name for sample in first for name in sample.parts)) if asked is None else list(asked)
    types = {}
    for name in names:
        told = (asked or {}).get(name)
        last = name.rpartition(".")[2]
        values = [sample.parts[name] for sample in first if name in sample.parts]
        if told is not None:
            types[name] = told
        elif last in NUMBERS and all(map(_NUMBER.fullmatch, values)):
            types[name] = "int"
        elif last in NUMBERS + TEXTS and all(map(_is_text, values)):
            types[name] = "string"
        else:
            types[name] = "binary"
    if not types:
        raise UsageError("names no column", option="extensions", fixes=["name at least one extension"])
    return types


def _asked(extensions: Any) -> dict[str, str | None] | None:
    if extensions is None:
        return None
    pairs = extensions.items() if isinstance(extensions, Mapping) else [(name, None) for name in extensions]
    asked: dict[str, str | None] = {}
    for name, kind in pairs:
        if kind is not None and kind not in TYPES:
            raise UnknownOptionError.of(f"extensions[{name!r}]", kind, TYPES)
        asked[str(name).lower().removeprefix(".")] = kind
    return asked


def _require_together(first: Sequence[_Sample]) -> None:
    seen: set[tuple[str, str]] = set()
    for sample in first:
        if (sample.shard, sample.key) in seen:
            raise DataError(
                f"{sample.shard}: the files of the sample {sample.key!r} do not stand together (again at byte"
                f" {sample.place}); pack the tar anew with its files sorted by name"
            )
        seen.add((sample.shard, sample.key))


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
