"""Which columns are features, and how they become rows of numbers.

`choose_features` settles it once for a schema; the `Recipe` it returns turns each block into a `Batch`. Numbers,
booleans and fixed-size lists of numbers are dense float32. A pair of list columns (indices and values) and
hashed columns are sparse; then dense features take the first indices, each hashed column its own range after
them, and the pair comes last. Text, categories and dates are refused by name, with what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats, indices_of, join_parts, scatter_rows, scatter_values
from penstock.columns.hashing import Hashed
from penstock.columns.kinds import PAIRS, FeatureColumns, Refusal, classify, dense_features, sparse_features
from penstock.columns.labels import LabelMap, numeric
from penstock.columns.schema_notes import index_columns, layout_of
from penstock.errors import ColumnError, FeatureError, LabelError, UsageError, some_of
from penstock.messages import Text, Use, joined


@dataclass(frozen=True, slots=True)
class Recipe:
    """Turns record batches into rows of numbers.

    Attributes
    ----------
    parts : tuple of Part
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

    Examples
    --------
    >>> import pyarrow as pa
    >>> batch = pa.record_batch({"a": [1, 2], "b": [0.5, 0.25], "clicked": [0, 1]})
    >>> recipe = choose_features(batch.schema, label="clicked", place="example")
    >>> recipe.names
    ('a', 'b')
    >>> recipe.encode(batch).x
    array([[1.  , 0.5 ],
           [2.  , 0.25]], dtype=float32)
    """

    parts: tuple[FeatureColumns, ...]
    label: str | None = None
    weight: str | None = None
    labels: LabelMap | None = None
    place: str = "the data"
    origin: list[dict[str, Any]] | None = None
    weight_mean: float = 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to ask of a source."""
        wanted = [name for part in self.parts for name in part.columns]
        return tuple(dict.fromkeys([*wanted, *(n for n in (self.label, self.weight) if n is not None)]))

    @property
    def sparse(self) -> bool:
        """Whether rows come out as CSR."""
        return any(part.sparse for part in self.parts)

    @property
    def dense_width(self) -> int:
        """The number of features of plain numbers, which come first; beside sparse ones they are stored even where they are 0."""
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

    @property
    def row_bytes(self) -> int:
        """Decoded bytes of a dense row with its target and weight."""
        return 4 * ((self.width or 0) + (self.label is not None) + (self.weight is not None))

    @property
    def packed_column(self) -> str | None:
        """The one fixed-size float32 list that holds all features, if it is so."""
        return self.parts[0].columns[0] if len(self.parts) == 1 and self.parts[0].kind == "vector" else None

    def encode(self, batch: pa.RecordBatch, *, first_row: int = 0, wide: bool = False) -> Batch:
        """Return a batch's rows; ``first_row`` is what its first row is called in messages.

        Rows asked for as ``wide`` are sparse whatever the columns, with indices of 64 bits, and an index beyond the
        known width is refused rather than left out.
        """
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
        if last.kind != "pairs":
            if width != self.width:
                raise UsageError(f": these columns make {self.width} features", option="width", value=width)
            return self
        base = sum(part.width or 0 for part in others)
        return replace(self, parts=(*others, replace(last, width=width - base)))

    def with_labels(self, labels: LabelMap | None) -> Recipe:
        """Return the recipe with the classes of its label set."""
        return replace(self, labels=labels)

    def nonfinite(self, batch: Batch) -> tuple[int, str] | None:
        """Return the row and the name of the first feature that is NaN or infinite, or None."""
        values = batch.x.values if isinstance(batch.x, Csr) else batch.x
        if np.isfinite(values.sum(dtype=np.float64)):  # one pass that allocates nothing; a bad value spoils the sum
            return None
        bad = np.argwhere(~np.isfinite(values))
        if not len(bad):
            return None
        if isinstance(batch.x, Csr):
            entry = int(bad[0, 0])
            row = int(np.searchsorted(batch.x.indptr, np.uint64(entry), side="right")) - 1
            return row, f"feature {int(batch.x.indices[entry])}"
        return int(bad[0, 0]), (self.names or ())[int(bad[0, 1])]

    def at(self, place: str) -> Recipe:
        """Return the recipe whose messages name this place."""
        return self if place == self.place else replace(self, place=place)

    def require_finite(self, batch: Batch, *, first_row: int = 0) -> None:
        """Raise `FeatureError` naming the row and column of a feature that is not finite."""
        found = self.nonfinite(batch)
        if found:
            row, name = found
            raise FeatureError(
                f"{self.place}: {name!r} is not a finite number in row {first_row + row}; fill or remove such values"
                " before training"
            )

    def for_schema(self, schema: pa.Schema, *, place: str, scored: bool = False) -> Recipe:
        """Return the recipe for other data with these columns, whatever their order.

        Unconverted data serve a model learnt from a converted file, and the other way round. Label and weight
        are asked for only where ``scored``.
        """
        label, weight = (self.label, self.weight) if scored else (None, None)
        noted = layout_of(schema)
        parts, origin = self.parts, self.origin
        mine = [part.to_dict() for part in self.parts]
        if noted.get("encoder") == mine or (origin and noted.get("encoder") == origin):
            packed = choose_features(schema, place=place)
            parts, origin = packed.parts, packed.origin
            if self.width is not None and packed.sparse:
                parts = packed.with_width(self.width).parts
        elif origin and not all(c in schema.names for part in parts for c in part.columns):
            parts, origin = tuple(FeatureColumns.from_dict(p) for p in origin), None
        wanted = [(c, "feature column") for part in parts for c in part.columns]
        wanted += [(c, role) for c, role in ((label, "label column"), (weight, "weight column")) if c is not None]
        for name, role in wanted:
            if name not in schema.names:
                raise ColumnError.missing(name, schema.names, place=place, role=role)
        for part in parts:
            part.require_kind(schema, place=place)
        return replace(self, parts=parts, label=label, weight=weight, place=place, origin=origin)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, for a model file."""
        return {
            "parts": [part.to_dict() for part in self.parts],
            "label": self.label,
            "weight": self.weight,
            "labels": self.labels.to_dict() if self.labels else None,
            "origin": self.origin,
            "weight_mean": self.weight_mean,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """Build the recipe again; then `for_schema` fits it to the data at hand."""
        labels = LabelMap.from_dict(data["labels"]) if data.get("labels") else None
        parts = tuple(FeatureColumns.from_dict(p) for p in data["parts"])
        mean = float(data.get("weight_mean", 1.0))  # models of an earlier version have none
        return cls(parts, data.get("label"), data.get("weight"), labels, origin=data.get("origin"), weight_mean=mean)

    def _dense(self, batch: pa.RecordBatch, parts: Sequence[FeatureColumns], first_row: int) -> Floats:
        return dense_features(batch, parts, place=self.place, first_row=first_row)

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
        found += [sparse_features(batch, part, place=self.place, first_row=first_row, wide=wide) for part in sparse]
        return found[0] if len(found) == 1 else join_parts(found, wide=wide)

    def _target(self, batch: pa.RecordBatch, first_row: int) -> Floats | None:
        if self.label is None:
            return None
        try:
            if self.labels is not None:
                return self.labels.encode(batch.column(self.label), first_row=first_row)
            return numeric(batch.column(self.label), column=self.label, first_row=first_row)
        except LabelError as error:
            raise error.replace(place=self.place) from None

    def weights(self, batch: pa.RecordBatch, *, first_row: int = 0) -> Floats | None:
        """Return the weights of a batch's rows, if there are any, divided by their mean over the training rows."""
        if self.weight is None:
            return None
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


def choose_features(
    schema: pa.Schema,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    weight: str | None = None,
    exclude: Iterable[str] = (),
    hash: Sequence[str | Hashed] = (),
    place: str = "the data",
    wide: bool = False,
) -> Recipe:
    """Settle which columns are features and how they are encoded.

    Parameters
    ----------
    schema : pyarrow.Schema
        The columns there are.
    label, weight : str, optional
        The columns of the target and of the row's weight.
    features : list of str, optional
        The feature columns, in order; all but label, weight, ``exclude`` and the index of a stored pandas table if not
        given.
    exclude : list of str
        Columns to leave out.
    hash : list of str
        Columns to hash: ``"city"``, ``"city:2^18"`` or, word by word, ``"comment:2^18:words"``.
    place : str
        What messages call the data.
    wide : bool
        Let columns be hashed into more features than a model in memory can have, for `Recipe.encode` with ``wide``.
    """
    if isinstance(hash, (str, Mapping)):
        raise UsageError(
            "is not a list of columns",
            option="hash",
            value=hash,
            fixes=[Text("write ", Use("hash", ["text:2^20:words"]))],
        )
    hashed = {spec.column: spec for spec in map(Hashed.parse, hash)}
    for spec in hashed.values():
        if not wide:
            spec.require_narrow()
    excluded = list(exclude)
    roles = [(label, "label column"), (weight, "weight column"), *((h, "column to hash") for h in hashed)]
    roles += [(name, "column to exclude") for name in excluded]
    for name, role in roles:
        if name is not None and name not in schema.names:
            raise ColumnError.missing(name, schema.names, place=place, role=role)
    if label is not None and label == weight:
        raise UsageError(
            "is the label too; rows are weighed by another column", option="weight", value=weight, place=place
        )
    noted = layout_of(schema)
    packed = [c for c in noted.get("columns", ()) if c in schema.names]
    if packed and (features is None or list(features) == noted.get("features")):
        chosen = [*packed, *hashed]
    elif features is None:
        left_out = {label, weight, *excluded} | set(index_columns(schema)) - set(hashed)
        chosen = [n for n in schema.names if n not in left_out]
    else:
        chosen = list(dict.fromkeys([*features, *hashed]))
    for name in chosen:
        if name not in schema.names:
            raise ColumnError.missing(name, schema.names, place=place, role="feature column")
        if name in (label, weight):
            raise UsageError(f"{name!r} is given as a feature and as the label or weight; leave it out of the features")
    pair = next(((i, v) for i, v in PAIRS if i in chosen and v in chosen), None)
    parts, refused = [], {}
    for name in chosen:
        if pair and name in pair:
            continue
        part = classify(schema.field(name), hashed.get(name))
        if isinstance(part, Refusal):
            refused[name] = part
        else:
            parts.append(part)
    if refused:
        raise _refused(refused, place)
    parts.sort(key=lambda part: part.sparse)
    if pair:
        parts.append(FeatureColumns.of_pair(schema, pair, place=place))
    if not parts:
        raise ColumnError.no_features(schema.names, place=place)
    if packed and noted.get("encoder"):
        names = noted.get("features") or ()
        parts = [replace(p, names=tuple(names)) if p.columns == tuple(packed) and names else p for p in parts]
        if parts[-1].kind == "pairs" and noted.get("width"):
            parts[-1] = replace(parts[-1], width=int(noted["width"]))
    return Recipe(tuple(parts), label, weight, None, place, noted.get("encoder") if packed else None)


def _refused(refused: dict[str, Refusal], place: str) -> FeatureError:
    """Return the error for columns that are no features; those that could be hashed are told of together."""
    text = [name for name, why in refused.items() if why.can_hash]
    found = list(refused.values())
    if len(text) > 1:
        some = text[:8]
        rest = " …" if text[8:] else ""
        together = Refusal(
            f"columns {some_of(map(repr, text), 8)} are text, not numbers",
            (
                "encode them",
                Text("leave them out: ", Use("exclude", some), rest),
                Text("hash them: ", Use("hash", [f"{name}:2^20" for name in some]), rest),
            ),
        )
        found = [together, *(why for why in found if not why.can_hash)]
    if len(found) == 1:
        return FeatureError(found[0].reason, fixes=found[0].fixes, place=place)
    more = [f"and {len(found) - 8} more"] if found[8:] else []
    return FeatureError(joined([*(why.text for why in found[:8]), *more], "; "), place=place)
