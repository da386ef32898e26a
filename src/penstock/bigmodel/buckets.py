"""Loops that give each feature of the data a number: the native half of `penstock.bigmodel.rewrite`.

A feature is mixed into 64 uniform bits, and back; the top bits name its bucket. Within a bucket features are numbered as
they first occur (`penstock.bigmodel.numbering`): that number is the feature's *local* number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.native import kernel

UInt64s = NDArray[np.uint64]
UInt32s = NDArray[np.uint32]

_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_FIRST_BACK, _SECOND_BACK = pow(_FIRST, -1, 1 << 64), pow(_SECOND, -1, 1 << 64)
_FOLD = np.uint64(33)
_EXACT = 256
_PER_OCTAVE = 32
CLASSES = _EXACT + _PER_OCTAVE * 24
"""Classes of counts: each count below 256 is one of its own, larger ones share 32 to an octave."""


@kernel(inline=True)
def mix_feature(feature: Any, key: Any) -> Any:
    """Turn a feature into 64 uniform bits, one to one."""
    x = np.uint64(feature) ^ key
    x = (x ^ (x >> _FOLD)) * np.uint64(_FIRST)
    x = (x ^ (x >> _FOLD)) * np.uint64(_SECOND)
    return x ^ (x >> _FOLD)


@kernel
def mix_all(features: Any, key: Any, out: Any) -> None:
    """Mix many features."""
    for i in range(len(features)):
        out[i] = mix_feature(features[i], key)


def mix_features_reference(features: UInt64s, key: np.uint64) -> UInt64s:
    """Do the same in NumPy."""
    x = features ^ key
    x = (x ^ (x >> _FOLD)) * np.uint64(_FIRST)
    x = (x ^ (x >> _FOLD)) * np.uint64(_SECOND)
    return x ^ (x >> _FOLD)


def unmix(mixed: UInt64s, key: np.uint64) -> UInt64s:
    """Return the features that were mixed.

    Examples
    --------
    >>> features = np.array([0, 7, 2**63], np.uint64)
    >>> unmix(mix_features_reference(features, np.uint64(5)), np.uint64(5)).tolist() == features.tolist()
    True
    """
    x = mixed ^ (mixed >> _FOLD)
    x = x * np.uint64(_SECOND_BACK)
    x = (x ^ (x >> _FOLD)) * np.uint64(_FIRST_BACK)
    features: UInt64s = (x ^ (x >> _FOLD)) ^ key
    return features


@kernel(inline=True)
def class_of(count: Any) -> Any:
    """Return the class of a count; see `CLASSES`."""
    if count < _EXACT:
        return np.int64(count)
    octave = np.int64(8)
    while count >> (octave + 1):
        octave += 1
    return np.int64(_EXACT + (octave - 8) * _PER_OCTAVE + ((count >> (octave - 5)) - _PER_OCTAVE))


def least_of(number: int) -> int:
    """Return the smallest count of a class.

    Examples
    --------
    >>> least_of(3), least_of(256), least_of(257), least_of(256 + 32)
    (3, 256, 264, 512)
    """
    if number < _EXACT:
        return number
    octave, part = divmod(number - _EXACT, _PER_OCTAVE)
    return (_PER_OCTAVE + part) << (octave + 3)


@kernel
def tally_entries(features: Any, at: Any, step: Any, key: Any, shift: Any, tallies: Any, most: Any) -> Any:
    """Count entries by stretch of ``step`` entries and bucket, the first entry being number ``at``; return the maximum."""
    for i in range(len(features)):
        tallies[(at + i) // step, mix_feature(features[i], key) >> shift] += np.uint32(1)
        most = max(most, np.uint64(features[i]))
    return most


@kernel
def deal(features: Any, key: Any, shift: Any, cursors: Any, out: Any) -> None:
    """Move entries to their buckets, in order; ``cursors`` says how far each is filled, and is moved on."""
    for i in range(len(features)):
        bucket = mix_feature(features[i], key) >> shift
        out[cursors[bucket]] = features[i]
        cursors[bucket] += np.uint64(1)


@kernel
def collect(features: Any, key: Any, shift: Any, cursors: Any, stored: Any, limit: Any, out: Any) -> Any:
    """Fetch what `deal` moved back in the order of the entries; False where a bucket has fewer than are asked for."""
    for i in range(len(features)):
        bucket = mix_feature(features[i], key) >> shift
        at = cursors[bucket]
        if at >= limit[bucket]:
            return False
        out[i] = stored[at]
        cursors[bucket] = at + np.uint64(1)
    return True


@kernel
def sift(counts: Any, firsts: Any, hot: Any, top: Any, cold: Any, middle: Any) -> Any:
    """Count cold features by first stretch and middling ones by class; return how many are above both.

    A feature is hot whose count's class is at least ``hot``, and a top one where it is at least ``top``.
    """
    found = 0
    for local in range(len(counts)):
        number_ = class_of(np.int64(counts[local]))
        if number_ < hot:
            cold[firsts[local]] += np.uint32(1)
        elif number_ < top:
            middle[number_ - hot] += np.uint32(1)
        else:
            found += 1
    return found


@kernel
def pick(counts: Any, order: Any, top: Any, picked: Any) -> None:
    """List the places of the top features among those ordered."""
    found = 0
    for at in range(len(order)):
        if found < len(picked) and class_of(np.int64(counts[order[at]])) >= top:
            picked[found] = at
            found += 1


@kernel
def place(counts: Any, firsts: Any, hot: Any, top: Any, cold: Any, middle: Any, positions: Any) -> None:
    """Write the positions of all but the top features; ``cold`` and ``middle`` hold the next ones and are moved on."""
    for local in range(len(counts)):
        number_ = class_of(np.int64(counts[local]))
        if number_ < hot:
            positions[local] = cold[firsts[local]]
            cold[firsts[local]] += np.uint32(1)
        elif number_ < top:
            positions[local] = middle[number_ - hot]
            middle[number_ - hot] += np.uint32(1)


@kernel
def translate(local: Any, positions: Any) -> None:
    """Replace local numbers by positions."""
    for i in range(len(local)):
        local[i] = positions[local[i]]
