"""The functions ML.… beside ML.PREDICT, on DuckDB and PostgreSQL: their numbers are scikit-learn's on the same predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from penstock.errors import SQLSyntaxError, UsageError
from penstock.sql import Session, connect

ROWS = 1500
SERIES = {"duckdb": f"range({ROWS}) AS r(i)", "postgresql": f"generate_series(0, {ROWS - 1}) AS r(i)"}
# Numbers of which some are missing, text, booleans and dates; labels that follow from them but for some noise, sorted by the label.
MAKE = """
CREATE TABLE visits AS
SELECT *, CASE WHEN seconds / 40.0 + CASE city WHEN 'Lyon' THEN 1 WHEN 'Oslo' THEN -1 ELSE 0 END + noise > 0.6 THEN 'yes' ELSE 'no' END AS bought,
    seconds * 2.0 + coalesce(pages, 3) * 5 + noise * 9 AS spent,
    CASE WHEN seconds + noise * 8 < -20 THEN 'low' WHEN seconds + noise * 8 < 20 THEN 'mid' ELSE 'high' END AS level
FROM (SELECT i AS id, CAST((i * 7919 % 101) - 50 AS double precision) AS seconds, i % 7 = 2 AS mobile,
    CASE WHEN i * 31 % 11 = 0 THEN NULL ELSE CAST(i * 31 % 11 AS double precision) END AS pages,
    CASE i * 13 % 3 WHEN 0 THEN 'Lyon' WHEN 1 THEN 'Oslo' ELSE 'Rome' END AS city,
    DATE '2024-01-01' + CAST(i * 17 % 365 AS integer) AS day,
    CAST((i * 104729 % 211) / 105.0 - 1 AS double precision) AS noise
    FROM {series}) AS v
ORDER BY 9
"""
COLUMNS = "seconds, mobile, pages, city, day"
MODELS = {
    "buys": f"SELECT {COLUMNS}, bought FROM visits TRAIN BY logistic AS buys WITH (label = 'bought', l2 = 0.001)",
    "spends": f"SELECT {COLUMNS}, spent FROM visits TRAIN BY linear AS spends WITH (label = 'spent')",
    "levels": f"SELECT {COLUMNS}, level FROM visits TRAIN BY softmax AS levels WITH (label = 'level', l2 = 0.001)",
    "splits": f"SELECT {COLUMNS}, bought FROM visits TRAIN BY svm AS splits WITH (label = 'bought')",
}


@pytest.fixture(scope="module", params=["duckdb", pytest.param("postgresql", marks=pytest.mark.servers)])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with ExitStack() as stack:
        if request.param == "duckdb":
            db = str(tmp_path_factory.mktemp("functions") / "shop.duckdb")
        else:
            db = stack.enter_context(request.getfixturevalue("postgres").database())
        opened = stack.enter_context(connect(db))
        opened.sql(MAKE.format(series=SERIES[request.param]))
        for text in MODELS.values():
            opened.sql(text)
        yield opened


def predictions(session: Session, label: str = "bought", model: str = "buys") -> tuple[np.ndarray, np.ndarray]:
    """Return the true labels and, of two classes, the probability of the second one."""
    rows = session.sql(f"SELECT {label}, probability_yes FROM (SELECT * FROM visits PREDICT BY {model}) AS p").rows
    truth, likely = zip(*rows, strict=True)
    return np.array(truth) == "yes", np.array(likely)


@pytest.mark.parametrize("threshold", [None, 0.25, 0.8])
def test_measures_are_scikit_learns(session: Session, threshold: float | None) -> None:
    truth, likely = predictions(session)
    positive = likely > (threshold or 0.5)
    struct = "" if threshold is None else f", STRUCT({threshold} AS threshold)"
    found = session.sql(f"SELECT * FROM ML.EVALUATE(MODEL buys, TABLE visits{struct})").dicts()[0]
    expected = {
        "precision": metrics.precision_score(truth, positive),
        "recall": metrics.recall_score(truth, positive),
        "accuracy": metrics.accuracy_score(truth, positive),
        "f1_score": metrics.f1_score(truth, positive),
        "log_loss": metrics.log_loss(truth, likely),
        "roc_auc": metrics.roc_auc_score(truth, likely),
    }
    assert found == pytest.approx(expected, abs=1e-6)
    options = "" if threshold is None else f" WITH (threshold = {threshold})"
    own = session.sql(f"EVALUATE MODEL buys ON SELECT * FROM visits{options}").dicts()[0]
    assert own["f1"] == pytest.approx(expected["f1_score"])
    matrix = metrics.confusion_matrix(truth, positive).tolist()
    assert json.loads(own["confusion_matrix"]) == matrix
    shown = session.sql(f"SELECT * FROM ML.CONFUSION_MATRIX(MODEL buys, (SELECT * FROM visits){struct})")
    assert shown.columns == ("expected_label", "no", "yes")
    assert [list(row) for row in shown] == [["no", *matrix[0]], ["yes", *matrix[1]]]
    predicted = session.sql(f"SELECT predicted_bought FROM ML.PREDICT(MODEL buys, TABLE visits{struct})")
    assert predicted.column("predicted_bought").count("yes") == positive.sum()


def test_the_confusion_matrix_of_several_classes_and_of_held_out_rows(session: Session) -> None:
    truth, chosen = zip(
        *session.sql("SELECT level, prediction FROM (SELECT * FROM visits PREDICT BY levels) AS p").rows, strict=True
    )
    shown = session.sql("select * from ml.confusion_matrix(model LEVELS, table visits)")
    assert shown.columns == ("expected_label", "high", "low", "mid")
    assert [list(row[1:]) for row in shown] == metrics.confusion_matrix(truth, chosen).tolist()
    held_out = session.sql("SELECT * FROM ML.CONFUSION_MATRIX(MODEL levels)")
    assert sum(sum(row[1:]) for row in held_out) == session.catalog.load("levels").metrics["held_out_rows"]


def test_columns_of_number_classes_begin_with_a_line(session: Session) -> None:
    session.sql(f"SELECT {COLUMNS}, id % 2 AS odd FROM visits TRAIN BY logistic AS odds WITH (label = 'odd')")
    shown = session.sql("SELECT * FROM ML.CONFUSION_MATRIX(MODEL odds, (SELECT *, id % 2 AS odd FROM visits))")
    assert shown.columns == ("expected_label", "_0", "_1")


def test_the_roc_curve_is_scikit_learns(session: Session) -> None:
    truth, likely = predictions(session)
    curve = session.sql("SELECT * FROM ML.ROC_CURVE(MODEL buys, TABLE visits) ORDER BY threshold DESC")
    assert curve.columns == (
        *("threshold", "recall", "false_positive_rate"),
        *("true_positives", "false_positives", "true_negatives", "false_negatives"),
    )
    assert 50 <= len(curve) <= 101
    for threshold, recall, fall_out, *counts in curve:
        positive = likely > threshold
        wrong, right = (positive & ~truth).sum(), (positive & truth).sum()
        assert counts == [right, wrong, (~truth).sum() - wrong, truth.sum() - right]
        assert (recall, fall_out) == pytest.approx((right / truth.sum(), wrong / (~truth).sum()))
    # A subset of the points on the whole curve, dense enough that the area is nearly the same.
    rates, recalls, _ = metrics.roc_curve(truth, likely, drop_intermediate=False)
    points = {(round(rate, 9), round(recall, 9)) for rate, recall in zip(rates, recalls, strict=True)}
    assert {(round(row[2], 9), round(row[1], 9)) for row in curve} <= points
    area = np.trapezoid(curve.column("recall"), curve.column("false_positive_rate"))
    assert area == pytest.approx(metrics.roc_auc_score(truth, likely), abs=2e-3)


@pytest.mark.parametrize("thresholds", ["GENERATE_ARRAY(0.1, 0.9, 0.2)", "[0.1, 0.3, 0.5, 0.7, 0.9]"])
def test_thresholds_of_a_curve_may_be_given(session: Session, thresholds: str) -> None:
    truth, likely = predictions(session)
    found = session.sql(f"SELECT threshold, true_positives FROM ML.ROC_CURVE(MODEL buys, TABLE visits, {thresholds})")
    expected = [(level, int((likely[truth] > level).sum())) for level in (0.9, 0.7, 0.5, 0.3, 0.1)]
    assert [tuple(row) for row in found] == expected


def test_feature_info_says_what_the_recipe_knows(session: Session) -> None:
    found = {row["input"]: row for row in session.sql("SELECT * FROM ML.FEATURE_INFO(MODEL buys)").dicts()}
    assert list(found)[:1] != []
    assert {"seconds", "mobile", "pages", "city", "day"} <= set(found)
    assert (found["city"]["kind"], found["city"]["category_count"]) == ("category", 3)
    pages = np.array([row[0] for row in session.sql("SELECT pages FROM visits WHERE pages IS NOT NULL")])
    assert found["pages"]["missing"] == "own feature"
    assert found["pages"]["mean"] == pytest.approx(pages.mean(), rel=0.05)
    assert found["seconds"]["stddev"] == pytest.approx(29.2, rel=0.05)
    assert session.sql("SELECT min + 1 FROM ML.FEATURE_INFO(MODEL buys) WHERE mean IS NULL").rows[0][0] is None


def attributions(row: dict[str, Any]) -> dict[str, float]:
    return {each["feature"]: each["attribution"] for each in row["top_feature_attributions"]}


@pytest.mark.parametrize(
    ("model", "label"), [("buys", "bought"), ("spends", "spent"), ("levels", "level"), ("splits", "bought")]
)
def test_contributions_add_up_to_the_score(session: Session, model: str, label: str) -> None:
    text = "(SELECT * FROM visits WHERE id % 50 = 7)"
    rows = session.sql(f"SELECT * FROM ML.EXPLAIN_PREDICT(MODEL {model}, {text}, STRUCT(10 AS top_k_features))").dicts()
    plain = session.sql(f"SELECT * FROM {text} AS q PREDICT BY {model}").dicts()
    assert len(rows) == len(plain) == 30
    learned = session.catalog.load(model)
    for row, predicted in zip(sorted(rows, key=lambda r: r["id"]), sorted(plain, key=lambda r: r["id"]), strict=True):
        assert row["seconds"] == predicted["seconds"]
        found = attributions(row)
        assert set(found) == {"seconds", "mobile", "pages", "city", "day"}
        assert list(map(abs, found.values())) == sorted(map(abs, found.values()), reverse=True)
        total = row["baseline_prediction_value"] + sum(found.values())
        assert total == pytest.approx(row["prediction_value"], abs=1e-6, rel=1e-6)
        assert row["approximation_error"] == 0
        if model == "spends":
            assert row["predicted_spent"] == pytest.approx(predicted["prediction"], rel=1e-5)
            assert row["prediction_value"] == pytest.approx(predicted["prediction"], rel=1e-5)
            continue
        assert row[f"predicted_{label}"] == predicted["prediction"]
        if model == "splits":
            assert "probability" not in row
            continue
        likely = predicted[f"probability_{predicted['prediction']}"]
        assert row["probability"] == pytest.approx(likely, abs=1e-5)
        if model == "buys":
            assert row["prediction_value"] == pytest.approx(np.log(likely / (1 - likely)), abs=1e-4)
    assert learned.kind in MODELS[model]


def test_contributions_are_weights_times_the_distance_from_the_mean(session: Session) -> None:
    session.sql("SELECT seconds, spent FROM visits TRAIN BY linear AS one WITH (label = 'spent', validation = 0)")
    weight = session.catalog.load("one").weights.coef[0, 0]
    (mean,) = session.sql("SELECT avg(seconds) FROM visits").rows[0]
    text = "SELECT seconds, top_feature_attributions FROM ML.EXPLAIN_PREDICT(MODEL one, (SELECT seconds FROM visits WHERE id < 20))"
    for row in session.sql(text).dicts():
        assert attributions(row)["seconds"] == pytest.approx(weight * (row["seconds"] - mean), abs=1e-4)


def test_only_the_largest_contributions_are_listed(session: Session) -> None:
    whole = session.sql("SELECT * FROM ML.EXPLAIN_PREDICT(MODEL buys, (SELECT * FROM visits WHERE id = 3))").dicts()[0]
    for model in ("buys", "levels"):
        settings = "STRUCT(2 AS top_k_features, 0.5 AS threshold)" if model == "buys" else "STRUCT(2 AS top_k_features)"
        text = f"SELECT * FROM ML.EXPLAIN_PREDICT(MODEL {model}, (SELECT * FROM visits WHERE id = 3), {settings})"
        cut = session.sql(text).dicts()[0]
        assert len(cut["top_feature_attributions"]) == 2
        if model == "buys":
            assert cut["top_feature_attributions"] == whole["top_feature_attributions"][:2]


def test_a_threshold_turns_the_sign_with_the_class(session: Session) -> None:
    rows = {}
    for threshold in (0.001, 0.999):
        struct = f"STRUCT({threshold} AS threshold)"
        text = f"SELECT * FROM ML.EXPLAIN_PREDICT(MODEL buys, (SELECT * FROM visits WHERE id = 3), {struct})"
        rows[threshold] = session.sql(text).dicts()[0]
    low, high = rows[0.001], rows[0.999]
    assert (low["predicted_bought"], high["predicted_bought"]) == ("yes", "no")
    assert low["prediction_value"] == pytest.approx(-high["prediction_value"])
    assert low["probability"] == pytest.approx(1 - high["probability"])


def test_lists_and_hashed_text_are_explained_value_by_value(session: Session) -> None:
    array = "ARRAY[seconds, noise]" if session.engine.name == "postgresql" else "[seconds, noise]::DOUBLE[2]"
    session.sql(f"CREATE TABLE listed AS SELECT id, bought AS label, {array} AS features FROM visits")
    session.sql("SELECT label, features FROM listed TRAIN BY logistic AS listed")
    session.sql(
        "SELECT seconds, city, bought FROM visits TRAIN BY logistic AS hashed WITH (label = 'bought', hash = 'city')"
    )
    for model, table, names in (
        ("listed", "listed", {"features[0]", "features[1]"}),
        ("hashed", "visits", {"seconds", "city"}),
    ):
        text = f"SELECT * FROM ML.EXPLAIN_PREDICT(MODEL {model}, (SELECT * FROM {table} WHERE id < 40))"
        rows = session.sql(text).dicts()
        assert len(rows) == 40
        for row in rows:
            found = attributions(row)
            assert set(found) == names
            total = row["baseline_prediction_value"] + sum(found.values())
            assert total == pytest.approx(row["prediction_value"], abs=1e-5)
    with pytest.raises(UsageError, match="make a table: CREATE TABLE"):
        session.sql("CREATE VIEW why AS SELECT * FROM ML.EXPLAIN_PREDICT(MODEL hashed, TABLE visits)")


def test_a_view_explains_what_is_put_into_the_table_later(session: Session) -> None:
    session.sql(
        "CREATE VIEW explained AS SELECT * FROM ML.EXPLAIN_PREDICT(MODEL buys, (SELECT * FROM visits WHERE id < 5))"
    )
    assert len(session.sql("SELECT top_feature_attributions FROM explained")) == 5


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("ML.PREDICT(MODEL levels, TABLE visits, STRUCT(0.3 AS threshold))", UsageError, "softmax model has 3 classes"),
        (
            "ML.EVALUATE(MODEL splits, TABLE visits, STRUCT(0.3 AS threshold))",
            UsageError,
            "svm model has no probabilities",
        ),
        ("ML.EVALUATE(MODEL buys, STRUCT(0.3 AS threshold))", UsageError, "needs rows to measure model 'buys' on"),
        ("ML.CONFUSION_MATRIX(MODEL buys, STRUCT(0.3 AS threshold))", UsageError, "needs rows to measure"),
        ("ML.CONFUSION_MATRIX(MODEL spends, TABLE visits)", UsageError, "predicts numbers"),
        ("ML.ROC_CURVE(MODEL levels, TABLE visits)", UsageError, "3 classes"),
        ("ML.ROC_CURVE(MODEL buys)", SQLSyntaxError, "and the rows"),
        ("ML.PREDICT(MODEL buys, TABLE visits, STRUCT(1.5 AS threshold))", UsageError, "choose one from 0 to below 1"),
        ("ML.PREDICT(MODEL buys, TABLE visits, STRUCT('a' AS threshold))", UsageError, "threshold"),
        ("ML.EXPLAIN_PREDICT(MODEL buys, TABLE visits, STRUCT(0 AS top_k_features))", UsageError, "choose 1 or more"),
    ],
)
def test_what_cannot_be_measured_or_explained_is_refused(session: Session, text: str, error: type, match: str) -> None:
    with pytest.raises(error, match=match):
        session.sql(f"SELECT * FROM {text}")
