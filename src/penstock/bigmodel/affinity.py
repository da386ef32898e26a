"""The compiled loops of vertical partitioning (section 5): counting features, their affinities, and merging.

Features are ranks, 0 the most frequent; a partition is called by its lowest rank. Affinities, the numbers of rows that
hold both of two partitions, are a packed upper triangle. A merge looks only at rows that the larger partition lacked,
so Algorithm 3 takes time that grows with K² and the sample, not with K³ or with the sample times the merges.
Their plain twin is `partition_reference`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import kernel, prefetch_line

# Multiplied by an odd number without pattern, the high bits of any feature are spread well enough for a table.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_NONE = -1
# Rows lie anywhere in memory: they are asked for this many rows before they are read.
_AHEAD = 8


@kernel(fast=False, inline=True)
def _find(keys: Any, used: Any, feature: Any, shift: Any) -> Any:
    """Return the place of a feature in a table of a power of two, or the free place where it belongs."""
    last = np.uint64(len(keys) - 1)
    at = (feature * _SPREAD) >> shift
    while used[at] != 0 and keys[at] != feature:
        at = (at + np.uint64(1)) & last
    return at


@kernel(fast=False)
def place_ranks(kept: Any, keys: Any, shift: Any, used: Any) -> None:
    """Put features into an empty table; ``used`` takes the rank plus one of each."""
    for rank in range(len(kept)):
        at = _find(keys, used, kept[rank], shift)
        keys[at] = kept[rank]
        used[at] = rank + 1


@kernel(fast=False)
def count_holders(indptr: Any, features: Any, keys: Any, shift: Any, used: Any, counts: Any, seen: Any) -> None:
    """Count the rows that hold each rank; a rank twice in a row counts once. ``seen`` begins as zeros."""
    for row in range(len(indptr) - 1):
        for k in range(np.int64(indptr[row]), np.int64(indptr[row + 1])):
            rank = used[_find(keys, used, np.uint64(features[k]), shift)] - 1
            if rank >= 0 and seen[rank] != row + 1:
                seen[rank] = row + 1
                counts[rank] += 1


@kernel(fast=False)
def list_holders(
    indptr: Any, features: Any, keys: Any, shift: Any, used: Any, starts: Any, ends: Any, holders: Any, lengths: Any
) -> None:
    """List the rows that hold each rank, rising, in ``holders[starts[rank]:]``, and count each row's ranks.

    ``ends`` begins as a copy of ``starts`` and ``lengths`` as zeros.
    """
    for row in range(len(indptr) - 1):
        for k in range(np.int64(indptr[row]), np.int64(indptr[row + 1])):
            rank = used[_find(keys, used, np.uint64(features[k]), shift)] - 1
            if rank < 0:
                continue
            end = ends[rank]
            if end == starts[rank] or holders[end - 1] != row:
                holders[end] = row
                ends[rank] = end + 1
                lengths[row] += 1


@kernel(fast=False, inline=True)
def _offset(i: Any, count: Any) -> Any:
    """Return where the affinity of ``(i, j)`` lies in the packed triangle, less ``j``."""
    return i * (count - 1) - i * (i - 1) // 2 - i - 1


@kernel(fast=False, inline=True)
def _gain(a: Any, f: Any, s: Any, g: Any, t: Any, seek: Any, unit: Any) -> Any:
    """Return what merging saves: a seek for each row that holds both, less the records then read for nothing."""
    return seek * a - unit * (f * t + g * s - a * (s + t))


@kernel(fast=False)
def pair_counts(
    starts: Any, holders: Any, row_starts: Any, fill: Any, entries: Any, triangle: Any, seek: Any, unit: Any, best: Any,
    partner: Any,
) -> None:  # fmt: skip
    """Count the rows that hold each pair of ranks, list each row's ranks, and find each rank's best later partner.

    ``fill`` (the ranks listed of each row) and ``triangle`` begin as zeros.
    """
    count = len(starts) - 1
    for i in range(count - 1, -1, -1):
        # Falling, so that a row lists at this moment the ranks above i: all increments fall into one short run.
        first = np.uint64(i + 1)
        start = _offset(i, count) + i + 1
        run = triangle[start : start + count - 1 - i]
        for k in range(starts[i], starts[i + 1]):
            if k + _AHEAD < starts[i + 1]:
                prefetch_line(entries, row_starts[holders[k + _AHEAD]])
            row = holders[k]
            at = row_starts[row]
            end = at + fill[row]
            for e in range(at, end):
                run[entries[e] - first] += np.int32(1)
            entries[end] = i
            fill[row] += 1
        best[i] = -np.inf
        partner[i] = _NONE
        f = starts[i + 1] - starts[i]
        for j in range(i + 1, count):
            gain = _gain(np.int64(run[j - i - 1]), f, 1, starts[j + 1] - starts[j], 1, seek, unit)
            if gain > best[i]:
                best[i] = gain
                partner[i] = j


@kernel(fast=False)
def _rescan(
    i: Any, place: Any, alive: Any, left: Any, triangle: Any, count: Any, rows: Any, size: Any, seek: Any, unit: Any,
    best: Any, partner: Any,
) -> None:  # fmt: skip
    """Find the best later partner of the partition at a place of those alive."""
    best[i] = -np.inf
    partner[i] = _NONE
    base = _offset(i, count)
    for k in range(place + 1, left):
        j = alive[k]
        gain = _gain(np.int64(triangle[base + j]), rows[i], size[i], rows[j], size[j], seek, unit)
        if gain > best[i]:
            best[i] = gain
            partner[i] = j


@kernel(fast=False)
def merge_pairs(
    starts: Any, holders: Any, row_starts: Any, fill: Any, entries: Any, triangle: Any, seek: Any, unit: Any, best: Any,
    partner: Any, owner: Any, rows: Any,
) -> Any:  # fmt: skip
    """Merge the pair that saves most until none saves anything (Algorithm 3); return how many were merged.

    Takes what `pair_counts` leaves, and uses it up. ``owner`` takes each rank's partition and ``rows`` the number of
    rows that hold a partition, at its lowest rank.
    """
    count = len(starts) - 1
    size = np.ones(count, np.int64)
    alive = np.arange(count)
    stale = np.zeros(count, np.bool_)
    # A partition's rows: the runs of its members, each cut down to the rows that no run joined before it holds.
    ends = starts[1:].copy()
    following = np.full(count, _NONE, np.int64)
    last = np.arange(count)
    mark = np.zeros(len(row_starts), np.int64)
    marked, token = np.int64(_NONE), 0
    stamp = np.zeros(count, np.int64)
    gained = np.zeros(count, np.int64)
    turn = 0
    for i in range(count):
        owner[i] = i
        rows[i] = starts[i + 1] - starts[i]
    left, merges = count, 0
    while left > 1:
        place = 0
        for k in range(1, left):
            if best[alive[k]] > best[alive[place]]:
                place = k
        i = alive[place]
        if not best[i] > 0:
            break
        if stale[i]:  # its bound is the highest, so now what it really saves is worth knowing
            stale[i] = False
            _rescan(i, place, alive, left, triangle, count, rows, size, seek, unit, best, partner)
            continue
        j = partner[i]
        both = np.int64(triangle[_offset(i, count) + j])
        big, small = (i, j) if rows[i] >= rows[j] else (j, i)
        lacking = rows[small] - both
        if lacking > 0 and marked != big:
            token += 1
            member = big
            while member != _NONE:
                for k in range(starts[member], ends[member]):
                    mark[holders[k]] = token
                member = following[member]
            marked = big
        member = small
        while member != _NONE:
            end = starts[member]
            if lacking > 0:
                for k in range(starts[member], ends[member]):
                    row = holders[k]
                    if mark[row] == token:
                        continue
                    mark[row] = token
                    holders[end] = row
                    end += 1
                    turn += 1
                    # The row's ranks become its partitions, each once: the next to look at it has less to do.
                    kept = row_starts[row]
                    for e in range(row_starts[row], row_starts[row] + fill[row]):
                        p = owner[entries[e]]
                        if stamp[p] != turn:
                            stamp[p] = turn
                            gained[p] += 1
                            entries[kept] = p
                            kept += 1
                    fill[row] = kept - row_starts[row]
            ends[member] = end
            member = following[member]
        marked = i if marked == big else np.int64(_NONE) if marked == small else marked
        member = j
        while member != _NONE:
            owner[member] = i
            member = following[member]
        following[last[i]] = j
        last[i] = last[j]
        rows[i] += rows[j] - both
        size[i] += size[j]
        best[i] = -np.inf
        partner[i] = _NONE
        merges += 1
        kept = 0
        for k in range(left):
            m = alive[k]
            if m == j:
                continue
            alive[kept] = m
            kept += 1
            if m == i:
                continue
            low, high = (m, big) if m < big else (big, m)
            a = np.int64(triangle[_offset(low, count) + high]) + gained[m]
            gained[m] = 0
            low, high = (m, i) if m < i else (i, m)
            triangle[_offset(low, count) + high] = a
            gain = _gain(a, rows[low], size[low], rows[high], size[high], seek, unit)
            was = partner[m]
            if m > i:
                if gain > best[i]:
                    best[i] = gain
                    partner[i] = m
                if was == j:
                    stale[m] = True
            elif gain > best[m] or (gain == best[m] and was >= i):
                # As good as a bound that no other pair exceeds: exact. Partners above i lose the tie.
                best[m] = gain
                partner[m] = i
                stale[m] = False
            elif was == i or was == j:
                stale[m] = True
        gained[i] = 0
        left = kept
    return merges
