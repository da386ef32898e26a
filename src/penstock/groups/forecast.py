"""What training over groups will cost, before anything is trained: predicted for ours and for the paper's approaches.

The sizes of groups are counted, a pilot run finds what single things take, and `simulate` plays every approach through for
so many workers. Nothing is sorted but a sample.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.hashing import Hashed
from penstock.blocks.open import open as open_source
from penstock.budget import available_memory
from penstock.errors import UsageError
from penstock.groups.cost import APPROACHES, Work, price
from penstock.groups.etl import group as write_grouped
from penstock.groups.grouped import NOTE, Grouped
from penstock.groups.local import cores
from penstock.groups.partitioned import PartitionedSource, partitioned
from penstock.groups.patterns.base import Trainable
from penstock.groups.pilot import Rates, copied, measure
from penstock.groups.sampled import PILOT, Sizes, dealt, sizes_of, take, to_time
from penstock.groups.simulate import bound, simulate

_SAMPLE = 12_000_000
"""Bytes of rows in the pilot run, about."""
_LEAST, _MOST = 2_000, 120_000
"""And rows, at least and at most."""
_COUNTING = 8.0
"""Seconds that groups are counted for."""
_EVENTS = 400_000
"""Groups x configs past which models as tasks are priced rather than played through, which would take seconds."""
_GROUPS, _KEPT = 20_000, 8_000
"""Groups past which small ones are taken together to be played through, and how many are left of large and of small ones."""
_ANY = 1 << 62
"""Rows to an update where what an update takes is part of a pass's."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What an approach will take on so many workers.

    Attributes
    ----------
    approach, workers
        Which, and on how many.
    seconds : float
        Until all is trained, from when rows are sorted and workers are there.
    idle : float
        The share of all workers' time in which they wait.
    moved : float
        Bytes that go to workers or between them: rows, models and sums.
    """

    approach: str
    workers: int
    seconds: float
    idle: float
    moved: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What training will cost.

    Attributes
    ----------
    data : str
        What would be trained on.
    by : tuple of str
        The grouping columns.
    sizes : Sizes
        The rows of each group.
    rates : Rates
        What the pilot run found.
    predictions : tuple of Prediction
        For each number of workers, every approach.
    bounds : dict
        For each number of workers, seconds that no schedule undercuts.
    sorting : float or None
        Seconds that sorting rows by group will take, about; None where they are sorted, or that cannot be told.
    notes : tuple of str
        What was assumed, and what to look out for.
    seconds : float
        How long the forecast took.
    """

    data: str
    by: tuple[str, ...]
    sizes: Sizes
    rates: Rates
    predictions: tuple[Prediction, ...]
    bounds: Mapping[int, float]
    sorting: float | None
    notes: tuple[str, ...]
    seconds: float

    def best(self, workers: int) -> Prediction:
        """Return the fastest approach on so many workers; ours of equals."""
        return min((each for each in self.predictions if each.workers == workers), key=lambda each: each.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        rows = self.sizes.rows
        return {
            "data": self.data,
            "by": list(self.by),
            "rows": int(self.sizes.total),
            "groups": len(rows),
            "sizes_exact": self.sizes.exact,
            "largest_rows": int(rows.max()),
            "largest_share": float(rows.max() / rows.sum()),
            "median_rows": float(np.median(rows)),
            "groups_too_small": int((rows < 2).sum()),
            "groups_below_features": int((rows <= self.rates.width).sum()),
            "pilot": asdict(self.rates),
            "predictions": [
                {**asdict(each), "bound": self.bounds[each.workers], "best": each == self.best(each.workers)}
                for each in self.predictions
            ],
            "sorting_seconds": self.sorting,
            "notes": list(self.notes),
            "seconds": self.seconds,
        }


def forecast(
    data: Any,
    by: Sequence[str],
    *,
    model: Trainable,
    choices: Sequence[Mapping[str, Any]] = ({},),
    workers: Sequence[int] = (),
    label: str | None = None,
    validation: float = 0.1,
    seed: int = 0,
    columns: Mapping[str, Any] | None = None,
) -> Forecast:
    """Predict what training every config for every group will take.

    Parameters
    ----------
    data : path, table or source
        Whatever `GroupBy` takes; a folder of rows that are sorted already is quickest.
    by : list of str
        The grouping columns.
    model : Trainable
        What is to be trained.
    choices : list of dict
        The configs.
    workers : list of int
        How many workers to predict for; the cores of this machine, 4 and 16 if not given.
    label : str
        The column to learn; rows that are sorted have theirs.
    validation : float
        The share of rows held out.
    seed : int
        Of the sample.
    columns : dict
        ``features``, ``exclude``, ``hash`` and ``weight``, as `GroupBy` takes them.
    """
    began = time.perf_counter()
    counts = sorted(set(workers)) or sorted({cores(), 4, 16})
    for count in counts:
        if count < 1:
            raise UsageError(f"workers={count!r} cannot work; give at least 1")
    if not 0 <= validation < 1:
        raise UsageError(f"validation={validation!r} is not a share of the rows; choose one from 0 to below 1")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-pilot-"))) / "rows"
        sorting: float | None = None
        if isinstance(data, str | os.PathLike) and (Path(data) / NOTE).is_file():
            name = str(data)
            whole = stack.enter_context(Grouped.open(data))
            _require_same(whole, data, by, label)
            sizes = Sizes(whole.rows, int(whole.rows.sum()), int(whole.rows.sum()))
            most = _most(whole.nbytes / max(1, sizes.total), sizes.total)
            grouped, bundles = copied(whole, to_time(whole.rows, most), folder)
        else:
            if label is None:
                raise UsageError("say which column is to be learnt: label='clicked', say")
            source: BlockSource = partitioned(data, by) or open_source(data)
            if source is not data:
                stack.enter_context(source)
            name = source.name
            sizes = sizes_of(source, by, seconds=_COUNTING, seed=seed)
            grouped, bundles, sorting = _sorted(source, by, sizes, folder, label, model.kind, columns or {}, seed)
        stack.enter_context(grouped)
        rates = measure(model, grouped, bundles, choices=choices, validation=validation)
    predictions = [_predict(approach, sizes.rows, count, rates) for count in counts for approach in APPROACHES]
    work = _work("grouped", rates, sizes.rows)
    # All there is to do, shared evenly: what the simulator's bound leaves to nobody's worker is mostly somebody's here.
    passes = len(sizes.rows) * work.configs * work.epochs
    least = bound(sizes.rows, 1, work=replace(work, pattern="algebraic")) + passes * work.pilot.update
    mine = {each.workers: each.seconds for each in predictions if each.approach == "grouped"}
    bounds = {count: max(min(least / count, mine[count]), bound(sizes.rows, count, work=work)) for count in counts}
    notes = _notes(sizes, rates, counts)
    return Forecast(
        name, tuple(by), sizes, rates, tuple(predictions), bounds, sorting, notes, time.perf_counter() - began
    )


def _predict(approach: str, sizes: Int64s, workers: int, rates: Rates) -> Prediction:
    work = _work(approach, rates, sizes)
    if approach == "model-task" and len(sizes) * rates.configs > _EVENTS:
        cost = price(approach, sizes, workers=workers, work=work)
        busy = (cost.compute + cost.reading + cost.network) / workers
        return Prediction(approach, workers, cost.seconds, max(0.0, 1 - busy / cost.seconds), cost.moved)
    if approach == "grouped" and len(sizes) > _GROUPS:
        sizes, work = _merged(sizes, work)
    run = simulate(sizes, workers, work=work, approach=approach)
    return Prediction(approach, workers, run.makespan, 1 - run.utilisation, run.moved)


def _merged(sizes: Int64s, work: Work) -> tuple[Int64s, Work]:
    """Take many small groups for one of all their rows, with what they cost beyond their rows counted as rows."""
    extra = round(work.pilot.update / work.pilot.row_config)
    order = np.sort(sizes + extra)[::-1]
    many = -(-(len(order) - _KEPT) // _KEPT)
    rest = np.add.reduceat(order[_KEPT:], np.arange(0, len(order) - _KEPT, many))
    row_bytes = work.row_bytes * float(sizes.sum() / order.sum())
    return np.concatenate([order[:_KEPT], rest]), replace(
        work, row_bytes=row_bytes, pilot=replace(work.pilot, update=0.0)
    )


def _work(approach: str, rates: Rates, sizes: Int64s) -> Work:
    """Return the work as an approach does it: ours all configs together, the others each alone."""
    pilot, batch = (rates.together if approach == "grouped" else rates.alone), _ANY
    if rates.pattern == "sequential" and approach in ("data-parallel", "switching"):
        # These add up gradients at every update: what a pass takes whatever its rows is shared out among its updates.
        batch = rates.batch
        pilot = replace(pilot, update=pilot.update * min(1.0, batch * len(sizes) / int(sizes.sum())))
    return Work(rates.pattern, rates.configs, rates.epochs, rates.row_bytes, rates.model_bytes, pilot, batch)


def _sorted(
    source: BlockSource,
    by: Sequence[str],
    sizes: Sizes,
    folder: Path,
    label: str,
    kind: str,
    columns: Mapping[str, Any],
    seed: int,
) -> tuple[Grouped, list[list[int]], float | None]:
    """Sort a sample of rows, and tell what sorting all of them will take."""
    most = _most(4.0 * len(source.schema.names), sizes.total)
    taken = take(source, most, seed=seed)
    wanted = to_time(sizes.rows, len(taken.rows))
    table, bundles = dealt(taken.rows, label, wanted)
    hashed = [Hashed.parse(each).column for each in columns.get("hash") or ()]
    named = columns.get("features") or ()
    left_out = [*(columns.get("exclude") or ()), *(name for name in by if name not in hashed and name not in named)]
    options: dict[str, Any] = {**columns, "exclude": left_out, "label": label, "memory": "512MB", "model": kind}
    if kind != "linear" and len(table) < sizes.total and len(table[label].unique()) == 1:
        raise UsageError(
            f"{source.name}: all {len(table):,} rows of the pilot run have one value of {label!r}; others, if there are"
            " any, are too rare for it: look at the label, or train without a forecast"
        )
    made: list[Grouped] = []
    times: list[float] = []
    # Twice as many take longer by what rows take; the rest is for the start.
    for rows in (table, pa.concat_tables([table, table])):
        begun = time.perf_counter()
        made.append(write_grouped(rows, PILOT, folder.with_name(f"rows-{len(made)}"), **options))
        times.append(time.perf_counter() - begun)
    made[1].close()
    ready = isinstance(source, PartitionedSource) and set(by) <= set(source.columns)
    each = max(0.0, times[1] - times[0]) / len(table)
    return made[0], bundles, None if ready else sizes.total * (each + taken.row_seconds)


def _most(row_bytes: float, rows: int) -> int:
    return min(rows, int(np.clip(_SAMPLE / max(1.0, row_bytes), _LEAST, _MOST)))


def _require_same(grouped: Grouped, data: Any, by: Sequence[str], label: str | None) -> None:
    if list(grouped.by) != list(by):
        raise UsageError(f"{data} holds rows by {', '.join(grouped.by)}, not by {', '.join(by)}")
    if label is not None and label != grouped.encoder.label:
        raise UsageError(f"{data} holds rows whose label is {grouped.encoder.label!r}, not {label!r}")


def _notes(sizes: Sizes, rates: Rates, workers: Sequence[int]) -> tuple[str, ...]:
    notes = []
    if not sizes.exact:
        share = sizes.seen / sizes.total
        notes.append(f"groups were counted in {share:.0%} of the rows, and are taken to be alike in the others")
    if max(workers) > cores():
        notes.append(
            f"this machine has {cores()} cores; more workers are taken to be as fast as the one that was timed, and messages"
            " between machines as fast as those between processes"
        )
    room, need = available_memory(), sizes.total * rates.row_bytes
    if need > 0.8 * room:
        notes.append("rows are taken to stay in memory, which may not hold them all: reading from disk comes on top")
    if rates.epochs < rates.passes:
        notes.append(
            f"configs are taken to be done after {rates.epochs} of {rates.passes} passes, as they were in the pilot run"
        )
    return tuple(notes)
