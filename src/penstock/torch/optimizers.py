"""Optimisers that step by themselves: all that they remember, taken out as plain arrays and put back.

Tensors and numbers are kept, of each parameter and of each group of parameters (some count in those). What cannot be
put so is refused, and so are optimisers that want to ask for the loss again within a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.errors import UsageError

State = dict[str, NDArray[Any]]
_WIDE = {torch.bfloat16: torch.int16}
"""Types that NumPy has not, and those whose bits stand for them."""


def require_plain(optimizer: Any) -> None:
    """Raise `UsageError` unless an optimiser is one, and can step without being given a function."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"optimizer_creator returned {optimizer!r}; it has to return an optimiser of the module's parameters, such as"
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
    """Return all that an optimiser remembers."""
    told: State = {}
    for group, entry in enumerate(optimizer.param_groups):
        for name, value in entry.items():
            if isinstance(value, bool | int | float | Tensor):
                told |= _told(f"group/{group}", name, value)
        for place, weight in enumerate(entry["params"]):
            for name, value in optimizer.state.get(weight, {}).items():
                if value is None:
                    continue
                if not isinstance(value, bool | int | float | Tensor):
                    raise UsageError(
                        f"{type(optimizer).__name__} keeps {name!r}, a {type(value).__name__}, of a parameter; only"
                        " tensors and numbers can be carried from worker to worker: choose another optimiser"
                    )
                told |= _told(f"weight/{group}/{place}", name, value)
    return told


def remember(optimizer: torch.optim.Optimizer, told: Mapping[str, NDArray[Any]]) -> None:
    """Put back what `memory_of` returned."""
    for key, values in told.items():
        what, *path = key.split("/")
        if what not in ("group", "weight"):
            continue
        entry: Any = optimizer.param_groups[int(path[0])]
        if what == "weight":
            entry = optimizer.state[entry["params"][int(path[1])]]
        form, name = path[-2:]
        entry[name] = values.item() if form == "number" else state_tensor(values, getattr(torch, form))


def _told(place: str, name: str, value: Any) -> State:
    if isinstance(value, Tensor):
        return {f"{place}/{str(value.dtype).removeprefix('torch.')}/{name}": array(value)}
    return {f"{place}/number/{name}": np.array(value)}
