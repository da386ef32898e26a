"""The offline stage: partition the hot features by a sample, give every feature its position, and write the rows by positions.

What was prepared for the same data, columns and memory is used again. A note of it, `layout.json`, is written last: where
it is missing, the directory is prepared anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import closing
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Batch
from penstock.bigmodel.checkpoint import NOTE, begin_anew
from penstock.bigmodel.index_map import NAME as MAP
from penstock.bigmodel.index_map import IndexMap
from penstock.bigmodel.partition import Partitions, measure_cost, partition, sample_of
from penstock.bigmodel.rewrite import ROWS, FeatureLayout, rewrite
from penstock.bigmodel.storage import Storage
from penstock.blocks.base import BlockSource, one_piece_open
from penstock.blocks.storage import convert_line
from penstock.budget import Bytes, give_back, show_bytes
from penstock.columns.recipe import Recipe
from penstock.errors import BudgetError
from penstock.events import Stream
from penstock.linear import encoded
from penstock.loader.decode import divided, unit_bytes
from penstock.loader.plan import round_up
from penstock.messages import Text
from penstock.parallel import in_order
from penstock.sealed import read_note, write_note

SAMPLE_SHARE, SAMPLE_LEAST = 0.01, 100_000
"""The part of the rows whose features are looked at together, and how many at least where there are as many."""
LEAST_MEMORY = 16_000_000
"""What preparing takes however little it is given."""
_SMALL = 4_000_000
"""What a half-read row group may hold beside that."""
_SAMPLED_BYTES, _LEAST_ENTRIES = 128, 1 << 16


def prepare(
    source: BlockSource,
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    storage: Storage,
    memory: int,
    seed: int = 0,
    stream: Stream | None = None,
) -> FeatureLayout:
    """Make a directory ready for training, or find that it is. A model of rows laid out otherwise is given up.

    The labels of the recipe are complete, and ``memory`` is what rows may take, beside the model.
    """
    place = Path(folder)
    wanted = {
        "fingerprint": source.fingerprint,
        "encoder": recipe.to_dict(),
        "storage": {name: value for name, value in storage.to_dict().items() if name != "threads"},
        "seed": seed,
    }
    found = _noted(place, wanted)
    if found is not None:
        return found
    room = _room(source, recipe, memory + storage.least_memory)

    def order(features: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        # Half of the memory for a table of keep by keep counts, half for the sample, as drawn and as kept.
        keep = min(storage.keep, len(features), isqrt(room // 8))
        if keep < 2:
            return np.arange(len(features))
        most = room // _SAMPLED_BYTES
        parts = _partitions(source, recipe, features[:keep], counts[:keep], folder=place, seed=seed, entries=most)
        give_back()
        return _by_partition(parts, features)

    def give_up() -> None:
        (place / NOTE).unlink(missing_ok=True)  # of other rows, or of the same laid out otherwise
        begin_anew(place)

    with one_piece_open(source):
        layout = rewrite(
            source,
            recipe,
            place,
            memory=room,
            hot=storage.hot,
            seed=seed,
            order_hot=order,
            on_ready=give_up,
            stream=stream,
        )
    give_back()
    write_note(place / NOTE, {**wanted, "layout": layout.to_dict()})
    return layout


def _room(source: BlockSource, recipe: Recipe, memory: int) -> int:
    """Return the memory for preparing beside a row group that is read in parts.

    Raises
    ------
    BudgetError
        Such a row group leaves too little; the smallest memory that works is named.
    """
    held = unit_bytes(source, recipe.columns) if divided(source) else 0
    if held > _SMALL and memory < held + LEAST_MEMORY:
        raise BudgetError(
            f"for rows and model is too little to prepare {source.name}: a row group read in parts holds "
            f"{show_bytes(held)}",
            option="memory",
            value=Bytes(memory),
            fixes=[
                f"the smallest that works is {round_up(held + LEAST_MEMORY)}",
                "write smaller row groups",
                Text("convert the data, whose blocks are read singly: ", convert_line(source.name)),
            ],
        )
    return max(memory - held, LEAST_MEMORY)


def _noted(place: Path, wanted: dict[str, Any]) -> FeatureLayout | None:
    """Return what the directory was prepared with, if that is what is wanted."""
    try:
        noted = read_note(place / NOTE)
        same = all(noted[name] == json.loads(json.dumps(value)) for name, value in wanted.items())
        if same and (place / ROWS).is_file() and (place / MAP).is_file():
            with IndexMap.open(place) as index:
                index.check()
            return FeatureLayout.from_dict(noted["layout"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not prepared, or half so, damaged, or by another version: it is done anew
    return None


def _partitions(
    source: BlockSource,
    recipe: Recipe,
    features: NDArray[np.uint64],
    counts: NDArray[np.int64],
    *,
    folder: Path,
    seed: int,
    entries: int,
) -> Partitions:
    """Partition features by what they occur with in a sample of the rows."""
    with closing(_some_rows(source, recipe, seed)) as batches:
        sample = sample_of(batches, seed=seed, most_entries=max(entries, _LEAST_ENTRIES))
    return partition(sample, (features, counts), keep=len(features), cost=measure_cost(folder))


def _some_rows(source: BlockSource, recipe: Recipe, seed: int) -> Generator[Batch, None, None]:
    """Yield rows of blocks drawn at random, together as many as the sample should have."""
    rows = source.block_rows
    wanted = max(SAMPLE_LEAST, int(SAMPLE_SHARE * int(rows.sum())))
    drawn = seeds.generator(seed, "partition", "blocks").permutation(len(rows))
    drawn = np.sort(drawn[: int(np.searchsorted(np.cumsum(rows[drawn]), wanted)) + 1])

    def read(block: int) -> Batch:
        return encoded(recipe, source, block, source.read(block, recipe.columns), wide=True)

    with closing(in_order(read, drawn.tolist(), threads=source.threads)) as batches:
        yield from batches


def _by_partition(parts: Partitions, features: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the places of features in the order of their partitions, those in none after them as they come."""
    by_feature = np.argsort(features)
    first = by_feature[np.searchsorted(features, parts.features, sorter=by_feature)]
    left = np.ones(len(features), np.bool_)
    left[first] = False
    return np.concatenate([first, np.flatnonzero(left)])
