"""Configs of one architecture that learn from the same rows: what the ways to train them have in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.groups.modules import finite
from penstock.torch.creators import Blueprint, Creators
from penstock.torch.optimizers import State
from penstock.torch.rules import Doubles

_MASK = (1 << 64) - 1


def mixed(seed: int, count: int) -> int:
    """Return the seed of a config's next update, from its own and how many it has had."""
    z = (seed + (count + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
    return z ^ z >> 31


class Part:
    """Configs whose blueprints have one key.

    Attributes
    ----------
    updates : array
        How many each config has had.
    """

    def __init__(self, creators: Creators, blueprints: Sequence[Blueprint], seeds: Sequence[int]) -> None:
        self.updates = np.zeros(len(blueprints), np.int64)
        self._creators, self._blueprints, self._seeds = creators, blueprints, seeds
        self._loss = creators.loss
        self._layout = blueprints[0].layout
        named = dict(blueprints[0].module.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        self._alias = {name: first.setdefault(id(weight), name) for name, weight in named.items()}

    def batches(self, rows: int, batch_size: int) -> list[int]:
        """Return where each batch of some rows ends; one with too few at the end is joined to the one before it."""
        blueprint = self._blueprints[0]
        blueprint.require_rows(batch_size)
        ends = [*range(batch_size, rows, batch_size), rows]
        if rows - ([0, *ends][-2]) < blueprint.least:
            ends[-2:] = ends[-1:] if len(ends) > 1 else []
        return ends

    def step(self, x: Tensor, y: Tensor, weight: Tensor | None) -> Doubles:
        """Learn from the rows of a batch; return the sum of their losses before that, for each config."""
        raise NotImplementedError

    def scores(self, x: Tensor) -> Tensor:
        """Return the scores of rows, for each config."""
        raise NotImplementedError

    def states(self) -> list[State]:
        """Return all that the training of each config depends on."""
        raise NotImplementedError

    def numbers(self, name: str) -> Tensor:
        """Return a parameter or buffer of all configs."""
        raise NotImplementedError

    def weights(self) -> NDArray[np.float32]:
        """Return what the modules' ``state_dict`` hold, one after another, a column for each config."""
        return np.ascontiguousarray(np.concatenate([self._flat(name) for name, _, _ in self._layout], axis=1).T)

    def _flat(self, name: str) -> NDArray[np.float32]:
        name = self._alias.get(name, name)
        numbers: NDArray[np.float32] = self._rows(name).to(torch.float32).numpy()
        return numbers if name in self._blueprints[0].trained else finite(numbers)

    def failed(self) -> NDArray[np.bool_]:
        """Say which configs have weights that are not finite."""
        found = [self._rows(name).isfinite().all(1) for name in self._blueprints[0].trained]
        failed: NDArray[np.bool_] = ~torch.stack(found).all(0).numpy()
        return failed

    def _rows(self, name: str) -> Tensor:
        return self.numbers(name).detach().reshape(len(self.updates), -1)
