"""How the memory given for grouping is shared out: among reading, counting, putting rows in place, sorting and merging."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.blocks.base import BlockSource
from penstock.budget import SMALL, Budget, Bytes, show_bytes
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.number import Number
from penstock.columns.recipe import Recipe
from penstock.errors import BudgetError
from penstock.events import Stream, Warned
from penstock.groups.external_sort import SORT_BYTES, Room
from penstock.groups.group_counts import cheap_twice
from penstock.loader.decode import divided, unit_bytes
from penstock.parallel import cores

HEADER = 1024
"""What a block's own header and padding take at most."""
_READ_TOGETHER = 4_000_000
"""Bytes of blocks whose groups are looked up at once, where there is memory for it."""
_LEAST_BLOCK = 1_000_000
"""Bytes that a block of few rows may have all the same."""
_ENTRY_BYTES, _SEVERAL = 8, 8
"""Bytes of an entry of a sparse row, and of all those of hashed text and lists as a multiple of what they take stored."""
_SCATTER = 64_000_000
"""Bytes of rows put in place at once, where there are many groups and there is memory for it."""


@dataclass(frozen=True, slots=True)
class SortingPlan:
    """How memory is used: bytes read by a task, threads that read, rows' bytes sorted at once, and room for merging.

    ``scatter`` is the most bytes of rows to be put in place at once, 0 where rows must be sorted; ``count`` those of a task
    that counts groups before.
    """

    together: int
    threads: int
    chunk: int
    room: Room
    scatter: int
    count: int

    @classmethod
    def of(
        cls, source: BlockSource, recipe: Recipe, budget: Budget, block: int, stream: Stream | None = None
    ) -> SortingPlan:
        """Divide the memory for rows of a source; a share of few rows that is too little is raised, as ``stream`` is told."""
        memory = budget.resolve(decoded_bytes(source, recipe))
        threads = source.threads or min(4, max(2, cores()))
        held = unit_bytes(source, recipe.columns) if divided(source) else 0
        largest = int(source.block_bytes.max()) + int(source.block_rows.max()) * (dense_bytes(recipe) + SORT_BYTES)

        def reading_within(memory: int) -> tuple[int, int]:
            together = min(_READ_TOGETHER, memory // (32 * threads))
            return together, held + 4 * threads * max(together, largest)

        def least_within(memory: int) -> int:
            return max(reading_within(memory)[1] + 2 * block, 3 * block)

        count = memory // (32 * threads)
        together, reading = reading_within(memory)
        if memory < least_within(memory):
            least = memory
            while least < least_within(least):  # with more memory, more is read together
                least = least_within(least)
            if budget.share is not None and least <= 3 * block + SMALL:
                notice = budget.raised_notice(source.name, asked=memory, to=least)
                (stream or Stream()).emit(Warned(notice))
                return cls.of(source, recipe, Budget(bytes=least), block)
            raise BudgetError(
                f"is too little to group {source.name} into blocks of {show_bytes(block)}: reading takes "
                f"{show_bytes(reading)}",
                option="memory",
                value=Bytes(memory),
                fixes=[f"give at least {show_bytes(least + 500_000)}"],
            )
        # A chunk is held twice, as collected and as sorted. Of what row groups are decoded into, Arrow keeps some back.
        share = 0.45 if source.units is None else 0.3
        left = memory - reading
        scatter = min(_SCATTER, int(0.3 * left)) if cheap_twice(source) and not recipe.sparse else 0
        room = Room.of(memory, block - HEADER)
        return cls(together, threads, int(share * left), room, scatter, min(4 * _READ_TOGETHER, count))


def largest_block(source: BlockSource, recipe: Recipe, block: int) -> int:
    """Return the most bytes of a block: those asked for, or what all rows take where that is less.

    Columns that make several entries of a sparse row, such as hashed text, count as stored, several times over.
    """
    rows, width, several = int(source.block_rows.sum()), recipe.row_bytes, 0
    if recipe.sparse:
        single = [part for part in recipe.parts if isinstance(part, (Number, Category, Date))]
        width = _ENTRY_BYTES * sum(1 if isinstance(part, Category) else part.width for part in single) + 16
        several = _SEVERAL * int(source.block_bytes.sum()) if len(single) < len(recipe.parts) else 0
    return min(block, max(_LEAST_BLOCK, rows * (width + 8) + several + 2 * HEADER))


def dense_bytes(recipe: Recipe) -> int:
    """Return the bytes of a dense row; sparse ones take about what they take as stored."""
    return 0 if recipe.sparse else recipe.row_bytes


def decoded_bytes(source: BlockSource, recipe: Recipe) -> int:
    """Return the bytes of all rows in memory, which a share of the data is taken of; sparse rows count as stored."""
    return int(source.block_rows.sum()) * dense_bytes(recipe) or int(source.block_bytes.sum())
