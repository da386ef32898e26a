"""Learning rates: how far a step goes, by epoch and by the number of updates made so far.

Every schedule comes down to two numbers for an epoch, a base and a power: update ``step`` goes
``base / (1 + step) ** power`` far. Kernels take the two and need to know no schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import UnknownOptionError, UsageError


class Rate(Protocol):
    """A learning-rate schedule."""

    @property
    def name(self) -> str: ...

    def at(self, epoch: int, step: int) -> float:
        """Return the rate of an update, given the epoch and the updates made since training began."""
        ...

    def native(self, epoch: int) -> tuple[float, float]:
        """Return the epoch's base and power, from which kernels compute the rate of each update."""
        ...


@dataclass(frozen=True, slots=True)
class Exponential:
    """Falls by the same factor with every epoch, the CorgiPile paper's choice.

    Examples
    --------
    >>> Exponential(0.1, decay=0.5).at(epoch=2, step=1000)
    0.025
    """

    learning_rate: float = 0.1
    decay: float = 0.95
    name = "exponential"

    def __post_init__(self) -> None:
        _positive("learning_rate", self.learning_rate)
        if not 0 < self.decay <= 1:
            raise UsageError(f"decay={self.decay!r} must be above 0 and at most 1; 0.95 is usual")

    def at(self, epoch: int, step: int) -> float:
        return self.learning_rate * float(self.decay**epoch)

    def native(self, epoch: int) -> tuple[float, float]:
        return self.at(epoch, 0), 0.0


@dataclass(frozen=True, slots=True)
class InverseScaling:
    """Falls with every update, as ``learning_rate / (1 + step) ** power``.

    Examples
    --------
    >>> InverseScaling(0.1, power=0.5).at(epoch=0, step=3)
    0.05
    """

    learning_rate: float = 0.1
    power: float = 0.25
    name = "inverse-scaling"

    def __post_init__(self) -> None:
        _positive("learning_rate", self.learning_rate)
        if not (math.isfinite(self.power) and self.power >= 0):
            raise UsageError(f"power={self.power!r} must not be negative; 0.25 to 1 is usual")

    def at(self, epoch: int, step: int) -> float:
        return self.learning_rate * float((1.0 + step) ** -self.power)

    def native(self, epoch: int) -> tuple[float, float]:
        return self.learning_rate, self.power


@dataclass(frozen=True, slots=True)
class Constant:
    """Never changes.

    Examples
    --------
    >>> Constant(0.1).at(epoch=7, step=12345)
    0.1
    """

    learning_rate: float = 0.1
    name = "constant"

    def __post_init__(self) -> None:
        _positive("learning_rate", self.learning_rate)

    def at(self, epoch: int, step: int) -> float:
        return self.learning_rate

    def native(self, epoch: int) -> tuple[float, float]:
        return self.learning_rate, 0.0


RATES = ("exponential", "inverse-scaling", "constant")


def named(name: str, learning_rate: float, *, decay: float = 0.95, power: float = 0.25) -> Rate:
    """Return the schedule of that name.

    Examples
    --------
    >>> named("exponential", 0.1)
    Exponential(learning_rate=0.1, decay=0.95)
    """
    if name == "exponential":
        return Exponential(learning_rate, decay)
    if name == "inverse-scaling":
        return InverseScaling(learning_rate, power)
    if name == "constant":
        return Constant(learning_rate)
    raise UnknownOptionError.of("rate", name, RATES)


def _positive(option: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UsageError(f"{option}={value!r} must be a positive number, such as 0.1")
