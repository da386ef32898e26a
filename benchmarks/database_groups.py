"""A model per group in SQL: against `GroupBy` on the same file, and predictions of 10,000 groups against those of one model.

Rows lie in a DuckDB file and, for predictions, in PostgreSQL too; everything is warm. Predictions are stored as a table, as a user would
who scores one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.database_data import SEED, server
from benchmarks.harness import Claim

FEATURES = 12
PENALTIES = (1.0, 0.1, 0.01, 0.001)
_OPTIONS = f"label = 'late', l2 = {PENALTIES}"


def claims(folder: Path, *, quick: bool, rounds: int) -> list[Claim]:
    rows, groups = (6_000, 10) if quick else (300_000, 100)
    few, many, scored = (2_000, 100, 10_000) if quick else (200_000, 10_000, 2_000_000)
    path = folder / "groups.duckdb"
    import penstock

    with penstock.connect(path) as session:
        session.sql(group_table("flights", rows, groups, "range"))
    results = harness.interleave(
        {"SQL": lambda: _by_sql(path), "GroupBy": lambda: _by_group_by(path)}, repeats=rounds + 1
    )
    print(f"a model per group, seconds\n{results.table()}", file=sys.stderr)
    note = f"{rows:,} rows x {groups} groups x {len(PENALTIES)} penalties, {FEATURES} features, DuckDB, warm"
    found = [Claim.at_most("DuckDB: TRAIN BY … GROUP BY over GroupBy", results.ratio("SQL", "GroupBy"), 1.2, note=note)]
    sizes = {"few": few, "many": many, "scored": scored}
    found.append(_predictions("DuckDB", str(path), "range", rounds, **sizes))
    with tempfile.TemporaryDirectory(dir=folder) as place, server(Path(place)) as address:
        Path(place).chmod(0o755)
        found.append(_predictions("PostgreSQL", address, "generate_series", rounds, **sizes))
    return found


def group_table(name: str, rows: int, groups: int, series: str) -> str:
    """Write a table of groups whose labels depend on their features in their own way."""
    last = rows if series == "range" else rows - 1
    columns = ", ".join(f"(i * {7919 + 2 * at} % 1000) / 500.0::float8 - 1 AS x{at}" for at in range(FEATURES))
    late = f"x0 * (carrier % 7 - 3) + x1 * (carrier % 5 - 2) + x2 * (i * {SEED} % 11) / 11.0::float8 > 0"
    inner = f"SELECT i, i * 31 % {groups} AS carrier, {columns} FROM (SELECT n::bigint AS i FROM {series}(0, {last}) AS r(n)) AS s"
    features = ", ".join(f"x{at}" for at in range(FEATURES))
    return f"CREATE TABLE {name} AS SELECT 'c' || carrier AS carrier, {features}, {late} AS late FROM ({inner}) AS t"


def _by_sql(path: Path) -> None:
    import penstock

    with penstock.connect(path) as session:
        session.sql(f"SELECT * FROM flights TRAIN BY logistic AS m WITH ({_OPTIONS}, replace = true) GROUP BY carrier")


def _by_group_by(path: Path) -> None:
    import penstock
    from penstock.groups import GroupBy

    GroupBy(f"{path}::flights", by="carrier").fit(
        penstock.LogisticRegression(), y="late", search={"l2": list(PENALTIES)}
    )


def _predictions(what: str, db: str, series: str, rounds: int, *, few: int, many: int, scored: int) -> Claim:
    """Compare storing the predictions of many groups' models with storing those of one model."""
    import penstock

    with penstock.connect(db) as session:
        session.sql(group_table("few", few, many, series))
        session.sql(group_table("rows", scored, many, series))
        session.sql("SELECT * FROM few TRAIN BY logistic AS many WITH (label = 'late') GROUP BY carrier")
        session.sql("SELECT * FROM few TRAIN BY logistic AS one WITH (label = 'late', exclude = carrier)")

        def store(model: str) -> Callable[[], float]:
            def run() -> float:
                session.sql("DROP TABLE IF EXISTS kept")
                began = time.perf_counter()
                session.sql(f"CREATE TABLE kept AS SELECT * FROM rows PREDICT BY {model}")
                return scored / (time.perf_counter() - began)

            return run

        results = harness.interleave({model: store(model) for model in ("many", "one")}, repeats=rounds + 1)
        (agreed,) = session.sql("SELECT count(prediction) FROM kept").rows[0]
    assert agreed == scored
    print(f"{what}, rows/s predicted\n{results.table()}", file=sys.stderr)
    rates = np.array([results.median("many"), results.median("one")]) / 1e6
    note = f"{scored:,} rows, {many:,} groups, {FEATURES} features; {rates[0]:.2f} against {rates[1]:.2f} M rows/s"
    ratio = results.ratio("many", "one")
    return Claim.at_least(f"{what}: PREDICT BY of {many:,} groups over one model", ratio, 0.5, note=note)


def run(quick: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        return claims(folder, quick=quick, rounds=1 if quick else 3)


if __name__ == "__main__":
    sys.exit(harness.main(run))
