"""Rows set aside: the right share of them, the same ones every time, from everywhere in the data."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import UsageError
from penstock.loader.holdout import SplitPart


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_the_share_held_out_is_right_in_every_block_and_along_each(share):
    blocks, rows = np.repeat(np.arange(20), 5000), np.tile(np.arange(5000), 20)
    kept = SplitPart(share, 7, held_out=True).has(blocks, rows)
    spread = np.sqrt(share * (1 - share))
    assert abs(kept.mean() - share) < 4 * spread / np.sqrt(len(kept))
    for part in (*kept.reshape(20, 5000), *kept.reshape(20, 50, 100).swapaxes(0, 1).reshape(50, 2000)):
        assert abs(part.mean() - share) < 4.5 * spread / np.sqrt(len(part))
    # Neighbours are chosen independently of each other.
    assert abs(np.corrcoef(kept[1:], kept[:-1])[0, 1]) < 4.5 / np.sqrt(len(kept))


def test_sides_are_each_others_complement_and_depend_on_seed_and_block():
    part, rows = SplitPart(0.3, 1, held_out=True), np.arange(1000)
    kept = part.has(np.zeros(1000, np.int64), rows)
    assert np.array_equal(kept, ~part.other().has(np.zeros(1000, np.int64), rows))
    assert part.other().other() == part
    assert np.array_equal(kept, part.has(np.int64(0), rows))  # all of one block
    assert not np.array_equal(kept, part.has(np.int64(1), rows))
    assert not np.array_equal(kept, SplitPart(0.3, 2, held_out=True).has(np.int64(0), rows))
    assert kept[SplitPart(0.1, 1, held_out=True).has(np.int64(0), rows)].all()  # a smaller share is a part of a larger


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5])
def test_a_share_that_leaves_nothing_is_refused(share):
    with pytest.raises(UsageError, match="leaves nothing on one side; choose one between 0 and 1"):
        SplitPart(share, 0, held_out=True)
