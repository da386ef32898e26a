"""Which groups' chosen configs are trained once more, on all rows, and with what.

A config is chosen and judged by rows that it has not learned from. Its figures stay those of that model; what is served
then is the same config, trained on these rows too, as `penstock.memory_learner` does for a single model.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.groups.config_choice import numbers
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.base import GroupJob, Refit
from penstock.groups.patterns.sampling import rounds_of
from penstock.groups.registry import Registry
from penstock.groups.results import GroupModels
from penstock.memory_learner import REFIT_PASSES, REFIT_ROWS


@dataclass(slots=True)
class Refits:
    """The refits that are to be done, of the groups and of the pooled model.

    Attributes
    ----------
    search : Job
        What was trained, with all its configs.
    rows : array of int
        The rows of each group that has a refit before it, the pooled one's last; 0 for the others.
    """

    search: Any
    rows: NDArray[np.int64]
    _models: tuple[Registry | None, Registry | None]
    """Those that were judged: of the groups, and of all rows together."""
    _places: NDArray[np.int64]
    """For each group the row of its table that was chosen, -1 where there is nothing to refit."""
    _configs: NDArray[np.int64]
    _epochs: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        search: GroupJob,
        grouped: Grouped,
        models: tuple[Path, Path | None],
        done: tuple[Container[int], Container[int]],
    ) -> Self:
        """Find what is to be refitted of the models in two folders, the groups' and the pooled one's, where some has been."""
        count = len(grouped)
        rows, places, configs, epochs = np.zeros((4, count + 1), np.int64)
        places[:] = -1
        registries: list[Registry | None] = []
        for folder, finished, first in zip(models, done, (0, count), strict=True):
            registry = None if folder is None else Registry.open(folder, refit=False)
            registries.append(registry)
            if registry is None:
                continue
            chosen = GroupModels(registry).chosen_rows
            group, size, apart, more, config, made = (
                numbers(registry.table[name])[chosen]
                for name in ("group", "rows", "held_out_rows", "selection_rows", "config", "epochs")
            )
            wanted = (apart + more > 0) & np.array([each not in finished for each in group.tolist()], bool)
            if search.pattern == "sequential":
                wanted &= size <= REFIT_ROWS
            here = first + group[wanted]
            rows[here], places[here], configs[here] = size[wanted], chosen[wanted], config[wanted]
            epochs[here] = REFIT_PASSES if search.pattern == "algebraic" else made[wanted]
        return cls(search, rows, (registries[0], registries[1]), places, configs, epochs)

    @property
    def job(self) -> Any:
        """What is to be learned of any group, as far as that is the same for all: one config, on all rows."""
        return self.search.refit(Refit(int(self.search.epochs.argmax()), int(self._epochs.max())))

    def job_of(self, group: int) -> Any:
        """Return what is to be learned of a group."""
        return self.search.refit(self.refit(group))

    def refit(self, group: int, *, weights: bool = True) -> Refit:
        """Return how a group's chosen config is trained; where that goes on from its weights, these are read now."""
        if self.search.pattern == "sampling":  # whose trees past the best round were taken back
            return Refit(self.config(group), rounds_of(self._model(group).trees(int(self._places[group]))))
        goes_on = weights and self.search.pattern == "algebraic"
        return Refit(self.config(group), int(self._epochs[group]), self._weights(group) if goes_on else None)

    def config(self, group: int) -> int:
        """Return the number of a group's chosen config."""
        return int(self._configs[group])

    def stored(self, group: int, weights: Floats) -> Floats:
        """Return weights as long as a group's models are: those of smaller modules end in zeros."""
        missing = len(self._weights(group)) - len(weights)
        return np.pad(weights, ((0, missing), (0, 0))) if missing else weights

    def _weights(self, group: int) -> Floats:
        return self._model(group).weights(int(self._places[group]))

    def _model(self, group: int) -> Registry:
        registry = self._models[group == len(self.rows) - 1]
        assert registry is not None
        return registry
