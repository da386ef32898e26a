"""``python -m benchmarks.loaders``: run the contest, or a part of it, and print tables and bars."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.loaders.bars import claims
from benchmarks.loaders.contest import Contestant, contestants
from benchmarks.loaders.measure import sizes
from benchmarks.loaders.samples import KINDS
from benchmarks.loaders.turns import Terms, contend, table

QUICK = {"records": 20_000, "rows": 500_000}


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    chosen = choose(options.only)
    found: list[harness.Claim] = []
    records: list[dict[str, object]] = []
    for kind in [options.data] if options.data != "all" else list(KINDS):
        rows = options.rows or (QUICK[kind] if options.quick else None)
        data = KINDS[kind]() if rows is None else KINDS[kind](rows)
        with place(options.folder, keep=options.keep) as folder:
            for condition in [options.condition] if options.condition != "all" else ["cold", "warm"]:
                terms = Terms(
                    data,
                    condition,
                    folder,
                    rounds=1 if options.quick else options.rounds,
                    seconds=2.0 if options.quick else options.seconds,
                    patience=options.patience,
                    batch_size=options.batch_size,
                    seed=options.seed,
                    block_size=options.block_size,
                    disk=int(options.disk) if options.disk else None,
                    shares={"corgipile": options.corgipile_memory, "global": options.global_memory},
                )
                print(f"{sizes(data)}, {condition} …", file=sys.stderr, flush=True)
                outcomes = contend(terms, chosen)
                print(f"\n{sizes(data)}, {condition}, batches of {terms.batch_size}\n{table(outcomes)}\n", flush=True)
                found += claims(terms, outcomes)
                records += [
                    {"data": kind, "condition": condition, "name": name, "failure": o.failure, "runs": o.runs}
                    for name, o in outcomes.items()
                ]
    print(harness.report(found, quick=options.quick))
    if options.json:
        command = "python -m benchmarks.loaders"
        harness.write_results(options.json, found, quick=options.quick, command=command, outcomes=records)
    return 1 if any(claim.met is False for claim in found) else 0


def choose(only: str) -> dict[str, Contestant]:
    """Return the contestants whose names begin with, or contain, one of the words given."""
    everybody = contestants()
    words = [word.strip() for word in only.split(",") if word.strip()]
    unknown = [word for word in words if not any(word in name for name in everybody)]
    if unknown:
        raise SystemExit(f"no contestant {', '.join(unknown)}; there are: {'; '.join(everybody)}")
    return {name: c for name, c in everybody.items() if not words or any(word in name for word in words)}


@contextlib.contextmanager
def place(folder: Path | None, *, keep: bool) -> Iterator[Path]:
    """Give a folder for the data on the disk of this checkout, and remove it afterwards unless it is to be kept."""
    home = folder or Path(os.environ.get("PENSTOCK_BENCH_DIR", harness.ROOT / ".cache"))
    home.mkdir(parents=True, exist_ok=True)
    if keep:
        yield home
    else:
        with tempfile.TemporaryDirectory(prefix="loaders-", dir=home) as made:
            yield Path(made)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loaders", description=__doc__)
    add = parser.add_argument
    add("--data", choices=[*KINDS, "all"], default="all", help="10 KB records, rows of 28 float32, or both")
    add("--condition", choices=["cold", "warm", "all"], default="all")
    add("--only", default="", metavar="WORDS", help="contestants whose names contain one of these, comma-separated")
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=10.0, help="of each turn, after the first batch")
    add("--patience", type=float, default=90.0, help="seconds that a first batch may take")
    add("--rows", type=int, help="fewer rows than 200,000 records or 16,000,000 rows")
    add("--batch-size", type=int, default=256)
    add("--seed", type=int, default=0)
    add("--disk", type=float, metavar="BYTES", help="hold every disk to so many bytes a second, as a slower one")
    add("--corgipile-memory", type=float, default=0.1, metavar="SHARE", help="of the data")
    add("--global-memory", type=float, default=0.25, metavar="SHARE", help="of the data")
    add("--block-size", default="auto", help="of our file, such as 64KB (default: what convert takes)")
    add("--folder", type=Path, help="where the data are written (default: .cache of this checkout)")
    add("--keep", action="store_true", help="leave the data there for the next run")
    add("--quick", action="store_true", help="small data, one round: shows that it works")
    add("--json", type=Path, metavar="FILE", help="also write machine, claims and every turn as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
