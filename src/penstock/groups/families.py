"""The families of models that a folder of groups may hold: linear ones, boosted trees, torch modules.

A family takes single models out of the registry, and scores rows of many groups at a time, each by its group's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.blocks.features import Encoder
from penstock.errors import UsageError
from penstock.groups.modules import Modules
from penstock.groups.registry import Registry
from penstock.groups.trees import Forest
from penstock.linear import EncodedModel, LinearModel
from penstock.sgd.losses import loss_of
from penstock.sgd.model import Weights

_GATHERED = 32 << 20
"""Bytes of weights brought together at a time to score dense rows."""


class Family(Protocol):
    """The models of a folder, to look into or to score rows by."""

    @property
    def takes_nan(self) -> bool:
        """Whether rows with features that are not finite numbers can be scored."""
        ...

    def require(self) -> None:
        """Raise `UsageError` where rows cannot be scored for want of something."""
        ...

    def model(self, row: int, config: Mapping[str, Any], **told: Any) -> EncodedModel:
        """Return the model at a row of the registry's table, with its hyper-parameters, ``fingerprint`` and ``metrics``."""
        ...

    def scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        """Return the scores of each row by the model at its row of the table; zero where there is none."""
        ...


class LinearWeights:
    """The linear models of a folder, of which only the weights that are needed are read."""

    takes_nan = False

    def __init__(self, registry: Registry, encoder: Encoder, maker: Any = None) -> None:
        self._registry, self._encoder = registry, encoder

    def require(self) -> None:
        """Do nothing: the weights are all that is needed."""

    def model(self, row: int, config: Mapping[str, Any], **told: Any) -> LinearModel:
        """Return the model at a row of the table."""
        index = self._registry.index
        weights = np.array(self._registry.weights(row), np.float32).reshape(-1, index.outputs)
        split = Weights(np.ascontiguousarray(weights[:-1].T), weights[-1].copy())
        return LinearModel(index.kind, split, self._encoder, config, **told)

    def scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        """Return the score of each row, or for softmax one a class, by the model at its row; zero where there is none."""
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


def family_of(registry: Registry, encoder: Encoder, maker: Any) -> Family:
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
    family: Family = FAMILIES[name](registry, encoder, maker)
    return family
