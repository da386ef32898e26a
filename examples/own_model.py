"""A kind of model of your own: the mean of a number for each value of one column, saved as JSON.

A kind yields predictions in the order of the rows, measures itself, describes itself and saves itself. One registration
makes `penstock.load` open it; the writer of predictions is Penstock's. `tests/docs/test_own_model.py` holds this one to the
conformance suite that all kinds pass.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import penstock
from penstock.blocks.base import BlockSource, require_columns
from penstock.blocks.memory import TableSource
from penstock.closing import Closing
from penstock.errors import DataError
from penstock.measures import NumberMeasures, OnScores
from penstock.model import Description, write_predictions
from penstock.model_kinds import KINDS, ModelKind
from penstock.outputs import atomic_path


@dataclass(frozen=True)
class LookupModel(Closing):
    """Predicts the mean of a label over the training rows with the same value of a column; the overall mean for others."""

    column: str
    label: str
    means: Mapping[str, float]
    mean: float
    metrics: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    kind: ClassVar[str] = "lookup"
    word: ClassVar[str] = "lookup"
    metric: ClassVar[str] = "r2"
    classes: ClassVar[None] = None
    config: ClassVar[Mapping[str, Any]] = {}
    history: ClassVar[Sequence[Mapping[str, Any]]] = ()
    finished: ClassVar[bool] = True
    by: ClassVar[tuple[str, ...]] = ()
    recipe: ClassVar[None] = None  # it reads its column in a way of its own
    linear: ClassVar[None] = None  # so it has no coefficients, and is not written as SQL

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that predictions are made of."""
        return (self.column,)

    def describe(self, *, most: int | None = None) -> Description:
        """Say what is in the model, with some of its means."""
        lines = [f"{k}: {v:.4g}" for k, v in list(self.means.items())[:most]]
        return Description.of(self, f"{len(self.means)} means", values=asdict(self), lines=lines)

    def predictions(self, source: BlockSource, *, keep: Sequence[str] = ()) -> Generator[pa.RecordBatch, None, None]:
        """Yield the predictions of a source's rows in stored order, after the columns to keep."""
        require_columns(source.schema, [self.column, *keep], place=source.name)
        for block in range(len(source.block_rows)):
            rows = source.read(block, list(dict.fromkeys([self.column, *keep])))
            found = [self.means.get(value, self.mean) for value in rows.column(self.column).to_pylist()]
            kept = {name: rows.column(name) for name in keep}
            yield pa.record_batch({**kept, "prediction": pa.array(found, pa.float64())})

    def evaluate(
        self,
        source: BlockSource,
        *,
        label: str | None = None,
        memory: str | int = "512MB",
        on_scores: OnScores | None = None,
    ) -> dict[str, Any]:
        """Return R², RMSE and MAE of the rows that have a label, and how many they are."""
        measures, count, truth = NumberMeasures(), 0, label or self.label
        for predicted in self.predictions(source, keep=[truth]):
            batch = predicted.filter(predicted[truth].is_valid())
            scores, labels = (np.asarray(batch[name], np.float64) for name in ("prediction", truth))
            for hear in (measures.add, *([] if on_scores is None else [on_scores])):
                hear(scores, labels, np.ones(len(batch)))
            count += len(batch)
        if not count:
            raise DataError(f"{source.name} has no value of {truth!r} in any row; there is nothing to measure")
        return {**measures.figures(), "rows": count}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as JSON, whole or not at all."""
        with atomic_path(path) as temporary:
            temporary.write_text(json.dumps({"lookup": asdict(self)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LookupModel:
        """Read a model that `save` wrote."""
        return cls(**json.loads(Path(path).read_text())["lookup"])

    def close(self) -> None:
        """Do nothing: no file is open."""


def is_lookup(path: Path) -> bool:
    """Tell whether a path is a model of this kind, by its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(10) == b'{"lookup":'


KINDS["lookup"] = ModelKind("tables of means", is_lookup, LookupModel.load)


def main() -> None:
    """Run the example in a folder of its own."""
    rows = pa.table({"city": ["Oslo", "Rome", "Rome", "Bonn"], "rent": [20.0, 12.0, 14.0, 11.0]})
    means = {row["city"]: row["rent_mean"] for row in rows.group_by("city").aggregate([("rent", "mean")]).to_pylist()}
    with tempfile.TemporaryDirectory() as folder:
        LookupModel("city", "rent", means, 14.25).save(Path(folder, "rents.json"))
        with penstock.load(Path(folder, "rents.json")) as model:
            print(model.describe())
            count = write_predictions(model, TableSource.of(rows), Path(folder, "p.parquet"), keep=["city"])
            print(f"{count} predictions, RMSE {model.evaluate(TableSource.of(rows))['rmse']:.3f}")


if __name__ == "__main__":
    main()
