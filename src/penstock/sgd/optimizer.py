"""What Penstock knows of an optimizer: its state, its learning rate, and the kernels that update by it.

Plain SGD is none of these: its kernels, in `dense`, `sparse` and `softmax`, keep no state beside the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """A rule by which every weight is updated with a rate of its own.

    Attributes
    ----------
    name : str
        The word a user writes.
    cells : int
        How many float32 numbers are kept beside each weight and each intercept.
    learning_rate : float
        The rate where none is given, of steps that are bounded (`penstock.sgd.gradients.shortened`). Rates of squared loss are
        in units of the labels' standard deviation.
    power : float
        With rate="auto" the rate of an epoch is the learning rate over ``(1 + epoch) ** power``.
    scheduled : bool
        Whether the rate may follow a schedule that the user chooses.
    sparsifies : bool
        Whether it knows an L1 penalty, by which weights become exactly zero.
    dense, sparse : callables
        Kernels; see `penstock.sgd.kernels.train` for what they take.
    start : callable, optional
        ``start(cells, coef, intercept, terms)`` fills the cells of weights that training begins with; by default with zeros.
    settle : callable, optional
        ``settle(cells, coef, terms, updates)`` computes the weights from the cells, where sparse rows leave that open.
    """

    name: str
    cells: int
    learning_rate: float
    power: float = 0.0
    scheduled: bool = True
    sparsifies: bool = False
    dense: Callable[..., Any]
    sparse: Callable[..., Any]
    start: Callable[..., None] | None = None
    settle: Callable[..., None] | None = None
