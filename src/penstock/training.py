"""What trainings of linear models share, in memory or on disk: columns, the pass over the data, class weights, warnings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.blocks.text_copy import TextCopy
from penstock.class_weights import ClassWeighting, ClassWeights
from penstock.columns.choose import choose_features
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import index_notice, left_out_notice, spelling_notice, stray_notice
from penstock.config import Config
from penstock.errors import UsageError, some_of
from penstock.events import Epoch, Stream, Warned
from penstock.job import Job
from penstock.linear import LinearModel
from penstock.loader.feature_sums import FAR_FROM_ZERO
from penstock.loader.fit_columns import fit_from
from penstock.loader.row_forms import Scaling
from penstock.loader.scan import Scan, scan
from penstock.measures import OnScores
from penstock.sgd.loop import EpochStats
from penstock.sgd.losses import find_loss, loss_of
from penstock.sgd.model import Weights

_MOSTLY_RIGHT = 0.75
"""Accuracy of an epoch from which on a loss somewhat above a guess's is no cause for a warning."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns play which part; see `penstock.columns.choose.choose_features`."""

    label: str | None = None
    features: Sequence[str] | None = None
    weight: str | None = None
    exclude: Sequence[str] = ()
    hash: Sequence[str] = ()
    category: Sequence[str] = ()
    number: Sequence[str] = ()
    date: Sequence[str] = ()
    missing: str | None = None
    null_values: Sequence[str] = ()

    def to_options(self) -> dict[str, Any]:
        """Return the options by name, without those that were not given."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value}

    def recipe(
        self,
        source: BlockSource,
        *,
        wide: bool = False,
        standardize: bool = False,
        blocks: Sequence[int] | None = None,
    ) -> Recipe:
        """Settle them for a source; ``wide`` for a model on disk, which may have any number of features.

        Columns of text and dates are passed over once, or in some ``blocks`` alone, and those of numbers where the recipe is to
        ``standardize`` them.
        """
        columns = self if self.label is not None else replace(self, label=default_label(source))
        return columns.choose(
            source, wide=wide, standardize=standardize, fit=fit_from(source, wide=wide, blocks=blocks)
        )

    def choose(self, source: BlockSource, **more: Any) -> Recipe:
        """Choose among a source's columns; ``more`` are other options of `choose_features`."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return choose_features(source.schema, place=source.name, **own, **more)

    def labelled_recipe(self, source: BlockSource, *, wide: bool = False, standardize: bool = False) -> Recipe:
        """Settle them for a training; that there is no label is said before anything of the features."""
        require_label(self.label if self.label is not None else default_label(source), source)
        return self.recipe(source, wide=wide, standardize=standardize)

    def notice(self, source: BlockSource, recipe: Recipe, stream: Stream) -> None:
        """Tell of the columns that nobody named and that are no features: the index of a stored pandas table, identifiers."""
        for message in (
            index_notice(source.schema, recipe.columns, exclude=self.exclude),
            left_out_notice(recipe.left_out),
            stray_notice(recipe.parts, self.null_values),
            spelling_notice(recipe.parts, self.category),
        ):
            if message is not None:
                stream.emit(Warned(message))


@dataclass(frozen=True, slots=True)
class LinearData:
    """What has to be known of the data before a linear model learns from them.

    ``model`` is the kind that is trained: softmax where a logistic one was asked for and the label has three classes or more.
    """

    recipe: Recipe
    scaling: Scaling
    rows: int
    model: str
    zero_rows: int = 0
    """Rows of weight 0."""
    class_weights: ClassWeights | None = None
    dropped_rows: int = 0
    few_valued: Mapping[str, int] = field(default_factory=dict)
    """Columns of few different whole numbers that are quantities here, with how many these are."""
    """Rows that are left out because they lack a feature."""

    @property
    def weighted_rows(self) -> int:
        """Rows that have a weight."""
        return self.rows - self.zero_rows

    @property
    def outputs(self) -> int:
        """Scores that a model gives a row."""
        labels = self.recipe.labels
        return loss_of(self.model).outputs(0 if labels is None else len(labels.classes))


class WeightTrainer(Protocol):
    """What learns weights in memory: `Trainer` by SGD, `FullTrainer` by full passes, `ExactTrainer` by the normal equations."""

    spec: Any

    @property
    def model_weights(self) -> Weights: ...
    @property
    def done(self) -> bool: ...
    def start(self, weights: Weights, /) -> None: ...
    def run_epoch(self, batches: Any, epoch: int, *, on_batch: Any = None) -> EpochStats: ...
    def evaluate(self, batches: Any, *, on_scores: OnScores | None = None) -> EpochStats: ...
    def state(self) -> dict[str, NDArray[Any]]: ...
    def restore(self, state: Mapping[str, NDArray[Any]]) -> None: ...


def require_label(label: str | None, source: BlockSource) -> None:
    """Raise `UsageError` where no column is the label."""
    if label is None:
        raise UsageError(f"say which column of {source.name} is the label; it has: {some_of(source.schema.names)}")


def scan_labels(
    job: Job[Config, Any], columns: Columns, recipe: Recipe, *, standardize: bool = False, width: bool = True
) -> Scan:
    """Pass over the data once for what has to be known of features, labels and weights.

    Raises
    ------
    UsageError
        There is no label.
    """
    require_label(recipe.label, job.source)
    found = scan(
        job.source,
        recipe,
        classes=loss_of(job.config.model).classifies,
        standardize=standardize,
        width=width,
        weights=True,
        count_classes=job.config.class_weight is not None,
        fill=True,
        identifiers=columns.features is None,
        quantities=columns.number,
        stream=job.stream,
    )
    columns.notice(job.source, found.recipe, job.stream)
    if isinstance(job.source, TextCopy):
        job.stream.emit(Warned(job.source.notice))
    return found


def class_weights_of(config: Config, result: Scan) -> ClassWeights | None:
    """Return what rows are weighed by for their classes, if anything."""
    labels = result.recipe.labels
    if labels is None:
        return None
    weighting = ClassWeighting.of(config.class_weight, labels.classes, column=labels.column)
    return None if weighting is None else weighting.factors(result.class_totals)


def saved_class_weights(header: Mapping[str, Any]) -> ClassWeights | None:
    """Return the class weights of a checkpoint."""
    factors = header.get("class_weights")
    return ClassWeights(np.array(factors, np.float32)) if factors else None


def shown_class_weights(recipe: Recipe, class_weights: ClassWeights | None) -> dict[str, dict[str, float]]:
    """Return the weights that classes were trained with, as a figure of the model; nothing where there are none."""
    if class_weights is None or recipe.labels is None:
        return {}
    names = map(str, recipe.labels.classes)
    return {"class_weights": dict(zip(names, class_weights.factors.tolist(), strict=True))}


def shown_dropped_rows(dropped: int) -> dict[str, int]:
    """Return how many rows lacked a feature and were left out, as a figure of the model; nothing where there were none."""
    return {"dropped_rows": dropped} if dropped else {}


def shown_few_valued(columns: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return columns of few different whole numbers that are quantities, as a figure of the model; nothing without any."""
    return {"few_valued": dict(columns)} if columns else {}


def without_shift(scaling: Scaling) -> Scaling:
    """Return the scaling without its shift, for a model that has no intercept to take the shift back with.

    Dense features are then brought to one root mean square; sparse ones are never shifted.
    """
    if not len(scaling.shift):
        return scaling
    mean, scale = scaling.shift.astype(np.float64), scaling.scale.astype(np.float64)
    with np.errstate(divide="ignore"):
        size = np.hypot(mean, np.where(scale > 0, 1 / scale, 0.0))  # a scale of 0 is that of a constant
        own = np.where(size > 0, 1 / size, 0.0)
    return Scaling(np.zeros_like(scaling.shift), own.astype(np.float32))


def started_weights(model: LinearModel, recipe: Recipe, scaling: Scaling, *, outputs: int) -> Weights:
    """Return a model's weights for features as they are scaled now.

    Raises
    ------
    UsageError
        The model is of other classes, or of another number of features.
    """
    given, classes = model.weights.settled().copy(), None if recipe.labels is None else recipe.labels.classes
    known = None if model.recipe.labels is None else model.recipe.labels.classes
    if known != classes or (given.outputs, given.width) != (outputs, recipe.width):
        raise UsageError(
            f"training cannot go on from a {model.kind} model of {given.width} features and the classes"
            f" {some_of(map(repr, known or ()))}: these rows have {recipe.width} features and the classes"
            f" {some_of(map(repr, classes or ()))}; fit a new one, without warm_start"
        )
    given.arrange(sparse=False)
    if len(scaling.scale):
        if len(scaling.shift):
            given.intercept += given.coef @ scaling.shift
        with np.errstate(divide="ignore", invalid="ignore"):
            given.coef[:] = np.where(scaling.scale > 0, given.coef / scaling.scale, 0.0)
    return given


def large_steps(event: Epoch, loss: str, outputs: int, *, remedy: str) -> Iterator[str]:
    """Warn where a model of zero weights, or for a regression the mean, would have done better than the first epoch.

    Large steps can raise the loss of a classifier that is right in most rows; that is told only where it is far off.
    """
    guess = find_loss(loss).at_zero(outputs)
    most = guess if event.progressive_score < _MOSTLY_RIGHT else 10 * guess
    if event.progressive_score < 0 if event.metric == "r2" else event.progressive_loss > most:
        yield (
            f"after the first epoch the loss is {event.progressive_loss:.3g}, worse than a guess: the steps are too large for"
            f" these features; {remedy}"
        )


def far_label_notice(label: str | None, level: float, metrics: Mapping[str, Any]) -> str | None:
    """Say where the numbers of a regression lie so far from 0 that float32 keeps too few digits of how they differ; else None.

    Examples
    --------
    >>> far_label_notice("time", 1.7e9, {"test_r2": 0.36, "test_rmse": 60.0})
    "the label 'time' lies near 1.7e+09 and varies by 75: float32 keeps too few digits of that; subtract a constant from it"
    """
    for part in ("held_out", "test", "training"):
        r2, rmse = metrics.get(f"{part}_r2"), metrics.get(f"{part}_rmse")
        if r2 is not None and rmse is not None and r2 < 1:
            spread = rmse / math.sqrt(1 - r2)
            if abs(level) > FAR_FROM_ZERO * spread > 0:
                return (
                    f"the label {label!r} lies near {level:.3g} and varies by {spread:.3g}: float32 keeps too few digits of"
                    " that; subtract a constant from it"
                )
    return None


def default_label(source: BlockSource) -> str | None:
    """Return the label that the file itself names: a converted file's, or LibSVM's."""
    from penstock.columns.schema_notes import layout_of

    noted = layout_of(source.schema).get("label")
    if isinstance(noted, str):
        return noted
    names = source.schema.names
    return "label" if names == ["label", "indices", "values"] else None


def feature_name(recipe: Recipe, index: int) -> str:
    """Return what messages call a feature."""
    return recipe.feature_names([index])[0]
