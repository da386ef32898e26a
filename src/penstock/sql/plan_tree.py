"""``EXPLAIN`` of a training: the paper's operators SGD ← TupleShuffle ← BlockShuffle ← scan (section 5.2).

What a training will take is predicted from the engine's statistics and a few blocks of the table. Of a query that would first
have to be copied nothing is run: its rows are those that the engine expects, and rows made up of the same types are copied in
their place. ``ANALYZE`` trains, says what it took beside what was predicted, and keeps no model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from penstock.blocks.sampled_source import TableSize
from penstock.budget import show_bytes
from penstock.events import Stream, Warned
from penstock.explanation.explanation import Section, format_tree, show_seconds
from penstock.explanation.fit import QuickFit
from penstock.explanation.forecast import forecast_training
from penstock.linear import LinearModel
from penstock.loader.plan import Plan
from penstock.metric_names import headline
from penstock.sql.engines.base import Engine, QuerySample, QueryScan
from penstock.sql.model_types import QueryLearner
from penstock.sql.options import Settings
from penstock.sql.query_copy import BLOCK_SIZE
from penstock.sql.result import Result
from penstock.sql.stand_in_rows import FEW, enough_rows, stand_in_query
from penstock.sql.statements import Explain, Train
from penstock.sql.training_statement import (
    features_of,
    phase_times,
    prepare_training,
    score_note,
    server_for,
    training_reading,
    training_settings,
)
from penstock.sql.transform import transformed_training

_LEARNERS = {"sgd": "SGD", "lbfgs": "L-BFGS", "gd": "GradientDescent", "exact": "NormalEquations"}
"""The nodes at the top of the tree, by the solver."""


def explain_training(statement: Explain, engine: Engine, *, stream: Stream) -> Result:
    """Return the tree of a training's operators, a line each, with what they are predicted to take (and took)."""
    train = transformed_training(statement.train, engine)
    schema = engine.describe(train.query)
    chosen = training_settings(train, engine, schema, stream=stream, planned=True)
    if chosen.learner is not None:
        return _explain_learner(train, chosen, chosen.learner, engine, analyze=statement.analyze, stream=stream)
    server = server_for(chosen, engine, schema)
    if server is not None:
        plan = server.explain(train, chosen, features_of(chosen), analyze=statement.analyze)
        if plan is not None:
            return plan
    with _sampled(train, chosen, engine) as (sample, phases):
        view = _View.of(chosen, sample, phases)
    if view.plan.raised is not None and not statement.analyze:
        stream.emit(Warned(view.plan.raised))
    if statement.analyze:
        with prepare_training(train, chosen, engine, stream=stream) as job:
            model, source = job.training.run(), job.opened.source
            model = replace(model, metrics={**model.metrics, **job.phases()})
            rows = int(source.block_rows.sum())
            scan = replace(job.opened.scan, rows=rows, exact=source.exact_rows)
            lines = replace(view, scan=scan, rows=rows).lines(model)
    else:
        lines = view.lines()
    return Result(("QUERY PLAN",), [(line,) for line in lines])


def _explain_learner(
    train: Train, chosen: Settings, learner: QueryLearner, engine: Engine, *, analyze: bool, stream: Stream
) -> Result:
    """Say what learning will take; to analyze, learn, and say what it took."""
    with engine.open(train.query, chosen.wanted, chosen.reading, stream=stream) as opened:
        told = learner.explain(opened.source, chosen).lines()
        if analyze:
            began = time.perf_counter()
            with learner.trial().learn(opened.source, chosen, stream=stream) as learned:
                notes = learned.result.notes or [*score_note(learned.model), *str(learned.result).splitlines()]
            told += ["", f"Took {show_seconds(time.perf_counter() - began)}", *notes]
    return Result(("QUERY PLAN",), [(line,) for line in told])


@contextmanager
def _sampled(train: Train, chosen: Settings, engine: Engine) -> Iterator[tuple[QuerySample, Mapping[str, float]]]:
    """Open a few blocks of a training's rows, or rows that stand for those of a query; with what opening all would take."""
    reading = training_reading(chosen)
    sample = engine.sample(train.query, chosen.wanted, reading)
    if sample is not None:
        with sample:
            yield sample, {"survey_seconds": sample.survey_seconds}
        return
    whole, schema = engine.estimate(train.query, chosen.wanted, reading), engine.describe(train.query)
    stand_ins = partial(stand_in_query, schema, chosen.wanted, str(chosen.columns.label), engine)
    reading = replace(reading, block_size=reading.block_size or BLOCK_SIZE)
    seconds = []
    for rows in (FEW, enough_rows(schema, chosen.wanted)):
        began = time.perf_counter()
        opened = engine.open(stand_ins(rows=rows), chosen.wanted, reading, stream=Stream.muted())
        seconds.append(time.perf_counter() - began)
        if rows == FEW:
            opened.close()
    with opened:
        source = opened.source
        times = max(whole.rows, 1) / max(int(source.block_rows.sum()), 1)
        size = TableSize(
            max(whole.rows, 1), max(1, round(times * len(source.block_rows))), int(times * source.block_bytes.sum())
        )
        copying = seconds[0] + max(0.0, seconds[1] - seconds[0]) * times
        sample = QuerySample(source, size, replace(whole, nbytes=size.nbytes), 0.0)
        yield sample, {"copy_seconds": whole.run_seconds + copying}


@dataclass(frozen=True, slots=True)
class _View:
    """What the tree tells of."""

    settings: Settings
    scan: QueryScan
    plan: Plan
    rows: int
    blocks: int
    first: float | None
    later: float | None
    phases: Mapping[str, float]
    fit: QuickFit | None

    @classmethod
    def of(cls, chosen: Settings, sample: QuerySample, phases: Mapping[str, float]) -> _View:
        """Look at a few blocks of a training's rows."""
        chosen = chosen.for_rows(sample.size.rows)
        found = forecast_training(
            sample.source,
            sample.size,
            chosen.columns,
            chosen.config,
            exact=sample.exact,
            fits=not sample.scan.copied,
            seed=chosen.config.seed,
        )
        first, later = (None, None) if found.cost is None else (found.cost.first_seconds, found.cost.seconds)
        return cls(
            replace(chosen, config=found.config),
            sample.scan,
            found.plan,
            sample.size.rows,
            found.plan.blocks,
            first,
            later,
            {**phases, "scan_seconds": found.scan_seconds},
            found.fit,
        )

    def lines(self, model: LinearModel | None = None) -> list[str]:
        """Return the tree, with what was measured where a model was trained."""
        learner, tuples, blocks, scan = self._learner(), self._tuples(), self._blocks(), self._scan()
        if model is not None and model.history:
            learner[1].extend(_measured_times(model))
            blocks[1].append(_measured_bytes(model))
        shuffles = [] if self.settings.config.shuffle == "none" else [tuples, blocks]
        return format_tree([Section(title, details) for title, details in (learner, *shuffles, scan)])

    def _learner(self) -> tuple[str, list[str]]:
        config = self.settings.config
        optimizer = "" if config.optimizer in (None, "sgd") else f"{config.optimizer}, "
        rows = "one row" if config.batch_size == 1 else f"{config.batch_size:,} rows"
        details = [
            f"{config.epoch_limit} passes over all rows at most, seed {config.seed}"
            if config.full_passes
            else f"{optimizer}learning rate {config.first_rate:g} ({config.rate}), {rows} an update,"
            f" {config.epoch_limit} epochs, seed {config.seed}"
        ]
        if self.first is not None and self.later is not None:
            total = sum(self.phases.values()) + self.first + self.later * max(config.epoch_limit - 1, 0)
            details.append(
                f"predicted: {phase_times(self.phases)}, {show_seconds(self.first)} for the first epoch,"
                f" {show_seconds(self.later)} for each later one, {show_seconds(total)} in all"
            )
        if self.fit is not None:
            details.append(f"a {self.fit}")
        return f"{_LEARNERS[config.solver]} {config.model}", details

    def _tuples(self) -> tuple[str, list[str]]:
        plan = self.plan
        if plan.resident:
            return "TupleShuffle", [
                f"all {self.rows:,} rows fit in the buffer of {show_bytes(plan.memory)}: one window"
            ]
        windows = -(-self.rows // max(plan.held_rows, 1))
        details = [
            f"buffer {show_bytes(plan.memory)}: {windows:,} windows of about {min(plan.held_rows, self.rows):,} rows, one"
            " filled while another is learnt from"
        ]
        return "TupleShuffle", [*details, *([f"warning: {plan.warning}"] if plan.warning else [])]

    def _blocks(self) -> tuple[str, list[str]]:
        size = self.scan.nbytes / max(self.blocks, 1)
        return f"BlockShuffle ({self.settings.config.shuffle})", [
            f"{self.blocks:,} blocks of about {show_bytes(int(size))} ({self.rows / max(self.blocks, 1):,.0f} rows) in"
            f" random order, {self.plan.threads} read at once"
        ]

    def _scan(self) -> tuple[str, list[str]]:
        scan = self.scan
        about = "" if scan.exact else "about "
        return scan.title, [f"{about}{scan.rows:,} rows, {about}{show_bytes(scan.nbytes)}", *scan.details]


def _measured_times(model: LinearModel) -> list[str]:
    """Return in words what a training took and reached."""
    history: list[Any] = list(model.history)
    first, last = history[0], history[-1]
    prepared = sum(model.metrics.get(f"{name}_seconds", 0.0) for name in ("survey", "copy", "scan"))
    later = [row["seconds"] for row in history[1:]]
    mean = f", {show_seconds(sum(later) / len(later))} for each later one" if later else ""
    score = headline(model.metrics)
    final = [] if score is None else [f"measured: the model's {score.title} is {score.value:.4f}"]
    return [
        f"measured: {phase_times(model.metrics)}, {show_seconds(first['seconds'])} for the first epoch{mean},"
        f" {show_seconds(prepared + sum(row['seconds'] for row in history))} in all",
        f"measured: {last['rows']:,} rows an epoch, progressive loss {last['progressive_loss']:.4f} after"
        f" {len(history)} epochs",
        *final,
    ]


def _measured_bytes(model: LinearModel) -> str:
    first, *later = [show_bytes(int(row["bytes"])) for row in model.history[:2]]
    return f"measured: {first} read in the first epoch" + (f", {later[0]} in the next" if later else "")
