"""Models whose weights are one array: in memory, or in a mapped file that the kernel's page cache holds some of.

Both are trained by the ordinary in-memory kernel, an update after every row or mini-batch, with indices as they come.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.errors import UsageError, WriteError
from penstock.messages import Text, Use
from penstock.sgd import kernels
from penstock.sgd.kernels import Step, Totals
from penstock.sgd.model import Weights

Features = NDArray[np.unsignedinteger]


class Baseline(Protocol):
    """What all baselines can do.

    Attributes
    ----------
    step : Step
        The loss, the learning rate and the penalties; to be replaced when the rate changes.
    totals : Totals
        What the rows trained on have been scored as; to be replaced with each epoch.
    requests : int
        The requests made of the store so far.
    bytes : int
        What the weights take, in memory or on disk.
    """

    step: Step
    totals: Totals

    @property
    def requests(self) -> int: ...
    @property
    def bytes(self) -> int: ...

    def train(self, batch: Batch) -> int:
        """Learn from a chunk of rows; return -1, or the row that could not be used."""

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of rows, (rows, 1)."""

    def weights(self, features: Features) -> Floats:
        """Return some features' weights."""

    def close(self) -> None:
        """Give back what the model holds."""


class MemoryModel:
    """All weights in memory.

    Parameters
    ----------
    width : int
        The number of features.
    step : Step
        The loss, the learning rate and the penalties.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> rows = Csr(np.array([0, 1], np.uint64), np.array([2], np.uint32), np.ones(1, np.float32), 3)
    >>> with MemoryModel(3, step=Step(find_loss("hinge"), base=0.5)) as model:
    ...     model.train(Batch(rows, np.ones(1, np.float32))), model.weights(np.array([1, 2], np.uint64)), model.bytes
    (-1, array([0. , 0.5], dtype=float32), 12)
    """

    def __init__(self, width: int, *, step: Step) -> None:
        self.step, self.totals = single(step), Totals()
        self._weights: Weights | None = Weights.zeros(width)

    @classmethod
    def over(cls, coef: Floats, *, step: Step) -> Self:
        """Return a model whose weights are this array, (1, features), wherever it lies; training changes it."""
        model = cls(0, step=step)
        model._weights = Weights(coef, np.zeros(1, np.float32))
        return model

    @property
    def requests(self) -> int:
        """None: memory is not asked, it is there."""
        return 0

    @property
    def bytes(self) -> int:
        """What the weights take."""
        return self._open().coef.nbytes

    @property
    def intercept(self) -> float:
        """The intercept."""
        return float(self._open().intercept[0])

    def train(self, batch: Batch) -> int:
        """Learn from a chunk of rows; return -1, or the row that could not be used."""
        return kernels.train(narrow(batch), self._open(), step=self.step, totals=self.totals)

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of rows, (rows, 1)."""
        return self._open().scores(narrow(batch))

    def weights(self, features: Features) -> Floats:
        """Return some features' weights."""
        self.settle()
        return np.asarray(self._open().coef[0, features])

    def settle(self) -> None:
        """Make the array hold the true weights: pay the L2 that is owed by all."""
        self._open().settle()

    def close(self) -> None:
        """Let the weights go."""
        self._weights = None

    def _open(self) -> Weights:
        if self._weights is None:
            raise UsageError("the model is closed; train and score before `close`")
        return self._weights

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class MemmapModel:
    """All weights in one mapped file, a hole until they are first written; the system holds what it has room for.

    ``requests`` are the page faults that were served from storage while training, as the system counts them for the
    whole process.

    Parameters
    ----------
    path : path
        The file to make; there must be none yet.
    width : int
        The number of features.
    step : Step
        The loss, the learning rate and the penalties.

    Examples
    --------
    >>> import tempfile
    >>> from penstock.sgd.losses import find_loss
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with MemmapModel(Path(folder) / "weights", 1000, step=Step(find_loss("hinge"), base=0.5)) as model:
    ...         model.bytes
    4000
    """

    def __init__(self, path: str | os.PathLike[str], width: int, *, step: Step) -> None:
        self.path = Path(path)
        self._faults = 0
        if self.path.exists():
            raise UsageError(f"{self.path} is there already; a baseline begins anew: name another file or remove it")
        if width < 1:
            raise UsageError(f"a file of {width} weights cannot be mapped; give at least one")
        try:
            self._map: np.memmap[Any, np.dtype[np.float32]] | None = np.memmap(
                self.path, np.float32, "w+", shape=(1, width)
            )
        except OSError as error:
            raise WriteError(f"{self.path} cannot be made: {error}; choose a folder with room for it") from error
        # The array below the memmap: Numba would compile for the subclass anew.
        self._model = MemoryModel.over(np.asarray(self._map), step=step)

    @property
    def step(self) -> Step:
        """The loss, the learning rate and the penalties."""
        return self._model.step

    @step.setter
    def step(self, step: Step) -> None:
        self._model.step = single(step)

    @property
    def totals(self) -> Totals:
        """What the rows trained on have been scored as."""
        return self._model.totals

    @totals.setter
    def totals(self, totals: Totals) -> None:
        self._model.totals = totals

    @property
    def requests(self) -> int:
        """The page faults served from storage while training."""
        return self._faults

    @property
    def bytes(self) -> int:
        """What the weights take."""
        return self._model.bytes

    @property
    def intercept(self) -> float:
        """The intercept."""
        return self._model.intercept

    def train(self, batch: Batch) -> int:
        """Learn from a chunk of rows; return -1, or the row that could not be used."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        stopped = self._model.train(batch)
        self._faults += resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
        return stopped

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of rows, (rows, 1)."""
        return self._model.scores(batch)

    def weights(self, features: Features) -> Floats:
        """Return some features' weights."""
        return self._model.weights(features)

    def close(self) -> None:
        """Write what is not yet written, all penalties paid, and unmap the file."""
        if self._map is not None:
            self._model.settle()
            self._map.flush()
            self._map = None
        self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def single(step: Step) -> Step:
    """Return the step, if it is one that all baselines can make: one score for each row, no L1.

    Examples
    --------
    >>> from penstock.sgd.losses import find_loss
    >>> single(Step(find_loss("softmax"), base=0.1))
    Traceback (most recent call last):
    ...
    penstock.errors.UsageError: the baselines have one score for each row; use logistic, hinge or squared, not softmax
    """
    if step.loss.many:
        raise UsageError(
            f"the baselines have one score for each row; use logistic, hinge or squared, not {step.loss.name}"
        )
    if step.l1:
        raise UsageError("the baselines know no L1", fixes=[Text("use ", Use("l1", 0), f" instead of {step.l1}")])
    return step


def narrow(batch: Batch) -> Batch:
    """Return the rows with indices of 32 bits, which the in-memory kernels take; wide ones are copied.

    Examples
    --------
    >>> rows = Csr(np.array([0, 1], np.uint64), np.array([2], np.uint64), np.ones(1, np.float32), 3)
    >>> narrow(Batch(rows)).x.indices.dtype
    dtype('uint32')
    """
    if not isinstance(batch.x, Csr) or batch.x.indices.dtype == np.uint32:
        return batch
    top = int(batch.x.indices.max(initial=0))
    if top >= 1 << 32:
        raise UsageError(f"feature {top} is past what a model in one array can have; hash features to 32 bits or fewer")
    x = Csr(batch.x.indptr, batch.x.indices.astype(np.uint32), batch.x.values, batch.x.width)
    return Batch(x, batch.y, batch.weight, batch.rows)
