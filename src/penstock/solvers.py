"""Which solver trains a linear model where the choice is left to Penstock."""

from __future__ import annotations

from dataclasses import dataclass

FULL_PASS_SOLVERS = ("lbfgs", "exact", "gd")
"""Solvers that take every step from sums over all rows."""
SOLVERS = ("auto", "sgd", *FULL_PASS_SOLVERS)
WIDEST = 2000
"""Features up to which the normal equations are solved and L-BFGS is preferred: their cost grows with the width."""

_WIDEST_LEAST_SQUARES = 200_000
"""Features up to which L-BFGS solves least squares: it keeps some twenty numbers for each."""


@dataclass(frozen=True, slots=True)
class DataShape:
    """What the choice depends on: the number of rows and of features, whether all rows fit in memory, and whether they are sparse."""

    rows: int
    width: int
    in_memory: bool
    sparse: bool = False


def choose_solver(shape: DataShape, *, exact: bool, l1: float, few_passes: bool) -> str:
    """Return the solver of a linear model; ``exact`` says whether its loss is the squared one.

    Least squares is solved exactly in one pass where the features are few. Other models take L-BFGS, which converges to
    the best weights, where its passes are cheap: rows of few features, dense or sparse, that fit in memory; of least squares, whose
    steps of SGD must be small, also rows of many features. SGD learns more
    from ``few_passes``, and from data that are read from storage in every pass.

    Examples
    --------
    >>> shape = DataShape(rows=10_000, width=20, in_memory=True)
    >>> choose_solver(shape, exact=True, l1=0, few_passes=False), choose_solver(shape, exact=False, l1=0, few_passes=False)
    ('exact', 'lbfgs')
    >>> choose_solver(DataShape(10**9, 20, in_memory=False), exact=False, l1=0, few_passes=False)
    'sgd'
    """
    if exact and shape.width <= WIDEST and l1 == 0:
        return "exact"
    widest = _WIDEST_LEAST_SQUARES if exact else WIDEST
    if few_passes or shape.width > widest or not shape.in_memory:
        return "sgd"
    return "lbfgs"


def choose_optimizer(model: str, shape: DataShape) -> str:
    """Return how SGD turns gradients into steps for a model of that kind.

    Of very many sparse features most are rare, and one learning rate for all of them is too small for these: FTRL-proximal has a
    rate for each. Least squares, whose slopes have no bound, keeps the steps that cannot overshoot.

    Examples
    --------
    >>> choose_optimizer("logistic", DataShape(rows=10_000, width=2**20, in_memory=True, sparse=True))
    'ftrl'
    >>> choose_optimizer("logistic", DataShape(rows=10_000, width=20, in_memory=False))
    'sgd'
    """
    return "ftrl" if shape.sparse and shape.width > WIDEST and model != "linear" else "sgd"
