"""What training a model for every group will cost, predicted for Penstock's approach and for the paper's others.

The sizes of groups are counted, a pilot run measures the rates of this machine, and `simulate` runs every approach through
for some numbers of workers. Nothing is sorted but a sample.
"""

from __future__ import annotations

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
from penstock.blocks.open import open as open_source
from penstock.budget import available_memory, show_bytes, show_share
from penstock.errors import UsageError
from penstock.explanation.explanation import Explanation, Section, StrategyCost, TableRow, show_seconds
from penstock.groups.cost import APPROACHES, Work, bound, price_model_tasks, simulate
from penstock.groups.etl import group as write_grouped
from penstock.groups.group_recipe import excluded_columns
from penstock.groups.grouped import Grouped, open_grouped
from penstock.groups.partitioned import PartitionedSource, partitioned
from penstock.groups.patterns.base import Trainable
from penstock.groups.pilot import PILOT, Rates, Sizes, copied, dealt, run_pilot, sizes_of, take, to_time
from penstock.groups.split import held_out_part
from penstock.measure_lines import show_items
from penstock.messages import Given, Text, TextPart, Use
from penstock.parallel import cores
from penstock.sgd.losses import loss_of
from penstock.training import Columns

APPROACH_NOTES = {
    "grouped": "groups cut to fit, configs together",
    "group-task": "a task for each group (GTP)",
    "model-task": "a task for each group and config (MTP)",
    "data-parallel": "one model at a time, on all workers (DP)",
    "switching": "large groups so, small ones as tasks (SP)",
}


@dataclass(frozen=True, slots=True)
class ApproachCost:
    """What an approach will take on so many workers.

    ``seconds`` are until all is trained, from when rows are sorted and workers are there; ``idle`` is the share of all
    workers' time in which they wait; ``moved`` are bytes that go to workers or between them: rows, models and sums.
    """

    approach: str
    workers: int
    seconds: float
    idle: float
    moved: float


def group_sections(facts: Mapping[str, Any], costs: Sequence[ApproachCost], name: str) -> tuple[Section, ...]:
    """Return the sections of what `penstock.explanation.group_training` knows; ``name`` is what is trained, in words."""
    rates: Rates = facts["pilot"]
    bounds = {prediction["workers"]: prediction["bound"] for prediction in facts["predictions"]}
    models = show_items(facts["groups"] * rates.configs, "model")
    passes = show_items(rates.passes, *(("tree",) if rates.pattern == "sampling" else ("pass", "passes")))
    configs = show_items(rates.configs, "config")
    by, each = (f" by {', '.join(facts['by'])}", " for each group") if facts["by"] else ("", "")
    sections = [
        Section(f"{facts['data']}{by}", _size_lines(facts)),
        Section(f"To train: {name}, {configs}{each}, {passes} at most: {models}"),
        Section(
            f"Measured on {rates.rows:,} rows in {show_items(rates.groups, 'group')} of such sizes, by one worker, in"
            f" {show_seconds(rates.seconds)}:",
            _rate_lines(rates),
        ),
        *(_table([cost for cost in costs if cost.workers == count], bound) for count, bound in bounds.items()),
        _summary(facts, costs, list(bounds)),
    ]
    if facts["notes"]:
        sections.append(Section("Notes", [f"{note}." for note in facts["notes"]]))
    return tuple(sections)


def _summary(facts: Mapping[str, Any], costs: Sequence[ApproachCost], counts: Sequence[int]) -> Section:
    few = min(counts, key=lambda count: abs(count - cores()))
    best = {count: min((c for c in costs if c.workers == count), key=lambda cost: cost.seconds) for count in counts}
    pooled = facts["pooled_seconds"][str(few)]
    total = facts["pilot"].start + best[few].seconds + pooled + (facts["sorting_seconds"] or 0.0)
    lines: list[TextPart] = []
    if pooled:
        comparison = f"One model for all groups, to compare with, takes {show_seconds(pooled)} more; "
        lines.append(Text(comparison, Use("pooled", False), " leaves it out."))
    lines.append(
        f"On {show_items(few, 'worker')} it will all take about {show_seconds(total)}, sorting and start included."
    )
    return Section(_best_line(best[max(counts)], costs), lines)


def _size_lines(facts: Mapping[str, Any]) -> list[str]:
    rates, about = facts["pilot"], "" if facts["sizes_exact"] else "about "
    parts = (
        f" in {about}{show_items(facts['groups'], 'group')}" if facts["by"] else ", all of which one model learns from"
    )
    lines = [f"{about}{facts['rows']:,} rows{parts}"]
    if facts["groups"] > 1:
        lines.append(
            f"the largest has {about}{facts['largest_rows']:,} rows, {show_share(facts['largest_share'])} of all; the middle one"
            f" {about}{facts['median_rows']:,.0f}"
        )
    single, narrow = facts["groups_too_small"], facts["groups_below_features"]
    if single:
        lines.append(f"{_groups_have(single)} one row only, and will have no model")
    if narrow > single and rates.row_bytes >= 4 * rates.width:  # sparse rows have few of the features each
        lines.append(f"{_groups_have(narrow)} no more rows than there are features ({rates.width:,})")
    sorting = facts["sorting_seconds"]
    time_sorting = "" if sorting is None else f"; to sort them will take about {show_seconds(sorting)}"
    lines.append(
        f"{rates.width:,} features; by group the rows take {show_bytes(facts['rows'] * rates.row_bytes)}{time_sorting}"
    )
    return lines


def _groups_have(count: int) -> str:
    return f"{show_items(count, 'group')} {'has' if count == 1 else 'have'}"


def _rate_lines(rates: Rates) -> list[str]:
    unit = "round" if rates.pattern == "sampling" else "pass"
    together, alone = rates.together, rates.alone
    lines = [
        f"{_short(together.row_config)} a row, config and {unit}, and {_short(together.update)} a config and {unit} whatever"
        " the rows"
    ]
    if rates.configs > 1:
        lines.append(f"where each config is trained alone, {_short(alone.row_config)} and {_short(alone.update)}")
    start = f"{show_seconds(rates.start)} until a worker is there, which is not counted below"
    return [*lines, f"{_short(together.message)} a message; {start}"]


def _table(costs: Sequence[ApproachCost], bound_seconds: float) -> Section:
    best = min(costs, key=lambda cost: cost.seconds)
    rows = [
        TableRow(
            cost.approach,
            (show_seconds(cost.seconds), f"{max(0.0, cost.idle):.0%}", show_bytes(cost.moved)),
            APPROACH_NOTES[cost.approach],
            cost == best,
        )
        for cost in costs
    ]
    rows.append(TableRow("at least", (show_seconds(bound_seconds), "", ""), "no schedule takes less"))
    heading = f"Predicted for {show_items(best.workers, 'worker')}"
    return Section(heading, columns=("approach", "time", "idle", "moved"), rows=rows)


def _best_line(best: ApproachCost, costs: Sequence[ApproachCost]) -> str:
    others = [cost for cost in costs if cost.workers == best.workers and cost.approach != best.approach]
    second = min(others, key=lambda cost: cost.seconds)
    times = second.seconds / best.seconds if best.seconds else 1.0
    ratio = f"{times:.1f} times as fast as" if times >= 1.05 else "about as fast as"
    return f"Best on {show_items(best.workers, 'worker')}: {best.approach}, {ratio} {second.approach}."


def _short(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


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


def explain_groups(
    data: Any,
    by: Sequence[str],
    *,
    model: Trainable,
    choices: Sequence[Mapping[str, Any]] = ({},),
    workers: Sequence[int] = (),
    label: str | None = None,
    validation: float | None = None,
    seed: int = 0,
    columns: Mapping[str, Any] | None = None,
    name: str = "",
) -> Explanation:
    """Predict what training every config for every group will take.

    Parameters
    ----------
    data : path, table or source
        Whatever `GroupBy` takes; a folder of rows that are sorted already is quickest.
    by : list of str
        The grouping columns; none for one model of all rows.
    model : Trainable
        What is to be trained.
    choices : list of dict
        The configs.
    workers : list of int
        How many workers to predict for; the cores of this machine, 4 and 16 if not given.
    label : str
        The column to learn; rows that are sorted have theirs.
    validation : float, optional
        The share of rows held out. If not given 0.1, and the config chosen for each group is trained once more on all rows.
    seed : int
        Of the sample.
    columns : dict
        ``features``, ``exclude``, ``hash`` and ``weight``, as `GroupBy` takes them.
    name : str
        What is trained, in words; the kind of model if not given.
    """
    began = time.perf_counter()
    counts = sorted(set(workers)) or sorted({cores(), 4, 16})
    for count in counts:
        if count < 1:
            raise UsageError("cannot work", option="workers", value=count, fixes=["give at least 1"])
    share = held_out_part(validation)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-pilot-"))) / "rows"
        sorting: float | None = None
        whole = open_grouped(data, by, label)
        if whole is not None:
            title = str(data)
            stack.enter_context(whole)
            sizes = Sizes(whole.rows, int(whole.rows.sum()), int(whole.rows.sum()))
            most = _most(whole.nbytes / max(1, sizes.total), sizes.total)
            grouped, bundles = copied(whole, to_time(whole.rows, most), folder)
        else:
            if label is None:
                raise UsageError("say which column is to be learnt: ", Given("label", "clicked"), ", say")
            source: BlockSource = partitioned(data, by) or open_source(data)
            if source is not data:
                stack.enter_context(source)
            title = source.name
            sizes = sizes_of(source, by, seconds=_COUNTING, seed=seed)
            grouped, bundles, sorting = _sorted(source, by, sizes, folder, label, model, columns or {}, seed)
        stack.enter_context(grouped)
        rates = run_pilot(model, grouped, bundles, choices=choices, validation=share)
    costs = [_approach_cost(approach, sizes.rows, count, rates) for count in counts for approach in APPROACHES]
    best = {count: min((c for c in costs if c.workers == count), key=lambda cost: cost.seconds) for count in counts}
    # No plan takes less than the best one does; the plans of many groups are of merged ones, and rounded.
    bounds = {count: min(best[count].seconds, _bound(sizes.rows, count, rates)) for count in counts}
    everything = np.array([sizes.total], np.int64)
    pooled = {
        count: _approach_cost("grouped", everything, count, rates).seconds if share and by else 0.0 for count in counts
    }
    notes = _notes(sizes, rates, counts)
    if validation is None:
        notes.append(
            "the config chosen for each group is then trained on all of its rows, which these times leave out: about as long"
            " as one config takes"
        )
    rows = sizes.rows
    facts = {
        "data": title,
        "by": list(by),
        "rows": int(sizes.total),
        "groups": len(rows),
        "sizes_exact": sizes.exact,
        "largest_rows": int(rows.max()),
        "largest_share": float(rows.max() / rows.sum()),
        "median_rows": float(np.median(rows)),
        "groups_too_small": int((rows < 2).sum()),
        "groups_below_features": int((rows <= rates.width).sum()),
        "pilot": rates,
        "predictions": [
            {**asdict(cost), "bound": bounds[cost.workers], "best": cost == best[cost.workers]} for cost in costs
        ],
        "pooled_seconds": {str(workers): seconds for workers, seconds in pooled.items()},
        "sorting_seconds": sorting,
        "notes": notes,
    }
    return Explanation(
        facts,
        tuple(
            StrategyCost(
                c.approach,
                c.seconds,
                c.seconds,
                sorting or 0.0,
                note=f"{show_items(c.workers, 'worker')}: {APPROACH_NOTES[c.approach]}",
            )
            for c in costs
        ),
        group_sections(facts, costs, name or model.kind),
        seconds=time.perf_counter() - began,
    )


def _bound(sizes: Int64s, workers: int, rates: Rates) -> float:
    """Return seconds that no schedule undercuts, whichever way of training configs, together or alone, is the faster."""
    least = []
    for approach in ("grouped", "group-task"):
        work = _work(approach, rates, sizes)
        # All there is to do, shared evenly: what the simulator's bound leaves to nobody's worker is mostly somebody's here.
        even = bound(sizes, 1, work=replace(work, pattern="algebraic"))
        even += len(sizes) * work.configs * work.epochs * work.pilot.update
        least.append(max(even / workers, bound(sizes, workers, work=work)))
    return min(least)


def _approach_cost(approach: str, sizes: Int64s, workers: int, rates: Rates) -> ApproachCost:
    work = _work(approach, rates, sizes)
    if approach == "model-task" and len(sizes) * rates.configs > _EVENTS:
        price = price_model_tasks(sizes, workers=workers, work=work)
        return ApproachCost(approach, workers, price.seconds, price.idle, price.moved)
    if approach == "grouped" and len(sizes) > _GROUPS:
        sizes, work = _merged(sizes, work)
    run = simulate(sizes, workers, work=work, approach=approach)
    return ApproachCost(approach, workers, run.makespan, 1 - run.utilization, run.moved)


def _merged(sizes: Int64s, work: Work) -> tuple[Int64s, Work]:
    """Take many small groups for one of all their rows, with what they cost beyond their rows counted as rows."""
    extra = round(work.pilot.update / work.pilot.row_config)
    order = np.sort(sizes + extra)[::-1]
    # Rounding to rows must not lose or add work: thousands of groups would make much of it.
    whole = float(sizes.sum()) + len(sizes) * work.pilot.update / work.pilot.row_config
    row_config = work.pilot.row_config * whole / float(order.sum())
    many = -(-(len(order) - _KEPT) // _KEPT)
    rest = np.add.reduceat(order[_KEPT:], np.arange(0, len(order) - _KEPT, many))
    row_bytes = work.row_bytes * float(sizes.sum() / order.sum())
    return np.concatenate([order[:_KEPT], rest]), replace(
        work, row_bytes=row_bytes, pilot=replace(work.pilot, update=0.0, row_config=row_config)
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
    model: Trainable,
    columns: Mapping[str, Any],
    seed: int,
) -> tuple[Grouped, list[list[int]], float | None]:
    """Sort a sample of rows, and tell what sorting all of them will take."""
    most = _most(4.0 * len(source.schema.names), sizes.total)
    taken = take(source, most, seed=seed)
    wanted = to_time(sizes.rows, len(taken.rows))
    table, bundles = dealt(taken.rows, label, wanted)
    left_out = excluded_columns(Columns(**columns), by)
    options: dict[str, Any] = {**columns, "exclude": left_out, "label": label, "memory": "512MB", "model": model.kind}
    options["trees"] = model.family == "trees"
    if loss_of(model.kind).classifies and len(table) < sizes.total and len(table[label].unique()) == 1:
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


def _notes(sizes: Sizes, rates: Rates, workers: Sequence[int]) -> list[str]:
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
    return notes
