"""``TRAIN BY … GROUP BY``: a model for every group of a query's rows, chosen among those that were tried, under one name.

The work is that of `penstock.groups.GroupBy`, over the rows as the engine gives them; here are the statement and what is told of it.
Without GROUP BY, values to be tried make a search for one model, in the same way: all rows are one group then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.config import Config
from penstock.events import Stream, Warned
from penstock.explanation.explanation import show_seconds
from penstock.explanation.group_training import explain_groups
from penstock.groups.group_by import GroupBy
from penstock.groups.patterns.linear import GroupedLinear
from penstock.groups.results import GroupModels
from penstock.groups.search_space import Search
from penstock.groups.tables import figures, lines
from penstock.linear import LinearModel
from penstock.metric_names import useless_reason
from penstock.sql.engines.base import Engine
from penstock.sql.options import Settings
from penstock.sql.result import Result
from penstock.sql.statements import Train
from penstock.training import Columns

_INNER = ("text", "group", "traceback")
_TRIALS = "trials"
"""The part of a model's metrics that has what a search tried."""


def train_groups(statement: Train, chosen: Settings, engine: Engine, *, stream: Stream) -> GroupModels:
    """Train every config for every group of a query's rows."""
    assert chosen.groups is not None
    pooled = chosen.groups.unseen == "pooled"
    with engine.open(statement.query, chosen.wanted, chosen.reading, stream=stream) as opened:
        result = _fit(opened.source, chosen.groups.by, chosen, pooled=pooled, stream=stream)
    if pooled and (result.pooled is None or not len(result.pooled.chosen_rows)):
        why = "nothing was held out" if chosen.config.validation == 0 else "it could not be trained"
        stream.emit(Warned(f"there is no pooled model, as {why}; rows of other groups get no prediction"))
        pooled = False
    return result.answering("pooled" if pooled else "null")


def search_model(statement: Train, chosen: Settings, engine: Engine, *, stream: Stream) -> LinearModel:
    """Train every config on a query's rows, and return the best one; `trial_rows` has what became of all."""
    with engine.open(statement.query, chosen.wanted, chosen.reading, stream=stream) as opened:
        result = _fit(opened.source, None, chosen, pooled=False, stream=stream)
        snapshots = [each.name for each in opened.source.snapshots]
    best: LinearModel = result.best("")
    trials = group_rows(result, tried=True)
    told = [{"chosen": row in result.chosen_rows, **trial} for row, trial in enumerate(trials.dicts())]
    figures = dict(best.metrics)
    epoch = {"epoch": figures["epochs"], "rows": figures["rows"], "seconds": sum(trial["seconds"] for trial in told)}
    metrics = {**result.metrics, _TRIALS: told} | ({"snapshots": snapshots} if snapshots else {})
    if not result.metrics:
        metrics |= {"training_loss": figures["loss"]}
    config = {name: value for name, value in best.config.items() if name in Config.__dataclass_fields__}
    weights = best.weights.settled().copy()  # those of the result go with its folder
    return replace(best, weights=weights, config=config, history=[epoch], metrics=metrics)


def _fit(
    source: BlockSource, by: Sequence[str] | None, chosen: Settings, *, pooled: bool, stream: Stream
) -> GroupModels:
    """Train every config for every group."""
    assert chosen.groups is not None
    return GroupBy(source, by=by, memory=chosen.config.memory, **_parts(chosen.columns)).fit(
        GroupedLinear(chosen.config),
        y=str(chosen.columns.label),
        search=Search.grid(chosen.search),
        validation=chosen.config.validation,
        halving=chosen.halving,
        pooled=pooled,
        workers=chosen.groups.workers,
        listeners=[stream.emit],
    )


def trial_rows(model: LinearModel) -> Result | None:
    """Return a row for everything that a search tried; None of a model that was not searched for."""
    trials = model.metrics.get(_TRIALS)
    if not trials:
        return None
    return Result(tuple(trials[0]), [tuple(trial.values()) for trial in trials], model=model)


def group_result(result: GroupModels, seconds: float, notes: Sequence[str] = ()) -> Result:
    """Return what a training gives back: a row per group."""
    summary = figures(result)
    useless = None if result.config.get("class_weight") else useless_reason(summary)
    told = [" ".join(line.split()) for line in lines(summary)]
    shown = group_rows(result)
    return Result(
        shown.columns,
        shown.rows,
        status=f"TRAIN {summary['rows']}",
        notes=(*told, f"{show_seconds(seconds)} in all", *notes),
        useless=useless,
        types=shown.types,
        model=result,
    )


def group_rows(result: GroupModels, *, tried: bool = False) -> Result:
    """Return a row per group: the chosen config and its figures, or why there is none; with ``tried`` one per config too."""
    index, frame = result.registry.index, result.frame
    keys = list(index.key_columns.values())
    if tried:
        frame = frame.drop_columns(list(_INNER))
    else:
        figures = ("held_out_rows", "held_out_loss", index.score, f"pooled_{index.metric}", "status", "reason")
        frame = frame.select([*keys, "rows", "config", *index.param_columns.values(), *figures])
        frame = frame.take(pa.array(_shown_rows(result)))
    known = [name for name in frame.column_names if name in keys or any(frame[name].to_pylist())]
    frame = frame.select(known)
    return Result(
        tuple(frame.column_names),
        list(zip(*(column.to_pylist() for column in frame.columns), strict=True)),
        types=tuple(frame.schema.types),
    )


def _shown_rows(result: GroupModels) -> list[int]:
    """Return a row of the table for each group: the chosen one, or the first where no config has a model."""
    chosen = dict.fromkeys(result.registry.table["group"].to_pylist(), -1)
    for row, group in enumerate(result.registry.table["group"].to_pylist()):
        chosen[group] = row if chosen[group] < 0 else chosen[group]
    for row in result.chosen_rows.tolist():
        chosen[result.registry.table["group"][row].as_py()] = row
    return list(chosen.values())


def explain_group_training(
    statement: Train, chosen: Settings, engine: Engine, *, analyze: bool, stream: Stream
) -> Result:
    """Say what a training will take, by a sample of the rows; with ``analyze`` train, and say what it took."""
    assert chosen.groups is not None
    model = GroupedLinear(chosen.config)
    with engine.open(statement.query, chosen.wanted, chosen.reading, stream=stream) as opened:
        explanation = explain_groups(
            opened.source,
            chosen.groups.by,
            model=model,
            choices=[choice.params for choice in Search.grid(chosen.search).choices(model.known)],
            workers=[chosen.groups.workers] if chosen.groups.workers else (),
            label=chosen.columns.label,
            validation=chosen.config.validation,
            seed=chosen.config.seed,
            columns=_parts(chosen.columns),
        )
    told = explanation.lines()
    if analyze:
        began = time.perf_counter()
        if chosen.groups.by:
            found = lines(figures(train_groups(statement, chosen, engine, stream=stream)))
        else:
            found = map(str, str(trial_rows(search_model(statement, chosen, engine, stream=stream))).splitlines())
        told += ["", f"Took {show_seconds(time.perf_counter() - began)}", *found]
    return Result(("QUERY PLAN",), [(line,) for line in told])


def _parts(columns: Columns) -> Mapping[str, Any]:
    return {each.name: getattr(columns, each.name) for each in fields(Columns) if each.name != "label"}
