"""The real data sets in ../shared/data, brought into the fast layout in a given order.

Each is split into training and test rows, and the training rows are ordered as stored where storage is clustered
by itself, by label (`clustered`), or by one feature (`ordered`). Nothing here is needed by the tests.
"""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file

from benchmarks.harness import ROOT
from penstock.blocks.conversion import convert
from penstock.blocks.memory import ArraySource
from penstock.columns.hashing import Hashed

FOLDER = ROOT.parent / "shared" / "data"
Rows = tuple[np.ndarray | sp.csr_matrix, np.ndarray]


@dataclass(frozen=True, slots=True)
class RealData:
    """A data set: how it is read, and in which orders its training rows are worth storing."""

    name: str
    read: Callable[[], tuple[Rows, Rows]]
    orders: tuple[str, ...] = ("clustered", "ordered")
    standardize: bool = False
    seeds: int = 3
    blocks: int = 1000

    def write(self, folder: Path, order: str) -> tuple[Path, Path]:
        """Write training and test rows as Arrow files; return their paths."""
        (x, y), (test_x, test_y) = self.read()
        picks = _arrange(x, y, order)
        paths = folder / f"{self.name}-{order}.arrow", folder / f"{self.name}-test.arrow"
        width = x.shape[1]
        size = (x.nnz * 8 if sp.issparse(x) else 4 * width * len(y)) + 4 * len(y)
        convert(ArraySource(x[picks], y[picks]), paths[0], label="label", block_size=max(256, size // self.blocks))
        convert(ArraySource(test_x, test_y), paths[1], label="label")
        return paths


def _arrange(x: np.ndarray | sp.csr_matrix, y: np.ndarray, order: str) -> np.ndarray:
    if order == "clustered":
        return np.argsort(y, kind="stable")
    if order == "ordered":
        # The feature that varies most: a column of zeros would leave the rows as they are.
        dense = x.toarray() if sp.issparse(x) and x.shape[1] < 1000 else x
        column = np.asarray(dense[:, int(np.argmax(np.asarray(dense.std(axis=0)).ravel()))]).ravel()
        return np.argsort(column, kind="stable")
    return np.arange(len(y))


def _split(x: np.ndarray | sp.csr_matrix, y: np.ndarray, share: float = 0.2) -> tuple[Rows, Rows]:
    test = np.random.default_rng(0).random(len(y)) < share
    return (x[~test], y[~test]), (x[test], y[test])


def _libsvm(path: str, width: int) -> Rows:
    with lzma.open(FOLDER / path) as file:
        x, y = load_svmlight_file(file, n_features=width, dtype=np.float32)
    return x.tocsr(), y.astype(np.float32)


def _cod_rna() -> tuple[Rows, Rows]:
    x, y = _libsvm("cod_rna/cod-rna_scaled.svm.xz", 8)
    return _split(x.toarray(), y)


def _a9a() -> tuple[Rows, Rows]:
    return _libsvm("a9a/a9a.xz", 123), _libsvm("a9a/a9a.t.xz", 123)


def _w8a() -> tuple[Rows, Rows]:
    return _split(*_libsvm("w8a/w8a.xz", 300))


def _higgs() -> tuple[Rows, Rows]:
    def read(name: str) -> Rows:
        with lzma.open(FOLDER / "higgs_10k" / name) as file:
            table = np.loadtxt(file, delimiter=",", dtype=np.float32)
        return table[:, 1:], table[:, 0]

    return read("higgs_train_10k.csv.xz"), read("higgs_test_5k.csv.xz")


def _kdd99() -> tuple[Rows, Rows]:
    def read(name: str) -> Rows:
        with gzip.open(FOLDER / "kdd99_10pct" / name, "rt") as file:
            lines = [line.rstrip(".\n").split(",") for line in file]
        y = np.array([line[-1] != "normal" for line in lines], np.float32)
        numbers = [i for i in range(41) if i not in (1, 2, 3)]
        return np.array([[line[i] for i in numbers] for line in lines], np.float32), y

    return _split(*read("kddcup.data_10_percent.gz"))


def _imdb() -> tuple[Rows, Rows]:
    table = pq.read_table(FOLDER / "imdb" / "imdb_labelled.parquet")
    rows = Hashed.parse("text:2^18:words").encode(table["text"].combine_chunks())
    shape = (len(rows), rows.width)
    x = sp.csr_matrix((np.sign(rows.values), rows.indices.astype(np.int64), rows.indptr.astype(np.int64)), shape)
    x = sp.csr_matrix(sp.diags(1 / np.sqrt(np.maximum(np.diff(x.indptr), 1))) @ x, dtype=np.float32)
    y = (np.asarray(table["label"].combine_chunks().to_pylist()) == "pos").astype(np.float32)
    train = np.asarray(table["split"].combine_chunks().to_pylist()) == "train"
    return (x[train], y[train]), (x[~train], y[~train])


REAL = (
    RealData("cod_rna", _cod_rna, ("stored", "clustered", "ordered")),
    RealData("a9a", _a9a, seeds=1, blocks=1000),
    RealData("w8a", _w8a, ("stored", "clustered", "ordered"), seeds=1, blocks=1000),
    RealData("higgs", _higgs, standardize=True),
    RealData("kdd99", _kdd99, ("stored", "clustered", "ordered"), standardize=True),
    RealData("imdb", _imdb, ("stored",), seeds=1, blocks=1000),
)
