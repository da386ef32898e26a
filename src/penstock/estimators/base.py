"""What the estimators share: their parameters, how data are taken in, and how a trained model becomes attributes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from types import MethodType
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource
from penstock.blocks.features import choose
from penstock.blocks.labels import LabelMap
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.blocks.parts import Part
from penstock.config import Config
from penstock.errors import UsageError
from penstock.evaluation import evaluate
from penstock.events import Listener, Stream
from penstock.linear import LinearModel
from penstock.sgd.loop import Trainer
from penstock.sgd.model import Weights
from penstock.training import Columns, Training

# What `fit` forgets first; a type of labels, say, outlives neither new data nor `partial_fit`.
_LEARNT = ("model_", "classes_", "feature_names_in_", "n_features_in_", "_trainer", "_passes", "_encoder", "_labels")


class _NotOfSolverError(UsageError, AttributeError):
    """A method that the estimator has not with its solver; `hasattr` says so too, as scikit-learn's tools ask it."""


class OfSgd:
    """A method that estimators have with ``solver="sgd"`` alone.

    Examples
    --------
    >>> from penstock import LogisticRegression
    >>> hasattr(LogisticRegression(), "partial_fit"), hasattr(LogisticRegression(solver="lbfgs"), "partial_fit")
    (True, False)
    """

    def __init__(self, method: Any) -> None:
        self._method = method

    def __get__(self, model: Any, kind: type | None = None) -> Any:
        if model is None:
            return self._method  # whose signature and docstring are then found
        if model.solver != "sgd":
            raise _NotOfSolverError(
                f"{self._method.__name__} learns from some rows at a time, and solver={model.solver!r} needs all of them"
                " for every step; use fit, or solver='sgd'"
            )
        return MethodType(self._method, model)


class Linear(BaseEstimator):
    """What the four estimators share."""

    _kind: ClassVar[str]

    def __init__(
        self,
        *,
        solver: str = "sgd",
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
        memory: str | int = "512MB",
        seed: int = 0,
        standardize: bool | None = None,
        validation: float = 0.0,
        patience: int | None = None,
        tolerance: float = 1e-4,
    ) -> None:
        self.solver = solver
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
        self.memory = memory
        self.seed = seed
        self.standardize = standardize
        self.validation = validation
        self.patience = patience
        self.tolerance = tolerance

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
        listeners: Sequence[Listener] = (),
    ) -> Self:
        """Train from scratch.

        Parameters
        ----------
        X : array, sparse matrix, path, address, source or table
            The rows.
        y : array, or the name of the label column
            The targets; a converted file names its own label.
        sample_weight : array, or the name of a column
            How much each row counts.
        features, exclude, hash : lists of column names
            For paths, sources and tables; see `penstock.blocks.features.choose`.
        test : path, source or table
            Measured after every epoch; its scores are in ``history_``.
        listeners : callables
            Hear the events of `penstock.events`.
        """
        config = self.to_config()
        for learnt in _LEARNT:
            self.__dict__.pop(learnt, None)
        with ExitStack() as stack:
            source, columns = self._opened(X, y, sample_weight, features=features, exclude=exclude, hash=hash)
            if source is not X:
                stack.enter_context(source)
            measured = None if test is None else _opened(stack, test)
            job = Training(source, config, columns, test=measured, stream=Stream(list(listeners)))
            return self._take(job.run())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as one safetensors file; `penstock.load` reads it."""
        check_is_fitted(self)
        self.model_.save(path)

    def evaluate(self, X: Any, y: str | None = None) -> dict[str, float]:
        """Measure the model on a path, source or table: loss, accuracy or r2, and rows."""
        check_is_fitted(self)
        with ExitStack() as stack:
            return evaluate(self.model_, _opened(stack, X), label=y, memory=self.memory)

    def to_config(self) -> Config:
        """Return the parameters as a checked config, as training and `penstock.groups` take it."""
        params = {f.name: getattr(self, f.name) for f in fields(Config) if f.name != "model"}
        return Config(model=self._kind, **params)

    def _opened(self, X: Any, y: Any, weight: Any, **chosen: Any) -> tuple[BlockSource, Columns]:
        if _is_stored(X) or isinstance(y, str):
            if not (y is None or isinstance(y, str)) or not (weight is None or isinstance(weight, str)):
                raise UsageError("for a path, source or table give y and sample_weight as column names, not as arrays")
            return open_source(X), Columns(label=y, weight=weight, **chosen)
        x, y, weight = self._checked(X, y, weight, reset=True)
        self._note_target(y)
        return ArraySource(x, y, weight=weight), Columns(label="label", weight=None if weight is None else "weight")

    def _checked(self, X: Any, y: Any, weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        x, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr",
            dtype=[np.float32, np.float64],
            reset=reset,
            y_numeric=self._kind == "linear",
        )
        if weight is not None:
            weight = _check_sample_weight(weight, x, dtype=np.float32, ensure_non_negative=True)
        return x, self._check_target(y), weight

    def _check_target(self, y: NDArray[Any]) -> NDArray[Any]:
        return y

    def _note_target(self, y: NDArray[Any]) -> None:
        """Take note of what stands in the labels as they were given."""

    def _take(self, model: LinearModel) -> Self:
        """Take over a trained model as scikit-learn's fitted attributes."""
        self.model_ = model
        self.history_ = list(model.history)
        self.n_iter_ = len(self.history_)
        self.n_features_in_ = model.weights.width
        self.coef_ = model.weights.coef
        self.intercept_ = model.weights.intercept
        if not hasattr(self, "feature_names_in_") and _columns_of(model) is not None:
            self.feature_names_in_ = np.array(_columns_of(model), object)
        return self

    def _scores(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        if self._is_by_name(X):
            with ExitStack() as stack:
                parts = list(self.model_.block_scores(_opened(stack, X)))
                return np.concatenate(parts) if parts else np.empty(0, np.float32)
        x = validate_data(self, X, accept_sparse="csr", dtype=[np.float32, np.float64], reset=False)
        return self.model_.scores(_as_batch(x))

    def _is_by_name(self, X: Any) -> bool:
        """Whether features are to be found by their columns' names: stored data, or a DataFrame that has them."""
        if _is_stored(X):
            return True
        names = _columns_of(self.model_)
        return names is not None and _is_frame(X) and all(name in X.columns for name in names)

    def _predict_to(self, X: Any, out: str | os.PathLike[str], keep: Sequence[str]) -> int:
        """Write the predictions of stored data to a Parquet file."""
        check_is_fitted(self)
        if not self._is_by_name(X):
            raise UsageError("out= streams the predictions of a path, source or table; for arrays leave it out")
        with ExitStack() as stack:
            return self.model_.predict_to(_opened(stack, X), out, keep=keep)

    def _one_pass(self, X: Any, y: Any, weight: Any, labels: LabelMap | None) -> Self:
        """Learn from rows in the order given, once, going on from what was learnt before."""
        config, first = self.to_config(), not hasattr(self, "_trainer")
        x, y, weight = self._checked(X, y, weight, reset=first and not hasattr(self, "model_"))
        batch = _as_batch(x)
        target = np.asarray(y, np.float32) if labels is None else labels.encode(pa.array(np.asarray(y).tolist()))
        if first:
            outputs = len(labels.classes) if labels is not None and self._kind == "softmax" else 1
            self._trainer = Trainer(config.spec(), batch.width, outputs=outputs)
            if hasattr(self, "model_"):
                self._trainer.weights = self.model_.weights.copy()
            self._passes = 0
            source = ArraySource(x[:1], y[:1])
            self._encoder = choose(source.schema, label="label", place="arrays").with_labels(labels)
            if self._encoder.sparse:
                self._encoder = self._encoder.with_width(batch.width)
        rows = Batch(batch.x, np.ascontiguousarray(target), weight)
        stats = self._trainer.run_epoch([rows], self._passes)
        self._passes += 1
        row = {"epoch": self._passes, "loss": stats.loss, stats.metric: stats.score, "rows": stats.rows}
        weights: Weights = self._trainer.weights.copy()
        weights.arrange(sparse=False)
        history = [*getattr(self, "history_", []), row]
        return self._take(LinearModel(self._kind, weights, self._encoder, config.to_dict(), history))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _is_stored(X: Any) -> bool:
    """Whether the data are a path, address, source or Arrow table rather than arrays."""
    return isinstance(X, (str, os.PathLike, pa.Table, pa.RecordBatch, BlockSource))


def _is_frame(X: Any) -> bool:
    return type(X).__module__.split(".")[0] == "pandas"


def _columns_of(model: LinearModel) -> list[str] | None:
    """Return the columns of numbers that a model was learnt from, one a feature; None for anything else."""
    origin = model.encoder.origin
    parts = model.encoder.parts if origin is None else tuple(Part.from_dict(part) for part in origin)
    return [part.columns[0] for part in parts] if all(part.kind == "number" for part in parts) else None


def _opened(stack: ExitStack, data: Any) -> BlockSource:
    """Open data, to be closed with the stack unless they came as a source."""
    source = open_source(data)
    return source if source is data else stack.enter_context(source)


def _as_batch(x: Any) -> Batch:
    if hasattr(x, "tocsr"):
        rows = Csr(x.indptr.astype(np.uint64), x.indices.astype(np.uint32), x.data.astype(np.float32), x.shape[1])
        return Batch(rows)
    return Batch(np.ascontiguousarray(x, np.float32))
