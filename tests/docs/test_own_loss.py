"""The loss that `examples/own_loss.py` shows trains, predicts, is saved and written as SQL like those of the package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.svm import LinearSVC

import penstock
from penstock.batch import Batch
from penstock.blocks.memory import TableSource
from penstock.config import Config
from penstock.memory_learner import linear_job
from penstock.model import predict
from penstock.sgd import kernels
from penstock.sgd.kernels import Step, Totals
from penstock.sgd.losses import LOSSES
from penstock.sgd.model import Weights
from penstock.sgd.reference import train_reference
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.prediction_query import select_predictions
from penstock.training import Columns
from tests.example_modules import load_example

own_loss = load_example("own_loss")
_LOSS = LOSSES.pop("squared_hinge")  # the registration is for the tests below alone


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    LOSSES[_LOSS.name] = _LOSS
    yield
    del LOSSES[_LOSS.name]


def data(rows: int = 600) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).astype(np.float32)
    return x, np.where(x @ [1.0, -2.0, 0.5] + rng.normal(size=rows) > 0, 1, -1).astype(np.float32)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_kernels_match_the_twin(batch_size: int) -> None:
    x, y = data(200)
    weights, totals, step = Weights.zeros(3), Totals(), Step(_LOSS, base=0.1, l2=1e-3, batch_size=batch_size)
    assert kernels.train(Batch(x, y), weights, step=step, totals=totals) == -1
    coef, intercept = np.zeros((1, 3)), np.zeros(1)
    sums = train_reference(Batch(x, y), coef, intercept, step=step, updates=0)
    np.testing.assert_allclose(weights.coef, coef, rtol=1e-4)
    assert totals.loss() == pytest.approx(sums["loss"] / sums["weight"], rel=1e-5)
    assert totals.score(_LOSS) == sums["hits"] / sums["weight"]


def test_it_trains_predicts_and_is_saved(tmp_path: Path) -> None:
    x, y = data()
    table = pa.table({**{name: x[:, j] for j, name in enumerate("abc")}, "y": np.where(y > 0, "yes", "no")})
    config = Config(model="smooth_svm", l2=0.01, standardize=False, validation=0.0)
    theirs = LinearSVC(loss="squared_hinge", C=1 / (0.02 * len(y)), intercept_scaling=100.0, tol=1e-8).fit(x, y)
    for solver, within in (("lbfgs", 1e-2), ("sgd", 0.1)):
        model = linear_job(
            TableSource.of(table),
            Config(**{**config.to_dict(), "solver": solver, "shuffle": "corgipile"}),
            Columns("y"),
        ).run()
        np.testing.assert_allclose(model.weights.coef, theirs.coef_, atol=within)
    model.save(tmp_path / "m.penstock")
    saved = penstock.load(tmp_path / "m.penstock")
    np.testing.assert_array_equal(predict(saved, TableSource.of(table)), predict(model, TableSource.of(table)))
    assert saved.evaluate(TableSource.of(table))["accuracy"] > 0.8
    schema = table.schema.remove(3)
    text = select_predictions(saved, "SELECT * FROM t", schema=schema, dialect=DUCKDB)
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("t", table.drop_columns(["y"]))
        found = connection.execute(text).fetchall()
    assert [row[-1] for row in found] == predict(saved, TableSource.of(table)).tolist()


def test_an_edited_loss_is_another_type() -> None:
    def other(score, y):  # type: ignore[no-untyped-def]  # as a kernel is
        return -y, 0.0, np.float32(0)

    edited = type(_LOSS)(
        name="squared_hinge", model="m", curvature=1.0, value=_LOSS.value, slope=_LOSS.slope, row=other
    )
    assert edited.native != _LOSS.native
