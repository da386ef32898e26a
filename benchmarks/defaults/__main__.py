"""``python -m benchmarks.defaults``: print one table for each door asked for."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.defaults.doors import DOORS
from benchmarks.defaults.scores import Comparison, markdown_table, text_table
from benchmarks.defaults.suite import SEED_TABLES, SHARES, SUITES, named_door, run_door, run_seeds, run_sgd
from benchmarks.defaults.tables import FOLDER, LARGEST, WITHOUT_NUMBERS
from benchmarks.harness import machine

CACHE = Path(tempfile.gettempdir()) / "penstock-defaults-baselines"


def parser() -> argparse.ArgumentParser:
    """Return the options."""
    found = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__)
    found.add_argument("--door", action="append", choices=[*DOORS, "all"], help="may be repeated [default: file]")
    found.add_argument(
        "--suite",
        choices=list(SUITES),
        default="numbers",
        help="whole: all columns, with text and nulls [default: %(default)s]",
    )
    found.add_argument("--solver", choices=["auto", "sgd"], default="auto", help="sgd: forced, through the file door")
    found.add_argument("--optimizer", default="sgd", metavar="NAME", help="of --solver sgd [default: %(default)s]")
    shares = ", ".join(SHARES).replace("%", "%%")  # which argparse would take for a placeholder
    found.add_argument("--memory", action="append", metavar="SHARE", help=f"of --solver sgd [default: {shares}]")
    found.add_argument("--seeds", type=int, metavar="N", help="print the spread over N seeds of SGD instead")
    found.add_argument(
        "--layout",
        choices=["parquet", "csv", "arrow"],
        help="of files [default: parquet or as published; arrow for less memory]",
    )
    found.add_argument("--tables", metavar="A,B", help="which [default: all of the suite]")
    found.add_argument(
        "--rows", type=int, default=LARGEST, metavar="N", help="cut larger tables [default: %(default)s]"
    )
    found.add_argument(
        "--cache", type=Path, default=CACHE, metavar="DIR", help="keeps scikit-learn's scores [default: %(default)s]"
    )
    found.add_argument("--markdown", action="store_true", help="print Markdown")
    found.add_argument("--out", type=Path, metavar="FILE", help="also write JSON")
    found.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the command line."""
    options = parser().parse_args(argv)
    if not FOLDER.is_dir():
        print(f"{FOLDER} is not there; set PENSTOCK_DATA to the folder of the data sets", file=sys.stderr)
        return 2
    readers = SUITES[options.suite]
    names = options.tables.split(",") if options.tables else list(readers)
    unknown = [name for name in names if name not in readers]
    if unknown:
        parser().error(f"no table {', '.join(unknown)}; there are: {', '.join(readers)}")
    if options.suite == "whole" and (options.seeds or options.solver != "auto"):
        parser().error("--suite whole is measured with defaults only, without --solver and --seeds")
    if options.seeds:
        spreads = run_seeds(names if options.tables else SEED_TABLES, options.seeds, most=options.rows)
        print("\n".join(spread.line() for spread in spreads))
        body: dict[str, Any] = {"seeds": [{**asdict(one), "verdict": one.verdict} for one in spreads]}
        missed = sum(one.verdict == "MISSED" for one in spreads)
        print(f"{len(spreads) - missed} of {len(spreads)} met")
    else:
        runs = _runs(options, names)
        body = {title: [one.to_json() for one in found] for title, found in runs.items()}
        missed = sum(one.verdict == "MISSED" for found in runs.values() for one in found)
    if options.out:
        options.out.write_text(json.dumps({"machine": machine(), "runs": body}, indent=1, ensure_ascii=False) + "\n")
    return 1 if options.check and missed else 0


def _runs(options: argparse.Namespace, names: Sequence[str]) -> dict[str, list[Comparison]]:
    found: dict[str, list[Comparison]] = {}
    common = {"most": options.rows, "cache": options.cache}
    if options.solver == "sgd":
        for share in options.memory or SHARES:
            found[f"file, solver sgd, memory {share}"] = run_sgd(
                names, share, layout=options.layout, optimizer=options.optimizer, **common
            )
            _print(found, options)
    else:
        doors = options.door or ["file"]
        for name in DOORS if "all" in doors else doors:
            found[name] = run_door(named_door(name, layout=options.layout), names, suite=options.suite, **common)
            _print(found, options)
    if not options.tables and options.suite == "numbers":
        print(f"Left out, because they hold no numbers: {', '.join(WITHOUT_NUMBERS)}")
    return found


def _print(found: dict[str, list[Comparison]], options: argparse.Namespace) -> None:
    """Print the table that was measured last."""
    title, comparisons = list(found.items())[-1]
    print(markdown_table(comparisons) if options.markdown else text_table(comparisons, f"door: {title}"), flush=True)


if __name__ == "__main__":
    sys.exit(main())
