"""Whether modules can be stacked, and which of them with one another.

A stack runs one module's code on several configs' numbers. That is right where modules are alike in all but their numbers,
where their code does nothing but compute, and where `torch.vmap` can follow it; what cannot be told is tried.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def numbers_of(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's parameters and buffers by name."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def plain(module: nn.Module) -> bool:
    """Say whether a module is nothing but its numbers and its code: on this machine's processor, without hooks."""
    if any(number.device.type != "cpu" for number in numbers_of(module).values()):
        return False
    if any(number.dtype != torch.float32 for number in module.parameters()):
        return False
    return not any(getattr(each, hooks) for each in module.modules() for hooks in _HOOKS)


def functional(module: nn.Module) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """Return a function of a stack of numbers, by name, and of rows, the same for all: outputs of each config."""

    def one(numbers: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        outputs: Tensor = torch.func.functional_call(module, dict(numbers), (rows,))
        return outputs

    # Chance would hang on which other configs there are.
    return torch.vmap(one, in_dims=(0, None), randomness="error")


def stackable(module: nn.Module, rows: Tensor, weights: Sequence[Tensor]) -> bool:
    """Try whether `functional` gives what the module itself gives, by all of its weights and leaving its buffers alone."""
    numbers = numbers_of(module)
    before = {name: number.detach().clone() for name, number in numbers.items()}
    try:
        with torch.random.fork_rng(devices=[]):
            alone = module(rows)
            torch.autograd.grad(alone.sum(), weights)  # fails where one has no slope
            if not all(torch.equal(number, before[name]) for name, number in numbers.items()):
                return False
            twice = {name: torch.stack([number, number]) for name, number in before.items()}
            together = functional(module)(twice, rows)
        return together.shape == (2, *alone.shape) and all(
            torch.allclose(each, alone, rtol=1e-3, atol=1e-5, equal_nan=True) for each in together
        )
    except Exception:  # whatever it is that cannot be stacked
        return False


def structure(module: nn.Module) -> Hashable:
    """Tell what a module is beside its numbers, so that modules told alike do alike."""
    inner = ("_parameters", "_buffers", "_modules", *_HOOKS)
    return tuple(
        (name, _told(type(each)), tuple((k, _told(v)) for k, v in vars(each).items() if k not in inner))
        for name, each in module.named_modules()
    )


def _told(value: Any) -> Hashable:
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.device):
        return type(value).__name__, repr(value)
    if isinstance(value, Mapping):
        return "mapping", tuple((_told(key), _told(each)) for key, each in value.items())
    if isinstance(value, set | frozenset):
        return "set", frozenset(_told(each) for each in value)
    if isinstance(value, Sequence):
        return type(value).__name__, tuple(_told(each) for each in value)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(name, str) and getattr(sys.modules.get(module or "builtins"), name, None) is value:
        return "named", module, name
    return "object", id(value)
