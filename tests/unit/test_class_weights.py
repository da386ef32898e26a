"""Class weights: "balanced" or a weight for each label, in every door, and measures that do not use them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression as Sklearn
from sklearn.metrics import recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import penstock
from penstock import bigmodel
from penstock.class_weights import ClassWeighting, checked_class_weight
from penstock.cli.application import app
from penstock.config import Config
from penstock.errors import UsageError
from penstock.groups import GroupBy, training_run
from penstock.memory_learner import linear_job
from penstock.testing.executors import InlineExecutor
from penstock.training import Columns

ROWS = 1500


def rows(seed=0, count=ROWS):
    """Return features on unlike scales, and labels of which about one in fifteen is "yes"."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 4)) * [1, 10, 0.1, 3] + [0, 5, 0, 1]
    score = (x - [0, 5, 0, 1]) / [1, 10, 0.1, 3] @ [1.0, -1.0, 0.5, 0.0] + rng.logistic(size=count)
    return x, np.where(score > 3.3, "yes", "no")


def table(seed=0, count=ROWS, **more):
    x, y = rows(seed, count)
    return pa.table({**{f"x{j}": x[:, j] for j in range(4)}, "y": y, **more})


def sklearn(x, y, **more):
    return make_pipeline(StandardScaler(), Sklearn(max_iter=1000, class_weight="balanced")).fit(
        x, y, **{f"logisticregression__{name}": value for name, value in more.items()}
    )


@pytest.mark.parametrize("solver", ["auto", "sgd"])
def test_balanced_recalls_what_scikit_learn_does(solver):
    x, y = rows(count=6000)
    fresh, labels = rows(seed=1, count=20_000)
    mine = penstock.LogisticRegression(solver=solver, class_weight="balanced").fit(x, y)
    theirs = sklearn(x, y)
    plain = penstock.LogisticRegression(solver=solver).fit(x, y)
    for label in ("yes", "no"):
        wanted = recall_score(labels, theirs.predict(fresh), pos_label=label)
        assert recall_score(labels, mine.predict(fresh), pos_label=label) == pytest.approx(wanted, abs=0.01)
    assert recall_score(labels, plain.predict(fresh), pos_label="yes") < 0.3


def test_balanced_counts_rows_by_their_weights():
    x, y = rows()
    weight = np.random.default_rng(2).integers(0, 5, ROWS).astype(float)
    mine = penstock.LogisticRegression(class_weight="balanced", tolerance=1e-6).fit(x, y, sample_weight=weight)
    repeated = np.repeat(np.arange(ROWS), weight.astype(int))
    kept = weight > 0
    counts = [weight[y == label].sum() for label in ("no", "yes")]
    np.testing.assert_allclose(
        list(mine.model_.metrics["class_weights"].values()), sum(counts) / (2 * np.array(counts)), rtol=1e-5
    )
    assert len(repeated) == sum(counts)
    # The scaling is of rows as they are, not by weight, and the penalty by their number.
    scaled = StandardScaler().fit(x[kept])
    theirs = Sklearn(C=1 / weight[kept].mean(), class_weight="balanced", max_iter=1000)
    theirs.fit(scaled.transform(x)[repeated], y[repeated])
    np.testing.assert_allclose(mine.coef_ * scaled.scale_, theirs.coef_, rtol=0.01, atol=0.002)


@pytest.mark.parametrize("solver", ["auto", "sgd"])
def test_a_mapping_is_a_weight_of_each_row(solver):
    x, y = rows()
    options = {"solver": solver, "shuffle": "none" if solver == "sgd" else "corgipile", "batch_size": 1}
    options |= {"learning_rate": 0.05, "epochs": 3} if solver == "sgd" else {}
    mine = penstock.LogisticRegression(class_weight={"yes": 5}, **options).fit(x, y)
    by_row = penstock.LogisticRegression(**options).fit(x, y, sample_weight=np.where(y == "yes", 50.0, 10.0))
    np.testing.assert_allclose(mine.coef_, by_row.coef_, rtol=1e-3, atol=1e-5)
    factors = mine.model_.metrics["class_weights"]
    assert factors["yes"] / factors["no"] == pytest.approx(5)
    assert np.mean([factors[label] for label in y]) == pytest.approx(1, rel=1e-5)


def test_three_classes():
    rng = np.random.default_rng(0)
    centers = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    y = rng.choice(3, 3000, p=[0.9, 0.07, 0.03])
    x = centers[y] + rng.standard_normal((3000, 2))
    theirs = sklearn(x, y)
    for estimator in (
        penstock.LogisticRegression(class_weight="balanced"),
        penstock.SoftmaxRegression(class_weight="balanced", solver="sgd"),
    ):
        recalls = recall_score(y, estimator.fit(x, y).predict(x), average=None)
        np.testing.assert_allclose(recalls, recall_score(y, theirs.predict(x), average=None), atol=0.02)


def test_measures_count_rows_by_their_own_weights_alone(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(weight=np.random.default_rng(0).integers(1, 4, ROWS)), path)
    model = penstock.LogisticRegression(class_weight="balanced", validation=0.2, l2=1e-3)
    model.fit(str(path), y="y", sample_weight="weight")
    found = model.model_.metrics
    # The model has learned from all but the held-out rows: an evaluation of these gives the same figures.
    measured = model.evaluate(str(path))
    assert 0 < measured["recall"] < 1
    matrix = np.array(found["held_out_confusion_matrix"])
    assert found["held_out_accuracy"] == pytest.approx(matrix.trace() / matrix.sum())
    assert found["held_out_recall"] == pytest.approx(matrix[1, 1] / matrix[1].sum())
    assert found["held_out_weighted_loss"] != pytest.approx(found["held_out_loss"], rel=1e-3)


def test_a_balanced_model_is_not_useless(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path)
    out = tmp_path / "m.penstock"
    result = CliRunner().invoke(
        app, ["train", str(path), "--label", "y", "--class-weight", "balanced", "--out", str(out), "--json"]
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["useless"] is None
    assert told["held_out_recall"] > 0.5
    assert penstock.load(out).class_weight == "balanced"


def test_the_command_takes_weights_by_label_and_names_the_option(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(table(), path)
    run = ["train", str(path), "--label", "y", "--out", str(tmp_path / "m.penstock"), "--json", "--class-weight"]
    assert CliRunner().invoke(app, [*run, "yes=5,no=1"]).exit_code == 0
    assert penstock.load(tmp_path / "m.penstock").class_weight == {"yes": 5.0, "no": 1.0}
    for given in ("yes", "=5", "yes=five", "yes=1,yes=2"):
        result = CliRunner().invoke(app, [*run, given])
        assert result.exit_code == 2
        assert "--class-weight" in result.stderr


@pytest.mark.parametrize(
    ("given", "labels", "factors"),
    [
        ({0: 1, 1: 3}, [0, 1], [0.5, 1.5]),
        ({"0": 1, "1.0": 3}, [0.0, 1.0], [0.5, 1.5]),
        ({np.int64(1): np.float32(3)}, [0, 1], [0.5, 1.5]),
        ({True: 3}, [False, True], [0.5, 1.5]),
        ("False=1,True=3", [False, True], [0.5, 1.5]),
        ({1: 3}, [False, True], [0.5, 1.5]),
        ({"a=b": 3}, ["a", "a=b"], [0.5, 1.5]),
        ("a=b=3", ["a", "a=b"], [0.5, 1.5]),
    ],
)
def test_labels_of_any_kind_are_found(given, labels, factors):
    option = checked_class_weight(given)
    assert option == json.loads(json.dumps(option))
    weighting = ClassWeighting.of(option, labels)
    np.testing.assert_allclose(weighting.factors([10.0, 10.0]).factors, factors)


@pytest.mark.parametrize(
    "given", [{"yes": 0}, {"yes": -1}, {"yes": float("nan")}, {"yes": "5"}, {}, 5, ["yes"], "even"]
)
def test_what_is_no_weight_is_refused(given):
    with pytest.raises(UsageError, match="class_weight="):
        Config(class_weight=given)


def test_unknown_labels_are_named_beside_the_known_ones():
    x, y = rows()
    with pytest.raises(UsageError, match=r"'ja'.*'no', 'yes'"):
        penstock.LogisticRegression(class_weight={"ja": 5, "no": 1}).fit(x, y)


def test_a_regression_has_no_classes():
    x, _ = rows()
    with pytest.raises(UsageError, match="class_weight='balanced'"):
        penstock.LinearRegression(class_weight="balanced").fit(x, x[:, 0])


@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_a_resumed_run_has_the_same_weights_and_checks_them(tmp_path, solver):
    pq.write_table(table(), tmp_path / "a.parquet")

    def run(name, epochs, class_weight="balanced", resume=False):
        with penstock.open(tmp_path / "a.parquet") as source:
            config = Config(solver=solver, epochs=epochs, class_weight=class_weight)
            return linear_job(source, config, Columns(label="y"), checkpoint=tmp_path / name).run(resume=resume)

    whole = run("whole", 4)
    run("part", 2)
    with pytest.raises(UsageError, match="class_weight='balanced'"):
        run("part", 4, class_weight=None, resume=True)
    np.testing.assert_array_equal(run("part", 4, resume=True).weights.coef, whole.weights.coef)


def test_early_stopping_follows_the_weighted_loss():
    x, y = rows()
    model = penstock.LogisticRegression(solver="sgd", class_weight="balanced", validation=0.2, patience=3, epochs=30)
    history = model.fit(x, y).history_
    best = min(row["held_out_weighted_loss"] for row in history)
    assert model.model_.metrics["held_out_weighted_loss"] == pytest.approx(best, rel=1e-6)


class TestEstimators:
    def test_partial_fit_takes_a_mapping_and_refuses_balanced(self):
        x, y = rows()
        x = StandardScaler().fit_transform(x)
        options = {"standardize": False, "shuffle": "none"}
        found = []
        for weights, given in (({"class_weight": {"yes": 5, "no": 1}}, None), ({}, np.where(y == "yes", 5.0, 1.0))):
            model = penstock.LogisticRegression(**options, **weights, rate="constant", learning_rate=0.05)
            for half in (slice(0, 750), slice(750, None)):
                model.partial_fit(
                    x[half], y[half], classes=["no", "yes"], sample_weight=None if given is None else given[half]
                )
            found.append(model.coef_)
        np.testing.assert_allclose(*found, rtol=1e-4)
        with pytest.raises(UsageError, match="balanced"):
            penstock.LogisticRegression(class_weight="balanced").partial_fit(x, y)

    @pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
    def test_warm_start_begins_at_the_present_weights(self, solver):
        x, y = rows()
        model = penstock.LogisticRegression(solver=solver, warm_start=True).fit(x, y)
        cold = penstock.LogisticRegression(solver=solver, epochs=1).fit(x, y)
        first, score = model.history_[0]["progressive_loss"], cold.history_[0]["progressive_loss"]
        assert first == pytest.approx(score, rel=1e-6)
        before = model.coef_.copy()
        model.set_params(epochs=1).fit(x, y)
        assert model.n_iter_ == 1
        assert model.history_[0]["progressive_loss"] < 0.95 * first
        spread = x.std(axis=0)
        np.testing.assert_allclose(model.coef_ * spread, before * spread, atol=0.2 if solver == "sgd" else 1e-3)

    def test_warm_start_of_other_rows_and_scales(self):
        x, y = rows()
        model = penstock.LogisticRegression(solver="lbfgs", warm_start=True, l2=1e-4, tolerance=1e-6).fit(x, y)
        again = penstock.LogisticRegression(solver="lbfgs", l2=1e-4, tolerance=1e-6).fit(2 * x + 1, y)
        model.fit(2 * x + 1, y)
        np.testing.assert_allclose(model.coef_, again.coef_, rtol=2e-2, atol=1e-3)

    def test_warm_start_from_a_loaded_model(self, tmp_path):
        x, y = rows()
        penstock.LogisticRegression().fit(x, y).save(tmp_path / "m.penstock")
        model = penstock.load(tmp_path / "m.penstock").set_params(warm_start=True).fit(x, y)
        assert model.n_iter_ <= 2

    def test_warm_start_refuses_other_classes_and_features(self):
        x, y = rows()
        model = penstock.LogisticRegression(warm_start=True).fit(x, y)
        with pytest.raises(UsageError, match="warm_start"):
            model.fit(x, np.where(y == "yes", "ja", "no"))
        model = penstock.LogisticRegression(warm_start=True).fit(x, y)
        with pytest.raises(UsageError, match="warm_start"):
            model.fit(x[:, :2], y)
        with pytest.raises(UsageError, match="warm_start"):
            GroupBy(table(g=np.zeros(ROWS, int)), by="g").fit(model, y="y", workers=1)


class TestDatabases:
    @pytest.mark.parametrize(
        ("written", "factor"),
        [
            ("TRAIN BY logistic AS m WITH (label = 'y', class_weight = 'balanced')", None),
            ("TRAIN BY logistic AS m WITH (label = 'y', class_weight = [('yes', 5), ('no', 1)])", 5),
            ("TRAIN BY logistic AS m WITH (label = 'y', class_weight = 'yes=5,no=1')", 5),
        ],
    )
    def test_train_by(self, path, written, factor):
        assert self.factor(path, f"SELECT * FROM t {written}") == pytest.approx(factor or self.balanced(), rel=1e-4)

    @pytest.mark.parametrize(
        ("written", "factor"),
        [
            ("AUTO_CLASS_WEIGHTS=TRUE", None),
            ("auto_class_weights=false", 1),
            ("CLASS_WEIGHTS=[STRUCT('yes', 5), STRUCT('no', 1)]", 5),
        ],
    )
    def test_the_warehouses_names(self, path, written, factor):
        options = f"OPTIONS(model_type='logistic_reg', input_label_cols=['y'], {written})"
        found = self.factor(path, f"CREATE MODEL m {options} AS SELECT * FROM t")
        assert found == pytest.approx(self.balanced() if factor is None else factor, rel=1e-4)

    def test_what_is_no_weight_is_refused_with_its_place(self, path):
        for written in ("class_weight = 5", "class_weight = [1, 2]", "class_weight = 'even'"):
            with pytest.raises(UsageError, match=r"line 1, column .*class_weight"):
                self.factor(path, f"SELECT * FROM t TRAIN BY logistic AS m WITH (label = 'y', {written})")

    @pytest.fixture
    def path(self, tmp_path):
        pq.write_table(table(), tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    @staticmethod
    def balanced():
        _, y = rows()
        return (y == "no").sum() / (y == "yes").sum()

    @staticmethod
    def factor(path, statement):
        from penstock.sql import connect

        with connect(":memory:") as session:
            session.sql(f"CREATE TABLE t AS SELECT * FROM '{path}'")
            factors = session.sql(statement).model.metrics.get("class_weights", {"yes": 1.0, "no": 1.0})
            return factors["yes"] / factors["no"]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_models_on_disk(tmp_path, optimizer):
    x, y = rows()
    x = StandardScaler().fit_transform(x)
    indices = pa.array([[0, 1, 2, 3]] * ROWS, pa.list_(pa.int64()))
    data = pa.table({"indices": indices, "values": pa.array(x.tolist(), pa.list_(pa.float32())), "y": y})
    options = {"memory": "100MB", "epochs": 10, "optimizer": optimizer, "class_weight": "balanced"}
    with bigmodel.LogisticRegression(tmp_path / "m", **options).fit(data, y="y") as model:
        recall = recall_score(y, model.predict(data), pos_label="yes")
        assert recall == pytest.approx(recall_score(y, sklearn(x, y).predict(x), pos_label="yes"), abs=0.05)
        assert model.model_.metrics["class_weights"]["yes"] > 5
    with pytest.raises(UsageError, match="class_weight="):
        bigmodel.LogisticRegression(tmp_path / "m", **{**options, "class_weight": None}).fit(data, y="y", resume=True)


class TestGroups:
    @pytest.fixture(autouse=True)
    def inline(self, monkeypatch):
        monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)  # processes take seconds to start

    @pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
    @pytest.mark.parametrize("placement", [None, "wrap-around"])
    def test_classes_are_balanced_within_each_group(self, solver, placement):
        first, second = table(0, 3000), table(1, 1000)
        # The second group has many more of one class than the first one.
        kept = np.flatnonzero((np.asarray(second["y"]) == "yes") | (np.arange(1000) % 5 == 0))
        second = second.take(pa.array(kept))
        group = np.repeat([0, 1], [len(first), len(second)])
        data = pa.concat_tables([first, second]).append_column("g", pa.array(group))
        result = GroupBy(data, by="g").fit(
            penstock.LogisticRegression(class_weight="balanced", solver=solver),
            y="y",
            validation=0.0,
            workers=3,
            placement=placement,
        )
        for key, part in (("0", first), ("1", second)):
            x = np.stack([np.asarray(part[f"x{j}"]) for j in range(4)], axis=1)
            y = np.asarray(part["y"])
            mine = result.best(key)
            scores = x @ mine.weights.coef[0] + mine.weights.intercept[0]
            wanted = recall_score(y, sklearn(x, y).predict(x), pos_label="yes")
            found = recall_score(y, np.where(scores > 0, "yes", "no"), pos_label="yes")
            assert found == pytest.approx(wanted, abs=0.01 if solver == "lbfgs" else 0.03)

    @pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
    def test_configs_are_chosen_by_rows_that_count_as_in_training(self, solver):
        data = table(count=3000, g=np.arange(3000) % 2)
        found = []
        for placement in (None, "wrap-around"):
            result = GroupBy(data, by="g").fit(
                penstock.LogisticRegression(class_weight="balanced", solver=solver, shuffle="none"),
                y="y",
                search={"l2": [1e-3, 1e-1]},
                validation=0.2,
                workers=3,
                placement=placement,
            )
            found.append(result.frame.column("selection_loss").to_numpy())
        # A model that knows nothing has log(2), whatever the shares of the classes.
        assert 0.3 < found[0].min() < 0.65
        np.testing.assert_allclose(*found, rtol=0.05)

    def test_a_label_that_no_group_has_is_named(self):
        data = table(g=np.zeros(ROWS, int))
        with pytest.raises(UsageError, match=r"'ja'.*'no', 'yes'"):
            GroupBy(data, by="g").fit(penstock.LogisticRegression(class_weight={"ja": 2}), y="y", workers=1)

    def test_the_command(self, tmp_path):
        pq.write_table(table(g=np.arange(ROWS) % 2), tmp_path / "a.parquet")
        run = ["groups", "train", str(tmp_path / "a.parquet"), "--by", "g", "--label", "y", "--workers", "1", "--json"]
        figures = []
        for name, more in (("plain", []), ("balanced", ["--class-weight", "balanced"])):
            result = CliRunner().invoke(app, [*run, "--out", str(tmp_path / name), *more])
            assert result.exit_code == 0, result.output
            figures.append(json.loads(result.stdout))
        assert figures[0] != figures[1]
