"""Class weights: how much the rows of each class of the label count in training.

The option is ``"balanced"`` or a mapping of labels to weights, as in scikit-learn. `ClassWeighting` turns it into a factor
for each class, by which the rows' own weights are multiplied while a model is trained. Factors have mean 1 over the rows,
so that only their proportions matter. Measures never use them: rows count there by their own weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.errors import UsageError, some_of
from penstock.messages import Name, Text, Use

BALANCED = "balanced"
_EXAMPLE = Text(
    "write ",
    Use("class_weight", "balanced"),
    ", or a weight for each label such as ",
    Use("class_weight", {"yes": 5, "no": 1}),
)


def checked_class_weight(value: Any) -> str | dict[str, float] | None:
    """Return the option as plain JSON: None, ``"balanced"``, or the weights by the labels' names.

    Text such as ``"yes=5,no=1"`` is read as a mapping.

    Examples
    --------
    >>> checked_class_weight("Balanced"), checked_class_weight({0: 1, 1: 5}), checked_class_weight("yes=5, no=1")
    ('balanced', {'0': 1.0, '1': 5.0}, {'yes': 5.0, 'no': 1.0})
    """
    if value is None:
        return None
    if isinstance(value, str):
        if value.strip().lower() == BALANCED:
            return BALANCED
        value = _read_pairs(value)
    if not isinstance(value, Mapping) or not value:
        raise UsageError("is not a choice of class weights", option="class_weight", value=value, fixes=[_EXAMPLE])
    found: dict[str, float] = {}
    for label, weight in value.items():
        number = weight.item() if isinstance(weight, np.generic) else weight
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise UsageError(
                f": the weight of {label!r} is not a number", option="class_weight", value=value, fixes=[_EXAMPLE]
            )
        if not (math.isfinite(number) and number > 0):
            raise UsageError(
                f": the weight of {label!r} is not above 0",
                option="class_weight",
                value=value,
                fixes=["give a positive one", "leave out the rows of that label"],
            )
        name = _name(label)
        if name in found:
            raise UsageError(
                f"has the label {name!r} twice", option="class_weight", value=value, fixes=["give it once"]
            )
        found[name] = float(number)
    return found


@dataclass(frozen=True, slots=True)
class ClassWeights:
    """A factor for each class, in the classes' order. Labels are -1 and +1 or, of more classes, 0 to k-1.

    Examples
    --------
    >>> weights = ClassWeights(np.array([0.5, 3.0], np.float32))
    >>> weights.weigh(Batch(np.zeros((2, 1), np.float32), np.array([-1.0, 1.0], np.float32))).weight
    array([0.5, 3. ], dtype=float32)
    """

    factors: Floats

    def of(self, labels: NDArray[np.floating[Any]]) -> Floats:
        """Return the factor of each row, given the rows' labels as the loss has them."""
        return self.factors.take(class_codes(labels, len(self.factors)), mode="clip")

    def weigh(self, batch: Batch) -> Batch:
        """Return the rows with their weights multiplied by the factors of their classes."""
        if batch.y is None:
            return batch
        factor = self.of(batch.y)
        return replace(batch, weight=factor if batch.weight is None else factor * batch.weight)


@dataclass(frozen=True, slots=True)
class ClassWeighting:
    """The option for the classes of a label: a weight for each, in order, or nothing where they are balanced.

    Examples
    --------
    >>> ClassWeighting.of("balanced", ["no", "yes"]).factors([90.0, 10.0]).factors
    array([0.5555556, 5.       ], dtype=float32)
    >>> ClassWeighting.of({"yes": 3.0}, ["no", "yes"]).factors([50.0, 50.0]).factors
    array([0.5, 1.5], dtype=float32)
    """

    classes: int
    weights: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, option: str | Mapping[str, float] | None, classes: Sequence[Any], *, column: str = "label"
    ) -> ClassWeighting | None:
        """Read an option, as `checked_class_weight` returns it; labels that are no classes are refused by name."""
        if option is None:
            return None
        if isinstance(option, str):
            return cls(len(classes))
        given = _by_class(option, classes, column)
        return cls(len(classes), tuple(given.get(number, 1.0) for number in range(len(classes))))

    def factors(self, totals: Sequence[float] | NDArray[np.float64]) -> ClassWeights:
        """Return the factors, of mean 1 over the rows, given the sum of the rows' weights in each class.

        A class without rows does not count: of ``"balanced"``, the others share all of the weight. No totals at all are
        those of no rows.
        """
        mass = np.zeros(self.classes)
        mass[: len(totals)] = totals
        present = mass > 0
        weights = np.ones(self.classes)
        if self.weights:
            weights[:] = self.weights
        else:
            weights[present] = 1 / mass[present]
        mean = float(mass @ weights) / float(mass.sum()) if present.any() else 1.0
        return ClassWeights((weights / mean).astype(np.float32))


def class_codes(labels: NDArray[np.floating[Any]], classes: int) -> NDArray[np.intp]:
    """Return the number of each row's class, given the labels as the loss has them."""
    return (labels > 0 if classes == 2 else labels).astype(np.intp)


def _by_class(option: Mapping[str, float], classes: Sequence[Any], column: str) -> dict[int, float]:
    """Return the weights by the number of the class; raise for labels that the data do not have."""
    numbers = {_name(each): number for number, each in enumerate(classes)}
    numbers |= {str(int(each)): number for number, each in enumerate(classes) if isinstance(each, bool)}
    found = {name: numbers.get(name, numbers.get(_as_number(name))) for name in option}
    unknown = [name for name, number in found.items() if number is None]
    if unknown:
        raise UsageError(
            Name("class_weight"),
            f" names {some_of(map(repr, unknown))}, which {column!r} does not have; its labels are:"
            f" {some_of(map(repr, classes))}",
        )
    return {number: option[name] for name, number in found.items() if number is not None}


def _name(label: Any) -> str:
    """Return what a label is called: whole numbers without a point, booleans as true and false."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return str(label)


def _as_number(name: str) -> str:
    """Return a name that was written as a number, or as a boolean, as `_name` would write it."""
    try:
        return _name(float(name))
    except ValueError:
        return name.lower()


def _read_pairs(text: str) -> dict[str, float]:
    """Read ``yes=5,no=1``; a label may have a ``=`` in it, but no comma."""
    found: dict[str, float] = {}
    for part in text.split(","):
        label, sign, weight = part.rpartition("=")
        try:
            number = float(weight)
        except ValueError:
            sign = ""
        if not sign or not label.strip():
            raise UsageError(
                "is not a choice of class weights",
                option="class_weight",
                value=text,
                fixes=[_EXAMPLE],
            )
        if label.strip() in found:
            raise UsageError(
                f"has the label {label.strip()!r} twice", option="class_weight", value=text, fixes=["give it once"]
            )
        found[label.strip()] = number
    return found
