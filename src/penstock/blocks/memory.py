"""Data already in memory as a source: arrays, sparse matrices, tables. Blocks are slices; nothing is copied
that already has the right type.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr
from penstock.blocks.base import Source, require_block, select_columns
from penstock.blocks.frames import frame_to_arrow
from penstock.blocks.refined_source import RefinedSource, by_rows
from penstock.columns.pairs import with_pair_width
from penstock.errors import FeatureError, SourceError, UsageError

BLOCK_SIZE = 256 * 1024


class TableSource(Source):
    """Record batches in memory, served in slices.

    Parameters
    ----------
    batches : list of pyarrow.RecordBatch
        The rows, with equal columns.
    block_size : int
        Bytes of a block, about.
    name : str
        What messages call the data.

    Examples
    --------
    >>> import pyarrow as pa
    >>> source = TableSource.of(pa.table({"x": [1.0, 2.0], "y": [0, 1]}))
    >>> source.read(0, ["y"]).to_pydict()
    {'y': [0, 1]}
    """

    def __init__(
        self,
        batches: Sequence[pa.RecordBatch],
        *,
        schema: pa.Schema,
        block_size: int | None = None,
        name: str = "memory",
    ) -> None:
        self.name = name
        self.schema = schema
        self._batches: list[pa.RecordBatch] | None = list(batches)
        pieces: list[tuple[int, int, int, float]] = []
        for number, batch in enumerate(batches):
            if not batch.num_rows:
                continue
            row_bytes = max(batch.nbytes / batch.num_rows, 1.0)
            size = max(int((block_size or BLOCK_SIZE) / row_bytes), 1)
            pieces += [(number, at, min(size, batch.num_rows - at), row_bytes) for at in range(0, batch.num_rows, size)]
        self._pieces = pieces
        self.block_rows = np.array([p[2] for p in pieces], np.int64)
        self.block_bytes = np.array([int(p[2] * p[3]) for p in pieces], np.int64)

    @classmethod
    def of(cls, table: Any, *, block_size: int | None = None, name: str = "table") -> TableSource:
        """Take a table in memory: see `penstock.blocks.frames`."""
        table = frame_to_arrow(table)
        return cls(table.to_batches(), schema=table.schema, block_size=block_size, name=name)

    @cached_property
    def fingerprint(self) -> str:
        """A hash over all values."""
        digest = hashlib.blake2b(str(self.schema).encode(), digest_size=16)
        for block in range(len(self._pieces)):
            # Written out, a slice holds its own rows alone, whatever buffers it shares.
            digest.update(self.read(block).serialize())
        return digest.hexdigest()

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return a slice; only the columns named, in that order."""
        require_block(block, len(self._pieces), name=self.name)
        return self._read_rows(block, 0, int(self.block_rows[block]), columns)

    def refine(self, rows: int, most: int) -> RefinedSource:
        """Return the same rows in smaller slices; see `BlockSource.refine`."""
        return by_rows(self, rows, self._read_rows)

    def close(self) -> None:
        """Let go of the data."""
        self._batches = None

    def _read_rows(self, block: int, start: int, stop: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        if self._batches is None:
            raise SourceError(f"{self.name} is closed")
        number, at, _, _ = self._pieces[block]
        return select_columns(self._batches[number], columns, place=self.name).slice(at + start, stop - start)


class ArraySource(TableSource):
    """Arrays in memory: dense rows or a SciPy sparse matrix, with targets and weights.

    The columns are ``features`` (a fixed-size list) or ``indices`` and ``values``, then ``label`` and
    ``weight`` where given. Float32 rows are shared, not copied.

    Examples
    --------
    >>> import numpy as np
    >>> source = ArraySource(np.eye(3, dtype=np.float32), [0, 1, 1])
    >>> source.read(0).schema.names
    ['features', 'label']
    """

    def __init__(
        self, X: Any, y: Any = None, *, weight: Any = None, block_size: int | None = None, name: str = "arrays"
    ) -> None:
        batch = to_arrow(X, y, weight=weight)
        super().__init__([batch], schema=batch.schema, block_size=block_size, name=name)


def to_arrow(X: Any, y: Any = None, *, weight: Any = None) -> pa.RecordBatch:
    """Return arrays, or a `Batch`, as a record batch with the columns of `ArraySource`."""
    if isinstance(X, Batch):
        X, y, weight = X.x, X.y if y is None else y, X.weight if weight is None else weight
    sparse = isinstance(X, Csr) or hasattr(X, "tocsr")
    columns = _sparse_columns(X) if sparse else _dense_columns(X)
    rows = len(next(iter(columns.values())))
    for column, values in (("label", y), ("weight", weight)):
        if values is not None:
            array = _column(values)
            if len(array) != rows:
                raise UsageError(f"{column} has {len(array)} values for {rows} rows of X")
            columns[column] = array
    batch = pa.RecordBatch.from_pydict(columns)
    width = (X.width if isinstance(X, Csr) else X.shape[1]) if sparse else 0
    return pa.RecordBatch.from_arrays(batch.columns, schema=with_pair_width(batch.schema, width)) if width else batch


def _dense_columns(X: Any) -> dict[str, pa.Array]:
    x = np.asarray(X)
    if x.ndim == 1:
        x = x[:, None]
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise FeatureError(f"X is an array of {x.dtype} with {x.ndim} dimensions; rows of numbers are needed")
    flat = np.ascontiguousarray(x, np.float32).reshape(-1)
    return {"features": pa.FixedSizeListArray.from_arrays(pa.array(flat), x.shape[1])}


def _sparse_columns(X: Any) -> dict[str, pa.Array]:
    if isinstance(X, Csr):
        indptr, indices, values = X.indptr, X.indices, X.values
    else:
        X = X.tocsr()
        if not X.has_canonical_format:  # entries of one place count together, and steps go by the sizes of rows
            X = X.copy()
            X.sum_duplicates()
        indptr, indices, values = X.indptr, X.indices, X.data
    large = int(indptr[-1]) > np.iinfo(np.int32).max
    offsets = pa.array(np.asarray(indptr, np.int64 if large else np.int32))
    kind = pa.LargeListArray if large else pa.ListArray
    narrow = not len(indices) or int(indices.max()) <= np.iinfo(np.uint32).max
    where = indices.view(np.uint32) if indices.dtype == np.int32 else indices.astype(np.uint32 if narrow else np.uint64)
    return {
        "indices": kind.from_arrays(offsets, pa.array(where)),
        "values": kind.from_arrays(offsets, pa.array(np.asarray(values, np.float32))),
    }


def _column(values: Any) -> pa.Array:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    array = np.asarray(values)
    return pa.array(array.tolist()) if array.dtype.kind in "UO" else pa.array(np.ascontiguousarray(array.reshape(-1)))


def as_table(data: Any) -> Any:
    """Return arrays, or tensors that NumPy can see, as a table; anything else as it is.

    Examples
    --------
    >>> as_table({"tokens": np.zeros((4, 8), np.uint16), "label": np.arange(4)}).schema.field("tokens").type.list_size
    8
    >>> as_table("data.arrow")
    'data.arrow'
    """
    if _is_array(data):
        return as_table({"features": data})
    if not isinstance(data, Mapping):
        return data
    columns = {str(name): np.asarray(value) for name, value in data.items()}
    lengths = {name: len(column) if column.ndim else None for name, column in columns.items()}
    if not columns or None in lengths.values() or len(set(lengths.values())) > 1:
        raise UsageError(f"a dict of columns needs arrays of one length; these have {lengths}")
    return pa.table({name: _shaped_column(column, name) for name, column in columns.items()})


def _is_array(data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return True
    # A torch tensor, say; tables and data frames also turn into arrays, but have columns of their own.
    return hasattr(data, "__array__") and hasattr(data, "ndim") and not hasattr(data, "columns")


def _shaped_column(array: NDArray[Any], name: str) -> pa.Array:
    if array.ndim == 1:
        return pa.array(array)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"column {name!r} is an array of {array.dtype} in {array.ndim} dimensions; give numbers")
    values = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values
