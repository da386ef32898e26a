"""NumPy files and arrays in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.batch import Batch, Csr
from penstock.blocks.memory import ArraySource, TableSource
from penstock.blocks.numpy import NpySource
from penstock.errors import CorruptFileError, FeatureError, SourceError, UsageError


@pytest.mark.parametrize("dtype", ["f4", "f8", ">f4", "i1", "u8", "?"])
@pytest.mark.parametrize("shape", [(50,), (50, 1), (50, 3)])
def test_dtypes_and_shapes(tmp_path, dtype, shape):
    array = (np.arange(np.prod(shape)) % 100).reshape(shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    with NpySource(tmp_path / "a.npy", 16) as source:
        read = pa.Table.from_batches([source.read(b) for b in range(len(source.block_rows))])
    for column in range(shape[1] if len(shape) == 2 else 1):
        expected = array if array.ndim == 1 else array[:, column]
        assert read[str(column)].to_pylist() == expected.tolist()


def test_what_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(FeatureError, match="Python objects"):
        NpySource(path)
    np.save(path, np.asfortranarray(np.ones((4, 3))))
    with pytest.raises(SourceError, match="ascontiguousarray"):
        NpySource(path)
    np.save(path, np.ones((2, 2, 2)))
    with pytest.raises(FeatureError, match="3 dimensions"):
        NpySource(path)
    np.save(path, np.array(["a"]))
    with pytest.raises(FeatureError, match="numbers"):
        NpySource(path)
    np.save(path, np.ones((100, 3)))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptFileError, match="truncated"):
        NpySource(path)
    path.write_bytes(b"something else")
    with pytest.raises(CorruptFileError, match=r"not a \.npy"):
        NpySource(path)


def test_an_array_without_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((0, 3)))
    with NpySource(tmp_path / "a.npy") as source:
        assert len(source.block_rows) == 0


def test_dense_float32_rows_are_shared():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    batch = ArraySource(x, [0, 1, 0, 1], weight=np.ones(4)).read(0)
    assert batch.schema.names == ["features", "label", "weight"]
    assert np.shares_memory(batch["features"].values.to_numpy(), x)


def test_sparse_rows_are_shared():
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random(50, 20, 0.2, format="csr", dtype=np.float32, random_state=0)
    source = ArraySource(x, np.arange(50), block_size=200)
    assert len(source.block_rows) > 2
    assert np.shares_memory(source.read(1)["values"].values.to_numpy(), x.data)
    rows = [row for b in range(len(source.block_rows)) for row in source.read(b)["values"].to_pylist()]
    assert rows == [x.data[a:b].tolist() for a, b in zip(x.indptr, x.indptr[1:])]


def test_batches_and_labels_of_any_kind():
    csr = Csr(np.array([0, 1, 3], np.uint64), np.array([1, 0, 2], np.uint32), np.ones(3, np.float32), 3)
    source = ArraySource(Batch(csr, np.array([1, -1], np.float32)))
    assert source.read(0).to_pydict()["indices"] == [[1], [0, 2]]
    assert ArraySource(np.ones((2, 1)), np.array(["a", "b"])).read(0)["label"].to_pylist() == ["a", "b"]
    with pytest.raises(UsageError, match="label has 3 values for 2 rows"):
        ArraySource(np.ones((2, 1)), [1, 2, 3])
    with pytest.raises(FeatureError):
        ArraySource(np.array([["a"]]))


def test_fingerprints_in_memory():
    x = np.arange(12.0).reshape(4, 3)
    one, two = ArraySource(x).fingerprint, ArraySource(x + 1).fingerprint
    assert one == ArraySource(x).fingerprint
    assert one != two
    assert TableSource.of(pa.table({"a": [1]})).fingerprint != TableSource.of(pa.table({"a": [2]})).fingerprint
