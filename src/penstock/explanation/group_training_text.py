"""The explanation of a training over groups as sections of text: sizes, rates of the pilot run, a table for each number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.budget import show_bytes, show_share
from penstock.explanation.formatting import Section, TableRow, show_seconds
from penstock.groups.pilot import Rates
from penstock.measure_lines import show_items
from penstock.messages import Text, TextPart, Use
from penstock.parallel import cores

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
    sections = [
        Section(f"{facts['data']} by {', '.join(facts['by'])}", _size_lines(facts)),
        Section(f"To train: {name}, {configs} for each group, {passes} at most: {models}"),
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
    lines = [f"{about}{facts['rows']:,} rows in {about}{show_items(facts['groups'], 'group')}"]
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
