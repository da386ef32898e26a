"""Torch modules for every group: `TorchModel` is given to `penstock.groups.GroupBy.fit`.

All configs of a group are trained as one `Stack`, in the sequential pattern: they learn from the same batches, and where a
group lies on several workers they hop from one to the next. The two functions of the user travel to workers by value, so
that those of a notebook or a script do as well as those of a package.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from penstock import seeds
from penstock.batch import Batch, Csr, Floats
from penstock.budget import parse_size
from penstock.errors import MissingExtraError, ModelFileError, UnknownOptionError, UsageError
from penstock.groups.executor import Make
from penstock.groups.grouped import Grouped
from penstock.groups.modules import SCALE, Arrays, finite
from penstock.groups.patterns.base import Targets
from penstock.groups.patterns.row_order import require_ordered
from penstock.groups.patterns.sequential import Sequential, SequentialWorker, State
from penstock.groups.scale import Scale
from penstock.groups.search_space import Parameter
from penstock.torch.creators import Blueprint, Creators, ModelCreator, OptimizerCreator
from penstock.torch.scoring import JUDGED, Doubles, LossFunction, ModuleLoss
from penstock.torch.stacked import Stack

_LOADED = 8
"""Users' functions that a process keeps ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSgd(Sequential):
    """Modules for every group: the job that travels to workers."""

    code: bytes  # the user's functions and the loss, as `pack_code` made them
    choices: tuple[Mapping[str, Any], ...]  # the configs
    numbers: tuple[int, ...]  # of the configs in the search; their chance goes by that
    batch_sizes: tuple[int, ...]  # rows that each config makes an update by
    layout: tuple[Any, ...] = ()  # what the numbers of a model are, for the index

    def make(self) -> Make:
        return partial(_worker, self)

    def only(self, configs: Sequence[int]) -> ModuleSgd:
        return replace(
            Sequential.only(self, configs),
            choices=tuple(self.choices[at] for at in configs),
            numbers=tuple(self.numbers[at] for at in configs),
            batch_sizes=tuple(self.batch_sizes[at] for at in configs),
        )

    def learner(
        self,
        grouped: Grouped,
        group: int,
        *,
        targets: Targets,
        configs: Sequence[int],
        states: Sequence[State] | None,
    ) -> ModuleLearner:
        stack = Stack(
            _creators(self.code, grouped.width),
            [self.choices[config] for config in configs],
            seeds=[seeds.key(self.seed, "module", group, self.numbers[config]) for config in configs],
            batch_sizes=[self.batch_sizes[config] for config in configs],
            states=states,
        )
        return ModuleLearner(stack)

    def stored(self, weights: Floats, scale: Scale | None) -> Floats:
        if scale is None:
            return weights
        both = finite(np.concatenate([scale.mean, scale.spread]))
        return np.concatenate([np.repeat(both[:, None], weights.shape[1], axis=1), weights])


class ModuleLearner:
    """A stack of modules that learns from batches."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.take_losses, self.states = stack.take_losses, stack.states
        self.failed, self.weights = stack.failed, stack.weights

    def learn(self, batch: Batch, epoch: int) -> None:
        self._stack.learn(dense(batch.x), _targets(batch), batch.weight)

    def end_epoch(self) -> None:
        """Nothing is left over."""

    def measure(self, batch: Batch) -> tuple[Doubles, Doubles]:
        return self._stack.measure(dense(batch.x), _targets(batch), batch.weight)


def dense(x: Floats | Csr) -> Floats:
    """Return rows as a dense array."""
    if not isinstance(x, Csr):
        return x
    indices, indptr = x.indices.astype(np.int64), x.indptr.astype(np.int64)
    made: Floats = csr_matrix((x.values, indices, indptr), shape=(len(x), x.width)).toarray()
    return made


def pack_code(model: Any, optimizer: Any, loss: ModuleLoss) -> bytes:
    """Return functions as bytes that any process can make them of again, be they of a script, a notebook or a test."""
    cloudpickle = _cloudpickle()
    strangers = [module for each in (model, optimizer, loss.loss) if (module := _stranger(each)) is not None]
    for module in strangers:
        cloudpickle.register_pickle_by_value(module)
    try:
        made: bytes = cloudpickle.dumps((model, optimizer, loss))
    except Exception as error:  # a pickle may fail with anything
        raise UsageError(
            f"the functions cannot be sent to workers ({type(error).__name__}: {error}); they may use nothing from outside"
            " that is bound to this process, such as open files, locks or loggers: make those inside of them"
        ) from error
    finally:
        for module in strangers:
            cloudpickle.unregister_pickle_by_value(module)
    return made


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError as error:
        raise MissingExtraError.of("cloudpickle", "torch", "training modules over groups") from error


def _stranger(function: Any) -> ModuleType | None:
    """Return the module of a function if another process could not import it by its name."""
    name = getattr(function, "__module__", None) or "builtins"
    module = sys.modules.get(name)
    if module is None or name in ("__main__", "builtins"):
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return module
    here = getattr(module, "__file__", None)
    return None if spec is not None and (here is None or spec.origin == here) else module


@lru_cache(_LOADED)
def _creators(code: bytes, width: int) -> Creators:
    model, optimizer, loss = _cloudpickle().loads(code)
    return Creators(model, optimizer, loss=loss, width=width)


def _worker(job: ModuleSgd) -> SequentialWorker:
    torch.set_num_threads(1)  # there is a process for each core already
    return SequentialWorker(job)


def _targets(batch: Batch) -> Floats:
    if batch.y is None:
        raise UsageError("the rows have no targets to learn from")
    return batch.y


TARGETS = {"numbers": "linear", "signs": "logistic", "classes": "softmax"}
"""What a user's own loss may take for targets."""
_OWN = {
    **{name: Parameter("int", least=1) for name in ("epochs", "batch_size", "patience")},
    "tolerance": Parameter("number", least=0),
}
"""What may be searched beside whatever the functions read of a config."""
_WINDOW = 8
"""The memory that is given is shared by as many things: windows, what they are gathered from, workers."""
_SPARSE = 10_000
"""Sparse rows of so many features at most are made dense, batch by batch."""


class _Names(dict[str, Parameter]):
    """Any name: only the functions know what they read of a config."""

    def __missing__(self, name: str) -> Parameter:
        return Parameter()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str)


@dataclass(frozen=True, slots=True)
class TorchModel:
    """A torch module to be trained for every group.

    Parameters
    ----------
    model_creator : callable
        ``model_creator(config)`` returns a module; it takes rows as ``(rows, features)``. What it makes may hang on nothing
        but the config, beside the first weights: torch's chance is seeded for every group and config.
    optimizer_creator : callable
        ``optimizer_creator(module, config)`` returns an optimiser of the module's parameters.
    loss : str or callable
        ``logistic`` for two classes (one output a row), ``softmax`` (one for each class), ``squared`` (half of it), or a
        function ``loss(output, y)`` that returns the mean over rows; single outputs come to it as a vector.
    targets : str, optional
        What ``y`` is for a function: ``numbers`` (the default), ``signs`` (-1 and +1) or ``classes`` (their numbers).
    epochs, batch_size : int
        How often rows are gone through, and how many make an update. Both can be searched, as ``patience`` and
        ``tolerance`` can.
    seed : int
        Of first weights, dropout, the order of rows and those held out.
    standardize : bool
        Bring features to mean 0 and spread 1 within each group.
    patience, tolerance
        Stop a config when its loss on rows held out has not fallen by the tolerance for so many epochs.
    shuffle, memory : str
        The order of rows, and the bytes for windows of them.

    Examples
    --------
    >>> model = TorchModel(
    ...     lambda config: nn.Sequential(nn.Linear(8, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 1)),
    ...     lambda module, config: torch.optim.Adam(module.parameters(), lr=config["lr"]),
    ... )
    >>> model.kind, model.family, model.fixed()["loss"]
    ('logistic', 'modules', 'logistic')
    """

    model_creator: ModelCreator
    optimizer_creator: OptimizerCreator
    _: KW_ONLY
    loss: str | LossFunction = "logistic"
    targets: str | None = None
    epochs: int = 10
    batch_size: int = 32
    seed: int = 0
    standardize: bool = False
    patience: int | None = None
    tolerance: float = 1e-4
    shuffle: str = "corgipile"
    memory: int | str = "512MB"
    _made: dict[int, Creators] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lock: Any = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("model_creator", "optimizer_creator"):
            if not callable(getattr(self, name)):
                raise UsageError(
                    "is not a function", option=name, value=getattr(self, name), fixes=["it makes one for a config"]
                )
        self._loss()
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0), ("patience", 1)):
            value = getattr(self, name)
            if not (name == "patience" and value is None):
                Parameter("int", least=least).check(name, value)
        Parameter("number", least=0).check("tolerance", self.tolerance)
        parse_size(self.memory, option="memory")
        require_ordered(self.shuffle)

    @property
    def kind(self) -> str:
        return self._loss().kind

    @property
    def family(self) -> str:
        return "modules"

    @property
    def known(self) -> Mapping[str, Parameter]:
        return _Names(_OWN)

    def fixed(self) -> dict[str, Any]:
        names = ("epochs", "batch_size", "seed", "standardize", "patience", "tolerance", "shuffle", "targets")
        told = {name: _name(getattr(self, name)) for name in ("model_creator", "optimizer_creator", "loss")}
        return told | {name: getattr(self, name) for name in names}

    def job(self, grouped: Grouped, choices: Sequence[Mapping[str, Any]], *, validation: float) -> ModuleSgd:
        """Check what is to be learnt of grouped rows, and make a job of it."""
        if grouped.recipe.sparse and grouped.width > _SPARSE:
            raise UsageError(
                f"the rows are sparse and have {grouped.width:,} features; modules take dense rows, and sparse ones of up"
                f" to {_SPARSE:,} features: hash to fewer, or name fewer columns"
            )
        loss = self._loss()
        creators = Creators(self.model_creator, self.optimizer_creator, loss=loss, width=grouped.width)
        each = [creators.blueprint(choice) for choice in choices]
        sizes = tuple(int(choice.get("batch_size", self.batch_size)) for choice in choices)
        for blueprint, size in zip(each, sizes, strict=True):
            _require_classes(blueprint, loss, grouped)
            blueprint.require_rows(size)
        return ModuleSgd(
            folder=str(grouped.folder),
            loss=JUDGED[loss.kind],
            epochs=np.array([int(choice.get("epochs", self.epochs)) for choice in choices], np.int64),
            validation=validation,
            seed=self.seed,
            standardize=self.standardize,
            shuffle=self.shuffle,
            memory=parse_size(self.memory, option="memory") // _WINDOW,
            code=pack_code(self.model_creator, self.optimizer_creator, loss),
            choices=tuple(dict(choice) for choice in choices),
            numbers=tuple(range(len(choices))),
            batch_sizes=sizes,
            stops=tuple(
                (choice.get("patience", self.patience), float(choice.get("tolerance", self.tolerance)))
                for choice in choices
            ),
            layout=_layout(each, grouped.width if self.standardize else 0),
        )

    def module(self, config: Mapping[str, Any], arrays: Arrays, scale: tuple[Floats, Floats] | None) -> nn.Module:
        """Return the module of a config with these numbers, which brings features to scale itself if there is one."""
        module = self.model_creator(dict(config))
        _load(module, arrays)
        module.eval()
        return module if scale is None else nn.Sequential(Standardize(*scale), module).eval()

    def scores(self, config: Mapping[str, Any], arrays: Arrays, x: Any) -> Floats:
        """Return the scores of rows, brought to scale already."""
        rows = torch.from_numpy(np.require(dense(x), np.float32, ["C", "W"]))
        with self._lock, torch.no_grad():  # a module is lent its numbers, by one thread at a time
            if rows.shape[1] not in self._made:
                self._made[rows.shape[1]] = Creators(
                    self.model_creator, self.optimizer_creator, loss=self._loss(), width=rows.shape[1]
                )
            module = self._made[rows.shape[1]].blueprint(config).module
            _load(module, arrays)
            found: Floats = self._loss().formed(module.eval()(rows).unsqueeze(0))[0].numpy()
        return found

    def _loss(self) -> ModuleLoss:
        if self.targets is not None and self.targets not in TARGETS:
            raise UnknownOptionError.of("targets", self.targets, TARGETS)
        if isinstance(self.loss, str) and self.targets is not None:
            raise UsageError(
                "is for a loss that is a function", option="targets", value=self.targets, fixes=["leave it out"]
            )
        return ModuleLoss.of(self.loss, None if self.targets is None else TARGETS[self.targets])


class Standardize(nn.Module):
    """Brings features to the mean 0 and spread 1 that a group's rows had."""

    mean: Tensor
    spread: Tensor

    def __init__(self, mean: Floats, spread: Floats) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(np.array(mean)))
        self.register_buffer("spread", torch.from_numpy(np.array(spread)))

    def forward(self, x: Tensor) -> Tensor:
        """Return rows brought to scale."""
        return (x - self.mean) / self.spread


def _load(module: nn.Module, arrays: Arrays) -> None:
    """Give a module its numbers."""
    try:
        module.load_state_dict({name: torch.from_numpy(np.array(values)) for name, values in arrays.items()})
    except RuntimeError as error:
        raise ModelFileError(f"model_creator makes another module than the one that was trained: {error}") from error


def _layout(blueprints: Sequence[Blueprint], scaled: int) -> tuple[Any, ...]:
    """Tell what a model's numbers are: the same arrays for all configs, or those of each module that there is."""
    scale = [[name, [scaled], "float32"] for name in SCALE] if scaled else []
    each: dict[str, tuple[list[Any], list[int]]] = {}
    for config, blueprint in enumerate(blueprints):
        arrays = [[name, list(shape), dtype] for name, shape, dtype in blueprint.layout]
        each.setdefault(repr(arrays), (arrays, []))[1].append(config)
    if len(each) == 1:
        return (*scale, *next(iter(each.values()))[0])
    return tuple({"configs": configs, "arrays": [*scale, *arrays]} for arrays, configs in each.values())


def _require_classes(blueprint: Blueprint, loss: ModuleLoss, grouped: Grouped) -> None:
    """Raise `UsageError` unless a module has an output for each class."""
    labels = grouped.recipe.labels
    if loss.kind == "softmax" and labels is not None and len(labels.classes) != blueprint.outputs:
        raise UsageError(
            f"the module for {blueprint.config} has {blueprint.outputs} outputs, and there are {len(labels.classes)}"
            f" classes: {', '.join(map(str, labels.classes[:10]))}; make it have one for each"
        )


def _name(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__qualname__", type(value).__qualname__)
