"""A log of searches as it comes from a warehouse: numbers, categories, users, words and times, 5 % of all values null."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

CHUNK = 100_000
NULLS = 0.05
LABEL = "clicked"
NUMBERS = tuple(f"n{at}" for at in range(10))
LEVELS = {"device": 5, "country": 60, "campaign": 2_000, "city": 8_000, "user": 1_000_000}
"""The columns of categories, and of how many values each is."""
WORDS = 20_000
TEXT, TIME = "query", "time"
_START = np.datetime64("2025-01-01", "us")


def make_rows(rows: int, seed: Sequence[int]) -> pa.Table:
    """Make rows of which every column tells something about the label; the teacher is the same for all seeds."""
    rng, teacher = np.random.default_rng(seed), np.random.default_rng(0)
    columns: dict[str, pa.Array] = {}
    margin = rng.logistic(size=rows) - 1.2

    def missing() -> np.ndarray:
        return rng.random(rows) < NULLS

    for name in NUMBERS:
        values, absent = rng.normal(50, 10, rows), missing()
        margin += np.where(absent, 0, (values - 50) / 10 * teacher.normal(scale=0.3))
        columns[name] = pa.array(values, mask=absent)
    for name, levels in LEVELS.items():
        # Some values are frequent and most are rare, as in real logs.
        codes, absent = (levels ** rng.random(rows)).astype(np.int32) - 1, missing()
        margin += np.where(absent, 0, teacher.normal(scale=0.4, size=levels).astype(np.float32)[codes])
        texts = pc.binary_join_element_wise(name, pa.array(codes).cast(pa.string()), "_")
        columns[name] = pc.if_else(pa.array(absent), pa.scalar(None, pa.string()), texts)
    counts = rng.integers(2, 8, rows)
    ends = np.concatenate([[0], counts.cumsum()])
    words = (WORDS ** rng.random(ends[-1])).astype(np.int32) - 1
    effects = teacher.normal(scale=0.3, size=WORDS).astype(np.float32)
    margin += np.add.reduceat(effects[words], ends[:-1])
    vocabulary = pa.array([f"word{word}" for word in range(WORDS)])
    lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), vocabulary.take(pa.array(words)))
    columns[TEXT] = pc.if_else(pa.array(missing()), pa.scalar(None, pa.string()), pc.binary_join(lists, " "))
    seconds = rng.integers(0, 365 * 86_400, rows)
    margin += 0.5 * np.sin(seconds % 86_400 / 86_400 * 2 * np.pi)
    columns[TIME] = pa.array(_START + (seconds * 1_000_000).astype("timedelta64[us]"), mask=missing())
    return pa.table({**columns, LABEL: (margin > 0).astype(np.int8)})


def write_raw(path: Path, *, nbytes: int) -> int:
    """Write row groups until a file has so many bytes; return its rows."""
    rows = 0
    first = make_rows(CHUNK, (1, 0))
    with pq.ParquetWriter(path, first.schema) as writer:
        while True:
            writer.write_table(first if not rows else make_rows(CHUNK, (1, rows)))
            rows += CHUNK
            if path.stat().st_size >= nbytes:
                return rows


def write_held_out(path: Path, *, rows: int) -> None:
    """Write rows that no training sees."""
    pq.write_table(make_rows(rows, (2, 0)), path)
