"""The runs of a sort: what fits in memory is sorted and set aside on disk, with a note that lets it be taken up again.

A run is noted when its file is whole: which blocks it holds, and the keys first met in them. After an interruption, the
runs that follow one another from the first block on are kept. Notes of another boot of the machine are not trusted, since
the files may not have reached the disk, nor are runs that are not what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from penstock.batch import Batch, Csr
from penstock.blocks.base import Int64s
from penstock.checksum import checksum_path
from penstock.groups.keys import Numbering, from_text, to_text
from penstock.groups.scratch import boot
from penstock.groups.sorted_runs import GroupOffsets, MemoryRun, RowShape, RunWriter, SortedRun, StoredRun, sort_rows
from penstock.sealed import read_note, write_note

SORT_BYTES = 20
"""What sorting takes for each row beside the row."""
Merge = Callable[[Sequence[StoredRun], str], StoredRun]


@dataclass(frozen=True, slots=True)
class _Noted:
    """A run, the blocks it holds, and what else is known of it."""

    first: int
    last: int
    run: StoredRun
    keys: list[str]
    width: int


class RunFolder:
    """Runs on disk, in the order of the data."""

    def __init__(self, folder: Path, shape: RowShape, kinds: Sequence[pa.DataType]) -> None:
        self._folder, self._shape, self._kinds = folder, shape, kinds
        self._noted: list[_Noted] = []
        self._boot = boot()

    @property
    def runs(self) -> list[StoredRun]:
        """The runs, in the order of the data."""
        return [noted.run for noted in self._noted]

    @property
    def width(self) -> int:
        """The most features that a row of them has."""
        return max((noted.width for noted in self._noted), default=0)

    def resume(self) -> tuple[Numbering, int]:
        """Take up the runs of an earlier attempt; return the keys met in them, and the block to go on with."""
        found = [noted for path in self._folder.glob("run-*.json") if (noted := self._read(path)) is not None]
        numbering, at = Numbering(), 0
        for noted in sorted(found, key=lambda noted: (noted.first, -noted.last)):
            if noted.first == at:
                numbering.number(from_text(text, self._kinds) for text in noted.keys)
                self._noted.append(noted)
                at = noted.last
        kept = {Path(noted.run.path).stem for noted in self._noted}
        for path in self._folder.glob("run-*"):
            if path.stem not in kept:
                path.unlink()
        return numbering, at

    def name(self, first: int, last: int) -> str:
        """Return the path of a run that holds such blocks."""
        return str(self._folder / f"run-{first:010d}-{last:010d}.bin")

    def add(self, run: StoredRun, first: int, last: int, *, keys: list[str], width: int) -> None:
        """Note a run that was written."""
        self._note(_Noted(first, last, run, keys, width))

    def narrow(self, most: int, merge: Merge) -> None:
        """Merge runs until there are at most so many."""
        while len(self._noted) > most:
            before, self._noted = self._noted, []
            for at in range(0, len(before), most):
                some = before[at : at + most]
                if len(some) == 1:
                    self._noted += some
                    continue
                first, last = some[0].first, some[-1].last
                run = merge([noted.run for noted in some], self.name(first, last))
                keys = [key for noted in some for key in noted.keys]
                self._note(_Noted(first, last, run, keys, max(noted.width for noted in some)))
                for noted in some:
                    _note_path(noted.run.path).unlink(missing_ok=True)
                    noted.run.remove()

    def _note(self, noted: _Noted) -> None:
        run = noted.run
        note = {
            "boot": self._boot,
            "first": noted.first,
            "last": noted.last,
            "width": noted.width,
            "keys": noted.keys,
            "run": {"slices": run.slices, "rows": run.rows, "entries": run.entries},
            "content": checksum_path(run.path),
        }
        write_note(_note_path(run.path), note)
        self._noted.append(noted)

    def _read(self, path: Path) -> _Noted | None:
        try:
            told = read_note(path)
            run = StoredRun(str(path.with_suffix(".bin")), self._shape, **told["run"])
            noted = _Noted(told["first"], told["last"], run, told["keys"], told["width"])
            trusted = self._boot and told["boot"] == self._boot and run.whole
            return noted if trusted and told["content"] == checksum_path(run.path) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Sorter:
    """Collects rows, and sorts and sets them aside whenever they come to so many bytes.

    Writing goes on in the background while the next rows are collected, so twice ``most`` may be held.
    """

    def __init__(self, folder: RunFolder, shape: RowShape, numbering: Numbering, *, begin: int, most: int) -> None:
        self._folder, self._shape, self._numbering, self._most = folder, shape, numbering, most
        self._parts: list[Batch] = []
        self._numbers: list[Int64s] = []
        self._held = self._width = 0
        self._first = self._last = begin
        self._known = len(numbering)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-runs")
        self._writing: Future[None] | None = None

    def add(self, rows: Batch, numbers: Int64s, *, block: int, stored: int) -> None:
        """Take in a block's rows and the numbers of their groups; ``stored`` is what the block takes as it was read."""
        size = SORT_BYTES * len(rows) + (max(rows.nbytes, stored) if _shares(rows) else rows.nbytes)
        if self._parts and self._held + size > self._most:
            self._spill()
        self._parts.append(rows)
        self._numbers.append(numbers)
        self._held += size
        self._last = block + 1
        if isinstance(rows.x, Csr):
            self._width = max(self._width, rows.x.width)

    def finish(self) -> list[SortedRun]:
        """Return all runs: the rows themselves where they never had to be set aside."""
        if not self._folder.runs and self._writing is None:
            return [MemoryRun(*self._sorted())]
        if self._parts:
            self._spill()
        self._wait()
        return list(self._folder.runs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def _spill(self) -> None:
        self._wait()
        keys = [to_text(key) for key in islice(self._numbering.keys, self._known, None)]
        self._known += len(keys)
        first, last, width = self._first, self._last, self._width
        index, rows = self._sorted()
        self._first = last
        self._writing = self._pool.submit(self._write, index, rows, first, last, keys, width)

    def _sorted(self) -> tuple[GroupOffsets, Batch]:
        parts, numbers = self._parts, self._numbers
        self._parts, self._numbers, self._held = [], [], 0
        return sort_rows(parts, numbers, self._shape, groups=len(self._numbering))

    def _write(self, index: GroupOffsets, rows: Batch, first: int, last: int, keys: list[str], width: int) -> None:
        sizes: dict[str, Any] = {"slices": len(index.groups), "rows": len(rows), "entries": int(index.entries[-1])}
        writer = RunWriter(self._folder.name(first, last), self._shape, **sizes)
        try:
            writer.append(index.groups, index.rows[1:] - index.rows[:-1], rows)
            run = writer.close()
        except BaseException:
            writer.discard()
            raise
        self._folder.add(run, first, last, keys=keys, width=width)

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()


def _shares(rows: Batch) -> bool:
    """Whether rows may be views of a block as it was read."""
    return isinstance(rows.x, Csr) or rows.x.base is not None


def _note_path(path: str) -> Path:
    return Path(path).with_suffix(".json")
