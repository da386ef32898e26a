"""Sparse rows as two list columns: the indices of a row's features that are not 0, and their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.columns.base import Place, as_ranges, flags_of, is_list, is_number, require_present, saved
from penstock.columns.labels import to_numbers
from penstock.errors import FeatureError, UsageError

PAIRS = (("indices", "values"), ("features_k", "features_v"))
_WIDTH = b"penstock.width"


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two columns of lists; indices beyond a known width are left out."""

    kind: ClassVar[str] = "pairs"
    sparse: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ()

    columns: tuple[str, str]
    width: int | None = None
    dense: int = 0
    """Of a converted file, how many of the first features are numbers that every row has."""
    flag_ranges: tuple[tuple[int, int], ...] = ()
    """And which features are 0 or 1: from each first up to a last one."""

    def feature_name(self, place: int) -> str:
        return f"feature {place}"

    @property
    def flags(self) -> NDArray[np.bool_]:
        return flags_of(self.flag_ranges, self.width or 0)

    @classmethod
    def of(cls, schema: pa.Schema, pair: tuple[str, str], *, place: str) -> Pairs:
        """Take two list columns as sparse features."""
        indices, values = (schema.field(name).type for name in pair)
        if not (is_list(indices) and pa.types.is_integer(indices.value_type)):
            raise FeatureError(f"{place}: column {pair[0]!r} is {indices}; sparse indices are a list of integers")
        if not (is_list(values) and is_number(values.value_type)):
            raise FeatureError(f"{place}: column {pair[1]!r} is {values}; sparse values are a list of numbers")
        noted = (schema.field(pair[0]).metadata or {}).get(_WIDTH)
        return cls(pair, None if noted is None else int(noted))

    def write(self, array: pa.Array, into: Floats, place: Place) -> None:
        raise UsageError(f"{self.columns[0]!r} holds sparse rows, which are not written as columns")

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Csr:
        indices, values = arrays
        for array, name in zip(arrays, self.columns):
            require_present(array, name, place)
        starts = indices.offsets.to_numpy().astype(np.int64)
        value_starts = values.offsets.to_numpy().astype(np.int64)
        lengths = np.diff(starts)
        unequal = np.flatnonzero(lengths != np.diff(value_starts))
        if len(unequal):
            row = int(unequal[0])
            raise FeatureError(
                f"{place.name}: row {place.first_row + row} has {lengths[row]} indices in {self.columns[0]!r} and"
                f" {np.diff(value_starts)[row]} values in {self.columns[1]!r}"
            )
        inner = [a.values.slice(int(s[0]), int(s[-1] - s[0])) for a, s in ((indices, starts), (values, value_starts))]
        for array, name in zip(inner, self.columns):
            if array.null_count:
                raise FeatureError(f"{place.name}: a list in column {name!r} holds a null; remove it or fill it")
        where = inner[0].to_numpy(zero_copy_only=False)
        indptr = (starts - starts[0]).astype(np.uint64)
        most = int(where.max()) if len(where) else -1
        if wide:
            return _wide(self, indptr, where, to_numbers(inner[1]), place)
        if len(where) and (int(where.min()) < 0 or most > 0xFFFFFFFF):
            row = (
                int(np.searchsorted(indptr, np.uint64(np.argmax((where < 0) | (where > 0xFFFFFFFF))), side="right")) - 1
            )
            raise FeatureError(
                f"{place.name}: row {place.first_row + row} has the index {most if most > 0xFFFFFFFF else int(where.min())} in"
                f" {self.columns[0]!r}; indices are from 0 to 2^32 - 1"
                + (" in a model in memory: train larger ones with a model_dir (penstock.bigmodel)" if most > 0 else "")
            )
        places = where.view(np.uint32) if where.dtype == np.int32 else where.astype(np.uint32, copy=False)
        rows = Csr(indptr, places, to_numbers(inner[1]), most + 1 if self.width is None else self.width)
        if most < rows.width:
            return rows
        kept = _drop_beyond(rows)
        if place.unseen is not None:
            dropped = np.diff(rows.indptr.astype(np.int64)) != np.diff(kept.indptr.astype(np.int64))
            place.unseen.count_features(self.columns[0], int(np.count_nonzero(dropped)))
        return kept

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        Pairs.of(schema, self.columns, place=place)

    def to_dict(self) -> dict[str, Any]:
        return saved(self, dense=self.dense or None, flag_ranges=self.flag_ranges)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Pairs:
        """Build the columns again."""
        ranges = as_ranges(data.get("flag_ranges", ()))
        return cls((data["columns"][0], data["columns"][1]), data["width"], data.get("dense", 0), ranges)

    def facts(self) -> dict[str, Any]:
        return {"missing": "refused"}


def with_pair_width(schema: pa.Schema, width: int) -> pa.Schema:
    """Return a schema with ``indices`` that says how many features they are of."""
    at = schema.get_field_index(PAIRS[0][0])
    return schema.set(at, schema.field(at).with_metadata({_WIDTH: str(width)}))


def _wide(part: Pairs, indptr: NDArray[np.uint64], where: NDArray[Any], values: Floats, place: Place) -> Csr:
    """Return rows whose indices have 64 bits; one that is negative or beyond the width is refused, not left out."""
    least, most = (int(where.min()), int(where.max())) if len(where) else (0, -1)
    width = most + 1 if part.width is None else part.width
    if least < 0 or most >= width:
        entry = int(np.argmax(where < 0)) if least < 0 else int(np.argmax(where >= width))
        row = place.first_row + int(np.searchsorted(indptr, np.uint64(entry), side="right")) - 1
        told = f"{place.name}: row {row} has the index {int(where[entry])} in {part.columns[0]!r}"
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
