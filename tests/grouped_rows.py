"""Rows to be sorted by group, and what must have become of them."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.batch import Batch, Csr
from penstock.blocks import convert
from penstock.blocks.memory import TableSource
from penstock.events import Advanced
from penstock.groups.keys import to_text

MEMORY = "100MB"


def rows_table(rows=2000, *, groups=7, seed=0, weight=False):
    """Return rows whose feature ``row`` is three times their number: what numbers the rows, with gaps, would be left out."""
    rng = np.random.default_rng(seed)
    names = [None, *(f"city {n}/{n}" for n in range(groups - 1))]
    columns = {
        "city": pa.array([names[n] for n in rng.integers(0, groups, rows)], pa.string()),
        "row": pa.array(3 * np.arange(rows), pa.float32()),
        "x": pa.array(rng.random(rows, np.float32)),
        "y": pa.array(rng.choice(["no", "yes"], rows)),
    }
    if weight:
        columns["w"] = pa.array(rng.random(rows, np.float32))
    return pa.table(columns)


def whole(grouped, number):
    """Return all rows of a group."""
    parts = grouped.batch(number)
    return Batch.concat(parts)


def assert_grouped(grouped, table, by=("city",), *, label="y", weight=None):
    """Compare with a plain GROUP BY: every row once, in stored order, in its own group."""
    keys = list(zip(*(table.column(name).to_pylist() for name in by)))
    expected: dict[tuple, list[int]] = {}
    for row, key in enumerate(keys):
        expected.setdefault(key, []).append(row)
    assert grouped.keys == list(expected)
    assert grouped.texts == [to_text(key) for key in expected]
    assert grouped.rows.tolist() == [len(rows) for rows in expected.values()]
    y = np.array([{"no": -1.0, "yes": 1.0}.get(value, value) for value in table.column(label).to_pylist()], np.float32)
    for number, rows in enumerate(expected.values()):
        found = whole(grouped, number)
        x = found.x.to_dense() if isinstance(found.x, Csr) else found.x
        place = (grouped.recipe.names or ("row",)).index("row")
        assert x[:, place].tolist() == [3 * row for row in rows]
        assert found.y.tolist() == y[rows].tolist()
        assert (found.weight is None) == (weight is None)
        if weight is not None:
            assert found.weight.tolist() == table.column(weight).to_numpy()[rows].tolist()
        blocks = grouped.blocks(number)
        assert (grouped.block_group[blocks] == number).all()
        assert (
            grouped.block_first[blocks].tolist()
            == (np.cumsum(grouped.block_rows[blocks]) - grouped.block_rows[blocks]).tolist()
        )


def store(kind, table, folder):
    """Write a table as one kind of data."""
    if kind == "table":
        return table
    if kind == "small blocks":
        return TableSource.of(table, block_size=1000)
    path = folder / f"data.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=300)
    elif kind == "csv":
        from pyarrow import csv

        csv.write_csv(table, path)
    else:
        convert(table, path, label="y", keep=["city"], block_size=1000)
    return path


class Interrupting:
    """A listener that interrupts a task after so many steps, and counts them."""

    def __init__(self, task, after=math.inf):
        self.task, self.after, self.steps, self.amount = task, after, 0, 0

    def __call__(self, event):
        if isinstance(event, Advanced) and event.task.startswith(self.task):
            self.steps += 1
            self.amount += 0 if event.note else event.amount
            if self.steps > self.after:
                raise KeyboardInterrupt
