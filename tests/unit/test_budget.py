"""Amounts of memory as users write them."""

from __future__ import annotations

import pytest

from penstock.budget import Budget, available_memory, parse_size, peak_memory, show_bytes
from penstock.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512MB", 512_000_000),
        ("512 mb", 512_000_000),
        ("2GiB", 2 * 2**30),
        ("1.5kB", 1500),
        ("64KiB", 65536),
        ("1t", 10**12),
        ("10", 10),
        (4096, 4096),
        ("10%", 100),
        ("0.5%", 5),
        ("100%", 1000),
    ],
)
def test_what_is_written_is_understood(text, expected):
    assert Budget.parse(text).resolve(data_bytes=1000) == expected
    assert Budget.parse(Budget.parse(text)) == Budget.parse(text)


@pytest.mark.parametrize("text", ["", "much", "-5MB", "0", "0MB", "0%", "101%", "5 apples", "1e9", "MB", -1, 0, None])
def test_what_is_no_amount_is_refused_with_examples(text):
    with pytest.raises(UsageError, match=r"memory=.* is not an amount of memory; .*'512MB' or '2GiB'.*'1%' to '100%'"):
        Budget.parse(text)


def test_a_size_is_not_a_share():
    assert parse_size("10MB", option="block_size") == 10_000_000
    for text in ("10%", "large"):
        with pytest.raises(UsageError, match=r"block_size=.* is not a size; .*'256KB' or '10MB'"):
            parse_size(text, option="block_size")


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (2_500_000, "2.5 MB"), (3 * 10**12, "3.0 TB")],
)
def test_bytes_are_shown_for_people(count, shown):
    assert show_bytes(count) == shown


def test_memory_is_measured():
    assert 10_000_000 < peak_memory() < available_memory() * 10
