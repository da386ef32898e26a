"""A model for each of 10,000 groups in one statement of the extension, against `TRAIN BY … GROUP BY`, which fetches the rows.

Both hold out a tenth of each group, try the same penalties, learn the chosen ones again from all rows and train a pooled model. The
server may use parallel workers for reading and sorting.
"""

from __future__ import annotations

import json
import sys

import psycopg

from benchmarks import harness
from benchmarks.database_groups import FEATURES, group_table
from benchmarks.harness import Claim

ROWS = 200
PENALTIES = (1.0, 0.1, 0.01)


def claims(address: str, *, groups: int, rounds: int) -> list[Claim]:
    """Measure the seconds of both, with the table in memory."""
    import penstock

    with psycopg.connect(address, autocommit=True) as session:
        session.execute(group_table("flights", groups * ROWS, groups, "generate_series").encode())
        session.execute("VACUUM ANALYZE flights")

        def in_server() -> None:
            options = json.dumps({"label": "late", "l2": PENALTIES, "replace": True})
            query = "SELECT count(*) FROM penstock.train('flights', 'logistic', group_by => '{carrier}', name => 'server', options => %s)"
            session.execute(query, (options,))

        def in_client() -> None:
            with penstock.connect(address) as shell:
                options = f"label = 'late', l2 = {PENALTIES}, replace = true, extension = off"
                shell.sql(f"SELECT * FROM flights TRAIN BY logistic AS client WITH ({options}) GROUP BY carrier")

        found = harness.interleave({"server": in_server, "client": in_client}, repeats=rounds)
        scores = dict(
            session.execute(
                "SELECT name, (header->'metrics'->>'held_out_accuracy')::float8 FROM penstock.models WHERE name IN ('server', 'client')"
            )
        )
    print(f"{groups:,} groups x {ROWS} rows, warm, seconds\n{found.table()}", file=sys.stderr)
    what = f"{groups:,} groups x {ROWS} rows x {len(PENALTIES)} penalties, {FEATURES} features"
    note = f"{what}, warm; held-out accuracy {scores['server']:.4f} and {scores['client']:.4f}"
    equal = scores["server"] >= scores["client"] - 0.01
    return [
        Claim.at_most(f"extension: {groups:,} groups x {ROWS} rows", found.median("server"), 15, unit=" s", note=note),
        Claim.at_least(
            "extension: groups in the server, faster than TRAIN BY … GROUP BY",
            found.ratio("client", "server") if equal else 0.0,
            1,
            note=f"{found.median('server'):.1f} against {found.median('client'):.1f} s",
        ),
    ]
