"""Faces of the linear models on disk, with the methods and parameters of those in memory.

``coef_`` is not there: it would not fit. `weights` reads those of some features.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.bigmodel.disk_learner import disk_job
from penstock.bigmodel.model import BigLinearModel
from penstock.bigmodel.storage import MemorySplit, Storage
from penstock.blocks.base import BlockSource
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.closing import Closing
from penstock.config import Config
from penstock.errors import UsageError
from penstock.events import Listener, Stream
from penstock.linear import decide, log_probabilities
from penstock.model import write_predictions
from penstock.options import default
from penstock.outputs import require_file, require_folder
from penstock.training import Columns


@dataclass(kw_only=True, eq=False, repr=False)
class OnDisk(Closing):
    """What all estimators share whose model lives in a directory: parameters by name, and that they can be closed."""

    model_dir: str | os.PathLike[str] = field(kw_only=False)
    memory: str | int = default("memory", "disk")
    threads: int = default("threads")
    learning_rate: float | str | None = "auto"
    decay: float = default("decay")
    power: float = default("power")
    epochs: int | None = default("epochs")
    seed: int = default("seed")
    validation: float | None = default("validation")
    patience: int | None = default("patience")
    tolerance: float = default("tolerance")

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


@dataclass(kw_only=True, eq=False, repr=False)
class _Linear(OnDisk):
    """What the linear ones share."""

    _kind: ClassVar[str]

    optimizer: str = default("optimizer", "disk")
    rate: str = default("rate")
    batch_size: int = default("batch_size")
    l1: float = default("l1")
    l2: float | None = default("l2")
    class_weight: str | Mapping[Any, float] | None = default("class_weight")
    intercept: bool = default("intercept")
    shuffle: str = default("shuffle")
    standardize: bool = default("standardize")
    keep: int = default("keep", "disk")
    dimension: int | None = default("dimension")

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
        require_folder(self.model_dir)
        memory = MemorySplit.of(self.memory)
        own = {name: value for name, value in self.get_params().items() if name in Config.__dataclass_fields__}
        config = Config(**{**own, "model": self._kind, "solver": "sgd", "memory": memory.rows})
        storage = Storage(model_memory=memory.model, threads=self.threads, keep=self.keep)
        with ExitStack() as stack:
            if y is None or isinstance(y, str):
                source, columns = opened(stack, X), Columns(y, features, sample_weight, exclude, hash)
            else:
                source = stack.enter_context(ArraySource(X, y, weight=sample_weight))
                columns = Columns("label", weight=None if sample_weight is None else "weight")
            measured = None if test is None else opened(stack, test)
            job = disk_job(
                source,
                self.model_dir,
                config,
                storage,
                columns,
                test=measured,
                dimension=self.dimension,
                memory=str(self.memory),
                hold_out=y is None or isinstance(y, str),
                stream=Stream(list(listeners)),
            )
            self.traffic_ = job.run(resume=resume).traffic
        return self._take(BigLinearModel(self.model_dir, memory=self.memory))

    @classmethod
    def load(cls, model_dir: str | os.PathLike[str], *, memory: str | int = "1GB") -> Self:
        """Return the estimator of a model in its directory."""
        return cls(model_dir, memory=memory)._take(BigLinearModel(model_dir, memory=memory))

    def weights(self, indices: Any) -> Floats:
        """Return the weights of some features by their indices; zero for those that never occurred."""
        return self._fitted().weights(indices)

    def evaluate(self, X: Any, y: Any = None) -> dict[str, Any]:
        """Measure the model on a path, source or table, or a sparse matrix with labels: all of `penstock.measures`."""
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
        if out is not None:
            require_file(out)
        with ExitStack() as stack:
            source = opened(stack, X)
            if out is not None:
                return write_predictions(model, source, out, keep=keep)
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

    def _fitted(self) -> BigLinearModel:
        if not hasattr(self, "model_"):
            raise UsageError(f"this {type(self).__name__} is not fitted yet; call fit, or load a model's directory")
        return self.model_

    def _take(self, model: BigLinearModel) -> Self:
        self.close()
        if model.kind != self._kind:
            model.close()
            raise UsageError(f"{self.model_dir} holds a {model.kind} model, not a {self._kind} one")
        self.model_ = model
        self.history_ = model.history
        self.n_iter_ = len(self.history_)
        self.intercept_ = np.array([model.intercept], np.float32)
        if model.classes is not None:
            self.classes_ = model.classes
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
    standardize : bool
        Bring each of the ``keep`` most frequent features to a root mean square of 1 over the values that are not 0, and all others
        together, by a sample of the rows.
    learning_rate, rate, decay, power, epochs, batch_size, l2, class_weight, intercept, shuffle, seed, validation, patience, tolerance
        As for `penstock.LogisticRegression`: of stored rows a part is held out, and where training may stop early the weights of the best
        epoch by the held-out loss are kept.

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

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of each row's probability of either class."""
        found = log_probabilities(self._kind, self.decision_function(X))
        assert found is not None  # as above
        return found


class LinearSVM(_Linear):
    """A linear support vector machine of two classes whose weights live on disk; see `LogisticRegression`."""

    _kind = "svm"


class LinearRegression(_Linear):
    """Least squares whose weights live on disk; see `LogisticRegression`."""

    _kind = "linear"


def estimator_of(model: BigLinearModel, *, memory: str | int = "1GB") -> _Linear:
    """Return the estimator of a model on disk, with the hyper-parameters that it was trained with."""
    kinds = {each._kind: each for each in (LogisticRegression, LinearSVM, LinearRegression)}
    estimator = kinds[model.kind](model.folder, memory=memory)._take(model)
    # Not the memory: training had two numbers, one of them perhaps a share, and scoring needs another one.
    trained = {**model.config, **model.storage.to_dict()}
    known = [name for name in estimator.get_params() if name in trained and name != "memory"]
    return estimator.set_params(**{name: trained[name] for name in known})


def opened(stack: ExitStack, data: Any) -> BlockSource:
    """Open data, to be closed with the stack unless they came as a source."""
    if hasattr(data, "tocsr"):
        return stack.enter_context(ArraySource(data))
    source = open_source(data)
    return source if source is data else stack.enter_context(source)
