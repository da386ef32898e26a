"""The SQL engine that `examples/own_engine.py` shows is a whole one: it passes the conformance suite."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.sql.engines.registry import ENGINES
from penstock.testing.engines import EngineContract

_PATH = Path(__file__).resolve().parents[2] / "examples" / "own_engine.py"
_SPEC = importlib.util.spec_from_file_location("own_engine", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None


class TestSqlite(EngineContract):
    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr("penstock.sql.engines.registry.ENGINES", ENGINES)
        before = dict(ENGINES)
        _SPEC.loader.exec_module(importlib.util.module_from_spec(_SPEC))
        yield
        ENGINES.clear()
        ENGINES.update(before)

    def make(self, folder: Path) -> Any:
        return f"sqlite://{folder}/shop.db"
