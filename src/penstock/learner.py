"""What a job (`penstock.job`) and what it trains know of each other: the protocol of learners, and how far training has come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from numpy.typing import NDArray

from penstock.checkpoint import Checkpoint
from penstock.events import Epoch
from penstock.measures import Measures, OnScores
from penstock.metric_names import deciding_loss
from penstock.sgd.loop import EarlyStopping, EpochStats

if TYPE_CHECKING:
    from penstock.job import Job

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
