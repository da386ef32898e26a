"""The kind of model that `examples/own_model.py` shows is a whole one: it passes the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.model_kinds import KINDS
from penstock.testing.models import ModelContract
from tests.example_modules import load_example

own_model = load_example("own_model")
_KIND = KINDS.pop("lookup")  # the registration is for the tests below alone


class TestLookup(ModelContract):
    feature = "city"

    @pytest.fixture(autouse=True)
    def registered(self) -> Iterator[None]:
        KINDS["lookup"] = _KIND
        yield
        del KINDS["lookup"]

    def table(self) -> pa.Table:
        rng = np.random.default_rng(0)
        number = rng.integers(0, 40, 300)
        return pa.table(
            {"row": np.arange(300), "city": [f"c{n}" for n in number], "rent": number + rng.normal(size=300)}
        )

    def make(self, folder: Path) -> Path:
        means = {f"c{n}": float(n) for n in range(35)}
        own_model.LookupModel("city", "rent", means, 20.0).save(folder / "rents.json")
        return folder / "rents.json"
