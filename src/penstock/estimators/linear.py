"""The four linear models with scikit-learn's methods."""

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

from penstock.columns.labels import LabelMap
from penstock.config import Config
from penstock.errors import LabelError, UsageError
from penstock.estimators.base import LinearEstimator, OfSgd
from penstock.linear import LinearModel, log_probabilities
from penstock.sgd.losses import loss_of


class _Classifier(ClassifierMixin, LinearEstimator):
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
            binary = not loss_of(self._model_kind).many
            self._labels = LabelMap(tuple(self.classes_.tolist()), binary=binary, column="y")
        if classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            reason = f"is not what the first call was given: {self.classes_!r}"
            raise UsageError(reason, option="classes", value=classes)
        return self._one_pass(X, y, sample_weight, self._labels)

    def _check_target(self, y: NDArray[Any]) -> NDArray[Any]:
        check_classification_targets(y)
        return y

    def _note_target(self, y: NDArray[Any]) -> None:
        self.classes_ = np.unique(y)  # of the labels' own type, which the model file does not know
        if len(self.classes_) == 1:
            raise LabelError(f"y holds only one class, {y[0]!r}; there is nothing to tell apart: give rows of each")
        if len(self.classes_) > 2 and not (loss_of(self._kind).several or loss_of(self._kind).many):
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
            return float(self.evaluate(X, y)["accuracy"])
        return float(super().score(X, y, sample_weight))


class _ProbabilityClassifier(_Classifier):
    """What the classifiers share whose scores are probabilities."""

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class for each row."""
        check_is_fitted(self)
        chances = self.model_.probabilities(self._scores(X))
        assert chances is not None  # these models have them
        return chances

    def predict_log_proba(self, X: Any) -> NDArray[Any]:
        """Return the logarithm of the probability of each class for each row."""
        check_is_fitted(self)
        chances = log_probabilities(self.model_.kind, self._scores(X))
        assert chances is not None  # as above
        return chances


class LogisticRegression(_ProbabilityClassifier):
    """Classes by logistic loss; three or more of them by the softmax loss.

    Parameters
    ----------
    solver : str
        ``"auto"`` solves least squares exactly where the features are few; else it is ``"lbfgs"`` for dense rows that fit in
        memory, and ``"sgd"`` for others and where one of its options is given. ``"lbfgs"`` and ``"gd"`` (gradient descent)
        make one step for each pass over all rows, until no entry of the gradient is above ``tolerance``; ``"exact"`` solves
        the normal equations of `LinearRegression` in one pass. These take no ``batch_size`` and no schedule, and rows as
        they are stored, whose order makes no difference.
    optimizer : str, optional
        How SGD turns gradients into steps; if not given, ``"ftrl"`` for more than 2,000 sparse features, else ``"sgd"``.
        ``"sgd"`` makes plain ones, or ``"adagrad"``, ``"adam"`` or ``"ftrl"``, where every
        weight has a rate of its own. ``"ftrl"`` with ``l1`` makes weights exactly zero; the other two take no ``l1``. Of sparse
        rows AdaGrad and Adam touch only the features that occur in a row, and L2 draws on those alone. A learning rate of a
        `LinearRegression` is in units of the labels' standard deviation in the first rows.
    learning_rate, rate, decay, power
        The step of SGD and its schedule: ``exponential`` (by ``decay`` an epoch), ``inverse-scaling`` (by ``power``) or
        ``constant``. By default each step is bounded by the size of its row, so that none is too large, and falls with
        the epochs.
    epochs : int, optional
        Passes over the data, at most; if not given 20 for SGD and 100 for L-BFGS.
    batch_size : int
        Rows to an update of SGD.
    l1, l2 : float
        Penalties on the weights; ``l2="auto"`` is 1 / rows, which is scikit-learn's ``C=1``, of ``"ftrl"`` 0.1 / rows, or 0 with an
        L1 penalty.
    average : bool
        Whether SGD's model is the mean of the weights over the epochs, in which later ones count more, or the last weights; of
        ``"ftrl"`` with ``l1`` it is always the last ones, since a mean has no zeros.
    class_weight : str or mapping, optional
        How much rows count in training by their class: ``"balanced"`` for classes that count alike whatever their numbers of
        rows (each row n / (classes x rows of its class)), or a weight for each label, 1 where none is given. Multiplied with
        ``sample_weight`` and brought to mean 1, so that only proportions matter. Measures do not use it.
    intercept, standardize : bool
        Learn an intercept; bring features to mean 0 and spread 1 first, sparse ones to spread 1 alone.
    shuffle : str
        The order of the rows: corgipile, global, none, once, epoch, sliding-window, mrs, block-only.
    memory : str or int
        What the data may occupy, such as ``"512MB"`` or, of the data's size, ``"10%"``.
    seed : int
        Of all chance.
    validation : float, optional
        The share of rows held out to measure on, 0 for none. If not given, 10 % of the rows of a path, address or source
        (about 10,000 at most, none of fewer than 500), and none of arrays and tables in memory, unless ``patience`` asks.
    patience, tolerance
        After how many epochs without improvement of the loss by ``tolerance``, a share of it, to stop; the best epoch's
        weights are kept. The loss is that of the rows held out; with ``validation=0`` that of the test set, or the
        progressive one. If not given, SGD stops after 5 where rows are held out and ``epochs`` is left open; 0 is never.
    warm_start : bool
        Whether ``fit`` begins with the weights of the last ``fit``, of rows with the same features and classes, rather than
        with zeros. The schedule of steps and what an optimizer keeps begin anew; ``"exact"`` depends on no start.

    Attributes
    ----------
    coef_, intercept_, classes_
        As in scikit-learn.
    history_ : list of dict
        A metric row for each epoch. Its ``progressive_`` figures are with ``"sgd"`` of each row just before its own
        update, else of all rows at the best weights so far, which in the first epoch are zero; ``held_out_`` and
        ``test_`` figures are of the weights after the epoch.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock import LogisticRegression
    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]] * 25)
    >>> y = np.array(["no", "no", "yes", "yes"] * 25)
    >>> LogisticRegression().fit(X, y).predict([[-3.0], [3.0]])
    array(['no', 'yes'], dtype='<U3')
    >>> raw = LogisticRegression(l2=0.1, standardize=False).fit(X, y)
    >>> raw.n_iter_ < 50, raw.coef_.round(2)
    (True, array([[1.46]], dtype=float32))
    """

    _kind = "logistic"

    @property
    def _model_kind(self) -> str:
        return "softmax" if len(self.classes_) > 2 else self._kind


class LinearSVM(_Classifier):
    """Two classes by hinge loss. Parameters and attributes as in `LogisticRegression`."""

    _kind = "svm"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class SoftmaxRegression(_ProbabilityClassifier):
    """Two or more classes by the softmax (multinomial logistic) loss. Parameters as in `LogisticRegression`."""

    _kind = "softmax"


class LinearRegression(RegressorMixin, LinearEstimator):
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
            return float(self.evaluate(X, y)["r2"])
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


def fitted_estimator(model: LinearModel, *, memory: str | int | None = None) -> LinearEstimator | LinearModel:
    """Return the fitted estimator of a model, with the hyper-parameters that it was trained with.

    A model of a loss that was added has no estimator, and is returned itself.
    """
    if model.kind not in _ESTIMATORS:
        return model
    known = {f.name for f in fields(Config)} - {"model"}
    given = {"solver": "sgd", **{k: v for k, v in model.config.items() if k in known}}  # which old files do not name
    if memory is not None:
        given["memory"] = memory
    return _ESTIMATORS[model.kind](**given)._take(model)
