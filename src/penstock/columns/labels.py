"""Labels as numbers: classes of any kind to targets and back, and plain numbers for regression.

Two classes become -1 and +1, more become 0 to k-1. What cannot be a label is refused with its row: a null,
a number that is not finite, a class that was not there when the classes were collected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.columns.base import without_dictionary
from penstock.errors import LabelError
from penstock.messages import Text, Use

MOST_CLASSES = 10_000
_LARGEST_WHOLE = 2.0**53


@dataclass(frozen=True, slots=True)
class LabelMap:
    """The classes of a label and the targets that stand for them.

    Parameters
    ----------
    classes : tuple
        The class values in ascending order: all text, or all numbers, or both booleans.
    binary : bool
        Targets -1 and +1 for two classes; otherwise 0 to k-1.

    Examples
    --------
    >>> import pyarrow as pa
    >>> labels = LabelMap.collect([pa.array(["spam", "ham", "spam"])])
    >>> labels.encode(pa.array(["spam", "ham"]))
    array([ 1., -1.], dtype=float32)
    >>> labels.decode([-1.0])
    array(['ham'], dtype='<U4')
    """

    classes: tuple[Any, ...]
    binary: bool = True
    column: str = "label"
    _values: pa.Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.binary and len(self.classes) != 2:
            raise LabelError(
                f"{self.column!r} has {len(self.classes)} classes ({_show(self.classes)}) where two are needed;"
                " use softmax for more than two"
            )
        if len(self.classes) < 2:
            raise LabelError(
                f"{self.column!r} has a single class ({_show(self.classes)}); there is nothing to tell apart:"
                " check the label column and that the data hold rows of each class"
            )
        values = pa.array([int(c) if isinstance(c, bool) else c for c in self.classes])
        object.__setattr__(self, "_values", values)

    @classmethod
    def collect(
        cls, arrays: Iterable[pa.Array], *, binary: bool | None = None, column: str = "label", place: str = ""
    ) -> LabelMap:
        """Find the classes in all the arrays of a label column.

        ``binary=None`` takes two classes as -1 and +1 and more as 0 to k-1.
        """
        tally = LabelTally(column, place=place)
        for array in arrays:
            tally.add(array)
        return tally.labels(binary=binary)

    @property
    def type(self) -> pa.DataType:
        """The type of the classes."""
        return self._values.type

    def encode(self, array: pa.Array, *, first_row: int = 0, unlabelled: bool = False) -> Floats:
        """Return the targets of an array of labels; missing ones are refused, or come to the first class if ``unlabelled``."""
        if not unlabelled:
            refuse_missing(array, self.column, first_row=first_row)
        try:
            codes = pc.index_in(*self._alike(_plain(array, self.column)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            codes = pa.nulls(len(array), pa.int32())
        if codes.null_count:
            unknown = np.asarray(codes.is_null().to_numpy(zero_copy_only=False)) & ~missing_labels(array)
            if unknown.any():
                row = int(np.argmax(unknown))
                raise LabelError(
                    f"{self.column!r} has the class {array[row].as_py()!r} in row {first_row + row}, which is not one of the"
                    f" classes seen in training: {_show(self.classes)}"
                )
            codes = codes.fill_null(0)
        targets: Floats = codes.to_numpy(zero_copy_only=False).astype(np.float32)
        return 2 * targets - 1 if self.binary else targets

    def decode(self, targets: Any) -> NDArray[Any]:
        """Return the classes that targets (or binary scores: their sign) stand for."""
        numbers = np.asarray(targets)
        codes = (numbers > 0).astype(np.intp) if self.binary else numbers.astype(np.intp)
        return np.array(self.classes)[codes]

    @property
    def numeric(self) -> bool:
        """Whether the classes are plain numbers."""
        return all(isinstance(c, int | float) and not isinstance(c, bool) for c in self.classes)

    @property
    def targets(self) -> Floats:
        """The target of each class, in the classes' order."""
        codes = np.arange(len(self.classes), dtype=np.float32)
        return 2 * codes - 1 if self.binary else codes

    def as_binary(self, binary: bool) -> LabelMap:
        """Return the same classes with targets -1 and +1, or 0 to k-1."""
        return LabelMap(self.classes, binary=binary, column=self.column)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"classes": list(self.classes), "binary": self.binary, "column": self.column}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LabelMap:
        """Build the map again."""
        return cls(tuple(data["classes"]), binary=data["binary"], column=data["column"])

    def _alike(self, array: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the array and the classes in one type, without losing digits of large integers."""
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.int64())
        if pa.types.is_string(self._values.type) or pa.types.is_string(array.type):
            return array, self._values  # text against numbers: nothing is found, or a type error
        integers = pa.types.is_integer(array.type) and pa.types.is_integer(self._values.type)
        common = pa.int64() if integers else pa.float64()
        return array.cast(common), self._values.cast(common)


class LabelTally:
    """Finds the classes of a label column part by part, and adds up what the rows of each weigh.

    Parameters
    ----------
    column, place : str
        What messages call the column and the data.
    count : bool
        Whether rows without weights are counted; those with weights always are.

    Examples
    --------
    >>> tally = LabelTally("kind", count=True)
    >>> tally.add(pa.array(["spam", "ham", "spam"]))
    >>> tally.add(pa.array(["ham"]), np.array([0.5]))
    >>> tally.totals(tally.labels().classes)
    array([1.5, 2. ])
    """

    def __init__(self, column: str, *, place: str = "", count: bool = False) -> None:
        self._column, self._place, self._count = column, place, count
        self._rows = 0
        self._totals: dict[Any, float] = {}

    def add(self, array: pa.Array, weights: NDArray[np.floating[Any]] | None = None) -> None:
        """Take in labels and, where rows have them, the weights beside them."""
        refuse_missing(array, self._column, first_row=self._rows, place=self._place)
        self._rows += len(array)
        try:
            plain = _plain(array, self._column)
        except LabelError as error:
            raise error.replace(place=self._place or None) from None
        if weights is not None or self._count:
            coded = plain.dictionary_encode()
            numbers = coded.indices.to_numpy(zero_copy_only=False)
            sums = np.bincount(numbers, weights, minlength=len(coded.dictionary))
            pairs: Iterator[tuple[Any, float]] = zip(coded.dictionary.to_pylist(), sums.tolist(), strict=True)
        else:
            pairs = ((value, 0.0) for value in pc.unique(plain).to_pylist())
        for value, weight in pairs:
            if isinstance(value, float) and math.isinf(value):
                raise LabelError(
                    f"{self._column!r} holds {value}, which is no class and no number to learn",
                    place=self._place or None,
                    fixes=["remove such rows, or mend the values"],
                )
            if isinstance(value, float) and abs(value) >= _LARGEST_WHOLE:
                raise LabelError(
                    f"{self._column!r} has the class {value:.0f}: whole numbers from 2^53 on are not told apart as float64, which"
                    " columns of text files are",
                    fixes=["store the label as text or in a file with types, such as Parquet"],
                )
            self._totals[value] = self._totals.get(value, 0.0) + weight
        if len(self._totals) > MOST_CLASSES:
            raise LabelError(
                f"{self._column!r} has over {MOST_CLASSES} different values; these are hardly classes",
                fixes=[*learned_as_number(self._totals), "name another label"],
            )

    def labels(self, *, binary: bool | None = None) -> LabelMap:
        """Return the classes found; ``binary=None`` takes two as -1 and +1, and more as 0 to k-1.

        Whole numbers are integers whatever their type: in text files all numbers are float64, as are those of a table with nulls.
        """
        classes: tuple[Any, ...] = tuple(sorted(self._totals))
        if all(isinstance(each, float) and each.is_integer() for each in classes):
            classes = tuple(map(int, classes))
        return LabelMap(classes, binary=len(classes) == 2 if binary is None else binary, column=self._column)

    def totals(self, classes: Sequence[Any]) -> NDArray[np.float64]:
        """Return what the rows of each of these classes weigh together."""
        return np.array([self._totals.get(each, 0.0) for each in classes], np.float64)

    @property
    def weighed(self) -> list[Any]:
        """The classes that have rows of a weight above 0."""
        return [value for value, total in self._totals.items() if total > 0]


def learned_as_number(classes: Iterable[Any]) -> list[Text]:
    """Return the advice to learn a label as a number, where its values are numbers; none for text."""
    if any(isinstance(value, str) for value in classes):
        return []
    return [Text("learn it as a number: ", Use("model", "linear"))]


def numeric(
    array: pa.Array, *, column: str, first_row: int = 0, weight: bool = False, unlabelled: bool = False
) -> Floats:
    """Return a label, or a weight, that is a number; what is not finite is refused, and what is missing, unless ``unlabelled``: then it is 0."""
    if not unlabelled:
        refuse_missing(array, column, first_row=first_row)
    elif (missing := missing_labels(array)).any():
        kind = pa.float64() if pa.types.is_null(array.type) else array.type
        array = pc.if_else(pa.array(missing), pa.scalar(0).cast(kind), array.cast(kind))
    kind = array.type
    if not (
        pa.types.is_floating(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    ):
        if weight:
            raise LabelError(f"{column!r} is {kind}, not a number; rows are weighed by a column of numbers")
        raise LabelError(
            f"{column!r} is {kind}, not a number; a regression needs numbers, classes need a classifier (",
            Use("model", "logistic"),
            ", svm or softmax)",
        )
    numbers = to_numbers(array)
    finite = np.isfinite(numbers)
    if not finite.all():
        row = int(np.argmin(finite))
        raise LabelError(f"{column!r} is {numbers[row]} in row {first_row + row}; remove the row or mend the value")
    return numbers


def to_numbers(array: pa.Array) -> Floats:
    """Return an array of numbers or booleans without nulls as float32; a view where it is float32 already."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return np.asarray(array.to_numpy(zero_copy_only=False), np.float32)
    if pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused by their row
        return np.asarray(array.to_numpy(zero_copy_only=False)).astype(np.float32, copy=False)


def _plain(array: pa.Array, column: str) -> pa.Array:
    array = without_dictionary(array)
    kind = array.type
    if pa.types.is_null(kind):
        return array
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
        array, kind = array.cast(pa.float64()), pa.float64()
    if pa.types.is_floating(kind):
        return pc.add(array, pa.scalar(0.0, kind))  # -0.0 and 0.0 are one class
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return array
    raise LabelError(f"{column!r} is {kind}; a label is text, a number or a boolean")


def missing_labels(array: pa.Array) -> NDArray[np.bool_]:
    """Return which values are null or NaN."""
    if pa.types.is_floating(array.type):
        # A null comes to NaN.
        return np.asarray(np.isnan(array.to_numpy(zero_copy_only=False)), np.bool_)
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def refuse_missing(array: pa.Array, column: str, *, first_row: int, place: str = "") -> None:
    """Raise `LabelError` naming the first row whose label is null or NaN."""
    missing = missing_labels(array)
    if missing.any():
        at = int(np.argmax(missing))
        what = "NaN" if array[at].is_valid else "missing (null)"
        where = f"{place}: " if place else ""
        raise LabelError(f"{where}{column!r} is {what} in row {first_row + at}; remove or fill such rows first")


def _show(classes: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, classes[:10])) + (f", … ({len(classes)} in all)" if len(classes) > 10 else "")
