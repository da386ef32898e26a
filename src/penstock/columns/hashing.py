"""Signed feature hashing: text and categories into a sparse row of fixed width.

A value's hash is MurmurHash3 (32 bits, x86) of its UTF-8 bytes, seeded with the same hash (seed 0) of its
column's name. The low ``bits`` bits are the index within the column's range, and the top bit is the sign:
0 gives +1, 1 gives -1. For more than 31 bits, which only wide rows have, the value's hash has 64 bits: the low half
is the hash above, the high half the same hash of the same bytes seeded with the low half; again the low ``bits`` bits
are the index and the top bit is the sign. A model stays valid as long as these rules do; they are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Csr, Floats, indices_of, join_parts
from penstock.columns.base import NO_FLAGS, Place, as_texts, is_list, null_mask, require_type, saved, without_dictionary
from penstock.errors import ColumnError, UsageError
from penstock.messages import Name, Text, Use
from penstock.native import kernel

DEFAULT_BITS = 20
NARROW_BITS, MOST_BITS = 31, 62
_SPEC = re.compile(r"(?P<column>.+?)(?::(?:2\^)(?P<bits>\d+))?(?P<words>:words)?")


@dataclass(frozen=True, slots=True)
class Hashed:
    """One column to hash: into ``2**bits`` features, as a whole or word by word.

    ``missing`` adds a feature, after the others, that tells that the value is missing; ``null_values`` are texts that stand for
    a missing value.

    Examples
    --------
    >>> Hashed.parse("comment:2^18:words")
    Hashed(column='comment', bits=18, words=True)
    """

    kind: ClassVar[str] = "hash"
    sparse: ClassVar[bool] = True
    names: ClassVar[tuple[str, ...]] = ()

    column: str
    bits: int = DEFAULT_BITS
    words: bool = False
    missing: bool = field(default=False, repr=False)
    null_values: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise UsageError(
                f": the power must be from 2^1 to 2^{NARROW_BITS}, or to 2^{MOST_BITS} for a model with a ",
                Name("model_dir"),
                " (penstock.bigmodel)",
                option="hash",
                value=f"{self.column}:2^{self.bits}",
            )

    @classmethod
    def parse(cls, text: str | Hashed) -> Hashed:
        """Read ``COLUMN[:2^BITS][:words]``."""
        if isinstance(text, Hashed):
            return text
        match = _SPEC.fullmatch(text)
        if not match or ":2^" in match["column"]:
            raise UsageError(
                "cannot be read", option="hash", value=text, fixes=["write COLUMN, COLUMN:2^20 or COLUMN:2^18:words"]
            )
        return cls(match["column"], int(match["bits"] or DEFAULT_BITS), bool(match["words"]))

    @property
    def columns(self) -> tuple[str, ...]:
        """The stored column."""
        return (self.column,)

    @property
    def name(self) -> str:
        """The stored column."""
        return self.column

    @property
    def cardinality(self) -> int:
        """How many numbers `ids` gives: one for each bucket, and one for missing values."""
        return self.buckets + 1

    @property
    def buckets(self) -> int:
        """How many features values are hashed to."""
        return 1 << self.bits

    @property
    def width(self) -> int:
        """How many features the column becomes."""
        return self.buckets + self.missing

    def feature_name(self, place: int) -> str:
        """Return ``column#bucket``."""
        return f"{self.column}#{place}" if place < self.buckets else f"{self.column} is missing"

    @property
    def flags(self) -> NDArray[np.bool_]:
        """No feature keeps its size."""
        return NO_FLAGS

    def write(self, array: pa.Array, into: Floats, place: Place) -> None:
        """Refuse: hashed features are too many to be written where they are 0."""
        raise UsageError(f"{self.column!r} is hashed; its features are not written as columns")

    def sparse_rows(self, arrays: Sequence[pa.Array], place: Place, *, wide: bool) -> Csr:
        """Hash some rows; see `encode`."""
        return self.encode(arrays[0], wide=wide)

    def require_kind(self, schema: pa.Schema, *, place: str) -> None:
        """Raise where the column cannot be hashed."""
        require_type(schema, self.column, fits=lambda kind: not is_list(kind), learnt="values to hash", place=place)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        made = saved(self, missing=self.missing, null_values=self.null_values)
        return made | {"hashed": [self.column, self.bits, self.words]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Hashed:
        """Build the column again."""
        column, bits, words = data["hashed"]
        return cls(column, bits, words, data.get("missing", False), tuple(data.get("null_values", ())))

    def facts(self) -> dict[str, Any]:
        """Return what a table of the columns shows."""
        how = f"2^{self.bits}" + (", by words" if self.words else "")
        return {"levels": how, "missing": "own feature" if self.missing else "no feature"}

    def ids(self, array: pa.Array, place: Place) -> NDArray[np.int64]:
        """Return the bucket of each row's value, missing ones the number after the last; texts are hashed as a whole."""
        return replace(self, words=False, missing=True).encode(array, wide=True).indices.astype(np.int64)

    def require_narrow(self) -> None:
        """Raise where there are more buckets than a model in memory can have."""
        if self.bits > NARROW_BITS:
            raise UsageError(
                "makes more features than a model in memory can have",
                option="hash",
                value=f"{self.column}:2^{self.bits}",
                fixes=[
                    Text("train with penstock.bigmodel (", Use("model_dir"), ")"),
                    f"hash to 2^{NARROW_BITS} or fewer",
                ],
            )

    def encode(self, array: pa.Array, *, wide: bool = False) -> Csr:
        """Hash an array: one entry per value (or word); a null has none, since a missing category is no category.

        Words that stand in a text several times are one entry: steps are bounded by the size of rows, which repeated entries
        would understate.
        """
        if not wide:
            self.require_narrow()
        if self.null_values:
            array = as_texts(array, self.null_values)
        offsets, data = _as_text(array, self.column)
        seed = np.uint32(murmur3_reference(self.column.encode(), 0))
        missing = null_mask(array) if array.null_count else np.zeros(len(array), np.bool_)
        if self.words:
            counts = np.empty(len(array), np.uint64)
            count_words(offsets, data, counts)
            counts[missing] = 0
        else:
            counts = (~missing).astype(np.uint64)
        indptr = np.zeros(len(array) + 1, np.uint64)
        np.cumsum(counts, out=indptr[1:])
        indices = indices_of(int(indptr[-1]), wide=wide)
        values = np.empty(int(indptr[-1]), np.float32)
        wide_hash, mask = self.bits > NARROW_BITS, np.uint64(self.buckets - 1)
        hash_rows(offsets, data, indptr, seed, mask, wide_hash, self.words, indices, values)
        if self.words and len(indices):
            slots = np.full(1 << int(2 * counts.max()).bit_length(), -1, np.int64)
            used = add_repeats(indptr, indices, values, slots)
            indices, values = indices[:used], values[:used]
        rows = Csr(indptr, indices, values, self.buckets)
        return join_parts([rows, _flagged(missing, wide=wide)], wide=wide) if self.missing else rows


def _flagged(missing: NDArray[np.bool_], *, wide: bool) -> Csr:
    """Return one feature that is 1 where a value is missing."""
    starts = np.concatenate([np.zeros(1, np.uint64), np.cumsum(missing, dtype=np.uint64)])
    places = indices_of(int(starts[-1]), wide=wide)
    places[:] = 0
    return Csr(starts, places, np.ones(len(places), np.float32), 1)


def _as_text(array: pa.Array, column: str) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each value's UTF-8 bytes lie; numbers and dates are written as text first."""
    try:
        return text_bytes(array)
    except (pa.ArrowException, NotImplementedError) as error:
        raise ColumnError(f"column {column!r} is {array.type}, which cannot be hashed; hash text or numbers") from error


def text_bytes(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each value's UTF-8 bytes lie, and the bytes; of anything that can be written as text."""
    array = without_dictionary(array)
    kind = array.type
    if not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
        array = array.cast(pa.large_binary() if pa.types.is_binary(kind) else pa.large_string())
    if len(array) == 0:
        return np.zeros(1, np.int64), np.zeros(1, np.uint8)
    _, offsets, data = array.buffers()
    places = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return places, content


@kernel(inline=True)
def _rotate(x: Any, by: Any) -> Any:
    return np.uint32((x << np.uint32(by)) | (x >> np.uint32(32 - by)))


@kernel
def murmur3(data: Any, start: Any, stop: Any, seed: Any) -> Any:
    """MurmurHash3 x86 32 of ``data[start:stop]``."""
    h = np.uint32(seed)
    length = stop - start
    blocks = length // 4
    for b in range(blocks):
        at = start + 4 * b
        k = np.uint32(
            np.uint32(data[at])
            | (np.uint32(data[at + 1]) << np.uint32(8))
            | (np.uint32(data[at + 2]) << np.uint32(16))
            | (np.uint32(data[at + 3]) << np.uint32(24))
        )
        k = np.uint32(k * np.uint32(0xCC9E2D51))
        k = np.uint32(_rotate(k, 15) * np.uint32(0x1B873593))
        h = np.uint32(_rotate(np.uint32(h ^ k), 13) * np.uint32(5) + np.uint32(0xE6546B64))
    k = np.uint32(0)
    for i in range(length - 4 * blocks):
        k = np.uint32(k | (np.uint32(data[start + 4 * blocks + i]) << np.uint32(8 * i)))
    if length > 4 * blocks:
        k = np.uint32(k * np.uint32(0xCC9E2D51))
        h = np.uint32(h ^ np.uint32(_rotate(k, 15) * np.uint32(0x1B873593)))
    h = np.uint32(h ^ np.uint32(length))
    h = np.uint32((h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32((h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


def murmur3_reference(data: bytes, seed: int) -> int:
    """MurmurHash3 x86 32 in plain Python."""
    mask = 0xFFFFFFFF
    h = seed
    whole = len(data) // 4 * 4
    for at in range(0, len(data), 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & mask
        k = ((k << 15 | k >> 17) & mask) * 0x1B873593 & mask
        h ^= k
        if at < whole:
            h = ((h << 13 | h >> 19) & mask) * 5 + 0xE6546B64 & mask
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


@kernel(inline=True)
def _blank(byte: Any) -> Any:
    return byte == 32 or (byte >= 9 and byte <= 13)


@kernel
def count_words(offsets: Any, data: Any, counts: Any) -> None:
    """Count each text's words: runs of bytes that are not ASCII white space."""
    for row in range(len(counts)):
        count = 0
        inside = False
        for at in range(offsets[row], offsets[row + 1]):
            blank = _blank(data[at])
            if not blank and not inside:
                count += 1
            inside = not blank
        counts[row] = count


@kernel
def hash_rows(
    offsets: Any, data: Any, indptr: Any, seed: Any, mask: Any, wide: Any, words: Any, indices: Any, values: Any
) -> None:
    """Hash each row's text, or its words, into indices and signs; rows of no entries are passed over.

    ``wide`` hashes have 64 bits, others 32.
    """
    for row in range(len(indptr) - 1):
        entry = indptr[row]
        end = indptr[row + 1]
        at = offsets[row]
        stop = offsets[row + 1]
        while entry < end:
            last = stop
            if words:
                while at < stop and _blank(data[at]):
                    at += 1
                last = at
                while last < stop and not _blank(data[last]):
                    last += 1
            code = murmur3(data, at, last, seed)
            index = np.uint64(code)
            if wide:
                code = murmur3(data, at, last, code)
                index |= np.uint64(code) << np.uint64(32)
            indices[entry] = index & mask
            values[entry] = np.float32(-1.0) if code >> np.uint32(31) else np.float32(1.0)
            entry += np.uint64(1)
            at = last


@kernel
def add_repeats(indptr: Any, indices: Any, values: Any, slots: Any) -> Any:
    """Add up the values of entries of one row that have the same index, in place; return how many entries are left.

    ``slots`` is a hash table of twice a row's entries or more, of -1 at first: it holds where an index was written. What earlier
    rows wrote lies before the row's begin, so that nothing has to be cleared.
    """
    mask = len(slots) - 1
    left = 0
    at = np.int64(indptr[0])
    for row in range(len(indptr) - 1):
        begin = left
        stop = np.int64(indptr[row + 1])
        while at < stop:
            index = indices[at]
            slot = np.int64(index & np.uint64(mask))
            while slots[slot] >= begin and indices[slots[slot]] != index:
                slot = (slot + 1) & mask
            if slots[slot] >= begin:
                values[slots[slot]] += values[at]
            else:
                slots[slot] = left
                indices[left] = index
                values[left] = values[at]
                left += 1
            at += 1
        indptr[row + 1] = left
    return left


def hash_rows_reference(texts: list[str | None], spec: Hashed) -> list[list[tuple[int, float]]]:
    """Return each row's (index, value) pairs, in plain Python."""
    seed = murmur3_reference(spec.column.encode(), 0)
    rows = []
    for text in texts:
        data = [] if text is None else [text.encode()]
        pieces = [w for t in data for w in t.split()] if spec.words else data
        codes = [murmur3_reference(piece, seed) for piece in pieces]
        top = NARROW_BITS
        if spec.bits > NARROW_BITS:
            codes = [murmur3_reference(piece, code) << 32 | code for piece, code in zip(pieces, codes, strict=True)]
            top = 63
        row: dict[int, float] = {}
        for code in codes:
            index = code & (spec.buckets - 1)
            row[index] = row.get(index, 0.0) + (-1.0 if code >> top else 1.0)
        rows.append(list(row.items()))
    return rows
