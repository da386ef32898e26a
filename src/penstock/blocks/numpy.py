"""NumPy ``.npy`` files: rows of an array, read by ``pread`` of a range of rows.

Columns are named by number ("0", "1", …), or by the fields of a structured array. Arrays of Python objects
are refused, never unpickled; arrays in Fortran order have no rows in one piece and are refused with the remedy.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.blocks.base import Source, require_block, require_columns
from penstock.blocks.refined_source import RefinedSource, by_rows
from penstock.blocks.storage import PathLike, fingerprint, open_file
from penstock.errors import CorruptFileError, FeatureError, SourceError

BLOCK_SIZE = 256 * 1024
_HEAD = 1 << 16


class NpySource(Source):
    """A ``.npy`` file as blocks of rows.

    Examples
    --------
    >>> import tempfile, os, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "a.npy")
    >>> np.save(path, np.arange(6.0).reshape(3, 2))
    >>> with NpySource(path) as source:
    ...     source.read(0, ["1"]).to_pydict()
    {'1': [1.0, 3.0, 5.0]}
    """

    def __init__(self, path: PathLike, block_size: int | None = None) -> None:
        self._file = open_file(path, random=True)
        self.name = self._file.name
        try:
            shape, fortran, self._dtype, self._start = self._read_header()
            self._columns = self._name_columns(shape, fortran)
        except BaseException:
            self.close()
            raise
        self.schema = pa.schema([(name, pa.from_numpy_dtype(kind)) for name, kind in self._columns])
        self._width = shape[1] if len(shape) == 2 else 1
        self._row_bytes = self._dtype.itemsize * self._width
        rows = shape[0]
        needed = self._start + rows * self._row_bytes
        if self._file.size < needed:
            size = self._file.size
            self.close()
            raise CorruptFileError(f"{self.name} is truncated: it has {size} bytes where {needed} are needed")
        size = max((block_size or BLOCK_SIZE) // self._row_bytes, 1)
        self._starts = np.arange(0, rows, size, dtype=np.int64)
        self.block_rows = np.minimum(size, rows - self._starts)
        self.block_bytes = self.block_rows * self._row_bytes

    @cached_property
    def fingerprint(self) -> str:
        """A hash over the data's content, or a sample of it."""
        return fingerprint([self._file])

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read a range of rows; only the columns named, in that order."""
        require_block(block, len(self.block_rows), name=self.name)
        return self._read_rows(block, 0, int(self.block_rows[block]), columns)

    def refine(self, rows: int, most: int) -> RefinedSource:
        """Return the same rows in smaller blocks; see `BlockSource.refine`."""
        return by_rows(self, rows, self._read_rows)

    def _read_rows(self, block: int, start: int, stop: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        wanted = self.schema.names if columns is None else list(columns)
        require_columns(self.schema, wanted, place=self.name)
        self._file.check()
        at = self._start + (int(self._starts[block]) + start) * self._row_bytes
        flat = np.frombuffer(self._file.read_at(at, (stop - start) * self._row_bytes), self._dtype)
        if self._dtype.names:
            arrays = [flat[name] for name in wanted]
        else:
            rows = flat.reshape(-1, self._width)
            arrays = [rows[:, int(name)] for name in wanted]
        fields = [self.schema.field(name) for name in wanted]
        return pa.RecordBatch.from_arrays([_to_arrow(a) for a in arrays], schema=pa.schema(fields))

    def check(self) -> None:
        """Raise `DataChangedError` if the file is not the one that was opened."""
        self._file.check()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_header(self) -> tuple[tuple[int, ...], bool, np.dtype[np.generic], int]:
        head = io.BytesIO(self._file.read_at(0, min(self._file.size, _HEAD)))
        try:
            version = np.lib.format.read_magic(head)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(head)
        except ValueError as error:
            raise CorruptFileError(f"{self.name} is not a .npy file, or a damaged one ({error})") from error
        return tuple(shape), bool(fortran), dtype, head.tell()

    def _name_columns(self, shape: tuple[int, ...], fortran: bool) -> list[tuple[str, np.dtype[np.generic]]]:
        kind = self._dtype
        if kind.hasobject:
            raise FeatureError(f"{self.name} holds Python objects, which are not read; save an array of numbers")
        if len(shape) not in (1, 2) or (kind.names and len(shape) != 1):
            raise FeatureError(f"{self.name} has {len(shape)} dimensions; rows need one or two: reshape it")
        if fortran and len(shape) == 2 and shape[1] > 1:
            raise SourceError(
                f"{self.name} is in Fortran order, in which no row lies in one piece; save it again by rows:"
                " np.save(path, np.ascontiguousarray(array))"
            )
        columns = (
            [(name, kind.fields[name][0]) for name in kind.names]
            if kind.names and kind.fields
            else [(str(i), kind) for i in range(shape[1] if len(shape) == 2 else 1)]
        )
        for name, field in columns:
            if field.kind not in "fiub":
                raise FeatureError(f"{self.name}: column {name!r} is {field}; numbers and booleans can be read")
        return columns


def _to_arrow(values: np.ndarray[tuple[int], np.dtype[np.generic]]) -> pa.Array:
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    return pa.array(np.ascontiguousarray(native))
