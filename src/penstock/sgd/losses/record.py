"""A loss as one record, with all that the package knows of it, and how kernels are compiled for it.

A kernel takes the record as an argument and uses ``loss.row``, ``loss.run`` and ``loss.classifies``. Numba compiles it once for
each loss, with the loss's own code inlined. The record's Numba type carries a digest of that code: Numba's cache on disk does not
see edits in other files, but another type is another entry of the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal

import numpy as np
from numba.core import types
from numba.extending import NativeValue, models, overload_attribute, overload_method, register_model, typeof_impl, unbox
from numpy.typing import NDArray

from penstock.native import kernel
from penstock.sgd.scalar import ZERO

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Loss:
    """A loss of scores against labels, and the linear model that minimizes it.

    Labels are float32: -1 and +1 of two classes, the number of the class where there is a score for each, and the number itself in a
    regression.

    Attributes
    ----------
    name, model : str
        The loss's own name, and the word by which users choose the model.
    metric : str
        The measure reported beside the loss: accuracy of classes, r2 of numbers.
    curvature : float
        An upper bound of the second derivative by the scores, which bounds the length of a step; 1 for the hinge, which
        has none.
    value, slope : callable
        ``value(scores, y)`` returns the loss of each row in NumPy, ``slope(scores, y)`` its derivative by the scores. They specify
        the kernels.
    row : kernel
        ``row(score, y)`` returns (slope, value, e) of one float32 score; the loss is the value plus log(1 + e). Only softmax,
        which has kernels of its own, has none.
    run : kernel, optional
        ``run(z, y, train, held, bias)`` does what `run_of_rows` does for up to `penstock.sgd.scalar.RUN` rows, in a loop that vectorizes.
    smoothed : bool
        Whether ``run`` descends a smooth neighbor of the loss, because L-BFGS goes astray at corners.
    many : bool
        Whether there is a score for each class rather than one for the row.
    solvers : tuple of str
        Solvers beside SGD, the best first.
    bounded_rate, plain_rate : float
        The learning rate of SGD where none is given, with bounded steps and without.
    aliases : tuple of str
        Other words for the model, in SQL.
    several : str, optional
        The model that is trained in its place if there are three or more classes.
    probabilities, log_probabilities : callable, optional
        Probabilities of the classes, (rows, classes), or their logarithms, of scores.
    probability_sql : callable, optional
        ``probability_sql(score, exp)`` writes the probability of the second class, of a score between -500 and 500 and the engine's name
        of the exponential.

    Examples
    --------
    >>> from penstock.sgd.losses import HINGE
    >>> HINGE.value(np.array([0.5, 2.0]), np.array([1.0, 1.0]))
    array([0.5, 0. ])
    >>> HINGE.slope(np.array([0.5, 2.0]), np.array([1.0, 1.0]))
    array([-1.,  0.])
    """

    name: str
    model: str
    metric: Literal["accuracy", "r2"] = "accuracy"
    curvature: float
    value: Callable[[Array, Array], Array]
    slope: Callable[[Array, Array], Array]
    row: Callable[..., Any] | None = None
    run: Callable[..., Any] | None = None
    smoothed: bool = False
    many: bool = False
    solvers: tuple[str, ...] = ("lbfgs", "gd")
    bounded_rate: float = 0.1
    plain_rate: float = 0.1
    aliases: tuple[str, ...] = ()
    several: str | None = None
    probabilities: Callable[[NDArray[Any]], NDArray[np.float32]] | None = None
    log_probabilities: Callable[[NDArray[Any]], NDArray[np.float64]] | None = None
    probability_sql: Callable[[str, str], str] | None = None
    native: LossType = field(init=False, repr=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha256()
        for function in (self.row, self.run):
            _add_code(digest, function)
        native = LossType(f"Loss({self.name}, {digest.hexdigest()[:16]})")
        object.__setattr__(self, "native", native)
        _RECORDS[native.name] = self

    def __reduce__(self) -> Any:
        from penstock.sgd.losses import find_loss

        return find_loss, (self.name,)  # copies and pickles are the registered loss

    @property
    def classifies(self) -> bool:
        """Whether labels are classes."""
        return self.metric == "accuracy"

    @property
    def exact(self) -> bool:
        """Whether the normal equations solve it: it is half the squared error."""
        return "exact" in self.solvers

    def outputs(self, classes: int) -> int:
        """Return the number of scores that a row has."""
        return classes if self.many else 1

    def scored(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Return scores (rows, outputs) in the shape that all functions of the loss take: (rows,) where there is one a row."""
        return scores if self.many else scores[:, 0]

    def decision(self, scores: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers of the classes with the highest scores; the scores themselves where a row has one."""
        return np.asarray(scores.argmax(axis=1)) if self.many else scores

    def hits(self, scores: Array, y: Array) -> NDArray[Any]:
        """Return which rows are classified as labelled, zero counting for the negative class; of numbers the squared errors."""
        if not self.classifies:
            return np.asarray((scores - y) ** 2)
        return np.asarray(scores.argmax(axis=1) == y if self.many else (scores > 0) == (y > 0), bool)

    def at_zero(self, outputs: int = 1) -> float:
        """Return the loss of a model whose weights are zero, of a row in class 1."""
        return float(self.value(np.zeros((1, outputs)) if self.many else np.zeros(1), np.ones(1))[0])


_RECORDS: dict[str, Loss] = {}
"""The losses by the names of their Numba types."""


def _add_code(digest: Any, function: Any) -> None:
    """Add the code of a function to a digest, with the constants and kernels that it uses."""
    function = getattr(function, "py_func", function)
    if not hasattr(function, "__code__"):
        digest.update(repr(function).encode() if isinstance(function, int | float | str | np.generic) else b"-")
        return
    code: CodeType = function.__code__
    constants = tuple(constant for constant in code.co_consts if not isinstance(constant, CodeType))
    digest.update(code.co_code + repr((code.co_names, constants)).encode())
    for name in code.co_names:
        if name in function.__globals__:
            _add_code(digest, function.__globals__[name])
    for cell in function.__closure__ or ():
        _add_code(digest, cell.cell_contents)


class LossType(types.Type):
    """The Numba type of one loss."""

    @property
    def record(self) -> Loss:
        """The loss."""
        return _RECORDS[self.name]


register_model(LossType)(models.OpaqueModel)


@typeof_impl.register(Loss)
def _typeof(loss: Loss, context: Any) -> LossType:
    return loss.native


@unbox(LossType)
def _unbox(loss_type: Any, value: Any, c: Any) -> Any:
    return NativeValue(c.context.get_dummy_value())  # all that is known of a loss is in its type


@overload_attribute(LossType, "classifies", strict=False)
def _classifies(loss: Any) -> Any:
    classifies = loss.record.classifies
    return lambda loss: classifies


@overload_attribute(LossType, "exact", strict=False)
def _exact(loss: Any) -> Any:
    exact = loss.record.exact
    return lambda loss: exact


@overload_method(LossType, "row", strict=False)
def _row(loss: Any, score: Any, y: Any) -> Any:
    row = loss.record.row
    return lambda loss, score, y: row(score, y)


@overload_method(LossType, "run", strict=False)
def _run(loss: Any, z: Any, y: Any, train: Any, held: Any, bias: Any) -> Any:
    run = loss.record.run
    if run is None:
        return lambda loss, z, y, train, held, bias: run_of_rows(loss, z, y, train, held, bias)
    return lambda loss, z, y, train, held, bias: run(z, y, train, held, bias)


@kernel
def run_of_rows(loss: Any, z: Any, y: Any, train: Any, held: Any, bias: Any) -> Any:
    """Turn the scores of some rows, less the bias, into slopes by training weight, in place.

    Returns (loss, slope) summed by training weight, then (loss, right answers) by held-out weight; of a regression the last is the
    squared error. A row of weight zero adds nothing, not even what is not finite.
    """
    total, pushed, held_loss, right = 0.0, 0.0, 0.0, 0.0
    for i in range(len(z)):
        score = z[i] + bias
        slope, value, e = loss.row(score, y[i])
        value += np.log1p(np.float64(e))
        push = np.float32(train[i] * slope) if train[i] > ZERO else ZERO
        z[i] = push
        pushed += float(push)
        total += train[i] * value if train[i] > ZERO else 0.0
        held_loss += held[i] * value if held[i] > ZERO else 0.0
        if not loss.classifies:
            right += held[i] * (score - y[i]) * (score - y[i]) if held[i] > ZERO else 0.0
        elif (score > ZERO) == (y[i] > ZERO):
            right += held[i]
    return total, pushed, held_loss, right
