"""Sparse rows read straight from an Arrow file are those that Arrow reads, and what is unusual is told in the same words."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.columns.choose import choose_features
from penstock.columns.labels import LabelMap
from penstock.errors import CorruptFileError, DataError
from penstock.loader import decode_sparse, direct_reads
from penstock.loader.decode import BlockDecoder
from penstock.loader.decode_sparse import (
    READ_FAILED,
    SparseDecoder,
    copy_entries,
    copy_entries_reference,
    sparse_decoder,
)
from penstock.loader.loader import Loader
from penstock.loader.row_forms import Scaling

UINT32, FLOAT32 = pa.uint32(), pa.float32()


def written(path, *, rows=500, indices=UINT32, values=FLOAT32, lists=pa.list_, compression=None, change=None):
    rng = np.random.default_rng(0)
    where = [np.sort(rng.choice(1000, rng.integers(0, 12), replace=False)).tolist() for _ in range(rows)]
    numbers = [rng.normal(size=len(w)).astype(np.float32).tolist() for w in where]
    columns = {
        "label": pa.array(rng.integers(0, 2, rows)),
        "indices": pa.array(where, lists(indices)),
        "values": pa.array(numbers, lists(values)),
        "w": pa.array(rng.random(rows).astype(np.float32)),
    }
    table = pa.table({**columns, **(change or {})})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=40)
    return path


def recipe_of(source, **more):
    recipe = choose_features(
        source.schema, label="label", weight="w", features=["indices", "values"], place=source.name
    )
    return recipe.with_width(1000).with_labels(LabelMap((0, 1), binary=True, column="label"))


def same(a, b):
    for x, y in (
        (a.x.indptr, b.x.indptr),
        (a.x.indices, b.x.indices),
        (a.x.values, b.x.values),
        (a.y, b.y),
        (a.weight, b.weight),
    ):
        np.testing.assert_array_equal(x, y)
    assert a.x.indices.dtype == np.uint32


@pytest.mark.parametrize("past_the_cache", [False, True])
@pytest.mark.parametrize(
    ("indices", "lists"), [(pa.uint32(), pa.list_), (pa.int32(), pa.list_), (pa.uint32(), pa.large_list)]
)
def test_blocks_are_those_of_arrow(tmp_path, indices, lists, past_the_cache, monkeypatch):
    if past_the_cache:
        monkeypatch.setattr(direct_reads, "LEAST", 0)
        monkeypatch.setattr(direct_reads, "available_memory", lambda: 0)
    with penstock.open(written(tmp_path / "a.arrow", indices=indices, lists=lists)) as source:
        recipe = recipe_of(source)
        decoder = sparse_decoder(source, recipe, Scaling.none())
        assert isinstance(decoder, SparseDecoder)
        with closing(decoder):
            for block in range(len(source.block_rows)):
                same(decoder.decode(block), BlockDecoder(source, recipe, Scaling.none()).decode(block))


@pytest.mark.parametrize("order", ["none", "corgipile", "global", "sliding-window", "once"])
def test_epochs_are_the_same_either_way(tmp_path, order, monkeypatch):
    with penstock.open(written(tmp_path / "a.arrow")) as source:
        found = []
        for straight in (True, False):
            if not straight:
                monkeypatch.setattr("penstock.loader.windows.sparse_decoder", lambda *_: None)
            with Loader(source, recipe_of(source), order, memory="60kB", scratch=tmp_path) as loader:
                found.append(
                    [window.batch.take(np.arange(len(window.batch))) for e in (0, 1) for window in loader.epoch(e)]
                )
        rows = [np.sort(np.concatenate([batch.weight for batch in batches])) for batches in found]
        np.testing.assert_array_equal(*rows)
        if order in ("none", "corgipile"):
            sums = [
                {float(w): float(b.x.slice(i, i + 1).values.sum()) for b in batches for i, w in enumerate(b.weight)}
                for batches in found
            ]
            assert sums[0] == sums[1]


@pytest.mark.parametrize(
    "options",
    [
        {"indices": pa.int64()},
        {"values": pa.float64()},
        {"compression": "lz4"},
        {"change": {"label": pa.array(["a", "b"] * 250)}},
    ],
)
def test_other_layouts_go_through_arrow(tmp_path, options):
    with penstock.open(written(tmp_path / "a.arrow", **options)) as source:
        assert sparse_decoder(source, recipe_of(source), Scaling.none()) is None


def test_indices_beyond_the_width_are_left_out_as_ever(tmp_path):
    with penstock.open(written(tmp_path / "a.arrow")) as source:
        recipe = recipe_of(source).with_width(100)
        with closing(sparse_decoder(source, recipe, Scaling.none())) as decoder:
            same(decoder.decode(3), BlockDecoder(source, recipe, Scaling.none()).decode(3))


def test_nulls_and_unequal_lists_are_named_as_ever(tmp_path):
    bad = [None if i == 77 else [1] for i in range(500)]
    for change, block in (
        ({"indices": pa.array(bad, pa.list_(pa.uint32()))}, 1),
        ({"values": pa.array([[1.0]] * 500, pa.list_(pa.float32()))}, 0),
    ):
        with penstock.open(written(tmp_path / "a.arrow", change=change)) as source:
            recipe = recipe_of(source)
            with closing(sparse_decoder(source, recipe, Scaling.none())) as decoder:
                with pytest.raises(DataError) as told:
                    decoder.decode(block)
                with pytest.raises(DataError) as expected:
                    BlockDecoder(source, recipe, Scaling.none()).decode(block)
            assert str(told.value) == str(expected.value)


def test_a_file_cut_short_is_told(tmp_path, monkeypatch):
    source = penstock.open(written(tmp_path / "a.arrow"))
    with source, closing(sparse_decoder(source, recipe_of(source), Scaling.none())) as decoder:
        monkeypatch.setattr(decode_sparse, "read_lists", lambda *_: (READ_FAILED, 0))
        with pytest.raises(CorruptFileError, match="block 2"):
            decoder.decode(2)


def test_entries_go_where_the_twin_puts_them():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 50, 400).astype(np.uint32)
    words[200:] = rng.normal(size=200).astype(np.float32).view(np.uint32)
    lengths = rng.integers(0, 9, 20).astype(np.uint64)
    at = np.cumsum(lengths).astype(np.int64) - lengths.astype(np.int64)
    slots = rng.permutation(20).astype(np.uint32)
    slots[3] = 0xFFFFFFFF
    indptr = np.zeros(21, np.uint64)
    for length, slot in zip(lengths, slots):
        if slot != 0xFFFFFFFF:
            indptr[slot + 1] = length
    indptr = np.cumsum(indptr)
    for scale in (np.empty(0, np.float32), rng.random(50).astype(np.float32)):
        found = []
        for copy in (copy_entries, copy_entries_reference):
            indices, values = np.zeros(int(indptr[-1]), np.uint32), np.zeros(int(indptr[-1]), np.float32)
            copy(words, at, at + 200, lengths, slots, scale, indptr, indices, values)
            found.append((indices, values))
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])


def damaged(path, spoil):
    """Write a file and change the ends of the indices' lists in its first block."""
    written(path)
    with penstock.open(path) as source:
        layout = sparse_decoder(source, recipe_of(source), Scaling.none())._layout
        (_, ends), at = layout.find(0)[0], int(layout.rows[0])
    with open(path, "r+b") as file:
        file.seek(ends)
        numbers = np.frombuffer(file.read(4 * (at + 1)), np.int32).copy()
        spoil(numbers)
        file.seek(ends)
        file.write(numbers.tobytes())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda ends: ends.__setitem__(-1, 10**9),
        lambda ends: ends.__setitem__(5, ends[-1]),
        lambda ends: ends.__setitem__(0, -7),
    ],
)
def test_ends_that_point_outside_of_their_block_are_damage(tmp_path, spoil):
    damaged(tmp_path / "a.arrow", spoil)
    with penstock.open(tmp_path / "a.arrow") as source:
        recipe = recipe_of(source)
        decoder = sparse_decoder(source, recipe, Scaling.none())
        with closing(decoder), pytest.raises((CorruptFileError, DataError), match=r"a\.arrow.*(damaged|row \d+)"):
            decoder.decode(0)


def test_windows_with_an_unusual_block_are_those_of_arrow(tmp_path):
    with penstock.open(written(tmp_path / "a.arrow")) as source:
        recipe = recipe_of(source).with_width(900)  # which some rows go beyond
        found = []
        with Loader(source, recipe, "corgipile", memory="60kB") as loader:
            found = [window.batch.take(np.arange(len(window.batch))) for window in loader.epoch(0)]
        assert sum(map(len, found)) == 500
        assert max(int(batch.x.indices.max()) for batch in found) < 900
