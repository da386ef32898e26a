"""``TRAIN BY … GROUP BY``: a model for every group of a query's rows, chosen among those that were tried, under one name.

The work is that of `penstock.groups.GroupBy`, over the rows as the engine gives them; here are the statement and what is told of it.
Without GROUP BY, boosted trees, modules and a choice among values to try are learned in the same way: all rows are one group then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.config import Config
from penstock.errors import DataError, UsageError
from penstock.events import Stream, Warned
from penstock.explanation.explanation import Explanation
from penstock.explanation.group_training import explain_groups
from penstock.groups.boosting import Boosting
from penstock.groups.group_by import GroupBy
from penstock.groups.patterns.base import Trainable
from penstock.groups.patterns.linear import GroupedLinear
from penstock.groups.results import GroupModels
from penstock.groups.search_space import Search
from penstock.groups.tables import figures, lines
from penstock.linear import LinearModel
from penstock.messages import Text, Use
from penstock.metric_names import useless_reason
from penstock.model import Model
from penstock.options import options_of
from penstock.sql.model_types import LearnedModel
from penstock.sql.module_code import module_trainable
from penstock.sql.option_values import OptionValues
from penstock.sql.options import Settings
from penstock.sql.result import Result
from penstock.sql.statements import Train
from penstock.sql.stored_files import Keeping
from penstock.training import Columns

_INNER = ("text", "group", "traceback")
TRIALS = "trials"
"""The part of a model's metrics that has what a search tried."""


@dataclass(frozen=True, slots=True)
class GroupByLearner:
    """Learns by `GroupBy`: a model for each group, or of all rows where there is nothing to group by."""

    trainable: Trainable
    keeping: Keeping = field(default_factory=Keeping)

    @contextmanager
    def learn(self, source: BlockSource, chosen: Settings, *, stream: Stream) -> Iterator[LearnedModel]:
        """Train every config for every group of the rows."""
        assert chosen.groups is not None
        groups = chosen.groups
        pooled = groups.unseen == "pooled"
        result = GroupBy(source, by=groups.by or None, memory=chosen.config.memory, **_parts(chosen.columns)).fit(
            self.trainable,
            y=str(chosen.columns.label),
            search=Search.grid(chosen.search),
            validation=chosen.config.validation,
            halving=chosen.halving,
            pooled=pooled,
            workers=groups.workers,
            listeners=[stream.emit],
        )
        if not groups.by:
            with result:
                yield replace(_single(result, source), keeping=self.keeping)
            return
        if pooled and (result.pooled is None or not len(result.pooled.chosen_rows)):
            why = "nothing was held out" if chosen.config.validation == 0 else "it could not be trained"
            stream.emit(Warned(f"there is no pooled model, as {why}; rows of other groups get no prediction"))
            pooled = False
        with result.answering("pooled" if pooled else "null") as found:
            yield replace(grouped_model(found), keeping=self.keeping)

    def explain(self, source: BlockSource, chosen: Settings) -> Explanation:
        """Say what the training will take, by a sample of the rows."""
        assert chosen.groups is not None
        return explain_groups(
            source,
            chosen.groups.by,
            model=self.trainable,
            choices=[choice.params for choice in Search.grid(chosen.search).choices(self.trainable.known)],
            workers=[chosen.groups.workers] if chosen.groups.workers else (),
            label=chosen.columns.label,
            validation=chosen.config.validation,
            seed=chosen.config.seed,
            columns=_parts(chosen.columns),
        )

    def trial(self) -> Self:
        """Return itself: its models are in temporary files."""
        return self


def linear_learner(options: OptionValues, train: Train) -> GroupByLearner | None:
    """Return what learns a linear model for each group, or chooses one among values to try; None without either."""
    if not (train.by or options.search):
        return None
    config = options.config(train.model)
    if config.optimizer not in (None, "sgd"):
        raise UsageError(
            "is not there for models per group and several values to try, which learn by sgd or full passes",
            option="optimizer",
            value=config.optimizer,
            fixes=["leave it out"],
        )
    return GroupByLearner(GroupedLinear(config))


def boosting_learner(options: OptionValues, train: Train) -> GroupByLearner:
    """Return what learns boosted trees."""
    values = options.values
    own = {name: values[name] for name in (*options_of("boosting"), "seed") if name in values}
    objective = values.get("objective")
    if objective is None and options.floating_label():
        objective = "regression"
    return GroupByLearner(Boosting(objective, **own))


def torch_learner(options: OptionValues, train: Train) -> GroupByLearner:
    """Return what learns modules by the code that the statement names, with the options it gives in place of the code's own."""
    values = options.values
    if "module" not in values:
        raise UsageError("say which code makes the module", fixes=[Text("write ", Use("module", "package:factory"))])
    names = ("epochs", "batch_size", "patience", "tolerance", "seed", "standardize", "shuffle", "memory")
    given = {name: values[name] for name in names if name in values}
    if given.get("patience") == 0:
        given["patience"] = None
    made = replace(module_trainable(values["module"]), **given)
    return GroupByLearner(made, Keeping(options={"module": values["module"]}))


def grouped_model(result: GroupModels) -> LearnedModel:
    """Return models per group with a row for each group."""
    summary = figures(result)
    useless = None if result.config.get("class_weight") else useless_reason(summary)
    shown = replace(group_rows(result), notes=group_notes(summary), status=f"TRAIN {summary['rows']}", model=result)
    return LearnedModel(result, shown, useless=useless)


def group_notes(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in words how the models of all groups came out."""
    return tuple(" ".join(line.split()) for line in lines(summary))


def _single(result: GroupModels, source: BlockSource) -> LearnedModel:
    """Return the one model of a result without groups, with what was tried among its metrics; see `trial_rows`."""
    if not len(result.chosen_rows):
        reasons = [reason for reason in result.frame["reason"].to_pylist() if reason]
        raise DataError(f"no model could be trained: {reasons[0] if reasons else 'there are no rows to learn from'}")
    best, trials = result.best(""), group_rows(result, tried=True).dicts()
    told = [{"chosen": row in result.chosen_rows, **trial} for row, trial in enumerate(trials)]
    figures, snapshots = dict(best.metrics), [each.name for each in source.snapshots]
    metrics = {**result.metrics, TRIALS: told} | ({"snapshots": snapshots} if snapshots else {})
    if not result.metrics:
        metrics |= {"training_loss": figures["loss"]}
    if isinstance(best, LinearModel):
        epoch = {
            "epoch": figures["epochs"],
            "rows": figures["rows"],
            "seconds": sum(trial["seconds"] for trial in told),
        }
        config = {name: value for name, value in best.config.items() if name in Config.__dataclass_fields__}
        weights = best.weights.settled().copy()  # those of the result go with its folder
        best = replace(best, weights=weights, config=config, history=[epoch], metrics=metrics)
    else:
        best = replace(best, metrics={**metrics, "rows": figures["rows"], "epochs": figures["epochs"]})
    shown = trial_rows(best)
    assert shown is not None
    return LearnedModel(best, replace(shown, status=f"TRAIN {figures['rows']}"), useless=useless_reason(best.metrics))


def trial_rows(model: Model) -> Result | None:
    """Return a row for everything that a search tried; None of a model that was not searched for."""
    trials = model.metrics.get(TRIALS)
    if not trials:
        return None
    return Result(tuple(trials[0]), [tuple(trial.values()) for trial in trials], model=model)


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


def _parts(columns: Columns) -> Mapping[str, Any]:
    return {each.name: getattr(columns, each.name) for each in fields(Columns) if each.name != "label"}
