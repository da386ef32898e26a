"""A linear model as SQL of the engine's own: predictions without moving a row.

The query becomes the innermost part of a SELECT that gives its columns and the predictions, and stands wherever a
parenthesised query can: in a view, a join, an INSERT. Weights are written out as the float32 they are and summed as
doubles; those of wide models are read from the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pyarrow as pa

from penstock.errors import UsageError
from penstock.linear import LinearModel
from penstock.model import Model
from penstock.sgd.losses import loss_of
from penstock.sql.expressions.dialect import Dialect
from penstock.sql.expressions.formula import StoredModel, formula_of
from penstock.sql.expressions.literals import quote_identifier


def select_predictions(
    model: Model,
    query: str,
    *,
    schema: pa.Schema,
    dialect: Dialect,
    stored: StoredModel | None = None,
    warehouse: bool = False,
) -> str | None:
    """Write a model's predictions for a query's rows as a query.

    Parameters
    ----------
    model : Model
        The model.
    query : str
        The query, word for word.
    schema : pyarrow.Schema
        Its columns, as the engine's ``describe`` gives them.
    dialect : Dialect
        The engine's SQL.
    stored : StoredModel, optional
        Where the model is in the catalogue (`Catalog.find`), to read more than a thousand weights from there; without
        it they are written out, however many.
    warehouse : bool
        Name the columns as ML.PREDICT does.

    Returns
    -------
    str or None
        A SELECT; None where the model cannot be written as SQL: it has no linear form, hashed columns, or features packed
        into a BLOB of DuckDB's.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.blocks.features import choose_features
    >>> from penstock.sgd.model import Weights
    >>> from penstock.sql.engines.duckdb.predictions import DUCKDB
    >>> schema = pa.schema({"x": pa.float32(), "y": pa.float64()})
    >>> weights = Weights(np.array([[2.0]], np.float32), np.array([0.5], np.float32))
    >>> model = LinearModel("linear", weights, choose_features(schema, label="y"))
    >>> print(select_predictions(model, "SELECT * FROM t", schema=schema, dialect=DUCKDB))
    SELECT * EXCLUDE (__penstock_s0), __penstock_s0 AS "prediction" FROM (SELECT q.*, nullif((q."x"::float8 * '2.0'::float8 + '0.5'::float8), 'NaN') AS __penstock_s0 FROM (
    SELECT * FROM t
    ) AS q) AS p
    """
    if model.linear is None or dialect.predictions is None:
        return None
    names = added_columns(model.linear, dialect=dialect, present=schema.names, warehouse=warehouse)
    formula = formula_of(model.linear, schema, dialect, stored)
    if formula is None:
        return None
    return dialect.predictions(formula, query, names, warehouse=warehouse, present=schema.names)


def added_columns(
    model: LinearModel, *, dialect: Dialect, present: Sequence[str] = (), warehouse: bool = False
) -> list[str]:
    """Return the names of the columns that predictions add, and refuse a query that has one of them already.

    Names that the engine would take for one another are told apart by a number at the end.
    """
    classes = () if model.encoder.labels is None else model.encoder.labels.classes
    probable = bool(classes) and loss_of(model.kind).probabilities is not None
    if warehouse:
        stem = f"predicted_{model.encoder.label or 'label'}"
        wanted = [stem, *([f"{stem}_probs"] if probable else [])]
    else:
        wanted = ["prediction", *(f"probability_{each}" for each in classes if probable)]
    most = dialect.most_columns
    if most is not None and len(classes) + len(present) + 1 > most and probable:
        raise UsageError(
            f"the model tells {len(classes)} classes apart, more than {dialect.title} has columns for ({most} in all);"
            " export it and score outside: EXPORT MODEL … TO 'm.penstock', then penstock predict"
        )
    names: list[str] = []
    for name in wanted:
        names.append(_distinct(name, {dialect.fold(each) for each in names}, dialect))
    taken = {dialect.fold(each): each for each in present}
    for name in names:
        there = taken.get(dialect.fold(name))
        if there is not None:
            raise UsageError(
                f"the query has a column {there!r} already, where the prediction is to go; name it otherwise:"
                f" SELECT …, {quote_identifier(there)} AS other"
            )
    return names


def _distinct(name: str, taken: set[str], dialect: Dialect) -> str:
    """Return a name that is none of those taken: cut to what the engine keeps, and numbered where necessary."""
    candidates = (dialect.shorten(name, "" if number == 1 else f"_{number}") for number in count(1))
    return next(each for each in candidates if dialect.fold(each) not in taken)
