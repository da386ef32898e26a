"""Wide rows: features of 64 bits for models that do not fit in memory; what is beyond the width is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp

import penstock
from penstock.batch import Csr, copy_part, copy_part_reference, join_parts
from penstock.blocks.memory import ArraySource
from penstock.columns.choose import choose_features
from penstock.columns.hashing import Hashed, hash_rows_reference
from penstock.errors import FeatureError, UsageError

INT64 = pa.int64()


def pairs(rows, kind=INT64):
    return pa.record_batch(
        {
            "indices": pa.array(rows, pa.list_(kind)),
            "values": pa.array([[1.0] * len(row) for row in rows], pa.list_(pa.float32())),
        }
    )


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()])
def test_indices_of_any_type_come_out_with_64_bits(kind):
    batch = pairs([[1, 5], [], [100]], kind)
    x = choose_features(batch.schema, place="here").encode(batch, wide=True).x
    assert x.indices.dtype == np.uint64
    assert x.indices.tolist() == [1, 5, 100]
    assert x.indptr.tolist() == [0, 2, 2, 3]
    assert x.width == 101


def test_indices_above_32_bits():
    batch = pairs([[2**32], [2**63, 2**64 - 1]], pa.uint64())
    recipe = choose_features(batch.schema, place="here")
    x = recipe.encode(batch, wide=True).x
    assert x.indices.tolist() == [2**32, 2**63, 2**64 - 1]
    assert x.width == 2**64
    with pytest.raises(FeatureError, match=r"row 1 .*indices are from 0 to 2\^32 - 1 .*model_dir"):
        choose_features(batch.schema, place="here").encode(batch.slice(1), first_row=1)


def test_a_slice_of_wide_rows_is_its_own():
    batch = pairs([[7], [8, 2**40], [9]]).slice(1, 1)
    x = choose_features(batch.schema, place="here").encode(batch, wide=True).x
    assert (x.indptr.tolist(), x.indices.tolist()) == ([0, 2], [8, 2**40])


def test_a_negative_index_is_refused_by_row_and_value():
    batch = pairs([[1], [], [3, -4]])
    with pytest.raises(FeatureError, match=r"here: row 12 has the index -4 in 'indices'; indices are 0 or more"):
        choose_features(batch.schema, place="here").encode(batch, first_row=10, wide=True)


def test_an_index_beyond_the_declared_width_is_refused_not_dropped():
    batch = pairs([[1], [9], [2**35, 10]])
    recipe = choose_features(batch.schema, place="here").with_width(10)
    with pytest.raises(
        FeatureError, match=r"row 2 has the index 34359738368 .* 10 features \(0 to 9\); .*larger width"
    ):
        recipe.encode(batch, wide=True)
    assert recipe.encode(batch.slice(0, 2), wide=True).x.width == 10
    narrow = pairs([[1], [9], [12, 10]])
    assert recipe.encode(narrow).x.indices.tolist() == [1, 9], "without wide they are left out, as before"


@pytest.mark.parametrize("bits", [32, 33, 40, 62])
@pytest.mark.parametrize("words", [False, True])
def test_wide_hashes_do_as_their_twin(bits, words):
    spec = Hashed("c", bits, words)
    texts = ["a b", None, "", "Zürich", "long words to hash " * 3]
    x = spec.encode(pa.array(texts), wide=True)
    expected = hash_rows_reference(texts, spec)
    found = list(zip(x.indices.tolist(), x.values.tolist(), strict=True))
    assert found == [entry for row in expected for entry in row]
    assert x.width == 1 << bits
    assert all(index < 1 << bits for index, _ in found)


def test_wide_hashes_are_these_numbers_for_ever():
    x = Hashed("city", 40).encode(pa.array(["Basel", "Bern"]), wide=True)
    assert (x.indices.tolist(), x.values.tolist()) == FROZEN


FROZEN = ([839139813298, 125064538709], [1.0, 1.0])


@pytest.mark.parametrize("bits", [1, 20, 31])
def test_up_to_31_bits_wide_and_narrow_agree(bits):
    spec = Hashed("c", bits)
    texts = pa.array(["a", "b", None, "ccc"])
    narrow, wide = spec.encode(texts), spec.encode(texts, wide=True)
    assert (narrow.indices.dtype, wide.indices.dtype) == (np.uint32, np.uint64)
    assert narrow.indices.tolist() == wide.indices.tolist()
    assert narrow.values.tolist() == wide.values.tolist()


def test_parts_side_by_side_in_64_bits():
    batch = pa.record_batch(
        {"a": [0.5, 1.5], "c": ["x", "y"], "indices": [[2**50], [3]], "values": [[1.0], [2.0]]},
    )
    x = choose_features(batch.schema, hash=["c:2^40"], place="here", wide=True).encode(batch, wide=True).x
    hashed = Hashed("c", 40).encode(batch["c"], wide=True).indices.tolist()
    base = 1 + 2**40
    assert x.indices.tolist() == [0, 1 + hashed[0], base + 2**50, 0, 1 + hashed[1], base + 3]
    assert x.width == base + 2**50 + 1


def test_dense_columns_alone_are_sparse_when_wide():
    batch = pa.record_batch({"a": [0.5, 1.5], "b": [1.0, 2.0]})
    x = choose_features(batch.schema, place="here").encode(batch, wide=True).x
    assert x.indices.tolist() == [0, 1, 0, 1]
    assert x.to_dense().tolist() == [[0.5, 1.0], [1.5, 2.0]]


def test_more_than_64_bits_together():
    parts = [Csr(np.zeros(1, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.float32), 2**62) for _ in range(5)]
    with pytest.raises(UsageError, match=r"more than the 2\^64"):
        join_parts(parts, wide=True)
    assert join_parts(parts[:4], wide=True).width == 2**64


def test_joining_wide_parts_does_as_its_twin():
    indptr = np.array([0, 2, 2, 3], np.uint64)
    part = indptr, np.array([1, 2, 2**40], np.uint64), np.ones(3, np.float32), np.uint64(2**41)
    results = []
    for join in (copy_part, copy_part_reference):
        ends, indices, values = indptr[:-1].copy(), np.zeros(3, np.uint64), np.zeros(3, np.float32)
        join(*part, ends, indices, values)
        results.append((ends.tolist(), indices.tolist(), values.tolist()))
    assert results[0] == results[1]
    assert results[0][1] == [1 + 2**41, 2 + 2**41, 2**40 + 2**41]


def test_a_model_in_memory_refuses_wide_hashes():
    table = pa.table({"c": ["a", "b", "c", "d"], "y": [0, 1, 0, 1]})
    with pytest.raises(UsageError, match=r"hash='c:2\^40' .* penstock\.bigmodel \(model_dir=\)"):
        penstock.LogisticRegression().fit(table, y="y", hash=["c:2^40"])
    with pytest.raises(UsageError, match=r"penstock\.bigmodel"):
        Hashed("c", 32).encode(table["c"].chunk(0))
    with pytest.raises(UsageError, match=r"from 2\^1 to 2\^31, or to 2\^62"):
        Hashed("c", 63)


def test_a_matrix_keeps_indices_of_64_bits():
    x = sp.csr_matrix((np.ones(2, np.float32), np.array([3, 2**33 + 3]), np.array([0, 1, 2])), (2, 2**34))
    with ArraySource(x, [0, 1]) as source:
        recipe = choose_features(source.schema, place="here", label="label")
        assert recipe.width == 2**34
        assert recipe.encode(source.read(0), wide=True).x.indices.tolist() == [3, 2**33 + 3]
        with pytest.raises(FeatureError, match=r"index 8589934595 .*2\^32 - 1"):
            recipe.encode(source.read(0))
