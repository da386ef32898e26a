"""The kind of column that `examples/own_column.py` shows is a whole one: it passes the conformance suite."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.columns.kinds import KINDS
from penstock.testing.columns import ColumnContract

_PATH = Path(__file__).resolve().parents[2] / "examples" / "own_column.py"
_SPEC = importlib.util.spec_from_file_location("own_column", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
own_column = importlib.util.module_from_spec(_SPEC)
sys.modules["own_column"] = own_column  # dataclasses look up the module of a class
_SPEC.loader.exec_module(own_column)
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
