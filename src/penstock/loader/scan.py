"""One pass over the data before training, for what must be known of all of it first.

The classes of the label, and rows without one; the mean of the weights; the number of features where the file does not say
(LibSVM); what stands for missing numbers; and, when asked for, each feature's mean and spread. Only the columns of labels and
weights are read where that is enough.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.blocks.base import BlockSource, PackedLayout, naming_rows, row_place
from penstock.columns.base import without_dictionary
from penstock.columns.fit import tells_missing
from penstock.columns.labels import LabelTally, missing_labels, refuse_missing
from penstock.columns.level_effects import LevelEffects
from penstock.columns.number import Number, to_doubles
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import codes_notice, date_numbers_notice
from penstock.columns.whole_numbers import WholeColumns
from penstock.errors import DataError, FeatureError, some_of
from penstock.events import Advanced, Finished, Started, Stream, Warned
from penstock.loader.decode import BlockDecoder
from penstock.loader.feature_sums import ROUNDING, FeatureSums
from penstock.loader.fit_columns import block_runs, read_joined
from penstock.loader.row_forms import Scaling
from penstock.loader.weight_sums import WeightSums
from penstock.messages import Text, Use
from penstock.parallel import in_order

_STEP = 64
"""Blocks whose labels are read by one task."""
_RUN_BYTES = 64 << 10
"""Stored bytes of blocks that are looked at together: their rows are encoded, some in each thread, whatever memory was given."""
_TALLIED_RUNS, _TALLIED_ROWS = 64, 50_000
"""About how many runs of blocks, and rows in all, are looked at for numbers that may be codes."""
_NAMED_ROWS = 1_000
"""Rows from which on whole numbers that differ in nearly all of them are told of."""
_FEW_ROWS = 0.01
"""The share of the rows that weights should leave effective."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass over the data found: a recipe that is complete, the rows, and the scaling.

    ``zero_rows`` is how many rows have a weight of 0; they count nowhere but in ``rows``. ``dropped_rows`` are those among them
    that are left out because they lack a feature. ``class_totals`` has the sum of the rows' weights in each class of the label,
    empty where that was not asked for. ``few_valued`` are columns of whole numbers that are quantities here and have few different
    values in the rows that were looked at, with how many these are.
    """

    recipe: Recipe
    rows: int
    scaling: Scaling
    zero_rows: int = 0
    class_totals: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    dropped_rows: int = 0
    few_valued: Mapping[str, int] = field(default_factory=dict)


def scan(
    source: BlockSource,
    recipe: Recipe,
    *,
    classes: bool,
    standardize: bool = False,
    width: bool = True,
    weights: bool = False,
    count_classes: bool = False,
    fill: bool = False,
    identifiers: bool = False,
    quantities: Collection[str] = (),
    stream: Stream | None = None,
) -> Scan:
    """Complete a recipe from the data.

    Parameters
    ----------
    source : BlockSource
        The data.
    recipe : Recipe
        What was chosen of its columns.
    classes : bool
        Whether the label is a class, to be mapped to targets, rather than a number.
    standardize : bool
        Whether to learn each feature's mean and spread.
    width : bool
        Whether to find the number of features where the file does not say.
    weights : bool
        Whether to divide weights, where there are any, by their mean. A survey's weights may count people by the
        100,000; as they are they would multiply the steps of learning. Rows of weight 0 are not counted, nor are they
        part of the mean and spread of features, so that they make no difference.
    count_classes : bool
        Whether to add up the weights of each class's rows.
    fill : bool
        Whether to find what stands for missing numbers, unless they are to be refused.
    identifiers : bool
        Whether to leave out columns that number the rows, and those without a value.
    quantities : list of str
        Columns of numbers that are known to be no codes.
    stream : Stream
        Hears how far the pass is.
    """
    look = _Look.of(
        recipe,
        labels=classes and (recipe.labels is None or count_classes),
        width=width,
        standardize=standardize,
        fill=fill,
    )
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no rows; there is nothing to train on")
    if not (look.labels or look.features or look.drops or (weights and recipe.weighted)):
        return Scan(recipe, int(source.block_rows.sum()), Scaling.none())
    layout = None
    if not look.features and recipe.packed_column:
        layout = source.packed(recipe.packed_column, recipe.label, recipe.weight if weights else None)
    look = replace(look, unlabelled=look.unlabelled and layout is None)  # rows of packed columns have labels
    stream = stream or Stream()
    found = _Pass(source, recipe, look, stream, weights=weights, count_classes=count_classes, identifiers=identifiers)
    if look.features:
        found.look_for_codes(quantities, classes=classes)
    stream.emit(Started("scan", len(source.block_rows), "blocks"))
    if layout is not None:
        found.read_packed(layout)
    else:
        found.read_blocks()
    stream.emit(Finished("scan"))
    return found.result(standardize=standardize, width=width)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a pass looks at.

    Attributes
    ----------
    labels : bool
        The classes of the label.
    unlabelled : bool
        Which rows have no label.
    features : bool
        The values of features.
    fills : bool
        What stands for missing numbers.
    drops : bool
        Which rows lack a feature.
    """

    labels: bool
    unlabelled: bool
    features: bool
    fills: bool
    drops: bool

    @classmethod
    def of(cls, recipe: Recipe, *, labels: bool, width: bool, standardize: bool, fill: bool) -> _Look:
        keeps = fill and recipe.missing != "refuse"
        fills = keeps and any(isinstance(part, Number) and part.fill is None for part in recipe.parts)
        features = standardize or fills or (width and recipe.width is None)
        drops = recipe.missing == "drop"
        unlabelled = keeps and recipe.label is not None and (labels or features or drops)
        return cls(labels, unlabelled, features, fills, drops)


class _Pass:
    """One pass over the data, and what it has found so far."""

    def __init__(
        self,
        source: BlockSource,
        recipe: Recipe,
        look: _Look,
        stream: Stream,
        *,
        weights: bool,
        count_classes: bool,
        identifiers: bool,
    ) -> None:
        self._source, self._recipe, self._look, self._stream = source, recipe, look, stream
        self._identifiers, self._count_classes = identifiers, count_classes
        self._place = source.name
        scanned = replace(recipe, unlabelled=look.unlabelled)
        self._weighs = weights and scanned.weighted
        self._weights = WeightSums(scanned)
        self._moments = FeatureSums(recipe.dense_width if recipe.sparse else 0)
        self._tally = LabelTally(str(recipe.label), place=source.name, count=count_classes)
        self._labelled = self._unlabelled = 0  # rows of text are counted by nobody else
        numbers = [part for part in recipe.parts if isinstance(part, Number) and part.column in source.schema.names]
        self._whole = WholeColumns(numbers if identifiers and look.features else ())
        self._numbers = {part.column: part for part in numbers if part.fill is None}
        self._codes, self._classes, self._tallied = LevelEffects(), False, range(0)
        self._seen: dict[object, int] = {}

    def look_for_codes(self, quantities: Collection[str], *, classes: bool) -> None:
        """Have some rows looked at for columns of numbers that are codes, but for those that are known to be none."""
        self._codes = LevelEffects(name for name in self._numbers if name not in quantities)
        self._classes = classes

    def read_packed(self, layout: PackedLayout) -> None:
        """Read labels and weights alone."""
        labels = self._look.labels
        for read in _packed_columns(layout, self._recipe, self._stream, labels=labels, weights=self._weighs):
            weight = self._weights.add(read, self._place, self._weights.rows) if self._weighs else None
            if labels:
                self._tally.add(read.column(0), weight)

    def read_blocks(self) -> None:
        """Read the columns that are looked at."""
        source, recipe, look = self._source, self._recipe, self._look
        roles = ((recipe.label, look.labels or look.unlabelled), (recipe.weight, self._weighs))
        columns = [name for name, looked_at in roles if looked_at and name]
        features = _features_only(recipe, missing=look.fills)
        decoder = BlockDecoder(source, features, Scaling.none()) if look.features else None
        needed = recipe.columns if look.drops else features.columns if look.features else ()
        together = list(dict.fromkeys([*columns, *needed]))

        def read(run: Sequence[int]) -> tuple[pa.RecordBatch, Batch | None]:
            rows = read_joined(source, run, together)
            batch = decoder.encode(run[0], rows) if decoder else None
            # Columns that are not looked at any more are given back here, by the thread that read them.
            kept = (
                rows.schema.names
                if look.drops
                else dict.fromkeys([*columns, *self._whole.columns, *self._codes.columns])
            )
            return rows.select(list(kept)), batch

        runs = block_runs(source, range(len(source.block_rows)), most=_RUN_BYTES)
        self._tallied = range(0, len(runs), -(-len(runs) // _TALLIED_RUNS))
        with closing(in_order(read, runs, threads=source.threads)) as found:
            for at, (run, (rows, batch)) in enumerate(zip(runs, found, strict=True)):
                self._add(run[0], rows, batch, features)
                if at in self._tallied and self._codes.columns and recipe.label in rows.schema.names:
                    self._tally_codes(rows, str(recipe.label))
                self._stream.emit(Advanced("scan", len(run)))

    def _add(self, block: int, rows: pa.RecordBatch, batch: Batch | None, features: Recipe) -> None:
        """Take in rows, the first of which is the first of a block."""
        recipe, look = self._recipe, self._look
        there = ~missing_labels(rows.column(str(recipe.label))) if look.unlabelled else None
        complete = there is None or bool(there.all())
        weight = None
        if self._weighs and complete and not recipe.weighted:
            self._weights.add_equal(len(rows))
        elif self._weighs:
            weight = naming_rows(self._source, block, partial(self._weights.add, rows))
        if batch is not None:
            _refuse_nonfinite(self._source, block, batch, features)
            self._moments.add(batch, weight)
        self._whole.add(rows)
        self._labelled += len(rows)
        if there is not None and not complete:
            self._unlabelled += int(len(there) - there.sum())
            rows, weight = rows.filter(pa.array(there)), None if weight is None else weight[there]
        if look.labels:
            labels = rows.column(str(recipe.label))
            _refuse_missing(self._source, block, labels, str(recipe.label))
            self._tally.add(labels, weight if recipe.weighted or self._count_classes else None)

    def _tally_codes(self, rows: pa.RecordBatch, label: str) -> None:
        """Look at some rows for columns that may be codes."""
        step = max(1, len(rows) * len(self._tallied) // _TALLIED_ROWS)
        rows = rows.take(pa.array(np.arange(0, len(rows), step))) if step > 1 else rows
        rows = rows.filter(pa.array(~missing_labels(rows.column(label))))
        labels = without_dictionary(rows.column(label))
        if self._classes:
            found = pc.dictionary_encode(labels)
            known = [self._seen.setdefault(value, len(self._seen)) for value in found.dictionary.to_pylist()]
            targets = np.array([*known, 0], np.float64)[np.asarray(found.indices)]
        else:
            targets = to_doubles(labels)
        values = {name: self._numbers[name].stored_values(rows.column(name)) for name in self._codes.columns}
        self._codes.add(values, targets)

    def result(self, *, standardize: bool, width: bool) -> Scan:
        """Return the recipe, completed by what was found; a user is told of rows and columns that count less than they seem to."""
        look, moments = self._look, self._moments
        recipe = self._with_labels(self._recipe)
        dropped = self._tell_of_dropped_rows(recipe) if look.drops else 0
        recipe = self._with_weights(recipe)
        if width and recipe.width is None:
            recipe = recipe.with_width(moments.width)
        rows = moments.rows if look.features else self._labelled or int(self._source.block_rows.sum())
        recipe = self._without_columns(recipe, rows)
        scaling = moments.scaling(recipe) if look.features else Scaling.none()
        far = [recipe.names[j] for j in moments.far_from_zero()] if standardize and recipe.names is not None else []
        if look.fills:
            recipe, scaling = _filled(recipe, scaling, moments)
        if far:
            self._warn(
                f"{some_of(far)} lie so far from 0 beside their spread that float32 keeps too few digits of how they"
                " differ; subtract a constant from such columns"
            )
        counts = self._count_classes and recipe.labels is not None
        totals = self._tally.totals(recipe.labels.classes if counts and recipe.labels is not None else ())
        zero_rows = self._weights.rows - self._weights.count if self._weighs and recipe.weighted else 0
        return Scan(
            recipe, rows, scaling if standardize else Scaling.none(), zero_rows, totals, dropped, self._codes.levels
        )

    def _with_labels(self, recipe: Recipe) -> Recipe:
        if self._unlabelled:
            if self._unlabelled == self._weights.rows:
                raise DataError(
                    f"{self._place}: {recipe.label!r} is missing in every row, so there is nothing to learn"
                )
            recipe = replace(recipe, unlabelled=True)
            self._warn(f"{self._unlabelled:,} rows have no {recipe.label!r}, the label, and are left out")
        return recipe.with_labels(self._tally.labels()) if self._look.labels and recipe.labels is None else recipe

    def _tell_of_dropped_rows(self, recipe: Recipe) -> int:
        """Return how many rows lack a feature, and tell of them; raise where these are all."""
        if not self._weights.count:
            names = [name for part in recipe.parts for name in part.columns]
            raise DataError(
                f"{self._place}: every row lacks one of the features {some_of(names)}, so that none is left",
                fixes=[
                    Text("leave columns out that are mostly missing: ", Use("exclude", ["COLUMN"])),
                    Use("missing", "auto"),
                ],
            )
        dropped = self._weights.rows - self._unlabelled - self._weights.count
        if dropped > 0:
            self._warn(
                f"{dropped:,} rows lack a feature and are left out, also of the rows held out; a prediction fills what such rows lack"
            )
        return dropped

    def _with_weights(self, recipe: Recipe) -> Recipe:
        weights = self._weights
        if not self._weighs or recipe.weight is None:
            return recipe
        recipe = replace(recipe, weight_mean=weights.mean(self._tally if self._look.labels else None))
        if weights.effective_rows < _FEW_ROWS * weights.count:
            self._warn(
                f"the weights in {recipe.weight!r} are so unequal that {weights.count:,} rows count like"
                f" {weights.effective_rows:,.0f}: a few rows decide the model and its figures"
            )
        return recipe

    def _without_columns(self, recipe: Recipe, rows: int) -> Recipe:
        """Leave out columns that number the rows or have no value; tell of others that are no quantities."""
        whole = self._whole
        numbered, dates = whole.row_numbers, whole.dates
        empty = _empty_columns(recipe, self._moments) if self._look.fills and self._identifiers else []
        fewer = recipe.without_rows(numbered, empty)
        gone = [name for name in fewer.left_out if name not in recipe.left_out]
        if gone:
            self._moments.leave_out(_features_of(recipe, gone))
        if dates:
            self._stream.emit(Warned(date_numbers_notice(self._place, dates)))
        codes = self._codes.codes(classes=self._classes)
        if codes:
            self._warn(codes_notice(codes, recipe.label))
        naming = [name for name in whole.row_names if name not in {*numbered, *dates} and rows >= _NAMED_ROWS]
        if naming:
            self._warn(
                Text(
                    f"nearly every row has a whole number of its own in {some_of(map(repr, naming))}, which is learned"
                    " from as a quantity; where it names the row, leave it out: ",
                    Use("exclude", naming),
                )
            )
        return fewer

    def _warn(self, told: str | Text) -> None:
        self._stream.emit(Warned(Text(f"{self._place}: ", told)))


def _packed_columns(
    layout: PackedLayout, recipe: Recipe, stream: Stream, *, labels: bool, weights: bool
) -> Iterator[pa.RecordBatch]:
    """Read labels and weights alone, many blocks to a step."""
    steps = range(0, len(layout.rows), _STEP)
    columns = [
        (name, kind, at)
        for name, kind, at, needed in (
            (recipe.label, layout.label_type, layout.label_at, labels),
            (recipe.weight, layout.weight_type, layout.weight_at, weights),
        )
        if needed and name
    ]

    def read(first: int) -> pa.RecordBatch:
        found = {}
        for name, kind, at in columns:
            parts = []
            for block in range(first, min(first + _STEP, len(layout.rows))):
                size = int(layout.rows[block]) * np.dtype(kind).itemsize
                parts.append(os.pread(layout.fd, size, int(layout.places(at)[block])))
            found[name] = pa.array(np.frombuffer(b"".join(parts), kind))
        return pa.record_batch(found)

    with closing(in_order(read, steps)) as found:
        for rows in found:
            stream.emit(Advanced("scan", min(_STEP, len(layout.rows))))
            yield rows


def _refuse_missing(source: BlockSource, block: int, labels: pa.Array, column: str) -> None:
    naming_rows(source, block, lambda place, first: refuse_missing(labels, column, first_row=first, place=place))


def _refuse_nonfinite(source: BlockSource, block: int, batch: Batch, recipe: Recipe) -> None:
    bad = recipe.nonfinite(batch)
    if bad is not None:
        name, row = row_place(source, block, bad[0])
        raise FeatureError(f"{name}: {bad[1]!r} is not a finite number in row {row}; fill or remove such values first")


def _features_only(recipe: Recipe, *, missing: bool) -> Recipe:
    """Return the recipe of the features to be looked at; ``missing`` numbers come to NaN.

    Sparse flags, as of categories, keep their size: beside dense features there is nothing to find of them.
    """
    parts = recipe.parts
    dense = tuple(part for part in parts if not part.sparse)
    if dense and all(len(part.flags) and part.flags.all() for part in parts if part.sparse):
        parts = dense
    if missing:
        parts = tuple(replace(p, fill=math.nan) if isinstance(p, Number) and p.fill is None else p for p in parts)
    return Recipe(parts, None, None, None, recipe.place, recipe.origin, members=recipe.members)


def _features_of(recipe: Recipe, names: Sequence[str]) -> list[int]:
    """Return the places of the features that columns make."""
    places: list[int] = []
    at = 0
    for part in recipe.parts:
        if part.columns[0] in names:
            places += range(at, at + (part.width or 0))
        at += part.width or 0
    return places


def _empty_columns(recipe: Recipe, moments: FeatureSums) -> list[str]:
    """Return the columns of numbers that have no value in any row."""
    share = moments.missing_share
    numbers = [p.column for p in recipe.parts if isinstance(p, Number) and p.fill is None] if len(share) else []
    return [name for name in numbers if share[_features_of(recipe, [name])[0]] == 1]


def _filled(recipe: Recipe, scaling: Scaling, moments: FeatureSums) -> tuple[Recipe, Scaling]:
    """Return a recipe that fills missing numbers with their mean, and the scaling of what it makes.

    Where more than 1 % of a column is missing, a feature tells so.
    """
    share = moments.missing_share
    parts, at, added = [], 0, []  # where a feature is added, and in what share of the rows it is 1
    scale, shift = scaling.scale.copy(), scaling.shift
    for part in recipe.parts:
        if isinstance(part, Number) and part.fill is None:
            p = float(share[at]) if len(share) else 0.0
            told = p > 0 and tells_missing(recipe.missing, p)
            part = replace(part, fill=float(shift[at]) if p < 1 else 0.0, missing=told)
            scale[at] /= max(math.sqrt(1 - p), ROUNDING)  # values that are filled vary less
            added += [(at + 1, p)] if told else []
            at -= told
        parts.append(part)
        at += 0 if part.sparse else part.width or 0
    places, shares = [place for place, _ in added], np.array([p for _, p in added], np.float32)
    shift = np.insert(shift, places, shares)
    scale = np.insert(scale, places, np.ones(len(places), np.float32))
    return replace(recipe, parts=tuple(parts)), Scaling(shift, scale)
