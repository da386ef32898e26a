"""How a model lies on disk, how its memory is divided, and how many features there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from penstock.bigmodel.chunks import ENTRIES
from penstock.bigmodel.page_trainer import OPTIMIZERS
from penstock.bigmodel.store import STAGING, THREADS
from penstock.budget import SMALL, Budget, Bytes, parse_size, show_bytes
from penstock.errors import BudgetError, UnknownOptionError, UsageError
from penstock.loader.direct_reads import PAGE
from penstock.messages import Text
from penstock.options import check_fields, default
from penstock.sgd.optimizers import ADAPTIVE

# What the tables of a page come to: its side now and at the checkpoint, its checksum, its frame, its stamp.
_TABLES = 18
# What chunks and the memory that reads and writes pass through take at most: such a part each of the memory, and no more
# than is useful.
_SIXTEENTH = 16
_LEAST_ENTRIES = 4096
_LEAST_FRAMES = 16
_HOT_SHARE = 0.75


# Of one number for memory, the part that rows get, up to a size beyond which more would shuffle no better.
_ROWS_SHARE, _MOST_ROWS_MEMORY = 4, 512_000_000
_ROWS_MEMORY = "256MB"


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """What of the memory is for rows and what for the model, and the one number that was split, if it was one.

    Examples
    --------
    >>> print(MemorySplit.of("1GB"))
    memory of 1GB: 250 MB for rows, 750 MB for the model
    >>> print(MemorySplit.of("25%"))
    memory of 25%: 256MB for rows, 25% of its size for the model
    """

    rows: str | int
    model: str | int
    total: str | int | None = None

    @classmethod
    def of(cls, memory: str | int) -> MemorySplit:
        """Split one number: a quarter is for rows, 512 MB at most. A share is of the model, with 256 MB for rows beside it."""
        total = Budget.parse(memory).bytes
        if total is None:
            return cls(_ROWS_MEMORY, memory, memory)
        rows = min(total // _ROWS_SHARE, _MOST_ROWS_MEMORY)
        return cls(rows, total - rows, memory)

    def __str__(self) -> str:
        rows, model = (show_bytes(part) if isinstance(part, int) else part for part in (self.rows, self.model))
        share = " of its size" if str(self.model).strip().endswith("%") else ""
        whole = "memory" if self.total is None else f"memory of {self.total}"
        return f"{whole}: {rows} for rows, {model}{share} for the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How a model lies on disk and what it may hold in memory.

    Attributes
    ----------
    model_memory : str or int
        What the model may take: its pool of pages, their tables and chunks; ``"25%"`` is of the model's own size.
    optimizer : str
        ``"sgd"``, or ``"adagrad"``, whose accumulator lies beside each weight.
    threads : int
        Threads that learn at the same time; with one, the result is the same whenever it is run.
    keep : int
        The most frequent features that are partitioned by what they occur with (the paper's K).
    page_size : str or int
        Bytes of a page: a power of two, 4 KiB or more.

    Examples
    --------
    >>> storage = Storage(optimizer="adagrad")
    >>> storage.cells, storage.page_records, storage.shift
    (2, 512, 9)
    """

    model_memory: str | int = "1GB"
    optimizer: str = default("optimizer", "disk")
    threads: int = default("threads")
    keep: int = default("keep", "disk")
    page_size: str | int = PAGE

    def __post_init__(self) -> None:
        if self.optimizer in ADAPTIVE and self.optimizer not in OPTIMIZERS:
            raise UsageError(
                f"is for models in memory; those on disk learn by one of: {', '.join(sorted(OPTIMIZERS))}",
                option="optimizer",
                value=self.optimizer,
            )
        if self.optimizer not in OPTIMIZERS:
            raise UnknownOptionError.of("optimizer", self.optimizer, OPTIMIZERS)
        check_fields(self, "disk")
        size = parse_size(self.page_size, option="page_size")
        if size < PAGE or size & (size - 1):
            raise UsageError(f"is not a power of two of {PAGE} bytes or more", option="page_size", value=self.page_size)
        object.__setattr__(self, "page_size", size)
        Budget.parse(self.model_memory, option="model_memory", whole="model")

    @property
    def cells(self) -> int:
        """float32 cells to a feature: its weight, and what the optimiser keeps beside it."""
        return OPTIMIZERS[self.optimizer]

    @property
    def page_floats(self) -> int:
        """float32 cells to a page."""
        return int(self.page_size) // 4

    @property
    def page_records(self) -> int:
        """Features to a page."""
        return self.page_floats // self.cells

    @property
    def shift(self) -> int:
        """The power of two of the features in a page."""
        return self.page_records.bit_length() - 1

    def pages(self, features: int) -> int:
        """Return the pages that so many features take."""
        return max(1, -(-features // self.page_records))

    def model_bytes(self, features: int) -> int:
        """Return the bytes that so many features take on disk, in pages."""
        return self.pages(features) * int(self.page_size)

    @property
    def least_memory(self) -> int:
        """The memory for the model where its size is not known yet: nothing, for a share of it."""
        return Budget.parse(self.model_memory).bytes or 0

    def memory(self, features: int) -> int:
        """Return the memory for a model of so many features: a share that is too little for a small one is raised."""
        asked = Budget.parse(self.model_memory).resolve(self.model_bytes(features))
        return asked if self.raised(features) is None else SMALL

    def raised(self, features: int) -> Text | None:
        """Say that more memory is used than was asked for, where that was a share of a small model; else None."""
        budget = Budget.parse(self.model_memory)
        asked = budget.resolve(self.model_bytes(features))
        if budget.share is None or not asked < self._enough(features) <= SMALL:
            return None
        return budget.raised_notice("the model", asked=asked, option="model_memory")

    def _enough(self, features: int) -> int:
        """Return a memory that a model of so many features can work with, and hardly less."""
        page = int(self.page_size)
        return int(1.2 * (self.pages(features) * _TABLES + 8 * _LEAST_ENTRIES + (THREADS + _LEAST_FRAMES) * page))

    def pool_memory(self, features: int) -> int:
        """Return what is left for the pool beside tables and chunks.

        Raises
        ------
        BudgetError
            It would be too little to work with; the smallest that does is named.
        """
        memory = self.memory(features)
        beside = self.pages(features) * _TABLES + 8 * self.chunk_entries(features) + THREADS * self.staging(features)
        least = int(self.page_size)
        if memory - beside < _LEAST_FRAMES * least:
            raise BudgetError(
                f"is too little for a model of {features:,} features in pages of {show_bytes(least)}",
                option="model_memory",
                value=Bytes(memory),
                fixes=[f"the smallest that works is about {show_bytes(self._enough(features))}"],
            )
        return memory - beside

    def chunk_entries(self, features: int) -> int:
        """Return the entries of a chunk: their slots are held for the one in use and the one in the making."""
        return min(ENTRIES, max(_LEAST_ENTRIES, self.memory(features) // (_SIXTEENTH * 8)))

    def staging(self, features: int) -> int:
        """Return the bytes that each thread of the store reads and writes through: whole pages."""
        page = int(self.page_size)
        return min(STAGING, max(1, self.memory(features) // (_SIXTEENTH * THREADS * page)) * page)

    def hot(self, features: int) -> int:
        """Return how many features may be hot: those of the pages that can stay in the pool."""
        return int(_HOT_SHARE * self.pool_memory(features) / int(self.page_size)) * self.page_records

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """What `rewrite` found and wrote.

    ``features`` of ``dimension`` possible ones occur, and have the positions 0 to ``features - 1``; the first ``hot`` are the
    frequent ones. ``tally`` has a row [least, features, entries] for each power of two: the features that occur at least so often
    and less than twice as often.
    """

    rows: int
    entries: int
    features: int
    hot: int
    dimension: int
    tally: list[list[int]]
    map_bytes: int
    rows_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> FeatureLayout:
        """Build the layout again; those of earlier versions say more."""
        return cls(**{each.name: data[each.name] for each in fields(cls)})
