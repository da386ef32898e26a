"""What models of groups learn without options: what scikit-learn's scaled models learn of the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import penstock
from penstock.events import Event, Warned
from penstock.groups import GroupBy, GroupModels

pytestmark = pytest.mark.usefixtures("inline")

SIZES = {"large": 900, "middle": 300, "small": 60}
SCALES = np.array([1e-3, 1.0, 50.0, 1e5, 2.0], np.float32)
NAMES = [f"x{place}" for place in range(len(SCALES))]


def rows_of(kind: str) -> pa.Table:
    """Return rows of three groups sorted by label, of features of very different scales and far from zero."""
    rng = np.random.default_rng(4)
    owner = np.repeat(np.arange(len(SIZES)), list(SIZES.values()))
    z = rng.standard_normal((len(owner), len(SCALES)))
    z[:, 4] = 0.9 * z[:, 1] + 0.1 * z[:, 4]  # nearly the same as another
    truth = rng.standard_normal((len(SIZES), len(SCALES), 3))
    scores = np.einsum("ij,ijk->ik", z, truth[owner]) + rng.gumbel(size=(len(owner), 3))
    x = ((z + 20) * SCALES).astype(np.float32)
    x[owner == 1, 0] = 7.0  # a constant there
    y: Any = {"linear": 300 + 10 * scores[:, 0], "classes": np.array(["a", "b", "c"])[scores.argmax(1)]}.get(
        kind, scores[:, 0] > 0
    )
    order = np.argsort(y, kind="stable")
    columns = {"g": np.array(list(SIZES))[owner], **{name: x[:, place] for place, name in enumerate(NAMES)}, "y": y}
    return pa.table({name: values[order] for name, values in columns.items()})


MODELS: dict[str, tuple[Any, Any]] = {
    "logistic": (penstock.LogisticRegression(), LogisticRegression(max_iter=1000)),
    "classes": (penstock.LogisticRegression(), LogisticRegression(max_iter=1000)),
    "linear": (penstock.LinearRegression(), Ridge()),
    "svm": (penstock.LinearSVM(), LinearSVC(C=1.0, loss="hinge", max_iter=100_000)),
}


def fitted(kind: str, table: pa.Table, **options: Any) -> GroupModels:
    return GroupBy(table, by="g").fit(MODELS[kind][0], y="y", **options)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", MODELS)
def test_every_group_is_learned_as_scikit_learn_does(kind: str, workers: int) -> None:
    table = rows_of(kind)
    result = fitted(kind, table, validation=0.0, workers=workers)
    answers = np.array(result.predict(table)["prediction"].to_pylist())
    x = np.stack([table[name].to_numpy() for name in NAMES], axis=1).astype(np.float64)
    y, owner = np.array(table["y"].to_pylist()), np.array(table["g"].to_pylist())
    assert sorted(result.groups) == sorted(SIZES)
    for text in SIZES:
        here = owner == text
        theirs = make_pipeline(StandardScaler(), MODELS[kind][1]).fit(x[here], y[here]).predict(x[here])
        if kind == "linear":
            assert r2_score(y[here], answers[here]) == pytest.approx(r2_score(y[here], theirs), abs=1e-3)
            np.testing.assert_allclose(answers[here], theirs, atol=0.5)
        else:
            most = 0.005 if kind != "svm" else 0.02  # whose corner is smoothed
            mine = float((answers[here] == y[here]).mean())
            assert mine >= float((theirs == y[here]).mean()) - most
            assert mine >= np.unique(y[here], return_counts=True)[1].max() / here.sum()


def test_three_classes_are_learned_by_softmax_which_is_said() -> None:
    heard: list[Event] = []
    table = rows_of("classes")
    result = fitted("classes", table, listeners=[heard.append])
    said = [event.message for event in heard if isinstance(event, Warned)]
    assert said == ["the label 'y' has 3 classes, so the model is softmax"]
    assert (result.summary()["model"], result.registry.index.outputs) == ("softmax", 3)
    model = result.best("large")
    assert model.weights.coef.shape == (3, len(NAMES))
    found = result.predict(table)
    here = np.array(table["g"].to_pylist()) == "large"
    chances = np.stack([found[f"probability_{name}"].to_numpy() for name in "abc"], axis=1)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    x = np.stack([table[name].to_numpy() for name in NAMES], axis=1)[here]
    scores = x.astype(np.float64) @ model.weights.coef.T + model.weights.intercept
    assert (np.array(list("abc"))[scores.argmax(1)] == np.array(found["prediction"].to_pylist())[here]).mean() > 0.99
    told = result.summary()
    assert told["held_out_accuracy"] > 0.6
    assert told["pooled"]["held_out_loss"] > told["held_out_loss"] > 0


def test_softmax_by_sgd_and_of_hashed_words() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 20, (600, 3))
    table = pa.table(
        {
            "g": ["one", "two"] * 300,
            "words": [" ".join(f"w{word}" for word in each) for each in words],
            "y": np.where((words < 4).any(1), "low", np.where((words > 15).any(1), "high", "middle")),
        }
    )
    for model, least in ((penstock.LogisticRegression(), 0.9), (penstock.LogisticRegression(solver="sgd"), 0.85)):
        result = GroupBy(table, by="g", hash=["words:2^8:words"]).fit(model, y="y", validation=0.0)
        answers = np.array(result.predict(table)["prediction"].to_pylist())
        assert (answers == np.array(table["y"].to_pylist())).mean() > least


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["logistic", "linear", "classes"])
def test_the_penalty_is_one_over_the_training_rows_of_the_group(kind: str, workers: int) -> None:
    table = rows_of(kind)
    alone = table.filter(pa.compute.equal(table["g"], "large"))
    for validation in (0.0, 0.2):
        found = fitted(kind, alone, validation=validation, pooled=False, workers=workers)
        (row,) = found.frame.to_pylist()
        rows = row["rows"] - row["held_out_rows"]
        given = fitted(kind, alone, validation=validation, pooled=False, workers=workers, search={"l2": [1 / rows]})
        np.testing.assert_array_equal(found.best("large").weights.coef, given.best("large").weights.coef)
        none = fitted(kind, alone, validation=validation, pooled=False, workers=workers, search={"l2": [0.0]})
        assert not np.array_equal(found.best("large").weights.coef, none.best("large").weights.coef)


@pytest.mark.parametrize(
    ("model", "search", "solver"),
    [
        (penstock.LogisticRegression(), {}, "lbfgs"),
        (penstock.LinearSVM(), {}, "lbfgs"),
        (penstock.LinearRegression(), {"l2": [0.1, 0.0]}, "exact"),
        (penstock.LinearRegression(), {"l1": [0.1]}, "lbfgs"),
        (penstock.LogisticRegression(), {"learning_rate": [0.1]}, "sgd"),
        (penstock.LogisticRegression(batch_size=8), {}, "sgd"),
        (penstock.LinearRegression(epochs=1), {}, "exact"),
        (penstock.LogisticRegression(epochs=1), {}, "sgd"),
    ],
)
def test_the_solver_suits_the_model_and_what_is_asked(model: Any, search: dict[str, Any], solver: str) -> None:
    table = rows_of("linear" if isinstance(model, penstock.LinearRegression) else "logistic")
    found = GroupBy(table, by="g").fit(model, y="y", search=search, pooled=False)
    assert found.registry.index.fixed["solver"] == solver
    assert (found.summary()["failed"], len(found.chosen_rows)) == (0, 3)


def test_more_features_than_rows_and_features_that_depend_on_one_another() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((60, 50)).astype(np.float32)
    columns = {f"x{place}": x[:, place] for place in range(50)} | {"again": x[:, 0], "sum": x[:, :3].sum(1)}
    table = pa.table({"g": np.arange(60) % 2, **columns, "y": x[:, 0] + rng.standard_normal(60)})
    result = GroupBy(table, by="g").fit(penstock.LinearRegression(), y="y", validation=0.0)
    answers = np.array(result.predict(table)["prediction"].to_pylist())
    wide = np.stack([*columns.values()], axis=1)
    for number in range(2):
        here = np.arange(60) % 2 == number
        y = np.array(table["y"].to_pylist())[here]
        theirs = make_pipeline(StandardScaler(), Ridge()).fit(wide[here], y).predict(wide[here])
        np.testing.assert_allclose(answers[here], theirs, atol=1e-3)
