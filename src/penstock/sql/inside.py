"""Training by the server itself, where the extension of ``postgres/`` is installed: no row leaves it.

The extension learns by the same steps and keeps its models in the same table. What it does not know (standardising,
weights, hashing, held-out rows, other solvers and shuffles, packed features) is learnt here, as without it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from penstock.blocks.parts import is_list, is_number
from penstock.events import Stream, Warned
from penstock.linear import LinearModel
from penstock.sql.catalog import Catalog
from penstock.sql.engines.base import Engine
from penstock.sql.options import Settings
from penstock.sql.result import Result
from penstock.sql.statements import Train

_SHUFFLES = ("corgipile", "block-only", "none")
_WARNING = "WARNING: "
_CONFIG = ("rate", "decay", "power", "epochs", "batch_size", "l1", "l2", "intercept", "shuffle", "seed")


def knows(chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
    """Say whether the extension can do what is asked."""
    config, columns = chosen.config, chosen.columns
    beyond = (
        config.solver != "sgd"
        or config.standardize
        or config.validation
        or chosen.auto_split
        or config.patience is not None
        or config.shuffle not in _SHUFFLES
        or columns.weight is not None
        or columns.hash
    )
    kinds = [schema.field(name).type for name in features]
    lists = sum(is_list(kind) and is_number(kind.value_type) for kind in kinds)
    numbers = sum(is_number(kind) or pa.types.is_boolean(kind) for kind in kinds)
    return not beyond and (numbers == len(kinds) or (lists == len(kinds) <= 2))


def train(
    statement: Train, chosen: Settings, features: Sequence[str], *, engine: Engine, catalog: Catalog, stream: Stream
) -> LinearModel:
    """Have the server learn a model under the statement's name, and return it as the catalogue has it."""
    options = {**options_of(statement, chosen, features), "replace": chosen.replace}
    text = "SELECT * FROM penstock.train($1::text, $2::text, $3::text, $4::jsonb)"
    found = engine.run(text, [source_of(statement), chosen.config.model, statement.name, json.dumps(options)])
    for told in found.notices:
        if told.startswith(_WARNING):
            stream.emit(Warned(told.removeprefix(_WARNING)))
    model = catalog.load(str(statement.name))
    return model if model.history else replace(model, history=[_epoch(row, chosen.config.model) for row in found.rows])


def explain(statement: Train, chosen: Settings, features: Sequence[str], *, engine: Engine, analyze: bool) -> Result:
    """Return the server's own plan of a training; with ``analyze`` it runs, and keeps no model."""
    text = "SELECT * FROM penstock.explain($1::text, $2::text, $3::jsonb, $4::boolean)"
    options = json.dumps(options_of(statement, chosen, features))
    found = engine.run(text, [source_of(statement), chosen.config.model, options, analyze])
    return Result(("QUERY PLAN",), found.rows)


def source_of(statement: Train) -> str:
    """Return the rows as the extension takes them: a table's name as it was written, or a query."""
    query = statement.query
    plain = query.selected is not None and query.selected.columns is None
    return query.selected.table if plain and query.selected is not None else query.alone


def options_of(statement: Train, chosen: Settings, features: Sequence[str]) -> dict[str, Any]:
    """Return the options as the extension takes them; sizes only where they were given."""
    config, reading = chosen.config, chosen.reading
    options: dict[str, Any] = {name: getattr(config, name) for name in _CONFIG}
    options |= {
        "learning_rate": config.first_rate,
        "label": chosen.columns.label,
        "features": list(features),
        "nulls": reading.nulls,
    }
    if {"memory", "buffer_size"} & set(statement.options):
        options["buffer_size"] = config.memory
    if reading.block_size is not None:
        options["block_size"] = reading.block_size
    return options


def _epoch(row: Sequence[Any], model: str) -> dict[str, Any]:
    epoch, loss, score, seconds, rows = row
    return {
        "epoch": epoch,
        "loss": loss,
        "r2" if model == "linear" else "accuracy": score,
        "seconds": seconds,
        "rows": rows,
    }
