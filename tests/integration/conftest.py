"""What tests of GroupBy share: a place for temporary files that can be looked into, and this process as the only worker."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, to see that they do not stay."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(place))
    return place


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have "local" mean this very process, where processes are not the point."""
    from penstock.groups import training_run
    from penstock.testing.executors import InlineExecutor

    monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)
