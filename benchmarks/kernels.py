"""SGD kernels in memory, one thread, one pass over shuffled rows: against scikit-learn and the streaming floor.

The floor is a plain sum over the same array: no learner can read its rows faster. scikit-learn is given all
rows in one `partial_fit` call, its fastest way. Every contestant starts from weights of zero in each round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from benchmarks import harness
from benchmarks.harness import Claim, Results
from penstock.batch import Batch, Csr
from penstock.sgd import kernels
from penstock.sgd.losses import find_loss
from penstock.sgd.model import Weights

ROUNDS = 7
RATE = 0.01


@numba.njit(fastmath=True, nogil=True)  # type: ignore[untyped-decorator]  # numba has no types
def streaming_sum(x: Any) -> Any:
    total = np.float32(0)
    for i in range(x.size):
        total += x[i]
    return total


def ours(batch: Batch, *, loss: str = "logistic", outputs: int = 1, **options: Any) -> Callable[[], float]:
    def run() -> float:
        weights, totals = Weights.zeros(batch.width, outputs), kernels.Totals()
        step = kernels.Step(find_loss(loss), RATE, **options)
        start = time.perf_counter()
        stopped = kernels.train(batch, weights, step=step, totals=totals)
        seconds = time.perf_counter() - start
        if stopped != -1:
            raise RuntimeError(f"training stopped at row {stopped}")
        return seconds

    return run


def peer(batch: Batch, *, penalty: str | None, classes: Any) -> Callable[[], float]:
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import SGDClassifier

    x, y = batch.x, batch.y
    assert y is not None
    if isinstance(x, Csr):
        x = csr_matrix((x.values, x.indices.astype(np.int32), x.indptr.astype(np.int32)), shape=(len(x), x.width))

    def run() -> float:
        model = SGDClassifier(
            loss="log_loss", learning_rate="constant", eta0=RATE, penalty=penalty, alpha=1e-5, shuffle=False
        )
        # The first call makes the weights and is slower; ten rows of it are not held against it.
        model.partial_fit(x[:10], y[:10], classes=classes)
        start = time.perf_counter()
        model.partial_fit(x, y)
        return time.perf_counter() - start

    return run


def dense_rows(rows: int, width: int) -> Batch:
    rng = np.random.default_rng(width)
    x = rng.standard_normal((rows, width), dtype=np.float32)
    noisy = x @ rng.standard_normal(width, dtype=np.float32) + np.sqrt(width) * rng.standard_normal(rows)
    return Batch(x, np.where(noisy > 0, 1, -1).astype(np.float32))


def sparse_rows(rows: int, held: int, width: int) -> Batch:
    rng = np.random.default_rng(held)
    indices = np.sort(rng.integers(0, width, (rows, held), dtype=np.uint32), axis=1).ravel()
    indptr = np.arange(0, rows * held + 1, held).astype(np.uint64)
    weights = rng.standard_normal(width, dtype=np.float32)
    noisy = weights[indices].reshape(rows, held).sum(axis=1) + np.sqrt(held) * rng.standard_normal(rows)
    y = np.where(noisy > 0, 1, -1).astype(np.float32)
    return Batch(Csr(indptr, indices, np.ones(len(indices), np.float32), width), y)


def floor(batch: Batch) -> Callable[[], float]:
    flat = batch.x.values if isinstance(batch.x, Csr) else batch.x.reshape(-1)

    def run() -> float:
        start = time.perf_counter()
        streaming_sum(flat)
        return time.perf_counter() - start

    return run


def measure(batch: Batch, contestants: dict[str, Callable[[], float]], *, rounds: int) -> Results:
    contestants = {**contestants, "floor": floor(batch)}
    for run in contestants.values():
        run()  # compile, and touch every page once
    return harness.interleave(contestants, repeats=rounds)


def speeds(found: Results, rows: int) -> str:
    return "Mrows/s: " + ", ".join(f"{name} {rows / found.median(name) / 1e6:.3g}" for name in found.figures)


def times_peer(name: str, found: Results, bar: float, *, rows: int, ours: str, peer: str) -> Claim:
    low, high = found.ratio_range(peer, ours)
    note = f"per round {low:.2f} to {high:.2f}; {speeds(found, rows)}"
    return Claim.at_least(name, found.ratio(peer, ours), bar, note=note)


def run(*, quick: bool = False) -> list[Claim]:
    part, rounds = (8, 3) if quick else (1, ROUNDS)
    both = np.array([-1.0, 1.0], np.float32)
    claims: list[Claim] = []

    batch = dense_rows(2_000_000 // part, 28)
    contestants = {
        "ours": ours(batch),
        "peer": peer(batch, penalty=None, classes=both),
        "ours l2": ours(batch, l2=1e-5),
        "peer l2": peer(batch, penalty="l2", classes=both),
        "ours 128": ours(batch, batch_size=128),
        "hinge": ours(batch, loss="hinge"),
    }
    found = measure(batch, contestants, rounds=rounds)
    claims.append(times_peer("dense 28, over scikit-learn", found, 4, rows=len(batch), ours="ours", peer="peer"))
    rows = len(batch)
    claims.append(times_peer("dense 28 L2, over scikit-learn", found, 4, rows=rows, ours="ours l2", peer="peer l2"))

    batch = dense_rows(60_000 // part, 2000)
    contestants = {
        "ours": ours(batch),
        "peer": peer(batch, penalty=None, classes=both),
        "ours l2": ours(batch, l2=1e-5),
        "ours 128": ours(batch, batch_size=128),
    }
    found = measure(batch, contestants, rounds=rounds)
    claims.append(times_peer("dense 2000, over scikit-learn", found, 7, rows=len(batch), ours="ours", peer="peer"))
    low, high = (100 * share for share in found.ratio_range("floor", "ours"))
    share = 100 * found.ratio("floor", "ours")
    note = f"per round {low:.0f} to {high:.0f}"
    claims.append(Claim.at_least("dense 2000, share of the floor", share, 60, unit=" %", note=note))

    batch = sparse_rows(500_000 // part, 39, 1_000_000)
    contestants = {
        "ours": ours(batch),
        "peer": peer(batch, penalty=None, classes=both),
        "ours l2": ours(batch, l2=1e-5),
        "peer l2": peer(batch, penalty="l2", classes=both),
        "ours l1": ours(batch, l1=1e-6),
        "ours 128": ours(batch, batch_size=128),
    }
    found = measure(batch, contestants, rounds=rounds)
    rows = len(batch)
    claims.append(times_peer("sparse 39 of 1M, over scikit-learn", found, 1.5, rows=rows, ours="ours", peer="peer"))
    claims.append(
        times_peer("sparse 39 of 1M L2, over scikit-learn", found, 1.5, rows=rows, ours="ours l2", peer="peer l2")
    )

    batch = dense_rows(60_000 // part, 784)
    ten = np.random.default_rng(10).integers(0, 10, len(batch)).astype(np.float32)
    batch = Batch(batch.x, ten)
    few = batch.slice(0, len(batch) // 10)  # one-vs-all is slow: a tenth of the rows stands for all
    tenth = peer(few, penalty=None, classes=np.arange(10, dtype=np.float32))
    contestants = {
        "ours": ours(batch, loss="softmax", outputs=10),
        "ours 128": ours(batch, loss="softmax", outputs=10, batch_size=128),
        "peer": lambda: 10 * tenth(),
    }
    found = measure(batch, contestants, rounds=min(rounds, 3))
    note = f"scikit-learn one-vs-all, on a tenth of the rows; {speeds(found, len(batch))}"
    claims.append(Claim.at_least("softmax 10 × 784, over scikit-learn", found.ratio("peer", "ours"), 1, note=note))
    return claims


if __name__ == "__main__":
    sys.exit(harness.main(run))
