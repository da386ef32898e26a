"""Trees that were boosted for groups: one model to look into and ask, and the models of many groups to predict rows by.

Models are LightGBM's text, which any LightGBM reads. They are parsed when first asked, and those of few groups at a time
are kept so.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.blocks.features import Encoder
from penstock.errors import ModelFileError, UnknownOptionError
from penstock.groups.index import MEND
from penstock.groups.patterns.binned import matrix
from penstock.groups.patterns.sampling import booster_of
from penstock.groups.registry import Registry, by_model
from penstock.linear import decide, probabilities
from penstock.modelfile import atomic_path

_KEPT = 256
"""Parsed models that are kept: some hundred kilobytes each."""
_BY = ("gain", "split")


@dataclass(frozen=True, slots=True)
class TreeModel:
    """Boosted trees of one group.

    Attributes
    ----------
    kind : str
        logistic, softmax or linear.
    text : str
        The model as LightGBM writes it.
    encoder : Encoder
        How columns become features, and labels targets.
    config : dict
        The hyper-parameters.
    fingerprint : str
        Of the data it was trained on.
    metrics : dict
        Final figures, such as the loss on rows held out.
    """

    kind: str
    text: str = field(repr=False)
    encoder: Encoder
    config: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    _asked: list[Trees] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def classes(self) -> NDArray[Any] | None:
        """The class labels in ascending order; None for a regression."""
        return None if self.encoder.labels is None else np.array(self.encoder.labels.classes)

    @property
    def booster(self) -> Any:
        """The `lightgbm.Booster`."""
        return self._trees.booster

    def scores(self, batch: Batch) -> Floats:
        """Return a score a row, or for softmax one a row and class."""
        return self._trees.scores(batch.x, self.kind)

    def decide(self, scores: Floats) -> NDArray[Any]:
        """Turn scores into classes, or into numbers for a regression."""
        return decide(self.kind, self.encoder, scores)

    def probabilities(self, scores: Floats) -> Floats | None:
        """Turn scores into a probability for each class; None for a regression."""
        return probabilities(self.kind, scores)

    def importances(self, by: str = "gain") -> dict[str, float]:
        """Return what each feature did for the trees, the most first: the ``gain`` of its splits, or how many they are."""
        if by not in _BY:
            raise UnknownOptionError.of("by", by, _BY)
        trees = self._trees
        values = trees.booster.feature_importance(importance_type=by).tolist()
        places = range(len(values)) if trees.features is None else trees.features.tolist()
        names = self.encoder.names
        told = {(str(place) if names is None else names[place]): value for place, value in zip(places, values)}
        return dict(sorted(((name, value) for name, value in told.items() if value), key=lambda pair: -pair[1]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as LightGBM's text, which ``lightgbm.Booster(model_file=…)`` reads."""
        with atomic_path(Path(path)) as temporary:
            temporary.write_text(self.text, encoding="utf-8")

    @property
    def _trees(self) -> Trees:
        if not self._asked:
            self._asked.append(Trees.of(self.text, place=f"the model of group {self.metrics.get('group', '?')}"))
        return self._asked[0]


@dataclass(frozen=True, slots=True)
class Trees:
    """A parsed model, and the features that its columns stand for where it was trained on sparse rows."""

    booster: Any
    features: NDArray[np.int64] | None

    @classmethod
    def of(cls, text: str, *, place: str) -> Trees:
        """Parse a model's text."""
        try:
            booster = booster_of(text)
            names = booster.feature_name()
            sparse = names[0].startswith("f")
            return cls(booster, np.array([int(name[1:]) for name in names]) if sparse else None)
        except ValueError as error:
            raise ModelFileError(f"{place} cannot be read: {error}; {MEND}") from error

    def scores(self, x: Floats | Csr, kind: str) -> Floats:
        """Return a score a row, or for softmax one a row and class."""
        data = matrix(x, self.features) if isinstance(x, Csr) and self.features is not None else x
        found: Floats = self.booster.predict(data, raw_score=True, num_threads=1).astype(np.float32)
        if kind == "softmax" and found.ndim == 1:  # two classes have one score between them
            found = np.column_stack([np.zeros_like(found), found])
        return found


class Forest:
    """The models of a folder, to score rows of many groups by."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._ask = lru_cache(_KEPT)(self._parse)

    def scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        """Return the scores of each row by the model at its row of the table; zero where there is none."""
        index = self._registry.index
        return by_model(index, batch, models, lambda model, rows: self._ask(model).scores(rows.x, index.kind))

    def _parse(self, row: int) -> Trees:
        place = f"the model of group {self._registry.table['text'][row].as_py()} in {self._registry.folder}"
        return Trees.of(self._registry.trees(row), place=place)
