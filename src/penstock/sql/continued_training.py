"""Training that goes on from a model of the database: ``WITH (init = 'm')``, and BigQuery's ``WARM_START``.

The rows are made features by the model's own recipe, so that every weight keeps its meaning; a query of other columns is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.blocks.base import BlockSource
from penstock.columns.recipe import Recipe
from penstock.errors import ColumnError, UsageError
from penstock.linear import LinearModel
from penstock.messages import Name, Text, Use
from penstock.sgd.losses import loss_of
from penstock.sql.catalog import Catalog
from penstock.sql.engines.base import Engine
from penstock.sql.options import Settings
from penstock.sql.statements import Train
from penstock.sql.transform import saved_transform

_KINDS = ("hash", "category", "number", "date", "missing", "null_values")


def first_model(
    statement: Train, chosen: Settings, features: Sequence[str], engine: Engine, catalog: Catalog
) -> LinearModel | None:
    """Return the model that a training begins with; None where it begins anew."""
    if chosen.init is None:
        return None
    first = catalog.load_linear(chosen.init, "what training goes on from")
    kinds, shown = (chosen.config.model, loss_of(chosen.config.model).several), f"model {chosen.init!r}"
    if first.kind not in kinds:
        raise _refusal(chosen, f"is a {first.kind} model", Use("model", first.kind))
    if first.recipe.label != chosen.columns.label:
        raise _refusal(chosen, f"predicts {first.recipe.label!r}", Use("label", first.recipe.label))
    if first.transform != saved_transform(statement, engine):
        raise _refusal(chosen, "has another TRANSFORM, or none", "write the same one")
    for name in _KINDS:
        if getattr(chosen.columns, name):
            raise UsageError(
                f"{name} comes with {shown}, which training goes on from", fixes=[Text("leave out ", Name(name))]
            )
    recipe = first.recipe
    known = [recipe.members.get(name, name) for part in recipe.parts for name in part.columns]
    missing = next((name for name in known if name not in features), None)
    if missing is not None:
        raise ColumnError.missing(missing, features, place="the query", role="feature column")
    others = [name for name in features if name not in known and name not in recipe.left_out]
    if others:
        raise _refusal(chosen, f"has not learned from {', '.join(map(repr, others))}", Use("exclude", others))
    return first


def continued_recipe(first: LinearModel, chosen: Settings, source: BlockSource) -> Recipe:
    """Return the recipe of the model that a training begins with, for its rows."""
    recipe = replace(first.recipe, weight=chosen.columns.weight, weight_mean=1.0)
    return recipe.for_schema(source.schema, place="the query", scored=True)


def exact_notice(model: LinearModel) -> str | None:
    """Say where a beginning made no difference; None where it did."""
    if model.config.get("solver") != "exact":
        return None
    return "least squares is solved exactly, to the same weights whatever training begins with; solver = 'sgd' goes on from them"


def _refusal(chosen: Settings, reason: str, fix: Use | str) -> UsageError:
    return UsageError(f"names a model that {reason}", option="init", value=chosen.init, fixes=[Text(fix)])
