"""What to do: strategy, block size and memory, and what to be warned of.

The smallest window that mixes well enough is sought: at least 2 % of the rows, at most 10 % (section 7.2.4), and
between them as many blocks as it takes for batches to be nearly as balanced as after a full shuffle.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.blocks.conversion import BLOCK_SIZE
from penstock.blocks.features import Encoder
from penstock.budget import Budget, show_bytes, show_share
from penstock.errors import BudgetError
from penstock.explain.clustering import Clustering
from penstock.explain.cost import STRATEGIES, Prediction, Setting
from penstock.explain.gain import column_words
from penstock.explain.reads import KB, MB
from penstock.explain.speed import Layout, Speeds
from penstock.explain.storage import Curve
from penstock.loader.loader import Loader
from penstock.loader.plan import Plan, round_up
from penstock.training import Columns

LEAST_SHARE, MOST_SHARE = 0.02, 0.10
_SMALLEST_BLOCK, _LARGEST_BLOCK = 64 * KB, 10 * MB
# Smaller blocks shuffle better, so a block's random reads need only be so near to sequential ones.
_FAST_ENOUGH = 0.75
# Batches whose labels vary up to so many times as after a full shuffle are as good as shuffled.
_EVEN, _UNEVEN = 1.2, 2.0
_SMALL_ENOUGH = 8 * KB  # decoded; `convert` goes down to 4
# A strategy that costs no more than this over the cheapest is not worth giving up its shuffle for.
_DEAR = 1.5


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to train with.

    Attributes
    ----------
    strategy : str
        The order.
    memory : int
        The least bytes that shuffle well.
    memory_text : str
        The same as ``--memory`` takes it.
    block_bytes : int
        The block size to convert to.
    window_rows : int
        Rows shuffled together with that memory.
    window_share : float
        The same as a share of all rows.
    reason : str
        Why.
    command : str
        The line to run.
    """

    strategy: str
    memory: int
    memory_text: str
    block_bytes: int
    window_rows: int
    window_share: float
    reason: str
    command: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


def plan_for(source: BlockSource, encoder: Encoder, strategy: str, memory: str | int | Budget) -> Plan:
    """Return how a loader would divide the memory, stretched to the least that works."""
    opened = source.max_open
    try:
        with Loader(source, encoder, strategy, memory=memory, stretch=True) as loader:
            return loader.plan
    finally:
        source.max_open = opened  # a loader lowers it for good


def plans_for(source: BlockSource, encoder: Encoder, memory: str | int | Budget) -> dict[str, Plan]:
    """Return the division of memory for every strategy."""
    return {name: plan_for(source, encoder, name, memory) for name in STRATEGIES}


def too_small(source: BlockSource, encoder: Encoder, memory: str | int | Budget) -> str | None:
    """Return what is wrong with a budget that cannot hold two blocks, or None."""
    opened = source.max_open
    try:
        Loader(source, encoder, "corgipile", memory=memory).close()
    except BudgetError as error:
        return f"{error}"
    finally:
        source.max_open = opened
    return None


def recommend(
    source: BlockSource,
    encoder: Encoder,
    *,
    data: str,
    columns: Columns,
    model: str,
    given: Plan,
    clustering: Clustering | None,
    predictions: Sequence[Prediction],
    setting: Setting,
    speeds: Speeds,
) -> Recommendation:
    """Choose strategy, memory and block size."""
    rows = max(1, setting.rows)
    if given.resident:
        memory, plan = given.memory, given
    else:
        wanted = clustering.enough_rows() if clustering is not None else 0
        wanted = int(np.clip(wanted, np.ceil(LEAST_SHARE * rows), np.ceil(MOST_SHARE * rows)))
        memory, plan = _memory_for(source, encoder, wanted)
        uneven = clustering is not None and clustering.balance(plan.held_rows, opened=plan.units) > _EVEN
        if memory < given.memory and (uneven or setting.units):
            memory, plan = given.memory, given  # what is given anyhow shuffles better
    by_name = {p.strategy: p for p in predictions}
    shuffled, stored = by_name["corgipile"], by_name["none"]
    strategy = "corgipile"
    if given.resident:
        reason = "all rows fit in memory; they are decoded once and shuffled there"
    elif clustering is None:
        reason = "it shuffles well whatever order the rows lie in"
    elif clustering.clustered:
        times = shuffled.seconds / stored.seconds
        reason = f"the rows are clustered by {clustering.by}, and it takes {times:.2g}× the time of stored order"
    elif shuffled.seconds > _DEAR * stored.seconds:
        strategy = "none"
        reason = (
            f"the rows lie as if shuffled, and corgipile would take {shuffled.seconds / stored.seconds:.1f}× as long"
        )
    else:
        reason = "the rows lie as if shuffled, and it costs little more than none to be sure"
    share = min(1.0, plan.held_rows / rows)
    block = best_block(setting.curve, layout=speeds.packed or speeds.stored, speeds=speeds)
    words = ["penstock", "train", data, *column_words(columns)]
    words += ["--label", "COLUMN"] if encoder.label is None else []
    words += ["--model", model] if model != "logistic" else []
    words += ["--shuffle", strategy, "--memory", round_up(memory)]
    return Recommendation(strategy, memory, round_up(memory), block, plan.held_rows, share, reason, shlex.join(words))


def _memory_for(source: BlockSource, encoder: Encoder, rows: int) -> tuple[int, Plan]:
    """Return the least memory, to two digits, whose window holds so many rows."""
    memory = max(1, plan_for(source, encoder, "corgipile", 1).memory)
    plan = plan_for(source, encoder, "corgipile", memory)
    while plan.held_rows < rows:
        memory = int(memory * min(4.0, max(1.05, rows / plan.held_rows))) + 1
        plan = plan_for(source, encoder, "corgipile", memory)
    step = 10 ** max(0, len(str(memory)) - 2)
    memory = -(-memory // step) * step
    return memory, plan_for(source, encoder, "corgipile", memory)


def best_block(curve: Curve | None, *, layout: Layout, speeds: Speeds) -> int:
    """Return the smallest block size at which storage is fast, or no longer what training waits for."""
    if curve is None:
        return BLOCK_SIZE
    busy = max(speeds.sgd, layout.shuffled.wall)
    needed = min(_FAST_ENOUGH * curve.sequential_many, 1.25 * layout.stored_bytes / max(busy, 1e-12))
    usable = [p for p in curve.points if _SMALLEST_BLOCK <= p.block_bytes <= _LARGEST_BLOCK]
    if not usable:
        return BLOCK_SIZE
    return next((p.block_bytes for p in usable if p.many >= needed), max(usable, key=lambda p: p.many).block_bytes)


def memory_warnings(
    given: Plan, small: str | None, advice: Recommendation, setting: Setting, clustering: Clustering | None
) -> list[str]:
    """Say in words what the memory given, and the blocks or row groups that it holds, mean for the shuffle."""
    found = [] if small is None else [small]
    if given.resident:
        return found
    if small is None and given.memory < 0.9 * advice.memory:
        share = given.held_rows / max(1, setting.rows)
        found.append(
            f"{show_bytes(given.memory)} shuffle only {show_share(share)} of the rows together; give --memory"
            f" {advice.memory_text} for a better shuffle."
        )
    if setting.units and clustering is not None and clustering.clustered:
        opened = min(given.units, setting.units)
        found.append(
            f"Rows are clustered and a window mixes those of {opened} of {setting.units} row groups at a time;"
            " convert, or write smaller row groups, for a shuffle of all."
        )
    elif clustering is not None and clustering.balance(advice.window_rows, opened=given.units) > _UNEVEN:
        block_bytes = setting.row_bytes * setting.rows / max(1, setting.blocks)
        remedy = "convert to smaller blocks" if block_bytes > _SMALL_ENOUGH else "give more memory"
        found.append(
            f"A window of {advice.window_rows:,} rows has but {clustering.draws(advice.window_rows, opened=given.units):.0f}"
            f" blocks, each of rows alike; {remedy} for a better shuffle."
        )
    return found
