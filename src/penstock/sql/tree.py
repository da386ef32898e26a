"""``EXPLAIN`` of a training: the paper's operators SGD ← TupleShuffle ← BlockShuffle ← scan (section 5.2).

What an epoch will take is predicted from a sample of blocks by `penstock.explain`; of a query that would first have to
be copied, from a few of its rows. ``ANALYZE`` trains, says what it took beside what was predicted, and keeps no model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock.blocks.base import BlockSource
from penstock.blocks.cached import CachedSource
from penstock.budget import show_bytes
from penstock.errors import PenstockError
from penstock.events import Stream
from penstock.explain.advice import plan_for
from penstock.explain.words import show_seconds
from penstock.linear import LinearModel
from penstock.loader.plan import Plan
from penstock.sql import inside
from penstock.sql.engines.base import Engine, Opened, Scan
from penstock.sql.learning import by_server, features_of, prepared, settled
from penstock.sql.options import Settings
from penstock.sql.result import Result
from penstock.sql.statements import Explain, Query, Train

_SAMPLE = 20_000
"""Rows of a query that are read to predict what the whole will take."""


def explain(statement: Explain, engine: Engine, *, stream: Stream) -> Result:
    """Return the tree of a training's operators, a line each, with what they are predicted to take (and took)."""
    train = statement.train
    schema = engine.describe(train.query)
    chosen = settled(train, engine, schema, stream=stream)
    if by_server(chosen, engine, schema):
        return inside.explain(train, chosen, features_of(chosen), engine=engine, analyze=statement.analyze)
    view = _foreseen(train, chosen, engine, Stream() if statement.analyze else stream)
    if statement.analyze:
        # Opened anew: what was read for the prediction must not make the first epoch faster.
        with prepared(train, chosen, engine, stream=stream) as job:
            model, source = job.training.run(), job.opened.source
            rows, blocks = int(source.block_rows.sum()), len(source.block_rows)
            lines = replace(view, scan=job.opened.scan, rows=rows, blocks=blocks).lines(model)
    else:
        lines = view.lines()
    return Result(("QUERY PLAN",), [(line,) for line in lines])


def _foreseen(train: Train, chosen: Settings, engine: Engine, stream: Stream) -> _View:
    """Look at a training without running it: at blocks of its table, or at a few rows of its query."""
    whole = engine.foresee(train.query, chosen.wanted, chosen.reading)
    if not whole.copied:
        with prepared(train, chosen, engine, stream=stream) as job:
            return _View.of(job.settings, job.opened)
    sample = Query(f"SELECT * FROM ({train.query.alone}\n) AS q LIMIT {_SAMPLE}")
    with prepared(replace(train, query=sample), chosen, engine, stream=stream) as job:
        return _View.of(job.settings, job.opened, whole=whole)


@dataclass(frozen=True, slots=True)
class _View:
    """What the tree tells of."""

    settings: Settings
    scan: Scan
    plan: Plan
    rows: int
    blocks: int
    first: float | None
    later: float | None

    @classmethod
    def of(cls, chosen: Settings, opened: Opened, whole: Scan | None = None) -> _View:
        """Look at the rows of a training; ``whole`` is the query of which they are only a sample."""
        source = opened.source
        encoder = chosen.columns.encoder(source)
        plan = plan_for(source, encoder, chosen.config.shuffle, chosen.config.memory)
        # Blocks that are kept are looked at twice: fetched over a connection first, then where later epochs find them.
        first = _predicted(source, chosen)
        later = _predicted(source, chosen) if isinstance(source, CachedSource) else first
        rows, blocks, scan = int(source.block_rows.sum()), len(source.block_rows), opened.scan
        if whole is not None and rows:
            times = max(whole.rows / rows, 1.0)
            rows, blocks, scan = whole.rows, round(blocks * times), whole
            first, later = (None if seconds is None else seconds * times for seconds in (first, later))
            plan = replace(plan, resident=plan.resident and plan.data_bytes * times * 3 < plan.memory)
        return cls(chosen, scan, plan, rows, blocks, first, later)

    def lines(self, model: LinearModel | None = None) -> list[str]:
        """Return the tree, with what was measured where a model was trained."""
        config = self.settings.config
        nodes: list[tuple[str, list[str]]] = [self._sgd(), self._tuples(), self._blocks(), self._scan()]
        if model is not None:
            measured = _measured(model)
            nodes = [(title, [*details, *measured.get(title.split()[0], [])]) for title, details in nodes]
        if config.shuffle == "none":
            nodes = [node for node in nodes if not node[0].startswith(("TupleShuffle", "BlockShuffle"))]
        out: list[str] = []
        for depth, (title, details) in enumerate(nodes):
            indent = "      " * depth
            out.append(f"{indent[:-6]}  ->  {title}" if depth else title)
            out += [f"{indent}  {detail}" for detail in details]
        return out

    def _sgd(self) -> tuple[str, list[str]]:
        config = self.settings.config
        details = [
            f"learning rate {config.first_rate:g} ({config.rate}), {_rows(config.batch_size)} an update,"
            f" {config.epochs} epochs, seed {config.seed}"
        ]
        if self.first is not None and self.later is not None:
            total = self.first + self.later * max(config.epochs - 1, 0)
            details.append(
                f"predicted: {show_seconds(self.first)} for the first epoch, {show_seconds(self.later)} for each later one,"
                f" {show_seconds(total)} in all"
            )
        solver = "SGD" if config.solver == "sgd" else f"SGD (solver {config.solver})"
        return f"{solver} {config.model}", details

    def _tuples(self) -> tuple[str, list[str]]:
        plan = self.plan
        if plan.resident:
            return "TupleShuffle", [
                f"all {self.rows:,} rows fit in the buffer of {show_bytes(plan.memory)}: one window"
            ]
        windows = -(-self.rows // max(plan.held_rows, 1))
        return "TupleShuffle", [
            f"buffer {show_bytes(plan.memory)}: {windows:,} windows of about {min(plan.held_rows, self.rows):,} rows, one"
            " filled while another is learnt from"
        ]

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


def _predicted(source: BlockSource, chosen: Settings) -> float | None:
    """Return the seconds that an epoch is predicted to take."""
    from penstock.explain import explain as look

    columns, config = chosen.columns, chosen.config
    try:
        found = look(
            source,
            label=columns.label,
            features=columns.features,
            weight=columns.weight,
            exclude=columns.exclude,
            hash=columns.hash,
            model=config.model,
            memory=config.memory,
            seed=config.seed,
            measure=False,
        )
    except PenstockError:  # what is wrong with the rows is for the training to say
        return None
    return found.prediction(config.shuffle).seconds


def _measured(model: LinearModel) -> dict[str, list[str]]:
    """Return what was measured, by the operator it belongs to."""
    history: list[Any] = list(model.history)
    if not history:
        return {}
    first, last = history[0], history[-1]
    later = [row["seconds"] for row in history[1:]]
    mean = f", {show_seconds(sum(later) / len(later))} for each later one" if later else ""
    score = next((f"{name} {last[name]:.4f}" for name in ("accuracy", "r2") if name in last), "")
    return {
        "SGD": [
            f"measured: {show_seconds(first['seconds'])} for the first epoch{mean},"
            f" {show_seconds(sum(row['seconds'] for row in history))} in all",
            f"measured: {last['rows']:,} rows an epoch, loss {last['loss']:.4f}, {score} after {len(history)} epochs",
        ],
        "BlockShuffle": [
            f"measured: {show_bytes(int(first['bytes']))} read in the first epoch"
            + (f", {show_bytes(int(history[1]['bytes']))} in the next" if later else "")
        ],
    }


def _rows(count: int) -> str:
    return "one row" if count == 1 else f"{count:,} rows"
