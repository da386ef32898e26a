"""Pages on disk: what is written is read, damage is found, and a checkpoint outlives what comes after it."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bigmodel import pages, store
from penstock.bigmodel.store import SIDES, PageStore
from penstock.errors import CorruptFileError, ModelFileError, UsageError, WriteError

FLOATS = 1024


def filled(numbers):
    """Frames that say which page they are."""
    return np.repeat(np.asarray(numbers, np.float32)[:, None], FLOATS, axis=1) + np.arange(FLOATS, dtype=np.float32)


def opened(folder, count=100, **more):
    return PageStore(folder, pages=count, page_floats=FLOATS, **more)


def put(pages_, folder_store, base=0):
    numbers = np.asarray(pages_, np.int64)
    folder_store.write(numbers, np.arange(len(numbers)), filled(numbers + base))


def got(store_, pages_):
    numbers = np.asarray(pages_, np.int64)
    buffer = np.full((len(numbers), FLOATS), -1, np.float32)
    store_.read(numbers, np.arange(len(numbers)), buffer)
    return buffer


@given(st.integers(0, 2**40), st.binary(min_size=32, max_size=32))
def test_the_checksum_is_its_twin_s(number, content):
    words = np.frombuffer(content * 4, np.uint64)
    assert int(pages.page_checksum(words, number)) == pages.page_checksum_reference(words, number)


def test_the_checksum_tells_every_bit_and_the_page_number():
    words = np.arange(512, dtype=np.uint64)
    whole = pages.page_checksum(words, 5)
    assert whole != pages.page_checksum(words, 6)
    for place in range(0, 512, 37):
        for bit in (0, 31, 63):
            damaged = words.copy()
            damaged[place] ^= np.uint64(1) << np.uint64(bit)
            assert pages.page_checksum(damaged, 5) != whole


def test_pages_come_back_in_any_order(tmp_path):
    with opened(tmp_path, 300) as s:
        some = np.random.default_rng(0).permutation(300)[:200]
        put(some, s)
        asked = np.random.default_rng(1).permutation(some)
        np.testing.assert_array_equal(got(s, asked), filled(asked))


def test_pages_never_written_are_blank_and_cost_no_read(tmp_path):
    with opened(tmp_path) as s:
        assert (got(s, [3, 99]) == 0).all()
        assert s.bytes_read == 0
        assert s.requests == 0

    def ones(numbers, frames, buffer):
        buffer[frames] = numbers[:, None]

    with opened(tmp_path, blank=ones) as s:
        assert got(s, [7])[0, 0] == 7


def test_writing_is_as_its_twin(tmp_path):
    numbers, frames = np.array([1, 2, 3, 7, 9], np.int64), np.array([4, 0, 2, 1, 3], np.int64)
    buffer = filled([10, 11, 12, 13, 14])
    with opened(tmp_path, 10) as s:
        s.write(numbers, frames, buffer)
        sums = np.zeros(10, np.uint64)
        with open(tmp_path / "twin", "wb+") as twin:
            pages.write_pages_reference(twin.fileno(), numbers, frames, buffer.view(np.uint64), sums)
        np.testing.assert_array_equal(s.arrays()["pages.checksum"], sums)
    written = [(tmp_path / name).read_bytes() for name in SIDES[:2]]
    assert (tmp_path / "twin").read_bytes() in written


def test_what_was_saved_is_whole_after_later_writes(tmp_path):
    with opened(tmp_path) as s:
        put(range(50), s)
        s.sync()
        saved = s.arrays()
        s.committed()
        put(range(25, 75), s, base=1000)  # never saved: as if killed here
    with opened(tmp_path, saved=saved) as s:
        np.testing.assert_array_equal(got(s, range(50)), filled(range(50)))
        assert (got(s, range(50, 75)) == 0).all()
        put([3], s, base=500)
        saved = s.arrays()
        s.committed()
    with opened(tmp_path, saved=saved) as s:
        np.testing.assert_array_equal(got(s, [3, 4]), filled([503, 4]))


def test_a_page_written_twice_between_checkpoints_leaves_the_saved_one(tmp_path):
    with opened(tmp_path) as s:
        put([1], s)
        saved = s.arrays()
        s.committed()
        put([1], s, base=10)
        put([1], s, base=20)
        np.testing.assert_array_equal(got(s, [1]), filled([21]))
    with opened(tmp_path, saved=saved) as s:
        np.testing.assert_array_equal(got(s, [1]), filled([1]))


@pytest.mark.parametrize("place", [0, 4095, 5 * 4096 + 17])
def test_a_flipped_byte_is_found_and_its_page_named(tmp_path, place):
    with opened(tmp_path, 10) as s:
        put(range(10), s)
        saved = s.arrays()
    for name in SIDES[:2]:
        content = bytearray((tmp_path / name).read_bytes())
        if len(content) > place:
            content[place] ^= 0x10
            (tmp_path / name).write_bytes(content)
    with opened(tmp_path, 10, saved=saved) as s, pytest.raises(CorruptFileError, match=f"page {place // 4096} of"):
        got(s, range(10))


def test_a_file_cut_short_is_told_with_the_page(tmp_path):
    with opened(tmp_path, 40) as s:
        put(range(40), s)
        saved = s.arrays()
    for name in SIDES[:2]:
        path = tmp_path / name
        if path.stat().st_size:
            os.truncate(path, 20 * 4096)
    with opened(tmp_path, 40, saved=saved) as s, pytest.raises(CorruptFileError, match=r"cannot read page 2\d"):
        got(s, range(20, 40))


def test_a_full_disk_stops_with_the_page_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as s:
        monkeypatch.setattr(store, "write_pages", lambda *_: (pages.FAILED, 8))
        monkeypatch.setattr(store.os, "pwrite", full)
        with pytest.raises(WriteError, match=r"page 8 of .*No space left.*resume=True"):
            put([8, 9], s)


def test_missing_files_and_foreign_states_are_refused(tmp_path):
    with opened(tmp_path, 10) as s:
        saved = s.arrays()
    with pytest.raises(ModelFileError, match="11 pages"):
        opened(tmp_path, 11, saved=saved)
    (tmp_path / SIDES[1]).unlink()
    with pytest.raises(ModelFileError, match=r"pages\.b"):
        opened(tmp_path, 10, saved=saved, writable=False)


def test_pages_are_whole_blocks_of_storage(tmp_path):
    with pytest.raises(UsageError, match="4096"):
        PageStore(tmp_path, pages=3, page_floats=100)


def test_direct_files_are_read_and_written_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LEAST", 0)
    monkeypatch.setattr(store, "available_memory", lambda: 0)
    with opened(tmp_path, 300) as s:
        put(range(0, 300, 2), s)
        np.testing.assert_array_equal(got(s, range(0, 300, 2)), filled(range(0, 300, 2)))
