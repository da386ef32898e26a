"""The compiled look-up of levels gives what a dictionary gives."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.columns.category import LevelTable, find_levels_reference

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("count", [0, 1, 3, 500])
def test_codes_are_those_of_a_dictionary(count):
    rng = np.random.default_rng(count)
    codes = {("ü" * (i % 5)) + str(i): i for i in range(count)} | ({"": 7} if count else {})
    texts = [*codes, *(str(n) for n in rng.integers(0, 2 * count + 2, 300)), "none", ""]
    table = LevelTable.of(codes)
    for array in (pa.array(texts), pa.array(texts).dictionary_encode(), pa.array(["x", *texts])[1:]):
        assert table.codes(array, -3).tolist() == find_levels_reference(texts, codes, -3)
    assert table.codes(pa.array([], pa.string()), -3).tolist() == []
