"""Estimators whose models live on disk: linear ones, with the methods and parameters of those in memory, and factorization.

Linear ones have no ``coef_``, which would not fit; `weights` reads those of some features. A rating is the mean, the biases of
user and item, and the product of their factors; ratings have columns for user, item and rating, keys are whole numbers or text.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.bigmodel.disk_learner import disk_job
from penstock.bigmodel.factor_learner import FactorConfig, factor_job
from penstock.bigmodel.factor_model import FactorModel
from penstock.bigmodel.model import BigLinearModel
from penstock.bigmodel.ratings import Roles
from penstock.bigmodel.storage import MemorySplit, Storage
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import opened
from penstock.closing import Closing
from penstock.config import Config
from penstock.errors import UsageError
from penstock.events import Listener, Stream
from penstock.linear import decide, log_probabilities
from penstock.model import predict, write_predictions
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
        category: Sequence[str] = (),
        number: Sequence[str] = (),
        date: Sequence[str] = (),
        missing: str | None = None,
        null_values: Sequence[str] = (),
        test: Any = None,
        resume: bool = False,
        listeners: Sequence[Listener] = (),
    ) -> Self:
        """Train in the model's directory, or with ``resume`` go on from the last checkpoint there.

        ``X`` is a path, address, source, table or sparse matrix; the other parameters are those of `penstock.LogisticRegression.fit`.
        """
        require_folder(self.model_dir)
        memory = MemorySplit.of(self.memory)
        own = {name: value for name, value in self.get_params().items() if name in Config.__dataclass_fields__}
        config = Config(**{**own, "model": self._kind, "solver": "sgd", "memory": memory.rows})
        storage = Storage(model_memory=memory.model, threads=self.threads, keep=self.keep)
        with ExitStack() as stack:
            if y is None or isinstance(y, str):
                source = stack.enter_context(opened(X))
                columns = Columns(
                    y, features, sample_weight, exclude, hash, category, number, date, missing, null_values
                )
            else:
                source = stack.enter_context(ArraySource(X, y, weight=sample_weight))
                columns = Columns("label", weight=None if sample_weight is None else "weight")
            measured = None if test is None else stack.enter_context(opened(test))
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
        stored = y is None or isinstance(y, str)
        with opened(X) if stored else ArraySource(X, y) as source:
            return model.evaluate_warned(source, label=y if stored else "label")

    def predict(
        self, X: Any, *, out: str | os.PathLike[str] | None = None, keep: Sequence[str] = ()
    ) -> NDArray[Any] | int:
        """Return the prediction of each row, or write them to the Parquet file ``out`` and return how many there are."""
        model = self._fitted()
        return decide(self._kind, model.recipe, self._scores(X)) if out is None else model.predict_to(X, out, keep=keep)

    def decision_function(self, X: Any) -> Floats:
        """Return a score a row."""
        return self._scores(X)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the accuracy, or the R² of a regression."""
        found = self.evaluate(X, y)
        return float(found.get("accuracy", found.get("r2", 0.0)))

    def close(self) -> None:
        """Close the model's files; leaving a ``with`` block does, too."""
        if hasattr(self, "model_"):
            self.model_.close()

    def _scores(self, X: Any) -> Floats:
        with opened(X) as source:
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


@dataclass(kw_only=True, eq=False, repr=False)
class MatrixFactorization(OnDisk):
    """Low-rank matrix factorisation of ratings, learnt by SGD, larger than memory if need be.

    Parameters
    ----------
    model_dir : path
        Where the model lives; made if it is not there.
    rank : int
        Factors to a user and to an item.
    memory : str or int
        What pages and ratings may take together; ``"25%"`` is of the model's own size. Keys come on top: about 40 bytes
        a user or item, more for long text.
    learning_rate, rate, decay, power
        How far a step goes, as in `penstock.config.Config`; ``"auto"`` is 0.01 at first.
    l2 : float
        How strongly factors and biases are drawn to zero, at every rating of theirs.
    epochs : int, optional
        Passes over the ratings, 20 at most if not given.
    seed : int
        Of the first factors and of the order.
    threads : int
        Threads that learn at the same time, without locks; with one, the result is the same whenever it is run.
    validation : float, optional
        Share of the ratings held out and measured after every epoch, 0 for none; if not given 10 %, about 10,000 ratings at
        most, none of fewer than 500 or where a test set is given.
    patience : int, optional
        Stop after so many epochs in which the loss of held-out ratings, or of the test set, has not fallen, 0 for never; if not given 5 where ratings are held out
        and ``epochs`` is left open. The model then has the factors of the best epoch.
    tolerance : float
        What counts as a fall of the loss, as a share of it.

    Attributes
    ----------
    history_ : list of dict
        For each epoch its ``progressive_rmse``, ``progressive_loss`` (half the mean squared error, without the penalty),
        ``seconds``, ``rows`` and ``bytes``; ``held_out_rmse`` and ``held_out_loss`` where ratings are held out, ``test_rmse``
        and ``test_loss`` where a test set is given. For progressive figures each rating counts as predicted just before its
        own update.
    mean_ : float
        The mean rating.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> rated = pa.table({"user": ["ann", "ann", "bob"], "item": [1, 2, 1], "rating": [5.0, 1.0, 4.0]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = MatrixFactorization(model_dir=folder, rank=2, memory="1MB", epochs=30).fit(rated)
    ...     known, stranger = model.predict((["ann", "eve"], [1, 3]))
    >>> bool(known > 3.4), round(float(stranger), 4), len(model.history_)
    (True, 3.3333, 30)
    """

    rank: int = default("rank")
    rate: str = default("rate", "factor")
    l2: float = default("l2", "factor")

    def fit(
        self,
        data: Any,
        *,
        user: str = "user",
        item: str = "item",
        rating: str = "rating",
        test: Any = None,
        listeners: Sequence[Listener] = (),
        resume: bool = False,
    ) -> Self:
        """Train from scratch, or go on from the directory's last checkpoint.

        Parameters
        ----------
        data : path, address, source or table
            The ratings.
        user, item, rating : str
            Their columns.
        test : path, source or table, optional
            Ratings measured after every epoch, in columns of the same names.
        listeners : callables
            Hear the events of `penstock.events`.
        resume : bool
            Whether to go on where an earlier training of the same data was broken off, or has ended with fewer epochs.
        """
        require_folder(self.model_dir)
        self.__dict__.pop("model_", None)
        with ExitStack() as stack:
            job = factor_job(
                stack.enter_context(opened(data)),
                self.model_dir,
                self._config(),
                Roles(user, item, rating),
                test=None if test is None else stack.enter_context(opened(test)),
                stream=Stream(list(listeners)),
            )
            return self._take(job.run(resume=resume))

    def predict(
        self, data: Any, *, out: str | os.PathLike[str] | None = None, keep: Sequence[str] = ()
    ) -> Floats | int:
        """Return what each row is expected to be rated, in the rows' order.

        Parameters
        ----------
        data : path, source or table with columns for user and item, or a pair (users, items) of keys
            The rows. Users and items that are not known are predicted by the mean and the bias of the other.
        out : path, optional
            A Parquet file to write the predictions of a path, source or table to, as they are made; their number is
            then returned.
        keep : list of str
            Columns to carry over to that file.
        """
        model = self._model()
        if isinstance(data, tuple) and len(data) == 2:
            if out is not None:
                raise UsageError(
                    "streams the predictions of a path, source or table", option="out", fixes=["for pairs leave it out"]
                )
            return model.predict_pairs(*data)
        if out is not None:
            require_file(out)
        with opened(data) as source:
            return predict(model, source) if out is None else write_predictions(model, source, out, keep=keep)

    def evaluate(self, data: Any, *, rating: str | None = None) -> dict[str, Any]:
        """Measure the model on the ratings of a path, source or table: loss, rmse, mae, r2, and rows."""
        with opened(data) as source:
            return self._model().evaluate(source, label=rating)

    def score(self, data: Any, *, rating: str | None = None) -> float:
        """Return the R² over the ratings of a path, source or table, as of every regression."""
        return float(self.evaluate(data, rating=rating)["r2"])

    def factors(self, *, users: Any = None, items: Any = None) -> tuple[Floats, Floats]:
        """Return the factors (a row each) and the biases of some users, or of some items, by their keys."""
        return self._model().factors(users=users, items=items)

    @classmethod
    def load(cls, model_dir: str | os.PathLike[str], *, memory: str | int | None = None) -> Self:
        """Open a model that was trained, to predict with or to go on training; ``memory`` may differ from then."""
        return cls.of(FactorModel.load(model_dir, memory=memory))

    @classmethod
    def of(cls, model: FactorModel, *, memory: str | int | None = None) -> Self:
        """Return the estimator of a model, with the hyper-parameters that it was trained with."""
        memory = model.memory if memory is None else memory
        return cls(model_dir=model.folder, **{**model.config, "memory": memory})._take(model)

    def _take(self, model: FactorModel) -> Self:
        self.model_ = model
        self.history_ = [dict(row) for row in model.history]
        self.mean_ = model.mean
        return self

    def _model(self) -> FactorModel:
        model: FactorModel | None = self.__dict__.get("model_")
        if model is None:
            raise UsageError("this model is not trained yet; call fit, or MatrixFactorization.load(model_dir)")
        return replace(model, memory=self.memory)

    def _config(self) -> FactorConfig:
        names = FactorConfig.__dataclass_fields__
        return FactorConfig(**{name: getattr(self, name) for name in names})
