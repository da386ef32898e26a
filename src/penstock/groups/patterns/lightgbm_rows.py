"""Rows as LightGBM takes them: dense ones as they lie in the file, sparse ones by SciPy, and nothing said of it on the screen.

LightGBM takes a missing number for 0 in a feature of which its training rows lacked none; `MissingNumbers` fills it before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Csr, Floats
from penstock.columns.base import FeatureColumn, UnseenValues
from penstock.columns.tree import TreeColumn
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


def features_with_missing(text: str) -> set[int]:
    """Return the features of a model's text whose missing numbers have a way of their own, and those of categories.

    A split's ``decision_type`` has 1 for a category, and 2 in the bits from 4 on where training had missing numbers.

    Examples
    --------
    >>> features_with_missing("Tree=0\\nsplit_feature=0 1 2\\ndecision_type=2 1 10\\n")
    {1, 2}
    """
    found: set[int] = set()
    features: list[str] = []
    for line in text.splitlines():
        name, _, values = line.partition("=")
        if name == "split_feature":
            features = values.split()
        elif name == "decision_type":
            types = map(int, values.split())
            found |= {
                int(feature) for feature, kind in zip(features, types, strict=True) if kind & 1 or kind >> 2 & 3 == 2
            }
    return found


@dataclass(frozen=True, slots=True)
class MissingNumbers:
    """What stands for the missing numbers of dense features, where a model has no way of its own for them.

    Attributes
    ----------
    columns : dict of str
        The stored column of each feature that is filled.
    fills : array
        What stands for the missing numbers of each feature; NaN where nothing does.
    unseen : UnseenValues or None
        Counts the rows that are filled.
    """

    columns: Mapping[int, str]
    fills: Floats
    unseen: UnseenValues | None = None

    @classmethod
    def of(cls, parts: Sequence[FeatureColumn], unseen: UnseenValues | None) -> MissingNumbers:
        """Take what the columns of a recipe have."""
        dense = [part for part in parts if not part.sparse]
        fills = [part.fill if isinstance(part, TreeColumn) else np.nan for part in dense]
        widths = [part.width or 0 for part in dense]
        starts = np.cumsum([0, *widths]).tolist()
        columns = {start: part.columns[0] for start, part in zip(starts, dense) if isinstance(part, TreeColumn)}
        return cls(columns, np.repeat(np.array(fills, np.float32), widths), unseen)

    def fill(self, x: Floats | Csr, known: set[int]) -> Floats | Csr:
        """Return rows with missing numbers filled, but for those of the features ``known`` to the model."""
        fillable = np.isfinite(self.fills)
        fillable[[feature for feature in known if feature < len(fillable)]] = False
        return self._fill_sparse(x, fillable) if isinstance(x, Csr) else self._fill_dense(x, np.flatnonzero(fillable))

    def _fill_dense(self, x: Floats, places: NDArray[np.intp]) -> Floats:
        missing = np.isnan(x[:, places])
        if not missing.any():
            return x
        x = x.copy()
        x[:, places] = np.where(missing, self.fills[places], x[:, places])
        self._count(places, missing.sum(axis=0))
        return x

    def _fill_sparse(self, x: Csr, fillable: NDArray[np.bool_]) -> Csr:
        entries = np.flatnonzero(np.isnan(x.values))
        features = x.indices[entries]
        dense = features < len(fillable)
        entries, features = entries[dense], features[dense]
        wanted = fillable[features]
        entries, features = entries[wanted], features[wanted]
        if not len(entries):
            return x
        values = x.values.copy()
        values[entries] = self.fills[features]
        counts = np.bincount(features, minlength=len(fillable))
        self._count(np.flatnonzero(counts), counts[counts > 0])
        return replace(x, values=values)

    def _count(self, places: NDArray[np.intp], rows: NDArray[np.int64]) -> None:
        if self.unseen is not None:
            for place, count in zip(places.tolist(), rows.tolist(), strict=True):
                self.unseen.count_missing(self.columns[place], count)


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
