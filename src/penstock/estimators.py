"""scikit-learn faces of the linear models: ``fit``, ``partial_fit``, ``predict``, ``score``.

They take what scikit-learn takes, and also a path, an address, a source or a table, whose label is then a
column's name: ``LogisticRegression(memory="512MB").fit("clicks.parquet", y="clicked")``. The data need not fit
in memory. scikit-learn is imported here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource
from penstock.blocks.features import choose
from penstock.blocks.labels import LabelMap
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.blocks.parts import Part
from penstock.config import Config
from penstock.errors import LabelError, UsageError
from penstock.evaluation import evaluate
from penstock.events import Listener, Stream
from penstock.linear import LinearModel
from penstock.sgd.loop import Trainer
from penstock.sgd.model import Weights
from penstock.training import Columns, Training

# What `fit` forgets first; a type of labels, say, outlives neither new data nor `partial_fit`.
_LEARNT = ("model_", "classes_", "feature_names_in_", "n_features_in_", "_trainer", "_passes", "_encoder", "_labels")


class _Linear(BaseEstimator):
    """What the four estimators share."""

    _kind: ClassVar[str]

    def __init__(
        self,
        *,
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
        config = self._config()
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

    def _config(self) -> Config:
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
        config, first = self._config(), not hasattr(self, "_trainer")
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


class _Classifier(ClassifierMixin, _Linear):
    """What the classifiers share."""

    def predict(
        self, X: Any, *, out: str | os.PathLike[str] | None = None, keep: Sequence[str] = ()
    ) -> NDArray[Any] | int:
        """Return the class of each row, or write the classes of stored data to the Parquet file ``out``.

        With ``out``, predictions are streamed, columns in ``keep`` go along, and the number of rows is returned.
        """
        if out is not None:
            return self._predict_to(X, out, keep)
        scores = self._scores(X)
        codes = scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(np.intp)
        chosen: NDArray[Any] = self.classes_[codes]
        return chosen

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the scores: one a row for two classes, else one a row and class."""
        check_is_fitted(self)
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 2 else scores

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one array of rows, in the order given, going on from what was learnt before.

        ``classes`` lists all classes there will be; it is needed in the first call only.
        """
        if not hasattr(self, "_trainer") and not hasattr(self, "model_"):
            self.classes_ = np.unique(y if classes is None else classes)
        if not hasattr(self, "_labels"):
            self._labels = LabelMap(tuple(self.classes_.tolist()), binary=self._kind != "softmax", column="y")
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise UsageError(f"classes={classes!r} is not what the first call was given: {self.classes_!r}")
        return self._one_pass(X, y, sample_weight, self._labels)

    def _check_target(self, y: NDArray[Any]) -> NDArray[Any]:
        check_classification_targets(y)
        return y

    def _note_target(self, y: NDArray[Any]) -> None:
        self.classes_ = np.unique(y)  # of the labels' own type, which the model file does not know
        if len(self.classes_) == 1:
            raise LabelError(f"y holds only one class, {y[0]!r}; there is nothing to tell apart: give rows of each")
        if len(self.classes_) > 2 and self._kind != "softmax":
            raise LabelError(
                "Only binary classification is supported. The type of the target is"
                f" {type_of_target(y)}, with {len(self.classes_)} classes; use SoftmaxRegression"
            )

    def _take(self, model: LinearModel) -> Self:
        if not hasattr(self, "classes_") and model.classes is not None:
            self.classes_ = model.classes
        return super()._take(model)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy on arrays, or on a path, source or table whose label is named by ``y``."""
        if y is None or isinstance(y, str):
            return self.evaluate(X, y)["accuracy"]
        return float(super().score(X, y, sample_weight))


class LogisticRegression(_Classifier):
    """Two classes by logistic loss.

    Parameters
    ----------
    learning_rate, rate, decay, power
        The step (0.1, or 0.01 for squared loss, if not given) and its schedule: ``exponential`` (by ``decay`` an epoch), ``inverse-scaling`` (by ``power``) or
        ``constant``.
    epochs, batch_size : int
        Passes over the data, and rows to an update.
    l1, l2 : float
        Penalties on the weights.
    intercept, standardize : bool
        Learn an intercept; bring features to mean 0 and spread 1 first (if not given, `LinearRegression` does).
    shuffle : str
        The order of the rows: corgipile, global, none, once, epoch, sliding-window, mrs, block-only.
    memory : str or int
        What the data may occupy, such as ``"512MB"`` or, of the data's size, ``"10%"``.
    seed : int
        Of all chance.
    validation, patience, tolerance
        The share of rows held out, and after how many epochs without improvement by ``tolerance`` to stop.

    Attributes
    ----------
    coef_, intercept_, classes_
        As in scikit-learn.
    history_ : list of dict
        A metric row for each epoch.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock import LogisticRegression
    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 25)
    >>> y = np.array(["no", "no", "yes", "yes"] * 25)
    >>> LogisticRegression(epochs=5).fit(X, y).predict([[-3.0], [3.0]])
    array(['no', 'yes'], dtype='<U3')
    """

    _kind = "logistic"

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class for each row."""
        check_is_fitted(self)
        chances = self.model_.probabilities(self._scores(X))
        assert chances is not None  # logistic models have them
        return chances

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class LinearSVM(_Classifier):
    """Two classes by hinge loss. Parameters and attributes as in `LogisticRegression`."""

    _kind = "svm"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class SoftmaxRegression(_Classifier):
    """Two or more classes by the softmax (multinomial logistic) loss. Parameters as in `LogisticRegression`."""

    _kind = "softmax"

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class for each row."""
        check_is_fitted(self)
        chances = self.model_.probabilities(self._scores(X))
        assert chances is not None  # softmax models have them
        return chances


class LinearRegression(RegressorMixin, _Linear):
    """A number by squared loss. Parameters as in `LogisticRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock import LinearRegression
    >>> X = np.linspace(-1, 1, 200)[:, None]
    >>> model = LinearRegression().fit(X, 3 * X[:, 0] + 1)
    >>> round(float(model.coef_[0]), 1), round(float(model.intercept_), 1)
    (3.0, 1.0)
    """

    _kind = "linear"

    def predict(
        self, X: Any, *, out: str | os.PathLike[str] | None = None, keep: Sequence[str] = ()
    ) -> NDArray[Any] | int:
        """Return the prediction of each row, or write those of stored data to the Parquet file ``out``."""
        return self._scores(X) if out is None else self._predict_to(X, out, keep)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the R² on arrays, or on a path, source or table whose label is named by ``y``."""
        if y is None or isinstance(y, str):
            return self.evaluate(X, y)["r2"]
        return float(super().score(X, y, sample_weight))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from one array of rows, in the order given, going on from what was learnt before."""
        return self._one_pass(X, y, sample_weight, None)

    def _take(self, model: LinearModel) -> Self:
        super()._take(model)
        self.coef_ = model.weights.coef[0]
        self.intercept_ = model.weights.intercept[0]
        return self


_ESTIMATORS = {each._kind: each for each in (LogisticRegression, LinearSVM, SoftmaxRegression, LinearRegression)}


def load(path: str | os.PathLike[str]) -> LogisticRegression | LinearSVM | SoftmaxRegression | LinearRegression:
    """Read a model that `save` or ``penstock train`` wrote, as a fitted estimator."""
    model = LinearModel.load(path)
    known = {f.name for f in fields(Config)} - {"model"}
    estimator = _ESTIMATORS[model.kind](**{k: v for k, v in model.config.items() if k in known})
    return estimator._take(model)


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
