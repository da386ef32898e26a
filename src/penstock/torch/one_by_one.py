"""Configs that are trained one after another: whatever cannot run on several configs' numbers at once.

Each has its module and its optimiser, and is trained as it would be alone.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from penstock.torch.creators import Blueprint, Creators
from penstock.torch.optimizers import State, array, memory_of, remember, state_tensor
from penstock.torch.parts import Part, mixed
from penstock.torch.rules import Doubles
from penstock.torch.stacking import numbers_of


class OneByOne(Part):
    """Modules that have nothing in common but their rows; each is trained as it would be alone."""

    def __init__(
        self,
        creators: Creators,
        blueprints: Sequence[Blueprint],
        seeds: Sequence[int],
        *,
        modules: Sequence[nn.Module] | None,
        states: Sequence[State] | None,
    ) -> None:
        super().__init__(creators, blueprints, seeds)
        self._modules = [copy.deepcopy(each.module) for each in blueprints] if modules is None else list(modules)
        for module, blueprint in zip(self._modules, blueprints, strict=True):
            blueprint.numbers(module)
        self._optimizers = [
            creators.optimized(module, each.config) for module, each in zip(self._modules, blueprints, strict=True)
        ]
        self._dead = np.zeros(len(blueprints), bool)
        for place, state in enumerate(states or ()):
            self.updates[place] = state["updates"][0]
            with torch.no_grad():
                for name, value in numbers_of(self._modules[place]).items():
                    value.copy_(state_tensor(state[f"module/{name}"], value.dtype))
            remember(self._optimizers[place], state)
        if states is not None:
            self._dead = self.failed()

    @torch.enable_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor | None) -> Doubles:
        sums = np.full(len(self._modules), np.nan)
        with torch.random.fork_rng(devices=[]):
            for place in np.flatnonzero(~self._dead).tolist():
                torch.default_generator.manual_seed(mixed(self._seeds[place], int(self.updates[place])))
                sums[place] = self._learn(place, x, y, weight)
        self.updates += 1
        return sums

    def _learn(self, place: int, x: Tensor, y: Tensor, weight: Tensor | None) -> float:
        module, optimizer = self._modules[place].train(), self._optimizers[place]
        optimizer.zero_grad()
        outputs = module(x)
        with torch.no_grad():
            sums, slopes = self._loss(self._loss.formed(outputs.detach().unsqueeze(0)), y, weight)
        if not np.isfinite(sums[0]):
            # It will not come back, and a module's own code may well refuse such numbers.
            self._dead[place] = True
            with torch.no_grad():
                next(iter(module.parameters())).fill_(torch.nan)
            return float(sums[0])
        outputs.backward(slopes.reshape(outputs.shape))
        optimizer.step()
        return float(sums[0])

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        found: list[Tensor | None] = [
            None if dead else self._loss.formed(module.eval()(x).unsqueeze(0))
            for module, dead in zip(self._modules, self._dead.tolist(), strict=True)
        ]
        like = next((each for each in found if each is not None), None)
        if like is None:
            like = self._loss.formed(self._blueprints[0].module.eval()(x).unsqueeze(0))
        return torch.cat([torch.full_like(like, torch.nan) if each is None else each for each in found])

    def numbers(self, name: str) -> Tensor:
        return torch.stack([numbers_of(module)[name].detach() for module in self._modules])

    def states(self) -> list[State]:
        found = []
        for place, (module, optimizer) in enumerate(zip(self._modules, self._optimizers, strict=True)):
            state: State = {"updates": self.updates[place : place + 1].copy()}
            state |= {f"module/{name}": array(value) for name, value in numbers_of(module).items()}
            found.append(state | memory_of(optimizer))
        return found
