"""What groups serve by default: the chosen config, trained on all rows once the held-out ones have judged it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.events import Advanced, Event, Finished, Started
from penstock.groups import Boosting, GroupBy, GroupModels
from penstock.groups.registry import REFIT, Registry
from tests.group_tables import logistic, rows_of, with_bad

pytestmark = pytest.mark.usefixtures("inline")
TABLE = rows_of({("x",): 300, ("y",): 120, ("z",): 60}, by=("g",))
MODELS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "lbfgs": (logistic(tolerance=1e-7), {"l2": [1.0, 0.1, 0.01]}),
    "scaled": (logistic(tolerance=1e-7, standardize=True), {}),
    "class weights": (logistic(tolerance=1e-7, class_weight="balanced"), {"l2": [0.1, 0.01]}),
    "gd": (logistic(solver="gd", learning_rate=0.5, epochs=300, l2=1.0), {}),
    "exact": (penstock.LinearRegression(), {"l2": [0.1, 0.01]}),
    "sgd": (penstock.LogisticRegression(solver="sgd"), {"learning_rate": [1.0, 0.1], "epochs": [2, 4]}),
    "trees": (Boosting(rounds=5, min_data_in_leaf=3), {"num_leaves": [3, 7], "rounds": [3, 6]}),
}


def fit(name: str, search: dict[str, list[Any]] | None = None, **options: Any) -> GroupModels:
    """Train one of the models; the classes unless it is a regression."""
    model, own = MODELS[name]
    label, other = ("amount", "clicked") if name == "exact" else ("clicked", "amount")
    given: dict[str, Any] = {"search": own if search is None else search, "workers": 1} | options
    return GroupBy(TABLE.drop_columns([other]), by="g").fit(model, y=label, **given)


def parameters(result: GroupModels, text: str | tuple[()]) -> Any:
    """Return the numbers, or the text, of a group's model."""
    model: Any = result.best(text)
    return model.text if hasattr(model, "text") else np.append(model.weights.coef, model.weights.intercept)


def config_of(result: GroupModels, place: int) -> dict[str, list[Any]]:
    """Return the config that was chosen for a group, as a search."""
    number = result.chosen["config"][place].as_py()
    return {name: [value] for name, value in result.registry.index.configs[number].items()}


def figures(result: GroupModels) -> tuple[Any, Any]:
    """Return all that is told of models but the time they took."""
    told = {name: value for name, value in result.summary().items() if name not in ("seconds", "refitted")}
    return result.frame.drop_columns(["seconds"]), told


class TestWeights:
    @pytest.mark.parametrize("workers", [1, 3])
    @pytest.mark.parametrize("name", MODELS)
    def test_all_rows_teach_the_chosen_config(self, name: str, workers: int) -> None:
        if name == "trees":
            pytest.importorskip("lightgbm")
        if workers > 1 and name == "sgd":
            pytest.skip("SGD goes by the parts of a group, which configs share otherwise than one config does")
        found = fit(name, workers=workers)
        judged = GroupModels(Registry.open(found.registry.folder, refit=False), refits=False)
        for place, text in enumerate(found.groups):
            expected = fit(name, config_of(found, place), validation=0.0, workers=workers)
            if name == "trees":
                assert parameters(found, text) == parameters(expected, text)
                continue
            own, other, close = parameters(found, text), parameters(expected, text), 0.0 if name == "sgd" else 2e-3
            np.testing.assert_allclose(own, other, rtol=0, atol=close)
            assert np.abs(parameters(judged, text) - other).max() > 2 * close
        pooled, before = found.pooled, judged.pooled
        assert pooled is not None
        assert before is not None
        assert np.any(parameters(pooled, ()) != parameters(before, ()))

    def test_rounds_are_those_that_were_best(self) -> None:
        pytest.importorskip("lightgbm")
        table = TABLE.drop_columns(["amount"])
        found = GroupBy(table, by="g").fit(Boosting(rounds=40, patience=2, learning_rate=0.5), y="clicked")
        judged = Registry.open(found.registry.folder, refit=False)
        for row in found.chosen_rows.tolist():
            counts = [registry.trees(row).count("\nTree=") for registry in (found.registry, judged)]
            assert counts[0] == counts[1] < found.frame["epochs"][row].as_py()

    def test_the_l2_penalty_that_is_open_is_one_over_all_rows(self) -> None:
        found = fit("scaled")
        expected, other = (fit("scaled", {"l2": [1 / rows]}, validation=0.0) for rows in (60, 54))
        one, two, far = (parameters(each, "z") for each in (found, expected, other))
        np.testing.assert_allclose(one, two, atol=2e-3)
        assert np.abs(one - far).max() > 1e-2

    def test_a_group_of_many_rows_keeps_what_sgd_learned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.groups.training_run.REFIT_ROWS", 100)  # 100,000 rows take long
        found = fit("sgd")
        texts = found.frame["text"].to_pylist()
        assert [texts[row] for row in np.flatnonzero(found.registry.refitted)] == ["z"]


class TestFigures:
    @pytest.mark.parametrize("name", ["lbfgs", "sgd"])
    def test_they_are_those_of_models_that_had_not_seen_the_rows(self, name: str) -> None:
        found, apart = fit(name), fit(name, validation=0.1)
        one, other = figures(found), figures(apart)
        assert one[0].equals(other[0])
        assert one[1] == other[1]
        assert found.summary()["refitted"] == 3

    def test_a_share_that_is_given_stays_apart(self) -> None:
        found = fit("lbfgs", validation=0.1)
        assert found.registry.refit is None
        assert not (found.registry.folder / REFIT).exists()
        assert found.summary()["refitted"] == 0

    def test_groups_that_cannot_be_trained_stay_failed(self) -> None:
        found = GroupBy(with_bad(), by=["country", "device"]).fit(logistic(), y="clicked", workers=2)
        assert found.summary()["groups_without_model"] == 3
        assert found.summary()["refitted"] == len(found.chosen_rows) == 6

    def test_events(self) -> None:
        heard: list[Event] = []
        fit("lbfgs", listeners=[heard.append])
        told = [event for event in heard if getattr(event, "task", "") == "refit"]
        assert told[0] == Started("refit", 480 + 480, "rows")  # the pooled model too
        assert told[-1] == Finished("refit")
        assert sum(event.amount for event in told if isinstance(event, Advanced)) == 960

    def test_a_copy_of_the_folder_serves_the_same(self, tmp_path: Path) -> None:
        found = fit("lbfgs")
        found.save(tmp_path / "copy")
        assert GroupModels.open(tmp_path / "copy").predict(TABLE).equals(found.predict(TABLE))


class StopError(Exception):
    """Ends a run."""


class TestResume:
    @pytest.mark.parametrize("name", ["lbfgs", "sgd"])
    @pytest.mark.parametrize("after", [0, 2])
    def test_a_run_that_ends_before_or_within_the_refit(self, tmp_path: Path, name: str, after: int) -> None:
        seen: list[Event] = []

        def stop(event: Event) -> None:
            seen.append(event)
            steps = [each for each in seen if isinstance(each, Advanced) and each.task == "refit"]
            if getattr(event, "task", "") == "refit" and len(steps) == after:
                raise StopError

        with pytest.raises(StopError):
            fit(name, out=tmp_path / "models", listeners=[stop])
        assert not Registry.open(tmp_path / "models").index.finished
        heard: list[Event] = []
        found = fit(name, out=tmp_path / "models", resume=True, listeners=[heard.append])
        assert not [event for event in heard if isinstance(event, Advanced) and event.task == "groups"]
        refits = [event for event in heard if isinstance(event, Advanced) and event.task == "refit"]
        assert len(refits) == 4 - after
        self.same(found, fit(name))

    def test_a_finished_run(self, tmp_path: Path) -> None:
        expected = fit("lbfgs", out=tmp_path / "models")
        before = figures(expected)
        heard: list[Event] = []
        found = fit("lbfgs", out=tmp_path / "models", resume=True, listeners=[heard.append])
        assert not [event for event in heard if isinstance(event, Advanced) and event.task in ("groups", "refit")]
        assert figures(found)[0].equals(before[0])
        self.same(found, fit("lbfgs"))

    def same(self, found: GroupModels, expected: GroupModels) -> None:
        assert figures(found)[0].equals(figures(expected)[0])
        assert figures(found)[1] == figures(expected)[1]
        assert found.summary()["refitted"] == 3
        for text in found.groups:
            np.testing.assert_array_equal(parameters(found, text), parameters(expected, text))


def test_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.groups import training_run
    from penstock.groups.local import LocalExecutor

    here = fit("lbfgs", workers=2)
    monkeypatch.setitem(training_run.EXECUTORS, "local", LocalExecutor)
    there = fit("lbfgs", workers=2)
    for text in here.groups:
        np.testing.assert_array_equal(parameters(there, text), parameters(here, text))


def test_the_last_pass_of_weighed_classes_is_not_lost() -> None:
    # The first pass over a split group only counts the classes, and is none of those that an optimizer may make.
    table = rows_of({("x",): 3000, ("y",): 120}, by=("g",)).drop_columns(["amount"])
    model = logistic(class_weight="balanced", epochs=3, tolerance=0.0)
    found = GroupBy(table, by="g").fit(model, y="clicked", workers=2, placement="spread")
    assert found.groups == ["x", "y"]
    assert found.pooled is not None
    assert found.frame["epochs"].to_pylist() == [3, 3]
