"""The work of ``penstock groups explain``: the forecast, and how it is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from penstock.blocks.open import open as open_source
from penstock.budget import peak_memory, show_bytes, show_share
from penstock.cli import options as o
from penstock.cli.screen import Screen
from penstock.errors import UsageError
from penstock.explain.words import show_seconds
from penstock.groups.cost import APPROACHES
from penstock.groups.forecast import Forecast, forecast
from penstock.groups.local import cores
from penstock.groups.patterns.base import Trainable
from penstock.groups.spec import Search

_TOLD = {
    "grouped": "groups cut to fit, configs together",
    "group-task": "a task for each group (GTP)",
    "model-task": "a task for each group and config (MTP)",
    "data-parallel": "one model at a time, on all workers (DP)",
    "switching": "large groups so, small ones as tasks (SP)",
}


def workers_of(given: Sequence[str] | None) -> list[int]:
    """Read ``--workers 1,2,4``.

    Examples
    --------
    >>> workers_of(["4,1", "16"])
    [1, 4, 16]
    """
    found = set()
    for text in o.names(given):
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"--workers {text} is not a number of workers; write --workers 1,4,16")
        found.add(int(text))
    if found and max(found) > 1_000:
        raise UsageError(f"--workers {max(found)} is more than can be played through; choose at most 1000")
    return sorted(found)


def run(params: dict[str, Any], *, by: list[str], search: Search, what: Trainable) -> None:
    """Explain as the options of ``groups explain`` say."""
    workers = workers_of(params["workers"])
    reading = o.reading(params["header"], params["delimiter"])
    columns = {name: o.names(params[name]) for name in ("exclude", "hash")}
    with ExitStack() as stack:
        screen = stack.enter_context(Screen(json=params["json"], rows=False))
        data: Any = params["data"]
        if reading or params["format"] is not None:
            data = stack.enter_context(open_source(data, format=params["format"], **reading))
        found = forecast(
            data,
            by,
            model=what,
            choices=[choice.params for choice in search.choices(what.known)],
            workers=workers,
            label=params["label"],
            validation=params["validation"],
            seed=params["seed"],
            columns={**columns, "features": o.names(params["features"]) or None, "weight": params["weight"]},
        )
        told = _what(params)
        for line in lines(found, told):
            screen.say(line)
        screen.give({**found.to_dict(), "model": params["model"], "told": told, "peak_memory_bytes": peak_memory()})


def _what(params: dict[str, Any]) -> str:
    return f"{params['model']} by {params['solver']}" if params["solver"] else str(params["model"])


def lines(found: Forecast, what: str) -> Iterator[str]:
    """Yield a forecast for people."""
    yield from _shape(found)
    yield ""
    rates = found.rates
    models = len(found.sizes.rows) * rates.configs
    passes = _counted(rates.passes, *(("tree", "trees") if rates.pattern == "sampling" else ("pass", "passes")))
    configs = _counted(rates.configs, "config", "configs")
    yield f"To train: {what}, {configs} for each group, {passes} at most: {_counted(models, 'model', 'models')}"
    yield from _measured(found)
    for workers in found.bounds:
        yield ""
        yield from _table(found, workers)
    yield ""
    yield from _best(found)
    if found.notes:
        yield ""
        for note in found.notes:
            yield f"Note: {note}."


def _shape(found: Forecast) -> Iterator[str]:
    sizes, width = found.sizes.rows, found.rates.width
    about = "" if found.sizes.exact else "about "
    groups = _groups(len(sizes))
    yield f"{found.data} by {', '.join(found.by)}"
    share = show_share(float(sizes.max() / sizes.sum()))
    yield f"  {about}{found.sizes.total:,} rows in {about}{groups}"
    if len(sizes) > 1:
        middle = f"{np.median(sizes):,.0f}"
        yield f"  the largest has {about}{int(sizes.max()):,} rows, {share} of all; the middle one {about}{middle}"
    single, narrow = int((sizes < 2).sum()), int((sizes <= width).sum())
    if single:
        yield f"  {_groups(single)} {'has' if single == 1 else 'have'} one row only, and will have no model"
    if narrow > single and found.rates.row_bytes >= 4 * width:  # sparse rows have few of the features each
        yield f"  {_groups(narrow)} {'has' if narrow == 1 else 'have'} no more rows than there are features ({width:,})"
    nbytes = show_bytes(found.sizes.total * found.rates.row_bytes)
    sorting = "" if found.sorting is None else f"; to sort them will take about {show_seconds(found.sorting)}"
    yield f"  {width:,} features; by group the rows take {nbytes}{sorting}"


def _groups(count: int) -> str:
    return _counted(count, "group", "groups")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _measured(found: Forecast) -> Iterator[str]:
    rates = found.rates
    yield (
        f"Measured on {rates.rows:,} rows in {_groups(rates.groups)} of such sizes, by one worker, in"
        f" {show_seconds(rates.seconds)}:"
    )
    together, alone = rates.together, rates.alone
    unit = "round" if rates.pattern == "sampling" else "pass"
    yield (
        f"  {_short(together.row_config)} a row, config and {unit}, and {_short(together.update)} a config and {unit} whatever"
        " the rows"
    )
    if rates.configs > 1:
        yield f"  where each config is trained alone, {_short(alone.row_config)} and {_short(alone.update)}"
    yield f"  {_short(together.message)} a message; {show_seconds(rates.start)} until a worker is there, which is not counted below"


def _table(found: Forecast, workers: int) -> Iterator[str]:
    yield f"Predicted for {_counted(workers, 'worker', 'workers')}"
    yield f"  {'approach':<16}{'time':>9}{'idle':>8}{'moved':>10}"
    best = found.best(workers)
    for approach in APPROACHES:
        each = next(one for one in found.predictions if (one.approach, one.workers) == (approach, workers))
        mark = "→" if each == best else " "
        yield (
            f"{mark} {approach:<16}{show_seconds(each.seconds):>9}{f'{max(0.0, each.idle):.0%}':>8}"
            f"{show_bytes(each.moved):>10}   {_TOLD[approach]}"
        )
    yield f"  {'at least':<16}{show_seconds(found.bounds[workers]):>9}{'':>18}   no schedule takes less"


def _best(found: Forecast) -> Iterator[str]:
    workers = max(found.bounds)
    best = found.best(workers)
    others = [each for each in found.predictions if each.workers == workers and each.approach != best.approach]
    second = min(others, key=lambda each: each.seconds)
    times = second.seconds / best.seconds if best.seconds else 1.0
    yield f"Best on {_counted(workers, 'worker', 'workers')}: {best.approach}, {_ratio(times)} {second.approach}."
    few = min(found.bounds, key=lambda count: abs(count - cores()))
    mine = found.best(few)
    total = found.rates.start + mine.seconds + (found.sorting or 0.0)
    where = _counted(few, "worker", "workers")
    yield f"  On {where} it will all take about {show_seconds(total)}, sorting and start included."


def _ratio(times: float) -> str:
    return f"{times:.1f} times as fast as" if times >= 1.05 else "about as fast as"


def _short(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
