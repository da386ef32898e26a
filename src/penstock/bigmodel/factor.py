"""Matrix factorisation whose factors live on disk, as an estimator: fit, predict, evaluate, and single rows of factors.

A rating is the mean, the biases of the user and of the item, and the product of their factors. Ratings come from a
path, source or table with columns for user, item and rating; keys are whole numbers or text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Self

from penstock.batch import Floats
from penstock.bigmodel.estimators import OnDisk, opened
from penstock.bigmodel.factor_config import FactorConfig
from penstock.bigmodel.factor_learner import factor_job
from penstock.bigmodel.factor_model import FactorModel
from penstock.bigmodel.ratings import Roles
from penstock.errors import UsageError
from penstock.events import Listener, Stream
from penstock.model import predict, write_predictions
from penstock.options import default
from penstock.outputs import require_file, require_folder


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
                opened(stack, data),
                self.model_dir,
                self._config(),
                Roles(user, item, rating),
                test=None if test is None else opened(stack, test),
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
        with ExitStack() as stack:
            source = opened(stack, data)
            return predict(model, source) if out is None else write_predictions(model, source, out, keep=keep)

    def evaluate(self, data: Any, *, rating: str | None = None) -> dict[str, Any]:
        """Measure the model on the ratings of a path, source or table: loss, rmse, mae, r2, and rows."""
        with ExitStack() as stack:
            return self._model().evaluate(opened(stack, data), label=rating)

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
