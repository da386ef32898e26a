"""The source that `examples/own_source.py` shows is a whole one: it passes the conformance suite."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from penstock.blocks.base import BlockSource
from penstock.blocks.file_formats import FILE_FORMATS
from penstock.testing.sources import SourceContract
from tests.example_modules import load_example

own_source = load_example("own_source")
del FILE_FORMATS["sqlite"]  # the example itself, which is run, shows that files are opened by their names


class TestSqlite(SourceContract):
    def make(self, folder: Path) -> Callable[[], BlockSource]:
        path = folder / "a.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE t (a REAL, b INTEGER, c REAL)")
            rows = [tuple(row.values()) for row in self.table().to_pylist()]
            connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        return lambda: own_source.SqliteSource(path, "t", rows_per_block=90)
