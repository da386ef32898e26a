"""Which columns are features, and how they become rows of numbers.

`choose_features` settles it once for a schema; the `Recipe` it returns turns each block into a `Batch`. Numbers, dates and
fixed-size lists of numbers are dense float32, and so are categories of few levels. Other categories, hashed columns and a pair
of list columns (indices and values) are sparse; then dense features take the first indices, each sparse column its own range
after them, and the pair comes last. Text and dates need a look at what they hold (`penstock.columns.fit`); without it they are
refused by name, with what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats, indices_of, join_parts, scatter_rows, scatter_values, transpose
from penstock.columns.base import (
    NO_FLAGS,
    FeatureColumn,
    Place,
    UnseenValues,
    as_texts,
    column_of,
    field_of,
    is_text,
    null_mask,
    require_present,
    stored_column,
)
from penstock.columns.category import Category
from penstock.columns.hashing import Hashed
from penstock.columns.kinds import column_from_dict
from penstock.columns.labels import LabelMap, missing_labels, numeric
from penstock.columns.number import Number, is_null_number, number_view
from penstock.columns.pairs import Pairs
from penstock.columns.schema_notes import layout_of
from penstock.columns.vector import Vector
from penstock.errors import ColumnError, FeatureError, LabelError, UsageError


@dataclass(frozen=True, slots=True)
class Recipe:
    """Turns record batches into rows of numbers; saved with the model, it does the same to the rows to be predicted.

    Attributes
    ----------
    parts : tuple of FeatureColumn
        The columns that features come from, in order.
    label, weight : str or None
        The columns of the target and of the row's weight.
    labels : LabelMap or None
        How classes become targets; None for a label that is a number.
    place : str
        What messages call the data.
    weight_mean : float
        What weights are divided by, so that they have mean 1 over the rows that a model is learnt from.
    origin : list or None
        For a converted file, the parts that it was packed from: a model learnt from it also scores unconverted data.
    left_out : dict of str
        Columns that nobody named and that tell nothing, with the reason.
    missing : str
        What is done with missing values: see the option ``missing``.
    unlabelled : bool
        Whether rows without a label are left out, with a weight of 0, rather than refused.
    members : dict of str
        Features that are members of a struct, with the column of the struct.
    unseen : UnseenValues or None
        Counts values that training did not see, where somebody wants to know.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock.columns import choose_features
    >>> batch = pa.record_batch({"a": [1, 2], "b": [0.5, 0.25], "clicked": [0, 1]})
    >>> recipe = choose_features(batch.schema, label="clicked", place="example")
    >>> recipe.names
    ('a', 'b')
    >>> recipe.encode(batch).x
    array([[1.  , 0.5 ],
           [2.  , 0.25]], dtype=float32)
    """

    parts: tuple[FeatureColumn, ...]
    label: str | None = None
    weight: str | None = None
    labels: LabelMap | None = None
    place: str = "the data"
    origin: list[dict[str, Any]] | None = None
    weight_mean: float = 1.0
    left_out: Mapping[str, str] = field(default_factory=dict)
    missing: str = "auto"
    unlabelled: bool = False
    members: Mapping[str, str] = field(default_factory=dict)
    unseen: UnseenValues | None = field(default=None, compare=False, repr=False)

    @property
    def weighted(self) -> bool:
        """Whether rows have weights: those of a column, or 0 for rows that are left out."""
        return self.weight is not None or self.unlabelled or self.missing == "drop"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to ask of a source."""
        wanted = [self.members.get(name, name) for part in self.parts for name in part.columns]
        return tuple(dict.fromkeys([*wanted, *(n for n in (self.label, self.weight) if n is not None)]))

    @property
    def described_parts(self) -> tuple[FeatureColumn, ...]:
        """The columns as people know them: of a converted file those that it was packed from."""
        return self.parts if self.origin is None else tuple(map(column_from_dict, self.origin))

    @property
    def sparse(self) -> bool:
        """Whether rows come out as CSR."""
        return any(part.sparse for part in self.parts)

    @property
    def dense_width(self) -> int:
        """The number of features of plain numbers, which come first; beside sparse ones they are stored even where they are 0."""
        only = self.parts[0]
        if len(self.parts) == 1 and isinstance(only, Pairs):
            return only.dense  # of a converted file
        return sum(part.width or 0 for part in self.parts if not part.sparse)

    @property
    def width(self) -> int | None:
        """The number of features; None for sparse lists whose width is not known yet."""
        widths = [part.width for part in self.parts]
        return None if None in widths else sum(w for w in widths if w is not None)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The features' names, in order; None where they are sparse."""
        return None if self.sparse else tuple(name for part in self.parts for name in part.names)

    def feature_names(self, features: Iterable[int]) -> list[str]:
        """Return what some features are called, of sparse rows too.

        Examples
        --------
        >>> from penstock.columns.hashing import Hashed
        >>> Recipe((Number("age"), Hashed("city", bits=4))).feature_names([0, 1, 16])
        ['age', 'city#0', 'city#15']
        """
        parts = self.described_parts
        ends = np.cumsum([part.width or 0 for part in parts])
        found = []
        for feature in features:
            at = min(int(np.searchsorted(ends, feature, side="right")), len(parts) - 1)
            found.append(parts[at].feature_name(feature - int(ends[at - 1] if at else 0)))
        return found

    @property
    def cardinalities(self) -> dict[str, int]:
        """How many numbers stand for the values of each column of categories in rows for a network (`TableRows`)."""
        return {part.name: part.cardinality for part in self.parts if isinstance(part, (Category, Hashed))}

    @property
    def flags(self) -> NDArray[np.bool_]:
        """Which features are 0 or 1 and keep that size when features are scaled; empty where none are."""
        if not any(len(part.flags) for part in self.parts):
            return NO_FLAGS
        found = [part.flags if len(part.flags) else np.zeros(part.width or 0, np.bool_) for part in self.parts]
        return np.concatenate(found)

    @property
    def row_bytes(self) -> int:
        """Decoded bytes of a dense row with its target and weight."""
        return 4 * ((self.width or 0) + (self.label is not None) + self.weighted)

    @property
    def packed_column(self) -> str | None:
        """The one fixed-size float32 list that holds all features, if it is so."""
        only = self.parts[0] if len(self.parts) == 1 else None
        return only.column if isinstance(only, Vector) and not (self.unlabelled or self.missing == "drop") else None

    def encode(self, batch: pa.RecordBatch, *, first_row: int = 0, wide: bool = False) -> Batch:
        """Return a batch's rows; ``first_row`` is what its first row is called in messages.

        Rows asked for as ``wide`` are sparse whatever the columns, with indices of 64 bits, and an index beyond the
        known width is refused rather than left out.
        """
        if self.missing == "refuse":
            self.require_complete(batch, first_row=first_row)
        sparse = self.sparse or wide
        x: Floats | Csr = self._sparse(batch, first_row, wide) if sparse else self._dense(batch, self.parts, first_row)
        return Batch(x, *self.targets(batch, first_row=first_row))

    def targets(self, batch: pa.RecordBatch, *, first_row: int = 0) -> tuple[Floats | None, Floats | None]:
        """Return the targets and the weights of a batch's rows, those that there are."""
        return self._target(batch, first_row), self.weights(batch, first_row=first_row)

    def decode(self, batch: pa.RecordBatch, *, first_row: int = 0) -> Batch:
        """Return the rows of a block: `encode`, under the name that all makers of rows have."""
        return self.encode(batch, first_row=first_row)

    def encode_into(
        self,
        batch: pa.RecordBatch,
        x_out: Floats,
        *,
        y_out: Floats | None = None,
        w_out: Floats | None = None,
        slots: NDArray[np.uint32],
        first_row: int = 0,
    ) -> None:
        """Write dense row ``i`` to slot ``slots[i]`` of arrays made beforehand; 0xFFFFFFFF leaves a row out."""
        if self.sparse:
            raise UsageError("rows of sparse features have no fixed size and cannot be written into slots")
        encoded = self.encode(batch, first_row=first_row)
        scatter_rows(encoded.x, slots, x_out)
        if y_out is not None and encoded.y is not None:
            scatter_values(encoded.y, slots, y_out)
        if w_out is not None and encoded.weight is not None:
            scatter_values(encoded.weight, slots, w_out)

    def with_width(self, width: int) -> Recipe:
        """Return the recipe with the number of sparse features set; indices beyond it are left out."""
        *others, last = self.parts
        if not isinstance(last, Pairs):
            if width != self.width:
                raise UsageError(f": these columns make {self.width} features", option="width", value=width)
            return self
        base = sum(part.width or 0 for part in others)
        return replace(self, parts=(*others, replace(last, width=width - base)))

    def with_dense(self, features: int) -> Recipe:
        """Return the recipe of one pair of lists in which every row has all of the first so many features."""
        (only,) = self.parts
        assert isinstance(only, Pairs)
        return replace(self, parts=(replace(only, dense=features),))

    def without(self, columns: Sequence[str], reason: str) -> Recipe:
        """Return the recipe with some columns left out, for a reason."""
        parts = tuple(part for part in self.parts if part.columns[0] not in columns)
        return replace(self, parts=parts, left_out={**self.left_out, **dict.fromkeys(columns, reason)})

    def without_rows(self, numbered: Sequence[str], empty: Sequence[str]) -> Recipe:
        """Return the recipe without columns that number the rows, and those that have no value.

        Row numbers are features where there are no others.
        """
        if len(numbered) + len(empty) == len(self.parts):
            numbered, empty = [], empty if numbered else []
        return self.without(numbered, "row numbers").without(empty, "empty")

    def with_labels(self, labels: LabelMap | None) -> Recipe:
        """Return the recipe with the classes of its label set."""
        return replace(self, labels=labels)

    def nonfinite(self, batch: Batch) -> tuple[int, str] | None:
        """Return the row and the name of the first feature that is NaN or infinite, or None."""
        values = batch.x.values if isinstance(batch.x, Csr) else batch.x
        if np.isfinite(values.sum(dtype=np.float64)):  # one pass that allocates nothing; a bad value spoils the sum
            return None
        may = self._may_be_missing()
        bad = np.argwhere(~np.isfinite(values))
        if may.any():
            features = batch.x.indices[bad[:, 0]] if isinstance(batch.x, Csr) else bad[:, 1]
            known = may[np.minimum(features, len(may) - 1)]
            bad = bad[~(known & np.isnan(values[tuple(bad.T)]))]
        if not len(bad):
            return None
        if isinstance(batch.x, Csr):
            entry = int(bad[0, 0])
            row = int(np.searchsorted(batch.x.indptr, np.uint64(entry), side="right")) - 1
            return row, self.feature_names([int(batch.x.indices[entry])])[0]
        return int(bad[0, 0]), self.feature_names([int(bad[0, 1])])[0]

    def _may_be_missing(self) -> NDArray[np.bool_]:
        """Return which features may be NaN, while the numbers that stand for missing ones are being found."""
        found = [isinstance(p, Number) and p.fill is not None and np.isnan(p.fill) for p in self.parts if not p.sparse]
        widths = [p.width or 0 for p in self.parts if not p.sparse]
        return np.append(np.repeat(np.array(found, np.bool_), widths), False)

    def at(self, place: str) -> Recipe:
        """Return the recipe whose messages name this place."""
        return self if place == self.place else replace(self, place=place)

    def require_finite(self, batch: Batch, *, first_row: int = 0) -> None:
        """Raise `FeatureError` naming the row and column of a feature that is not finite."""
        found = self.nonfinite(batch)
        if found:
            row, name = found
            raise FeatureError(
                f"{self.place}: {name!r} is not a finite number in row {first_row + row}; mend such values, or"
                " leave such rows out"
            )

    def for_schema(self, schema: pa.Schema, *, place: str, scored: bool = False) -> Recipe:
        """Return the recipe for other data with these columns, whatever their order.

        Unconverted data serve a model learnt from a converted file, and the other way round. Label and weight
        are asked for only where ``scored``.
        """
        label, weight = (self.label, self.weight) if scored else (None, None)
        noted = layout_of(schema)
        parts, origin = self.parts, self.origin
        stored = _stored_as(noted.get("encoder") or ())
        if noted and stored in (_stored_as([part.to_dict() for part in self.parts]), _stored_as(origin or [{}])):
            from penstock.columns.choose import choose_features  # which makes recipes

            packed = choose_features(schema, place=place)
            parts, origin = packed.parts, packed.origin
            if self.width is not None and packed.sparse:
                parts = packed.with_width(self.width).parts
        elif origin and not all(c in schema.names for part in parts for c in part.columns):
            parts, origin = tuple(map(column_from_dict, origin)), None
        wanted = [(c, "feature column") for part in parts for c in part.columns]
        wanted += [(c, role) for c, role in ((label, "label column"), (weight, "weight column")) if c is not None]
        for name, role in wanted:
            if field_of(schema, name) is None:
                raise ColumnError.missing(name, schema.names, place=place, role=role)
        for part in parts:
            part.require_kind(schema, place=place)
        members = members_of(schema, parts)
        unlabelled, missing = (self.unlabelled, self.missing) if scored else (False, "auto")
        return replace(
            self,
            parts=parts,
            label=label,
            weight=weight,
            place=place,
            origin=origin,
            members=members,
            unlabelled=unlabelled,
            missing=missing,
        )

    def to_measure(self) -> Recipe:
        """Return the recipe of the rows that a model is measured on: all that it predicts and that have a label.

        Rows that lack a feature are among them where training dropped such rows. Those without a label are left out, unless they
        are to be refused or rows are packed, which have all.
        """
        measured = replace(self, missing="auto" if self.missing == "drop" else self.missing)
        return replace(measured, unlabelled=measured.missing != "refuse" and measured.packed_column is None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, for a model file."""
        return {
            "parts": [part.to_dict() for part in self.parts],
            "label": self.label,
            "weight": self.weight,
            "labels": self.labels.to_dict() if self.labels else None,
            "origin": self.origin,
            "weight_mean": self.weight_mean,
            **{name: dict(getattr(self, name)) for name in ("left_out", "members") if getattr(self, name)},
            **({"missing": self.missing} if self.missing != "auto" else {}),
            **({"unlabelled": True} if self.unlabelled else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """Build the recipe again; then `for_schema` fits it to the data at hand."""
        labels = LabelMap.from_dict(data["labels"]) if data.get("labels") else None
        parts = tuple(map(column_from_dict, data["parts"]))
        mean = float(data.get("weight_mean", 1.0))  # models of an earlier version have none
        return cls(
            parts,
            data.get("label"),
            data.get("weight"),
            labels,
            origin=data.get("origin"),
            weight_mean=mean,
            left_out=data.get("left_out", {}),
            missing=data.get("missing", "auto"),
            unlabelled=data.get("unlabelled", False),
            members=data.get("members", {}),
        )

    def _dense(self, batch: pa.RecordBatch, parts: Sequence[FeatureColumn], first_row: int) -> Floats:
        """Return dense parts side by side as C-contiguous rows; a view for one float32 list."""
        return dense_features(batch, parts, Place(self.place, first_row, self.unseen))

    def _sparse(self, batch: pa.RecordBatch, first_row: int, wide: bool) -> Csr:
        dense = [part for part in self.parts if not part.sparse]
        found = []
        if dense:
            x = self._dense(batch, dense, first_row)
            rows, width = x.shape
            indptr = np.arange(rows + 1, dtype=np.uint64) * np.uint64(width)
            numbers = indices_of(rows * width, wide=wide)
            numbers.reshape(rows, width)[:] = np.arange(width)
            found.append(Csr(indptr, numbers, x.ravel(), width))
        sparse = [part for part in self.parts if part.sparse]
        place = Place(self.place, first_row, self.unseen)
        arrays = ([column_of(batch, name) for name in part.columns] for part in sparse)
        found += [part.sparse_rows(each, place, wide=wide) for part, each in zip(sparse, arrays)]
        return found[0] if len(found) == 1 else join_parts(found, wide=wide)

    def _target(self, batch: pa.RecordBatch, first_row: int) -> Floats | None:
        if self.label is None:
            return None
        array = batch.column(self.label)
        try:
            if self.labels is not None:
                return self.labels.encode(array, first_row=first_row, unlabelled=self.unlabelled)
            return numeric(array, column=self.label, first_row=first_row, unlabelled=self.unlabelled)
        except LabelError as error:
            raise error.replace(place=self.place) from None

    def weights(self, batch: pa.RecordBatch, *, first_row: int = 0) -> Floats | None:
        """Return the weights of a batch's rows, if there are any, divided by their mean over the training rows.

        Rows that are left out have a weight of 0.
        """
        if not self.weighted:
            return None
        weights = self._column_weights(batch, first_row)
        if self.unlabelled and self.label is not None:
            weights = np.where(missing_labels(batch.column(self.label)), np.float32(0), weights)
        if self.missing == "drop":
            weights = np.where(self.lacking(batch), np.float32(0), weights)
        return weights

    def require_complete(self, batch: pa.RecordBatch, *, first_row: int = 0) -> None:
        """Raise `FeatureError` naming the first row that lacks a category, a date or a text; numbers and lists are refused as they are read."""
        for part in self.parts:
            if part.kind in ("category", "date", "hash"):
                nulls = getattr(part, "null_values", ())
                array = column_of(batch, part.columns[0])
                array = as_texts(array, nulls) if nulls else array
                require_present(array, part.columns[0], Place(self.place, first_row))

    def lacking(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which rows lack a feature."""
        found = np.zeros(len(batch), np.bool_)
        for part in self.parts:
            for name in part.columns:
                array = column_of(batch, name)
                nulls = getattr(part, "null_values", ())
                found |= missing_labels(array)
                if nulls and isinstance(part, Number) and not is_text(array.type):
                    found |= is_null_number(array, nulls)
                elif nulls:
                    found |= null_mask(as_texts(array, nulls))
        return found

    def _column_weights(self, batch: pa.RecordBatch, first_row: int) -> Floats:
        if self.weight is None:
            return np.ones(len(batch), np.float32)
        try:
            weights = numeric(batch.column(self.weight), column=self.weight, first_row=first_row, weight=True)
        except LabelError as error:
            raise FeatureError(error.reason, fixes=error.fixes, place=self.place) from None
        if len(weights) and weights.min() < 0:
            row = int(np.argmin(weights))
            raise FeatureError(
                f"{self.place}: the weight {self.weight!r} is {weights[row]} in row {first_row + row};"
                " weights are zero or more"
            )
        if self.weight_mean == 1:
            return weights
        scaled: Floats = (weights / np.float64(self.weight_mean)).astype(np.float32)
        return scaled


def _stored_as(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what tells how columns were packed into a converted file; what stands for a missing number does not."""
    return [{name: value for name, value in part.items() if name not in ("fill", "null_values")} for part in parts]


def dense_features(batch: pa.RecordBatch, parts: Sequence[FeatureColumn], place: Place) -> Floats:
    """Return dense columns side by side as C-contiguous rows; a view for one float32 list."""
    if len(parts) == 1 and isinstance(parts[0], Vector):
        return parts[0].rows(column_of(batch, parts[0].column), place)
    out = np.empty((len(batch), sum(part.width or 0 for part in parts)), np.float32)
    at = start = 0
    while start < len(parts):
        part = parts[start]
        if isinstance(part, Vector):
            out[:, at : at + part.width] = part.rows(column_of(batch, part.column), place)
            at, start = at + part.width, start + 1
            continue
        stop = start
        while stop < len(parts) and not isinstance(parts[stop], Vector):
            stop += 1
        columns = np.empty((sum(part.width or 0 for part in parts[start:stop]), len(batch)), np.float32)
        _write_columns(batch, parts[start:stop], columns, place)
        transpose(columns, out, at)
        at, start = at + len(columns), stop
    return out


def _write_columns(batch: pa.RecordBatch, parts: Sequence[FeatureColumn], columns: Floats, place: Place) -> None:
    """Write the features of dense columns; numbers without a null, the most of all, with little between."""
    row, unsure = 0, []
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused by their row
        for part in parts:
            array, width = column_of(batch, part.columns[0]), part.width or 0
            values = number_view(array) if isinstance(part, Number) and part.plain else None
            if values is None:
                part.write(array, columns[row : row + width], place)
            else:
                columns[row] = values
                if values.dtype.kind == "f":
                    unsure.append((part, array, row))
            row += width
    if unsure and np.isnan(columns.sum()):
        for number, array, row in unsure:
            number.write(array, columns[row : row + 1], place)


def members_of(schema: pa.Schema, parts: Iterable[FeatureColumn]) -> dict[str, str]:
    """Return the struct column of each feature that is a member of one."""
    names = [name for part in parts for name in part.columns]
    return {name: root for name in names if (root := stored_column(schema, name)) != name}
