"""Group keys as tuples, text and numbers."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ColumnError, DataError, UsageError
from penstock.groups.keys import Numbering, coded, from_columns, from_text, key_type, to_columns, to_text

VALUES = [
    ("FR", pa.string()),
    ("a/b%2F", pa.string()),
    ("日本 🗾", pa.string()),
    ("", pa.string()),
    ("%null", pa.string()),
    ("two\nlines", pa.string()),
    (None, pa.string()),
    (-7, pa.int64()),
    (2**64 - 1, pa.uint64()),
    (0.1, pa.float64()),
    (1e300, pa.float64()),
    (3.0, pa.float64()),
    (math.inf, pa.float64()),
    (math.nan, pa.float64()),
    (True, pa.bool_()),
    (False, pa.bool_()),
    (datetime.date(2024, 2, 29), pa.date32()),
    (datetime.datetime(2024, 2, 29, 23, 59, 1, 5), pa.timestamp("us")),
    (datetime.datetime(2024, 2, 29, 23, tzinfo=datetime.UTC), pa.timestamp("us", "UTC")),
    (datetime.time(12, 30), pa.time64("us")),
    (Decimal("1.10"), pa.decimal128(10, 2)),
]


@pytest.mark.parametrize(("value", "kind"), VALUES, ids=str)
def test_text_and_columns_give_the_key_back(value, kind):
    codes, (key,) = coded([pa.array([value], kind)], [kind])
    assert codes.tolist() == [0]
    assert from_text(to_text(key), [kind]) == key or (value != value and math.isnan(key[0]))
    assert to_text(from_text(to_text(key), [kind])) == to_text(key)
    (back,) = from_columns(to_columns([key], [kind]))
    assert to_text(back) == to_text(key)


@given(st.lists(st.tuples(st.none() | st.text(), st.none() | st.text()), unique=True))
def test_different_keys_have_different_text(keys):
    kinds = [pa.string(), pa.string()]
    texts = [to_text(key) for key in keys]
    assert len(set(texts)) == len(keys)
    assert [from_text(text, kinds) for text in texts] == keys


def test_null_is_a_key_of_its_own_and_not_the_word():
    codes, keys = coded([pa.array(["null", None, "%null", "", None])], [pa.string()])
    assert codes.tolist() == [0, 1, 2, 3, 1]
    assert [to_text(key) for key in keys] == ["null", "%null", "%25null", ""]


def test_whole_floats_read_as_whole_numbers():
    assert to_text((3.0,)) == "3"
    assert from_text("3", [pa.float64()]) == (3.0,)


def test_nan_and_signed_zeros_are_one_key_each_over_many_blocks():
    numbering = Numbering()
    for _ in range(2):
        codes, keys = coded([pa.array([math.nan, 0.0, -0.0, float("nan")])], [pa.float64()])
        assert numbering.number(keys)[codes].tolist() == [0, 1, 1, 0]


def test_numbers_go_by_first_occurrence():
    numbering = Numbering([("b",)])
    assert numbering.number([("c",), ("b",), ("a",), ("c",)]).tolist() == [1, 0, 2, 1]
    assert numbering.keys == [("b",), ("c",), ("a",)]
    assert len(numbering) == 3


def test_codes_of_several_columns_match_the_rows():
    rng = np.random.default_rng(0)
    rows = [(rng.choice(["a", "b", None]), int(rng.integers(3)), bool(rng.integers(2))) for _ in range(200)]
    kinds = [pa.string(), pa.int64(), pa.bool_()]
    codes, keys = coded([pa.array([r[c] for r in rows], kind) for c, kind in enumerate(kinds)], kinds)
    assert [keys[code] for code in codes] == rows
    assert keys == list(dict.fromkeys(rows))


def test_no_rows_have_no_keys():
    for columns in ([pa.array([], pa.string())], [pa.array([], pa.string()), pa.array([], pa.int64())]):
        codes, keys = coded(columns, [column.type for column in columns])
        assert (len(codes), keys) == (0, [])


@pytest.mark.parametrize(
    "kind",
    [
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string()),
    ],
)
def test_all_kinds_of_text_make_the_same_keys(kind):
    array = (
        pa.array(["x", None, "y"]).cast(kind) if not pa.types.is_string_view(kind) else pa.array(["x", None, "y"], kind)
    )
    assert coded([array], [key_type(kind, column="c")])[1] == [("x",), (None,), ("y",)]


def test_moments_in_a_zone_are_told_apart_when_the_clock_goes_back():
    zone = pa.timestamp("s", "Europe/Paris")
    hour = 3600
    october = int(datetime.datetime(2024, 10, 27, 0, 30, tzinfo=datetime.UTC).timestamp())
    kind = key_type(zone, column="when")
    _, keys = coded([pa.array([october, october + hour], zone)], [kind])
    assert len({*keys}) == 2
    assert to_text(keys[0]) == "2024-10-27T00:30:00+00:00"


def test_nanoseconds_that_do_not_fit_are_refused():
    array = pa.array([1], pa.timestamp("ns"))
    with pytest.raises(DataError, match="microseconds"):
        coded([array], [key_type(array.type, column="when")])


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.binary(), pa.struct([("a", pa.int64())]), pa.duration("s")])
def test_what_cannot_name_groups_is_refused_by_name(kind):
    with pytest.raises(ColumnError, match=r"here: column 'c' is .* cannot name groups"):
        key_type(kind, column="c", place="here")


@pytest.mark.parametrize(("text", "match"), [("FR", "2 grouping columns"), ("FR/x", "'x' where a value of type int64")])
def test_text_that_is_no_key_is_refused(text, match):
    with pytest.raises(UsageError, match=match):
        from_text(text, [pa.string(), pa.int64()])
