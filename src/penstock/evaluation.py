"""Measuring a trained model on labelled data of any size."""

from __future__ import annotations

from dataclasses import replace

from penstock.blocks.base import BlockSource
from penstock.config import LOSSES
from penstock.linear import LinearModel
from penstock.loader.loader import Loader
from penstock.loader.naming import Current
from penstock.sgd.faults import Names
from penstock.sgd.loop import Spec, Trainer
from penstock.training import default_label, feature_name


def evaluate(
    model: LinearModel, source: BlockSource, *, label: str | None = None, memory: str | int = "512MB"
) -> dict[str, float]:
    """Return a model's loss, accuracy or r2 and the number of rows it was measured on.

    ``label`` names the label column where it is not the one that the model was trained on.
    """
    fitted = model.encoder
    wanted = label or (fitted.label if fitted.label in source.schema.names else default_label(source)) or fitted.label
    encoder = replace(fitted, label=wanted, weight=None).for_schema(source.schema, place=source.name, scored=True)
    window = Current()
    names = Names(row=window.name, feature=lambda j: feature_name(encoder, j))
    trainer = Trainer(Spec(LOSSES[model.kind]), model.weights.width, outputs=model.weights.outputs, names=names)
    trainer.weights = model.weights
    with Loader(source, encoder, "none", memory=memory) as loader:
        stats = trainer.evaluate(window.follow(loader, 0))
    return {"loss": stats.loss, stats.metric: stats.score, "rows": stats.rows}
