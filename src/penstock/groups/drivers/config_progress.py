"""How far the configs of a group are that is trained step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.groups.patterns.base import Fit, Targets
from penstock.groups.patterns.sequential import Look, Measured, Sequential, State, Trained, fit_of, model_state
from penstock.groups.scale import Scale
from penstock.groups.schedule import Wait
from penstock.sgd.loop import EarlyStopping


@dataclass(slots=True)
class Course:
    """How far the configs of a group are: a value for each."""

    states: list[State | None]
    had: NDArray[np.int64]
    losses: NDArray[np.float64]
    weights: NDArray[np.float64]
    failed: NDArray[np.bool_]
    stopped: NDArray[np.bool_]
    watches: list[EarlyStopping | None]
    best: list[State | None]
    """Where a split group is watched epoch by epoch: the states of the best epochs, from which models are taken."""
    look: Look | None = None
    scale: Scale | None = None
    seconds: float = 0.0
    held: NDArray[np.float64] = field(default_factory=lambda: np.empty((2, 0)))
    models: Floats | None = None
    targets: Targets = field(default_factory=Targets)

    @classmethod
    def of(cls, job: Sequential) -> Course:
        count = job.configs
        return cls(
            [None] * count,
            np.zeros(count, np.int64),
            np.full(count, np.nan),
            np.full(count, np.nan),
            np.zeros(count, bool),
            np.zeros(count, bool),
            [job.watch(config) for config in range(count)],
            [None] * count,
            held=np.full((2, count), np.nan),
        )

    def taken(self, configs: Sequence[int]) -> list[State] | None:
        """Return the states of configs; None where they have none yet."""
        found = [state for config in configs if (state := self.states[config]) is not None]
        return found or None

    def model_states(self, configs: Sequence[int]) -> list[State] | None:
        """Return the states that the models of configs are taken from; None where they have none yet."""
        found = [self.best[config] or self.states[config] for config in configs]
        return [model_state(state) for state in found if state is not None] or None

    def left(self, goal: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Say which configs have not come to their goal, and still can."""
        return (self.had < goal) & ~self.failed & ~self.stopped

    def went(self, configs: NDArray[np.int64], found: Trained) -> None:
        """Take in how far configs came by epochs over the whole group."""
        self.losses[configs], self.weights[configs] = found.losses, found.weights
        self.had[configs], self.stopped[configs] = found.epochs, found.stopped

    def arrived(self, configs: NDArray[np.int64], found: Trained) -> None:
        """Take in the states that configs came back with."""
        self.failed[configs] |= found.failed
        for config, state in zip(configs.tolist(), found.states, strict=True):
            self.states[config] = state

    def keep(self, configs: Sequence[int], models: Floats) -> None:
        """Keep the numbers of some configs' models; shorter ones, of smaller modules, end in zeros."""
        rows = len(models) if self.models is None else max(len(models), len(self.models))
        if self.models is None or len(self.models) < rows:
            had, self.models = self.models, np.full((rows, len(self.had)), np.nan, np.float32)
            if had is not None:
                self.models[: len(had)] = had
                self.models[len(had) :, np.isfinite(had).all(axis=0)] = 0.0
        self.models[:, configs] = 0.0
        self.models[: len(models), configs] = models

    def watch(self, config: int) -> None:
        """Note the loss of a config that has just been measured, and whether its patience has come to its end."""
        watch = self.watches[config]
        if watch is not None:
            loss = float(self.standing[config])
            self.watches[config] = watch = watch.after(loss)
            self.stopped[config] = watch.stop
            if loss <= watch.least:
                self.best[config] = self.states[config]

    @property
    def standing(self) -> NDArray[np.float64]:
        """The mean loss of each config that it is compared by: on the rows to choose by, or in training where there are none."""
        weight = self.targets.selection_weight
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.held[0] / weight if weight else self.losses / self.weights

    def fit(self, job: Sequential, group: int, *, given_up: NDArray[np.bool_] | None = None) -> Fit:
        """Put together what came of the group."""
        found = Trained(
            self.seconds,
            losses=self.losses,
            weights=self.weights,
            failed=self.failed,
            epochs=self.had,
            stopped=self.stopped,
        )
        assert self.models is not None
        measured = Measured(self.held[0], self.held[1], self.models, self.targets, 0.0)
        return fit_of(job, group, self.targets, found, measured, seconds=self.seconds, given_up=given_up)


@dataclass(slots=True)
class PartialMeasures:
    """Configs of a group that are being measured, part by part."""

    configs: list[int]
    missing: int
    wait: Wait | None
    """What goes on with the config when this is over; None where it has come to its goal."""
    sums: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """Of each part: losses, and right answers or squared errors."""
