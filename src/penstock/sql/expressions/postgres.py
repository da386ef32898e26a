"""A model in PostgreSQL's SQL: an expression over each row, worked out beside it by a lateral join.

``OFFSET 0`` keeps the planner from writing an expression out at each place that names it. Arrays are first taken out of
storage by joining nothing to them: every subscript of one that lies out of line would fetch the whole of it again.
Sums are of doubles. A null, a NaN or an array of another length gives null predictions.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.sql.expressions import outcome
from penstock.sql.expressions.literals import POSTGRES, array, literal, number, quote, total
from penstock.sql.expressions.pieces import Formula, Piece, Stored

_BIAS = 127 + 23
"""What a float32's exponent counts from, its 24 bits taken as an integer."""


def select(formula: Formula, query: str, names: Sequence[str], *, warehouse: bool) -> str:
    """Write the query's columns with predictions beside them, under these names."""
    held: dict[str, str] = {}
    outputs = range(len(formula.intercept))
    scores = ", ".join(f"nullif({_score(formula, o, held)}, 'NaN') AS s{o}" for o in outputs)
    taken = ", ".join(f"{what} AS {name}" for name, what in held.items())
    source = f" FROM (SELECT {taken} OFFSET 0) AS held" if held else ""
    joins = [f"LATERAL (SELECT {scores}{source} OFFSET 0) AS p"]
    refs, shares = [f"p.s{o}" for o in outputs], []
    if formula.kind == "softmax":
        raised = ", ".join(f"{outcome.raised(ref, 't.top')} AS e{o}" for o, ref in enumerate(refs))
        shares = [f"e.e{o} / z.total" for o in outputs]
        joins += [
            f"LATERAL (SELECT greatest({', '.join(refs)}) AS top OFFSET 0) AS t",
            f"LATERAL (SELECT {raised} OFFSET 0) AS e",
            f"LATERAL (SELECT {total([f'e.e{o}' for o in outputs])} AS total OFFSET 0) AS z",
        ]
    columns = [outcome.prediction(formula, refs, "t.top", POSTGRES)]
    chances = outcome.chances(formula, refs, shares)
    if warehouse and chances:
        columns.append(outcome.listed(formula, chances, POSTGRES))
    elif not warehouse:
        columns += chances
    added = ", ".join(f"{column} AS {quote(name)}" for column, name in zip(columns, names, strict=True))
    return f"SELECT q.*, {added} FROM (\n{query}\n) AS q CROSS JOIN " + " CROSS JOIN ".join(joins)


def _score(formula: Formula, output: int, held: dict[str, str]) -> str:
    terms = [_TERMS[piece.kind](formula, output, piece, held) for piece in formula.pieces]
    return total([*terms, number(formula.intercept[output])])


def _number(formula: Formula, output: int, piece: Piece, held: dict[str, str]) -> str:
    column = f"q.{quote(piece.columns[0])}"
    if pa.types.is_boolean(piece.types[0]):
        column = f"{column}::int"
    return f"{column} * {number(formula.weights(output, piece)[0])}"


def _array(formula: Formula, output: int, piece: Piece, held: dict[str, str]) -> str:
    column, width = f"q.{quote(piece.columns[0])}", piece.width
    name = _hold(held, f"{column}::int[]" if _holds_booleans(piece) else f"{column} || '{{}}'")
    if formula.literal:
        weights = enumerate(formula.weights(output, piece), 1)
        whole = total([f"{name}[{place}] * {number(weight)}" for place, weight in weights]) if width else number(0)
    else:
        product = f"coalesce({name}[i], 'NaN') * {_weights(formula, output, piece)}[i]"
        whole = f"(SELECT sum({product}) FROM generate_series(1, {width}) AS g(i))"
    # Of arrays that count from elsewhere than 1, or in two dimensions, some place is empty, which makes the sum null.
    return f"CASE WHEN cardinality({name}) = {width} THEN {whole} END"


def _packed(formula: Formula, output: int, piece: Piece, held: dict[str, str]) -> str:
    """Write the sum over float32 values in a bytea: each put together from its four bytes."""
    column, width = f"q.{quote(piece.columns[0])}", piece.width
    name, powers = _hold(held, f"{column} || ''::bytea"), _hold(held, _powers())
    if formula.literal:
        weights = enumerate(formula.weights(output, piece))
        terms = [f"{_unpacked(name, powers, str(4 * place))} * {number(weight)}" for place, weight in weights]
        whole = total(terms) if terms else number(0)
    else:
        product = f"{_unpacked(name, powers, 'at')} * {_weights(formula, output, piece)}[(at >> 2) + 1]"
        whole = f"(SELECT sum({product}) FROM generate_series(0, {4 * width - 4}, 4) AS g(at))"
    return f"CASE WHEN octet_length({name}) = {4 * width} THEN {whole} END"


def _unpacked(name: str, powers: str, at: str) -> str:
    first, second, third, fourth = (f"get_byte({name}, {at} + {byte})" for byte in range(4))
    exponent = f"{powers}[({fourth} << 1) + ({third} >> 7) + 1]"
    return f"{exponent} * ((({third} | 128) << 16) + ({second} << 8) + {first})"


def _powers() -> str:
    """Write the factor that stands for each sign and exponent; numbers below 1e-37, without a leading bit, count as 0."""
    scales = [0.0 if not e else float("nan") if e == 255 else 2.0 ** (e - _BIAS) for e in range(256)]
    return array([*scales, *(-scale for scale in scales)], POSTGRES)


def _vector(formula: Formula, output: int, piece: Piece, held: dict[str, str]) -> str:
    """Write pgvector's inner product, which is of single precision and comes with its sign turned."""
    column, schema = f"q.{quote(piece.columns[0])}", quote(piece.schema)
    weights = ",".join(map(repr, formula.weights(output, piece)))
    product = f"-({column} OPERATOR({schema}.<#>) '[{weights}]'::{schema}.vector)"
    return f"CASE WHEN {schema}.vector_dims({column}) = {piece.width} THEN {product} END"


def _pairs(formula: Formula, output: int, piece: Piece, held: dict[str, str]) -> str:
    places, values = (f"q.{quote(name)}" for name in piece.columns)
    weights = _weights(formula, output, piece)
    # A place beyond the weights has none, and is left out; one below them, or none at all, is no feature.
    inside = f"k >= 0 AND k < {piece.width}"
    weight = f"CASE WHEN {inside} THEN {weights}[k::int + 1] WHEN k >= 0 THEN 0 ELSE 'NaN' END"
    whole = f"SELECT coalesce(sum(coalesce(v, 'NaN') * {weight}), 0) FROM unnest({places}, {values}) AS u(k, v)"
    return f"CASE WHEN {places} IS NOT NULL AND {values} IS NOT NULL THEN ({whole}) END"


_TERMS = {"number": _number, "array": _array, "packed": _packed, "vector": _vector, "pairs": _pairs}


def _weights(formula: Formula, output: int, piece: Piece) -> str:
    """Write an output's weights for a piece as an array: a constant, or one fetched from the catalogue once."""
    if formula.literal or formula.stored is None:
        return f"({array(formula.weights(output, piece), POSTGRES)})"
    stored = formula.stored
    first, last = formula.places(output, piece)
    found = f"SELECT coef[{first}:{last}]::float8[] FROM {stored.table} WHERE {pinned(stored)}"
    return f"(SELECT coalesce(({found}), {_gone(stored)}))"


def pinned(stored: Stored) -> str:
    """Write the condition that finds a model in the catalogue, and no other that has since taken its name."""
    return f"name = {literal(stored.name, POSTGRES)} AND extract(epoch FROM created_at) * 1000000 = {stored.made}"


def _gone(stored: Stored) -> str:
    """Write an array that cannot be read, whose error says why; naming the user keeps it from being read beforehand."""
    name = f" {stored.name}" if stored.name.isidentifier() else ""
    told = f"""{{"the model{name} was dropped or replaced; run or make this statement again"}}"""
    return f"({literal(told, POSTGRES)} || left(current_user, 0))::float8[]"


def _hold(held: dict[str, str], what: str) -> str:
    """Note what is to be taken out of storage once a row, and return the name it has then."""
    name = next((name for name, noted in held.items() if noted == what), f"h{len(held)}")
    held[name] = what
    return f"held.{name}"


def _holds_booleans(piece: Piece) -> bool:
    return bool(pa.types.is_boolean(piece.types[0].value_type))
