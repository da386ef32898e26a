"""The chosen models, and the pooled one beside them, scored on rows that no choice has seen.

A config is chosen by other rows than these, so that the figures are those that unseen rows will have. Each model answers
the held-out rows of its own group; the pooled model, which was trained on the rows of all groups, answers the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.evaluation import loss_targets
from penstock.groups.grouped import Grouped
from penstock.groups.results import GroupModels
from penstock.groups.split import HELD_OUT, Split
from penstock.measures import Measures
from penstock.measuring import measures_for
from penstock.sgd.losses import loss_of

Doubles = NDArray[np.float64]
_TOGETHER = 4 << 20
"""Bytes of rows that are scored together."""
_RANKING_MEMORY = 256 << 20
"""As of rows; an eighth of it is for the ranks of their scores."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """How models did on held-out rows.

    Attributes
    ----------
    columns : dict
        Of the table of results: a value for each of its rows, NaN where a model was not judged.
    figures : dict
        Of all groups together, as plain JSON: each row counts by its weight, whatever its group.
    """

    columns: dict[str, Doubles]
    figures: dict[str, Any]


@dataclass(slots=True)
class _Sums:
    """Sums over the held-out rows of each group: of losses, and of right answers or squared errors."""

    loss: Doubles
    right: Doubles

    @classmethod
    def zeros(cls, groups: int) -> _Sums:
        return cls(np.zeros(groups), np.zeros(groups))


@dataclass(slots=True)
class _Judging:
    """Adds up what the models of a result, and a pooled one, say of held-out rows."""

    result: GroupModels
    pooled: GroupModels | None
    sums: dict[str, _Sums]
    weight: Doubles
    rows: Doubles
    """The held-out rows of each group that has a model; those of weight zero are not counted."""
    targets: Doubles
    squares: Doubles
    measures: dict[str, Measures]
    """Of all groups together, by the names of the sums."""
    _waiting: list[tuple[int, int, Batch]] = field(default_factory=list)
    _bytes: int = 0

    def add(self, group: int, row: int, batch: Batch) -> None:
        """Take in held-out rows of a group, whose model is at a row of the table."""
        self._waiting.append((group, row, batch))
        self._bytes += batch.nbytes
        if self._bytes >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Score what has been taken in."""
        if not self._waiting:
            return
        counts = [len(batch) for _, _, batch in self._waiting]
        groups, models = (np.repeat([each[at] for each in self._waiting], counts) for at in (0, 1))
        batch = Batch.concat([batch for _, _, batch in self._waiting])
        self._waiting, self._bytes = [], 0
        assert batch.y is not None
        y = loss_targets(self.result.recipe, self.result.kind, batch.y)
        mass = np.ones(len(batch)) if batch.weight is None else batch.weight.astype(np.float64)
        for total, values in (
            (self.rows, mass > 0),
            (self.weight, mass),
            (self.targets, mass * y),
            (self.squares, mass * y**2),
        ):
            total += np.bincount(groups, values, len(total))
        self._add("held_out", self.result, groups, models, batch, y, mass)
        if self.pooled is not None and "pooled" in self.sums:
            own = np.full(len(batch), self.pooled.chosen_rows[0], np.int64)
            self._add("pooled", self.pooled, groups, own, batch, y, mass)

    def _add(
        self, name: str, result: GroupModels, groups: Any, models: Any, batch: Batch, y: Doubles, mass: Doubles
    ) -> None:
        sums = self.sums[name]
        loss = loss_of(result.registry.index.kind)
        scores = result.scores(batch, models).astype(np.float64)
        with np.errstate(all="ignore"):
            right = loss.hits(scores, y)
            sums.loss += np.bincount(groups, mass * loss.value(scores, y), len(sums.loss))
            sums.right += np.bincount(groups, mass * right, len(sums.right))
        there = np.flatnonzero((mass > 0) & np.isfinite(scores.reshape(len(scores), -1).sum(axis=1)))
        self.measures[name].add(scores[there], y[there], mass[there])


def judge(result: GroupModels, pooled: GroupModels | None, grouped: Grouped, split: Split) -> Judgement:
    """Score the chosen model of each group on its held-out rows, and the pooled model, if there is one, on the same ones."""
    groups, table = len(grouped), result.registry.table
    known = pooled is not None and len(pooled.chosen_rows) > 0
    sums = {name: _Sums.zeros(groups) for name in ("held_out", *(["pooled"] if known else []))}
    loss = loss_of(result.registry.index.kind).name
    measures = {name: measures_for(result.recipe, loss, _RANKING_MEMORY) for name in sums}
    weight, rows, labels, squares = np.zeros((4, groups))
    judging = _Judging(result, pooled, sums, weight, rows, labels, squares, measures)
    for row in result.chosen_rows.tolist():
        group = int(table["group"][row].as_py())
        for batch in _held_out(grouped, split, group):
            judging.add(group, row, batch)
    judging.flush()
    metric, own = result.metric, result.known_loss
    columns, figures = {}, dict[str, Any]()
    owner = table["group"].to_numpy()[result.chosen_rows]
    if judging.weight.any():
        figures["held_out_rows"] = int(judging.rows.sum())
    for name, total in sums.items():
        means = _means(judging, total, metric)
        overall = _means(judging, total, metric, together=True)
        for what, value in zip(("loss", metric), means, strict=True):
            column = np.full(len(table), np.nan)
            column[result.chosen_rows] = value[owner] if what != "loss" or own else np.nan
            columns[f"{name}_{what}"] = column
            found = float(overall[what == metric][0])
            figures[f"{name}_{what}"] = found if np.isfinite(found) and (what != "loss" or own) else None
        if judging.weight.any():
            every = measures[name].figures()
            if not own:
                every = {each: value for each, value in every.items() if each not in ("log_loss", "brier")}
            figures |= {f"{name}_{each}": value for each, value in every.items() if f"{name}_{each}" not in figures}
    return Judgement(columns, figures)


def _held_out(grouped: Grouped, split: Split, group: int) -> Iterator[Batch]:
    for block, start in grouped.within(group, 0, grouped.size(group)):
        parts = split.parts(group, start, int(grouped.block_rows[block]))
        if parts is not None and (parts == HELD_OUT).any():
            yield grouped.read(block).take(np.flatnonzero(parts == HELD_OUT))


def _means(judging: _Judging, sums: _Sums, metric: str, *, together: bool = False) -> tuple[Doubles, Doubles]:
    """Return mean losses, and accuracies or R²: of each group, or of all rows together."""
    figures = (sums.loss, sums.right, judging.weight, judging.targets, judging.squares)
    if together:
        figures = tuple(np.array([figure.sum()]) for figure in figures)  # type: ignore[assignment]  # of five arrays too
    loss, right, weight, targets, squares = figures
    with np.errstate(divide="ignore", invalid="ignore"):
        score = 1 - right / (squares - targets**2 / weight) if metric == "r2" else right / weight
        return loss / weight, score
