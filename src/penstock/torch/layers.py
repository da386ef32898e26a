"""Layers of small modules for a stack of configs, and how a module is read as a chain of them.

A layer is one product of matrices for all configs, with slopes by hand. What flows is ``(configs, features, rows)``: a first
layer takes the same rows for every config, and no product needs its operands moved. Slopes go back through torch's own
formulas, without its tape, which costs more than products as small as these. A layer knows its parameters by name; their
numbers come from whoever holds the stack. `chain` follows the module's own code (`torch.fx`), so that a class with a
``forward`` is read as well as an ``nn.Sequential``; anything but a plain chain of known layers takes another way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

Tensors = Mapping[str, Tensor]
Generators = Sequence[torch.Generator]
_aten = torch.ops.aten


class Layer:
    """A step of the way from rows to scores.

    ``ahead`` returns what comes out and what ``back`` wants to remember. ``back`` writes the slopes of the parameters that
    have a place for them, and returns those of what came in, if that is asked.
    """

    key: Hashable
    """What two layers have in common that can be one in a stack."""
    names: tuple[str, ...] = ()
    """Its parameters."""
    random: bool = False
    """Whether it draws by chance while learning."""

    def stacked(self, others: Sequence[Layer]) -> Layer:
        """Return the layer of several configs; their keys are equal."""
        return self

    def ahead(self, a: Tensor, tensors: Tensors, chance: Generators | None) -> tuple[Tensor, Any]:
        raise NotImplementedError

    def back(self, d: Tensor, kept: Any, tensors: Tensors, slopes: Tensors, deeper: bool) -> Tensor:
        raise NotImplementedError


class Linear(Layer):
    """Weights times what comes in, and a bias."""

    def __init__(self, name: str, *, bias: bool) -> None:
        place = f"{name}." if name else ""
        self._weight, self._bias, self._biased = f"{place}weight", f"{place}bias", bias
        self.names = (self._weight, self._bias) if bias else (self._weight,)
        self.key = ("linear", name, bias)

    def ahead(self, a: Tensor, tensors: Tensors, chance: Generators | None) -> tuple[Tensor, Any]:
        weight = tensors[self._weight]
        if not self._biased:
            return torch.bmm(weight, a), a
        return torch.baddbmm(tensors[self._bias].unsqueeze(2), weight, a), a

    def back(self, d: Tensor, kept: Any, tensors: Tensors, slopes: Tensors, deeper: bool) -> Tensor:
        if self._weight in slopes:
            slopes[self._weight].copy_(torch.bmm(d, kept.transpose(1, 2)))
        if self._bias in slopes:
            torch.sum(d, 2, out=slopes[self._bias])
        return torch.bmm(tensors[self._weight].transpose(1, 2), d) if deeper else d


POINTWISE: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "relu": (lambda a, _: torch.relu(a), lambda d, a, out, _: _aten.threshold_backward(d, out, 0)),
    "tanh": (lambda a, _: torch.tanh(a), lambda d, a, out, _: _aten.tanh_backward(d, out)),
    "sigmoid": (lambda a, _: torch.sigmoid(a), lambda d, a, out, _: _aten.sigmoid_backward(d, out)),
    "silu": (lambda a, _: F.silu(a), lambda d, a, out, _: _aten.silu_backward(d, a)),
    "gelu": (
        lambda a, form: F.gelu(a, approximate=form),
        lambda d, a, out, form: _aten.gelu_backward(d, a, approximate=form),
    ),
    "leaky_relu": (F.leaky_relu, lambda d, a, out, slope: _aten.leaky_relu_backward(d, a, slope, False)),
    "elu": (F.elu, lambda d, a, out, alpha: _aten.elu_backward(d, alpha, 1, 1, False, a)),
}
"""Functions of a number and of an argument: what they give, and their slope from what came in and what came out."""


class Pointwise(Layer):
    """A function of each number, one of `POINTWISE`."""

    def __init__(self, name: str, argument: Any = None) -> None:
        self._value, self._slope = POINTWISE[name]
        self._argument = argument
        self.key = (name, argument)

    def ahead(self, a: Tensor, tensors: Tensors, chance: Generators | None) -> tuple[Tensor, Any]:
        out = self._value(a, self._argument)
        return out, (a, out)

    def back(self, d: Tensor, kept: Any, tensors: Tensors, slopes: Tensors, deeper: bool) -> Tensor:
        return self._slope(d, *kept, self._argument) if deeper else d


class Dropout(Layer):
    """Zeros a share of the numbers while learning, of each config by its own share and chance."""

    key = "dropout"

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = tuple(shares)
        self.random = any(shares)

    def stacked(self, others: Sequence[Layer]) -> Dropout:
        return Dropout([share for other in others if isinstance(other, Dropout) for share in other._shares])

    def ahead(self, a: Tensor, tensors: Tensors, chance: Generators | None) -> tuple[Tensor, Any]:
        if chance is None or not self.random:
            return a, None
        mask = torch.empty(a.shape)
        for part, share, generator in zip(mask, self._shares, chance, strict=True):
            if share:
                part.bernoulli_(1 - share, generator=generator).mul_(1 / (1 - share) if share < 1 else 0)
            else:
                part.fill_(1)
        return a * mask, mask

    def back(self, d: Tensor, kept: Any, tensors: Tensors, slopes: Tensors, deeper: bool) -> Tensor:
        return d if kept is None else d * kept


@dataclass(frozen=True, slots=True)
class Affine:
    """The weight and the bias of a layer that normalises, where it has them."""

    weight: str | None
    bias: str | None

    @classmethod
    def of(cls, name: str, *, weight: bool, bias: bool) -> Affine:
        return cls(f"{name}.weight" if weight else None, f"{name}.bias" if bias else None)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weight, self.bias) if name is not None)


class LayerNorm(Layer):
    """Brings the features of each row to mean 0 and spread 1."""

    def __init__(self, affine: Affine, width: int, eps: float) -> None:
        self._affine, self._shape, self._eps = affine, [width], eps
        self.names = affine.names
        self.key = ("layer norm", affine, width, eps)

    def ahead(self, a: Tensor, tensors: Tensors, chance: Generators | None) -> tuple[Tensor, Any]:
        rows = a.transpose(1, 2).contiguous()
        out, mean, spread = _aten.native_layer_norm(rows, self._shape, None, None, self._eps)
        kept = (rows, out, mean, spread)
        if self._affine.weight is not None:
            out = out * tensors[self._affine.weight].unsqueeze(1)
        if self._affine.bias is not None:
            out = out + tensors[self._affine.bias].unsqueeze(1)
        return out.transpose(1, 2), kept

    def back(self, d: Tensor, kept: Any, tensors: Tensors, slopes: Tensors, deeper: bool) -> Tensor:
        rows, out, mean, spread = kept
        d = d.transpose(1, 2).contiguous()
        weight, bias = self._affine.weight, self._affine.bias
        if bias in slopes:
            torch.sum(d, 1, out=slopes[bias])  # type: ignore[index]  # None is in no mapping
        if weight in slopes:
            torch.sum(d * out, 1, out=slopes[weight])  # type: ignore[index]  # None is in no mapping
        if not deeper:
            return d
        if weight is not None:
            d = d * tensors[weight].unsqueeze(1)
        found = _aten.native_layer_norm_backward(d, rows, self._shape, mean, spread, None, None, [True, False, False])
        inner: Tensor = found[0]
        return inner.transpose(1, 2)


class BatchNorm(Layer):
    """Brings each feature to mean 0 and spread 1 over the rows of a batch, and keeps what these were for rows to come.

    To torch's formulas a feature of a config is a channel like any other.
    """

    def __init__(self, affine: Affine, name: str, *, momentum: float, eps: float) -> None:
        self._affine, self._momentum, self._eps = affine, momentum, eps
        self._mean, self._spread, self._seen = (
            f"{name}.{each}" for each in ("running_mean", "running_var", "num_batches_tracked")
        )
        self.names = affine.names
        self.key = ("batch norm", affine, name, momentum, eps)

    def ahead(self, a: Tensor, tensors: Tensors, chance: Generators | None) -> tuple[Tensor, Any]:
        flat = a.reshape(1, -1, a.shape[2])
        learning = chance is not None
        if learning:
            tensors[self._seen].add_(1)
        numbers = (*self._weights(tensors), tensors[self._mean].view(-1), tensors[self._spread].view(-1))
        out, mean, spread = _aten.native_batch_norm(flat, *numbers, learning, self._momentum, self._eps)
        return out.view(a.shape), (flat, mean, spread)

    def back(self, d: Tensor, kept: Any, tensors: Tensors, slopes: Tensors, deeper: bool) -> Tensor:
        flat, mean, spread = kept
        weight, bias = self._affine.weight, self._affine.bias
        asked = [deeper, weight in slopes, bias in slopes]
        inner, by_weight, by_bias = _aten.native_batch_norm_backward(
            d.reshape(flat.shape), flat, self._weights(tensors)[0], None, None, mean, spread, True, self._eps, asked
        )
        for name, found in ((weight, by_weight), (bias, by_bias)):
            if name in slopes:
                slopes[name].copy_(found.view(d.shape[:2]))  # type: ignore[index]  # None is in no mapping
        return inner.view(d.shape) if deeper else d

    def _weights(self, tensors: Tensors) -> tuple[Tensor | None, Tensor | None]:
        weight, bias = (
            None if name is None else tensors[name].reshape(-1) for name in (self._affine.weight, self._affine.bias)
        )
        return weight, bias


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
