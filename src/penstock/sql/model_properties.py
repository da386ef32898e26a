"""What there is to know of a saved model: SHOW MODEL, SHOW TRAINING, DESCRIBE MODEL and ML.TRAINING_INFO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.columns.hashing import Hashed
from penstock.config import Config
from penstock.errors import UsageError
from penstock.groups.keys import to_text
from penstock.groups.results import GroupModels
from penstock.groups.tables import figures
from penstock.linear import LinearModel
from penstock.model import Model
from penstock.sgd.losses import loss_of
from penstock.sql.catalog import Catalog
from penstock.sql.disk_training import epoch_figures
from penstock.sql.group_training import TRIALS, group_notes, group_rows, trial_rows
from penstock.sql.result import Result
from penstock.sql.statements import DescribeModel, ShowModel, ShowTraining

_MOST_WEIGHTS = 1_000
_SHOWN_CONFIG = ("solver", "optimizer", "rate", "batch_size", "l1", "l2", "standardize", "shuffle", "memory", "seed")


def show_model(statement: ShowModel | ShowTraining | DescribeModel, catalog: Catalog) -> Result:
    """Return what a statement asks for of a model."""
    name, group = statement.model, statement.group if isinstance(statement, DescribeModel) else None
    with catalog.load(name) as model:
        if isinstance(model, GroupModels):
            if isinstance(statement, DescribeModel):
                return _group_properties(model, name) if group is None else _properties_of_group(model, name, group)
            tried = isinstance(statement, ShowTraining)
            return replace(group_rows(model, tried=tried), notes=() if tried else group_notes(figures(model)))
        if group is not None:
            raise UsageError(f"model {name!r} is one model, and none per group; leave out FOR")
        if isinstance(statement, ShowTraining) and (trials := trial_rows(model)) is not None:
            return trials
        if isinstance(model, LinearModel):
            return training_info_rows(model) if isinstance(statement, ShowTraining) else model_properties(model, name)
        return (
            epoch_figures(model) if isinstance(statement, ShowTraining) else described_properties(model, name, catalog)
        )


_COMMON = ("model", "label", "classes", "epochs", "metrics", "config", "columns")


def described_properties(model: Model, name: str, catalog: Catalog | None = None) -> Result:
    """Return what a model of any kind says of itself, a row for each property; the catalogue says where it lies."""
    told = model.describe().values
    folder = None if catalog is None else catalog.directory(name)
    properties: dict[str, Any] = {
        "name": name,
        "kind": model.word,
        "predicts": model.kind,
        "label": model.label,
        "classes": None if model.classes is None else model.classes.tolist(),
        "columns": list(model.columns),
        **({} if folder is None else {"model_dir": folder}),
        **{key: value for key, value in told.items() if key not in _COMMON},
        **{key: value for key, value in model.metrics.items() if key != TRIALS},
        **{f"config.{key}": value for key, value in model.config.items()},
    }
    return Result(("property", "value"), list(properties.items()))


def show_versions(name: str, catalog: Catalog) -> Result:
    """Return a row for each version of a model, the earliest first."""
    names = ("version", "is_default", "owner", "created_at", "statement", "snapshot", "rows", "score")
    rows = []
    for version, entry in catalog.versions(name):
        origin = entry.origin
        told = (origin.owner, entry.created_at, origin.statement or None, origin.snapshot, entry.rows, entry.score)
        rows.append((version.number, version.is_default, *told))
    return Result(names, rows)


def _group_properties(model: GroupModels, name: str) -> Result:
    """Return what is known of a model per group, a row for each property."""
    told = figures(model)
    properties: dict[str, Any] = {
        "name": name,
        "kind": model.word,
        "label": model.label,
        "classes": None if model.classes is None else model.classes.tolist(),
        "by": list(model.by),
        "unseen": model.unseen,
        "features": model.recipe.width,
        "columns": [column for part in model.recipe.parts for column in part.columns],
        "groups": told["groups"],
        "groups_without_model": told["groups_without_model"],
        "configs": told["configs"],
        "rows": told["rows"],
        **{key: value for key, value in model.metrics.items() if not isinstance(value, list)},
        **{key: model.config[key] for key in _SHOWN_CONFIG if key in model.config},
    }
    return Result(("property", "value"), list(properties.items()))


def _properties_of_group(model: GroupModels, name: str, group: tuple[Any, ...]) -> Result:
    if len(group) != len(model.by):
        raise UsageError(
            f"model {name!r} is by {', '.join(model.by)}: name {len(model.by)} values, as DESCRIBE MODEL {name} FOR (…)"
        )
    found = model.best(to_text(group))
    if not isinstance(found, LinearModel):
        return described_properties(found, name)
    shown = model_properties(found, name)
    features = found.recipe.names or tuple(map(str, range(found.weights.width)))
    if loss_of(found.kind).many or found.weights.width > _MOST_WEIGHTS:
        return shown
    weights = dict(zip(features, found.weights.coef[0].tolist(), strict=True))
    named = [("weights", weights), ("intercept", float(found.weights.intercept[0]))]
    return replace(shown, rows=[*shown.rows, *named])


def training_info_rows(model: LinearModel) -> Result:
    """Return a row for each epoch, as the warehouses do; the losses have the names that say what they were measured on."""
    names = ("training_run", "iteration", "progressive_loss", "held_out_loss", "learning_rate", "duration_ms")
    rate = Config(**model.config).spec().rate if model.config else None
    rows = []
    for number, row in enumerate(model.history):
        step = None if rate is None else rate.at(number, number * row["rows"])
        losses = row.get("progressive_loss"), row.get("held_out_loss")
        rows.append((0, number, *losses, step, round(1000 * row["seconds"])))
    whole, number_type = pa.int64(), pa.float64()
    return Result(names, rows, steps=True, types=(whole, whole, number_type, number_type, number_type, whole))


def _usual_rate(model: LinearModel) -> float:
    known = {name: model.config[name] for name in ("solver", "rate") if name in model.config}
    return Config(model=model.kind, **{"solver": "sgd", **known}).first_rate


def model_properties(model: LinearModel, name: str) -> Result:
    """Return what is known of a model, a row for each property."""
    recipe = model.recipe
    hashed = [f"{part.column}:2^{part.bits}" for part in recipe.parts if isinstance(part, Hashed)]
    properties: dict[str, Any] = {
        "name": name,
        "kind": model.kind,
        "label": recipe.label,
        "classes": None if recipe.labels is None else list(recipe.labels.classes),
        "features": model.weights.width,
        "columns": [column for part in recipe.parts for column in part.columns],
        "epochs": len(model.history),
        **{key: value for key, value in model.metrics.items() if key != TRIALS},
        **({"hash": hashed} if hashed else {}),
        **({} if model.transform is None else {"transform": dict(model.transform.columns)}),
        "learning_rate": model.config.get("learning_rate") or _usual_rate(model),
        **{key: model.config[key] for key in _SHOWN_CONFIG if key in model.config},
    }
    return Result(("property", "value"), list(properties.items()))
