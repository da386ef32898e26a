"""A linear model as SQL of the engine's own: predictions without moving a row.

The query becomes the innermost part of a SELECT that gives its columns and the predictions, and stands wherever a
parenthesised query can: in a view, a join, an INSERT. Weights are written out as the float32 they are and summed as
doubles; those of wide models are read from the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from penstock.groups.results import GroupModels
from penstock.linear import LinearModel
from penstock.model import Model
from penstock.sgd.losses import Loss, loss_of
from penstock.sql.dialect import Dialect, double_literal, quote_identifier
from penstock.sql.stored_groups import KeyKind, group_keys, is_linear, key_kind


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
    SELECT * EXCLUDE (__penstock_s0), __penstock_s0 AS "prediction" FROM (SELECT q.*, CASE WHEN isfinite((q."x"::float8 * '2.0'::float8 + '0.5'::float8)) THEN (q."x"::float8 * '2.0'::float8 + '0.5'::float8) END AS __penstock_s0 FROM (
    SELECT * FROM t
    ) AS q) AS p
    """
    single = model if is_linear(model) else model.linear
    if single is None or dialect.predictions is None:
        return None
    names = added_columns(single, dialect=dialect, present=schema.names, warehouse=warehouse)
    if isinstance(single, GroupModels):
        formula = group_formula_of(single, schema, dialect, stored)
    else:
        formula = formula_of(single, schema, dialect, stored)
    if formula is None:
        return None
    formula = replace(formula, threshold=threshold)
    return dialect.predictions(formula, query, names, warehouse=warehouse, present=schema.names)


def added_columns(model: Model, *, dialect: Dialect, present: Sequence[str] = (), warehouse: bool = False) -> list[str]:
    """Return the names of the columns that predictions add, and refuse a query that has one of them already.

    Names that the engine would take for one another are told apart by a number at the end.
    """
    classes = [] if model.classes is None else model.classes.tolist()
    probable = bool(classes) and loss_of(model.kind).probabilities is not None
    if warehouse:
        stem = f"predicted_{model.label or 'label'}"
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
    """A model in the catalogue: the quoted table, its row's name, and when it was made, which tells it from its successors.

    ``later`` is the name that the row gets where another version takes its place.
    """

    table: str
    name: str
    made: int
    later: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the row may have, the surest first."""
        return (self.name,) if self.later is None else (self.later, self.name)

    @property
    def absence(self) -> str:
        """What a prediction says, as text of SQL, where its model is not there any more."""
        name = f" {self.name}" if self.name.isidentifier() else ""
        return f"the model{name} was dropped or renamed; train or name another, and make this view or statement again"


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


JOINED = "__penstock_w"
"""The name of the weights that rows are joined with by their group."""
SINGLE: tuple[TermKind, ...] = ("number", "date")
"""Terms whose weights are read one by one; others read a list of them."""


def weight_column(output: int, feature: int) -> str:
    """Return the name of a column of joined weights: of a feature, or of the first of several."""
    return f"w{output}_{feature}"


@dataclass(frozen=True, slots=True)
class GroupFormula:
    """How rows find the weights of their group, which are in the catalogue.

    Attributes
    ----------
    keys : tuple of (column, kind)
        The query's columns to group by, and what their values are compared as.
    count : int
        How many groups have a model.
    pooled : bool
        Whether the formula's own weights are for the rows of other groups; they get no prediction if not.
    """

    keys: tuple[tuple[str, KeyKind], ...]
    count: int
    pooled: bool

    def columns(self, formula: Formula) -> list[tuple[str, int, int | None]]:
        """Return the columns of weights: the place that each has in a model's weights, from 1, and of lists the last place."""
        found: list[tuple[str, int, int | None]] = []
        for output in range(len(formula.intercept)):
            base = output * (formula.width + 1) + 1
            for term in formula.terms:
                if term.kind in SINGLE:
                    places = range(term.start, term.start + term.width)
                    found += [(weight_column(output, at), base + at, None) for at in places]
                else:
                    last = base + term.start + term.width - 1
                    found.append((weight_column(output, term.start), base + term.start, last))
            found.append((weight_column(output, formula.width), base + formula.width, None))
        return found

    def weights(self, formula: Formula, place: str, *, coef: str) -> str:
        """Write the columns of weights of the group at a place, from 0, of an array of all weights."""
        size = len(formula.intercept) * (formula.width + 1)
        start = f"{place} * {size}"
        return ", ".join(
            f"{coef}[{start} + {low}] AS {name}"
            if high is None
            else f"{coef}[{start} + {low}:{start} + {high}]::float8[] AS {name}"
            for name, low, high in self.columns(formula)
        )


@dataclass(frozen=True, slots=True)
class Formula:
    """A model, ready to be written: terms of features, weights for each output, what is predicted, and above which probability.

    With ``groups`` it is a model per group, whose weights rows are joined with; ``joined`` says that those are to be written.
    """

    loss: Loss
    terms: tuple[FeatureTerm, ...]
    coef: Floats
    intercept: Floats
    classes: tuple[Any, ...]
    stored: StoredModel | None = None
    threshold: float | None = None
    joined: bool = False
    groups: GroupFormula | None = None

    @property
    def literal(self) -> bool:
        """Whether weights are written one by one."""
        return not self.joined and self.coef.size <= LITERAL

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(term.width for term in self.terms)

    def by_one(self, output: int, term: FeatureTerm) -> list[str]:
        """Write an output's weights for a term, one by one."""
        if self.joined:
            return [f"{JOINED}.{weight_column(output, term.start + at)}::float8" for at in range(term.width)]
        return list(map(double_literal, self.weights(output, term)))

    def constant(self, output: int) -> str:
        """Write an output's intercept."""
        return (
            f"{JOINED}.{weight_column(output, self.width)}::float8"
            if self.joined
            else double_literal(self.intercept[output])
        )

    def score_of_group(self, own: str, other: str) -> str:
        """Write a score of the row's group, or the other one where its group has no model."""
        return f"CASE WHEN {JOINED}.place IS NOT NULL THEN {own} ELSE {other} END"

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


def _field(schema: pa.Schema, name: str, dialect: Dialect, *, role: str = "feature column") -> pa.Field:
    same = [each for each in schema.names if dialect.fold(each) == dialect.fold(name)]
    if not same:
        raise ColumnError.missing(name, schema.names, place="the query", role=role)
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
    if pa.types.is_null(kind):  # of an untyped NULL: missing in every row, as text may be of any column
        kind, types = pa.string(), (pa.string(),)
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


def group_formula_of(
    model: GroupModels, schema: pa.Schema, dialect: Dialect, stored: StoredModel | None
) -> Formula | None:
    """Make a model per group ready to be written; None where its features cannot be made in SQL, or its row cannot be seen."""
    terms = feature_terms(model.recipe, schema, dialect)
    if stored is None or terms is None or any(term.kind == "vector" for term in terms):
        return None
    labels, pooled = model.recipe.labels, model.pooled if model.unseen == "pooled" else None
    keys, own = [], group_keys(model)
    for column, kind in zip(own.columns, own.kinds, strict=True):
        field = _field(schema, column, dialect, role="column to group by")
        if key_kind(field.type) != kind:
            raise ColumnError(f"the query: column {column!r} is {field.type}, where groups were made by {kind} values")
        keys.append((field.name, kind))
    if pooled is None:
        outputs = model.registry.index.outputs
        coef, intercept = (
            np.zeros((outputs, sum(term.width for term in terms)), np.float32),
            np.zeros(outputs, np.float32),
        )
    else:
        weights = pooled.best("").weights
        coef, intercept = np.ascontiguousarray(weights.coef), weights.intercept
    groups = GroupFormula(tuple(keys), own.count, pooled is not None)
    classes = () if labels is None else labels.classes
    return Formula(loss_of(model.kind), terms, coef, intercept, classes, stored, groups=groups)
