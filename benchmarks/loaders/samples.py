"""The data that all loaders are given: rows sorted by label, each carrying its own number in its first bytes.

The number lets a run check that a loader delivers the very bytes that were written, each row once in an epoch and
with its label. Rows are made anew for each format, in chunks, so that no writer needs memory for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

CHUNK = 8 << 20
"""Bytes of rows made at a time."""


@dataclass(frozen=True, slots=True)
class Data:
    """Rows of ``width`` numbers and a label of 0 (the first half) or 1."""

    name: str
    rows: int
    width: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        """The bytes of a row, label included."""
        return self.width * np.dtype(self.dtype).itemsize + 8

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes

    def first(self, rows: int) -> Data:
        """Return data of the same kind with at most so many rows."""
        return Data(self.name, min(rows, self.rows) // 2 * 2, self.width, self.dtype)

    def chunks(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Make all rows, a few megabytes at a time: their numbers and their labels."""
        size = max(CHUNK // self.row_bytes, 1)
        for start in range(0, self.rows, size):
            numbers = np.arange(start, min(start + size, self.rows))
            rng = np.random.Generator(np.random.SFC64(start))
            if self.dtype == "uint8":
                x = np.frombuffer(rng.bytes(len(numbers) * self.width), np.uint8).reshape(-1, self.width).copy()
                x[:, :8] = numbers[:, None].view(np.uint8)
            else:
                x = rng.standard_normal((len(numbers), self.width), np.dtype(self.dtype))
                x[:, 0] = numbers  # exact in float32 up to 16.7 million rows
            yield x, self.labels(numbers)

    def labels(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return (numbers >= self.rows // 2).astype(np.int64)

    def numbers(self, x: NDArray[Any]) -> NDArray[np.int64]:
        """Read the numbers of rows back from what a loader delivered."""
        if x.dtype != self.dtype or x.shape[1:] != (self.width,):
            raise ValueError(f"a batch of {x.dtype}{list(x.shape)} was delivered; {self.dtype}[n, {self.width}] is due")
        if self.dtype == "uint8":
            return np.ascontiguousarray(x[:, :8]).view(np.int64)[:, 0]
        return x[:, 0].astype(np.int64)

    @property
    def schema(self) -> pa.Schema:
        values = pa.list_(pa.from_numpy_dtype(np.dtype(self.dtype)), self.width)
        return pa.schema([("x", values), ("label", pa.int64())])

    def batches(self) -> pa.RecordBatchReader:
        """Return all rows as Arrow batches of a fixed-size list ``x`` and ``label``."""

        def made() -> Iterator[pa.RecordBatch]:
            for x, label in self.chunks():
                values = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), self.width)
                yield pa.RecordBatch.from_arrays([values, pa.array(label)], schema=self.schema)

        return pa.RecordBatchReader.from_batches(self.schema, made())


def records(rows: int = 200_000) -> Data:
    """Samples of 10 KB, as images or documents are."""
    return Data("records", rows // 2 * 2, 10_240, "uint8")


def table(rows: int = 16_000_000) -> Data:
    """Rows of 28 float32, as tables are."""
    return Data("rows", rows // 2 * 2, 28, "float32")


KINDS = {"records": records, "rows": table}


def balance(labels: NDArray[np.int64], batch_size: int) -> float:
    """Return the variance of the share of ones per batch over the binomial's: 1 a true shuffle, ``batch_size`` none.

    As `label_balance` of tests/order_quality.py, but around the share that all the data have: a run stopped early
    may have seen one label alone, which is no shuffle either.
    """
    batches = len(labels) // batch_size
    if not batches:
        raise ValueError(f"{len(labels)} labels make no batch of {batch_size}")
    shares = labels[: batches * batch_size].reshape(batches, batch_size).mean(axis=1)
    return float(((shares - 0.5) ** 2).mean() / (0.25 / batch_size))
