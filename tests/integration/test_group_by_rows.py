"""GroupBy: what is asked wrongly is refused, and rows sorted before are used again."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import PenstockError, UsageError
from penstock.events import Advanced, Event, Started
from penstock.groups import GroupBy
from penstock.groups.etl import group
from penstock.groups.results import GroupModels
from tests.group_tables import (
    logistic,
    rows_of,
    same_results,
)

pytestmark = pytest.mark.usefixtures("temporary")


@pytest.mark.usefixtures("inline")
class TestAskedWrongly:
    data = pa.table({"g": ["a", "a", "b", "b"], "x": [1.0, 2.0, 3.0, 4.0], "clicked": [True, False, True, False]})

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"executor": "cluster"}, "executor='cluster' is not known"),
            ({"placement": "round-robin"}, "placement='round-robin' is not known"),
            ({"validation": 1.0}, "validation=1.0"),
            ({"validation": -0.1}, "validation=-0.1"),
            ({"resume": True}, "name it with out="),
            ({"y": None}, "say which column is the label"),
            ({"y": "clickd"}, "clickd"),
            ({"search": {"l2": [-1.0]}}, "l2=-1.0"),
        ],
    )
    def test_options(self, options: dict[str, Any], match: str, temporary: Path) -> None:
        with pytest.raises(PenstockError, match=match):
            GroupBy(self.data, by="g").fit(logistic(), **{"y": "clicked"} | options)
        gc.collect()
        assert list(temporary.iterdir()) == []

    def test_halving_of_what_shares_all_passes(self) -> None:
        with pytest.raises(UsageError, match="halving is for models that learn row by row"):
            GroupBy(self.data, by="g").fit(logistic(), y="clicked", halving=True)

    @pytest.mark.parametrize("halving", [3, {"rungs": 3}, {"eta": 1}])
    def test_halving_asked_for_wrongly(self, halving: Any) -> None:
        with pytest.raises(UsageError, match=r"halving|eta=1"):
            GroupBy(self.data, by="g").fit(penstock.LogisticRegression(solver="sgd"), y="clicked", halving=halving)

    def test_an_address_without_ray(self) -> None:
        with pytest.raises(UsageError, match="executor='ray'"):
            GroupBy(self.data, by="g").fit(logistic(), y="clicked", address="auto")

    def test_a_column_that_is_not_there(self) -> None:
        with pytest.raises(PenstockError, match="city"):
            GroupBy(self.data, by="city").fit(logistic(), y="clicked")


@pytest.mark.usefixtures("inline")
class TestRowsAndFolders:
    def test_grouped_rows_are_taken_as_they_are(self, tmp_path: Path) -> None:
        data = rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"])
        group(data, "g", tmp_path / "rows", label="clicked", memory="100MB").close()
        before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
        options: dict[str, Any] = {"search": {"l2": [0.1]}}
        one = GroupBy(tmp_path / "rows", by="g").fit(logistic(), **options)
        same_results(one, GroupBy(data, by="g").fit(logistic(), y="clicked", **options))
        assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()} == before
        with pytest.raises(UsageError, match="holds rows by g, not by country"):
            GroupBy(tmp_path / "rows", by="country").fit(logistic(), **options)
        with pytest.raises(UsageError, match="whose label is 'clicked', not 'bought'"):
            GroupBy(tmp_path / "rows", by="g").fit(logistic(), y="bought", **options)

    def test_rows_are_used_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "data.parquet"
        pq.write_table(rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"]), path)
        grouping = GroupBy(path, by="g", rows=tmp_path / "rows")
        one = grouping.fit(logistic(), y="clicked", search={"l2": [0.1]})
        before = (tmp_path / "rows" / "grouped.json").stat()
        two = grouping.fit(logistic(), y="clicked", search={"l2": [0.1]})
        after = (tmp_path / "rows" / "grouped.json").stat()
        assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
        same_results(one, two)

    def test_a_folder_of_models(self, tmp_path: Path) -> None:
        data = rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"])
        found = GroupBy(data, by="g").fit(logistic(), y="clicked", search={"l2": [0.1]}, out=tmp_path / "models")
        same_results(found, GroupModels.open(tmp_path / "models"))
        with pytest.raises(UsageError, match="holds models already"):
            GroupBy(data, by="g").fit(logistic(), y="clicked", search={"l2": [0.1]}, out=tmp_path / "models")

    def test_going_on_with_what_is_finished_trains_nothing(self, tmp_path: Path) -> None:
        data = rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"])
        options: dict[str, Any] = {"y": "clicked", "search": {"l2": [0.1]}, "out": tmp_path / "models"}
        one = GroupBy(data, by="g").fit(logistic(), **options)
        heard: list[Event] = []
        two = GroupBy(data, by="g").fit(logistic(), resume=True, listeners=[heard.append], **options)
        assert [event for event in heard if isinstance(event, Advanced) and event.task == "groups"] == []
        same_results(one, two)

    def test_going_on_with_something_else_is_refused(self, tmp_path: Path) -> None:
        data = rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"])
        options: dict[str, Any] = {"y": "clicked", "out": tmp_path / "models"}
        GroupBy(data, by="g").fit(logistic(), search={"l2": [0.1]}, **options)
        for model, search, validation in (
            (logistic(), {"l2": [0.2]}, 0.1),
            (logistic(epochs=3), {"l2": [0.1]}, 0.1),
            (logistic(), {"l2": [0.1]}, 0.3),
        ):
            with pytest.raises(UsageError, match="another training"):
                GroupBy(data, by="g").fit(model, search=search, validation=validation, resume=True, **options)
        with pytest.raises(UsageError, match="data have changed"):
            GroupBy(data.slice(0, 140), by="g").fit(logistic(), search={"l2": [0.1]}, resume=True, **options)

    def test_two_writers(self, tmp_path: Path) -> None:
        data = rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"])
        refused: list[PenstockError] = []

        def second(event: Event) -> None:
            if isinstance(event, Started) and event.task == "groups":
                with pytest.raises(PenstockError) as raised:
                    GroupBy(data, by="g").fit(logistic(), y="clicked", out=tmp_path / "models", resume=True)
                refused.append(raised.value)

        found = GroupBy(data, by="g").fit(logistic(), y="clicked", out=tmp_path / "models", listeners=[second])
        assert len(refused) == 1
        assert "models" in str(refused[0])
        assert found.summary()["groups_without_model"] == 0

    def test_nothing_is_left_when_the_result_is_gone(self, temporary: Path) -> None:
        data = rows_of({("x",): 100}, by=("g",)).drop_columns(["amount"])
        found = GroupBy(data, by="g").fit(logistic(), y="clicked")
        assert [path.name.startswith("penstock-groups-") for path in temporary.iterdir()] == [True]
        found.predict(data)
        del found
        gc.collect()
        assert list(temporary.iterdir()) == []

    def test_nothing_is_left_after_an_error(self, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(event: Event) -> None:
            if isinstance(event, Advanced) and event.task == "groups":
                raise RuntimeError("a listener's own")

        data = rows_of({("x",): 100}, by=("g",)).drop_columns(["amount"])
        with pytest.raises(RuntimeError, match="a listener's own") as kept:
            GroupBy(data, by="g").fit(logistic(), y="clicked", listeners=[broken])
        assert kept.traceback, "not even while the error is held on to"
        assert list(temporary.iterdir()) == []
