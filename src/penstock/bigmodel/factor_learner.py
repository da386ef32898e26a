"""Training of a matrix factorization on disk: the learner of a job (`penstock.job`) whose factors are in pages.

A kill at any moment leaves the last checkpoint whole, and resuming goes on from it to the same factors (on one thread).
The memory is one number for the pool of pages and the ratings in use; the keys of users and items come on top.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.bigmodel.checkpoint import CheckpointDirectory, begin_anew, read_state
from penstock.bigmodel.factor_config import FactorConfig
from penstock.bigmodel.factor_model import ITEMS, USERS, FactorModel
from penstock.bigmodel.factor_trainer import CHUNK_BYTES, MOST_ROWS, FactorTrainer, epoch_pieces, stored_pieces
from penstock.bigmodel.grid import PAGE_BYTES, FactorLayout, Grid
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.ratings import (
    BLOCK,
    ROW_BYTES,
    RatingsFile,
    Roles,
    Triples,
    read_ratings,
    scan_ratings,
    triples,
    write_ratings,
)
from penstock.bigmodel.store import PageStore
from penstock.blocks.base import BlockSource
from penstock.budget import Budget, show_bytes
from penstock.checkpoint import Checkpoint
from penstock.errors import BudgetError, CorruptFileError, DataChangedError, DivergedError, UsageError
from penstock.events import Advanced, Epoch, Finished, Started
from penstock.job import Job, Limits, OnRows, Progress, Usage
from penstock.loader.holdout import SAMPLE_ROWS, SplitPart
from penstock.loader.plan import round_up
from penstock.measures import Measures, OnScores
from penstock.messages import START_ANEW
from penstock.metric_names import headline
from penstock.sgd.factor import ABSENT, COUNT, SQUARES, TOTALS
from penstock.sgd.loop import EpochStats

RATINGS, HELD = "ratings.bin", "held.bin"
_LEAST_ROWS = 8192
_FAR_OFF = 1.03
"""Spreads of the ratings that the first epoch errs by where its steps are too large."""
_LEAST_PAGES = 4
"""Pages that the memory must have room for: with fewer, an epoch reads the model over and over."""
_SMALL_PAGES = 128
"""Pages that the memory has room for, at least, unless they would be smaller than 4,096 bytes."""


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
        """SplitPart the memory: up to an eighth for ratings, the rest for pages; a few ratings there always are."""
        rows = min(MOST_ROWS, memory // 8 // CHUNK_BYTES)
        return cls(max(_LEAST_ROWS, rows), memory - rows * CHUNK_BYTES)

    @property
    def block(self) -> int:
        """Ratings in a block of the file: several to a piece, so that pieces differ between epochs."""
        return max(64, min(BLOCK, self.rows // 8))


@dataclass(slots=True)
class FactorLearner:
    """Learns a matrix factorization whose factors are in pages on disk.

    Attributes
    ----------
    checkpoint : CheckpointDirectory
        The model's directory.
    roles : Roles
        The columns of users, items and ratings.
    """

    stops_on_test: ClassVar[bool] = True
    measured_at_end: ClassVar[bool] = False
    saves_start: ClassVar[bool] = True
    converged: ClassVar[bool] = False
    facts: ClassVar[Mapping[str, Any]] = {}

    checkpoint: CheckpointDirectory
    roles: Roles
    _job: Job[FactorConfig, FactorModel] = field(init=False)
    _model: FactorModel = field(init=False)
    _parts: Shares = field(init=False)
    _grid: Grid = field(init=False)
    _trainer: FactorTrainer = field(init=False)
    _files: dict[str, RatingsFile] = field(init=False)
    _ratings_read: int = field(default=0, init=False)

    def check(self, job: Job[FactorConfig, FactorModel], /) -> None:
        """Take the job over; refuse data without the columns."""
        self._job = job
        for source in (job.source, job.test):
            if source is not None:
                self.roles.require(source)

    def require_same(self, saved: Checkpoint, /) -> dict[str, Any]:
        """Raise where a checkpoint is of other columns; return its config."""
        other = Roles(**saved.header["roles"])
        if other != self.roles:
            raise UsageError(
                f"the checkpoint was made with the columns {', '.join(other.names)}, this run has "
                f"{', '.join(self.roles.names)}",
                fixes=["resume with the same columns", START_ANEW],
            )
        config: dict[str, Any] = saved.header["config"]
        return config

    def prepare(self, saved: Checkpoint | None, /) -> int:
        """Return the number of ratings; a model of other data in the directory is not given up."""
        if saved is None:
            self.checkpoint.require_own(self._job.source)
        return int(self._job.source.block_rows.sum())

    def start(self, share: float, saved: Checkpoint | None, stack: ExitStack, /) -> Limits:
        """Scan the data for users and items, unless a checkpoint has them; open pages and ratings."""
        config, place = self._job.config, self.checkpoint.place
        model = self._model = self._new_model(share) if saved is None else FactorModel.load(place)
        layout = model.layout
        self._parts = Shares.of(self._memory(layout.users + layout.items))
        store = stack.enter_context(
            PageStore(
                place,
                pages=layout.pages,
                page_floats=layout.page_floats,
                saved=None if saved is None else saved.arrays,
                blank=model.blank(),
            )
        )
        self._grid = Grid.plan(layout, frames=min(layout.pages, self._parts.pool // store.page_bytes))
        self._files = self._opened_files(stack, share)
        pool = PagePool(store, memory=self._parts.pool)
        self._trainer = stack.enter_context(FactorTrainer(pool, layout, mean=model.mean, threads=config.threads))
        rows = self._files["training"].rows
        patience = config.patience_for(share)
        return Limits(rows, config.epoch_limit(patience), patience, config.tolerance)

    @property
    def splits(self) -> tuple[str, ...]:
        """The ratings there are to measure on."""
        return tuple(name for name in self._files if name != "training")

    @property
    def usage(self) -> Usage:
        """What was read of ratings, and read and written of pages."""
        store = self._trainer.pool.store
        return Usage(store.bytes_read + store.bytes_written + self._ratings_read)

    def run_epoch(self, epoch: int, on_rows: OnRows, /) -> EpochStats:
        """Learn from all ratings once."""
        config, file, trainer, schedule = (
            self._job.config,
            self._files["training"],
            self._trainer,
            self._job.config.schedule(),
        )
        totals = np.zeros(TOTALS)
        pieces = epoch_pieces(file, self._grid, seed=config.seed, epoch=epoch, most=self._parts.rows)
        with closing(trainer.chunks(pieces, learning=True)) as chunks:
            for chunk in chunks:
                rate = schedule.at(epoch, epoch * file.rows + int(totals[COUNT]))
                if not trainer.learn(chunk, totals, rate=rate, l2=config.l2):
                    raise DivergedError(
                        f"training diverged in epoch {epoch + 1} at learning rate {rate:g}: a prediction is not"
                        f" finite, though the ratings are; use a smaller learning rate (try {rate / 10:g}) or a larger l2"
                    )
                on_rows(len(chunk), f"progressive rmse {_rmse(totals):.4f}")
        self._ratings_read += ROW_BYTES * file.rows
        return _stats(totals)

    def warnings(self, event: Epoch, /, *, last: bool) -> Iterator[str]:
        """Say that steps were too large: the first factors are chance and cost a little, such steps cost far more."""
        spread = float(self._model.header["spread"])
        if event.epoch == 1 and event.progressive_score > _FAR_OFF * spread > 0:
            yield (
                f"after the first epoch the error is {event.progressive_score:.3g}, worse than that of the mean rating"
                f" ({spread:.3g}): the steps are too large; use a smaller learning rate"
            )

    def evaluate(self, split: str, on_scores: OnScores | None, /) -> EpochStats:
        """Measure on ratings as they are stored, or on about 10,000 of the training ratings."""
        totals, file, trainer = np.zeros(TOTALS), self._files[split], self._trainer
        every = max(1, file.rows // SAMPLE_ROWS) if split == "training" else 1
        pieces = stored_pieces(file, self._grid, most=self._parts.rows)
        with closing(trainer.chunks(pieces, learning=False)) as chunks:
            for chunk in chunks:
                errors = (trainer.scores(chunk).astype(np.float64) - chunk.ratings)[::every]
                totals[SQUARES] += errors @ errors
                totals[COUNT] += len(errors)
        return _stats(totals)

    def measures(self, *, finished: bool) -> list[Measures]:
        """Return none: the error is all there is."""
        return []

    def keep_best(self) -> None:
        """Write all pages, and keep them."""
        self._written().keep_best()

    def use_best(self) -> None:
        """Do nothing: the model reads the best pages by itself."""

    def useless(self, metrics: Mapping[str, Any], /) -> str | None:
        """Say why the model is no better than predicting the mean rating."""
        return useless_factors({**self._model.header, "metrics": metrics})

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Write all pages, and return what names them as good, with how the model was made."""
        names = ("kind", "roles", "layout", "rows", "mean", "spread")
        return self._written().arrays(), {name: self._model.header[name] for name in names}

    def saved(self) -> None:
        """Let pages of the checkpoint before be written over."""
        self._trainer.pool.store.committed()

    def model(self, progress: Progress, metrics: dict[str, Any], /) -> FactorModel:
        """Return the model."""
        saved, header = read_state(self.checkpoint.place, kind="factor")
        return replace(self._model, header=header, saved=saved)

    def _written(self) -> PageStore:
        pool = self._trainer.pool
        pool.flush()
        pool.store.sync()
        return pool.store

    def _memory(self, records: int) -> int:
        """Return the bytes allowed; a share is of the model's own size."""
        config = self._job.config
        return Budget.parse(config.memory).resolve(records * (config.rank + 1) * 4)

    def _new_model(self, share: float) -> FactorModel:
        """Scan the data and begin a new model."""
        job, place = self._job, self.checkpoint.place
        result = scan_ratings(job.source, self.roles, part=self._part(share), stream=job.stream)
        users, items = len(result.users), len(result.items)
        layout = planned(job.config.rank, users, items, memory=self._memory(users + items))
        header = {
            "kind": "factor",
            "config": job.config.to_dict(),
            "roles": asdict(self.roles),
            "layout": layout.to_dict(),
            "rows": result.rows,
            "mean": result.mean,
            "spread": result.spread,
        }
        begin_anew(place)
        result.users.save(place / USERS)
        result.items.save(place / ITEMS)
        return FactorModel(place, layout, result.users, result.items, header, {})

    def _part(self, share: float) -> SplitPart | None:
        """Return the rows to learn from, where some are held out."""
        return SplitPart(share, self._job.config.seed, held_out=False) if share else None

    def _opened_files(self, stack: ExitStack, share: float) -> dict[str, RatingsFile]:
        """Open the ratings by buckets, to learn from and to measure; what is not there for this grid is made."""
        job, part, place, header = self._job, self._part(share), self.checkpoint.place, self._model.header
        about = {
            "grid": self._grid.to_dict(),
            "block": self._parts.block,
            "fingerprint": job.source.fingerprint,
            "roles": header["roles"],
            "layout": header["layout"],
            "seed": job.config.seed,
            "validation": share,
        }
        files = {"training": self._file(stack, place / RATINGS, job.source, part, about)}
        if job.test is not None:
            # Of rows asked to be held out beside a test set nothing is learnt, and the test set is what is measured.
            about |= {"fingerprint": job.test.fingerprint, "validation": 0}
            files["test"] = self._file(stack, place / HELD, job.test, None, about)
        elif part is not None:
            files["held_out"] = self._file(stack, place / HELD, job.source, part.other(), about)
        return files

    def _file(
        self, stack: ExitStack, path: Path, source: BlockSource, part: SplitPart | None, about: Mapping[str, Any]
    ) -> RatingsFile:
        try:
            file = stack.enter_context(RatingsFile(path))
            if file.about == about:
                return file
        except (FileNotFoundError, CorruptFileError):
            pass
        model, stream = self._model, self._job.stream
        stream.emit(Started("prepare", int(source.block_rows.sum()), "rows"))
        learnt = path.name == RATINGS
        with closing(read_ratings(source, self.roles, part=part)) as blocks:

            def rows() -> Iterator[Triples]:
                for read in blocks:
                    records = triples(read, model.users, model.items, model.layout)
                    if learnt and (records[:, :2] == ABSENT).any():
                        raise DataChangedError(f"{source.name} has changed since it was scanned; start anew")
                    stream.emit(Advanced("prepare", len(records)))
                    yield records

            write_ratings(
                path,
                rows(),
                self._grid,
                seed=self._job.config.seed,
                memory=self._parts.pool // 2,
                about=about,
                block=self._parts.block,
            )
        stream.emit(Finished("prepare"))
        return stack.enter_context(RatingsFile(path))


def factor_job(
    source: BlockSource,
    folder: str | os.PathLike[str],
    config: FactorConfig | None = None,
    roles: Roles | None = None,
    **more: Any,
) -> Job[FactorConfig, FactorModel]:
    """Return the job of training a factorization in its directory; see `FactorLearner`, and `Job` for ``more``."""
    checkpoint = CheckpointDirectory(folder, "factor")
    learner = FactorLearner(checkpoint, roles or Roles())
    return Job(source, learner, config or FactorConfig(), checkpoint=checkpoint, **more)


def useless_factors(header: Mapping[str, Any]) -> str | None:
    """Say why a factorisation is no better than predicting the mean rating, on test or held-out ratings; None where it is better.

    Examples
    --------
    >>> useless_factors({"spread": 1.0, "metrics": {"held_out_rmse": 1.25, "held_out_rows": 100}})
    'held-out RMSE 1.2500 is no better than predicting the mean rating, 1.0000'
    """
    score, spread = headline(header.get("metrics", {})), float(header["spread"])
    if score is None or score.name.startswith("training_") or score.value < spread:
        return None
    return f"{score.title} {score.value:.4f} is no better than predicting the mean rating, {spread:.4f}"


def _rmse(totals: Any) -> float:
    return math.sqrt(totals[SQUARES] / totals[COUNT]) if totals[COUNT] else 0.0


def _stats(totals: Any) -> EpochStats:
    error, rows = _rmse(totals), int(totals[COUNT])
    return EpochStats(error**2 / 2, "rmse", error, rows, float(rows), 0)


def planned(rank: int, users: int, items: int, *, memory: int) -> FactorLayout:
    """Return where users and items lie, in pages that the memory has room for.

    Raises
    ------
    BudgetError
        There is too little memory even for the smallest pages.
    """
    layout = FactorLayout.of(rank, users=users, items=items, page_bytes=min(PAGE_BYTES, memory // _SMALL_PAGES))
    page = layout.page_floats * 4
    least = min(_LEAST_PAGES, layout.pages) * page
    if Shares.of(memory).pool < least:
        raise BudgetError(
            f"{show_bytes(memory)} of memory are too little for {users:,} users and {items:,} items of rank {rank} in pages of"
            f" {show_bytes(page)}; the smallest that works is {round_up(-(-least * 8 // 7))}"
        )
    return layout
