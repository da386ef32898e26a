"""Reads a module as a chain of layers, one after another, which a stack can go through by products of matrices.

The module's own code is followed (`torch.fx`), so that a class with a ``forward`` is read as well as an
``nn.Sequential``. Anything but a plain chain of the layers known here is left to others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from penstock.torch.layers import Affine, BatchNorm, Dropout, Layer, LayerNorm, Linear, Pointwise

_FUNCTIONS: dict[Any, Callable[..., Layer]] = {
    torch.relu: lambda: Pointwise("relu"),
    torch.tanh: lambda: Pointwise("tanh"),
    torch.sigmoid: lambda: Pointwise("sigmoid"),
    F.tanh: lambda: Pointwise("tanh"),
    F.sigmoid: lambda: Pointwise("sigmoid"),
    F.relu: lambda inplace=False: Pointwise("relu"),
    F.silu: lambda inplace=False: Pointwise("silu"),
    F.gelu: lambda approximate="none": Pointwise("gelu", approximate),
    F.leaky_relu: lambda negative_slope=0.01, inplace=False: Pointwise("leaky_relu", negative_slope),
    F.elu: lambda alpha=1.0, inplace=False: Pointwise("elu", alpha),
    "relu": lambda: Pointwise("relu"),
    "tanh": lambda: Pointwise("tanh"),
    "sigmoid": lambda: Pointwise("sigmoid"),
}
"""What functions and methods of a tensor are as layers, from their further arguments."""
_MODULES: dict[type[nn.Module], Callable[[Any], Layer]] = {
    nn.ReLU: lambda module: Pointwise("relu"),
    nn.Tanh: lambda module: Pointwise("tanh"),
    nn.Sigmoid: lambda module: Pointwise("sigmoid"),
    nn.SiLU: lambda module: Pointwise("silu"),
    nn.GELU: lambda module: Pointwise("gelu", module.approximate),
    nn.LeakyReLU: lambda module: Pointwise("leaky_relu", module.negative_slope),
    nn.ELU: lambda module: Pointwise("elu", module.alpha),
    nn.Dropout: lambda module: Dropout([module.p]),
}
_FLATTEN = (torch.flatten, "flatten")
_SQUEEZE = (torch.squeeze, "squeeze")


class _Other(Exception):  # noqa: N818 - it is no error, it says which way to go
    """A module is no chain of known layers."""


def chain(module: nn.Module) -> tuple[Layer, ...] | None:
    """Return the layers of a module in their order, or None where it is not a chain of known ones.

    Examples
    --------
    >>> [layer.key for layer in chain(nn.Sequential(nn.Linear(4, 2), nn.Flatten(), nn.Tanh()))]
    [('linear', '0', True), ('tanh', None)]
    >>> chain(nn.Sequential(nn.Conv1d(1, 1, 3))) is None
    True
    """
    numbers = list(module.named_parameters(remove_duplicate=False))
    if any(number.dtype != torch.float32 for _, number in numbers) or len({id(n) for _, n in numbers}) < len(numbers):
        return None
    if type(module) is nn.Linear:  # torch.fx looks into what it is given, though not into what is in that
        return (Linear("", bias=module.bias is not None),)
    mode = module.training
    try:
        found = [_Reading(module.train(learning)).layers for learning in (True, False)]
    except Exception:  # the module's own code runs here, and may fail with anything where it cannot be followed
        return None
    finally:
        module.train(mode)
    names = [name for layer in found[0] for name in layer.names]
    if [layer.key for layer in found[0]] != [layer.key for layer in found[1]] or len(set(names)) < len(names):
        return None
    return found[0]


class _Reading:
    """Follows a module from node to node."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._width: int | None = None
        self._ended = False
        found: list[Layer] = []
        before: fx.Node | None = None
        for node in fx.Tracer().trace(module).nodes:
            if (before is None) != (node.op == "placeholder") or (self._ended and node.op != "output"):
                raise _Other
            if before is not None and (node.all_input_nodes != [before] or node.args[0] is not before):
                raise _Other
            if node.op not in ("placeholder", "output"):
                layer = self._layer(node)
                found += [] if layer is None else [layer]
            before = node
        self.layers = tuple(found)

    def _layer(self, node: fx.Node) -> Layer | None:
        if node.op == "call_module":
            if len(node.args) > 1 or node.kwargs:
                raise _Other
            return self._of_module(str(node.target), self._module.get_submodule(str(node.target)))
        if node.op not in ("call_function", "call_method"):
            raise _Other
        if node.target in _FLATTEN:
            arguments = (*node.args[1:], *node.kwargs.values())
            if arguments not in ((1,), (1, -1)):
                raise _Other
            return None
        if node.target in _SQUEEZE:
            if (*node.args[1:], *node.kwargs.values()) not in ((-1,), (1,)) or self._width != 1:
                raise _Other
            self._ended = True
            return None
        if node.target not in _FUNCTIONS:
            raise _Other
        return _FUNCTIONS[node.target](*node.args[1:], **node.kwargs)

    def _of_module(self, name: str, module: nn.Module) -> Layer | None:
        kind = type(module)
        if kind is nn.Identity or (isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)):
            return None
        if isinstance(module, nn.Linear) and kind is nn.Linear:
            self._width = module.out_features
            return Linear(name, bias=module.bias is not None)
        if isinstance(module, nn.LayerNorm) and kind is nn.LayerNorm and len(module.normalized_shape) == 1:
            affine = Affine.of(name, weight=module.weight is not None, bias=module.bias is not None)
            return LayerNorm(affine, module.normalized_shape[0], module.eps)
        if isinstance(module, nn.BatchNorm1d) and kind is nn.BatchNorm1d:
            if module.momentum is None or not module.track_running_stats:
                raise _Other
            affine = Affine.of(name, weight=module.weight is not None, bias=module.bias is not None)
            return BatchNorm(affine, name, momentum=module.momentum, eps=module.eps)
        if kind not in _MODULES:
            raise _Other
        return _MODULES[kind](module)
