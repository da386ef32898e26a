"""Configs of one architecture that learn from the same rows, and the three ways to train them.

By products of matrices (`Products`) or by `torch.vmap` (`Vmapped`): a row of one matrix has all the weights of a config, and a
row of another their slopes, so that an optimizer's step is a few operations for all configs. Rows do not mix, so a config
with weights that are not finite affects no other. What cannot run on several configs' numbers at once is trained one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from penstock.groups.modules import finite
from penstock.torch.creators import Blueprint, Creators, functional, numbers_of
from penstock.torch.layers import Generators
from penstock.torch.optimizers import Doubles, State, array, memory_of, remember, rule, state_tensor

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

    def __init__(
        self,
        creators: Creators,
        blueprints: Sequence[Blueprint],
        seeds: Sequence[int],
        *,
        batch_size: int,
        modules: Sequence[nn.Module] | None,
        states: Sequence[State] | None,
    ) -> None:
        blueprints[0].require_rows(batch_size)
        self._batch_size = batch_size
        self.updates = np.zeros(len(blueprints), np.int64)
        self._creators, self._blueprints, self._seeds = creators, blueprints, seeds
        self._loss = creators.loss
        self._layout = blueprints[0].layout
        named = dict(blueprints[0].module.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        self._alias = {name: first.setdefault(id(weight), name) for name, weight in named.items()}
        self._begin(modules, states)

    def _begin(self, modules: Sequence[nn.Module] | None, states: Sequence[State] | None) -> None:
        """Set the numbers of modules that are new, or of states to go on from."""
        raise NotImplementedError

    def batches(self, rows: int) -> list[int]:
        """Return where each batch of some rows ends; one with too few at the end is joined to the one before it."""
        ends = [*range(self._batch_size, rows, self._batch_size), rows]
        if rows - ([0, *ends][-2]) < self._blueprints[0].least:
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


class _Flat(Part):
    """Weights and slopes as rows of two matrices."""

    def _begin(self, modules: Sequence[nn.Module] | None, states: Sequence[State] | None) -> None:
        blueprints = self._blueprints
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
        rules = [each.rule for each in blueprints if each.rule is not None]
        self._rule = rule(rules, shape) if rules else None
        self._own = [] if rules else [self._stepping(place) for place in range(shape[0])]
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

    def _begin(self, modules: Sequence[nn.Module] | None, states: Sequence[State] | None) -> None:
        super()._begin(modules, states)
        chains = [each.layers for each in self._blueprints if each.layers is not None]
        self._layers = [layers[0].stacked(layers) for layers in zip(*chains, strict=True)]
        self._chance = [torch.Generator() for _ in self._blueprints]
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

    def _begin(self, modules: Sequence[nn.Module] | None, states: Sequence[State] | None) -> None:
        super()._begin(modules, states)
        self._module = self._blueprints[0].module
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


class OneByOne(Part):
    """Modules that have nothing in common but their rows; each is trained as it would be alone."""

    def _begin(self, modules: Sequence[nn.Module] | None, states: Sequence[State] | None) -> None:
        creators, blueprints = self._creators, self._blueprints
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
