"""The paper's baselines: weights in an embedded key-value engine, one key for each feature or composite ones.

A chunk is one mini-batch (HogBatch): get its distinct keys, compute all rows' dot products and gradients, get the keys
again so that the update meets the newest numbers, and put them. The second get is the paper's (section 6): it matters
when several threads train, and keeps the numbers under a composite key that others have changed meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.arrays import Features, single
from benchmarks.rivals.chunked import HogBatch, sparse
from benchmarks.rivals.engine import Engine
from benchmarks.rivals.keys import Asked, Keys
from penstock.batch import Batch, Floats
from penstock.sgd.kernels import Step, Totals

_ZERO = bytes(4)


class KeyValueModel:
    """A linear model in a key-value engine; the intercept is held in memory.

    Without partitions this is the paper's KV, one key for each feature; with them its KV-VP. Several threads may train,
    a chunk each, as in HOGWILD!: updates of one key that cross may be lost.

    Parameters
    ----------
    folder : path
        Where the store is kept; empty, or to be made.
    step : Step
        The loss, the learning rate and L2; its batch size is not used, a chunk being a batch.
    memory : int
        Bytes for the engine, see `Engine`.
    partitions : iterable of arrays
        Features that share a key, such as `partition.Partitions`.
    readers : int
        Gets in flight at a time.

    Attributes
    ----------
    gets, puts : int
        The keys that were asked for and written while training, requests of one key each as the paper counts them.

    Examples
    --------
    >>> import tempfile
    >>> from penstock.batch import Csr
    >>> from penstock.sgd.losses import find_loss
    >>> rows = Csr(np.array([0, 2], np.uint64), np.array([2, 7], np.uint32), np.ones(2, np.float32), 8)
    >>> batch, step = Batch(rows, np.ones(1, np.float32)), Step(find_loss("hinge"), base=0.5)
    >>> with tempfile.TemporaryDirectory() as folder, KeyValueModel(folder, step=step, memory=1 << 20) as model:
    ...     model.train(batch), model.weights(np.array([1, 2, 7], np.uint64)), model.gets, model.puts
    (-1, array([0. , 0.5, 0.5], dtype=float32), 4, 2)
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        step: Step,
        memory: int,
        partitions: Iterable[NDArray[np.integer]] = (),
        readers: int = 8,
    ) -> None:
        self._learner, self._keys = HogBatch(step), Keys(partitions)
        self._engine = Engine(folder, memory=memory, readers=readers)
        self.totals = Totals()
        self.gets = self.puts = 0
        self._counting = threading.Lock()

    @property
    def step(self) -> Step:
        """The loss, the learning rate and L2."""
        return self._learner.step

    @step.setter
    def step(self, step: Step) -> None:
        self._learner.step = single(step)

    @property
    def requests(self) -> int:
        """Gets and puts together."""
        return self.gets + self.puts

    @property
    def bytes(self) -> int:
        """What the store's files take; what is not yet written is not in it."""
        return self._engine.disk_bytes

    @property
    def intercept(self) -> float:
        """The intercept."""
        return float(self._learner.intercept[0])

    def train(self, batch: Batch) -> int:
        """Learn from a chunk of rows; return -1, or the row that could not be used, the weights being as before."""
        asked = self._keys.ask(sparse(batch))
        gradient = self._learner.gradient(batch, asked.places, self._get(asked), totals=self.totals)
        learnt = gradient.stopped < 0 and gradient.rows > 0
        if learnt:
            latest = self._get(asked)
            self._learner.apply(gradient, latest, asked.touched)
            self._put(asked, latest)
        with self._counting:
            self.gets += asked.requests * (2 if learnt else 1)
            self.puts += asked.requests * learnt
        return gradient.stopped

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of rows, (rows, 1)."""
        asked = self._keys.ask(sparse(batch))
        return self._learner.scores(batch, asked.places, self._get(asked))

    def weights(self, features: Features) -> Floats:
        """Return some features' weights."""
        found, places = np.unique(features, return_inverse=True)
        asked = self._keys.find(found)
        return self._get(asked)[asked.touched[places]]

    def close(self) -> None:
        """Write what is not yet written and let go of the folder."""
        self._engine.close()

    def _get(self, asked: Asked) -> Floats:
        held = self._engine.get(asked.composite)
        whole = [bytes(4 * size) if one is None else one for one, size in zip(held, asked.sizes.tolist(), strict=True)]
        return np.frombuffer(b"".join(whole + self._engine.get(asked.own, _ZERO)), np.float32).copy()

    def _put(self, asked: Asked, cells: Floats) -> None:
        text = cells.tobytes()
        ends = np.concatenate([np.cumsum(asked.sizes), int(asked.sizes.sum()) + 1 + np.arange(len(asked.own))]) * 4
        cuts = ends.tolist()
        self._engine.put(
            asked.composite + asked.own, [text[start:stop] for start, stop in zip([0, *cuts], cuts, strict=False)]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
