"""The forecast of training over groups: sizes counted, a sample dealt to groups, rates found, approaches compared."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.errors import ColumnError, DataError, UsageError
from penstock.explanation import Explanation, group_training
from penstock.explanation.group_training import explain_groups
from penstock.groups import pilot
from penstock.groups.cost import APPROACHES, Pilot, Timed, Work, simulate
from penstock.groups.etl import group
from penstock.groups.executor import Done
from penstock.groups.patterns.linear import GroupedLinear

LBFGS = GroupedLinear(Config(model="logistic", solver="lbfgs", epochs=6, standardize=True))
SGD = GroupedLinear(Config(model="logistic", solver="sgd", epochs=6))
L2 = [{"l2": 0.1}, {"l2": 0.01}, {"l2": 0.001}]
ROW, PASS = 2e-8, 3e-6
"""Seconds that the clock of `Told` has for a row, config and pass, and for a config and pass."""


class Told:
    """Runs tasks in this process, and tells seconds that hang on the work alone: 4 times as many for a config alone."""

    def __init__(self, make: Callable[[], Any], *, workers: int) -> None:
        assert workers == 1
        self._worker, self._task = make(), ("", ())
        self.groups = self._worker._workers[0].grouped

    def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
        self._task = (method, arguments)

    def wait(self) -> Done:
        method, arguments = self._task
        value = getattr(self._worker, method)(*arguments)
        seconds = 1e-4
        if method == "run":
            passes = [(int(self.groups.rows[fit.group]), int(np.sum(fit.epochs)), len(fit.epochs)) for fit in value]
            slow = [4 if configs == 1 else 1 for _, _, configs in passes]
            seconds = sum(each * made * (rows * ROW + PASS) for each, (rows, made, _) in zip(slow, passes)) + 1e-12
        return Done(0, 0, value, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go, to see that they do not stay."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "LocalExecutor", Told)


def visits(rows: int = 3_000, groups: int = 12, *, seed: int = 0, largest: float = 0.5) -> pa.Table:
    """Make rows of groups of which the first has half."""
    chance = np.random.default_rng(seed)
    share = np.full(groups, (1 - largest) / max(1, groups - 1))
    share[0] = largest
    number = chance.choice(groups, rows, p=share / share.sum())
    x = chance.normal(size=(rows, 3)).astype(np.float32)
    return pa.table(
        {"shop": number, "kind": np.where(number % 2, "a", "b")} | {f"x{n}": x[:, n] for n in range(3)}
        | {"y": x[:, 0] + chance.normal(size=rows) > 0}
    )  # fmt: skip


def look(data: Any, *, model: Any = LBFGS, by: tuple[str, ...] = ("shop",), **more: Any) -> Explanation:
    given: dict[str, Any] = {"choices": L2, "label": "y", "workers": [1, 4], "columns": {"exclude": ["kind"]}, **more}
    return explain_groups(data, list(by), model=model, **given)


def test_sizes_are_counted_by_all_columns() -> None:
    table = visits().set_column(0, "shop", pa.array([None, *visits()["shop"].to_pylist()[1:]], pa.int64()))
    with open_source(table) as source:
        found = pilot.sizes_of(source, ["shop", "kind"])
    keys = Counter(zip(table["shop"].to_pylist(), table["kind"].to_pylist()))
    assert sorted(found.rows.tolist()) == sorted(keys.values())
    assert found.exact
    assert found.total == 3_000


def test_sizes_are_estimated_where_there_is_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "_TOGETHER", 1)
    pq.write_table(visits(8_000, 4), tmp_path / "visits.parquet", row_group_size=500)
    with open_source(tmp_path / "visits.parquet") as source:
        found = pilot.sizes_of(source, ["shop"], seconds=0.0)
    assert not found.exact
    assert found.seen < found.total == 8_000
    assert found.rows.sum() == pytest.approx(8_000, rel=0.01)
    assert found.rows.max() / 8_000 == pytest.approx(0.5, abs=0.1)


def test_sizes_want_their_columns_and_some_rows() -> None:
    with open_source(visits()) as source, pytest.raises(ColumnError, match="shopp"):
        pilot.sizes_of(source, ["shopp"])
    with open_source(visits().slice(0, 0)) as source, pytest.raises(DataError, match="no rows"):
        pilot.sizes_of(source, ["shop"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=60), st.integers(40, 100_000))
def test_sizes_to_time_are_unlike_and_fit(sizes: list[int], most: int) -> None:
    picked = pilot.to_time(np.array(sizes), most)
    assert sum(size * count for size, count in picked) <= most
    assert len(picked) > 1 or most < 200
    assert all(size >= 8 and count >= 1 for size, count in picked)
    assert [size for size, _ in picked] == sorted({size for size, _ in picked})


def test_sample_is_from_everywhere(tmp_path: Path) -> None:
    table = pa.table({"at": np.arange(40_000)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=1_000)
    with open_source(tmp_path / "rows.parquet") as source:
        taken = pilot.take(source, 800)
        again = pilot.take(source, 800)
    at = taken.rows["at"].to_numpy()
    assert len(at) == 800
    assert len(np.unique(at // 1_000)) >= 8
    assert taken.rows.equals(again.rows)
    assert taken.row_seconds > 0
    with open_source(table.slice(0, 30)) as source:
        assert len(pilot.take(source, 800).rows) == 30
    with open_source(table) as source:  # one block
        assert len(pilot.take(source, 800).rows) == 800


def test_groups_of_the_sample_have_their_sizes_and_their_share_of_labels() -> None:
    rare = visits(1_000).set_column(5, "y", pa.array(np.arange(1_000) % 50 == 0))
    table, bundles = pilot.dealt(rare, "y", [(100, 3), (500, 1)])
    assert bundles == [[0, 1, 2], [3]]
    numbers, labels = table[pilot.PILOT].to_numpy(), np.array(table["y"].to_pylist())
    assert np.bincount(numbers).tolist() == [100, 100, 100, 500]
    assert [int(labels[numbers == n].sum()) for n in range(3)] == [2, 2, 2]
    assert int(labels[numbers == 3].sum()) == 10
    with pytest.raises(DataError, match="too few"):
        pilot.dealt(rare.slice(0, 5), "y", [(100, 1)])
    with pytest.raises(ColumnError, match="'z'"):
        pilot.dealt(rare, "z", [(100, 1)])


@pytest.mark.parametrize("model", [LBFGS, SGD])
def test_rates_are_those_of_the_clock(told: None, model: GroupedLinear) -> None:
    rates = look(visits(), model=model).pilot
    assert rates.together.row_config == pytest.approx(ROW, rel=0.02)
    assert rates.together.update == pytest.approx(PASS, rel=0.1)
    assert rates.alone.row_config == pytest.approx(4 * ROW, rel=0.02)
    assert (rates.configs, rates.epochs, rates.width) == (3, 6, 3)
    assert rates.pattern == ("algebraic" if model is LBFGS else "sequential")
    assert rates.row_bytes == 16
    assert rates.together.message > 0


def test_what_noise_hides_is_left_out() -> None:
    same = [Timed(1.0, 1e6, 10, 1e6), Timed(1.0, 2e6, 10, 2e6)]
    assert pilot._rates(same).row_config > 0
    assert pilot._rates([Timed(1.0, 1e6, 10), Timed(1.0, 1e3, 20)]).row_config > 0


def test_configs_that_are_done_early_are_reckoned_so(told: None) -> None:
    patient = GroupedLinear(Config(model="logistic", solver="lbfgs", epochs=400, standardize=True))
    found = look(visits(), model=patient)
    assert found.pilot.passes == 400
    assert found.pilot.epochs < 100
    assert any("passes, as they were in the pilot run" in note for note in found.notes)


def test_forecast_of_data_and_of_their_sorted_rows(told: None, tmp_path: Path, temporary: Path) -> None:
    table = visits()
    group(table, "shop", tmp_path / "rows", label="y", memory="100MB", exclude=["kind"]).close()
    mine = look(table)
    ready = look(tmp_path / "rows", label=None, columns=None)
    for name in ("rows", "groups", "largest_rows", "median_rows"):
        assert mine.facts[name] == ready.facts[name]
    assert mine.sorting_seconds is not None
    assert ready.sorting_seconds is None
    assert ready.pilot.together.row_config == pytest.approx(ROW, rel=0.02)
    for found in (mine, ready):
        assert [(each["workers"], each["approach"]) for each in found.predictions] == [
            (count, approach) for count in (1, 4) for approach in APPROACHES
        ]
        for each in found.predictions:
            assert each["seconds"] >= (1 - 1e-9) * each["bound"] > 0
            assert -1e-9 <= each["idle"] < 1
    assert list(temporary.iterdir()) == []


def test_large_groups_and_configs_alone_cost_the_others(told: None) -> None:
    found = look(visits(20_000, 30, largest=0.8), workers=[1, 4])
    times = {(each["workers"], each["approach"]): each["seconds"] for each in found.predictions}
    best = {each["workers"]: each["approach"] for each in found.predictions if each["best"]}
    bound = {each["workers"]: each["bound"] for each in found.predictions}
    assert best[4] == "grouped"
    # Four times as long for configs alone; and the largest group, 80 % of the rows, is a task that one worker has.
    assert times[1, "group-task"] / times[1, "grouped"] == pytest.approx(4, rel=0.1)
    assert times[4, "group-task"] / times[4, "grouped"] > 10
    assert times[4, "grouped"] < 1.1 * bound[4]
    moved = {(each["workers"], each["approach"]): each["moved"] for each in found.predictions}
    assert moved[4, "model-task"] > 2 * moved[4, "group-task"]


@pytest.mark.parametrize("pattern", ["algebraic", "sequential"])
@pytest.mark.parametrize(("together", "alone"), [(1.0, 3.0), (3.0, 1.0)])
@pytest.mark.parametrize("groups", [40, 25_000])
def test_no_plan_is_below_the_bound(pattern: str, together: float, alone: float, groups: int) -> None:
    rates = [Pilot(row_config=speed * 1e-8, update=speed * 4e-9, byte=0.0, message=0.0) for speed in (together, alone)]
    known = pilot.Rates(*rates, pattern, 3, 6, 6, 32, 1.0, 16.0, 80.0, 4, 10, 100, 1.0)
    sizes = np.random.default_rng(0).integers(1, 30, groups)
    for workers in (1, 4):
        best = min(
            group_training._approach_cost(name, sizes, workers, known).seconds for name in ("grouped", "group-task")
        )
        assert 0.5 * best < group_training._bound(sizes, workers, known) <= (1 + 1e-3) * best


def test_forecast_is_plain_json(told: None) -> None:
    found = json.loads(json.dumps(look(visits()).to_dict(), allow_nan=False))
    assert (found["rows"], found["groups"], found["by"]) == (3_000, 12, ["shop"])
    assert found["largest_share"] == pytest.approx(0.5, abs=0.05)
    assert sum(each["best"] for each in found["predictions"]) == 2
    assert found["groups_too_small"] == 0


def test_workers_are_this_machines_and_some_more(told: None) -> None:
    assert {4, 16} <= {each["workers"] for each in look(visits(), workers=()).predictions}
    with pytest.raises(UsageError, match="workers=0"):
        look(visits(), workers=[0])


def test_what_cannot_be_meant_is_refused(told: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too rare"):
        look(visits().set_column(5, "y", pa.array([True] * 3_000)))
    with pytest.raises(UsageError, match="which column is to be learnt"):
        look(visits(), label=None)
    with pytest.raises(UsageError, match="validation=1"):
        look(visits(), validation=1)
    group(visits(), "shop", tmp_path / "rows", label="y", memory="100MB", exclude=["kind"]).close()
    with pytest.raises(UsageError, match="by shop, not by kind"):
        look(tmp_path / "rows", by=("kind",))
    with pytest.raises(UsageError, match="whose label is 'y', not 'x0'"):
        look(tmp_path / "rows", label="x0")


def test_grouping_columns_may_be_features(told: None) -> None:
    assert look(visits(), columns={"features": ["x0", "x1", "shop"]}).pilot.width == 3
    assert look(visits(), columns={"exclude": ["x0"], "hash": ["kind:2^4"]}).pilot.width >= 16


@pytest.mark.parametrize("pattern", ["algebraic", "sequential"])
def test_many_small_groups_are_played_through_together(pattern: str) -> None:
    sizes = np.maximum(2, np.random.default_rng(0).lognormal(4, 1.5, 21_000)).astype(np.int64)
    work = Work(pattern, 2, 3, 100, 100, Pilot(3e-8, 1e-5, 1e-10, 1e-4), batch=1 << 62)
    merged, changed = group_training._merged(sizes, work)
    assert len(merged) < 20_000
    whole, some = simulate(sizes, 16, work=work), simulate(merged, 16, work=changed)
    assert some.makespan == pytest.approx(whole.makespan, rel=0.05)
    assert some.moved == pytest.approx(whole.moved, rel=0.01)


@pytest.mark.slow
def test_pilot_runs_in_a_process_of_its_own(temporary: Path) -> None:
    found = look(visits(1_000), workers=[2])
    assert found.pilot.together.row_config > 0
    assert found.pilot.start > 0
    assert list(temporary.iterdir()) == []
