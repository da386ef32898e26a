"""Runs ``TRAIN BY`` and ``CREATE MODEL``: opens a query's rows in blocks, trains, and saves the model.

Nothing here knows an engine: rows come as a source, the model goes to the catalogue.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.columns.number import Number
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import index_notice
from penstock.errors import BudgetError, DataError, UsageError
from penstock.events import Stream, Warned
from penstock.explanation.explanation import show_seconds
from penstock.groups.patterns.linear import GroupedLinear
from penstock.linear import LinearModel
from penstock.memory_learner import LinearJob, linear_job
from penstock.messages import Name, Text, Use
from penstock.metric_names import headline, learned_rows, useless_reason
from penstock.model import Model
from penstock.sgd.losses import loss_of
from penstock.sql.catalog import Catalog
from penstock.sql.continued_training import continued_recipe, exact_notice, first_model
from penstock.sql.engines.base import Engine, QueryBlocks, Reading, ServerTraining
from penstock.sql.group_training import GroupByLearner, grouped_model
from penstock.sql.model_types import LINEAR, LearnedModel, type_of
from penstock.sql.model_versions import ModelOrigin, require_name
from penstock.sql.options import Settings, settings
from penstock.sql.result import Result
from penstock.sql.statements import Exists, Train
from penstock.sql.transform import saved_transform, transformed_training

_OVER_A_WIRE = {"connections", "extension"}
_SCORES = [f"{kind}_{name}" for kind in ("progressive", "held_out", "test") for name in ("loss", "accuracy", "r2")]
_FIELDS = ("epoch", *_SCORES, "seconds", "prepare_seconds", "rows")


@dataclass(frozen=True, slots=True)
class PreparedTraining:
    """A training about to begin: its settings, its rows, the job itself, and what opening the rows took."""

    settings: Settings
    opened: QueryBlocks
    training: LinearJob
    open_seconds: float

    def phases(self) -> dict[str, float]:
        """Return the seconds before the first epoch by phase: a survey of the table or a copy of the rows, and a scan."""
        opening = "copy_seconds" if self.opened.copied is not None else "survey_seconds"
        return {opening: self.open_seconds, "scan_seconds": self.training.scan_seconds}

    def learn(self, schema: pa.Schema) -> LinearModel:
        """Train, and return the model in terms of the query's own columns, with the snapshots that it was learnt from."""
        try:
            model = self.training.run()
        except BudgetError as error:
            raise error.replace(fixes=error.fixes[:1]) from None  # those behind the first are for files
        recipe = model.recipe
        if recipe.origin is not None:
            recipe = _filled(recipe.for_schema(schema, place="the query", scored=True), model)
        phases = self.phases()
        history = [dict(row) for row in model.history]
        if history:
            history[0]["prepare_seconds"] = sum(phases.values()) + history[0].get("prepare_seconds", 0.0)
        metrics = {**model.metrics, **phases}
        if snapshots := [each.name for each in self.opened.source.snapshots]:
            metrics["snapshots"] = snapshots
        return replace(model, recipe=recipe, history=history, metrics=metrics)


def _filled(recipe: Recipe, model: LinearModel) -> Recipe:
    """Return a recipe of numbers that were copied as one column, where none was missing, with their means for rows to come."""
    means = model.scaling.shift.tolist()
    if recipe.missing == "refuse" or len(means) != len(recipe.parts):
        return recipe
    parts = zip(recipe.parts, means, strict=True)
    filled = (replace(part, fill=mean) if isinstance(part, Number) else part for part, mean in parts)
    return replace(recipe, parts=tuple(filled))


def run_training(statement: Train, engine: Engine, catalog: Catalog, *, stream: Stream) -> Result:
    """Learn a model, put it into the catalogue, and return a row for each epoch."""
    began = time.perf_counter()
    name = statement.name
    if name is not None:
        require_name(name)
    taken = name is not None and name in catalog
    if taken and statement.exists == "skip":
        return Result(status=f"model {name!r} is there already; nothing was trained")
    statement = transformed_training(statement, engine)
    schema = engine.describe(statement.query)
    chosen = training_settings(statement, engine, schema, stream=stream)
    if taken and not chosen.replace:
        raise DataError(
            f"there is a model {name!r} in {engine.place} already; take another name, DROP MODEL it, or write CREATE OR"
            " REPLACE MODEL (or WITH (replace = true))"
        )
    first = first_model(statement, chosen, features_of(chosen), engine, catalog)
    catalog.require_writable()
    stem = statement.query.selected.table if statement.query.selected else "model"
    exists: Exists = "replace" if chosen.replace else "error"
    origin = ModelOrigin(statement.text)
    name = name or catalog.free_name(f"{unquote_table(stem)}_{statement.model}")
    note = f"model {name!r} saved in {engine.place}; use it: SELECT … PREDICT BY {quote_if_needed(name)}"
    statement = replace(statement, name=name)
    grouped = _groups_of_server(statement, chosen, engine, schema, catalog=catalog, stream=stream)
    if grouped is not None:
        whole = (*grouped.result.notes, f"{show_seconds(time.perf_counter() - began)} in all", note)
        whole = (*whole, *_useless_note(grouped.useless, name))
        return replace(grouped.result, notes=whole, useless=grouped.useless)
    if chosen.learner is not None:
        with (
            engine.open(statement.query, chosen.wanted, chosen.reading, stream=stream) as opened,
            chosen.learner.learn(opened.source, chosen, stream=stream) as learned,
        ):
            model = learned.model
            if isinstance(model, LinearModel):
                model = replace(model, transform=saved_transform(statement, engine))
            catalog.save(name, model, exists=exists, origin=origin, keeping=learned.keeping)
            told = learned.result.notes or score_note(model)
            seconds = show_seconds(time.perf_counter() - began)
            place = learned.keeping.folder
            stays = () if place is None else (f"it stays in {place}, which the database only refers to",)
            whole = (*told, f"{seconds} in all", note, *stays, *_useless_note(learned.useless, name))
            return replace(learned.result, notes=whole, useless=learned.useless)
    server = server_for(chosen, engine, schema)
    trained = None
    if server is not None:
        trained = server.train(statement, chosen, features_of(chosen), catalog=catalog, stream=stream)
    if trained is not None:
        model = trained
    else:
        with prepare_training(statement, chosen, engine, stream=stream, first=first) as job:
            model = replace(job.learn(schema), transform=saved_transform(statement, engine))
            catalog.save(name, model, exists=exists, origin=origin)
    if first is not None and (notice := exact_notice(model)) is not None:
        stream.emit(Warned(notice))
    useless = model.metrics.get("useless") or useless_reason(model.metrics)
    spent = time_note(model, time.perf_counter() - began)
    notes = [*score_note(model), *spent, note, *_useless_note(useless, name)]
    status = f"TRAIN {learned_rows(model.metrics, model.history) or 0}"
    return replace(epoch_rows(model), notes=tuple(notes), useless=useless, status=status)


def _useless_note(useless: str | None, name: str) -> list[str]:
    if useless is None:
        return []
    return [f"the model is useless: {useless}; to remove it: DROP MODEL {quote_if_needed(name)}"]


def _groups_of_server(
    statement: Train, chosen: Settings, engine: Engine, schema: pa.Schema, *, catalog: Catalog, stream: Stream
) -> LearnedModel | None:
    """Have the server train a linear model per group, where it can and may; None where it does not."""
    server, learner = engine.server_training if chosen.extension else None, chosen.learner
    if server is None or not isinstance(learner, GroupByLearner) or not isinstance(learner.trainable, GroupedLinear):
        return None
    chosen, features = replace(chosen, config=learner.trainable.config), features_of(chosen)
    if not server.accepts_groups(statement, chosen, features, schema):
        return None
    models = server.train_groups(statement, chosen, features, catalog=catalog, stream=stream)
    return None if models is None else grouped_model(models)


def unquote_table(name: str) -> str:
    """Return the last part of a table's name as it is called.

    Examples
    --------
    >>> unquote_table('public."my ""best"" table"'), unquote_table("shop.clicks")
    ('my "best" table', 'clicks')
    """
    found = re.search(r'"((?:[^"]|"")*)"$', name)
    return found[1].replace('""', '"') if found else name.rsplit(".", 1)[-1].strip("`")


def quote_if_needed(name: str) -> str:
    """Write a model's name as a user would in a statement."""
    return name if name.isidentifier() and name.islower() else '"' + name.replace('"', '""') + '"'


def training_settings(
    statement: Train, engine: Engine, schema: pa.Schema, *, stream: Stream, planned: bool = False
) -> Settings:
    """Settle a statement's options for the columns of its query, and warn of a key among the features.

    Where it is ``planned`` only, the query is not run to see whether the label has more than two classes.
    """
    chosen = settings(statement, schema)
    if type_of(statement) is not LINEAR and statement.transform:
        raise UsageError(
            f"TRANSFORM is for linear models in memory, and not for {statement.model}",
            fixes=["write the expressions into the query"],
        )
    several = None if chosen.learner is not None else loss_of(chosen.config.model).several
    if not planned and statement.warehouse and several:
        chosen = _several_classes(statement, chosen, engine, several)
    for option in () if engine.remote else sorted(_OVER_A_WIRE & set(statement.options)):
        reason = f" is for rows that come over a wire; it changes nothing on {engine.dialect.title}"
        stream.emit(Warned(Text(Name(option), reason)))
    if "features" not in statement.options:
        notice = index_notice(schema, chosen.wanted, exclude=_excluded(statement))
        if notice is not None:
            stream.emit(Warned(notice))
    if chosen.columns.features is None:  # nobody asked for the key by name
        for name in [key for key in engine.keys(statement.query) if key in features_of(chosen)]:
            reason = f"{name!r} is the table's primary key, and a feature here; leave it out: "
            stream.emit(Warned(Text(reason, Use("exclude", [name]))))
    if statement.transform:  # which a server that trains by itself would not save with the model
        chosen = replace(chosen, extension=False)
    return chosen


def _excluded(statement: Train) -> list[str]:
    """Return the columns that a statement leaves out by name."""
    written = statement.options["exclude"].value if "exclude" in statement.options else None
    if isinstance(written, str):
        return [name.strip() for name in written.split(",")]
    return [str(name) for name in written] if isinstance(written, list) else []


def server_for(chosen: Settings, engine: Engine, schema: pa.Schema) -> ServerTraining | None:
    """Return the server that does the training itself, where it can and may."""
    server = engine.server_training if chosen.extension else None
    return server if server is not None and server.accepts(chosen, features_of(chosen), schema) else None


@contextmanager
def prepare_training(
    statement: Train, chosen: Settings, engine: Engine, *, stream: Stream, first: LinearModel | None = None
) -> Iterator[PreparedTraining]:
    """Open a statement's rows and make the job of learning from them, beginning with ``first`` if there is such a model."""
    began = time.perf_counter()
    with engine.open(statement.query, chosen.wanted, training_reading(chosen), stream=stream) as opened:
        seconds = time.perf_counter() - began
        chosen = chosen.for_rows(int(opened.source.block_rows.sum()))
        folder = chosen.reading.folder
        training = linear_job(
            opened.source,
            chosen.config,
            chosen.columns,
            first=first,
            recipe=None if first is None else continued_recipe(first, chosen, opened.source),
            stream=stream,
            scratch=folder,
            cache=chosen.reading.cache,
        )
        yield PreparedTraining(chosen, opened, training, seconds)


def training_reading(chosen: Settings) -> Reading:
    """Return how the rows of a training are fetched: its features in one column of a copy, and counted by the scan, if there is one.

    A training that goes on from a model has the model's classes, and columns as the model knows them.
    """
    scanned = bool(chosen.config.standardize)
    if chosen.init is not None:
        return replace(chosen.reading, scanned=scanned)
    scanned |= loss_of(chosen.config.model).classifies
    return replace(chosen.reading, pack=tuple(features_of(chosen)), scanned=scanned)


def features_of(chosen: Settings) -> Sequence[str]:
    """Return the columns that are features, in order."""
    if chosen.columns.features is not None:
        return chosen.columns.features
    by = () if chosen.groups is None else chosen.groups.by
    return [name for name in chosen.wanted if name not in (chosen.columns.label, chosen.columns.weight, *by)]


def epoch_rows(model: LinearModel) -> Result:
    """Return a model's epochs as rows."""
    names = tuple(name for name in _FIELDS if any(name in row for row in model.history))
    rows = [tuple(row.get(name) for name in names) for row in model.history]
    return Result(names or ("epoch",), rows, model=model, steps=True)


def score_note(model: Model) -> tuple[str, ...]:
    """Return in words how good the finished model is, and on which rows that was measured."""
    score = headline(model.metrics)
    if score is None:
        return ()
    rows = model.metrics.get(f"{score.name.removesuffix(f'_{score.metric}')}_rows")
    return (f"{score.title} {score.value:.4f}" + ("" if rows is None else f", measured on {rows:,} rows"),)


def time_note(model: LinearModel, seconds: float) -> tuple[str, ...]:
    """Return in words what a statement's seconds went to; a server that trains by itself does not say."""
    phases = phase_times(model.metrics)
    if not phases:
        return ()
    epochs = sum(row["seconds"] for row in model.history)
    return (f"{phases}, {show_seconds(epochs)} for {len(model.history)} epochs, {show_seconds(seconds)} in all",)


def phase_times(figures: Mapping[str, Any]) -> str:
    """Return in words what came before the first epoch: nothing where the figures do not say.

    Examples
    --------
    >>> phase_times({"survey_seconds": 2.0, "scan_seconds": 1.0})
    '3.0 s to prepare (survey 2.0 s, scan 1.0 s)'
    """
    known = {name: figures[f"{name}_seconds"] for name in ("survey", "copy", "scan") if f"{name}_seconds" in figures}
    if not known:
        return ""
    parts = ", ".join(f"{name} {show_seconds(seconds)}" for name, seconds in known.items())
    return f"{show_seconds(sum(known.values()))} to prepare ({parts})"


def _several_classes(statement: Train, chosen: Settings, engine: Engine, several: str) -> Settings:
    """Return settings for softmax where the label has more than two classes: the warehouses' logistic_reg is both."""
    label = engine.quote(str(chosen.columns.label))
    text = f"SELECT count(*) FROM (SELECT DISTINCT {label} FROM ({statement.query.alone}\n) AS q WHERE {label} IS NOT NULL LIMIT 3) AS found"
    classes = engine.run(text).rows[0][0]
    return chosen if classes < 3 else replace(chosen, config=replace(chosen.config, model=several))
