"""The kinds of feature column, and the arrays each becomes.

``number``: a scalar; ``vector``: a fixed-size list; ``hash``: a hashed column; ``pairs``: two list columns
holding each row's indices and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Csr, Floats, transpose
from penstock.columns.hashing import Hashed
from penstock.columns.labels import is_decimal, to_numbers
from penstock.errors import ColumnError, FeatureError
from penstock.messages import Text, TextPart, Use

PAIRS = (("indices", "values"), ("features_k", "features_v"))
_WIDTH = b"penstock.width"
"""Metadata of a column of indices: how many features there are, which may be more than the highest index says."""


@dataclass(frozen=True, slots=True)
class FeatureColumns:
    """Some columns of features: one column, or the two of a pair."""

    columns: tuple[str, ...]
    kind: str
    width: int | None
    names: tuple[str, ...] = ()
    hashed: Hashed | None = None

    @property
    def sparse(self) -> bool:
        return self.kind in ("hash", "pairs")

    @classmethod
    def of_pair(cls, schema: pa.Schema, pair: tuple[str, str], *, place: str) -> FeatureColumns:
        """Take two list columns as sparse features."""
        indices, values = (schema.field(name).type for name in pair)
        if not (is_list(indices) and pa.types.is_integer(indices.value_type)):
            raise FeatureError(f"{place}: column {pair[0]!r} is {indices}; sparse indices are a list of integers")
        if not (is_list(values) and is_number(values.value_type)):
            raise FeatureError(f"{place}: column {pair[1]!r} is {values}; sparse values are a list of numbers")
        noted = (schema.field(pair[0]).metadata or {}).get(_WIDTH)
        return cls(pair, "pairs", None if noted is None else int(noted))

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        """Raise where a column of other data is not of the kind that this part was learnt from."""
        if self.kind == "hash":
            return
        if self.kind == "pairs":
            FeatureColumns.of_pair(schema, (self.columns[0], self.columns[1]), place=place)
            return
        found = classify(schema.field(self.columns[0]), None)
        if isinstance(found, Refusal):
            raise FeatureError(found.reason, fixes=found.fixes, place=place)
        if (found.kind, found.width) != (self.kind, self.width):
            raise ColumnError(
                f"{place}: column {self.columns[0]!r} holds {found.width} values a row where {self.width} were learnt from"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        hashed = [self.hashed.column, self.hashed.bits, self.hashed.words] if self.hashed else None
        return {
            "columns": list(self.columns),
            "kind": self.kind,
            "width": self.width,
            "names": list(self.names),
            "hashed": hashed,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FeatureColumns:
        """Build the part again."""
        hashed = Hashed(*data["hashed"]) if data["hashed"] else None
        return cls(tuple(data["columns"]), data["kind"], data["width"], tuple(data["names"]), hashed)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a column cannot be a feature, and what to do; whether it could be one if it were hashed."""

    reason: str
    fixes: tuple[TextPart, ...]
    can_hash: bool = False

    @property
    def text(self) -> Text:
        """All of it in one sentence."""
        return FeatureError(self.reason, fixes=self.fixes).text


def with_pair_width(schema: pa.Schema, width: int) -> pa.Schema:
    """Return a schema with ``indices`` that says how many features they are of."""
    at = schema.get_field_index(PAIRS[0][0])
    return schema.set(at, schema.field(at).with_metadata({_WIDTH: str(width)}))


def classify(field: pa.Field, hashed: Hashed | None) -> FeatureColumns | Refusal:
    """Return what a column is as a feature, or why it is none."""
    name, kind = field.name, field.type
    if hashed is not None:
        return FeatureColumns((name,), "hash", hashed.width, (), hashed)
    if is_number(kind) or pa.types.is_boolean(kind):
        return FeatureColumns((name,), "number", 1, (name,))
    if pa.types.is_fixed_size_list(kind) and (is_number(kind.value_type) or pa.types.is_boolean(kind.value_type)):
        return FeatureColumns((name,), "vector", kind.list_size, tuple(f"{name}[{i}]" for i in range(kind.list_size)))
    if pa.types.is_temporal(kind):
        return Refusal(
            f"column {name!r} is {kind}, not a number", ("turn it into one (days since a date, say) or exclude it",)
        )
    if is_list(kind):
        fixes = "make it a fixed-size list", "give sparse rows as two columns named 'indices' and 'values'"
        return Refusal(f"column {name!r} is {kind}, a list of any length", fixes)
    if pa.types.is_nested(kind) or pa.types.is_null(kind):
        return Refusal(f"column {name!r} is {kind}, which cannot be a feature", ("flatten it or exclude it",))
    by_hash = Text("hash it: ", Use("hash", [f"{name}:2^20"]))
    return Refusal(f"column {name!r} is {kind}, not a number", ("encode it", "exclude it", by_hash), can_hash=True)


def dense_features(batch: pa.RecordBatch, parts: Sequence[FeatureColumns], *, place: str, first_row: int) -> Floats:
    """Return dense parts side by side as C-contiguous rows; a view for one float32 list."""
    arrays = [batch.column(part.columns[0]) for part in parts]
    for part, array in zip(parts, arrays):
        _refuse_nulls(array, part.columns[0], place=place, first_row=first_row)
    if len(parts) == 1 and parts[0].kind == "vector":
        return _vector(arrays[0], parts[0], place=place, first_row=first_row)
    out = np.empty((len(batch), sum(part.width or 0 for part in parts)), np.float32)
    at = start = 0
    while start < len(parts):
        if parts[start].kind == "vector":
            width = parts[start].width or 0
            out[:, at : at + width] = _vector(arrays[start], parts[start], place=place, first_row=first_row)
            at, start = at + width, start + 1
            continue
        stop = start
        while stop < len(parts) and parts[stop].kind == "number":
            stop += 1
        columns = np.empty((stop - start, len(batch)), np.float32)
        for row, array in zip(columns, arrays[start:stop]):
            row[:] = to_numbers(array)
        transpose(columns, out, at)
        at, start = at + stop - start, stop
    return out


def sparse_features(
    batch: pa.RecordBatch, part: FeatureColumns, *, place: str, first_row: int, wide: bool = False
) -> Csr:
    """Return a hashed column, or a pair of list columns, as CSR rows.

    Indices have 32 bits, and those beyond a known width are left out; ``wide`` ones have 64, and are refused there.
    """
    if part.hashed is not None:
        return part.hashed.encode(batch.column(part.columns[0]), wide=wide)
    indices, values = (batch.column(name) for name in part.columns)
    for array, name in zip((indices, values), part.columns):
        _refuse_nulls(array, name, place=place, first_row=first_row)
    starts = indices.offsets.to_numpy().astype(np.int64)
    value_starts = values.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(starts)
    unequal = np.flatnonzero(lengths != np.diff(value_starts))
    if len(unequal):
        row = int(unequal[0])
        raise FeatureError(
            f"{place}: row {first_row + row} has {lengths[row]} indices in {part.columns[0]!r} and"
            f" {np.diff(value_starts)[row]} values in {part.columns[1]!r}"
        )
    inner = [a.values.slice(int(s[0]), int(s[-1] - s[0])) for a, s in ((indices, starts), (values, value_starts))]
    for array, name in zip(inner, part.columns):
        if array.null_count:
            raise FeatureError(f"{place}: a list in column {name!r} holds a null; remove it or fill it")
    where = inner[0].to_numpy(zero_copy_only=False)
    indptr = (starts - starts[0]).astype(np.uint64)
    most = int(where.max()) if len(where) else -1
    if wide:
        return _wide(part, indptr, where, to_numbers(inner[1]), place=place, first_row=first_row)
    if len(where) and (int(where.min()) < 0 or most > 0xFFFFFFFF):
        row = int(np.searchsorted(indptr, np.uint64(np.argmax((where < 0) | (where > 0xFFFFFFFF))), side="right")) - 1
        raise FeatureError(
            f"{place}: row {first_row + row} has the index {most if most > 0xFFFFFFFF else int(where.min())} in"
            f" {part.columns[0]!r}; indices are from 0 to 2^32 - 1"
            + (" in a model in memory: train larger ones with a model_dir (penstock.bigmodel)" if most > 0 else "")
        )
    places = where.view(np.uint32) if where.dtype == np.int32 else where.astype(np.uint32, copy=False)
    rows = Csr(indptr, places, to_numbers(inner[1]), most + 1 if part.width is None else part.width)
    return rows if most < rows.width else _drop_beyond(rows)


def _wide(
    part: FeatureColumns, indptr: NDArray[np.uint64], where: NDArray[Any], values: Floats, *, place: str, first_row: int
) -> Csr:
    """Return rows whose indices have 64 bits; one that is negative or beyond the width is refused, not left out."""
    least, most = (int(where.min()), int(where.max())) if len(where) else (0, -1)
    width = most + 1 if part.width is None else part.width
    if least < 0 or most >= width:
        entry = int(np.argmax(where < 0)) if least < 0 else int(np.argmax(where >= width))
        row = first_row + int(np.searchsorted(indptr, np.uint64(entry), side="right")) - 1
        told = f"{place}: row {row} has the index {int(where[entry])} in {part.columns[0]!r}"
        if least < 0:
            raise FeatureError(f"{told}; indices are 0 or more: remove the entry or mend the index")
        raise FeatureError(
            f"{told}, but the data are declared to have {width} features (0 to {width - 1}); remove the entry, or declare"
            " a larger width"
        )
    places = where.view(np.uint64) if where.dtype == np.int64 else where.astype(np.uint64, copy=False)
    return Csr(indptr, places, values, width)


def _drop_beyond(rows: Csr) -> Csr:
    """Leave out features that were not there when the width was set."""
    kept = rows.indices < rows.width
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(kept, dtype=np.uint64)])
    return Csr(running[rows.indptr.astype(np.int64)], rows.indices[kept], rows.values[kept], rows.width)


def _vector(array: pa.Array, part: FeatureColumns, *, place: str, first_row: int) -> Floats:
    width = part.width or 0
    values = array.values.slice(array.offset * width, len(array) * width)
    if values.null_count:
        entry = int(np.argmax(_missing(values)))
        raise FeatureError(
            f"{place}: {part.names[entry % width] if part.names else part.columns[0]!r} is null in row"
            f" {first_row + entry // width}; fill or remove it"
        )
    return to_numbers(values).reshape(len(array), width)


def _refuse_nulls(array: pa.Array, name: str, *, place: str, first_row: int) -> None:
    if array.null_count:
        row = first_row + int(np.argmax(_missing(array)))
        raise FeatureError(f"{place}: column {name!r} is null in row {row}; fill or remove such rows, or exclude it")


def _missing(array: pa.Array) -> NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of lists of any length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a type is one of numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or is_decimal(kind))
