"""A user's two functions, that which makes a module and that which makes its optimiser, and what they make of a config.

A `Blueprint` is read once for each config: what is trained, what is not, by which optimiser, and which way a stack of such
modules can be taken. Configs whose blueprints have the same key go into one stack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from penstock.errors import PenstockError, UsageError
from penstock.torch.chains import chain
from penstock.torch.layers import Layer
from penstock.torch.optimizers import require_plain
from penstock.torch.rules import Recipe
from penstock.torch.scoring import ModuleLoss
from penstock.torch.stacking import numbers_of, plain, stackable, structure

Config = Mapping[str, Any]
ModelCreator = Callable[[dict[str, Any]], nn.Module]
OptimizerCreator = Callable[[nn.Module, dict[str, Any]], torch.optim.Optimizer]
_ROWS = 3
"""Rows that a module is tried on."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a config's module is.

    Attributes
    ----------
    config : dict
        The config.
    module : Module
        One such module; its own numbers mean nothing.
    shapes : dict
        Of all its parameters and buffers, by name.
    layout : list
        Name, shape and type of all that its ``state_dict`` holds, in its order.
    trained : tuple of str
        The parameters that the optimiser changes, in the module's order.
    layers : tuple of Layer, or None
        Its layers, if it is a chain of known ones.
    recipe : Recipe or None
        What its optimiser does, if that is known.
    kind, outputs : str, int
        What the loss makes of labels, and how many scores a row has.
    least : int
        Rows that a batch has to have: those of a module that normalises over them are two.
    way : str
        products, vmap or one by one.
    key : object
        What configs have in common that can be in one stack.
    """

    config: dict[str, Any]
    module: nn.Module
    shapes: Mapping[str, torch.Size]
    layout: Sequence[tuple[str, tuple[int, ...], str]]
    trained: tuple[str, ...]
    layers: tuple[Layer, ...] | None
    recipe: Recipe | None
    kind: str
    outputs: int
    least: int
    way: str
    key: Hashable

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
        if {name: value.shape for name, value in found.items()} != self.shapes:
            raise UsageError(
                f"model_creator made another module than before for {self.config}; what it makes may hang on nothing but"
                " the config, beside the first weights"
            )
        return found


@dataclass(slots=True)
class Creators:
    """Makes modules and optimisers, and reads what they are.

    Attributes
    ----------
    model, optimizer : callables
        ``model(config)`` and ``optimizer(module, config)``.
    loss : ModuleLoss
        What is made small.
    width : int
        Features of a row.

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
    width: int = field(kw_only=True)
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
            with _told_of("model_creator", config):
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
        """Make a module's optimiser."""
        with _told_of("optimizer_creator", config):
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
            raise UsageError(f"the optimiser that optimizer_creator made for {config} has no parameter of the module")
        recipe = Recipe.of(optimizer, list(weights.values()))
        rows = torch.randn(_ROWS, self.width, generator=torch.Generator().manual_seed(0))
        shape = self._outputs(module, rows, config)
        way, layers = "one by one", None
        if plain(module):
            layers = chain(module)
            if layers is not None and not {name for layer in layers for name in layer.names} >= set(weights):
                layers = None  # an optimiser leaves out weights that have no slope
            way = (
                "products"
                if layers is not None
                else "vmap"
                if stackable(module, rows, list(weights.values()))
                else "one by one"
            )
        kinds = tuple((name, tuple(each.shape), each.dtype) for name, each in numbers_of(module).items())
        told = tuple(layer.key for layer in layers) if layers is not None else structure(module)
        optimised = recipe.key if recipe is not None else type(optimizer)
        key = (way, tuple(weights), kinds, told, optimised)
        outputs = shape[-1] if len(shape) > 1 else 1
        least = 2 if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in module.modules()) else 1
        return Blueprint(
            config,
            module,
            {name: value.shape for name, value in numbers_of(module).items()},
            _layout(module),
            tuple(weights),
            layers,
            recipe,
            self.loss.kind,
            outputs,
            least,
            way,
            key,
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
def _told_of(name: str, config: Config) -> Iterator[None]:
    """Say of which function and config an error was, and what a config has."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:  # a user's own code may fail with anything
        has = ", ".join(config) or "nothing"
        hint = f"; a config has what is searched, {has}: read others with config.get" * isinstance(error, KeyError)
        raise UsageError(f"{name} failed for {dict(config)}: {type(error).__name__}: {error}{hint}") from error


def _layout(module: nn.Module) -> list[tuple[str, tuple[int, ...], str]]:
    return [
        (name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        for name, value in module.state_dict().items()
        if isinstance(value, Tensor)
    ]
