"""A server with the extension for all tests of a session, and a database that has it for each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import psycopg
import pytest

from tests.postgres_extension.extension import ExtensionServer, missing

# Where the extension cannot be built, test_versions.py says so, in a line for each server.
collect_ignore_glob = ["test_[!v]*.py"] if missing() else []


@pytest.fixture(scope="session")
def extended() -> Iterator[ExtensionServer]:
    """Give a server that has the extension."""
    with closing(ExtensionServer()) as server:
        yield server


@pytest.fixture
def address(extended: ExtensionServer) -> Iterator[str]:
    """Give the address of a fresh database with the extension in it."""
    with extended.database() as place:
        extended.run("CREATE EXTENSION penstock", at=place)
        yield place


@pytest.fixture
def session(address: str) -> Iterator[psycopg.Connection[Any]]:
    """Give a session in a fresh database with the extension in it."""
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


Fill = Callable[..., None]


@pytest.fixture
def fill(session: psycopg.Connection[Any]) -> Fill:
    """Give a function that makes a table of rows."""

    def make(name: str, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        session.execute(f"CREATE TABLE {name} ({columns})".encode())
        with session.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row)

    return make


@functools.cache
def _points() -> bytes:
    """Return 20,000 rows as COPY takes them, all of label 0 first; a line tells nine tenths apart."""
    rng = np.random.default_rng(3)
    y = np.repeat([0, 1], 10_000)
    x = (rng.standard_normal((len(y), 8)) + np.outer(2 * y - 1, np.full(8, 0.45))).astype(np.float32)
    rows = zip(x.tolist(), y.tolist(), strict=True)
    return "".join(f"{i}\t{{{','.join(map(repr, row))}}}\t{label}\n" for i, (row, label) in enumerate(rows)).encode()


@pytest.fixture
def clustered(session: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Give a session with a table ``points`` of 20,000 rows with 8 features, clustered by label."""
    session.execute("CREATE TABLE points (id int, features_v real[], label real)")
    with session.cursor() as cursor, cursor.copy("COPY points FROM STDIN") as copy:
        copy.write(_points())
    return session
