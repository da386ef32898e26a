"""Rows as named columns of any type: what a batch for a neural network is made of.

A column is a NumPy array with one entry per row where rows are equally long, and `Ragged` where they are not
(lists, text, bytes). `penstock.batch.Batch` is the other kind of rows: features and a target, for linear models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kind = Literal["list", "bytes", "text"]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Rows of unequal length: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Parameters
    ----------
    offsets : int64 array
        One more than there are rows; the first need not be 0.
    values : array
        All rows end to end; uint8 for bytes and text.
    kind : str
        What a single row is given out as: ``list`` (an array), ``bytes`` or ``text`` (a ``str``).

    Examples
    --------
    >>> words = Ragged.of(["to", "be", "or"])
    >>> words[1], len(words), list(words.take(np.array([2, 0])))
    ('be', 3, ['or', 'to'])
    """

    offsets: NDArray[np.int64]
    values: NDArray[Any]
    kind: Kind = "list"

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Ragged:
        """Make one of texts, of bytes, or of arrays."""
        kind: Kind = "list"
        if rows and isinstance(rows[0], str):
            rows, kind = [row.encode() for row in rows], "text"
        elif rows and isinstance(rows[0], (bytes, bytearray)):
            kind = "bytes"
        arrays = [np.asarray(row) if kind == "list" else np.frombuffer(row, np.uint8) for row in rows]
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        return cls(offsets, np.concatenate(arrays) if arrays else np.empty(0), kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        value = self.values[self.offsets[row] : self.offsets[row + 1]]
        if self.kind == "list":
            return value
        raw = value.tobytes()
        return raw if self.kind == "bytes" else raw.decode()

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Entries of each row."""
        lengths: NDArray[np.int64] = np.diff(self.offsets)
        return lengths

    @property
    def nbytes(self) -> int:
        return self.offsets.nbytes + int(self.offsets[-1] - self.offsets[0]) * self.values.itemsize

    def slice(self, start: int, stop: int) -> Ragged:
        """Return rows ``start`` to ``stop`` as views."""
        return Ragged(self.offsets[start : stop + 1], self.values, self.kind)

    def take(self, picks: NDArray[np.integer]) -> Ragged:
        """Return the rows picked, in the order picked, as a copy."""
        from penstock.copying import gather_runs  # Numba takes its time, which naming the class should not

        offsets = np.zeros(len(picks) + 1, np.int64)
        np.cumsum(self.lengths[picks], out=offsets[1:])
        values = np.empty(int(offsets[-1]), self.values.dtype)
        gather_runs(self.values, self.offsets[:-1][picks], offsets, values)
        return Ragged(offsets, values, self.kind)

    @classmethod
    def concat(cls, parts: Sequence[Ragged]) -> Ragged:
        """Join runs of rows end to end, as a copy."""
        lengths = np.concatenate([p.lengths for p in parts])
        values = np.concatenate([p.values[p.offsets[0] : p.offsets[-1]] for p in parts])
        return cls(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), values, parts[0].kind)

    def pad(self, value: Any = 0, *, length: int | None = None) -> NDArray[Any]:
        """Return rows of lists as one array, short rows filled up and long ones cut to ``length`` (the longest's).

        Examples
        --------
        >>> Ragged.of([np.array([1, 2, 3]), np.array([4])]).pad(value=-1).tolist()
        [[1, 2, 3], [4, -1, -1]]
        """
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if length is None else length
        out = np.full((len(self), width), value, self.values.dtype)
        inside = np.arange(width) < np.minimum(lengths, width)[:, None]
        out[inside] = self.values[(self.offsets[:-1, None] + np.arange(width))[inside]]
        return out


Column: TypeAlias = "NDArray[Any] | Ragged"


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """A run of rows by columns, and where they stood in the data.

    ``rows`` holds each row's number in the data, where asked for.

    Examples
    --------
    >>> rows = Records({"x": np.arange(6.0).reshape(3, 2), "name": Ragged.of(["a", "bb", "c"])})
    >>> picked = rows.take(np.array([2, 0]))
    >>> picked.columns["x"].tolist(), list(picked.columns["name"])
    ([[4.0, 5.0], [0.0, 1.0]], ['c', 'a'])
    """

    columns: Mapping[str, Column]
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in self.columns.values()) + (0 if self.rows is None else self.rows.nbytes)

    def slice(self, start: int, stop: int) -> Records:
        """Return rows ``start`` to ``stop`` as views."""
        part = slice(start, stop)
        columns = {n: c.slice(start, stop) if isinstance(c, Ragged) else c[part] for n, c in self.columns.items()}
        return Records(columns, None if self.rows is None else self.rows[part])

    def take(self, picks: NDArray[np.integer]) -> Records:
        """Return the rows picked, in the order picked, as a copy."""
        from penstock.copying import take_rows

        columns = {n: c.take(picks) if isinstance(c, Ragged) else take_rows(c, picks) for n, c in self.columns.items()}
        return Records(columns, None if self.rows is None else self.rows[picks])

    def copy(self) -> Records:
        """Return the rows in memory of their own."""
        columns = {n: Ragged.concat([c]) if isinstance(c, Ragged) else c.copy() for n, c in self.columns.items()}
        return Records(columns, None if self.rows is None else self.rows.copy())

    @classmethod
    def concat(cls, parts: Sequence[Records]) -> Records:
        """Join runs of rows end to end, as a copy (or the one part as it is)."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Column] = {}
        for name, first in parts[0].columns.items():
            each = [part.columns[name] for part in parts]
            columns[name] = Ragged.concat(each) if isinstance(first, Ragged) else np.concatenate(each)  # type: ignore[arg-type]  # columns of one name are of one kind
        numbers = [part.rows for part in parts if part.rows is not None]
        return cls(columns, np.concatenate(numbers) if numbers else None)
