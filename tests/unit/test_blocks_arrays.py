from __future__ import annotations

import numpy as np
import pytest

from penstock import batches
from penstock.blocks.memory import as_table
from penstock.errors import UsageError


def test_an_array_keeps_its_type_and_shape():
    ids = np.array([[16777217, 2], [33554433, 3]])
    with batches(ids, 2, shuffle="none") as stream:
        (batch,) = list(stream)
    assert batch["features"].dtype == np.int64
    np.testing.assert_array_equal(batch["features"], ids)


def test_a_dict_of_arrays_is_a_table():
    images = np.arange(4 * 3 * 2 * 2, dtype=np.uint8).reshape(4, 3, 2, 2)
    with batches({"image": images, "label": np.arange(4)}, 4, shuffle="none", columns=("image", "label")) as stream:
        ((found, label),) = list(stream)
    np.testing.assert_array_equal(found, images)
    assert found.dtype == np.uint8
    assert label.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("data", [{}, {"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.float64(1)}])
def test_columns_of_unequal_length_are_refused(data):
    with pytest.raises(UsageError, match="one length"):
        as_table(data)


def test_an_array_of_texts_in_two_dimensions_is_refused():
    with pytest.raises(UsageError, match="give numbers"):
        as_table({"words": np.array([["a", "b"], ["c", "d"]])})
