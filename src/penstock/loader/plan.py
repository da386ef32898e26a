"""What the memory given is spent on, decided before anything is read.

Two windows (one being learned from while the next is filled), what the reading threads hold, and whatever
the order keeps back from window to window. A budget too small fails here, with the smallest that would do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.blocks.storage import convert_line
from penstock.budget import Budget, Bytes, show_bytes
from penstock.errors import BudgetError
from penstock.messages import Text, TextPart
from penstock.parallel import cores

HELD = 0.75
"""Rows of a sweep that are held at the worst moment."""
# How many times its rows a window occupies at the worst moment, by (how it is filled, whether rows are kept back).
SHARE = {
    ("filled", False): 2.0,  # the window in use and the one being filled
    ("assembled", False): 3.0,  # also the decoded blocks that the next window is put together from
    ("filled", True): 2.75,  # the buffer, its successor, and small windows going in and out
    ("assembled", True): 4.0,
    ("swept", False): HELD,  # a sweep's rows are held for half a sweep, some in flight, some being put together
}
# Reads in flight that memory is kept for on any machine: which rows meet in a window must not hang on its cores.
_READS = 32
# Units (Parquet row groups) that may be half read at a time.
_UNITS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """How the memory is divided."""

    memory: int
    data_bytes: int
    row_bytes: float
    threads: int
    held_rows: int
    resident: bool
    units: int = 1
    together: int = 1
    """Blocks that a reading thread may hold at once."""
    blocks: int = 0
    """Blocks of all the data, as they are cut for this memory."""
    kept_bytes: int = 0
    """Disk space for decoded blocks, where reading one would decode more; 0 where blocks are read as they are stored."""
    warning: str = ""
    """What is wrong with the shuffle that this memory affords, if anything."""
    raised: Text | None = None
    """That more memory is used than was asked for, where that was a share of few rows."""

    @property
    def notices(self) -> tuple[Text, ...]:
        """What a user should know of this plan."""
        return tuple(Text(each) for each in (self.raised, self.warning) if each)


def plan_memory(
    source: BlockSource,
    *,
    memory: Budget,
    row_bytes: float,
    rows: int,
    block_rows: int,
    thread_bytes: int,
    most_threads: int,
    layout: Literal["filled", "assembled", "swept"],
    mixed: bool,
    beside: int = 0,
    unit_bytes: int = 0,
    once_bytes: int = 0,
    stretch: bool = False,
    least_rows: int = 0,
    enough: int = 0,
) -> Plan:
    """Divide a memory budget.

    Parameters
    ----------
    source : BlockSource
        Named in the error.
    memory : Budget
        What the user gave.
    row_bytes : float
        Decoded bytes of a row, everything kept beside it included.
    rows, block_rows : int
        Rows in all, and in the largest block.
    thread_bytes : int
        What each reading thread holds.
    most_threads : int
        Reads in flight, memory permitting.
    layout : str
        Whether rows go straight to their slots, or blocks are decoded first and then assembled, or single rows are
        picked up by sweeps.
    mixed : bool
        Whether the order keeps rows back between windows.
    beside : int
        What the order itself needs for each row of a window, such as its number.
    unit_bytes : int
        What each unit that is half read holds, where blocks are parts of larger units.
    once_bytes : int
        What reading holds once, however many threads read.
    stretch : bool
        Take the least that works rather than fail.
    least_rows : int
        Rows that a window has to hold, where these are more than a block.
    enough : int
        A memory known to be enough, for the message; blocks may be cut otherwise for it than they are now.
    """
    data_bytes = int(rows * row_bytes)
    total = memory.resolve(data_bytes)
    share = SHARE[layout, mixed]
    held_bytes = share * (row_bytes + beside)
    window_rows = max(block_rows, min(least_rows, rows))
    least = int(np.ceil(thread_bytes + unit_bytes + once_bytes + window_rows * held_bytes))
    if stretch:
        total = max(total, least)
    if total < least:
        enough = max(least, enough)
        hint = f" ({share_of(enough, data_bytes)} of the data)" if enough <= data_bytes else ""
        why = f"its largest block has {block_rows} rows of about {row_bytes:.0f} bytes"
        if window_rows > block_rows:
            why = f"a window has at least {window_rows} rows of about {row_bytes:.0f} bytes"
        fixes: list[TextPart] = [f"the smallest that works is {round_up(enough)}{hint}"]
        if block_rows * row_bytes > 64e3:
            fixes.append(Text("write smaller blocks: ", convert_line(source.name, block_size="64KB")))
        if unit_bytes + once_bytes > window_rows * held_bytes:
            why = f"a row group read in parts holds {show_bytes(unit_bytes + once_bytes)}"
            fixes[1:] = [Text("convert the data, whose blocks are then read singly: ", convert_line(source.name))]
        what = "two blocks" if window_rows == block_rows else "two windows"
        of_share = memory.of_bytes(data_bytes)
        raise BudgetError(
            f"{of_share}{' ' if of_share else ''}cannot hold {what} of {source.name}: {why}",
            option="memory",
            value=memory.written or Bytes(total),
            fixes=fixes,
        )
    # Of what is over, reading takes at most a quarter and half read units at most half; windows are what shuffles.
    spare = total - least
    reading = thread_bytes + min((_READS - 1) * thread_bytes, spare // 4)
    units = 1 + min(_UNITS - 1, (spare // 2) // unit_bytes) if unit_bytes else _UNITS
    for_units = units * unit_bytes + once_bytes
    # A thread may still be reading a unit that was closed in favour of another, so not all are for the order to open.
    late = (units + 1) // 4 if unit_bytes else _READS
    units -= late if unit_bytes else 0
    threads = max(1, min(most_threads, reading // max(thread_bytes, 1), late + 1))
    held = int((total - reading - for_units) / held_bytes) if held_bytes else rows
    resident = data_bytes * (1 + share) + reading + for_units <= total
    held = max(block_rows, min(held, max(rows, 1)))
    together = max(1, reading // max(1, threads * thread_bytes))
    return Plan(total, data_bytes, row_bytes, threads, held, resident, units, together)


def default_threads(*, decoding: bool, cached: bool = False) -> int:
    """Return how many reads to keep in flight: many where they only wait, few where they decode.

    Reads that the page cache may serve wait in the first epoch only; later, more threads would fight for the cores.
    """
    count = cores()
    if decoding:
        return count
    return 2 * count if cached else max(16, count)


def share_of(size: int, data_bytes: int) -> str:
    """Write a size of memory as a share of the data, and never a smaller one."""
    return f"{np.ceil(1000 * size / data_bytes) / 10:g}%"


def round_up(size: int) -> str:
    """Write a size of memory as a user would give it, and never a smaller one.

    Examples
    --------
    >>> round_up(1_234_567)
    '1.3MB'
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{int(np.ceil(size / unit * 10)) / 10:g}{name}"
    return f"{size}B"
