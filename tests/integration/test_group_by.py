"""A model for every group, from table to predictions: figures, failures, kills and leftovers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sklearn.linear_model import LogisticRegression as Theirs

import penstock
from penstock.errors import DataError, PenstockError, UnknownOptionError, UsageError
from penstock.events import Advanced, Event, Finished, Started
from penstock.groups import Boosting, GroupBy, training_run
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from penstock.groups.keys import to_text
from penstock.groups.results import GroupModels
from penstock.groups.search_space import Search
from penstock.groups.split import HELD_OUT, SELECTION, TRAINING, Split
from penstock.testing.executors import InlineExecutor
from tests.group_tables import (
    BAD,
    KEYS,
    L2,
    SIZES,
    chosen,
    coefficients,
    frame_rows,
    logistic,
    rows_of,
    same_results,
    with_bad,
)

pytestmark = pytest.mark.usefixtures("temporary")


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return with_bad()


@pytest.fixture(scope="module")
def result(table: pa.Table) -> GroupModels:
    """Two processes, several columns, a dict to search."""
    return GroupBy(table, by=["country", "device"]).fit(
        logistic(), y="clicked", search={"l2": L2}, validation=0.2, workers=2
    )


class TestAgainstScikitLearn:
    def test_the_frame_has_a_row_for_each_group_and_config(self, result: GroupModels) -> None:
        assert result.frame.column_names == [
            *("country", "device", "text", "group", "rows", "selection_rows", "held_out_rows", "config", "param_l2"),
            *("loss", "selection_loss", "selection_accuracy", "held_out_loss", "held_out_accuracy"),
            *("pooled_loss", "pooled_accuracy", "seconds", "epochs", "status", "reason", "traceback"),
        ]
        assert result.frame.num_rows == (len(KEYS) + len(BAD)) * len(L2)
        for key, size in zip(KEYS, SIZES, strict=True):
            found = frame_rows(result, key)
            assert [row["param_l2"] for row in found] == L2
            assert {(row["country"], row["device"]) for row in found} == {key}
            assert {row["rows"] for row in found} == {size}
            assert {row["status"] for row in found} == {"done"}
            assert all(row["seconds"] > 0 and row["epochs"] > 1 for row in found)

    @pytest.mark.parametrize("key", KEYS, ids=to_text)
    def test_every_model_and_figure(self, result: GroupModels, table: pa.Table, key: tuple[Any, ...]) -> None:
        own = chosen(table, key)
        x = np.stack([own[name].to_numpy() for name in "abc"], axis=1)
        y = own["clicked"].to_numpy()
        found = frame_rows(result, key)
        parts = Split.of(0.2, 0, chooses=True).parts(found[0]["group"], 0, len(y))
        assert parts is not None
        train, hold = parts == TRAINING, parts == SELECTION
        assert (found[0]["selection_rows"], found[0]["held_out_rows"]) == (hold.sum(), (parts == HELD_OUT).sum())
        losses = []
        for config, row in enumerate(found):
            theirs = Theirs(C=1 / (L2[config] * train.sum()), tol=1e-9, max_iter=10_000).fit(x[train], y[train])
            weights = result.model(key, config).weights
            np.testing.assert_allclose(weights.coef, theirs.coef_, atol=2e-3)
            np.testing.assert_allclose(weights.intercept, theirs.intercept_, atol=2e-3)
            chances = theirs.predict_proba(x)[np.arange(len(y)), y.astype(int)]
            losses.append(-np.log(chances[hold]).mean())
            objective = -np.log(chances[train]).mean() + L2[config] / 2 * (theirs.coef_**2).sum()
            assert row["loss"] == pytest.approx(objective, rel=1e-4)
            assert row["selection_loss"] == pytest.approx(losses[-1], rel=1e-3)
            assert row["selection_accuracy"] == pytest.approx((theirs.predict(x) == y)[hold].mean(), abs=0.011)
        best = int(np.argmin(losses))
        np.testing.assert_array_equal(result.best(key).weights.coef, result.model(key, best).weights.coef)
        assert result.best(to_text(key)).weights.coef.tolist() == result.best(key).weights.coef.tolist()

    def test_predictions_are_by_each_rows_group(self, result: GroupModels, table: pa.Table) -> None:
        table = table.filter(pc.is_finite(table["a"]))
        predicted = result.predict(table, keep=["country"])
        assert isinstance(predicted, pa.Table)
        assert predicted["country"].to_pylist() == table["country"].to_pylist()
        both = list(zip(table["country"].to_pylist(), table["device"].to_pylist(), strict=True))
        x = np.stack([table[name].to_numpy() for name in "abc"], axis=1)
        guesses = predicted["prediction"].to_pylist()
        for key in KEYS:
            at = [place for place, found in enumerate(both) if found == key]
            coef, intercept = coefficients(result, key)
            assert [guesses[place] for place in at] == (x[at] @ coef + intercept > 0).tolist()
        for key in BAD:
            assert {guesses[place] for place, found in enumerate(both) if found == key} == {None}

    def test_groups_that_were_not_there(self, result: GroupModels) -> None:
        new = pa.table({"country": ["XX", "FR"], "device": ["ios", "i/os"], **{name: [1.0, 1.0] for name in "abc"}})
        assert result.predict(new)["prediction"].is_null().to_pylist() == [True, False]
        largest = result.predict(new.set_column(0, "country", [["FR", "FR"]]).set_column(1, "device", [["i/os"] * 2]))
        assert result.predict(new, unseen="largest")["prediction"].to_pylist() == largest["prediction"].to_pylist()
        with pytest.raises(UsageError, match="no pooled model"):  # whose rows hold a NaN
            result.predict(new, unseen="pooled")
        with pytest.raises(DataError, match="XX/ios"):
            result.predict(new, unseen="error")
        with pytest.raises(UsageError, match="there is no group 'XX/ios'"):
            result.best("XX/ios")

    @pytest.mark.parametrize(
        ("key", "reason"),
        [
            (("one", "class"), "only one class among its rows"),
            (("too", "few"), "too few rows: "),
            (("not a", "number"), "a feature is not a finite number"),
        ],
    )
    def test_groups_that_cannot_be_trained_say_why(
        self, result: GroupModels, key: tuple[str, str], reason: str
    ) -> None:
        found = frame_rows(result, key)
        assert len(found) == len(L2)
        for row in found:
            assert row["status"] == "failed"
            assert row["reason"].startswith(reason)
        with pytest.raises(UsageError, match=reason):
            result.best(key)

    def test_the_result_in_figures(self, result: GroupModels) -> None:
        told = result.summary()
        assert (told["groups"], told["groups_without_model"], told["configs"]) == (len(KEYS) + len(BAD), len(BAD), 3)
        assert told["finished"]


@pytest.mark.usefixtures("inline")
class TestSearch:
    SIZES: ClassVar = {("x",): 120, ("y",): 80}

    def fit(self, search: Any, **options: Any) -> GroupModels:
        data = rows_of(self.SIZES, by=("g",)).drop_columns(["amount"])
        return GroupBy(data, by="g").fit(logistic(**options), y="clicked", search=search)

    def test_a_grid_in_a_file_is_the_grid(self, tmp_path: Path) -> None:
        path = tmp_path / "grid.toml"
        path.write_text("[grid]\nlearning_rate = [1, 0.5]\nl2 = [0.1, 0.01]\n")
        one, two = self.fit(path), self.fit({"learning_rate": [1, 0.5], "l2": [0.1, 0.01]})
        assert one.frame["param_l2"].to_pylist() == [0.1, 0.01] * 4
        assert one.frame["param_learning_rate"].to_pylist() == [1, 1, 0.5, 0.5] * 2
        same_results(one, two)

    def test_by_chance(self) -> None:
        search = Search.random({"l2": ("log", 1e-4, 1), "epochs": ("int", 3, 30)}, count=5, seed=1)
        one, two = self.fit(search), self.fit(search)
        assert one.frame.num_rows == 10
        assert len(set(one.frame["param_l2"].to_pylist())) == 5
        assert pc.all(pc.less_equal(one.frame["epochs"], one.frame["param_epochs"])).as_py()
        same_results(one, two)

    def test_nothing_to_search(self) -> None:
        found = self.fit(None, l2=0.1)
        assert found.frame.num_rows == 2
        same = self.fit({"l2": [0.1]})
        for text in ("x", "y"):
            np.testing.assert_array_equal(coefficients(found, text)[0], coefficients(same, text)[0])

    def test_what_is_searched_and_what_the_model_says_go_together(self) -> None:
        found = self.fit({"epochs": [1, 4]}, l2=1e-6, tolerance=0.0)
        assert found.frame["epochs"].to_pylist() == [1, 4, 1, 4]

    def test_a_config_that_diverges(self) -> None:
        found = self.fit({"learning_rate": [1.0, 1e12]}, solver="gd", epochs=40)
        assert found.frame["status"].to_pylist() == ["done", "failed"] * 2
        assert set(found.failed["reason"].to_pylist()) == {"training did not get anywhere; use a smaller learning rate"}
        assert found.chosen["config"].to_pylist() == [0, 0]
        assert np.isfinite(coefficients(found, "x")[0]).all()
        with pytest.raises(PenstockError, match="no model is kept of config 1 of group x"):
            found.model("x", 1)

    def test_names_that_no_parameter_has(self, temporary: Path) -> None:
        with pytest.raises(UnknownOptionError, match="did you mean 'learning_rate'"):
            self.fit({"learning_rat": [1]})
        assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("inline")
class TestShapes:
    def test_linear_models(self) -> None:
        data = rows_of({("x",): 200, ("y",): 100}, by=("g",)).drop_columns(["clicked"])
        found = GroupBy(data, by="g").fit(
            penstock.LinearRegression(solver="lbfgs", epochs=50), y="amount", search={"l2": [0.0, 0.1]}
        )
        assert "held_out_r2" in found.frame.column_names
        own = chosen(data, ("x",), ("g",))
        x = np.stack([*(own[name].to_numpy() for name in "abc"), np.ones(200)], axis=1)
        group_number = frame_rows(found, ("x",))[0]["group"]
        keep = Split.of(0.1, 0, chooses=True).parts(group_number, 0, 200) == TRAINING
        exact = np.linalg.lstsq(x[keep], own["amount"].to_numpy()[keep], rcond=None)[0]
        np.testing.assert_allclose(found.model("x", 0).weights.coef[0], exact[:-1], atol=1e-3)
        assert frame_rows(found, ("x",))[0]["selection_r2"] > 0
        assert found.summary()["held_out_r2"] > 0

    def test_one_group_only(self) -> None:
        data = rows_of({("x",): 100}, by=("g",)).drop_columns(["amount"])
        for workers in (1, 3):
            found = GroupBy(data, by="g").fit(logistic(), y="clicked", search={"l2": [0.1]}, workers=workers)
            assert found.groups == ["x"]
            assert found.frame["status"].to_pylist() == ["done"]

    def test_almost_as_many_groups_as_rows(self) -> None:
        sizes = {(f"g{number}",): 1 + (number % 10 == 0) * 20 for number in range(100)}
        data = rows_of(sizes, by=("g",)).drop_columns(["amount"])
        found = GroupBy(data, by="g").fit(logistic(), y="clicked", search={"l2": [0.1, 1.0]}, workers=2)
        assert found.frame.num_rows == 200
        assert found.summary()["groups_without_model"] >= 90
        assert all(reason for reason in found.failed["reason"].to_pylist())
        assert len(found.chosen) >= 5

    def test_no_group_can_be_trained(self) -> None:
        data = pa.table({"g": ["a", "b", "c"], "x": [1.0, 2.0, 3.0], "clicked": [True, False, True]})
        found = GroupBy(data, by="g").fit(logistic(), y="clicked")
        assert found.chosen.num_rows == 0
        assert found.predict(data)["prediction"].to_pylist() == [None] * 3

    def test_numbers_dates_and_booleans_as_keys(self) -> None:
        data = rows_of({(1, True): 60, (2, False): 60, (None, True): 60}, by=("n", "flag")).drop_columns(["amount"])
        found = GroupBy(data, by=["n", "flag"]).fit(logistic(), y="clicked", search={"l2": [0.1]})
        assert sorted(found.groups) == ["%null/true", "1/true", "2/false"]
        assert found.best((2, False)).weights.coef.shape == (1, 3)
        assert found.predict(data)["prediction"].null_count == 0

    def test_weights_of_rows(self) -> None:
        data = rows_of({("x",): 200}, by=("g",)).drop_columns(["amount"])
        weight = np.random.default_rng(1).integers(0, 3, 200)
        repeated = data.take(pa.array(np.repeat(np.arange(200), weight)))
        one = GroupBy(data.append_column("w", pa.array(weight.astype(float))), by="g", weight="w")
        options: dict[str, Any] = {"y": "clicked", "search": {"l2": [0.1]}, "validation": 0}
        mine, other = one.fit(logistic(), **options), GroupBy(repeated, by="g").fit(logistic(), **options)
        np.testing.assert_allclose(coefficients(mine, "x")[0], coefficients(other, "x")[0], atol=1e-3)

    @pytest.mark.parametrize("workers", [1, 2])
    @pytest.mark.parametrize(
        "model",
        [logistic(), penstock.LogisticRegression(solver="sgd", epochs=3, l2=0.01), Boosting(rounds=5, lambda_l2=1.0)],
        ids=["lbfgs", "sgd", "trees"],
    )
    def test_the_unit_of_weights_changes_nothing(self, model: Any, workers: int) -> None:
        if isinstance(model, Boosting):
            pytest.importorskip("lightgbm")
        data = rows_of({("x",): 1500, ("y",): 100}, by=("g",)).drop_columns(["amount"])
        weight = np.random.default_rng(1).integers(0, 3, len(data)).astype(float)
        found = [
            GroupBy(data.append_column("w", pa.array(unit * weight)), by="g", weight="w").fit(
                model, y="clicked", workers=workers, pooled=False
            )
            for unit in (1.0, 1e5, 1e-5)
        ]
        for other in found[1:]:
            for name in ("loss", "held_out_loss", "held_out_accuracy"):
                np.testing.assert_allclose(other.frame[name], found[0].frame[name], rtol=1e-3, err_msg=name)
        assert found[0].summary()["held_out_accuracy"] > 0.65

    def test_sparse_rows(self) -> None:
        rng = np.random.default_rng(0)
        words = rng.integers(0, 20, (300, 3))
        text = [" ".join(f"w{word}" for word in each) for each in words]
        data = pa.table({"g": np.repeat(["x", "y"], 150), "text": text, "clicked": (words < 5).sum(1) > 0})
        found = GroupBy(data, by="g", hash=["text:2^12:words"]).fit(logistic(), y="clicked", search={"l2": [1e-3]})
        assert found.frame["held_out_accuracy"].to_pylist() > [0.7, 0.7]
        right = pc.equal(found.predict(data)["prediction"], data["clicked"])
        assert pc.mean(right.cast(pa.float32())).as_py() > 0.9

    def test_nothing_held_out(self) -> None:
        data = rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"])
        found = GroupBy(data, by="g").fit(logistic(), y="clicked", search={"l2": [1.0, 1e-3]}, validation=0)
        assert found.frame["held_out_rows"].to_pylist() == [0] * 4
        assert found.frame["selection_loss"].null_count == found.frame["selection_accuracy"].null_count == 4
        assert found.chosen["config"].to_pylist() == [1, 1], "by the training loss"
        assert found.pooled is None
        told = found.summary()
        assert (told["held_out_accuracy"], told["held_out_rows"], told["selection_accuracy"]) == (None, None, None)

    @pytest.mark.parametrize("part", [SELECTION, HELD_OUT])
    def test_an_infinite_number_among_rows_not_trained_on_is_told(self, part: int) -> None:
        data = rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"])
        own = np.flatnonzero(np.array(data["g"].to_pylist()) == "x")
        number = 0 if data["g"][0].as_py() == "x" else 1
        held = np.flatnonzero(Split.of(0.1, 0, chooses=True).parts(number, 0, 100) == part)
        b = data["b"].to_numpy().copy()
        b[own[held[0]]] = np.inf
        spoilt = data.set_column(data.column_names.index("b"), "b", pa.array(b, from_pandas=False))
        found = GroupBy(spoilt, by="g").fit(logistic(), y="clicked", search={"l2": [1.0, 1e-3]})
        for row in frame_rows(found, ("x",)):
            assert (row["status"], row["reason"]) == ("failed", "a feature is not a finite number")
        assert {row["status"] for row in frame_rows(found, ("y",))} == {"done"}

    @pytest.mark.parametrize("placement", list(training_run.PLACEMENTS))
    @pytest.mark.parametrize("workers", [2, 3])
    def test_placements_change_nothing(self, placement: str, workers: int) -> None:
        data = rows_of({("x",): 900, ("y",): 100, ("z",): 100}, by=("g",)).drop_columns(["amount"])
        options: dict[str, Any] = {"y": "clicked", "search": {"l2": [0.5, 0.2]}}
        one = GroupBy(data, by="g").fit(logistic(epochs=4), workers=1, **options)
        same_results(
            one, GroupBy(data, by="g").fit(logistic(epochs=4), workers=workers, placement=placement, **options)
        )


@pytest.mark.usefixtures("inline")
def test_what_is_told_on_the_way() -> None:
    heard: list[Event] = []
    data = rows_of({("x",): 100, ("y",): 50, ("z",): 1}, by=("g",)).drop_columns(["amount"])
    GroupBy(data, by="g").fit(logistic(), y="clicked", search={"l2": [1, 0.1]}, listeners=[heard.append])
    own = [event for event in heard if getattr(event, "task", "") == "groups"]
    assert own[0] == Started("groups", 151, "rows")
    assert own[-1] == Finished("groups")
    steps = [event for event in own if isinstance(event, Advanced)]
    assert sum(event.amount for event in steps) == 151
    assert steps[-1].note == "3/3 groups x 2 configs  1 failed"


def test_rows_that_are_open_can_be_trained_from_twice_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)
    data = rows_of({("x",): 100, ("y",): 50}, by=("g",)).drop_columns(["amount"])
    group(data, "g", tmp_path / "rows", label="clicked", memory="100MB").close()
    with Grouped(tmp_path / "rows"):
        one, two = (GroupBy(tmp_path / "rows", by="g").fit(logistic(), search={"l2": [0.1]}) for _ in range(2))
    same_results(one, two)


@pytest.mark.parametrize("model", [object()])
def test_what_is_not_there_for_groups_is_named_with_what_is(model: Any) -> None:
    with pytest.raises(UsageError, match=r"LogisticRegression.*LinearRegression"):
        GroupBy(rows_of({("x",): 20}, by=("g",)), by="g").fit(model, y="clicked")
