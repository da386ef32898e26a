"""Estimators and `penstock.open` given tables in memory: pandas and Polars frames, DuckDB relations, pyarrow tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import penstock
from penstock import LinearRegression, LogisticRegression, SoftmaxRegression
from penstock.columns.base import without_dictionary
from penstock.errors import SchemaError, UsageError

pandas = pytest.importorskip("pandas")


class StreamOnly:
    """A table of a library that offers nothing but the Arrow C stream interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def mixed_frame(rows: int = 400, seed: int = 0) -> Any:
    """Return a frame of every usual type, with missing values, whose label follows from text, date and number."""
    rng = np.random.default_rng(seed)
    age, city = rng.normal(40, 10, rows), rng.choice(["Rome", "Oslo", "Lima"], rows)
    day = rng.integers(0, 365, rows)
    label = np.where((age - 40) / 10 + 2 * (city == "Rome") - (day > 180) > 0.3, "yes", "no")
    frame = pandas.DataFrame(
        {
            "age": age,
            "city": city.astype(object),
            "size": pandas.Categorical(rng.choice(["S", "M", "L"], rows)),
            "visits": pandas.array(rng.integers(0, 9, rows), dtype="Int64"),
            "day": pandas.Timestamp("2025-01-01") + pandas.to_timedelta(day, "D"),
            "member": rng.random(rows) > 0.5,
            "label": label,
        },
        index=np.arange(rows) * 3 + 1000,
    )
    frame.loc[frame.index[::20], "age"] = np.nan
    frame.loc[frame.index[::30], "visits"] = pandas.NA
    frame.loc[frame.index[::25], "city"] = None
    frame.loc[frame.index[::40], "day"] = pandas.NaT
    return frame


@pytest.fixture(scope="module")
def frame() -> Any:
    return mixed_frame()


def test_frame_with_text_dates_and_missing_values(frame):
    """A frame is learned from as it is: by the label's name, or with the labels beside it."""
    x, y = frame.drop(columns="label"), frame["label"]
    named = LogisticRegression().fit(frame, y="label")
    beside = LogisticRegression().fit(x, y)
    assert named.score(frame, "label") > 0.85
    assert beside.score(x, y) == named.score(frame, "label")
    assert list(beside.feature_names_in_) == list(x.columns)
    assert beside.n_features_in_ == 6
    assert beside.classes_.tolist() == ["no", "yes"]
    np.testing.assert_allclose(beside.predict_proba(x), named.predict_proba(frame), rtol=1e-5)
    assert (beside.predict(x) == y).mean() == beside.score(x, y)
    # All rows are learned from, as of arrays; the index is no feature.
    assert "held_out_loss" not in beside.history_[-1]
    assert beside.model_.recipe.label == "label"


def test_frame_gives_the_model_of_the_same_file(frame, tmp_path):
    """The features of a frame are those of the Parquet file that holds it."""
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    from_file = LogisticRegression(validation=0).fit(tmp_path / "t.parquet", y="label")
    from_frame = LogisticRegression().fit(frame, y="label")
    assert from_frame.model_.recipe.to_dict() == from_file.model_.recipe.to_dict()
    np.testing.assert_allclose(
        from_frame.predict_proba(tmp_path / "t.parquet"), from_frame.predict_proba(frame), rtol=1e-5
    )


def test_rows_in_any_order_of_columns_and_with_new_values(frame):
    """Features are found by name; levels and gaps that training did not see are no error."""
    x = frame.drop(columns="label")
    model = LogisticRegression().fit(x, frame["label"])
    turned = x[x.columns[::-1]]
    np.testing.assert_array_equal(model.predict(turned), model.predict(x))
    other = x.head(3).copy()
    other["city"] = ["Paris", None, "Rome"]
    other["member"] = [None, True, False]
    assert model.predict_proba(other).shape == (3, 2)


def test_rows_of_an_array_are_taken_in_the_order_of_the_columns(frame):
    """A model of a frame with text also scores an array of the same columns."""
    x = frame[["age", "city"]]
    model = LogisticRegression().fit(x, frame["label"])
    np.testing.assert_array_equal(model.predict(x.to_numpy()), model.predict(x))
    with pytest.raises(UsageError, match="2 columns"):
        model.predict(np.zeros((3, 5)))


def test_scikit_learn_tools_on_a_frame_with_text(frame):
    """Pipelines, cross-validation and grid search work on the frame as it is."""
    x, y = frame.drop(columns="label"), frame["label"]
    assert cross_val_score(LogisticRegression(), x, y, cv=3).min() > 0.75
    search = GridSearchCV(LogisticRegression(), {"l2": [0.001, 1.0]}, cv=2).fit(x, y)
    assert search.best_params_ == {"l2": 0.001}
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows.drop(columns="visits")), LogisticRegression())
    assert pipeline.fit(x, y).score(x, y) > 0.85


def test_regression_weights_and_options_beside_a_frame(frame):
    """Weights may be an array or a column; columns are excluded by name, also of a frame of numbers."""
    x, y = frame[["city", "member"]], frame["age"]
    model = LinearRegression().fit(x, y, sample_weight=np.ones(len(x)))
    assert model.model_.weights.width > 2
    assert np.isfinite(model.predict(x)).all()
    weighed = frame.assign(w=1.0)[["city", "member", "w"]]
    np.testing.assert_allclose(LinearRegression().fit(weighed, y, sample_weight="w").coef_, model.coef_, rtol=1e-4)
    numbers = pandas.DataFrame(np.random.default_rng(1).normal(size=(100, 2)), columns=["a", "b"])
    narrow = LogisticRegression().fit(numbers, numbers["a"] > 0, exclude=["b"])
    assert narrow.model_.recipe.columns == ("a", "label")


def test_several_classes_and_missing_labels(frame):
    """Rows without a label are left out; a label of three classes is kept in its type."""
    y = pandas.Series(np.arange(len(frame)) % 3, dtype="Int64", name="kind")
    y.iloc[5] = pandas.NA
    model = SoftmaxRegression().fit(frame[["city", "age"]], y)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.classes_.dtype.kind == "i"
    assert model.model_.recipe.unlabelled


def test_numeric_frames_stay_arrays():
    """A frame of numbers without gaps is one array of rows, as scikit-learn takes it."""
    x = pandas.DataFrame(np.random.default_rng(2).normal(size=(100, 3)), columns=["a", "b", "c"])
    model = LogisticRegression().fit(x, x["a"] > 0)
    assert model.model_.recipe.columns == ("features", "label")
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x.rename(columns={"a": "z"}))


def as_duckdb(table: pa.Table) -> Any:
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect().from_arrow(table)


@pytest.mark.parametrize("kind", [StreamOnly, as_duckdb, lambda table: table, ds.dataset])
def test_tables_of_other_libraries(frame, kind):
    """Anything with the Arrow stream interface, pyarrow tables and data sets are learned from, scored and opened."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    want = LogisticRegression(validation=0).fit(table, y="label")
    model = LogisticRegression(validation=0).fit(kind(table), y="label")
    np.testing.assert_allclose(model.predict_proba(kind(table)), want.predict_proba(frame), rtol=1e-4)
    assert model.score(kind(table), "label") == want.score(frame, "label")
    with penstock.open(kind(table)) as source:
        assert int(source.block_rows.sum()) == len(frame)
    if kind is not ds.dataset:
        rows = table.drop_columns("label")
        beside = LogisticRegression().fit(kind(rows), table.column("label"))
        np.testing.assert_array_equal(beside.predict(kind(rows)), want.predict(frame))


def test_text_as_polars_stores_it(frame):
    """Columns of string views are text like any other."""
    table = pa.table({"city": pa.array(frame["city"], pa.string()).cast(pa.string_view()), "label": frame["label"]})
    model = LogisticRegression().fit(StreamOnly(table), y="label")
    assert model.score(StreamOnly(table), "label") > 0.5
    assert model.model_.recipe.parts[0].kind == "category"


def test_data_set_of_parquet_files_is_read_from_them(frame, tmp_path):
    """A data set is opened by its files, in blocks; one with a filter is what the filter leaves."""
    for part in range(2):
        frame.iloc[part::2].to_parquet(tmp_path / f"{part}.parquet", index=False)
    dataset = ds.dataset(tmp_path)
    with penstock.open(dataset) as source:
        assert isinstance(source, penstock.blocks.ParquetSource)
        assert int(source.block_rows.sum()) == len(frame)
    with penstock.open(dataset.filter(ds.field("city") == "Rome")) as source:
        assert int(source.block_rows.sum()) == int((frame["city"] == "Rome").sum())
    assert LogisticRegression().fit(dataset, y="label").score(dataset, "label") > 0.8


def test_frames_that_cannot_be_taken_say_why(frame):
    """Two columns of one name, and labels of another length, are refused."""
    twice = pandas.concat([frame[["city"]], frame[["city"]]], axis=1)
    with pytest.raises(SchemaError, match="the frame has the column 'city' more than once"):
        penstock.open(twice)
    with pytest.raises(UsageError, match="3 values for 400 rows"):
        LogisticRegression().fit(frame[["city"]], ["a", "b", "a"])


def test_column_of_several_types_is_text():
    """Numbers among text in a column of objects are text."""
    mixed = pandas.DataFrame({"code": [1, "a", None, "b"] * 30, "label": [0, 1, 0, 1] * 30})
    model = LogisticRegression().fit(mixed, y="label")
    assert model.score(mixed, "label") == 1.0


def test_partitioned_data_set_keeps_its_partitions(frame, tmp_path):
    """The columns of hive partitions are those of the folders' names."""
    table = pa.Table.from_pandas(frame[["age", "member", "label"]], preserve_index=False)
    ds.write_dataset(table, tmp_path, format="parquet", partitioning=["label"], partitioning_flavor="hive")
    dataset = ds.dataset(tmp_path, partitioning="hive")
    with penstock.open(dataset) as source:
        assert source.schema.names == ["age", "member", "label"]
    assert LogisticRegression().fit(dataset, y="label").classes_.tolist() == ["no", "yes"]


def test_frames_with_lists_and_with_categories_of_string_views(frame):
    """Columns of lists are found by name in frames, and categories may have their text as Polars has it."""
    words = pa.array(["Rome", "Oslo", "Lima"]).cast(pa.string_view())
    rows = np.random.default_rng(3)
    table = pa.table(
        {
            "city": pa.DictionaryArray.from_arrays(pa.array(rows.integers(0, 3, 300), pa.int8()), words),
            "place": pa.FixedSizeListArray.from_arrays(rows.normal(size=600), 2),
            "label": pa.array(rows.integers(0, 2, 300)),
        }
    )
    want = LogisticRegression().fit(table, y="label")
    assert [part.kind for part in want.model_.recipe.parts] == ["category", "vector"]
    plain = table.set_column(0, "city", [table["city"].to_pylist()])
    for other in (StreamOnly(table), plain.to_pandas(types_mapper=pandas.ArrowDtype)):
        np.testing.assert_allclose(want.predict_proba(other), want.predict_proba(table), rtol=1e-5)
    for column in (table["city"], table["city"].chunk(0)):
        assert without_dictionary(column).to_pylist() == plain["city"].to_pylist()
