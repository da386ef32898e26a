"""What the estimators share: their parameters, how data are taken in, and how a trained model becomes attributes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from types import MethodType
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource
from penstock.blocks.frames import (
    frame_names,
    frame_to_arrow,
    is_dataset,
    is_frame,
    is_pandas,
    is_plain_pandas,
    values_to_arrow,
    with_column,
)
from penstock.blocks.memory import ArraySource, TableSource
from penstock.blocks.open import open as open_source
from penstock.blocks.open import opened
from penstock.budget import parse_cache
from penstock.class_weights import BALANCED, ClassWeighting, ClassWeights, class_codes
from penstock.closing import Closing
from penstock.columns.base import UnseenValues
from penstock.columns.choose import choose_features
from penstock.columns.labels import LabelMap
from penstock.columns.pairs import Pairs
from penstock.columns.vector import Vector
from penstock.config import Config
from penstock.errors import NoMethodError, UsageError
from penstock.events import Listener, Stream
from penstock.linear import LinearModel
from penstock.memory_learner import linear_job
from penstock.messages import Given, Text, Use
from penstock.options import default
from penstock.sgd.loop import Trainer
from penstock.sgd.losses import loss_of
from penstock.sgd.model import Weights
from penstock.training import Columns

# What `fit` forgets first; a type of labels, say, outlives neither new data nor `partial_fit`.
_LEARNT = (
    *("model_", "classes_", "feature_names_in_", "n_features_in_"),
    *("_trainer", "_passes", "_recipe", "_labels", "_weight_mean"),
)


class OfSgd:
    """A method that estimators have unless they were given a solver of full passes.

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
        if model.solver not in ("auto", "sgd"):
            raise NoMethodError(
                f"{self._method.__name__} learns from some rows at a time, and ",
                Given("solver", model.solver),
                " needs all of them for every step",
                fixes=[Text("use fit, or ", Use("solver", "sgd"))],
            )
        return MethodType(self._method, model)


@contextmanager
def _learned_anew(model: LinearEstimator) -> Iterator[None]:
    """Take away what an estimator has learned, for a new fit; give it back where that fails."""
    before = {name: model.__dict__.pop(name) for name in _LEARNT if name in model.__dict__}
    try:
        yield
    except BaseException:
        for name in _LEARNT:
            model.__dict__.pop(name, None)
        model.__dict__.update(before)
        raise


@dataclass(kw_only=True, eq=False, repr=False)
class LinearEstimator(Closing, BaseEstimator):
    """What the four estimators share."""

    _kind: ClassVar[str]

    solver: str = default("solver")
    optimizer: str | None = default("optimizer")
    learning_rate: float | str | None = "auto"
    rate: str = default("rate")
    decay: float = default("decay")
    power: float = default("power")
    epochs: int | None = default("epochs")
    batch_size: int = default("batch_size")
    l1: float = default("l1")
    l2: float | str | None = "auto"
    average: bool = default("average")
    class_weight: str | Mapping[Any, float] | None = default("class_weight")
    intercept: bool = default("intercept")
    shuffle: str = default("shuffle")
    memory: str | int = default("memory")
    seed: int = default("seed")
    standardize: bool = default("standardize")
    validation: float | None = default("validation")
    patience: int | None = default("patience")
    tolerance: float = default("tolerance")
    warm_start: bool = default("warm_start")

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        features: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        hash: Sequence[str] = (),
        category: Sequence[str] = (),
        number: Sequence[str] = (),
        date: Sequence[str] = (),
        missing: str | None = None,
        null_values: Sequence[str] = (),
        test: Any = None,
        test_share: float = 0.0,
        checkpoint: str | os.PathLike[str] | None = None,
        resume: bool = False,
        cache: bool | int | str | os.PathLike[str] = True,
        listeners: Sequence[Listener] = (),
    ) -> Self:
        """Train from scratch, with ``warm_start`` from the weights that the estimator has, or from a checkpoint.

        Parameters
        ----------
        X : array, sparse matrix, path, address, source or table
            The rows. Tables in memory are pandas and Polars frames, DuckDB relations, pyarrow Tables and Datasets; text, dates
            and missing values in them become features as in files, and all their rows are learned from.
        y : array, or the name of the label column
            The targets; a converted file names its own label.
        sample_weight : array, or the name of a column
            How much each row counts.
        features, exclude, hash, category, number, date : lists of column names
            For paths, sources and tables; see `penstock.columns.choose_features`.
        missing : str
            What is done with missing features: ``auto``, ``fill``, ``indicator``, ``drop`` or ``refuse``.
        null_values : list of str
            Values that stand for a missing one.
        test : path, source or table
            Measured after every epoch; its scores are in ``history_``.
        test_share : float
            Instead of ``test``: the share of the rows, drawn by chance, that are not learned from but measured so.
        checkpoint : path
            A file that is written after every epoch; it stays when training is over.
        resume : bool
            Whether to go on from the checkpoint, where there is one, to the same weights as a run that was not interrupted.
        cache : bool, size or folder
            Whether rows of files that do not fit in memory and take long to decode are kept on disk after the first epoch, as
            they are learned from, in how many bytes at most (``"10GB"``), or in which folder, where later runs find them.
        listeners : callables
            Hear the events of `penstock.events`.
        """
        config, start = self.to_config(), getattr(self, "model_", None) if self.warm_start else None
        with _learned_anew(self), ExitStack() as stack:
            named = Columns(None, features, None, exclude, hash, category, number, date, missing, null_values)
            source, columns = self._opened(X, y, sample_weight, named)
            if source is not X:
                stack.enter_context(source)
            test_rows = None if test is None else stack.enter_context(opened(test))
            measured: dict[str, Any] = {"test": test_rows, "test_share": test_share, "hold_out": _is_outside(X)}
            measured["cache"] = parse_cache(cache)
            stream = Stream(list(listeners))
            job = linear_job(source, config, columns, first=start, checkpoint=checkpoint, stream=stream, **measured)
            return self._take(job.run(resume=resume))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as one safetensors file; `penstock.load` reads it."""
        check_is_fitted(self)
        self.model_.save(path)

    def close(self) -> None:
        """Do nothing, as no file is open; whatever `penstock.load` returns can be closed and used in a ``with`` block."""

    def evaluate(self, X: Any, y: str | None = None) -> dict[str, Any]:
        """Measure the model on a path, source or table: loss, rows, and all of `penstock.measures`."""
        check_is_fitted(self)
        with opened(X) as source:
            return self.model_.evaluate_warned(source, label=y, memory=self.memory)

    def to_config(self) -> Config:
        """Return the parameters as a checked config, as training and `penstock.groups` take it."""
        params = {f.name: getattr(self, f.name) for f in fields(Config) if f.name != "model"}
        if self.epochs == 0:
            raise UsageError("is not a number of epochs", option="epochs", value=0, fixes=["choose 1 or more"])
        return Config(model=self._kind, **params)

    def _opened(self, X: Any, y: Any, weight: Any, chosen: Columns) -> tuple[BlockSource, Columns]:
        named = all(given is None or isinstance(given, str) for given in (y, weight))
        if named and (_is_stored(X) or isinstance(y, str)):
            return open_source(X), replace(chosen, label=y, weight=weight)
        if _is_outside(X):
            raise UsageError("for a path or source give y and sample_weight as column names, not as arrays")
        if is_frame(X) and y is not None and (chosen.to_options() or not (is_pandas(X) and is_plain_pandas(X))):
            return self._opened_frame(X, y, weight, chosen)
        x, y, weight = self._checked(X, y, weight, reset=True)
        self._note_target(y)
        return ArraySource(x, y, weight=weight), Columns(label="label", weight=None if weight is None else "weight")

    def _opened_frame(self, X: Any, y: Any, weight: Any, chosen: Columns) -> tuple[BlockSource, Columns]:
        """Open a table in memory with labels, and weights, that are a column of it or stand beside it."""
        table = frame_to_arrow(X)
        roles = [each for each in (y, weight) if isinstance(each, str)]
        self.feature_names_in_ = np.array([name for name in table.schema.names if name not in roles], object)
        if not isinstance(y, str):
            labels = values_to_arrow(y)
            named = getattr(y, "name", None)
            table, y = with_column(table, labels, [*([named] if isinstance(named, str) and named else []), "label"])
            self._note_target(self._check_target(_present(labels)))
        if weight is not None and not isinstance(weight, str):
            table, weight = with_column(table, values_to_arrow(weight), ["weight"])
        return TableSource.of(table), replace(chosen, label=y, weight=weight)

    def _checked(self, X: Any, y: Any, weight: Any, *, reset: bool) -> tuple[Any, Any, Any]:
        numeric = not loss_of(self._kind).classifies
        x, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=[np.float32, np.float64], reset=reset, y_numeric=numeric
        )
        if weight is not None:
            weight = _check_sample_weight(weight, x, dtype=np.float32, ensure_non_negative=True)
        return x, self._check_target(y), weight

    @property
    def _model_kind(self) -> str:
        """The kind of model that `partial_fit` trains."""
        return self._kind

    def _check_target(self, y: NDArray[Any]) -> NDArray[Any]:
        return y

    def _note_target(self, y: NDArray[Any]) -> None:
        """Take note of what stands in the labels as they were given."""

    def _take(self, model: LinearModel) -> Self:
        """Take over a trained model as scikit-learn's fitted attributes."""
        self.model_ = model
        self.history_ = list(model.history)
        self.n_iter_ = len(self.history_)
        self.coef_ = model.weights.coef
        self.intercept_ = model.weights.intercept
        if not hasattr(self, "feature_names_in_") and _columns_of(model) is not None:
            self.feature_names_in_ = np.array(_columns_of(model), object)
        by_name = hasattr(self, "feature_names_in_")
        self.n_features_in_ = len(self.feature_names_in_) if by_name else model.weights.width
        return self

    def _scores(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        if self._is_by_name(X):
            unseen = UnseenValues()
            with opened(X) as source:
                parts = list(self.model_.counting(unseen).block_scores(source))
                scores = np.concatenate(parts) if parts else np.empty(0, np.float32)
                unseen.warn_of_most(source.name, len(scores))
                return scores
        if _columns_of(self.model_) is not None and self.model_.weights.width != self.n_features_in_:
            return self._scores(self._named_columns(X))
        x = validate_data(self, X, accept_sparse="csr", dtype=[np.float32, np.float64], reset=False)
        return self.model_.scores(_as_batch(x))

    def _is_by_name(self, X: Any) -> bool:
        """Whether features are to be found by their columns' names: stored data, or a DataFrame that has them."""
        if _is_stored(X):
            return True
        if not is_frame(X):
            return False
        present, names = set(frame_names(X)), _columns_of(self.model_)
        stored = [name for part in self.model_.recipe.described_parts for name in part.columns]
        if all(name in present or name.partition(".")[0] in present for name in stored):
            return True
        return names is not None and self.model_.weights.width != len(names)

    def _named_columns(self, X: Any) -> pa.Table:
        """Return the rows of an array as a table with the columns that the estimator was fitted with, in their order."""
        x, names = np.asarray(X), list(self.feature_names_in_)
        if x.ndim != 2 or x.shape[1] != len(names):
            raise UsageError(f"X has the shape {x.shape}, and this model expects rows of {len(names)} columns: {names}")
        return pa.table({name: pa.array(x[:, at].tolist(), from_pandas=True) for at, name in enumerate(names)})

    def _predict_to(self, X: Any, out: str | os.PathLike[str], keep: Sequence[str]) -> int:
        """Write the predictions of stored data to a Parquet file."""
        check_is_fitted(self)
        if not self._is_by_name(X):
            raise UsageError(
                "streams the predictions of a path, source or table", option="out", fixes=["for arrays leave it out"]
            )
        return self.model_.predict_to(X, out, keep=keep)

    def _one_pass(self, X: Any, y: Any, weight: Any, labels: LabelMap | None) -> Self:
        """Learn from rows in the order given, once, going on from what was learnt before."""
        config, first = replace(self.to_config(), model=self._model_kind), not hasattr(self, "_trainer")
        x, y, weight = self._checked(X, y, weight, reset=first and not hasattr(self, "model_"))
        batch = _as_batch(x)
        target = np.asarray(y, np.float32) if labels is None else labels.encode(pa.array(np.asarray(y).tolist()))
        if first:
            outputs = loss_of(self._model_kind).outputs(0 if labels is None else len(labels.classes))
            factors = _known_class_weights(config, labels, target, weight)
            self._trainer = Trainer(config.spec(), batch.width, outputs=outputs, class_weights=factors)
            if hasattr(self, "model_"):
                self._trainer.weights = self.model_.weights.copy()
            self._passes = 0
            source = ArraySource(x[:1], y[:1])
            self._recipe = choose_features(source.schema, label="label", place="arrays").with_labels(labels)
            if self._recipe.sparse:
                self._recipe = self._recipe.with_width(batch.width)
        if weight is not None:
            weight = self._scaled(weight)
        rows = Batch(batch.x, np.ascontiguousarray(target), weight)
        stats = self._trainer.run_epoch([rows], self._passes)
        self._passes += 1
        scores = {"progressive_loss": stats.loss, f"progressive_{stats.metric}": stats.score}
        row = {"epoch": self._passes, **scores, "rows": stats.rows}
        weights: Weights = self._trainer.weights.copy()
        weights.arrange(sparse=False)
        history = [*getattr(self, "history_", []), row]
        return self._take(LinearModel(self._model_kind, weights, self._recipe, config.to_dict(), history))

    def _scaled(self, weight: NDArray[np.float32]) -> NDArray[np.float32]:
        """Divide weights by the mean of the first that were given, so that later rows count by the same measure."""
        if not hasattr(self, "_weight_mean"):
            if hasattr(self, "model_") and self.model_.recipe.weight is not None:
                self._weight_mean = self.model_.recipe.weight_mean
            elif count := np.count_nonzero(weight):
                self._weight_mean = float(weight.sum(dtype=np.float64) / count)
            else:
                return weight
        return (weight / np.float64(self._weight_mean)).astype(np.float32)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _known_class_weights(
    config: Config, labels: LabelMap | None, target: NDArray[Any], weight: NDArray[Any] | None
) -> ClassWeights | None:
    """Return the class weights of `partial_fit`, of mean 1 over the rows of the first call; later ones have the same."""
    if config.class_weight == BALANCED:
        raise UsageError(
            "needs the number of rows of each class, which partial_fit does not know",
            option="class_weight",
            value="balanced",
            fixes=["give a weight for each label", "use fit"],
        )
    if labels is None or config.class_weight is None:
        return None
    weighting = ClassWeighting.of(config.class_weight, labels.classes, column=labels.column)
    totals = np.bincount(class_codes(target, len(labels.classes)), weight, minlength=len(labels.classes))
    return None if weighting is None else weighting.factors(totals.astype(np.float64))


def _is_stored(X: Any) -> bool:
    """Whether the data are a path, address, source or table rather than arrays; a pandas frame may be either."""
    return _is_outside(X) or (is_frame(X) and not is_pandas(X))


def _is_outside(X: Any) -> bool:
    """Whether the rows are not in memory: a path, address, source or data set; some are then held out to measure on.

    All rows of arrays, matrices and tables are learned from, as scikit-learn's users expect.
    """
    if isinstance(X, (list, tuple)):
        return bool(X) and all(isinstance(each, (str, os.PathLike)) for each in X)
    return isinstance(X, (str, os.PathLike, BlockSource)) or is_dataset(X)


def _present(labels: pa.Array) -> NDArray[Any]:
    """Return the labels that are not missing, as NumPy has them."""
    values = np.asarray(labels.drop_null().to_numpy(zero_copy_only=False))
    return values[~np.isnan(values)] if values.dtype.kind == "f" else values


def _columns_of(model: LinearModel) -> list[str] | None:
    """Return the columns that a model was learnt from; None where some are lists, of many features each."""
    parts = model.recipe.described_parts
    if any(isinstance(part, (Vector, Pairs)) for part in parts):
        return None
    return list(dict.fromkeys(name for part in parts for name in part.columns))


def _as_batch(x: Any) -> Batch:
    if hasattr(x, "tocsr"):
        rows = Csr(x.indptr.astype(np.uint64), x.indices.astype(np.uint32), x.data.astype(np.float32), x.shape[1])
        return Batch(rows)
    return Batch(np.ascontiguousarray(x, np.float32))
