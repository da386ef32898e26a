"""Rewriting loses nothing: positions are a bijection, and rows translated back are the rows there were."""

from __future__ import annotations

import tempfile
from collections import Counter
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bigmodel import feature_positions
from penstock.bigmodel.index_map import ABSENT, IndexMap
from penstock.bigmodel.rewrite import prepared_rows, rewrite
from penstock.blocks.memory import TableSource
from penstock.columns.choose import choose_features

FEATURES = st.one_of(st.integers(0, 12), st.integers(0, 2**64 - 1), st.sampled_from([2**32 - 1, 2**32, 2**63]))
ROWS = st.lists(st.lists(FEATURES, max_size=8), min_size=1, max_size=40).filter(any)


@settings(max_examples=60)
@given(
    rows=ROWS, hot=st.integers(0, 20), per_block=st.integers(1, 9), bucket=st.integers(1, 40), part=st.integers(1, 30)
)
def test_positions_are_a_bijection_and_rows_come_back(rows, hot, per_block, bucket, part):
    indices = pa.array(rows, pa.list_(pa.uint64()))
    values = pa.array([[float(len(row))] * len(row) for row in rows], pa.list_(pa.float32()))
    table = pa.table({"y": np.arange(len(rows)) * 1.0, "indices": indices, "values": values})
    table = pa.Table.from_batches(table.to_batches(max_chunksize=per_block))
    source = TableSource.of(table)
    recipe = choose_features(table.schema, label="y", place="here", wide=True)
    cut = mock.patch.multiple(feature_positions, BUCKET_ENTRIES=bucket, LEAST_PART=part, STRETCH=4)
    with tempfile.TemporaryDirectory() as folder, cut:
        layout = rewrite(source, recipe, folder, memory=10**6, hot=hot)
        counts = Counter(f for row in rows for f in row)
        features = np.array(list(counts), np.uint64)
        with IndexMap.open(folder) as index:
            positions = index.positions(features)
            others = np.array([f + 1 for f in counts if f + 1 not in counts and f + 1 < 2**64], np.uint64)
            assert (index.positions(others) == ABSENT).all()
        stored, _ = prepared_rows(folder)
        with stored:
            found = pa.Table.from_batches([stored.read(b) for b in range(len(stored.block_rows))]).to_pydict()
    assert sorted(positions.tolist()) == list(range(len(counts))) == list(range(layout.features))
    back = dict(zip(positions.tolist(), features.tolist(), strict=True))
    assert [[back[p] for p in row] for row in found["indices"]] == rows
    assert found["values"] == values.to_pylist()
    assert found["label"] == list(map(float, range(len(rows))))
    assert layout.hot <= hot
    hottest = [counts[back[p]] for p in range(layout.hot)]
    coldest = [counts[back[p]] for p in range(layout.hot, layout.features)]
    assert hottest == sorted(hottest, reverse=True)
    assert all(c >= 2 for c in hottest)
    assert max(coldest, default=0) < min(hottest, default=10**9)
