"""A linear model as SQL of the engine's own: predictions without moving a row.

The query becomes the innermost part of a SELECT that gives its columns and the predictions, and stands wherever a
parenthesised query can: in a view, a join, an INSERT. Weights are written out as the float32 they are and summed as
doubles; those of wide models are read from the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.batch import Floats
from penstock.columns.base import FeatureColumn, field_of, is_date, is_list, is_text, member_path, stored_column
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.kinds import column_from_dict
from penstock.columns.number import Number, is_numeric
from penstock.columns.recipe import Recipe
from penstock.errors import ColumnError, FeatureError, UsageError
from penstock.linear import LinearModel
from penstock.model import Model
from penstock.sgd.losses import Loss, loss_of
from penstock.sql.dialect import Dialect, double_literal, quote_identifier


def select_predictions(
    model: Model,
    query: str,
    *,
    schema: pa.Schema,
    dialect: Dialect,
    stored: StoredModel | None = None,
    warehouse: bool = False,
    threshold: float | None = None,
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
    threshold : float, optional
        The probability above which a row is of the second of two classes.

    Returns
    -------
    str or None
        A SELECT; None where the model cannot be written as SQL: it has no linear form, hashed columns, features packed
        into a BLOB of DuckDB's, or categories that are not text, whole numbers or parts of dates.

    Examples
    --------
    >>> import numpy as np
    >>> from penstock.columns.choose import choose_features
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
    formula = replace(formula, threshold=threshold)
    return dialect.predictions(formula, query, names, warehouse=warehouse, present=schema.names)


def added_columns(
    model: LinearModel, *, dialect: Dialect, present: Sequence[str] = (), warehouse: bool = False
) -> list[str]:
    """Return the names of the columns that predictions add, and refuse a query that has one of them already.

    Names that the engine would take for one another are told apart by a number at the end.
    """
    classes = () if model.recipe.labels is None else model.recipe.labels.classes
    probable = bool(classes) and loss_of(model.kind).probabilities is not None
    if warehouse:
        stem = f"predicted_{model.recipe.label or 'label'}"
        wanted = [stem, *([f"{stem}_probs"] if probable else [])]
    else:
        wanted = ["prediction", *(f"probability_{each}" for each in classes if probable)]
    most = dialect.most_columns
    if most is not None and len(classes) + len(present) + 1 > most and probable:
        raise UsageError(
            f"the model tells {len(classes)} classes apart, more than {dialect.title} has columns for ({most} in all);"
            " export it and score outside: EXPORT MODEL … TO 'm.penstock', then penstock predict"
        )
    names = distinct_names(wanted, dialect)
    refuse_taken(names, present, dialect)
    return names


def refuse_taken(names: Sequence[str], present: Sequence[str], dialect: Dialect) -> None:
    """Raise where a query has one of the columns that are to be added."""
    taken = {dialect.fold(each): each for each in present}
    for name in names:
        there = taken.get(dialect.fold(name))
        if there is not None:
            raise UsageError(
                f"the query has a column {there!r} already, where the prediction is to go; name it otherwise:"
                f" SELECT …, {quote_identifier(there)} AS other"
            )


def distinct_names(wanted: Sequence[str], dialect: Dialect) -> list[str]:
    """Return names for columns that the engine tells apart, numbered where necessary."""
    names: list[str] = []
    for name in wanted:
        names.append(_distinct(name, {dialect.fold(each) for each in names}, dialect))
    return names


def _distinct(name: str, taken: set[str], dialect: Dialect) -> str:
    """Return a name that is none of those taken: cut to what the engine keeps, and numbered where necessary."""
    candidates = (dialect.shorten(name, "" if number == 1 else f"_{number}") for number in count(1))
    return next(each for each in candidates if dialect.fold(each) not in taken)


LITERAL = 1000
"""Weights that are written into a statement one by one; more come as arrays, or from the catalogue."""

VECTOR = b"penstock.vector"
"""In a column's metadata: the schema of pgvector's type, where the column is of that type."""

TermKind = Literal["number", "date", "category", "array", "packed", "vector", "pairs"]


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in the catalogue: the quoted table, the name, and when it was made, which tells it from its successors."""

    table: str
    name: str
    made: int


@dataclass(frozen=True, slots=True)
class FeatureTerm:
    """Some features: one column, or the two of sparse pairs, and where their weights stand.

    ``types`` are the columns' Arrow types, ``schema`` that of pgvector's type for a ``vector``. ``part`` is how one column becomes
    features; ``members`` leads to it inside of a struct.
    """

    kind: TermKind
    columns: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    start: int
    width: int
    schema: str = ""
    part: FeatureColumn | None = None
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Formula:
    """A model, ready to be written: terms of features, weights for each output, what is predicted, and above which probability."""

    loss: Loss
    terms: tuple[FeatureTerm, ...]
    coef: Floats
    intercept: Floats
    classes: tuple[Any, ...]
    stored: StoredModel | None = None
    threshold: float | None = None

    @property
    def literal(self) -> bool:
        """Whether weights are written one by one."""
        return self.coef.size <= LITERAL

    def weights(self, output: int, term: FeatureTerm) -> list[float]:
        """Return an output's weights for a term, as doubles of the very same value."""
        row = self.coef[output, term.start : term.start + term.width]
        return [float(value) for value in row.astype(np.float64)]

    def places(self, output: int, term: FeatureTerm) -> tuple[int, int]:
        """Return the first and the last place, from 1, of an output's weights for a term in the catalogue."""
        first = output * self.coef.shape[1] + term.start
        return first + 1, first + term.width


def feature_terms(recipe: Recipe, schema: pa.Schema, dialect: Dialect) -> tuple[FeatureTerm, ...] | None:
    """Find a model's columns in a query; None where one cannot be made features in SQL: hashed, or a category of other values."""
    parts = recipe.parts
    if recipe.origin and not all(name in schema.names for part in parts for name in part.columns):
        parts = tuple(column_from_dict(part) for part in recipe.origin)
        if parts[-1].kind == "pairs" and parts[-1].width is None and recipe.width is not None:
            parts = Recipe(parts).with_width(recipe.width).parts
    found, start = [], 0
    for part in parts:
        paths = tuple(_path(schema, name, dialect) for name in part.columns)
        term = _term(part, tuple(field for field, _ in paths), paths[0][1], start)
        if term is None:
            return None
        found.append(term)
        start += term.width
    return tuple(found)


def _path(schema: pa.Schema, name: str, dialect: Dialect) -> tuple[pa.Field, tuple[str, ...]]:
    """Return the field of a feature column, under the name of its root, and the members that lead to it from there."""
    root = stored_column(schema, name)
    if root == name or any(dialect.fold(each) == dialect.fold(name) for each in schema.names):
        return _field(schema, name, dialect), ()
    field, inner = _field(schema, root, dialect), field_of(schema, name)
    if inner is None:
        raise ColumnError.missing(name, schema.names, place="the query", role="feature column")
    return field.with_type(inner.type), member_path(field.type, name[len(root) + 1 :])


def _field(schema: pa.Schema, name: str, dialect: Dialect) -> pa.Field:
    same = [each for each in schema.names if dialect.fold(each) == dialect.fold(name)]
    if not same:
        raise ColumnError.missing(name, schema.names, place="the query", role="feature column")
    if len(same) > 1:
        raise UsageError(f"the query has two columns {name!r}, and the model reads one; give the other another name")
    return schema.field(same[0])


def _term(
    part: FeatureColumn, fields: tuple[pa.Field, ...], members: tuple[str, ...], start: int
) -> FeatureTerm | None:
    width = part.width or 0
    names, types = tuple(field.name for field in fields), tuple(field.type for field in fields)
    if part.kind == "pairs":
        for field in fields:
            if not holds_lists(field.type):
                raise FeatureError(f"the query: column {field.name!r} is {field.type}; sparse features are two lists")
        return FeatureTerm("pairs", names, types, start, width)
    field, kind = fields[0], types[0]
    if part.kind == "vector":
        if pa.types.is_fixed_size_list(kind) and kind.list_size != width:
            size = f"{kind.list_size} values a row where {width} were learnt from"
            raise ColumnError(f"the query: column {field.name!r} holds {size}")
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return FeatureTerm("packed", names, types, start, width)
        vector = (field.metadata or {}).get(VECTOR)
        if vector is not None:
            return FeatureTerm("vector", names, types, start, width, vector.decode())
        if holds_lists(kind):
            return FeatureTerm("array", names, types, start, width)
        lists = f"lists of {width} numbers"
        raise ColumnError(f"the query: column {field.name!r} is {kind}, where {lists} were learnt from")
    if isinstance(part, Number | Date):
        read = is_numeric(kind) if isinstance(part, Number) else is_date(kind)
        if not read and not is_text(kind):
            learnt = "a number was" if isinstance(part, Number) else "dates were"
            raise FeatureError(f"the query: column {field.name!r} is {kind}, where {learnt} learnt from")
        form: TermKind = "number" if isinstance(part, Number) else "date"
        return FeatureTerm(form, names, types, start, width, part=part, members=members)
    if isinstance(part, Category) and _is_lookup(part, kind):
        return FeatureTerm("category", names, types, start, width, part=part, members=members)
    return None


def _is_lookup(part: Category, kind: pa.DataType) -> bool:
    """Whether the levels of a category can be looked up as the text of a value that is of this type."""
    if part.of:
        return is_date(kind) or is_text(kind)
    plain = is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)
    return bool(plain) and not any("\0" in text for text in (*part.levels, *part.null_values))


def holds_lists(kind: pa.DataType) -> bool:
    """Whether a column holds lists, of one length or of any."""
    return is_list(kind) or bool(pa.types.is_fixed_size_list(kind))


def formula_of(model: LinearModel, schema: pa.Schema, dialect: Dialect, stored: StoredModel | None) -> Formula | None:
    """Make a model ready to be written over a query's columns; None where its features cannot be made in SQL."""
    terms = feature_terms(model.recipe, schema, dialect)
    if terms is None or sum(term.width for term in terms) != model.weights.width:
        return None
    weights = model.weights.settled()
    labels = model.recipe.labels
    classes = () if labels is None else labels.classes
    return Formula(loss_of(model.kind), terms, np.ascontiguousarray(weights.coef), weights.intercept, classes, stored)


_MOST = 500
"""Scores are cut off here before they are raised: beyond it PostgreSQL refuses the exponential, as too large or small."""


@dataclass(frozen=True, slots=True)
class OutcomeWriter:
    """Writes predictions over scores.

    ``exp`` is the engine's exponential function; ``pairs`` writes classes with their probabilities as one value.
    """

    literal: Callable[[Any], str]
    exp: str
    pairs: Callable[[Sequence[tuple[str, str]]], str]

    def columns(
        self,
        formula: Formula,
        names: Sequence[str],
        *,
        scores: Sequence[str],
        shares: Sequence[str],
        top: str,
        warehouse: bool,
    ) -> str:
        """Write the columns that are added under these names.

        Of several scores ``top`` is the highest, and ``shares`` are those of their exponentials in the sum.
        """
        probabilities = self.probabilities(formula, scores, shares)
        columns = [self.prediction(formula, scores, probabilities, top)]
        if warehouse and probabilities:
            pairs = list(zip(map(self.literal, formula.classes), probabilities, strict=True))
            columns.append(f"CASE WHEN {probabilities[0]} IS NOT NULL THEN {self.pairs(pairs)} END")
        elif not warehouse:
            columns += probabilities
        return ", ".join(f"{each} AS {quote_identifier(name)}" for each, name in zip(columns, names, strict=True))

    def exponential(self, score: str, top: str) -> str:
        """Write the exponential of one of several scores, relative to the highest."""
        return f"{self.exp}(greatest({score} - {top}, -{_MOST}))"

    def prediction(self, formula: Formula, scores: Sequence[str], probabilities: Sequence[str], top: str) -> str:
        """Write what is predicted; of equal scores the first class wins."""
        classes = [self.literal(each) for each in formula.classes]
        if not classes:
            return scores[0]
        if formula.threshold is not None:
            likely, threshold = probabilities[1], double_literal(formula.threshold)
            return (
                f"CASE WHEN {likely} > {threshold} THEN {classes[1]} WHEN {likely} <= {threshold} THEN {classes[0]} END"
            )
        if formula.loss.many:
            cases = [f"WHEN {score} = {top} THEN {each}" for score, each in zip(scores, classes, strict=True)]
            return f"CASE {' '.join(cases)} END"
        score = scores[0]
        return f"CASE WHEN {score} > 0::float8 THEN {classes[1]} WHEN {score} <= 0::float8 THEN {classes[0]} END"

    def probabilities(self, formula: Formula, scores: Sequence[str], shares: Sequence[str]) -> list[str]:
        """Write the probability of each class; none for models that have no probabilities."""
        if formula.loss.many:
            return [f"CASE WHEN {scores[0]} IS NOT NULL THEN {share} END" for share in shares]
        if formula.loss.probability_sql is None:
            return []
        score = scores[0]
        likely = formula.loss.probability_sql(f"least(greatest({score}, -{_MOST}), {_MOST})", self.exp)
        return [f"CASE WHEN {score} IS NOT NULL THEN {each} END" for each in (f"1::float8 - {likely}", likely)]

    def sign(self, formula: Formula, score: str, probabilities: Sequence[str]) -> str:
        """Write 1 where the second of two classes is predicted, or a number, and -1 where the first is."""
        if not formula.classes:
            return "1::float8"
        value, limit = score, "0::float8"
        if formula.threshold is not None:
            value, limit = probabilities[1], double_literal(formula.threshold)
        return f"CASE WHEN {value} > {limit} THEN 1::float8 WHEN {value} <= {limit} THEN -1::float8 END"

    def explained(
        self, formula: Formula, names: Sequence[str], *, score: str, sign: str, top: str, baseline: float
    ) -> str:
        """Write the columns of an explained prediction: ``top`` lists the largest contributions."""
        probabilities = self.probabilities(formula, [score], [])
        columns = [self.prediction(formula, [score], probabilities, "")]
        if probabilities:
            columns.append(
                f"CASE {sign} WHEN 1::float8 THEN {probabilities[1]} WHEN -1::float8 THEN {probabilities[0]} END"
            )
        columns += [top, f"{sign} * {double_literal(baseline)}", f"{sign} * {score}", "0::float8"]
        return ", ".join(f"{each} AS {quote_identifier(name)}" for each, name in zip(columns, names, strict=True))
