"""Ratings brought to the pages that they need: chunks made ready in one thread while the one before is learnt from.

A piece is some ratings of one bucket by their records, and the order to visit them in. Making it ready means finding
its distinct pages, having the pool bring them, and writing each record's slot where its number stood. Each loop has a
plain twin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Floats
from penstock.bigmodel.chunks import CrowdedError, ahead
from penstock.bigmodel.grid import FactorLayout, Grid
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.ratings import RatingsFile, Triples
from penstock.bigmodel.store import Int64s
from penstock.closing import Closing
from penstock.errors import BudgetError
from penstock.native import kernel
from penstock.sgd.factor import ABSENT, TOTALS, factor_rows, factor_scores
from penstock.shuffle.permute import GAMMA, mix, mix_reference, slots

_RUN = 256
"""The fewest ratings that are worth handing to a thread."""
_U1, _U40 = np.uint64(1), np.uint64(40)
_HALF, _FINE = np.float32(0.5), np.float32(2.0**-24)


@dataclass(frozen=True, slots=True)
class RatingPiece:
    """Ratings by their records, and the places of those to visit, in order."""

    rows: Triples
    order: NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class RatingChunk:
    """Ratings ready to be learnt from: users and items are slots of the pool, where ``pages`` are pinned."""

    piece: RatingPiece
    users: NDArray[np.uint32]
    items: NDArray[np.uint32]
    ratings: Floats
    pages: Int64s

    @property
    def alone(self) -> bool:
        """Whether it needs the whole pool: never, since buckets are made to fit."""
        return False

    def __len__(self) -> int:
        return len(self.ratings)


class FactorTrainer(Closing):
    """Makes chunks of pieces, and learns from them or scores them; several threads learn at the same time without locks."""

    def __init__(self, pool: PagePool, layout: FactorLayout, *, mean: float, threads: int = 1) -> None:
        self.pool = pool
        self.layout = layout
        self._mean = np.float32(mean)
        self._stamps = np.zeros(0 if pool.whole else layout.pages, np.int32)
        self._now = 0
        self._found = np.empty(0 if pool.whole else len(pool.buffer), np.int64)
        self._threads = threads
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="penstock-learn") if threads > 1 else None

    @property
    def records(self) -> Floats:
        return self.pool.buffer.reshape(-1, self.layout.width)

    def chunks(
        self, pieces: Iterator[Callable[[], RatingPiece]], *, learning: bool
    ) -> Generator[RatingChunk, None, None]:
        """Yield a chunk for each piece, the next being made while one is used; close it if it may be left half used."""
        held: RatingPiece | None = None

        def make() -> RatingChunk | None:
            nonlocal held
            if held is None:
                read = next(pieces, None)
                if read is None:
                    return None
                held = read()
            chunk = self._ready(held)
            held = None
            return chunk

        def release(chunk: RatingChunk) -> None:
            if len(chunk.pages):
                self.pool.release(chunk.pages, dirty=learning)

        return ahead(make, release)

    def learn(self, chunk: RatingChunk, totals: NDArray[np.float64], *, rate: float, l2: float) -> bool:
        """Learn from a chunk and add it to the totals; return whether all stayed finite."""
        given = (self._mean, np.float32(rate), np.float32(l2), self.layout.rank)
        columns, records = (chunk.users, chunk.items, chunk.ratings), self.records
        if self._workers is None or len(chunk) < 2 * _RUN:
            return int(factor_rows(records, *columns, *given, totals)) < 0
        size = max(_RUN, -(-len(chunk) // self._threads))

        def work(start: int) -> tuple[int, NDArray[np.float64]]:
            mine = np.zeros(TOTALS)
            run = (column[start : start + size] for column in columns)
            return int(factor_rows(records, *run, *given, mine)), mine

        done = list(self._workers.map(work, range(0, len(chunk), size)))
        for _, mine in done:
            totals += mine
        return max(stopped for stopped, _ in done) < 0

    def scores(self, chunk: RatingChunk) -> Floats:
        """Return what each rating of a chunk was expected to be."""
        out = np.empty(len(chunk), np.float32)
        factor_scores(self.records, chunk.users, chunk.items, self._mean, self.layout.rank, out)
        return out

    def score_rows(self, rows: Triples, grid: Grid, *, most: int) -> Floats:
        """Return what each row is expected to be rated; rows are visited by buckets, ``most`` of them at a time."""
        out = np.empty(len(rows), np.float32)
        if not len(rows):
            return out
        with closing(self.chunks(pieces_of(rows, grid, most=most), learning=False)) as chunks:
            for chunk in chunks:
                out[chunk.piece.order] = self.scores(chunk)
        return out

    def close(self) -> None:
        if self._workers is not None:
            self._workers.shutdown()

    def _ready(self, piece: RatingPiece) -> RatingChunk:
        pool, shift, n = self.pool, np.uint32(self.layout.shift), len(piece.order)
        pages = np.empty(0, np.int64)
        if not pool.whole:
            if self._now == np.iinfo(np.int32).max:
                self._stamps[:] = 0
                self._now = 0
            self._now += 1
            count = rating_pages(piece.rows, piece.order, shift, self._stamps, np.int32(self._now), self._found)
            if count > len(self._found):
                raise BudgetError(
                    f"{count} pages are wanted at once where the pool has {len(self._found)}; give more memory"
                )
            pages = np.sort(self._found[:count])
            if not pool.try_acquire(pages, fresh=len(pages)):
                if pool.pinned:
                    raise CrowdedError
                pool.acquire(pages)  # says why not
        users, items, ratings = np.empty(n, np.uint32), np.empty(n, np.uint32), np.empty(n, np.float32)
        rating_slots(piece.rows, piece.order, shift, pool.frame_of, users, items, ratings)
        return RatingChunk(piece, users, items, ratings, pages)


def epoch_pieces(
    file: RatingsFile, grid: Grid, *, seed: int, epoch: int, most: int
) -> Iterator[Callable[[], RatingPiece]]:
    """Yield an epoch's pieces: buckets in the grid's order, their blocks in random order, each piece permuted."""
    chance = seeds.generator(seed, "buckets", epoch)
    number = 0
    for bucket in grid.order(chance):
        for blocks in file.pieces(chance.permutation(file.blocks(int(bucket))), most):
            yield functools.partial(_read_piece, file, blocks, seeds.key(seed, "ratings", epoch, number))
            number += 1


def stored_pieces(file: RatingsFile, grid: Grid, *, most: int) -> Iterator[Callable[[], RatingPiece]]:
    """Yield a file's pieces as they are stored, bucket by bucket, for measuring."""
    for bucket in grid.order(None):
        for blocks in file.pieces(file.blocks(int(bucket)), most):
            yield functools.partial(_read_piece, file, blocks)


def _read_piece(file: RatingsFile, blocks: Int64s, key: int | None = None) -> RatingPiece:
    """Read blocks as a piece, to be visited as they are stored or permuted by a key."""
    rows = file.read(blocks)
    return RatingPiece(rows, np.arange(len(rows), dtype=np.uint32) if key is None else slots(len(rows), key))


def pieces_of(rows: Triples, grid: Grid, *, most: int) -> Iterator[Callable[[], RatingPiece]]:
    """Yield rows in memory by buckets."""
    buckets = grid.bucket_of(rows[:, 0], rows[:, 1])
    order = np.argsort(buckets, kind="stable").astype(np.uint32)
    ends = np.searchsorted(buckets[order], np.arange(grid.buckets + 1))
    for bucket in grid.order(None).tolist():
        for at in range(int(ends[bucket]), int(ends[bucket + 1]), most):
            picks = order[at : min(at + most, int(ends[bucket + 1]))]
            yield functools.partial(RatingPiece, rows, picks)


@kernel(fast=False)
def rating_pages(rows: Any, order: Any, shift: Any, stamps: Any, now: Any, out: Any) -> Any:
    """Write the distinct pages of a piece to ``out``, as far as there is room, and return how many there are."""
    count = 0
    for i in range(len(order)):
        for c in range(2):
            record = rows[order[i], c]
            if record != ABSENT and stamps[record >> shift] != now:
                stamps[record >> shift] = now
                if count < len(out):
                    out[count] = record >> shift
                count += 1
    return count


def rating_pages_reference(piece: RatingPiece, shift: int) -> Int64s:
    """Return the distinct pages of a piece's users and items that are known, ascending."""
    records = piece.rows[piece.order, :2]
    return np.unique(records[records != ABSENT] >> np.uint32(shift)).astype(np.int64)


@kernel(fast=False)
def rating_slots(
    rows: Any, order: Any, shift: Any, frame_of: Any, users: Any, items: Any, ratings: Any
) -> None:  # fmt: skip
    """Write each rating's slots and itself in the order of the visit, as the twin does."""
    mask = (np.uint32(1) << shift) - np.uint32(1)
    bits = ratings.view(np.uint32)
    for i in range(len(order)):
        user, item = rows[order[i], 0], rows[order[i], 1]
        users[i] = user if user == ABSENT else (np.uint32(frame_of[user >> shift]) << shift) | (user & mask)
        items[i] = item if item == ABSENT else (np.uint32(frame_of[item >> shift]) << shift) | (item & mask)
        bits[i] = rows[order[i], 2]


def rating_slots_reference(piece: RatingPiece, shift: int, frame_of: NDArray[np.int32]) -> tuple[Triples, Floats]:
    """Return where in the pool the records of a piece lie, (ratings, 2), and the ratings."""
    records = piece.rows[piece.order, :2]
    known = records != ABSENT
    pages = np.where(known, records >> np.uint32(shift), 0)
    inside = records & np.uint32((1 << shift) - 1)
    places = (frame_of[pages].astype(np.uint32) << np.uint32(shift)) | inside
    return np.where(known, places, ABSENT), piece.rows[piece.order, 2].view(np.float32)


@kernel(fast=False)
def first_factors(key: Any, pages: Any, frames: Any, cells: Any, records: Any, rank: Any, reach: Any) -> None:
    """Fill frames with the factors that their pages start with; biases and padding are zero."""
    width = cells.shape[1] // records
    for i in range(len(pages)):
        cells[frames[i]] = np.float32(0)
        for r in range(records):
            state = mix(key + (np.uint64(pages[i]) * np.uint64(records) + np.uint64(r) + _U1) * GAMMA)
            for k in range(rank):
                state += GAMMA
                share = np.float32(mix(state) >> _U40) * _FINE
                cells[frames[i], r * width + k] = reach * (share - _HALF)


def first_factors_reference(key: int, record: int, rank: int, reach: float) -> Floats:
    """Return the factors that a record starts with: uniform over a width of ``reach`` about zero."""
    mask, gamma = 2**64 - 1, int(GAMMA)
    state = mix_reference((key + (record + 1) * gamma) & mask)
    shares = [(mix_reference((state + (k + 1) * gamma) & mask) >> 40) * 2.0**-24 for k in range(rank)]
    return (np.float32(reach) * (np.array(shares, np.float32) - np.float32(0.5))).astype(np.float32)
