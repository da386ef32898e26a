"""A loss of your own: the squared hinge, a smooth relative of the one that a support vector machine minimizes.

A loss is one record: its value and slope in NumPy, the same for one row in a kernel, and what follows from scores. One
registration makes it a model for every solver. `tests/docs/test_own_loss.py` holds this one to what the others are held to.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import penstock
from penstock.blocks.memory import TableSource
from penstock.config import Config
from penstock.memory_learner import linear_job
from penstock.native import kernel
from penstock.sgd.losses import LOSSES, Loss
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.prediction_query import select_predictions
from penstock.training import Columns

Array = NDArray[np.floating[Any]]


def value(scores: Array, y: Array) -> Array:
    """Return half the square of what a margin lacks to one, for each row."""
    return np.asarray(0.5 * np.maximum(1 - scores * y, 0) ** 2)


def slope(scores: Array, y: Array) -> Array:
    """Return its derivative by the scores."""
    return np.asarray(-y * np.maximum(1 - scores * y, 0))


@kernel
def row(score: Any, y: Any) -> Any:
    """Return slope and value of one row; the third number is for losses with a logarithm."""
    gap = max(np.float32(1) - score * y, np.float32(0))
    return -y * gap, 0.5 * np.float64(gap) * np.float64(gap), np.float32(0)


SQUARED_HINGE = Loss(name="squared_hinge", model="smooth_svm", curvature=1.0, value=value, slope=slope, row=row)
LOSSES[SQUARED_HINGE.name] = SQUARED_HINGE


def main() -> None:
    """Train, save, load and write as SQL, in a folder of its own."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)).astype(np.float32)
    label = np.where(x @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=2000) > 0, "yes", "no")
    table = pa.table({**{name: x[:, j] for j, name in enumerate("abc")}, "label": label})
    with tempfile.TemporaryDirectory() as folder:
        for solver in ("lbfgs", "sgd"):
            config = Config(model="smooth_svm", solver=solver)
            model = linear_job(TableSource.of(table), config, Columns("label")).run()
            model.save(Path(folder, "m.penstock"))
            saved = penstock.load(Path(folder, "m.penstock"))
            print(f"{solver}: accuracy {saved.evaluate(TableSource.of(table))['accuracy']:.3f}")
        print(select_predictions(saved, "SELECT * FROM t", schema=table.schema.remove(3), dialect=DUCKDB))


if __name__ == "__main__":
    main()
