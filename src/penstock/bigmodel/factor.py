"""Matrix factorisation whose factors live on disk, as an estimator: fit, predict, evaluate, and single rows of factors.

A rating is the mean, the biases of the user and of the item, and the product of their factors. Ratings come from a
path, source or table with columns for user, item and rating; keys are whole numbers or text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.batch import Floats
from penstock.bigmodel.estimators import OnDisk, opened
from penstock.bigmodel.factor_model import FactorModel
from penstock.bigmodel.factor_training import FactorConfig, FactorTraining
from penstock.bigmodel.ratings import Roles
from penstock.budget import Budget
from penstock.errors import UsageError
from penstock.events import Listener, Stream
from penstock.modelfile import atomic_path, require_other


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
        How far a step goes, as in `penstock.config.Config`.
    l2 : float
        How strongly factors and biases are drawn to zero, at every rating of theirs.
    epochs : int
        Passes over the ratings.
    seed : int
        Of the first factors and of the order.
    threads : int
        Threads that learn at the same time, without locks; with one, the result is the same whenever it is run.
    validation : float
        Share of the rows held out and measured after every epoch.

    Attributes
    ----------
    history_ : list of dict
        For each epoch its ``rmse``, ``loss`` (half the mean squared error, without the penalty), ``seconds``, ``rows``
        and ``bytes``; ``test_rmse`` and ``test_loss`` where rows are held out or a test set is given. Each rating
        counts as predicted just before its own update.
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

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        *,
        rank: int = 100,
        memory: str | int = "1GB",
        learning_rate: float = 0.01,
        rate: str = "exponential",
        decay: float = 0.95,
        power: float = 0.25,
        l2: float = 0.02,
        epochs: int = 20,
        seed: int = 0,
        threads: int = 1,
        validation: float = 0.0,
    ) -> None:
        self.model_dir = model_dir
        self.rank = rank
        self.memory = memory
        self.learning_rate = learning_rate
        self.rate = rate
        self.decay = decay
        self.power = power
        self.l2 = l2
        self.epochs = epochs
        self.seed = seed
        self.threads = threads
        self.validation = validation

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
        self.__dict__.pop("model_", None)
        with ExitStack() as stack:
            job = FactorTraining(
                opened(stack, data),
                self.model_dir,
                self._config(),
                Roles(user, item, rating),
                test=None if test is None else opened(stack, test),
                stream=Stream(list(listeners)),
            )
            return self._take(job.run(resume=resume))

    def predict(self, data: Any, *, out: str | os.PathLike[str] | None = None) -> Floats | int:
        """Return what each row is expected to be rated, in the rows' order.

        Parameters
        ----------
        data : path, source or table with columns for user and item, or a pair (users, items) of keys
            The rows. Users and items that are not known are predicted by the mean and the bias of the other.
        out : path, optional
            A Parquet file to write the predictions of a path, source or table to, as they are made; their number is
            then returned.
        """
        model, memory = self._model(), self._memory()
        if isinstance(data, tuple) and len(data) == 2:
            if out is not None:
                raise UsageError("out= streams the predictions of a path, source or table; for pairs leave it out")
            return model.predict_pairs(*data, memory=memory)
        with ExitStack() as stack:
            source = opened(stack, data)
            if out is None:
                parts = list(model.predictions(source, memory=memory))
                return np.concatenate(parts) if parts else np.empty(0, np.float32)
            require_other(out, source.name)
            count, schema = 0, pa.schema([("prediction", pa.float32())])
            with atomic_path(out) as temporary, pq.ParquetWriter(temporary, schema) as writer:
                for scores in model.predictions(source, memory=memory):
                    writer.write_batch(pa.record_batch({"prediction": pa.array(scores)}))
                    count += len(scores)
            return count

    def evaluate(self, data: Any, *, rating: str | None = None) -> dict[str, float]:
        """Measure the model on the ratings of a path, source or table: rmse, r2, and rows."""
        model = self._model()
        roles = model.roles if rating is None else Roles(model.roles.user, model.roles.item, rating)
        with ExitStack() as stack:
            return model.evaluate(opened(stack, data), memory=self._memory(), roles=roles)

    def score(self, data: Any, *, rating: str | None = None) -> float:
        """Return the R² over the ratings of a path, source or table, as of every regression."""
        return self.evaluate(data, rating=rating)["r2"]

    def factors(self, *, users: Any = None, items: Any = None) -> tuple[Floats, Floats]:
        """Return the factors (a row each) and the biases of some users, or of some items, by their keys."""
        return self._model().factors(users=users, items=items, memory=self._memory())

    @classmethod
    def load(cls, model_dir: str | os.PathLike[str], *, memory: str | int | None = None) -> Self:
        """Open a model that was trained, to predict with or to go on training; ``memory`` may differ from then."""
        model = FactorModel.load(model_dir)
        given = dict(model.header["config"])
        if memory is not None:
            given["memory"] = memory
        return cls(model_dir=model_dir, **given)._take(model)

    def _take(self, model: FactorModel) -> Self:
        self.model_ = model
        self.history_ = [dict(row) for row in model.header["history"]]
        self.mean_ = model.mean
        return self

    def _model(self) -> FactorModel:
        model: FactorModel | None = self.__dict__.get("model_")
        if model is None:
            raise UsageError("this model is not trained yet; call fit, or MatrixFactorization.load(model_dir)")
        return model

    def _memory(self) -> int:
        return Budget.parse(self.memory).resolve(self._model().layout.nbytes)

    def _config(self) -> FactorConfig:
        names = FactorConfig.__dataclass_fields__
        return FactorConfig(**{name: getattr(self, name) for name in names})
