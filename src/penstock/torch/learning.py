"""What workers do of modules for groups: the job that travels to them, and the learner of some configs of a group."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from penstock import seeds
from penstock.batch import Batch, Csr, Floats
from penstock.errors import MissingExtraError, UsageError
from penstock.groups.executor import Make
from penstock.groups.grouped import Grouped
from penstock.groups.modules import finite
from penstock.groups.patterns.base import Targets
from penstock.groups.patterns.sequential import Sequential, SequentialWorker, State
from penstock.groups.scale import Scale
from penstock.torch.creators import Creators
from penstock.torch.scoring import Doubles, ModuleLoss
from penstock.torch.stacked import Stack

_LOADED = 8
"""Users' functions that a process keeps ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSgd(Sequential):
    """Modules for every group.

    Attributes
    ----------
    code : bytes
        The user's functions and the loss, as `packed` made them.
    choices : tuple of dict
        The configs.
    numbers : tuple of int
        What number each has in the search; its chance goes by that.
    batch_sizes : tuple of int
        Rows that each makes an update by.
    layout : tuple
        What the numbers of a model are, for the index.
    """

    code: bytes
    choices: tuple[Mapping[str, Any], ...]
    numbers: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    layout: tuple[Any, ...] = ()

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
