"""What several tests of rows by group share: data in parts so small that little data make many."""

from __future__ import annotations

import dataclasses

import pytest

from penstock.groups import etl, external_sort, row_scatter


@pytest.fixture
def small_runs(monkeypatch):
    """Sort a few kilobytes at a time, so that small data make many runs."""
    settle = etl.SortingPlan.of

    def of(*args):
        room = external_sort.Room(args[3] - 1024, min(args[3] - 1024, 2000), 2)
        return dataclasses.replace(settle(*args), chunk=8000, together=1000, room=room, scatter=0)

    monkeypatch.setattr(etl.SortingPlan, "of", of)


@pytest.fixture
def small_chunks(monkeypatch):
    """Put a few kilobytes in place at a time, where rows need no sorting."""
    settle = etl.SortingPlan.of

    def of(*args):
        plan = settle(*args)
        return dataclasses.replace(plan, chunk=8000, together=1000, count=1000, scatter=min(plan.scatter, 8000))

    monkeypatch.setattr(etl.SortingPlan, "of", of)
    monkeypatch.setattr(row_scatter, "LEAST_ROWS", 0)


@pytest.fixture(params=["small_runs", "small_chunks"])
def in_parts(request):
    """Do a little at a time, in both ways."""
    request.getfixturevalue(request.param)
    return request.param
