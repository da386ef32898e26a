"""A factorisation on disk, read under a memory limit: predictions, measures, and the factors of some users or items.

Rows are gathered a batch at a time and visited by the buckets of a grid that fits the memory at hand, which need not be
that of training; predictions come back in the rows' own order. What the model does not know is predicted by the mean
and the bias of the half that it does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Floats
from penstock.bigmodel.checkpoint import STATE, copy_directory, read_state
from penstock.bigmodel.factor_trainer import FactorTrainer, first_factors
from penstock.bigmodel.grid import MOST_ROWS, FactorLayout, Grid, Shares, least_bytes
from penstock.bigmodel.keys import KeyTable, as_keys
from penstock.bigmodel.pages import ranges
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.ratings import Read, Roles, Triples, read_ratings, triples
from penstock.bigmodel.store import Blank, Int64s, PageStore
from penstock.blocks.base import BlockSource, require_columns
from penstock.budget import SMALL, Budget, show_bytes
from penstock.closing import Closing
from penstock.errors import DataError, ModelFileError, UsageError
from penstock.evaluation import both
from penstock.measures import NumberMeasures, OnScores
from penstock.metric_names import finished_figures
from penstock.model import Description
from penstock.sgd.factor import ABSENT

USERS, ITEMS = "users.arrow", "items.arrow"
_HELD = 64
"""Bytes that a row takes while it waits for its prediction."""
_NOISE = 0.1
"""How far the first factors move a prediction from the mean, in spreads of the ratings."""


@dataclass(frozen=True, slots=True)
class FactorModel(Closing):
    """A factorisation that was trained, or is in the making.

    Attributes
    ----------
    folder : Path
        The model's directory.
    layout : FactorLayout
        Where users and items lie in its pages.
    users, items : KeyTable
        Their keys.
    header : dict
        How it was made: config, columns, mean, history.
    saved : mapping
        What the last checkpoint noted of each page.
    memory : str or int
        What pages and rows may occupy while it predicts; a share is of the model's own size.
    """

    kind: ClassVar[str] = "factor"
    word: ClassVar[str] = "factor"
    metric: ClassVar[str] = "rmse"
    classes: ClassVar[None] = None
    by: ClassVar[tuple[str, ...]] = ()
    linear: ClassVar[None] = None
    recipe: ClassVar[None] = None

    folder: Path
    layout: FactorLayout
    users: KeyTable
    items: KeyTable
    header: Mapping[str, Any]
    saved: Mapping[str, NDArray[Any]]
    memory: str | int = "1GB"

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, memory: str | int | None = None) -> FactorModel:
        """Read a model's directory; ``memory`` is that of its training if not given."""
        place = Path(folder)
        saved, header = read_state(place, kind="factor")
        try:
            layout = FactorLayout(**header["layout"])
            keys = KeyTable.load(place / USERS), KeyTable.load(place / ITEMS)
            model = cls(place, layout, *keys, header, saved, header["config"]["memory"] if memory is None else memory)
        except (KeyError, TypeError) as error:
            raise ModelFileError(f"{place / STATE} does not tell of a whole factorisation: {error!r}") from error
        if (len(model.users), len(model.items)) != (layout.users, layout.items):
            raise ModelFileError(
                f"{place} has keys of {len(model.users)} users and {len(model.items)} items where the model has"
                f" {layout.users} and {layout.items}; restore the directory from a copy"
            )
        return model

    @property
    def roles(self) -> Roles:
        """The columns that it was trained on."""
        return Roles(**self.header["roles"])

    @property
    def mean(self) -> float:
        """The mean rating."""
        return float(self.header["mean"])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of users and items."""
        return tuple(self.roles.names[:2])

    @property
    def label(self) -> str:
        return self.roles.rating

    @property
    def config(self) -> Mapping[str, Any]:
        config: Mapping[str, Any] = self.header["config"]
        return config

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        return list(self.header["history"])

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Figures of the finished model; of one whose training was broken off, those after its last epoch."""
        known: Mapping[str, Any] | None = self.header.get("metrics")
        return known or (finished_figures(self.history[-1]) if self.history else {})

    @property
    def finished(self) -> bool:
        return bool(self.header.get("done", len(self.history) >= (self.config["epochs"] or 1)))

    @property
    def fingerprint(self) -> str:
        return str(self.header["fingerprint"])

    def predict_pairs(self, users: Any, items: Any) -> Floats:
        """Return what users are expected to rate items, given the keys of both."""
        read = Read(_keys(users, "user"), _keys(items, "item"), np.zeros(0, np.float32))
        if len(read.users) != len(read.items):
            raise UsageError(f"{len(read.users)} users came with {len(read.items)} items; give one item for each user")
        rows = triples(read, self.users, self.items, self.layout)
        pages = len(np.unique(rows[:, :2][rows[:, :2] != ABSENT] >> np.uint32(self.layout.shift)))
        with self._reading(self._bytes, most_pages=pages) as (trainer, grid):
            return trainer.score_rows(rows, grid, most=MOST_ROWS)

    def predictions(self, source: BlockSource, *, keep: Sequence[str] = ()) -> Generator[pa.RecordBatch, None, None]:
        require_columns(source.schema, keep, place=source.name)
        blocks = iter(range(len(source.block_rows) if keep else 0))
        held: list[pa.RecordBatch] = []
        with closing(self._scored(source, self.roles, self._bytes, rated=False)) as batches:
            for _, scores in batches:
                out: dict[str, Any] = {}
                if keep:
                    while sum(map(len, held)) < len(scores):
                        held.append(source.read(next(blocks), list(keep)))
                    rows = pa.concat_batches(held)
                    held = [rows.slice(len(scores))]
                    out = {name: rows.column(name).slice(0, len(scores)) for name in keep}
                yield pa.record_batch({**out, "prediction": pa.array(scores)})

    def evaluate(
        self,
        source: BlockSource,
        *,
        label: str | None = None,
        memory: str | int | None = None,
        on_scores: OnScores | None = None,
    ) -> dict[str, Any]:
        """Return half the mean squared error as the loss, ``rmse``, ``mae``, ``r2`` and the number of ratings.

        Without ``memory``, pages and rows take what the model was opened with.
        """
        measures, count = NumberMeasures(), 0
        hear = both(measures.add, on_scores)
        roles, room = replace(self.roles, rating=label or self.roles.rating), self._bytes
        if memory is not None:
            room = self._room(memory)
        with closing(self._scored(source, roles, room, rated=True)) as batches:
            for rows, scores in batches:
                ratings = np.ascontiguousarray(rows[:, 2]).view(np.float32).astype(np.float64)
                hear(scores.astype(np.float64), ratings, np.ones(len(rows)))
                count += len(rows)
        if not count:
            raise DataError(f"{source.name} has no ratings; there is nothing to measure")
        figures = measures.figures()
        return {"loss": figures["rmse"] ** 2 / 2, **figures, "rows": count}

    def describe(self, *, most: int | None = None) -> Description:
        """Say what is in the model; the factors of single users and items are read by their keys."""
        layout = self.layout
        sizes = {"users": layout.users, "items": layout.items, "rank": layout.rank}
        counted = f"{layout.users:,} users and {layout.items:,} items of rank {layout.rank}, {show_bytes(layout.nbytes)} on disk"
        lines = (
            f"mean rating {self.mean:.5g}; {len(self.history)} epochs",
            f"factors are read by keys: penstock.load({str(self.folder)!r}).factors(users=[…])",
        )
        return Description.of(
            self, counted, values={**sizes, "mean": self.mean, "model_bytes": layout.nbytes}, lines=lines
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy the model's directory to another one."""
        copy_directory(self.folder, path)

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""

    def factors(self, *, users: Any = None, items: Any = None) -> tuple[Floats, Floats]:
        """Return the factors, a row each, and the biases of some users or of some items, by their keys."""
        if (users is None) == (items is None):
            raise UsageError("give the keys of users or of items, not of both: factors(users=[...])")
        table, keys, kind = (
            (self.users, _keys(users, "user"), "user") if items is None else (self.items, _keys(items, "item"), "item")
        )
        found = table.find(keys)
        if (found == ABSENT).any():
            stranger = keys[int(np.argmax(found == ABSENT))].as_py()
            raise UsageError(f"the model does not know the {kind} {stranger!r}; it was trained on {len(table)} {kind}s")
        records = found.astype(np.int64) + (self.layout.first_item if items is not None else 0)
        rows = np.empty((len(records), self.layout.rank + 1), np.float32)
        of_page = records >> self.layout.shift
        wanted = np.unique(of_page)
        with self._reading(self._bytes, most_pages=len(wanted)) as (trainer, _):
            pool = trainer.pool
            for pages in ranges(wanted, len(pool.buffer)):
                if not pool.whole:
                    pool.acquire(pages)
                here = np.flatnonzero((of_page >= pages[0]) & (of_page <= pages[-1]))
                inside = records[here] & (self.layout.page_records - 1)
                slots = (pool.frame_of[of_page[here]].astype(np.int64) << self.layout.shift) | inside
                rows[here] = trainer.records[slots, : self.layout.rank + 1]
                if not pool.whole:
                    pool.release(pages, dirty=False)
        return rows[:, :-1].copy(), rows[:, -1].copy()

    def blank(self) -> Blank:
        """Return what fills pages that were never written."""
        return blank(self.layout, seed=int(self.header["config"]["seed"]), spread=float(self.header["spread"]))

    @property
    def _bytes(self) -> int:
        return self._room(self.memory)

    def _room(self, memory: str | int) -> int:
        """Return the bytes of an amount of memory: a share is of the model, and raised where it is too little to read by."""
        budget = Budget.parse(memory)
        asked = budget.resolve(self.layout.nbytes)
        return SMALL if budget.share is not None and Shares.of(asked).pool < least_bytes(self.layout) else asked

    @contextmanager
    def _reading(self, memory: int, *, most_pages: int | None = None) -> Iterator[tuple[FactorTrainer, Grid]]:
        layout = self.layout
        page = layout.page_floats * 4
        if most_pages is not None:
            memory = min(memory, max(most_pages, 3) * page)
        store = PageStore(
            self.folder,
            pages=layout.pages,
            page_floats=layout.page_floats,
            saved=self.saved,
            blank=self.blank(),
            writable=False,
        )
        with store:
            pool = PagePool(store, memory=memory)
            with FactorTrainer(pool, layout, mean=self.mean) as trainer:
                yield trainer, Grid.plan(layout, frames=len(pool.buffer))

    def _scored(
        self, source: BlockSource, roles: Roles, memory: int, *, rated: bool
    ) -> Generator[tuple[Triples, Floats], None, None]:
        most = max(1024, min(memory // 8 // _HELD, 4 * MOST_ROWS))
        blocks = read_ratings(source, roles, rated=rated)
        with closing(blocks), self._reading(memory - memory // 8) as (trainer, grid):
            held: list[Triples] = []
            count = 0
            for read in blocks:
                held.append(triples(read, self.users, self.items, self.layout))
                count += len(held[-1])
                if count >= most:
                    rows, held, count = np.concatenate(held), [], 0
                    yield rows, trainer.score_rows(rows, grid, most=MOST_ROWS)
            if count:
                rows = np.concatenate(held)
                yield rows, trainer.score_rows(rows, grid, most=MOST_ROWS)


def blank(layout: FactorLayout, *, seed: int, spread: float) -> Blank:
    """Return what fills pages that were never written: small factors, a pure function of the seed and the record."""
    deviation = math.sqrt(_NOISE * (spread or 1.0) / math.sqrt(layout.rank))
    reach = np.float32(math.sqrt(12) * deviation)  # a uniform number of this width has that deviation
    key = np.uint64(seeds.key(seed, "factors"))

    def fill(pages: Int64s, frames: Int64s, buffer: Floats) -> None:
        first_factors(key, pages, frames, buffer, layout.page_records, layout.rank, reach)

    return fill


def _keys(values: Any, column: str) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if not isinstance(values, pa.Array):
        array = np.atleast_1d(np.asarray(values))
        values = pa.array(array.tolist() if array.dtype.kind in "UO" else array)
    return as_keys(values, column, place="the list")
