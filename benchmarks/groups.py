"""A model for every group against scikit-learn over groups: one after another, by joblib, by Ray; seconds and the loss reached.

`skewed` is made after the paper's Criteo by partner: 280 groups of which the largest has 26 % of the rows, 4 million rows of
40 features, 12 configs, 10 passes. `small` is 10,000 groups of 200 rows, `one` has a group with 82 % of the rows. All begin with the same Arrow file
and end with the loss of each group's best config on the same held-out rows, a tenth of each group; scikit-learn has as many
fits as there are configs, one for each penalty and rate, though it has no rates to choose. Files are in the page cache.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Claim

WIDTH, SHARE, SEED, PASSES = 40, 0.1, 0, 10
PENALTIES, RATES = (1e-2, 1e-3, 1e-4, 1e-5), (1.0, 0.5, 0.1)


def sizes_of(kind: str, rows: int) -> Any:
    """Return the rows of each group."""
    if kind == "small":
        return np.full(rows // 200, 200)
    count, largest = (280, 0.26) if kind == "skewed" else (21, 0.82)
    rest = 1 / np.arange(1, count) ** 0.8
    shares = np.concatenate([[largest], (1 - largest) * rest / rest.sum()])
    return np.maximum(20, (rows * shares).astype(np.int64))


def write(path: Path, sizes: Any) -> Path:
    """Write rows of all groups mixed; every group has weights of its own, about common ones."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    common, own = rng.normal(size=WIDTH) / 4, rng.normal(size=(len(sizes), WIDTH)) / 4
    schema = pa.schema(
        {"group": pa.int32(), "clicked": pa.int8(), "features": pa.list_(pa.float32(), WIDTH)},
        metadata={},
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for start in range(0, len(group), 50_000):
            here = group[start : start + 50_000]
            x = rng.normal(size=(len(here), WIDTH)).astype(np.float32)
            score = x @ common + np.einsum("ij,ij->i", x, own[here]) + 2 * rng.logistic(size=len(here)) / 4
            features = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH)
            columns = [pa.array(here.astype(np.int32)), pa.array((score > 0).astype(np.int8)), features]
            writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    return path


def ours(path: str, workers: int | None, folder: str) -> dict[str, Any]:
    """Train by Penstock, sorting by group included."""
    import penstock
    from penstock.groups import GroupBy

    began = time.perf_counter()
    data = GroupBy(path, by="group", memory="1GB", rows=f"{folder}/rows")
    model = penstock.LogisticRegression(solver="lbfgs", epochs=PASSES, seed=SEED)
    search = {"learning_rate": list(RATES), "l2": list(PENALTIES)}
    first: list[float] = []

    def hear(event: Any) -> None:
        if getattr(event, "task", "") == "groups" and not first:
            first.append(time.perf_counter() - began)

    result = data.fit(
        model, y="clicked", search=search, validation=SHARE, workers=workers, out=f"{folder}/out", listeners=[hear]
    )
    seconds = time.perf_counter() - began
    chosen = result.chosen
    return {"seconds": seconds, "sorted": first[0], "loss": float(np.mean(chosen["held_loss"].to_numpy()))}


def parts(path: str) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Read the file and part it by group; return rows and labels of each, and which rows are held out."""
    import pyarrow as pa

    from penstock.loader.holdout import Part

    with pa.memory_map(path) as file:
        table = pa.ipc.open_file(file).read_all()
        group = table["group"].to_numpy()
        y = table["clicked"].to_numpy().astype(np.float32)
        x = np.concatenate([chunk.flatten().to_numpy().reshape(-1, WIDTH) for chunk in table["features"].chunks])
    order = np.argsort(group, kind="stable")
    first = {int(g): n for n, g in enumerate(dict.fromkeys(group.tolist()))}
    edges = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    x, y = x[order], y[order]
    found, held = [], []
    for low, high in itertools.pairwise(edges):
        found.append((x[low:high], y[low:high]))
        number = first[int(group[order[low]])]  # groups are numbered as they come, in Penstock
        held.append(Part(SHARE, SEED, held_out=True).keeps(np.full(1, number), np.arange(high - low)))
    return found, held


def fit(x: Any, y: Any, hold: Any, penalty: float) -> float:
    """Train one model by scikit-learn and return its loss on the held-out rows."""
    import warnings

    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    x_train, y_train = x[~hold], y[~hold]
    model = LogisticRegression(C=1 / (penalty * len(y_train)), max_iter=PASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x_train, y_train)
    return float(log_loss(y[hold], model.predict_proba(x[hold])[:, 1], labels=[0, 1]))


def fit_all(x: Any, y: Any, hold: Any) -> float:
    return min(fit(x, y, hold, penalty) for penalty in PENALTIES for _ in RATES)


def sklearn(path: str, workers: int, most: int | None = None) -> dict[str, Any]:
    """Train group after group, or by joblib over groups; of many groups only some, and the seconds are scaled up."""
    began = time.perf_counter()
    found, held = parts(path)
    loaded = time.perf_counter() - began
    tasks = list(zip(found, held, strict=True))
    scale = 1.0
    if most is not None and most < len(tasks):
        scale, tasks = len(tasks) / most, tasks[:most]
    if workers == 1:
        losses = [fit_all(x, y, hold) for (x, y), hold in tasks]
    else:
        from joblib import Parallel, delayed

        losses = Parallel(n_jobs=workers)(delayed(fit_all)(x, y, hold) for (x, y), hold in tasks)
    seconds = time.perf_counter() - began - loaded
    return {"seconds": loaded + scale * seconds, "loaded": loaded, "loss": float(np.mean(losses)), "scale": scale}


def ray_tasks(path: str, by: str) -> dict[str, Any]:
    """Train by Ray's tasks: one for each group (GTP), or one for each group and config (MTP)."""
    import ray

    began = time.perf_counter()
    found, held = parts(path)
    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        stored = [ray.put((x, y, hold)) for (x, y), hold in zip(found, held, strict=True)]
        if by == "group":
            whole = ray.remote(lambda rows: fit_all(*rows))
            losses = ray.get([whole.remote(rows) for rows in stored])
        else:
            single = ray.remote(lambda rows, penalty: fit(*rows, penalty))
            asked = [[single.remote(rows, p) for p in PENALTIES for _ in RATES] for rows in stored]
            losses = [min(ray.get(each)) for each in asked]
        return {"seconds": time.perf_counter() - began, "loss": float(np.mean(losses))}
    finally:
        ray.shutdown()


def run(quick: bool) -> list[Claim]:
    rows = 200_000 if quick else 4_000_000
    small = 40_000 if quick else 2_000_000
    rounds = 1 if quick else 2
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        folder = Path(name)
        claims += _skewed(folder, rows, 1)  # its peers take minutes
        claims += _small(folder, small, rounds)
        claims += _one(folder, rows // 2, rounds)
    return claims


def _ours(folder: Path, path: Path, workers: int | None, kept: list[Any]) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        found = harness.run_child(ours, arguments={"path": str(path), "workers": workers, "folder": place})
    kept.append(found)
    return float(found["seconds"])


def _skewed(folder: Path, rows: int, rounds: int) -> list[Claim]:
    path, cores = write(folder / "skewed.arrow", sizes_of("skewed", rows)), os.cpu_count() or 1
    kept: dict[str, list[Any]] = {"ours": []}

    def peer(name: str, function: Any, **arguments: Any) -> Any:
        def turn() -> float:
            found = harness.run_child(function, arguments={"path": str(path), **arguments})
            kept.setdefault(name, []).append(found)
            return float(found["seconds"])

        return turn

    contestants: dict[str, Any] = {
        "ours": lambda: _ours(folder, path, None, kept["ours"]),
        "scikit-learn loop": peer("scikit-learn loop", sklearn, workers=1),
        "joblib": peer("joblib", sklearn, workers=cores),
    }
    missing = ["Ray Data map_groups", "Spark applyInPandas"]
    if importlib.util.find_spec("ray") is not None:
        contestants["Ray GTP"] = peer("Ray GTP", ray_tasks, by="group")
        contestants["Ray MTP"] = peer("Ray MTP", ray_tasks, by="config")
    else:
        missing = ["Ray GTP", "Ray MTP", *missing]
    results = harness.interleave(contestants, repeats=rounds)
    print(f"skewed, seconds\n{results.table()}", file=sys.stderr)
    mine = kept["ours"][-1]
    note = (
        f"{rows:,} x {WIDTH}, 280 groups, 12 configs, from the file: {results.median('ours'):.1f} s of which sorting by group"
        f" {mine['sorted']:.1f}; warm"
    )
    claims = []
    for name in list(contestants)[1:]:
        claims.append(
            Claim.at_least(
                f"skewed: faster than {name}",
                results.ratio(name, "ours"),
                4,
                note=f"{note}; {results.median(name):.1f} s",
            )
        )
        ratio = mine["loss"] / kept[name][-1]["loss"]
        claims.append(
            Claim.at_most(
                f"skewed: mean held-out loss over that of {name}",
                ratio,
                1.001,
                note=f"{mine['loss']:.5f} against {kept[name][-1]['loss']:.5f}",
            )
        )
    claims += [
        Claim.not_measured(f"skewed: faster than {name}", "≥ 4×", "not installed or not written") for name in missing
    ]
    return claims


def _small(folder: Path, rows: int, rounds: int) -> list[Claim]:
    sizes = sizes_of("small", rows)
    path, kept = write(folder / "small.arrow", sizes), []
    most = 300

    def loop() -> float:
        return float(harness.run_child(sklearn, arguments={"path": str(path), "workers": 1, "most": most})["seconds"])

    results = harness.interleave(
        {"ours": lambda: _ours(folder, path, None, kept), "scikit-learn loop": loop}, repeats=rounds
    )
    print(f"small groups, seconds\n{results.table()}", file=sys.stderr)
    each = 1000 * (results.median("ours")) / (len(sizes) * len(PENALTIES) * len(RATES))
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
    harness.interleave(contestants, repeats=rounds + 1)
    medians = [float(np.median([k["seconds"] - k["sorted"] for k in kept[name]])) for name in ("one", "level")]
    note = f"{rows:,} rows, 2 workers, sorting by group not counted; {medians[0]:.2f} s against {medians[1]:.2f} s"
    return [
        Claim.at_most("one group of 82 %: over equal groups on 2 workers", medians[0] / medians[1], 1.15, note=note)
    ]


if __name__ == "__main__":
    sys.exit(harness.main(run))
