"""Memory as one number: "512MB", "2GiB", "10%" or a plain count of bytes.

A percentage is of the data set's decoded size, which is how the CorgiPile paper states its buffers.
Nothing here allocates; rooms ask what they may hold and fail early when it is too little.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from penstock.errors import UsageError
from penstock.messages import Given, Text

_UNITS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
SMALL = 32 * 10**6
"""What a share is raised to where it is too little to work with, and this is enough: nobody gains from less."""
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z%]*)\s*")


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount of memory: so many bytes, or such a share of the data.

    Examples
    --------
    >>> Budget.parse("512MB").resolve(data_bytes=10**10)
    512000000
    >>> Budget.parse("10%").resolve(data_bytes=10**10)
    1000000000
    """

    bytes: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str | int | Budget, *, option: str = "memory", whole: str = "data") -> Budget:
        """Read a budget from what a user wrote for an option; a share is one of the ``whole``."""
        if isinstance(text, Budget):
            return text
        match = _PATTERN.fullmatch(str(text))
        if match:
            number, unit = float(match[1]), match[2].lower()
            if unit == "%" and 0 < number <= 100:
                return cls(share=number / 100)
            if unit in _UNITS and number * _UNITS[unit] >= 1:
                return cls(bytes=int(number * _UNITS[unit]))
        raise UsageError(
            "is not an amount of memory",
            option=option,
            value=text,
            fixes=[
                f"write bytes with a unit, such as '512MB' or '2GiB', or a share of the {whole} from '1%' to '100%'"
            ],
        )

    def resolve(self, data_bytes: int) -> int:
        """Return the bytes that this budget allows for data of the given decoded size."""
        if self.bytes is not None:
            return self.bytes
        return max(1, int((self.share or 0.0) * data_bytes))

    @property
    def written(self) -> str:
        """The share as a user writes it; nothing for bytes."""
        return "" if self.share is None else f"{100 * self.share:.6g}%"

    def of_bytes(self, data_bytes: int) -> str:
        """Return the part of a message that says how many bytes a share is, to stand behind it; nothing for bytes.

        Examples
        --------
        >>> Budget.parse("5%").of_bytes(172_000), Budget.parse("1kB").of_bytes(172_000)
        (', which is 8.6 kB of 172 kB,', '')
        """
        if self.share is None:
            return ""
        return f", which is {show_bytes(self.resolve(data_bytes))} of {show_bytes(data_bytes)},"

    def raised_notice(self, whole: str, *, asked: int, to: int = SMALL, option: str = "memory") -> Text:
        """Say that a share of ``whole`` is raised, from what and to what."""
        return Text(
            Given(option, self.written),
            f" of {whole} is {show_bytes(asked)}, which is too little; {show_bytes(to)} are used instead",
        )


def parse_size(text: str | int, *, option: str) -> int:
    """Read a size in bytes, such as a block size, where a share makes no sense.

    Examples
    --------
    >>> parse_size("256KiB", option="block_size")
    262144
    """
    try:
        size = Budget.parse(text).bytes
    except UsageError:
        size = None
    if size is None:
        raise UsageError(
            "is not a size", option=option, value=text, fixes=["write bytes with a unit, such as '256KB' or '10MB'"]
        )
    return size


CacheChoice: TypeAlias = "bool | int | Path"
"""Whether encoded rows are kept on disk, in how many bytes at most, or in which folder for later runs."""


def parse_cache(value: str | int | bool | os.PathLike[str]) -> CacheChoice:
    """Read whether rows are kept on disk, on or off, in how many bytes at most, or in which folder.

    Examples
    --------
    >>> parse_cache("off"), parse_cache("10GB"), parse_cache(True)
    (False, 10000000000, True)
    """
    if isinstance(value, bool):
        return value
    if not isinstance(value, int):
        switch = {"on": True, "off": False}.get(str(value).lower())
        if switch is not None:
            return switch
        if os.path.isdir(value):
            return Path(value)
        value = os.fspath(value)
        if os.sep in value:
            raise UsageError("is no folder", option="cache", value=value, fixes=["make it first"])
    return parse_size(value, option="cache")


class Bytes(int):
    """A number of bytes that messages write with a unit.

    Examples
    --------
    >>> Bytes(12_500_000)
    12.5 MB
    """

    def __new__(cls, count: float) -> Bytes:
        return super().__new__(cls, int(count))

    def __repr__(self) -> str:
        return show_bytes(self)


def show_bytes(count: float) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> show_bytes(2_500_000)
    '2.5 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def show_share(share: float) -> str:
    """Write a part of a whole in percent to two digits; less than all is never shown as all.

    Examples
    --------
    >>> show_share(0.0253), show_share(0.997), show_share(1.0)
    ('2.5%', '99%', '100%')
    """
    return "100%" if share >= 1 else f"{min(99.0, 100 * share):.2g}%"


def peak_memory() -> int:
    """Return the most memory that this process has occupied so far, in bytes.

    Examples
    --------
    >>> peak_memory() > 1_000_000
    True
    """
    try:
        # The kernel's own figure for this program. What getrusage tells also counts whoever started it.
        with open("/proc/self/status", "rb") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(b"VmHWM"))
    except (OSError, StopIteration):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def give_back() -> None:
    """Return freed memory to the system: what allocators keep for later would stand beside what comes next."""
    import ctypes

    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(AttributeError, OSError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def available_memory() -> int:
    """Return the memory that this process could use, caches included: the machine's, or its control group's."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        meminfo = Path("/proc/meminfo").read_text()
        found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo)
        total = int(found[1]) * 1024 if found else total
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, group = line.split(":", 2)
            if kinds == "":
                limit = Path(f"/sys/fs/cgroup{group}/memory.max")
            elif "memory" in kinds.split(","):
                limit = Path(f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes")
            else:
                continue
            text = limit.read_text().strip() if limit.exists() else "max"
            total = min(total, int(text)) if text.isdigit() else total
    except OSError:
        pass  # not Linux, or nothing to read there: the machine's memory it is
    return total
