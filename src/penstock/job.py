"""One training job: a source, a learner, a config, and everything between them and a model.

The `Job` holds rows out, runs epochs until they are all made or no longer help, measures, remembers the best epoch, writes
checkpoints and goes on from them, and says where the model is useless. How weights are kept and changed is the `Learner`'s:
linear models in memory (`penstock.training`), on disk and matrix factorizations (`penstock.bigmodel`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.checkpoint import Checkpoint, CheckpointStore, held_out_share, require_same_data, require_same_test
from penstock.errors import DivergedError, UsageError
from penstock.events import Advanced, Epoch, Finished, Started, Stream, Warned
from penstock.loader.holdout import RowSplit, chosen_share
from penstock.measures import Doubles, Measures, OnScores
from penstock.messages import Command, Given, Name, Text
from penstock.metric_names import (
    codes_advice,
    deciding_loss,
    finished_figures,
    perfect_score,
    poor_probabilities,
    title,
)
from penstock.sgd.loop import EarlyStopping, EpochStats

C = TypeVar("C", bound="JobConfig")
M_co = TypeVar("M_co", covariant=True)

OnRows = Callable[[int, str], None]
"""Hears how many more rows were learned from, and the figures of the epoch so far."""


class JobConfig(Protocol):
    """What a job has to know of hyper-parameters."""

    @property
    def epochs(self) -> int | None: ...
    @property
    def patience(self) -> int | None: ...
    @property
    def validation(self) -> float | None: ...

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""

    def require_same(self, other: dict[str, Any], /) -> None:
        """Raise unless another config, saved as JSON, trains alike."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When training ends.

    Attributes
    ----------
    rows : int
        Rows to learn from in an epoch.
    epochs : int
        The most epochs.
    patience : int
        Epochs without improvement after which to stop, 0 for never.
    tolerance, noise : float
        Those of `penstock.sgd.loop.EarlyStopping`.
    """

    rows: int
    epochs: int
    patience: int
    tolerance: float
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes read so far, seconds spent on shuffled copies, and the disk space that these take."""

    bytes: int
    prepare_seconds: float = 0.0
    disk_bytes: int = 0


class Learner(Protocol[C, M_co]):
    """What a job trains: weights, and the rows they are learned from.

    A job calls `check`, `require_same` where it goes on from a checkpoint, `prepare`, `start`, and then for each epoch `run_epoch`,
    `evaluate`, `keep_best` where none before was better, and `state`; at the end `use_best`, `evaluate` and `model`.
    """

    stops_on_test: ClassVar[bool]
    """Whether early stopping watches a test set where there is one, rather than rows held out."""
    measured_at_end: ClassVar[bool]
    """Whether the finished model is measured again, by more measures than epochs are."""
    saves_start: ClassVar[bool]
    """Whether a checkpoint is written before the first epoch, so that what comes before need not be done again."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The rows there are to measure on, of ``"held_out"`` and ``"test"``."""

    @property
    def converged(self) -> bool:
        """Whether more epochs would change nothing."""

    @property
    def usage(self) -> Usage:
        """What training has cost so far."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Figures of the model that need no measuring."""

    def check(self, job: Job[C, Any], /) -> None:
        """Refuse what cannot be learned, before anything is read or written."""

    def require_same(self, saved: Checkpoint, /) -> dict[str, Any]:
        """Raise where a checkpoint does not fit what only this learner knows; return its config."""

    def prepare(self, saved: Checkpoint | None, /) -> int:
        """Find out what has to be known of the data first; return the number of rows."""

    def start(self, share: float, saved: Checkpoint | None, stack: ExitStack, /) -> Limits:
        """Open rows and weights, less the share held out; ``stack`` closes them when the last epoch has been measured."""

    def run_epoch(self, epoch: int, on_rows: OnRows, /) -> EpochStats:
        """Learn from all rows once."""

    def warnings(self, event: Epoch, /, *, last: bool) -> Iterable[str]:
        """Yield what is wrong after an epoch."""

    def evaluate(self, split: str, on_scores: OnScores | None, /) -> EpochStats:
        """Measure on the rows of a split, or on a sample of the ``"training"`` rows."""

    def measures(self, *, finished: bool) -> list[Measures]:
        """Return new measures, beside loss and score, for an epoch or for the finished model."""

    def keep_best(self) -> None:
        """Keep the weights as they are now: none before were better."""

    def use_best(self) -> None:
        """Take the weights that were kept, or else the last ones, for those of the model; learning is over."""

    def useless(self, metrics: Mapping[str, Any], /) -> str | None:
        """Say why the model is no better than a constant prediction; None where it is better."""

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return what a checkpoint needs beside the job's own: arrays, and values for its header."""

    def saved(self) -> None:
        """Hear that a checkpoint of the state is complete."""

    def model(self, progress: Progress, metrics: dict[str, Any], /) -> M_co:
        """Return the model."""


@dataclass(slots=True)
class Progress:
    """How far training has come."""

    watch: EarlyStopping
    stopping: bool
    history: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int = 0
    """The number of epochs that the best weights have learned for; 0 where the last ones are taken."""

    @classmethod
    def start(cls, patience: int, tolerance: float, *, noise: float = 0.0) -> Self:
        """Begin; training stops after ``patience`` epochs without improvement, 0 for never."""
        return cls(EarlyStopping(patience or 1, tolerance, noise), patience > 0)

    def restore(self, header: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.history = list(header["history"])
        self.best_epoch = int(header.get("best_epoch", 0))
        for row in self.history:
            self._watch(row)

    def header(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        watch = {name: getattr(self.watch, name) for name in ("best", "best_training", "waited")}
        return {"history": self.history, "watch": watch, "best_epoch": self.best_epoch}

    @property
    def epoch(self) -> int:
        """The number of epochs made."""
        return len(self.history)

    @property
    def stop(self) -> bool:
        """Whether the held-out loss has not fallen for as many epochs as patience allows."""
        return self.stopping and self.watch.stop

    @property
    def model_row(self) -> dict[str, Any]:
        """The figures of the epoch whose weights the model takes, the best one or the last."""
        return self.history[(self.best_epoch or self.epoch) - 1] if self.history else {}

    def record(self, event: Epoch) -> bool:
        """Take note of an epoch; return whether its weights are to be kept as the best so far."""
        row = event.row()
        self.history.append(row)
        # Best weights that a checkpoint has are replaced by better ones also where this run does not stop early.
        if not (self.stopping or self.best_epoch):
            return False
        best = self.watch.matches(deciding_loss(row), min(map(deciding_loss, self.history)))
        if best:
            self.best_epoch = self.epoch
        self._watch(row)
        return best

    def _watch(self, row: Mapping[str, Any]) -> None:
        self.watch = self.watch.after(deciding_loss(row), row["progressive_loss"])


@dataclass(slots=True)
class Job(Generic[C, M_co]):
    """A training job; `run` trains.

    Attributes
    ----------
    source : BlockSource
        The rows.
    learner : Learner
        What is trained.
    config : Config or FactorConfig
        Hyper-parameters.
    test : BlockSource, optional
        Rows that are measured after every epoch.
    test_share : float
        Instead: the share of the rows, drawn by chance, that are not learned from but measured so.
    hold_out : bool
        Whether rows are held out where the config leaves it open and there is no test set.
    checkpoint : CheckpointStore, optional
        Where a checkpoint is written after every epoch.
    scan_seconds, prepare_seconds, measure_seconds : float
        What the pass before the first epoch has taken, shuffled copies, and measuring.
    extra_disk_bytes : int
        Disk space of shuffled copies.
    """

    source: BlockSource
    learner: Learner[C, M_co]
    config: C
    test: BlockSource | None = None
    test_share: float = 0.0
    hold_out: bool = True
    checkpoint: CheckpointStore | None = None
    stream: Stream = field(default_factory=Stream)
    scan_seconds: float = field(default=0.0, init=False)
    prepare_seconds: float = field(default=0.0, init=False)
    measure_seconds: float = field(default=0.0, init=False)
    extra_disk_bytes: int = field(default=0, init=False)
    _wrote: bool = field(default=False, init=False)

    def run(self, *, resume: bool = False) -> M_co:
        """Train to the end and return the model; no other process may write the same checkpoint meanwhile."""
        require_test_share(self.test_share, self.test)
        if resume and self.checkpoint is None:
            raise UsageError(
                "needs the checkpoint to go on from", option="resume", value=True, fixes=[Name("checkpoint")]
            )
        self.learner.check(self)
        if self.test is not None and _same_rows(self.test, self.source):
            self.stream.emit(Warned("the test rows are the training rows: their figures say nothing of new rows"))
        with self.checkpoint.reserve() if self.checkpoint is not None else nullcontext():
            try:
                return self._run(self._saved() if resume else None)
            except DivergedError:
                if self._wrote and self.checkpoint is not None:  # to go on from it would end in the same way
                    self.checkpoint.remove()
                raise

    def _saved(self) -> Checkpoint | None:
        """Return the checkpoint to go on from, or None where there is none yet."""
        assert self.checkpoint is not None
        saved = self.checkpoint.read()
        if saved is None:
            where = self.checkpoint.where
            self.stream.emit(Warned(f"there is no checkpoint {where}; training starts from the beginning"))
            return None
        require_same_data(self.source, saved)
        self.config.require_same(self.learner.require_same(saved))
        require_same_test(self.test_share, saved.header)
        return saved

    def _run(self, saved: Checkpoint | None) -> M_co:
        learner, stream = self.learner, self.stream
        began = time.perf_counter()
        rows = learner.prepare(saved)
        self.scan_seconds = time.perf_counter() - began
        with ExitStack() as stack:
            share = self._share(rows) if saved is None else held_out_share(saved.header)
            limits = learner.start(share, saved, stack)
            progress = Progress.start(limits.patience, limits.tolerance, noise=limits.noise)
            if saved is not None:
                progress.restore(saved.header)
                self._note_epochs(progress)
            written = None if saved is None else saved.header.get("metrics")
            if saved is None and learner.saves_start:
                self._save(progress, share, {}, done=False)
            warned = False
            stream.emit(Started("train", limits.rows * (limits.epochs - progress.epoch), "rows"))
            while progress.epoch < limits.epochs and not (progress.stop or learner.converged):
                event = self._epoch(progress.epoch, limits.epochs)
                if progress.record(event):
                    learner.keep_best()
                last = progress.epoch >= limits.epochs
                written = finished_figures(progress.model_row)
                self._save(progress, share, written, done=last or progress.stop)
                stream.emit(event)
                for message in learner.warnings(event, last=last):
                    warned = True
                    stream.emit(Warned(message))
            stream.emit(Finished("train"))
            usage = learner.usage
            self.prepare_seconds, self.extra_disk_bytes = usage.prepare_seconds, usage.disk_bytes
            learner.use_best()
            metrics = self._figures(progress)
            if self.checkpoint is not None and self.checkpoint.is_model and metrics != written:
                self._save(progress, share, metrics, done=True)
            if progress.history and (reason := learner.useless(metrics)) is not None:
                advice = codes_advice(metrics)
                stream.emit(Warned(Text(f"the model is useless: {reason}", "; " if advice else "", advice)))
            elif not warned and (reason := poor_probabilities(metrics)) is not None:
                stream.emit(Warned(f"{reason}; smaller steps help, or the ones that are chosen where none are given"))
            if (perfect := perfect_score(metrics)) is not None:
                show = Command(("penstock", "show", "MODEL"))
                stream.emit(Warned(Text(perfect, ": see whether a feature tells the label itself (", show, ")")))
        return learner.model(progress, metrics)

    def _share(self, rows: int) -> float:
        stopping = bool(self.config.patience) and not (self.learner.stops_on_test and self.test is not None)
        tested = self.test is not None or self.test_share > 0
        return chosen_share(self.config.validation, rows, tested=tested, stopping=stopping, hold_out=self.hold_out)

    def _note_epochs(self, progress: Progress) -> None:
        if self.config.epochs is not None and progress.epoch > self.config.epochs:
            what, given = f"the checkpoint has {progress.epoch} epochs, more than ", Given("epochs", self.config.epochs)
            self.stream.emit(Warned(Text(what, given, "; the model is that of the checkpoint")))

    def _epoch(self, number: int, limit: int) -> Epoch:
        """Run an epoch, and measure the weights after it."""

        def tell(rows: int, note: str) -> None:
            self.stream.emit(Advanced("train", rows, f"epoch {number + 1}/{limit}  {note}"))

        before, began = self.learner.usage, time.perf_counter()
        stats = self.learner.run_epoch(number, tell)
        after, seconds = self.learner.usage, time.perf_counter() - began
        prepared = after.prepare_seconds - before.prepare_seconds
        event = Epoch(
            epoch=number + 1,
            metric=stats.metric,
            progressive_loss=stats.loss,
            progressive_score=stats.score,
            seconds=seconds - prepared,
            rows=stats.rows,
            bytes=after.bytes - before.bytes,
            prepare_seconds=prepared,
        )
        for split in self.learner.splits:
            stats, figures = self._measure(split, finished=False)
            figures |= {"loss": stats.loss, "score": stats.score}
            figures |= {"rows": stats.rows} if split == "held_out" else {}
            event = replace(event, **{f"{split}_{name}": value for name, value in figures.items()})
        return event

    def _figures(self, progress: Progress) -> dict[str, Any]:
        """Return the figures of the finished model: on rows held out and a test set, else on a sample of the training rows."""
        if not progress.history:
            return {}
        metrics = finished_figures(progress.model_row)
        if self.learner.measured_at_end or not metrics:
            for split in self.learner.splits or ("training",):
                stats, figures = self._measure(split, finished=True)
                figures |= {"loss": stats.loss, stats.metric: stats.score, "rows": stats.rows}
                metrics |= {f"{split}_{name}": value for name, value in figures.items()}
        figures = metrics | dict(self.learner.facts)
        if self.learner.useless(figures) is None:
            figures.pop("few_valued", None)  # which only advises what to do about a useless model
        return figures

    def _measure(self, split: str, *, finished: bool) -> tuple[EpochStats, dict[str, Any]]:
        """Return the loss and score on the rows of a split, and what the learner's measures come to."""
        began, measures = time.perf_counter(), self.learner.measures(finished=finished)
        stats = self.learner.evaluate(split, partial(add_scores_to, measures) if measures else None)
        self.measure_seconds += time.perf_counter() - began
        return stats, {name: value for each in measures for name, value in each.figures().items()}

    def _save(self, progress: Progress, share: float, metrics: dict[str, Any], *, done: bool) -> None:
        if self.checkpoint is None:
            return
        arrays, own = self.learner.state()
        header = {
            "data": self.source.name,
            "config": self.config.to_dict(),
            "fingerprint": self.source.fingerprint,
            "held_out_share": share,
            "test_share": self.test_share,
            **progress.header(),
            "metrics": metrics,
            "done": done,
            **own,
        }
        self.checkpoint.write(arrays, header)
        self._wrote = True
        self.learner.saved()


def add_scores_to(measures: Iterable[Measures], scores: Doubles, labels: Doubles, weights: Doubles) -> None:
    """Have several measures take in rows."""
    for each in measures:
        each.add(scores, labels, weights)


def _same_rows(test: BlockSource, source: BlockSource) -> bool:
    """Whether a test set is the training data; fingerprints, which may take a pass, are compared where blocks are alike."""
    return np.array_equal(test.block_rows, source.block_rows) and test.fingerprint == source.fingerprint


def require_test_share(share: float, test: BlockSource | None) -> None:
    """Raise where a share of the rows cannot be set apart for a test."""
    RowSplit(0, share)
    if share and test is not None:
        raise UsageError(
            "is for data without a test set, and one is given",
            option="test_share",
            value=share,
            fixes=["leave out one of both"],
        )


def progressive_note(stats: EpochStats) -> str:
    """Return what is shown beside the progress bar: an epoch's figures so far."""
    return f"progressive loss {stats.loss:.4f}  {title(f'progressive_{stats.metric}')} {stats.score:.4f}"
