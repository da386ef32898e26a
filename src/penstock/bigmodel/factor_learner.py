"""Training of a matrix factorization on disk: its config, and the learner of a job (`penstock.job`) whose factors are in pages.

A kill at any moment leaves the last checkpoint whole, and resuming goes on from it to the same factors (on one thread).
The memory is one number for the pool of pages and the ratings in use; the keys of users and items come on top.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.bigmodel.checkpoint import CheckpointDirectory, begin_anew, read_state
from penstock.bigmodel.factor_model import ITEMS, USERS, FactorModel
from penstock.bigmodel.factor_trainer import FactorTrainer, epoch_pieces, stored_pieces
from penstock.bigmodel.grid import Grid, Shares, model_memory, planned
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.ratings import (
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
from penstock.budget import Budget
from penstock.checkpoint import Checkpoint
from penstock.errors import CorruptFileError, DataChangedError, DivergedError, UsageError
from penstock.events import Advanced, Epoch, Finished, Started, Warned
from penstock.job import Job, Limits, OnRows, Progress, Usage
from penstock.loader.holdout import SAMPLE_ROWS, SplitPart
from penstock.measures import Measures, OnScores
from penstock.messages import START_ANEW
from penstock.metric_names import headline
from penstock.options import check_fields, default, require_same_options
from penstock.sgd import rates
from penstock.sgd.factor import ABSENT, COUNT, SQUARES, TOTALS
from penstock.sgd.loop import EpochStats

LEARNING_RATE = 0.01
"""The first step size where none is given, or ``"auto"``."""
_EPOCHS, _WATCHED_EPOCHS, _PATIENCE = 20, 100, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorConfig:
    """Hyper-parameters of a factorisation.

    Where ``epochs`` and ``patience`` are left open and ratings are held out, training stops after 5 epochs without improvement, and
    after 100 in any case; after 20 where none are held out. Where it may stop early, the factors of the best epoch by the held-out
    loss are kept.

    Examples
    --------
    >>> FactorConfig(rank=8).schedule().at(epoch=0, step=0)
    0.01
    """

    rank: int = default("rank")
    learning_rate: float = LEARNING_RATE
    rate: str = default("rate", "factor")
    decay: float = default("decay")
    power: float = default("power")
    l2: float = default("l2", "factor")
    epochs: int | None = default("epochs")
    memory: str | int = default("memory", "factor")
    seed: int = default("seed")
    threads: int = default("threads")
    validation: float | None = default("validation")
    patience: int | None = default("patience")
    tolerance: float = default("tolerance")

    def __post_init__(self) -> None:
        check_fields(self, "factor")
        if self.learning_rate is None:
            object.__setattr__(self, "learning_rate", LEARNING_RATE)
        Budget.parse(self.memory)
        self.schedule()

    def epoch_limit(self, patience: int) -> int:
        """Return the number of epochs that was given, or else 100 where held-out ratings say when to stop, and 20 where not."""
        if self.epochs is not None:
            return self.epochs
        return _WATCHED_EPOCHS if patience else _EPOCHS

    def patience_for(self, share: float) -> int:
        """Return after how many epochs without improvement to stop where that share of the ratings is held out, 0 for never."""
        if self.patience is not None:
            return self.patience
        return _PATIENCE if share and self.epochs is None else 0

    def schedule(self) -> rates.Rate:
        return rates.make_rate(self.rate, self.learning_rate, decay=self.decay, power=self.power)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def require_same(self, other: Mapping[str, Any]) -> None:
        """Raise unless another config, saved as JSON, trains alike; epochs, threads and memory may differ."""
        mine = self.to_dict()
        if self.validation is None and not other.get("validation"):
            mine["validation"] = other.get("validation")  # the checkpoint goes on with the rows that it has held out
        other = {"patience": 0, "tolerance": self.tolerance, **other}  # earlier versions never stopped early
        names = (f.name for f in fields(self) if f.name not in ("epochs", "threads", "memory"))
        require_same_options(mine, other, names)


RATINGS, HELD = "ratings.bin", "held.bin"
_FAR_OFF = 1.03
"""Spreads of the ratings that the first epoch errs by where its steps are too large."""


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
        memory, raised = model_memory(config.memory, config.rank, users=layout.users, items=layout.items)
        if raised is not None:
            self._job.stream.emit(Warned(raised))
        self._parts = Shares.of(memory)
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
        return tuple(name for name in self._files if name != "training")

    @property
    def usage(self) -> Usage:
        """What was read of ratings, and read and written of pages."""
        store = self._trainer.pool.store
        return Usage(store.bytes_read + store.bytes_written + self._ratings_read)

    def run_epoch(self, epoch: int, on_rows: OnRows, /) -> EpochStats:
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
                        f" finite, though the ratings are; use a smaller learning rate (try {min(rate / 10, LEARNING_RATE):g}) or a larger l2"
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
        return useless_factors({**self._model.header, "metrics": metrics})

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Write all pages, and return what names them as good, with how the model was made."""
        names = ("kind", "roles", "layout", "rows", "mean", "spread")
        return self._written().arrays(), {name: self._model.header[name] for name in names}

    def saved(self) -> None:
        """Let pages of the checkpoint before be written over."""
        self._trainer.pool.store.committed()

    def model(self, progress: Progress, metrics: dict[str, Any], /) -> FactorModel:
        saved, header = read_state(self.checkpoint.place, kind="factor")
        return replace(self._model, header=header, saved=saved)

    def _written(self) -> PageStore:
        pool = self._trainer.pool
        pool.flush()
        pool.store.sync()
        return pool.store

    def _new_model(self, share: float) -> FactorModel:
        """Scan the data and begin a new model."""
        job, place = self._job, self.checkpoint.place
        result = scan_ratings(job.source, self.roles, part=self._part(share), stream=job.stream)
        users, items = len(result.users), len(result.items)
        memory, _ = model_memory(job.config.memory, job.config.rank, users=users, items=items)
        layout = planned(job.config.rank, users, items, memory=memory)
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
