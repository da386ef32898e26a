"""One pass over columns of text and dates, for what must be known of them to make features: see `penstock.columns.fit`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.blocks.memory import as_table
from penstock.blocks.open import open as open_source
from penstock.columns.base import is_text, stored_column
from penstock.columns.choose import choose_features, fit_batches
from penstock.columns.fit import FitColumns
from penstock.columns.hashing import Hashed
from penstock.columns.labels import LabelTally, missing_labels
from penstock.columns.recipe import Recipe
from penstock.parallel import in_order

_RUN_ROWS, _RUN_BYTES = 16_384, 4 << 20
"""Rows, and stored bytes, of the blocks that are looked at together: a look at each of many small ones costs more than its rows."""


def fit_from(source: BlockSource, *, wide: bool = False, blocks: Sequence[int] | None = None) -> FitColumns:
    """Return what gives columns of a source as features, by what they hold.

    Text of ``wide`` rows, for a model on disk, is hashed but for dates, which some rows tell. Some ``blocks`` are looked at, or all.
    """
    return partial(fit_batches, partial(read_columns, source, blocks=blocks), source.schema, wide=wide)


def block_runs(source: BlockSource, blocks: Sequence[int], *, most: int = _RUN_BYTES) -> list[Sequence[int]]:
    """Return runs of blocks, each of one file, to be looked at together: about so many stored bytes."""
    runs: list[Sequence[int]] = []
    start = rows = size = 0
    last = len(blocks) - 1
    for at, block in enumerate(blocks):
        rows, size = rows + int(source.block_rows[block]), size + int(source.block_bytes[block])
        full = rows >= _RUN_ROWS or size >= most
        if full or at == last or source.file_of(block) != source.file_of(blocks[at + 1]):
            runs.append(blocks[start : at + 1])
            start, rows, size = at + 1, 0, 0
    return runs


def read_joined(source: BlockSource, run: Sequence[int], columns: Sequence[str]) -> pa.RecordBatch:
    """Return columns of some blocks as one."""
    if len(run) == 1:
        return source.read(run[0], columns)
    batches = source.read_many(list(run), columns)
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined[0] if joined else batches[0]


def read_columns(
    source: BlockSource, names: Iterable[str], *, blocks: Sequence[int] | None = None
) -> Generator[pa.RecordBatch, None, None]:
    """Yield some columns of blocks, in order and those of many small blocks together; the whole struct for a member of it."""
    stored = list(dict.fromkeys(stored_column(source.schema, name) for name in names))

    runs = block_runs(source, range(len(source.block_rows)) if blocks is None else blocks)
    return in_order(lambda run: read_joined(source, run, stored), runs, threads=source.threads)


def recipe_for(
    data: Any,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    weight: str | None = None,
    exclude: Sequence[str] = (),
    hash: Sequence[str] = (),
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    date: Sequence[str] = (),
    missing: str | None = None,
    null_values: Sequence[str] = (),
    classes: bool | None = None,
) -> Recipe:
    """Find how the columns of data become numbers and categories: what ``columns`` of a loader may name.

    Passes over the data once. Numbers are brought to mean 0 and spread 1, and missing ones to 0. Columns that tell nothing, and
    prose, are left out (``recipe.left_out``).

    Parameters
    ----------
    data : path, source or table
        Whatever `penstock.open` takes.
    label, weight : str, optional
        The columns of the target and of the row's weight.
    features, exclude, hash, category, number, date, missing, null_values
        Which columns are features, and of which kind: see `penstock.columns.choose_features`.
    classes : bool, optional
        Whether the label's values are numbered from 0 on, as classes; if not given, text and booleans are.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock import batches
    >>> rows = {"age": [20, None, 60], "color": ["red", "blue", None], "bought": ["no", "yes", "no"]}
    >>> table = pa.table({name: 5 * values for name, values in rows.items()})
    >>> recipe = recipe_for(table, label="bought")
    >>> recipe.cardinalities  # blue, red, other, missing
    {'color': 4}
    >>> with batches(table, 3, shuffle="none", columns=recipe) as stream:
    ...     batch = next(iter(stream))
    >>> batch["numbers"].shape, batch["categories"].tolist(), batch["label"].tolist()
    ((3, 2), [[1], [0], [3]], [0, 1, 0])
    """
    source = open_source(as_table(data))
    try:
        recipe = choose_features(
            source.schema,
            label=label,
            features=features,
            weight=weight,
            exclude=exclude,
            hash=hash,
            place=source.name,
            category=category,
            number=number,
            date=date,
            missing=missing,
            null_values=null_values,
            fit=fit_from(source),
            standardize=True,
        )
        prose = [part.column for part in recipe.parts if isinstance(part, Hashed) and part.words]
        unnamed = [
            name for name in prose if name not in (features or ()) and name not in [h.partition(":")[0] for h in hash]
        ]
        recipe = recipe.without(unnamed, "prose")
        return recipe if label is None else _with_label(source, recipe, label, classes)
    finally:
        if source is not data:
            source.close()


def _with_label(source: BlockSource, recipe: Recipe, label: str, classes: bool | None) -> Recipe:
    """Return the recipe with the classes of its label, and whether rows lack one."""
    kind = source.schema.field(label).type
    if classes is None:
        classes = is_text(kind) or pa.types.is_boolean(kind)
    tally, unlabelled = LabelTally(label, place=source.name), False
    with closing(read_columns(source, [label])) as batches:
        for batch in batches:
            missing = missing_labels(batch.column(label))
            unlabelled = unlabelled or bool(missing.any())
            if classes:
                tally.add(batch.column(label).filter(pa.array(~missing)))
    return replace(
        recipe,
        labels=tally.labels(binary=False) if classes else None,
        unlabelled=unlabelled and recipe.missing != "refuse",
    )
