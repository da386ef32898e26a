"""Faces of the linear models on disk, with the methods and parameters of those in memory.

``coef_`` is not there: it would not fit. `weights` reads those of some features.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.bigmodel.model import BigLinearModel
from penstock.bigmodel.storage import Storage
from penstock.bigmodel.training import BigTraining
from penstock.blocks.base import BlockSource
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.budget import Budget
from penstock.closing import Closing
from penstock.config import Config
from penstock.errors import UsageError
from penstock.events import Listener, Stream
from penstock.linear import decide
from penstock.training import Columns

# Of the one number for memory, the part that rows get, up to a size beyond which more would shuffle no better.
_ROWS_SHARE, _ROWS_MOST = 4, 512_000_000
_ROWS = "256MB"


class OnDisk(Closing):
    """What all estimators share whose model lives in a directory: parameters by name, and that they can be closed."""

    model_dir: str | os.PathLike[str]
    memory: str | int

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.model_dir)!r}, memory={self.memory!r})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise UsageError(f"{type(self).__name__} has no parameter {name!r}; it has: {', '.join(known)}")
            setattr(self, name, value)
        return self

    def close(self) -> None:
        """Close the model's files, where any are open; leaving a ``with`` block does, too."""


class _Linear(OnDisk):
    """What the linear ones share."""

    _kind: ClassVar[str]

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        *,
        memory: str | int = "1GB",
        threads: int = 1,
        optimizer: str = "sgd",
        learning_rate: float | None = None,
        rate: str = "exponential",
        decay: float = 0.95,
        power: float = 0.25,
        epochs: int = 20,
        batch_size: int = 1,
        l1: float = 0.0,
        l2: float = 0.0,
        intercept: bool = True,
        shuffle: str = "corgipile",
        seed: int = 0,
        validation: float = 0.0,
        patience: int | None = None,
        tolerance: float = 1e-4,
        keep: int = 10_000,
        dimension: int | None = None,
    ) -> None:
        self.model_dir = model_dir
        self.memory = memory
        self.threads = threads
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.rate = rate
        self.decay = decay
        self.power = power
        self.epochs = epochs
        self.batch_size = batch_size
        self.l1 = l1
        self.l2 = l2
        self.intercept = intercept
        self.shuffle = shuffle
        self.seed = seed
        self.validation = validation
        self.patience = patience
        self.tolerance = tolerance
        self.keep = keep
        self.dimension = dimension

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        features: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        hash: Sequence[str] = (),
        test: Any = None,
        resume: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> Self:
        """Train in the model's directory.

        Parameters
        ----------
        X : path, address, source, table or sparse matrix
            The rows.
        y : name of the label column, or array
            The targets; a converted file names its own label.
        sample_weight : name of a column, or array
            How much each row counts.
        features, exclude, hash : lists of column names
            For paths, sources and tables; see `penstock.blocks.features.choose`.
        test : path, source or table
            Measured after every epoch; its scores are in ``history_``.
        resume : bool
            Go on from the last checkpoint in the directory.
        listeners : callables
            Hear the events of `penstock.events`.
        """
        rows, model = self._shares()
        config = Config(
            model=self._kind, learning_rate=self.learning_rate, rate=self.rate, decay=self.decay, power=self.power,
            epochs=self.epochs, batch_size=self.batch_size, l1=self.l1, l2=self.l2, intercept=self.intercept,
            shuffle=self.shuffle, memory=rows, seed=self.seed, standardize=False, validation=self.validation,
            patience=self.patience, tolerance=self.tolerance,
        )  # fmt: skip
        storage = Storage(model_memory=model, optimizer=self.optimizer, threads=self.threads, keep=self.keep)
        with ExitStack() as stack:
            if y is None or isinstance(y, str):
                source, columns = opened(stack, X), Columns(y, features, sample_weight, exclude, hash)
            else:
                source = stack.enter_context(ArraySource(X, y, weight=sample_weight))
                columns = Columns("label", weight=None if sample_weight is None else "weight")
            measured = None if test is None else opened(stack, test)
            job = BigTraining(
                source,
                self.model_dir,
                config,
                storage,
                columns,
                test=measured,
                dimension=self.dimension,
                memory=str(self.memory),
                stream=Stream(list(listeners)),
            )
            job.run(resume=resume)
        self.traffic_ = {
            "requests": job.requests,
            "hits": job.hits,
            "misses": job.misses,
            "bytes_read": job.page_bytes_read,
            "bytes_written": job.page_bytes_written,
        }
        return self._take()

    @classmethod
    def load(cls, model_dir: str | os.PathLike[str], *, memory: str | int = "1GB") -> Self:
        """Return the estimator of a model in its directory."""
        return cls(model_dir, memory=memory)._take()

    def weights(self, indices: Any) -> Floats:
        """Return the weights of some features by their indices; zero for those that never occurred."""
        return self._fitted().weights(indices)

    def evaluate(self, X: Any, y: Any = None) -> dict[str, float]:
        """Measure the model on a path, source or table, or a sparse matrix with labels: loss, accuracy or r2, and rows."""
        model = self._fitted()
        with ExitStack() as stack:
            if y is None or isinstance(y, str):
                return model.evaluate(opened(stack, X), label=y)
            return model.evaluate(stack.enter_context(ArraySource(X, y)), label="label")

    def predict(
        self, X: Any, *, out: str | os.PathLike[str] | None = None, keep: Sequence[str] = ()
    ) -> NDArray[Any] | int:
        """Return the prediction of each row, or write them to the Parquet file ``out`` and return how many there are."""
        model = self._fitted()
        with ExitStack() as stack:
            source = opened(stack, X)
            if out is not None:
                return model.predict_to(source, out, keep=keep)
            return decide(self._kind, model.encoder, self._scores(source))

    def decision_function(self, X: Any) -> Floats:
        """Return a score a row."""
        with ExitStack() as stack:
            return self._scores(opened(stack, X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the accuracy, or the R² of a regression."""
        found = self.evaluate(X, y)
        return float(found.get("accuracy", found.get("r2", 0.0)))

    def close(self) -> None:
        """Close the model's files; leaving a ``with`` block does, too."""
        if hasattr(self, "model_"):
            self.model_.close()

    def _scores(self, source: BlockSource) -> Floats:
        return np.concatenate([np.zeros(0, np.float32), *self._fitted().block_scores(source)])

    def _shares(self) -> tuple[str | int, str | int]:
        """Return the memory for rows and that for the model."""
        total = Budget.parse(self.memory).bytes
        if total is None:
            return _ROWS, self.memory
        rows = min(total // _ROWS_SHARE, _ROWS_MOST)
        return rows, total - rows

    def _fitted(self) -> BigLinearModel:
        if not hasattr(self, "model_"):
            raise UsageError(f"this {type(self).__name__} is not fitted yet; call fit, or load a model's directory")
        return self.model_

    def _take(self) -> Self:
        self.close()
        self.model_ = BigLinearModel(self.model_dir, memory=self.memory)
        if self.model_.kind != self._kind:
            kind = self.model_.kind
            self.model_.close()
            del self.model_
            raise UsageError(f"{self.model_dir} holds a {kind} model, not a {self._kind} one")
        self.history_ = self.model_.history
        self.n_iter_ = len(self.history_)
        self.intercept_ = np.array([self.model_.intercept], np.float32)
        if self.model_.classes is not None:
            self.classes_ = self.model_.classes
        return self


class LogisticRegression(_Linear):
    """Logistic regression of two classes whose weights live on disk.

    Parameters
    ----------
    model_dir : path
        Where the model lives; made if need be.
    memory : str or int
        What rows and model may hold together; a share, such as ``"25%"``, is of the model, with 256 MB for rows beside.
    threads : int
        Threads that learn at the same time. With one the result is the same whenever it is run; more are faster, and
        differ a little from run to run.
    optimizer : str
        ``"sgd"`` or ``"adagrad"``.
    keep : int
        The most frequent features that are stored by what they occur with.
    dimension : int, optional
        How many features there may be; an index at or beyond it is refused. Any 64-bit index is taken if not given.
    learning_rate, rate, decay, power, epochs, batch_size, l2, intercept, shuffle, seed, validation, patience, tolerance
        As for `penstock.LogisticRegression`. With ``patience`` the weights of the last epoch stay, not of the best.

    Examples
    --------
    >>> import tempfile, numpy as np, pyarrow as pa
    >>> table = pa.table({"indices": [[3, 10**9], [5]] * 50, "values": [[1.0, 0.5], [1.0]] * 50, "clicked": [1, 0] * 50})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with LogisticRegression(f"{folder}/ctr.model", memory="100MB", epochs=5).fit(table, y="clicked") as model:
    ...         print(model.predict(table)[:4].tolist(), (model.weights([10**9, 7]) > 0).tolist())
    [1, 0, 1, 0] [True, False]
    """

    _kind = "logistic"

    def predict_proba(self, X: Any) -> Floats:
        """Return each row's probability of either class."""
        found = self._fitted().probabilities(self.decision_function(X))
        assert found is not None  # logistic models have them
        return found


class LinearSVM(_Linear):
    """A linear support vector machine of two classes whose weights live on disk; see `LogisticRegression`."""

    _kind = "svm"


class LinearRegression(_Linear):
    """Least squares whose weights live on disk; see `LogisticRegression`."""

    _kind = "linear"


def opened(stack: ExitStack, data: Any) -> BlockSource:
    """Open data, to be closed with the stack unless they came as a source."""
    if hasattr(data, "tocsr"):
        return stack.enter_context(ArraySource(data))
    source = open_source(data)
    return source if source is data else stack.enter_context(source)
