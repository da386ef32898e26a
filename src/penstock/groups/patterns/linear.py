"""The linear models of Penstock for every group: by sums over all rows, or by SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.budget import parse_size
from penstock.config import LOSSES, Config
from penstock.errors import UsageError
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.algebraic import SOLVERS, Algebraic
from penstock.groups.patterns.base import Doubles, Job
from penstock.groups.patterns.sequential import Sequential, State
from penstock.groups.scale import Scale
from penstock.groups.spec import LINEAR, Parameter
from penstock.sgd import kernels, losses
from penstock.sgd.loop import EarlyStopping, Spec
from penstock.sgd.model import Weights
from penstock.sgd.scalar import HITS

_WINDOW = 8
"""The memory that is given is shared by as many things: windows, what they are gathered from, workers."""
SGD: Mapping[str, Parameter] = {
    **LINEAR,
    "patience": Parameter("int", least=1),
    "batch_size": Parameter("int", least=1),
    "decay": Parameter("number", least=0, most=1, above=True),
    "power": Parameter("number", least=0),
}
"""What can be searched of linear models that learn by SGD."""


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A linear model to be trained for every group.

    Examples
    --------
    >>> LinearModel(Config(model="svm")).kind, sorted(LinearModel(Config(solver="gd")).known)
    ('svm', ['epochs', 'l1', 'l2', 'learning_rate', 'tolerance'])
    """

    config: Config

    @property
    def kind(self) -> str:
        return self.config.model

    @property
    def family(self) -> str:
        return "linear"

    @property
    def known(self) -> Mapping[str, Parameter]:
        return SGD if self.config.solver == "sgd" else LINEAR

    def fixed(self) -> dict[str, Any]:
        return self.config.to_dict()

    def job(self, grouped: Grouped, choices: Sequence[Mapping[str, Any]], *, validation: float) -> Job:
        config = self.config
        require_linear(config)
        if config.solver in SOLVERS:
            return _algebraic(config, str(grouped.folder), choices, validation)
        each = [replace(config, **choice) for choice in choices]
        return LinearSgd(
            folder=str(grouped.folder),
            loss=LOSSES[config.model],
            epochs=np.array([one.epochs for one in each], np.int64),
            validation=validation,
            seed=config.seed,
            standardize=bool(config.standardize),
            shift=config.intercept,
            shuffle=config.shuffle,
            memory=parse_size(config.memory, option="memory") // _WINDOW,
            specs=tuple(one.spec() for one in each),
            stops=tuple((one.patience, one.tolerance) for one in each),
        )


def require_linear(config: Config) -> None:
    """Raise `UsageError` unless a config can be trained for groups."""
    if config.model == "softmax":
        raise UsageError(
            "softmax is not there for groups; use LogisticRegression on two classes, Boosting(objective='multiclass') or"
            " TorchModel(loss='softmax')"
        )
    if config.epochs < 1:
        raise UsageError(f"epochs={config.epochs} trains nothing; choose 1 or more")


def _algebraic(config: Config, folder: str, choices: Sequence[Mapping[str, Any]], validation: float) -> Algebraic:
    own = {"l1": config.l1, "l2": config.l2, "learning_rate": config.first_rate}
    own |= {"epochs": config.epochs, "tolerance": config.tolerance}
    merged = [{**own, **choice} for choice in choices]
    values = {name: np.array([each[name] for each in merged], np.float64) for name in own}
    return Algebraic(
        folder,
        loss=LOSSES[config.model],
        solver=config.solver,
        l1=values["l1"],
        l2=values["l2"],
        rate=values["learning_rate"],
        epochs=values["epochs"].astype(np.int64),
        tolerance=values["tolerance"],
        validation=validation,
        seed=config.seed,
        intercept=config.intercept,
        standardize=bool(config.standardize),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSgd(Sequential):
    """Linear models by SGD; ``specs`` has what is to be learnt and how, and ``stops`` patience and tolerance, of each config."""

    specs: tuple[Spec, ...]
    stops: tuple[tuple[int | None, float], ...]

    def only(self, configs: Sequence[int]) -> LinearSgd:
        specs, stops = zip(*((self.specs[config], self.stops[config]) for config in configs), strict=True)
        return replace(Sequential.only(self, configs), specs=specs, stops=stops)

    def watch(self, config: int) -> EarlyStopping | None:
        patience, tolerance = self.stops[config]
        return None if patience is None else EarlyStopping(patience, tolerance)

    def learner(
        self, grouped: Grouped, group: int, *, configs: Sequence[int], states: Sequence[State] | None
    ) -> LinearLearner:
        return LinearLearner([self.specs[config] for config in configs], grouped.width, states=states)

    def stored(self, weights: Floats, scale: Scale | None) -> Floats:
        return weights if scale is None else scale.raw(weights.astype(np.float64)).astype(np.float32)


class LinearLearner:
    """Linear models that learn from the same rows, each as if it were alone."""

    def __init__(self, specs: Sequence[Spec], width: int, *, states: Sequence[State] | None = None) -> None:
        self._specs = specs
        self._models = (
            [Weights.zeros(width) for _ in specs]
            if states is None
            else [Weights.from_arrays(state) for state in states]
        )
        self._loss = losses.named(specs[0].loss)
        self._totals = [kernels.Totals() for _ in specs]
        self._failed = np.array([not model.is_finite() for model in self._models])

    def learn(self, batch: Batch, epoch: int) -> None:
        for place, (spec, model) in enumerate(zip(self._specs, self._models, strict=True)):
            if self._failed[place]:
                continue
            base, power = spec.rate.native(epoch)
            step = kernels.Step(self._loss, base, power, spec.batch_size, spec.l1, spec.l2, spec.intercept)
            self._failed[place] = kernels.train(batch, model, step=step, totals=self._totals[place]) >= 0

    def end_epoch(self) -> None:
        for model in self._models:
            model.settle()

    def take_losses(self) -> tuple[Doubles, Doubles]:
        weights = np.array([totals.weight for totals in self._totals])
        sums = np.array([totals.loss() for totals in self._totals]) * weights
        self._totals = [kernels.Totals() for _ in self._specs]
        return sums, weights

    def measure(self, batch: Batch) -> tuple[Doubles, Doubles]:
        found, right = np.full(len(self._specs), np.nan), np.full(len(self._specs), np.nan)
        for place, model in enumerate(self._models):
            totals = kernels.Totals()
            paid = model.settled()
            if paid.is_finite() and kernels.measure(batch, paid, loss=self._loss, totals=totals) < 0:
                found[place] = totals.loss() * totals.weight
                hits = totals.sums[HITS]
                right[place] = hits if self._loss.metric == "accuracy" else 2 * found[place]
        return found, right

    def states(self) -> list[State]:
        return [model.arrays() for model in self._models]

    def failed(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._failed | np.array([not model.is_finite() for model in self._models])
        return found

    def weights(self) -> Floats:
        paid = [model.settled() for model in self._models]
        return np.stack([np.concatenate([model.coef[0], model.intercept]) for model in paid], axis=1)
