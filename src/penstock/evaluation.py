"""Measuring a trained model on labelled data of any size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.blocks.base import BlockSource
from penstock.budget import Budget
from penstock.columns.recipe import Recipe
from penstock.errors import DataError, UsageError
from penstock.loader.loader import CurrentWindow, Loader
from penstock.measures import Doubles, OnScores, weighted_sum
from penstock.measuring import measures_for
from penstock.messages import Text, Use
from penstock.sgd.faults import Names
from penstock.sgd.loop import Spec, Trainer
from penstock.sgd.losses import loss_of
from penstock.training import default_label, feature_name

if TYPE_CHECKING:
    from penstock.linear import LinearModel


def scoring_loader(source: BlockSource, recipe: Recipe, memory: str | int) -> Loader[Batch]:
    """Return a loader of rows to be scored, in stored order.

    The memory is mostly what a model was trained with, and a share, such as ``"10%"``, is of the data that it was trained on. Scoring
    shuffles nothing: where these rows lie in larger blocks, it takes the least that works, a block or two.
    """
    budget = Budget.parse(memory)
    return Loader(source, recipe, "none", memory=budget if budget.share is None else 1, stretch=True)


def measured_recipe(fitted: Recipe, source: BlockSource, label: str | None = None) -> Recipe:
    """Return how a source's rows are encoded to measure a model on, with its label and weight if there are any.

    Parameters
    ----------
    fitted : Recipe
        The model's own.
    label : str, optional
        The label column, where it is not the one that the model was trained on.
    """
    wanted = label or (fitted.label if fitted.label in source.schema.names else default_label(source)) or fitted.label
    weight = fitted.weight if fitted.weight in source.schema.names else None
    if label is not None and label != fitted.label and any(label in part.columns for part in fitted.parts):
        raise UsageError(
            "is a feature that the model predicts from, not what it predicts",
            option="label",
            value=label,
            place=source.name,
        )
    if fitted.labels is not None and wanted is not None:
        fitted = replace(fitted, labels=replace(fitted.labels, column=wanted))  # as messages call it
    scored = replace(fitted, label=wanted, weight=weight).for_schema(source.schema, place=source.name, scored=True)
    return scored.to_measure()


def evaluate(
    model: LinearModel,
    source: BlockSource,
    *,
    label: str | None = None,
    memory: str | int = "512MB",
    on_scores: OnScores | None = None,
) -> dict[str, Any]:
    """Return a model's loss and all measures of `penstock.measures`, and the number of rows it was measured on.

    Rows count by their weight if the data have the column of weights that the model was trained with, as they do in the
    figures of training. The options are those of `penstock.model.Model.evaluate`.
    """
    recipe, loss, window = measured_recipe(model.recipe, source, label), loss_of(model.kind).name, CurrentWindow()
    names = Names(row=window.name, feature=lambda j: feature_name(recipe, j))
    trainer = Trainer(Spec(loss), model.weights.width, outputs=model.weights.outputs, names=names)
    trainer.weights = model.weights
    with scoring_loader(source, recipe, memory) as loader:
        measures = measures_for(recipe, loss, memory)
        if recipe.unseen is not None:
            recipe.unseen.clear()  # the loader has read some blocks already, to learn of their size
        stats = trainer.evaluate(window.follow(loader, 0), on_scores=both(measures.add, on_scores))
    if not stats.rows:
        raise unmeasured(recipe, source.name)
    return {"loss": stats.loss, **measures.figures(), stats.metric: stats.score, "rows": stats.rows}


def evaluate_scores(
    scored: Iterable[tuple[Floats, NDArray[Any] | None, NDArray[Any] | None]],
    recipe: Recipe,
    kind: str,
    *,
    memory: str | int,
    on_scores: OnScores | None = None,
    place: str,
    groups: str = "",
) -> dict[str, Any]:
    """Return the loss and all measures of rows whose scores are known, and the number of rows.

    Parameters
    ----------
    scored : iterable of tuples
        Scores, labels as the recipe makes them, and weights or None, of some rows at a time. Rows of weight 0 are not
        counted.
    recipe : Recipe
        What labels and weights mean.
    kind : str
        The kind of model, which decides the loss.
    memory, on_scores
        As for `penstock.model.Model.evaluate`; an eighth of the memory is for ranks of scores.
    place : str
        What a message calls the rows.
    groups : str
        What it adds where each group has a model.

    Raises
    ------
    DataError
        There is no row with a weight.
    """
    loss, measures = loss_of(kind), measures_for(recipe, loss_of(kind).name, memory)
    hear = both(measures.add, on_scores)
    total, weight, rows = 0.0, 0.0, 0
    for found, labels, weights in scored:
        assert labels is not None  # the recipe has a label
        mass = np.ones(len(found)) if weights is None else weights.astype(np.float64)
        here = np.flatnonzero(mass > 0)
        scores, y, mass = found[here].astype(np.float64), loss_targets(recipe, kind, labels[here]), mass[here]
        total += float(weighted_sum(mass, loss.value(scores, y)))
        weight += float(mass.sum())
        rows += len(here)
        hear(scores, y, mass)
    if not weight:
        raise unmeasured(recipe, place, groups)
    return {"loss": total / weight, **measures.figures(), "rows": rows}


def unmeasured(recipe: Recipe, place: str, groups: str = "") -> DataError:
    """Return the error for rows of which none has a label and a weight; ``groups`` adds what rows of groups need besides."""
    weighed = "" if recipe.weight is None else f" and a weight {recipe.weight!r} above 0"
    return DataError(
        f"{place} has no row with a label {recipe.label!r}{weighed} to measure the model on",
        fixes=[f"give labelled rows{groups}", Text("name the column that the label is in: ", Use("label", "COLUMN"))],
    )


def loss_targets(recipe: Recipe, kind: str, y: NDArray[Any]) -> Doubles:
    """Return targets as the loss of a model takes them: two classes are -1 and 1, or 0 and 1 where each has a score."""
    if recipe.labels is None or len(recipe.labels.classes) != 2:
        return y.astype(np.float64)
    return np.where(y > 0, 1.0, 0.0 if loss_of(kind).many else -1.0)


def without_loss(figures: dict[str, Any]) -> dict[str, Any]:
    """Leave out the figures that only the loss of a model's kind gives; the model was trained by another."""
    return {name: value for name, value in figures.items() if name not in ("loss", "log_loss", "brier")}


def both(first: OnScores, second: OnScores | None) -> OnScores:
    """Return what passes scores on to one listener, or to two."""
    if second is None:
        return first

    def hear(*rows: Any) -> None:
        first(*rows)
        second(*rows)

    return hear
