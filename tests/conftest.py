"""What all tests share: hypothesis without deadlines or chance, the marker of the compiled loops, a database server."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.servers import Server

# A first call compiles, which no deadline should count; the same examples every time keep CI quiet.
settings.register_profile("penstock", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")


@functools.cache
def compares_kernels(path: Path) -> bool:
    # Every kernel has a twin called ..._reference; the files that compare the two run again with bounds checked.
    return path.name.startswith("test_") and re.search(r"[a-z]_reference\b", path.read_text()) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if compares_kernels(item.path):
            item.add_marker(pytest.mark.kernels)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Give a PostgreSQL server, started for the first test that asks."""
    from tests.servers import Server

    with closing(Server()) as server:
        yield server


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """Give the address of a fresh database."""
    with postgres.database() as address:
        yield address
