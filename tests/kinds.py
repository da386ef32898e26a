"""The same rows as every kind of source, for the tests of whatever stands on sources.

Feature 0 of a row is its number, so that a row can be recognised wherever it turns up.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import scipy.sparse as sp

from penstock.blocks import convert
from penstock.blocks.base import BlockSource
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.columns.choose import choose_features
from penstock.columns.recipe import Recipe
from penstock.loader import Loader

ROWS, WIDTH = 600, 4
DENSE = ("packed", "arrow", "parquet", "npy", "csv", "arrays")
SPARSE = ("packed-sparse", "libsvm", "arrays-sparse")
KINDS = DENSE + SPARSE
EXACT = tuple(kind for kind in KINDS if kind not in ("csv", "libsvm"))


def rows(count: int = ROWS, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return features, the first of them the row's number, and labels 0 and 1 in two runs."""
    x = np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32).round(3)
    x[:, 0] = np.arange(count)
    return x, (np.arange(count) >= count // 2).astype(np.int8)


def table(x: np.ndarray, y: np.ndarray) -> pa.Table:
    return pa.table({**{f"f{j}": x[:, j] for j in range(x.shape[1])}, "label": y})


def sparse(x: np.ndarray) -> sp.csr_matrix:
    """Return the rows with zeros left out, but for the first feature, which every row has."""
    kept = np.abs(x) > 0.5
    kept[:, 0] = True
    _owner, where = np.nonzero(kept)
    return sp.csr_matrix((x[kept], where, np.concatenate([[0], np.cumsum(kept.sum(axis=1))])), shape=x.shape)


def store(kind: str, folder: Path, x: np.ndarray, y: np.ndarray, *, block_rows: int = 40) -> BlockSource:
    """Write rows as one kind of source, in blocks of about so many rows, and open it."""
    path = folder / kind
    dense = 4 * x.shape[1] + y.itemsize
    if kind == "packed":
        convert(table(x, y), path.with_suffix(".arrow"), label="label", block_size=block_rows * dense)
        return open_source(path.with_suffix(".arrow"))
    if kind == "arrow":
        with pa.ipc.new_file(path.with_suffix(".arrow"), table(x, y).schema) as writer:
            writer.write_table(table(x, y), max_chunksize=block_rows)
        return open_source(path.with_suffix(".arrow"))
    if kind == "parquet":  # row groups of several blocks each
        parquet.write_table(table(x, y), path.with_suffix(".parquet"), row_group_size=5 * block_rows)
        return open_source(path.with_suffix(".parquet"), block_size=block_rows * dense)
    if kind == "npy":
        both = np.column_stack([x, y]).astype(np.float32)
        np.save(path.with_suffix(".npy"), both)
        return open_source(path.with_suffix(".npy"), block_size=block_rows * both.itemsize * both.shape[1])
    if kind == "csv":
        csv.write_csv(table(x, y), path.with_suffix(".csv"))
        return open_source(path.with_suffix(".csv"), block_size=block_rows * 30)
    if kind == "arrays":
        return ArraySource(x, y, block_size=block_rows * dense)
    matrix = sparse(x)
    if kind == "arrays-sparse":
        return ArraySource(matrix, y, block_size=block_rows * 8 * WIDTH)
    if kind == "packed-sparse":
        convert(ArraySource(matrix, y), path.with_suffix(".arrow"), label="label", block_size=block_rows * 6 * WIDTH)
        return open_source(path.with_suffix(".arrow"))
    assert kind == "libsvm"
    with path.with_suffix(".svm").open("w") as file:
        for i in range(len(y)):
            at = slice(matrix.indptr[i], matrix.indptr[i + 1])
            pairs = " ".join(f"{j}:{v:.9g}" for j, v in zip(matrix.indices[at], matrix.data[at], strict=True))
            file.write(f"{y[i]} {pairs}\n")
    return open_source(path.with_suffix(".svm"), block_size=block_rows * 30)


def recipe(source: BlockSource, *, weight: str | None = None) -> Recipe:
    """Settle the columns: the label is 'label', or the last column of a plain array."""
    label = "label" if "label" in source.schema.names else source.schema.names[-1]
    chosen = choose_features(source.schema, label=label, weight=weight, place=source.name)
    return chosen.with_width(WIDTH) if chosen.sparse else chosen


def small_memory(source: BlockSource, chosen: Recipe, order: str, **options: object) -> int:
    """Return a budget of a few blocks: a little over the smallest that works."""
    with Loader(source, chosen, order, memory=1, stretch=True, **options) as smallest:
        return smallest.plan.memory + 8000


def numbers(batches: object) -> np.ndarray:
    """Return the numbers of the rows in batches, in their order."""
    found = []
    for batch in batches:  # type: ignore[attr-defined]
        x = batch.x if isinstance(batch.x, np.ndarray) else batch.x.to_dense()
        found.append(x[:, 0].copy())
    return np.concatenate(found).astype(np.int64) if found else np.empty(0, np.int64)
