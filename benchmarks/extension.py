"""Training and predicting inside PostgreSQL by the extension: what shuffling, reading and predicting cost.

On 5 million rows of 28 features clustered by label, and 2 million sparse ones (39 of a million), in a PostgreSQL 18 started
for it with the extension built into a copy of its programs. Warm means that the table lies in the page cache; for reads
from disk it is dropped from there before each turn. The paper's own server and Apache MADlib, built on the machine these
bars were set on, are compared with by the rows a second that were measured there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import extension_groups, harness
from benchmarks.database_data import SEED, SPACE, SPARSE, WIDTH, load_postgres
from benchmarks.harness import Claim

FORK = 1.2
"""Million rows/s of the CorgiPile authors' server, an epoch with its loss, two buffers; its gradients alone: 1.7."""
MADLIB = {"logistic": 0.29, "svm": 0.40}
"""Million rows/s of an iteration of MADlib's fastest solver for each."""
GOOD = 0.99
TABLES = {"higgs": ("features_v", f"real[{WIDTH}]"), "clicks": ("features_k, features_v", f"{SPARSE} of {SPACE:,}")}


def run(quick: bool) -> list[Claim]:
    from tests.postgres_extension.extension import ExtensionServer, missing

    why = missing()
    if why:
        return [Claim.not_measured("extension, higgs, warm: an epoch over one without shuffle", "≤ 1.4×", why)]
    rows, few, rounds = (20_000, 10_000, 1) if quick else (5_000_000, 2_000_000, 5)
    with closing(ExtensionServer()) as server:
        address = server.address()
        for table, kind, count in (("higgs", "arrays", rows), ("clicks", "sparse", few)):
            size = load_postgres(address, table, kind, count)
            print(f"{table}: {count:,} rows, {size / 1e6:,.0f} MB", file=sys.stderr, flush=True)
        with psycopg.connect(address, autocommit=True) as session:
            session.execute("CREATE EXTENSION penstock")
            session.execute("SET max_parallel_workers_per_gather = 0")  # a training reads by one process, too
            bench = Bench(session, server.folder / "data", rounds)
            return [
                *bench.epochs("higgs", rows),
                *bench.epochs("clicks", few),
                *bench.reading(rows),
                *bench.others(rows),
                bench.workers(rows),
                *extension_groups.claims(address, groups=50 if quick else 10_000, rounds=rounds),
            ]


PLAIN = {"learning_rate": 0.01, "standardize": False, "average": False, "l2": 0}
"""One pass of plain SGD, as the paper's server does it; with the defaults the first epoch would read the rows twice."""


class Bench:
    """Measurements over one session."""

    def __init__(self, session: psycopg.Connection[Any], data: Path, rounds: int) -> None:
        self.session, self.data, self.rounds = session, data, rounds

    def epoch(self, table: str, **options: Any) -> float:
        """Return the seconds of the last epoch of a training; nothing but the training reads the table."""
        asked = {**PLAIN, "epochs": 1, "classes": [0, 1], "buffer_size": "10%", "seed": SEED, **options}
        query = f"SELECT penstock.sgd({TABLES[table][0]}, label, '{json.dumps(asked)}') AS s FROM {table}"
        found = self.session.execute(f"SELECT (s).seconds FROM ({query}) AS q".encode()).fetchall()
        return float(found[-1][0])

    def evict(self, table: str) -> Callable[[], None]:
        """Return a function that drops a table from the page cache."""
        found = self.session.execute("SELECT pg_relation_filepath(%s::regclass)", (table,)).fetchone()
        assert found is not None
        first = self.data / str(found[0])

        def drop() -> None:
            self.session.execute("CHECKPOINT")
            for segment in first.parent.glob(f"{first.name}*"):
                harness.evict(segment)

        return drop

    def epochs(self, table: str, rows: int) -> list[Claim]:
        """Measure an epoch of per-row logistic SGD with the two-level shuffle against one without, warm and from disk."""
        contestants = {name: lambda name=name: self.epoch(table, shuffle=name) for name in ("corgipile", "none")}
        claims = []
        for how, bar, before in (("warm", 1.4, None), ("from disk", 1.15, self.evict(table))):
            results = harness.interleave(contestants, repeats=self.rounds, before=before)
            print(f"{table}, {how}, seconds of an epoch\n{results.table()}", file=sys.stderr)
            told = f"{rows:,} x {TABLES[table][1]}, {results.median('corgipile'):.2f} against {results.median('none'):.2f} s"
            title = f"extension, {table}, {how}: an epoch over one without shuffle"
            claims.append(Claim.at_most(title, results.ratio("corgipile", "none"), bar, note=told))
            if how == "warm" and table == "higgs":
                speed = rows / results.median("corgipile") / 1e6
                note = f"{speed:.2f} M rows/s with its loss, against {FORK} M by the paper's own server"
                claims.append(Claim.at_least("extension: over the paper's server", speed / FORK, 2, note=note))
                note = f"{speed:.2f} M rows/s against {MADLIB['logistic']} M"
                claims.append(
                    Claim.at_least(
                        "extension: over MADlib's logistic regression", speed / MADLIB["logistic"], 10, note=note
                    )
                )
        return claims

    def reading(self, rows: int) -> list[Claim]:
        """Measure blocks in random order against count(*), neither of which takes rows apart, and predictions."""
        score = "penstock.predict((SELECT coef FROM penstock.models WHERE name = 'bench'), 0, features_v)"
        options = json.dumps({"epochs": 1, "read_only": True, "buffer_size": "10%"})
        blocks = (
            f"SELECT (s).rows FROM (SELECT penstock.sgd('{{1}}'::real[], 1.0::real, '{options}') AS s FROM higgs) AS q"
        )
        self.session.execute(
            "SELECT penstock.train('higgs', 'logistic', 'bench', '{\"epochs\": 1, \"classes\": [0, 1]}')"
        )
        queries = {
            "count(*)": "SELECT count(*) FROM higgs",
            "blocks": blocks,
            "sum": "SELECT sum(features_v[1]) FROM higgs",
            "predict": f"SELECT sum({score}) FROM higgs",
            "predict by name": "SELECT sum(penstock.predict('bench', features_v)) FROM higgs",
        }

        def ask(query: str) -> list[Any]:
            return self.session.execute(query.encode()).fetchall()

        results = harness.interleave({n: lambda q=q: ask(q) for n, q in queries.items()}, repeats=self.rounds)
        print(f"higgs, warm, seconds\n{results.table()}", file=sys.stderr)
        speed = {name: rows / results.median(name) / 1e6 for name in queries}
        note = f"warm, {speed['blocks']:.1f} against {speed['count(*)']:.1f} M rows/s"
        claims = [
            Claim.at_least(
                "extension: BlockShuffle alone over count(*)", results.ratio("count(*)", "blocks"), 0.85, note=note
            )
        ]
        for name in ("predict", "predict by name"):
            note = f"warm, {speed[name]:.1f} against {speed['sum']:.1f} M rows/s"
            title = f"extension: {name} over sum(features_v[1])"
            claims.append(Claim.at_most(title, results.ratio(name, "sum"), 2, note=note))
        return claims

    def others(self, rows: int) -> list[Claim]:
        """Measure a model end to end against a shuffled copy first, and an epoch of the SVM."""
        options = {**PLAIN, "epochs": 1, "replace": True, "seed": SEED}
        accuracy: dict[str, list[float]] = {"ours": [], "a shuffled copy": []}

        def ours() -> None:
            self._train("higgs", {**options, "buffer_size": "10%"})

        def copy() -> None:
            self.session.execute("DROP TABLE IF EXISTS mixed")
            self.session.execute("CREATE TABLE mixed AS SELECT * FROM higgs ORDER BY random()")
            self._train("mixed", {**options, "shuffle": "none"})

        def measured(name: str, work: Callable[[], None]) -> Callable[[], float]:
            def turn() -> float:
                began = time.perf_counter()
                work()
                seconds = time.perf_counter() - began
                accuracy[name].append(self._accuracy())
                return seconds

            return turn

        works = {"ours": ours, "a shuffled copy": copy}
        found = harness.interleave({n: measured(n, w) for n, w in works.items()}, repeats=min(self.rounds, 3))
        print(f"higgs, warm, seconds to a model\n{found.table()}", file=sys.stderr)
        mine, best = min(accuracy["ours"]), max(accuracy["a shuffled copy"])
        note = f"{found.median('ours'):.1f} against {found.median('a shuffled copy'):.1f} s, accuracy {mine:.4f} and {best:.4f}"
        ratio = found.ratio("a shuffled copy", "ours") if mine >= GOOD * best else 0.0
        claims = [Claim.at_least("extension: a model, faster than ORDER BY random() first", ratio, 3, note=note)]
        speed = rows / min(self.epoch("higgs", model="svm") for _ in range(self.rounds)) / 1e6
        note = f"{speed:.2f} M rows/s against {MADLIB['svm']} M"
        return [*claims, Claim.at_least("extension: over MADlib's SVM", speed / MADLIB["svm"], 10, note=note)]

    def workers(self, rows: int) -> Claim:
        """Measure least squares in two parallel workers, for which the backend only waits, against the backend alone."""
        query = "SELECT penstock.least_squares(features_v, label, '{}') FROM higgs"
        settings = (
            "parallel_leader_participation = off",
            "min_parallel_table_scan_size = 0",
            "parallel_setup_cost = 0",
        )

        def solve(workers: int) -> None:
            with self.session.transaction():
                for setting in (*settings, f"max_parallel_workers_per_gather = {workers}"):
                    self.session.execute(f"SET LOCAL {setting}".encode())
                plan = str(self.session.execute(f"EXPLAIN {query}".encode()).fetchall())
                assert workers == 0 or f"Workers Planned: {workers}" in plan
                self.session.execute(query.encode())

        found = harness.interleave({f"{n}": lambda n=n: solve(n) for n in (0, 2)}, repeats=self.rounds)
        print(f"higgs, warm, seconds of least squares by workers\n{found.table()}", file=sys.stderr)
        note = f"warm, {found.median('2'):.2f} against {found.median('0'):.2f} s, {rows:,} x {TABLES['higgs'][1]}"
        return Claim.at_least(
            "extension: least squares, two workers over one process", found.ratio("0", "2"), 1.7, note=note
        )

    def _train(self, table: str, options: dict[str, Any]) -> None:
        self.session.execute("SELECT penstock.train(%s, 'logistic', 'bench', %s)", (table, json.dumps(options)))

    def _accuracy(self) -> float:
        query = "SELECT avg((penstock.predict_class('bench', features_v)::real = label)::int) FROM higgs"
        found = self.session.execute(query).fetchone()
        return float(found[0]) if found else 0.0


if __name__ == "__main__":
    sys.exit(harness.main(run))
