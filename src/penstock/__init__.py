"""Penstock trains models straight from storage: shuffled well, read fast, in the memory you give it.

>>> import penstock
>>> sorted(name for name in penstock.__all__ if name.endswith("Regression"))
['LinearRegression', 'LogisticRegression', 'SoftmaxRegression']

Public names are imported when first used, so ``import penstock`` takes no time and drags nothing in. Loaders for PyTorch
are in `penstock.torch`, models that do not fit in memory in `penstock.bigmodel`; `load` opens all of them. No name is
both a function and a package: `connect` opens a database, `penstock.sql` is the package behind it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.blocks import convert as convert
    from penstock.blocks.open import open as open
    from penstock.errors import PenstockError as PenstockError
    from penstock.estimators import LinearRegression as LinearRegression
    from penstock.estimators import LinearSVM as LinearSVM
    from penstock.estimators import LogisticRegression as LogisticRegression
    from penstock.estimators import SoftmaxRegression as SoftmaxRegression
    from penstock.explanation import explain as explain
    from penstock.loader import Loader as Loader
    from penstock.loader.batches import batches as batches
    from penstock.loader.fit_columns import recipe_for as recipe_for
    from penstock.model_kinds import load as load
    from penstock.sql import connect as connect

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
    "connect": "penstock.sql",
    "convert": "penstock.blocks",
    "explain": "penstock.explanation",
    "load": "penstock.model_kinds",
    "open": "penstock.blocks.open",
    "recipe_for": "penstock.loader.fit_columns",
}

# Packages that the documentation names; imported when first used, as the names above are.
_PACKAGES = ("bigmodel", "groups", "hf", "sql", "torch")

__all__ = [
    "LinearRegression",
    "LinearSVM",
    "Loader",
    "LogisticRegression",
    "PenstockError",
    "SoftmaxRegression",
    "__version__",
    "batches",
    "connect",
    "convert",
    "explain",
    "load",
    "open",
    "recipe_for",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"penstock.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}; it has: {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
