"""One training job: a source, a learner, a config, and everything between them and a model.

The `Job` holds rows out, runs epochs until they are all made or no longer help, measures, remembers the best epoch, writes
checkpoints and goes on from them, and says where the model is useless. How weights are kept and changed is the `Learner`'s:
linear models in memory (`penstock.training`), on disk and matrix factorizations (`penstock.bigmodel`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.checkpoint import Checkpoint, CheckpointStore, held_out_share, require_same_data, require_same_test
from penstock.errors import UsageError
from penstock.events import Advanced, Epoch, Finished, Started, Stream, Warned
from penstock.learner import C, Learner, M_co, Progress
from penstock.loader.holdout import RowSplit, chosen_share
from penstock.measures import Doubles, Measures
from penstock.messages import Given, Name, Text
from penstock.metric_names import finished_figures, poor_probabilities, title
from penstock.sgd.loop import EpochStats


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
            return self._run(self._saved() if resume else None)

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
                stream.emit(Warned(f"the model is useless: {reason}"))
            elif not warned and (reason := poor_probabilities(metrics)) is not None:
                stream.emit(Warned(f"{reason}; smaller steps help, or the ones that are chosen where none are given"))
        return learner.model(progress, metrics)

    def _share(self, rows: int) -> float:
        """Return the share of rows to hold out."""
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
        return metrics | dict(self.learner.facts)

    def _measure(self, split: str, *, finished: bool) -> tuple[EpochStats, dict[str, Any]]:
        """Return the loss and score on the rows of a split, and what the learner's measures come to."""
        began, measures = time.perf_counter(), self.learner.measures(finished=finished)
        stats = self.learner.evaluate(split, partial(add_scores_to, measures) if measures else None)
        self.measure_seconds += time.perf_counter() - began
        return stats, {name: value for each in measures for name, value in each.figures().items()}

    def _save(self, progress: Progress, share: float, metrics: dict[str, Any], *, done: bool) -> None:
        """Write a checkpoint."""
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
