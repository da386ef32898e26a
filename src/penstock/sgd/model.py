"""The weights of a linear model, with what the lazily kept penalties of sparse training still owe.

``coef`` is (outputs, features) float32. While sparse batches are trained on, the true weights are
``scale * soft(coef, owed - seen)``, or follow from what an optimizer keeps; `Weights.settle` makes ``coef`` them. Everything
that training depends on is in `Weights.arrays`, so weights made of these continue exactly as the original would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.errors import ModelFileError, UsageError
from penstock.sgd import kernels
from penstock.sgd.optimizer_state import OptimizerState
from penstock.sgd.scalar import CLOCK, OWED, SCALE, STEP, settle

Doubles = NDArray[np.float64]


def _clock() -> Doubles:
    clock = np.zeros(CLOCK)
    clock[SCALE] = 1.0
    return clock


@dataclass(slots=True)
class Weights:
    """A linear model's weights, changed in place by training.

    Attributes
    ----------
    coef : float32 array (outputs, features)
        The weights; in sparse training with L1 or L2, only after `settle`.
    intercept : float32 array (outputs,)
        The intercepts, zero where the model has none.
    clock : float64 array
        The updates made so far, the weights' common factor, and the L1 penalty owed by all.
    seen : float64 array
        What each feature had paid when last seen; empty where L1 is not kept lazily.
    optimizer_state : OptimizerState, optional
        What an optimizer keeps beside the weights.

    Examples
    --------
    >>> weights = Weights.zeros(width=3, outputs=1)
    >>> weights.coef.shape, weights.updates
    ((1, 3), 0)
    >>> weights.scores(Batch(np.ones((2, 3), np.float32)))
    array([[0.],
           [0.]], dtype=float32)
    """

    coef: Floats
    intercept: Floats
    clock: Doubles = field(default_factory=_clock)
    seen: Doubles = field(default_factory=lambda: np.zeros(0))
    optimizer_state: OptimizerState | None = None

    @classmethod
    def zeros(cls, width: int, outputs: int = 1) -> Weights:
        """Return weights that know nothing yet."""
        if width < 0 or outputs < 1:
            raise UsageError(f"a model of {width} features and {outputs} outputs cannot be; give at least one output")
        return cls(np.zeros((outputs, width), np.float32), np.zeros(outputs, np.float32))

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self.coef.shape[1])

    @property
    def outputs(self) -> int:
        """The number of scores for a row: one, or one for each class."""
        return int(self.coef.shape[0])

    @property
    def updates(self) -> int:
        """How many updates were made since training began."""
        return int(self.clock[STEP])

    def arrange(self, *, sparse: bool, lazy_l1: bool = False) -> None:
        """Lay the weights out for the kind of rows to come; values stay as they are.

        Sparse rows want a feature's weights side by side, dense ones a class's.
        """
        if sparse:
            self.coef = np.asfortranarray(self.coef)
            if lazy_l1 and len(self.seen) == 0:
                self.seen = np.full(self.width, self.clock[OWED])
        else:
            self.settle()
            self.coef = np.ascontiguousarray(self.coef)

    @property
    def owes(self) -> bool:
        """Whether ``coef`` differs from the true weights, until `settle`."""
        lazy = self.clock[SCALE] != 1.0 or self.clock[OWED] != 0.0
        return bool(lazy or (self.optimizer_state is not None and self.optimizer_state.due))

    def settle(self) -> None:
        """Pay all that is owed, so that ``coef`` holds the true weights."""
        if not self.owes:
            return
        self.coef = np.asfortranarray(self.coef)
        settle(self.coef.T, self.clock, self.seen)
        if self.optimizer_state is not None:
            self.optimizer_state.settle(self.coef, self.clock[STEP])
            self.optimizer_state.due = False

    def settled(self) -> Weights:
        """Return the weights with all paid: themselves where nothing is owed, else a copy."""
        return self.copy() if self.owes else self

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of a batch's rows, (rows, outputs) float32."""
        return kernels.scores(batch, self.settled())

    def is_finite(self) -> bool:
        """Return whether every weight is a finite number."""
        return bool(np.isfinite(self.coef).all() and np.isfinite(self.intercept).all())

    def copy(self) -> Weights:
        """Return the weights with all paid, which share nothing with these, without what an optimizer keeps."""
        coef = np.asfortranarray(self.coef).copy(order="K") if self.owes else self.coef.copy(order="K")
        paid = Weights(coef, self.intercept.copy(), self.clock.copy(), self.seen.copy())
        paid.settle()
        if self.optimizer_state is not None:
            self.optimizer_state.settle(coef, self.clock[STEP])
        return paid

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of all that training depends on, by name."""
        return {
            "coef": np.array(self.coef, order="C"),
            "intercept": self.intercept.copy(),
            "clock": self.clock.copy(),
            "seen": self.seen.copy(),
            **({} if self.optimizer_state is None else self.optimizer_state.arrays()),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Weights:
        """Return the weights that `arrays` was taken from, to the last bit."""
        missing = {"coef", "intercept", "clock", "seen"} - set(arrays)
        if missing:
            raise ModelFileError(f"the weights lack {', '.join(sorted(missing))}; they were not saved by `arrays`")
        coef = np.array(arrays["coef"], np.float32, order="C")
        intercept = np.array(arrays["intercept"], np.float32)
        clock, seen = np.array(arrays["clock"], np.float64), np.array(arrays["seen"], np.float64)
        if coef.ndim != 2 or intercept.shape != coef.shape[:1] or clock.shape != (CLOCK,):
            raise ModelFileError(
                f"weights of shape {coef.shape}, intercepts of {intercept.shape} and a clock of {clock.shape}"
                " do not belong together; the file was not saved by this version"
            )
        if len(seen) not in (0, coef.shape[1]):
            raise ModelFileError(f"the L1 record is of {len(seen)} features, the weights of {coef.shape[1]}")
        return cls(coef, intercept, clock, seen, OptimizerState.from_arrays(arrays, coef.shape))
