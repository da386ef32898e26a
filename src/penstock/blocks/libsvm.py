"""LibSVM text: a label and ``index:value`` pairs on each line, as blocks of sparse rows.

Indices are kept as written, whether they count from 0 or from 1, up to 2^63 - 1, and must ascend within a line; ``qid:``
tokens, comments after ``#`` and empty lines are passed over. Several labels on a line are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.file_formats import FILE_FORMATS
from penstock.blocks.parse import BAD_INDEX, BAD_LABEL, BAD_ORDER, OK, count_byte, libsvm_rows
from penstock.blocks.storage import PathLike
from penstock.blocks.text import (
    BYTE_ORDER_MARK,
    Chunk,
    LineNumber,
    TextSource,
    as_lines,
    close_all,
    column_numbers,
    line_at,
    line_number,
    open_text,
    show_text,
)
from penstock.errors import DataError, ParseError
from penstock.messages import Location

SCHEMA = pa.schema(
    [("label", pa.float64()), ("indices", pa.list_(pa.int64())), ("values", pa.list_(pa.float32()))],
)


@dataclass(frozen=True, slots=True)
class LibsvmRows:
    """Lines as arrays: row ``i`` is ``indptr[i]`` to ``indptr[i + 1]`` of ``indices`` and ``values``.

    ``fault`` is `parse.OK`, or what is wrong at byte ``place``; the rows before it are good.
    """

    labels: NDArray[np.float64]
    indptr: NDArray[np.int32]
    indices: NDArray[np.int64]
    values: NDArray[np.float32]
    fault: int
    place: int


def parse_libsvm(chunk: Chunk) -> LibsvmRows:
    """Read whole lines of LibSVM text, up to the first fault if there is one.

    Examples
    --------
    >>> rows = parse_libsvm(b"1 3:0.5 7:2\\n-1 2:1e-3 # a comment\\n")
    >>> rows.labels.tolist(), rows.indptr.tolist(), rows.indices.tolist()
    ([1.0, -1.0], [0, 2, 3], [3, 7, 2])
    """
    data = as_lines(chunk)
    lines, colons = count_byte(data, 10), count_byte(data, 58)
    labels, indptr = np.empty(lines), np.empty(lines + 1, np.int32)
    indices, values = np.empty(colons, np.uint64), np.empty(colons, np.float32)
    fault, rows, entries, place = libsvm_rows(data, labels, indptr, indices, values)
    found = indices[:entries].view(np.int64)
    return LibsvmRows(labels[:rows], indptr[: rows + 1], found, values[:entries], fault, int(place))


@dataclass(frozen=True, slots=True)
class LibsvmFormat:
    """LibSVM lines as rows of ``label``, ``indices`` and ``values``; see `text.TextFormat`."""

    name: str
    skip: int = 0

    @property
    def schema(self) -> pa.Schema:
        """The three columns that all LibSVM text has."""
        return SCHEMA

    def parse(
        self,
        chunk: Chunk,
        columns: Sequence[str] | None = None,
        *,
        name: str | None = None,
        first_line: LineNumber = 1,
    ) -> pa.RecordBatch:
        """Read whole lines; the Arrow columns share the memory of the arrays parsed into."""
        data = as_lines(chunk)
        picks = column_numbers(SCHEMA, columns, place=name or self.name)
        rows = parse_libsvm(data)
        if rows.fault != OK:
            raise _error(data, rows, place=Location(name or self.name, line=line_number(data, rows.place, first_line)))
        indptr = pa.array(rows.indptr)
        made = [
            pa.array(rows.labels),
            pa.ListArray.from_arrays(indptr, pa.array(rows.indices), type=SCHEMA.field(1).type),
            pa.ListArray.from_arrays(indptr, pa.array(rows.values), type=SCHEMA.field(2).type),
        ]
        return pa.RecordBatch.from_arrays([made[i] for i in picks], schema=pa.schema([SCHEMA.field(i) for i in picks]))


def libsvm_format(name: str, sample: bytes = b"") -> LibsvmFormat:
    """Return the format of LibSVM text that begins with ``sample``.

    Examples
    --------
    >>> libsvm_format("a.svm").parse(b"1 3:0.5\\n").to_pylist()
    [{'label': 1.0, 'indices': [3], 'values': [0.5]}]
    """
    return LibsvmFormat(name, len(BYTE_ORDER_MARK) if sample.startswith(BYTE_ORDER_MARK) else 0)


class LibsvmSource(TextSource):
    """LibSVM files as blocks of sparse rows.

    Parameters
    ----------
    paths : path, folder, glob, or a list of these
        Text files, read in this order.
    block_size : int or str, optional
        Bytes in a block, such as ``"256KB"``; by default 1 MB, less for small files.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, "a.svm")
    >>> _ = path.write_text("1 3:0.5 7:2\\n-1 2:1\\n")
    >>> with LibsvmSource(path) as source:
    ...     source.read(0, ["label"]).to_pydict()
    {'label': [1.0, -1.0]}
    """

    def __init__(self, paths: PathLike | Sequence[PathLike], *, block_size: int | str | None = None) -> None:
        files = open_text(paths, suffixes=FILE_FORMATS["libsvm"].suffixes)
        try:
            for f in files:
                f.skip = libsvm_format(f.name, f.file.read_at(0, min(3, f.file.size))).skip
            sample = files[0].sample()
            format = libsvm_format(files[0].name, sample)
            rows = len(format.parse(sample[format.skip :], ["label"]))
            if rows == 0 and len(sample) == files[0].file.size and len(files) == 1:
                raise DataError(f"{files[0].name} has no rows, only empty lines or comments; give a file with rows")
            super().__init__(files, format, line_bytes=len(sample) / max(rows, 1), block_size=block_size)
        except BaseException:
            close_all(files)
            raise


def _error(data: NDArray[np.uint8], rows: LibsvmRows, *, place: Location) -> ParseError:
    """Return the error for the fault at a place."""
    line = line_at(data, rows.place)
    token = data[rows.place : rows.place + 1000].tobytes().split()[0].split(b"#")[0].decode("utf-8", "replace")
    shown = show_text(token)
    if rows.fault == BAD_LABEL:
        if ":" in token:
            return ParseError(
                f"the line begins with {shown}, not with a label", place=place, fixes=["put a number before it"]
            )
        if "," in token:
            return ParseError(
                f"{shown} are several labels",
                place=place,
                fixes=["one number is needed: keep one of them, or make a file per label"],
            )
        return ParseError(
            f"the label {shown} is not a number", place=place, fixes=["replace it by one, such as 1 or -1"]
        )
    if rows.fault == BAD_ORDER:
        return ParseError(
            f"index {shown} does not come after the one before it", place=place, fixes=["sort the indices of each line"]
        )
    if rows.fault == BAD_INDEX:
        return ParseError(
            f"the index of {shown} is above 9223372036854775807", place=place, fixes=["hash or renumber the features"]
        )
    hint = " (indices cannot be negative)" if token.startswith("-") else ""
    return ParseError(
        f"{shown} is not an index:value pair{hint}, in the line {show_text(line)}",
        place=place,
        fixes=["write pairs such as 3:0.5, with blanks between them"],
    )
