"""Penstock trains models straight from storage: shuffled well, read fast, in the memory you give it.

>>> import penstock
>>> sorted(name for name in penstock.__all__ if name.endswith("Regression"))
['LinearRegression', 'LogisticRegression', 'SoftmaxRegression']

Public names are imported when first used, so ``import penstock`` takes no time and drags nothing in. Loaders for PyTorch
are in `penstock.torch`, models that do not fit in memory in `penstock.bigmodel`; `load` opens the latter, too.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.blocks import convert as convert
    from penstock.blocks import open as open
    from penstock.errors import PenstockError as PenstockError
    from penstock.estimators import LinearRegression as LinearRegression
    from penstock.estimators import LinearSVM as LinearSVM
    from penstock.estimators import LogisticRegression as LogisticRegression
    from penstock.estimators import SoftmaxRegression as SoftmaxRegression
    from penstock.estimators import load as load
    from penstock.explain import explain as explain
    from penstock.loader import Loader as Loader
    from penstock.loader.batches import batches as batches
    from penstock.sql import sql as sql

__version__ = "0.1.0"

# Where each public name lives. `__all__` and the block above say the same; a test compares them.
_HOMES = {
    "LinearRegression": "penstock.estimators",
    "LinearSVM": "penstock.estimators",
    "Loader": "penstock.loader",
    "LogisticRegression": "penstock.estimators",
    "PenstockError": "penstock.errors",
    "SoftmaxRegression": "penstock.estimators",
    "batches": "penstock.loader.batches",
    "convert": "penstock.blocks",
    "explain": "penstock.explain",
    "load": "penstock.estimators",
    "open": "penstock.blocks",
    "sql": "penstock.sql",
}

__all__ = [
    "LinearRegression",
    "LinearSVM",
    "Loader",
    "LogisticRegression",
    "PenstockError",
    "SoftmaxRegression",
    "__version__",
    "batches",
    "convert",
    "explain",
    "load",
    "open",
    "sql",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}; it has: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # Importing the module `penstock.explain` would otherwise put it in the place of the function.
        if not (isinstance(value, ModuleType) and name in _HOMES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
