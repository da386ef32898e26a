"""The sampling pattern: gradient-boosted trees by LightGBM, through what it offers to everyone.

LightGBM sorts features into bins from a sample of the rows, and learns from the bins. All configs of a group share them, for
they take as long as many a config's trees. Of a group that lies on several workers each has the bins of its own rows, and
LightGBM's data-parallel mode adds up histograms over its own sockets. Features may be NaN: trees send those their own way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Csr
from penstock.errors import MissingExtraError
from penstock.groups.executor import Failure, Make
from penstock.groups.group_recipe import categorical_features
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.base import Divided, Doubles, Fit, Refit, Targets, Worker
from penstock.groups.patterns.lightgbm_rows import Rows, quiet
from penstock.groups.patterns.worker_watch import Door, Lines, WorkerAddress, network
from penstock.groups.split import SELECTION, TRAINING, Split
from penstock.sgd import terms

BINNING = ("max_bin", "min_data_in_bin")
"""Parameters that change the bins, so that configs share them only where these are the same."""
LOSSES = {"binary": "logistic", "multiclass": "softmax", "regression": "squared"}
_METRICS = {
    "binary": ["binary_logloss", "binary_error"],
    "multiclass": ["multi_logloss", "multi_error"],
    "regression": ["l2"],
}
_COMMON = {
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "feature_pre_filter": False,
    "verbosity": -1,
}
"""One thread, for there is a worker for each core; and nothing dropped from the bins that another config could use."""


@dataclass(frozen=True, slots=True)
class Boosted:
    """What is to be learnt of every group by boosting.

    Attributes
    ----------
    objective : str
        binary, multiclass or regression.
    classes : int
        How many the label has; 0 for a number.
    settings : tuple of dict
        LightGBM's parameters, for each config.
    patience : int or None
        Rounds without a lower loss on the rows to choose by after which a config stops, and goes back to its best round.
    """

    pattern: ClassVar[str] = "sampling"
    folder: str
    objective: str
    classes: int
    settings: tuple[Mapping[str, Any], ...]
    epochs: NDArray[np.int64]
    patience: int | None = None
    validation: float = 0.0
    seed: int = 0

    @property
    def configs(self) -> int:
        return len(self.settings)

    @property
    def loss(self) -> str:
        return LOSSES[self.objective]

    @property
    def split(self) -> Split:
        return Split.of(self.validation, self.seed, chooses=self.configs > 1 or self.patience is not None)

    def make(self) -> Make:
        return partial(BoostWorker, self)

    def only(self, configs: Sequence[int]) -> Boosted:
        chosen = list(configs)
        return replace(self, settings=tuple(self.settings[each] for each in chosen), epochs=self.epochs[chosen])

    def refit(self, refit: Refit) -> Boosted:
        return replace(self.only([refit.config]), validation=0.0, patience=None, epochs=np.array([refit.epochs]))

    @property
    def common(self) -> dict[str, Any]:
        """What LightGBM is told for all configs."""
        told = {**_COMMON, "objective": self.objective, "metric": _METRICS[self.objective], "seed": self.seed}
        return told | ({"num_class": self.classes} if self.objective == "multiclass" else {})

    def lanes(self) -> list[tuple[dict[str, Any], list[_Lane]]]:
        """Return, for each choice of bins, the configs that share them."""
        found: dict[tuple[Any, ...], tuple[dict[str, Any], dict[Any, _Lane]]] = {}
        for config, settings in enumerate(self.settings):
            bins = {name: settings[name] for name in BINNING if name in settings}
            rest = {name: value for name, value in settings.items() if name not in BINNING}
            # The trees of fewer rounds are the first ones of more; only where nothing is taken back again.
            key = (*sorted(rest.items()), config if self.patience else -1)
            of_bins = found.setdefault(tuple(bins.items()), (bins, {}))[1]
            of_bins.setdefault(key, _Lane(rest, [])).configs.append(config)
        for _, of_bins in found.values():
            for lane in of_bins.values():
                lane.configs.sort(key=lambda config: int(self.epochs[config]))
        return [(bins, list(of_bins.values())) for bins, of_bins in found.values()]


@dataclass(frozen=True, slots=True)
class _Lane:
    """Configs that differ in their rounds only: one row of trees."""

    settings: dict[str, Any]
    configs: list[int]


@dataclass(slots=True)
class Share:
    """What came of a group, as sums over the rows of one worker; or why nothing did.

    Attributes
    ----------
    loss, held_loss, held_right : arrays
        Sums over rows; of the squared loss the last is the squared error.
    weight : float
        What the training loss is divided by.
    trees : list of str or None
        The models; the first of several workers has them.
    flaw : str
        What LightGBM has against these rows: it would say the same again.
    broken : str
        Why workers that train together could not: it may be tried again.
    """

    loss: Doubles
    held_loss: Doubles
    held_right: Doubles
    epochs: NDArray[np.int64]
    status: NDArray[np.int64]
    trees: list[str | None]
    reasons: list[str]
    weight: float = 0.0
    seconds: float = 0.0
    flaw: str = ""
    broken: str = ""

    @classmethod
    def of(cls, configs: int, **told: Any) -> Share:
        loss, held_loss, held_right = np.zeros((3, configs))
        epochs, status = np.zeros((2, configs), np.int64)
        nothing: list[str | None] = [None] * configs
        return cls(loss, held_loss, held_right, epochs, status, nothing, [""] * configs, **told)


@dataclass(frozen=True, slots=True)
class Called:
    """A worker that is ready to train a group with others: where it is, and what its rows are like."""

    address: WorkerAddress
    targets: Targets


class BoostWorker(Worker):
    """Boosts groups, alone or with others."""

    def __init__(self, job: Boosted, grouped: Grouped | None = None) -> None:
        super().__init__(job.folder, job.split, grouped)
        self.job = job
        self._door: Door | None = None

    def solve(self, group: int) -> Fit:
        began = time.perf_counter()
        parts = list(self.rows(group))
        targets = Targets.of_parts(parts)
        flaw = targets.flaw(self.job.loss)
        if flaw:
            return Fit(group, targets, time.perf_counter() - began, flaw)
        try:
            with quiet():
                share = self._boost(group, parts, parts, targets.mean_weight)
        except library().basic.LightGBMError as error:
            share = Share.of(self.job.configs, flaw=_told(error))
        return boosted_fit(group, targets, self.job, [share], seconds=time.perf_counter() - began)

    def close(self) -> None:
        if self._door is not None:
            self._door.close()

    def call(self, group: int, first: int, rows: int) -> Called:
        """Make ready to train a group with others: open a door, and look at the rows."""
        self.close()
        self._door = Door()
        return Called(self._door.address, Targets.of_parts(list(self.rows(group, first, rows))))

    def together(
        self, group: int, first: int, rows: int, rank: int, members: Sequence[WorkerAddress], mean_weight: float
    ) -> Share:
        """Train all configs of a group with others, of which each has a part of the rows."""
        began, job, door = time.perf_counter(), self.job, self._door
        if door is None:
            return Share.of(job.configs, broken="a worker was replaced before it began")
        parts = list(self.rows(group, first, rows))
        # To stop together all must see the same loss, so each looks at all rows to choose by; the first one tells of them.
        held = parts if job.patience is None else list(self.rows(group))
        try:
            with (
                Lines(members[1:] if rank == 0 else members[:1]),
                quiet(),
                network(library(), door, rank, members) as told,
            ):
                share = self._boost(group, parts, held, mean_weight, told)
        except Exception as error:
            door.close()  # those who wait for this one wait no longer
            known = isinstance(error, OSError | library().basic.LightGBMError)
            return Share.of(job.configs, broken=_told(error) if known else Failure.of(error).reason)
        if rank > 0:
            share.trees = [None] * job.configs
            if job.patience is not None:
                share.held_loss[:] = share.held_right[:] = 0.0
        share.seconds = time.perf_counter() - began
        return share

    def _boost(
        self,
        group: int,
        parts: list[Divided],
        held: list[Divided],
        mean_weight: float,
        linked: Mapping[str, Any] | None = None,
    ) -> Share:
        """Train all configs on some rows, whose weights are divided by their mean over the group."""
        lightgbm, features = library(), self._features(group)
        recipe = self.grouped.recipe
        coded, drop = categorical_features(recipe), recipe.unlabelled or recipe.missing == "drop"
        learnt, aside = (
            Rows.of(*each, self.job.classes, features, coded, drop=drop)
            for each in ((parts, TRAINING), (held, SELECTION))
        )
        learnt = learnt.divided(mean_weight)
        share, sets = Share.of(self.job.configs, weight=learnt.mass), self.job.lanes()
        for number, (bins, lanes) in enumerate(sets):
            told = {**self.job.common, **bins, **(linked or {})}
            rows = learnt.dataset(lightgbm, told).construct()
            watch = aside.dataset(lightgbm, told, reference=rows).construct() if aside.mass else None
            if number == len(sets) - 1:  # bins are a quarter of the rows, which are not needed any more
                learnt.x.clear()
                aside.x.clear()
            for lane in lanes:
                try:
                    booster = lightgbm.Booster({**told, **lane.settings}, rows)
                    if watch is not None:
                        booster.add_valid(watch, "held")
                    self._grow(booster, lane, share, None if watch is None else aside.mass)
                except lightgbm.basic.LightGBMError as error:
                    if linked:  # it may be the others
                        raise
                    for config in lane.configs:
                        share.loss[config], share.reasons[config] = np.nan, _told(error)
        return share

    def _grow(self, booster: Any, lane: _Lane, share: Share, held: float | None) -> None:
        """Grow the trees of a lane, and take down how each of its configs stands; ``held`` is the weight held out."""
        least, best, over = np.inf, 0, False
        patience = None if held is None else self.job.patience
        for config in lane.configs:
            while not over and booster.current_iteration() < self.job.epochs[config]:
                over = booster.update()
                if patience is not None:
                    loss, at = _first(booster.eval_valid()), booster.current_iteration()
                    if loss < least:
                        least, best = loss, at
                    over = over or at - best >= patience
            share.epochs[config] = booster.current_iteration()
            share.status[config] = terms.CONVERGED if over else terms.SPENT
            for _ in range(booster.current_iteration() - best if best else 0):
                booster.rollback_one_iter()
            share.loss[config], _ = self._sums(booster.eval_train(), share.weight)
            if held is not None:
                share.held_loss[config], share.held_right[config] = self._sums(booster.eval_valid(), held)
            share.trees[config] = booster.model_to_string()

    def _sums(self, figures: Sequence[Any], mass: float) -> tuple[float, float]:
        """Return sums of the loss, and of right answers or squared errors, from LightGBM's means."""
        first = _first(figures)
        if self.job.objective == "regression":
            return mass * first / 2, mass * first
        return mass * first, mass * (1 - float(figures[1][2]))

    def _features(self, group: int) -> NDArray[np.int64] | None:
        """Return the features that the rows of a group have, where rows are sparse: LightGBM makes much of every column."""
        if not self.grouped.recipe.sparse:
            return None
        found = [np.unique(batch.x.indices) for batch, _ in self.rows(group) if isinstance(batch.x, Csr)]
        features = np.unique(np.concatenate(found)).astype(np.int64)
        return features if len(features) else np.zeros(1, np.int64)


def boosted_fit(group: int, targets: Targets, job: Boosted, shares: Sequence[Share], *, seconds: float) -> Fit:
    """Add up what the workers of a group have of it; the first has the trees."""
    flaw = next((share.flaw for share in shares if share.flaw), "")
    if flaw:
        return Fit(group, targets, seconds, flaw)
    first, nothing = shares[0], np.full(job.configs, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = sum((share.loss for share in shares), np.zeros(job.configs)) / sum(share.weight for share in shares)
        held = sum((share.held_loss for share in shares), np.zeros(job.configs))
        right = sum((share.held_right for share in shares), np.zeros(job.configs))
    failed = ~np.isfinite(loss)
    reasons = [
        reason or ("the training loss is not a finite number" if bad else "")
        for bad, reason in zip(failed, first.reasons, strict=True)
    ]
    return Fit(
        group,
        targets,
        seconds,
        loss=loss,
        selection_loss=held / targets.selection_weight if targets.selection_weight else nothing,
        selection_score=targets.score(job.loss, right) if targets.selection_weight else nothing,
        epochs=first.epochs,
        status=np.where(failed, terms.FAILED, first.status),
        trees=[None if bad else text for bad, text in zip(failed, first.trees, strict=True)],
        reasons=reasons,
    )


def library() -> Any:
    """Return LightGBM."""
    try:
        import lightgbm
    except ImportError as error:
        raise MissingExtraError.of("lightgbm", "ray", "Boosting") from error
    return lightgbm


def rounds_of(text: str) -> int:
    """Return the rounds whose trees a model's text has.

    Examples
    --------
    >>> rounds_of("tree\\nnum_tree_per_iteration=3\\n\\nTree=0\\n\\nTree=1\\n\\nTree=2\\n\\nend of trees")
    1
    """
    each = re.search(r"^num_tree_per_iteration=(\d+)$", text, re.MULTILINE)
    return len(re.findall(r"^Tree=", text, re.MULTILINE)) // (int(each[1]) if each else 1)


def booster_of(text: str) -> Any:
    """Return the booster of a model's text."""
    if not (text.startswith("tree\n") and "\nend of trees" in text):  # LightGBM would say so on the screen as well
        raise ValueError("it is not a whole model of LightGBM")
    try:
        return library().Booster(model_str=text)
    except library().basic.LightGBMError as error:
        raise ValueError(_told(error)) from error


def _first(figures: Sequence[Any]) -> float:
    return float(figures[0][2])


def _told(error: Exception) -> str:
    return f"LightGBM: {' '.join(str(error).split())}"
