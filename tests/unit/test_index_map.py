"""The index map: every feature found at its position, what does not occur absent, what is damaged refused."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.bigmodel import index_map
from penstock.bigmodel.buckets import mix_features_reference
from penstock.bigmodel.index_map import ABSENT, NAME, IndexMap, MapWriter, seek, seek_reference
from penstock.errors import CorruptFileError, SourceNotFoundError

KEY = np.uint64(0x9E3779B97F4A7C15)


def write(folder, features, *, bits=2):
    """Write a map of features whose positions are their places in the array."""
    mixed = mix_features_reference(features, KEY)
    owner = (mixed >> np.uint64(64 - bits)).astype(np.int64)
    writer = MapWriter(folder / NAME, key=KEY, sizes=np.bincount(owner, minlength=1 << bits))
    for bucket in reversed(range(1 << bits)):
        mine = np.flatnonzero(owner == bucket)
        mine = mine[np.argsort(mixed[mine])]
        writer.add(bucket, mixed[mine], mine.astype(np.uint32))
    assert writer.finish() == (folder / NAME).stat().st_size


def some_features(count, seed=0):
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, count, np.uint64))


@pytest.mark.parametrize("leaf", [4, 50, 10**6])
@pytest.mark.parametrize("memory", [100, 10**6])
def test_features_are_found_and_others_are_not(tmp_path, monkeypatch, leaf, memory):
    monkeypatch.setattr(index_map, "LEAF", leaf)
    features = some_features(2000)
    known, unknown = features[::2], features[1::2]
    write(tmp_path, known)
    asked = np.random.default_rng(1).permutation(np.concatenate([features, known[:50], known[:50]]))
    expected = {int(f): n for n, f in enumerate(known)}
    with IndexMap.open(tmp_path, memory=memory) as index:
        assert index.positions(asked).tolist() == [expected.get(f, int(ABSENT)) for f in asked.tolist()]
        assert (index.positions(unknown[:1]) == ABSENT).all()
        assert index.positions(np.empty(0, np.uint64)).tolist() == []
        assert len(index) == len(known)
        found = [np.concatenate(parts) for parts in zip(*index.items(), strict=True)]
    assert dict(zip(*map(np.ndarray.tolist, found), strict=True)) == expected


def test_edges_of_the_64_bits(tmp_path):
    features = np.array([0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    write(tmp_path, features, bits=1)
    with IndexMap.open(tmp_path) as index:
        assert index.positions(features).tolist() == list(range(7))
        assert index.positions(np.array([2, 2**33], np.uint64)).tolist() == [ABSENT, ABSENT]
        assert index.positions(np.array([0, 1, 5], np.int32)).tolist() == [0, 1, ABSENT]


def test_a_few_features_read_a_few_leaves(tmp_path, monkeypatch):
    monkeypatch.setattr(index_map, "LEAF", 16)
    features = some_features(20_000)
    write(tmp_path, features)
    with IndexMap.open(tmp_path) as index:
        read = []
        whole = index._file.read_at
        index._file.read_at = lambda offset, nbytes: read.append(nbytes) or whole(offset, nbytes)
        assert index.positions(features[:3]).tolist() == [0, 1, 2]
        assert len(read) == 3
        assert sum(read) < 3 * 12 * 64


@pytest.mark.parametrize("place", [0, 20, 30, 45, 60, 2000, -1])
def test_a_flipped_byte_is_noticed(tmp_path, place):
    features = some_features(1000)
    write(tmp_path, features)
    data = bytearray((tmp_path / NAME).read_bytes())
    data[place] ^= 0x10
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"map\.bin"), IndexMap.open(tmp_path) as index:
        index.positions(features)


@pytest.mark.parametrize("size", [0, 10, 60, 500, -5])
def test_a_short_file_is_noticed(tmp_path, size):
    write(tmp_path, some_features(1000))
    data = (tmp_path / NAME).read_bytes()
    (tmp_path / NAME).write_bytes(data[:size])
    with pytest.raises(CorruptFileError, match="prepare the data again"):
        IndexMap.open(tmp_path)


def test_no_map(tmp_path):
    with pytest.raises(SourceNotFoundError):
        IndexMap.open(tmp_path)


@pytest.mark.parametrize(("held", "asked"), [(0, 5), (1, 1), (1, 7), (100, 1), (100, 30), (30, 300)])
def test_seek_does_as_its_twin(held, asked):
    rng = np.random.default_rng(held)
    mixed = np.sort(rng.choice(1000, held, replace=False).astype(np.uint64) << np.uint64(50))
    words = np.concatenate([mixed.view(np.uint32), rng.integers(0, 99, held).astype(np.uint32)])
    wanted = np.sort(rng.integers(0, 1000, asked).astype(np.uint64) << np.uint64(50))
    wanted[asked // 2 :] = np.sort(rng.choice(np.append(mixed, np.uint64(0)), asked - asked // 2))
    order = rng.permutation(asked)
    found, expected = np.empty(asked, np.uint32), np.empty(asked, np.uint32)
    seek(words, 3, wanted, order, found)
    seek_reference(words, 3, wanted, order, expected)
    np.testing.assert_array_equal(found, expected)
