"""Columns to rows of numbers: what is chosen, how it is encoded, what is refused."""

from __future__ import annotations

import datetime
import decimal
import json

import numpy as np
import pyarrow as pa
import pytest

from penstock import batch as loops
from penstock.batch import Csr
from penstock.columns.base import Place
from penstock.columns.choose import choose_features
from penstock.columns.date import Date
from penstock.columns.hashing import Hashed, count_words, hash_rows_reference, murmur3, murmur3_reference
from penstock.columns.kinds import column_from_dict
from penstock.columns.labels import LabelMap, LabelTally, numeric
from penstock.columns.number import Number
from penstock.columns.recipe import Recipe
from penstock.errors import ColumnError, FeatureError, LabelError, UsageError


def vectors(rows, width=3, kind=np.float32):
    return pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * width).astype(kind)), width)


def batch():
    return pa.record_batch(
        {
            "i": pa.array([1, 2, 3], pa.int16()),
            "f": pa.array([0.5, 1.5, 2.5]),
            "b": pa.array([True, False, True]),
            "v": vectors(3),
            "m": pa.array([decimal.Decimal("1.25")] * 3),
            "w": pa.array([1.0, 2.0, 3.0]),
            "y": pa.array(["no", "yes", "no"]),
        }
    )


def test_dense_columns_side_by_side_in_order():
    recipe = choose_features(batch().schema, label="y", weight="w", place="here")
    assert recipe.names == ("i", "f", "b", "v[0]", "v[1]", "v[2]", "m")
    assert (recipe.width, recipe.sparse, recipe.row_bytes) == (7, False, 36)
    recipe = recipe.with_labels(LabelMap.collect([batch()["y"]]))
    rows = recipe.encode(batch().select(recipe.columns))
    assert rows.x.dtype == np.float32
    assert rows.x.flags.c_contiguous
    np.testing.assert_array_equal(rows.x[1], [2, 1.5, 0, 3, 4, 5, 1.25])
    np.testing.assert_array_equal(rows.y, [-1, 1, -1])
    np.testing.assert_array_equal(rows.weight, [1, 2, 3])


def test_named_features_come_in_the_order_named():
    recipe = choose_features(batch().schema, features=["f", "i"], place="here")
    assert recipe.columns == ("f", "i")
    np.testing.assert_array_equal(recipe.encode(batch()).x, [[0.5, 1], [1.5, 2], [2.5, 3]])


def test_a_float32_list_is_a_view_even_of_a_slice():
    values = vectors(6)
    recipe = choose_features(pa.schema([("v", values.type)]), place="here")
    assert recipe.packed_column == "v"
    x = recipe.encode(pa.record_batch({"v": values}).slice(2, 3)).x
    assert np.shares_memory(x, values.values.to_numpy())
    np.testing.assert_array_equal(x, np.arange(6, 15).reshape(3, 3))


def test_rows_go_to_their_slots():
    recipe = choose_features(batch().schema, features=["i", "v"], weight="w", label="f", place="here")
    x, y, w = np.full((5, 4), -1, np.float32), np.full(5, -1, np.float32), np.full(5, -1, np.float32)
    slots = np.array([4, 0xFFFFFFFF, 0], np.uint32)
    recipe.encode_into(batch(), x, y_out=y, w_out=w, slots=slots)
    np.testing.assert_array_equal(x[[4, 0]], recipe.encode(batch()).x[[0, 2]])
    assert (x[1:4] == -1).all()
    np.testing.assert_array_equal(y, [2.5, -1, -1, -1, 0.5])
    np.testing.assert_array_equal(w, [3, -1, -1, -1, 1])


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (pa.array(["a"]), r"'c' is string.*hash=\['c:2\^20'\]"),
        (pa.array(["a"]).dictionary_encode(), r"'c' is dictionary.*hash=\['c"),
        (pa.array([datetime.date(2020, 1, 1)]), r"'c' is date32.*exclude"),
        (pa.array([[1.0, 2.0]]), r"'c' is list.*'indices' and 'values'"),
        (pa.array([None]), r"'c' is null"),
    ],
)
def test_what_is_no_feature_is_refused_by_name(column, told):
    rows = pa.record_batch({"a": [1.0], "c": column})
    with pytest.raises(FeatureError, match=f"clicks.csv.*{told}"):
        choose_features(rows.schema, place="clicks.csv")
    assert choose_features(rows.schema, exclude=["c"], place="clicks.csv").names == ("a",)


def test_missing_columns_name_the_nearest():
    for role in (
        {"label": "labl"},
        {"weight": "labl"},
        {"features": ["labl"]},
        {"exclude": ["labl"]},
        {"hash": ["labl"]},
    ):
        with pytest.raises(ColumnError, match=r"here has no .*'labl'; it has: a, label \(did you mean 'label'\?\)"):
            choose_features(pa.schema([("a", pa.int8()), ("label", pa.int8())]), **role, place="here")
    with pytest.raises(ColumnError, match="no feature columns"):
        choose_features(pa.schema([("y", pa.int8())]), label="y", place="here")
    with pytest.raises(UsageError, match="'y' is given as a feature"):
        choose_features(pa.schema([("y", pa.int8())]), label="y", features=["y"], place="here")


def test_nulls_are_named_by_row_and_column():
    rows = pa.record_batch({"a": [1.0, None], "b": [1.0, 2.0], "y": [1, None]})
    with pytest.raises(FeatureError, match=r"here: column 'a' is null in row 101"):
        choose_features(rows.schema, features=["a"], place="here").encode(rows, first_row=100)
    with pytest.raises(LabelError, match=r"here: 'y' is missing \(null\) in row 1"):
        choose_features(rows.schema, features=["b"], label="y", place="here").encode(rows)
    with pytest.raises(FeatureError, match=r"'a' is missing \(null\) in row 1"):
        choose_features(rows.schema, features=["b"], weight="a", place="here").encode(rows)
    inner = pa.record_batch({"v": pa.array([[1.0, 2.0], [3.0, None]], pa.list_(pa.float32(), 2))})
    with pytest.raises(FeatureError, match=r"'v\[1\]' is null in row 1"):
        choose_features(inner.schema, place="here").encode(inner)


def test_weights_below_zero_are_refused():
    rows = pa.record_batch({"a": [1.0, 2.0], "w": [1.0, -2.0]})
    with pytest.raises(FeatureError, match=r"weight 'w' is -2.0 in row 1"):
        choose_features(rows.schema, weight="w", place="here").encode(rows)


def test_features_that_are_not_finite_are_found():
    rows = pa.record_batch({"a": [1.0, 2.0], "b": [1.0, np.inf]})
    recipe = choose_features(rows.schema, place="here")
    assert recipe.nonfinite(recipe.encode(rows.slice(0, 1))) is None
    with pytest.raises(FeatureError, match=r"here: 'b' is not a finite number in row 11"):
        recipe.require_finite(recipe.encode(rows), first_row=10)
    pairs = sparse([[0], [2, 5]], [[1.0], [2.0, float("nan")]])
    recipe = choose_features(pairs.schema, place="here")
    assert recipe.nonfinite(recipe.encode(pairs)) == (1, "feature 5")


def sparse(indices, values, kind=None):
    return pa.record_batch(
        {"indices": pa.array(indices, pa.list_(kind or pa.int32())), "values": pa.array(values, pa.list_(pa.float32()))}
    )


@pytest.mark.parametrize("kind", [pa.int32(), pa.uint32(), pa.int64(), pa.uint16()])
def test_list_pairs_are_csr(kind):
    rows = sparse([[9], [0, 2], [], [1]], [[9.0], [1.0, 2.0], [], [3.0]], kind)
    recipe = choose_features(rows.schema, place="here")
    assert (recipe.sparse, recipe.width, recipe.names) == (True, None, None)
    x = recipe.encode(rows.slice(1, 3)).x
    assert (x.indptr.dtype, x.indices.dtype, x.values.dtype) == (np.uint64, np.uint32, np.float32)
    assert x.width == 3
    np.testing.assert_array_equal(x.to_dense(), [[1, 0, 2], [0, 0, 0], [0, 3, 0]])
    if kind in (pa.int32(), pa.uint32()):
        assert np.shares_memory(x.values, rows["values"].values.to_numpy())
    narrow = recipe.with_width(2)
    np.testing.assert_array_equal(narrow.encode(rows).x.to_dense(), [[0, 0], [1, 0], [0, 0], [0, 3]])
    assert narrow.width == 2


def test_bad_pairs():
    recipe = choose_features(sparse([[0]], [[1.0]]).schema, place="here")
    with pytest.raises(FeatureError, match="row 1 has 2 indices in 'indices' and 1 values"):
        recipe.encode(sparse([[0], [0, 1]], [[1.0], [1.0]]))
    with pytest.raises(FeatureError, match="row 1 has the index -3"):
        recipe.encode(sparse([[0], [-3]], [[1.0], [1.0]]))
    with pytest.raises(FeatureError, match="null"):
        recipe.encode(sparse([[0], None], [[1.0], [1.0]]))


def test_hashed_columns_follow_the_dense_ones_each_in_its_range():
    rows = pa.record_batch({"city": ["Rome", "Oslo", None], "a": [1.0, 2.0, 3.0], "text": ["x y x", "", "z"]})
    recipe = choose_features(rows.schema, hash=["city:2^4", "text:2^3:words"], place="here")
    assert (recipe.sparse, recipe.width) == (True, 1 + 16 + 8)
    x = recipe.encode(rows).x
    city = hash_rows_reference(rows["city"].to_pylist(), Hashed("city", 4))
    text = hash_rows_reference(rows["text"].to_pylist(), Hashed("text", 3, True))
    expected = np.zeros((3, 25), np.float32)
    for row in range(3):
        expected[row, 0] = row + 1
        for index, sign in city[row]:
            expected[row, 1 + index] += sign
        for index, sign in text[row]:
            expected[row, 17 + index] += sign
    np.testing.assert_array_equal(x.to_dense(), expected)
    numbers = pa.record_batch({"city": pa.array([7, 8]).dictionary_encode()})
    assert len(choose_features(numbers.schema, hash=["city"], place="here").encode(numbers).x.indices) == 2


def test_hash_is_murmur3_and_stays_so():
    # Known answers of MurmurHash3 x86 32.
    for data, seed, code in (
        (b"", 0, 0),
        (b"", 1, 0x514E28B7),
        (b"hello", 0, 0x248BFA47),
        (b"aaaa", 0x9747B28C, 0x5A97808A),
    ):
        assert murmur3_reference(data, seed) == code
        assert murmur3(np.frombuffer(data + b"!", np.uint8), 0, len(data), np.uint32(seed)) == code
    spec = Hashed("c", 20)
    x = spec.encode(pa.array(["Rome"]))
    assert (x.indices.tolist(), x.values.tolist()) == ([hash_rows_reference(["Rome"], spec)[0][0][0]], [x.values[0]])


def test_hash_twins_agree_on_any_text():
    rng = np.random.default_rng(0)
    letters = list("ab \t\n\x0bé")
    texts = ["".join(rng.choice(letters, rng.integers(0, 30))) for _ in range(200)] + [None]
    for spec in (Hashed("c", 5), Hashed("c", 31, True)):
        x = spec.encode(pa.array(["skipped", *texts]).slice(1))
        pairs = list(zip(x.indices.tolist(), x.values.tolist(), strict=True))
        found = [pairs[int(a) : int(b)] for a, b in zip(x.indptr[:-1], x.indptr[1:], strict=True)]
        assert found == hash_rows_reference(texts, spec)
    counts = np.empty(2, np.uint64)
    count_words(np.array([0, 5, 5]), np.frombuffer(b" a b ", np.uint8), counts)
    assert counts.tolist() == [2, 0]


def test_words_of_a_text_that_are_repeated_are_one_entry():
    x = Hashed.parse("text:2^20:words").encode(pa.array(["a b a a", "b", "a"]))
    assert x.indptr.tolist() == [0, 2, 3, 4]
    assert np.abs(x.values).tolist() == [3, 1, 1, 1]
    assert (x.indices[0], x.indices[1]) == (x.indices[3], x.indices[2])


@pytest.mark.parametrize("text", ["c:2^63", "c:2^0", "c:2^x", "c:2^3:2^4"])
def test_hash_options_that_cannot_be_read(text):
    with pytest.raises(UsageError, match="hash="):
        Hashed.parse(text)
    assert Hashed.parse("a:b") == Hashed("a:b", 20)


def test_kernels_equal_their_twins():
    rng = np.random.default_rng(0)
    columns = rng.random((5, 77), np.float32)
    one, two = np.zeros((77, 8), np.float32), np.zeros((77, 8), np.float32)
    loops.transpose(columns, one, 2)
    loops.transpose_reference(columns, two, 2)
    np.testing.assert_array_equal(one, two)
    slots = rng.permutation(100)[:77].astype(np.uint32)
    slots[::5] = loops.SKIP
    for act, twin, data in (
        (loops.scatter_rows, loops.scatter_rows_reference, one),
        (loops.scatter_values, loops.scatter_values_reference, one[:, 3].copy()),
    ):
        a, b = np.zeros((100, *data.shape[1:]), np.float32), np.zeros((100, *data.shape[1:]), np.float32)
        act(data, slots, a)
        twin(data, slots, b)
        np.testing.assert_array_equal(a, b)
    lengths = rng.integers(0, 4, 30)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    indices = rng.integers(0, 9, int(indptr[-1])).astype(np.uint32)
    part = Csr(indptr, indices, rng.random(len(indices), np.float32), 9)
    outs = []
    for act in (loops.copy_part, loops.copy_part_reference):
        ends = 2 * indptr[:-1]
        out = np.zeros(2 * len(indices), np.uint32), np.zeros(2 * len(indices), np.float32)
        act(part.indptr, part.indices, part.values, np.uint32(4), ends, *out)
        outs.append((ends, *out))
    for a, b in zip(*outs, strict=True):
        np.testing.assert_array_equal(a, b)
    joined = loops.join_parts([part, part])
    np.testing.assert_array_equal(joined.to_dense(), np.hstack([part.to_dense(), part.to_dense()]))


def test_a_recipe_survives_json_and_another_order_of_columns():
    recipe = choose_features(batch().schema, label="y", weight="w", hash=["i:2^4"], place="here")
    recipe = recipe.with_labels(LabelMap.collect([batch()["y"]]))
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    mixed = batch().select(list(reversed(batch().schema.names)))
    scored = again.for_schema(mixed.schema, place="there", scored=True)
    np.testing.assert_array_equal(scored.encode(mixed).x.to_dense(), recipe.encode(batch()).x.to_dense())
    np.testing.assert_array_equal(scored.encode(mixed).y, [-1, 1, -1])
    assert again.for_schema(mixed.drop_columns(["y", "w"]).schema, place="there").label is None
    with pytest.raises(ColumnError, match=r"there has no feature column 'f'"):
        again.for_schema(mixed.drop_columns(["f"]).schema, place="there")
    with pytest.raises(ColumnError, match=r"there has no label column 'y'"):
        again.for_schema(mixed.drop_columns(["y"]).schema, place="there", scored=True)
    with pytest.raises(ColumnError, match=r"there: column 'f' is date32"):
        again.for_schema(
            mixed.set_column(mixed.schema.names.index("f"), "f", pa.array([datetime.date(2020, 1, 1)] * 3)).schema,
            place="there",
        )


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (pa.array(["b", "a", "b"]), ("a", "b")),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ("a", "b")),
        (pa.array([3, -1, 3]), (-1, 3)),
        (pa.array([2.5, 0.0, 2.5]), (0.0, 2.5)),
        (pa.array([True, False, True]), (False, True)),
        (pa.array([2**60 + 1, 2**60, 2**60 + 1]), (2**60, 2**60 + 1)),
    ],
)
def test_classes_of_any_kind(values, classes):
    labels = LabelMap.collect([values.slice(0, 1), values.slice(1)], column="y")
    assert labels.classes == classes
    again = LabelMap.from_dict(json.loads(json.dumps(labels.to_dict())))
    assert again == labels
    np.testing.assert_array_equal(again.encode(values), [1, -1, 1])
    assert again.decode([-0.3, 4.0]).tolist() == list(classes)


def test_more_than_two_classes_are_counted_from_zero():
    labels = LabelMap.collect([pa.array(["c", "a", "b"])])
    assert not labels.binary
    np.testing.assert_array_equal(labels.encode(pa.array(["c", "a", "b"])), [2, 0, 1])
    assert labels.decode(np.array([2, 0])).tolist() == ["c", "a"]


def test_numbers_stand_for_the_same_class_whatever_their_type():
    labels = LabelMap.collect([pa.array([0, 1], pa.int8())])
    np.testing.assert_array_equal(labels.encode(pa.array([1.0, 0.0])), [1, -1])
    np.testing.assert_array_equal(labels.encode(pa.array([True, False])), [1, -1])


def test_labels_that_are_refused():
    with pytest.raises(LabelError, match=r"'y' has a single class \('a'\)"):
        LabelMap.collect([pa.array(["a", "a"])], column="y")
    with pytest.raises(LabelError, match=r"'y' has 3 classes \(1, 2, 3\) where two are needed"):
        LabelMap.collect([pa.array([1, 2, 3])], binary=True, column="y")
    with pytest.raises(LabelError, match=r"'y' is NaN in row 3"):
        LabelMap.collect([pa.array([1.0, 2.0]), pa.array([1.0, float("nan")])], column="y")
    with pytest.raises(LabelError, match="over 10000 different values"):
        LabelMap.collect([pa.array(np.arange(20_000))], column="y")
    labels = LabelMap.collect([pa.array(["a", "b"])], column="y")
    with pytest.raises(LabelError, match=r"the class 'c' in row 12, .* 'a', 'b'"):
        labels.encode(pa.array(["a", "b", "c"]), first_row=10)
    with pytest.raises(LabelError, match=r"the class 1 in row 0"):
        labels.encode(pa.array([1]))
    for value in (float("inf"), float("nan"), None):
        with pytest.raises(LabelError, match=r"'y' is .* in row 1"):
            numeric(pa.array([1.0, value]), column="y")
    with pytest.raises(LabelError, match="'y' is string, not a number"):
        numeric(pa.array(["a"]), column="y")


def test_text_columns_are_told_once_with_options_that_work():
    schema = pa.schema([("day", pa.date32()), ("city", pa.string()), ("tail", pa.large_string()), ("x", pa.float32())])
    with pytest.raises(FeatureError) as error:
        choose_features(schema)
    told = str(error.value)
    assert "columns 'city', 'tail' are text, not numbers" in told
    assert "exclude=['city', 'tail']" in told
    assert "hash=['city:2^20', 'tail:2^20']; column 'day' is date32" in told
    assert choose_features(schema, exclude=["city", "tail", "day"]).width == 1


def test_negative_zero_is_the_class_zero():
    labels = LabelMap.collect([pa.array([-0.0, 1.0]), pa.array([0.0, 1.0])])
    assert labels.classes == (0.0, 1.0)
    assert labels.encode(pa.array([-0.0, 0.0, 1.0])).tolist() == [-1.0, -1.0, 1.0]


def test_the_label_is_no_weight():
    schema = pa.schema([("x", pa.float32()), ("y", pa.int64())])
    with pytest.raises(UsageError, match="is the label too") as caught:
        choose_features(schema, label="y", weight="y", place="here")
    assert (caught.value.option, caught.value.value) == ("weight", "y")


def test_classes_that_float64_does_not_tell_apart_are_refused():
    tally = LabelTally("y")
    tally.add(pa.array([7, 2**53 + 1]))
    with pytest.raises(LabelError, match="2\\^53"):
        tally.add(pa.array([7.0, 2.0**53]))


def test_weights_that_are_text_are_called_weights():
    with pytest.raises(LabelError, match="rows are weighed by a column of numbers"):
        numeric(pa.array(["a"]), column="w", weight=True)


@pytest.mark.parametrize(
    "column", [Number("a", 0.0), Number("a", 2.0, True, (), 2.0, 0.5), Date("a", 0.0, False, (), 0.1)]
)
def test_what_is_zero_or_scaled_survives_json(column):
    assert column_from_dict(json.loads(json.dumps(column.to_dict()))) == column


def test_a_standardized_number_keeps_the_digits_of_numbers_far_from_zero():
    into = np.empty((2, 3), np.float32)
    Number("a", 1e9 + 1, True, (), 1e9 + 1, 2.0).write(pa.array([1_000_000_000, None, 1_000_000_002]), into, Place())
    assert into.tolist() == [[-2.0, 0.0, 2.0], [0.0, 1.0, 0.0]]
