"""One seed, a stream for every place: the same each time, and no two alike."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np

from penstock import seeds

PLACES = [("blocks",), ("blocks", 0), ("blocks", 1), ("window", 0), ("blocks", 0, 1), ("blocks", 1, 0), ("copy", 0)]


def test_places_have_streams_of_their_own():
    drawn = {(s, p): seeds.generator(s, *p).integers(0, 2**63, 4).tolist() for s in (0, 1, 2**40) for p in PLACES}
    for (a, x), (b, y) in itertools.combinations(drawn.items(), 2):
        assert x != y, (a, b)
    keys = [seeds.key(s, *p) for s in (0, 1, 2**40) for p in PLACES]
    assert len(set(keys)) == len(keys)
    assert all(0 <= k < 2**64 for k in keys)


def test_streams_are_the_same_in_another_process():
    code = "from penstock import seeds; print(seeds.key(7, 'holdout'), seeds.generator(7, 'blocks', 3).integers(2**62))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert [int(t) for t in told] == [
        seeds.key(7, "holdout"),
        int(seeds.generator(7, "blocks", 3).integers(2**62)),
    ]


def test_keys_use_all_their_bits():
    bits = np.array([seeds.key(0, "window", i) for i in range(2000)], np.uint64)
    share = [(bits >> np.uint64(b) & np.uint64(1)).mean() for b in range(64)]
    assert 0.45 < min(share) < max(share) < 0.55
