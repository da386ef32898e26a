"""The loops that put rows into slots, against their NumPy twins."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pytest

from penstock import batch as batch_loops
from penstock.batch import SKIP, Batch, Csr
from penstock.blocks.arrow import ArrowSource
from penstock.blocks.cached_source import CachedSource
from penstock.blocks.write import BlockWriter
from penstock.columns.choose import choose_features
from penstock.columns.labels import LabelMap
from penstock.errors import CorruptFileError, DataChangedError, DataError, LabelError
from penstock.loader import window_kernels
from penstock.loader.decode import BlockDecoder, PackedDecoder
from penstock.loader.mixing import (
    gather_two,
    gather_two_reference,
    replace_rows,
    replace_rows_reference,
    take_from_both,
)
from penstock.loader.row_forms import Scaling, Slots
from penstock.loader.windows import Feed

NUMBERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64]


def stored(path, *, rows=100, width=3, label=None, weight=None, block=16):
    """Write packed rows in blocks of 16, the last one shorter, and open them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    columns = {"features": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), width)}
    columns |= {name: pa.array(c) for name, c in (("label", label), ("weight", weight)) if c is not None}
    batch = pa.RecordBatch.from_pydict(columns)
    schema = pa.schema([field.with_nullable(False) for field in batch.schema])
    with BlockWriter(path / "a.arrow", schema, rows_per_block=block) as writer:
        writer.write(batch)
    return x, ArrowSource(path / "a.arrow")


def decoder_of(source, scaling=None, labels=None, weight=None):
    label = "label" if "label" in source.schema.names else None
    recipe = choose_features(source.schema, label=label, weight=weight, place=source.name).with_labels(labels)
    feed = Feed.of(source, recipe, scaling or Scaling.none())
    assert isinstance(feed.decoder, PackedDecoder)
    return feed.decoder, recipe


def random_slots(rows, *, skipped, seed=1):
    """Return a permutation with some rows left out."""
    rng = np.random.default_rng(seed)
    slots = np.full(rows, SKIP, np.uint32)
    kept = np.sort(rng.permutation(rows)[: rows - skipped])
    slots[kept] = rng.permutation(len(kept))
    return slots


def both(source, decoder, recipe, *, blocks, skipped=0):
    """Fill slots by the kernel, and by its twin."""
    layout = source.packed("features", recipe.label, recipe.weight)
    counts = source.block_rows[blocks]
    starts, rows = np.cumsum(counts) - counts, int(counts.sum())
    slots = random_slots(rows, skipped=skipped)
    filled, expected = (Slots.empty(rows - skipped, recipe) for _ in range(2))
    decoder.fill(blocks, starts, slots, filled)
    window_kernels.read_packed_reference(layout, blocks, starts, slots, expected.x, expected.y, expected.w)
    return filled, expected


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("skipped", [0, 7])
def test_packed_rows_labels_and_weights_equal_the_twin(tmp_path, kind, skipped):
    label, weight = np.arange(100).astype(kind), (np.arange(100) % 5).astype(kind)
    x, source = stored(tmp_path, label=label, weight=weight)
    with source:
        decoder, recipe = decoder_of(source, weight="weight")
        blocks = np.array([6, 2, 0, 5], np.int64)  # the last block, which is shorter, among them
        filled, expected = both(source, decoder, recipe, blocks=blocks, skipped=skipped)
        for name in ("x", "y", "w"):
            np.testing.assert_array_equal(getattr(filled, name), getattr(expected, name))
        whole = [decoder.decode(b) for b in range(len(source.block_rows))]
        np.testing.assert_array_equal(np.concatenate([b.x for b in whole]), x)
        np.testing.assert_array_equal(np.concatenate([b.y for b in whole]), label.astype(np.float32))
        np.testing.assert_array_equal(np.concatenate([b.weight for b in whole]), weight.astype(np.float32))


@pytest.mark.parametrize("classes", [2, 3, 8, 9, 40])
@pytest.mark.parametrize("kind", [np.int8, np.int64, np.float32, np.float64])
def test_classes_become_targets(tmp_path, classes, kind):
    label = (np.arange(100) % classes * 2 - classes).astype(kind)  # some below zero, with gaps
    _, source = stored(tmp_path, label=label)
    known = LabelMap(tuple(np.unique(label).tolist()), binary=classes == 2)
    with source:
        decoder, recipe = decoder_of(source, labels=known)
        filled, expected = both(source, decoder, recipe, blocks=np.arange(7), skipped=5)
    places = np.searchsorted(np.unique(label), expected.y)
    np.testing.assert_array_equal(filled.y, 2 * places - 1 if classes == 2 else places)


def test_standardisation_is_applied_on_the_way(tmp_path):
    _, source = stored(tmp_path, label=np.zeros(100, np.int8))
    scaling = Scaling(np.array([1, 0, -2], np.float32), np.array([0.5, 2, 1], np.float32))
    with source:
        decoder, recipe = decoder_of(source, scaling)
        filled, expected = both(source, decoder, recipe, blocks=np.arange(7), skipped=3)
    np.testing.assert_allclose(filled.x, (expected.x - scaling.shift) * scaling.scale, rtol=1e-6)


@pytest.mark.parametrize(("classes", "odd"), [(2, 7), (9, 100), (9, -100)])
def test_a_class_not_seen_before_is_named_by_row(tmp_path, classes, odd):
    label = (np.arange(100) % classes).astype(np.int16)
    known = LabelMap(tuple(range(classes)), binary=classes == 2)
    label[37] = odd
    _, source = stored(tmp_path, label=label)
    with source:
        decoder, recipe = decoder_of(source, labels=known)
        with pytest.raises(LabelError, match=rf"a.arrow, row 37: label 'label' is {odd}, .* the classes are \[0, 1"):
            both(source, decoder, recipe, blocks=np.arange(7))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_no_label_is_named_by_row(tmp_path, value):
    label = np.arange(100).astype(np.float64)
    label[99] = value
    _, source = stored(tmp_path, label=label)
    with source:
        decoder, recipe = decoder_of(source)
        with pytest.raises(LabelError, match=rf"row 99: label 'label' is {value}, which cannot be learned from"):
            both(source, decoder, recipe, blocks=np.arange(7))


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_a_bad_weight_is_named_by_row_and_a_skipped_one_is_not(tmp_path, value):
    weight = np.ones(100)
    weight[20] = value
    _, source = stored(tmp_path, label=np.zeros(100, np.int8), weight=weight)
    with source:
        decoder, recipe = decoder_of(source, weight="weight")
        with pytest.raises(DataError, match=rf"row 20: weight 'weight' is {value}; weights must be finite"):
            both(source, decoder, recipe, blocks=np.arange(7))
        slots = np.arange(100, dtype=np.uint32)
        slots[20] = SKIP
        into = Slots.empty(100, recipe)
        decoder.fill(np.arange(7), np.arange(7) * 16, slots, into)
        assert into.w[19] == into.w[21] == 1


def test_a_file_cut_short_is_told(tmp_path):
    _, source = stored(tmp_path, label=np.zeros(100, np.int8))
    with source:
        decoder, _ = decoder_of(source)
        os.truncate(tmp_path / "a.arrow", os.path.getsize(tmp_path / "a.arrow") // 2)
        with pytest.raises((CorruptFileError, DataChangedError), match=r"a\.arrow"):
            list(map(decoder.decode, range(len(source.block_rows))))


def test_integers_that_doubles_cannot_tell_apart_are_compared_as_integers(tmp_path):
    large = 2**60
    label = np.array([large, large + 1] * 50)
    _, source = stored(tmp_path, label=label)
    with source:
        recipe = choose_features(source.schema, label="label").with_labels(LabelMap((large, large + 1)))
        feed = Feed.of(source, recipe, Scaling.none())
        assert isinstance(feed.decoder, BlockDecoder)
        assert feed.decoder.decode(0).y.tolist() == [-1.0, 1.0] * 8


@pytest.mark.parametrize("skipped", [0, 4])
def test_rows_are_standardised_where_they_stand(skipped):
    x = np.random.default_rng(2).standard_normal((30, 5)).astype(np.float32)
    slots = random_slots(30, skipped=skipped)
    shift, scale = x[0].copy(), np.arange(1, 6, dtype=np.float32)
    mine, twin = x.copy(), x.copy()
    batch_loops.standardize_rows(mine, slots, shift, scale)
    batch_loops.standardize_rows_reference(twin, slots, shift, scale)
    np.testing.assert_allclose(mine, twin, rtol=1e-6)
    np.testing.assert_array_equal(mine[30 - skipped :], x[30 - skipped :])


def csr(rows, width, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, rows)
    indices = np.concatenate([np.sort(rng.permutation(width)[:n]) for n in lengths]).astype(np.uint32)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    return Csr(indptr, indices, rng.standard_normal(len(indices)).astype(np.float32), width)


@pytest.mark.parametrize("skipped", [0, 6])
@pytest.mark.parametrize("sizes", [(10, 7, 1), (5,), (0, 12)])
def test_sparse_rows_are_assembled_like_the_twin(sizes, skipped):
    if skipped > sum(sizes):
        return
    parts = [csr(n, 8, seed) for seed, n in enumerate(sizes) if n]
    if sum(sizes) == 12:
        parts.insert(0, Csr(np.zeros(1, np.uint64), np.empty(0, np.uint32), np.empty(0, np.float32), 8))
    skipped = min(skipped, sum(sizes) - 1)
    slots = np.split(random_slots(sum(sizes), skipped=skipped), np.cumsum([len(p) for p in parts])[:-1])
    scale = np.linspace(1, 2, 8).astype(np.float32)
    expected = window_kernels.assemble_csr_reference(parts, slots)
    none, center = np.empty(0, np.float32), np.array([3.0, 5.0], np.float32)
    rows = sum(sizes) - skipped
    found = window_kernels.assemble_csr(parts, slots, rows, center=none, scale=none)
    scaled = window_kernels.assemble_csr(parts, slots, rows, center=none, scale=scale)
    centered = window_kernels.assemble_csr(parts, slots, rows, center=center, scale=scale)
    for mine in (found, scaled, centered):
        np.testing.assert_array_equal(mine.indptr, expected.indptr)
        np.testing.assert_array_equal(mine.indices, expected.indices)
        assert mine.width == 8
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_allclose(scaled.values, expected.values * scale[expected.indices], rtol=1e-6)
    shifted = expected.values - np.pad(center, (0, 6))[expected.indices]
    np.testing.assert_allclose(centered.values, shifted * scale[expected.indices], rtol=1e-6)


def test_nothing_is_assembled_of_nothing():
    none = np.empty(0, np.float32)
    empty = window_kernels.assemble_csr([], [], 0, center=none, scale=none)
    assert len(empty) == 0


def test_rows_of_a_buffer_equal_their_twins():
    rng = np.random.default_rng(3)
    held, incoming = (rng.standard_normal((n, 4)).astype(np.float32) for n in (12, 9))
    picks = rng.integers(0, 21, 30)
    out, twin = np.empty((30, 4), np.float32), np.empty((30, 4), np.float32)
    gather_two(held, incoming, picks, out)
    gather_two_reference(held, incoming, picks, twin)
    np.testing.assert_array_equal(out, twin)
    places, taken = rng.permutation(12)[:5], rng.permutation(9)[:5]
    mine, twin = held.copy(), held.copy()
    replace_rows(mine, incoming, places, taken)
    replace_rows_reference(twin, incoming, places, taken)
    np.testing.assert_array_equal(mine, twin)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_held_and_incoming_are_picked_as_one(weighted):
    parts = [csr(n, 8, n) for n in (12, 9)]
    batches = [
        Batch(
            p.to_dense(),
            np.arange(len(p), dtype=np.float32),
            np.full(len(p), 2.0, np.float32) if weighted else None,
        )
        for p in parts
    ]
    picks = np.random.default_rng(4).integers(0, 21, 30)
    found, expected = take_from_both(batches[0], batches[1], picks), Batch.concat(batches).take(picks)
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)
    assert (found.weight is None) == (not weighted)


@pytest.mark.parametrize("skipped", [0, 4])
def test_ragged_rows_equal_the_twin(skipped):
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 5, 20)
    offsets = np.append(0, np.cumsum(lengths))
    values = rng.integers(0, 100, offsets[-1]).astype(np.int16)
    slots = random_slots(20, skipped=skipped)
    kept = slots != SKIP
    placed = np.zeros(20 - skipped, np.int64)
    placed[slots[kept]] = lengths[kept]
    to = np.append(0, np.cumsum(placed))
    mine, twin = (np.full(to[-1], -1, np.int16) for _ in range(2))
    window_kernels.scatter_runs(values, offsets, slots, to, mine)
    window_kernels.scatter_runs_reference(values, offsets, slots, to, twin)
    np.testing.assert_array_equal(mine, twin)
    assert (mine >= 0).all()


def test_numbers_stand_in_the_order_of_slots_as_by_the_twin():
    rng = np.random.default_rng(0)
    firsts, counts = np.array([100, 7, 0]), np.array([40, 0, 25])
    slots = rng.permutation(65).astype(np.uint32)
    left_out = rng.random(65) < 0.3
    slots[left_out] = SKIP
    kept = np.flatnonzero(~left_out)
    slots[kept] = np.argsort(np.argsort(slots[kept])).astype(np.uint32)
    found = window_kernels.order_of_slots(firsts, counts, slots, len(kept))
    np.testing.assert_array_equal(found, window_kernels.order_of_slots_reference(firsts, counts, slots, len(kept)))


@pytest.mark.parametrize("kind", [np.int8, np.float64])
@pytest.mark.parametrize("skipped", [0, 7])
def test_parts_of_blocks_whose_columns_are_read_one_by_one_equal_the_twin(tmp_path, kind, skipped):
    label, weight = np.arange(100).astype(kind), (np.arange(100) % 5).astype(kind)
    x, written = stored(tmp_path, label=label, weight=weight)
    with CachedSource(written, written.schema.names) as cached:
        for block in range(len(cached.block_rows)):
            cached.read(block)
        source = cached.refine(4, 4)
        assert source.block_rows.max() <= 4
        decoder, recipe = decoder_of(source, weight="weight")
        assert source.packed("features", "label", "weight").apart
        blocks = np.array([9, 2, 20, 21], np.int64)
        filled, expected = both(source, decoder, recipe, blocks=blocks, skipped=skipped)
        for name in ("x", "y", "w"):
            np.testing.assert_array_equal(getattr(filled, name), getattr(expected, name))
        whole = [decoder.decode(b) for b in range(len(source.block_rows))]
        np.testing.assert_array_equal(np.concatenate([b.x for b in whole]), x)
        np.testing.assert_array_equal(np.concatenate([b.weight for b in whole]), weight.astype(np.float32))
