"""``EXPLAIN`` of a training: the paper's operators SGD ← TupleShuffle ← BlockShuffle ← scan (section 5.2).

What an epoch will take is predicted from a sample of blocks by `penstock.explain`; of a query that would first have to
be copied, from a few of its rows. ``ANALYZE`` trains, says what it took beside what was predicted, and keeps no model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.blocks.cached_source import CachedSource
from penstock.budget import show_bytes
from penstock.columns.recipe import Recipe
from penstock.errors import PenstockError
from penstock.events import Stream
from penstock.explanation.advice import plan_for
from penstock.explanation.explanation import Explanation, Section, format_tree, show_seconds
from penstock.explanation.fit import QuickFit
from penstock.linear import LinearModel
from penstock.loader.plan import Plan
from penstock.metric_names import headline
from penstock.parallel import in_order
from penstock.sgd.losses import loss_of
from penstock.solvers import DataShape
from penstock.sql.engines.base import Engine, QueryScan
from penstock.sql.group_training import explain_group_training
from penstock.sql.options import Settings
from penstock.sql.result import Result
from penstock.sql.statements import Explain, Query, Train
from penstock.sql.training_statement import (
    PreparedTraining,
    features_of,
    phase_times,
    planning_recipe,
    prepare_training,
    server_for,
    training_settings,
)
from penstock.sql.transform import transformed_training

_BLOCKS = 16
"""Blocks whose labels are read to predict how long it takes to read all labels."""
_SAMPLE = 20_000
"""Rows of a query that are read to predict what the whole will take."""
_LEARNERS = {"sgd": "SGD", "lbfgs": "L-BFGS", "gd": "GradientDescent", "exact": "NormalEquations"}
"""The nodes at the top of the tree, by the solver."""


def explain_training(statement: Explain, engine: Engine, *, stream: Stream) -> Result:
    """Return the tree of a training's operators, a line each, with what they are predicted to take (and took)."""
    train = transformed_training(statement.train, engine)
    schema = engine.describe(train.query)
    chosen = training_settings(train, engine, schema, stream=stream)
    if chosen.groups is not None:
        return explain_group_training(train, chosen, engine, analyze=statement.analyze, stream=stream)
    server = server_for(chosen, engine, schema)
    if server is not None:
        plan = server.explain(train, chosen, features_of(chosen), analyze=statement.analyze)
        if plan is not None:
            return plan
    view = _foreseen(train, chosen, engine, Stream() if statement.analyze else stream)
    if statement.analyze:
        # Opened anew: what was read for the prediction must not make the first epoch faster.
        with prepare_training(train, chosen, engine, stream=stream) as job:
            model, source = job.training.run(), job.opened.source
            model = replace(model, metrics={**model.metrics, **job.phases()})
            lines = replace(view, scan=job.opened.scan, rows=int(source.block_rows.sum())).lines(model)
    else:
        lines = view.lines()
    return Result(("QUERY PLAN",), [(line,) for line in lines])


def _foreseen(train: Train, chosen: Settings, engine: Engine, stream: Stream) -> _View:
    """Look at a training without running it: at blocks of its table, or at a few rows of its query."""
    whole = engine.estimate(train.query, chosen.wanted, chosen.reading)
    if not whole.copied:
        with prepare_training(train, chosen, engine, stream=stream) as job:
            return _View.of(job)
    sample = Query(f"SELECT * FROM ({train.query.alone}\n) AS q LIMIT {_SAMPLE}")
    with prepare_training(replace(train, query=sample), chosen, engine, stream=stream) as job:
        return _View.of(job, whole=whole)


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
    def of(cls, job: PreparedTraining, whole: QueryScan | None = None) -> _View:
        """Look at the rows of a training; ``whole`` is the query of which they are only a sample."""
        chosen, opened, source = job.settings, job.opened, job.opened.source
        recipe = planning_recipe(chosen, source)
        plan = plan_for(source, recipe, chosen.config.shuffle, chosen.config.memory)
        # Blocks that are kept are looked at twice: fetched over a connection first, then where later epochs find them.
        looked = _looked(source, chosen)
        again = _looked(source, chosen) if isinstance(source, CachedSource) else looked
        first, later = (None if each is None else each.cost(chosen.config.shuffle).seconds for each in (looked, again))
        scan = _scan_seconds(source, recipe, chosen, first)
        if isinstance(source, CachedSource) and scan:
            first = later  # all blocks have come by then, and been kept
        phases = {**job.phases(), "scan_seconds": scan}
        rows, blocks, reads, data_bytes = int(source.block_rows.sum()), plan.blocks, opened.scan, plan.data_bytes
        if whole is not None and rows:
            times = max(whole.rows / rows, 1.0)
            rows, blocks, reads, data_bytes = whole.rows, round(blocks * times), whole, round(data_bytes * times)
            phases = {name: seconds * times for name, seconds in phases.items()}
            first, later = (None if seconds is None else seconds * times for seconds in (first, later))
            plan = replace(plan, resident=plan.resident and plan.data_bytes * times * 3 < plan.memory)
        shape = DataShape(rows, recipe.width or 0, in_memory=data_bytes <= plan.memory, sparse=recipe.sparse)
        config = chosen.config
        if looked is not None and looked.model == loss_of(config.model).several:
            config = replace(config, model=looked.model)  # as a training does of three classes or more
        chosen = replace(chosen, config=config.resolve(shape, held_out=True))
        return cls(chosen, reads, plan, rows, blocks, first, later, phases, None if looked is None else looked.fit)

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


def _looked(source: BlockSource, chosen: Settings) -> Explanation | None:
    """Look at a sample of the rows: what an epoch is predicted to take, and what a quick fit reaches."""
    from penstock.explanation import explain as look

    options: dict[str, Any] = {
        **chosen.columns.to_options(),
        **{name: getattr(chosen.config, name) for name in ("model", "memory", "seed")},
    }
    try:
        return look(source, **options, measure=False)
    except PenstockError:  # what is wrong with the rows is for the training to say
        return None


def _scan_seconds(source: BlockSource, recipe: Recipe, chosen: Settings, epoch: float | None) -> float:
    """Return what the pass before the first epoch is predicted to take, by reading the labels of some blocks."""
    config = chosen.config
    whole = bool(config.standardize) or recipe.width is None
    if not len(source.block_rows) or not (whole or loss_of(config.model).classifies):
        return 0.0
    if epoch is not None and (whole or isinstance(source, CachedSource)):  # which fetches all columns of a block
        return epoch
    blocks = np.unique(np.linspace(0, len(source.block_rows) - 1, _BLOCKS).astype(int))
    began = time.perf_counter()
    label = [str(chosen.columns.label)]
    with closing(in_order(lambda block: source.read(block, label), blocks.tolist(), threads=source.threads)) as labels:
        for _ in labels:
            pass
    seconds = time.perf_counter() - began
    return seconds * int(source.block_rows.sum()) / max(int(source.block_rows[blocks].sum()), 1)


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
