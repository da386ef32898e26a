"""Training inside databases: how fast rows come in random block order, and how soon a model is good.

On 5 million rows of 28 features clustered by label (and 2 million sparse ones, 39 of a million), in a PostgreSQL started for
it and in DuckDB; everything is warm: tables lie in the page cache. Driver paths read the same page ranges in the same
random order over as many connections as ours. The rival end to end is what in-database learners do: a copy by ``ORDER BY
random()``, then the same SGD over the copy in stored order.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import database_groups, harness
from benchmarks.database_data import SEED, WIDTH, load_duckdb, load_postgres, server
from benchmarks.harness import Claim

CONNECTIONS = 2
PAGES = 128
GOOD = 0.99


def run(quick: bool) -> list[Claim]:
    rows, few, rounds = (20_000, 10_000, 1) if quick else (5_000_000, 2_000_000, 3)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        folder = Path(name)
        os.chmod(folder, 0o755)  # the server runs as another user where this one is root
        claims = _duckdb(folder, rows, rounds)
        claims += database_groups.claims(folder, quick=quick, rounds=rounds)
        with server(folder) as address:
            for table, kind, count in (
                ("higgs", "arrays", rows),
                ("packed", "packed", rows),
                ("clicks", "sparse", few),
            ):
                size = load_postgres(address, table, kind, count)
                load_postgres(address, f"{table}_test", kind, count // 50, seed=SEED + 1)
                print(f"{table}: {count:,} rows, {size / 1e6:,.0f} MB", file=sys.stderr, flush=True)
            claims += _reading(address, rows, few, rounds)
            claims += _explaining("PostgreSQL", address, ("higgs", "packed", "clicks"), rounds)
            for table, kind in (("higgs", "arrays"), ("packed", "packed features")):
                claims += _to_accuracy(f"PostgreSQL, {kind}", address, table, rounds)
    return claims


def _duckdb(folder: Path, rows: int, rounds: int) -> list[Claim]:
    from penstock.blocks.duckdb import DuckDBSource

    path = folder / "shop.duckdb"
    load_duckdb(path, {"higgs": (rows, SEED), "higgs_test": (rows // 50, SEED + 1)})
    with DuckDBSource(path, "higgs") as source:
        blocks = len(source.block_rows)
        order = np.random.default_rng(SEED).permutation(blocks).tolist()
        results = harness.interleave(
            {
                "random": lambda: _read(source, order, CONNECTIONS),
                "in order": lambda: _read(source, list(range(blocks)), CONNECTIONS),
            },
            repeats=rounds,
        )
    print(f"DuckDB, rows/s\n{results.table()}", file=sys.stderr)
    note = f"{rows:,} x FLOAT[{WIDTH}], {blocks} blocks, {CONNECTIONS} threads, warm"
    claims = [
        Claim.at_least(
            "DuckDB: read in random block order", results.median("random") / 1e6, 5, unit=" M rows/s", note=note
        ),
        Claim.at_least("DuckDB: random over sequential order", results.ratio("random", "in order"), 0.9, note=note),
    ]
    epochs = harness.interleave(
        {shuffle: lambda shuffle=shuffle: _epoch(str(path), shuffle) for shuffle in ("corgipile", "none")},
        repeats=rounds,
    )
    print(f"DuckDB, an epoch, seconds\n{epochs.table()}", file=sys.stderr)
    told = f"{epochs.median('corgipile'):.2f} against {epochs.median('none'):.2f} s, per-row logistic, a buffer of 10 %, warm"
    claims.append(
        Claim.at_most("DuckDB: an epoch over one without shuffle", epochs.ratio("corgipile", "none"), 1.1, note=told)
    )
    claims += _explaining("DuckDB", str(path), ("higgs",), rounds)
    return claims + _to_accuracy("DuckDB", str(path), "higgs", rounds)


def _explaining(what: str, db: str, tables: Sequence[str], rounds: int) -> list[Claim]:
    """Measure EXPLAIN of trainings on tables and on a query of each; the first in a session, which loads libraries, is told apart."""
    from penstock.sql import connect

    queries = {name: f"SELECT * FROM {name}" for name in tables}
    queries |= {f"{name}, a query": f"SELECT * FROM {name} WHERE label >= 0 ORDER BY label" for name in tables}
    claims = []
    with connect(db) as session:

        def explain(query: str) -> float:
            began = time.perf_counter()
            session.sql(f"EXPLAIN {query} TRAIN BY logistic")
            return time.perf_counter() - began

        firsts = {name: explain(query) for name, query in queries.items()}
        ways = {name: partial(explain, query) for name, query in queries.items()}
        results = harness.interleave(ways, repeats=max(3, rounds))
    print(f"{what}, EXPLAIN, seconds\n{results.table()}", file=sys.stderr)
    for name in queries:
        title, note = (
            f"{what}: EXPLAIN of a training, {name}",
            f"{firsts[name]:.2f} s the first time in a session, warm",
        )
        claims.append(Claim.at_most(title, results.median(name), 0.3, unit=" s", note=note))
    return claims


def _reading(address: str, rows: int, few: int, rounds: int) -> list[Claim]:
    """Measure reads of each layout, ours in random order and in sequence, and the drivers' paths."""
    claims: list[Claim] = []
    for table, kind, bar in (("packed", "packed", 1.0), ("higgs", "arrays", 0.25), ("clicks", "sparse", None)):
        results = _read_table(address, table, kind, rounds)
        print(f"PostgreSQL, {kind}, rows/s\n{results.table()}", file=sys.stderr)
        note = f"{few if kind == 'sparse' else rows:,} rows, {CONNECTIONS} connections, warm"
        mine = results.median("ours, random") / 1e6
        if bar is not None:
            claims.append(Claim.at_least(f"PostgreSQL, {kind}: rows read", mine, bar, unit=" M rows/s", note=note))
        ratio = results.ratio("ours, random", "ours, in order")
        claims.append(Claim.at_least(f"PostgreSQL, {kind}: random over sequential order", ratio, 0.9, note=note))
        paths = [name for name in results.figures if not name.startswith("ours")]
        best = max(paths, key=results.median)
        told = f"{note}; {mine:.2f} M rows/s against {results.median(best) / 1e6:.2f} by {best}"
        title = f"PostgreSQL, {kind}: over the fastest driver path"
        ahead = results.ratio("ours, random", best)
        claims.append(
            Claim.at_least(title, ahead, 0.9, note=told)
            if kind == "arrays"
            else Claim(title, ahead, "printed", True, told)
        )
    return claims


def _read_table(address: str, table: str, kind: str, rounds: int) -> harness.Results:
    import psycopg

    from penstock.blocks.postgres import PostgresSource

    features = {"packed": ["features"], "arrays": ["features_v"], "sparse": ["features_k", "features_v"]}[kind]
    with psycopg.connect(address) as connection:
        found = connection.execute("SELECT pg_relation_size(%s::regclass) / 8192", (table,)).fetchone()
    pages = np.random.default_rng(SEED).permutation(np.arange(0, int(found[0]) if found else 0, PAGES)).tolist()
    with PostgresSource(address, table, columns=[*features, "label"], connections=CONNECTIONS) as source:
        blocks = list(range(len(source.block_rows)))
        order = np.random.default_rng(SEED).permutation(blocks).tolist()
        contestants: dict[str, Callable[[], float]] = {
            "ours, random": lambda: _read(source, order, CONNECTIONS),
            "ours, in order": lambda: _read(source, blocks, CONNECTIONS),
            "psycopg COPY": lambda: _driver(address, table, [*features, "label"], pages, _copy),
            "psycopg rows": lambda: _driver(address, table, [*features, "label"], pages, _fetch),
        }
        if importlib.util.find_spec("adbc_driver_postgresql") is not None:  # of the extra for benchmarks
            contestants["ADBC"] = lambda: _driver(address, table, [*features, "label"], pages, _adbc)
        return harness.interleave(contestants, repeats=rounds)


def _read(source: Any, blocks: Sequence[int], threads: int) -> float:
    """Read blocks as a loader does, and return rows a second."""
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        rows = sum(pool.map(lambda block: source.read(block).num_rows, blocks))
    return rows / (time.perf_counter() - began)


def _driver(address: str, table: str, columns: list[str], pages: list[int], path: Callable[..., int]) -> float:
    """Read page ranges by a driver's own path over several connections, and return rows a second."""
    local, opened, lock = threading.local(), [], threading.Lock()

    def one(page: int) -> int:
        if not hasattr(local, "connection"):
            local.connection = path.connect(address)  # type: ignore[attr-defined]  # set below
            with lock:
                opened.append(local.connection)
        where = f"ctid >= '({page},0)'::tid AND ctid < '({page + PAGES},0)'::tid"
        return path(local.connection, f"SELECT {', '.join(columns)} FROM {table} WHERE {where}")

    began = time.perf_counter()
    try:
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            rows = sum(pool.map(one, pages))
        return rows / (time.perf_counter() - began)
    finally:
        for connection in opened:
            connection.close()


def _adbc(connection: Any, query: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return int(cursor.fetch_arrow_table().num_rows)


def _copy(connection: Any, query: str) -> int:
    """Fetch raw binary rows without decoding them: what a COPY costs at least."""
    with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy:
        rows = 0
        for piece in copy:
            rows += len(piece) > 2
        return rows


def _fetch(connection: Any, query: str) -> int:
    with connection.cursor(binary=True) as cursor:
        return len(cursor.execute(query).fetchall())


def _connect_adbc(address: str) -> Any:
    from adbc_driver_postgresql import dbapi

    return dbapi.connect(address)


def _connect_psycopg(address: str) -> Any:
    import psycopg

    return psycopg.connect(address, autocommit=True)


_adbc.connect, _copy.connect, _fetch.connect = _connect_adbc, _connect_psycopg, _connect_psycopg  # type: ignore[attr-defined]  # beside what uses them


def _epoch(db: str, shuffle: str) -> float:
    """Return the seconds of an epoch, the better of the second and third, on the engine's own blocks."""
    found = _train(db, "higgs", shuffle, epochs=3)
    return min(found["epochs"][1:])


def _train(db: str, table: str, shuffle: str, *, epochs: int, prepare: str = "", test: str = "") -> dict[str, Any]:
    """Train in a fresh process; see `train` for what it tells."""
    arguments = {"db": db, "table": table, "shuffle": shuffle, "epochs": epochs, "prepare": prepare, "test": test}
    found: dict[str, Any] = harness.run_child(train, arguments=arguments, timeout=1800)
    return found


def train(db: str, table: str, shuffle: str, epochs: int, prepare: str, test: str) -> dict[str, Any]:
    """Run ``TRAIN BY`` after what prepares for it; tell the seconds of both, of each epoch, and the accuracy on a test table."""
    from penstock.sql import connect

    # The kernels are compiled before the clock runs: that is once for each machine, not for each training.
    with connect() as small:
        zeros = f"[i FOR x IN range({WIDTH})]::FLOAT[{WIDTH}]"
        small.sql(f"CREATE TABLE t AS SELECT i % 2 AS label, {zeros} AS features FROM range(9999) r(i)")
        small.sql("SELECT * FROM t TRAIN BY logistic WITH (epochs = 1, buffer_size = 10%)")
    with connect(db) as session:
        began = time.perf_counter()
        session.sql(prepare)
        history = session.sql(
            f"SELECT * FROM {table} TRAIN BY logistic AS bench WITH (learning_rate = 0.01, max_epoch_num = {epochs},"
            f" shuffle = '{shuffle}', buffer_size = 10%, seed = {SEED}, replace = true)"
        )
        seconds = time.perf_counter() - began
        measured = session.sql(f"EVALUATE MODEL bench ON SELECT * FROM {test}").column("accuracy")[0] if test else None
    return {"seconds": seconds, "epochs": history.column("seconds"), "accuracy": measured}


def _to_accuracy(what: str, db: str, table: str, rounds: int) -> list[Claim]:
    """Measure the seconds to 99 % of the best accuracy on other rows: ours, and a shuffled copy first.

    How many epochs that takes either is found out first; training for so many is then timed, measuring not counted.
    """
    copied, test = f"{table}_shuffled", f"{table}_test"
    prepare = f"DROP TABLE IF EXISTS {copied}; CREATE TABLE {copied} AS SELECT * FROM {table} ORDER BY random()"
    ways: dict[str, dict[str, Any]] = {
        "ours": {"table": table, "shuffle": "corgipile"},
        "a shuffled copy": {"table": copied, "shuffle": "none", "prepare": prepare},
    }
    reached = {
        name: [_train(db, **way, epochs=k, test=test)["accuracy"] for k in (1, 2, 3)] for name, way in ways.items()
    }
    best = max(max(each) for each in reached.values())
    enough = {name: next((k for k, each in enumerate(reached[name], 1) if each >= GOOD * best), 3) for name in ways}
    results = harness.interleave(
        {name: lambda name=name: _train(db, **ways[name], epochs=enough[name])["seconds"] for name in ways},
        repeats=rounds,
    )
    print(f"{what}, seconds to {GOOD:.0%} of {best:.4f}; {reached}\n{results.table()}", file=sys.stderr)
    seconds = f"{results.median('ours'):.1f} against {results.median('a shuffled copy'):.1f} s"
    note = f"{seconds} to {GOOD * best:.4f}, {enough['ours']} and {enough['a shuffled copy']} epochs, warm"
    title = f"{what}: to 99 % of the best accuracy, faster than ORDER BY random() first"
    if max(reached["ours"]) < GOOD * best:
        return [Claim(title, None, "≥ 3×", False, f"not reached in 3 epochs: {max(reached['ours']):.4f} of {best:.4f}")]
    return [Claim.at_least(title, results.ratio("a shuffled copy", "ours"), 3, note=note)]


if __name__ == "__main__":
    sys.exit(harness.main(run))
