"""The checksum of all that is stored: the kernel against its twin, and what it notices."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.checksum import UNKNOWN, checksum, checksum_file, checksum_reference


@given(st.binary(max_size=200), st.integers(0, 2**64 - 1))
def test_the_kernel_gives_what_its_twin_gives(data, seed):
    assert checksum(data, seed) == checksum_reference(data, seed) != UNKNOWN


def test_it_is_part_of_the_file_formats():
    assert checksum(b"penstock") == 0x618DAC7492C88D0D
    assert checksum(bytes(range(100)), 7) == 0x27A906D3B0C9C7D7


@pytest.mark.parametrize("size", [1, 8, 13, 64, 200])
def test_every_single_bit_counts(size):
    data = np.random.default_rng(size).bytes(size)
    seen = {checksum(data, 3)}
    for bit in range(8 * size):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << (bit % 8)
        seen.add(checksum(changed, 3))
    assert len(seen) == 8 * size + 1


def test_order_length_and_seed_count():
    one, other = b"abcdefgh", b"ABCDEFGH"
    assert checksum(one + other) != checksum(other + one)
    assert len({checksum(bytes(n)) for n in range(100)}) == 100
    assert len({checksum(one, seed) for seed in range(100)}) == 100


def test_arrays_and_ranges_of_files():
    array = np.arange(1000, dtype=np.float32)
    assert checksum(array) == checksum(array.tobytes()) == checksum(memoryview(array.tobytes()))
    file = io.BytesIO(array.tobytes())
    assert checksum_file(file, 8, 800, 5) == checksum(array.tobytes()[8:800], 5)
    with pytest.raises(ValueError, match="ends 96 bytes early"):
        checksum_file(file, 8, 4096)
