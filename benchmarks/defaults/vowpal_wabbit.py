"""Defaults on hashed rows against Vowpal Wabbit's: ``python -m benchmarks.defaults.vowpal_wabbit --python PYTHON``.

Both learn from the same entries, hashed to 2^24 by Penstock: words of reviews, and a table made like a log of clicks (13
counts and 26 categories of very different size, a quarter of the rows positive). Vowpal Wabbit takes rows as they come, so
its file is shuffled beforehand; it reads its binary cache, Penstock its converted file, whose reviews are sorted by class.
Neither is told anything but the number of passes. PYTHON is an interpreter that has ``vowpalwabbit``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.defaults.scores import log_loss
from benchmarks.defaults.tables import FOLDER
from benchmarks.harness import Claim, report
from benchmarks.hashed import BITS, write_text

PASSES = (1, 3)
COUNTS, CATEGORIES = 13, 26
_SCRIPT = """
import json, sys, time
from vowpalwabbit import Workspace
train, test, passes, bits, folder = sys.argv[1:]
common = f"--cache_file {train}.cache -b {bits} --loss_function logistic --quiet --holdout_off"
Workspace(f"{common} --passes 1").finish()  # the first run opens the library
began = time.perf_counter()
Workspace(f"{common} --passes {passes} -f {folder}/model").finish()
seconds = time.perf_counter() - began
Workspace(f"-i {folder}/model -t -d {test} -p {folder}/scores --quiet").finish()
print(json.dumps({"seconds": seconds}))
"""
_CACHE = """
import sys
from vowpalwabbit import Workspace
text, bits = sys.argv[1:]
Workspace(f"-d {text} --cache_file {text}.cache -k -b {bits} --loss_function logistic --quiet").finish()
"""
Rows = tuple[sp.csr_matrix, np.ndarray]


def reviews(few: int | None) -> tuple[Rows, Rows]:
    """Hash the words of the reviews; training rows stay in the order of their classes."""
    import pyarrow.parquet as pq

    from penstock.columns.hashing import Hashed

    data = pq.read_table(FOLDER / "imdb" / "imdb_labelled.parquet", columns=["split", "label", "text"])
    if few is not None:
        data = data.take(np.sort(np.random.default_rng(0).permutation(len(data))[:few]))
    hashed: Any = Hashed.parse(f"text:2^{BITS}:words").encode(data["text"].combine_chunks())
    entries = (hashed.values, hashed.indices.astype(np.int64), hashed.indptr.astype(np.int64))
    x = sp.csr_matrix(entries, (len(data), hashed.width))
    y = np.array([label == "pos" for label in data["label"].to_pylist()], np.int64)
    train = np.array([split == "train" for split in data["split"].to_pylist()])
    return (x[train], y[train]), (x[~train], y[~train])


def clicks(rows: int, seed: int = 0) -> tuple[Rows, Rows]:
    """Make a log of clicks: counts as logarithms, categories by Zipf's law, labels from a sparse logistic teacher."""
    rng = np.random.default_rng(seed)
    width = 1 << BITS
    counts = np.log1p(rng.lognormal(1.0, 1.5, (rows, COUNTS)).astype(np.int64)).astype(np.float32)
    sizes = np.geomspace(4, 2_000_000, CATEGORIES)
    ranks = (sizes ** rng.random((rows, CATEGORIES))).astype(np.uint64)
    columns = np.arange(CATEGORIES, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    hashes = (ranks + columns) * np.uint64(0xBF58476D1CE4E5B9)
    indices = COUNTS + ((hashes >> np.uint64(20)) % np.uint64(width - COUNTS)).astype(np.int64)
    effects = np.random.default_rng(seed + 1).normal(size=width).astype(np.float32)
    effects[COUNTS:] *= 0.35
    effects[:COUNTS] *= 0.2
    margin = effects[indices].sum(axis=1) + counts @ effects[:COUNTS]
    y = (rng.random(rows) < 1 / (1 + np.exp(-(margin - np.quantile(margin, 0.82))))).astype(np.int64)
    every = np.concatenate([np.broadcast_to(np.arange(COUNTS), (rows, COUNTS)), indices], axis=1)
    values = np.concatenate([counts, np.ones((rows, CATEGORIES), np.float32)], axis=1)
    starts = np.arange(rows + 1) * (COUNTS + CATEGORIES)
    x = sp.csr_matrix((values.ravel(), every.ravel(), starts), (rows, width))
    x.sum_duplicates()
    cut = rows * 5 // 6
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


def compare(name: str, parts: tuple[Rows, Rows], python: str, folder: Path) -> list[Claim]:
    """Train both on one data set with each number of passes."""
    from penstock.blocks.conversion import convert
    from penstock.blocks.memory import ArraySource

    paths = [folder / f"{name}-{part}.arrow" for part in ("train", "test")]
    texts = [str(path.with_suffix(".vw")) for path in paths]
    for path, text, (x, y), shuffled in zip(paths, texts, parts, (True, False)):
        convert(ArraySource(x, y.astype(np.float32)), path, label="label")
        _write_text(path, text, shuffled=shuffled)
    subprocess.run([python, "-c", _CACHE, texts[0], str(BITS)], check=True, stdout=subprocess.DEVNULL)
    claims = []
    y = parts[1][1]
    for passes in PASSES:
        theirs, their_rate = _vowpal_wabbit(python, texts, passes, folder, len(parts[0][1]), y)
        ours, our_rate = _ours(paths, passes, len(parts[0][1]), y)
        title = f"{name}, 2^{BITS}, {passes} {'pass' if passes == 1 else 'passes'}"
        note = f"{ours:.4f} against {theirs:.4f}; {len(parts[0][1]):,} rows"
        claims.append(Claim.at_most(f"{title}: log loss over Vowpal Wabbit's", ours / theirs, 1.01, note=note))
        note = f"{our_rate / 1e3:.0f}k against {their_rate / 1e3:.0f}k rows/s"
        claims.append(Claim.at_least(f"{title}: rows/s over Vowpal Wabbit's", our_rate / their_rate, 1, note=note))
        print(f"  {title}: {claims[-2].figure:.4f}, {claims[-1].figure:.2f}", file=sys.stderr, flush=True)
    return claims


def _write_text(path: Path, text: str, *, shuffled: bool) -> None:
    write_text(str(path), text, shuffled=False)
    if shuffled:
        lines = Path(text).read_text().splitlines(keepends=True)
        Path(text).write_text("".join(lines[i] for i in np.random.default_rng(0).permutation(len(lines))))


def _vowpal_wabbit(
    python: str, texts: Sequence[str], passes: int, folder: Path, rows: int, y: np.ndarray
) -> tuple[float, float]:
    command = [python, "-c", _SCRIPT, *texts, str(passes), str(BITS), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
    scores = np.loadtxt(folder / "scores", ndmin=1)
    positive = 1 / (1 + np.exp(-scores))
    return log_loss(y, np.column_stack([1 - positive, positive]), [0, 1]), rows * passes / seconds


def _ours(paths: Sequence[Path], passes: int, rows: int, y: np.ndarray) -> tuple[float, float]:
    from penstock import LogisticRegression

    LogisticRegression(epochs=1).fit(str(paths[0]))  # compiles the kernels, and warms the file
    began = time.perf_counter()
    model = LogisticRegression(epochs=passes).fit(str(paths[0]))
    seconds = time.perf_counter() - began
    return log_loss(y, model.predict_proba(str(paths[1])), [0, 1]), rows * passes / seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has vowpalwabbit")
    parser.add_argument(
        "--rows", type=int, default=600_000, help="of the table made like clicks [default: %(default)s]"
    )
    parser.add_argument("--reviews", type=int, metavar="N", help="take only N reviews")
    options = parser.parse_args(argv)
    found = subprocess.run([options.python, "-c", "import vowpalwabbit"], capture_output=True, check=False)
    if found.returncode:
        print(f"{options.python} has no vowpalwabbit; give --python an interpreter that has it", file=sys.stderr)
        return 2
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as folder:
        if (FOLDER / "imdb").is_dir():
            claims += compare("imdb", reviews(options.reviews), options.python, Path(folder))
        claims += compare("clicks", clicks(options.rows), options.python, Path(folder))
    print(report(claims, quick=options.reviews is not None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
