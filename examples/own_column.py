"""A kind of feature column of your own: amounts of money by their logarithm, missing ones at 0.

Run it as it is: it trains on a small table, saves the model, and scores rows with it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import penstock
from penstock.columns.base import NO_FLAGS, Place, field_of, saved
from penstock.columns.kinds import KINDS
from penstock.config import Config
from penstock.memory_learner import linear_job
from penstock.training import Columns


@dataclass(frozen=True, slots=True)
class Amount:
    """The logarithm of an amount, with its sign."""

    kind: ClassVar[str] = "amount"
    sparse: ClassVar[bool] = False
    width: ClassVar[int] = 1

    column: str

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def names(self) -> tuple[str, ...]:
        return (f"log {self.column}",)

    @property
    def flags(self) -> np.ndarray:
        return NO_FLAGS

    def write(self, array: pa.Array, into: np.ndarray, place: Place) -> None:
        amounts = np.nan_to_num(array.cast(pa.float64()).to_numpy(zero_copy_only=False))
        into[0] = np.sign(amounts) * np.log1p(np.abs(amounts))

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Any:
        raise TypeError("amounts are stored in every row")

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        if field_of(schema, self.column) is None:
            raise penstock.errors.ColumnError.missing(self.column, schema.names, place=place, role="feature column")

    def to_dict(self) -> dict[str, Any]:
        return saved(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Amount:
        return cls(data["columns"][0])

    def facts(self) -> dict[str, Any]:
        return {"missing": "0"}


KINDS["amount"] = Amount


def main() -> None:
    """Train with the column, save the model, and load it again."""
    rng = np.random.default_rng(0)
    amount = np.exp(rng.normal(5, 2, 2000))
    table = pa.table({"amount": amount, "label": (np.log(amount) + rng.normal(size=2000) > 5).astype(int)})
    source = penstock.open(table)
    recipe = Columns(label="label").recipe(source)
    recipe = replace(recipe, parts=tuple(Amount(p.columns[0]) if p.columns == ("amount",) else p for p in recipe.parts))
    model = linear_job(source, Config(), recipe=recipe).run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.penstock"
        model.save(path)
        print("accuracy", round(penstock.load(path).score(table), 2))


if __name__ == "__main__":
    main()
