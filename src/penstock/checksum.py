"""The checksum of everything that Penstock stores: 64 bits, at the speed of memory.

Each 64-bit word is mixed with a key that depends on its place, its two halves are multiplied, and the products are added
up, as in the NH hash of UMAC (Black et al., CRYPTO 1999); the plain sum of the words is added to that, so that a single
changed word always changes it. Additions do not wait for one another, so the compiler turns the loop into vector
instructions. It guards against accidents, not against attackers. It is part of the file formats: never change it.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.native import kernel, pointer

UNKNOWN = 0
"""Stands for the checksum of data that has none; no data has it."""

_STEP = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xD6E8FEB86659FD93)
_LOW = np.uint64(0xFFFFFFFF)
_MASK = (1 << 64) - 1


@kernel
def checksum_at(address: Any, nbytes: Any, seed: Any) -> Any:  # noqa: D103 - the twin is the documentation
    words = numba.carray(pointer(address), nbytes // 8, np.uint64)
    begin = (np.uint64(seed) + np.uint64(1)) * _ODD
    products = total = np.uint64(0)
    for i in range(len(words)):
        word = words[i]
        mixed = word ^ (begin + np.uint64(i) * _STEP)
        products += (mixed & _LOW) * (mixed >> np.uint64(32))
        total += word
    if nbytes % 8:
        rest = numba.carray(pointer(address + nbytes // 8 * 8), nbytes % 8, np.uint8)
        word = np.uint64(0)
        for i in range(len(rest)):
            word |= np.uint64(rest[i]) << np.uint64(8 * i)
        mixed = word ^ (begin + np.uint64(len(words)) * _STEP)
        products += (mixed & _LOW) * (mixed >> np.uint64(32))
        total += word
    mixed = (products ^ (products >> np.uint64(32))) * _ODD + total * _STEP + np.uint64(nbytes)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _ODD
    mixed ^= mixed >> np.uint64(32)
    return mixed if mixed else np.uint64(1)


def checksum(data: bytes | bytearray | memoryview | NDArray[Any], seed: int = 0) -> int:
    """Return the checksum of some bytes; other seeds give other checksums of the same bytes.

    Parameters
    ----------
    data : buffer
        Contiguous memory of any type.
    seed : int
        What else it covers: the place where the data lie, or the checksum of what comes before them.

    Examples
    --------
    >>> checksum(b"penstock") == checksum(b"penstocl"), checksum(b"penstock", 1) == checksum(b"penstock", 2)
    (False, False)
    """
    view = data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return int(checksum_at(view.ctypes.data, view.nbytes, np.uint64(seed)))


def checksum_reference(data: bytes, seed: int = 0) -> int:
    """Return what `checksum` returns, word by word."""
    step, odd = int(_STEP), int(_ODD)
    products = total = 0
    for i in range(-(-len(data) // 8)):
        word = int.from_bytes(data[8 * i : 8 * i + 8], "little")
        mixed = word ^ (((seed + 1) * odd + i * step) & _MASK)
        products += (mixed & 0xFFFFFFFF) * (mixed >> 32)
        total += word
    products &= _MASK
    mixed = ((products ^ (products >> 32)) * odd + total * step + len(data)) & _MASK
    mixed = (mixed ^ (mixed >> 29)) * odd & _MASK
    return (mixed ^ (mixed >> 32)) or 1


_CHUNK = 16 << 20


def checksum_file(file: BinaryIO, start: int, stop: int, seed: int = 0) -> int:
    """Return the checksum of a range of a file: of 16 MiB at a time, each seeded with that of those before it.

    Raises
    ------
    ValueError
        The file ends before the range does.
    """
    file.seek(start)
    left = stop - start
    while left:
        data = file.read(min(left, _CHUNK))
        if not data:
            raise ValueError(f"it ends {left} bytes early")
        seed = checksum(data, seed)
        left -= len(data)
    return seed


def checksum_path(path: str | os.PathLike[str]) -> int:
    """Return the checksum of a whole file."""
    with open(path, "rb", buffering=0) as file:
        return checksum_file(file, 0, os.fstat(file.fileno()).st_size)
