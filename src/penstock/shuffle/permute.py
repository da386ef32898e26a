"""Random permutations made from a 64-bit key: one in memory for a window, one computed for any row count.

`slots` is a Fisher-Yates shuffle with unbiased draws, for rows that are held. `KeyedPermutation` is a Feistel
network with cycle walking: it answers "which row stands at position i" for 10**10 rows and more, and stores
nothing that grows with them. Neither is meant for cryptography. Each kernel has a plain twin that defines it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError
from penstock.native import kernel

Int64s = NDArray[np.int64]

_MASK = 2**64 - 1
# Weyl step and mixing constants of SplitMix64: every key starts a full-period stream of mixed counters.
_GAMMA, _MIX_A, _MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
GAMMA, MIX_A, MIX_B = np.uint64(_GAMMA), np.uint64(_MIX_A), np.uint64(_MIX_B)
_LOW32 = np.uint64(2**32 - 1)
_TWO32 = np.uint64(2**32)
_U1, _U2, _U4, _U8, _U16 = (np.uint64(i) for i in (1, 2, 4, 8, 16))
_U27, _U30, _U31, _U32 = (np.uint64(i) for i in (27, 30, 31, 32))
ROUNDS = 6
# Parts of a few bits have few functions to choose rounds from: below this, n is small enough for a true shuffle.
SMALL = 4096


@kernel(fast=False)
def mix(x: Any) -> Any:
    """Scramble 64 bits; a bijection."""
    x = (x ^ (x >> _U30)) * MIX_A
    x = (x ^ (x >> _U27)) * MIX_B
    return x ^ (x >> _U31)


@kernel(fast=False)
def below(state: Any, bound: Any) -> Any:
    """Draw uniformly from ``0 … bound - 1``, bound at most 2**32; return the draw and the next state."""
    state += GAMMA
    product = (mix(state) >> _U32) * bound
    # Lemire's method: the high half is the draw; the division that finds the biased ones is rarely reached.
    if product & _LOW32 < bound:
        threshold = (_TWO32 - bound) % bound
        while product & _LOW32 < threshold:
            state += GAMMA
            product = (mix(state) >> _U32) * bound
    return product >> _U32, state


@kernel(fast=False)
def below_wide(state: Any, bound: Any) -> Any:
    """Draw uniformly from ``0 … bound - 1`` for any bound; by rejection under the next power of two."""
    mask = bound - _U1
    mask |= mask >> _U1
    mask |= mask >> _U2
    mask |= mask >> _U4
    mask |= mask >> _U8
    mask |= mask >> _U16
    mask |= mask >> _U32
    state += GAMMA
    draw = mix(state) & mask
    while draw >= bound:
        state += GAMMA
        draw = mix(state) & mask
    return draw, state


@kernel(fast=False)
def _slots(rows: Any, key: Any) -> Any:
    out = np.empty(rows, np.uint32)
    state = key
    for i in range(rows):
        j, state = below(state, np.uint64(i + 1))
        out[i] = out[j]  # when j == i this reads what the next line writes over
        out[j] = i
    return out


def slots(rows: int, key: int) -> NDArray[np.uint32]:
    """Return a uniformly random permutation of ``0 … rows - 1``: the place of each row of a window.

    Parameters
    ----------
    rows : int
        How many, below 2**32.
    key : int
        64 bits, from `penstock.seeds.key`; the same key gives the same permutation everywhere.

    Examples
    --------
    >>> slots(6, 7).tolist() == slots_reference(6, 7).tolist()
    True
    >>> sorted(slots(6, 7).tolist())
    [0, 1, 2, 3, 4, 5]
    """
    if not 0 <= rows < 2**32:
        raise UsageError(
            f"{rows} rows cannot be placed at once; a window holds 0 to 2**32 - 1 rows", fixes=["give less memory"]
        )
    permutation: NDArray[np.uint32] = _slots(rows, np.uint64(key & _MASK))
    return permutation


class Draws:
    """The twin of `below` and `below_wide` in plain integers, holding the state that those pass along."""

    def __init__(self, state: int) -> None:
        self.state = state & _MASK

    def bits(self) -> int:
        """Return the next 64 bits."""
        self.state = (self.state + _GAMMA) & _MASK
        return mix_reference(self.state)

    def below(self, bound: int) -> int:
        """Draw as `below` does."""
        product = (self.bits() >> 32) * bound
        while product % 2**32 < (2**32 - bound) % bound:
            product = (self.bits() >> 32) * bound
        return product >> 32

    def below_wide(self, bound: int) -> int:
        """Draw as `below_wide` does."""
        mask: int = 2 ** (bound - 1).bit_length() - 1
        draw = self.bits() & mask
        while draw >= bound:
            draw = self.bits() & mask
        return draw


def mix_reference(x: int) -> int:
    """Twin of `mix`."""
    x = ((x ^ (x >> 30)) * _MIX_A) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_B) & _MASK
    return x ^ (x >> 31)


def slots_reference(rows: int, key: int) -> NDArray[np.uint32]:
    """Twin of `slots`."""
    draws, out = Draws(key), np.empty(rows, np.uint32)
    for i in range(rows):
        j = draws.below(i + 1)
        out[i] = out[j]
        out[j] = i
    return out


@kernel(fast=False)
def _hash(x: Any, key: Any) -> Any:
    x = (x + key) * MIX_A
    return ((x ^ (x >> _U32)) * MIX_B) >> _U32


@kernel(fast=False)
def _walk(start: Any, n: Any, keys: Any, low: Any, high: Any, backwards: Any) -> Any:
    out = np.empty(start.size, np.int64)
    mask = (_U1 << low) - _U1
    for i in range(start.size):
        x = np.uint64(start[i])
        while True:
            left, right = x >> low, x & mask
            # A pair of rounds: add a hash of the right part to the left, modulo its size, then the other way round.
            if backwards:
                for r in range(ROUNDS - 2, -1, -2):
                    right ^= _hash(left, keys[r + 1]) & mask
                    left += high - ((_hash(right, keys[r]) * high) >> _U32)
                    left = left - high if left >= high else left
            else:
                for r in range(0, ROUNDS, 2):
                    left += (_hash(right, keys[r]) * high) >> _U32
                    left = left - high if left >= high else left
                    right ^= _hash(left, keys[r + 1]) & mask
            x = (left << low) | right
            if x < n:  # outside [0, n) go on along the cycle, which leads back in
                break
        out[i] = np.int64(x)
    return out


def walk_reference(start: Int64s, permutation: KeyedPermutation, *, backwards: bool) -> Int64s:
    """Twin of the kernel behind `KeyedPermutation.apply` and `inverse`, over whole arrays."""
    low, high, mask = np.uint64(permutation.low), np.uint64(permutation.high), np.uint64(2**permutation.low - 1)
    keys = permutation.round_keys.reshape(-1, 2)
    x = start.astype(np.uint64)
    todo = np.arange(len(x))

    def hashed(part: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
        h = (part + key) * MIX_A
        return ((h ^ (h >> _U32)) * MIX_B) >> _U32

    while len(todo):
        left, right = x[todo] >> low, x[todo] & mask
        if backwards:
            for key_left, key_right in keys[::-1]:
                right ^= hashed(left, key_right) & mask
                left = (left + high - (hashed(right, key_left) * high >> _U32)) % high
        else:
            for key_left, key_right in keys:
                left = (left + (hashed(right, key_left) * high >> _U32)) % high
                right ^= hashed(left, key_right) & mask
        x[todo] = (left << low) | right
        todo = todo[x[todo] >= np.uint64(permutation.n)]
    return x.astype(np.int64)


@dataclass(frozen=True, slots=True)
class KeyedPermutation:
    """A permutation of ``0 … n - 1`` that is computed, not stored.

    Parameters
    ----------
    n : int
        Rows, from 1 to 2**62.
    key : int
        64 bits that choose the permutation.

    Examples
    --------
    >>> rows = KeyedPermutation(10**10, key=7)
    >>> positions = np.arange(3)
    >>> bool((rows.inverse(rows.apply(positions)) == positions).all())
    True
    >>> sorted(KeyedPermutation(4, key=1).apply(np.arange(4)).tolist())
    [0, 1, 2, 3]
    """

    n: int
    key: int

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 2**62:
            raise UsageError(f"n={self.n}: a keyed permutation has from 1 to 2**62 rows")

    @property
    def low(self) -> int:
        """Bits in the right part: half of those that a row number takes."""
        return (self.n - 1).bit_length() // 2

    @property
    def high(self) -> int:
        """Values of the left part: as few as cover n, so that a walk is rarely longer than one step."""
        return -(-self.n >> self.low)

    @property
    def round_keys(self) -> NDArray[np.uint64]:
        """One 64-bit key for each round."""
        draws = Draws(self.key)
        return np.array([draws.bits() for _ in range(ROUNDS)], np.uint64)

    def apply(self, positions: NDArray[np.integer]) -> Int64s:
        """Return the rows that stand at these positions."""
        return self._walk(positions, backwards=False)

    def inverse(self, rows: NDArray[np.integer]) -> Int64s:
        """Return the positions at which these rows stand."""
        return self._walk(rows, backwards=True)

    def _walk(self, start: NDArray[np.integer], *, backwards: bool) -> Int64s:
        start = np.ascontiguousarray(start, np.int64)
        # A number outside may lie on a cycle that never enters [0, n): the walk would not end.
        if start.size and not (start.min() >= 0 and start.max() < self.n):
            raise UsageError(f"positions {start.min()} to {start.max()} are not all in 0 to {self.n - 1}")
        if self.n <= SMALL:
            table = slots(self.n, self.key)
            chosen: Int64s = (np.argsort(table) if backwards else table)[start].astype(np.int64)
            return chosen
        out: Int64s = _walk(
            start, np.uint64(self.n), self.round_keys, np.uint64(self.low), np.uint64(self.high), backwards
        )
        return out
