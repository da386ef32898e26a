"""The linear models of Penstock for every group: by sums over all rows, or by SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.budget import parse_size
from penstock.class_weights import ClassWeighting
from penstock.columns.recipe import Recipe
from penstock.config import Config
from penstock.errors import UsageError
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.algebraic import SOLVERS, Algebraic
from penstock.groups.patterns.base import Doubles, GroupJob, Targets
from penstock.groups.patterns.sequential import Sequential, State
from penstock.groups.scale import Scale
from penstock.groups.search_space import LINEAR, Parameter
from penstock.messages import Given
from penstock.sgd import kernels, losses
from penstock.sgd.loop import Spec
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
_OF_SGD = {"learning_rate", "patience", "batch_size", "decay", "power"}
"""What is searched of SGD alone; full passes have a learning rate too, but are hardly changed by it."""


@dataclass(frozen=True, slots=True)
class GroupedLinear:
    """A linear model to be trained for every group.

    Examples
    --------
    >>> GroupedLinear(Config(model="svm")).kind, sorted(GroupedLinear(Config(solver="gd")).known)
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
        return SGD if self.config.solver in ("auto", "sgd") else LINEAR

    def fixed(self) -> dict[str, Any]:
        return self.config.to_dict()

    def resolve(self, recipe: Recipe, choices: Sequence[Mapping[str, Any]]) -> GroupedLinear:
        """Return the model with a solver, and with the softmax loss where a label of `logistic` has more than two classes.

        A group's rows are passed over in memory, so that whatever its size full passes are cheap: without an option of SGD,
        given or searched, least squares is solved exactly and the other losses are minimized by L-BFGS.
        """
        config = self.config
        many = recipe.labels is not None and not recipe.labels.binary
        loss = losses.loss_of(config.model)
        if many and not (loss.several or loss.many or not loss.classifies):
            raise UsageError(
                f"the label {recipe.label!r} is numbered by class, and ",
                Given("model", config.model),
                " tells two apart",
                fixes=[f"group the data anew for {config.model}"],
            )
        if many and loss.several:
            config = replace(config, model=loss.several)
        if config.solver == "auto":
            searched = {name for choice in choices for name in choice}
            l1 = config.l1 or any(choice.get("l1") for choice in choices)
            solver = "exact" if loss.exact and not l1 else "lbfgs"
            once = config.epochs == 1 and solver == "lbfgs"
            if once or config.asks_for_sgd or config.patience or not searched.isdisjoint(_OF_SGD):
                solver = "sgd"
            config = replace(config, solver=solver)
        return replace(self, config=config)

    def job(self, grouped: Grouped, choices: Sequence[Mapping[str, Any]], *, validation: float) -> GroupJob:
        config = self.resolve(grouped.recipe, choices).config
        if config.epoch_limit < 1:
            raise UsageError("trains nothing", option="epochs", value=config.epochs, fixes=["choose 1 or more"])
        each = [replace(config, **choice) for choice in choices]
        labels = grouped.recipe.labels
        outputs = losses.loss_of(config.model).outputs(0 if labels is None else len(labels.classes))
        # With an L1 penalty given, what is left open is no L2 penalty.
        penalties = [one.l2 if one.l2 is not None else 0.0 if one.l1 else np.nan for one in each]
        shared: dict[str, Any] = {
            "folder": str(grouped.folder),
            "loss": losses.loss_of(config.model).name,
            "validation": validation,
            "seed": config.seed,
            "standardize": config.standardize,
            "outputs": outputs,
            "class_weighting": None
            if labels is None
            else ClassWeighting.of(config.class_weight, labels.classes, column=labels.column),
        }
        if config.solver in SOLVERS:
            # Exact solutions take one pass; where a group is too large for one, L-BFGS takes as many as it may by itself.
            limits = [
                replace(one, solver="lbfgs").epoch_limit if config.solver == "exact" else one.epoch_limit
                for one in each
            ]
            return Algebraic(
                solver=config.solver,
                l1=np.array([one.l1 for one in each]),
                l2=np.array(penalties),
                rate=np.array([one.first_rate for one in each]),
                epochs=np.array(limits, np.int64),
                tolerance=np.array([one.tolerance for one in each]),
                intercept=config.intercept,
                **shared,
            )
        return LinearSgd(
            epochs=np.array([one.epoch_limit for one in each], np.int64),
            shift=config.intercept,
            shuffle=config.shuffle,
            memory=parse_size(config.memory, option="memory") // _WINDOW,
            specs=tuple(one.spec() for one in each),
            open_l2=tuple(bool(np.isnan(penalty)) for penalty in penalties),
            stops=tuple((one.patience or None, one.tolerance) for one in each),
            **shared,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSgd(Sequential):
    """Linear models by SGD.

    Attributes
    ----------
    specs : tuple of Spec
        What each config is to learn and how.
    open_l2 : tuple of bool
        Configs whose L2 penalty is one over the group's training rows.
    outputs : int
        The classes of softmax, else 1.
    """

    specs: tuple[Spec, ...]
    open_l2: tuple[bool, ...]
    outputs: int = 1

    def only(self, configs: Sequence[int]) -> LinearSgd:
        names = ("specs", "open_l2")
        own: dict[str, Any] = {name: tuple(getattr(self, name)[config] for config in configs) for name in names}
        return replace(Sequential.only(self, configs), **own)

    def learner(
        self,
        grouped: Grouped,
        group: int,
        *,
        targets: Targets,
        configs: Sequence[int],
        states: Sequence[State] | None,
    ) -> LinearLearner:
        classes = self.class_weights(targets)
        specs = [
            replace(self.specs[config], l2=1 / max(targets.rows, 1)) if self.open_l2[config] else self.specs[config]
            for config in configs
        ]
        specs = [spec.for_classes(classes) for spec in specs]
        return LinearLearner(specs, grouped.width, outputs=self.outputs, states=states)

    def stored(self, weights: Floats, scale: Scale | None) -> Floats:
        return weights if scale is None else scale.raw(weights.astype(np.float64)).astype(np.float32)


class LinearLearner:
    """Linear models that learn from the same rows, each as if it were alone."""

    def __init__(
        self, specs: Sequence[Spec], width: int, *, outputs: int = 1, states: Sequence[State] | None = None
    ) -> None:
        self._specs = specs
        self._models = (
            [Weights.zeros(width, outputs) for _ in specs]
            if states is None
            else [Weights.from_arrays(state) for state in states]
        )
        self._loss = losses.find_loss(specs[0].loss)
        self._totals = [kernels.Totals() for _ in specs]
        self._failed = np.array([not model.is_finite() for model in self._models])

    def learn(self, batch: Batch, epoch: int) -> None:
        for place, (spec, model) in enumerate(zip(self._specs, self._models, strict=True)):
            if self._failed[place]:
                continue
            self._failed[place] = kernels.train(batch, model, step=spec.step(epoch), totals=self._totals[place]) >= 0

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
        return np.stack([np.vstack([model.coef.T, model.intercept]).ravel() for model in paid], axis=1)
