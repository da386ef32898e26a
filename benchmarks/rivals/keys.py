"""What a chunk asks of a key-value store: its distinct keys, and which number under which key each entry means.

A feature has a key of its own, or it shares one with the others of its partition (section 5: composite keys). Numbers
under one key lie in the partition's order. Nothing here is larger than the partitions and the chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.rivals.arrays import Features
from benchmarks.rivals.chunked import distinct
from penstock.batch import Csr
from penstock.errors import UsageError

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Asked:
    """The keys of a chunk and the cells, all numbers under all its keys, one key after the other.

    Attributes
    ----------
    composite : list of bytes
        The keys of partitions, ascending; their numbers come first.
    sizes : int64 array
        How many numbers each of them has.
    own : list of bytes
        The keys of features that have one each, ascending.
    touched : int64 array
        The cell of each distinct feature; other cells belong to features that the chunk does not hold.
    places : uint32 array
        The cell of each entry of the rows.
    """

    composite: list[bytes]
    sizes: Int64s
    own: list[bytes]
    touched: Int64s
    places: NDArray[np.uint32]

    @property
    def requests(self) -> int:
        """The number of keys."""
        return len(self.composite) + len(self.own)


class Keys:
    """The key of every feature.

    Parameters
    ----------
    partitions : iterable of arrays
        Features that share a key, such as Algorithm 3's; those of one feature need not be named.

    Examples
    --------
    >>> keys = Keys([np.array([1, 5]), np.array([2, 3])])
    >>> rows = Csr(np.array([0, 4], np.uint64), np.array([3, 2, 6, 5], np.uint32), np.ones(4, np.float32), 7)
    >>> asked = keys.ask(rows)
    >>> asked.requests, asked.places.tolist()
    (3, [3, 2, 4, 1])
    """

    def __init__(self, partitions: Iterable[NDArray[np.integer]] = ()) -> None:
        shared = [np.asarray(part) for part in partitions if len(part) > 1]
        if any(part.dtype.kind not in "iu" or int(part.min()) < 0 for part in shared):
            raise UsageError("a partition holds something that is no feature; features are numbers from 0 on")
        sizes = np.array([len(part) for part in shared], np.int64)
        features = np.concatenate([np.zeros(0, np.uint64), *(part.astype(np.uint64) for part in shared)])
        order = np.argsort(features, kind="stable")
        self._features: NDArray[np.uint64] = features[order]
        again = np.flatnonzero(self._features[1:] == self._features[:-1])
        if len(again):
            raise UsageError(f"feature {self._features[again[0]]} is in two partitions; it can have one key only")
        begins = np.cumsum(sizes) - sizes
        self._part = np.repeat(np.arange(len(shared)), sizes)[order]
        self._spot = (np.arange(len(features)) - np.repeat(begins, sizes))[order]
        self._sizes = sizes

    def ask(self, rows: Csr) -> Asked:
        """Return what rows ask for."""
        features, places = distinct(rows)
        asked = self.find(features)
        return Asked(asked.composite, asked.sizes, asked.own, asked.touched, asked.touched[places].astype(np.uint32))

    def find(self, features: Features) -> Asked:
        """Return what distinct features ask for, each being an entry."""
        wanted = features.astype(np.uint64)
        at = np.searchsorted(self._features, wanted)
        shares = np.zeros(len(wanted), bool)
        inside = at < len(self._features)
        shares[inside] = self._features[at[inside]] == wanted[inside]
        parts, which = np.unique(self._part[at[shares]], return_inverse=True)
        sizes = self._sizes[parts]
        touched = np.empty(len(wanted), np.int64)
        touched[shares] = (np.cumsum(sizes) - sizes)[which] + self._spot[at[shares]]
        alone = wanted[~shares]
        touched[~shares] = int(sizes.sum()) + np.arange(len(alone))
        # Four bytes name a partition and eight a feature, so the two cannot be confused; both sort as their numbers.
        composite = _cut(parts.astype(">u4").tobytes(), 4)
        return Asked(composite, sizes, _cut(alone.astype(">u8").tobytes(), 8), touched, touched.astype(np.uint32))


def _cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]
