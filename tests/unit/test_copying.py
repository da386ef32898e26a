"""The loops that copy rows, against their NumPy twins."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import copying
from penstock.copying import SKIP, move_rows, put_rows, take_rows, words

COLUMNS = [
    np.arange(40, dtype=np.int64),
    np.arange(40, dtype=np.float32),
    np.arange(40, dtype=np.uint8),
    np.arange(40) % 3 == 0,
    np.arange(40).astype("M8[ms]"),
    np.arange(120, dtype=np.uint8).reshape(40, 3),
    np.arange(240, dtype=np.float32).reshape(40, 3, 2),
    np.arange(280, dtype=np.int16).reshape(40, 7),
    np.arange(40, dtype=np.float16).reshape(40, 1),
    np.empty((40, 0), np.float32),
]
NAMES = [f"{column.dtype.name}-{column.shape[1:]}" for column in COLUMNS]


@pytest.mark.parametrize("column", COLUMNS, ids=NAMES)
def test_rows_of_every_type_are_picked_put_and_moved(column):
    rng = np.random.default_rng(0)
    picks = rng.integers(0, 40, 55)
    np.testing.assert_array_equal(take_rows(column, picks), column[picks])
    assert take_rows(column, picks).dtype == column.dtype
    slots = rng.permutation(40).astype(np.uint32)
    slots[::7] = SKIP
    out, expected = np.zeros_like(column), np.zeros_like(column)
    put_rows(column, slots, out)
    expected[slots[slots != SKIP]] = column[slots != SKIP]
    np.testing.assert_array_equal(out, expected)
    out, places = np.zeros_like(column), rng.permutation(40)[:20]
    move_rows(column, picks[:20], out, places)
    expected = np.zeros_like(column)
    expected[places] = column[picks[:20]]
    np.testing.assert_array_equal(out, expected)


def test_rows_that_do_not_lie_as_the_loops_expect_are_copied_nonetheless():
    every_other = np.arange(80, dtype=np.int32).reshape(40, 2)[::2]
    picks = np.array([3, 0, 19])
    np.testing.assert_array_equal(take_rows(every_other, picks), every_other[picks])
    # Bytes of a file begin anywhere: the words of a row may not be aligned.
    raw = np.frombuffer(bytes(range(200)), np.uint8)[3:]
    unaligned = raw[:192].view(np.float32).reshape(24, 2)
    np.testing.assert_array_equal(take_rows(unaligned, picks).view(np.uint8), unaligned[picks].view(np.uint8))
    out = np.zeros((24, 2), np.float32)
    put_rows(unaligned, np.arange(24, dtype=np.uint32)[::-1].copy(), out)
    np.testing.assert_array_equal(out.view(np.uint8), unaligned[::-1].copy().view(np.uint8))
    put_rows(every_other, np.arange(20, dtype=np.uint32), into := np.zeros((20, 2), np.int32))
    np.testing.assert_array_equal(into, every_other)


def test_objects_are_copied_as_references():
    column = np.array([{"a": 1}, None, [1, 2]], object)
    assert take_rows(column, np.array([2, 0])).tolist() == [[1, 2], {"a": 1}]
    out = np.empty(3, object)
    put_rows(column, np.array([2, SKIP, 0], np.uint32), out)
    assert out.tolist() == [[1, 2], None, {"a": 1}]


def test_a_column_is_seen_as_the_widest_words_that_fit():
    for shape, dtype, expected in (
        ((5, 3), np.float32, ("uint32", 3)),
        ((5, 4), np.float32, ("uint64", 2)),
        ((5, 7), np.uint8, ("uint8", 7)),
        ((5, 3), np.int16, ("uint16", 3)),
        ((5,), np.float64, ("uint64", 1)),
    ):
        column = np.zeros(shape, dtype)
        seen = words(column)
        assert (seen.dtype.name, seen.shape[1]) == expected
        assert np.shares_memory(seen, column)


@pytest.mark.parametrize("count", [0, 1, 15, 17, 100])
def test_gather_scatter_and_move_equal_their_twins(count):
    rng = np.random.default_rng(count)
    rows = rng.integers(0, 2**60, (max(count, 1), 3)).astype(np.uint64)[:count]
    picks = rng.integers(0, max(count, 1), count)
    slots = rng.permutation(count).astype(np.uint32)
    slots[rng.random(count) < 0.3] = SKIP
    for kernel, twin, arguments in (
        (copying.gather, copying.gather_reference, (picks,)),
        (copying.scatter, copying.scatter_reference, (slots,)),
    ):
        out, expected = np.zeros_like(rows), np.zeros_like(rows)
        kernel(rows, *arguments, out)
        twin(rows, *arguments, expected)
        np.testing.assert_array_equal(out, expected)
    places = rng.permutation(count)
    out, expected = np.zeros_like(rows), np.zeros_like(rows)
    copying.move(rows, picks, out, places)
    copying.move_reference(rows, picks, expected, places)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("count", [0, 1, 31, 33, 200])
def test_columns_are_gathered_as_by_the_twin(dtype, count):
    rng = np.random.default_rng(count)
    rows = rng.integers(0, 200, (50, 20)).astype(dtype)
    picks, widths = rng.integers(0, 50, count), np.array([1, 14, 0, 5])
    starts = np.cumsum(widths) - widths
    out = [np.zeros((count, width), dtype) for width in widths]
    expected = [np.zeros((count, width), dtype) for width in widths]
    copying.gather_columns(rows, picks, starts, widths, np.array([each.ctypes.data for each in out]))
    copying.gather_columns_reference(rows, picks, starts, widths, expected)
    for found, each in zip(out, expected, strict=True):
        np.testing.assert_array_equal(found, each)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
def test_runs_are_gathered_as_by_the_twin(dtype):
    rng = np.random.default_rng(1)
    values = rng.integers(0, 200, 300).astype(dtype)
    starts = rng.integers(0, 280, 30)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 20, 30))])
    out, expected = np.empty(offsets[-1], dtype), np.empty(offsets[-1], dtype)
    copying.gather_runs(values, starts, offsets, out)
    copying.gather_runs_reference(values, starts, offsets, expected)
    np.testing.assert_array_equal(out, expected)
