"""How optimizers change the weights of a stack: torch's own formulas, a row of numbers for each config.

What an optimizer was given (its rate, its momentum, …) is read from it, and may differ by config and, by groups of
parameters, by weight. Optimizers that are not known here step by themselves, config after config; all that they remember is
saved as plain arrays and put back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.errors import UsageError

Doubles = NDArray[np.float64]
Counts = NDArray[np.int64]
_RATES: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.SGD: ("lr", "momentum", "dampening", "weight_decay"),
    torch.optim.Adam: ("lr", "betas", "eps", "weight_decay"),
    torch.optim.AdamW: ("lr", "betas", "eps", "weight_decay"),
    torch.optim.RMSprop: ("lr", "momentum", "alpha", "eps", "weight_decay"),
    torch.optim.Adagrad: ("lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value"),
}
_FLAGS = ("nesterov", "amsgrad", "centered", "decoupled_weight_decay")
_REFUSED = ("maximize", "differentiable")


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """What an optimizer does, as far as it is known here."""

    kind: type[torch.optim.Optimizer]
    flags: tuple[bool, ...]  # what it does differently, of `_FLAGS`
    rates: Mapping[str, Doubles]  # its numbers: one for all weights, or one for each

    @property
    def key(self) -> Hashable:
        """What two configs have in common that can be in one stack."""
        return self.kind, self.flags

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, weights: Sequence[torch.nn.Parameter]) -> UpdateRule | None:
        """Read an optimizer, or return None where it has to step by itself."""
        kind, groups = type(optimizer), optimizer.param_groups
        hooks = [getattr(optimizer, f"_optimizer_step_{when}_hooks", None) for when in ("pre", "post")]
        flags = {tuple(bool(group.get(flag, False)) for flag in _FLAGS) for group in groups}
        if kind not in _RATES or any(hooks) or len(flags) > 1 or "step" in vars(optimizer):
            return None
        if any(group.get(flag) for group in groups for flag in _REFUSED):
            return None
        if kind is not torch.optim.Adagrad and optimizer.state:
            return None
        owner = {id(weight): group for group in groups for weight in group["params"]}
        rates = {
            name: np.concatenate(
                [np.full(weight.numel(), value) for weight, value in zip(weights, values, strict=True)]
            )
            for name, values in _numbers(_RATES[kind], [owner[id(weight)] for weight in weights]).items()
        }
        alike = {name: values[:1] if (values == values[0]).all() else values for name, values in rates.items()}
        return cls(kind, flags.pop(), alike)


def _numbers(names: Sequence[str], groups: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name in names:
        if name == "betas":
            found["beta1"] = [float(group[name][0]) for group in groups]
            found["beta2"] = [float(group[name][1]) for group in groups]
        else:
            found[name] = [float(group[name]) for group in groups]
    return found


class Rule:
    """Changes the weights of a stack by their slopes; ``kept`` is what is remembered of weights, (configs, weights) each."""

    def __init__(self, rules: Sequence[UpdateRule], shape: tuple[int, int]) -> None:
        self.kept: dict[str, Tensor] = {}
        self._shape = shape
        self._flags = dict(zip(_FLAGS, rules[0].flags, strict=True))
        self._rates = {name: _rows([rule.rates[name] for rule in rules]) for name in rules[0].rates}
        self._decay = self._row(self._rates["weight_decay"]) if self._rates["weight_decay"].any() else None

    def step(self, w: Tensor, g: Tensor, updates: Counts) -> None:
        """Change weights in place; slopes are used up. ``updates`` is how many each config has had before."""
        raise NotImplementedError

    def _keep(self, name: str, value: float | Tensor = 0.0) -> Tensor:
        self.kept[name] = torch.zeros(self._shape) + value
        return self.kept[name]

    @staticmethod
    def _row(values: Doubles) -> Tensor:
        return torch.from_numpy(values.astype(np.float32))


class Sgd(Rule):
    """SGD with momentum, Nesterov's among them, and decay."""

    def __init__(self, rules: Sequence[UpdateRule], shape: tuple[int, int]) -> None:
        super().__init__(rules, shape)
        rates = self._rates
        self._down, self._momentum = self._row(-rates["lr"]), self._row(rates["momentum"])
        self._moving = self._keep("momentum") if rates["momentum"].any() else None
        self._damped = 1 - np.where(rates["momentum"] != 0, rates["dampening"], 0.0)

    def step(self, w: Tensor, g: Tensor, updates: Counts) -> None:
        if self._decay is not None:
            g.addcmul_(w, self._decay)
        if self._moving is not None:
            moving = self._moving.mul_(self._momentum)
            if (self._damped != 1).any():  # all slopes but the first
                moving.addcmul_(g, self._row(np.where(updates[:, None] > 0, self._damped, 1.0)))
            else:
                moving.add_(g)
            g = g.addcmul_(moving, self._momentum) if self._flags["nesterov"] else moving
        w.addcmul_(g, self._down)


class Adam(Rule):
    """Adam, and AdamW, whose decay goes by the rate instead of by the slopes."""

    def __init__(self, rules: Sequence[UpdateRule], shape: tuple[int, int]) -> None:
        super().__init__(rules, shape)
        rates = self._rates
        self._new1, self._old2, self._new2 = (
            self._row(rate) for rate in (1 - rates["beta1"], rates["beta2"], 1 - rates["beta2"])
        )
        self._eps, self._shrink = self._row(rates["eps"]), self._row(1 - rates["lr"] * rates["weight_decay"])
        self._mean, self._square = self._keep("mean"), self._keep("square")
        self._most = self._keep("most") if self._flags["amsgrad"] else None

    def step(self, w: Tensor, g: Tensor, updates: Counts) -> None:
        rates, count = self._rates, updates[:, None] + 1.0
        if self._decay is not None:
            if self._flags["decoupled_weight_decay"]:
                w.mul_(self._shrink)
            else:
                g.addcmul_(w, self._decay)
        self._mean.lerp_(g, self._new1)
        square = self._square.mul_(self._old2).addcmul_(g * self._new2, g)
        if self._most is not None:
            square = torch.maximum(self._most, square, out=self._most)
        spread = square.sqrt().div_(self._row(np.sqrt(1 - rates["beta2"] ** count))).add_(self._eps)
        w.addcdiv_(self._mean * self._row(-rates["lr"] / (1 - rates["beta1"] ** count)), spread)


class RmsProp(Rule):
    """RMSprop, centred or not, with momentum or without."""

    def __init__(self, rules: Sequence[UpdateRule], shape: tuple[int, int]) -> None:
        super().__init__(rules, shape)
        rates = self._rates
        self._old, self._new, self._eps = (
            self._row(rate) for rate in (rates["alpha"], 1 - rates["alpha"], rates["eps"])
        )
        self._down, self._momentum = self._row(-rates["lr"]), self._row(rates["momentum"])
        self._square = self._keep("square")
        self._mean = self._keep("mean") if self._flags["centered"] else None
        self._moving = self._keep("momentum") if rates["momentum"].any() else None

    def step(self, w: Tensor, g: Tensor, updates: Counts) -> None:
        if self._decay is not None:
            g.addcmul_(w, self._decay)
        spread = self._square.mul_(self._old).addcmul_(g * self._new, g)
        if self._mean is not None:
            self._mean.lerp_(g, self._new)
            spread = spread.addcmul(self._mean, self._mean, value=-1)
        spread = spread.sqrt().add_(self._eps)
        if self._moving is None:
            w.addcdiv_(g * self._down, spread)
        else:
            w.addcmul_(self._moving.mul_(self._momentum).addcdiv_(g, spread), self._down)


class Adagrad(Rule):
    """Adagrad, whose rate may fall."""

    def __init__(self, rules: Sequence[UpdateRule], shape: tuple[int, int]) -> None:
        super().__init__(rules, shape)
        self._eps = self._row(self._rates["eps"])
        self._sum = self._keep("sum", self._row(self._rates["initial_accumulator_value"]))

    def step(self, w: Tensor, g: Tensor, updates: Counts) -> None:
        rates = self._rates
        if self._decay is not None:
            g.addcmul_(w, self._decay)
        spread = self._sum.addcmul_(g, g).sqrt().add_(self._eps)
        w.addcdiv_(g * self._row(-rates["lr"] / (1 + updates[:, None] * rates["lr_decay"])), spread)


_RULES: dict[type[torch.optim.Optimizer], Callable[[Sequence[UpdateRule], tuple[int, int]], Rule]] = {
    torch.optim.SGD: Sgd,
    torch.optim.Adam: Adam,
    torch.optim.AdamW: Adam,
    torch.optim.RMSprop: RmsProp,
    torch.optim.Adagrad: Adagrad,
}


def rule(rules: Sequence[UpdateRule], shape: tuple[int, int]) -> Rule:
    """Return the rule of several configs' optimizers, of one key."""
    return _RULES[rules[0].kind](rules, shape)


def _rows(each: Sequence[Doubles]) -> Doubles:
    """Return the numbers of all configs, a row each: as many as there are weights, or one where that is enough."""
    width = max(map(len, each))
    return np.stack([np.broadcast_to(values, width) for values in each])


State = dict[str, NDArray[Any]]
_WIDE = {torch.bfloat16: torch.int16}
"""Types that NumPy has not, and those whose bits stand for them."""


def require_plain(optimizer: Any) -> None:
    """Raise `UsageError` unless an optimizer is one, and can step without being given a function."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"optimizer_creator returned {optimizer!r}; it has to return an optimizer of the module's parameters, such as"
            " torch.optim.SGD(module.parameters(), lr=config['lr'])"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"{type(optimizer).__name__} asks for the loss several times in a step, which training over groups cannot"
            " give it; choose one that steps by slopes alone, such as torch.optim.Adam"
        )


def array(tensor: Tensor) -> NDArray[Any]:
    """Return a copy of a tensor, to the last bit."""
    plain = tensor.detach().cpu()
    plain = plain.view(_WIDE[plain.dtype]) if plain.dtype in _WIDE else plain
    copied: NDArray[Any] = plain.numpy().copy()
    return copied


def state_tensor(values: NDArray[Any], dtype: torch.dtype) -> Tensor:
    """Return what `array` made an array of."""
    made = torch.from_numpy(np.array(values))
    return made.view(dtype) if dtype in _WIDE else made.to(dtype)


def memory_of(optimizer: torch.optim.Optimizer) -> State:
    """Return all that an optimizer remembers."""
    memory: State = {}
    for group, entry in enumerate(optimizer.param_groups):
        for name, value in entry.items():
            if isinstance(value, bool | int | float | Tensor):
                memory |= _state_entry(f"group/{group}", name, value)
        for place, weight in enumerate(entry["params"]):
            for name, value in optimizer.state.get(weight, {}).items():
                if value is None:
                    continue
                if not isinstance(value, bool | int | float | Tensor):
                    raise UsageError(
                        f"{type(optimizer).__name__} keeps {name!r}, a {type(value).__name__}, of a parameter; only"
                        " tensors and numbers can be carried from worker to worker: choose another optimizer"
                    )
                memory |= _state_entry(f"weight/{group}/{place}", name, value)
    return memory


def remember(optimizer: torch.optim.Optimizer, memory: Mapping[str, NDArray[Any]]) -> None:
    """Put back what `memory_of` returned."""
    for key, values in memory.items():
        what, *path = key.split("/")
        if what not in ("group", "weight"):
            continue
        entry: Any = optimizer.param_groups[int(path[0])]
        if what == "weight":
            entry = optimizer.state[entry["params"][int(path[1])]]
        form, name = path[-2:]
        entry[name] = values.item() if form == "number" else state_tensor(values, getattr(torch, form))


def _state_entry(place: str, name: str, value: Any) -> State:
    if isinstance(value, Tensor):
        return {f"{place}/{str(value.dtype).removeprefix('torch.')}/{name}": array(value)}
    return {f"{place}/number/{name}": np.array(value)}
