"""What a contestant is, and who takes part.

A contestant is a format it writes and a loader that reads it. Each family has a file of its own, whose functions
import the library only when they are called: the list can be read where none of them is installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.loaders.samples import Data

FAMILIES = (
    "raw",
    "ours",
    "hugging_face",
    "memory_mapped",
    "mosaic",
    "tar_files",
    "lit_chunks",
    "array_records",
    "lance_files",
    "lance_stream",
    "sc_dataset",
    "spdl_threads",
    "ray_blocks",
)

Batch = tuple[Any, Any]
"""Samples and labels, as tensors or arrays."""
Epochs = Callable[[int], Iterator[Batch]]
"""Gives the batches of the epoch with that number."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a loader is asked for. ``shares`` are the memory of our orders, as a share of the data."""

    data: Data
    batch_size: int = 256
    seed: int = 0
    shares: dict[str, float] = field(default_factory=lambda: {"corgipile": 0.1, "global": 0.25})


class Write(Protocol):
    """Makes a contestant's format of all rows in a new folder, in bounded memory."""

    def __call__(self, folder: Path, data: Data) -> None: ...


class Open(Protocol):
    """Makes a contestant's loader over what was written; the clock runs."""

    def __call__(self, folder: Path, job: Job) -> Epochs: ...


@dataclass(frozen=True, slots=True)
class Contestant:
    """A loader in one setting.

    ``format`` names the folder it reads, which contestants may share; ``imports`` are loaded before the clock
    starts. ``globally`` says that each batch is drawn from all rows, ``mapped`` that it reads through a memory map,
    where the disk's read-ahead matters. ``most`` bounds the rows of formats that blow small rows up.
    """

    name: str
    format: str
    write: Write
    open: Open
    imports: tuple[str, ...] = ()
    globally: bool = False
    mapped: bool = False
    ours: bool = False
    floor: bool = False
    most: dict[str, int] = field(default_factory=dict)

    def rows_of(self, data: Data) -> Data:
        """Return the part of the data that this contestant is given."""
        return data.first(self.most.get(data.name, data.rows))


def contestants() -> dict[str, Contestant]:
    """Return all contestants by name."""
    found: dict[str, Contestant] = {}
    for family in FAMILIES:
        for contestant in importlib.import_module(f"benchmarks.loaders.{family}").CONTESTANTS:
            found[contestant.name] = contestant
    return found
