"""``TRAIN BY`` and its ``EXPLAIN``: a query's rows opened in blocks, learnt from by the one training there is.

Nothing here knows an engine: rows come as a source, the model goes to the catalogue.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.budget import Budget, show_bytes
from penstock.errors import BudgetError, DataError
from penstock.events import Stream, Warned
from penstock.explain.advice import plan_for
from penstock.linear import LinearModel
from penstock.sql import inside
from penstock.sql.catalog import Catalog
from penstock.sql.engines.base import Engine, Opened
from penstock.sql.options import Settings, settings
from penstock.sql.result import Result
from penstock.sql.statements import Train
from penstock.training import Training

_OVER_A_WIRE = {"cache", "connections", "extension"}
_FIELDS = ("epoch", "loss", "accuracy", "r2", "test_loss", "test_accuracy", "test_r2", "seconds", "rows")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A training about to begin: its settings, its rows, and the job itself."""

    settings: Settings
    opened: Opened
    training: Training

    def learn(self, schema: pa.Schema) -> LinearModel:
        """Train, and return the model in terms of the query's own columns, with the snapshots that it was learnt from."""
        try:
            model = self.training.run()
        except BudgetError as error:
            told = str(error).split(" Or ")[0].replace("memory=", "buffer_size = ")
            raise BudgetError(f"{told} Or have smaller blocks: WITH (block_size = '64kB')") from None
        encoder = model.encoder
        if encoder.origin is not None:
            encoder = encoder.for_schema(schema, place="the query", scored=True)
        return replace(model, encoder=encoder, metrics={**model.metrics, **self._snapshots()})

    def _snapshots(self) -> dict[str, list[str]]:
        """Return the states of the table that rows were read in, where the database tells."""
        source = getattr(self.opened.source, "inner", self.opened.source)
        taken = [each.snapshot for each in getattr(source, "snapshots", ())]
        return {"snapshots": taken} if taken else {}


def train(statement: Train, engine: Engine, catalog: Catalog, *, stream: Stream) -> Result:
    """Learn a model, put it into the catalogue, and return a row for each epoch."""
    name = statement.name
    taken = name is not None and name in catalog
    if taken and statement.exists == "skip":
        return Result(None, status=f"model {name!r} is there already; nothing was trained")
    schema = engine.describe(statement.query)
    chosen = settled(statement, engine, schema, stream=stream)
    if taken and not chosen.replace:
        raise DataError(
            f"there is a model {name!r} in {engine.place} already; take another name, DROP MODEL it, or write CREATE OR"
            " REPLACE MODEL (or WITH (replace = true))"
        )
    catalog.require_writable()
    stem = statement.query.selected.table if statement.query.selected else "model"
    name = name or catalog.free_name(f"{unquoted(stem)}_{chosen.config.model}")
    if by_server(chosen, engine, schema):
        statement = replace(statement, name=name)
        model = inside.train(statement, chosen, features_of(chosen), engine=engine, catalog=catalog, stream=stream)
    else:
        with prepared(statement, chosen, engine, stream=stream) as job:
            model = job.learn(schema)
            catalog.save(name, model, exists="replace" if chosen.replace else "error")
    note = f"model {name!r} saved in {engine.place}; use it: SELECT … PREDICT BY {shown(name)}"
    return replace(history(model), notes=(note,), status=f"TRAIN {model.history[-1]['rows'] if model.history else 0}")


def unquoted(name: str) -> str:
    """Return the last part of a table's name as it is called.

    Examples
    --------
    >>> unquoted('public."my ""best"" table"'), unquoted("shop.clicks")
    ('my "best" table', 'clicks')
    """
    found = re.search(r'"((?:[^"]|"")*)"$', name)
    return found[1].replace('""', '"') if found else name.rsplit(".", 1)[-1].strip("`")


def shown(name: str) -> str:
    """Write a model's name as a user would in a statement."""
    return name if name.isidentifier() and name.islower() else '"' + name.replace('"', '""') + '"'


def settled(statement: Train, engine: Engine, schema: pa.Schema, *, stream: Stream) -> Settings:
    """Settle a statement's options for the columns of its query, and warn of a key among the features."""
    chosen = settings(statement, schema)
    if statement.dialect == "warehouse" and chosen.config.model == "logistic":
        chosen = _several_classes(statement, chosen, engine)
    for option in sorted(_OVER_A_WIRE & set(statement.options)) if engine.name == "duckdb" else ():
        stream.emit(Warned(f"{option} is for rows that come over a wire; it changes nothing on DuckDB"))
    for name in keys_among(chosen, engine.keys(statement.query)):
        stream.emit(
            Warned(f"{name!r} is the table's primary key, and a feature here; leave it out: WITH (exclude = '{name}')")
        )
    return chosen


def by_server(chosen: Settings, engine: Engine, schema: pa.Schema) -> bool:
    """Say whether the server does the training itself: it has the extension, which knows what is asked."""
    return chosen.extension and inside.knows(chosen, features_of(chosen), schema) and engine.extension() is not None


@contextmanager
def prepared(statement: Train, chosen: Settings, engine: Engine, *, stream: Stream) -> Iterator[Prepared]:
    """Open a statement's rows and make the job of learning from them."""
    reading = replace(chosen.reading, pack=tuple(features_of(chosen)))
    with engine.open(statement.query, chosen.wanted, reading, stream=stream) as opened:
        chosen = _roomy(chosen.for_rows(int(opened.source.block_rows.sum())), opened.source, stream)
        training = Training(
            source=opened.source,
            config=chosen.config,
            columns=chosen.columns,
            stream=stream,
            scratch=chosen.reading.folder,
        )
        yield Prepared(chosen, opened, training)


def features_of(chosen: Settings) -> Sequence[str]:
    """Return the columns that are features, in order."""
    if chosen.columns.features is not None:
        return chosen.columns.features
    return [name for name in chosen.wanted if name not in (chosen.columns.label, chosen.columns.weight)]


def keys_among(chosen: Settings, keys: Sequence[str]) -> list[str]:
    """Return the key columns that would be learnt from though nobody asked for them by name."""
    if chosen.columns.features is not None:
        return []
    return [key for key in keys if key in features_of(chosen)]


def history(model: LinearModel) -> Result:
    """Return a model's epochs as rows."""
    names = tuple(name for name in _FIELDS if any(name in row for row in model.history))
    rows = [tuple(row.get(name) for name in names) for row in model.history]
    return Result(names or ("epoch",), rows, model=model)


def _roomy(chosen: Settings, source: BlockSource, stream: Stream) -> Settings:
    """Return settings whose buffer holds two blocks, where it was given as a share of rows that are few."""
    memory = chosen.config.memory
    if not (isinstance(memory, str) and memory.rstrip().endswith("%")) or not len(source.block_rows):
        return chosen
    plan = plan_for(source, chosen.columns.encoder(source), chosen.config.shuffle, memory)
    if plan.memory <= Budget.parse(memory).resolve(plan.data_bytes):
        return chosen
    enough = plan.memory * (2 if chosen.config.validation else 1)  # held-out rows are measured beside
    stream.emit(
        Warned(f"buffer_size = {memory} of these rows cannot hold two blocks; {show_bytes(enough)} are used instead")
    )
    return replace(chosen, config=replace(chosen.config, memory=enough))


def _several_classes(statement: Train, chosen: Settings, engine: Engine) -> Settings:
    """Return settings for softmax where the label has more than two classes: the warehouses' logistic_reg is both."""
    label = engine.quote(str(chosen.columns.label))
    text = f"SELECT count(*) FROM (SELECT DISTINCT {label} FROM ({statement.query.alone}\n) AS q LIMIT 3) AS found"
    classes = engine.run(text).rows[0][0]
    return chosen if classes < 3 else replace(chosen, config=replace(chosen.config, model="softmax"))
