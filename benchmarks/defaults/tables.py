"""The tables that defaults are judged on: real ones of ../shared/data, and four that scikit-learn brings along.

Only numbers are kept: columns of text are left out, then columns that are null in more than half of the rows, then rows
with nulls. What is left keeps its types and its published order. Large tables are cut to rows drawn with a fixed seed.
"""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import scipy.sparse as sp

from benchmarks.harness import ROOT

FOLDER = Path(os.environ.get("PENSTOCK_DATA", ROOT.parent / "shared" / "data"))
LABEL = "label"
SEED = 0
TEST_SHARE = 0.2
LARGEST = 100_000
KDD_NAMES = 41
KDD_TEXT = (1, 2, 3)
"""Columns of KDD Cup 1999 that hold text: protocol, service and flag."""
AFTER_DEPARTURE = (
    *("DepDelay", "DepDel15", "ArrDelay", "ArrDel15", "Cancelled", "Diverted"),
    *("CarrierDelay", "WeatherDelay", "NASDelay", "SecurityDelay", "LateAircraftDelay"),
)
"""Columns of the flights that state the delay, or are null unless a flight was late."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows with labels: features as columns of a table, or as one sparse matrix."""

    x: pa.Table | sp.csr_matrix
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    @property
    def width(self) -> int:
        return int(self.x.num_columns if isinstance(self.x, pa.Table) else self.x.shape[1])

    @property
    def sparse(self) -> bool:
        return not isinstance(self.x, pa.Table)

    def matrix(self) -> np.ndarray | sp.csr_matrix:
        """Return the features as scikit-learn takes them."""
        if isinstance(self.x, pa.Table):
            return np.column_stack([column.to_numpy().astype(np.float64) for column in self.x.columns])
        return self.x

    def take(self, rows: np.ndarray) -> Part:
        return Part(self.x.take(rows) if isinstance(self.x, pa.Table) else self.x[rows], self.y[rows])


@dataclass(frozen=True, slots=True)
class DefaultsTable:
    """A table to learn from: its rows, whether labels are classes, and how many rows it was cut from, if it was.

    A ``whole`` table has its text, dates and nulls; ``layout`` is what files of it are by default.
    """

    name: str
    rows: Part
    classes: bool
    cut_from: int | None = None
    whole: bool = False
    layout: str = "parquet"

    def split(self) -> tuple[Part, Part]:
        """Return the training and test rows, each in published order."""
        test = np.zeros(len(self.rows), bool)
        order = np.random.default_rng(SEED).permutation(len(self.rows))
        test[order[: round(TEST_SHARE * len(self.rows))]] = True
        return self.rows.take(np.flatnonzero(~test)), self.rows.take(np.flatnonzero(test))

    @property
    def class_count(self) -> int:
        return len(np.unique(self.rows.y)) if self.classes else 0


def sorted_by_label(part: Part) -> Part:
    """Return the rows in the order of their labels."""
    return part.take(np.argsort(part.y, kind="stable"))


def cut(table: DefaultsTable, most: int) -> DefaultsTable:
    """Return the table, or rows of it drawn with a fixed seed if there are more than ``most``."""
    rows = len(table.rows)
    if rows <= most:
        return table
    picks = np.sort(np.random.default_rng(SEED).permutation(rows)[:most])
    return replace(table, rows=table.rows.take(picks), cut_from=table.cut_from or rows)


def numbers_only(data: pa.Table) -> pa.Table:
    """Return the columns of numbers, without those that are mostly null, and the rows without nulls."""
    names = [
        field.name
        for field in data.schema
        if (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
        and data[field.name].null_count <= len(data) / 2
    ]
    return data.select(names).drop_null()


def from_arrow(name: str, data: pa.Table, *, classes: bool, label: str = LABEL) -> DefaultsTable:
    """Make a table of the numeric columns; labels may be text."""
    y, kept = data[label].combine_chunks(), data.drop_columns([label])
    numbered = numbers_only(kept.append_column("penstock_row", pa.array(np.arange(len(kept)))))
    rows = numbered["penstock_row"].to_numpy()
    labels = np.asarray(y.take(pa.array(rows)).to_pylist())
    return DefaultsTable(name, Part(numbered.drop_columns(["penstock_row"]), labels), classes)


def from_matrix(name: str, x: np.ndarray, y: np.ndarray, *, classes: bool) -> DefaultsTable:
    """Make a table of an array's columns."""
    return DefaultsTable(name, Part(pa.table({f"x{i}": column for i, column in enumerate(x.T)}), y), classes)


def _parquet(name: str, *, classes: bool) -> DefaultsTable:
    return from_arrow(name, pq.read_table(FOLDER / "tables" / f"{name}.parquet"), classes=classes)


def _hypothyroid() -> DefaultsTable:
    options = pa_csv.ConvertOptions(null_values=["?"])
    return from_arrow(
        "hypothyroid", pa_csv.read_csv(FOLDER / "tables" / "hypothyroid.csv", convert_options=options), classes=True
    )


def _libsvm(name: str, path: str, width: int, *, dense: bool = False) -> DefaultsTable:
    from sklearn.datasets import load_svmlight_file

    with lzma.open(FOLDER / path) as file:
        x, y = load_svmlight_file(file, n_features=width, dtype=np.float32)
    if dense:
        return from_matrix(name, x.toarray(), y.astype(np.int64), classes=True)
    return DefaultsTable(name, Part(x.tocsr(), y.astype(np.int64)), classes=True)


def _higgs() -> DefaultsTable:
    with lzma.open(FOLDER / "higgs_10k" / "higgs_train_10k.csv.xz") as file:
        data = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return from_matrix("higgs_10k", data[:, 1:], data[:, 0].astype(np.int64), classes=True)


def kdd99_rows() -> tuple[pa.Table, pa.ChunkedArray]:
    """Read all columns of KDD Cup 1999, ``x0`` and on, and the kind of traffic."""
    names = [f"x{i}" for i in range(KDD_NAMES)]
    with gzip.open(FOLDER / "kdd99_10pct" / "kddcup.data_10_percent.gz") as file:
        data = pa_csv.read_csv(file, read_options=pa_csv.ReadOptions(column_names=[*names, LABEL]))
    return data.drop_columns([LABEL]), pc.utf8_rtrim(data[LABEL], characters=".")


def _kdd99(name: str, *, kinds: bool) -> DefaultsTable:
    """Read attacks or not or, with ``kinds``, the kinds of traffic of which there are 100 rows or more."""
    data, kind = kdd99_rows()
    data = data.drop_columns([f"x{i}" for i in KDD_TEXT])
    if not kinds:
        attack = pc.cast(pc.not_equal(kind, "normal"), pa.int64())
        return from_arrow(name, data.append_column(LABEL, attack), classes=True)
    counts = {item["values"]: item["counts"] for item in pc.value_counts(kind).to_pylist()}
    frequent = pa.array([value for value, count in counts.items() if count >= 100])
    whole = data.append_column(LABEL, kind).filter(pc.is_in(kind, frequent))
    return cut(from_arrow(name, whole, classes=True), LARGEST // 4)


def _household_power() -> DefaultsTable:
    data = pq.read_table(FOLDER / "household_power" / "household_power.parquet")
    return from_arrow("household_power", data, classes=False, label="Voltage")


def late_flights() -> tuple[pa.Table, pa.ChunkedArray]:
    """Read the flights that arrived, and whether each was more than 15 minutes late."""
    data = pq.read_table(FOLDER / "us_flights_jan2024" / "bts_2024_01.parquet")
    data = data.filter(pc.is_valid(data["ArrDelay"]))
    return data, pc.cast(pc.greater(data["ArrDelay"], 15), pa.int64())


def _us_flights() -> DefaultsTable:
    data, late = late_flights()
    return from_arrow("us_flights", data.drop_columns(list(AFTER_DEPARTURE)).append_column(LABEL, late), classes=True)


def _fashion_mnist() -> DefaultsTable:
    def read(name: str, header: int) -> np.ndarray:
        with lzma.open(FOLDER / "fashion_mnist" / f"{name}.xz") as file:
            return np.frombuffer(file.read(), np.uint8, offset=header)

    x, y = read("train-images-idx3-ubyte", 16).reshape(-1, 784), read("train-labels-idx1-ubyte", 8)
    return cut(from_matrix("fashion_mnist", x, y.astype(np.int64), classes=True), LARGEST // 10)


def _scikit_learn(name: str, *, classes: bool) -> DefaultsTable:
    from sklearn import datasets

    data: Any = getattr(datasets, f"load_{name}")()
    return from_matrix(name, data.data, data.target, classes=classes)


CLASSES = ("ada", "german_credit", "page_blocks", "segment", "stroke", "sylva")
NUMBERS = ("abalone", "communities", "compactiv", "power_plant", "puma32h")
WITHOUT_NUMBERS = ("nursery", "splice")
"""Tables of text alone: nothing of them is left."""

READERS: dict[str, Callable[[], DefaultsTable]] = {
    **{name: partial(_scikit_learn, name, classes=True) for name in ("breast_cancer", "digits", "wine")},
    "diabetes": partial(_scikit_learn, "diabetes", classes=False),
    **{name: partial(_parquet, name, classes=True) for name in CLASSES},
    **{name: partial(_parquet, name, classes=False) for name in NUMBERS},
    "hypothyroid": _hypothyroid,
    "higgs_10k": _higgs,
    "cod_rna": partial(_libsvm, "cod_rna", "cod_rna/cod-rna_scaled.svm.xz", 8, dense=True),
    "a9a": partial(_libsvm, "a9a", "a9a/a9a.xz", 123),
    "w8a": partial(_libsvm, "w8a", "w8a/w8a.xz", 300),
    "kdd99": partial(_kdd99, "kdd99", kinds=False),
    "kdd99_kinds": partial(_kdd99, "kdd99_kinds", kinds=True),
    "household_power": _household_power,
    "us_flights": _us_flights,
    "fashion_mnist": _fashion_mnist,
}


def read(name: str, *, most: int = LARGEST) -> DefaultsTable:
    """Read a table by its name, cut to at most ``most`` rows."""
    return cut(READERS[name](), most)
