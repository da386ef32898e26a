"""A model in PostgreSQL's SQL: an expression over each row, worked out beside it by a lateral join.

``OFFSET 0`` keeps the planner from writing an expression out at each place that names it. Arrays are first taken out of
storage by joining nothing to them: every subscript of one that lies out of line would fetch the whole of it again.
Sums are of doubles. A null or a NaN that the recipe does not fill, an infinity, or an array of another length, gives null predictions.
Levels of a category are the keys of a jsonb constant, which are looked up by halving.

The statement runs by the user's search path, where others may have put functions and operators. Functions are qualified. So are
operators for which pg_catalog has no exact match; one that it has, such as ``float8 * float8``, hides all others, because
pg_catalog is searched first. Hence the casts: ``int4 * float8`` could be anyone's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.blocks.postgres.qualify import qualified
from penstock.columns.number import is_elapsed
from penstock.errors import UsageError
from penstock.sql.dialect import (
    AttributionFormula,
    Dialect,
    double_literal,
    nested_sum,
    quote_identifier,
    typed_literal,
)
from penstock.sql.feature_terms import ZONED, ValueWriter
from penstock.sql.outcome_writer import OutcomeWriter
from penstock.sql.prediction_query import JOINED, FeatureTerm, Formula, StoredModel, weight_column

CREATED = "(extract(epoch FROM created_at) * 1000000::numeric)::bigint"
"""When a model was made, in microseconds since 1970."""
_BIAS = 127 + 23
"""What a float32's exponent counts from, its 24 bits taken as an integer."""


def select_in_postgres(
    formula: Formula, query: str, names: Sequence[str], *, warehouse: bool, present: Sequence[str]
) -> str:
    """Write the query's columns with predictions beside them, under these names."""
    held: dict[str, str] = {}
    outputs = range(len(formula.intercept))
    scores = ", ".join(f"{_finite(_score(formula, o, held))} AS s{o}" for o in outputs)
    taken = ", ".join(f"{what} AS {name}" for name, what in held.items())
    source = f" FROM (SELECT {taken} OFFSET 0) AS held" if held else ""
    joins = [f"LATERAL (SELECT {scores}{source} OFFSET 0) AS p"]
    refs, shares = [f"p.s{o}" for o in outputs], []
    if formula.loss.many:
        raised = ", ".join(f"{_OUTCOME.exponential(ref, 't.top')} AS e{o}" for o, ref in enumerate(refs))
        shares = [f"e.e{o} / z.total" for o in outputs]
        joins += [
            f"LATERAL (SELECT greatest({', '.join(refs)}) AS top OFFSET 0) AS t",
            f"LATERAL (SELECT {raised} OFFSET 0) AS e",
            f"LATERAL (SELECT {nested_sum([f'e.e{o}' for o in outputs])} AS total OFFSET 0) AS z",
        ]
    added = _OUTCOME.columns(formula, names, scores=refs, shares=shares, top="t.top", warehouse=warehouse)
    weights = _join_weights(formula)
    return f"SELECT q.*, {added} FROM (\n{query}\n) AS q{weights} CROSS JOIN " + " CROSS JOIN ".join(joins)


def _finite(score: str) -> str:
    """Write a score, or null where it is no finite number."""
    return f"nullif(nullif(nullif({score}, 'NaN'), 'Infinity'), '-Infinity')"


def _join_weights(formula: Formula) -> str:
    """Write the join of rows with the weights of their groups, which are read from the catalogue once; nothing for one model.

    Nulls are compared as flags, because no join by IS NOT DISTINCT FROM is one by hashing.
    """
    groups, stored = formula.groups, formula.stored
    if groups is None or stored is None:
        return ""
    row = f"FROM {stored.table} WHERE {_pinned(stored)}"
    most = (groups.count + 1) * (formula.width + 1) * len(formula.intercept)
    lists, columns, same = [], [], []
    for at, (column, kind) in enumerate(groups.keys):
        value, type_ = f"q.{quote_identifier(column)}", _KEY_TYPES.get(kind, "int8")
        keys = f"pg_catalog.json_extract_path(m.header, 'groups', 'keys', '{at}')"
        lists.append(f"pg_catalog.json_array_elements_text({keys})")
        columns += [f"coalesce(k.t{at}, '0')::pg_catalog.{type_} AS k{at}", f"k.t{at} IS NULL AS n{at}"]
        key = _KEYS.get(kind, f"({{}})::pg_catalog.{type_}").format(value)
        collate = ' COLLATE pg_catalog."C"' if kind == "text" else ""
        same.append(f"coalesce({key}, '0'::pg_catalog.{type_}){collate} OPERATOR(pg_catalog.=) {JOINED}.k{at}")
        same.append(f"({value} IS NULL) OPERATOR(pg_catalog.=) {JOINED}.n{at}")
    weights = groups.weights(formula, "(k.place::int4 - 1)", coef="m.coef")
    names = ", ".join(f"t{at}" for at in range(len(lists)))
    # A slice of an array is taken out of storage once.
    coef = f"coalesce((SELECT coef[1:{most}] {row}), {_gone(stored, 'float4[]')})"
    whole = f"(SELECT {coef} AS coef, (SELECT header {row}) AS header OFFSET 0) AS m"
    places = f"LATERAL ROWS FROM ({', '.join(lists)}) WITH ORDINALITY AS k({names}, place)"
    table = f"SELECT k.place, {', '.join(columns)}, {weights} FROM {whole}, {places} OFFSET 0"
    return f" LEFT JOIN ({table}) AS {JOINED} ON {' AND '.join(same)}"


_KEY_TYPES = {"text": "text", "float": "float8"}
_MICROSECONDS = "(extract(epoch FROM {}) * 1000000::numeric)::pg_catalog.int8"
_KEYS = {
    "boolean": "({})::pg_catalog.int4::pg_catalog.int8",
    "date": "({} - '1970-01-01'::pg_catalog.date)::pg_catalog.int8",
    "timestamp": _MICROSECONDS,
    "time": _MICROSECONDS,
}
"""How the values of groups are compared that are not simply cast."""


def _text(value: str) -> str:
    if "\0" in value:
        raise UsageError(f"{value!r} holds a zero byte, which no text in PostgreSQL can")
    # Whether a backslash escapes depends on a server's settings, unless the constant says so itself.
    escaped = value.replace("'", "''").replace("\\", "\\\\")
    return f"E'{escaped}'" if "\\" in value else f"'{escaped}'"


_literal = partial(typed_literal, wide="numeric", list_form="ARRAY[{}]", text=_text)


def _pairs_json(pairs: Sequence[tuple[str, str]]) -> str:
    objects = ", ".join(f"pg_catalog.jsonb_build_object('label', {name}, 'prob', {share})" for name, share in pairs)
    return f"pg_catalog.to_jsonb(ARRAY[{objects}])"


_OUTCOME = OutcomeWriter(_literal, "pg_catalog.exp", _pairs_json)


def _score(formula: Formula, output: int, held: dict[str, str]) -> str:
    if formula.groups is not None:
        single = replace(formula, groups=None, stored=None)
        own = _score(replace(single, joined=True), output, held)
        other = _score(single, output, held) if formula.groups.pooled else "NULL"
        return formula.score_of_group(own, other)
    terms = [_TERMS[term.kind](formula, output, term, held) for term in formula.terms]
    return nested_sum([*terms, formula.constant(output)])


def _number(formula: Formula, output: int, term: FeatureTerm, held: dict[str, str]) -> str:
    return _VALUES.number(term, formula.by_one(output, term))


def _date(formula: Formula, output: int, term: FeatureTerm, held: dict[str, str]) -> str:
    return _VALUES.date(term, formula.by_one(output, term))


def _level(formula: Formula, output: int, term: FeatureTerm, held: dict[str, str]) -> str:
    return f"coalesce({_weights(formula, output, term)}[{_hold(held, _VALUES.code(term))}], 0::float8)"


def _column(term: FeatureTerm) -> str:
    return f"q.{quote_identifier(term.columns[0])}"


def _parsed(value: str, to: str) -> str:
    if to != "timestamp":
        return f"({value})::pg_catalog.float8"
    zoned = f"({value})::pg_catalog.text OPERATOR(pg_catalog.~) {_literal(ZONED)}"  # the cast to a timestamp passes over the zone
    utc = f"pg_catalog.timezone('UTC', ({value})::pg_catalog.timestamptz)"
    return f"CASE WHEN {zoned} THEN {utc} ELSE ({value})::pg_catalog.timestamp END"


def _days(value: str, kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return f"({value} - '1970-01-01'::pg_catalog.date)::float8"
    return f"(extract(epoch FROM {value})::float8 / 86400::float8)"


def _date_part(value: str, kind: pa.DataType, part: str) -> str:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        value = f"({value} AT TIME ZONE 'UTC')"
    return f"extract({_PARTS[part]} FROM {value}::pg_catalog.timestamp)::pg_catalog.int4::pg_catalog.text"


_PARTS = {"month": "month", "weekday": "isodow", "hour": "hour"}


def _as_text(value: str) -> str:
    return f"{value}::pg_catalog.text"


def _lookup(text: str, codes: dict[str, int]) -> str:
    table = _text(json.dumps(codes, ensure_ascii=False))
    return f"({table}::pg_catalog.jsonb OPERATOR(pg_catalog.->>) {text})::pg_catalog.int4"


def _among(text: str, texts: tuple[str, ...]) -> str:
    return f"{text} OPERATOR(pg_catalog.=) ANY ({_literal(list(texts))}::pg_catalog.text[])"


def _double(value: str, kind: pa.DataType) -> str:
    """Write a value such that multiplying it by a double is an operator of the server's own."""
    if pa.types.is_boolean(kind):
        return f"{value}::int::float8"
    if is_elapsed(kind):
        return f"extract(epoch FROM {value})::float8"
    return value if pa.types.is_float32(kind) else f"{value}::float8"  # numerics, too, are doubles to Arrow


def _array(formula: Formula, output: int, term: FeatureTerm, held: dict[str, str]) -> str:
    column, width = f"q.{quote_identifier(term.columns[0])}", term.width
    name = _hold(held, f"{column}::int[]" if _holds_booleans(term) else f"{column} OPERATOR(pg_catalog.||) '{{}}'")
    kind = pa.int32() if _holds_booleans(term) else term.types[0].value_type
    if formula.literal:
        weights = enumerate(formula.weights(output, term), 1)
        whole = (
            nested_sum([f"{_double(f'{name}[{place}]', kind)} * {double_literal(weight)}" for place, weight in weights])
            if width
            else double_literal(0)
        )
    else:
        product = f"coalesce({_double(f'{name}[i]', kind)}, 'NaN') * {_weights(formula, output, term)}[i]"
        whole = f"(SELECT pg_catalog.sum({product}) FROM pg_catalog.generate_series(1, {width}) AS g(i))"
    # Of arrays that count from elsewhere than 1, or in two dimensions, some place is empty, which makes the sum null.
    return f"CASE WHEN pg_catalog.cardinality({name}) = {width} THEN {whole} END"


def _packed(formula: Formula, output: int, term: FeatureTerm, held: dict[str, str]) -> str:
    """Write the sum over float32 values in a bytea: each put together from its four bytes."""
    column, width = f"q.{quote_identifier(term.columns[0])}", term.width
    name, powers = _hold(held, f"{column} OPERATOR(pg_catalog.||) ''::bytea"), _hold(held, _powers())
    if formula.literal:
        weights = enumerate(formula.weights(output, term))
        terms = [f"{_unpacked(name, powers, str(4 * place))} * {double_literal(weight)}" for place, weight in weights]
        whole = nested_sum(terms) if terms else double_literal(0)
    else:
        product = f"{_unpacked(name, powers, 'at')} * {_weights(formula, output, term)}[(at >> 2) + 1]"
        whole = f"(SELECT pg_catalog.sum({product}) FROM pg_catalog.generate_series(0, {4 * width - 4}, 4) AS g(at))"
    return f"CASE WHEN pg_catalog.octet_length({name}) = {4 * width} THEN {whole} END"


def _unpacked(name: str, powers: str, at: str) -> str:
    first, second, third, fourth = (f"pg_catalog.get_byte({name}, {at} + {byte})" for byte in range(4))
    exponent = f"{powers}[({fourth} << 1) + ({third} >> 7) + 1]"
    return f"{exponent} * ((({third} | 128) << 16) + ({second} << 8) + {first})::float8"


def _powers() -> str:
    """Write the factor that stands for each sign and exponent; numbers below 1e-37, without a leading bit, count as 0."""
    scales = [0.0 if not e else float("nan") if e == 255 else 2.0 ** (e - _BIAS) for e in range(256)]
    return _doubles([*scales, *(-scale for scale in scales)])


def _vector(formula: Formula, output: int, term: FeatureTerm, held: dict[str, str]) -> str:
    """Write pgvector's inner product, which is of single precision and comes with its sign turned."""
    column, schema = f"q.{quote_identifier(term.columns[0])}", quote_identifier(term.schema)
    weights = ",".join(map(repr, formula.weights(output, term)))
    product = f"-({column} OPERATOR({schema}.<#>) '[{weights}]'::{schema}.vector)"
    return f"CASE WHEN {schema}.vector_dims({column}) = {term.width} THEN {product} END"


def _pairs(formula: Formula, output: int, term: FeatureTerm, held: dict[str, str]) -> str:
    places, values = (f"q.{quote_identifier(name)}" for name in term.columns)
    weights = _weights(formula, output, term)
    # A place beyond the weights has none, and is left out; one below them, or none at all, is no feature.
    inside = f"k::bigint >= 0 AND k::bigint < {term.width}"
    weight = f"CASE WHEN {inside} THEN {weights}[k::int + 1] WHEN k::bigint >= 0 THEN 0 ELSE 'NaN' END"
    summed = f"pg_catalog.sum(coalesce({_double('v', term.types[1].value_type)}, 'NaN') * {weight})"
    # Of several arrays, unnest is no function that a path could hide: the server's grammar has it.
    whole = f"SELECT coalesce({summed}, 0) FROM unnest({places}, {values}) AS u(k, v)"
    return f"CASE WHEN {places} IS NOT NULL AND {values} IS NOT NULL THEN ({whole}) END"


_VALUES = ValueWriter(_column, _double, _parsed, _days, _date_part, _as_text, _lookup, _among)
_TERMS = {
    "number": _number,
    "date": _date,
    "category": _level,
    "array": _array,
    "packed": _packed,
    "vector": _vector,
    "pairs": _pairs,
}


def _weights(formula: Formula, output: int, term: FeatureTerm) -> str:
    """Write an output's weights for a term as an array: a constant, or one fetched from the catalogue once."""
    if formula.joined:
        return f"({JOINED}.{weight_column(output, term.start)})"
    if formula.literal or formula.stored is None:
        return f"({_doubles(formula.weights(output, term))})"
    stored = formula.stored
    first, last = formula.places(output, term)
    found = f"SELECT coef[{first}:{last}]::float8[] FROM {stored.table} WHERE {_pinned(stored)}"
    return f"(SELECT coalesce(({found}), {_gone(stored)}))"


def _pinned(stored: StoredModel) -> str:
    """Write the condition and order that find a version in the catalogue, whatever version has since taken its name."""
    made = f"extract(epoch FROM created_at) * 1000000::numeric = {stored.made}::numeric"
    first, *more = map(_literal, stored.names)
    found = " OR ".join(f"name = {each}" for each in (first, *more))
    return f"({found}) AND {made} ORDER BY name <> {first} LIMIT 1"


def _gone(stored: StoredModel, kind: str = "float8[]") -> str:
    """Write an array that cannot be read, whose error says why; naming the user keeps it from being read beforehand."""
    told = f"""{{"{stored.absence}"}}"""
    return f"({_literal(told)} OPERATOR(pg_catalog.||) pg_catalog.left(current_user, 0))::{kind}"


def _doubles(values: Iterable[float]) -> str:
    """Write numbers as an array of doubles: one constant, however many they are."""
    return f"'{{{','.join(map(repr, values))}}}'::float8[]"


def _hold(held: dict[str, str], what: str) -> str:
    """Note what is to be taken out of storage once a row, and return the name it has then."""
    name = next((name for name, noted in held.items() if noted == what), f"h{len(held)}")
    held[name] = what
    return f"held.{name}"


class PostgresAttributions:
    """Writes contributions as a jsonb array of objects, the largest first."""

    def select(self, explained: AttributionFormula, query: str, names: Sequence[str], *, present: Sequence[str]) -> str:
        """Write the query's columns with explained predictions beside them."""
        formula, held = explained.formula, dict[str, str]()
        sums = [
            nested_sum(
                [
                    f"({_TERMS[each.term.kind](formula, 0, each.term, held)} - {double_literal(each.mean)})"
                    for each in terms
                ]
            )
            for terms in explained.columns.values()
        ]
        taken = ", ".join(f"{what} AS {name}" for name, what in held.items())
        source = f" FROM (SELECT {taken} OFFSET 0) AS held" if held else ""
        columns = [f"a.a{at}" for at in range(len(sums))]
        total = nested_sum([*columns, double_literal(explained.baseline)])
        sign = _OUTCOME.sign(formula, "p.s0", _OUTCOME.probabilities(formula, ["p.s0"], []))
        joins = [
            f"LATERAL (SELECT {', '.join(f'{what} AS a{at}' for at, what in enumerate(sums))}{source} OFFSET 0) AS a",
            f"LATERAL (SELECT {_finite(total)} AS s0 OFFSET 0) AS p",
            f"LATERAL (SELECT {sign} AS sign OFFSET 0) AS z",
        ]
        features = f"{_literal(list(explained.columns))}::pg_catalog.text[]"
        values = f"ARRAY[{', '.join(f'z.sign * {name}' for name in columns)}]"
        largest = f"SELECT f, v FROM unnest({features}, {values}) AS u(f, v) ORDER BY pg_catalog.abs(v) DESC, f LIMIT {explained.most}"
        top = f"CASE WHEN p.s0 IS NOT NULL THEN (SELECT {_JSON_PAIRS} ORDER BY pg_catalog.abs(v) DESC, f) FROM ({largest}) AS t) END"
        added = _OUTCOME.explained(formula, names, score="p.s0", sign="z.sign", top=top, baseline=explained.baseline)
        return f"SELECT q.*, {added} FROM (\n{query}\n) AS q CROSS JOIN " + " CROSS JOIN ".join(joins)

    def pairs(self, features: str, attributions: str) -> str:
        """Write two arrays as one of objects."""
        return f"(SELECT {_JSON_PAIRS}) FROM unnest({features}, {attributions}) AS u(f, v))"


_JSON_PAIRS = "pg_catalog.jsonb_agg(pg_catalog.jsonb_build_object('feature', f, 'attribution', v)"


def _holds_booleans(term: FeatureTerm) -> bool:
    return bool(pa.types.is_boolean(term.types[0].value_type))


POSTGRES = Dialect(
    title="PostgreSQL",
    tokenizer="postgres",
    literal=_literal,
    predictions=select_in_postgres,
    attributions=PostgresAttributions(),
    class_pairs=_pairs_json,
    longest_name=63,
    most_columns=1600,
    own=qualified,
)
