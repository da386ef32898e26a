"""The benchmark of defaults: tables keep numbers only, scores are its own, and bars that are missed are named."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

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
from benchmarks.defaults.suite import SeedSpread, compare
from benchmarks.defaults.tables import DefaultsTable, Part, cut, from_arrow, from_matrix, sorted_by_label
from benchmarks.defaults.vowpal_wabbit import clicks


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
