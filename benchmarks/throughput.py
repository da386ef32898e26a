"""Per-row logistic SGD from a file, shuffle included, against scikit-learn on chunks and Vowpal Wabbit on its cache.

All three learn from the same rows in the same run. scikit-learn is given chunks of 8192 rows that are already
decoded and in memory; Vowpal Wabbit reads its own binary cache; Penstock reads the converted file and shuffles it.
The caches are warm: this is about the learners, `benchmarks.epochs` is about the disk.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.data import dense
from benchmarks.harness import Claim
from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.memory_learner import linear_job
from penstock.training import Columns

CHUNK = 8192


def ours(path: str) -> dict[str, Any]:
    """Train with the default memory; the last epoch counts, since the first compiles."""
    model = linear_job(open_source(path), Config(epochs=3, learning_rate=0.01)).run()
    return {"rate": model.history[-1]["rows_per_second"]}


def scikit_learn(path: str, rows: int) -> dict[str, Any]:
    """Feed chunks of decoded rows to `partial_fit`."""
    from sklearn.linear_model import SGDClassifier

    x, y = _decoded(path, rows)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01, penalty=None)
    model.partial_fit(x[:CHUNK], y[:CHUNK], classes=[0, 1])
    began = time.perf_counter()
    for start in range(0, len(y), CHUNK):
        model.partial_fit(x[start : start + CHUNK], y[start : start + CHUNK])
    return {"rate": len(y) / (time.perf_counter() - began)}


def vowpal_wabbit(text: str, rows: int) -> dict[str, Any]:
    """Pass over the cache that an earlier call wrote."""
    from vowpalwabbit import Workspace

    began = time.perf_counter()
    with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        learner = Workspace(
            f"--cache_file {text}.cache --loss_function logistic --sgd -l 0.01 --quiet -b 18 --passes 1"
        )
        learner.finish()
    return {"rate": rows / (time.perf_counter() - began)}


def make_cache(text: str) -> dict[str, Any]:
    from vowpalwabbit import Workspace

    learner = Workspace(f"-d {text} --cache_file {text}.cache -k --loss_function logistic --sgd -l 0.01 --quiet -b 18")
    learner.finish()
    return {"bytes": Path(f"{text}.cache").stat().st_size}


def _decoded(path: str, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return that many rows, taken from all over the file."""
    source = open_source(path)
    recipe = Columns().recipe(source)
    blocks = np.random.default_rng(0).permutation(len(source.block_rows))
    parts, count = [], 0
    for block in blocks:
        parts.append(recipe.encode(source.read(int(block))))
        count += len(parts[-1])
        if count >= rows:
            break
    picks = np.random.default_rng(1).permutation(count)[:rows]
    return np.concatenate([p.x for p in parts])[picks], np.concatenate([p.y for p in parts])[picks].astype(np.int64)


def _write_text(path: str, rows: int, text: str) -> None:
    x, y = _decoded(path, rows)
    with open(text, "w") as file:
        for row, label in zip(x, y, strict=True):
            features = " ".join(f"{i}:{v:.6g}" for i, v in enumerate(row))
            file.write(f"{1 if label else -1} | {features}\n")


def run(quick: bool) -> list[Claim]:
    rows, few = (500_000, 50_000) if quick else (8_000_000, 500_000)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as folder:
        path, text = str(dense(Path(folder) / "train.arrow", rows=rows)), f"{folder}/rows.vw"
        contestants = {
            "penstock": lambda: harness.run_child(ours, arguments={"path": path})["rate"],
            "scikit-learn": lambda: harness.run_child(scikit_learn, arguments={"path": path, "rows": few})["rate"],
        }
        try:
            import vowpalwabbit  # noqa: F401 - only whether it is there

            _write_text(path, few, text)
            harness.run_child(make_cache, arguments={"text": text})
            contestants["vowpal wabbit"] = lambda: harness.run_child(
                vowpal_wabbit, arguments={"text": text, "rows": few}
            )["rate"]
        except ImportError:
            pass
        results = harness.interleave(contestants, repeats=2 if quick else 5)
        print(results.table(), file=sys.stderr)
    note = ", ".join(f"{name} {results.median(name) / 1e6:.2f} Mrows/s" for name in contestants) + "; warm"
    bar = "per-row logistic SGD from the file, shuffled, over"
    claims = [Claim.at_least(f"{bar} scikit-learn on chunks", results.ratio("penstock", "scikit-learn"), 5, note=note)]
    if "vowpal wabbit" in contestants:
        ratio = results.ratio("penstock", "vowpal wabbit")
        claims.append(Claim.at_least(f"{bar} Vowpal Wabbit on its cache", ratio, 15, note=note))
    else:
        why = "vowpalwabbit is not installed; run: make bench"
        claims.append(Claim.not_measured(f"{bar} Vowpal Wabbit on its cache", "≥ 15×", why))
    return claims


if __name__ == "__main__":
    sys.exit(harness.main(run))
