"""What the page of a search over groups is drawn from: a value for each group × config, and which of them were chosen.

Plain arrays, taken from a `penstock.groups.Result` or made by hand. What would have come of one config for all groups is
worked out from the same numbers, where every group has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.report.gantt import Spans

if TYPE_CHECKING:
    from penstock.groups import Result

Doubles = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Forest:
    """The models of all groups: arrays have a value for each group × config, by group.

    Attributes
    ----------
    title : str
        What the page is called: the folder of the models.
    by, label, model, settings
        The group columns, the label, the kind of model, and what all configs share.
    configs : sequence of dict
        The parameters of each config, by number.
    metric : str
        accuracy or r2, of rows held out.
    finished : bool
        Whether training came to its end.
    group, text, rows, held_rows, config
        Each group's number, name and sizes, and the config's number.
    loss, held_loss, score : float64 array
        NaN where there is none.
    planned : array
        The most epochs of each config.
    seconds, epochs, status, reason
        What it took, and how it came out: done, stopped or failed.
    chosen : int64 array
        The places of the chosen ones, one for each group that has a model.
    timeline : Spans, optional
        What workers did.
    data, date : str, optional
        What was trained on, and when.
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
    held_rows: Numbers
    config: Numbers
    loss: Doubles
    held_loss: Doubles
    score: Doubles
    seconds: Doubles
    epochs: Numbers
    planned: Numbers
    status: NDArray[Any]
    reason: NDArray[Any]
    chosen: Numbers
    timeline: Spans | None = None
    data: str | None = None
    date: str | None = None

    @classmethod
    def of(
        cls, result: Result, *, title: str | None = None, data: str | None = None, date: str | None = None
    ) -> Forest:
        """Take what a search over groups gave."""
        frame, index = result.frame, result.registry.index
        numbers = {name: frame[name].to_numpy() for name in ("group", "rows", "held_rows", "config", "epochs")}
        floats: dict[str, Any] = {
            name: np.asarray(frame[name].to_numpy(), np.float64) for name in ("loss", "held_loss", "seconds")
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
            metric=index.score.removeprefix("held_"),
            finished=index.finished,
            **numbers,
            **floats,
            score=np.asarray(frame[index.score].to_numpy(), np.float64),
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
        """Whether any chosen model was scored on rows held out; else the training loss stands in."""
        return bool(np.isfinite(self.score[self.chosen]).any())

    @property
    def values(self) -> Doubles:
        """What models are told apart by: the score on rows held out, or the training loss where nothing was."""
        return self.score if self.held_out else self.loss

    @cached_property
    def measured(self) -> Numbers:
        """The places of the chosen models that have such a value."""
        return self.chosen[np.isfinite(self.values[self.chosen])]

    @property
    def sign(self) -> float:
        """1 where more is better, -1 where less is."""
        return 1.0 if self.held_out else -1.0

    @cached_property
    def worst(self) -> Numbers:
        """The measured places, the worst first; of equals the larger group."""
        return self.measured[np.lexsort([-self.rows[self.measured], self.sign * self.values[self.measured]])]

    @cached_property
    def largest(self) -> Numbers:
        """A place for each group, of the chosen config where there is one, the largest group first."""
        places = np.concatenate([self.chosen, self.modelless])
        return places[np.lexsort([self.group[places], -self.rows[places]])]

    @cached_property
    def common(self) -> tuple[int, Numbers] | None:
        """The one config that is best for all groups together, and its places.

        Best by the loss that configs are chosen by, its mean over rows. None where no config is done for all groups, or
        where all of them chose it.
        """
        if len(self.configs) < 2 or not len(self.measured):
            return None
        loss, weight = (self.held_loss, self.held_rows) if self.held_out else (self.loss, self.rows)
        wanted = np.isin(self.group, self.group[self.measured])
        fit = wanted & (self.status == "done") & np.isfinite(loss) & np.isfinite(self.values)
        best: tuple[float, int] | None = None
        for config in range(len(self.configs)):
            here = fit & (self.config == config)
            if here.sum() == len(self.measured):
                mean = float(np.average(loss[here], weights=np.maximum(weight[here], 1)))
                best = min((mean, config), best or (np.inf, 0))
        if best is None or (self.config[self.measured] == best[1]).all():
            return None
        return best[1], np.flatnonzero(fit & (self.config == best[1]))

    def reasons(self) -> list[tuple[str, int, int, str]]:
        """Return why models failed: the reason, of how many groups and models, and the largest of these groups."""
        failed = np.flatnonzero(self.status == "failed")
        models = Counter(self.reason[failed].tolist())
        found = []
        for reason, count in models.items():
            here = failed[self.reason[failed] == reason]
            example = self.text[int(here[np.argmax(self.rows[here])])]
            found.append((str(reason), len(np.unique(self.group[here])), count, example))
        return sorted(found, key=lambda each: (-each[1], -each[2], each[0]))

    def parameters(self) -> list[str]:
        """Return the parameters that were searched: those that not all configs have alike."""
        names = dict.fromkeys(name for config in self.configs for name in config)
        return [name for name in names if len({repr(config.get(name)) for config in self.configs}) > 1]


def _columns(table: Any) -> dict[str, Any]:
    return {name: table[name].to_numpy() for name in table.column_names}
