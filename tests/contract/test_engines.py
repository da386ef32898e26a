"""The SQL engines pass the shipped conformance suite: DuckDB, and a real PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from penstock.errors import UsageError
from penstock.sql.engines.registry import ENGINES, engine_kind, open_engine
from penstock.testing.engines import EngineContract


class TestDuckDBFile(EngineContract):
    def make(self, folder: Path) -> Any:
        return folder / "shop.duckdb"


class TestDuckDBInMemory(EngineContract):
    def make(self, folder: Path) -> Any:
        return ":memory:"


class TestDuckDBConnection(EngineContract):
    def make(self, folder: Path) -> Any:
        return duckdb.connect()


class TestPostgres(EngineContract):
    @pytest.fixture(autouse=True)
    def _database(self, database: str) -> None:
        self.database = database

    def make(self, folder: Path) -> Any:
        return self.database


@pytest.mark.parametrize(
    ("db", "name"),
    [
        ("postgresql://ann@host/db", "postgresql"),
        ("host=localhost dbname=shop", "postgresql"),
        ("shop.duckdb", "duckdb"),
        (":memory:", "duckdb"),
        (Path("shop.duckdb"), "duckdb"),
    ],
)
def test_engines_are_found_by_address(db: Any, name: str) -> None:
    assert engine_kind(db) is ENGINES[name]


def test_an_unknown_address_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        open_engine("mysql://ann:secret@host/db")
    assert (caught.value.option, caught.value.value) == ("db", "host/db")
