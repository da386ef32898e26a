"""Models as rows of the catalogue: the values that are written, and the model that is read, checked.

Weights are float4[], all else is JSON; a row is only data, and is checked when read. Numbers that are not finite, which
JSON has no words for, are kept as ``{"not_finite": "nan"}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyarrow import ArrowException

from penstock import __version__
from penstock.budget import show_bytes
from penstock.errors import ModelFileError, PenstockError, UsageError
from penstock.groups.results import GroupModels
from penstock.linear import LinearModel
from penstock.messages import Text, Use
from penstock.model import Model
from penstock.sgd.losses import loss_of
from penstock.sql.stored_files import SAVED, Keeping, SavedModels, saved_header
from penstock.sql.stored_groups import group_header, groups_of_row, is_linear

FORMAT, GROUPS_FORMAT, FILES_FORMAT = 1, 2, 3
"""Versions of a row: of one linear model, of one per group, and of any other model by its files; who reads one reads those before."""
_NOT_FINITE = "not_finite"
_MOST_SCALES = 1_000
"""Features whose means and scales are kept in the header, to explain predictions."""


def row_of_model(
    name: str, model: Model, *, keeping: Keeping | None = None, most_weights: int | None, engine: str
) -> list[Any]:
    """Return the values of a model's row, checked, with the header as JSON has it; ``most_weights`` is how many a field takes."""
    if not isinstance(model, LinearModel) and not is_linear(model):
        content = saved_header(model, keeping or Keeping(), name=name, engine=engine)
        nothing, width = np.empty(0, np.float32), content["features"] or 0
        return [name, content["kind"], 0, width, nothing, nothing, _plain(content), FILES_FORMAT, __version__]
    if isinstance(model, LinearModel):
        weights = model.weights.settled()
        coef, intercept = np.ascontiguousarray(weights.coef, np.float32), np.asarray(weights.intercept, np.float32)
        if not weights.is_finite():
            raise UsageError(f"model {name!r} has weights that are not finite numbers; train it with a smaller rate")
        content, (outputs, width), version = model.header(), coef.shape, FORMAT
        if 0 < len(model.scaling.scale) <= _MOST_SCALES:
            scaling = {"shift": model.scaling.shift.tolist(), "scale": model.scaling.scale.tolist()}
            content["scaling"] = scaling
    else:
        content, coef = group_header(model)
        intercept, version = np.empty(0, np.float32), GROUPS_FORMAT
        outputs, width = model.registry.index.outputs, model.recipe.width or 0
    if most_weights is not None and coef.size > most_weights:
        raise UsageError(
            f"model {name!r} has {coef.size:,} weights ({show_bytes(coef.nbytes)}), and"
            f" {engine} keeps up to {most_weights:,} in a field",
            fixes=[Text("keep one so wide in files: penstock.bigmodel (", Use("model_dir"), ")")],
        )
    return [name, model.kind, outputs, width, coef.ravel(), intercept, _plain(content), version, __version__]


def model_of_row(row: list[Any], *, saved: SavedModels, place: str) -> Model:
    """Put a model together from its row, whatever stands in it; ``saved`` is where files are unpacked."""
    version, kind, outputs, width, coef, intercept, header, by = row
    if version > FILES_FORMAT:
        raise ModelFileError(
            f"{place} was written by a newer Penstock ({by}: format {version}, this one reads up to {FILES_FORMAT}); upgrade"
            " with: pip install -U penstock"
        )
    if version == FILES_FORMAT:
        try:
            return saved.open(header_of_row(header)[SAVED], place=place)
        except PenstockError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(place, f"its header cannot be read ({error!r})") from error
    if version == GROUPS_FORMAT:
        return _group_models(kind, outputs, width, coef, header, place=place)
    weights, constants = _floats(coef), _floats(intercept)
    if weights is None or constants is None or len(weights) != outputs * width or len(constants) != outputs:
        raise _damaged(place, f"its weights are not {outputs} × {width} finite numbers and {outputs} intercepts")
    try:
        content = header_of_row(header)
        sound = all(isinstance(content[part], dict) for part in ("encoder", "config", "metrics"))
        sound &= isinstance(content["history"], list) and all(isinstance(epoch, dict) for epoch in content["history"])
        tensors = {"coef": weights.reshape(outputs, width), "intercept": constants}
        for name, values in content.get("scaling", {}).items():
            scales = _floats(values)
            if scales is not None and len(scales) == width:
                tensors[name] = scales
        model = LinearModel.of(tensors, content, place=place)
        sound &= content["kind"] == kind
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _damaged(place, f"its header cannot be read ({error!r})") from error
    labels = model.recipe.labels
    classes = 0 if labels is None else len(labels.classes)
    if not sound or model.recipe.width != width or outputs != loss_of(kind).outputs(classes):
        raise _damaged(place, "its header, columns and weights do not belong together")
    if loss_of(kind).classifies == (labels is None):
        raise _damaged(place, "its classes do not fit its kind")
    return model


def _group_models(kind: str, outputs: int, width: int, coef: Any, header: Any, *, place: str) -> GroupModels:
    weights = _floats(coef)
    if weights is None:
        raise _damaged(place, "its weights are not finite numbers")
    try:
        found = groups_of_row(header_of_row(header), weights, place=place)
        index = found.registry.index
        sound = (index.kind, index.outputs, found.recipe.width) == (kind, outputs, width) and index.finished
        sound &= len(found.chosen_rows) > 0
    except (ArrowException, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise _damaged(place, f"its header cannot be read ({error!r})") from error
    if not sound:
        raise _damaged(place, "its header, columns and weights do not belong together")
    return found


def _damaged(place: str, why: str) -> ModelFileError:
    return ModelFileError(f"{place} is damaged: {why}; have it dropped and trained or imported anew")


def _floats(values: Any) -> NDArray[np.float32] | None:
    """Return an array of the catalogue's, or None where it is no list of finite numbers."""
    try:
        found = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        return None
    return found if found.ndim == 1 and np.isfinite(found).all() else None


def _plain(value: Any) -> Any:
    """Return a header as JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_NOT_FINITE: repr(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def header_of_row(header: Any) -> dict[str, Any]:
    """Return a header as it was before `_plain`; engines give JSON as text, or read already."""

    def restore(found: dict[str, Any]) -> Any:
        return float(found[_NOT_FINITE]) if set(found) == {_NOT_FINITE} else found

    text = header if isinstance(header, str) else json.dumps(header)
    read = json.loads(text, object_hook=restore)
    if not isinstance(read, dict):
        raise TypeError("the header is not an object")
    return read
