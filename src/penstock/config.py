"""One choice of hyper-parameters for a linear model: a config.

It is checked when made, travels into model files and checkpoints as plain JSON, and says which of its values
may differ when training is resumed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from penstock.budget import Budget
from penstock.errors import UnknownOptionError, UsageError
from penstock.sgd import rates
from penstock.sgd.loop import Spec
from penstock.shuffle import order

LOSSES = {"logistic": "logistic", "svm": "hinge", "linear": "squared", "softmax": "softmax"}
"""The models by name, and the loss that each minimises."""


SOLVERS = ("sgd", "lbfgs", "gd")
"""How weights are found: an update for each row or batch, or for each pass over all rows by L-BFGS or plain descent."""

# What steps of SGD alone have, with the values that mean nothing was asked for.
_OF_SGD = {"batch_size": 1, "rate": "exponential", "decay": 0.95, "power": 0.25}

# Squared loss has no bound on its slope, so it wants smaller steps than the others' 0.1.
_FIRST_RATE = {"linear": 0.01}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Hyper-parameters.

    ``standardize=None`` means yes for ``linear`` and no for the others: the squared loss has no bound on its slope, so
    on features far from mean 0 and spread 1 it diverges at any useful rate. With another ``solver`` than ``"sgd"`` every
    epoch sums over all rows, whose order then makes no difference: ``shuffle`` becomes ``"none"``, which reads fastest.

    Examples
    --------
    >>> Config(model="svm", epochs=5).spec().loss
    'hinge'
    >>> Config(solver="lbfgs").shuffle
    'none'
    """

    model: str = "logistic"
    solver: str = "sgd"
    learning_rate: float | None = None
    rate: str = "exponential"
    decay: float = 0.95
    power: float = 0.25
    epochs: int = 20
    batch_size: int = 1
    l1: float = 0.0
    l2: float = 0.0
    intercept: bool = True
    shuffle: str = "corgipile"
    memory: str | int = "512MB"
    seed: int = 0
    standardize: bool | None = None
    validation: float = 0.0
    patience: int | None = None
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        for f in fields(self):  # NumPy's numbers, as a search over parameters hands them on, are no JSON
            value = getattr(self, f.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, f.name, value.item())
        if self.model not in LOSSES:
            raise UnknownOptionError.of("model", self.model, LOSSES)
        if self.solver not in SOLVERS:
            raise UnknownOptionError.of("solver", self.solver, SOLVERS)
        if self.standardize is None:
            object.__setattr__(self, "standardize", self.model == "linear")
        if self.epochs < 0 or self.epochs != int(self.epochs):
            raise UsageError(f"epochs={self.epochs!r} is not a number of epochs; choose 1 or more")
        if not 0 <= self.validation < 1:
            raise UsageError(f"validation={self.validation!r} is not a share of the rows; choose one from 0 to below 1")
        if self.patience is not None and self.patience < 1:
            raise UsageError(f"patience={self.patience!r} is not a number of epochs; choose 1 or more")
        if self.seed < 0:
            raise UsageError(f"seed={self.seed!r} must not be negative")
        order(self.shuffle)
        Budget.parse(self.memory)
        self.spec()
        if self.solver != "sgd":
            self._require_full_passes()
            object.__setattr__(self, "shuffle", "none")

    def _require_full_passes(self) -> None:
        if self.model not in ("logistic", "linear"):
            raise UsageError(
                f"solver={self.solver!r} is for logistic and linear models; use solver='sgd' for {self.model}"
            )
        for name, usual in _OF_SGD.items():
            if getattr(self, name) != usual:
                raise UsageError(
                    f"{name}={getattr(self, name)!r} is for solver='sgd': solver={self.solver!r} makes one step for each"
                    f" pass over all rows; leave {name} out"
                )

    @property
    def first_rate(self) -> float:
        """The learning rate that was given, or the model's and solver's own."""
        if self.learning_rate is not None:
            return self.learning_rate
        return _FIRST_RATE.get(self.model, 0.1) if self.solver == "sgd" else 1.0

    def spec(self) -> Spec:
        """Return the part that SGD itself needs."""
        first = self.first_rate
        rate = rates.named(self.rate, first, decay=self.decay, power=self.power)
        return Spec(
            loss=LOSSES[self.model],
            rate=rate,
            batch_size=self.batch_size,
            l1=self.l1,
            l2=self.l2,
            intercept=self.intercept,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    def require_same(self, other: dict[str, Any]) -> None:
        """Raise unless another config, saved as JSON, trains alike; the number of epochs may differ."""
        mine, other = self.to_dict(), {"solver": "sgd", **other}  # which older checkpoints do not name
        for each in (mine, other):
            if each.get("learning_rate") is None:
                each["learning_rate"] = replace(self, learning_rate=None).first_rate
        for name in (f.name for f in fields(self) if f.name != "epochs"):
            if mine[name] != other.get(name):
                raise UsageError(
                    f"the checkpoint was made with {name}={other.get(name)!r}, this run has {mine[name]!r};"
                    f" resume with the same value, or start anew without --resume"
                )
