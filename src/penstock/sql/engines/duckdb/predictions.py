"""A model in DuckDB's SQL: inner products of lists of doubles, in queries one around another.

A null or a NaN that the recipe does not fill, an infinity, or a list of another length, gives null predictions. Features packed into a
BLOB have no way out of it in SQL: such a model is scored outside. Levels of a category are those of an ENUM, which DuckDB
looks up by a hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from penstock.columns.number import is_elapsed
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
from penstock.sql.stored_groups import KeyKind

CREATED = "epoch_us(created_at)"
"""When a model was made, in microseconds since 1970."""
_literal = partial(typed_literal, wide="hugeint")


def select_in_duckdb(
    formula: Formula, query: str, names: Sequence[str], *, warehouse: bool, present: Sequence[str]
) -> str | None:
    """Write the query's columns, which are ``present``, with predictions beside them under these names."""
    if any(term.kind == "packed" for term in formula.terms):
        return None
    mark = _free("__penstock", present)
    outputs = range(len(formula.intercept))
    refs, shares = [f"{mark}_s{o}" for o in outputs], []
    held = _category_codes(formula, mark)
    scores = ", ".join(f"{_finite(_score(formula, o, mark))} AS {refs[o]}" for o in outputs)
    weights = _join_weights(formula)
    text = f"SELECT q.*, {scores} FROM (\n{query}\n) AS q{weights}"
    made = list(refs)
    if held:  # worked out once for all outputs
        codes = ", ".join(f"{what} AS {name}" for name, what in held.items())
        text = f"SELECT q.*, {scores} FROM (SELECT q.*, {codes} FROM (\n{query}\n) AS q) AS q{weights}"
        made += held
    if formula.loss.many:
        text = f"SELECT *, greatest({', '.join(refs)}) AS {mark}_top FROM ({text}) AS s"
        each = [f"{mark}_e{o}" for o in outputs]
        raised = ", ".join(f"{_OUTCOME.exponential(ref, f'{mark}_top')} AS {name}" for ref, name in zip(refs, each))
        text = f"SELECT *, {raised} FROM ({text}) AS t"
        text = f"SELECT *, {nested_sum(each)} AS {mark}_total FROM ({text}) AS e"
        shares = [f"{name} / {mark}_total" for name in each]
        made += [f"{mark}_top", *each, f"{mark}_total"]
    added = _OUTCOME.columns(formula, names, scores=refs, shares=shares, top=f"{mark}_top", warehouse=warehouse)
    return f"SELECT * EXCLUDE ({', '.join(made)}), {added} FROM ({text}) AS p"


def _pairs_list(pairs: Sequence[tuple[str, str]]) -> str:
    return f"[{', '.join(f'{{label: {name}, prob: {share}}}' for name, share in pairs)}]"


_OUTCOME = OutcomeWriter(_literal, "exp", _pairs_list)


def _join_weights(formula: Formula) -> str:
    """Write the join of rows with the weights of their groups, which are read from the catalogue once; nothing for one model."""
    groups, stored = formula.groups, formula.stored
    if groups is None or stored is None:
        return ""
    row = f"FROM {stored.table} WHERE {_pinned(stored)}"
    weights = groups.weights(formula, "k.place", coef="m.coef")
    texts = [f"json_extract(m.header, '$.groups.keys[{at}]')::varchar[]" for at in range(len(groups.keys))]
    lists = ", ".join(f"unnest({text}) AS t{at}" for at, text in enumerate(texts))
    typed = ", ".join(f"k.t{at}::{_KEY_TYPES.get(kind, 'bigint')} AS k{at}" for at, (_, kind) in enumerate(groups.keys))
    same = " AND ".join(
        f"{_key(f'q.{quote_identifier(column)}', kind)} IS NOT DISTINCT FROM {JOINED}.k{at}"
        for at, (column, kind) in enumerate(groups.keys)
    )
    whole = f"SELECT coalesce((SELECT coef {row}), error({_literal(stored.absence)})::float4[]) AS coef, (SELECT header {row}) AS header"
    places = f"LATERAL (SELECT {lists}, unnest(range({groups.count})) AS place) AS k"
    table = f"SELECT k.place, {typed}, {weights} FROM ({whole}) AS m, {places}"
    return f" LEFT JOIN ({table}) AS {JOINED} ON {same}"


_KEY_TYPES = {"text": "varchar", "float": "double"}
_KEYS = {
    "boolean": "{}::int::bigint",
    "date": "({}::date - DATE '1970-01-01')::bigint",
    "timestamp": "epoch_us({})",
    "time": "epoch_us({})",
}
"""How the values of groups are compared that are not simply cast."""


def _key(value: str, kind: KeyKind) -> str:
    return _KEYS.get(kind, f"{{}}::{_KEY_TYPES.get(kind, 'bigint')}").format(value)


def _finite(score: str) -> str:
    """Write a score, or null where it is no finite number."""
    return f"CASE WHEN isfinite({score}) THEN {score} END"


def _score(formula: Formula, output: int, mark: str) -> str:
    if formula.groups is not None:
        single = replace(formula, groups=None, stored=None)
        own = _score(replace(single, joined=True), output, mark)
        other = _score(single, output, mark) if formula.groups.pooled else "NULL"
        return formula.score_of_group(own, other)
    terms = [_term(formula, output, term, mark) for term in formula.terms]
    return nested_sum([*terms, formula.constant(output)])


def _term(formula: Formula, output: int, term: FeatureTerm, mark: str) -> str:
    """Write what a term adds to an output's score."""
    if term.kind == "category":
        return _level(formula, output, term, mark)
    return _TERMS[term.kind](formula, output, term)


def _category_codes(formula: Formula, mark: str) -> dict[str, str]:
    """Write which of its features each category has in a row, by the name that the terms read it under."""
    return {f"{mark}_c{term.start}": _VALUES.code(term) for term in formula.terms if term.kind == "category"}


def _number(formula: Formula, output: int, term: FeatureTerm) -> str:
    return _VALUES.number(term, formula.by_one(output, term))


def _date(formula: Formula, output: int, term: FeatureTerm) -> str:
    return _VALUES.date(term, formula.by_one(output, term))


def _level(formula: Formula, output: int, term: FeatureTerm, mark: str) -> str:
    return f"coalesce(({_weights(formula, output, term)})[q.{mark}_c{term.start}], 0::float8)"


def _column(term: FeatureTerm) -> str:
    value = f"q.{quote_identifier(term.columns[0])}"
    for member in term.members:
        value = f"struct_extract({value}, {_literal(member)})"
    return value


def _double(value: str, kind: pa.DataType) -> str:
    return f"epoch({value})::float8" if is_elapsed(kind) else f"{value}::float8"


def _parsed(value: str, to: str) -> str:
    plain = f"({value})::{to}"
    if to != "timestamp":
        return plain
    zoned = f"regexp_matches({value}, {_literal(ZONED)})"  # the cast to a timestamp passes over the zone
    return f"CASE WHEN {zoned} THEN make_timestamp(epoch_us(({value})::timestamptz)) ELSE {plain} END"


def _microseconds(value: str, kind: pa.DataType) -> str:
    return f"epoch_us({value}::timestamp)" if pa.types.is_date(kind) else f"epoch_us({value})"


def _days(value: str, kind: pa.DataType) -> str:
    return f"{_microseconds(value, kind)}::float8 / 86400000000"


def _date_part(value: str, kind: pa.DataType, part: str) -> str:
    # Times with a zone are taken in UTC, whatever the session's zone.
    return f"{_PARTS[part]}(make_timestamp({_microseconds(value, kind)}))::varchar"


_PARTS = {"month": "month", "weekday": "isodow", "hour": "hour"}


def _text(value: str) -> str:
    return f"{value}::varchar"


def _lookup(text: str, codes: dict[str, int]) -> str:
    """Write a cast to an ENUM, whose number tells the place among the keys."""
    place = f"enum_code(try_cast({text} AS ENUM({', '.join(map(_literal, codes))})))::bigint + 1"
    if list(codes.values()) == list(range(1, len(codes) + 1)):
        return place
    return f"{_literal(list(codes.values()))}[{place}]"


def _among(text: str, texts: tuple[str, ...]) -> str:
    return f"{text} IN ({', '.join(map(_literal, texts))})"


_VALUES = ValueWriter(_column, _double, _parsed, _days, _date_part, _text, _lookup, _among)


def _array(formula: Formula, output: int, term: FeatureTerm) -> str:
    values = f"q.{quote_identifier(term.columns[0])}"
    weights = _weights(formula, output, term)
    fits = f"len({values}) = {term.width} AND {_full(values)}"
    return f"CASE WHEN {fits} THEN list_inner_product({values}::float8[], {weights}) END"


def _pairs(formula: Formula, output: int, term: FeatureTerm) -> str:
    """Write the sum over a row's own features: their weights are picked by place, then multiplied.

    The weights have one more at either end: NaN, for places below the first, and nothing, for those beyond the last.
    """
    places, values = (f"q.{quote_identifier(name)}" for name in term.columns)
    weights = _weights(formula, output, term, ends=True)
    place = f"greatest(least(x::bigint, {term.width}), -1) + 2"
    picked = f"list_select({weights}, list_transform({places}, lambda x: {place}))"
    same = f"len({places}) = len({values})"
    return f"CASE WHEN {same} AND {_full(places)} AND {_full(values)} THEN list_inner_product({picked}, {values}::float8[]) END"


_TERMS = {"number": _number, "date": _date, "array": _array, "pairs": _pairs}


def _full(values: str) -> str:
    """Write the condition that a list holds no null, which an inner product refuses; counting them takes longer."""
    return f"list_position({values}, NULL) IS NULL"


def _weights(formula: Formula, output: int, term: FeatureTerm, *, ends: bool = False) -> str:
    """Write an output's weights for a term as a list: a constant, or one fetched from the catalogue once."""
    if formula.joined:
        own = f"{JOINED}.{weight_column(output, term.start)}"
        return f"(['NaN'::float8] || {own} || [0::float8])" if ends else own
    if formula.literal or formula.stored is None:
        values = formula.weights(output, term)
        return _doubles([float("nan"), *values, 0.0] if ends else values)
    stored = formula.stored
    first, last = formula.places(output, term)
    found = f"SELECT coef[{first}:{last}]::float8[] FROM {stored.table} WHERE {_pinned(stored)}"
    whole = f"coalesce(({found}), error({_literal(stored.absence)})::float8[])"
    return f"(SELECT ['NaN'::float8] || {whole} || [0::float8])" if ends else f"(SELECT {whole})"


def _pinned(stored: StoredModel) -> str:
    """Write the condition and order that find a version in the catalogue, whatever version has since taken its name."""
    names = ", ".join(map(_literal, stored.names))
    return f"name IN ({names}) AND {CREATED} = {stored.made} ORDER BY name <> {_literal(stored.names[0])} LIMIT 1"


def _doubles(values: Iterable[float]) -> str:
    """Write numbers as a list of doubles: one constant, however many they are."""
    return f"'[{','.join(map(repr, values))}]'::float8[]"


class DuckDBAttributions:
    """Writes contributions as a list of structs, the largest first."""

    def select(self, explained: AttributionFormula, query: str, names: Sequence[str], *, present: Sequence[str]) -> str:
        """Write the query's columns with explained predictions beside them."""
        formula, mark = explained.formula, _free("__penstock", present)
        held, score, sign = _category_codes(formula, mark), f"{mark}_s", f"{mark}_sign"
        columns = [f"{mark}_a{at}" for at in range(len(explained.columns))]
        sums = (
            nested_sum([f"({_term(formula, 0, each.term, mark)} - {double_literal(each.mean)})" for each in terms])
            for terms in explained.columns.values()
        )
        text = f"SELECT q.*, {', '.join(f'{what} AS {name}' for what, name in zip(sums, columns, strict=True))} FROM (\n{query}\n) AS q"
        if held:
            codes = ", ".join(f"{what} AS {name}" for name, what in held.items())
            text = text.replace(
                f"FROM (\n{query}\n) AS q", f"FROM (SELECT q.*, {codes} FROM (\n{query}\n) AS q) AS q", 1
            )
        total = nested_sum([*columns, double_literal(explained.baseline)])
        text = f"SELECT *, {_finite(total)} AS {score} FROM ({text}) AS a"
        likely = _OUTCOME.probabilities(formula, [score], [])
        text = f"SELECT *, {_OUTCOME.sign(formula, score, likely)} AS {sign} FROM ({text}) AS s"
        items = (
            f"{{size: abs({name}), feature: {_literal(column)}, attribution: {sign} * {name}}}"
            for column, name in zip(explained.columns, columns, strict=True)
        )
        top = f"list_slice(list_sort([{', '.join(items)}], 'DESC'), 1, {explained.most})"
        pair = f"{{feature: {mark}_e.feature, attribution: {mark}_e.attribution}}"
        top = f"CASE WHEN {score} IS NOT NULL THEN list_transform({top}, lambda {mark}_e: {pair}) END"
        added = _OUTCOME.explained(formula, names, score=score, sign=sign, top=top, baseline=explained.baseline)
        made = [*columns, *held, score, sign]
        return f"SELECT * EXCLUDE ({', '.join(made)}), {added} FROM ({text}) AS p"

    def pairs(self, features: str, attributions: str) -> str:
        """Write two lists as one of structs."""
        pair = f"{{feature: {features}[i], attribution: {attributions}[i]}}"
        return f"list_transform(range(1, len({features}) + 1), lambda i: {pair})"


def _free(stem: str, present: Sequence[str]) -> str:
    """Return a beginning that no column's name has."""
    while any(name.lower().startswith(stem) for name in present):
        stem += "_"
    return stem


DUCKDB = Dialect(
    title="DuckDB",
    tokenizer="duckdb",
    literal=_literal,
    predictions=select_in_duckdb,
    attributions=DuckDBAttributions(),
    class_pairs=_pairs_list,
    identifier_quotes=('"', "`"),
    from_first=True,
    case_sensitive=False,
)
