"""Users and items by their keys: whole numbers or text, each with a position by falling frequency.

Counting takes a block at a time; what is held is the distinct keys alone. A `KeyTable` finds positions by a hash table
over 64-bit hashes that are distinct for all its keys, and compares the keys themselves for text, so a stranger is never
mistaken.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
from numpy.typing import NDArray

from penstock.columns.base import without_dictionary
from penstock.columns.hashing import murmur3
from penstock.errors import ColumnError, DataError, ModelFileError
from penstock.native import kernel
from penstock.outputs import atomic_path
from penstock.sealed import read_sealed, seal
from penstock.sgd.factor import ABSENT
from penstock.shuffle.permute import mix

_LEAST = 1 << 10
"""Keys that there is room for at first."""


def as_keys(array: pa.Array, column: str, *, first_row: int = 0, place: str = "") -> pa.Array:
    """Return a column as keys: int64, uint64 or large strings. Numbers of a text file, which are floats, must be whole.

    Examples
    --------
    >>> as_keys(pa.array([3.0, 4.0]), "user").to_pylist()
    [3, 4]
    """
    array = without_dictionary(array)
    if array.null_count:
        row = first_row + int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(f"{place} has no {column!r} in row {row}; remove such rows, or fill the gaps")
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    if pa.types.is_integer(kind):
        return array if kind == pa.uint64() else array.cast(pa.int64())
    if pa.types.is_floating(kind):
        values = array.to_numpy(zero_copy_only=False)
        bad = np.flatnonzero(~((np.floor(values) == values) & (np.abs(values) < 2**53)))
        if not len(bad):
            return pa.array(values.astype(np.int64))
        row, value = first_row + int(bad[0]), values[bad[0]]
        raise DataError(f"{place} has {value} as {column!r} in row {row}; keys are whole numbers or text")
    raise ColumnError(f"{place}: column {column!r} is {kind}; users and items are named by whole numbers or text")


class KeyCounts:
    """Distinct keys and how often each occurs, gathered block by block.

    Text is told apart by 128 bits of hashes, so that the keys themselves are looked at once.

    Examples
    --------
    >>> counts = KeyCounts()
    >>> counts.add(pa.array(["b", "a", "b"], pa.large_string()))
    >>> counts.table().keys.to_pylist()
    ['b', 'a']
    """

    def __init__(self) -> None:
        self._kind: pa.DataType = pa.int64()
        self._texts: list[pa.Array] = []
        self._found = np.empty((_LEAST, 2), np.uint64)
        self._counts = np.zeros(_LEAST, np.int64)
        self._places = np.full(2 * _LEAST, ABSENT, np.uint32)
        self._size = 0

    def add(self, keys: pa.Array) -> None:
        """Take in a block's keys."""
        self._kind, text = keys.type, pa.types.is_large_string(keys.type)
        if self._size + len(keys) > len(self._counts):
            self._grow(self._size + len(keys))
        low = hashed(keys, 0)
        high = hashed(keys, 1) if text else low
        new = np.empty(len(keys), np.int64)
        size = int(_tally(low, high, self._found, self._counts, self._places, self._size, new))
        if text and size > self._size:
            self._texts.append(keys.take(pa.array(new[: size - self._size])))
        self._size = size

    def _grow(self, least: int) -> None:
        size = 1 << (least - 1).bit_length()
        found, counts = self._found, self._counts
        self._found, self._counts = np.empty((size, 2), np.uint64), np.zeros(size, np.int64)
        self._found[: self._size], self._counts[: self._size] = found[: self._size], counts[: self._size]
        self._places = np.full(2 * size, ABSENT, np.uint32)
        _build(np.ascontiguousarray(self._found[: self._size, 0]), self._places, True)

    def table(self) -> KeyTable:
        """Return the keys by falling frequency; of those met equally often, the lesser first."""
        counts = self._counts[: self._size]
        if self._texts:
            keys = pa.concat_arrays(self._texts)
            ordered = pa.table({"key": keys, "count": counts}).sort_by([("count", "descending"), ("key", "ascending")])
            return KeyTable(ordered.column("key").combine_chunks(), ordered.column("count").to_numpy())
        numbers = self._found[: self._size, 0].view(np.uint64 if self._kind == pa.uint64() else np.int64)
        order = np.lexsort((numbers, -counts))
        return KeyTable(pa.array(numbers[order], self._kind), counts[order])


class KeyTable:
    """Distinct keys, as `as_keys` gives them, in the order of their positions, with how often each occurs.

    Examples
    --------
    >>> table = KeyTable(pa.array([30, 10], pa.int64()), np.array([5, 2]))
    >>> table.find(pa.array([10, 11, 30], pa.int64())).tolist() == [1, int(ABSENT), 0]
    True
    """

    def __init__(self, keys: pa.Array, counts: NDArray[np.int64]) -> None:
        self.keys = keys
        self.counts = counts
        size = 1 << max(3, (2 * len(keys) - 1).bit_length())
        self._places = np.full(size, ABSENT, np.uint32)
        self._seed = 0
        while True:
            self._hashes = hashed(keys, self._seed)
            if _build(self._hashes, self._places, False):
                break
            self._seed += 1  # two keys of one hash; among a million keys, once in 10**7 tables
            self._places[:] = ABSENT

    def __len__(self) -> int:
        return len(self.keys)

    def find(self, keys: pa.Array) -> NDArray[np.uint32]:
        """Return each key's position; ABSENT where it is not there."""
        text = pa.types.is_large_string(self.keys.type)
        if pa.types.is_large_string(keys.type) != text:
            kinds = ("whole numbers", "text")
            raise ColumnError(
                f"keys that are {kinds[not text]} came where the model's are {kinds[text]}; give them as those"
            )
        out = np.empty(len(keys), np.uint32)
        _lookup(hashed(keys, self._seed), self._hashes, self._places, out)
        if text:
            known = np.flatnonzero(out != ABSENT)
            same = pc.equal(self.keys.take(pa.array(out[known])), keys.take(pa.array(known)))
            out[known[~same.to_numpy(zero_copy_only=False)]] = ABSENT
        elif keys.type != self.keys.type:  # signed or not, numbers of the upper half have the other's bits
            out[keys.to_numpy(zero_copy_only=False).view(np.int64) < 0] = ABSENT
        return out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as an Arrow file of the columns key and count."""
        batch = pa.record_batch({"key": self.keys, "count": pa.array(self.counts)})
        with atomic_path(path) as temporary:
            with ipc.new_file(str(temporary), batch.schema) as writer:
                writer.write_batch(batch)
            seal(temporary)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KeyTable:
        """Read a table that `save` wrote."""
        try:
            table = ipc.open_file(pa.BufferReader(read_sealed(path))).read_all()
            keys = table.column("key").combine_chunks()
            if keys.type not in (pa.int64(), pa.uint64(), pa.large_string()) or keys.null_count:
                raise pa.ArrowInvalid(f"keys of type {keys.type}")
            return cls(keys, table.column("count").to_numpy().astype(np.int64))
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise ModelFileError(
                f"{Path(path)} is not a whole table of keys: {error}; restore the model's directory from a copy"
            ) from error


def hashed(keys: pa.Array, seed: int) -> NDArray[np.uint64]:
    """Return a hash of each text, or the bits of each number."""
    if not pa.types.is_large_string(keys.type):
        numbers: NDArray[np.uint64] = keys.to_numpy(zero_copy_only=False).view(np.uint64)
        return numbers
    out = np.empty(len(keys), np.uint64)
    if len(keys):
        _, offsets, data = keys.buffers()
        places = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1]
        content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
        _hash_texts(places, content, np.uint32(seed), out)
    return out


@kernel(fast=False)
def _hash_texts(offsets: Any, data: Any, seed: Any, out: Any) -> None:
    for row in range(len(out)):
        low = murmur3(data, offsets[row], offsets[row + 1], np.uint32(2) * seed)
        high = murmur3(data, offsets[row], offsets[row + 1], np.uint32(2) * seed + np.uint32(1))
        out[row] = (np.uint64(high) << np.uint64(32)) | np.uint64(low)


@kernel(fast=False)
def _build(hashes: Any, places: Any, repeated: Any) -> Any:
    """Enter each hash by open addressing; unless they may be repeated, False where two are the same."""
    mask = np.uint64(len(places) - 1)
    for position in range(len(hashes)):
        at = mix(hashes[position]) & mask
        while places[at] != ABSENT:
            if not repeated and hashes[places[at]] == hashes[position]:
                return False
            at = (at + np.uint64(1)) & mask
        places[at] = position
    return True


@kernel(fast=False)
def _tally(low: Any, high: Any, found: Any, counts: Any, places: Any, size: Any, new: Any) -> Any:
    """Count keys by their two hashes, entering those not met before; note their rows, and return how many there are."""
    mask, first = np.uint64(len(places) - 1), size
    for row in range(len(low)):
        at = mix(low[row]) & mask
        while places[at] != ABSENT and (found[places[at], 0] != low[row] or found[places[at], 1] != high[row]):
            at = (at + np.uint64(1)) & mask
        if places[at] == ABSENT:
            places[at] = size
            found[size, 0], found[size, 1] = low[row], high[row]
            new[size - first] = row
            size += 1
        counts[places[at]] += 1
    return size


@kernel(fast=False)
def _lookup(wanted: Any, hashes: Any, places: Any, out: Any) -> None:
    mask = np.uint64(len(places) - 1)
    for row in range(len(wanted)):
        at = mix(wanted[row]) & mask
        while places[at] != ABSENT and hashes[places[at]] != wanted[row]:
            at = (at + np.uint64(1)) & mask
        out[row] = places[at]
