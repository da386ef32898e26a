"""A model for every group on a Ray cluster of two nodes: the same models as on this machine, whatever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.events import Event, Warned
from penstock.groups import GroupBy, GroupModels, training_run
from penstock.groups.cluster import Copies
from penstock.groups.etl import group
from penstock.groups.ray import RayExecutor
from penstock.testing.executors import await_that
from tests.rays import STORE, ray_cluster

pytest.importorskip("ray")

SIZES = {"FR": 4_000, "DE": 600, "IT": 300, "NO": 100}
"""The first is cut in two."""
SEARCH = {"l2": [0.1, 0.001]}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    with ray_cluster(1, 1) as made:
        yield made


@pytest.fixture(scope="module")
def table() -> pa.Table:
    chance = np.random.default_rng(0)
    country = chance.permutation(np.repeat(list(SIZES), list(SIZES.values())))
    x = chance.standard_normal((len(country), 3)).astype(np.float32)
    clicked = x[:, 0] * np.where(country == "DE", -1, 1) + chance.standard_normal(len(country)) > 0
    return pa.table({"country": country, **{name: x[:, place] for place, name in enumerate("abc")}, "clicked": clicked})


def fit(table: Any, executor: str, **options: Any) -> GroupModels:
    model = penstock.LogisticRegression(**{"solver": "lbfgs", "epochs": 8} | options.pop("model", {}))
    y = None if isinstance(table, Path) else "clicked"
    return GroupBy(table, by="country").fit(model, y=y, search=SEARCH, workers=2, executor=executor, **options)


def require_equal(one: GroupModels, other: GroupModels) -> None:
    assert one.frame.drop_columns(["seconds"]).equals(other.frame.drop_columns(["seconds"]))
    for country in SIZES:
        for config in range(2):
            mine, theirs = (result.model(country, config).weights for result in (one, other))
            np.testing.assert_array_equal(mine.coef, theirs.coef)
            np.testing.assert_array_equal(mine.intercept, theirs.intercept)


@pytest.mark.parametrize(
    "model", [{"solver": "lbfgs"}, {"solver": "sgd", "epochs": 2}], ids=["algebraic", "sequential"]
)
def test_models_are_the_same_as_on_this_machine(table: pa.Table, model: dict[str, Any]) -> None:
    require_equal(fit(table, "ray", model=model), fit(table, "local", model=model))


class Killing(RayExecutor):
    """Kills something when it has given out a few tasks."""

    kill: ClassVar[Callable[[RayExecutor], None]]
    submitted = 0

    def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
        super().submit(worker, task, method, *arguments)
        self.submitted += 1
        if self.submitted == 5:
            type(self).kill(self)


@pytest.mark.parametrize("what", ["actor", "node"])
def test_a_death_costs_no_more_than_what_was_under_way(
    table: pa.Table, cluster: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(executor: RayExecutor) -> None:
        (other,) = cluster.worker_nodes
        if what == "node":
            cluster.remove_node(other, allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=STORE)
        else:
            os.kill(executor.pids[0], signal.SIGKILL)

    monkeypatch.setattr(Killing, "kill", kill, raising=False)
    monkeypatch.setitem(training_run.EXECUTORS, "ray", Killing)
    events: list[Event] = []
    found = fit(table, "ray", listeners=[events.append])
    warned = [event.message for event in events if isinstance(event, Warned)]
    assert len(warned) == 1
    assert ("lost with its node" if what == "node" else "ended unasked") in warned[0]
    require_equal(found, fit(table, "local"))


def test_rows_are_sent_to_a_node_that_does_not_see_them(
    table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    kept: list[str] = []
    saw, close = RayExecutor._sees, Copies.close

    def sees(executor: RayExecutor, slot: Any) -> bool:
        seen.append(slot.node)
        return saw(executor, slot) and len(seen) == 1  # the second one is told that it does not

    def closed(copies: Copies) -> None:
        kept.extend(copies.paths.values())
        close(copies)

    group(table, "country", tmp_path / "rows", label="clicked", model="logistic", memory="100MB").close()
    local = fit(tmp_path / "rows", "local")
    monkeypatch.setattr(RayExecutor, "_sees", sees)
    monkeypatch.setattr(Copies, "close", closed)
    require_equal(fit(tmp_path / "rows", "ray"), local)
    assert len(set(seen)) == 2
    assert len(kept) == 1
    await_that(lambda: not os.path.exists(kept[0]), "a copy is left on a node")
