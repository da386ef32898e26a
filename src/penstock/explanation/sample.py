"""A bounded look at the data: some blocks, some rows of each, and the classes seen there.

Which blocks is chance from the seed; how many is bounded by decoded bytes, so that a terabyte costs what a
gigabyte does. Parquet row groups decode only from their start: where decoding all of them is too much, the first blocks of several
are taken, and where those are few, a warning says what was not looked at.
What columns hold is found in the sampled blocks alone, where training passes over all of the data.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s, row_place
from penstock.budget import show_share
from penstock.columns.base import column_of, field_of, is_list, is_text, without_dictionary
from penstock.columns.fit import ColumnRequest, NumberTally
from penstock.columns.labels import LabelMap, missing_labels, refuse_missing
from penstock.columns.level_effects import LevelEffects
from penstock.columns.number import Number
from penstock.columns.recipe import Recipe
from penstock.columns.summary import ColumnSummary, column_summaries
from penstock.columns.whole_numbers import SampledRowNumbers
from penstock.errors import DataError
from penstock.loader.fit_columns import read_columns
from penstock.loader.row_forms import FeatureForm, Scaling
from penstock.loader.windows import Feed
from penstock.messages import Text, TextPart, Use
from penstock.sgd.losses import loss_of
from penstock.training import Columns, default_label

MOST_BLOCKS, MOST_ROWS, MOST_BYTES = 256, 64, 96_000_000
_FITTED_ROWS, _FITTED_BYTES = 20_000, 64_000_000
TIMED_BYTES = 32_000_000
_DECODED_BYTES = 400_000_000
"""Row groups are decoded to their ends, to sample them evenly, where all of them come to at most as much: a second or so."""
_FEW_UNITS = 16
_FILLED_BLOCKS = 32
"""About how many blocks are looked at for what stands for missing numbers."""
# Values beyond which a label is taken for a number rather than a class.
_CLASSES = 1000


@dataclass(frozen=True, slots=True)
class DataSample:
    """What was looked at: the source with a recipe that knows the classes seen, blocks (ascending), and rows of them.

    ``timed`` are blocks to time the work on, each unit's from its start; ``parts`` are up to 64 rows of each block and
    ``places`` where they stand in it, ``counts`` how many rows it has; ``fitted`` are rows for a quick fit, up to 20,000.
    ``counted`` says whether ``rows_in_all`` is exact. ``model`` is what can be learned from this label: the model asked for, or
    the nearest that fits, with ``outputs`` scores a row.
    """

    feed: Feed[Batch]
    blocks: Int64s
    timed: Int64s
    parts: tuple[Batch, ...]
    fitted: tuple[Batch, ...]
    places: tuple[Int64s, ...]
    counts: tuple[int, ...]
    rows_in_all: int
    counted: bool
    row_bytes: float
    model: str
    outputs: int

    @property
    def recipe(self) -> Recipe:
        """What makes features of the columns."""
        form = self.feed.form
        assert isinstance(form, FeatureForm)
        return form.recipe

    @property
    def rows(self) -> int:
        """Rows kept."""
        return sum(len(p) for p in self.parts)

    def column_summaries(self) -> list[ColumnSummary]:
        """Return a line for each column, with the mean and the spread of numbers and dates in the rows that were looked at."""
        width = self.recipe.dense_width
        rows = max(1, sum(len(batch) for batch in self.fitted))
        mean = sum((_column_sums(batch, width, np.zeros(width), 1) for batch in self.fitted), np.zeros(width)) / rows
        squares = sum((_column_sums(batch, width, mean, 2) for batch in self.fitted), np.zeros(width)) / rows
        found, at = [], 0
        for part, summary in zip(self.recipe.described_parts, column_summaries(self.recipe), strict=True):
            if part.kind in ("number", "date") and at < width:
                origin = summary.mean or 0.0 if part.kind == "date" else 0.0
                summary = replace(summary, mean=origin + float(mean[at]), scale=float(np.sqrt(squares[at])))
            found.append(summary)
            at += part.width or 0
        return found

    def level_effects(self, quantities: Collection[str]) -> LevelEffects:
        """Return what values of few whole numbers tell of the label, but for columns that are known to be no codes."""
        places, at = {}, 0
        for part in self.recipe.parts:
            if isinstance(part, Number) and part.column not in quantities and not part.standardized:
                places[part.column] = at, part.fill
            at += part.width or 0
        found, width = LevelEffects(places), self.recipe.dense_width
        for batch in self.fitted:
            if batch.y is None or not len(batch):
                break
            x = batch.x
            dense = x if not isinstance(x, Csr) else x.values[x.indices < width].reshape(len(batch), width)
            values = {name: dense[:, places[name][0]].astype(np.float64) for name in found.columns}
            for name, column in values.items():
                fill = places[name][1]
                if fill is not None and fill % 1:  # stands for missing ones
                    column[column == np.float32(fill)] = np.nan
            found.add(values, batch.y.astype(np.float64))
        return found

    @property
    def width(self) -> int:
        """Features; where sparse data do not say, the highest seen."""
        return self.recipe.width or max((p.width for p in self.parts), default=0)


@dataclass(frozen=True, slots=True)
class SampledColumns:
    """What makes features of the columns, by what some blocks hold, and those blocks.

    ``blocks`` are sampled and ``timed`` are for timing the work, both ascending; ``even`` says whether blocks anywhere can be
    sampled, not only the first of row groups. ``missing`` are columns of numbers that have missing values.
    """

    recipe: Recipe
    blocks: Int64s
    timed: Int64s
    even: bool
    missing: frozenset[str] = frozenset()

    @classmethod
    def of(cls, source: BlockSource, columns: Columns, *, seed: int) -> SampledColumns:
        """Choose blocks, and find in them what training finds in a pass over all of the data."""
        label = columns.label if columns.label is not None else default_label(source)
        named = columns.features or [name for name in source.schema.names if name not in columns.exclude]
        decoded = _decoded(source, {*named, *(name for name in (label, columns.weight) if name is not None)})
        even = len(source.block_rows) * decoded <= _DECODED_BYTES
        blocks, timed = choose_blocks(source, decoded, seeds.generator(seed, "explain", "sample"), even=even)
        recipe = columns.recipe(source, blocks=np.union1d(blocks, timed).tolist())
        recipe, missing = _with_numbers(source, recipe, blocks, named=columns.features is not None)
        return cls(recipe, blocks, timed, even, missing)


def _with_numbers(source: BlockSource, recipe: Recipe, blocks: Int64s, *, named: bool) -> tuple[Recipe, frozenset[str]]:
    """Return the recipe with what stands for missing numbers, by some blocks, and the columns that have such.

    Columns that number the rows are left out unless features are ``named``, and those without a value where all blocks are looked
    at.
    """
    numbers = [part for part in recipe.parts if isinstance(part, Number) and part.fill is None]
    if not numbers or recipe.missing == "refuse":
        return recipe, frozenset()
    identifiers = len(blocks) == len(source.block_rows) and not named
    sampled = not identifiers and not named
    tallies, rows = {}, {}
    for part in numbers:
        field = field_of(source.schema, part.column)
        assert field is not None  # of the recipe
        request = ColumnRequest(field, "number", named=not identifiers, null_values=part.null_values)
        tallies[part.column] = NumberTally(request)
        if sampled and not is_text(field.type):
            rows[part.column] = SampledRowNumbers(int(source.block_rows.sum()))
    few = blocks if identifiers else np.union1d(blocks[:: max(1, len(blocks) // _FILLED_BLOCKS)], blocks[-1:])
    with closing(read_columns(source, tallies, blocks=few.tolist())) as batches:
        for batch in batches:
            for name, tally in tallies.items():
                tally.add(column_of(batch, name))
            for name, numbered_rows in rows.items():
                numbered_rows.add(column_of(batch, name))
    found = {name: tally.result(recipe.missing) for name, tally in tallies.items()}
    filled = {name: Number(name, 0.0) if isinstance(result, str) else result[0] for name, result in found.items()}
    parts = tuple(filled.get(part.columns[0], part) if isinstance(part, Number) else part for part in recipe.parts)
    recipe = replace(recipe, parts=parts)
    numbered = [name for name, result in found.items() if result == "row numbers"]
    numbered += [name for name, each in rows.items() if each.number_rows]
    empty = [name for name, result in found.items() if identifiers and result == "empty"]
    return recipe.without_rows(numbered, empty), frozenset(name for name, tally in tallies.items() if tally.missing)


def take_sample(
    source: BlockSource, columns: SampledColumns, *, model: str, seed: int, warnings: list[TextPart]
) -> DataSample:
    """Read some blocks and keep some rows of each.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock import open
    >>> source = open(pa.table({"x": [1.0, 2.0, 3.0], "y": ["a", "b", "a"]}))
    >>> columns = SampledColumns.of(source, Columns(label="y"), seed=0)
    >>> sample = take_sample(source, columns, model="logistic", seed=0, warnings=[])
    >>> sample.rows, sample.model
    (3, 'logistic')
    """
    rng = seeds.generator(seed, "explain", "rows")
    blocks, timed = columns.blocks, columns.timed
    if source.units is not None and not columns.even:
        seen = len(np.unique(source.units[blocks]))
        if seen < _FEW_UNITS:
            warnings.append(
                "The sample is the beginning of row groups that are large and decode only from their start; row groups sampled:"
                f" {seen}. If rows are sorted within them, the quick fit and the shares of classes may be far from those of all"
                " rows."
            )
    recipe, model, outputs = _with_labels(source, columns.recipe, np.union1d(blocks, timed), model, warnings)
    feed = Feed.of(source, recipe, Scaling.none())
    parts, fitted, places, counts, bad = [], [], [], [], 0
    for block in blocks.tolist():
        batch = feed.decoder.decode(block)
        if batch.weight is not None and (recipe.unlabelled or recipe.missing == "drop"):
            batch = batch.take(np.flatnonzero(batch.weight))
        if not len(batch):
            continue
        place = np.sort(rng.permutation(len(batch))[:MOST_ROWS])
        part = batch.take(place)
        bad += _mend(part)
        parts.append(part)
        most = min(_FITTED_ROWS, int(_FITTED_BYTES / max(1.0, batch.nbytes / len(batch)))) // len(blocks) + 1
        more = batch.take(np.sort(rng.permutation(len(batch))[:most]))
        _mend(more)
        fitted.append(more)
        places.append(place)
        counts.append(len(batch))
    if bad:
        share = bad / max(1, sum(len(p) for p in parts))
        warnings.append(
            f"{show_share(share)} of the sampled rows hold features that are not finite; training would stop there:"
            " fill or remove them first."
        )
    row_bytes, rows = feed.size()
    if not feed.exact:
        # More blocks than the three that the loader looks at tell more.
        rows = round(sum(counts) * int(source.block_bytes.sum()) / int(source.block_bytes[blocks].sum()))
    counted = feed.exact or len(blocks) == len(source.block_rows)
    rest = (rows, counted, row_bytes, model, outputs)
    return DataSample(feed, blocks, timed, tuple(parts), tuple(fitted), tuple(places), tuple(counts), *rest)


def choose_blocks(
    source: BlockSource, decoded: float, rng: np.random.Generator, *, even: bool
) -> tuple[Int64s, Int64s]:
    """Return the blocks to sample and those to time, both ascending, where a block takes ``decoded`` bytes."""
    count = len(source.block_rows)
    most = int(np.clip(MOST_BYTES / decoded, 4, MOST_BLOCKS))
    few = max(1, int(TIMED_BYTES / decoded))
    if source.units is None or len(np.unique(source.units)) == count:
        chosen = rng.permutation(count)[:most]
        timed = chosen[:few]
    else:
        heads = unit_heads(source.units, most, rng)
        timed = _run_starts(source.units, heads)[:few]
        chosen = rng.permutation(count)[:most] if even else heads
    # The loader itself looks at these three where rows vary, so their classes have to be known.
    ends = np.linspace(0, count - 1, min(3, count)).astype(np.int64)
    return np.unique(np.concatenate([chosen, ends])), np.sort(timed)


def _decoded(source: BlockSource, names: Collection[str]) -> float:
    """Return about what a block's columns take decoded, or stored where that is more or all that is known."""
    rows = float(source.block_rows.mean()) if len(source.block_rows) else 0.0
    stored = float(source.block_bytes.mean()) if len(source.block_bytes) else 0.0
    kinds = [field.type for field in source.schema if field.name in names]
    # Of text and lists the schema says nothing; compressed ones are rarely over four times what is stored.
    if any(is_text(kind) or is_list(kind) for kind in kinds):
        return max(4 * stored, 1.0)
    values = sum(kind.list_size if pa.types.is_fixed_size_list(kind) else 1 for kind in kinds)
    return max(4 * rows * values, stored, 1.0)


def unit_heads(units: Int64s, most: int, rng: np.random.Generator) -> Int64s:
    """Return runs of blocks from the start of several units: many units rather than long runs."""
    first, lengths = np.unique(units, return_index=True, return_counts=True)[1:]
    picked = rng.permutation(len(first))[: max(2, int(most**0.5))]
    depth = max(1, most // max(1, len(picked)))
    return np.concatenate([np.arange(first[u], first[u] + min(depth, lengths[u])) for u in picked])


def _run_starts(units: Int64s, chosen: Int64s) -> Int64s:
    """Return blocks so that whatever number of them is taken, each unit's come from its start."""
    return chosen[np.argsort(units[chosen], kind="stable")] if len(chosen) else chosen


def _with_labels(
    source: BlockSource, recipe: Recipe, blocks: Int64s, model: str, warnings: list[TextPart]
) -> tuple[Recipe, str, int]:
    label = recipe.label
    if label is None:
        return recipe, model, loss_of(model).outputs(2)
    arrays = [source.read(block, [label]).column(0) for block in blocks.tolist()]
    for at, (block, array) in enumerate(zip(blocks.tolist(), arrays, strict=True)):
        if array.is_null(nan_is_null=True).true_count:  # only then: to number rows of text takes a pass
            if recipe.missing == "refuse":
                name, first = row_place(source, block, 0)
                refuse_missing(array, label, first_row=first, place=name)
            arrays[at] = array.filter(pa.array(~missing_labels(array)))
            recipe = replace(recipe, unlabelled=True)
    if not sum(map(len, arrays)):
        raise DataError(f"{source.name}: {label!r} is missing in every sampled row; there is nothing to explain")
    if not loss_of(model).classifies:
        return recipe, model, 1
    seen = _distinct(arrays)
    if len(seen) < 2:
        warnings.append(
            f"Every sampled row has the same {label!r} ({seen[0].as_py() if len(seen) else 'none'!r}):"
            " check the label; training needs two classes."
        )
        return replace(recipe, label=None), model, loss_of(model).outputs(2)
    if not loss_of(model).many and len(seen) > 2:
        number = pa.types.is_floating(seen.type) or (pa.types.is_integer(seen.type) and len(seen) > _CLASSES)
        fits = "linear" if number and len(seen) > 20 else "softmax"
        warnings.append(
            Text(
                f"{label!r} has {len(seen)} values in the sample, and {model} tells two classes apart: explained for ",
                Use("model", fits),
                ".",
            )
        )
        if fits == "linear":
            return recipe, fits, 1
        model = fits
    labels = LabelMap.collect(arrays, column=label).as_binary(not loss_of(model).many)
    return recipe.with_labels(labels), model, loss_of(model).outputs(len(seen))


def _distinct(arrays: Sequence[pa.Array]) -> pa.Array:
    values = [pc.unique(without_dictionary(a)) for a in arrays]
    return pc.unique(pa.chunked_array(values, type=values[0].type)) if values else pa.array([])


def _column_sums(batch: Batch, width: int, about: NDArray[np.float64], power: int) -> NDArray[np.float64]:
    """Return the sums of the first features, or of their squares, about some numbers; those of sparse rows are all stored."""
    if not isinstance(batch.x, Csr):
        return np.asarray(((batch.x[:, :width].astype(np.float64) - about) ** power).sum(axis=0))
    here = batch.x.indices < width
    places = batch.x.indices[here].astype(np.int64)
    values = (batch.x.values[here] - about[places]) ** power
    return np.bincount(places, values, minlength=width).astype(np.float64)


def _mend(part: Batch) -> int:
    """Set features that are not finite to zero; return how many rows had one."""
    values = part.x.values if isinstance(part.x, Csr) else part.x
    bad = ~np.isfinite(values)
    if not bad.any():
        return 0
    rows = int(bad.any(axis=1).sum()) if bad.ndim == 2 else int(bad.sum())
    values[bad] = 0
    return rows
