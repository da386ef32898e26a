"""Configs of one architecture in one matrix: by products of matrices, or by `torch.vmap`.

A row of one matrix has all the weights of a config, and a row of another their slopes, so that an optimiser's step is a few
operations for all configs. Rows do not mix: a config that has left the finite numbers is alone with that.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from penstock.torch.creators import Blueprint, Creators
from penstock.torch.layers import Generators
from penstock.torch.optimizers import State, array, memory_of, remember, state_tensor
from penstock.torch.parts import Part, mixed
from penstock.torch.rules import Doubles, rule
from penstock.torch.stacking import functional, numbers_of


class _Flat(Part):
    """Weights and slopes as rows of two matrices."""

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
        template = numbers_of(blueprints[0].module)
        sizes = {name: template[name].numel() for name in blueprints[0].trained}
        shape = (len(blueprints), sum(sizes.values()))
        self._w, self._g = torch.zeros(shape), torch.zeros(shape)
        self._tensors: dict[str, Tensor] = {}
        self._slopes: dict[str, Tensor] = {}
        start = 0
        for name, size in sizes.items():
            for matrix, views in ((self._w, self._tensors), (self._g, self._slopes)):
                views[name] = matrix[:, start : start + size].view(shape[0], *template[name].shape)
            start += size
        self._fixed = {
            name: torch.empty(shape[0], *value.shape, dtype=value.dtype)
            for name, value in template.items()
            if name not in sizes
        }
        self._tensors |= self._fixed
        for place, module in enumerate(modules or ()):
            for name, value in blueprints[place].numbers(module).items():
                self._tensors[name][place] = value.detach()
        for place, state in enumerate(states or ()):
            self._load(place, state)
        recipes = [each.recipe for each in blueprints if each.recipe is not None]
        self._rule = rule(recipes, shape) if recipes else None
        self._own = [] if recipes else [self._stepping(place) for place in range(shape[0])]
        for place, state in enumerate(states or ()):
            self._remember(place, state)

    def _stepping(self, place: int) -> torch.optim.Optimizer:
        """Make an optimiser that steps by itself, on a config's rows of the matrices."""
        blueprint = self._blueprints[place]
        module = copy.deepcopy(blueprint.module)
        for name, weight in module.named_parameters():
            if name in self._slopes:
                weight.data = self._tensors[name][place]
        optimizer = self._creators.optimized(module, blueprint.config)
        for name, weight in module.named_parameters():
            weight.grad = self._slopes[name][place] if name in self._slopes else None
        return optimizer

    def _step(self) -> None:
        if self._rule is not None:
            self._rule.step(self._w, self._g, self.updates)
        for optimizer in self._own:
            optimizer.step()
        self.updates += 1

    def numbers(self, name: str) -> Tensor:
        return self._tensors[name]

    def states(self) -> list[State]:
        found = []
        for place in range(len(self.updates)):
            state: State = {"updates": self.updates[place : place + 1].copy(), "weights": array(self._w[place])}
            state |= {f"fixed/{name}": array(values[place]) for name, values in self._fixed.items()}
            if self._rule is not None:
                state |= {f"kept/{name}": array(values[place]) for name, values in self._rule.kept.items()}
            else:
                state |= memory_of(self._own[place])
            found.append(state)
        return found

    def _load(self, place: int, state: State) -> None:
        self.updates[place] = state["updates"][0]
        self._w[place] = torch.from_numpy(np.array(state["weights"]))
        for name, values in self._fixed.items():
            values[place] = state_tensor(state[f"fixed/{name}"], values.dtype)

    def _remember(self, place: int, state: State) -> None:
        if self._rule is None:
            remember(self._own[place], state)
            return
        for name, values in self._rule.kept.items():
            if f"kept/{name}" in state:  # what a config has no use for is kept for the sake of others only
                values[place] = torch.from_numpy(np.array(state[f"kept/{name}"]))


class Products(_Flat):
    """Modules that are chains of known layers."""

    def __init__(self, creators: Creators, blueprints: Sequence[Blueprint], seeds: Sequence[int], **given: Any) -> None:
        super().__init__(creators, blueprints, seeds, **given)
        chains = [each.layers for each in blueprints if each.layers is not None]
        self._layers = [layers[0].stacked(layers) for layers in zip(*chains, strict=True)]
        self._chance = [torch.Generator() for _ in blueprints]
        self._random = any(layer.random for layer in self._layers)
        trained = [place for place, layer in enumerate(self._layers) if any(n in self._slopes for n in layer.names)]
        self._first = min(trained)

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor | None) -> Doubles:
        if self._random:
            for generator, seed, count in zip(self._chance, self._seeds, self.updates.tolist(), strict=True):
                generator.manual_seed(mixed(seed, count))
        outputs, kept = self._outputs(x, self._chance)
        sums, slopes = self._loss(self._loss.formed(outputs.transpose(1, 2)), y, weight)
        d = slopes.unsqueeze(1) if slopes.dim() == 2 else slopes.transpose(1, 2)
        for place in range(len(self._layers) - 1, self._first - 1, -1):
            d = self._layers[place].back(d, kept[place], self._tensors, self._slopes, place > self._first)
        self._step()
        return sums

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        return self._loss.formed(self._outputs(x, None)[0].transpose(1, 2))

    def _outputs(self, x: Tensor, chance: Generators | None) -> tuple[Tensor, list[Any]]:
        a, remembered = x.t().expand(len(self.updates), -1, -1), []
        for layer in self._layers:
            a, kept = layer.ahead(a, self._tensors, chance)
            remembered.append(kept)
        return a, remembered


class Vmapped(_Flat):
    """Other modules whose code can run on several configs' numbers at once."""

    def __init__(self, creators: Creators, blueprints: Sequence[Blueprint], seeds: Sequence[int], **given: Any) -> None:
        super().__init__(creators, blueprints, seeds, **given)
        self._module = blueprints[0].module
        self._run = functional(self._module)
        self._leaves = {name: self._tensors[name].detach().requires_grad_() for name in self._slopes}

    @torch.enable_grad()
    def step(self, x: Tensor, y: Tensor, weight: Tensor | None) -> Doubles:
        self._module.train()
        outputs = self._run({**self._fixed, **self._leaves}, x)
        with torch.no_grad():
            scores = self._loss.formed(outputs.detach())
            sums, slopes = self._loss(scores, y, weight)
            found = torch.autograd.grad(outputs, list(self._leaves.values()), slopes.reshape(outputs.shape))
            for place, slope in zip(self._slopes.values(), found, strict=True):
                place.copy_(slope)
            self._step()
        return sums

    @torch.no_grad()
    def scores(self, x: Tensor) -> Tensor:
        self._module.eval()
        return self._loss.formed(self._run(self._tensors, x))
