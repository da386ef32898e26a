"""Where rows go when they are sorted by group: the compiled loop against its twin."""

from __future__ import annotations

import numpy as np

from penstock.groups import sorted_runs


def test_places_match_their_reference():
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 9, 500)
    counts = np.bincount(numbers, minlength=9)
    found = [np.empty(500, np.uint32) for _ in range(2)]
    for slots, function in zip(found, (sorted_runs.places, sorted_runs.places_reference)):
        function(numbers, np.cumsum(counts) - counts, slots)
    assert np.array_equal(*found)
    assert np.array_equal(np.argsort(found[0]), np.argsort(numbers, kind="stable"))
