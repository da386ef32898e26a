"""The kind of column that `examples/own_column.py` shows is a whole one: it passes the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.columns.kinds import KINDS
from penstock.testing.columns import ColumnContract
from tests.example_modules import load_example

own_column = load_example("own_column")
_KIND = KINDS.pop("amount")  # the registration is for the tests below alone


class TestAmount(ColumnContract):
    @pytest.fixture(autouse=True)
    def _registered(self) -> Iterator[None]:
        KINDS["amount"] = _KIND
        yield
        del KINDS["amount"]

    def make(self):
        return own_column.Amount("price")

    def values(self):
        return pa.array([1.0, None, -3.0])
