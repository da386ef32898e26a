"""The coefficients of a linear model by name, the most important first, and the model's description with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from penstock.columns.summary import ColumnSummary, column_lines, column_summaries
from penstock.linear import LinearModel
from penstock.model import Description
from penstock.sgd.losses import loss_of

_KEYS = {"value": "coefficient", "output": "class"}
"""What JSON calls the fields of a `Coefficient`, where it has other names for them."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """What one feature adds to a score.

    Attributes
    ----------
    feature : str
        Its name; ``feature 7`` of lists of indices and values, and ``city#7`` of hashed text.
    output : object
        Of a model with a score for each class, the class; else None.
    value : float
        What one unit of the feature adds.
    standardized : float or None
        What one spread (standard deviation) of the feature adds; None where training did not scale features.
    mean, spread : float or None
        Of the feature in the data trained on. No mean is known of sparse features, which are scaled without centering.
    """

    feature: str
    output: Any
    value: float
    standardized: float | None = None
    mean: float | None = None
    spread: float | None = None


def coefficients(model: LinearModel, *, most: int | None = None) -> list[Coefficient]:
    """Return a model's coefficients that are not zero, the largest first, at most so many.

    Size is that of standardized coefficients where the scaling is known, since those of features with different units cannot
    be compared, else of plain ones.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock.columns.choose import choose_features
    >>> from penstock.loader.row_forms import Scaling
    >>> from penstock.sgd.model import Weights
    >>> recipe = choose_features(pa.schema([("age", pa.float32()), ("cm", pa.float32()), ("y", pa.float32())]), label="y")
    >>> weights = Weights(np.array([[0.5, 0.25]], np.float32), np.zeros(1, np.float32))
    >>> scaling = Scaling(np.array([40.0, 170.0], np.float32), np.array([1.0, 0.125], np.float32))
    >>> [(each.feature, each.standardized) for each in coefficients(LinearModel("linear", weights, recipe, scaling=scaling))]
    [('cm', 2.0), ('age', 0.5)]
    """
    coef, scale, shift = model.weights.coef, model.scaling.scale, model.scaling.shift
    with np.errstate(divide="ignore"):
        spread = np.where(scale > 0, 1 / scale.astype(np.float64), 0.0)
    size = np.abs(coef.astype(np.float64) * (spread if len(scale) else 1.0)).ravel()
    count = int(np.count_nonzero(size)) if most is None else min(most, int(np.count_nonzero(size)))
    # Of a wide model all are not sorted for the sake of a few.
    largest = np.argpartition(-size, count - 1)[:count] if 0 < count < len(size) else np.flatnonzero(size)
    classes = model.classes if loss_of(model.kind).many else None
    centered = model.recipe.dense_width if model.recipe.sparse else len(shift)
    places = largest[np.argsort(-size[largest], kind="stable")].tolist()
    names = model.recipe.feature_names(place % coef.shape[1] for place in places)
    found = []
    for place, name in zip(places, names):
        output, j = divmod(place, coef.shape[1])
        value = float(coef[output, j])
        found.append(
            Coefficient(
                name,
                None if classes is None else classes[output].item(),
                value,
                value * float(spread[j]) if len(scale) else None,
                float(shift[j]) if j < min(centered, len(shift)) else None,
                float(spread[j]) if len(scale) else None,
            )
        )
    return found


def describe(model: LinearModel, *, most: int | None = None) -> Description:
    """Say what is in a model: its measures, and its coefficients, the largest first."""
    listed, columns = coefficients(model, most=most), describe_columns(model)
    values = {
        "columns": [asdict(each) for each in columns],
        "left_out": dict(model.recipe.left_out),
        "features": model.weights.width,
        "intercept": model.weights.intercept,
        "coefficients": [{_KEYS.get(key, key): value for key, value in asdict(each).items()} for each in listed],
    }
    shown = [*column_lines(columns, model.recipe.left_out, most=most), *_table(model, listed)]
    return Description.of(model, f"{model.weights.width:,} features", values=values, lines=shown)


def describe_columns(model: LinearModel) -> list[ColumnSummary]:
    """Return a line for each column of a model, that with the largest weight first."""
    coef, scale, shift = model.weights.coef, model.scaling.scale, model.scaling.shift
    size = np.abs(coef).max(axis=0) if len(coef) else np.zeros(0)
    with np.errstate(divide="ignore"):
        spread = np.where(scale > 0, 1 / scale.astype(np.float64), 0.0)
    size = size * spread if len(scale) else size
    found, at = [], 0
    for part, summary in zip(model.recipe.described_parts, column_summaries(model.recipe)):
        width = part.width or len(size) - at
        alone, mean = part.kind in ("number", "date"), summary.mean
        if part.kind == "date" and mean is not None and len(shift):
            mean += float(shift[at])  # days are counted from the origin
        found.append(
            replace(
                summary,
                mean=mean,
                scale=float(spread[at]) if alone and len(scale) else None,
                weight=float(size[at : at + width].max(initial=0.0)),
            )
        )
        at += width
    return sorted(found, key=lambda each: -(each.weight or 0.0))


def _table(model: LinearModel, listed: Sequence[Coefficient]) -> Iterator[str]:
    """Yield the table of coefficients, and the intercept."""
    columns = ["coefficient"]
    if any(each.standardized is not None for each in listed):
        columns += ["per spread", *(["mean"] if any(each.mean is not None for each in listed) else []), "spread"]
    fields = {"coefficient": "value", "per spread": "standardized", "mean": "mean", "spread": "spread"}
    several = loss_of(model.kind).many
    names = [f"{each.feature} ({each.output})" if several else each.feature for each in listed]
    classes = [] if model.classes is None else model.classes.tolist()
    constants = [f"intercept ({each})" for each in classes] if several else ["intercept"]
    wide = max(map(len, [*names, *constants, "feature"]))
    yield ""
    yield f"{'feature':<{wide}}" + "".join(f"{name:>14}" for name in columns)
    for name, value in zip(constants, model.weights.intercept.tolist()):
        yield f"{name:<{wide}}{_number(value):>14}"
    for name, each in zip(names, listed):
        yield f"{name:<{wide}}" + "".join(f"{_number(getattr(each, fields[column])):>14}" for column in columns)
    hidden = int((model.weights.coef != 0).sum()) - len(listed)
    if hidden > 0:
        yield f"and {hidden:,} smaller ones"
    if len(columns) > 1:
        yield "per spread: what one standard deviation of the feature adds to the score, by which the list is sorted"


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.5g}"
