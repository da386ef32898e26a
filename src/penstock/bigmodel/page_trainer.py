"""Learning from chunks on one thread, or on several that share the pool without locks (Hogwild).

The kernels are those for models in memory, run on the pool's buffer: on one thread the result is theirs to the last bit.
On several, each takes a share of a chunk's rows, so that all pages brought for the chunk serve every thread; the result
depends on timing and differs a little from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.bigmodel.chunks import ENTRIES, Chunk, Chunker, PositionScale
from penstock.bigmodel.pages import ABSENT, page_dots, ranges, update_pages, update_pages_adagrad
from penstock.bigmodel.pool import PagePool
from penstock.closing import Closing
from penstock.errors import UsageError
from penstock.measures import OnScores
from penstock.sgd import adagrad, kernels, losses
from penstock.sgd.faults import diverged
from penstock.sgd.loop import EpochStats, Spec
from penstock.sgd.model import Weights
from penstock.sgd.scalar import CLOCK, SCALE, STEP, bounded_rate, rate_at
from penstock.sgd.shared import HOT

OPTIMIZERS = {"sgd": 1, "adagrad": 1 + adagrad.ADAGRAD.cells}
"""The optimizers of models on disk, and the float32 cells that a weight takes with its state."""

BESIDE_PAGES = ("intercept", "clock")
"""What a learner depends on beside the pages; ``best.`` stands before the names of the best epoch's."""
_LEAST_ROWS = 16
"""Rows of a chunk below which one thread learns from it alone."""
_CLOSE = 2
"""Threads that share weights at no loss: two neighbouring cores pass lines of memory to one another quickly."""
_FADED = 1e-3
"""The common factor of all weights below which it is multiplied into them."""


class PageTrainer(Closing):
    """Learns a linear model whose weights are in a pool.

    Several ``threads`` learn at the same time where every row is an update. Values of rows are multiplied by ``scale`` when chunks
    are made of them; a chunk has at most ``entries`` entries.
    """

    def __init__(
        self,
        spec: Spec,
        pool: PagePool,
        *,
        shift: int,
        optimizer: str = "sgd",
        threads: int = 1,
        scale: PositionScale | None = None,
        entries: int = ENTRIES,
    ) -> None:
        self.spec = spec
        self.entries = entries
        self.pool = pool
        self.scale = scale
        self.optimizer = optimizer
        self.intercept = np.zeros(OPTIMIZERS[optimizer], np.float32)
        self.clock = np.zeros(CLOCK)
        self.clock[SCALE] = 1.0
        self._best: dict[str, NDArray[Any]] = {}
        self.shift = np.uint32(shift)
        self._loss = losses.find_loss(spec.loss)
        self._threads = threads
        several = threads > 1
        if several and spec.batch_size != 1:  # its gradient is a sum over rows, which one thread makes
            raise ValueError(f"threads={threads} share rows where each is an update, not batches of {spec.batch_size}")
        if several and len(pool.arena) < pool.buffer.size + self.beside(optimizer, threads):
            raise ValueError("the pool has no room beside its frames for the threads' own records")
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="penstock-learn") if several else None

    @staticmethod
    def beside(optimizer: str, threads: int) -> int:
        """Return the cells that threads need beside the pool's frames, for their own copies of the hottest records."""
        return threads * HOT * OPTIMIZERS[optimizer] if threads > 1 else 0

    @property
    def cells(self) -> Floats:
        """The pool as records: a weight, and what its optimiser keeps beside it."""
        return self.pool.buffer.reshape(-1, OPTIMIZERS[self.optimizer])

    @property
    def most_rows(self) -> int | None:
        """The most rows in a chunk if the common factor of L2 is not to run out of digits within it."""
        if self.spec.l2 == 0 or self.optimizer == "adagrad":
            return None
        fall = self.spec.rate.at(0, 0) * self.spec.l2
        if fall >= 0.5:
            raise UsageError(
                f"times the learning rate is {fall:.3g}",
                option="l2",
                value=self.spec.l2,
                fixes=["it must be below 0.5: lower one"],
            )
        return max(1, int(4 / -math.log1p(-fall))) * self.spec.batch_size

    def epoch(self, chunks: Iterable[Chunk], epoch: int, *, on_chunk: Any = None) -> EpochStats:
        """Learn from the chunks in their order; the epoch's number sets the learning rate."""
        step = self.spec.step(epoch)
        totals = kernels.Totals()
        for chunk in chunks:
            totals.start(chunk.batch)
            if chunk.alone:
                good = self._in_passes(chunk.batch, step, totals)
            elif self._workers is None or len(chunk.batch) < _LEAST_ROWS:
                good = self._run(chunk.batch, step, totals)
            else:
                good = self._together(chunk, step, totals)
            if not (good and np.isfinite(self.intercept).all()):
                rate = self.spec.rate.at(epoch, self.updates)
                raise diverged(
                    "the score of a row is not finite, though its data are",
                    epoch=epoch,
                    learning_rate=rate,
                    chosen=self.spec.chosen_rate,
                    scaled=self.spec.scaled,
                )
            if on_chunk is not None:
                on_chunk(chunk.batch, self.stats(totals))
        return self.stats(totals)

    def evaluate(self, batches: Iterable[Batch], *, on_scores: OnScores | None = None) -> EpochStats:
        """Measure the model on rows by positions; see `penstock.measuring.MeasuredRows`."""
        # A chunk's slots are written in place of the positions, which rows that are kept must not lose.
        copies = (batch.take(np.arange(len(batch))) for batch in batches)
        chunker = Chunker(
            copies, self.pool, shift=int(self.shift), entries=self.entries, learning=False, scale=self.scale
        )
        totals = kernels.Totals(on_scores)
        for chunk in chunker.each():
            totals.start(chunk.batch)
            self._count(self.dots(chunk), chunk.batch, totals)
        return self.stats(totals)

    def dots(self, chunk: Chunk) -> Floats:
        """Return the dot product of each of a chunk's rows, before the common factor and the intercept."""
        x = chunk.batch.x
        assert isinstance(x, Csr)
        dots = np.zeros(len(x), np.float32)
        if chunk.alone:
            self._gather(x, dots)
        else:
            still = np.arange(len(self.pool.buffer), dtype=np.int32)  # slots name their frame already
            page_dots(x.indptr, x.indices, x.values, self.shift, 0, len(still), still, self.cells, dots)
        return dots

    def scores(self, dots: Floats) -> Floats:
        """Return the scores that dot products come to."""
        scores: Floats = self.intercept[0] + self.factor * dots
        return scores

    @property
    def factor(self) -> np.float32:
        """The common factor of all weights, by which L2 shrinks them."""
        return np.float32(self.clock[SCALE])

    @property
    def updates(self) -> int:
        """How many updates were made since training began."""
        return int(self.clock[STEP])

    @property
    def faded(self) -> bool:
        """Whether the common factor should be multiplied into all weights, by `settle`."""
        return bool(self.clock[SCALE] < _FADED)

    def settle(self) -> None:
        """Multiply the common factor into the weights of all pages, and begin it anew."""
        pool, factor = self.pool, self.factor
        for pages in ranges(np.arange(pool.store.pages), pool.room):
            pool.acquire(pages)
            pool.buffer[pool.frame_of[pages]] *= factor
            pool.release(pages)
        self.clock[SCALE] = 1.0

    def stats(self, totals: kernels.Totals) -> EpochStats:
        """Return what the totals come to."""
        return EpochStats(
            totals.loss(), self._loss.metric, totals.score(self._loss), totals.rows, totals.weight, self.updates
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what training depends on beside the pages."""
        return self._now() | self._best

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a state."""
        self._take(state)
        self._best = {f"best.{name}": state[f"best.{name}"] for name in BESIDE_PAGES if f"best.{name}" in state}

    def _now(self) -> dict[str, NDArray[Any]]:
        return {"intercept": self.intercept.copy(), "clock": self.clock.copy()}

    def _take(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.intercept[:] = state["intercept"]
        self.clock[:] = state["clock"]

    def keep_best(self) -> None:
        """Take note that the weights as they are now, all written, are the best so far."""
        self._best = {f"best.{name}": array for name, array in self._now().items()}
        self.pool.store.keep_best()

    def show_best(self) -> None:
        """Take the best weights, where they are kept, to measure the finished model by; learning is over."""
        if self._best:
            self._take({name.removeprefix("best."): array for name, array in self._best.items()})
            self.pool.store.show_best()
            self.pool.reload()

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown()

    def _run(self, batch: Batch, step: kernels.Step, totals: kernels.Totals) -> bool:
        return self._learn(batch, step, totals, self.intercept, self.clock) < 0

    def _learn(
        self, batch: Batch, step: kernels.Step, totals: kernels.Totals, intercept: Floats, clock: NDArray[np.float64]
    ) -> int:
        part = totals.share()
        if self.optimizer == "adagrad":
            stopped = kernels.train_adagrad(batch, self.cells, intercept, clock, step=step, totals=part)
        else:
            weights = Weights(self.pool.buffer.reshape(1, -1), intercept, clock)
            stopped = kernels.train(batch, weights, step=step, totals=part)
        totals.add(part)
        return stopped

    def _together(self, chunk: Chunk, step: kernels.Step, totals: kernels.Totals) -> bool:
        """Deal a chunk's rows out to the threads, a share each."""
        assert self._workers is not None
        batch = chunk.batch
        share = -(-len(batch) // self._threads)
        before, parts = self.updates, [totals.share() for _ in range(self._threads)]
        cells = self.pool.arena.reshape(-1, OPTIMIZERS[self.optimizer])

        def work(thread: int) -> int:
            first, last = thread * share, min(len(batch), (thread + 1) * share)
            return kernels.train_shared(
                batch,
                cells,
                self.intercept,
                self.clock,
                rows=(first, last),
                step=step,
                totals=parts[thread],
                hot=self._hot(chunk, thread),
            )

        stopped = list(self._workers.map(work, range(-(-len(batch) // share))))
        for part in parts:
            totals.add(part)
        updates = len(batch) if batch.weight is None else int(np.count_nonzero(batch.weight))
        self.clock[STEP] += updates
        if step.l2 and self.optimizer == "sgd":  # one factor for all while they work; it falls when they have met
            rate = float(rate_at(step.base, step.power, float(before)))
            self.clock[SCALE] *= max(1.0 - rate * step.l2, 0.0) ** updates
        return max(stopped) < 0

    def _hot(self, chunk: Chunk, thread: int) -> tuple[int, int, Floats]:
        """Return where the hottest records lie, which positions begin with, and how far off the thread's own copies are."""
        pool, cells = self.pool, OPTIMIZERS[self.optimizer]
        assert chunk.pages is not None
        there = pool.whole or bool((chunk.pages == 0).any())
        count = min(HOT, 1 << int(self.shift)) if there and self._threads > _CLOSE else 0
        begin = int(pool.frame_of[0]) << int(self.shift)
        own = pool.buffer.size // cells + thread * HOT
        return begin, own - begin, np.empty((count, cells), np.float32)

    def _gather(self, x: Csr, dots: Floats) -> list[NDArray[np.int64]]:
        """Add up dot products over ranges of pages, each brought in turn, and return the ranges."""
        pool = self.pool
        runs = ranges(pages_of(x, int(self.shift)), pool.room)
        for pages in runs:
            pool.acquire(pages)
            where = (self.shift, pages[0], pages[-1] + 1, pool.frame_of)
            page_dots(x.indptr, x.indices, x.values, *where, self.cells, dots)
            pool.release(pages, dirty=False)
        return runs

    def _count(self, dots: Floats, batch: Batch, totals: kernels.Totals) -> bool:
        """Add rows to the totals; return whether their scores are finite."""
        assert batch.y is not None
        weight = np.zeros(0, np.float32) if batch.weight is None else batch.weight
        found = self.scores(dots)[:, None]
        return kernels.add_scores(found, batch.y, weight, loss=self._loss, totals=totals) < 0

    def _in_passes(self, batch: Batch, step: kernels.Step, totals: kernels.Totals) -> bool:
        """Make one update by rows whose pages do not fit in the pool together."""
        x, pool = batch.x, self.pool
        assert isinstance(x, Csr)
        dots = np.zeros(len(x), np.float32)
        runs = self._gather(x, dots)
        if not self._count(dots, batch, totals):
            return False
        slopes, rate = _update_of(batch, dots, self.intercept, self.clock, step=step)
        for pages in runs:
            pool.acquire(pages)
            where = (self.shift, pages[0], pages[-1] + 1, pool.frame_of, self.cells)
            if self.optimizer == "adagrad":
                update_pages_adagrad(
                    x.indptr, x.indices, x.values, *where, slopes, np.float32(rate), np.float32(step.l2)
                )
            else:
                update_pages(x.indptr, x.indices, x.values, *where, slopes)
            pool.release(pages)
        return True


def _update_of(
    batch: Batch, dots: Floats, intercept: Floats, clock: NDArray[np.float64], *, step: kernels.Step
) -> tuple[Floats, float]:
    """Return each row's part in one update by all of them, and its learning rate; take the intercept's own step.

    What `penstock.sgd.linear.sparse_batches` does between its two loops over entries.
    """
    assert batch.y is not None
    slopes = step.loss.slope(intercept[0] + np.float32(clock[SCALE]) * dots, batch.y).astype(np.float32)
    if batch.weight is not None:
        slopes *= batch.weight
    taken = max(1, len(batch) if batch.weight is None else int(np.count_nonzero(batch.weight)))
    rate = float(rate_at(step.base, step.power, clock[STEP]))
    clock[STEP] += 1
    total = slopes.sum()
    if len(intercept) == 2:  # AdaGrad
        intercept[1] += total * total
        intercept[0] -= step.intercept * rate * total / (np.sqrt(intercept[1]) + adagrad.SMALLEST)
        return slopes, rate
    short = float(bounded_rate(rate, step.bound, _size(batch, step) / taken))
    intercept[0] -= step.intercept * np.float32(short / taken) * total
    clock[SCALE] *= max(1.0 - rate * step.l2, 0.0)
    return slopes * np.float32(short / taken / clock[SCALE]), rate


def _size(batch: Batch, step: kernels.Step) -> float:
    """Return the sum of the rows' squared lengths by their weights, with the intercept's one."""
    assert isinstance(batch.x, Csr)
    sizes = np.add.reduceat(
        np.append(batch.x.values.astype(np.float64) ** 2, 0.0), batch.x.indptr[:-1].astype(np.int64)
    )
    sizes[np.diff(batch.x.indptr) == 0] = 0.0
    weight = np.ones(len(batch)) if batch.weight is None else batch.weight
    return float(weight @ (sizes + step.intercept))


def pages_of(x: Csr, shift: int) -> NDArray[np.int64]:
    """Return the distinct pages of rows' positions, ascending; absent features have none."""
    return np.unique(x.indices[x.indices != ABSENT] >> np.uint32(shift)).astype(np.int64)
