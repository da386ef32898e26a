"""A linear model as SQL of the engine's own: predictions without moving a row.

The query becomes the innermost part of a SELECT that gives its columns and the predictions, and stands wherever a
parenthesised query can: in a view, a join, an INSERT. Weights are written out as the float32 they are and summed as
doubles; those of wide models are read from the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import UsageError
from penstock.linear import LinearModel
from penstock.sql.expressions import duckdb, postgres
from penstock.sql.expressions.literals import DUCKDB, POSTGRES, literal, quote
from penstock.sql.expressions.pieces import LITERAL, Stored, formula_of

__all__ = ["LITERAL", "Stored", "added_columns", "literal", "predicting", "quote"]

_LONGEST = 63
"""Bytes of a name in PostgreSQL; it cuts off the rest."""
_MOST_COLUMNS = 1600


def predicting(
    model: LinearModel,
    query: str,
    *,
    schema: pa.Schema,
    engine: str,
    stored: Stored | None = None,
    warehouse: bool = False,
) -> str | None:
    """Write a model's predictions for a query's rows as a query.

    Parameters
    ----------
    model : LinearModel
        The model.
    query : str
        The query, word for word.
    schema : pyarrow.Schema
        Its columns, as the engine's ``describe`` gives them.
    engine : str
        ``duckdb`` or ``postgresql``.
    stored : Stored, optional
        Where the model is in the catalogue (`Catalog.find`), to read more than a thousand weights from there; without
        it they are written out, however many.
    warehouse : bool
        Name the columns as ML.PREDICT does.

    Returns
    -------
    str or None
        A SELECT; None where the model cannot be written as SQL: hashed columns, features packed into a BLOB of DuckDB's.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.blocks.features import choose
    >>> from penstock.sgd.model import Weights
    >>> schema = pa.schema({"x": pa.float32(), "y": pa.float64()})
    >>> weights = Weights(np.array([[2.0]], np.float32), np.array([0.5], np.float32))
    >>> model = LinearModel("linear", weights, choose(schema, label="y"))
    >>> print(predicting(model, "SELECT * FROM t", schema=schema, engine="duckdb"))
    SELECT * EXCLUDE (__penstock_s0), __penstock_s0 AS "prediction" FROM (SELECT q.*, nullif((q."x"::float8 * '2.0'::float8 + '0.5'::float8), 'NaN') AS __penstock_s0 FROM (
    SELECT * FROM t
    ) AS q) AS p
    """
    names = added_columns(model, engine=engine, present=schema.names, warehouse=warehouse)
    formula = formula_of(model, schema, engine, stored)
    if formula is None:
        return None
    if engine == DUCKDB:
        return duckdb.select(formula, query, names, warehouse=warehouse, present=schema.names)
    return postgres.select(formula, query, names, warehouse=warehouse)


def added_columns(
    model: LinearModel, *, engine: str, present: Sequence[str] = (), warehouse: bool = False
) -> list[str]:
    """Return the names of the columns that predictions add, and refuse a query that has one of them already.

    Names that the engine would take for one another are told apart by a number at the end.
    """
    classes = () if model.encoder.labels is None else model.encoder.labels.classes
    probable = bool(classes) and model.kind in ("logistic", "softmax")
    if warehouse:
        stem = f"predicted_{model.encoder.label or 'label'}"
        wanted = [stem, *([f"{stem}_probs"] if probable else [])]
    else:
        wanted = ["prediction", *(f"probability_{each}" for each in classes if probable)]
    if engine == POSTGRES and len(classes) + len(present) + 1 > _MOST_COLUMNS and probable:
        raise UsageError(
            f"the model tells {len(classes)} classes apart, more than PostgreSQL has columns for ({_MOST_COLUMNS} in all);"
            " export it and score outside: EXPORT MODEL … TO 'm.penstock', then penstock predict"
        )
    names: list[str] = []
    for name in wanted:
        names.append(_apart(name, {_known(each, engine) for each in names}, engine))
    taken = {_known(each, engine): each for each in present}
    for name in names:
        there = taken.get(_known(name, engine))
        if there is not None:
            raise UsageError(
                f"the query has a column {there!r} already, where the prediction is to go; name it otherwise:"
                f" SELECT …, {quote(there)} AS other"
            )
    return names


def _known(name: str, engine: str) -> str:
    """Return a name as the engine tells names apart."""
    return name.lower() if engine == DUCKDB else name


def _apart(name: str, taken: set[str], engine: str) -> str:
    """Return a name that is none of those taken: cut to what the engine keeps, and numbered if need be."""
    number, ending = 1, ""
    while True:
        short = name
        if engine == POSTGRES:
            short = name.encode()[: _LONGEST - len(ending)].decode(errors="ignore")
        if _known(short + ending, engine) not in taken:
            return short + ending
        number += 1
        ending = f"_{number}"
