"""Rows as LightGBM takes them: dense ones as they lie in the file, sparse ones by SciPy, and nothing said of it on the screen."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.groups.patterns.base import Divided
from penstock.groups.split import TRAINING


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as LightGBM takes them."""

    x: list[Any]
    y: Floats
    weight: Floats | None
    names: list[str] | str
    categories: list[int] | str = "auto"

    @classmethod
    def of(
        cls,
        parts: list[Divided],
        wanted: int,
        classes: int,
        features: NDArray[np.int64] | None,
        categories: Sequence[int] = (),
        *,
        drop: bool = False,
    ) -> Rows:
        """Take the rows of one part of the split; they are copied where some of a block are left out.

        Features that are ``categories`` are codes; they come before all sparse features, which ``features`` chooses among. Rows of
        weight 0 are left out where they are to ``drop``. Of two ``classes`` targets are 0 and 1, whatever stands for them.
        """
        x: list[Any] = []
        y: list[Floats] = []
        weight: list[Floats] = []
        for batch, part in parts:
            if part is None and wanted != TRAINING:
                continue
            taken = batch if part is None else batch.take(np.flatnonzero(part == wanted))
            if drop and taken.weight is not None:  # they would count among the rows of a leaf
                taken = taken.take(np.flatnonzero(taken.weight))
            if len(taken):
                assert taken.y is not None
                x.append(taken.x if features is None else matrix(taken.x, features))
                y.append((taken.y > 0).astype(np.float32) if classes == 2 else taken.y)
                weight += [] if taken.weight is None else [taken.weight]
        if features is not None and len(x) > 1:
            from scipy import sparse  # slow to import, and dense rows need it not

            x = [sparse.vstack(x, format="csr")]
        names = "auto" if features is None else [f"f{feature}" for feature in features.tolist()]
        targets = np.concatenate(y) if y else np.empty(0, np.float32)
        return cls(x, targets, np.concatenate(weight) if weight else None, names, list(categories) or "auto")

    @property
    def count(self) -> int:
        return len(self.y)

    @property
    def mass(self) -> float:
        """The sum of the rows' weights."""
        return float(self.count if self.weight is None else self.weight.sum(dtype=np.float64))

    def divided(self, by: float) -> Rows:
        """Return the rows with their weights divided."""
        if self.weight is None:
            return self
        return replace(self, weight=(self.weight / np.float64(by)).astype(np.float32))

    def dataset(self, lightgbm: Any, params: dict[str, Any], reference: Any = None) -> Any:
        """Return LightGBM's data set, which is binned when a booster first asks for it."""
        data = self.x[0] if len(self.x) == 1 else self.x
        return lightgbm.Dataset(
            data,
            self.y,
            weight=self.weight,
            reference=reference,
            feature_name=self.names,
            categorical_feature=self.categories,
            params=dict(params),
        )


def matrix(x: Any, features: NDArray[np.int64]) -> Any:
    """Return sparse rows as SciPy's, cut down to some features; what a row has of one feature is added up."""
    from scipy import sparse  # slow to import

    place = np.searchsorted(features, x.indices)
    known = features[np.minimum(place, len(features) - 1)] == x.indices
    ends = (
        x.indptr.astype(np.int64) if known.all() else np.concatenate([[0], np.cumsum(known)])[x.indptr.astype(np.int64)]
    )
    parts = (x.values[known], place[known].astype(np.int32), ends)
    found = sparse.csr_matrix(parts, shape=(len(x), len(features)))
    found.sum_duplicates()
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Keep LightGBM off the screen: of what is fatal, and of its sockets, it tells whatever its settings say."""
    kept: list[tuple[int, int]] = []
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for number in (1, 2):
            kept.append((number, os.dup(number)))
            os.dup2(nowhere.fileno(), number)
    try:
        yield
    finally:
        for number, copy in kept:
            os.dup2(copy, number)
            os.close(copy)
