"""One pass over the data before training, for what must be known of all of it first.

The classes of the label, and rows without one; the mean of the weights; the number of features where the file does not say
(LibSVM); what stands for missing numbers; and, when asked for, each feature's mean and spread. Only the columns of labels and
weights are read where that is enough.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.blocks.base import BlockSource, PackedLayout, naming_rows, row_place
from penstock.columns.fit import WholeNumbers, tells_missing
from penstock.columns.labels import LabelTally, missing_labels, refuse_missing
from penstock.columns.number import Number
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import date_numbers_notice
from penstock.columns.spelling import DateNumbers
from penstock.errors import DataError, FeatureError, some_of
from penstock.events import Advanced, Finished, Started, Stream, Warned
from penstock.loader.decode import BlockDecoder
from penstock.loader.moment_kernels import add_dense_moments, add_moments, inverse_sizes
from penstock.loader.row_forms import NOTHING, Scaling
from penstock.messages import Text, Use
from penstock.parallel import in_order
from penstock.solvers import WIDEST

_STEP = 64
"""Blocks whose labels are read by one task."""
_WHOLE = 2.0**24
"""Up to here float32 tells whole numbers apart, so that a column of one value is one."""
_ROUNDING = 1e-7
"""The precision of float32: a spread below this share of the mean is rounding."""
FAR_FROM_ZERO = 1e5
"""How many times its spread a column may lie from 0; beyond, float32 is coarser than a hundredth of the spread."""
_NAMED_ROWS = 1_000
"""Rows from which on whole numbers that differ in nearly all of them are told of."""
_FEW_ROWS = 0.01
"""The share of the rows that weights should leave effective."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a pass over the data found: a recipe that is complete, the rows, and the scaling.

    ``zero_rows`` is how many rows have a weight of 0; they count nowhere but in ``rows``. ``class_totals`` has the sum of
    the rows' weights in each class of the label, empty where that was not asked for.
    """

    recipe: Recipe
    rows: int
    scaling: Scaling
    zero_rows: int = 0
    class_totals: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))


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
    stream : Stream
        Hears how far the pass is.
    """
    collects = classes and (recipe.labels is None or count_classes)
    fills = fill and recipe.missing != "refuse" and any(isinstance(p, Number) and p.fill is None for p in recipe.parts)
    whole = standardize or fills or recipe.missing == "drop" or (width and recipe.width is None)
    drops = fill and recipe.label is not None and recipe.missing != "refuse" and (collects or whole)
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no rows; there is nothing to train on")
    if not (collects or whole or (weights and recipe.weighted)):
        return Scan(recipe, int(source.block_rows.sum()), Scaling.none())
    stream = stream or Stream()
    moments = _Moments(recipe.dense_width if recipe.sparse else 0)
    labelled = 0  # rows of text are counted by nobody else
    layout = None
    if not whole and recipe.packed_column:
        weight_column = recipe.weight if weights else None
        layout = source.packed(recipe.packed_column, recipe.label, weight_column)
    scanned = replace(recipe, unlabelled=drops and layout is None)
    weighs = weights and scanned.weighted
    total = _Weights(scanned)
    unlabelled_rows = 0
    tally = LabelTally(str(recipe.label), place=source.name, count=count_classes)
    columns = [name for name, needed in ((recipe.label, collects or drops), (recipe.weight, weighs)) if needed and name]
    features = _features_only(recipe, missing=fills)
    decoder = BlockDecoder(source, features, Scaling.none()) if whole else None
    together = list(dict.fromkeys([*columns, *(features.columns if whole else ())]))
    numbers = [p.column for p in recipe.parts if isinstance(p, Number) and p.column in source.schema.names]
    runs = {name: WholeNumbers() for name in numbers if identifiers and whole}
    dated = {p.column: (p, DateNumbers()) for p in recipe.parts if isinstance(p, Number) and p.column in runs}

    def look(block: int) -> tuple[pa.RecordBatch, Batch | None]:
        read = source.read(block, together)
        batch = decoder.encode(block, read) if decoder else None
        # Columns that are not looked at any more are given back here, by the thread that read them.
        return read if recipe.missing == "drop" else read.select(list(dict.fromkeys([*columns, *runs, *dated]))), batch

    stream.emit(Started("scan", len(source.block_rows), "blocks"))

    if layout is not None:
        for read in _packed_columns(layout, recipe, stream, labels=collects, weights=weighs):
            weight = total.add(read, source.name, total.rows) if weighs else None
            if collects:
                tally.add(read.column(0), weight)
    else:
        with closing(in_order(look, range(len(source.block_rows)), threads=source.threads)) as found:
            for block, (read, batch) in enumerate(found):
                there = None if not drops else ~missing_labels(read.column(str(recipe.label)))
                complete = there is None or bool(there.all())
                weight = None
                if weighs and complete and not recipe.weighted:
                    total.add_equal(len(read))
                elif weighs:
                    weight = naming_rows(source, block, partial(total.add, read))
                if batch is not None:
                    _refuse_nonfinite(source, block, batch, features)
                    moments.add(batch, weight)
                for name, run in list(runs.items()):
                    run.add(read.column(name))
                    if not run.possible:
                        del runs[name]
                for name, (part, dates) in list(dated.items()):
                    dates.add(part.stored_values(read.column(name)))
                    if not dates.possible:
                        del dated[name]
                stream.emit(Advanced("scan", 1))
                labelled += len(read)
                if collects or drops:
                    labels = read.column(str(recipe.label))
                    if there is not None and not complete:
                        unlabelled_rows += int(len(there) - there.sum())
                        labels, weight = labels.filter(pa.array(there)), None if weight is None else weight[there]
                    if collects:
                        _refuse_missing(source, block, labels, str(recipe.label))
                        tally.add(labels, weight if recipe.weighted or count_classes else None)
    stream.emit(Finished("scan"))
    if unlabelled_rows:
        if unlabelled_rows == total.rows:
            raise DataError(f"{source.name}: {recipe.label!r} is missing in every row, so there is nothing to learn")
        recipe = replace(recipe, unlabelled=True)
        stream.emit(
            Warned(f"{source.name}: {unlabelled_rows:,} rows have no {recipe.label!r}, the label, and are left out")
        )
    if collects and recipe.labels is None:
        recipe = recipe.with_labels(tally.labels())
    if recipe.missing == "drop" and not total.count:
        names = [name for part in recipe.parts for name in part.columns]
        raise DataError(
            f"{source.name}: every row lacks one of the features {some_of(names)}, so that none is left",
            fixes=[
                Text("leave columns out that are mostly missing: ", Use("exclude", ["COLUMN"])),
                Use("missing", "auto"),
            ],
        )
    if recipe.missing == "drop" and total.count < total.rows - unlabelled_rows:
        dropped = total.rows - unlabelled_rows - total.count
        stream.emit(Warned(f"{source.name}: {dropped:,} rows lack a feature and are left out"))
    if weighs and recipe.weight is not None:
        recipe = replace(recipe, weight_mean=total.mean(tally if collects else None))
        if total.effective_rows < _FEW_ROWS * total.count:
            stream.emit(
                Warned(
                    f"{source.name}: the weights in {recipe.weight!r} are so unequal that {total.count:,} rows count like"
                    f" {total.effective_rows:,.0f}: a few rows decide the model and its figures"
                )
            )
    if width and recipe.width is None:
        recipe = recipe.with_width(moments.width)
    rows = moments.rows if whole else labelled or int(source.block_rows.sum())
    numbered = [name for name, run in runs.items() if run.number_rows]
    empty = _empty_columns(recipe, moments) if fills and identifiers else []
    known = set(numbered)
    if len(numbered) + len(empty) == len(recipe.parts):  # row numbers are features where there are no others
        numbered, empty = [], empty if numbered else []
    for names, reason in ((numbered, "row numbers"), (empty, "empty")):
        if names:
            moments.leave_out(_features_of(recipe, names))
            recipe = recipe.without(names, reason)
    spelled = [name for name, (_, dates) in dated.items() if dates.dates]
    if spelled:
        stream.emit(Warned(date_numbers_notice(source.name, spelled)))
    known.update(spelled)
    naming = [name for name, run in runs.items() if run.name_rows and name not in known and rows >= _NAMED_ROWS]
    if naming:
        stream.emit(
            Warned(
                Text(
                    f"{source.name}: nearly every row has a whole number of its own in {some_of(map(repr, naming))}, which is learned"
                    " from as a quantity; where it names the row, leave it out: ",
                    Use("exclude", naming),
                )
            )
        )
    scaling = moments.scaling(recipe) if whole else Scaling.none()
    far = [recipe.names[j] for j in moments.far_from_zero()] if standardize and recipe.names is not None else []
    if fills:
        recipe, scaling = _filled(recipe, scaling, moments)
    if not standardize:
        scaling = Scaling.none()
    if far:
        stream.emit(
            Warned(
                f"{source.name}: {some_of(far)} lie so far from 0 beside their spread that float32 keeps too few digits of how they"
                " differ; subtract a constant from such columns"
            )
        )
    totals = tally.totals(recipe.labels.classes if count_classes and recipe.labels is not None else ())
    return Scan(recipe, rows, scaling, total.rows - total.count if weighs and recipe.weighted else 0, totals)


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


class _Weights:
    """Sums over the rows' weights, in double precision."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = replace(recipe, weight_mean=1.0)
        self._sum, self._squares, self.rows = 0.0, 0.0, 0
        self.count, self.rows = 0, 0

    def add(self, rows: pa.RecordBatch, place: str, first_row: int) -> Floats:
        """Take in a block and return its weights; one that is missing, negative or not finite is refused by its row."""
        weights = self._recipe.at(place).weights(rows, first_row=first_row)
        assert weights is not None  # there is such a column
        self._sum += float(weights.sum(dtype=np.float64))
        self._squares += float(np.square(weights, dtype=np.float64).sum())
        self.count += int(np.count_nonzero(weights))
        self.rows += len(weights)
        return weights

    def add_equal(self, rows: int) -> None:
        """Take in rows of weight 1."""
        self._sum, self._squares = self._sum + rows, self._squares + rows
        self.count, self.rows = self.count + rows, self.rows + rows

    @property
    def effective_rows(self) -> float:
        """How many rows of equal weight would tell as much (Kish's effective sample size)."""
        return self._sum**2 / self._squares

    def mean(self, labels: LabelTally | None) -> float:
        """Return the mean of the weights above 0; where labels are classes, these must be of rows of two or more."""
        place, weight = self._recipe.place, self._recipe.weight
        if not self.count:
            raise DataError(
                f"{place}: the weight {weight!r} is 0 in every row, so there is nothing to learn from; give some rows a"
                " weight, or leave the weight out"
            )
        if labels is not None and len(labels.weighed) < 2:
            raise DataError(
                f"{place}: all rows whose weight {weight!r} is above 0 are of one class, {labels.weighed[0]!r}, so"
                " there is nothing to tell apart; give rows of another label a weight, or leave the weight out"
            )
        return self._sum / self.count


def _refuse_missing(source: BlockSource, block: int, labels: pa.Array, column: str) -> None:
    naming_rows(source, block, lambda place, first: refuse_missing(labels, column, first_row=first, place=place))


def _refuse_nonfinite(source: BlockSource, block: int, batch: Batch, recipe: Recipe) -> None:
    bad = recipe.nonfinite(batch)
    if bad is not None:
        name, row = row_place(source, block, bad[0])
        raise FeatureError(f"{name}: {bad[1]!r} is not a finite number in row {row}; fill or remove such values first")


def _features_only(recipe: Recipe, *, missing: bool) -> Recipe:
    """Return the recipe of features alone; ``missing`` numbers come to NaN."""
    parts = recipe.parts
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


def _empty_columns(recipe: Recipe, moments: _Moments) -> list[str]:
    """Return the columns of numbers that have no value in any row."""
    share = moments.missing_share
    numbers = [p.column for p in recipe.parts if isinstance(p, Number) and p.fill is None] if len(share) else []
    return [name for name in numbers if share[_features_of(recipe, [name])[0]] == 1]


def _filled(recipe: Recipe, scaling: Scaling, moments: _Moments) -> tuple[Recipe, Scaling]:
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
            scale[at] /= max(math.sqrt(1 - p), _ROUNDING)  # values that are filled vary less
            added += [(at + 1, p)] if told else []
            at -= told
        parts.append(part)
        at += 0 if part.sparse else part.width or 0
    places, shares = [place for place, _ in added], np.array([p for _, p in added], np.float32)
    shift = np.insert(shift, places, shares)
    scale = np.insert(scale, places, np.ones(len(places), np.float32))
    return replace(recipe, parts=tuple(parts)), Scaling(shift, scale)


class _Moments:
    """Sums of features and of their squares, block by block, in double precision; of sparse features, which are not
    centered, the number of values that are not 0 stands in the place of the sum.

    Parameters
    ----------
    dense : int
        The number of features of plain numbers. Beside sparse features they are centered too: they come first, and every
        row has all of them.
    """

    def __init__(self, dense: int = 0) -> None:
        self._dense = dense
        self.rows = 0
        self.width = 0
        self._counted = 0
        self._sum = np.zeros(0)
        self._square = np.zeros(0)
        self._origin: NDArray[np.float64] | None = None
        self._missing = np.zeros(0)

    @property
    def missing_share(self) -> NDArray[np.float64]:
        """The share of the rows in which each dense feature is missing."""
        return self._missing / max(self._counted, 1)

    def leave_out(self, places: Sequence[int]) -> None:
        """Forget dense features."""
        self._sum, self._square = (np.delete(array, places) for array in (self._sum, self._square))
        if self._origin is not None:
            self._origin, self._missing = np.delete(self._origin, places), np.delete(self._missing, places)
        self.width -= len(places)
        self._dense -= len(places) if self._dense else 0

    def add(self, batch: Batch, weight: Floats | None = None) -> None:
        """Take in a block; rows of weight 0 are no part of the sums."""
        self.rows += len(batch)
        if weight is not None and not weight.all():
            batch = batch.take(np.flatnonzero(weight))
        self._counted += len(batch)
        if batch.width > self.width:
            self.width = batch.width
            self._make_room(self.width)
        x = batch.x
        if isinstance(x, Csr):
            add_moments(x.indices, x.values, self._dense, self._sum, self._square)
            if self._dense:
                self._add_dense(x.values[x.indices < self._dense].reshape(len(batch), self._dense))
        else:
            self._add_dense(x)

    def _make_room(self, width: int) -> None:
        if width > len(self._sum):
            room = max(width, 2 * len(self._sum))  # the width may grow with every block
            self._sum, self._square = (_extended(array, room) for array in (self._sum, self._square))

    def _add_dense(self, x: Floats) -> None:
        """Take in the values of features of plain numbers, the first ones."""
        if not x.size:
            return
        width = x.shape[1]
        if self._origin is None:
            first = np.argmin(np.isnan(x), axis=0)
            typical = x[first, np.arange(width)].astype(np.float64)  # sums about it lose no digits to a large mean
            self._origin = np.nan_to_num(typical)
            self._missing = np.zeros(width)
        # Sums of a block are added to those of all, which keeps more digits than adding row by row.
        sums, squares = np.zeros(width), np.zeros(width)
        add_dense_moments(x, self._origin, self._missing, sums, squares)
        self._sum[:width] += sums
        self._square[:width] += squares

    def _present(self, width: int) -> NDArray[np.float64]:
        """Return in how many rows each of the first features is there."""
        missing = self._missing if len(self._missing) else np.zeros(width)
        return np.maximum(self._counted - missing, 1)

    def far_from_zero(self) -> list[int]:
        """Return the features of dense rows that differ by less than float32 can tell well at their distance from 0."""
        if self._origin is None or self._dense:
            return []
        count = self._present(self.width)
        mean = self._sum[: self.width] / count
        spread = np.sqrt(np.maximum(self._square[: self.width] / count - mean**2, 0))
        center = np.abs(mean + self._origin)
        constant = (spread == 0) & (center < _WHOLE)
        return [int(j) for j in np.flatnonzero((center > FAR_FROM_ZERO * spread) & ~constant & (center > 0))]

    def scaling(self, recipe: Recipe) -> Scaling:
        """Return what centers and scales plain numbers; sparse features are only scaled, to stay sparse.

        A number that is constant, or varies by rounding only, is scaled to 0. Sparse features are scaled by `sparse_scale`.
        """
        count, dense = max(self._counted, 1), self._dense if recipe.sparse else self.width
        present = self._present(dense)
        mean = self._sum[:dense] / present
        spread = np.sqrt(np.maximum(self._square[:dense] / present - mean**2, 0))
        center = mean + (0.0 if self._origin is None else self._origin)
        scale = _inverse(np.where(spread > _ROUNDING * np.abs(center), spread, 0.0))
        if not recipe.sparse:
            _keep_flags(recipe, scale)
            return Scaling(center.astype(np.float32), scale)
        width = recipe.width or 0
        rest = sparse_scale(self._square[dense : self.width], self._sum[dense : self.width], rows=count, width=width)
        unseen = width - dense - len(rest)  # declared, but in no row
        if dense or unseen:
            rest = np.concatenate([scale, rest, np.ones(unseen, np.float32)])
        scale = rest
        _keep_flags(recipe, scale)
        return Scaling(np.pad(center, (0, width - dense)).astype(np.float32) if dense else NOTHING, scale)


def _keep_flags(recipe: Recipe, scale: Floats) -> None:
    """Set the scale of features that are 0 or 1 to 1, in place, but for those that are constant.

    Scaled by its spread the rarest level of a category would be the largest feature, which is fitted to the few rows that have it.
    """
    at = 0
    for part in recipe.parts:
        flags, width = part.flags, part.width or 0
        if len(flags):
            here = scale[at : at + width]
            here[flags & (here > 0)] = 1
        at += width


def sparse_scale(squares: NDArray[np.float64], counts: NDArray[np.float64], *, rows: float, width: int) -> Floats:
    """Return what sparse features are multiplied by, given the sums of their squares and the numbers of values not 0.

    Up to `WIDEST` features come to a root mean square of 1 over all rows, as dense ones do: how rows are stored makes no
    difference. Of more features only the values that are not 0 come to it: a flag stays a flag, however rare. A division by its
    size over all rows would make the rarest of many flags the largest features, which are fitted to the few rows that have them.

    Examples
    --------
    >>> squares, counts = np.array([4.0, 64.0, 0.0]), np.array([4.0, 1.0, 0.0])
    >>> sparse_scale(squares, counts, rows=16, width=10_000).tolist()
    [1.0, 0.125, 0.0]
    >>> sparse_scale(squares, counts, rows=16, width=3).tolist()
    [2.0, 0.5, 0.0]
    """
    scale = np.empty(len(squares), np.float32)
    inverse_sizes(squares, counts, 0.0 if width > WIDEST else float(rows), scale)
    return scale


def _extended(array: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    longer = np.zeros(length)
    longer[: len(array)] = array
    return longer


def _inverse(size: NDArray[np.float64]) -> Floats:
    """Return what brings features of these sizes to 1, and those of size 0 to 0."""
    with np.errstate(divide="ignore"):
        return np.where(size > 0, 1 / size, 0.0).astype(np.float32)
