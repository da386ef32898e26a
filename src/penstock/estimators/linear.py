"""The four linear models with scikit-learn's methods, and `load`, which brings a saved one back."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from penstock.blocks.labels import LabelMap
from penstock.config import Config
from penstock.errors import LabelError, UsageError
from penstock.estimators.base import Linear, OfSgd
from penstock.linear import LinearModel


class _Classifier(ClassifierMixin, Linear):
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

    @OfSgd
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
    solver : str
        ``"sgd"``, or ``"lbfgs"`` and ``"gd"`` (gradient descent) of `LogisticRegression` and `LinearRegression`: one step
        for each pass over all rows, until no entry of the gradient is above ``tolerance``. These take no ``batch_size`` and
        no schedule, and rows as they are stored, whose order makes no difference.
    learning_rate, rate, decay, power
        The step (if not given 0.1, or 0.01 for squared loss; with ``"lbfgs"`` and ``"gd"`` 1) and its schedule:
        ``exponential`` (by ``decay`` an epoch), ``inverse-scaling`` (by ``power``) or ``constant``.
    epochs, batch_size : int
        Passes over the data, at most, and rows to an update.
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
        A metric row for each epoch: with ``"sgd"`` of each row just before its own update, else of all rows at the best
        weights so far, which in the first epoch are zero.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock import LogisticRegression
    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 25)
    >>> y = np.array(["no", "no", "yes", "yes"] * 25)
    >>> LogisticRegression(epochs=5).fit(X, y).predict([[-3.0], [3.0]])
    array(['no', 'yes'], dtype='<U3')
    >>> exact = LogisticRegression(solver="lbfgs", l2=0.1, epochs=50).fit(X, y)
    >>> exact.n_iter_ < 50, exact.coef_.round(2)
    (True, array([[1.46]], dtype=float32))
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


class LinearRegression(RegressorMixin, Linear):
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

    @OfSgd
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from one array of rows, in the order given, going on from what was learnt before."""
        return self._one_pass(X, y, sample_weight, None)

    def _take(self, model: LinearModel) -> Self:
        super()._take(model)
        self.coef_ = model.weights.coef[0]
        self.intercept_ = model.weights.intercept[0]
        return self


_ESTIMATORS = {each._kind: each for each in (LogisticRegression, LinearSVM, SoftmaxRegression, LinearRegression)}


def load(path: str | os.PathLike[str], *, memory: str | int | None = None) -> Any:
    """Read a saved model as a fitted estimator: a file that `save` or ``penstock train`` wrote, or a model's directory.

    Parameters
    ----------
    path : path
        A model file, or the directory that was given as ``model_dir`` or ``--model-dir``; that gives an estimator of
        `penstock.bigmodel`, whose weights stay on disk.
    memory : str or int, optional
        What measuring data may hold; of a directory, what rows and pages may hold when it predicts (``"1GB"`` if not
        given).

    Examples
    --------
    >>> import penstock
    >>> penstock.LinearSVM(epochs=2).fit("clicks.parquet", y="clicked").save("svm.penstock")
    >>> penstock.load("svm.penstock")
    LinearSVM(epochs=2, standardize=False)
    """
    if os.path.isdir(path):
        return _from_directory(path, {} if memory is None else {"memory": memory})
    model = LinearModel.load(path)
    known = {f.name for f in fields(Config)} - {"model"}
    given = {k: v for k, v in model.config.items() if k in known}
    if memory is not None:
        given["memory"] = memory
    return _ESTIMATORS[model.kind](**given)._take(model)


def _from_directory(path: str | os.PathLike[str], memory: dict[str, str | int]) -> Any:
    """Return the estimator of a model on disk, with the hyper-parameters that it was trained with."""
    from penstock import bigmodel
    from penstock.bigmodel.model import Saved, read_state

    if read_state(path)[1].get("bigmodel") == "factor":
        return bigmodel.MatrixFactorization.load(path, **memory)
    header = Saved.read(path).header
    kinds = (bigmodel.LogisticRegression, bigmodel.LinearSVM, bigmodel.LinearRegression)
    found = next(each for each in kinds if each._kind == header["kind"]).load(path, **memory)
    # Not the memory: training had two numbers, one of them perhaps a share, and scoring needs another one.
    trained = {**header["config"], **header["storage"]}
    known = [name for name in found.get_params() if name in trained and name != "memory"]
    return found.set_params(**{name: trained[name] for name in known})
