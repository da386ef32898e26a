"""The recipe of grouped rows: fitted over all of them, whatever their groups."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import DataError, LabelError, UsageError
from penstock.events import Started, Stream, Warned
from penstock.groups import GroupBy
from penstock.groups.etl import group
from penstock.groups.scale import Moments, Scale, dense_width_of
from tests.grouped_rows import MEMORY, whole

ROWS = 300


def mixed(rows=ROWS, *, unlabelled=0):
    """Return rows of two groups: numbers, text and dates, of which some are missing."""
    rng = np.random.default_rng(0)
    color = rng.choice(["red", "green", "blue"], rows).tolist()
    age = rng.normal(40, 9, rows).tolist()
    for row in range(0, rows, 10):
        age[row] = color[row + 1] = None
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=int(n)) for n in rng.integers(0, 300, rows)]
    label = rng.choice(["no", "yes"], rows).tolist()
    label[:unlabelled] = [None] * unlabelled
    columns = {"g": ["a", "b"] * (rows // 2), "id": range(rows), "age": age, "color": color, "day": days, "y": label}
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def part(grouped, name):
    return next(each for each in grouped.recipe.parts if each.columns == (name,))


def test_levels_and_what_stands_for_missing_numbers_are_those_of_all_rows(tmp_path):
    table = mixed()
    grouped = group(table, "g", tmp_path / "g", label="y", memory=MEMORY)
    assert part(grouped, "color").levels == ("blue", "green", "red")
    assert part(grouped, "age").fill == pytest.approx(pa.compute.mean(table["age"]).as_py(), rel=1e-6)
    names, x = grouped.recipe.names, whole(grouped, 0).x
    missing = np.flatnonzero([value is None for value in table["age"].to_pylist()[::2]])
    assert np.isfinite(x).all()
    assert np.flatnonzero(x[:, names.index("age is missing")]).tolist() == missing.tolist()
    assert x[missing, names.index("age")] == pytest.approx(part(grouped, "age").fill)


def test_columns_that_are_left_out_are_told_also_when_rows_are_used_again(tmp_path):
    for _ in range(2):
        heard = []
        grouped = group(mixed(), "g", tmp_path / "g", label="y", memory=MEMORY, stream=Stream([heard.append]))
        assert grouped.recipe.left_out == {"id": "row numbers"}
        assert [e.message for e in heard if isinstance(e, Warned) and "'id' (row numbers)" in e.message]
    assert not [e for e in heard if isinstance(e, Started)]  # nothing of the data is read


def test_a_row_number_that_is_named_is_a_feature_and_no_other_folder_is_taken_for_it(tmp_path):
    group(mixed(), "g", tmp_path / "g", label="y", memory=MEMORY)
    with pytest.raises(UsageError, match="of other columns"):
        group(mixed(), "g", tmp_path / "g", label="y", memory=MEMORY, number=["id"])
    assert group(mixed(), "g", tmp_path / "h", label="y", memory=MEMORY, number=["id"]).recipe.names[0] == "id"


def test_an_only_feature_that_numbers_the_rows_is_kept(tmp_path):
    grouped = group(mixed().select(["g", "id", "y"]), "g", tmp_path / "g", label="y", memory=MEMORY)
    assert grouped.recipe.names == ("id",)


@pytest.mark.parametrize("model", ["logistic", "linear"])
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_without_a_label_have_no_weight(model, sparse, tmp_path):
    table = mixed(unlabelled=7)
    if model == "linear":
        table = table.set_column(5, "y", pa.compute.if_else(pa.compute.is_valid(table["y"]), 1.5, None))
    heard = []
    options = {"hash": ["color:2^6"]} if sparse else {}
    grouped = group(
        table, "g", tmp_path / "g", label="y", memory=MEMORY, model=model, stream=Stream([heard.append]), **options
    )
    assert [int((whole(grouped, number).weight == 0).sum()) for number in (0, 1)] == [4, 3]
    assert any("7 rows have no 'y'" in event.message for event in heard if isinstance(event, Warned))


def test_labels_are_refused_where_missing_values_are(tmp_path):
    table = mixed(unlabelled=1)
    with pytest.raises(LabelError, match="missing"):
        group(table, "g", tmp_path / "g", label="y", memory=MEMORY, features=["id"], missing="refuse")
    with pytest.raises(DataError, match="missing in every row"):
        group(mixed(unlabelled=ROWS), "g", tmp_path / "g", label="y", memory=MEMORY)


@pytest.mark.parametrize("missing", ["fill", "indicator", "drop"])
def test_missing_values_as_asked(missing, tmp_path):
    grouped = group(mixed(), "g", tmp_path / "g", label="y", memory=MEMORY, missing=missing)
    assert ("age is missing" in grouped.recipe.names) == (missing == "indicator")
    left_out = 0 if (weight := whole(grouped, 0).weight) is None else int((weight == 0).sum())
    assert left_out == (30 if missing == "drop" else 0)


def test_the_same_file_gives_the_same_recipe_again(tmp_path):
    pq.write_table(mixed(), tmp_path / "t.parquet", row_group_size=70)
    one, two = (group(tmp_path / "t.parquet", "g", tmp_path / name, label="y", memory=MEMORY) for name in "hi")
    assert one.note == two.note


def test_rows_for_trees_are_codes_and_nan(tmp_path):
    table = mixed()
    grouped = group(table, "g", tmp_path / "g", label="y", memory=MEMORY, trees=True)
    assert grouped.recipe.names == ("age", "color", "day in days", "day month", "day weekday")
    x, colors = whole(grouped, 0).x, table["color"].to_pylist()[::2]
    codes = {"blue": 0.0, "green": 1.0, "red": 2.0, None: np.nan}
    np.testing.assert_array_equal(x[:, 1], np.array([codes[color] for color in colors], np.float32))
    assert np.isnan(x[:, 0]).tolist() == [value is None for value in table["age"].to_pylist()[::2]]


def test_rows_for_trees_are_not_for_other_models(tmp_path):
    import penstock

    group(mixed(), "g", tmp_path / "g", label="y", memory=MEMORY, trees=True)
    with pytest.raises(UsageError, match="rows for trees"):
        GroupBy(tmp_path / "g", by="g").fit(penstock.LogisticRegression(), y="y")


@pytest.mark.parametrize("sparse", [False, True])
def test_numbers_are_shifted_and_flags_keep_their_size(sparse, tmp_path):
    options = {"hash": ["color:2^6"]} if sparse else {}
    grouped = group(mixed(), "g", tmp_path / "g", label="y", memory=MEMORY, features=["age", "day"], **options)
    assert grouped.recipe.sparse == sparse
    recipe, batch = grouped.recipe, whole(grouped, 0)
    moments = Moments.of(batch, None, dense=dense_width_of(recipe))
    scaled = Scale.for_recipe(moments, recipe, shift=True).rows(batch.x)
    numbers = scaled.to_dense() if sparse else scaled
    dense = recipe.dense_width if sparse else recipe.width
    assert numbers[:, :dense].mean(axis=0) == pytest.approx(0, abs=1e-4)
    assert numbers[:, 0].std() == pytest.approx(1, rel=1e-4)
    ends = numbers[:, np.flatnonzero(recipe.flags)]
    varies = np.ptp(ends, axis=0) > 0
    assert varies.sum() > 5
    assert np.ptp(ends, axis=0)[varies] == pytest.approx(1)


def test_prose_is_hashed_to_few_features_for_every_group_has_weights_for_them(tmp_path):
    words = [f"the {i} cats of number {i % 7} sat on mat {i % 90}" for i in range(300)]
    table = pa.table({"g": ["a", "b", "c"] * 100, "text": words, "y": [0, 1] * 150})
    grouped = group(table, "g", tmp_path / "rows", label="y", memory="100MB")
    assert grouped.recipe.width == 2**12
    wide = group(table, "g", tmp_path / "wide", label="y", memory="100MB", hash=["text:2^14:words"])
    assert wide.recipe.width == 2**14
