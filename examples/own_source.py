"""A source of your own: the rows of a SQLite table, read in blocks of row ids.

A source says how its rows are cut into blocks and reads any block from any thread. Penstock does the rest: every order,
the memory, resuming. An entry in the table of formats has files opened by their names. `tests/docs/test_own_source.py` holds this one to the conformance suite that all sources pass.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock.blocks.base import Source, require_block, require_columns
from penstock.blocks.file_formats import FILE_FORMATS, FileFormat
from penstock.errors import DataChangedError, SourceError

KINDS = {"REAL": pa.float64(), "INTEGER": pa.int64(), "TEXT": pa.string()}


class SqliteSource(Source):
    """A table whose row ids run from 1 without gaps, as they do where rows were only ever inserted.

    Parameters
    ----------
    path : path
        The database.
    table : str
        The table's name; one you trust, since it becomes part of a statement.
    rows_per_block : int
        Rows that are read at once.
    """

    def __init__(self, path: str | os.PathLike[str], table: str = "visits", *, rows_per_block: int = 1000) -> None:
        self.name = f"{os.fspath(path)}:{table}"
        self._path, self._table, self._size = Path(path), table, rows_per_block
        self._closed = False
        self._print: str | None = None
        self._stamp = self._now()
        described = self._query(f"SELECT name, type FROM pragma_table_info('{table}')")
        self.schema = pa.schema([(name, KINDS[kind]) for name, kind in described])
        rows = self._query(f"SELECT count(*) FROM {table}")[0][0]
        starts = np.arange(0, rows, rows_per_block)
        self.block_rows = np.minimum(rows_per_block, rows - starts).astype(np.int64)
        self.block_bytes = self.block_rows * 8 * len(self.schema)

    @property
    def fingerprint(self) -> str:
        """A hash over the file's content, so that a copy restored later is known again."""
        if self._print is None:
            with self._path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            self.check()
            self._print = f"{content}:{self._table}"
        return self._print

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order."""
        if self._closed:
            raise SourceError(f"{self.name} is closed")
        require_block(block, len(self.block_rows), name=self.name)
        wanted = list(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        self.check()
        names, first = ", ".join(f'"{name}"' for name in wanted), block * self._size
        rows = self._query(
            f"SELECT {names} FROM {self._table} WHERE rowid > {first} AND rowid <= {first + self._size} ORDER BY rowid"
        )
        fields = [self.schema.field(name) for name in wanted]
        arrays = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def check(self) -> None:
        """Raise if the file is not the one that was opened."""
        if self._now() != self._stamp:
            raise DataChangedError(f"{self.name} has changed since it was opened; open it again")

    def close(self) -> None:
        """Refuse reads from now on."""
        self._closed = True

    def _now(self) -> tuple[int, int]:
        stat = self._path.stat()
        return stat.st_size, stat.st_mtime_ns

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        # A connection for each read: SQLite's are not to be shared between threads, and opening one is cheap.
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
            try:
                return connection.execute(statement).fetchall()
            except sqlite3.DatabaseError as error:
                raise SourceError(f"{self.name} cannot be read: {error}; restore the database from a copy") from error


FILE_FORMATS["sqlite"] = FileFormat(
    "a SQLite database", (".sqlite",), SqliteSource, magic=b"SQLite format 3\x00", one_file="name one"
)


def write_rows(path: Path, count: int, *, seed: int) -> None:
    """Fill a table `visits` sorted by its label."""
    chance = np.random.default_rng(seed)
    x = chance.standard_normal((count, 2))
    bought = (x[:, 0] - x[:, 1] > 0).astype(int)
    order = np.argsort(bought, kind="stable")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE visits (pages REAL, age REAL, bought INTEGER)")
        rows = zip(x[order, 0].tolist(), x[order, 1].tolist(), bought[order].tolist(), strict=True)
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?)", rows)


def main() -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        train, test = Path(folder, "train.sqlite"), Path(folder, "test.sqlite")
        write_rows(train, 20_000, seed=1)
        write_rows(test, 2_000, seed=2)
        with penstock.open(train, table="visits", rows_per_block=200) as rows:
            model = penstock.LogisticRegression(memory="200kB", epochs=3).fit(rows, y="bought", test=test)
            print(f"{rows}: test accuracy {model.history_[-1]['test_accuracy']:.3f}")


if __name__ == "__main__":
    main()
