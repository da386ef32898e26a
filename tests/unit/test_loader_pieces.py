"""The loops that read blocks and single rows, against their plain twins; and direct reads."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checksum import checksum
from penstock.copying import SKIP
from penstock.loader import direct_reads, read_kernels
from penstock.loader.direct_reads import PAGE, DirectFiles, aligned, open_direct

SIZE = 3 * PAGE + 777
HERE = Path(__file__).resolve().parents[2] / ".cache"


@pytest.fixture(scope="module")
def stored():
    """Yield a file of known bytes, opened through the page cache and, where there is such a thing, past it."""
    content = np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8)
    HERE.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=HERE) as file:
        file.write(content.tobytes())
        file.flush()
        fds = {1: os.open(file.name, os.O_RDONLY)}
        try:
            fds[PAGE] = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
            os.preadv(fds[PAGE], [aligned(PAGE).data], 0)
        except (OSError, AttributeError):
            fds.pop(PAGE, None)
        yield content, fds
        for fd in fds.values():
            os.close(fd)


def reading(stored, page: int) -> tuple[np.ndarray, int]:
    content, fds = stored
    if page not in fds:
        pytest.skip("this file system has no direct reads")
    return content, fds[page]


PIECES = st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, 3000)), max_size=30)


@pytest.mark.parametrize("page", [1, PAGE])
@given(
    wanted=PIECES,
    gap=st.sampled_from([0, 1, 100, 5000, 10**6]),
    room=st.sampled_from([1, 7, 512, PAGE, 10_000, 10**6]),
)
def test_pieces_are_read_as_by_the_twin(stored, page, wanted, gap, room):
    content, fd = reading(stored, page)
    wanted = sorted((at, min(size, SIZE - at)) for at, size in wanted)
    at, nbytes = np.array(wanted, np.int64).reshape(-1, 2).T.copy()
    out, expected = (np.zeros(int(nbytes.sum()) + 1, np.uint8) for _ in range(2))
    staging = aligned(room)
    # In the order of the file, but to anywhere.
    shuffled = np.random.default_rng(1).permutation(len(at))
    places = np.empty(len(at), np.int64)
    places[shuffled] = np.cumsum(nbytes[shuffled]) - nbytes[shuffled]
    status, _, total = read_kernels.read_pieces(
        fd, at, nbytes, out.ctypes.data + places, gap, staging.ctypes.data, room, page
    )
    assert status == read_kernels.DONE
    read_kernels.read_pieces_reference(stored[1][1], at, nbytes, expected.ctypes.data + places)
    np.testing.assert_array_equal(out, expected)
    for (start, size), place in zip(wanted, places, strict=True):
        np.testing.assert_array_equal(out[place : place + size], content[start : start + size])
    covered = {byte for start, size in wanted for byte in range(start, start + size)}
    assert total >= len(covered)
    if gap == 0 and room >= SIZE:
        assert total == len(covered)  # nothing twice, nothing beside


def test_neighbours_are_joined_and_others_are_not(stored):
    _, fds = stored
    at, nbytes = np.array([0, 100, 900]), np.array([10, 10, 10])
    out, staging = np.zeros(30, np.uint8), aligned(4096)
    for gap, expected in ((0, 30), (90, 10 + 100 + 10), (790, 910)):
        found = read_kernels.read_pieces(
            fds[1], at, nbytes, out.ctypes.data + np.arange(0, 30, 10), gap, staging.ctypes.data, 4096, 1
        )
        assert found == (read_kernels.DONE, 0, expected)


@pytest.mark.parametrize("page", [1, PAGE])
def test_a_piece_beyond_the_end_of_the_file_is_named(stored, page):
    _, fd = reading(stored, page)
    at, nbytes = np.array([5, 2 * PAGE, SIZE - 10]), np.array([10, 10, 11])
    out, staging = np.zeros(40, np.uint8), aligned(PAGE)
    status, k, _ = read_kernels.read_pieces(
        fd, at, nbytes, out.ctypes.data + np.array([0, 10, 20]), 0, staging.ctypes.data, PAGE, page
    )
    assert (status, k) == (read_kernels.READ_FAILED, 2)


@pytest.mark.parametrize("page", [1, PAGE])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("skipped", [0, 9])
def test_blocks_are_read_into_slots_as_by_the_twin(stored, page, whole, skipped):
    content, fd = reading(stored, page)
    rng = np.random.default_rng(3)
    rows = np.array([20, 0, 31, 7], np.int64)
    # Two columns in each block, of 12 and of 8 bytes a row, between bytes that are neither's.
    offsets = np.cumsum(20 * rows + 50) - (20 * rows + 50) + 5
    at = np.stack([offsets + 11, offsets + 11 + 12 * rows + 3])
    nbytes = 20 * rows + 20
    fds = np.full(4, fd)
    blocks = np.array([3, 0, 1, 2])
    starts = np.cumsum(rows[blocks]) - rows[blocks]
    count = int(rows.sum())
    slots = np.full(count, SKIP, np.uint32)
    kept = np.sort(rng.permutation(count)[: count - skipped])
    slots[kept] = rng.permutation(len(kept))
    out = [np.zeros((count, 3), np.float32), np.zeros(count, np.int64)]
    expected = [column.copy() for column in out]
    staging = aligned(int(nbytes.max()))
    status = read_kernels.read_blocks(
        fds,
        blocks,
        starts,
        slots,
        offsets,
        nbytes,
        np.array([checksum(content[a : a + n], a) for a, n in zip(offsets.tolist(), nbytes.tolist())], np.uint64),
        rows,
        at,
        np.array([12, 8]),
        np.array([column.ctypes.data for column in out]),
        staging.ctypes.data,
        page,
        whole,
    )
    assert status == (read_kernels.DONE, 0)
    read_kernels.read_blocks_reference(np.full(4, stored[1][1]), blocks, starts, slots, at, rows, expected)
    for column, other in zip(out, expected, strict=True):
        np.testing.assert_array_equal(column.view(np.uint8), other.view(np.uint8))
    first = int(np.flatnonzero(slots != SKIP)[0])
    assert first < rows[3]
    np.testing.assert_array_equal(
        out[0][slots[first]].view(np.uint8), content[at[0, 3] + 12 * first : at[0, 3] + 12 * first + 12]
    )


def test_a_block_beyond_the_end_of_the_file_is_named(stored):
    offsets, rows = np.array([0, SIZE - 8]), np.array([2, 2])
    out, staging = np.zeros(4, np.int64), aligned(64)
    for whole in (True, False):
        found = read_kernels.read_blocks(
            np.full(2, stored[1][1]),
            np.array([0, 1]),
            np.array([0, 2]),
            np.arange(4, dtype=np.uint32),
            offsets,
            np.array([16, 16]),
            np.zeros(2, np.uint64),
            rows,
            offsets[None, :].copy(),
            np.array([8]),
            np.array([out.ctypes.data]),
            staging.ctypes.data,
            1,
            whole,
        )
        assert found == (read_kernels.READ_FAILED, 1)


@given(counts=st.lists(st.integers(0, 20), max_size=8), columns=st.integers(1, 3), seed=st.integers(0, 9))
def test_rows_are_laid_out_as_by_the_twin(counts, columns, seed):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(counts)), counts)
    local = np.concatenate([np.sort(rng.permutation(50)[:n]) for n in counts] or [np.empty(0, np.int64)]).astype(
        np.int64
    )
    widths = rng.integers(1, 100, columns)
    at = (1000 * np.arange(len(counts)) + np.sort(rng.integers(0, 1000, columns))[:, None]).astype(np.int64)
    to = rng.integers(0, 10**6, columns)
    slots = rng.permutation(len(owner)).astype(np.uint32)
    found = read_kernels.lay_out(owner, local, slots, at, widths, to)
    expected = read_kernels.lay_out_reference(owner, local, slots, at, widths, to)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_memory_for_direct_reads_begins_at_a_page_and_holds_any_read():
    for nbytes in (0, 1, PAGE, PAGE + 1, 10 * PAGE):
        memory = aligned(nbytes)
        assert memory.ctypes.data % PAGE == 0
        assert len(memory) % PAGE == 0
        assert len(memory) >= -(-(PAGE - 1 + nbytes) // PAGE) * PAGE


def test_files_are_read_past_the_cache_only_where_it_could_not_hold_them(stored, monkeypatch):
    _, fds = stored
    reading(stored, PAGE)
    assert open_direct(fds[1], nbytes=SIZE) is None
    monkeypatch.setattr(direct_reads, "LEAST", 1000)
    assert open_direct(fds[1], nbytes=SIZE) is None
    monkeypatch.setattr(direct_reads, "available_memory", lambda: SIZE)
    with_direct = DirectFiles(np.array([fds[1], fds[1]]), nbytes=SIZE)
    assert len(with_direct) == 1
    second = with_direct.get(fds[1])
    assert second not in (None, fds[1])
    assert with_direct.instead_of(np.array([fds[1]] * 3)).tolist() == [second] * 3
    assert with_direct.get(-5) is None
    with_direct.close()
    assert len(with_direct) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(second)
