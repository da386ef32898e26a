"""What all tests share: hypothesis without deadlines or chance, markers that are set by what a test uses, a database server."""

from __future__ import annotations

import ast
import functools
import gc
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.servers import Server

# Under nohup or in a background job SIGINT is ignored, in all that is started from here too, and tests of Ctrl-C would
# wait for ever. A handler of our own is the default again in programs that are started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A first call compiles, which no deadline should count; the same examples every time keep CI quiet.
settings.register_profile("penstock", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")


TWIN = re.compile(r"[a-z]_reference\b")
# Fixtures that start a database server.
SERVERS = {"postgres", "extended"}


@functools.cache
def kernel_tests(path: Path) -> frozenset[str]:
    """Return the names of a file's tests that compare a kernel with its twin, called ..._reference, directly or by a helper."""
    text = path.read_text() if path.name.startswith("test_") else ""
    if not TWIN.search(text):
        return frozenset()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    found = {each.name for each in functions if TWIN.search(ast.unparse(each))}
    size = 0
    while len(found) > size:  # helpers of helpers
        size = len(found)
        found |= {f.name for f in functions if found & {n.id for n in ast.walk(f) if isinstance(n, ast.Name)}}
    return frozenset(found)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(item, "originalname", item.name) in kernel_tests(item.path):
            item.add_marker(pytest.mark.kernels)
        if SERVERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.servers)


def pytest_collection_finish() -> None:
    """Leave the million objects of thousands of tests out of garbage collections, which some tests ask for."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


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
