"""Models that do not fit in memory: their weights live in pages on disk, and a pool holds the pages in use.

What makes it fast is where each weight lies: features that occur often, or together, lie together, and rare ones lie by
the rows that they occur in. `penstock.bigmodel.prepare` works that out, `penstock.bigmodel.disk_learner` learns.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.bigmodel.estimators import LinearRegression, LinearSVM, LogisticRegression, MatrixFactorization

__all__ = ["LinearRegression", "LinearSVM", "LogisticRegression", "MatrixFactorization"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("penstock.bigmodel.estimators"), name)
