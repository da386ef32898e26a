"""The optimizers by name, and what one keeps beside the weights of a model, from batch to batch and in checkpoints.

To add an optimizer, write a file like `adam`, a twin for its kernels, and register it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.errors import ModelFileError, UnknownOptionError
from penstock.sgd.adagrad import ADAGRAD
from penstock.sgd.adam import ADAM
from penstock.sgd.ftrl import FTRL
from penstock.sgd.optimizer import Optimizer

ADAPTIVE = {each.name: each for each in (ADAGRAD, ADAM, FTRL)}
"""Those that keep something beside each weight."""
OPTIMIZERS = ("sgd", *ADAPTIVE)


def adaptive(name: str) -> Optimizer | None:
    """Return the optimizer of that name; None for plain SGD.

    Examples
    --------
    >>> adaptive("ftrl").cells, adaptive("sgd")
    (2, None)
    """
    if name not in OPTIMIZERS:
        raise UnknownOptionError.of("optimizer", name, OPTIMIZERS)
    return ADAPTIVE.get(name)


_PREFIX, _TERMS = "optimizer.", "optimizer.terms"


@dataclass(slots=True)
class OptimizerState:
    """An optimizer's numbers for every weight."""

    optimizer: Optimizer
    cells: Floats  # (outputs, features + 1, cells), those of the intercept last
    unit: float = 1.0  # of the learning rate: for squared loss the labels' standard deviation, else 1
    base: float = 1.0  # the learning rate and the penalties of the last updates
    l1: float = 0.0
    l2: float = 0.0
    due: bool = False  # whether the weights are to be computed from the cells, by `settle`

    @classmethod
    def start(
        cls, optimizer: Optimizer, coef: Floats, intercept: Floats, *, base: float, unit: float
    ) -> OptimizerState:
        """Return the state of weights that training begins with."""
        outputs, width = coef.shape
        state = cls(optimizer, np.zeros((outputs, width + 1, optimizer.cells), np.float32), unit, base)
        if optimizer.start is not None:
            optimizer.start(state.cells, coef, intercept, base, unit)
        return state

    def for_rows(self, *, sparse: bool) -> Floats:
        """Return the cells as kernels take them: (features + 1, outputs, cells) for sparse rows, cells first for dense."""
        order, back = ((1, 0, 2), (1, 0, 2)) if sparse else ((2, 0, 1), (1, 2, 0))
        laid_out = np.ascontiguousarray(self.cells.transpose(order))
        self.cells = laid_out.transpose(back)
        return laid_out

    def settle(self, coef: Floats, updates: float) -> None:
        """Compute the weights, (outputs, features) with a feature's side by side, where they are due."""
        if self.due and self.optimizer.settle is not None:
            self.optimizer.settle(self.for_rows(sparse=True), coef.T, self.base, self.unit, self.l1, self.l2, updates)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of all that training depends on, by name."""
        terms = np.array([self.unit, self.base, self.l1, self.l2, self.due], np.float64)
        return {_PREFIX + self.optimizer.name: np.array(self.cells, order="C"), _TERMS: terms}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], shape: tuple[int, ...]) -> OptimizerState | None:
        """Return the state that `arrays` was taken from, of weights of that shape; None where there are none."""
        if _TERMS not in arrays:
            return None
        found = next((each for name, each in ADAPTIVE.items() if _PREFIX + name in arrays), None)
        if found is None:
            raise ModelFileError("the state is of an optimizer that this version does not have; start training anew")
        cells = np.array(arrays[_PREFIX + found.name], np.float32)
        if cells.shape != (shape[0], shape[1] + 1, found.cells):
            raise ModelFileError(
                f"the state of {found.name} is of shape {cells.shape} and does not belong to weights of {shape};"
                " the file was not saved by this version"
            )
        unit, base, l1, l2, due = map(float, arrays[_TERMS])
        return cls(found, cells, unit, base, l1, l2, bool(due))
