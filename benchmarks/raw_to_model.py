"""From a raw Parquet file to a model: ``penstock train`` against a preprocessing pass and SGDClassifier by chunks.

``python -m benchmarks.raw_to_model --gigabytes 2`` writes a table of numbers, categories, words and times with nulls
(`benchmarks.raw_to_model_data`), and takes the time and the peak memory of each way, every step in a process of its own with
its start. The rivals are in `benchmarks.raw_to_model_rivals`; they make as many passes, and stop sooner once their log loss on
held-out rows is no worse. Measuring that loss counts for nobody.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks import harness
from benchmarks.defaults.scores import log_loss
from benchmarks.faults.doors import PENSTOCK
from benchmarks.harness import Claim
from benchmarks.raw_to_model_data import LABEL, write_held_out, write_raw
from benchmarks.raw_to_model_rivals import ENCODERS, encode, learn

FASTER, LESS_MEMORY, PASSES = 5.0, 0.25, 3
GIGABYTES, FEW_GIGABYTES = 2.0, 0.02
_TIMED = """
import json, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(json.dumps({"seconds": time.perf_counter() - began, "status": done.returncode, "output": done.stdout}))
"""
MODULES = {"DuckDB": "duckdb", "Polars": "polars"}


@dataclass(frozen=True, slots=True)
class Way:
    """What one way to a model took, and what the model reaches on held-out rows."""

    seconds: float
    peak_bytes: int
    log_loss: float
    note: str = ""


def run_command(argv: Sequence[str]) -> tuple[float, int]:
    """Run a command in a process of its own; return its seconds and the bytes of its largest resident set."""
    found = harness.run_child([sys.executable, "-c", _TIMED, *argv])
    if found["status"]:
        raise RuntimeError(f"{' '.join(argv[2:5])}: exit status {found['status']}\n{found['output'][-1000:]}")
    return found["seconds"], found["child"]["peak_bytes"]


def penstock_way(train: Path, test: Path, folder: Path, passes: int) -> Way:
    """``penstock train raw.parquet --label clicked --epochs 3``; held-out rows are predicted afterwards."""
    model, scores = str(folder / "model.penstock"), str(folder / "scores.parquet")
    Path(model).unlink(missing_ok=True)
    command = [*PENSTOCK, "train", str(train), "--label", LABEL, "--epochs", str(passes), "--out", model]
    seconds, peak = run_command(command)
    run_command([*PENSTOCK, "predict", model, str(test), "--out", scores])
    found = pq.read_table(scores)
    names = [name for name in found.column_names if name.startswith("probability_")]
    probability = np.column_stack([found[name].to_numpy() for name in names])
    y = pq.read_table(test, columns=[LABEL])[LABEL].to_numpy()
    return Way(seconds, peak, log_loss(y, probability, [name.removeprefix("probability_") for name in names]))


def rival_way(tool: str, train: Path, test: Path, folder: Path, passes: int, target: float) -> Way:
    """Encode with a tool, then learn by chunks: a process for each."""
    arguments: dict[str, Any] = {"tool": tool, "train": str(train), "test": str(test), "folder": str(folder)}
    first = harness.run_child(encode, arguments=arguments)
    files = {name: first[name] for name in ("train", "test")}
    second = harness.run_child(learn, arguments={**files, "passes": passes, "target": target})
    for path in files.values():
        Path(path).unlink()
    both = first["child"], second["child"]
    seconds = sum(one["seconds"] for one in both) - second["measuring"]
    done = len(second["losses"])
    note = f"encoding {both[0]['seconds']:.1f} s, {both[0]['peak_bytes'] / 1e6:.0f} MB; {done} passes"
    return Way(seconds, max(one["peak_bytes"] for one in both), second["losses"][-1], note)


def claims_of(ours: Sequence[Way], tool: str, theirs: Sequence[Way], about: str) -> list[Claim]:
    """Return the claims against one rival, by medians over rounds."""

    def median(ways: Sequence[Way], of: Callable[[Way], float]) -> float:
        return statistics.median(map(of, ways))

    def pair(of: Callable[[Way], float]) -> tuple[float, float]:
        return median(ours, of), median(theirs, of)

    name = f"raw Parquet to model, against {tool} and SGDClassifier"
    seconds, memory, loss = pair(lambda w: w.seconds), pair(lambda w: w.peak_bytes), pair(lambda w: w.log_loss)
    note = f"{seconds[0]:.1f} s against {seconds[1]:.1f} s ({theirs[0].note}); {about}"
    return [
        Claim.at_least(f"{name}: times faster", seconds[1] / seconds[0], FASTER, note=note),
        Claim.at_most(
            f"{name}: peak memory",
            memory[0] / memory[1],
            LESS_MEMORY,
            note=f"{memory[0] / 1e6:.0f} MB against {memory[1] / 1e6:.0f} MB",
        ),
        Claim.at_most(
            f"{name}: held-out log loss", loss[0] / loss[1], 1.01, note=f"{loss[0]:.4f} against {loss[1]:.4f}"
        ),
    ]


def compare(gigabytes: float, *, passes: int = PASSES, rounds: int = 3) -> list[Claim]:
    """Take all ways in turn from one file."""
    present = {tool: importlib.util.find_spec(MODULES[tool]) is not None for tool in ENCODERS}
    ours: list[Way] = []
    theirs: dict[str, list[Way]] = {tool: [] for tool, there in present.items() if there}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as place:
        folder = Path(place)
        train, test = folder / "raw.parquet", folder / "held-out.parquet"
        rows = write_raw(train, nbytes=int(gigabytes * 1e9))
        write_held_out(test, rows=min(rows // 5, 200_000))
        about = f"{rows:,} rows, {train.stat().st_size / 1e9:.2f} GB, {passes} epochs, {rounds} rounds, warm"
        print(f"  {about}", file=sys.stderr, flush=True)
        for _ in range(rounds):
            ours.append(penstock_way(train, test, folder, passes))
            print(f"  penstock: {ours[-1]}", file=sys.stderr, flush=True)
            for tool, ways in theirs.items():
                ways.append(rival_way(tool, train, test, folder, passes, ours[-1].log_loss))
                print(f"  {tool}: {ways[-1]}", file=sys.stderr, flush=True)
    claims = []
    for tool in ENCODERS:
        if present[tool]:
            claims += claims_of(ours, tool, theirs[tool], about)
        else:
            name = f"raw Parquet to model, against {tool} and SGDClassifier"
            claims.append(Claim.not_measured(name, f"≥ {FASTER:g}×", f"{MODULES[tool]} is not installed"))
    return claims


def run(quick: bool) -> list[Claim]:
    return compare(FEW_GIGABYTES, rounds=1) if quick else compare(GIGABYTES)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the command line; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.raw_to_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gigabytes", type=float, default=GIGABYTES, help="of the raw file [default: %(default)s]")
    parser.add_argument("--passes", type=int, default=PASSES, help="over the rows [default: %(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[default: %(default)s]")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write machine, versions and claims as JSON")
    options = parser.parse_args(argv)
    claims = compare(options.gigabytes, passes=options.passes, rounds=options.rounds)
    quick = options.gigabytes < GIGABYTES
    print(harness.report(claims, quick=quick))
    if options.json:
        command = f"python -m benchmarks.raw_to_model --gigabytes {options.gigabytes:g}"
        harness.write_results(options.json, claims, quick=quick, command=command)
    return 1 if any(claim.met is False for claim in claims) else 0


if __name__ == "__main__":
    sys.exit(main())
