"""Weights of rows: only their proportions count, whatever the door."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression as Sklearn
from sklearn.linear_model import Ridge

import penstock
from penstock import bigmodel
from penstock.blocks.conversion import convert
from penstock.errors import DataError, FeatureError

ROWS = 1200
FACTOR = 1e5


def rows(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, 4)).astype(np.float32)
    y = (x @ [1.0, -1.0, 0.5, 0.0] + 0.5 * rng.standard_normal(ROWS) > 0).astype(np.int64)
    return x, y, rng.integers(0, 6, ROWS).astype(np.float64)


def table(factor, seed=0):
    x, y, weight = rows(seed)
    return pa.table({**{f"x{j}": x[:, j] for j in range(4)}, "y": y, "w": weight * factor})


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
@pytest.mark.parametrize("kind", [penstock.LogisticRegression, penstock.LinearSVM, penstock.LinearRegression])
def test_weights_times_a_number_give_the_same_model(tmp_path, suffix, kind):
    found = []
    for factor in (1.0, FACTOR):
        path = tmp_path / f"{factor}{suffix}"
        if suffix == ".parquet":
            pq.write_table(table(factor), path)
        elif suffix == ".csv":
            pa.csv.write_csv(table(factor), path)
        else:
            convert(table(factor), path, label="y", weight="w")
        options = {"validation": 0.0, "epochs": 3}
        found.append(kind(**options).fit(str(path), y="y", sample_weight="w"))
    np.testing.assert_allclose(found[0].coef_, found[1].coef_, rtol=1e-4, atol=1e-6)
    assert found[0].model_.history[-1]["progressive_loss"] == pytest.approx(
        found[1].model_.history[-1]["progressive_loss"], rel=1e-4
    )


@pytest.mark.parametrize("solver", ["sgd", "lbfgs"])
def test_weights_agree_with_scikit_learn(solver):
    x, y, weight = rows()
    mine = penstock.LogisticRegression(solver=solver, epochs=60, learning_rate=0.02 if solver == "sgd" else None)
    mine.fit(x, y, sample_weight=FACTOR * weight)
    theirs = Sklearn(C=np.inf).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(mine.coef_, theirs.coef_, rtol=0.1, atol=0.1)
    assert (mine.predict(x) == theirs.predict(x)).mean() > 0.99


def test_weights_of_a_regression_agree_with_scikit_learn():
    x, _, weight = rows()
    y = x @ [1.0, 2.0, 0.0, -1.0] + np.where(weight > 3, 2.0, -2.0)
    mine = penstock.LinearRegression(epochs=30).fit(x, y, sample_weight=FACTOR * weight)
    theirs = Ridge(alpha=1e-6).fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(mine.coef_, theirs.coef_, atol=0.15)
    assert mine.intercept_ == pytest.approx(theirs.intercept_, abs=0.15)


def with_weightless_rows(x, y, weight):
    """Return the rows with others of weight 0 among them that would change means, spreads and counts."""
    places = np.arange(len(x)).repeat(2)
    kept = np.arange(len(places)) % 2 == 0
    return np.where(kept[:, None], x[places], 1000.0), np.where(kept, y[places], 1), np.where(kept, weight[places], 0.0)


@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_rows_of_weight_zero_make_no_difference(solver):
    x, y, weight = rows()
    weight += 1
    # Rows are visited as they lie, and nothing that depends on their number is on.
    options = {"shuffle": "none", "epochs": 3, "average": False} if solver == "sgd" else {"tolerance": 1e-6}
    options |= {"solver": solver, "class_weight": "balanced"}
    some = penstock.LogisticRegression(**options).fit(x, y, sample_weight=weight)
    other, labels, weights = with_weightless_rows(x, y, weight)
    all_rows = penstock.LogisticRegression(**options).fit(other, labels, sample_weight=weights)
    np.testing.assert_allclose(all_rows.coef_, some.coef_, rtol=1e-3, atol=1e-5)
    assert all_rows.model_.config["l2"] == some.model_.config["l2"]
    assert all_rows.model_.metrics["class_weights"] == pytest.approx(some.model_.metrics["class_weights"])
    assert all_rows.model_.metrics["training_rows"] == ROWS


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv"])
def test_rows_of_weight_zero_make_no_difference_in_files(tmp_path, suffix):
    x, y, weight = rows()
    found = []
    for name, (features, labels, weights) in (
        ("some", (x, y, weight + 1)),
        ("all", with_weightless_rows(x, y, weight + 1)),
    ):
        data = pa.table({**{f"x{j}": features[:, j] for j in range(4)}, "y": labels, "w": weights})
        path = tmp_path / f"{name}{suffix}"
        if suffix == ".parquet":
            pq.write_table(data, path)
        elif suffix == ".csv":
            pa.csv.write_csv(data, path)
        else:
            convert(data, path, label="y", weight="w")
        model = penstock.LogisticRegression(validation=0.0, class_weight="balanced", tolerance=1e-6)
        found.append(model.fit(str(path), y="y", sample_weight="w").coef_)
        # Figures are of the rows that have weight, held out ones too.
        held = penstock.LogisticRegression(validation=0.5, epochs=2).fit(str(path), y="y", sample_weight="w")
        assert held.model_.metrics["held_out_rows"] < ROWS
        assert held.evaluate(str(path))["rows"] == ROWS
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-5)


def test_rows_of_weight_zero_are_not_among_those_that_decide_whether_to_hold_out(tmp_path):
    x, y, _ = rows()
    data = pa.table({**{f"x{j}": x[:, j] for j in range(4)}, "y": y, "w": np.where(np.arange(ROWS) < 400, 1.0, 0.0)})
    pq.write_table(data, tmp_path / "a.parquet")
    model = penstock.LogisticRegression().fit(str(tmp_path / "a.parquet"), y="y", sample_weight="w")
    assert "held_out_rows" not in model.model_.metrics


@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_rows_of_weight_zero_make_no_difference_in_groups(monkeypatch, solver):
    from penstock.groups import GroupBy, training_run
    from penstock.testing.executors import InlineExecutor

    monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)  # processes take seconds to start
    x, y, weight = rows()
    found = []
    for features, labels, weights in ((x, y, weight + 1), with_weightless_rows(x, y, weight + 1)):
        data = {**{f"x{j}": features[:, j] for j in range(4)}, "y": labels, "w": weights}
        data["g"] = np.arange(len(labels)) // (len(labels) // 2)
        options = {"shuffle": "none", "epochs": 3} if solver == "sgd" else {"tolerance": 1e-6}
        model = penstock.LogisticRegression(solver=solver, class_weight="balanced", **options)
        result = GroupBy(pa.table(data), by="g", weight="w").fit(model, y="y", validation=0.0, workers=1)
        found.append(np.concatenate([result.best(key).weights.coef for key in ("0", "1")]))
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-5)


def test_weights_of_partial_fit_count_by_the_measure_of_the_first():
    x, y, weight = rows()
    found = []
    for factor in (1.0, FACTOR):
        model = penstock.LogisticRegression()
        for part in range(3):
            here = slice(400 * part, 400 * (part + 1))
            model.partial_fit(x[here], y[here], classes=[0, 1], sample_weight=factor * (part + 1) * weight[here])
        found.append(model.coef_)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_divides_by_the_same_mean(tmp_path):
    from penstock.config import Config
    from penstock.memory_learner import linear_job
    from penstock.training import Columns

    pq.write_table(table(FACTOR), tmp_path / "a.parquet")
    models = []
    for name, parts in (("whole", (4,)), ("resumed", (2, 4))):
        for number, epochs in enumerate(parts):
            with penstock.open(tmp_path / "a.parquet") as source:
                job = linear_job(
                    source, Config(epochs=epochs), Columns(label="y", weight="w"), checkpoint=tmp_path / f"{name}.c"
                )
                model = job.run(resume=number > 0)
        models.append(model)
    np.testing.assert_array_equal(models[0].weights.coef, models[1].weights.coef)


@pytest.mark.parametrize("kind", [bigmodel.LogisticRegression, bigmodel.LinearRegression])
def test_weights_of_models_on_disk(tmp_path, kind):
    rng = np.random.default_rng(0)
    indices = rng.integers(0, 2**50, (600, 3))
    indices[:, 0] = np.arange(600) % 7
    data = {
        "indices": pa.array(list(indices), pa.list_(pa.int64())),
        "values": pa.array(list(np.ones((600, 3))), pa.list_(pa.float32())),
        "y": (np.arange(600) % 7 < 3).astype(np.int64),
    }
    weight = rng.random(600)
    found = []
    for factor in (1.0, FACTOR):
        with kind(tmp_path / f"{factor}.model", memory="100MB", epochs=3, learning_rate=0.05) as model:
            model.fit(pa.table({**data, "w": weight * factor}), y="y", sample_weight="w")
            found.append(model.weights(np.arange(7)))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


def test_a_model_on_disk_weighs_rows_when_it_is_evaluated(tmp_path):
    x, y, weight = rows()
    indices = pa.array([[0, 1, 2, 3]] * ROWS, pa.list_(pa.int64()))
    data = pa.table({"indices": indices, "values": pa.array(x.tolist(), pa.list_(pa.float32())), "y": y, "w": weight})
    with bigmodel.LogisticRegression(tmp_path / "m", memory="100MB", epochs=1, learning_rate=0.05) as model:
        model.fit(data, y="y", sample_weight="w")
        right = model.predict(data) == y
        wanted = float(np.average(right, weights=weight))
        assert wanted != pytest.approx(float(right.mean()), abs=1e-4)
        assert model.evaluate(data)["accuracy"] == pytest.approx(wanted, abs=1e-6)
        assert model.evaluate(data.drop_columns("w"))["accuracy"] == pytest.approx(float(right.mean()), abs=1e-6)


def test_evaluate_in_a_database_weighs_rows(tmp_path):
    from penstock.sql import connect

    path = tmp_path / "t.parquet"
    pq.write_table(table(FACTOR), path)
    with connect(":memory:") as session:
        session.sql(f"CREATE TABLE t AS SELECT * FROM '{path}'")
        model = session.sql(
            "SELECT * FROM t TRAIN BY logistic AS m WITH (label = 'y', weight = 'w', max_epoch_num = 1)"
        ).model
        predicted = np.concatenate([b["prediction"] for b in model.predictions(penstock.open(path))])
        _, y, weight = rows()
        right = predicted == y
        wanted = float(np.average(right, weights=weight))
        assert wanted != pytest.approx(float(right.mean()), abs=1e-4)
        for statement in ("EVALUATE MODEL m ON SELECT * FROM t", "SELECT * FROM ML.EVALUATE(MODEL m, TABLE t)"):
            result = session.sql(statement)
            row = dict(zip(result.columns, result.rows[0], strict=True))
            assert row["accuracy"] == pytest.approx(wanted, abs=1e-6), statement


@pytest.mark.parametrize(
    ("weights", "error", "told"),
    [
        ([0.0] * 4, DataError, "0 in every row"),
        ([1.0, -2.0, 1.0, 1.0], FeatureError, "row 1"),
        ([1.0, 1.0, float("nan"), 1.0], DataError, "row 2"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_weights_that_cannot_be(tmp_path, weights, error, told, packed):
    def learn():
        data = pa.table({"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1], "w": weights})
        if packed:
            convert(data, tmp_path / "a.arrow", label="y", weight="w")
            data = str(tmp_path / "a.arrow")
        penstock.LogisticRegression().fit(data, y="y", sample_weight="w")

    with pytest.raises(error, match=told):
        learn()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_one_label_with_weights_is_refused(tmp_path, suffix):
    rows = table(1.0)
    rows = rows.set_column(5, "w", pa.array(np.where(np.asarray(rows["y"]) == 1, 0.0, 2.0)))
    path = tmp_path / f"a{suffix}"
    if suffix == ".arrow":
        convert(rows, path, label="y", weight="w")
    else:
        pq.write_table(rows, path)
    with pytest.raises(DataError, match="of one class, 0"):
        penstock.LogisticRegression().fit(str(path), y="y", sample_weight="w")


def test_a_row_that_decides_alone_is_warned_of_and_weighs_the_same_in_evaluate(tmp_path):
    weights = np.ones(ROWS)
    weights[7] = 1e9
    path = tmp_path / "a.parquet"
    pq.write_table(table(1.0).set_column(5, "w", pa.array(weights)), path)
    warned = []
    model = penstock.LogisticRegression(validation=0)
    model.fit(str(path), y="y", sample_weight="w", listeners=[warned.append])
    assert any("count like 1" in str(event) for event in warned)
    assert model.score(str(path), y="y") in (0.0, pytest.approx(1.0, abs=1e-4))


def test_rows_of_weight_zero_make_no_difference_after_a_break(tmp_path):
    from penstock.config import Config
    from penstock.memory_learner import linear_job
    from penstock.training import Columns

    pq.write_table(table(1.0), tmp_path / "a.parquet")
    found = []
    for resume in (False, True):
        with penstock.open(tmp_path / "a.parquet") as source:
            job = linear_job(source, Config(epochs=100), Columns(label="y", weight="w"), checkpoint=tmp_path / "c")
            found.append(job.run(resume=resume).weights.coef)
    np.testing.assert_array_equal(*found)
