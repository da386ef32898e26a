"""Grouping loses no row, doubles none, and keeps the order within a group, however rows, runs and blocks fall."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import defaultdict
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.batch import Csr
from penstock.blocks.memory import TableSource
from penstock.groups import etl, external_sort, row_scatter
from penstock.groups.etl import group

KEYS = st.sampled_from([None, "", "/", "%null", "é", "a", "b", "c", "d", "e"])


@st.composite
def cases(draw):
    """Return rows' keys, the entries of each, and how the work is cut."""
    keys = draw(st.lists(st.tuples(KEYS, st.integers(0, 2)), min_size=2, max_size=150))
    sparse = draw(st.booleans())
    entries = draw(st.lists(st.integers(0, 6), min_size=len(keys), max_size=len(keys))) if sparse else None
    block_rows = draw(st.integers(1, 40))
    chunk = draw(st.integers(1, 3000))
    fan = draw(st.integers(2, 6))
    block = draw(st.integers(1100, 2500))
    window = draw(st.integers(1, 2000))
    scatter = draw(st.just(0) | st.integers(1, 3000))
    return keys, entries, block_rows, chunk, fan, block, window, scatter


def table_of(keys, entries):
    rows = len(keys)
    columns = {
        "a": pa.array([a for a, _ in keys], pa.string()),
        "b": pa.array([b for _, b in keys], pa.int64()),
        "y": pa.array(np.arange(rows) % 2),
        "w": pa.array(np.arange(rows), pa.float32()),
    }
    if entries is None:
        columns["row"] = pa.array(np.arange(rows), pa.float32())
    else:
        columns["indices"] = pa.array([list(range(n + 1)) for n in entries], pa.list_(pa.int32()))
        columns["values"] = pa.array([[row] * (n + 1) for row, n in enumerate(entries)], pa.list_(pa.float32()))
    return pa.table(columns)


@given(cases())
@settings(max_examples=120)
def test_every_row_comes_once_and_in_order(case):
    keys, entries, block_rows, chunk, fan, block, window, scatter = case
    table = table_of(keys, entries)
    settle = etl.SortingPlan.of

    def of(*args):
        room, plan = external_sort.Room(block - 1024, min(window, block - 1024), 1), settle(*args)
        return dataclasses.replace(
            plan, chunk=chunk, together=500, count=500, room=room, scatter=min(scatter, plan.scatter)
        )

    source = TableSource.of(table, block_size=max(block_rows * table.nbytes // len(table), 1))
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(etl.SortingPlan, "of", of),
        mock.patch.object(row_scatter, "LEAST_ROWS", 0),
        mock.patch.object(external_sort, "FAN", fan),
        group(source, ["a", "b"], f"{folder}/g", label="y", weight="w", memory="50MB", block_size=block) as grouped,
    ):
        expected = defaultdict(list)
        for row, key in enumerate(keys):
            expected[key].append(row)
        assert grouped.keys == list(expected)
        assert grouped.rows.tolist() == [len(rows) for rows in expected.values()]
        for number, rows in enumerate(expected.values()):
            parts = grouped.batch(number)
            assert np.concatenate([part.weight for part in parts]).tolist() == rows
            assert np.concatenate([part.y for part in parts]).tolist() == [2 * (row % 2) - 1 for row in rows]
            values = [part.x.values if isinstance(part.x, Csr) else part.x[:, 0] for part in parts]
            lengths = [1] * len(rows) if entries is None else [entries[row] + 1 for row in rows]
            assert np.concatenate(values).tolist() == np.repeat(rows, lengths).tolist()
            if entries is not None:
                indices = np.concatenate([part.x.indices for part in parts])
                assert indices.tolist() == [i for n in lengths for i in range(n)]
            for part in parts:  # full, but never over
                assert len(part) == 1 or part.nbytes <= block
