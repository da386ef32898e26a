"""Tables with all their columns: nulls, text, dates and `?` stay as published, in files, databases and groups.

The fourteen tables of ../shared/data/tables; us_flights with what is known before departure; kdd99 with its three columns of
text; online_retail, whose label is whether the customer of a line is known (``CustomerID``, null in a quarter of the rows and
then left out). Large tables are cut to rows drawn with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.defaults import tables
from benchmarks.defaults.tables import AFTER_DEPARTURE, LABEL, DefaultsTable, Part

IN_FLIGHT = ("DepTime", "TaxiOut", "TaxiIn", "ArrTime", "ActualElapsedTime", "AirTime")
"""Columns of the flights that state no delay and yet are not known before departure."""


def whole_table(
    name: str, data: pa.Table, *, classes: bool, label: str = LABEL, layout: str = "parquet"
) -> DefaultsTable:
    """Make a table of all columns but the label, with their types, nulls and order."""
    labels = data[label].combine_chunks().to_numpy(zero_copy_only=False)
    if labels.dtype == object:
        labels = labels.astype(str)
    return DefaultsTable(name, Part(data.drop_columns([label]), labels), classes, whole=True, layout=layout)


def _parquet(name: str, *, classes: bool) -> DefaultsTable:
    return whole_table(name, pq.read_table(tables.FOLDER / "tables" / f"{name}.parquet"), classes=classes)


def _hypothyroid() -> DefaultsTable:
    """Read a table that is published as CSV, in which `?` stands for a missing value."""
    data = pa_csv.read_csv(
        tables.FOLDER / "tables" / "hypothyroid.csv", convert_options=pa_csv.ConvertOptions(strings_can_be_null=False)
    )
    return whole_table("hypothyroid", data, classes=True, layout="csv")


def _us_flights() -> DefaultsTable:
    data, late = tables.late_flights()
    known = data.drop_columns([*AFTER_DEPARTURE, *IN_FLIGHT])
    return whole_table("us_flights", known.append_column(LABEL, late), classes=True)


def _kdd99() -> DefaultsTable:
    data, kind = tables.kdd99_rows()
    attack = pc.cast(pc.not_equal(kind, "normal"), pa.int64())
    return whole_table("kdd99", data.append_column(LABEL, attack), classes=True)


def _online_retail() -> DefaultsTable:
    data = pq.read_table(tables.FOLDER / "online_retail" / "online_retail.parquet")
    known = pc.cast(pc.is_valid(data["CustomerID"]), pa.int64())
    return whole_table("online_retail", data.drop_columns(["CustomerID"]).append_column(LABEL, known), classes=True)


WHOLE_READERS: dict[str, Callable[[], DefaultsTable]] = {
    **{name: partial(_parquet, name, classes=True) for name in (*tables.CLASSES, *tables.WITHOUT_NUMBERS)},
    "hypothyroid": _hypothyroid,
    **{name: partial(_parquet, name, classes=False) for name in tables.NUMBERS},
    "us_flights": _us_flights,
    "kdd99": _kdd99,
    "online_retail": _online_retail,
}
