"""Several configs that learn from the same rows at once.

Configs whose modules are alike are one part of the stack, and each part goes the fastest way that it can: by products of
matrices, by `torch.vmap`, or one by one. What a config learns does not hang on which others are in the stack, beside
rounding: it has its own weights, optimiser and chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.torch.creators import Config, Creators
from penstock.torch.optimizers import State
from penstock.torch.scoring import Doubles
from penstock.torch.stack_parts import OneByOne, Part, Products, Vmapped

WAYS: Mapping[str, type[Part]] = {"products": Products, "vmap": Vmapped, "one by one": OneByOne}
"""The ways to train several configs, the fastest first."""
_TILE = 1 << 22
"""Numbers of rows that are scored at a time, over all configs."""


class Stack:
    """Trains configs on the same batches.

    Parameters
    ----------
    creators : Creators
        What makes modules and optimisers, and the loss.
    configs : list of dict
        The configs.
    seeds : list of int
        The chance of each config: its first weights, and dropout.
    batch_sizes : int or list of int
        Rows that an update is made by, for all configs or for each.
    states : list of dict, optional
        What `states` gave, to go on from there as if there had been no break.

    Attributes
    ----------
    ways : list of str
        Which way each config is trained: products, vmap or one by one.

    Examples
    --------
    >>> from torch import nn
    >>> from penstock.torch.scoring import ModuleLoss
    >>> creators = Creators(
    ...     lambda config: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)),
    ...     lambda module, config: torch.optim.Adam(module.parameters(), lr=config["lr"]),
    ...     loss=ModuleLoss.of("logistic"),
    ...     width=2,
    ... )
    >>> stack = Stack(creators, [{"lr": 0.1}, {"lr": 0.01}], seeds=[1, 2], batch_sizes=16)
    >>> x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    >>> y = np.sign(x[:, 0] * x[:, 1])
    >>> for epoch in range(50):
    ...     stack.learn(x, y)
    >>> stack.way, stack.take_losses()[0].shape, stack.measure(x, y)[1][0] > 60
    ('products', (2,), np.True_)
    """

    def __init__(
        self,
        creators: Creators,
        configs: Sequence[Config],
        *,
        seeds: Sequence[int],
        batch_sizes: int | Sequence[int],
        states: Sequence[State] | None = None,
    ) -> None:
        blueprints = [creators.blueprint(config) for config in configs]
        self.ways = [blueprint.way for blueprint in blueprints]
        self._loss = creators.loss
        self._parts: list[tuple[NDArray[np.int64], Part]] = []
        sizes = np.broadcast_to(np.asarray(batch_sizes), len(configs)).tolist()
        alike: dict[Any, list[int]] = {}
        for place, blueprint in enumerate(blueprints):
            alike.setdefault((sizes[place], blueprint.key), []).append(place)
        for (size, _), here in alike.items():
            made = None if states is not None else [creators.module(configs[at], seeds[at]) for at in here]
            part = WAYS[blueprints[here[0]].way](
                creators,
                [blueprints[at] for at in here],
                [seeds[at] for at in here],
                batch_size=size,
                modules=made,
                states=None if states is None else [states[at] for at in here],
            )
            self._parts.append((np.array(here), part))
        self._sums = np.zeros(len(configs))
        self._weight = np.zeros(len(configs))

    @property
    def way(self) -> str:
        """The slowest way that a config is trained."""
        return max(self.ways, key=list(WAYS).index)

    def learn(self, x: NDArray[np.float32], y: NDArray[np.float32], weight: NDArray[np.float32] | None = None) -> None:
        """Learn from rows in their order, batch by batch; rows of weight 0 are left out."""
        if weight is not None and not weight.all():
            there = np.flatnonzero(weight)
            x, y, weight = x[there], y[there], weight[there]
        if not len(y):
            return
        rows, targets, mass = _tensor(x), self._loss.targets(y), None if weight is None else _tensor(weight)
        total = float(len(y) if weight is None else weight.sum(dtype=np.float64))
        for part_of, part in self._parts:
            ends = part.batches(len(y))
            for start, end in itertools.pairwise([0, *ends]):
                here = slice(start, end)
                self._sums[part_of] += part.step(rows[here], targets[here], None if mass is None else mass[here])
            self._weight[part_of] += total if ends else 0.0

    def take_losses(self) -> tuple[Doubles, Doubles]:
        """Return sums of losses since this was last asked, each row's before it was learnt from, and of weights."""
        taken = self._sums, self._weight
        self._sums, self._weight = np.zeros(len(self._sums)), np.zeros(len(self._sums))
        return taken

    def measure(
        self, x: NDArray[np.float32], y: NDArray[np.float32], weight: NDArray[np.float32] | None = None
    ) -> tuple[Doubles, Doubles]:
        """Return sums of losses, and of right answers or squared errors, for each config, without learning."""
        losses, right = np.zeros(len(self._sums)), np.zeros(len(self._sums))
        rows, targets, mass = _tensor(x), self._loss.targets(y), None if weight is None else _tensor(weight)
        step = max(1, _TILE // (len(self._sums) * max(64, x.shape[1])))
        for start in range(0, len(y), step):
            here = slice(start, start + step)
            for part_of, part in self._parts:
                scores = part.scores(rows[here])
                more, better = self._loss.values(scores, targets[here], None if mass is None else mass[here])
                losses[part_of] += more
                right[part_of] += better
        return losses, right

    def scores(self, x: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return the scores of rows by each config's module."""
        found: list[Any] = [None] * len(self._sums)
        for part_of, part in self._parts:
            for place, scores in zip(part_of.tolist(), part.scores(_tensor(x)), strict=True):
                found[place] = scores.numpy()
        return found

    def states(self) -> list[State]:
        """Return all that the training of each config depends on, as plain arrays."""
        found: list[State] = [{} for _ in self._sums]
        for part_of, part in self._parts:
            for place, state in zip(part_of.tolist(), part.states(), strict=True):
                found[place] = state
        return found

    def failed(self) -> NDArray[np.bool_]:
        """Say which configs have weights that are no longer finite."""
        found = np.zeros(len(self._sums), bool)
        for part_of, part in self._parts:
            found[part_of] = part.failed()
        return found

    def weights(self) -> NDArray[np.float32]:
        """Return what the modules' ``state_dict`` hold, a column for each config; shorter ones end with zeros."""
        each = [(part_of, part.weights()) for part_of, part in self._parts]
        found = np.zeros((max(len(numbers) for _, numbers in each), len(self._sums)), np.float32)
        for part_of, numbers in each:
            found[: len(numbers), part_of] = numbers
        return found


def _tensor(values: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"]))
