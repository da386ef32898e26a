"""Measures equal those of scikit-learn, weighted too, whatever the batches; merged ranks keep within their bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from penstock.measures import MOST_CLASSES_IN_TABLE, Ranking, measures_of


def rows(count, seed=0, *, weighted=True):
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < 0.3).astype(int)
    scores = (rng.normal(size=count) + y).astype(np.float32).astype(np.float64)
    weights = rng.integers(1, 9, count) / 4 if weighted else np.ones(count)
    return scores, y, weights


def added(measures, scores, labels, weights, parts=7):
    for part in np.array_split(np.arange(len(labels)), parts):
        measures.add(scores[part], labels[part], weights[part])
    return measures.figures()


def softmax(scores):
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scored", ["logistic", "softmax", "hinge"])
def test_two_classes(scored, weighted):
    scores, y, weights = rows(3000, weighted=weighted)
    given_scores = np.column_stack([-scores / 2, scores / 2]) if scored == "softmax" else scores
    labels = y.astype(float) if scored == "softmax" else 2.0 * y - 1
    got = added(measures_of(classes=2, probabilities=scored != "hinge"), given_scores, labels, weights)
    said, chance = (scores > 0).astype(int), 1 / (1 + np.exp(-scores))
    w = {"sample_weight": weights}
    assert got["accuracy"] == pytest.approx(metrics.accuracy_score(y, said, **w))
    assert got["auc"] == pytest.approx(metrics.roc_auc_score(y, scores, **w), abs=1e-9)
    assert got["precision"] == pytest.approx(metrics.precision_score(y, said, **w))
    assert got["recall"] == pytest.approx(metrics.recall_score(y, said, **w))
    assert got["f1"] == pytest.approx(metrics.f1_score(y, said, **w))
    assert got["confusion_matrix"] == metrics.confusion_matrix(y, said, **w).tolist()
    if scored == "hinge":
        assert not {"log_loss", "brier"} & set(got)
    else:
        assert got["log_loss"] == pytest.approx(metrics.log_loss(y, chance, **w))
        assert got["brier"] == pytest.approx(metrics.brier_score_loss(y, chance, **w))


@pytest.mark.parametrize("weighted", [False, True])
def test_many_classes(weighted):
    rng = np.random.default_rng(1)
    y, weights = rng.integers(0, 4, 2000), rng.integers(1, 5, 2000) / 2 if weighted else np.ones(2000)
    scores = rng.normal(size=(2000, 5))  # the last class has no rows, but predictions
    scores[np.arange(2000), y] += 1
    got = added(measures_of(classes=5), scores, y.astype(float), weights)
    said, chances, w = scores.argmax(axis=1), softmax(scores), {"sample_weight": weights}
    assert got["accuracy"] == pytest.approx(metrics.accuracy_score(y, said, **w))
    assert got["log_loss"] == pytest.approx(metrics.log_loss(y, chances, labels=range(5), **w))
    for name, function in (
        ("macro_precision", metrics.precision_score),
        ("macro_recall", metrics.recall_score),
        ("macro_f1", metrics.f1_score),
    ):
        assert got[name] == pytest.approx(function(y, said, average="macro", zero_division=0, **w))
    areas = [metrics.roc_auc_score(y == k, chances[:, k], **w) for k in range(4)]
    assert got["macro_auc"] == pytest.approx(np.mean(areas), abs=1e-6)
    assert got["confusion_matrix"] == metrics.confusion_matrix(y, said, labels=range(5), **w).tolist()


def test_very_many_classes_have_no_table_and_no_ranks():
    many = MOST_CLASSES_IN_TABLE + 1
    y = np.arange(3 * many) % many
    got = added(measures_of(classes=many), np.eye(many)[y], y.astype(float), np.ones(len(y)))
    assert (got["confusion_matrix"], got["macro_auc"], got["macro_f1"]) == (None, None, 1.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_numbers(weighted):
    scores, _, weights = rows(2000, weighted=weighted)
    y = 1e6 + scores + np.random.default_rng(2).normal(size=2000)
    got = added(measures_of(), scores + 1e6, y, weights)
    w = {"sample_weight": weights}
    assert got["r2"] == pytest.approx(metrics.r2_score(y, scores + 1e6, **w))
    assert got["rmse"] == pytest.approx(metrics.root_mean_squared_error(y, scores + 1e6, **w))
    assert got["mae"] == pytest.approx(metrics.mean_absolute_error(y, scores + 1e6, **w))


def test_weights_are_in_the_units_of_the_data():
    scores, y, weights = rows(500)
    plain = added(measures_of(classes=2), scores, 2.0 * y - 1, weights)
    divided = added(measures_of(classes=2, unit=4.0), scores, 2.0 * y - 1, weights / 4)
    assert divided["confusion_matrix"] == plain["confusion_matrix"]
    assert divided["brier"] == pytest.approx(plain["brier"])


def test_one_class_and_no_rows():
    only = added(measures_of(classes=2), np.array([1.0, -1.0]), np.ones(2), np.ones(2), parts=1)
    assert (only["auc"], only["precision"], only["recall"]) == (None, 1.0, 0.5)
    for classes in (2, 3, 0):
        got = measures_of(classes=classes).figures()
        assert all(value in (None, 0.0) for name, value in got.items() if name != "confusion_matrix")


@pytest.mark.parametrize("order", ["chance", "label", "score"])
def test_merged_ranks_keep_within_their_bound(order):
    scores, y, weights = rows(400_000, seed=3)
    by = {"chance": np.arange(len(y)), "label": np.argsort(y, kind="stable"), "score": np.argsort(scores)}[order]
    ranking = Ranking(memory=0)
    for part in np.array_split(by, 10):
        ranking.add(scores[part], y[part] == 1, weights[part])
    exact = metrics.roc_auc_score(y, scores, sample_weight=weights)
    assert 0 < ranking.error() < 1e-3
    assert abs(ranking.area() - exact) <= ranking.error()


def test_ranks_that_cannot_be_told_are_not():
    """The first rows are spread wide, so that all others fall into a few merged bins."""
    rng = np.random.default_rng(0)
    ranking = Ranking(memory=0)
    wide = rng.normal(size=100_000) * 1000
    ranking.add(wide, wide > 0, np.ones(len(wide)))
    assert ranking.area() > 0.999  # and what waited is brought into bins
    close = rng.random(900_000) / 2
    ranking.add(close, rng.random(len(close)) < 0.5, np.ones(len(close)))
    assert ranking.error() > 1e-3
    assert ranking.area() is None


def test_the_curve_and_calibration_are_those_of_scikit_learn():
    scores, y, weights = rows(5000)
    ranking = Ranking()
    ranking.add(scores, y == 1, weights)
    false, true = ranking.curve()
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)
    assert len(false) <= 210
    assert metrics.auc(false, true) == pytest.approx(ranking.area(), abs=2e-3)
    parts = ranking.calibration(lambda z: 1 / (1 + np.exp(-z)), bins=5)
    assert sum(weight for _, _, weight in parts) == pytest.approx(weights.sum())
    assert sum(share * weight for _, share, weight in parts) == pytest.approx(weights @ y)
    assert [mean for mean, _, _ in parts] == sorted(mean for mean, _, _ in parts)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.integers(1, 3)), min_size=2, max_size=40))
def test_ties_count_half(given_rows):
    scores, y, weights = (np.array(column) for column in zip(*given_rows))
    ranking = Ranking()
    for at in range(len(y)):
        ranking.add(scores[at : at + 1], y[at : at + 1], weights[at : at + 1])
    if y.all() or not y.any():
        assert ranking.area() is None
        return
    assert ranking.area() == pytest.approx(metrics.roc_auc_score(y, scores, sample_weight=weights))
