"""The index map on disk: which position each feature that occurs has.

`map.bin` holds the features mixed into uniform bits (`buckets.mix_all`) in ascending order, cut by their top bits into
leaves of some thousand; a leaf has its mixed features, then their positions, and a checksum in the directory at the
head of the file. Only the directory is held in memory. A feature that is not in its leaf does not occur.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.bigmodel.buckets import UInt32s, UInt64s, mix_all, unmix
from penstock.bigmodel.pages import ABSENT
from penstock.blocks.storage import LocalFile
from penstock.closing import Closing
from penstock.errors import CorruptFileError, WriteError
from penstock.native import kernel
from penstock.outputs import byte_view, read_array, write_at, write_error

_ROOM = "preparing needs room for about twice the data beside the model: make room or choose another folder"


class ScratchFile(Closing):
    """One file of raw bytes.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> folder = tempfile.TemporaryDirectory()
    >>> with ScratchFile(os.path.join(folder.name, "numbers")) as spill:
    ...     at = spill.append(np.arange(5))
    ...     spill.read(at + 16, np.empty(2, np.int64)).tolist()
    [2, 3]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.size = 0
        self._lock = threading.Lock()
        try:
            self._fd: int | None = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise write_error(self.path, error, room=_ROOM) from error

    def reserve(self, nbytes: int) -> int:
        """Set so many bytes aside, and return where they begin."""
        with self._lock:
            at, self.size = self.size, self.size + nbytes
        return at

    def append(self, *arrays: NDArray[Any]) -> int:
        """Write arrays one after another, and return where the first begins."""
        at = self.reserve(sum(array.nbytes for array in arrays))
        to = at
        for array in arrays:
            self.write(to, array)
            to += array.nbytes
        return at

    def write(self, at: int, array: NDArray[Any]) -> None:
        """Write an array's bytes at a place."""
        fd = self._open
        try:
            write_at(fd, byte_view(array), at)
        except OSError as error:
            raise write_error(self.path, error, room=_ROOM) from error

    def read(self, at: int, into: NDArray[Any]) -> NDArray[Any]:
        """Fill an array with the bytes at a place, and return it."""
        return read_array(self._open, into, at, name=self.path)

    def drop(self) -> None:
        """Give up what was written, also what the system has not brought to disk yet."""
        os.ftruncate(self._open, 0)
        self.size = 0

    def sync(self) -> None:
        """Wait until all is on disk."""
        try:
            os.fsync(self._open)
        except OSError as error:
            raise write_error(self.path, error, room=_ROOM) from error

    def close(self) -> None:
        """Close the file; it stays where it is."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    @property
    def _open(self) -> int:
        if self._fd is None:
            raise WriteError(f"{self.path} is closed")
        return self._fd


NAME = "map.bin"
LEAF = 8192
"""A leaf has from half as many features to as many, but for chance and for small maps."""
_MAGIC = b"PENSTOCK-MAP-1\n\0"
_HEAD = struct.Struct("<16sQQQQ")
_ENTRY = 12
# What looking one feature up holds: mixed, mixed again by leaf, the place it comes from, and the answer.
_QUERY = 32
_RUN = 1 << 20
_STEP = 64


class MapWriter:
    """Writes `map.bin`, bucket by bucket in any order and from several threads.

    Features are mixed with ``key``; ``sizes`` holds the number of features of each bucket, a power of two of them.
    """

    def __init__(self, path: str | os.PathLike[str], *, key: np.uint64, sizes: NDArray[np.int64]) -> None:
        self._key, self._features = key, int(sizes.sum())
        bits = len(sizes).bit_length() - 1
        self._bits = max(bits, (self._features // LEAF).bit_length())
        self._leaves = 1 << (self._bits - bits)
        self._counts = np.zeros((len(sizes), self._leaves), np.uint32)
        self._checks = np.zeros_like(self._counts)
        self._starts = _HEAD.size + 8 * self._counts.size + _ENTRY * (np.cumsum(sizes) - sizes)
        self._spill = ScratchFile(path)

    def add(self, bucket: int, mixed: UInt64s, positions: UInt32s) -> None:
        """Write a bucket's features, mixed and ascending, with their positions."""
        first = bucket * self._leaves
        edges = np.arange(first + 1, first + self._leaves, dtype=np.uint64) << np.uint64(64 - self._bits)
        cuts = [0, *np.searchsorted(mixed, edges).tolist(), len(mixed)]
        out = np.empty(3 * len(mixed), np.uint32)
        for leaf, (start, stop) in enumerate(pairwise(cuts)):
            part = out[3 * start : 3 * stop]
            part[: 2 * (stop - start)] = mixed[start:stop].view(np.uint32)
            part[2 * (stop - start) :] = positions[start:stop]
            self._counts[bucket, leaf] = stop - start
            self._checks[bucket, leaf] = zlib.crc32(part.data)
        self._spill.write(int(self._starts[bucket]), out)

    def finish(self) -> int:
        """Write the directory, wait until all is on disk, and return the file's bytes."""
        directory = np.concatenate([self._counts.reshape(-1), self._checks.reshape(-1)])
        known = (int(self._key), self._features, self._bits)
        head = _HEAD.pack(_MAGIC, *known, _check(known, directory))
        self._spill.write(0, np.frombuffer(head, np.uint8))
        self._spill.write(_HEAD.size, directory)
        self._spill.sync()
        self.close()
        return _HEAD.size + directory.nbytes + _ENTRY * self._features

    def close(self) -> None:
        """Close the file, finished or not."""
        self._spill.close()


class IndexMap(Closing):
    """Finds the positions of features.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> mixed = np.empty(2, np.uint64)
    >>> mix_all(np.array([3, 2**40], np.uint64), np.uint64(0), mixed)
    >>> order = np.argsort(mixed)
    >>> writer = MapWriter(os.path.join(folder.name, NAME), key=np.uint64(0), sizes=np.array([2]))
    >>> writer.add(0, mixed[order], np.array([7, 8], np.uint32)[order])
    >>> _ = writer.finish()
    >>> with IndexMap.open(folder.name) as index:
    ...     index.positions(np.array([2**40, 5, 3], np.uint64)).tolist()
    [8, 4294967295, 7]
    """

    def __init__(self, path: str | os.PathLike[str], *, memory: int = 64_000_000) -> None:
        self._file = LocalFile(path, random=True)
        self._query = max(memory // _QUERY, 1)
        try:
            self._read_directory()
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, memory: int = 64_000_000) -> IndexMap:
        """Open the map of a model's folder; ``memory`` is what looking many features up at once may take."""
        return cls(os.path.join(folder, NAME), memory=memory)

    def __len__(self) -> int:
        return self.features

    def positions(self, features: NDArray[np.integer]) -> UInt32s:
        """Return each feature's position, or `ABSENT`; leaves are read once for as many features as memory allows."""
        wanted = np.ascontiguousarray(features, np.uint64)
        out = np.empty(len(wanted), np.uint32)
        for start in range(0, len(wanted), self._query):
            self._find(wanted[start : start + self._query], out[start : start + self._query])
        return out

    def items(self) -> Iterator[tuple[UInt64s, UInt32s]]:
        """Yield all features with their positions, some leaves at a time, in the order of the file."""
        for first, stop in self._runs(np.arange(len(self._counts))):
            for leaf, words in self._leaves(first, stop):
                count = int(self._counts[leaf])
                yield unmix(words[: 2 * count].copy().view(np.uint64), self._key), words[2 * count :].copy()

    def check(self) -> None:
        """Raise `CorruptFileError` where a part of the map is not what was written."""
        for first, stop in self._runs(np.arange(len(self._counts))):
            for _ in self._leaves(first, stop):
                pass

    def close(self) -> None:
        self._file.close()

    def _read_directory(self) -> None:
        name, size = self._file.name, self._file.size
        if size < _HEAD.size:
            raise CorruptFileError(f"{name} has {size} bytes, too few for an index map; prepare the data again")
        magic, key, features, bits, check = _HEAD.unpack(self._file.read_at(0, _HEAD.size))
        if magic != _MAGIC:
            raise CorruptFileError(f"{name} is not an index map; prepare the data again")
        self.features = int(features)
        self._start = _HEAD.size + (8 << min(bits, 40))
        if size != self._start + _ENTRY * self.features:
            raise CorruptFileError(
                f"{name} has {size} bytes where its head tells of {self._start + _ENTRY * self.features}; it was cut short"
                " or changed: prepare the data again"
            )
        directory = np.frombuffer(self._file.read_at(_HEAD.size, 8 << bits), np.uint32)
        if _check((key, features, bits), directory) != check:
            raise CorruptFileError(
                f"{name} is damaged: its directory does not match its checksum; prepare the data again"
            )
        self._key, self._bits = np.uint64(key), bits
        self._counts, self._checks = directory[: 1 << bits].astype(np.int64), directory[1 << bits :]
        self._ends = np.cumsum(self._counts)
        if int(self._ends[-1]) != self.features:
            raise CorruptFileError(f"{name} is damaged: its leaves do not add up; prepare the data again")

    def _find(self, features: UInt64s, out: UInt32s) -> None:
        mixed = np.empty(len(features), np.uint64)
        mix_all(features, self._key, mixed)
        ends = np.zeros(len(self._counts), np.int64)
        count_leaves(mixed, self._bits, ends)
        wanted = np.flatnonzero(ends)
        np.cumsum(ends, out=ends)
        starts = np.concatenate([[0], ends[:-1]])
        grouped, order = np.empty_like(mixed), np.empty(len(mixed), np.int64)
        group_by_leaf(mixed, self._bits, starts.copy(), grouped, order)
        for first, stop in self._runs(wanted):
            for leaf, words in self._leaves(first, stop):
                here = slice(starts[leaf], ends[leaf])
                seek(words, self._bits, grouped[here], order[here], out)

    def _runs(self, leaves: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield runs of neighbouring leaves that are read at once."""
        at = 0
        while at < len(leaves):
            first = stop = int(leaves[at])
            base = int(self._ends[first] - self._counts[first])
            while at < len(leaves) and leaves[at] == stop:
                if stop > first and _ENTRY * (int(self._ends[stop]) - base) > _RUN:
                    break
                stop += 1
                at += 1
            yield first, stop

    def _leaves(self, first: int, stop: int) -> Iterator[tuple[int, UInt32s]]:
        """Yield leaves with the words that they hold, having compared their checksums."""
        base = int(self._ends[first] - self._counts[first])
        size = _ENTRY * (int(self._ends[stop - 1]) - base)
        data = np.frombuffer(self._file.read_at(self._start + _ENTRY * base, size), np.uint32)
        at = 0
        for leaf in range(first, stop):
            words = data[at : at + 3 * int(self._counts[leaf])]
            at += len(words)
            if zlib.crc32(words.data) != self._checks[leaf]:
                raise CorruptFileError(
                    f"{self._file.name} is damaged: leaf {leaf} at byte {self._start + _ENTRY * base} does not match its"
                    " checksum; prepare the data again"
                )
            yield leaf, words


def _check(known: tuple[int, int, int], directory: UInt32s) -> int:
    return zlib.crc32(directory.data, zlib.crc32(struct.pack("<QQQ", *known)))


@kernel(inline=True)
def _leaf(mixed: Any, bits: Any) -> Any:
    return (mixed >> np.uint64(1)) >> np.uint64(63 - bits)


@kernel
def count_leaves(mixed: Any, bits: Any, counts: Any) -> None:
    """Count the features of each leaf."""
    for i in range(len(mixed)):
        counts[_leaf(mixed[i], bits)] += 1


@kernel
def group_by_leaf(mixed: Any, bits: Any, cursors: Any, grouped: Any, order: Any) -> None:
    """Put features of one leaf side by side, with the places they come from; ``cursors`` says where each leaf begins."""
    for i in range(len(mixed)):
        leaf = _leaf(mixed[i], bits)
        to = cursors[leaf]
        cursors[leaf] = to + 1
        grouped[to] = mixed[i]
        order[to] = i


@kernel
def seek(words: Any, bits: Any, mixed: Any, order: Any, out: Any) -> None:
    """Find features in their leaf; answer ``i`` goes to ``out[order[i]]``.

    Mixed features are uniform: where one must be is known but for chance. From there on ever longer steps find two
    places that it lies between, and halving finds it.
    """
    count = len(words) // 3
    for i in range(len(mixed)):
        wanted = mixed[i]
        guess = np.int64((((wanted << np.uint64(bits)) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))
        step = _STEP
        low: Any = max(guess - step, 0)
        while low > 0 and _word(words, low) > wanted:
            step *= 2
            low = max(low - step, 0)
        step = _STEP
        high: Any = min(guess + step, count)
        while high < count and _word(words, high) < wanted:
            step *= 2
            high = min(high + step, count)
        while low < high:
            half = (low + high) // 2
            if _word(words, half) < wanted:
                low = half + 1
            else:
                high = half
        out[order[i]] = words[2 * count + low] if low < count and _word(words, low) == wanted else ABSENT


@kernel(inline=True)
def _word(words: Any, at: Any) -> Any:
    return np.uint64(words[2 * at]) | (np.uint64(words[2 * at + 1]) << np.uint64(32))


def seek_reference(words: UInt32s, bits: int, mixed: UInt64s, order: NDArray[np.int64], out: UInt32s) -> None:
    """Do the same in Python."""
    count = len(words) // 3
    known = dict(zip(words[: 2 * count].copy().view(np.uint64).tolist(), words[2 * count :].tolist(), strict=True))
    for place, wanted in zip(order.tolist(), mixed.tolist(), strict=True):
        out[place] = known.get(wanted, ABSENT)
