"""The sequential pattern: what learns from rows one after another, and so is at one place at a time.

A `Learner` is some configs of a group that learn from the same rows; all that its training depends on can be taken out of
it and put into another, so that configs hop between the workers that hold the parts of a group, and go on to the last bit
as if all parts had lain in one place.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.class_weights import ClassWeighting
from penstock.groups.executor import Make
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.base import NOT_FINITE, Divided, Doubles, Fit, Refit, Targets, WeighedJob, Worker, weighed
from penstock.groups.patterns.row_order import Shuffled, require_ordered
from penstock.groups.scale import Moments, Scale, dense_width_of
from penstock.groups.split import SELECTION, Split
from penstock.sgd import terms
from penstock.sgd.loop import EarlyStopping

State = dict[str, NDArray[Any]]
"""All that the training of a config depends on; names that begin with ``best.`` are of the epoch that did best so far."""
_BEST = "best."


class GroupLearner(Protocol):
    """Some configs of a group, learning from the same rows."""

    def learn(self, batch: Batch, epoch: int) -> None:
        """Learn from rows, in their order."""

    def end_epoch(self) -> None:
        """Do what is to be done once for each epoch."""

    def take_losses(self) -> tuple[Doubles, Doubles]:
        """Return sums of the losses of rows learnt from since this was last asked, each as scored before it was learnt
        from, and of the rows' weights; a value for each config."""

    def measure(self, batch: Batch) -> tuple[Doubles, Doubles]:
        """Return sums of losses, and of right answers or squared errors, without learning; a value for each config."""

    def states(self) -> list[State]:
        """Return all that the training of each config depends on."""

    def failed(self) -> NDArray[np.bool_]:
        """Say which configs' weights are no longer finite; they disturb none of the others."""

    def weights(self) -> Floats:
        """Return the numbers of each config's model, float32 (numbers, configs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential(WeighedJob):
    """What is to be learnt of every group, row by row.

    Attributes
    ----------
    stops : tuple
        The patience, or None, and the tolerance of each config. It is stopped when its loss on the rows to choose by (or in training,
        where there are none) has not fallen by the tolerance for as many epochs; its model is that of the best epoch.
    class_weighting : ClassWeighting, optional
        How much rows count by their class, within each group.
    standardize, shift : bool
        Bring features to spread 1 within each group, and to mean 0 where they may be shifted.
    shuffle, memory
        The order of rows, and the bytes that a window of them may take.
    """

    pattern: ClassVar[str] = "sequential"
    folder: str
    loss: str
    epochs: NDArray[np.int64]
    stops: tuple[tuple[int | None, float], ...]
    validation: float = 0.0
    seed: int = 0
    standardize: bool = False
    shift: bool = True
    shuffle: str = "corgipile"
    memory: int = 64 << 20
    class_weighting: ClassWeighting | None = None

    def __post_init__(self) -> None:
        require_ordered(self.shuffle)

    @property
    def configs(self) -> int:
        return len(self.epochs)

    @property
    def split(self) -> Split:
        patient = any(self.watch(config) is not None for config in range(self.configs))
        return Split.of(self.validation, self.seed, chooses=self.configs > 1 or patient)

    def make(self) -> Make:
        return partial(SequentialWorker, self)

    def watch(self, config: int) -> EarlyStopping | None:
        """Return what says when a config has stopped falling, if anything does."""
        patience, tolerance = self.stops[config]
        return None if patience is None else EarlyStopping(patience, tolerance)

    def only(self, configs: Sequence[int]) -> Self:
        return replace(self, epochs=self.epochs[list(configs)], stops=tuple(self.stops[config] for config in configs))

    def refit(self, refit: Refit) -> Self:
        only = self.only([refit.config])
        return replace(only, validation=0.0, epochs=np.array([refit.epochs]), stops=((None, 0.0),))

    def learner(
        self,
        grouped: Grouped,
        group: int,
        *,
        targets: Targets,
        configs: Sequence[int],
        states: Sequence[State] | None,
    ) -> GroupLearner:
        """Make a learner of some configs of a group with such targets, at the beginning or where states were taken."""
        raise NotImplementedError

    def stored(self, weights: Floats, scale: Scale | None) -> Floats:
        """Return a model's numbers as they are kept, for features as they are."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Look:
    """What the rows of a group are like."""

    targets: Targets
    moments: Moments
    finite: bool

    def __add__(self, other: Look) -> Look:
        return Look(self.targets + other.targets, self.moments + other.moments, self.finite and other.finite)

    def flaw(self, loss: str) -> str:
        """Say why nothing can be learnt from these rows, if so."""
        return self.targets.flaw(loss) or ("" if self.finite else NOT_FINITE)


@dataclass(frozen=True, slots=True)
class Trained:
    """What training came to: a value for each config. ``reason`` says why a group cannot be trained at all."""

    seconds: float
    reason: str = ""
    states: tuple[State, ...] = ()
    losses: Doubles = field(default_factory=lambda: np.empty(0))
    weights: Doubles = field(default_factory=lambda: np.empty(0))
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    epochs: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Epochs that each has had in all; fewer than were asked for where its patience came to an end."""
    stopped: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))


@dataclass(frozen=True, slots=True)
class Measured:
    """Sums over the rows to choose by: a value for each config; of whole groups, also what their rows are like."""

    losses: Doubles
    right: Doubles
    models: Floats
    targets: Targets
    seconds: float


class SequentialWorker(Worker):
    """Trains configs on parts of groups, or on whole ones."""

    def __init__(self, job: Sequential, grouped: Grouped | None = None) -> None:
        super().__init__(job.folder, job.split, grouped)
        self.job: Sequential = job
        self._shuffled = Shuffled(self, job.shuffle, job.memory, job.seed)
        self._looks: dict[int, Look] = {}

    def look(self, group: int, first: int, rows: int) -> Look:
        width = self.grouped.width if self.job.standardize else 0
        found, dense = Look(Targets(), Moments.none(width), True), dense_width_of(self.grouped.recipe)
        for batch, part in self.rows(group, first, rows):
            moments = Moments.of(batch, part, dense=dense) if self.job.standardize else Moments.none(0)
            finite = bool(np.isfinite(batch.x.values if isinstance(batch.x, Csr) else batch.x).all())
            found += Look(Targets.of_parts([(batch, part)], classes=self.job.counted_classes), moments, finite)
        return found

    def solve(self, group: int) -> Fit:
        began = time.perf_counter()
        rows, configs = self.grouped.size(group), list(range(self.job.configs))
        look = self._look(group)
        targets, flaw = look.targets, look.flaw(self.job.loss)
        if flaw:
            return Fit(group, targets, time.perf_counter() - began, flaw)
        found = self.train(
            group, 0, rows, configs, None, None, targets, np.zeros(len(configs), np.int64), self.job.epochs, True
        )
        states = list(map(model_state, found.states))
        measured = self.measure(group, 0, rows, configs, states, None, None)
        return fit_of(self.job, group, targets, found, measured, seconds=time.perf_counter() - began)

    def train(
        self,
        group: int,
        first: int,
        rows: int,
        configs: list[int],
        states: Sequence[State] | None,
        scale: Scale | None,
        targets: Targets | None,
        had: NDArray[np.int64],
        until: NDArray[np.int64],
        ends: bool,
    ) -> Trained:
        """Train some configs on a part of a group, each from the epochs it has had to those it is to have.

        ``scale`` and ``targets`` are those of the group where this is not the whole of it, and ``ends`` says whether an
        epoch ends with this part. Only on whole groups can there be several epochs, and patience.
        """
        began = time.perf_counter()
        whole = rows == self.grouped.size(group)
        if whole:
            flaw = self._look(group).flaw(self.job.loss)
            if flaw:
                return Trained(time.perf_counter() - began, flaw)
            scale, targets = self._scale(group), self._look(group).targets
        assert targets is not None
        classes = self.job.class_weights(targets)
        kept: list[State | None] = list(states) if states is not None else [None] * len(configs)
        at, losses, weights = had.copy(), np.zeros(len(configs)), np.zeros(len(configs))
        failed, stopped = np.zeros(len(configs), bool), np.zeros(len(configs), bool)
        watches = [_watch(self.job.watch(config), state) for config, state in zip(configs, kept, strict=True)]
        best = [None if state is None else _best(state) for state in kept]
        # Configs that are at the same epoch learn from the same rows; those that are behind others go first.
        while (left := (at < until) & ~failed & ~stopped).any():
            epoch = int(at[left].min())
            here = np.flatnonzero(left & (at == epoch))
            last = int(min(until[here].min(), *at[left & (at > epoch)], until.max()))
            learner = self._learner(group, targets, configs, kept, here)
            for now in range(epoch, last):
                for batch in self._shuffled.windows(
                    group, first, rows, now, scale=scale, mean_weight=targets.mean_weight, class_weights=classes
                ):
                    learner.learn(batch, now)
                if ends:
                    learner.end_epoch()
                losses[here], weights[here] = learner.take_losses()
                at[here] += 1
                failed[here] = learner.failed()
                if whole and any(watches[place] is not None for place in here.tolist()):
                    mean = losses / np.maximum(weights, 1e-300)
                    stopped[here] |= self._watched(group, learner, here, watches, mean, best)
                if (failed | stopped)[here].any():
                    break
            for place, state in zip(here.tolist(), learner.states(), strict=True):
                kept[place] = state
        for each, watch, found_best in zip(kept, watches, best, strict=True):
            if watch is not None and each is not None:
                each["watch"] = np.array([watch.best, watch.waited, watch.least])
                each |= {f"{_BEST}{name}": array for name, array in (found_best or {}).items()}
        found = tuple(state for state in kept if state is not None)
        return Trained(time.perf_counter() - began, "", found, losses, weights, failed, at, stopped)

    def advance(
        self,
        group: int,
        configs: list[int],
        states: Sequence[State] | None,
        had: NDArray[np.int64],
        until: NDArray[np.int64],
    ) -> tuple[Trained, Measured | None]:
        """Train some configs of a whole group from the epochs they have had to others, and measure them."""
        rows = self.grouped.size(group)
        found = self.train(group, 0, rows, configs, states, None, None, had, until, True)
        states = list(map(model_state, found.states))
        measured = None if found.reason else self.measure(group, 0, rows, configs, states, None, None)
        return found, measured

    def measure(
        self,
        group: int,
        first: int,
        rows: int,
        configs: list[int],
        states: Sequence[State],
        scale: Scale | None,
        targets: Targets | None,
    ) -> Measured:
        """Measure some configs on the rows to choose by of a part of a group, and take their models out.

        ``scale`` and ``targets`` are those of the group where this is not the whole of it.
        """
        began = time.perf_counter()
        if rows == self.grouped.size(group):
            targets, scale = self._look(group).targets, self._scale(group)
        assert targets is not None
        learner = self.job.learner(self.grouped, group, targets=targets, configs=configs, states=states)
        parts = weighed(self.rows(group, first, rows), self.job.class_weights(targets))
        losses, right = self._measured(learner, len(configs), parts, scale)
        models = self.job.stored(learner.weights(), scale)
        return Measured(losses, right, models, targets, time.perf_counter() - began)

    def _measured(
        self, learner: GroupLearner, configs: int, parts: Iterable[Divided], scale: Scale | None
    ) -> tuple[Doubles, Doubles]:
        losses, right = np.zeros(configs), np.zeros(configs)
        for batch, part in parts:
            if part is None or not (part == SELECTION).any():
                continue
            aside = batch.take(np.flatnonzero(part == SELECTION))
            if scale is not None:
                aside = replace(aside, x=scale.rows(aside.x))
            more, better = learner.measure(aside)
            losses, right = losses + more, right + better
        return losses, right

    def _watched(
        self,
        group: int,
        learner: GroupLearner,
        here: NDArray[np.int64],
        watches: list[EarlyStopping | None],
        training: Doubles,
        best: list[State | None],
    ) -> NDArray[np.bool_]:
        """Note the losses after an epoch over a whole group, keep the best states, and say whose patience has come to its end."""
        losses, targets = training[here], self._look(group).targets
        if targets.selection_weight:
            parts = weighed(self.rows(group), self.job.class_weights(targets))
            sums, _ = self._measured(learner, len(here), parts, self._scale(group))
            losses = sums / targets.selection_weight
        over, states = np.zeros(len(here), bool), None
        for at, (place, loss) in enumerate(zip(here.tolist(), losses.tolist(), strict=True)):
            watch = watches[place]
            if watch is not None:
                watches[place] = watch = watch.after(loss)
                over[at] = watch.stop
                if loss <= watch.least:
                    states = learner.states() if states is None else states
                    best[place] = {name: array.copy() for name, array in states[at].items()}
        return over

    def _learner(
        self, group: int, targets: Targets, configs: list[int], states: list[State | None], here: NDArray[np.int64]
    ) -> GroupLearner:
        taken = [states[place] for place in here.tolist()]
        given = None if taken[0] is None else [_now(state) for state in taken if state is not None]
        chosen = [configs[place] for place in here.tolist()]
        return self.job.learner(self.grouped, group, targets=targets, configs=chosen, states=given)

    def _look(self, group: int) -> Look:
        """Look at a whole group, once."""
        if group not in self._looks:
            self._looks.clear()  # one at a time: turns of a group follow one another
            look = self.look(group, 0, self.grouped.size(group))
            self._looks[group] = replace(look, targets=look.targets.weighed(self.job.class_weights(look.targets)))
        return self._looks[group]

    def _scale(self, group: int) -> Scale | None:
        return scale_of(self.job, self._look(group), self.grouped)


def scale_of(job: Sequential, look: Look, grouped: Grouped) -> Scale | None:
    """Return the scale that a group's features are brought to, if they are."""
    if not job.standardize:
        return None
    return Scale.for_recipe(look.moments, grouped.recipe, shift=job.shift)


def fit_of(
    job: Sequential,
    group: int,
    targets: Targets,
    found: Trained,
    measured: Measured,
    *,
    seconds: float,
    given_up: NDArray[np.bool_] | None = None,
) -> Fit:
    """Put together what came of a group, from the sums of its last epochs and those over the rows to choose by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = found.losses / found.weights
    failed = found.failed | ~np.isfinite(mean)
    if given_up is not None:
        failed &= ~given_up | found.failed  # some were not begun at all
    status = np.where(failed, terms.FAILED, np.where(found.stopped, terms.CONVERGED, terms.SPENT))
    figures = (mean, measured.losses, measured.right, found.epochs, status)
    models = measured.models if given_up is None else np.where(given_up, np.float32(np.nan), measured.models)
    fit = Fit.of(group, targets, job.loss, weights=models, figures=figures, seconds=seconds)
    return fit if given_up is None else replace(fit, given_up=given_up)


def _watch(watch: EarlyStopping | None, state: State | None) -> EarlyStopping | None:
    """Go on watching where a state was taken."""
    if watch is None or state is None or "watch" not in state:
        return watch
    best, waited, least = state["watch"].tolist()
    return replace(watch, best=best, waited=int(waited), least=least)


def model_state(state: State) -> State:
    """Return the state that a config's model is taken from: the best epoch's, where that is known."""
    return _best(state) or _now(state)


def _best(state: State) -> State:
    return {name.removeprefix(_BEST): array for name, array in state.items() if name.startswith(_BEST)}


def _now(state: State) -> State:
    return {name: array for name, array in state.items() if not name.startswith(_BEST)}
