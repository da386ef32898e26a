"""What the page of a search over groups is drawn from: a value for each group × config, and which of them were chosen.

Plain arrays, taken from a `penstock.groups.GroupModels` or made by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.groups.evaluation import columns_without_feature
from penstock.groups.score_words import COMPARABLE, spread_of
from penstock.report.gantt import Spans

if TYPE_CHECKING:
    from penstock.groups import GroupModels

Doubles = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class GroupPage:
    """The models of all groups: arrays have a value for each group × config, by group.

    ``settings`` are what all configs share, ``configs`` the parameters of each by number, ``metric`` accuracy or r2 of held-out
    rows. ``loss``, ``held_out_loss`` and ``score`` are NaN where there is none; the last two are of chosen configs, on rows that
    no choice has seen. ``planned`` are the most epochs of each config, ``status`` is done, stopped or failed. ``chosen`` are the
    places of the chosen ones, one for each group that has a model; ``pooled`` is the score of the model for all groups on the
    same rows, ``without`` the group columns that are not among its features, and ``overall`` has the figures of the held-out
    rows of all groups together, by their names in the index.
    """

    title: str
    by: Sequence[str]
    label: str | None
    model: str
    settings: Mapping[str, Any]
    configs: Sequence[Mapping[str, Any]]
    metric: str
    finished: bool
    group: Numbers
    text: Sequence[str]
    rows: Numbers
    held_out_rows: Numbers
    config: Numbers
    loss: Doubles
    held_out_loss: Doubles
    score: Doubles
    seconds: Doubles
    epochs: Numbers
    planned: Numbers
    status: NDArray[Any]
    reason: NDArray[Any]
    chosen: Numbers
    pooled: Doubles | None = None
    overall: Mapping[str, Any] = field(default_factory=dict)
    without: Sequence[str] = ()
    timeline: Spans | None = None
    data: str | None = None
    date: str | None = None

    @classmethod
    def of(
        cls, result: GroupModels, *, title: str | None = None, data: str | None = None, date: str | None = None
    ) -> GroupPage:
        """Take what a search over groups gave."""
        frame, index = result.frame, result.registry.index
        numbers = {name: frame[name].to_numpy() for name in ("group", "rows", "held_out_rows", "config", "epochs")}
        floats: dict[str, Any] = {
            name: np.asarray(frame[name].to_numpy(), np.float64) for name in ("loss", "held_out_loss", "seconds")
        }
        best = result.chosen
        # Rows are by group and config, so a chosen one is found by its place in that order.
        width = np.int64(len(index.configs) + 1)
        places = np.searchsorted(
            numbers["group"] * width + numbers["config"], best["group"].to_numpy() * width + best["config"].to_numpy()
        )
        timeline = result.timeline
        most = [config.get("epochs", index.fixed.get("epochs") or 0) for config in index.configs]
        return cls(
            title=title or str(result.registry.folder),
            planned=np.array(most, np.int64),
            by=index.by,
            label=index.label,
            model=index.kind,
            settings=index.fixed,
            configs=index.configs,
            metric=index.metric,
            finished=index.finished,
            **numbers,
            **floats,
            score=np.asarray(frame[index.score].to_numpy(), np.float64),
            pooled=np.asarray(frame[f"pooled_{index.metric}"].to_numpy(), np.float64),
            overall=index.held_out,
            without=columns_without_feature(result),
            text=frame["text"].to_pylist(),
            status=np.array(frame["status"].to_pylist(), object),
            reason=np.array(frame["reason"].to_pylist(), object),
            chosen=places.astype(np.int64),
            timeline=None if timeline is None or not len(timeline) else Spans.of(_columns(timeline)),
            data=data,
            date=date,
        )

    @cached_property
    def firsts(self) -> Numbers:
        """The place of each group's first config."""
        return np.unique(self.group, return_index=True)[1].astype(np.int64)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.firsts)

    @cached_property
    def modelless(self) -> Numbers:
        """The first place of each group that has no model, the largest first."""
        bare = self.firsts[~np.isin(self.group[self.firsts], self.group[self.chosen])]
        return bare[np.argsort(-self.rows[bare], kind="stable")]

    @property
    def held_out(self) -> bool:
        """Whether any chosen model was scored on held-out rows; else the training loss stands in."""
        return bool(np.isfinite(self.score[self.chosen]).any())

    @property
    def values(self) -> Doubles:
        """What models are told apart by: the score on held-out rows, or the training loss where nothing was held out."""
        return self.score if self.held_out else self.loss

    @cached_property
    def measured(self) -> Numbers:
        """The places of the chosen models that have such a value."""
        return self.chosen[np.isfinite(self.values[self.chosen])]

    @property
    def spread(self) -> dict[str, Any] | None:
        """How that value is spread over groups; see `penstock.groups.score_words.spread_of`."""
        return spread_of(self.values[self.chosen], self.held_out_rows[self.chosen] if self.held_out else None)

    @cached_property
    def compared(self) -> Numbers:
        """The measured places with enough held-out rows for their score to say anything; all where none has so many."""
        enough = self.measured[self.held_out_rows[self.measured] >= COMPARABLE]
        return enough if self.held_out and len(enough) else self.measured

    @property
    def sign(self) -> float:
        """1 where more is better, -1 where less is."""
        return 1.0 if self.held_out else -1.0

    @cached_property
    def worst(self) -> Numbers:
        """The compared places, the worst first; of equals the larger group."""
        return self.compared[np.lexsort([-self.rows[self.compared], self.sign * self.values[self.compared]])]

    @cached_property
    def largest(self) -> Numbers:
        """A place for each group, of the chosen config where there is one, the largest group first."""
        places = np.concatenate([self.chosen, self.modelless])
        return places[np.lexsort([self.group[places], -self.rows[places]])]

    @property
    def beside(self) -> Doubles | None:
        """The score of the pooled model on the rows of each measured group; None where there is none."""
        if self.pooled is None or not self.held_out or not np.isfinite(self.pooled[self.measured]).any():
            return None
        return self.pooled[self.measured]

    def reasons(self) -> list[tuple[str, int, int, str]]:
        """Return why models failed: the reason, of how many groups and models, and the largest of these groups."""
        failed = np.flatnonzero(self.status == "failed")
        models = Counter(self.reason[failed].tolist())
        reasons = []
        for reason, count in models.items():
            here = failed[self.reason[failed] == reason]
            example = self.text[int(here[np.argmax(self.rows[here])])]
            reasons.append((str(reason), len(np.unique(self.group[here])), count, example))
        return sorted(reasons, key=lambda each: (-each[1], -each[2], each[0]))

    def parameters(self) -> list[str]:
        """Return the parameters that were searched: those that not all configs have alike."""
        names = dict.fromkeys(name for config in self.configs for name in config)
        return [name for name in names if len({repr(config.get(name)) for config in self.configs}) > 1]


def _columns(table: Any) -> dict[str, Any]:
    return {name: table[name].to_numpy() for name in table.column_names}
