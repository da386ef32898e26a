"""What a loader makes of rows: features and a target for linear models, or named columns for everything else.

A form knows its rows' size, allocates slots for them, puts decoded parts together and writes them to Arrow. Loader,
windows, mixers and copies are the same for both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats, scatter_rows, scatter_values, standardize_rows
from penstock.blocks.fields import Fields
from penstock.blocks.memory import to_arrow
from penstock.columns.choose import choose_features
from penstock.columns.recipe import Recipe
from penstock.copying import move_rows, put_rows
from penstock.loader import window_kernels
from penstock.records import Column, Ragged, Records


class RowsLike(Protocol):
    """A run of rows: `Batch` or `Records`."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def slice(self, start: int, stop: int) -> Self: ...

    def take(self, picks: NDArray[np.integer]) -> Self: ...


Each: TypeAlias = Callable[[Callable[..., object], Iterable[tuple[Any, ...]]], None]
"""Calls a function with each of several tuples of arguments, in any order and perhaps in several threads."""


def one_by_one(function: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Call a function with each tuple of arguments, in this thread."""
    for each in arguments:
        function(*each)


R = TypeVar("R", bound=RowsLike)
R_co = TypeVar("R_co", bound=RowsLike, covariant=True)


class Decodes(Protocol[R_co]):
    """What makes rows of a block: `Recipe` makes a `Batch`, `Fields` makes `Records`."""

    @property
    def columns(self) -> Sequence[str]: ...

    def decode(self, batch: pa.RecordBatch, *, first_row: int = 0) -> R_co: ...


NOTHING = np.empty(0, np.float32)
SlotArray = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Feature standardisation, applied to rows on their way into a window."""

    shift: Floats
    scale: Floats

    @classmethod
    def none(cls) -> Scaling:
        """Return the scaling that changes nothing."""
        return cls(NOTHING, NOTHING)


class SlotsOf(Protocol[R_co]):
    """Memory that a window's rows are put into."""

    def __len__(self) -> int: ...

    def slice(self, start: int, stop: int) -> R_co:
        """Return some of the rows as views."""
        ...


class RowForm(Protocol[R]):
    """What rows are made into."""

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        ...

    @property
    def fixed(self) -> bool:
        """Whether all rows are equally long, so that each can go straight to its slot."""
        ...

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory; where rows are unequal, what they need beside their values."""
        ...

    def empty(self, rows: int) -> SlotsOf[R]:
        """Allocate slots for so many rows."""
        ...

    def put(self, part: R, slots: SlotArray, into: Any) -> None:
        """Put decoded rows of fixed width into their slots."""
        ...

    def move(self, rows: R, picks: NDArray[np.int64], into: Any, places: NDArray[np.int64]) -> None:
        """Copy rows of fixed width, as they are, from their picks to places among slots."""
        ...

    def join(self, parts: Sequence[R], slots: Sequence[SlotArray], rows: int, *, each: Each = one_by_one) -> R:
        """Put decoded rows together, each at its slot; ``each`` runs what has to be done for each part."""
        ...

    def concat(self, parts: Sequence[R]) -> R:
        """Put rows end to end."""
        ...

    def blank(self, rows: int) -> R:
        """Return so many rows of no content."""
        ...

    def to_arrow(self, rows: R) -> pa.RecordBatch:
        """Return rows as Arrow, for a copy."""
        ...

    def of_copy(self, schema: pa.Schema) -> RowForm[R]:
        """Return the form that reads what `to_arrow` wrote."""
        ...

    def decode(self, batch: pa.RecordBatch, *, first_row: int = 0) -> R:
        """Return a block's rows, not scaled."""
        ...

    def flaw(self, rows: R) -> tuple[int, str] | None:
        """Return a row that cannot be learned from and the column to blame, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Slots:
    """Arrays that a dense window's rows are put into; those not wanted are empty."""

    x: Floats
    y: Floats
    w: Floats

    @classmethod
    def empty(cls, rows: int, recipe: Recipe) -> Slots:
        """Allocate room for so many rows."""
        return cls(
            np.empty((rows, recipe.width or 0), np.float32),
            np.empty(rows if recipe.label else 0, np.float32),
            np.empty(rows if recipe.weighted else 0, np.float32),
        )

    def __len__(self) -> int:
        return len(self.x)

    def slice(self, start: int, stop: int) -> Batch:
        """Return some of the rows as a batch of views."""
        y, weight = (column[start:stop] if len(column) else None for column in (self.y, self.w))
        return Batch(self.x[start:stop], y, weight)


@dataclass(frozen=True, slots=True)
class FeatureForm:
    """Features as dense or sparse rows, with target and weight."""

    recipe: Recipe
    scaling: Scaling

    @property
    def columns(self) -> list[str]:
        return list(self.recipe.columns)

    @property
    def fixed(self) -> bool:
        return not self.recipe.sparse

    @property
    def row_bytes(self) -> int:
        return self.recipe.row_bytes

    def empty(self, rows: int) -> Slots:
        return Slots.empty(rows, self.recipe)

    def put(self, part: Batch, slots: SlotArray, into: Slots) -> None:
        assert not isinstance(part.x, Csr)  # sparse rows are joined, not put into slots
        scatter_rows(part.x, slots, into.x)
        if len(self.scaling.scale):
            standardize_rows(into.x, slots, self.scaling.shift, self.scaling.scale)
        for column, target in ((part.y, into.y), (part.weight, into.w)):
            if column is not None:
                scatter_values(column, slots, target)

    def move(self, rows: Batch, picks: NDArray[np.int64], into: Slots, places: NDArray[np.int64]) -> None:
        for column, target in ((rows.x, into.x), (rows.y, into.y), (rows.weight, into.w)):
            if column is not None:
                move_rows(column, picks, target, places)  # type: ignore[arg-type]  # dense

    def join(self, parts: Sequence[Batch], slots: Sequence[SlotArray], rows: int, *, each: Each = one_by_one) -> Batch:
        if not self.recipe.sparse:
            into = self.empty(rows)
            for part, place in zip(parts, slots, strict=True):
                self.put(part, place, into)
            return into.slice(0, rows)
        y = np.empty(rows, np.float32) if self.recipe.label else None
        weight = np.empty(rows, np.float32) if self.recipe.weighted else None
        for part, place in zip(parts, slots, strict=True):
            for target, column in ((y, part.y), (weight, part.weight)):
                if target is not None and column is not None:
                    scatter_values(column, place, target)
        sparse = [p.x for p in parts if isinstance(p.x, Csr)]
        center = self.scaling.shift[: self.recipe.dense_width]
        x = window_kernels.assemble_csr(sparse, list(slots), rows, center=center, scale=self.scaling.scale)
        return Batch(x, y, weight)

    def concat(self, parts: Sequence[Batch]) -> Batch:
        return Batch.concat(parts)

    def blank(self, rows: int) -> Batch:
        recipe, width = self.recipe, self.recipe.width or 0
        empty = Csr(np.zeros(rows + 1, np.uint64), np.empty(0, np.uint32), np.empty(0, np.float32), width)
        y = np.zeros(rows, np.float32) if recipe.label else None
        weight = np.zeros(rows, np.float32) if recipe.weighted else None
        return Batch(empty if recipe.sparse else np.zeros((rows, width), np.float32), y, weight)

    def to_arrow(self, rows: Batch) -> pa.RecordBatch:
        return to_arrow(rows)

    def of_copy(self, schema: pa.Schema) -> FeatureForm:
        # Labels in a copy are targets already.
        label, weight = (name if name in schema.names else None for name in ("label", "weight"))
        chosen = choose_features(schema, label=label, weight=weight, place="the shuffled copy")
        if self.recipe.sparse and self.recipe.width is not None:
            chosen = chosen.with_width(self.recipe.width).with_dense(self.recipe.dense_width)
        return FeatureForm(chosen, self.scaling)

    def decode(self, batch: pa.RecordBatch, *, first_row: int = 0) -> Batch:
        return self.recipe.decode(batch, first_row=first_row)

    def flaw(self, rows: Batch) -> tuple[int, str] | None:
        return self.recipe.nonfinite(rows)


@dataclass(frozen=True, slots=True)
class RecordForm:
    """Named columns in the types they are stored in."""

    fields: Fields

    @property
    def columns(self) -> list[str]:
        return self.fields.columns

    @property
    def fixed(self) -> bool:
        return self.fields.fixed

    @property
    def row_bytes(self) -> int:
        return self.fields.row_bytes

    def empty(self, rows: int) -> Records:
        return self.fields.empty(rows)

    def put(self, part: Records, slots: SlotArray, into: Records) -> None:
        for name, column in part.columns.items():
            put_rows(column, slots, into.columns[name])  # type: ignore[arg-type]  # all of fixed width
        if part.rows is not None and into.rows is not None:
            put_rows(part.rows, slots, into.rows)

    def move(self, rows: Records, picks: NDArray[np.int64], into: Records, places: NDArray[np.int64]) -> None:
        for name, column in rows.columns.items():
            move_rows(column, picks, into.columns[name], places)  # type: ignore[arg-type]  # all of fixed width
        if rows.rows is not None and into.rows is not None:
            move_rows(rows.rows, picks, into.rows, places)

    def join(
        self, parts: Sequence[Records], slots: Sequence[SlotArray], rows: int, *, each: Each = one_by_one
    ) -> Records:
        columns: dict[str, Column] = {}
        for field in self.fields.fields:
            pieces: list[Any] = [part.columns[field.name] for part in parts]
            if field.kind in ("fixed", "object"):
                whole = field.empty(rows)
                for part, place in zip(pieces, slots, strict=True):
                    put_rows(part, place, whole)
                columns[field.name] = whole
            else:
                columns[field.name] = _join_ragged(pieces, slots, rows, each) if pieces else Ragged.of([])
        numbers = np.empty(rows, np.int64) if self.fields.numbered else None
        if numbers is not None:
            for rows_part, place in zip(parts, slots, strict=True):
                assert rows_part.rows is not None  # decoded with numbers
                put_rows(rows_part.rows, place, numbers)
        return Records(columns, numbers)

    def concat(self, parts: Sequence[Records]) -> Records:
        return Records.concat(parts)

    def blank(self, rows: int) -> Records:
        columns: dict[str, Column] = {}
        for field in self.fields.fields:
            if field.kind in ("fixed", "object"):
                columns[field.name] = np.zeros((rows, *field.shape), field.dtype)
            else:
                columns[field.name] = Ragged(np.zeros(rows + 1, np.int64), np.empty(0, field.dtype), field.kind)  # type: ignore[arg-type]  # a ragged kind
        return Records(columns, np.zeros(rows, np.int64) if self.fields.numbered else None)

    def to_arrow(self, rows: Records) -> pa.RecordBatch:
        return self.fields.to_arrow(rows)

    def of_copy(self, schema: pa.Schema) -> RecordForm:
        return RecordForm(self.fields.of_copy())

    def decode(self, batch: pa.RecordBatch, *, first_row: int = 0) -> Records:
        return self.fields.decode(batch, first_row=first_row)

    def flaw(self, rows: Records) -> tuple[int, str] | None:
        return None


def _join_ragged(parts: Sequence[Ragged], slots: Sequence[SlotArray], rows: int, each: Each) -> Ragged:
    lengths = np.zeros(rows, np.int64)
    for part, place in zip(parts, slots, strict=True):
        scatter_values(part.lengths, place, lengths)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    values = np.empty(int(offsets[-1]), parts[0].values.dtype)
    copies = ((part.values, part.offsets, place, offsets, values) for part, place in zip(parts, slots, strict=True))
    each(window_kernels.scatter_runs, copies)
    return Ragged(offsets, values, parts[0].kind)
