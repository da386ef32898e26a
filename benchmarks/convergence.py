"""Is CorgiPile as accurate as a full shuffle? On every clustered or ordered real data set, with small buffers.

Logistic regression and SVM, one row to an update, 20 epochs at decay 0.95; the learning rate is the one of
0.1, 0.01 and 0.001 that serves shuffle-once best, as in the paper. Final test accuracy, medians over seeds (three
for dense data, one for sparse, which take longer).
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Claim
from benchmarks.real import FOLDER, REAL, RealData
from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.memory_learner import linear_job

BAR = 0.5
"""Points of accuracy."""


def accuracy(paths: tuple[Path, Path], data: RealData, seeds: int, **config: object) -> float:
    """Return the median final test accuracy in points."""
    finals = []
    for seed in range(seeds):
        settings = Config(epochs=20, seed=seed, standardize=data.standardize, **config)
        with open_source(paths[0]) as source, open_source(paths[1]) as test:
            model = linear_job(source, settings, test=test).run()
        finals.append(100 * model.metrics["test_accuracy"])
    return statistics.median(finals)


def run(quick: bool) -> list[Claim]:
    if not FOLDER.is_dir():
        return [Claim.not_measured("accuracy of corgipile", f"≤ {BAR} points", f"there are no data in {FOLDER}")]
    claims: list[Claim] = []
    header = f"{'data':<20}{'model':<10}{'rate':>6} {'once':>7} {'epoch':>7} {'none':>7} {'10%':>7} {'2%':>7}"
    print(header, file=sys.stderr)
    for data in REAL[:2] if quick else REAL:
        seeds = 1 if quick else data.seeds
        for order in data.orders:
            with tempfile.TemporaryDirectory() as folder:
                paths = data.write(Path(folder), order)
                lost: list[float] = []
                for model in ("logistic", "svm"):
                    rates = (0.1, 0.01, 0.001)
                    tried = {
                        r: accuracy(paths, data, 1, model=model, shuffle="once", learning_rate=r, memory="10%")
                        for r in rates
                    }
                    rate = max(tried, key=tried.__getitem__)
                    common = {"model": model, "learning_rate": rate}
                    found = {
                        name: accuracy(paths, data, seeds, shuffle=shuffle, memory=memory, **common)
                        for name, shuffle, memory in (
                            ("once", "once", "10%"),
                            ("epoch", "epoch", "10%"),
                            ("none", "none", "10%"),
                            ("10%", "corgipile", "10%"),
                            ("2%", "corgipile", "2%"),
                        )
                    }
                    best = max(found["once"], found["epoch"])
                    print(
                        f"{data.name + ' ' + order:<20}{model:<10}{rate:>6} "
                        + " ".join(f"{found[n]:7.2f}" for n in ("once", "epoch", "none", "10%", "2%")),
                        file=sys.stderr,
                        flush=True,
                    )
                    for buffer in ("10%", "2%"):
                        gap = best - found[buffer]
                        note = f"once {found['once']:.2f}, epoch {found['epoch']:.2f}, corgipile {found[buffer]:.2f}, none {found['none']:.2f}"
                        name = f"points below a full shuffle: {data.name} {order}, {model}, {buffer} memory"
                        claims.append(Claim.at_most(name, gap, BAR, unit=" points", note=note))
                    lost.append(best - found["none"])
                if order != "ordered":
                    name = f"points that stored order loses, on the model it hurts most: {data.name} {order}"
                    claims.append(Claim.at_least(name, max(lost), 1.0, unit=" points"))
    return claims


if __name__ == "__main__":
    sys.exit(harness.main(run))
