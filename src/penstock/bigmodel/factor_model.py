"""A factorisation on disk, read under a memory limit: predictions, measures, and the factors of some users or items.

Rows are gathered a batch at a time and visited by the buckets of a grid that fits the memory at hand, which need not be
that of training; predictions come back in the rows' own order. What the model does not know is predicted by the mean
and the bias of the half that it does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Floats
from penstock.bigmodel.grid import Grid, Layout
from penstock.bigmodel.keys import KeyTable, as_keys
from penstock.bigmodel.model import STATE, read_state
from penstock.bigmodel.pool import Pool
from penstock.bigmodel.ratings import Read, Roles, Triples, read_blocks, triples
from penstock.bigmodel.store import Blank, Int64s, PageStore
from penstock.bigmodel.visits import MOST_ROWS, Visits, first_factors
from penstock.blocks.base import BlockSource
from penstock.errors import DataError, ModelFileError, UsageError
from penstock.sgd.factor import ABSENT

USERS, ITEMS = "users.arrow", "items.arrow"
_HELD = 64
"""Bytes that a row takes while it waits for its prediction."""
_NOISE = 0.1
"""How far the first factors move a prediction from the mean, in spreads of the ratings."""


@dataclass(frozen=True, slots=True)
class FactorModel:
    """A factorisation that was trained, or is in the making.

    Attributes
    ----------
    folder : Path
        The model's directory.
    layout : Layout
        Where users and items lie in its pages.
    users, items : KeyTable
        Their keys.
    header : dict
        How it was made: config, columns, mean, history.
    saved : mapping
        What the last checkpoint noted of each page.
    """

    folder: Path
    layout: Layout
    users: KeyTable
    items: KeyTable
    header: Mapping[str, Any]
    saved: Mapping[str, NDArray[Any]]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> FactorModel:
        """Read a model's directory."""
        place = Path(folder)
        saved, header = read_state(place, kind="factor")
        try:
            layout = Layout(**header["layout"])
            model = cls(place, layout, KeyTable.load(place / USERS), KeyTable.load(place / ITEMS), header, saved)
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

    def predict_pairs(self, users: Any, items: Any, *, memory: int) -> Floats:
        """Return what users are expected to rate items, given the keys of both."""
        read = Read(_keys(users, "user"), _keys(items, "item"), np.zeros(0, np.float32))
        if len(read.users) != len(read.items):
            raise UsageError(f"{len(read.users)} users came with {len(read.items)} items; give one item for each user")
        rows = triples(read, self.users, self.items, self.layout)
        pages = len(np.unique(rows[:, :2][rows[:, :2] != ABSENT] >> np.uint32(self.layout.shift)))
        with self._reading(memory, most_pages=pages) as (visits, grid):
            return visits.score_rows(rows, grid, most=MOST_ROWS)

    def predictions(self, source: BlockSource, *, memory: int, roles: Roles | None = None) -> Iterator[Floats]:
        """Yield the predictions of a source's rows, in their order, a batch at a time."""
        for _, scores in self._scored(source, roles or self.roles, memory, rated=False):
            yield scores

    def evaluate(self, source: BlockSource, *, memory: int, roles: Roles | None = None) -> dict[str, float]:
        """Return the root mean squared error and the R² over a source's ratings, and how many there are."""
        squares, shifted, shifted2, count = 0.0, 0.0, 0.0, 0
        with closing(self._scored(source, roles or self.roles, memory, rated=True)) as batches:
            for rows, scores in batches:
                ratings = np.ascontiguousarray(rows[:, 2]).view(np.float32).astype(np.float64)
                errors, ratings = scores - ratings, ratings - self.mean
                squares, count = squares + float(errors @ errors), count + len(rows)
                shifted, shifted2 = shifted + float(ratings.sum()), shifted2 + float(ratings @ ratings)
        if not count:
            raise DataError(f"{source.name} has no ratings; there is nothing to measure")
        spread = shifted2 - shifted**2 / count
        r2 = 1 - squares / spread if spread > 0 else float(squares == 0)
        return {"rmse": math.sqrt(squares / count), "r2": r2, "rows": count}

    def factors(self, *, users: Any = None, items: Any = None, memory: int) -> tuple[Floats, Floats]:
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
        with self._reading(memory, most_pages=len(wanted)) as (visits, _):
            pool = visits.pool
            for pages in _runs(wanted, len(pool.buffer)):
                if not pool.whole:
                    pool.acquire(pages)
                here = np.flatnonzero((of_page >= pages[0]) & (of_page <= pages[-1]))
                inside = records[here] & (self.layout.page_records - 1)
                slots = (pool.frame_of[of_page[here]].astype(np.int64) << self.layout.shift) | inside
                rows[here] = visits.records[slots, : self.layout.rank + 1]
                if not pool.whole:
                    pool.release(pages, dirty=False)
        return rows[:, :-1].copy(), rows[:, -1].copy()

    def blank(self) -> Blank:
        """Return what fills pages that were never written."""
        return blank(self.layout, seed=int(self.header["config"]["seed"]), spread=float(self.header["spread"]))

    @contextmanager
    def _reading(self, memory: int, *, most_pages: int | None = None) -> Iterator[tuple[Visits, Grid]]:
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
            pool = Pool(store, memory=memory)
            with Visits(pool, layout, mean=self.mean) as visits:
                yield visits, Grid.plan(layout, frames=len(pool.buffer))

    def _scored(
        self, source: BlockSource, roles: Roles, memory: int, *, rated: bool
    ) -> Generator[tuple[Triples, Floats], None, None]:
        most = max(1024, min(memory // 8 // _HELD, 4 * MOST_ROWS))
        blocks = read_blocks(source, roles, rated=rated)
        with closing(blocks), self._reading(memory - memory // 8) as (visits, grid):
            held: list[Triples] = []
            count = 0
            for read in blocks:
                held.append(triples(read, self.users, self.items, self.layout))
                count += len(held[-1])
                if count >= most:
                    rows, held, count = np.concatenate(held), [], 0
                    yield rows, visits.score_rows(rows, grid, most=MOST_ROWS)
            if count:
                rows = np.concatenate(held)
                yield rows, visits.score_rows(rows, grid, most=MOST_ROWS)


def blank(layout: Layout, *, seed: int, spread: float) -> Blank:
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


def _runs(pages: Int64s, most: int) -> list[Int64s]:
    return [pages[at : at + most] for at in range(0, len(pages), most)]
