"""A user's two functions, one that makes a module and one that makes its optimizer, and what they make of a config.

A `Blueprint` is read once for each config: what is trained, by which optimizer, and which way a stack of such modules can be
trained. Configs whose blueprints have the same key go into one stack, which runs one module's code on several configs'
numbers. That is right where modules are alike in all but their numbers, where their code does nothing but compute, and
where `torch.vmap` can follow it; what cannot be read from a module is tried.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError, UsageError
from penstock.torch.layers import Layer, chain
from penstock.torch.optimizers import UpdateRule, require_plain
from penstock.torch.scoring import ModuleLoss

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
        (name, _description(type(each)), tuple((k, _description(v)) for k, v in vars(each).items() if k not in inner))
        for name, each in module.named_modules()
    )


def _description(value: Any) -> Hashable:
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.device):
        return type(value).__name__, repr(value)
    if isinstance(value, Mapping):
        return "mapping", tuple((_description(key), _description(each)) for key, each in value.items())
    if isinstance(value, set | frozenset):
        return "set", frozenset(_description(each) for each in value)
    if isinstance(value, Sequence):
        return type(value).__name__, tuple(_description(each) for each in value)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(name, str) and getattr(sys.modules.get(module or "builtins"), name, None) is value:
        return "named", module, name
    return "object", id(value)


Config = Mapping[str, Any]
ModelCreator = Callable[[dict[str, Any]], nn.Module]
OptimizerCreator = Callable[[nn.Module, dict[str, Any]], torch.optim.Optimizer]
_ROWS = 3
"""Rows that a module is tried on."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a config's module is."""

    config: dict[str, Any]
    module: nn.Module  # one such module, whose own numbers mean nothing
    layout: Sequence[tuple[str, tuple[int, ...], str]]  # name, shape and type of what its ``state_dict`` holds
    trained: tuple[str, ...]  # the parameters that the optimizer changes, in the module's order
    layers: tuple[Layer, ...] | None  # if it is a chain of known ones
    rule: UpdateRule | None  # what its optimizer does, if that is known
    outputs: int  # scores of a row
    least: int  # rows that a batch must have: two for a module that normalizes over them
    way: str  # products, vmap or one by one
    key: Hashable  # equal for configs that can be in one stack

    def require_rows(self, batch_size: int) -> None:
        """Raise `UsageError` unless batches of a size can be learnt from."""
        if batch_size < self.least:
            raise UsageError(
                "does not go with a module that normalises over the rows of a batch (BatchNorm)",
                option="batch_size",
                value=batch_size,
                fixes=[f"choose {self.least} or more"],
            )

    def numbers(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the parameters and buffers of another such module by name."""
        found = numbers_of(module)
        shapes = {name: value.shape for name, value in numbers_of(self.module).items()}
        if {name: value.shape for name, value in found.items()} != shapes:
            raise UsageError(
                f"model_creator made another module than before for {self.config}; what it makes may hang on nothing but"
                " the config, beside the first weights"
            )
        return found


@dataclass(slots=True)
class Creators:
    """Makes modules and optimizers by ``model(config)`` and ``optimizer(module, config)``, and reads what they are.

    Examples
    --------
    >>> creators = Creators(
    ...     lambda config: nn.Linear(4, 1),
    ...     lambda module, config: torch.optim.SGD(module.parameters(), lr=config["lr"]),
    ...     loss=ModuleLoss.of("logistic"),
    ...     width=4,
    ... )
    >>> creators.blueprint({"lr": 0.1}).way
    'products'
    """

    model: ModelCreator
    optimizer: OptimizerCreator
    loss: ModuleLoss = field(kw_only=True)
    width: int = field(kw_only=True)  # features of a row
    _read: dict[str, Blueprint] = field(default_factory=dict, init=False)

    def blueprint(self, config: Config) -> Blueprint:
        """Return what a config's module is, read once."""
        key = repr(sorted(config.items()))
        if key not in self._read:
            self._read[key] = self._blueprint(dict(config))
        return self._read[key]

    def module(self, config: Config, seed: int) -> nn.Module:
        """Make a module, by a chance of its own."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            with _errors_of("model_creator", config):
                module = self.model(dict(config))
            if not isinstance(module, nn.Module):
                raise UsageError(
                    f"model_creator returned {module!r} for {dict(config)}; it has to return a torch module"
                )
            if any(nn.parameter.is_lazy(number) for number in (*module.parameters(), *module.buffers())):
                with torch.no_grad():
                    module.eval()(torch.zeros(_ROWS, self.width))
        return module.train()

    def optimized(self, module: nn.Module, config: Config) -> torch.optim.Optimizer:
        """Make a module's optimizer."""
        with _errors_of("optimizer_creator", config):
            optimizer = self.optimizer(module, dict(config))
        require_plain(optimizer)
        return optimizer

    def _blueprint(self, config: dict[str, Any]) -> Blueprint:
        module = self.module(config, 0)
        optimizer = self.optimized(module, config)
        changed = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        weights = {name: weight for name, weight in module.named_parameters() if id(weight) in changed}
        weights = {name: weight for name, weight in weights.items() if weight.requires_grad}
        if not weights:
            raise UsageError(f"the optimizer that optimizer_creator made for {config} has no parameter of the module")
        rule = UpdateRule.of(optimizer, list(weights.values()))
        rows = torch.randn(_ROWS, self.width, generator=torch.Generator().manual_seed(0))
        shape = self._outputs(module, rows, config)
        layers = chain(module) if plain(module) else None
        if layers is not None and not {name for layer in layers for name in layer.names} >= set(weights):
            layers = None  # an optimizer leaves out weights that have no slope
        if layers is not None:
            way = "products"
        else:
            way = "vmap" if plain(module) and stackable(module, rows, list(weights.values())) else "one by one"
        kinds = tuple((name, tuple(each.shape), each.dtype) for name, each in numbers_of(module).items())
        structures = tuple(layer.key for layer in layers) if layers is not None else structure(module)
        optimizer_key = rule.key if rule is not None else type(optimizer)
        return Blueprint(
            config=config,
            module=module,
            layout=[
                (name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
                for name, value in module.state_dict().items()
                if isinstance(value, Tensor)
            ],
            trained=tuple(weights),
            layers=layers,
            rule=rule,
            outputs=shape[-1] if len(shape) > 1 else 1,
            least=2 if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in module.modules()) else 1,
            way=way,
            key=(way, tuple(weights), kinds, structures, optimizer_key),
        )

    def _outputs(self, module: nn.Module, rows: Tensor, config: Config) -> tuple[int, ...]:
        module.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                outputs = module(rows)
        except Exception as error:  # the module's own code may fail with anything
            raise UsageError(
                f"the module that model_creator made for {dict(config)} cannot take rows of {self.width} features:"
                f" {type(error).__name__}: {error}"
            ) from error
        finally:
            module.train()
        if not isinstance(outputs, Tensor):
            raise UsageError(
                f"the module returns a {type(outputs).__name__}; it has to return one tensor, a row for each"
            )
        shape = tuple(outputs.shape)
        self.loss.require(shape, _ROWS)
        return shape


@contextmanager
def _errors_of(name: str, config: Config) -> Iterator[None]:
    """Say of which function and config an error was, and what a config has."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # a user's own code may fail with anything
        has = ", ".join(config) or "nothing"
        hint = f"; a config has what is searched, {has}: read others with config.get" * isinstance(error, KeyError)
        raise UsageError(f"{name} failed for {dict(config)}: {type(error).__name__}: {error}{hint}") from error
