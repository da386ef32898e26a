"""Folders that are partitioned already, as in ``country=FR/device=ios/part-0.parquet``: the path says the group.

`PartitionedSource` adds the columns that stand in the path to those of the files, those that are no grouping columns among
them: they are features, or the label, like any column. Files of one key come one after another; where the grouping columns are all in the path, rows are thereby grouped as they are read, and need no sorting.
Files are opened when they are read, a few at a time, so there may be thousands.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource, Int64s, Source, require_block, require_columns
from penstock.blocks.common_schema import common_schema, conform
from penstock.blocks.file_formats import known_suffixes
from penstock.blocks.file_kinds import COMPRESSED
from penstock.blocks.folder_columns import folder_columns, typed
from penstock.blocks.open import detect, is_table, opened
from penstock.blocks.open import open as open_source
from penstock.blocks.storage import is_remote, show_names
from penstock.errors import DataChangedError


def partitioned(data: Any, by: Sequence[str]) -> PartitionedSource | None:
    """Open data as partitioned, or return None where its paths name no columns; see `folder_columns`."""
    if not isinstance(data, (str, os.PathLike, list, tuple)) or is_table(data):
        return None
    found = folder_columns(data, by, suffixes=known_suffixes())
    if found is None or detect(found.files[0]) in ("jsonl", *COMPRESSED.values()):  # which are copied as a whole
        return None
    return PartitionedSource(found.files, found.values, found.names, keys=found.keys)


def open_partitioned(data: Any, by: Sequence[str]) -> AbstractContextManager[BlockSource]:
    """Open data, with the columns that stand in its paths where its files do not have them all, for a ``with`` block."""
    return partitioned(data, by) or opened(data)


class PartitionedSource(Source):
    """Files with further columns that each has one value of.

    Parameters
    ----------
    files : list of str
        The files.
    values : list of list
        Of each file, the values of the columns in its path.
    columns : list of str
        Their names; whole numbers throughout make a column of numbers, all else is text. Those that the files have
        themselves are read from there.
    keys : int, optional
        How many of the columns, the first ones, are grouping columns: files that agree in these come one after another.
        All of them if not given.

    Attributes
    ----------
    columns : list of str
        The columns that come from the path.
    """

    def __init__(
        self,
        files: Sequence[str],
        values: Sequence[Sequence[str | None]],
        columns: Sequence[str],
        *,
        keys: int | None = None,
    ) -> None:
        order: dict[tuple[str | None, ...], list[int]] = {}
        for number, each in enumerate(values):
            order.setdefault(tuple(each[:keys]), []).append(number)
        chosen = [number for numbers in order.values() for number in numbers]
        self._files = [files[number] for number in chosen]
        self.name = show_names(self._files)
        self._prints: list[str] = []
        self._stamps: list[tuple[int, ...] | None] = []
        self._local = threading.local()
        self._open: list[BlockSource] = []
        self._lock = threading.Lock()
        digest = hashlib.blake2b(digest_size=16)
        shapes: list[tuple[Int64s, Int64s]] = []
        units: list[Int64s] = []
        own: list[pa.Schema] = []
        pieces = 0
        for number, file in enumerate(self._files):
            with open_source(file) as source:
                own.append(source.schema)
                if not number:
                    self.exact_rows, self.threads = source.exact_rows, source.threads
                self._stamps.append(_stamp(file))
                self._prints.append(source.fingerprint)
                digest.update(f"{values[chosen[number]]}{self._prints[-1]}|".encode())
                shapes.append((source.block_rows, source.block_bytes))
                if source.units is not None:
                    units.append(source.units + pieces)
                    pieces += int(source.units.max(initial=-1)) + 1
                self.unit_bytes = max(self.unit_bytes, source.unit_bytes)
        self.schema = common_schema(own, self._files)
        self._print = digest.hexdigest()
        self.block_rows, self.block_bytes = (np.concatenate(each) for each in zip(*shapes))
        self.units = np.concatenate(units) if units else None
        self._first = np.cumsum([0] + [len(rows) for rows, _ in shapes])
        self.columns = [name for name in columns if name not in self.schema.names]
        self._added: dict[str, pa.Array] = {}
        for place, name in enumerate(columns):
            if name in self.columns:
                self._added[name] = typed([values[number][place] for number in chosen])
                self.schema = self.schema.append(pa.field(name, self._added[name].type))

    @property
    def fingerprint(self) -> str:
        """A hash over the fingerprints of all files and what their paths say."""
        return self._print

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        require_block(block, len(self.block_rows), name=self.name)
        wanted = list(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        number = int(np.searchsorted(self._first, block, side="right")) - 1
        stored = [name for name in wanted if name not in self._added]
        # Some column has to be asked for, to know how many rows there are.
        asked = stored or [next(name for name in self.schema.names if name not in self._added)]
        rows = conform(self._source(number).read(block - int(self._first[number]), asked), self.schema)
        arrays = [
            pa.repeat(self._added[name][number], len(rows)) if name in self._added else rows.column(name)
            for name in wanted
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(name) for name in wanted]))

    def file_of(self, block: int) -> tuple[str, int]:
        number = int(np.searchsorted(self._first, block, side="right")) - 1
        return self._files[number], int(self._first[number])

    def close(self) -> None:
        with self._lock:
            opened, self._open = self._open, []
        for source in opened:
            source.close()
        self._local = threading.local()

    def _source(self, number: int) -> BlockSource:
        """Return a file, opened; each thread has one of its own open at a time."""
        held: tuple[int, BlockSource] | None = getattr(self._local, "held", None)
        if held is not None and held[0] == number:
            return held[1]
        if held is not None:
            self._local.held = None
            with self._lock:
                self._open.remove(held[1])
            held[1].close()
        source = open_source(self._files[number])
        with self._lock:
            self._open.append(source)
        self._local.held = (number, source)
        stamp = _stamp(self._files[number])
        if (stamp is None or stamp != self._stamps[number]) and source.fingerprint != self._prints[number]:
            raise DataChangedError(f"{self._files[number]} was changed while it was in use; start afresh")
        return source


def _stamp(file: str) -> tuple[int, ...] | None:
    """Return what changes when a local file is written, so that its content is looked at again only then."""
    if is_remote(file):
        return None
    stat = os.stat(file)
    return stat.st_size, stat.st_mtime_ns, stat.st_ino
