"""The benchmark of defaults: tables keep numbers only, scores are its own, and bars that are missed are named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.defaults.column_transformer import ColumnKinds, careful_features, find_kinds, to_frame
from benchmarks.defaults.scores import (
    DEFAULT_BARS,
    SGD_BARS,
    Answer,
    Bars,
    Baseline,
    Comparison,
    ModelScore,
    baseline,
    log_loss,
    score,
    text_table,
)
from benchmarks.defaults.storage import load_duckdb, write_file
from benchmarks.defaults.suite import SeedSpread, compare
from benchmarks.defaults.tables import DefaultsTable, Part, cut, from_arrow, from_matrix, sorted_by_label
from benchmarks.defaults.vowpal_wabbit import clicks
from benchmarks.defaults.whole_tables import whole_table


def made(rows: int = 400, *, classes: bool = True) -> DefaultsTable:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 3))
    margin = x @ [2.0, -1.0, 0.0] + 0.5 * rng.normal(size=rows)
    return from_matrix("made", x, np.where(margin > 0, 2, 1) if classes else margin, classes=classes)


def compared(
    published: ModelScore,
    sorted_: ModelScore | None = None,
    *,
    reference: Baseline | None = None,
    metric: str = "accuracy",
    bars: Bars = DEFAULT_BARS,
) -> Comparison:
    ours = {"published": published, "sorted": sorted_ or published}
    return Comparison("t", 5000, 3, metric, None, 1000, reference or Baseline(0.9, 0.25, 0.6), ours, bars)


def test_text_mostly_null_columns_and_rows_with_nulls_are_left_out() -> None:
    data = pa.table(
        {
            "a": [1, 2, None, 4],
            "text": ["p", "q", "r", "s"],
            "empty": [None, None, None, 1.0],
            "b": [0.5, 1.5, 2.5, 3.5],
            "label": ["no", "yes", "yes", "no"],
        }
    )
    table = from_arrow("t", data, classes=True)
    assert isinstance(table.rows.x, pa.Table)
    assert table.rows.x.to_pydict() == {"a": [1, 2, 4], "b": [0.5, 1.5, 3.5]}
    assert table.rows.y.tolist() == ["no", "yes", "no"]


def test_a_split_is_the_same_each_time_and_shares_no_row() -> None:
    x = np.arange(100.0).reshape(100, 1)
    table = from_matrix("t", x, np.arange(100) % 2, classes=True)
    train, test = table.split()
    both = np.concatenate([train.matrix(), test.matrix()]).ravel()
    assert (len(train), len(test)) == (80, 20)
    assert sorted(both.tolist()) == x.ravel().tolist()
    np.testing.assert_array_equal(table.split()[1].matrix(), test.matrix())
    assert sorted_by_label(train).y.tolist() == sorted(train.y.tolist())
    smaller = cut(table, 30)
    assert (len(smaller.rows), smaller.cut_from) == (30, 100)


def test_scores_take_classes_as_each_door_writes_them() -> None:
    table = made()
    y = table.split()[1].y
    sure = np.where(y[:, None] == [1, 2], 0.8, 0.2)
    for prediction in (y, y.astype(float), np.array([str(label) for label in y])):
        found = score(table, Answer(prediction, sure, ["1", "2"]))
        assert found.score == 1
        assert found.log_loss == pytest.approx(-math.log(0.8))
    assert score(table, Answer(y[:-1])).error
    assert log_loss(np.array([3]), np.array([[0.5, 0.5]]), [1, 2]) > 30  # a class that the model does not know


def test_a_regression_that_diverged_is_below_every_bar() -> None:
    table = made(classes=False)
    found = score(table, Answer(np.full(80, np.nan)))
    assert found.score == -math.inf
    comparison = compared(found, metric="R²", reference=Baseline(0.5, None, 0.0), bars=SGD_BARS)
    assert "below a constant prediction" in comparison.misses
    assert json.loads(json.dumps(comparison.to_json(), allow_nan=False))["ours"]["sorted"]["score"] is None


@pytest.mark.parametrize(
    ("ours", "bars", "misses"),
    [
        (ModelScore(0.895, 0.255), DEFAULT_BARS, 0),
        (ModelScore(0.894, 0.25), DEFAULT_BARS, 1),
        (ModelScore(0.9, 0.256), DEFAULT_BARS, 1),
        (ModelScore(0.89, 0.4), SGD_BARS, 0),
        (ModelScore(0.889, 0.25), SGD_BARS, 1),
        (ModelScore(0.5, 0.9), DEFAULT_BARS, 3),
        (ModelScore(error="refused"), DEFAULT_BARS, 1),
    ],
)
def test_bars_that_are_missed_are_named(ours: ModelScore, bars: Bars, misses: int) -> None:
    found = compared(ours, bars=bars)
    assert len(found.misses) == misses
    assert found.verdict == ("MISSED" if misses else "met")


def test_too_little_memory_is_no_miss() -> None:
    refused = ModelScore(error="memory", refused=True)
    assert compared(refused).verdict == "refused"
    assert compared(refused, ModelScore(0.9, 0.25)).verdict == "MISSED"
    assert text_table([compared(refused)], "sgd").endswith("0 of 0 tables met, 1 refused for too little memory")


def test_the_worse_of_both_orders_counts() -> None:
    found = compared(ModelScore(0.9, 0.25), ModelScore(0.7, 0.5))
    assert found.points == pytest.approx(-20)
    assert found.log_loss_ratio == pytest.approx(2)
    text = text_table([found, compared(ModelScore(0.9, 0.25))], "door: file")
    assert text.count("MISSED") == 1
    assert text.endswith("1 of 2 tables met")


def test_a_table_is_compared_with_scikit_learn_in_both_orders(tmp_path: Path) -> None:
    table, orders = made(), []

    def enter(table: DefaultsTable, train: Part, test: Part) -> Answer:
        orders.append(bool((np.diff(train.y) >= 0).all()))
        return Answer(test.y, np.where(test.y[:, None] == [1, 2], 0.99, 0.01), [1, 2])

    found = compare(table, enter, DEFAULT_BARS, tmp_path)
    assert orders == [False, True]
    assert found.verdict == "met"
    assert 0.8 < found.baseline.score < 1
    assert baseline(table, tmp_path) == found.baseline  # kept by the rows' content

    def refuse(table: DefaultsTable, train: Part, test: Part) -> Answer:
        raise ValueError("no such model")

    assert compare(table, refuse, DEFAULT_BARS, tmp_path).verdict == "MISSED"


def test_the_spread_over_seeds_is_judged_against_a_full_shuffle() -> None:
    assert SeedSpread("t", "10%", [0.9, 0.901, 0.902], [0.9, 0.901]).verdict == "met"
    assert len(SeedSpread("t", "2%", [0.89, 0.9, 0.902], [0.9, 0.901]).misses) == 2
    assert SeedSpread("t", "2%", [], [0.9]).verdict == "MISSED"


def test_clicks_have_a_label_that_their_features_tell() -> None:
    (x, y), (test_x, test_y) = clicks(1_200)
    assert (x.shape[0], test_x.shape[0], len(test_y)) == (1_000, 200, 200)
    assert (np.diff(x.indptr) <= 39).all()
    assert 0.1 < y.mean() < 0.4


def whole_rows(rows: int = 400) -> pa.Table:
    rng = np.random.default_rng(5)
    colors = rng.choice(["red", "green", "blue"], rows)
    number = rng.normal(size=rows)
    label = (number + 2 * (colors == "red") + 0.3 * rng.normal(size=rows) > 0.5).astype(np.int64)
    start = np.datetime64("2026-01-01T06:00", "us")
    return pa.table(
        {
            "number": pa.array(number, mask=rng.random(rows) < 0.1),
            "color": pa.array(colors, mask=rng.random(rows) < 0.1),
            "coded": ["?" if row % 10 == 0 else f"{row % 7}.5" for row in range(rows)],
            "day": [str((start + np.timedelta64(row, "D")).astype("datetime64[D]")) for row in range(rows)],
            "time": start + np.arange(rows).astype("timedelta64[h]"),
            "name": [f"row {row}" for row in range(rows)],
            "empty": pa.nulls(rows, pa.string()),
            "label": label,
        }
    )


def test_whole_tables_keep_text_and_nulls() -> None:
    data = whole_rows()
    table = whole_table("t", data, classes=True)
    assert isinstance(table.rows.x, pa.Table)
    assert table.rows.x.equals(data.drop_columns(["label"]))
    assert cut(table, 100).whole
    text = whole_table("t", pa.table({"a": [1, 2], "label": ["no", "yes"]}), classes=True)
    assert text.rows.y.tolist() == ["no", "yes"]


def test_the_kinds_of_columns_are_those_that_a_careful_user_sees() -> None:
    kinds = find_kinds(whole_rows().drop_columns(["label"]))
    assert kinds == ColumnKinds(("number", "coded"), ("color",), ("day", "time"))


def test_dates_are_days_and_parts_and_missing_ones_stay_missing() -> None:
    data = pa.table({"day": ["2026-01-02", None, "2026-03-01"], "coded": ["1", "?", "2"]})
    frame, numbers, texts = to_frame(data, ColumnKinds(("coded",), (), ("day",)))
    assert numbers == ["coded", "day, days"]
    assert texts == ["day, month", "day, day_of_week", "day, hour"]
    assert frame["day, days"][2] - frame["day, days"][0] == 58
    assert frame["day, month"][[0, 2]].tolist() == ["1", "3"]
    assert frame["day, day_of_week"][[0, 2]].tolist() == ["4", "6"]
    assert frame.loc[1].isna().all()


def test_features_are_fitted_to_the_training_rows_alone() -> None:
    train = pa.table({"number": [0.0, 2.0, None], "color": ["red", None, "red"]})
    test = pa.table({"number": [None, 1e6], "color": ["pink", None]})
    encoded, other = careful_features(train, test)
    # A scaled number, a scaled indicator, and the values "missing" and "red".
    assert encoded.shape == (3, 4)
    assert other[0].tolist()[0] == pytest.approx(0)
    assert other[:, 2:].tolist() == [[0, 0], [1, 0]]


def test_the_baseline_of_a_whole_table_learns_from_its_text(tmp_path: Path) -> None:
    table = whole_table("t", whole_rows(), classes=True)
    found = baseline(table, tmp_path)
    assert found.score > 0.85
    assert baseline(table, tmp_path) == found
    assert len(list(tmp_path.iterdir())) == 1


def test_a_whole_table_is_stored_with_its_nulls_and_types(tmp_path: Path) -> None:
    part = whole_table("t", whole_rows(20), classes=True).rows
    stored = pq.read_table(write_file(part, tmp_path / "t", layout="parquet"))
    assert stored["color"].null_count == part.x["color"].null_count
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        load_duckdb(connection, "t", part)
        assert connection.execute("SELECT count(*) - count(c1) FROM t").fetchone() == (part.x["color"].null_count,)
