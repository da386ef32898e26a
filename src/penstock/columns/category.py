"""Columns of categories: text, dictionaries or anything with few values, one feature for each level.

Levels that few rows have share the feature "rare", which levels that training did not see get too. The month, the day of the week
and the hour of a date are categories as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Csr, Floats, indices_of
from penstock.columns.base import Place, UnseenValues, null_mask, require_type, saved
from penstock.columns.date import as_dates
from penstock.columns.hashing import murmur3, murmur3_reference, text_bytes
from penstock.native import kernel

NO_PLACE = Place()
_NO_LEVEL, _NULL_VALUE = -2, -3
"""Codes of values that are no level, or stand for a missing one, until it is known what becomes of these."""
_EMPTY = -1
DATE_PARTS = ("month", "weekday", "hour")


@dataclass(frozen=True, slots=True)
class Category:
    """A category: a feature for each level, and perhaps one for rare and one for missing values.

    Attributes
    ----------
    column : str
        The stored column.
    levels : tuple of str
        The values that have a feature each.
    rare : bool
        Whether other values share a feature; else they have none.
    missing : bool
        Whether missing values have a feature; else they have none.
    dense : bool
        Whether features are stored also where they are 0.
    null_values : tuple of str
        Texts that stand for a missing value.
    of : str
        Of dates, what of them is the category: ``month``, ``weekday`` (1 is Monday) or ``hour``; else empty.

    Examples
    --------
    >>> color = Category("color", ("blue", "red"), rare=True)
    >>> color.names
    ('color=blue', 'color=red', 'color is rare')
    >>> color.codes(pa.array(["red", "pink", None])).tolist()
    [1, 2, -1]
    """

    kind: ClassVar[str] = "category"

    column: str
    levels: tuple[str, ...]
    rare: bool = False
    missing: bool = False
    dense: bool = False
    null_values: tuple[str, ...] = ()
    of: str = ""
    _table: LevelTable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        codes = {level: code for code, level in enumerate(self.levels)} | dict.fromkeys(self.null_values, _NULL_VALUE)
        object.__setattr__(self, "_table", LevelTable.of(codes))

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def width(self) -> int:
        return len(self.levels) + self.rare + self.missing

    @property
    def name(self) -> str:
        """The column, and what of its dates is the category."""
        return f"{self.column} {self.of}" if self.of else self.column

    @property
    def cardinality(self) -> int:
        """How many numbers `ids` gives: one for each level, one for all other values, and one for missing ones."""
        return len(self.levels) + 2

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(self.feature_name, range(self.width)))

    def feature_name(self, place: int) -> str:
        if place < len(self.levels):
            return f"{self.name}={self.levels[place]}"
        return f"{self.name} is {'rare' if self.rare and place == len(self.levels) else 'missing'}"

    @property
    def sparse(self) -> bool:
        return not self.dense

    @property
    def flags(self) -> NDArray[np.bool_]:
        return np.ones(self.width, np.bool_)

    def codes(self, array: pa.Array, place: Place = NO_PLACE) -> NDArray[np.int64]:
        """Return the feature of each row, counted from 0; -1 where it has none."""
        other = len(self.levels) if self.rare else -1
        missing = len(self.levels) + self.rare if self.missing else -1
        return self._numbered(array, place, other=other, missing=missing)

    def _numbered(self, array: pa.Array, place: Place, *, other: int, missing: int) -> NDArray[np.int64]:
        """Return the number of each row's level, and these for values that are none, and for missing ones."""
        if self.of:
            array = date_part(as_dates(array, self.column, self.null_values, place), self.of)
            codes = pc.index_in(array, pa.array(map(int, self.levels), pa.int64()))
            found = np.asarray(pc.fill_null(codes, _NO_LEVEL).to_numpy(zero_copy_only=False), np.int64)
        else:
            found = self._table.codes(array, _NO_LEVEL)
        found[found == _NULL_VALUE] = missing
        if array.null_count:
            found[null_mask(array)] = missing
        if place.unseen is not None:
            self._count_unseen(array.null_count, int(np.count_nonzero(found == _NO_LEVEL)), place.unseen)
        found[found == _NO_LEVEL] = other
        return found

    def _count_unseen(self, missing: int, without_level: int, unseen: UnseenValues) -> None:
        if without_level:
            unseen.count_levels(self.name, without_level, rare=self.rare)
        if missing and not self.missing and not self.of:  # of a date its days are counted
            unseen.count_missing(self.column, missing)

    def ids(self, array: pa.Array, place: Place = NO_PLACE) -> NDArray[np.int64]:
        """Return a number for the level of each row; values of no level share the last but one, missing ones the last."""
        other, missing = len(self.levels), len(self.levels) + 1
        return self._numbered(array, place, other=other, missing=missing)

    def write(self, array: pa.Array, into: Floats, place: Place) -> None:
        codes = self.codes(array, place)
        into[:] = 0
        rows = np.flatnonzero(codes >= 0)
        into[codes[rows], rows] = 1

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Csr:
        codes = self.codes(arrays[0], place)
        there = codes >= 0
        starts = np.concatenate([np.zeros(1, np.uint64), np.cumsum(there, dtype=np.uint64)])
        indices = indices_of(int(starts[-1]), wide=wide)
        indices[:] = codes[there]
        return Csr(starts, indices, np.ones(len(indices), np.float32), self.width)

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        fits = lambda kind: not pa.types.is_nested(kind)  # noqa: E731
        require_type(schema, self.column, fits=fits, learnt="categories", place=place)

    def to_dict(self) -> dict[str, Any]:
        facts = {"rare": self.rare, "missing": self.missing, "dense": self.dense, "null_values": self.null_values}
        return saved(self, levels=list(self.levels), of=self.of or None, **facts) | {"names": []}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Category:
        """Build the column again."""
        rare, missing, dense = (bool(data.get(name, False)) for name in ("rare", "missing", "dense"))
        nulls = tuple(data.get("null_values", ()))
        return cls(data["columns"][0], tuple(data.get("levels", ())), rare, missing, dense, nulls, data.get("of", ""))

    def facts(self) -> dict[str, Any]:
        missing = "own feature" if self.missing else "no feature"
        return {"levels": len(self.levels), "others": "rare" if self.rare else "no feature", "missing": missing}


def date_part(dates: pa.Array, part: str) -> pa.Array:
    """Return the month, the day of the week (1 is Monday) or the hour of dates."""
    if part == "month":
        return pc.month(dates)
    if part == "weekday":
        return pc.add(pc.day_of_week(dates), 1)
    return pc.hour(dates if pa.types.is_timestamp(dates.type) else dates.cast(pa.timestamp("ms")))


@dataclass(frozen=True, slots=True)
class LevelTable:
    """Texts and the code of each: a hash table of their UTF-8 bytes, made once.

    Blocks are small and levels may be thousands, so that a table made anew for every block would cost more than the rows.

    Examples
    --------
    >>> table = LevelTable.of({"red": 0, "blue": 1})
    >>> table.codes(pa.array(["blue", "pink", "red"]), other=7).tolist()
    [1, 7, 0]
    """

    offsets: NDArray[np.int64]
    data: NDArray[np.uint8]
    values: NDArray[np.int64]
    slots: NDArray[np.int64]

    @classmethod
    def of(cls, codes: Mapping[str, int]) -> LevelTable:
        """Make the table."""
        texts = [text.encode() for text in codes]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(text) for text in texts], dtype=np.int64)])
        slots = np.full(1 << max(2 * len(texts), 1).bit_length(), _EMPTY, np.int64)
        for number, text in enumerate(texts):
            slot = murmur3_reference(text, 0) & (len(slots) - 1)
            while slots[slot] != _EMPTY:
                slot = (slot + 1) & (len(slots) - 1)
            slots[slot] = number
        data = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
        return cls(offsets, data, np.array(list(codes.values()), np.int64), slots)

    def codes(self, array: pa.Array, other: int) -> NDArray[np.int64]:
        """Return the code of each text, ``other`` where it is none of the table; a null is the empty text."""
        starts, content = text_bytes(array)
        found = np.empty(len(array), np.int64)
        find_levels(starts, content, self.offsets, self.data, self.values, self.slots, other, found)
        return found


@kernel
def find_levels(
    starts: Any, content: Any, offsets: Any, data: Any, values: Any, slots: Any, other: Any, found: Any
) -> None:
    """Write the code of each row's text, found by its hash and compared byte by byte."""
    mask = len(slots) - 1
    for row in range(len(found)):
        start = starts[row]
        length = starts[row + 1] - start
        slot = np.int64(murmur3(content, start, start + length, np.uint32(0))) & mask
        found[row] = other
        while slots[slot] >= 0:
            level = slots[slot]
            at = offsets[level]
            same = offsets[level + 1] - at == length
            i = 0
            while same and i < length:
                same = data[at + i] == content[start + i]
                i += 1
            if same:
                found[row] = values[level]
                break
            slot = (slot + 1) & mask


def find_levels_reference(texts: list[str], codes: Mapping[str, int], other: int) -> list[int]:
    """Return the codes by a dictionary."""
    return [codes.get(text, other) for text in texts]
