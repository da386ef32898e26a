"""Training inside the server, where the extension of ``postgres/`` is installed: no row leaves it.

The extension learns by the same steps and keeps its models in the same table. It finds by itself how text, dates and missing numbers
become features, as `penstock.columns` does. What it does not know (kinds of columns by name, early stopping, solvers by
name, optimizers, other shuffles, packed features) is learnt here, as without it. So is what the server comes across when it reads the rows:
columns of so many features that they want an optimizer with a rate for each, and rows of lists without a label.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.columns.base import is_list, is_number
from penstock.columns.schema_notes import left_out_notice, spelling_notice, stray_notice
from penstock.config import Config
from penstock.errors import DatabaseError
from penstock.events import Finished, Started, Stream, Warned
from penstock.linear import LinearModel
from penstock.sgd.losses import loss_of
from penstock.sql.catalog import Catalog
from penstock.sql.options import Settings
from penstock.sql.prediction_query import holds_lists
from penstock.sql.result import Result
from penstock.sql.statements import Train

if TYPE_CHECKING:
    from penstock.sql.engines.postgres.engine import PostgresEngine

_SHUFFLES = ("corgipile", "block-only", "none")
_REFUSED_ROW = "22000"
"""The SQLSTATE of rows that the extension refuses: nulls, numbers that are not finite, too many features."""
_TASK = "train in the server"
_WARNING = "WARNING: "
_USELESS = "the model is useless: "
_CONFIG = (
    *("solver", "learning_rate", "rate", "decay", "power", "epochs", "batch_size", "l1", "l2", "average"),
    *("class_weight", "standardize", "intercept", "shuffle", "seed"),
)


def extension_supports(chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
    """Return whether the extension can do what these settings ask for."""
    config, columns = chosen.config, chosen.columns
    beyond = (
        config.full_passes
        or config.optimizer not in (None, "sgd")
        or chosen.auto_split
        or chosen.init is not None
        or config.patience
        or config.shuffle not in _SHUFFLES
        or columns.hash
        or columns.category
        or columns.number
        or columns.date
        or columns.missing not in (None, "auto")
        or columns.null_values
    )
    kinds = [schema.field(name).type for name in features]
    lists = sum(is_list(kind) and is_number(kind.value_type) for kind in kinds)
    single = not any(holds_lists(kind) for kind in kinds)
    return not beyond and (single or lists == len(kinds) <= 2)


class ExtensionTraining:
    """Training by the extension ``penstock`` of the server."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine

    def accepts(self, chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
        """Return whether the extension is there and can train with these settings."""
        return extension_supports(chosen, features, schema) and self._engine.extension() is not None

    def train(
        self, statement: Train, chosen: Settings, features: Sequence[str], *, catalog: Catalog, stream: Stream
    ) -> LinearModel | None:
        """Have the server train a model under the statement's name, and return it as the catalogue has it.

        None where the server refuses a row, for a null as a rule, and nulls are to be filled.
        """
        options = {**server_options(statement, chosen, features), "replace": chosen.replace}
        options["statement"] = statement.text
        text = "SELECT * FROM penstock.train($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.jsonb)"
        stream.emit(Started(_TASK, None, "rows"))  # the server gives its rows back when all epochs are made
        try:
            with self._engine.savepoint():
                result = self._engine.run(
                    text, [source_of(statement), chosen.config.model, statement.name, json.dumps(options)]
                )
        except DatabaseError as error:
            if not _may_be_filled(error, chosen):
                raise
            told = str(error).partition("\n")[0]
            stream.emit(
                Warned(f"the server does not learn from these rows ({told}), so they are read and learnt from here")
            )
            return None
        finally:
            stream.emit(Finished(_TASK))
        warnings = [notice.removeprefix(_WARNING) for notice in result.notices if notice.startswith(_WARNING)]
        for warning in warnings:
            stream.emit(Warned(warning))
        model = catalog.load_linear(str(statement.name), "a training in the server")
        parts = model.recipe.parts
        for notice in (left_out_notice(model.recipe.left_out), stray_notice(parts, ()), spelling_notice(parts)):
            if notice is not None:
                stream.emit(Warned(notice))
        for warning in warnings:
            if warning.startswith(_USELESS):
                model = replace(model, metrics={**model.metrics, "useless": warning.removeprefix(_USELESS)})
        if model.kind != chosen.config.model and model.classes is not None:
            label, classes = model.recipe.label, len(model.classes)
            stream.emit(Warned(f"the label {label!r} has {classes} classes, so the model is {model.kind}"))
        if not model.history:
            model = replace(model, history=[_epoch(row, chosen.config.model) for row in result.rows])
        return model

    def explain(self, statement: Train, chosen: Settings, features: Sequence[str], *, analyze: bool) -> Result | None:
        """Return the server's own plan of a training; with ``analyze`` it runs, and keeps no model. None as of `train`."""
        text = "SELECT * FROM penstock.explain($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.jsonb, $4::boolean)"
        options = json.dumps(server_options(statement, chosen, features))
        try:
            with self._engine.savepoint():
                result = self._engine.run(text, [source_of(statement), chosen.config.model, options, analyze])
        except DatabaseError as error:
            if not _may_be_filled(error, chosen):
                raise
            return None
        return Result(("QUERY PLAN",), result.rows)


def _may_be_filled(error: DatabaseError, chosen: Settings) -> bool:
    """Whether the server refused a row that a recipe may fill."""
    return error.code == _REFUSED_ROW and chosen.reading.nulls == "fill"


def source_of(statement: Train) -> str:
    """Return the rows as the extension takes them: a table's name as it was written, or a query."""
    query = statement.query
    return query.selected.table if query.selected and query.selected.columns is None else query.alone


def server_options(statement: Train, chosen: Settings, features: Sequence[str]) -> dict[str, Any]:
    """Return the options as the extension takes them; sizes only where they were given."""
    config, reading = chosen.config, chosen.reading
    usual = Config(model=config.model)
    options: dict[str, Any] = {  # its defaults are the same; what is left open it decides itself
        name: getattr(config, name) for name in _CONFIG if getattr(config, name) != getattr(usual, name)
    }
    options |= {"label": chosen.columns.label, "features": list(features), "named": chosen.columns.features is not None}
    if chosen.columns.weight is not None:
        options["weight"] = chosen.columns.weight
    if config.validation is not None:
        options["validation"] = config.validation
    options["narrow"] = True
    options["nulls"] = reading.nulls
    if {"memory", "buffer_size"} & set(statement.options):
        options["buffer_size"] = config.memory
    if reading.block_size is not None:
        options["block_size"] = reading.block_size
    return options


def _epoch(row: Sequence[Any], model: str) -> dict[str, Any]:
    epoch, loss, score, _, seconds, rows, *_ = row
    scores = {"progressive_loss": loss, f"progressive_{loss_of(model).metric}": score}
    return {"epoch": epoch, **scores, "seconds": seconds, "rows": rows}
