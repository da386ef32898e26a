"""Boosted trees for every group against LightGBM called afresh for every group and config: seconds and the loss reached.

40 groups of which the largest has 26 % of the rows, 400,000 rows of 40 features, the paper's grid of 12 configs. The rival is
group-parallel (GTP): as many processes as cores take groups, the largest first, and for each config make a data set and call
`lgb.train` with one thread. Both begin with the same Arrow file in the page cache and end with the loss of each group's best
config on the same rows to choose by, a tenth of each group. `passes` has 10 rounds, as the other patterns have 10 epochs; `stopped`
has up to 50, and stops each config that got no better for 5.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.groups import SEED, SHARE, parts, write
from benchmarks.harness import Claim
from penstock.groups.split import SELECTION, TRAINING

RATES, LEAVES = (1.0, 0.5, 0.1, 0.05), (10, 20, 30)
KINDS = {"passes": {"rounds": 10, "patience": None}, "stopped": {"rounds": 50, "patience": 5}}


def sizes_of(rows: int) -> Any:
    """Return the rows of each group."""
    rest = 1 / np.arange(1, 40) ** 0.8
    shares = np.concatenate([[0.26], 0.74 * rest / rest.sum()])
    return np.maximum(20, (rows * shares).astype(np.int64))


def ours(path: str, folder: str, rounds: int, patience: int | None) -> dict[str, Any]:
    """Train by Penstock, sorting by group included."""
    from penstock.groups import GroupBy
    from penstock.groups.boosting import Boosting

    began = time.perf_counter()
    data = GroupBy(path, by="group", memory="1GB", rows=f"{folder}/rows")
    search = {"learning_rate": list(RATES), "num_leaves": list(LEAVES)}
    model = Boosting("binary", rounds=rounds, patience=patience, seed=SEED)
    result = data.fit(model, y="clicked", search=search, validation=SHARE, pooled=False, out=f"{folder}/out")
    loss = float(np.mean(result.chosen["selection_loss"].to_numpy()))
    return {"seconds": time.perf_counter() - began, "loss": loss, "cpu": sum(os.times()[:4])}


def fit_all(number: int) -> float:
    """Train all configs of a group by LightGBM, each from the rows, and return the least loss on the rows to choose by."""
    import lightgbm as lgb
    from sklearn.metrics import log_loss

    (x, y), part, rounds, patience = *_TASKS[number], *_ROUNDS
    losses = []
    for rate in RATES:
        for leaves in LEAVES:
            params = {"objective": "binary", "num_threads": 1, "verbosity": -1, "seed": SEED}
            rows, more = lgb.Dataset(x[part == TRAINING], y[part == TRAINING]), {}
            if patience is not None:
                more = {"valid_sets": [lgb.Dataset(x[part == SELECTION], y[part == SELECTION], reference=rows)]}
                more["callbacks"] = [lgb.early_stopping(patience, verbose=False)]
            params |= {"learning_rate": rate, "num_leaves": leaves}
            booster = lgb.train(params, rows, num_boost_round=rounds, **more)
            losses.append(float(log_loss(y[part == SELECTION], booster.predict(x[part == SELECTION]), labels=[0, 1])))
    return min(losses)


_TASKS: list[Any] = []
_ROUNDS: tuple[int, int | None] = (0, None)
"""What processes find when they are forked, so that no row travels."""


def rival(path: str, rounds: int, patience: int | None) -> dict[str, Any]:
    """Train by LightGBM, group by group in as many processes as there are cores."""
    import multiprocessing

    global _ROUNDS
    began = time.perf_counter()
    found, held = parts(path)
    _TASKS.extend(zip(found, held, strict=True))
    _ROUNDS = (rounds, patience)
    order = sorted(range(len(_TASKS)), key=lambda number: -len(_TASKS[number][1]))
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        losses = pool.map(fit_all, order, chunksize=1)
        pool.close()
        pool.join()  # its seconds are counted then
    return {"seconds": time.perf_counter() - began, "loss": float(np.mean(losses)), "cpu": sum(os.times()[:4])}


def run(quick: bool) -> list[Claim]:
    rows, rounds = (60_000, 1) if quick else (400_000, 3)
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        path = write(Path(name) / "trees.arrow", sizes_of(rows))
        for kind, options in KINDS.items():
            turns = rounds if kind == "passes" else 1  # minutes each
            claims += _compare(Path(name), path, kind, options, rows, turns)
    return claims


def _compare(folder: Path, path: Path, kind: str, options: dict[str, Any], rows: int, rounds: int) -> list[Claim]:
    kept: dict[str, Any] = {}

    def mine() -> float:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            kept["ours"] = harness.run_child(ours, arguments={"path": str(path), "folder": place, **options})
        return float(kept["ours"]["seconds"])

    def theirs() -> float:
        kept["GTP"] = harness.run_child(rival, arguments={"path": str(path), **options})
        return float(kept["GTP"]["seconds"])

    results = harness.interleave({"ours": mine, "GTP": theirs}, repeats=rounds)
    print(f"{kind}, seconds\n{results.table()}", file=sys.stderr)
    told = f"{options['rounds']} rounds" + (f", stopped after {options['patience']}" if options["patience"] else "")
    note = f"{rows:,} x 40, 40 groups, 12 configs, {told}; {results.median('ours'):.1f} s against"
    ours_loss, other = kept["ours"]["loss"], kept["GTP"]["loss"]
    return [
        Claim.at_least(
            f"trees, {kind}: faster than fresh lgb.train calls (GTP)",
            results.ratio("GTP", "ours"),
            1.5,
            note=f"{note} {results.median('GTP'):.1f} s; of processors {kept['ours']['cpu']:.0f} against {kept['GTP']['cpu']:.0f} s",
        ),
        Claim.at_most(
            f"trees, {kind}: mean loss on the rows to choose by over theirs",
            ours_loss / other,
            1.001,
            note=f"{ours_loss:.5f} against {other:.5f}",
        ),
    ]


if __name__ == "__main__":
    sys.exit(harness.main(run))
