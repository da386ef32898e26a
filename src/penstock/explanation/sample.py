"""A bounded look at the data: some blocks, some rows of each, and the classes seen there.

Which blocks is chance from the seed; how many is bounded by decoded bytes, so that a terabyte costs what a
gigabyte does. Parquet row groups decode only from their start: where decoding all of them is too much, the first blocks of several
are taken, and where those are few, a warning says what was not looked at.
What cannot be learned from as it stands is left out and told of, where training would refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock import seeds
from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s, row_place
from penstock.budget import show_share
from penstock.columns.base import Refusal
from penstock.columns.hashing import Hashed
from penstock.columns.kinds import classify
from penstock.columns.labels import LabelMap, refuse_missing
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import index_columns
from penstock.errors import FeatureError
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

    @property
    def width(self) -> int:
        """Features; where sparse data do not say, the highest seen."""
        return self.recipe.width or max((p.width for p in self.parts), default=0)


def usable_columns(source: BlockSource, columns: Columns, warnings: list[TextPart]) -> Columns:
    """Return the columns with those left out that cannot be features, where all were to be; and say so."""
    try:
        columns.recipe(source)
        return columns
    except FeatureError:
        if columns.features is not None:
            raise
    hashed = {spec.column: spec for spec in map(Hashed.parse, columns.hash)}
    label = columns.label if columns.label is not None else default_label(source)
    candidates = [n for n in source.schema.names if n not in (label, columns.weight, *columns.exclude)]
    index = index_columns(source.schema)
    candidates = [n for n in candidates if n not in index or n in hashed]
    refused = [n for n in candidates if isinstance(classify(source.schema.field(n), hashed.get(n)), Refusal)]
    if not refused or len(refused) == len(candidates):
        return columns  # nothing to leave out: the error will say what is wrong
    shown = _some([f"{n} ({source.schema.field(n).type})" for n in refused])
    warnings.append(
        Text(f"Left out: {shown}. These are no numbers; ", Use("hash", ["COLUMN"]), " makes features of text.")
    )
    return replace(columns, exclude=[*columns.exclude, *refused])


def exclude_null_columns(source: BlockSource, columns: Columns, *, seed: int, warnings: list[TextPart]) -> Columns:
    """Return the columns with those left out that have nulls in the blocks to be sampled; and say so."""
    recipe = columns.recipe(source)
    blocks, _ = choose_blocks(source, recipe, seeds.generator(seed, "explain", "sample"))
    names = [n for n in recipe.columns if n not in (recipe.label, recipe.weight)]
    holed: set[str] = set()
    for block in blocks.tolist():
        batch = source.read(block, names)
        holed.update(name for name in names if batch.column(name).null_count)
    if not holed or len(holed) == len(names) or columns.features is not None:
        return columns
    warnings.append(f"Left out: {_some(sorted(holed))}. They have nulls: fill them, or leave them out of training too.")
    return replace(columns, exclude=[*columns.exclude, *sorted(holed)])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def take_sample(source: BlockSource, recipe: Recipe, *, model: str, seed: int, warnings: list[TextPart]) -> DataSample:
    """Read some blocks and keep some rows of each.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock import open
    >>> source = open(pa.table({"x": [1.0, 2.0, 3.0], "y": ["a", "b", "a"]}))
    >>> sample = take_sample(source, Columns(label="y").recipe(source), model="logistic", seed=0, warnings=[])
    >>> sample.rows, sample.model
    (3, 'logistic')
    """
    rng = seeds.generator(seed, "explain", "sample")
    blocks, timed = choose_blocks(source, recipe, rng)
    if source.units is not None and not _even(source, recipe):
        seen = len(np.unique(source.units[blocks]))
        if seen < _FEW_UNITS:
            warnings.append(
                "The sample is the beginning of row groups that are large and decode only from their start; row groups sampled:"
                f" {seen}. If rows are sorted within them, the quick fit and the shares of classes may be far from those of all"
                " rows."
            )
    recipe, model, outputs = _with_labels(source, recipe, np.union1d(blocks, timed), model, warnings)
    feed = Feed.of(source, recipe, Scaling.none())
    parts, fitted, places, counts, bad = [], [], [], [], 0
    for block in blocks.tolist():
        batch = feed.decoder.decode(block)
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


def choose_blocks(source: BlockSource, recipe: Recipe, rng: np.random.Generator) -> tuple[Int64s, Int64s]:
    """Return the blocks to sample and those to time, both ascending."""
    count = len(source.block_rows)
    mean = _decoded(source, recipe)
    most = int(np.clip(MOST_BYTES / mean, 4, MOST_BLOCKS))
    few = max(1, int(TIMED_BYTES / mean))
    if source.units is None or len(np.unique(source.units)) == count:
        chosen = rng.permutation(count)[:most]
        timed = chosen[:few]
    else:
        heads = unit_heads(source.units, most, rng)
        timed = _run_starts(source.units, heads)[:few]
        chosen = rng.permutation(count)[:most] if _even(source, recipe) else heads
    # The loader itself looks at these three where rows vary, so their classes have to be known.
    ends = np.linspace(0, count - 1, min(3, count)).astype(np.int64)
    return np.unique(np.concatenate([chosen, ends])), np.sort(timed)


def _even(source: BlockSource, recipe: Recipe) -> bool:
    """Whether blocks anywhere can be sampled, not only the first of row groups."""
    return len(source.block_rows) * _decoded(source, recipe) <= _DECODED_BYTES


def _decoded(source: BlockSource, recipe: Recipe) -> float:
    """Return about what a block takes decoded, or stored where that is more or all that is known."""
    rows = float(source.block_rows.mean()) if len(source.block_rows) else 0.0
    stored = float(source.block_bytes.mean()) if len(source.block_bytes) else 0.0
    # Of sparse rows the width says nothing; compressed ones are rarely over four times what is stored.
    return max(4 * stored if recipe.sparse else rows * recipe.row_bytes, stored, 1.0)


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
    if recipe.label is None:
        return recipe, model, loss_of(model).outputs(2)
    arrays = [source.read(block, [recipe.label]).column(0) for block in blocks.tolist()]
    for block, array in zip(blocks.tolist(), arrays, strict=True):
        if array.is_null(nan_is_null=True).true_count:  # only then: to number rows of text takes a pass
            name, first = row_place(source, block, 0)
            refuse_missing(array, recipe.label, first_row=first, place=name)
    if not loss_of(model).classifies:
        return recipe, model, 1
    seen = _distinct(arrays)
    if len(seen) < 2:
        warnings.append(
            f"Every sampled row has the same {recipe.label!r} ({seen[0].as_py() if len(seen) else 'none'!r}):"
            " check the label; training needs two classes."
        )
        return replace(recipe, label=None), model, loss_of(model).outputs(2)
    if not loss_of(model).many and len(seen) > 2:
        number = pa.types.is_floating(seen.type) or (pa.types.is_integer(seen.type) and len(seen) > _CLASSES)
        fits = "linear" if number and len(seen) > 20 else "softmax"
        warnings.append(
            Text(
                f"{recipe.label!r} has {len(seen)} values in the sample, and {model} tells two classes apart:"
                " explained for ",
                Use("model", fits),
                ".",
            )
        )
        if fits == "linear":
            return recipe, fits, 1
        model = fits
    labels = LabelMap.collect(arrays, column=recipe.label).as_binary(not loss_of(model).many)
    return recipe.with_labels(labels), model, loss_of(model).outputs(len(seen))


def _distinct(arrays: Sequence[pa.Array]) -> pa.Array:
    values = [pc.unique(a.dictionary_decode() if pa.types.is_dictionary(a.type) else a) for a in arrays]
    return pc.unique(pa.chunked_array(values, type=values[0].type)) if values else pa.array([])


def _mend(part: Batch) -> int:
    """Set features that are not finite to zero; return how many rows had one."""
    values = part.x.values if isinstance(part.x, Csr) else part.x
    bad = ~np.isfinite(values)
    if not bad.any():
        return 0
    rows = int(bad.any(axis=1).sum()) if bad.ndim == 2 else int(bad.sum())
    values[bad] = 0
    return rows
