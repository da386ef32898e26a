"""Learning rates: how far a step goes, by epoch and by the number of updates made so far.

Every schedule comes down to two numbers for an epoch, a base and a power: update ``step`` goes
``base / (1 + step) ** power`` far. Kernels take the two and need to know no schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.errors import UnknownOptionError, UsageError

RATES = ("auto", "exponential", "inverse-scaling", "constant")


@dataclass(frozen=True, slots=True)
class Rate:
    """A learning-rate schedule.

    Attributes
    ----------
    learning_rate : float
        Of the first update.
    decay : float
        What the rate is multiplied by after each epoch.
    epoch_power, power : float
        The rate falls as ``(1 + epoch) ** -epoch_power`` and as ``(1 + step) ** -power``.
    bounded : bool
        Whether each step is shortened so that it cannot overshoot; see `penstock.sgd.scalar.bounded_rate`.

    Examples
    --------
    >>> Rate(0.1, power=0.5).at(epoch=7, step=3)
    0.05
    """

    learning_rate: float = 0.1
    decay: float = 1.0
    epoch_power: float = 0.0
    power: float = 0.0
    bounded: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UsageError("must be a positive number, such as 0.1", option="learning_rate", value=self.learning_rate)
        if not 0 < self.decay <= 1:
            raise UsageError("must be above 0 and at most 1", option="decay", value=self.decay, fixes=["0.95 is usual"])
        if not (math.isfinite(self.power) and self.power >= 0):
            raise UsageError("must not be negative", option="power", value=self.power, fixes=["0.25 to 1 is usual"])

    def at(self, epoch: int, step: int) -> float:
        """Return the rate of an update, given the epoch and the updates made since training began."""
        fall = float(self.decay**epoch) * float((1.0 + epoch) ** -self.epoch_power) * float((1.0 + step) ** -self.power)
        return self.learning_rate * fall

    def native(self, epoch: int) -> tuple[float, float]:
        """Return the epoch's base and power, from which kernels compute the rate of each update."""
        return self.at(epoch, 0), self.power


def exponential(learning_rate: float = 0.1, decay: float = 0.95) -> Rate:
    """Return a rate that falls by the same factor with every epoch, the CorgiPile paper's choice.

    Examples
    --------
    >>> exponential(0.1, decay=0.5).at(epoch=2, step=1000)
    0.025
    """
    return Rate(learning_rate, decay=decay)


def falling(learning_rate: float = 0.1, power: float = 0.75, *, bounded: bool = False) -> Rate:
    """Return a rate that falls as ``learning_rate / (1 + epoch) ** power``.

    With bounded steps it is the default: safe for features of any size, so that nobody has to guess a rate. ``benchmarks/defaults``
    compares its models with scikit-learn's.

    Examples
    --------
    >>> falling(0.08, power=1.0).at(epoch=3, step=1000)
    0.02
    """
    return Rate(learning_rate, epoch_power=power, bounded=bounded)


def make_rate(
    name: str, learning_rate: float, *, bounded: bool = False, decay: float = 0.95, power: float = 0.25
) -> Rate:
    """Return the schedule of that name; "auto" is `falling` where ``bounded`` is wanted, else `exponential`.

    Examples
    --------
    >>> make_rate("exponential", 0.1)
    Rate(learning_rate=0.1, decay=0.95, epoch_power=0.0, power=0.0, bounded=False)
    """
    if name == "auto" and bounded:
        return falling(learning_rate, bounded=True)
    if name in ("auto", "exponential"):
        return exponential(learning_rate, decay)
    if name == "inverse-scaling":
        return Rate(learning_rate, power=power)
    if name == "constant":
        return Rate(learning_rate)
    raise UnknownOptionError.of("rate", name, RATES)
