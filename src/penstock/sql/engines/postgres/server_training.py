"""Training inside the server, where the extension of ``postgres/`` is installed: no row leaves it.

The extension learns by the same steps and keeps its models in the same table. It finds by itself how text, dates and missing numbers
become features, as `penstock.columns` does; of models per group it chooses among penalties. What it does not know (kinds of columns by
name, early stopping, solvers by name, optimizers, other shuffles, packed features) is learnt here, as without it. So is what the server
comes across when it reads the rows: columns of so many features that they want an optimizer with a rate for each, and rows of lists
without a label.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.columns.base import is_list, is_number
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import left_out_notice, spelling_notice, stray_notice
from penstock.config import Config
from penstock.errors import DatabaseError
from penstock.events import Finished, Started, Stream, Warned
from penstock.groups.results import GroupModels
from penstock.linear import LinearModel
from penstock.sgd.losses import loss_of
from penstock.sql.catalog import Catalog
from penstock.sql.engines.base import StatementRows
from penstock.sql.options import Settings
from penstock.sql.prediction_query import holds_lists
from penstock.sql.result import Result
from penstock.sql.statements import Train
from penstock.training import Columns

if TYPE_CHECKING:
    from penstock.sql.engines.postgres.engine import PostgresEngine

_SHUFFLES = ("corgipile", "block-only", "none")
_REFUSED_ROW = "22000"
"""The SQLSTATE of rows that the extension refuses: nulls, numbers that are not finite, too many features."""
_TASK = "train in the server"
_WARNING = "WARNING: "
_TOO_WIDE = "54000"
"""That of columns that make more features than models of groups are learnt from in the server."""
_USELESS = "the model is useless: "
_CONFIG = (
    *("solver", "learning_rate", "rate", "decay", "power", "epochs", "batch_size", "l1", "l2", "average"),
    *("class_weight", "standardize", "intercept", "shuffle", "seed"),
)


def extension_supports(chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
    """Return whether the extension can do what these settings ask for."""
    config = chosen.config
    beyond = (
        config.full_passes
        or config.optimizer not in (None, "sgd")
        or chosen.auto_split
        or chosen.init is not None
        or config.patience
        or config.shuffle not in _SHUFFLES
    )
    return not beyond and _reads(chosen, features, schema, most_lists=2)


def extension_supports_groups(statement: Train, chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
    """Return whether the extension can train a model per group as these settings ask for.

    Only a table's own rows have places, by which the same ones are held out of the groups and of the pooled model.
    """
    config, groups, query = chosen.config, chosen.groups, statement.query
    beyond = (
        groups is None
        or not groups.by
        or groups.workers
        or config.validation == 0
        or not (query.selected and query.selected.columns is None)
        or config.model not in ("logistic", "softmax", "linear")
        or config.solver not in ("auto", "exact" if config.model == "linear" else "lbfgs")
        or config.asks_for_sgd
        or config.optimizer not in (None, "sgd")
        or config.l1
        or config.patience
        or config.epochs is not None
        or config.class_weight is not None
        or chosen.columns.weight is not None
        or chosen.init is not None
        or chosen.halving
        or chosen.auto_split
        or not {"l2"}.issuperset(chosen.search)
        or {"memory", "buffer_size", "tolerance"} & set(statement.options)
    )
    return not beyond and _reads(chosen, features, schema, most_lists=1)


def _reads(chosen: Settings, features: Sequence[str], schema: pa.Schema, *, most_lists: int) -> bool:
    """Return whether the extension finds by itself what these columns are: one by one, or so many lists."""
    columns = chosen.columns
    named = columns.hash or columns.category or columns.number or columns.date or columns.null_values
    kinds = [schema.field(name).type for name in features]
    lists = sum(is_list(kind) and is_number(kind.value_type) for kind in kinds)
    single = not any(holds_lists(kind) for kind in kinds)
    return not named and columns.missing in (None, "auto") and (single or lists == len(kinds) <= most_lists)


class ExtensionTraining:
    """Training by the extension ``penstock`` of the server."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine

    def accepts(self, chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
        """Return whether the extension is there and can train with these settings."""
        return extension_supports(chosen, features, schema) and self._engine.extension() is not None

    def accepts_groups(self, statement: Train, chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
        """Return whether the extension is there and can train a model per group with these settings."""
        supported = extension_supports_groups(statement, chosen, features, schema)
        return supported and self._engine.extension() is not None

    def train(
        self, statement: Train, chosen: Settings, features: Sequence[str], *, catalog: Catalog, stream: Stream
    ) -> LinearModel | None:
        """Have the server train a model under the statement's name, and return it as the catalogue has it.

        None where the server refuses a row, for a null as a rule, and nulls are to be filled.
        """
        options = {**server_options(statement, chosen, features), "replace": chosen.replace}
        options["statement"] = statement.text
        text = "SELECT * FROM penstock.train($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.jsonb)"
        values = [source_of(statement), chosen.config.model, statement.name, json.dumps(options)]
        result = self._run(text, values, chosen, stream=stream)
        if result is None:
            return None
        model = catalog.load_linear(str(statement.name), "a training in the server")
        warnings = _tell(result, model.recipe, chosen.columns, stream)
        for warning in warnings:
            if warning.startswith(_USELESS):
                model = replace(model, metrics={**model.metrics, "useless": warning.removeprefix(_USELESS)})
        if model.kind != chosen.config.model and model.classes is not None:
            label, classes = model.recipe.label, len(model.classes)
            stream.emit(Warned(f"the label {label!r} has {classes} classes, so the model is {model.kind}"))
        if not model.history:
            model = replace(model, history=[_epoch(row, chosen.config.model) for row in result.rows])
        return model

    def train_groups(
        self, statement: Train, chosen: Settings, features: Sequence[str], *, catalog: Catalog, stream: Stream
    ) -> GroupModels | None:
        """Have the server train a model per group under the statement's name. None where it refuses rows, or too many features."""
        assert chosen.groups is not None
        options = {
            **server_options(statement, chosen, features),
            "replace": chosen.replace,
            "statement": statement.text,
        }
        if "l2" in chosen.search:
            options["l2"] = ["auto" if value is None else value for value in chosen.search["l2"]]
        options["unseen"] = chosen.groups.unseen
        by = "ARRAY(SELECT pg_catalog.json_array_elements_text($3::pg_catalog.json))"
        text = f"SELECT * FROM penstock.train($1::pg_catalog.text, $2::pg_catalog.text, {by}, $4::pg_catalog.jsonb, $5::pg_catalog.text)"
        values = [source_of(statement), chosen.config.model, json.dumps(chosen.groups.by), json.dumps(options)]
        result = self._run(text, [*values, statement.name], chosen, stream=stream)
        if result is None:
            return None
        model = catalog.load(str(statement.name))
        assert isinstance(model, GroupModels)
        _tell(result, model.recipe, chosen.columns, stream)
        return model

    def _run(self, text: str, values: Sequence[Any], chosen: Settings, *, stream: Stream) -> StatementRows | None:
        """Run a training; None where the server refuses rows that can be learnt from here."""
        stream.emit(Started(_TASK, None, "rows"))  # the server gives its rows back when all epochs are made
        try:
            with self._engine.savepoint():
                return self._engine.run(text, values)
        except DatabaseError as error:
            if not _may_be_filled(error, chosen) and (chosen.groups is None or error.code != _TOO_WIDE):
                raise
            told = str(error).partition("\n")[0]
            stream.emit(
                Warned(f"the server does not learn from these rows ({told}), so they are read and learnt from here")
            )
            return None
        finally:
            stream.emit(Finished(_TASK))

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


def _tell(result: StatementRows, recipe: Recipe, columns: Columns, stream: Stream) -> list[str]:
    """Tell of the server's warnings, which are returned, and of columns left out."""
    warnings = [notice.removeprefix(_WARNING) for notice in result.notices if notice.startswith(_WARNING)]
    notices = (
        left_out_notice(recipe.left_out),
        stray_notice(recipe.parts, columns.null_values),
        spelling_notice(recipe.parts, columns.category),
    )
    for told in (*warnings, *(notice for notice in notices if notice is not None)):
        stream.emit(Warned(told))
    return warnings


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
