"""Rows as columns: `Ragged` against lists, `Records` against its columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records import Ragged, Records

INTEGERS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6), max_size=12)
TEXTS = st.lists(st.text(max_size=6), min_size=1, max_size=12)
BYTES = st.lists(st.binary(max_size=6), min_size=1, max_size=12)


def ragged(rows):
    """Make rows of any of the three kinds; numbers are always int32, also where there are none."""
    if rows and not isinstance(rows[0], list):
        return Ragged.of(rows)
    return Ragged.of([np.array(row, np.int32) for row in rows])


def listed(rows: Ragged) -> list:
    return [row.tolist() if isinstance(row, np.ndarray) else row for row in rows]


@given(rows=INTEGERS | TEXTS | BYTES)
def test_rows_come_out_as_they_went_in(rows):
    made = ragged(rows)
    assert listed(made) == rows
    assert len(made) == len(rows)
    lengths = [len(row.encode() if isinstance(row, str) else row) for row in rows]
    assert made.lengths.tolist() == lengths
    assert made.nbytes == 8 * (len(rows) + 1) + sum(lengths) * made.values.itemsize


@given(rows=INTEGERS | TEXTS | BYTES, data=st.data())
def test_slices_picks_and_joins_are_those_of_a_list(rows, data):
    made = ragged(rows)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    part, expected = made.slice(start, stop), rows[start:stop]
    assert listed(part) == expected
    assert part.nbytes <= made.nbytes
    picks = data.draw(st.lists(st.integers(-len(expected), len(expected) - 1), max_size=9) if expected else st.just([]))
    taken = part.take(np.array(picks, np.int64))
    assert listed(taken) == [expected[i] for i in picks]
    assert taken.kind == made.kind
    assert taken.values.dtype == made.values.dtype
    assert not np.shares_memory(taken.values, made.values)
    joined = Ragged.concat([part, taken, made])
    assert listed(joined) == expected + [expected[i] for i in picks] + rows
    assert joined.offsets[0] == 0


def test_a_row_is_found_by_its_place_from_either_end():
    made = Ragged.of(["a", "bc", ""])
    assert (made[0], made[-1], made[np.int64(1)]) == ("a", "", "bc")
    for place in (3, -4):
        with pytest.raises(IndexError, match=f"row {place} of 3"):
            made[place]
    with pytest.raises(IndexError):
        Ragged.of([])[0]


def test_slices_share_memory_and_picks_do_not():
    made = Ragged.of([np.arange(3), np.arange(4)])
    assert np.shares_memory(made.slice(1, 2).values, made.values)
    assert not np.shares_memory(made.take(np.array([1])).values, made.values)


def test_short_rows_are_filled_up_and_long_ones_cut():
    made = Ragged.of([np.array([1, 2, 3]), np.array([], np.int64), np.array([4])])
    assert made.pad().tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
    assert made.pad(-1, length=2).tolist() == [[1, 2], [-1, -1], [4, -1]]
    assert made.pad(9, length=4).tolist() == [[1, 2, 3, 9], [9] * 4, [4, 9, 9, 9]]
    assert made.slice(1, 3).pad().tolist() == [[0], [4]]
    assert made.slice(0, 0).pad().shape == (0, 0)


def some_records(rows: int = 7, *, numbered: bool = True) -> Records:
    columns = {
        "x": np.arange(2 * rows, dtype=np.float32).reshape(rows, 2),
        "flag": np.arange(rows) % 2 == 0,
        "words": Ragged.of(["w" * i for i in range(rows)]),
    }
    return Records(columns, np.arange(100, 100 + rows) if numbered else None)


@pytest.mark.parametrize("numbered", [True, False])
def test_all_columns_and_the_numbers_are_sliced_picked_and_joined_alike(numbered):
    rows = some_records(numbered=numbered)
    picks = np.array([5, 0, 5, 2])
    for found, places in (
        (rows.slice(2, 6), [2, 3, 4, 5]),
        (rows.take(picks), picks.tolist()),
        (rows.slice(1, 6).copy(), [1, 2, 3, 4, 5]),
        (Records.concat([rows.slice(4, 7), rows.take(picks[:2])]), [4, 5, 6, 5, 0]),
    ):
        assert len(found) == len(places)
        assert found.columns["x"].tolist() == [[2.0 * i, 2.0 * i + 1] for i in places]
        assert found.columns["flag"].tolist() == [i % 2 == 0 for i in places]
        assert list(found.columns["words"]) == ["w" * i for i in places]
        if numbered:
            assert found.rows.tolist() == [100 + i for i in places]
        else:
            assert found.rows is None


def test_a_copy_is_in_memory_of_its_own():
    rows = some_records()
    copy = rows.slice(0, 3).copy()
    assert not np.shares_memory(copy.columns["x"], rows.columns["x"])
    assert not np.shares_memory(copy.columns["words"].values, rows.columns["words"].values)
    assert not np.shares_memory(copy.rows, rows.rows)
    assert copy.nbytes == 3 * (8 + 1 + 8) + 8 * 4 + 3


def test_records_without_columns_have_no_rows():
    assert len(Records({})) == 0
    assert Records({}).nbytes == 0
