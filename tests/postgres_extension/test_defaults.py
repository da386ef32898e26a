"""Trainings without options: what the server does before and beside its steps is what a few lines of NumPy do.

The steps themselves are compared with Python's kernels in test_kernels.py.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg import errors

from penstock.sgd.losses import loss_of
from penstock.sgd.model import snapshot_interval
from tests.postgres_extension.conftest import Fill

Session = psycopg.Connection[Any]
Doubles = NDArray[np.float64]
ROWS, EPOCHS = 400, 3
CURVATURE = {"logistic": 0.25, "svm": 1.0, "linear": 1.0, "softmax": 0.5}
SPARSE_RATE = 0.03
MODELS = list(CURVATURE)


def slopes(model: str, scores: Doubles, y: Doubles) -> Doubles:
    """Return the loss's slopes by the scores of some rows; ``y`` holds targets, one column for each output."""
    if model == "linear":
        return scores - y
    if model == "svm":
        return np.where(1 - scores * y > 0, -y, 0)
    if model == "logistic":
        return -y / (1 + np.exp(scores * y))
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True) - y)


def first_guess(model: str, y: Doubles, mass: Doubles) -> Doubles:
    if model == "linear":
        return (mass * y).mean(axis=0)
    if model == "logistic":
        return np.log((mass * (y > 0)).sum(axis=0) / (mass * (y < 0)).sum(axis=0))
    return np.log((mass * y).mean(axis=0)) if model == "softmax" else np.zeros(1)


def balanced(y: Doubles, weight: Doubles | None = None) -> Doubles:
    """Return what the class of each row counts, where classes count alike."""
    code = y.argmax(axis=1) if y.shape[1] > 1 else (y[:, 0] > 0).astype(int)
    counts = np.bincount(code, None if weight is None else weight[:, 0])
    return np.asarray(len(y) / (len(counts) * counts[code]))[:, None]


def trained(
    model: str,
    x: Doubles,
    y: Doubles,
    *,
    sparse: bool,
    batch_size: int = 1,
    l1: float = 0,
    average: bool = True,
    class_weight: str | None = None,
    weight: Doubles | None = None,
) -> tuple[Doubles, Doubles]:
    """Return the weights, a row for each output, and the intercepts in the units of ``x``."""
    n = len(x)
    each = np.ones((n, 1)) if weight is None else (weight / weight.mean())[:, None]
    by_class = np.ones((n, 1)) if class_weight is None else balanced(y, each)
    mass = each * by_class
    slower = max(2 * by_class.max() / batch_size - 1, 1)
    center = np.zeros(x.shape[1]) if sparse else (each * x).mean(axis=0)
    spread = np.sqrt((each * (x - center) ** 2).mean(axis=0))
    factor = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 1e-7 * abs(center))
    z = (x - center) * factor
    w, b = np.zeros((y.shape[1], z.shape[1])), first_guess(model, y, mass)
    interval = snapshot_interval(n, (x != 0).sum() / n if sparse else x.shape[1], y.shape[1] * x.shape[1]) or n + 1
    counts = [min(-(-s * interval // batch_size) * batch_size, n) for s in range(1, n // interval + 1)]
    means: list[tuple[Doubles, Doubles]] = []
    l2 = 0 if l1 else 1 / n
    kept: list[tuple[Doubles, Doubles]] = []
    for epoch in range(EPOCHS):
        first = SPARSE_RATE if sparse and model != "softmax" else loss_of(model).bounded_rate
        rate, kept = first * (1 + epoch) ** -0.75 / slower, []
        wanted = {at for at in counts if epoch or at > n // 2}
        for start in range(0, n, batch_size):
            rows = z[start : start + batch_size]
            own = mass[start : start + batch_size]
            slope = own * slopes(model, rows @ w.T + b, y[start : start + batch_size])
            size = (own[:, 0] * ((rows**2).sum(axis=1) + 1)).mean()
            step = rate / (1 + rate * CURVATURE[model] * size) / len(rows)
            w = (1 - rate * l2) * w - step * slope.T @ rows
            w = np.sign(w) * np.maximum(abs(w) - rate * l1, 0)
            b = b - step * slope.sum(axis=0)
            if start + len(rows) in wanted:
                kept.append((w, b))
        means.append(
            (
                np.mean([each[0] for each in kept or [(w, b)]], axis=0),
                np.mean([each[1] for each in kept or [(w, b)]], axis=0),
            )
        )
    if average and interval <= n:
        shares = np.arange(1, EPOCHS + 1)  # the mean moves to each epoch's by 2 / (epochs + 1)
        w, b = (np.average([each[i] for each in means], axis=0, weights=shares) for i in (0, 1))
    return w * factor, b - (w * factor) @ center


def targets(model: str, x: Doubles, rng: np.random.Generator) -> tuple[Doubles, list[Any]]:
    """Return targets for the twin, and labels for the table."""
    scores = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    noise = rng.standard_normal(len(x))
    if model == "linear":
        y = np.float64(np.float32(scores[:, :3].sum(axis=1) + noise + 50))
        return y[:, None], y.tolist()
    if model == "softmax":
        code = (scores[:, :4] + noise[:, None] / 2).argmax(axis=1)
        return np.eye(4)[code], [f"class {c}" for c in code]
    y = np.where(scores[:, :3].sum(axis=1) + noise > 1, 1.0, -1.0)
    return y[:, None], (y > 0).tolist()


def weights(session: Session) -> tuple[Doubles, Doubles]:
    found = session.execute("SELECT coef, intercept FROM penstock.models WHERE name = 'm'").fetchone()
    assert found is not None
    return np.array(found[0]), np.array(found[1])


def train(session: Session, model: str, **options: Any) -> list[Any]:
    asked = json.dumps({"replace": True, "validation": 0, **options})
    return session.execute("SELECT * FROM penstock.train('t', %s, 'm', %s)", (model, asked)).fetchall()


KINDS = {"linear": "float8", "softmax": "text", "logistic": "bool", "svm": "bool"}
SGD = {"solver": "sgd", "shuffle": "none", "epochs": EPOCHS}
WEIGHTED: tuple[dict[str, Any], ...] = ({"class_weight": "balanced"}, {"class_weight": "balanced", "batch_size": 7})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("width", [6, 170])
def test_dense_rows(session: Session, fill: Fill, model: str, width: int) -> None:
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((ROWS, width)) + np.linspace(-2, 3, width)) * np.logspace(-3, 4, width)
    x[:, -1] = 7.7  # a constant
    x = np.float64(np.float32(x))
    y, labels = targets(model, x, rng)
    fill("t", f"features_v real[], label {KINDS[model]}", list(zip(x.tolist(), labels, strict=True)))
    for options in ({}, {"batch_size": 7, "l1": 0.01}, {"average": False}, *(() if model == "linear" else WEIGHTED)):
        train(session, model, **SGD, **options)
        coef, intercept = weights(session)
        w, b = trained(model, x, y, sparse=False, **options)
        coef = coef.reshape(w.shape)
        assert not coef[:, -1].any()
        spread, center = x.std(axis=0), x.mean(axis=0)
        np.testing.assert_allclose(coef * spread, w * spread, rtol=1e-3, atol=2e-4)
        np.testing.assert_allclose(intercept + coef @ center, b + w @ center, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("model", MODELS)
def test_sparse_rows(session: Session, fill: Fill, model: str) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((ROWS, 12)) * np.logspace(-2, 3, 12) * (rng.random((ROWS, 12)) < 0.4)
    x[:, 0], x[:, 1] = 3, np.where(x[:, 1] == 0, 0.01, x[:, 1])  # a constant, and one that is in every row
    x = np.float64(np.float32(x))
    y, labels = targets(model, x, rng)
    rows = [(i, np.flatnonzero(x[i]).tolist(), x[i][x[i] != 0].tolist(), labels[i]) for i in range(ROWS)]
    fill("t", f"id int, features_k int[], features_v real[], label {KINDS[model]}", rows)
    stored = [row[0] for row in session.execute("SELECT id FROM t ORDER BY ctid").fetchall()]
    for options in ({}, {"batch_size": 7, "l1": 0.01}, *(() if model == "linear" else WEIGHTED)):
        train(session, model, **SGD, **options)
        coef, intercept = weights(session)
        w, b = trained(model, x[stored], y[stored], sparse=True, **options)
        size = np.sqrt((x**2).mean(axis=0))
        np.testing.assert_allclose(coef.reshape(w.shape) * size, w * size, rtol=1e-3, atol=2e-4)
        np.testing.assert_allclose(intercept, b, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("penalty", ["auto", 0, 0.5])
@pytest.mark.parametrize(("intercept", "standardize"), [(True, True), (True, False), (False, True), (False, False)])
def test_least_squares_are_solved_exactly(
    session: Session, fill: Fill, penalty: Any, intercept: bool, standardize: bool
) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((300, 5)) * [0.1, 1, 10, 1, 20] + [1, 0, -30, 0, 0]
    x[:, 3] = x[:, 1] / 2 + 1  # made up by another one
    x = np.float64(np.float32(x))
    y = np.float64(np.float32(x @ [5, 1, 0.1, 0, 0.02] + rng.standard_normal(300)))
    fill("t", "features_v real[], label float8", list(zip(x.tolist(), y.tolist(), strict=True)))
    rows = train(session, "linear", l2=penalty, intercept=intercept, standardize=standardize)
    assert [(row[0], row[1], row[5]) for row in rows] == [(1, None, 300)]
    center = x.mean(axis=0) if standardize or intercept else np.zeros(5)
    factor = 1 / x.std(axis=0) if standardize else np.ones(5)
    z, middle = (x - center) * factor, y.mean() if intercept else 0
    alpha = 1 if penalty == "auto" else penalty * 300
    w = np.linalg.lstsq(np.vstack([z, np.sqrt(alpha) * np.eye(5)]), np.append(y - middle, np.zeros(5)), rcond=1e-6)[0]
    fitted = z @ w + middle
    coef, at_zero = weights(session)
    np.testing.assert_allclose(x @ coef + at_zero, fitted, atol=2e-3 * np.std(fitted))
    r2 = 1 - ((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert rows[0][3] == pytest.approx(r2, abs=1e-4)
    header = session.execute(
        "SELECT header->'config'->>'solver', header->'history' FROM penstock.models WHERE name = 'm'"
    ).fetchone()
    assert header is not None
    assert header[0] == "exact"
    assert "progressive_loss" not in header[1][0]


@pytest.mark.parametrize("model", ["logistic", "softmax"])
@pytest.mark.parametrize(
    "options",
    [{}, {"l2": 0.1, "intercept": False}, {"standardize": False, "l2": 0.1}, {"class_weight": "balanced"}],
)
def test_few_rows_are_learnt_from_to_the_minimum(
    session: Session, fill: Fill, model: str, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(4)
    x = np.float64(np.float32(rng.standard_normal((ROWS, 5)) * [0.1, 1, 3, 1, 0] + [1, 0, -3, 2, 4]))
    y, labels = targets(model, x, rng)
    fill("t", f"features_v real[], label {KINDS[model]}", list(zip(x.tolist(), labels, strict=True)))
    rows = train(session, model, **options)
    assert [(row[1], row[5]) for row in rows] == [(None, ROWS)]
    assert 3 < rows[0][0] <= 100  # passes
    coef, intercept = weights(session)
    coef = coef.reshape(y.shape[1], -1)
    raw = not options.get("standardize", True)
    center, spread = (np.zeros(5), np.ones(5)) if raw else (x.mean(axis=0), x.std(axis=0))
    z = np.divide(x - center, spread, out=np.zeros_like(x), where=spread > 1e-6)
    slope = slopes(model, x @ coef.T + intercept, y) * (balanced(y) if "class_weight" in options else 1)
    gradient = slope.T @ z / ROWS + options.get("l2", 1 / ROWS) * coef * spread
    assert abs(gradient).max() < 2e-4
    if options.get("intercept", True):
        assert abs(slope.mean(axis=0)).max() < 2e-4
    right = session.execute(
        "SELECT avg((penstock.predict_class('m', features_v) = label::text)::int) FROM t"
    ).fetchone()
    assert right is not None
    assert rows[0][3] == pytest.approx(float(right[0]))
    found = session.execute("SELECT header->'config'->>'solver' FROM penstock.models WHERE name = 'm'").fetchone()
    assert found == ("lbfgs",)


def solver(session: Session, table: str, model: str, **options: Any) -> str:
    """Return the solver that trained a model."""
    asked = json.dumps({"replace": True, "validation": 0, **options})
    session.execute("SELECT penstock.train(%s, %s, 'm', %s)", (table, model, asked))
    found = session.execute("SELECT header->'config'->>'solver' FROM penstock.models WHERE name = 'm'").fetchone()
    assert found is not None
    return str(found[0])


def test_the_solver_is_chosen_by_rows_and_options(clustered: Session) -> None:
    clustered.execute(
        "CREATE TABLE k AS SELECT '{0,1}'::int[] AS features_k, features_v[1:2], label FROM points LIMIT 15000"
    )
    assert solver(clustered, "points", "linear") == "exact"
    assert solver(clustered, "points", "logistic") == "lbfgs"
    assert solver(clustered, "points", "logistic", solver="lbfgs", epochs=5) == "lbfgs"
    assert solver(clustered, "points", "svm") == "sgd"
    assert solver(clustered, "points", "logistic", buffer_size="800kB") == "lbfgs"  # half of it does not hold the rows
    assert solver(clustered, "k", "logistic") == "lbfgs"
    clustered.execute("SET effective_cache_size = '8kB'")
    assert solver(clustered, "points", "logistic") == "sgd"
    assert solver(clustered, "points", "logistic", solver="lbfgs", buffer_size="800kB") == "lbfgs"
    clustered.execute("RESET effective_cache_size")
    for table, model, options in (
        ("k", "linear", {}),
        ("k", "logistic", {}),
        ("points", "linear", {"learning_rate": 0.01}),
        ("points", "linear", {"decay": 0.9}),
        ("points", "linear", {"l1": 0.01}),
        ("points", "logistic", {"epochs": 2}),
        ("points", "logistic", {"shuffle": "none"}),
        ("points", "logistic", {"average": False}),
    ):
        assert solver(clustered, table, model, **{"epochs": 2, **options}) == "sgd"
    with pytest.raises(errors.ProgramLimitExceeded, match="dense rows"):
        solver(clustered, "k", "linear", solver="exact")
    clustered.execute(
        "CREATE TABLE wide AS SELECT ARRAY[0, i % 3000] AS features_k, '{1,1}'::real[] AS features_v, i % 2 AS label"
        " FROM generate_series(1, 3000) AS i"
    )
    assert [solver(clustered, "wide", "logistic", **asked) for asked in ({}, {"solver": "lbfgs"})] == ["sgd", "lbfgs"]
    clustered.execute("UPDATE wide SET features_k[2] = features_k[2] * 300")
    with pytest.raises(errors.ProgramLimitExceeded, match="sparse ones of up to 600000 weights, not for 899701"):
        solver(clustered, "wide", "logistic", solver="lbfgs")


@pytest.mark.parametrize("model", ["logistic", "softmax"])
@pytest.mark.parametrize("sparse", [False, True])
def test_passes_over_the_table_find_what_passes_over_one_window_do(
    session: Session, fill: Fill, model: str, sparse: bool
) -> None:
    rng = np.random.default_rng(5)
    x = np.float64(np.float32(rng.standard_normal((6000, 4)) * (rng.random((6000, 4)) < 0.5) * [0.1, 1, 30, 1]))
    labels = np.digitize(x @ [10, 1, -0.03, 0] + rng.logistic(size=6000), [0] if model == "logistic" else [-1, 1])
    rows = [
        ([j for j in range(4) if row[j]], [value for value in row if value], int(label))
        for row, label in zip(x.tolist(), labels, strict=True)
    ]
    if sparse:
        fill("t", "features_k int[], features_v real[], label int", sorted(rows, key=lambda row: row[2]))
    else:
        fill("t", "features_v real[], label int", list(zip(x.tolist(), labels.tolist(), strict=True)))
    train(session, model)
    coef, intercept = weights(session)
    found = train(session, model, buffer_size="64kB", seed=3)
    assert [(row[1], row[5]) for row in found] == [(None, 6000)]
    again, constant = weights(session)
    np.testing.assert_allclose(again, coef, rtol=1e-3, atol=1e-3 * abs(coef).max())
    np.testing.assert_allclose(constant, intercept, atol=1e-3)
    coef, size = coef.reshape(len(intercept), -1), np.sqrt((x**2).mean(axis=0)) if sparse else x.std(axis=0)
    y = np.where(labels > 0, 1.0, -1.0)[:, None] if model == "logistic" else np.eye(3)[labels]
    slope = slopes(model, x @ coef.T + intercept, y)
    gradient = slope.T @ (x if sparse else x - x.mean(axis=0)) / size / 6000 + coef * size / 6000
    assert abs(gradient).max() < 3e-4


def test_no_options_are_enough_for_features_of_any_scale_sorted_by_label(session: Session) -> None:
    session.execute("""CREATE TABLE t AS SELECT a * 1e6 + 1e7 AS a, b * 1e-5 AS b, c, 3 AS d, a + b + c > 1 AS label
        FROM (SELECT i, (i * 7919 % 1009) / 504.5 - 1 AS a, (i * 104729 % 2003) / 1001.5 - 1 AS b,
            (i * 1299709 % 3001) / 1500.5 - 1 AS c FROM generate_series(1::int8, 6000) AS i) AS q ORDER BY 5""")
    for model in ("logistic", "svm"):
        assert train(session, model, epochs=5)[-1][3] > 0.97
    assert train(session, "logistic", epochs=5, standardize=False, learning_rate=0.1)[-1][3] < 0.9


def test_a_schedule_without_a_rate_has_the_plain_one(clustered: Session) -> None:
    clustered.execute("CREATE VIEW t AS SELECT * FROM points")
    for model, rate in (("svm", 0.1), ("linear", 0.01)):
        found = []
        for options in (
            {"decay": 0.5},
            {"decay": 0.5, "learning_rate": rate},
            {"decay": 0.5, "rate": "exponential"},
            {},
        ):
            train(clustered, model, **SGD, **options)
            found.append(weights(clustered)[0].tolist())
        assert found[0] == found[1] == found[2] != found[3]


def test_logistic_of_three_classes_is_softmax_and_says_so(clustered: Session) -> None:
    told: list[str] = []
    clustered.add_notice_handler(lambda notice: told.append(f"{notice.severity}: {notice.message_primary}"))
    clustered.execute(
        "CREATE TABLE t AS SELECT features_v, CASE WHEN features_v[1] > 1 THEN 2 ELSE label END AS label FROM points"
    )
    clustered.execute("SELECT penstock.train('t', options => '{\"epochs\": 1}')")
    assert any(line.startswith("NOTICE: ") and "3 classes: the model is softmax" in line for line in told)
    assert clustered.execute("SELECT name, kind, outputs FROM penstock.models").fetchall() == [
        ("t_softmax", "softmax", 3)
    ]
    with pytest.raises(errors.DataException, match="3 classes where two are needed"):
        clustered.execute("SELECT penstock.train('t', 'svm')")


def test_class_weights_by_label(session: Session, fill: Fill) -> None:
    rng = np.random.default_rng(6)
    x = np.float64(np.float32(rng.standard_normal((ROWS, 3))))
    y = np.where(x.sum(axis=1) + rng.standard_normal(ROWS) > 2, 1.0, -1.0)[:, None]
    for kind, names in (("text", ("no", "yes")), ("int", (0, 1)), ("float8", (0.0, 1.0)), ("bool", (False, True))):
        session.execute("DROP TABLE IF EXISTS t")
        labels = [names[int(value > 0)] for value in y[:, 0]]
        fill("t", f"features_v real[], label {kind}", list(zip(x.tolist(), labels, strict=True)))
        key = "true" if kind == "bool" else str(names[1])
        train(session, "logistic", class_weight={key: 4})
        coef, intercept = weights(session)
        mass = np.where(y > 0, 4.0, 1.0)
        slope = slopes("logistic", x @ coef[:, None] + intercept, y) * mass / mass.mean()
        gradient = slope.T @ ((x - x.mean(axis=0)) / x.std(axis=0)) / ROWS + coef * x.std(axis=0) / ROWS
        assert abs(gradient).max() < 2e-4
        assert abs(slope.mean()) < 2e-4
        found = session.execute(
            "SELECT header->'config'->'class_weight' FROM penstock.models WHERE name = 'm'"
        ).fetchone()
        assert found == ({key: 4},)
    for model, given in (
        ("logistic", {"maybe": 2}),
        ("logistic", {"true": 0}),
        ("logistic", "even"),
        ("logistic", 5),
        ("logistic", [1, 2, 3]),
        ("linear", "balanced"),
        ("linear", {"true": 2}),
    ):
        with pytest.raises(errors.InvalidParameterValue, match="class_weight"):
            train(session, model, class_weight=given)


def test_the_shell_has_the_server_weigh_classes(address: str, session: Session, fill: Fill) -> None:
    from penstock.sql import connect

    rng = np.random.default_rng(6)
    x = rng.standard_normal((ROWS, 3))
    labels = ["yes" if value > 2 else "no" for value in x.sum(axis=1) + rng.standard_normal(ROWS)]
    fill("t", "features_v real[], label text", list(zip(x.tolist(), labels, strict=True)))
    with connect(address) as shell:
        for option in ("'balanced'", "[('yes', 5), ('no', 1)]"):
            found = [
                shell.sql(
                    f"SELECT * FROM t TRAIN BY logistic AS {name} WITH (class_weight = {option}, extension = {server},"
                    " replace = true)"
                ).model
                for name, server in (("here", "off"), ("there", "on"))
            ]
            assert (
                found[0].config["memory"] != found[1].config["memory"]
            )  # which the server has a default of its own for
            np.testing.assert_allclose(found[0].weights.coef, found[1].weights.coef, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("model", ["logistic", "svm"])
def test_a_useless_model_is_warned_of(session: Session, model: str) -> None:
    session.execute("""CREATE TABLE t AS SELECT (i * 7919 % 1009) / 504.5 - 1 AS a, (i * 104729 % 2003) / 1001.5 - 1 AS b, i % 10 < 4 AS label
        FROM generate_series(1::int8, 4000) AS i""")
    notices: list[str] = []
    session.add_notice_handler(lambda told: notices.append(str(told.message_primary)))
    train(session, model, learning_rate=300, average=False, epochs=1)
    assert any("the model is useless" in told and "constant prediction 0.6" in told for told in notices), notices
    notices.clear()
    train(session, model, replace=True)
    assert not any("useless" in told for told in notices)
