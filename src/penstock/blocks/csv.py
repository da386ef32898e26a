"""CSV and TSV text as blocks of rows: numbers by our own parser, other columns by Arrow's.

Delimiter, header and types are found in the first megabyte and then hold: numeric columns are float64 (an empty
field, NA or null is a null), columns of true and false are booleans, all others strings. So are columns that are empty
there, unless a look at other places finds numbers alone, and codes, whole numbers of which one begins with a zero: ``01`` is
not ``1``. Blocks are cut at line ends, so a quoted field that holds a newline is
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.blocks.base import require_distinct_names
from penstock.blocks.csv_sniff import CsvLayout, has_header, header_names, sniff_delimiter, split_line
from penstock.blocks.file_formats import FILE_FORMATS
from penstock.blocks.parse import BAD_QUOTE, BAD_WIDTH, OK, csv_rows, csv_rows_quoted, find_ends
from penstock.blocks.storage import PathLike
from penstock.blocks.text import (
    Chunk,
    LineNumber,
    TextFile,
    TextSource,
    as_lines,
    close_all,
    column_numbers,
    line_at,
    line_number,
    open_text,
    show_text,
)
from penstock.errors import DataError, ParseError, SchemaError
from penstock.messages import Location

_WORDS = {"true", "false"}
_NUMBER = pa.float64().id
_NOTHING = np.zeros(0, np.uint8)
_END_BYTES = 65536
"""Bytes of the end of a file that are looked at for codes: rows sorted by a code begin with those without zeros."""
_SPOTS = 16
"""Places all over the files that are looked at for the first values of columns, each as long as that end."""


@dataclass(frozen=True, slots=True)
class CsvNumbers:
    """Numeric columns of CSV lines: ``values[k, row]``, and ``missing`` set where a field is empty.

    ``fault`` is `parse.OK`, or what is wrong in ``column`` of the file at byte ``place``; the rows before it are
    good. ``strange`` marks the columns that hold something else than numbers, where that was asked for.
    """

    values: NDArray[np.float64]
    missing: NDArray[np.uint8]
    strange: NDArray[np.uint8]
    fault: int
    column: int
    place: int


def parse_csv(
    chunk: Chunk, columns: Sequence[int], *, width: int, delimiter: str = ",", probe: bool = False
) -> CsvNumbers:
    """Read numeric columns of whole CSV lines, up to the first fault if there is one.

    Parameters
    ----------
    chunk : bytes
        Whole lines, without a header.
    columns : sequence of int
        Which of the columns to read, in this order.
    width : int
        How many columns there are.
    delimiter : str
        What stands between fields.
    probe : bool
        Go on past fields that are not numbers and mark their columns, instead of stopping.

    Examples
    --------
    >>> parse_csv(b"1,2.5,x\\n3,,y\\n", [1, 0], width=3).values.tolist()
    [[2.5, nan], [1.0, 3.0]]
    """
    data = as_lines(chunk)
    byte = ord(delimiter)
    # Room for the worst case; what is not written to takes no memory.
    ends = np.empty(len(data) + 1, np.uint32)
    found, lines, quotes = find_ends(data, byte, ends)
    slots = np.full(width, -1, np.int64)
    slots[list(columns)] = np.arange(len(columns))
    values, missing = np.empty((len(columns), lines)), np.zeros((len(columns), lines), np.uint8)
    strange = np.zeros(len(columns), np.uint8) if probe else _NOTHING
    if quotes:
        fault, rows, column, place = csv_rows_quoted(data, byte, slots, values, missing, strange)
    else:
        fault, rows, column, place = csv_rows(data, ends[:found], slots, values, missing, strange)
    return CsvNumbers(values[:, :rows], missing[:, :rows], strange, fault, int(column), int(place))


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """CSV lines as rows; made by `csv_format`. See `text.TextFormat`."""

    name: str
    schema: pa.Schema
    delimiter: str
    header: bool
    skip: int

    def parse(
        self,
        chunk: Chunk,
        columns: Sequence[str] | None = None,
        *,
        name: str | None = None,
        first_line: LineNumber = 1,
    ) -> pa.RecordBatch:
        """Read whole lines; only the columns named, in that order, or all."""
        data, name = as_lines(chunk), name or self.name
        picks = column_numbers(self.schema, columns, place=name)
        types = self.schema.types
        numeric = [i for i in dict.fromkeys(picks) if types[i].id == _NUMBER]
        others = [i for i in dict.fromkeys(picks) if types[i].id != _NUMBER]
        # Done even when no number is wanted: it makes sure that every line has all its fields.
        numbers = parse_csv(data, numeric, width=len(self.schema), delimiter=self.delimiter)
        if numbers.fault != OK:
            raise self._error(data, numbers, name=name, first_line=first_line)
        made = dict(zip(numeric, _arrays(numbers), strict=True))
        if others:
            made.update(self._read_others(data, others, numbers.values.shape[1], name=name, first_line=first_line))
        schema = self.schema if columns is None else pa.schema([self.schema.field(i) for i in picks])
        return pa.RecordBatch.from_arrays([made[i] for i in picks], schema=schema)

    def format_of(self, sample: bytes, name: str) -> CsvFormat:
        """Return how another file of the same data set, whose sample is given, is written: its columns may come in any order.

        Raises
        ------
        SchemaError
            It has other columns.
        """
        layout = CsvLayout.of(sample, name)
        fields = split_line(layout.first, self.delimiter)
        found = header_names(fields) if self.header else [f"column_{i}" for i in range(len(fields))]
        if sorted(found) != sorted(self.schema.names):
            raise SchemaError(_difference(self.name, self.schema.names, name, found, header=self.header))
        schema = pa.schema([self.schema.field(each) for each in found], self.schema.metadata)
        return replace(self, name=name, schema=schema, skip=layout.after if self.header else layout.begin)

    def misfits(self, rows: bytes) -> list[str]:
        """Return the columns of which some value in these lines is not of their type; text fits anything."""
        typed = [field.name for field in self.schema if field.type != pa.string()]
        if self._fits(rows, typed) or not self._fits(
            rows, []
        ):  # lines of too few fields are told of when they are read
            return []
        return [name for name in typed if not self._fits(rows, [name])]

    def codes(self, rows: bytes) -> list[str]:
        """Return the columns of numbers in which some of these lines hold a whole number that begins with a zero.

        Examples
        --------
        >>> csv_format(b"zip,x\\n1234,0.5\\n2345,1\\n", "a.csv").codes(b"0123,0.25\\n")
        ['zip']
        """
        delimiter = re.escape(self.delimiter.encode())
        if not re.search(rb'(?:^|["\n]|' + delimiter + rb")0[0-9]", rows):
            return []
        numbers = {field.name: pa.string() for field in self.schema if field.type.id == _NUMBER}
        try:
            texts = read_text(as_lines(rows), self.schema.names, numbers, delimiter=self.delimiter)
        except pa.ArrowInvalid:  # the line is named when it is read
            return []
        return [name for name in numbers if pc.any(pc.match_substring_regex(texts.column(name), "^0[0-9]+$")).as_py()]

    def empty(self, rows: bytes) -> list[str]:
        """Return the columns that have no value in these lines, if there are any lines."""
        read = self.parse(rows)
        return (
            [] if not len(read) else [name for name in read.schema.names if read.column(name).null_count == len(read)]
        )

    def with_text(self, columns: Sequence[str]) -> CsvFormat:
        """Return the format with these columns as text."""
        return self._with(columns, pa.string())

    def with_numbers(self, columns: Sequence[str]) -> CsvFormat:
        """Return the format with these columns as numbers."""
        return self._with(columns, pa.float64())

    def _with(self, columns: Sequence[str], kind: pa.DataType) -> CsvFormat:
        kinds = [field.with_type(kind) if field.name in columns else field for field in self.schema]
        return replace(self, schema=pa.schema(kinds, self.schema.metadata))

    def _fits(self, rows: bytes, columns: list[str]) -> bool:
        try:
            self.parse(rows, columns)
        except ParseError:
            return False
        return True

    def _read_others(
        self, data: NDArray[np.uint8], others: list[int], rows: int, *, name: str, first_line: LineNumber
    ) -> dict[int, pa.Array]:
        fields = [self.schema.field(i) for i in others]
        if rows == 0:  # Arrow's reader takes this for a mistake
            return {i: pa.array([], f.type) for i, f in zip(others, fields, strict=True)}
        try:
            read = read_text(data, self.schema.names, {f.name: f.type for f in fields}, delimiter=self.delimiter)
        except pa.ArrowInvalid as error:
            raise self._text_error(data, others, str(error), name=name, first_line=first_line) from None
        if len(read) != rows:
            raise ParseError(
                "the quotes in the lines from here on cannot be paired",
                place=Location(name, line=line_number(data, 0, first_line)),
                fixes=[_QUOTE_ADVICE],
            )
        return {i: read.column(f.name) for i, f in zip(others, fields, strict=True)}

    def _error(self, data: NDArray[np.uint8], numbers: CsvNumbers, *, name: str, first_line: LineNumber) -> ParseError:
        line = line_at(data, numbers.place)
        place = Location(name, line=line_number(data, numbers.place, first_line))
        if numbers.fault == BAD_QUOTE or line.count('"') % 2:
            return ParseError("a quote is opened but not closed on this line", place=place, fixes=[_QUOTE_ADVICE])
        fields = split_line(line, self.delimiter)
        if numbers.fault == BAD_WIDTH:
            return ParseError(
                f"expected {len(self.schema)} fields and found {len(fields)} in the line {show_text(line)}",
                place=place,
                fixes=["correct or remove the line", *([] if len(fields) > 1 else ["say what the delimiter is"])],
            )
        column, value = self.schema.names[numbers.column], show_text(fields[numbers.column])
        return ParseError(
            f"column {column!r} holds numbers, but here {value}",
            place=place,
            fixes=[
                "correct the value or leave the field empty (or, if the column is text, convert the file to"
                " Parquet, which states its types)"
            ],
        )

    def _text_error(
        self, data: NDArray[np.uint8], others: list[int], message: str, *, name: str, first_line: LineNumber
    ) -> ParseError:
        """Find the field that Arrow refused: a slow second reading, for the message's sake."""
        for number, line in enumerate(data.tobytes().split(b"\n")):
            fields = split_line(line.removesuffix(b"\r").decode("utf-8", "surrogateescape"), self.delimiter)
            for i in others if len(fields) == len(self.schema) else []:
                column, value = self.schema.field(i), fields[i]
                told = ""
                if not value.isascii() and value.encode("utf-8", "surrogateescape").decode("utf-8", "ignore") != value:
                    told = f"text that is not UTF-8; convert the file: iconv -f LATIN1 -t UTF-8 {name}"
                elif column.type == pa.bool_() and value and value.lower() not in _WORDS | {"0", "1"}:
                    told = f"true and false, but here {show_text(value)}; correct the value or leave the field empty"
                if told:
                    first = line_number(data, 0, first_line)
                    return ParseError(f"column {column.name!r} holds {told}", place=Location(name, line=first + number))
        return ParseError(
            f"lines from here on cannot be read: {message}", place=Location(name, line=line_number(data, 0, first_line))
        )


_QUOTE_ADVICE = (
    "files are cut into blocks at line ends, so a quoted field cannot hold a newline: rewrite the file without"
    " newlines in fields, or as Parquet, with the tool that made it, or remove the stray quote"
)


def csv_format(
    sample: bytes, name: str, *, delimiter: str | None = None, header: bool | None = None, whole: bool = True
) -> CsvFormat:
    """Find out how CSV text is written from its first lines.

    Parameters
    ----------
    sample : bytes
        The first bytes; a megabyte is plenty.
    name : str
        What messages call the text; ``.tsv`` and ``.tab`` at its end mean tabs.
    delimiter : str, optional
        What stands between fields; otherwise the one of ``, ; | tab`` that fits best.
    header : bool, optional
        Whether the first line holds names; otherwise it does if a word stands above numbers, or only words in it.
    whole : bool
        Whether the sample is all there is: no rows in it then means no rows at all. If it is not, a last line
        without an end is left out.

    Examples
    --------
    >>> format = csv_format(b"age;name\\n31;Ann\\n27;Bo\\n", "people.csv")
    >>> format.parse(b"44;Cy\\n", ["name", "age"]).to_pylist()
    [{'name': 'Cy', 'age': 44.0}]
    """
    if not whole:
        sample = sample[: sample.rfind(b"\n") + 1] or sample
    layout = CsvLayout.of(sample, name)
    delimiter = sniff_delimiter(layout.text, name, delimiter)
    first = split_line(layout.first, delimiter)
    rest = sample[layout.after :]
    numeric = _numeric(rest, first, name, delimiter=delimiter, first_line=layout.line + 1)
    if header is None:
        header = has_header(first, numeric, alone=not rest.strip())
    names = header_names(first) if header else [f"column_{i}" for i in range(len(first))]
    require_distinct_names(names, place=name)
    skip = layout.after if header else layout.begin
    if whole and not sample[skip:].strip():
        raise DataError(f"{name} has a header but no rows; give a file with at least one row")
    body = as_lines(sample[skip:])
    if not header:
        numeric = _numeric(body, first, name, delimiter=delimiter, first_line=layout.line)
    text = {n: pa.string() for n, good in zip(names, numeric, strict=True) if not good}
    kinds = dict.fromkeys(names, pa.float64()) | text
    if text and len(body):
        draft = CsvFormat(name, pa.schema(list(kinds.items())), delimiter, header, skip)
        read = draft.parse(body, list(text), first_line=layout.line + header)
        for column in text:
            seen = {str(v).lower() for v in read.column(column).unique().to_pylist() if v is not None}
            if seen and seen <= _WORDS:
                kinds[column] = pa.bool_()
    # pandas writes its index as a first column without a name.
    index = json.dumps({"index_columns": [names[0]]}) if header and len(names) > 1 and not first[0].strip() else None
    schema = pa.schema(list(kinds.items()), None if index is None else {b"pandas": index.encode()})
    format = CsvFormat(name, schema, delimiter, header, skip)
    # Whatever comes in a column without a value so far can be kept as text, which numbers are found in later.
    late = [] if whole else format.empty(sample[skip:])
    return format.with_text([*late, *format.codes(sample[skip:])])


class CsvSource(TextSource):
    """CSV or TSV files as blocks.

    Parameters
    ----------
    paths : path, folder, glob, or a list of these
        Text files with the same columns, in any order, read one after another. The types are those found in the first, or text
        where the first lines of another do not fit them.
    block_size : int or str, optional
        Bytes in a block, such as ``"256KB"``; by default 1 MB, less for small files.
    delimiter, header
        See `csv_format`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "a.csv")
    >>> _ = path.write_text("x,y\\n1.5,0\\n2.5,1\\n")
    >>> with CsvSource(path) as source:
    ...     source.read(0, ["y"]).to_pydict()
    {'y': [0.0, 1.0]}
    """

    format: CsvFormat

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        *,
        block_size: int | str | None = None,
        delimiter: str | None = None,
        header: bool | None = None,
    ) -> None:
        files: list[TextFile] = open_text(paths, suffixes=FILE_FORMATS["csv"].suffixes)
        try:
            sample = files[0].sample()
            whole = len(files) == 1 and len(sample) == files[0].file.size
            format = csv_format(sample, files[0].name, delimiter=delimiter, header=header, whole=whole)
            files[0].skip = format.skip
            late = [] if whole else format.empty(sample[format.skip :])
            text: set[str] = set()
            formats = [format]
            for f in files[1:]:
                head = f.sample(_END_BYTES)
                formats.append(format.format_of(head, f.name))
                f.skip = formats[-1].skip
                text.update(formats[-1].misfits(head[f.skip :]), formats[-1].codes(head[f.skip :]))
            if late:
                numbers = _late_numbers(files, formats, late)
                formats = [own.with_numbers(numbers) for own in formats]
                format = formats[0]
            for f, own in zip(files, formats, strict=True):
                text.update(own.codes(f.last_lines(_END_BYTES)))
            for f, own in zip(files, formats, strict=True):
                f.format = own.with_text(list(text)) if own.schema.names != format.schema.names else None
            format = format.with_text(list(text))
            rows = max(1, sample.count(b"\n") - format.header)
            super().__init__(files, format, line_bytes=max(1.0, len(sample) / rows), block_size=block_size)
        except BaseException:
            close_all(files)
            raise


def read_text(
    data: NDArray[np.uint8], names: Sequence[str], types: dict[str, pa.DataType], *, delimiter: str
) -> pa.RecordBatch:
    """Read columns of any type from CSV lines with Arrow's reader, on this thread."""
    import pyarrow.csv as arrow_csv

    table = arrow_csv.read_csv(
        pa.BufferReader(pa.py_buffer(data)),
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=list(names)),
        parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=False),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=list(types), column_types=types, null_values=[""], strings_can_be_null=True
        ),
    )
    batches = table.combine_chunks().to_batches()
    return _without_blanks(batches[0]) if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _late_numbers(files: Sequence[TextFile], formats: Sequence[CsvFormat], columns: Sequence[str]) -> list[str]:
    """Return which columns without a value in the first lines hold numbers, by a look at places all over the files."""
    numbers, text = set[str](), set[str]()
    spots = max(1, _SPOTS // len(files))
    for f, own in zip(files, formats, strict=True):
        last = max(f.skip, f.file.size - _END_BYTES)
        for start in np.unique(np.linspace(f.skip, last, spots + 1, dtype=np.int64)).tolist():
            rows = f.lines(start, min(start + _END_BYTES, f.file.size), slack=_END_BYTES)[0].tobytes()
            if not rows.strip():
                continue
            try:
                empty = set(own.empty(rows))
            except ParseError:  # told when the line is read
                continue
            found = [name for name in columns if name not in empty]
            misfits = own.with_numbers(found).misfits(rows)
            text.update(name for name in found if name in misfits)
            numbers.update(name for name in found if name not in misfits)
    return [name for name in columns if name in numbers - text]


def _without_blanks(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose texts have no blanks about them, as names in a header and numbers have none; a blank text is missing."""
    columns = list(rows.columns)
    for at, column in enumerate(columns):
        if pa.types.is_string(column.type):
            bare = pc.ascii_trim(column, " \t")
            if not bare.equals(column):
                columns[at] = pc.if_else(pc.equal(bare, ""), None, bare)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _numeric(chunk: Chunk, first: Sequence[str], name: str, *, delimiter: str, first_line: int) -> list[bool]:
    """Return for each column whether all its fields are numbers or empty."""
    probe = parse_csv(chunk, range(len(first)), width=len(first), delimiter=delimiter, probe=True)
    if probe.fault != OK:
        schema = pa.schema([(f"column_{i}", pa.float64()) for i in range(len(first))])
        format = CsvFormat(name, schema, delimiter, header=False, skip=0)
        raise format._error(as_lines(chunk), probe, name=name, first_line=first_line)
    return [not mark for mark in probe.strange]


def _arrays(numbers: CsvNumbers) -> list[pa.Array]:
    """Return the columns as Arrow arrays, without a copy where nothing is missing."""
    if not numbers.missing.any():
        return [pa.array(values) for values in numbers.values]
    gaps = zip(numbers.values, numbers.missing, strict=True)
    return [
        pa.array(values, mask=missing.view(bool)) if missing.any() else pa.array(values) for values, missing in gaps
    ]


def _difference(first: str, names: Sequence[str], other: str, found: Sequence[str], *, header: bool) -> str:
    """Say how the columns of two files differ."""
    if not header:
        told = f"{len(names)} fields against {len(found)}"
    else:
        lacks, adds = [n for n in names if n not in found], [n for n in found if n not in names]
        told = "; ".join(
            f"{who} has no {', '.join(map(repr, what[:10]))}" for who, what in ((other, lacks), (first, adds)) if what
        )
    return f"{first} and {other} do not have the same columns: {told}; make them alike, or train on one of them"
