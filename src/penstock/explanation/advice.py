"""What to train with: strategy, block size and memory, whether to convert the data first, and warnings.

The smallest window that mixes well enough is sought: at least 2 % of the rows, at most 10 % (section 7.2.4), and
between them as many blocks as it takes for batches to be nearly as balanced as after a full shuffle.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.blocks.conversion import BLOCK_SIZE, BLOCKS_WANTED, LEAST_BLOCK
from penstock.budget import Budget, show_bytes, show_share
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import layout_of
from penstock.command_lines import shell_line
from penstock.config import Config
from penstock.errors import BudgetError
from penstock.explanation.clustering import Clustering, ShuffleQuality
from penstock.explanation.cost import Setting, read_seconds, strategy_costs
from penstock.explanation.explanation import StrategyCost
from penstock.explanation.speed import LayoutSpeed, Speeds
from penstock.loader.block_cuts import plan_loading
from penstock.loader.plan import Plan, round_up
from penstock.messages import Text, TextPart, Use
from penstock.solvers import FULL_PASS_SOLVERS
from penstock.storage_timer import KB, MB, StorageSpeeds
from penstock.training import Columns

EPOCHS = Config().epoch_limit
"""What a training is taken to have where costs are weighed against one another."""


@dataclass(frozen=True, slots=True)
class ConversionGain:
    """What the fast layout would gain: an epoch of corgipile now and from the converted file, and the first one of each.

    ``worth_it`` says whether a training of the default number of epochs would take a fifth less, converting included, or
    shuffle better; it never is where all rows fit in memory anyhow.
    """

    seconds_now: float
    seconds_then: float
    first_now: float
    first_then: float
    convert_seconds: float
    bytes_then: int
    worth_it: bool
    command: str

    @property
    def target(self) -> str:
        """The file that the command writes."""
        return shlex.split(self.command)[3]

    @property
    def cost(self) -> StrategyCost:
        """The cost of corgipile from the converted file, with converting as its preparation."""
        return StrategyCost(
            "corgipile", self.seconds_then, self.first_then, self.convert_seconds, disk_bytes=self.bytes_then
        )


def conversion_gain(
    source: BlockSource,
    columns: Columns,
    data: str,
    *,
    setting: Setting,
    speeds: Speeds,
    costs: Sequence[StrategyCost],
    block_bytes: int,
) -> ConversionGain | None:
    """Say what the fast layout would gain; None where the data are in it, or no copy could be tried."""
    if speeds.stored.waits or speeds.packed is None or layout_of(source.schema).get("columns"):
        return None
    blocks = max(1, int(speeds.packed.stored_bytes * setting.rows / block_bytes))
    then = strategy_costs(
        replace(setting, blocks=blocks, units=0),
        replace(speeds, stored=speeds.packed, decode=speeds.packed.shuffled.cpu),
    )
    now = next(p for p in costs if p.strategy == "corgipile")
    after = next(p for p in then if p.strategy == "corgipile")
    apart = setting.units and not setting.base_plan.kept_bytes
    mixes_better = bool(apart) and setting.clustering is not None and setting.clustering.clustered
    resident = setting.base_plan.resident
    seconds = _convert_seconds(setting, speeds)
    faster = seconds + after.total(EPOCHS) < 0.8 * now.total(EPOCHS)
    worth = not resident and (mixes_better or faster)
    return ConversionGain(
        seconds_now=now.seconds,
        seconds_then=after.seconds,
        first_now=now.first_seconds,
        first_then=after.first_seconds,
        convert_seconds=seconds,
        bytes_then=int(speeds.packed.stored_bytes * setting.rows),
        worth_it=worth,
        command=conversion_line(data, columns, block_bytes),
    )


def _convert_seconds(setting: Setting, speeds: Speeds) -> float:
    """Return the seconds of converting: rows are read and decoded in order, and written once."""
    assert speeds.packed is not None
    rows, written = setting.rows, speeds.packed.stored_bytes * setting.rows
    # A shuffled copy writes every row twice, to a bucket and from there to its place.
    writing = (speeds.copy / 2 if speeds.copy is not None else 10 * speeds.packed.shuffled.wall) * rows
    if setting.curve is not None and not setting.cached(2 * written):
        writing = max(writing, written / setting.curve.sequential_many)
    return speeds.decode * rows + read_seconds(setting, speeds.stored, random=False) + writing


def conversion_line(data: str, columns: Columns, block_bytes: int) -> str:
    """Return the line that converts the data, ready for a shell.

    Examples
    --------
    >>> conversion_line("my clicks.csv", Columns(label="clicked"), BLOCK_SIZE)
    "penstock convert 'my clicks.csv' 'my clicks.arrow' --label clicked"
    """
    stem = data.rstrip("/").rsplit("/", 1)
    target = "/".join([*stem[:-1], stem[-1].split("*")[0].rsplit(".", 1)[0] or "data"]) + ".arrow"
    if target == data:
        target = target[: -len(".arrow")] + "-packed.arrow"
    options = columns.to_options()
    if block_bytes != BLOCK_SIZE:
        options["block_size"] = f"{block_bytes // KB}KiB" if block_bytes % MB else f"{block_bytes // MB}MiB"
    return shell_line(["penstock", "convert", data, target], options)


LEAST_SHARE, MOST_SHARE = 0.02, 0.10
_SMALLEST_BLOCK, _LARGEST_BLOCK = 64 * KB, 10 * MB
# Smaller blocks shuffle better, so a block's random reads need only be so near to sequential ones.
_FAST_ENOUGH = 0.75
# Batches whose labels vary up to so many times as after a full shuffle are as good as shuffled.
_EVEN, _UNEVEN = 1.2, 2.0
_MIXED = 1.9  # below `_UNEVEN`, by what an estimate of the window may be wrong
_SMALL_ENOUGH = 8 * KB  # decoded; `convert` goes down to 4
# A way to train that costs no more than this over the cheapest, or that few seconds, is not given up for it.
_DEAR, _SPARED = 1.5, 1.0
# Of the memory for a converted file, windows get this share; two of them are held at a time.
_FOR_WINDOWS = 0.8


_ALL = ShuffleQuality(alpha=1.0, factor=0.0, balance=1.0)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to train with: the order, the least bytes that shuffle well, and the lines to run.

    ``window_rows`` are shuffled together with that memory; ``convert`` is the line to run before ``command``, where converting
    is part of the recommendation, and ``memory_note`` what the memory given would do, where that is less than recommended for
    a converted file. ``strategy`` is of SGD alone; other solvers read rows as they are stored.
    """

    strategy: str
    memory: int
    memory_text: str
    block_bytes: int
    window_rows: int
    window_share: float
    reason: str
    command: str
    convert: str = ""
    memory_note: str = ""
    solver: str = "sgd"
    scaling: str = ""


def plan_for(source: BlockSource, recipe: Recipe, strategy: str, memory: str | int | Budget) -> Plan:
    """Return how a loader would divide the memory, stretched to the least that works."""
    return plan_loading(source, recipe, strategy, memory, stretch=True)


def too_small(source: BlockSource, recipe: Recipe, memory: str | int | Budget) -> Text | None:
    """Return what is wrong with a budget that cannot hold two blocks, or what becomes of it; None where it can."""
    try:
        return plan_loading(source, recipe, "corgipile", memory).raised
    except BudgetError as error:
        return error.text


@dataclass(frozen=True, slots=True)
class _Choice:
    """One way to train: what it costs, and how well it mixes."""

    cost: StrategyCost
    memory: int
    window_rows: int
    shuffled: ShuffleQuality | None
    converted: bool = False

    @property
    def seconds(self) -> float:
        return self.cost.total(EPOCHS)

    @property
    def balance(self) -> float:
        return 1.0 if self.shuffled is None else self.shuffled.balance


def recommend(
    source: BlockSource,
    recipe: Recipe,
    *,
    data: str,
    columns: Columns,
    model: str,
    asked: int,
    costs: Sequence[StrategyCost],
    setting: Setting,
    block_bytes: int,
    gain: ConversionGain | None,
    solver: str = "sgd",
) -> tuple[Recommendation, ShuffleQuality | None]:
    """Choose strategy, memory and block size, and whether to convert the data first.

    Of the ways that mix the rows well, the one that takes least for a training of the default number of epochs is
    chosen, what it prepares included; corgipile on the data as they are (or converted, where they cannot be read in the
    memory asked for) is kept unless another is far cheaper. How well
    the way chosen shuffles is returned beside it. ``asked`` are the bytes that the user gave. ``solver`` is what training takes of its own accord: one
    of full passes needs no shuffle, so neither a copy nor converting is recommended for one.
    """
    rows, base_plan, clustering = max(1, setting.rows), setting.base_plan, setting.clustering
    by_name = {p.strategy: p for p in costs}
    usual = _shuffled_choice(source, recipe, by_name["corgipile"], setting)
    choices, unordered = [usual], solver in FULL_PASS_SOLVERS
    if not (base_plan.resident or unordered):
        if clustering is not None and not clustering.clustered:
            choices.append(replace(usual, cost=by_name["none"]))
        choices.append(_Choice(by_name["once"], max(usual.memory, setting.plans["once"].memory), rows, _ALL))
        if gain is not None:
            converted = _converted_choice(gain, setting, block_bytes, asked=asked)
            # What is first is kept unless another is far cheaper: of what needs more memory than asked, that with least.
            choices.insert(0 if asked < base_plan.memory else len(choices), converted)
    chosen = _best(choices)
    cheaper = f"it takes {_times(chosen, usual)} of corgipile for {EPOCHS} epochs, what it prepares included"
    if unordered:
        reason = (
            "rows fit in memory, and are decoded once" if base_plan.resident else "rows are read once, in stored order"
        )
        reason = f"{reason}; nothing is shuffled"
    elif base_plan.resident:
        reason = "all rows fit in memory; they are decoded once and shuffled there"
    elif chosen.converted and asked < base_plan.memory:
        reason = f"the data as they are cannot be read in {show_bytes(asked)}, and {cheaper}"
    elif chosen is not usual and usual.balance > max(_UNEVEN, chosen.balance):
        reason = f"{_clustered(clustering)}, windows of the data as they are mix them badly, and {cheaper}"
    elif chosen.cost.strategy == "none":
        ratio = usual.cost.seconds / chosen.cost.seconds
        reason = f"the rows lie as if shuffled, and corgipile would take {ratio:.1f}× as long"
    elif chosen is not usual:
        reason = cheaper
    elif clustering is None:
        reason = "it shuffles well whatever order the rows lie in"
    elif clustering.clustered:
        times = usual.cost.seconds / by_name["none"].seconds
        reason = f"{_clustered(clustering)}, and it takes {times:.2g}× the time of stored order"
    else:
        reason = "the rows lie as if shuffled, and it costs little more than none to be sure"
    convert = gain.command if chosen.converted and gain is not None else ""
    place = gain.target if chosen.converted and gain is not None else data
    named = Columns() if chosen.converted else columns  # a converted file knows its columns
    options = named.to_options() | {"label": "COLUMN"} if recipe.label is None else named.to_options()
    options |= {"model": model} if model != "logistic" else {}
    options |= {} if unordered else {"shuffle": chosen.cost.strategy}
    options |= {"memory": round_up(base_plan.memory if unordered else chosen.memory)}
    recommendation = Recommendation(
        strategy=chosen.cost.strategy,
        memory=chosen.memory,
        memory_text=round_up(chosen.memory),
        block_bytes=block_bytes,
        window_rows=chosen.window_rows,
        window_share=min(1.0, chosen.window_rows / rows),
        reason=reason,
        command=shell_line(["penstock", "train", place], options),
        convert=convert,
        memory_note=_memory_note(asked, chosen, setting) if convert else "",
        solver=solver,
        scaling=_scaling(recipe),
    )
    return recommendation, None if clustering is None else chosen.shuffled


def _scaling(recipe: Recipe) -> str:
    if not recipe.sparse:
        return "features brought to mean 0 and spread 1"
    return "features scaled, not centered, so that rows stay sparse"


def _best(choices: Sequence[_Choice]) -> _Choice:
    """Return the cheapest way that mixes well, or the first where that is hardly cheaper."""
    least = min(choice.balance for choice in choices)
    even = [choice for choice in choices if choice.balance <= max(_UNEVEN, least)]
    cheapest = min(even, key=lambda choice: choice.seconds)
    kept = (choice for choice in even if choice.seconds <= max(_DEAR * cheapest.seconds, cheapest.seconds + _SPARED))
    first = next(kept)
    if first.cost.strategy == "once":  # a converted file serves the next training too
        return next((choice for choice in kept if choice.converted), first)
    return first


def _shuffled_choice(source: BlockSource, recipe: Recipe, cost: StrategyCost, setting: Setting) -> _Choice:
    """Return corgipile on the data as they are, with the least memory that mixes well."""
    base_plan = plan = setting.base_plan
    memory = base_plan.memory
    if not base_plan.resident:
        memory, plan = _memory_for(source, recipe, _wanted_rows(setting.clustering, setting.rows))
        cut = setting.clustering_in(plan)
        uneven = cut is not None and cut.balance(plan.held_rows, opened=plan.units) > _EVEN
        if memory < base_plan.memory and (uneven or setting.units):
            memory, plan = base_plan.memory, base_plan  # what is given anyhow shuffles better
    clustering = setting.clustering_in(plan)
    shuffled = None if clustering is None else clustering.shuffled(plan.held_rows, opened=plan.units)
    return _Choice(cost, memory, plan.held_rows, shuffled)


def _converted_choice(gain: ConversionGain, setting: Setting, block_bytes: int, *, asked: int) -> _Choice:
    """Return corgipile on a converted file, whose blocks are small and meet freely.

    What the data as they are need beyond the memory asked for is taken only as far as it is needed to mix well.
    """
    rows, clustering = max(1, setting.rows), setting.clustering
    if clustering is not None:
        if block_bytes == BLOCK_SIZE:  # which leaves it to the conversion, and that makes smaller ones of less data
            block_bytes = int(np.clip(gain.bytes_then / BLOCKS_WANTED, LEAST_BLOCK, BLOCK_SIZE))
        clustering = clustering.in_blocks(max(1.0, block_bytes * rows / max(1, gain.bytes_then)))
    enough = clustering.enough_rows(_MIXED) if clustering is not None else 0
    wanted, least = (2 * setting.row_bytes * n / _FOR_WINDOWS for n in (_wanted_rows(clustering, rows), enough))
    memory = max(asked, int(wanted) + 1, min(setting.base_plan.memory, int(least) + 1))
    window = _converted_window(memory, setting)
    shuffled = None if clustering is None else clustering.shuffled(window, opened=1)
    return _Choice(gain.cost, memory, window, shuffled, converted=True)


def _converted_window(memory: int, setting: Setting) -> int:
    """Return the rows of a window of a converted file."""
    return min(max(1, setting.rows), int(_FOR_WINDOWS * memory / (2 * setting.row_bytes)))


def _memory_note(asked: int, chosen: _Choice, setting: Setting) -> str:
    if asked >= chosen.memory:
        return ""
    share = _converted_window(asked, setting) / max(1, setting.rows)
    return f"The {show_bytes(asked)} given would shuffle {show_share(share)} of them together."


def _wanted_rows(clustering: Clustering | None, rows: int) -> int:
    """Return the rows of the smallest window that mixes well."""
    wanted = clustering.enough_rows() if clustering is not None else 0
    return int(np.clip(wanted, np.ceil(LEAST_SHARE * rows), np.ceil(MOST_SHARE * rows)))


def _clustered(clustering: Clustering | None) -> str:
    known = clustering is not None and clustering.clustered
    return f"the rows are clustered by {clustering.by}" if known and clustering else "the rows may be clustered"


def _times(one: _Choice, other: _Choice) -> str:
    ratio = one.seconds / max(other.seconds, 1e-9)
    return f"{ratio:.2g}× the time" if ratio >= 0.1 else f"1/{1 / ratio:.0f} of the time"


def _memory_for(source: BlockSource, recipe: Recipe, rows: int) -> tuple[int, Plan]:
    """Return the least memory, to two digits, whose window holds so many rows."""
    memory = max(1, plan_for(source, recipe, "corgipile", 1).memory)
    plan = plan_for(source, recipe, "corgipile", memory)
    while plan.held_rows < rows:
        memory = int(memory * min(4.0, max(1.05, rows / plan.held_rows))) + 1
        plan = plan_for(source, recipe, "corgipile", memory)
    step = 10 ** max(0, len(str(memory)) - 2)
    memory = -(-memory // step) * step
    return memory, plan_for(source, recipe, "corgipile", memory)


def best_block(curve: StorageSpeeds | None, *, layout: LayoutSpeed, speeds: Speeds) -> int:
    """Return the smallest block size at which storage is fast, or no longer what training waits for."""
    if curve is None:
        return BLOCK_SIZE
    busy = max(speeds.sgd, layout.shuffled.wall)
    needed = min(_FAST_ENOUGH * curve.sequential_many, 1.25 * layout.stored_bytes / max(busy, 1e-12))
    usable = [p for p in curve.points if _SMALLEST_BLOCK <= p.block_bytes <= _LARGEST_BLOCK]
    if not usable:
        return BLOCK_SIZE
    return next((p.block_bytes for p in usable if p.many >= needed), max(usable, key=lambda p: p.many).block_bytes)


def memory_warnings(small: Text | None, advice: Recommendation, setting: Setting) -> list[TextPart]:
    """Say in words what the memory given, and the blocks or row groups that it holds, mean for the shuffle."""
    warnings: list[TextPart] = [] if small is None else [small]
    base_plan, clustering = setting.base_plan, setting.clustering
    if base_plan.resident:
        return warnings
    as_stored = advice.strategy != "once" and not advice.convert
    if small is None and as_stored and base_plan.memory < 0.9 * advice.memory:
        share = base_plan.held_rows / max(1, setting.rows)
        warnings.append(
            Text(
                f"{show_bytes(base_plan.memory)} shuffle only {show_share(share)} of the rows together; give ",
                Use("memory", advice.memory_text),
                " for a better shuffle.",
            )
        )
    if base_plan.warning and (clustering is None or clustering.clustered):
        return [*warnings, f"{base_plan.warning}."]  # it begins with the name of the data
    clustering = setting.clustering_in(base_plan)
    if setting.units and not base_plan.kept_bytes and clustering is not None and clustering.clustered:
        opened = min(base_plan.units, setting.units)
        warnings.append(
            f"Rows are clustered and a window mixes those of {opened} of {setting.units} row groups at a time;"
            " convert, or write smaller row groups, for a shuffle of all."
        )
        return warnings
    # Of the data as they are, even where another way is recommended for that.
    window_rows = advice.window_rows if as_stored else base_plan.held_rows
    if clustering is not None and clustering.balance(window_rows, opened=base_plan.units) > _UNEVEN:
        block_bytes = setting.row_bytes * setting.rows / max(1, setting.blocks)
        remedy = "convert to smaller blocks" if block_bytes > _SMALL_ENOUGH else "give more memory"
        warnings.append(
            f"A window of {window_rows:,} rows has but {clustering.draws(window_rows, opened=base_plan.units):.0f}"
            f" blocks, each of rows alike; {remedy} for a better shuffle."
        )
    return warnings
