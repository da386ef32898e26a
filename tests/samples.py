"""Rows with columns of every kind, as every kind of source, for the tests of batches.

A batch is compared with the table it came from by its ``row_number`` column.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from penstock.blocks import convert
from penstock.blocks.base import BlockSource
from penstock.blocks.fields import Fields
from penstock.blocks.memory import TableSource
from penstock.blocks.open import open as open_source
from penstock.blocks.refined_source import with_row_counts
from penstock.loader import Loader
from penstock.records import Ragged
from tests import kinds

ROWS = 200
PACKED = ["number", "small", "half", "when", "lasts", "image", "grid", "digest"]
FIXED = ["number", "small", "half", "flag", "when", "lasts", "image", "grid", "tensor", "flags", "digest"]
RAGGED = ["number", "tokens", "wide", "moments", "text", "long_text", "raw", "long_raw", "image"]
OBJECTS = ["number", "category", "code", "info", "nested", "switches", "day", "price"]
PLAIN = list(dict.fromkeys(PACKED + RAGGED))
"""Columns whose single rows are read by just their bytes, where they lie in an Arrow file."""
SOURCES = ("table", "converted", "arrow", "arrow-large", "arrow-lz4", "parquet")


def table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return rows with a column of every kind; ``number`` is the row's."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 6, rows)
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    storage = pa.array(rng.random((rows, 6), np.float32).tolist(), tensor.storage_type)
    words = ["", "a", "über", "two words", "日本"]
    lists = [rng.integers(0, 1000, n).tolist() for n in lengths]
    columns = {
        "number": pa.array(np.arange(rows), pa.int64()),
        "small": pa.array(rng.integers(0, 255, rows), pa.uint8()),
        "half": pa.array(rng.random(rows).astype(np.float16)),
        "flag": pa.array(rng.random(rows) < 0.5),
        "when": pa.array(rng.integers(0, 10**15, rows), pa.timestamp("us")),
        "lasts": pa.array(rng.integers(-100, 10**6, rows), pa.duration("s")),
        "image": pa.array(rng.integers(0, 255, (rows, 12)).tolist(), pa.list_(pa.uint8(), 12)),
        "grid": pa.array(rng.random((rows, 3, 2)).tolist(), pa.list_(pa.list_(pa.float64(), 2), 3)),
        "tensor": pa.ExtensionArray.from_storage(tensor, storage),
        "flags": pa.array((rng.random((rows, 3)) < 0.5).tolist(), pa.list_(pa.bool_(), 3)),
        "digest": pa.array([bytes(rng.integers(0, 255, 4).tolist()) for _ in range(rows)], pa.binary(4)),
        "tokens": pa.array(lists, pa.list_(pa.int32())),
        "wide": pa.array([each[:2] for each in lists], pa.large_list(pa.float32())),
        "moments": pa.array(lists, pa.list_(pa.timestamp("ms"))),
        "text": pa.array([words[n % 5] for n in lengths]),
        "long_text": pa.array([f"{n} {words[n % 5]}" for n in range(rows)], pa.large_string()),
        "raw": pa.array([bytes([n % 256] * (n % 5)) for n in range(rows)]),
        "long_raw": pa.array([words[n % 5].encode() for n in range(rows)], pa.large_binary()),
        "category": pa.array([words[n % 5] for n in range(rows)]).dictionary_encode(),
        "code": pa.array(np.arange(rows) % 3 * 100).dictionary_encode(),
        "info": pa.array([{"a": n, "b": str(n)} for n in range(rows)]),
        "nested": pa.array([[[n], [], each] for n, each in enumerate(lists)]),
        "switches": pa.array([[n % 2 == 0] * (n % 3) for n in range(rows)]),
        "day": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(days=n) for n in range(rows)]),
        "price": pa.array([Decimal(n).scaleb(-2) for n in range(rows)], pa.decimal128(10, 2)),
    }
    return pa.table(columns)


def store(kind: str, folder: Path, rows: pa.Table, *, block_rows: int = 20) -> BlockSource:
    """Write rows as one kind of source, in blocks of about so many rows, and open it."""
    path, row = folder / kind, max(1, rows.nbytes // max(1, len(rows)))
    if kind == "table":
        return TableSource.of(rows, block_size=block_rows * row)
    if kind == "converted":
        convert(rows, path.with_suffix(".arrow"), block_size=block_rows * row)
        return open_source(path.with_suffix(".arrow"))
    if kind == "parquet":
        parquet.write_table(rows, path.with_suffix(".parquet"), row_group_size=4 * block_rows)
        return open_source(path.with_suffix(".parquet"), block_size=block_rows * row)
    options = pa.ipc.IpcWriteOptions(compression="lz4" if kind == "arrow-lz4" else None)
    rows = rows.combine_chunks()
    with pa.ipc.new_file(path.with_suffix(".arrow"), rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=len(rows) if kind == "arrow-large" else block_rows)
    return open_source(path.with_suffix(".arrow"), block_size=block_rows * row)


def small_memory(source: BlockSource, order: str, columns: list[str] | None = None) -> int:
    """Return a budget of a few blocks: a little over the smallest that works."""
    source = with_row_counts(source)
    fields = Fields.of(source.schema, columns, numbered=True)
    with Loader(source, fields, order, memory=1, stretch=True) as smallest:
        return smallest.plan.memory + 4000


def plain(column: Any) -> list[Any]:
    """Return a column's rows as Python values; times as numbers of units."""
    if isinstance(column, Ragged):
        if column.values.dtype.kind in "mM":
            column = Ragged(column.offsets, column.values.view(np.int64))
        return [value.tolist() if isinstance(value, np.ndarray) else value for value in column]
    if column.dtype.kind in "mM":
        column = column.view(np.int64)
    return column.tolist()


def expected(rows: pa.Table) -> dict[str, list[Any]]:
    """Return the columns of a table as `plain` has them."""
    found = {}
    for name in rows.schema.names:
        column = rows[name].combine_chunks()
        kind = column.type
        if isinstance(column, pa.ExtensionArray):
            values = column.to_numpy_ndarray().tolist()
        elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
            values = column.cast(pa.int64()).to_pylist()
        elif pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
            values = column.cast(pa.list_(pa.int64())).to_pylist()
        elif pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
            values = [list(value) for value in column.to_pylist()]
        else:
            values = column.to_pylist()
        found[name] = values
    return found


def compare(batch: dict[str, Any], rows: dict[str, list[Any]]) -> list[int]:
    """Check all values of a batch against the table's, and return the numbers of its rows."""
    numbers: list[int] = batch["row_number"].tolist()
    for name, column in batch.items():
        if name != "row_number":
            assert plain(column) == [rows[name][n] for n in numbers], name
    return numbers


def whole(source: BlockSource) -> pa.Table:
    """Return all rows of a source."""
    return pa.Table.from_batches([source.read(block) for block in range(len(source.block_rows))])


__all__ = [
    "FIXED",
    "OBJECTS",
    "PACKED",
    "PLAIN",
    "RAGGED",
    "SOURCES",
    "compare",
    "expected",
    "kinds",
    "plain",
    "small_memory",
    "store",
]
