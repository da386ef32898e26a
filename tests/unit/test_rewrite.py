"""Preparing data for a model on disk: every feature gets one position, hot ones first, and no row is changed by it."""

from __future__ import annotations

import errno
import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

import penstock
from penstock.bigmodel import buckets, feature_positions, index_map
from penstock.bigmodel.feature_positions import PreparationPlan
from penstock.bigmodel.index_map import ABSENT, IndexMap
from penstock.bigmodel.rewrite import FeatureLayout, prepared_rows, rewrite
from penstock.blocks.memory import TableSource
from penstock.blocks.write import BlockWriter
from penstock.columns.choose import choose_features
from penstock.columns.labels import LabelMap
from penstock.errors import BudgetError, DataChangedError, DataError, FeatureError, UsageError, WriteError
from penstock.events import Finished, Started, Stream
from penstock.loader.loader import Loader

INT64 = pa.int64()


def rows_of(rows, *, seed=0, kind=INT64, dimension=2**40, weighted=False, most=12):
    """Return rows of zipf-like features, some of them empty and some with a feature twice."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, most, rows)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ranks = np.exp(rng.random(ends[-1]) * np.log(dimension)).astype(np.uint64)
    features = ranks * np.uint64(2654435761) % np.uint64(dimension)
    columns = {
        "clicked": pa.array(np.where(rng.random(rows) < 0.5, "yes", "no")),
        "indices": pa.ListArray.from_arrays(pa.array(ends), pa.array(features).cast(kind)),
        "values": pa.ListArray.from_arrays(pa.array(ends), pa.array(rng.normal(size=ends[-1]))),
    }
    if weighted:
        columns["w"] = pa.array(rng.random(rows))
    return pa.record_batch(columns)


def source_of(batch, tmp_path, *, per_block=16, name="data.arrow"):
    path = tmp_path / name
    with BlockWriter(path, batch.schema, rows_per_block=per_block) as writer:
        writer.write(batch)
    return penstock.open(path)


def recipe_of(source, *, weight=None, **options):
    recipe = choose_features(source.schema, label="clicked", weight=weight, place=source.name, wide=True, **options)
    return recipe.with_labels(LabelMap(("no", "yes"), column="clicked"))


def written(folder):
    """Return the rows written: indices, values and the rest as plain columns."""
    source, _ = prepared_rows(folder)
    with source:
        return pa.Table.from_batches([source.read(b) for b in range(len(source.block_rows))]).to_pydict()


@pytest.fixture
def small(monkeypatch):
    """Cut small data as if they were large: many buckets, parts and stretches."""
    monkeypatch.setattr(feature_positions, "BUCKET_ENTRIES", 100)
    monkeypatch.setattr(feature_positions, "LEAST_PART", 300)
    monkeypatch.setattr(feature_positions, "STRETCH", 64)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("kind", "dimension"), [(pa.int64(), 2**62), (pa.uint64(), 2**40), (pa.uint32(), 10**6)])
def test_rows_keep_their_features_under_new_names(tmp_path, kind, dimension):
    batch = rows_of(400, kind=kind, dimension=dimension, weighted=True)
    with source_of(batch, tmp_path) as source:
        layout = rewrite(source, recipe_of(source, weight="w"), tmp_path, memory=10**7, hot=20)
    rows = written(tmp_path)
    features = np.concatenate([np.array(r, np.uint64) for r in batch["indices"].to_pylist()])
    with IndexMap.open(tmp_path) as index:
        assert len(index) == layout.features == len(np.unique(features))
        positions = index.positions(features)
        assert sorted(set(positions.tolist())) == list(range(layout.features))
        everything = [pair for part in index.items() for pair in zip(*map(np.ndarray.tolist, part), strict=True)]
    assert dict(everything) == dict(zip(features.tolist(), positions.tolist(), strict=True))
    assert len(everything) == layout.features
    assert np.concatenate([np.array(r, np.uint32) for r in rows["indices"]]).tolist() == positions.tolist()
    assert list(map(len, rows["indices"])) == list(map(len, batch["indices"].to_pylist()))
    expected = np.concatenate([np.array(r, np.float32) for r in batch["values"].to_pylist()])
    assert np.concatenate([np.array(r, np.float32) for r in rows["values"]]).tolist() == expected.tolist()
    assert rows["label"] == [1.0 if c == "yes" else -1.0 for c in batch["clicked"].to_pylist()]
    np.testing.assert_array_equal(np.array(rows["weight"], np.float32), batch["w"].to_numpy().astype(np.float32))
    assert (layout.rows, layout.entries) == (400, len(features))
    assert layout.dimension == int(features.max()) + 1
    assert sum(row[1] for row in layout.tally) == layout.features
    assert sum(row[2] for row in layout.tally) == layout.entries
    assert FeatureLayout.from_dict({**layout.to_dict(), "singles": 3}) == layout  # as earlier versions wrote it


@pytest.mark.usefixtures("small")
def test_hot_features_come_first_and_the_others_as_they_occur(tmp_path):
    batch = rows_of(600, dimension=3000)
    features = np.concatenate([np.array(r, np.uint64) for r in batch["indices"].to_pylist()])
    with source_of(batch, tmp_path) as source:
        layout = rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=40)
    counts = Counter(features.tolist())
    with IndexMap.open(tmp_path) as index:
        at = dict(zip(counts, index.positions(np.array(list(counts), np.uint64)).tolist(), strict=True))
    by_position = sorted(at, key=at.get)
    hot = by_position[: layout.hot]
    least = min(counts[f] for f in hot)
    assert 20 < layout.hot <= 40
    assert set(hot) == {f for f, c in counts.items() if c >= least}
    below = max(c for c in counts.values() if c < least)
    assert sum(c >= below for c in counts.values()) > 40, "a lower threshold would have done"
    assert [counts[f] for f in hot] == sorted((counts[f] for f in hot), reverse=True)
    firsts = {}
    for entry, feature in enumerate(features.tolist()):
        firsts.setdefault(feature, entry)
    # Within a stretch and a part's end the order is by bucket.
    cold = [firsts[f] for f in by_position[layout.hot :]]
    assert all(later > earlier - 64 for earlier, later in zip(np.maximum.accumulate(cold), cold[1:], strict=False))


@pytest.mark.usefixtures("small")
def test_many_hot_features_go_by_classes_after_the_top_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_positions, "_TOP_BYTES", 10**6)
    batch = rows_of(600, dimension=3000)
    features = np.concatenate([np.array(r, np.uint64) for r in batch["indices"].to_pylist()])
    seen = []

    def order(features, counts):
        seen.extend(counts.tolist())
        return np.arange(len(features))[::-1]

    with source_of(batch, tmp_path) as source:
        layout = rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=10**6, order_hot=order)
    counts = Counter(features.tolist())
    with IndexMap.open(tmp_path) as index:
        at = dict(zip(counts, index.positions(np.array(list(counts), np.uint64)).tolist(), strict=True))
    by_position = [counts[f] for f in sorted(at, key=at.get)]
    assert 2 < len(seen) <= 10
    assert by_position[: len(seen)] == seen[::-1]
    assert by_position[len(seen) : layout.hot] == sorted(by_position[len(seen) : layout.hot], reverse=True)
    assert layout.hot == sum(c > 1 for c in counts.values())
    assert set(by_position[layout.hot :]) == {1}
    assert sorted(at.values()) == list(range(len(at)))


def test_the_order_given_for_hot_features_is_kept(tmp_path):
    batch = rows_of(300, dimension=500)
    given = []

    def order(features, counts):
        given.append((features, counts))
        return np.random.default_rng(1).permutation(len(features))

    with source_of(batch, tmp_path) as source:
        layout = rewrite(
            source, recipe_of(source), tmp_path, memory=10**7, hot=lambda features: features // 4, order_hot=order
        )
        ((features, counts),) = given
        assert len(features) == layout.hot <= layout.features // 4
        assert features.dtype == np.uint64
        assert counts.dtype == np.int64
        with IndexMap.open(tmp_path) as index:
            positions = index.positions(features[np.random.default_rng(1).permutation(len(features))])
        assert positions.tolist() == list(range(layout.hot))
        with pytest.raises(UsageError, match="order_hot must return each of 0 to"):
            rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=9, order_hot=lambda f, c: c * 0)


def test_nothing_is_hot_where_none_may_be_or_all_occur_once(tmp_path):
    batch = rows_of(50, dimension=2**60)
    with source_of(batch, tmp_path) as source:
        assert rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=0).hot == 0
    once = pa.record_batch({"clicked": ["yes", "no"], "indices": [[5, 6], [7]], "values": [[1.0, 1.0], [2.0]]})
    layout = rewrite(TableSource.of(once), recipe_of(TableSource.of(once)), tmp_path, memory=10**7, hot=10)
    assert (layout.hot, layout.features) == (0, 3)


def test_the_loader_reads_what_was_written(tmp_path):
    batch = rows_of(300, dimension=5000)
    with source_of(batch, tmp_path) as source:
        layout = rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=100)
    source, recipe = prepared_rows(tmp_path)
    assert recipe.width == layout.features
    assert recipe.labels is None
    with source, Loader(source, recipe, "none", memory="10MB") as loader:
        read = [window.batch for window in loader.epoch(0)]
    assert np.concatenate([b.y for b in read]).tolist() == written(tmp_path)["label"]
    assert all(b.x.indices.dtype == np.uint32 and b.width == layout.features for b in read)


def test_dense_and_hashed_columns_have_positions_too(tmp_path):
    table = pa.record_batch(
        {
            "age": [30.0, 40.0, 50.0],
            "city": ["Basel", "Bern", "Basel"],
            "clicked": ["yes", "no", "no"],
            "indices": [[5], [], [2**50]],
            "values": [[1.0], [], [3.0]],
        }
    )
    source = TableSource.of(table)
    recipe = recipe_of(source, hash=["city:2^40"])
    layout = rewrite(source, recipe, tmp_path, memory=10**7, hot=2)
    rows = written(tmp_path)
    raw = recipe.encode(table, wide=True).x
    with IndexMap.open(tmp_path) as index:
        assert index.positions(raw.indices).tolist() == [i for row in rows["indices"] for i in row]
        assert index.positions(np.array([0], np.uint64)) == 0, "the age is in every row"
        assert index.positions(np.array([1], np.uint64)) == ABSENT
    assert layout.features == 1 + 2 + 2
    assert layout.dimension == 1 + 2**40 + 2**50 + 1
    assert [len(r) for r in rows["indices"]] == [3, 2, 3]


def test_text_whose_rows_are_not_counted(tmp_path):
    lines = [f"{n % 2} {n % 7 + 1}:1 {n + 100}:{n}.5" for n in range(500)]
    (tmp_path / "a.libsvm").write_text("\n".join(lines) + "\n")
    with penstock.open(tmp_path / "a.libsvm", block_size=1000) as source:
        recipe = choose_features(source.schema, label="label", place="a").with_labels(
            LabelMap((0.0, 1.0), column="label")
        )
        layout = rewrite(source, recipe, tmp_path, memory=10**7, hot=7)
    assert (layout.rows, layout.entries, layout.features, layout.hot) == (500, 1000, 507, 7)


def test_the_same_for_the_same_seed(tmp_path, small):
    batch = rows_of(300)
    with source_of(batch, tmp_path) as source:
        found = []
        for seed in (3, 3, 4):
            rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=20, seed=seed)
            found.append([(tmp_path / name).read_bytes() for name in ("rows.arrow", "map.bin")])
    assert found[0] == found[1]
    assert found[0] != found[2]


@pytest.mark.usefixtures("small")
def test_far_more_entries_than_the_first_blocks_tell(tmp_path, monkeypatch):
    few, many = rows_of(100, most=2, dimension=10**6), rows_of(500, most=200, seed=1, dimension=10**6)
    batch = pa.concat_batches([few, many])
    with source_of(batch, tmp_path) as source:
        monkeypatch.setattr("penstock.bigmodel.rewrite.entries_of", lambda *_: 1e-4)
        layout = rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=20)
    flat = np.array([i for row in batch["indices"].to_pylist() for i in row], np.uint64)
    with IndexMap.open(tmp_path) as index:
        assert index.positions(flat).tolist() == [i for row in written(tmp_path)["indices"] for i in row]
    assert layout.features == len(np.unique(flat))


def changed(batch, column, row, value):
    lists = batch[column].to_pylist()
    lists[row][-1] = value
    at = batch.schema.names.index(column)
    return batch.set_column(at, column, pa.array(lists, batch.schema.field(column).type))


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("values", float("nan"), "'feature {index}' is not a finite number in row {row}"),
        ("indices", -7, "row {row} has the index -7 in 'indices'; indices are 0 or more"),
        ("indices", 2**41, "row {row} has the index 2199023255552 in 'indices', but the data are declared to have"),
    ],
)
def test_bad_entries_are_refused_by_row_and_leave_nothing(tmp_path, column, value, told):
    batch = rows_of(200, dimension=2**40)
    row = next(n for n in range(150, 200) if len(batch["indices"][n]))
    index = batch["indices"][row].as_py()[-1]
    batch = changed(batch, column, row, value)
    folder = tmp_path / "model"
    folder.mkdir()
    with source_of(batch, tmp_path) as source, pytest.raises(FeatureError) as failed:
        rewrite(source, recipe_of(source).with_width(2**40), folder, memory=10**7, hot=20)
    assert told.format(row=row, index=index) in str(failed.value)
    assert os.listdir(folder) == []


class Altered(TableSource):
    """Gives other rows the second time."""

    def read(self, block, columns=None):
        self.reads = getattr(self, "reads", 0) + 1
        batch = super().read(block, columns)
        return changed(batch, "indices", 0, 999) if self.reads > self.limit else batch


def test_data_that_change_between_the_passes(tmp_path):
    batch = pa.record_batch({"clicked": ["yes", "no"], "indices": [[5, 6], [7]], "values": [[1.0, 1.0], [2.0]]})
    source = Altered.of(batch)
    source.limit = 2
    with pytest.raises(DataChangedError, match="hold other rows than before"):
        rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=10)
    assert os.listdir(tmp_path) == []


def test_a_file_that_changes_between_the_passes(tmp_path, monkeypatch):
    batch = rows_of(200)
    count = feature_positions.FeaturePositions.count

    def touch(self):
        count(self)
        os.utime(tmp_path / "data.arrow", (1, 1))

    monkeypatch.setattr(feature_positions.FeaturePositions, "count", touch)
    with source_of(batch, tmp_path) as source, pytest.raises(DataChangedError):
        rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=10)
    assert os.listdir(tmp_path) == ["data.arrow"]


def test_no_rows_and_no_features(tmp_path):
    empty = pa.record_batch({"clicked": ["yes", "no"], "indices": [[], []], "values": [[], []]}).cast(
        pa.schema([("clicked", pa.string()), ("indices", pa.list_(pa.int64())), ("values", pa.list_(pa.float64()))])
    )
    with pytest.raises(DataError, match="no features in any row"):
        rewrite(TableSource.of(empty), recipe_of(TableSource.of(empty)), tmp_path, memory=10**7, hot=10)
    none = TableSource.of(empty.slice(0, 0))
    with pytest.raises(DataError, match="has no rows"):
        rewrite(none, recipe_of(none), tmp_path, memory=10**7, hot=10)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "model"
    folder.mkdir()
    with source_of(rows_of(100), tmp_path) as source:
        monkeypatch.setattr(index_map.os, "pwrite", full)
        with pytest.raises(WriteError, match="the disk is full"):
            rewrite(source, recipe_of(source), folder, memory=10**7, hot=10)
    assert os.listdir(folder) == []


def test_what_a_killed_run_left_is_cleared(tmp_path):
    (tmp_path / "prepare.tmp").mkdir()
    (tmp_path / "prepare.tmp" / "dealt").write_bytes(b"old")
    with source_of(rows_of(100), tmp_path) as source:
        rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=10)
    assert sorted(os.listdir(tmp_path)) == ["data.arrow", "map.bin", "rows.arrow"]


def test_an_interruption_leaves_nothing(tmp_path):
    def interrupt(event):
        if isinstance(event, Started) and event.task == "prepare: write":
            raise KeyboardInterrupt

    with source_of(rows_of(100), tmp_path) as source, pytest.raises(KeyboardInterrupt):
        rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=10, stream=Stream([interrupt]))
    assert os.listdir(tmp_path) == ["data.arrow"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    source = TableSource.of(rows_of(10))
    with pytest.raises(WriteError, match=r"prepare\.tmp cannot be made"):
        rewrite(source, recipe_of(source), tmp_path / "file", memory=10**7, hot=10)


def test_parquet_whose_row_groups_are_read_in_pieces(tmp_path, small):
    batch = rows_of(500)
    parquet.write_table(pa.Table.from_batches([batch]), tmp_path / "a.parquet", row_group_size=200)
    with penstock.open(tmp_path / "a.parquet", block_size=2000) as source:
        assert source.units is not None
        rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=10)
    flat = np.array([i for row in batch["indices"].to_pylist() for i in row], np.uint64)
    with IndexMap.open(tmp_path) as index:
        assert index.positions(flat).tolist() == [i for row in written(tmp_path)["indices"] for i in row]


def test_progress_is_told(tmp_path):
    heard = []
    with source_of(rows_of(100), tmp_path) as source:
        rewrite(source, recipe_of(source), tmp_path, memory=10**7, hot=10, stream=Stream([heard.append]))
    tasks = [e.task for e in heard if isinstance(e, Started)]
    assert tasks == [e.task for e in heard if isinstance(e, Finished)]
    assert tasks == [f"prepare: {name}" for name in ("read", "count", "choose", "place", "write")]
    for task in tasks:
        (total,) = [e.total for e in heard if isinstance(e, Started) and e.task == task]
        assert sum(getattr(e, "amount", 0) for e in heard if getattr(e, "task", None) == task) == total


def test_plans_keep_to_the_memory():
    assert PreparationPlan.of(0, 10**6).bits >= 1
    assert PreparationPlan.of(3 * 10**8, 2 * 10**8).bits == 9
    large = PreparationPlan.of(3 * 10**9, 10**9)
    assert (3 * 10**9 // large.stretch << large.bits) * 8 <= 10**9 / 3
    with pytest.raises(BudgetError, match=r"about 10000000000 entries; \d+ MB is enough"):
        PreparationPlan.of(10**10, 10**8)


def test_kernels_do_as_their_twins():
    rng = np.random.default_rng(0)
    features = rng.integers(0, 2**64, 1000, np.uint64)
    key = np.uint64(77)
    mixed = np.empty_like(features)
    buckets.mix_all(features, key, mixed)
    np.testing.assert_array_equal(mixed, buckets.mix_features_reference(features, key))
    np.testing.assert_array_equal(buckets.unmix(mixed, key), features)
    counts = [1, 2, 255, 256, 263, 264, 511, 512, 10**6, 2**32 - 1]
    classes = [int(buckets.class_of(np.int64(c))) for c in counts]
    assert classes == sorted(classes)
    assert classes[-1] < buckets.CLASSES
    assert all(buckets.least_of(k) <= c < buckets.least_of(k + 1) for k, c in zip(classes, counts, strict=True))
