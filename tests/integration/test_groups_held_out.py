"""The score that is shown for groups: of rows that no choice has seen, with that of one model for all beside it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sklearn.linear_model import LogisticRegression as Theirs
from sklearn.metrics import r2_score

import penstock
from penstock.groups import Boosting, GroupBy, GroupModels
from penstock.groups.split import HELD_OUT, TRAINING, Split
from penstock.groups.tables import figures, lines
from penstock.report.group_data import GroupPage
from penstock.report.group_page import group_findings, render_groups
from tests.group_tables import logistic, rows_of

pytestmark = pytest.mark.usefixtures("inline")


def halves(result: GroupModels, table: pa.Table) -> Any:
    """Return which rows of a table are held out, by the split of a result's groups."""
    numbers = dict(zip(result.frame["text"].to_pylist(), result.frame["group"].to_pylist(), strict=True))
    texts = np.array(table["g"].to_pylist())
    held = np.zeros(len(table), bool)
    for text, number in numbers.items():
        here = np.flatnonzero(texts == text)
        held[here] = (
            Split.of(0.1, 0, chooses=len(result.registry.index.configs) > 1).parts(number, 0, len(here)) == HELD_OUT
        )
    return held


class TestHeldOut:
    MODELS: ClassVar[dict[str, tuple[Any, dict[str, list[Any]]]]] = {
        "lbfgs": (logistic(epochs=20), {"l2": [1.0, 0.1, 0.01]}),
        "sgd": (penstock.LogisticRegression(epochs=3), {"learning_rate": [1.0, 0.1]}),
        "halving": (penstock.LogisticRegression(epochs=4), {"learning_rate": [1.0, 0.3, 0.1, 0.01]}),
        "one config": (logistic(epochs=20), {"l2": [0.1]}),
        "trees": (Boosting(rounds=5, min_data_in_leaf=3), {"num_leaves": [3, 7]}),
        "patience": (penstock.LogisticRegression(epochs=5, patience=1), {"l2": [0.0]}),
    }

    @pytest.mark.parametrize("workers", [1, 2])
    @pytest.mark.parametrize("name", MODELS)
    def test_no_choice_hangs_on_it(self, name: str, workers: int) -> None:
        if name == "trees":
            pytest.importorskip("lightgbm")
        model, search = self.MODELS[name]
        table = rows_of({("x",): 900, ("y",): 120, ("z",): 60}, by=("g",)).drop_columns(["amount"])
        options: dict[str, Any] = {"y": "clicked", "search": search, "workers": workers, "halving": name == "halving"}
        options["validation"] = 0.1
        first = GroupBy(table, by="g").fit(model, **options)
        held = halves(first, table)
        if name == "patience":  # one config, but something to choose: when to stop
            assert min(first.frame["selection_rows"].to_pylist()) > 0
            held = np.zeros(len(table), bool)
        y = table["clicked"].to_numpy() ^ held
        other = GroupBy(table.set_column(4, "clicked", pa.array(y)), by="g").fit(model, **options)
        assert other.chosen["config"].to_pylist() == first.chosen["config"].to_pylist()
        for text in first.groups:
            mine, theirs = (each.predict(table)["prediction"].to_pylist() for each in (first, other))
            assert mine == theirs, text
        one, two = first.summary(), other.summary()
        if name != "patience":
            assert one["held_out_rows"] == held.sum()
            assert two["held_out_accuracy"] == pytest.approx(1 - one["held_out_accuracy"])
            assert two["pooled"]["held_out_accuracy"] == pytest.approx(1 - one["pooled"]["held_out_accuracy"])
            right = np.array(first.predict(table)["prediction"].to_pylist()) == table["clicked"].to_numpy()
            assert one["held_out_accuracy"] == pytest.approx(right[held].mean())
            texts = np.array(table["g"].to_pylist())
            for row in first.chosen.to_pylist():
                own = right[held & (texts == row["g"])]
                assert (row["held_out_rows"], row["held_out_accuracy"]) == (len(own), pytest.approx(own.mean()))

    def test_the_pooled_model_is_that_of_one_group_of_all_rows(self) -> None:
        table = rows_of({("x",): 700, ("y",): 120, ("z",): 60}, by=("g",)).drop_columns(["amount"])
        for workers in (1, 2):
            found = GroupBy(table, by="g").fit(
                logistic(epochs=200), y="clicked", search={"l2": [0.1, 0.01]}, workers=workers, validation=0.1
            )
            held = halves(found, table)
            pooled = found.pooled
            assert pooled is not None
            weights = pooled.best(()).weights
            x = np.stack([table[name].to_numpy() for name in "abc"], axis=1)
            right = (x @ weights.coef[0] + weights.intercept > 0) == table["clicked"].to_numpy()
            assert found.summary()["pooled"]["held_out_accuracy"] == pytest.approx(right[held].mean())
            order = np.concatenate([np.flatnonzero(np.array(table["g"].to_pylist()) == text) for text in found.groups])
            numbers = [found.frame["group"].to_pylist()[2 * at] for at in range(3)]
            sizes = [found.frame["rows"].to_pylist()[2 * at] for at in range(3)]
            split = Split.of(0.1, 0, chooses=True)
            parts = np.concatenate(
                [split.parts(number, 0, size) for number, size in zip(numbers, sizes, strict=True)]  # type: ignore[misc]
            )
            train = order[parts == TRAINING]
            l2 = found.summary()["pooled"]["params"]["l2"]
            theirs = Theirs(C=1 / (l2 * len(train)), tol=1e-9, max_iter=10_000).fit(
                x[train], table["clicked"].to_numpy()[train]
            )
            np.testing.assert_allclose(weights.coef, theirs.coef_, atol=2e-3)

    def test_regression_weights_and_groups_without_a_model(self) -> None:
        table = rows_of({("x",): 400, ("y",): 200, ("lone",): 1}, by=("g",)).drop_columns(["clicked"])
        table = table.append_column("w", pa.array(np.random.default_rng(3).uniform(0.5, 2, len(table))))
        found = GroupBy(table, by="g", weight="w").fit(
            penstock.LinearRegression(solver="lbfgs", epochs=30),
            y="amount",
            search={"l2": [0.1, 0.01]},
            validation=0.1,
        )
        held = halves(found, table) & (np.array(table["g"].to_pylist()) != "lone")
        y, w = table["amount"].to_numpy()[held], table["w"].to_numpy()[held]
        answers = np.array(found.predict(table)["prediction"].to_pylist(), float)[held]
        told = found.summary()
        assert told["held_out_rows"] == held.sum()
        assert told["held_out_r2"] == pytest.approx(r2_score(y, answers, sample_weight=w), abs=1e-4)
        assert told["held_out_loss"] == pytest.approx(np.average((answers - y) ** 2, weights=w) / 2, rel=1e-4)
        assert told["pooled"]["held_out_r2"] < told["held_out_r2"]

    def test_a_choice_among_many_flatters_and_the_shown_score_does_not(self) -> None:
        rng = np.random.default_rng(0)
        rows = 60 * 80
        table = pa.table(
            {"g": np.repeat(np.arange(60), 80), "y": rng.random(rows) < 0.5}
            | {f"x{n}": rng.standard_normal(rows) for n in range(10)}
        )
        search = {"l2": [10.0**-n for n in range(5)], "learning_rate": [3.0, 1.0, 0.3, 0.1]}
        found = GroupBy(table, by="g").fit(penstock.LogisticRegression(epochs=1), y="y", search=search, pooled=False)
        told = found.summary()
        assert told["selection_accuracy"] > 0.54  # of labels that nothing can be known of
        assert abs(told["held_out_accuracy"] - 0.5) < 0.06
        assert told["pooled"] is None

    def test_the_summary_counts_groups_in_which_the_pooled_model_is_better(self) -> None:
        table = rows_of({("x",): 700, ("y",): 120, ("z",): 60, ("w",): 40}, by=("g",)).drop_columns(["amount"])
        found = GroupBy(table, by="g").fit(logistic(), y="clicked", search={"l2": [0.01]})
        rows = found.chosen.to_pylist()
        told = found.summary()["pooled"]
        assert told["groups"] == len(rows) == 4
        assert told["better"] == sum(row["pooled_accuracy"] > row["held_out_accuracy"] for row in rows)
        assert told["worse"] == sum(row["pooled_accuracy"] < row["held_out_accuracy"] for row in rows) > 0
        assert f"worse in {told['worse']}" in "\n".join(lines(figures(found)))

    def test_groups_of_few_held_out_rows_are_not_compared_by_score(self) -> None:
        table = rows_of({("x",): 700, ("y",): 500, ("z",): 20, ("w",): 15}, by=("g",)).drop_columns(["amount"])
        found = GroupBy(table, by="g").fit(logistic(), y="clicked", search={"l2": [0.01]})
        large = [row["held_out_accuracy"] for row in found.chosen.to_pylist() if row["held_out_rows"] >= 10]
        score = figures(found)["score"]
        assert (score["compared"], score["min"], score["max"]) == (2, min(large), max(large))
        assert score["groups"] == sum(row["held_out_rows"] > 0 for row in found.chosen.to_pylist()) > 2
        assert f"the 2 of {score['groups']} groups" in "\n".join(lines(figures(found)))
        words = next(line for line in lines(figures(found)) if " groups with at least" in line).strip()
        page = GroupPage.of(found)
        assert words in group_findings(page)[0].replace("\u202f", " "), "the report says the same"
        assert (page.held_out_rows[page.worst] >= 10).all()
        assert "with fewer than 10 held-out rows" in render_groups(page)
        alone = GroupBy(table.slice(0, 120), by="g").fit(logistic(), y="clicked", search={"l2": [0.01]})
        assert figures(alone)["score"]["median"] is None
        assert "too few to compare" in "\n".join(lines(figures(alone)))
        assert "too few to compare" in group_findings(GroupPage.of(alone))[0]

    def test_the_pooled_model_knows_groups_where_their_column_is_a_category(self) -> None:
        table = rows_of({("x",): 400, ("y",): 400}, by=("g",)).drop_columns(["amount"])
        level = pa.array(np.array(table["g"].to_pylist()) == "x")
        table = table.set_column(4, "clicked", level)
        table = table.slice(0, 790).set_column(
            4, "clicked", pc.xor(level.slice(0, 790), pc.greater(table["a"], 1.5)[:790])
        )
        bare = GroupBy(table, by="g").fit(logistic(), y="clicked")
        told = figures(bare)
        assert told["pooled"]["without"] == ["g"]
        for words in (
            "by one model for all groups, without 'g'",
            "compare with a model that has it: train one without",
        ):
            assert words in "\n".join(lines(told))
        page = GroupPage.of(bare)
        assert "one model for all groups, without 'g', has" in group_findings(page)[1]
        assert "Compare with a model that has it too." in group_findings(page)[1]
        knows = GroupBy(table, by="g", category=["g"]).fit(logistic(), y="clicked")
        better = figures(knows)
        assert better["pooled"]["without"] == []
        assert better["pooled"]["held_out_accuracy"] > told["pooled"]["held_out_accuracy"] + 0.2
        assert better["held_out_accuracy"] == told["held_out_accuracy"], "within a group the column changes nothing"
        assert "without" not in "\n".join(lines(better)) + group_findings(GroupPage.of(knows))[1]
