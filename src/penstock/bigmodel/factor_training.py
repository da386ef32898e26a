"""One training job for a factorisation on disk: prepare the ratings, run the epochs, write a checkpoint after each.

A kill at any moment leaves the last checkpoint whole, and resuming goes on from it to the same factors (on one thread).
The memory is one number for the pool of pages and the ratings in use; the keys of users and items come on top.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from penstock.bigmodel.factor_model import ITEMS, USERS, FactorModel
from penstock.bigmodel.grid import PAGE_BYTES, Grid, Layout
from penstock.bigmodel.model import FORMAT, STATE
from penstock.bigmodel.pool import Pool
from penstock.bigmodel.ratings import (
    BLOCK,
    ROW_BYTES,
    RatingsFile,
    Roles,
    Triples,
    read_blocks,
    scan,
    triples,
    write_ratings,
)
from penstock.bigmodel.store import PageStore
from penstock.bigmodel.visits import CHUNK_BYTES, MOST_ROWS, Visits, epoch_pieces, stored_pieces
from penstock.blocks.base import BlockSource
from penstock.budget import Budget, show_bytes
from penstock.errors import BudgetError, CorruptFileError, DataChangedError, DivergedError, UsageError
from penstock.events import Advanced, Epoch, Finished, Started, Stream, Warned
from penstock.loader.holdout import Part
from penstock.loader.plan import round_up
from penstock.lock import locked
from penstock.modelfile import write_model
from penstock.sgd import rates
from penstock.sgd.factor import ABSENT, COUNT, SQUARES, TOTALS

RATINGS, HELD = "ratings.bin", "held.bin"
_LEAST_ROWS = 8192
_LEAST_PAGES = 4
"""Pages that the memory must have room for: with fewer, an epoch reads the model over and over."""
_SMALL_PAGES = 128
"""Pages that the memory has room for, at least, unless they would be smaller than 4,096 bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorConfig:
    """Hyper-parameters of a factorisation.

    Examples
    --------
    >>> FactorConfig(rank=8).schedule().at(epoch=0, step=0)
    0.01
    """

    rank: int = 100
    learning_rate: float = 0.01
    rate: str = "exponential"
    decay: float = 0.95
    power: float = 0.25
    l2: float = 0.02
    epochs: int = 20
    memory: str | int = "1GB"
    seed: int = 0
    threads: int = 1
    validation: float = 0.0

    def __post_init__(self) -> None:
        for f in fields(self):  # NumPy's numbers are no JSON
            value = getattr(self, f.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, f.name, value.item())
        for name, least, what in (("rank", 1, "factors"), ("epochs", 0, "epochs"), ("threads", 1, "threads")):
            value = getattr(self, name)
            if value != int(value) or value < least:
                raise UsageError(f"{name}={value!r} is not a number of {what}; choose {max(least, 1)} or more")
        if not 0 <= self.validation < 1:
            raise UsageError(f"validation={self.validation!r} is not a share of the rows; choose one from 0 to below 1")
        if not (math.isfinite(self.l2) and self.l2 >= 0):
            raise UsageError(f"l2={self.l2!r} must be zero or a positive number, such as 0.02")
        if self.seed < 0:
            raise UsageError(f"seed={self.seed!r} must not be negative")
        Budget.parse(self.memory)
        self.schedule()

    def schedule(self) -> rates.Rate:
        """Return the learning rates."""
        return rates.named(self.rate, self.learning_rate, decay=self.decay, power=self.power)

    def part(self) -> Part | None:
        """Return the rows to learn from, where some are held out."""
        return Part(self.validation, self.seed, held_out=False) if self.validation else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    def require_same(self, other: Mapping[str, Any]) -> None:
        """Raise unless another config, saved as JSON, trains alike; epochs, threads and memory may differ."""
        mine = self.to_dict()
        for name in (f.name for f in fields(self) if f.name not in ("epochs", "threads", "memory")):
            if mine[name] != other.get(name):
                raise UsageError(
                    f"the checkpoint was made with {name}={other.get(name)!r}, this run has {mine[name]!r};"
                    " resume with the same value, or start anew without --resume"
                )


@dataclass(frozen=True, slots=True)
class Shares:
    """What of the memory goes where.

    Attributes
    ----------
    rows : int
        Ratings in a piece.
    pool : int
        Bytes for pages.
    """

    rows: int
    pool: int

    @classmethod
    def of(cls, memory: int) -> Shares:
        """Part the memory: up to an eighth for ratings, the rest for pages; a few ratings there always are."""
        rows = min(MOST_ROWS, memory // 8 // CHUNK_BYTES)
        return cls(max(_LEAST_ROWS, rows), memory - rows * CHUNK_BYTES)

    @property
    def block(self) -> int:
        """Ratings in a block of the file: several to a piece, so that pieces differ between epochs."""
        return max(64, min(BLOCK, self.rows // 8))


@dataclass(slots=True)
class FactorTraining:
    """A job as it stands.

    Attributes
    ----------
    source : BlockSource
        The ratings.
    folder : path
        The model's directory.
    test : BlockSource, optional
        Ratings that are measured after every epoch.
    """

    source: BlockSource
    folder: str | os.PathLike[str]
    config: FactorConfig = field(default_factory=FactorConfig)
    roles: Roles = field(default_factory=Roles)
    test: BlockSource | None = None
    stream: Stream = field(default_factory=Stream)

    def run(self, *, resume: bool = False) -> FactorModel:
        """Train to the end and return the model."""
        self.roles.require(self.source)
        if self.test is not None:
            self.roles.require(self.test)
        with locked(self.folder, marks=(STATE,)) as place, ExitStack() as stack:
            model = self._saved(place) if resume else None
            new = model is None
            model = model or self._begun(place)
            layout, shares = model.layout, Shares.of(self._memory(model.layout.users + model.layout.items))
            store = stack.enter_context(
                PageStore(
                    place,
                    pages=layout.pages,
                    page_floats=layout.page_floats,
                    saved=None if new else model.saved,
                    blank=model.blank(),
                )
            )
            grid = Grid.plan(layout, frames=min(layout.pages, shares.pool // store.page_bytes))
            file, held = self._files(stack, place, model, grid, shares)
            pool = Pool(store, memory=shares.pool)
            visits = stack.enter_context(Visits(pool, layout, mean=model.mean, threads=self.config.threads))
            history = list(model.header["history"])
            if new:
                model = self._commit(model, pool, history)
            self.stream.emit(Started("train", file.rows * (self.config.epochs - len(history)), "rows"))
            while len(history) < self.config.epochs:
                event = self._epoch(len(history), visits, grid, shares, file, held)
                history.append(event.row())
                model = self._commit(model, pool, history)
                self.stream.emit(event)
                if len(history) == 1:
                    self._warn(event, model)
            self.stream.emit(Finished("train"))
            return model

    def _memory(self, records: int) -> int:
        """Return the bytes allowed; a share is of the model's own size."""
        return Budget.parse(self.config.memory).resolve(records * (self.config.rank + 1) * 4)

    def _saved(self, place: Path) -> FactorModel | None:
        """Return the checkpoint to go on from, or None where there is none yet."""
        if not (place / STATE).exists():
            return None
        model = FactorModel.load(place)
        if model.header["fingerprint"] != self.source.fingerprint:
            raise DataChangedError(
                f"{self.source.name} is not the data that the model in {place} is being learnt from; restore the data,"
                " or start anew without --resume"
            )
        self.config.require_same(model.header["config"])
        if model.roles != self.roles:
            raise UsageError(
                f"the checkpoint was made with the columns {', '.join(model.roles.names)}, this run has"
                f" {', '.join(self.roles.names)}; resume with the same columns, or start anew without --resume"
            )
        return model

    def _begun(self, place: Path) -> FactorModel:
        """Scan the data and begin a new model; one of other data is not given up for it."""
        if (place / STATE).exists():
            old = FactorModel.load(place)
            if old.header["fingerprint"] != self.source.fingerprint:
                raise UsageError(
                    f"{place} holds a model of other data ({old.header['data']}, where this is {self.source.name});"
                    " choose another directory, or remove that one"
                )
        found = scan(self.source, self.roles, part=self.config.part(), stream=self.stream)
        users, items = len(found.users), len(found.items)
        layout = planned(self.config.rank, users, items, memory=self._memory(users + items))
        header = {
            "bigmodel": "factor",
            "format": FORMAT,
            "kind": "factor",
            "data": self.source.name,
            "config": self.config.to_dict(),
            "roles": asdict(self.roles),
            "layout": layout.to_dict(),
            "fingerprint": self.source.fingerprint,
            "rows": found.rows,
            "mean": found.mean,
            "spread": found.spread,
            "history": [],
        }
        (place / STATE).unlink(missing_ok=True)  # its pages and keys are about to be given up
        found.users.save(place / USERS)
        found.items.save(place / ITEMS)
        return FactorModel(place, layout, found.users, found.items, header, {})

    def _files(
        self, stack: ExitStack, place: Path, model: FactorModel, grid: Grid, shares: Shares
    ) -> tuple[RatingsFile, RatingsFile | None]:
        """Open the ratings by buckets, to learn from and to measure; what is not there for this grid is made."""
        part, given = self.config.part(), {"grid": grid.to_dict(), "block": shares.block, **self._about(model)}
        file = self._file(stack, place / RATINGS, self.source, part, model, grid, shares, given)
        if self.test is not None:
            about = {**given, "fingerprint": self.test.fingerprint, "validation": 0}
            return file, self._file(stack, place / HELD, self.test, None, model, grid, shares, about)
        if part is not None:
            return file, self._file(stack, place / HELD, self.source, part.other(), model, grid, shares, given)
        return file, None

    def _about(self, model: FactorModel) -> dict[str, Any]:
        kept = ("fingerprint", "roles", "layout")
        return {
            **{name: model.header[name] for name in kept},
            "seed": self.config.seed,
            "validation": self.config.validation,
        }

    def _file(
        self,
        stack: ExitStack,
        path: Path,
        source: BlockSource,
        part: Part | None,
        model: FactorModel,
        grid: Grid,
        shares: Shares,
        about: Mapping[str, Any],
    ) -> RatingsFile:
        try:
            found = stack.enter_context(RatingsFile(path))
            if found.about == about:
                return found
        except (FileNotFoundError, CorruptFileError):
            pass
        self.stream.emit(Started("prepare", int(source.block_rows.sum()), "rows"))
        learnt = path.name == RATINGS
        with closing(read_blocks(source, self.roles, part=part)) as blocks:

            def rows() -> Iterator[Triples]:
                for read in blocks:
                    found = triples(read, model.users, model.items, model.layout)
                    if learnt and (found[:, :2] == ABSENT).any():
                        raise DataChangedError(f"{source.name} has changed since it was scanned; start anew")
                    self.stream.emit(Advanced("prepare", len(found)))
                    yield found

            write_ratings(
                path, rows(), grid, seed=self.config.seed, memory=shares.pool // 2, about=about, block=shares.block
            )
        self.stream.emit(Finished("prepare"))
        return stack.enter_context(RatingsFile(path))

    def _epoch(
        self, number: int, visits: Visits, grid: Grid, shares: Shares, file: RatingsFile, held: RatingsFile | None
    ) -> Epoch:
        config, store, schedule = self.config, visits.pool.store, self.config.schedule()
        totals, before = np.zeros(TOTALS), store.bytes_read + store.bytes_written
        began = time.perf_counter()
        pieces = epoch_pieces(file, grid, seed=config.seed, epoch=number, most=shares.rows)
        with closing(visits.chunks(pieces, learning=True)) as chunks:
            for chunk in chunks:
                rate = schedule.at(number, number * file.rows + int(totals[COUNT]))
                if not visits.learn(chunk, totals, rate=rate, l2=config.l2):
                    raise DivergedError(
                        f"training diverged in epoch {number + 1} at learning rate {rate:g}: a prediction is not"
                        f" finite, though the ratings are; use a smaller learning rate (try {rate / 10:g}) or a larger l2"
                    )
                note = f"epoch {number + 1}/{config.epochs}  rmse {_rmse(totals):.4f}"
                self.stream.emit(Advanced("train", len(chunk), note))
        seconds = time.perf_counter() - began
        test = None if held is None else self._measured(visits, grid, shares, held)
        return Epoch(
            epoch=number + 1,
            loss=_rmse(totals) ** 2 / 2,
            metric="rmse",
            score=_rmse(totals),
            seconds=seconds,
            rows=int(totals[COUNT]),
            bytes=store.bytes_read + store.bytes_written - before + ROW_BYTES * file.rows,
            test_score=test,
            test_loss=None if test is None else test**2 / 2,
        )

    def _measured(self, visits: Visits, grid: Grid, shares: Shares, held: RatingsFile) -> float | None:
        """Return the root mean squared error over ratings that are not learnt from."""
        totals = np.zeros(TOTALS)
        pieces = stored_pieces(held, grid, most=shares.rows)
        with closing(visits.chunks(pieces, learning=False)) as chunks:
            for chunk in chunks:
                errors = visits.scores(chunk).astype(np.float64) - chunk.ratings
                totals[SQUARES] += errors @ errors
                totals[COUNT] += len(chunk)
        return _rmse(totals) if totals[COUNT] else None

    def _commit(self, model: FactorModel, pool: Pool, history: list[dict[str, Any]]) -> FactorModel:
        """Write a checkpoint: pages first, then what names them as good."""
        pool.flush()
        pool.store.sync()
        saved = pool.store.arrays()
        header = {**model.header, "config": self.config.to_dict(), "history": list(history)}
        write_model(Path(model.folder) / STATE, saved, header)
        pool.store.committed()
        return FactorModel(model.folder, model.layout, model.users, model.items, header, saved)

    def _warn(self, event: Epoch, model: FactorModel) -> None:
        if event.score > float(model.header["spread"]) > 0:
            self.stream.emit(
                Warned(
                    f"after the first epoch the error is {event.score:.3g}, worse than that of the mean rating"
                    f" ({model.header['spread']:.3g}): the steps are too large; use a smaller learning rate"
                )
            )


def _rmse(totals: Any) -> float:
    return math.sqrt(totals[SQUARES] / totals[COUNT]) if totals[COUNT] else 0.0


def planned(rank: int, users: int, items: int, *, memory: int) -> Layout:
    """Return where users and items lie, in pages that the memory has room for.

    Raises
    ------
    BudgetError
        There is too little memory even for the smallest pages.
    """
    layout = Layout.of(rank, users=users, items=items, page_bytes=min(PAGE_BYTES, memory // _SMALL_PAGES))
    page = layout.page_floats * 4
    least = min(_LEAST_PAGES, layout.pages) * page
    if Shares.of(memory).pool < least:
        raise BudgetError(
            f"{show_bytes(memory)} of memory are too little for {users:,} users and {items:,} items of rank {rank} in pages of"
            f" {show_bytes(page)}; the smallest that works is {round_up(-(-least * 8 // 7))}"
        )
    return layout
