"""A model in DuckDB's SQL: inner products of lists of doubles, in queries one around another.

A null, a NaN or a list of another length gives null predictions. Features packed into a BLOB have no way out of it in
SQL: such a model is scored outside.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.sql.expressions import outcome
from penstock.sql.expressions.literals import DUCKDB, array, literal, number, quote, total
from penstock.sql.expressions.pieces import Formula, Piece, Stored


def select(
    formula: Formula, query: str, names: Sequence[str], *, warehouse: bool, present: Sequence[str]
) -> str | None:
    """Write the query's columns, which are ``present``, with predictions beside them under these names."""
    if any(piece.kind == "packed" for piece in formula.pieces):
        return None
    mark = _free("__penstock", present)
    outputs = range(len(formula.intercept))
    refs, shares = [f"{mark}_s{o}" for o in outputs], []
    scores = ", ".join(f"nullif({_score(formula, o)}, 'NaN') AS {refs[o]}" for o in outputs)
    text = f"SELECT q.*, {scores} FROM (\n{query}\n) AS q"
    made = list(refs)
    if formula.kind == "softmax":
        text = f"SELECT *, greatest({', '.join(refs)}) AS {mark}_top FROM ({text}) AS s"
        each = [f"{mark}_e{o}" for o in outputs]
        raised = ", ".join(f"{outcome.raised(ref, f'{mark}_top')} AS {name}" for ref, name in zip(refs, each))
        text = f"SELECT *, {raised} FROM ({text}) AS t"
        text = f"SELECT *, {total(each)} AS {mark}_total FROM ({text}) AS e"
        shares = [f"{name} / {mark}_total" for name in each]
        made += [f"{mark}_top", *each, f"{mark}_total"]
    columns = [outcome.prediction(formula, refs, f"{mark}_top", DUCKDB)]
    chances = outcome.chances(formula, refs, shares)
    if warehouse and chances:
        columns.append(outcome.listed(formula, chances, DUCKDB))
    elif not warehouse:
        columns += chances
    added = ", ".join(f"{column} AS {quote(name)}" for column, name in zip(columns, names, strict=True))
    return f"SELECT * EXCLUDE ({', '.join(made)}), {added} FROM ({text}) AS p"


def _score(formula: Formula, output: int) -> str:
    terms = [_TERMS[piece.kind](formula, output, piece) for piece in formula.pieces]
    return total([*terms, number(formula.intercept[output])])


def _number(formula: Formula, output: int, piece: Piece) -> str:
    return f"q.{quote(piece.columns[0])}::float8 * {number(formula.weights(output, piece)[0])}"


def _array(formula: Formula, output: int, piece: Piece) -> str:
    values = f"q.{quote(piece.columns[0])}"
    weights = _weights(formula, output, piece)
    fits = f"len({values}) = {piece.width} AND {_full(values)}"
    return f"CASE WHEN {fits} THEN list_inner_product({values}::float8[], {weights}) END"


def _pairs(formula: Formula, output: int, piece: Piece) -> str:
    """Write the sum over a row's own features: their weights are picked by place, then multiplied.

    The weights have one more at either end: NaN, for places below the first, and nothing, for those beyond the last.
    """
    places, values = (f"q.{quote(name)}" for name in piece.columns)
    weights = _weights(formula, output, piece, ends=True)
    place = f"greatest(least(x::bigint, {piece.width}), -1) + 2"
    picked = f"list_select({weights}, list_transform({places}, lambda x: {place}))"
    same = f"len({places}) = len({values})"
    return f"CASE WHEN {same} AND {_full(places)} AND {_full(values)} THEN list_inner_product({picked}, {values}::float8[]) END"


_TERMS = {"number": _number, "array": _array, "pairs": _pairs}


def _full(values: str) -> str:
    """Write the condition that a list holds no null, which an inner product refuses; counting them takes longer."""
    return f"list_position({values}, NULL) IS NULL"


def _weights(formula: Formula, output: int, piece: Piece, *, ends: bool = False) -> str:
    """Write an output's weights for a piece as a list: a constant, or one fetched from the catalogue once."""
    if formula.literal or formula.stored is None:
        values = formula.weights(output, piece)
        return array([float("nan"), *values, 0.0] if ends else values, DUCKDB)
    stored = formula.stored
    first, last = formula.places(output, piece)
    found = f"SELECT coef[{first}:{last}]::float8[] FROM {stored.table} WHERE {pinned(stored)}"
    name = f" {stored.name}" if stored.name.isidentifier() else ""
    told = literal(f"the model{name} was dropped or replaced; run or make this statement again", DUCKDB)
    whole = f"coalesce(({found}), error({told})::float8[])"
    return f"(SELECT ['NaN'::float8] || {whole} || [0::float8])" if ends else f"(SELECT {whole})"


def pinned(stored: Stored) -> str:
    """Write the condition that finds a model in the catalogue, and no other that has since taken its name."""
    return f"name = {literal(stored.name, DUCKDB)} AND epoch_us(created_at) = {stored.made}"


def _free(stem: str, present: Sequence[str]) -> str:
    """Return a beginning that no column's name has."""
    while any(name.lower().startswith(stem) for name in present):
        stem += "_"
    return stem
