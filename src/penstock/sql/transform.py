"""``TRANSFORM (…)`` of CREATE MODEL: expressions of the engine's SQL that make the columns a model learns from.

They are applied to the training query as the list of a SELECT over it, and saved with the model. Rows to predict or to measure on are
raw rows: the same expressions are applied to them inside the engine. Raw columns then stand beside the new ones under names that no
query has, so that an expression may give its column the name of a raw one, and get their own names back at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.errors import ColumnError, UsageError
from penstock.linear import ColumnTransform, LinearModel
from penstock.sql.dialect import Dialect, quote_identifier
from penstock.sql.engines.base import Engine
from penstock.sql.row_expressions import checked_expression, commas_between, require_row_expression
from penstock.sql.statements import Query, Train, TransformItem
from penstock.sql.token_reader import TokenReader
from penstock.sql.tokens import StatementTokens

_HIDDEN = "__penstock_r"


def read_transform(reader: TokenReader) -> tuple[TransformItem, ...]:
    """Read ``TRANSFORM (item, …)``: ``*``, ``* EXCEPT (a, b)``, a column, or an expression with its name."""
    reader.expect("TRANSFORM")
    opened = reader.at
    reader.expect("(", expected="( and the expressions, such as TRANSFORM (ln(price) AS log_price, label)")
    close = reader.part.partners.get(opened)
    if close is None:
        raise reader.wrong("this parenthesis is not closed", opened)
    items, first = [], reader.at
    for stop in [*commas_between(reader.part, first, close), close]:
        items.append(_item(reader.part, first, stop))
        first = stop + 1
    reader.at = close + 1
    return tuple(items)


def _item(part: StatementTokens, first: int, stop: int) -> TransformItem:
    reader = TokenReader(part, first)
    if stop <= first:
        raise reader.missing("an expression with its name")
    if part.says(first, "*"):
        return _all_columns(part, first, stop)
    text = part.script[part.tokens[first].start : part.tokens[stop - 1].stop]
    if stop == first + 1 and part.tokens[first].kind in ("word", "quoted"):
        return TransformItem(text, text)
    named = stop >= first + 3 and part.says(stop - 2, "AS")
    expression = require_row_expression(part, first, stop - 2 if named else stop)
    name = part.tokens[stop - 1]
    if not named or name.kind not in ("word", "quoted"):
        shown = text if len(text) <= 40 else f"{text[:40]}…"
        raise reader.wrong(f"an expression of TRANSFORM needs a name: {shown} AS name", first)
    return TransformItem(expression, part.script[name.start : name.stop])


def _all_columns(part: StatementTokens, first: int, stop: int) -> TransformItem:
    reader = TokenReader(part, first + 1)
    excluded: list[str] = []
    if reader.at < stop:
        if not (reader.accept("EXCEPT") or reader.accept("EXCLUDE")):
            raise reader.missing("EXCEPT (…), or a comma")
        reader.expect("(", expected="( and the columns to leave out")
        while not excluded or reader.accept(","):
            excluded.append(reader.name("a column"))
        reader.expect(")", expected=", or ) after the columns to leave out")
        if reader.at < stop:
            raise reader.missing("a comma")
    return TransformItem("*", None, tuple(excluded))


def transformed_training(train: Train, engine: Engine) -> Train:
    """Return a training whose query makes the columns of its TRANSFORM, and the expressions with their final names."""
    if not train.transform:
        return train
    items = _expanded(train.transform, engine.describe(train.query), engine.dialect)
    listed = ", ".join(f"{item.text} AS {item.name}" for item in items)
    query = Query(f"SELECT {listed} FROM (\n{train.query.text}\n) AS q", scope=train.query.scope)
    names = engine.describe(query).names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"TRANSFORM makes the column {twice!r} more than once; leave it out of *: * EXCEPT ({twice})")
    named = tuple(replace(item, name=name) for item, name in zip(items, names, strict=True))
    return replace(train, query=query, transform=named)


def saved_transform(train: Train, engine: Engine) -> ColumnTransform | None:
    """Return what a model keeps of a training that `transformed_training` returned."""
    columns = {str(item.name): item.text for item in train.transform}
    return ColumnTransform(engine.name, columns) if columns else None


def _expanded(items: Sequence[TransformItem], schema: pa.Schema, dialect: Dialect) -> list[TransformItem]:
    """Return items with every ``*`` replaced by the columns of the query."""
    found: list[TransformItem] = []
    for item in items:
        if item.name is not None:
            found.append(item)
            continue
        present = {dialect.fold(name): name for name in schema.names}
        for name in item.excluded:
            if dialect.fold(name) not in present:
                raise ColumnError.missing(name, schema.names, place="the query", role="column of EXCEPT")
        left_out = {dialect.fold(name) for name in item.excluded}
        kept = (name for name in schema.names if dialect.fold(name) not in left_out)
        found += [TransformItem(quote_identifier(name), quote_identifier(name)) for name in kept]
    return found


@dataclass(frozen=True, slots=True)
class TransformedRows:
    """A query of raw rows with a model's own columns beside the raw ones, and how the raw ones get their names back."""

    query: Query
    names: tuple[str, ...]

    def restored(self, text: str, added: Sequence[str]) -> str:
        """Write a query over ``query`` as one of the raw columns and those that were added."""
        raw = [f"r.{_HIDDEN}{at} AS {quote_identifier(name)}" for at, name in enumerate(self.names)]
        return f"SELECT {', '.join([*raw, *map(quote_identifier, added)])} FROM (\n{text}\n) AS r"


def rows_for_prediction(model: LinearModel, query: Query, engine: Engine) -> TransformedRows | None:
    """Return the rows that a model predicts from: raw columns under hidden names, and its features; None without TRANSFORM."""
    transform = _usable(model, engine)
    if transform is None:
        return None
    names = engine.describe(query).names
    if len(set(names)) < len(names):
        raise UsageError(
            "the query has two columns of one name; name them apart, as the model's TRANSFORM reads them by name"
        )
    features = set(replace(model.recipe, label=None, weight=None).columns)
    raw = [f"q.{quote_identifier(name)} AS {_HIDDEN}{at}" for at, name in enumerate(names)]
    made = _written({name: text for name, text in transform.columns.items() if name in features})
    text = f"SELECT {', '.join([*raw, *made])} FROM (\n{query.text}\n) AS q"
    return TransformedRows(Query(text, scope=query.scope), tuple(names))


def rows_for_measures(model: LinearModel, query: Query, engine: Engine, label: str | None) -> tuple[LinearModel, Query]:
    """Return a model and the rows to measure it on: with its TRANSFORM applied, and a raw label if that is named."""
    transform = _usable(model, engine)
    if transform is None:
        return model, query
    made = _written(transform.columns)
    if label is not None and label not in transform.columns:
        made.append(f"q.{quote_identifier(label)}")
    text = f"SELECT {', '.join(made)} FROM (\n{query.text}\n) AS q"
    return replace(model, transform=None), Query(text, scope=query.scope)


def _usable(model: LinearModel, engine: Engine) -> ColumnTransform | None:
    transform = model.transform
    if transform is not None and transform.engine != engine.name:
        raise UsageError(
            f"the model was created with TRANSFORM on {transform.engine}, whose expressions {engine.dialect.title} may read"
            " otherwise; train it here: CREATE MODEL … TRANSFORM (…)"
        )
    if transform is not None:
        for text in transform.columns.values():
            checked_expression(text, engine.dialect)
    return transform


def _written(columns: Mapping[str, str]) -> list[str]:
    return [f"{text} AS {quote_identifier(name)}" for name, text in columns.items()]
