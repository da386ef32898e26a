"""A trained linear model: weights, what it knows of the columns, how it came to be; saving and scoring.

The weights are in the features' own units whatever scaling training used, so a model needs nothing but its
file. Scoring streams: predictions of a path of any size are written as they are made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.encoded_model import EncodedModel
from penstock.errors import ModelFileError
from penstock.loader.row_forms import NOTHING, Scaling
from penstock.measures import OnScores
from penstock.messages import Text, Use
from penstock.metric_names import current_names
from penstock.model import Description
from penstock.modelfile import read_model, write_model
from penstock.sgd.losses import linear_models, loss_of
from penstock.sgd.model import Weights


@dataclass(frozen=True, slots=True)
class LinearModel(EncodedModel):
    """A linear model that can be saved, loaded and asked.

    Attributes
    ----------
    kind : str
        logistic, svm, linear or softmax.
    weights : Weights
        In the features' own units.
    encoder : Encoder
        How columns become features, and labels targets.
    config : dict
        The hyper-parameters.
    history : list of dict
        A metric row for each epoch.
    fingerprint : str
        Of the data it was trained on.
    metrics : dict
        Figures of the finished model, such as ``held_out_accuracy``; `penstock.metric_names` says what names mean.
    scaling : Scaling
        By which features were brought to one scale in training, to say how much each counts; the weights need none.
    """

    kind: str
    weights: Weights
    encoder: Encoder
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    fingerprint: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=Scaling.none)

    @property
    def linear(self) -> LinearModel:
        """The model itself."""
        return self

    def scores(self, batch: Batch) -> Floats:
        """Return a score a row, or for softmax one a row and class."""
        scores = self.weights.scores(batch)
        return loss_of(self.kind).scored(scores)

    def evaluate(
        self,
        source: BlockSource,
        *,
        label: str | None = None,
        memory: str | int = "512MB",
        on_scores: OnScores | None = None,
    ) -> dict[str, Any]:
        """Return the loss, all measures and the number of rows; see `penstock.evaluation.evaluate`."""
        from penstock.evaluation import evaluate

        return evaluate(self, source, label=label, memory=memory, on_scores=on_scores)

    def describe(self, *, most: int | None = None) -> Description:
        """Say what is in the model: its measures, and its largest coefficients by name."""
        from penstock.coefficients import describe

        return describe(self, most=most)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as one safetensors file with a JSON header."""
        write_model(path, self.tensors(), self.header())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearModel:
        """Read a model that `save` wrote."""
        return cls.of(*read_model(path), place=str(path))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the weights by name: ``coef`` with a row for each output, and ``intercept``.

        Where features were scaled, ``shift`` and ``scale`` are what was taken from each and what it was multiplied by.
        """
        named = {"shift": self.scaling.shift, "scale": self.scaling.scale}
        scaling = {name: array for name, array in named.items() if len(array)}
        return {"coef": self.weights.coef, "intercept": self.weights.intercept, **scaling}

    def header(self) -> dict[str, Any]:
        """Return all but the weights as plain JSON."""
        return {
            "kind": self.kind,
            "encoder": self.encoder.to_dict(),
            "features": self.encoder.names,
            "classes": None if self.encoder.labels is None else list(self.encoder.labels.classes),
            "config": dict(self.config),
            "history": [dict(row) for row in self.history],
            "fingerprint": self.fingerprint,
            "metrics": dict(self.metrics),
        }

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]], header: Mapping[str, Any], *, place: str) -> LinearModel:
        """Put together what `tensors` and `header` gave; ``place`` is what messages call where they were."""
        try:
            weights = Weights.zeros(tensors["coef"].shape[1], tensors["coef"].shape[0])
            weights.coef[:] = tensors["coef"]
            weights.intercept[:] = tensors["intercept"]
            encoder = Encoder.from_dict(header["encoder"])
            if header["kind"] not in linear_models():
                raise KeyError(header["kind"])
            held_out = bool(header["config"].get("validation"))
            return cls(
                header["kind"],
                weights,
                encoder,
                header["config"],
                [current_names(row, held_out=held_out) for row in header["history"]],
                header["fingerprint"],
                current_names(header["metrics"], held_out=held_out),
                Scaling(tensors.get("shift", NOTHING), tensors.get("scale", NOTHING)),
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ModelFileError(
                f"{place} is a Penstock file but not a linear model: {error!r}",
                fixes=[Text("a checkpoint is continued with ", Use("resume", True))],
            ) from error
