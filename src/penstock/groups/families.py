"""The families of models that a folder of groups may hold: linear ones, boosted trees, torch modules.

A family takes single models out of the registry, and scores rows of many groups at a time, each by its group's model. Trees
are LightGBM's text, which any LightGBM reads. They are parsed when first used, and those of few groups at a time are kept
so. A saved model has one more line, which LightGBM ignores: how columns become features, and the checksum.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.columns.recipe import Recipe
from penstock.errors import ModelFileError, UnknownOptionError, UsageError
from penstock.groups.index import MEND, text_checksum
from penstock.groups.modules import Modules
from penstock.groups.patterns.lightgbm_rows import MissingNumbers, features_with_missing, matrix
from penstock.groups.patterns.sampling import booster_of
from penstock.groups.registry import Registry, by_model
from penstock.linear import EncodedModel, LinearModel
from penstock.model import Description
from penstock.outputs import atomic_path
from penstock.sgd.losses import loss_of
from penstock.sgd.model import Weights

_KEPT = 256
"""Parsed models that are kept: some hundred kilobytes each."""
_BY = ("gain", "split")
_MARK = "penstock:"
"""Begins the line of a saved model that is not LightGBM's."""
_KEPT_FIELDS = ("kind", "config", "fingerprint", "metrics")


@dataclass(frozen=True, slots=True)
class TreeModel(EncodedModel):
    """Boosted trees of one group.

    ``text`` is the model as LightGBM writes it; the other attributes are those of `penstock.linear.LinearModel`.
    """

    kind: str
    text: str = field(repr=False)
    recipe: Recipe
    config: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    _asked: list[Trees] = field(default_factory=list, init=False, repr=False, compare=False)
    takes_nan: ClassVar[bool] = True
    word: ClassVar[str] = "boosting"

    @property
    def booster(self) -> Any:
        """The `lightgbm.Booster`."""
        return self._trees.booster

    def scores(self, batch: Batch) -> Floats:
        return self._trees.scores(batch.x, self.kind, MissingNumbers.of(self.recipe.parts, self.recipe.unseen))

    def importances(self, by: str = "gain") -> dict[str, float]:
        """Return what each feature did for the trees, the most first: the ``gain`` of its splits, or how many they are."""
        if by not in _BY:
            raise UnknownOptionError.of("by", by, _BY)
        trees = self._trees
        values = trees.booster.feature_importance(importance_type=by).tolist()
        places = range(len(values)) if trees.features is None else trees.features.tolist()
        names = self.recipe.names
        told = {(str(place) if names is None else names[place]): value for place, value in zip(places, values)}
        return dict(sorted(((name, value) for name, value in told.items() if value), key=lambda pair: -pair[1]))

    def describe(self, *, most: int | None = None) -> Description:
        """Say what is in the model: its measures, and what the features did for the trees, the most first."""
        gains = self.importances()
        values = {"trees": self.booster.num_trees(), "features": self.recipe.width, "importances": gains}
        wide = max(map(len, (*gains, "feature")))
        shown = [f"{name:<{wide}}{gain:>14.5g}" for name, gain in islice(gains.items(), most)]
        rest = [f"and {len(gains) - len(shown):,} smaller ones"] if len(shown) < len(gains) else []
        lines = ("", f"{'feature':<{wide}}{'gain':>14}", *shown, *rest)
        return Description.of(self, f"{values['trees']:,} trees", values=values, lines=lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as LightGBM's text, which ``lightgbm.Booster(model_file=…)`` and `penstock.load` read."""
        kept = {name: getattr(self, name) for name in _KEPT_FIELDS} | {"encoder": self.recipe.to_dict()}
        told = json.dumps(kept)
        line = f"{_MARK}{text_checksum(self.text + told):016x} {told}"
        with atomic_path(Path(path)) as temporary:
            temporary.write_text(f"{self.text}\n{line}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TreeModel:
        """Read a model that `save` wrote.

        Raises
        ------
        ModelFileError
            The file is damaged, or was not written by Penstock.
        """
        try:
            content = Path(path).read_bytes().decode()
            text, mark, line = content.rpartition(f"\n{_MARK}")
            if not mark:
                raise ValueError("it does not say how columns become features, as models that Penstock saved do")
            noted, _, told = line.rstrip("\n").partition(" ")
            if int(noted, 16) != text_checksum(text + told):
                raise ValueError("its checksum is not that of its content")
            kept = json.loads(told)
            recipe = Recipe.from_dict(kept["encoder"])
            return cls(kept["kind"], text, recipe, **{name: kept[name] for name in _KEPT_FIELDS[1:]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(
                f"{path} is not a whole model of boosted trees: {error}; restore it from a copy, or save the model again"
            ) from error

    @property
    def _trees(self) -> Trees:
        if not self._asked:
            self._asked.append(Trees.of(self.text, place=f"the model of group {self.metrics.get('group', '?')}"))
        return self._asked[0]


@dataclass(frozen=True, slots=True)
class Trees:
    """A parsed model, the features that its columns stand for where it was trained on sparse rows, and those with missing numbers."""

    booster: Any
    features: NDArray[np.int64] | None
    with_missing: set[int]

    @classmethod
    def of(cls, text: str, *, place: str) -> Trees:
        """Parse a model's text."""
        try:
            booster = booster_of(text)
            names = booster.feature_name()
            sparse = names[0].startswith("f")
            features = np.array([int(name[1:]) for name in names]) if sparse else None
            known = features_with_missing(text)
            return cls(booster, features, known if features is None else set(features[list(known)].tolist()))
        except ValueError as error:
            raise ModelFileError(f"{place} cannot be read: {error}; {MEND}") from error

    def scores(self, x: Floats | Csr, kind: str, missing: MissingNumbers) -> Floats:
        """Return a score a row, or for softmax one a row and class."""
        x = missing.fill(x, self.with_missing)
        data = matrix(x, self.features) if isinstance(x, Csr) and self.features is not None else x
        found: Floats = self.booster.predict(data, raw_score=True, num_threads=1).astype(np.float32)
        if loss_of(kind).many and found.ndim == 1:  # two classes have one score between them
            found = np.column_stack([np.zeros_like(found), found])
        return found


class Forest:
    """The models of a folder, to look into or to score rows of many groups by."""

    takes_nan = True
    word = TreeModel.word

    def __init__(self, registry: Registry, recipe: Recipe, maker: Any = None) -> None:
        self._registry, self._recipe = registry, recipe
        self._missing = MissingNumbers.of(recipe.parts, recipe.unseen)
        self._ask = lru_cache(_KEPT)(self._parse)

    def require(self) -> None:
        """Do nothing: the trees are all that is needed."""

    def model(self, row: int, config: Mapping[str, Any], **told: Any) -> TreeModel:
        return TreeModel(self._registry.index.kind, self._registry.trees(row), self._recipe, config, **told)

    def scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        index = self._registry.index
        return by_model(
            index, batch, models, lambda model, rows: self._ask(model).scores(rows.x, index.kind, self._missing)
        )

    def _parse(self, row: int) -> Trees:
        place = f"the model of group {self._registry.table['text'][row].as_py()} in {self._registry.folder}"
        return Trees.of(self._registry.trees(row), place=place)


_GATHERED = 32 << 20
"""Bytes of weights brought together at a time to score dense rows."""


class Family(Protocol):
    """The models of a folder, to look into or to score rows by."""

    @property
    def takes_nan(self) -> bool:
        """Whether rows with features that are not finite numbers can be scored."""

    @property
    def word(self) -> str:
        """What SQL calls such models after TRAIN BY; nothing where that is the models' own kind."""

    def require(self) -> None:
        """Raise `UsageError` where rows cannot be scored for want of something."""

    def model(self, row: int, config: Mapping[str, Any], **told: Any) -> EncodedModel:
        """Return the model at a row of the registry's table, with its hyper-parameters, ``fingerprint`` and ``metrics``."""

    def scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        """Return the scores of each row by the model at its row of the table; zero where there is none."""


class LinearWeights:
    """The linear models of a folder, of which only the weights that are needed are read."""

    takes_nan = False
    word = ""

    def __init__(self, registry: Registry, recipe: Recipe, maker: Any = None) -> None:
        self._registry, self._recipe = registry, recipe

    def require(self) -> None:
        """Do nothing: the weights are all that is needed."""

    def model(self, row: int, config: Mapping[str, Any], **told: Any) -> LinearModel:
        index = self._registry.index
        weights = np.array(self._registry.weights(row), np.float32).reshape(-1, index.outputs)
        split = Weights(np.ascontiguousarray(weights[:-1].T), weights[-1].copy())
        return LinearModel(index.kind, split, self._recipe, config, **told)

    def scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        outputs = self._registry.index.outputs
        out = np.zeros((len(batch), outputs), np.float32)
        seen = np.flatnonzero(models >= 0)
        known, place = np.unique(models[seen], return_inverse=True)
        if isinstance(batch.x, Csr):
            rows = batch.x.take(seen)
            owner = np.repeat(np.arange(len(seen)), np.diff(rows.indptr).astype(np.int64))
            for output in range(outputs):
                own = outputs * rows.indices.astype(np.int64) + output
                last = np.full(len(seen), outputs * rows.width + output)
                products = rows.values * self._registry.pick(models[seen][owner], own)
                out[seen, output] = np.bincount(owner, products, len(seen)) + self._registry.pick(models[seen], last)
        else:
            step = max(1, _GATHERED // (4 * (batch.width + 1) * outputs))
            for first in range(0, len(known), step):
                here = np.flatnonzero((place >= first) & (place < first + step))
                weights = self._registry.gather(known[first : first + step])[place[here] - first]
                weights = weights.reshape(len(here), -1, outputs)
                x = batch.x[seen[here]]
                out[seen[here]] = np.einsum("ij,ijk->ik", x, weights[:, :-1]) + weights[:, -1]
        return loss_of(self._registry.index.kind).scored(out)


FAMILIES = {"linear": LinearWeights, "trees": Forest, "modules": Modules}
"""The families by the names that the index of a folder has for them."""


def family_of(registry: Registry, recipe: Recipe, maker: Any) -> Family:
    """Return the family of a folder's models; ``maker`` is what modules were trained by.

    Raises
    ------
    UsageError
        It is of a newer version.
    """
    name = registry.index.family
    if name not in FAMILIES:
        raise UsageError(
            f"the models in {registry.folder} are {name}, which this version does not know; upgrade with:"
            " pip install -U penstock"
        )
    family: Family = FAMILIES[name](registry, recipe, maker)
    return family
