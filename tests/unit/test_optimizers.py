"""AdaGrad, Adam and FTRL in memory: they learn, stop and go on, make true zeros, and every door has them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from typer.testing import CliRunner

import penstock
from penstock.batch import Batch, Csr
from penstock.blocks.open import open as open_source
from penstock.cli.application import app
from penstock.config import Config
from penstock.errors import FeatureError, ModelFileError, UnknownOptionError, UsageError
from penstock.groups import GroupBy
from penstock.memory_learner import linear_job
from penstock.sgd.loop import Spec, Trainer
from penstock.sgd.model import Weights
from penstock.sgd.optimizers import ADAPTIVE, OPTIMIZERS
from penstock.sgd.rates import Rate, exponential, falling
from penstock.sql import connect
from penstock.sql.engines.postgres.server_training import extension_supports
from penstock.sql.options import settings
from penstock.sql.statements import Query, StatementOption, Train
from penstock.training import Columns

ROWS, WIDTH = 2000, 8
ADAPTIVES = sorted(ADAPTIVE)


def world(rows: int = ROWS, *, model: str = "logistic", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows sorted by label, whose features are of very different sizes; half of them tell nothing."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
    plane = x @ np.array([2, -2, 1, 1, 0, 0, 0, 0]) + rng.standard_normal(rows)
    y: Any = plane * 1000 + 50_000
    if model == "softmax":
        y = np.digitize(plane, [-1.5, 1.5])
    elif model != "linear":
        y = plane > 0
    by_label = np.argsort(y, kind="stable")
    return (x * 10.0 ** np.arange(-2, 6))[by_label].astype(np.float32), y[by_label]


def batch_of(*, sparse: bool = False, loss: str = "logistic") -> Batch:
    x, y = world(300, model="softmax" if loss == "softmax" else "logistic")
    x = x / 10.0 ** np.arange(-2, 6, dtype=np.float32)
    order = np.random.default_rng(1).permutation(len(y))
    x, y = x[order].astype(np.float32), y[order].astype(np.float32)
    labels = y if loss == "softmax" else 2 * y - 1
    if not sparse:
        return Batch(x, labels)
    rows = sp.csr_matrix(np.where(np.abs(x) > 0.5, x, 0))
    return Batch(Csr(rows.indptr.astype(np.uint64), rows.indices.astype(np.uint32), rows.data, WIDTH), labels)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file whose rows are sorted by label."""
    x, y = world()
    place = tmp_path_factory.mktemp("rows") / "rows.parquet"
    columns = {f"f{j}": x[:, j] for j in range(WIDTH)}
    pq.write_table(pa.table({**columns, "g": np.arange(ROWS) % 2, "y": y}), place, row_group_size=100)
    return str(place)


class TestLearning:
    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_rows_sorted_by_label_are_learned_as_well_as_by_full_passes(self, path: str, optimizer: str) -> None:
        model = penstock.LogisticRegression(optimizer=optimizer, memory="45%", epochs=20, validation=0)
        best = penstock.LogisticRegression(solver="lbfgs", validation=0)
        found, expected = (each.fit(path, y="y", exclude=["g"]).score(path) for each in (model, best))
        assert found > expected - 0.01

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    @pytest.mark.parametrize("make", [penstock.SoftmaxRegression, penstock.LinearSVM, penstock.LinearRegression])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_all_models(self, make: Any, optimizer: str, sparse: bool) -> None:
        x, y = world(model=make._kind)
        rows: Any = sp.csr_matrix(x) if sparse else x
        model, best = make(optimizer=optimizer, epochs=20), make()
        assert model.fit(rows, y).score(rows, y) > best.fit(rows, y).score(rows, y) - 0.02

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    @pytest.mark.parametrize("sparse", [False, True])
    def test_batches_and_weights_of_rows(self, optimizer: str, sparse: bool) -> None:
        x, y = world()
        rows: Any = sp.csr_matrix(x) if sparse else x
        model = penstock.LogisticRegression(optimizer=optimizer, batch_size=8, epochs=20, class_weight={True: 5})
        weighted = model.fit(rows, y, sample_weight=np.where(y, 1.0, 2.0)).predict(rows).mean()
        assert weighted > penstock.LogisticRegression(optimizer=optimizer, epochs=20).fit(rows, y).predict(rows).mean()

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_the_size_of_labels_makes_no_difference(self, optimizer: str) -> None:
        x, y = world(400, model="linear")
        model = penstock.LinearRegression(optimizer=optimizer, epochs=3).fit(x, y)
        large = penstock.LinearRegression(optimizer=optimizer, epochs=3).fit(x, y * 1e6)
        np.testing.assert_allclose(large.predict(x), model.predict(x) * 1e6, rtol=1e-3)

    def test_the_size_of_labels_is_told_by_all_rows_that_are_given(self) -> None:
        batch = batch_of()
        assert batch.y is not None
        rows = Batch(batch.x, batch.x[:, 0] * 3 + 700, batch.weight)
        empty = Batch(rows.x, rows.y, np.zeros(len(rows), np.float32))
        trainer = Trainer(
            Spec("squared", falling(1e-6, 0.0), optimizer="adam", average=True), WIDTH, epoch_rows=len(rows)
        )
        trainer.run_epoch([empty, rows], 0)
        assert trainer.weights.optimizer_state is not None
        assert trainer.weights.optimizer_state.unit == pytest.approx(np.std(rows.y))
        assert trainer.weights.intercept[0] == pytest.approx(np.mean(rows.y), rel=1e-3)

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_default_steps_are_bounded(self, optimizer: str) -> None:
        x, y = world(500)
        raw = penstock.LogisticRegression(optimizer=optimizer, standardize=False, epochs=5).fit(x, y)
        assert raw.history_[-1]["progressive_loss"] < 10

    def test_a_feature_past_the_width_is_named(self) -> None:
        batch = batch_of(sparse=True)
        assert isinstance(batch.x, Csr)
        batch.x.indices[7] = WIDTH
        trainer = Trainer(Spec(optimizer="adam"), WIDTH)
        with pytest.raises(FeatureError, match=f"feature {WIDTH}"):
            trainer.run_epoch([batch], 0)


class TestZeros:
    @pytest.mark.parametrize("sparse", [False, True])
    @pytest.mark.parametrize("make", [penstock.LogisticRegression, penstock.SoftmaxRegression])
    def test_l1_of_ftrl_makes_the_zeros_of_the_exact_solution(self, make: Any, sparse: bool) -> None:
        x, y = world()
        rows: Any = sp.csr_matrix(x) if sparse else x
        model, best = (
            make(optimizer="ftrl", l1=0.05, epochs=50).fit(rows, y),
            make(solver="lbfgs", l1=0.05).fit(rows, y),
        )
        assert (model.coef_ == 0).sum() >= 4
        np.testing.assert_array_equal(model.coef_ == 0, best.coef_ == 0)
        spread = x.std(axis=0)
        np.testing.assert_allclose(model.coef_ * spread, best.coef_ * spread, atol=0.05)

    def test_without_it_nothing_is_zero(self) -> None:
        assert (penstock.LogisticRegression(optimizer="ftrl", epochs=5).fit(*world()).coef_ != 0).all()

    def test_zeros_are_not_averaged_away(self) -> None:
        assert Config(optimizer="ftrl").spec().average
        assert not Config(optimizer="ftrl", l1=0.01).spec().average


class TestGoingOn:
    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    @pytest.mark.parametrize("loss", ["logistic", "softmax"])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_restored_within_an_epoch_equals_uninterrupted(self, optimizer: str, loss: str, sparse: bool) -> None:
        batch, l1 = batch_of(sparse=sparse, loss=loss), 0.01 if optimizer == "ftrl" else 0.0
        spec = Spec(loss, optimizer=optimizer, batch_size=3, l1=l1, l2=0.01, average=True)
        parts = [batch.slice(start, start + 60) for start in range(0, 300, 60)]
        states: list[dict[str, Any]] = []

        def trainer() -> Trainer:
            return Trainer(spec, WIDTH, outputs=3 if loss == "softmax" else 1, epoch_rows=300)

        whole = trainer()
        for epoch in range(2):
            whole.run_epoch(parts, epoch, on_batch=lambda batch, stats: states.append(whole.state()))
        for first, done in ((0, 3), (1, 2)):  # epochs, and batches of the epoch
            again = trainer()
            again.restore(states[5 * first + done - 1])
            for epoch in range(first, 2):
                again.run_epoch(parts[done:] if epoch == first else parts, epoch)
            for name, array in whole.state().items():
                np.testing.assert_array_equal(again.state()[name], array, err_msg=name)

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_a_checkpoint_has_the_state(self, path: str, optimizer: str, tmp_path: Path) -> None:
        runner = CliRunner()

        def train(name: str, *options: str) -> Any:
            out = (
                "--out",
                str(tmp_path / name),
                "--optimizer",
                optimizer,
                "--memory",
                "45%",
                "--json",
                "--keep-anyway",
            )
            result = runner.invoke(app, ["train", path, "--label", "y", *out, *options])
            assert result.exit_code == 0, result.output
            return penstock.load(tmp_path / name)

        whole = train("whole", "--epochs", "4")
        config = Config(optimizer=optimizer, memory="45%", epochs=2)
        with open_source(path) as source:
            linear_job(source, config, Columns(label="y"), checkpoint=tmp_path / "parts.checkpoint").run()
        np.testing.assert_array_equal(train("parts", "--epochs", "4", "--resume").coef_, whole.coef_)

    def test_the_state_has_to_fit(self) -> None:
        weights = Trainer(Spec(optimizer="ftrl"), WIDTH)
        weights.run_epoch([batch_of()], 0)
        state = weights.state()
        with pytest.raises(ModelFileError, match="state of ftrl is of shape"):
            Weights.from_arrays(state | {"optimizer.ftrl": np.zeros((1, 2, 2), np.float32)})
        unknown = {name: array for name, array in state.items() if name != "optimizer.ftrl"}
        with pytest.raises(ModelFileError, match="optimizer that this version does not have"):
            Weights.from_arrays(unknown)

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    @pytest.mark.parametrize("sparse", [False, True])
    def test_warm_start_begins_with_the_weights_that_are_there(self, optimizer: str, sparse: bool) -> None:
        x, y = world()
        rows: Any = sp.csr_matrix(x) if sparse else x
        cold = penstock.LogisticRegression(solver="lbfgs").fit(rows, y)
        options = {"optimizer": optimizer, "learning_rate": 1e-6, "epochs": 1, "l2": 0.0, "average": False}
        model = penstock.LogisticRegression(**options, warm_start=True)
        model.model_ = cold.model_
        np.testing.assert_allclose(model.fit(rows, y).coef_, cold.coef_, rtol=0.05)

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_partial_fit_keeps_the_state(self, optimizer: str) -> None:
        x, y = world()
        x, order = x / x.std(axis=0), np.random.default_rng(0).permutation(ROWS)
        model = penstock.LogisticRegression(optimizer=optimizer, learning_rate=0.05)
        for part in np.array_split(order, 10):
            model.partial_fit(x[part], y[part], classes=[False, True])
        optimizer_state = model._trainer.weights.optimizer_state
        assert optimizer_state is not None
        assert optimizer_state.optimizer.name == optimizer
        assert model.score(x, y) > 0.85


class TestOptions:
    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_asking_for_an_optimizer_asks_for_sgd(self, optimizer: str) -> None:
        assert Config(optimizer=optimizer).asks_for_sgd
        assert penstock.LogisticRegression(optimizer=optimizer, epochs=1).fit(*world()).model_.config["solver"] == "sgd"

    def test_the_schedule(self) -> None:
        assert Config(optimizer="adam").spec().rate == falling(0.02, 0.5, bounded=True)
        assert Config(optimizer="adam", learning_rate=0.3).spec().rate == falling(0.3, 0.5)
        assert Config(optimizer="adam", rate="exponential").spec().rate == exponential(0.02)
        assert Config(optimizer="ftrl", rate="constant", learning_rate=0.3).spec().rate == Rate(0.3)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"optimizer": "adam", "solver": "lbfgs"}, "optimizer='adam' is for solver='sgd'"),
            ({"optimizer": "ftrl", "solver": "exact", "model": "linear"}, "optimizer='ftrl' is for solver='sgd'"),
            ({"optimizer": "adam", "l1": 0.1}, "l1=0.1 is not there with optimizer='adam'; use one of: sgd, ftrl"),
            ({"optimizer": "adagrad", "l1": 0.1}, "l1=0.1 is not there with optimizer='adagrad'"),
            ({"optimizer": "ftrl", "rate": "exponential"}, "rate='exponential' is not for optimizer='ftrl'"),
            ({"optimizer": "ftrl", "decay": 0.9}, "decay=0.9 is not for optimizer='ftrl'"),
            ({"optimizer": "ftrl", "power": 0.5}, "power=0.5 is not for optimizer='ftrl'"),
            ({"optimizer": "adam", "learning_rate": -1.0}, "learning_rate=-1.0 must be a positive number"),
        ],
    )
    def test_refusals(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(UsageError, match=re.escape(words)):
            Config(**options)

    def test_an_unknown_one(self) -> None:
        with pytest.raises(UnknownOptionError, match="adagrad, adam, ftrl, sgd"):
            Config(optimizer="adamw")

    def test_a_config_that_names_none_was_of_sgd(self) -> None:
        old = Config().to_dict()
        del old["optimizer"]
        Config().require_same(old)
        with pytest.raises(UsageError, match="made with optimizer='sgd', this run has 'adam'"):
            Config(optimizer="adam").require_same(old)


class TestDoors:
    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_command_line(self, path: str, optimizer: str, tmp_path: Path) -> None:
        out = str(tmp_path / "m.penstock")
        options = ["--label", "y", "--optimizer", optimizer, "--epochs", "10", "--out", out, "--json"]
        result = CliRunner().invoke(app, ["train", path, *options])
        assert result.exit_code == 0, result.output
        model = penstock.load(out)
        assert (model.solver, model.optimizer) == ("sgd", optimizer)
        assert json.loads(result.stdout)["held_out_accuracy"] > 0.85

    def test_command_line_refuses(self, path: str) -> None:
        result = CliRunner().invoke(app, ["train", path, "--label", "y", "--optimizer", "adam", "--solver", "lbfgs"])
        assert result.exit_code == 2
        assert "--optimizer adam is for --solver sgd" in " ".join(result.output.split())

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_sql(self, path: str, optimizer: str) -> None:
        with connect() as session:
            session.sql(f"CREATE TABLE t AS SELECT * FROM '{path}'")
            session.sql(
                f"SELECT * FROM t TRAIN BY logistic AS m WITH (label = y, optimizer = '{optimizer}', epochs = 5)"
            )
            told = dict(session.sql("DESCRIBE MODEL m").rows)
            assert (told["solver"], told["optimizer"]) == ("sgd", optimizer)
            written = f"OPTIONS(model_type='logistic_reg', input_label_cols=['y'], optimizer='{optimizer.upper()}')"
            session.sql(f"CREATE MODEL n {written} AS SELECT * FROM t")
            assert dict(session.sql("DESCRIBE MODEL n").rows)["optimizer"] == optimizer

    def test_the_extension_leaves_them_to_us(self) -> None:
        schema = pa.schema([("a", pa.float32()), ("y", pa.bool_())])
        for optimizer in OPTIMIZERS:
            options = {"label": StatementOption("y"), "optimizer": StatementOption(optimizer)}
            chosen = settings(Train(Query("TABLE t"), "logistic", options=options), schema)
            assert extension_supports(chosen, ["a"], schema) == (optimizer == "sgd")

    @pytest.mark.parametrize("optimizer", ADAPTIVES)
    def test_groups(self, path: str, optimizer: str, tmp_path: Path) -> None:
        model = penstock.LogisticRegression(optimizer=optimizer, epochs=10)
        result = GroupBy(pq.read_table(path), by="g").fit(model, y="y", validation=0.2, workers=1)
        assert min(result.frame["held_out_accuracy"].to_pylist()) > 0.8
        options = ["--by", "g", "--label", "y", "--optimizer", optimizer, "--epochs", "2", "--out", str(tmp_path / "m")]
        told = CliRunner().invoke(app, ["groups", "train", path, *options, "--workers", "1", "--json"])
        assert told.exit_code == 0, told.output
