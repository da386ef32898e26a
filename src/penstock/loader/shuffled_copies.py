"""A shuffled copy of the data, in bounded memory: what ``once`` and ``epoch`` cost.

Two passes. The first deals every row to one of several buckets at random; the second loads one bucket at a
time (dealing it once more where it is still too large), shuffles it and appends it to the copy. Each row's bucket
and its place in it are both random, so the copy is a uniform shuffle of the whole. The copy is in the packed
layout, and its size and time are counted.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count as numbers
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pyarrow as pa

from penstock import seeds
from penstock.blocks.base import BlockSource
from penstock.blocks.open import open as open_source
from penstock.blocks.write import BlockWriter
from penstock.budget import give_back
from penstock.errors import DataError, PenstockError, WriteError
from penstock.loader.row_forms import R, RowForm
from penstock.messages import Name, Text, Use
from penstock.outputs import own_folder

_PREFIX = ".penstock-copy-"
_BLOCK_SIZE = 256 * 1024
# Each bucket being written is an open file.
_BUCKETS = 256


@dataclass(frozen=True, slots=True)
class ShuffledCopy(Generic[R]):
    """A shuffled copy on disk, removed when closed."""

    source: BlockSource
    form: RowForm[R]
    folder: Path
    seconds: float
    disk_bytes: int
    """The most that lay on disk at once: a bucket is removed before its rows are written to the copy."""
    process: int = field(default_factory=os.getpid)

    def close(self) -> None:
        """Remove the copy; a forked process leaves it to the one that wrote it."""
        self.source.close()
        if self.process == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)


def shuffled_copy(
    stored: Callable[[], AbstractContextManager[Iterable[R]]],
    form: RowForm[R],
    *,
    row_bytes: float,
    data_bytes: int,
    memory: int,
    seed: int,
    epoch: int,
    folder: str | os.PathLike[str] | None,
) -> ShuffledCopy[R]:
    """Write a shuffled copy of all the rows.

    Parameters
    ----------
    stored : callable
        Opens the rows in stored order, targets already in place of labels; closed after the first pass, so that
        what reading holds is given back before the second.
    form : Form
        Of the rows that are copied.
    row_bytes, data_bytes, memory : int
        Decoded size of a row and of them all, and what may be held at a time.
    seed, epoch : int
        Which shuffle.
    folder : path
        Where to write; the system's temporary folder, if not given.
    """
    began = time.perf_counter()
    place = own_folder(_PREFIX, folder, what="a shuffled copy", remedy=Text("give another folder as ", Name("scratch")))
    try:
        buckets = _Buckets(place, memory, form, seeds.generator(seed, "copy", epoch), row_bytes)
        with stored() as batches:
            dealt = buckets.deal(batches, data_bytes)
        give_back()
        disk = sum(p.stat().st_size for p in dealt)
        if not dealt:
            raise DataError("there are no rows to shuffle a copy of")
        size = rows_per_block(row_bytes=row_bytes, data_bytes=data_bytes, memory=memory)
        path = place / "copy.arrow"
        with BlockWriter(path, buckets.schema, rows_per_block=size) as writer:
            for bucket in dealt:
                for batch in buckets.shuffled(bucket, size):
                    writer.write(batch)
        give_back()
        source = open_source(path)
    except BaseException as error:
        shutil.rmtree(place, ignore_errors=True)
        if isinstance(error, OSError) and (not isinstance(error, PenstockError) or isinstance(error, WriteError)):
            raise WriteError(
                f"cannot write a shuffled copy in {place.parent}: {error.strerror or error}",
                fixes=[
                    Text(
                        f"it needs about the data's size, {data_bytes / 1e9:.2g} GB: give another folder as ",
                        Name("scratch"),
                    ),
                    Text("use ", Use("shuffle", "corgipile"), ", which needs none"),
                ],
            ) from error
        raise
    disk = max(disk, path.stat().st_size)
    return ShuffledCopy(source, form.of_copy(source.schema), place, time.perf_counter() - began, disk)


def rows_per_block(*, row_bytes: float, data_bytes: int, memory: int) -> int:
    """Return the rows of a copy's blocks: no more than a small part of the memory, or of the data, however small."""
    return max(1, int(min(_BLOCK_SIZE, memory / 16, data_bytes / 64) / max(row_bytes, 1)))


class _Buckets(Generic[R]):
    """Rows dealt to files at random."""

    def __init__(self, place: Path, memory: int, form: RowForm[R], rng: np.random.Generator, row_bytes: float) -> None:
        self.schema: pa.Schema = pa.schema([])
        self._place = place
        # A third of the memory for the bucket as it lies on disk, its rows, and their shuffled copy.
        self._most = max(memory // 3, 1)
        self._form = form
        self._rng = rng
        self._names = numbers()
        self._row_bytes = row_bytes
        self._rows: dict[Path, int] = {}

    def deal(self, batches: Iterable[R], nbytes: int) -> list[Path]:
        """Write each row to a bucket chosen at random; return the buckets, or none where there are no rows."""
        count = max(1, min(_BUCKETS, -(-nbytes // self._most)))
        paths = [self._place / f"bucket-{next(self._names)}.arrows" for _ in range(count)]
        with contextlib.ExitStack() as stack:
            writers: list[Any] = []
            for batch in batches:
                if not writers:
                    plain = self._form.to_arrow(batch.slice(0, 0)).schema
                    self.schema = pa.schema([field.with_nullable(False) for field in plain])
                    sinks = [stack.enter_context(pa.OSFile(os.fspath(p), "wb")) for p in paths]
                    writers = [stack.enter_context(pa.ipc.new_stream(sink, plain)) for sink in sinks]
                owner = self._rng.integers(0, count, len(batch), np.uint16)
                by_owner = np.argsort(owner, kind="stable")
                ends = np.cumsum(np.bincount(owner, minlength=count)).tolist()
                sorted_rows = self._form.to_arrow(batch.take(by_owner))
                for path, writer, start, end in zip(paths, writers, [0, *ends], ends):
                    if end > start:
                        writer.write_batch(sorted_rows.slice(start, end - start))
                        self._rows[path] = self._rows.get(path, 0) + end - start
                del sorted_rows, by_owner  # before the next are made
        return paths if writers else []

    def shuffled(self, bucket: Path, rows: int, depth: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield a bucket's rows in random order, so many at a time, and remove it."""
        size = int(self._rows.pop(bucket, 0) * self._row_bytes)
        if size > 2 * self._most and depth < 8:
            with self._opened(bucket) as reader:
                smaller = self.deal((self._encode(batch) for batch in reader), size)
            bucket.unlink()
            for each in smaller:
                yield from self.shuffled(each, rows, depth + 1)
            return
        with self._opened(bucket) as reader:
            parts = list(reader)
        bucket.unlink()
        if parts:
            whole = self._encode(pa.concat_batches(parts))
            del parts
            picks = self._rng.permutation(len(whole))
            for start in range(0, len(picks), rows):
                yield self._form.to_arrow(whole.take(picks[start : start + rows]))

    @contextlib.contextmanager
    def _opened(self, bucket: Path) -> Iterator[Any]:
        with pa.OSFile(os.fspath(bucket), "rb") as file, pa.ipc.open_stream(file) as reader:
            yield reader

    def _encode(self, rows: pa.RecordBatch) -> R:
        return self._form.of_copy(rows.schema).decode(rows)
