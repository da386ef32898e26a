"""A model for every group against scikit-learn over groups: in a loop, by joblib, Ray and Spark; seconds and the loss reached.

`skewed` is made after the paper's Criteo by partner: 280 groups of which the largest has 26 % of the rows, 4 million rows of
40 features, 12 penalties, 10 passes. `small` is 10,000 groups of 200 rows, `one` has a group with 82 % of the rows. All begin
with the same rows, as Arrow or as Parquet, train on the same eight tenths of each group, and end with the loss of each group's
best config on the same tenth to choose by. The last tenth, which Penstock judges the chosen models on within its time, and the
model for all groups, which nobody else trains, are left out of the comparison. Files are in the page cache. Who is not installed is named: `make peers`, then `.venv-peers/bin/python -m benchmarks
groups`, has them all.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import groups_own, harness
from benchmarks.groups_data import PASSES, PENALTIES, SEED, SHARE, WIDTH, parts, sizes_of, to_parquet, write
from benchmarks.groups_peers import PEERS
from benchmarks.harness import Claim

__all__ = ["SEED", "SHARE", "parts", "run", "sizes_of", "write"]


def ours(path: str, workers: int | None, folder: str) -> dict[str, Any]:
    """Train by Penstock, sorting by group included."""
    import penstock
    from penstock.groups import GroupBy

    began = time.perf_counter()
    data = GroupBy(path, by="group", memory="1GB", rows=f"{folder}/rows")
    model = penstock.LogisticRegression(solver="lbfgs", epochs=PASSES, seed=SEED)
    search = {"l2": list(PENALTIES)}
    first: list[float] = []

    def hear(event: Any) -> None:
        if getattr(event, "task", "") == "groups" and not first:
            first.append(time.perf_counter() - began)

    result = data.fit(
        model,
        y="clicked",
        search=search,
        validation=SHARE,
        pooled=False,
        workers=workers,
        out=f"{folder}/out",
        listeners=[hear],
    )
    seconds = time.perf_counter() - began
    chosen = result.chosen
    return {"seconds": seconds, "sorted": first[0], "loss": float(np.mean(chosen["selection_loss"].to_numpy()))}


def run(quick: bool) -> list[Claim]:
    rows, groups = (20_000, 10) if quick else (4_000_000, 280)
    small = 20_000 if quick else 2_000_000
    rounds = 1 if quick else 3
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        folder = Path(name)
        path = write(folder / "skewed.arrow", sizes_of("skewed", rows, groups=groups))
        told = f"{rows:,} x {WIDTH}, {groups} groups, 12 configs"
        claims += _skewed(folder, path, told, rounds)
        claims += groups_own.claims(folder, path, told, rounds, quick=quick)
        claims += _small(folder, small, rounds)
        claims += _one(folder, 50_000 if quick else 2_000_000, rounds)
    return claims


def _ours(folder: Path, path: Path, workers: int | None, kept: list[Any]) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        found = harness.run_child(ours, arguments={"path": str(path), "workers": workers, "folder": place})
    kept.append(found)
    return float(found["seconds"])


def _skewed(folder: Path, path: Path, what: str, rounds: int) -> list[Claim]:
    cores, lists = os.cpu_count() or 1, folder / "parquet"
    harness.run_child(to_parquet, arguments={"path": str(path), "folder": str(lists)})
    kept: dict[str, list[Any]] = {"ours": []}

    def turn(name: str) -> Callable[[], float]:
        peer = PEERS[name]
        arguments = {"folder": str(lists)} if peer.parquet else {"path": str(path)}
        arguments |= {"workers": cores, **peer.options}

        def run() -> float:
            found = harness.run_child(peer.program, arguments=arguments, env=peer.env, timeout=3600)
            kept.setdefault(name, []).append(found)
            return float(found["seconds"])

        return run

    absent = {name: peer.missing for name, peer in PEERS.items() if peer.missing}
    present = [name for name in PEERS if name not in absent]
    contestants: dict[str, Callable[[], float]] = {"ours": lambda: _ours(folder, path, None, kept["ours"])}
    results = harness.interleave(contestants | {name: turn(name) for name in present}, repeats=rounds)
    print(f"skewed, seconds\n{results.table()}", file=sys.stderr)
    mine = kept["ours"][-1]
    note = f"{what}, from the file: {results.median('ours'):.1f} s of which sorting by group {mine['sorted']:.1f}; warm"
    claims = []
    for name in present:
        told = f"{note}; {results.median(name):.1f} s"
        if PEERS[name].needs:
            told += ", its runtime up before"
        claims.append(Claim.at_least(f"skewed: faster than {name}", results.ratio(name, "ours"), 4, note=told))
        theirs = kept[name][-1]["loss"]
        told = f"{mine['loss']:.5f} against {theirs:.5f}"
        claims.append(
            Claim.at_most(
                f"skewed: mean loss on the rows to choose by over that of {name}",
                mine["loss"] / theirs,
                1.001,
                note=told,
            )
        )
    return claims + [Claim.not_measured(f"skewed: faster than {name}", "≥ 4×", why) for name, why in absent.items()]


def _small(folder: Path, rows: int, rounds: int) -> list[Claim]:
    sizes = sizes_of("small", rows)
    path, kept = write(folder / "small.arrow", sizes), []
    most, peer = min(300, len(sizes) // 4), PEERS["scikit-learn loop"]

    def loop() -> float:
        arguments = {"path": str(path), "most": most, **peer.options}
        return float(harness.run_child(peer.program, arguments=arguments, env=peer.env)["seconds"])

    results = harness.interleave(
        {"ours": lambda: _ours(folder, path, None, kept), "scikit-learn loop": loop}, repeats=rounds
    )
    print(f"small groups, seconds\n{results.table()}", file=sys.stderr)
    each = 1000 * (results.median("ours")) / (len(sizes) * len(PENALTIES))
    train = 1000 * float(np.median([k["seconds"] - k["sorted"] for k in kept])) / (len(sizes) * 12)
    note = f"{len(sizes):,} groups of 200 rows, 12 configs; {results.median('ours'):.1f} s against"
    note += f" {results.median('scikit-learn loop'):.1f} s (scaled from {most} groups)"
    return [
        Claim.at_least(
            "small groups: faster than a scikit-learn loop", results.ratio("scikit-learn loop", "ours"), 20, note=note
        ),
        Claim.at_most(
            "small groups: a group x config", each, 0.3, unit=" ms", note=f"{train:.3f} ms without sorting by group"
        ),
    ]


def _one(folder: Path, rows: int, rounds: int) -> list[Claim]:
    """One group with 82 % of the rows on two workers, against as many rows in equal groups."""
    skewed = write(folder / "one.arrow", sizes_of("one", rows))
    level = write(folder / "level.arrow", np.full(20, rows // 20))
    kept: dict[str, list[Any]] = {"one": [], "level": []}
    contestants = {
        "one": lambda: _ours(folder, skewed, 2, kept["one"]),
        "level": lambda: _ours(folder, level, 2, kept["level"]),
    }
    harness.interleave(contestants, repeats=rounds)
    medians = [float(np.median([k["seconds"] - k["sorted"] for k in kept[name]])) for name in ("one", "level")]
    note = f"{rows:,} rows, 2 workers, sorting by group not counted; {medians[0]:.2f} s against {medians[1]:.2f} s"
    return [
        Claim.at_most("one group of 82 %: over equal groups on 2 workers", medians[0] / medians[1], 1.15, note=note)
    ]


if __name__ == "__main__":
    sys.exit(harness.main(run))
