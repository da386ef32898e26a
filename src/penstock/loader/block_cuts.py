"""Blocks that fit the window: how finely a source is cut, so that enough blocks meet in each window.

A window of few blocks is as good as not shuffled where rows that are alike lie together: with three blocks of data sorted
by label, every fourth window holds one class alone. The cut depends on the memory given, and not on the number of ranks:
another number of them can take over what is left of an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.blocks.cached_source import cached_bytes
from penstock.blocks.storage import convert_line
from penstock.budget import SMALL, Budget
from penstock.loader.decode import divided, redecoded, unit_bytes
from penstock.loader.plan import SHARE, Plan, default_threads, round_up, share_of
from penstock.loader.resources import divide
from penstock.loader.row_forms import Decodes, R, Scaling
from penstock.loader.windows import Feed
from penstock.shuffle import Order, Shape
from penstock.shuffle import order as order_named

PLAN_VERSION = 2
"""Changes when other rows are held out, or meet in a window, for the same data, options and seed."""
WANTED, LEAST = 64, 16
"""Blocks that should meet in a window, and those below which there is a warning."""
# Bytes that are worth a read of their own where enough blocks meet, and those below which a part is mostly overhead.
_READ_BYTES, _PART_BYTES = 16 * 1024, 1024
# A list of more parts than this would be a burden of its own.
_PARTS = 1 << 15
# What is left for windows beside reading, and beside half-read units; see `plan_memory`.
_WINDOWS, _BESIDE_UNITS = 0.75, 0.35
# A training keeps up to an eighth of the memory for held-out rows; see `penstock.measuring`.
_BESIDE_ROWS = 8 / 7
# The window is estimated before the blocks are cut, and may turn out a little smaller.
_MARGIN = 1.25


@dataclass(frozen=True, slots=True)
class Cut:
    """How finely blocks are cut: into about ``rows`` rows, at most ``most`` where so few are dear; 0 as they are stored.

    A ``most`` of -1 stands for pieces of units, each of which is decoded with its unit.
    """

    rows: int = 0
    most: int = 0


WHOLE = Cut(-1, -1)
"""Units as they are stored: row groups that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a loader asks for: the memory, and what its order and its place in the job make of it.

    ``by_row`` and ``mixed`` say whether the order asks for single rows, and whether it keeps rows back between windows.
    """

    memory: Budget
    by_row: bool
    mixed: bool
    threads: int | None
    world: int
    stretch: bool

    @classmethod
    def of(
        cls,
        order: Order,
        memory: str | int | Budget,
        *,
        threads: int | None = None,
        world: int = 1,
        stretch: bool = False,
    ) -> Needs:
        """Return what a loader by an order asks for."""
        mixed = order.mixer(Shape(np.ones(1, np.int64), 1), 0) is not None
        by_row, total = order.facts.by_row, Budget.parse(memory)
        return cls(memory=total, by_row=by_row, mixed=mixed, threads=threads, world=world, stretch=stretch)


def plan_loading(
    source: BlockSource, recipe: Decodes[R], order: str, memory: str | int | Budget, *, stretch: bool = False
) -> Plan:
    """Return how a loader would divide the memory, without making one.

    Parameters
    ----------
    source, recipe
        The rows, and what is made of them.
    order : str
        The shuffling strategy.
    memory : str, int or Budget
        What a loader may hold.
    stretch : bool
        Take the least that works rather than fail.
    """
    chosen = order_named(order)
    needs = Needs.of(chosen, memory, stretch=stretch)
    feed, plan, _ = open_fitted(source, recipe, Scaling.none(), chosen, needs)
    feed.decoder.close()
    return plan


def open_fitted(
    source: BlockSource, recipe: Decodes[R], scaling: Scaling, order: Order, needs: Needs
) -> tuple[Feed[R], Plan, Cut]:
    """Open a source with blocks that fit the windows, and divide the memory; say how the blocks were cut."""
    feed = Feed.open(source, recipe, scaling)
    try:
        size = feed.size()
        choices: list[tuple[Feed[R], Plan, Cut]] = []
        total = needs.memory.resolve(int(size[0] * size[1]))
        stored = _plan(feed, order, needs, size, Cut())
        # Rows that go straight from the file to their slots do so from whole blocks alone: enough will do of those.
        enough = feed.decoder.waits and not stored.warning and stored.memory <= total
        if (order.facts.by_block and not enough) or (stored.memory > total and not needs.by_row):
            wanted = fitting_cut(feed, size, needs.memory)
            finer = _refined(feed, wanted, recipe, scaling)
            if finer is not None:
                choices.append((finer, _plan(finer, order, needs, size, wanted), wanted))
        if not choices or source.units is not None or choices[-1][1].memory > total:
            choices.insert(0, (feed, stored, Cut()))  # the first of those that are as good
        # Row groups that are half read take memory that whole ones may not, so whichever fits and mixes better.
        if divided(source) and all(plan.warning for _, plan, _ in choices):
            whole = _whole_units(feed, recipe, scaling)
            if whole is not None:
                choices.append((whole, _plan(whole, order, needs, size, WHOLE), WHOLE))
            if order.facts.copy == "never" and all(plan.warning or plan.memory > total for _, plan, _ in choices):
                cut = _piece_cut(feed, size, needs.memory)
                pieces = _pieces(feed, cut, recipe, scaling)
                if pieces is not None:
                    plan = _plan(pieces, order, needs, size, cut)
                    if not plan.warning:  # or decoding to disk would not be worth its time
                        choices.append((pieces, plan, cut))
                    else:
                        pieces.decoder.close()
        best = min(choices, key=lambda each: (max(total, each[1].memory), -_met(each[0], each[1])))
        if best[1].memory > total:
            raised = _raised(source, recipe, scaling, order, needs, asked=total)
            if raised is not None:
                choices.append(raised)
                best = raised
            elif not needs.stretch:
                smallest = _enough_for_blocks(source, recipe, scaling, order, needs, size)
                _plan(best[0], order, needs, size, best[2], enough=smallest)  # raises
    except BaseException:
        feed.decoder.close()
        raise
    for other, _, _ in choices:
        if other is not best[0]:
            other.decoder.close()
    return best


def _raised(
    source: BlockSource, recipe: Decodes[R], scaling: Scaling, order: Order, needs: Needs, *, asked: int
) -> tuple[Feed[R], Plan, Cut] | None:
    """Open a source with what a share that is too little is raised to; None where that is too little as well."""
    if needs.memory.share is None:
        return None
    larger = replace(needs, memory=Budget(bytes=SMALL), stretch=True)
    feed, plan, cut = open_fitted(source, recipe, scaling, order, larger)
    if plan.memory > SMALL:
        feed.decoder.close()
        return None
    return feed, replace(plan, raised=needs.memory.raised_notice(source.name, asked=asked)), cut


def _enough_for_blocks(
    source: BlockSource,
    recipe: Decodes[R],
    scaling: Scaling,
    order: Order,
    needs: Needs,
    size: tuple[float, int],
) -> int:
    """Return a memory that is enough, as a message would write it: blocks are cut otherwise for each memory."""
    data_bytes, memory = int(size[0] * size[1]), 1
    while True:
        written = [Budget.parse(round_up(memory))]
        if data_bytes and memory <= data_bytes:
            written.append(Budget.parse(share_of(memory, data_bytes)))
        found = []
        for budget in written:
            asked = replace(needs, memory=Budget(bytes=budget.resolve(data_bytes)), stretch=True)
            feed, plan, _ = open_fitted(source, recipe, scaling, order, asked)
            feed.decoder.close()
            found.append(plan.memory if plan.memory > budget.resolve(data_bytes) else memory)
        if max(found) <= memory:
            return memory
        memory = max(found)


def _refined(feed: Feed[R], cut: Cut, recipe: Decodes[R], scaling: Scaling) -> Feed[R] | None:
    finer = feed.source.refine(cut.rows, cut.most) if cut.rows else None
    if finer is None or int(finer.block_rows.max(initial=0)) >= int(feed.block_rows.max(initial=0)):
        return None
    return Feed.open(finer, recipe, scaling)


def _whole_units(feed: Feed[R], recipe: Decodes[R], scaling: Scaling) -> Feed[R] | None:
    """Open a source with its units (row groups) as blocks, so that none is half read."""
    whole_units = getattr(feed.source, "whole_units", None)  # an ability that a source need not have
    return None if whole_units is None else Feed.open(whole_units(), recipe, scaling)


def _pieces(feed: Feed[R], cut: Cut, recipe: Decodes[R], scaling: Scaling) -> Feed[R] | None:
    """Open a source in pieces of its units that are decoded with the whole unit, each time one is read."""
    pieces = getattr(feed.source, "pieces", None)  # an ability that a source need not have
    return None if pieces is None else Feed.open(pieces(cut.rows), recipe, scaling)


def _plan(
    feed: Feed[R], order: Order, needs: Needs, size: tuple[float, int], cut: Cut, *, enough: int | None = None
) -> Plan:
    """Divide the memory for blocks cut so; take the least that works unless ``enough``, which is then named, is given."""
    # A source that answers over several connections keeps them all busy, however few cores there are.
    usual = default_threads(decoding=not feed.decoder.waits, cached=feed.decoder.cached)
    plan = divide(
        feed,
        needs.memory,
        by_row=needs.by_row,
        mixed=needs.mixed,
        threads=needs.threads or max(usual, feed.source.threads or 1),
        stretch=enough is None,
        size=size,
        enough=enough or 0,
        least_rows=LEAST * least_part(size[0]) if cut.rows > 0 else 0,
    )
    warning = ""
    if order.facts.by_block and order.facts.places_rows:
        world = max(1, needs.world)  # one that makes no sense is refused later
        met = blocks_met(feed.source, plan, world=world)
        if met is not None and met < LEAST:
            warning = mixing_warning(feed.source, met, plan.held_rows, _enough(feed, needs, size, plan, world=world))
    kept = cached_bytes(feed.source, feed.form.columns) if redecoded(feed.source) and not plan.resident else 0
    return replace(plan, blocks=len(feed.source.block_rows), warning=warning, kept_bytes=kept)


def _enough(feed: Feed[R], needs: Needs, size: tuple[float, int], plan: Plan, *, world: int) -> int:
    """Return a memory at which enough blocks, cut as they are, would meet in a window, or all rows would."""
    memory = plan.memory
    while True:
        memory += memory // 10
        larger = divide(
            feed, Budget(bytes=memory), by_row=needs.by_row, mixed=needs.mixed, threads=plan.threads, size=size
        )
        met = blocks_met(feed.source, larger, world=world)
        if met is None or met >= LEAST:
            return int(memory * _BESIDE_ROWS)


def _met(feed: Feed[R], plan: Plan) -> float:
    met = blocks_met(feed.source, plan, world=1)
    return np.inf if met is None else met


def fitting_cut(feed: Feed[R], size: tuple[float, int], memory: Budget) -> Cut:
    """Return how the blocks of a source should be cut for this memory.

    Their rows are a power of two, so that a little more or less memory does not make another cut.
    """
    row_bytes, rows = size
    if not rows or not len(feed.block_rows):
        return Cut()
    share, total = SHARE["filled" if feed.filled else "assembled", False], memory.resolve(int(rows * row_bytes))
    free = total * (_BESIDE_UNITS if feed.source.units is not None else _WINDOWS)
    window = free / (share * row_bytes)
    if window >= rows or rows * row_bytes * (1 + share) <= total:
        return Cut()  # all rows meet
    window = rows / np.ceil(rows / max(window, 1)) / _MARGIN
    largest = int(feed.block_rows.max())
    if largest * WANTED <= window:
        return Cut()
    fitted = _fitting_rows(window, row_bytes, rows)
    return Cut(fitted, max(fitted, int(window / LEAST))) if fitted < largest else Cut()


def _piece_cut(feed: Feed[R], size: tuple[float, int], memory: Budget) -> Cut:
    """Return the pieces of units for this memory, of which one unit's decoding takes its part."""
    row_bytes, rows = size
    share = SHARE["filled" if feed.filled else "assembled", False]
    free = memory.resolve(int(rows * row_bytes)) - unit_bytes(feed.source, feed.form.columns)
    window = min(max(_WINDOWS * free / (share * row_bytes), 1), rows)
    window = rows / np.ceil(rows / window) / _MARGIN
    return Cut(_fitting_rows(window, row_bytes, rows), -1)


def _fitting_rows(window: float, row_bytes: float, rows: int) -> int:
    """Return the rows of blocks of which enough meet in a window, and that are worth a read of their own."""
    worth = min(_READ_BYTES / row_bytes, window / LEAST)
    return 1 << int(np.log2(max(1.0, window / WANTED, worth, least_part(row_bytes), rows / _PARTS)))


def least_part(row_bytes: float) -> int:
    """Return the fewest rows that are worth being a block of their own."""
    return int(np.ceil(_PART_BYTES / max(row_bytes, 1.0)))


def blocks_met(source: BlockSource, plan: Plan, *, world: int) -> int | None:
    """Return how many blocks, or row groups read side by side, meet in a window; None where all rows do."""
    rows, blocks = int(source.block_rows.sum()), len(source.block_rows)
    mine = -(-rows // world)
    if plan.resident or plan.held_rows >= mine or not blocks:
        return None
    window = mine / np.ceil(mine / plan.held_rows)
    met = max(1, int(window / (rows / blocks)))
    if divided(source):
        met = min(met, plan.units, max(1, len(np.unique(source.units)) // world))  # type: ignore[arg-type]  # they are
    return met


def mixing_warning(source: BlockSource, met: int, rows: int, enough: int) -> str:
    """Say that too few blocks meet in a window of so many rows, and what memory would be enough."""
    noun = "block" if source.units is None else "row group"
    what = f"{met} {noun} meets" if met == 1 else f"{met} {noun}s meet"
    return (
        f"{source.name}: only {what} in a window of at most {rows:,} rows, and {LEAST} or more should: rows that lie sorted or"
        f" clustered will be learned badly; give {round_up(enough)} of memory, or convert the data: {convert_line(source.name)}"
    )
