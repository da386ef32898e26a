"""The way to a Ray cluster, where none is needed; the rest is in tests/contract/test_executors_ray.py."""

from __future__ import annotations

import os
import socket
import sys
import tempfile

import pytest

from penstock.errors import MissingExtraError, UsageError
from penstock.groups import cluster
from penstock.groups.ray import RayExecutor
from penstock.testing.executors import Calculator


def test_without_ray_the_line_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"executor='ray' needs ray, .* pip install 'penstock\[ray\]'"):
        RayExecutor(Calculator)


@pytest.mark.parametrize("more", [{"files": "rows"}, {"make_at": Calculator}])
def test_a_folder_and_what_is_made_of_its_copy_go_together(more: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="files and make_at go together"):
        RayExecutor(Calculator, **more)  # type: ignore[arg-type]


def test_what_cannot_travel_is_refused_before_anything_is_started() -> None:
    with pytest.raises(UsageError, match="from a copy cannot be sent to a worker"):
        RayExecutor(Calculator, files="rows", make_at=lambda folder: folder)


@pytest.mark.parametrize(
    ("address", "same"),
    [
        ("10.0.0.5:6379", True),
        ("10.0.0.5:6380", False),
        ("10.0.0.6:6379", False),
        ("127.0.0.1:6379", True),
        ("localhost:6379", True),
        ("rubbish", False),
    ],
)
def test_addresses_by_another_name(address: str, same: bool) -> None:
    assert cluster._same(address, "10.0.0.5:6379") is same


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "auto", "rubbish"):
            cluster._reach(address)
    with pytest.raises(OSError, match="refused"):
        cluster._reach(f"127.0.0.1:{port}")


def test_a_folder_with_a_long_name_is_not_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T")
    assert cluster._base() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/tmp")
    assert cluster._base() == "/scratch/tmp"


def test_variables_are_set_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ONE", "mine")
    with cluster._environment(PENSTOCK_ONE="yours", PENSTOCK_TWO="new"):
        assert (os.environ["PENSTOCK_ONE"], os.environ["PENSTOCK_TWO"]) == ("yours", "new")
    assert os.environ["PENSTOCK_ONE"] == "mine"
    assert "PENSTOCK_TWO" not in os.environ
