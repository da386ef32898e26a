"""Rows with missing values get the same predictions and are measured in every place that predicts or evaluates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock import bigmodel, groups
from penstock.cli import app
from penstock.groups import training_run
from penstock.model import predict
from penstock.testing.executors import InlineExecutor
from tests.servers import Server

ROWS = 1200


def table(*, lacking: float, seed: int = 0) -> pa.Table:
    """Return rows in which the label follows ``a`` where ``b`` is there, and is the opposite in most others."""
    rng = np.random.default_rng(seed)
    a, b, gone = rng.normal(5, 1, ROWS), rng.normal(size=ROWS), rng.random(ROWS) < lacking
    word = rng.choice(["u", "v"], ROWS)
    columns = {"a": a, "b": pa.array(b, mask=gone), "word": word, "place": rng.choice(["N", "S"], ROWS)}
    return pa.table({**columns, "y": np.where(gone, a < 5, a > 5).astype(int)})


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)


def command(*args: str) -> tuple[dict[str, Any], str]:
    result = CliRunner().invoke(app, [*args, "--json"])
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    found: dict[str, Any] = json.loads(result.stdout)
    return found, result.stderr


@pytest.fixture(params=["duckdb", "postgresql"])
def session(request: pytest.FixtureRequest) -> Iterator[penstock.Session]:
    if request.param == "duckdb":
        with closing(penstock.connect(":memory:")) as found:
            yield found
        return
    postgres: Server = request.getfixturevalue("postgres")
    with postgres.database() as address, closing(penstock.connect(address)) as found:
        yield found


def stored(session: penstock.Session, name: str, rows: pa.Table) -> None:
    types = ", ".join(
        f"{field.name} {'text' if pa.types.is_string(field.type) else 'bigint' if pa.types.is_integer(field.type) else 'float8'}"
        for field in rows.schema
    )
    values = ", ".join(
        "(" + ", ".join("NULL" if v is None else repr(v) for v in row.values()) + ")" for row in rows.to_pylist()
    )
    session.sql(f"CREATE TABLE {name} ({types}); INSERT INTO {name} VALUES {values}")


class TestRowsThatTrainingDropped:
    """A model trained with ``missing = drop`` answers rows that lack a feature, and is measured on them."""

    def test_the_command_line_and_the_estimator(self) -> None:
        rows = table(lacking=0.4)
        pq.write_table(rows, "t.parquet")
        options = ("--label", "y", "--missing", "drop", "--exclude", "place", "--out", "m.penstock")
        trained, told = command("train", "t.parquet", *options)
        dropped = rows["b"].null_count
        assert f"{dropped} rows lack a feature and are left out, also of the rows held out" in told
        assert trained["dropped_rows"] == dropped
        shown = CliRunner().invoke(app, ["show", "m.penstock"]).stdout
        assert f"{dropped} rows that lacked a feature were neither learned from nor held out" in shown
        command("predict", "m.penstock", "t.parquet", "--out", "p.parquet")
        right = (pq.read_table("p.parquet")["prediction"].to_numpy() == rows["y"].to_numpy()).mean()
        found, _ = command("evaluate", "m.penstock", "t.parquet")
        assert (found["rows"], found["accuracy"]) == (ROWS, pytest.approx(right))
        assert found["accuracy"] < 0.7 < 0.95 < trained["held_out_accuracy"]
        model = penstock.LogisticRegression().fit(rows, y="y", missing="drop", exclude=["place"])
        assert model.score(rows) == pytest.approx(right, abs=0.02)
        assert model.evaluate(rows)["rows"] == ROWS

    def test_a_test_set_is_measured_as_evaluate_does(self) -> None:
        pq.write_table(table(lacking=0.4), "t.parquet")
        pq.write_table(table(lacking=0.4, seed=1), "v.parquet")
        options = ("--label", "y", "--missing", "drop", "--out", "m.penstock", "--test", "v.parquet")
        trained, _ = command("train", "t.parquet", *options)
        found, _ = command("evaluate", "m.penstock", "v.parquet")
        assert trained["test_rows"] == found["rows"] == ROWS
        assert trained["test_accuracy"] == pytest.approx(found["accuracy"])

    def test_models_on_disk(self) -> None:
        rows = table(lacking=0.4)
        pq.write_table(rows, "t.parquet")
        with bigmodel.LogisticRegression("m.model") as model:
            model.fit("t.parquet", y="y", missing="drop", test="t.parquet")
            assert model.model_.metrics["dropped_rows"] == rows["b"].null_count
            assert model.model_.metrics["test_rows"] == model.evaluate("t.parquet")["rows"] == ROWS
            right = (model.predict("t.parquet") == rows["y"].to_numpy()).mean()
            assert model.score("t.parquet") == pytest.approx(right)

    @pytest.mark.parametrize("trees", [True, False])
    def test_groups(self, trees: bool) -> None:
        rows = table(lacking=0.4)
        model = groups.Boosting(rounds=5) if trees else penstock.LogisticRegression()
        found = groups.GroupBy(rows, by="place", missing="drop").fit(model, y="y", workers=1)
        measured = found.evaluate(rows)
        assert measured["rows"] == ROWS
        right = (found.predict(rows)["prediction"].to_numpy() == rows["y"].to_numpy()).mean()
        assert measured["accuracy"] == pytest.approx(right)

    def test_sql(self, session: penstock.Session) -> None:
        stored(session, "t", table(lacking=0.4))
        session.sql("SELECT a, b, y FROM t TRAIN BY logistic AS m WITH (label = 'y', missing = 'drop')")
        found = session.sql("EVALUATE MODEL m ON SELECT * FROM t").to_arrow().to_pylist()[0]
        right = "avg(CASE WHEN prediction = y THEN 1.0 ELSE 0.0 END)"
        share = session.sql(f"SELECT {right} AS s FROM (SELECT * FROM t PREDICT BY m) AS p").rows[0][0]
        assert (found["rows"], found["accuracy"]) == (ROWS, pytest.approx(float(share)))
        of_warehouse = session.sql("SELECT * FROM ML.EVALUATE(MODEL m, (SELECT * FROM t))").to_arrow().to_pylist()[0]
        assert of_warehouse["accuracy"] == pytest.approx(float(share))


class TestColumnsThatLackedNothingInTraining:
    """Boosted trees learn no way for missing numbers in a column that lacked none; the mean stands for them there."""

    @staticmethod
    def rows(**columns: list[float | None]) -> pa.Table:
        """Return rows to be predicted, the same but for some columns."""
        (count,) = {len(values) for values in columns.values()}
        row = {"a": 5.0, "b": 0.0, "word": "u", "place": "N"}
        plain = {name: [value] * count for name, value in row.items()}
        return pa.table({**plain, **{name: pa.array(values, pa.float64()) for name, values in columns.items()}})

    @staticmethod
    def training() -> pa.Table:
        """Return rows whose label follows ``a``, of which the means of the places differ; only ``b`` has missing values."""
        rows = table(lacking=0.2)
        y = (np.asarray(rows["a"]) > 3).astype(int)
        return rows.set_column(rows.schema.get_field_index("y"), "y", pa.array(y))

    def test_a_missing_number_is_predicted_as_the_mean(self, caplog: pytest.LogCaptureFixture) -> None:
        rows = self.training()
        mean = float(np.mean(rows["a"].to_numpy()))
        found = groups.GroupBy(rows, by="place").fit(groups.Boosting(rounds=20), y="y", workers=1)
        shown = found.predict(self.rows(a=[None, mean, 0.0]), out="p.parquet")
        assert shown == 3
        chances = pq.read_table("p.parquet")["probability_1"].to_pylist()
        assert chances[0] == pytest.approx(chances[1])
        assert chances[0] > 0.9 > 0.5 > chances[2]
        assert "1 row has no 'a'; no feature of the model tells of that" in caplog.text
        single = found.best("N")
        single.save("n.txt")
        again = penstock.load("n.txt")
        with penstock.open(self.rows(a=[None, mean, 0.0])) as source:
            assert predict(again, source).tolist() == [1, 1, 0]

    def test_what_trees_have_learned_of_missing_numbers_stays(self, caplog: pytest.LogCaptureFixture) -> None:
        rows = table(lacking=0.4)  # whose label is the opposite where b is missing
        found = groups.GroupBy(rows, by="place").fit(groups.Boosting(rounds=20), y="y", workers=1)
        other = found.predict(self.rows(a=[8.0, 8.0], b=[0.0, None]))["prediction"].to_pylist()
        assert other == [1, 0]
        assert found.evaluate(rows)["accuracy"] > 0.95
        assert "has no 'b'" not in caplog.text
        assert "have no 'b'" not in caplog.text

    def test_each_group_by_what_its_own_rows_had(self, caplog: pytest.LogCaptureFixture) -> None:
        rows = table(lacking=0.4)
        north = pa.compute.equal(rows["place"], "N")
        only = pa.concat_tables(
            [
                rows.filter(north),
                rows.filter(pa.compute.invert(north)).filter(
                    pa.compute.is_valid(rows.filter(pa.compute.invert(north))["b"])
                ),
            ]
        )
        found = groups.GroupBy(only, by="place").fit(groups.Boosting(rounds=20), y="y", workers=1)
        asked = self.rows(a=[8.0, 8.0], b=[None, None]).set_column(3, "place", pa.array(["N", "S"]))
        found.predict(asked, out="p.parquet")
        assert pq.read_table("p.parquet")["prediction"].to_pylist() == [0, 1]
        assert "1 row has no 'b'" in caplog.text

    def test_rows_of_sparse_features(self) -> None:
        rows = self.training()
        mean = float(np.mean(rows["a"].to_numpy()))
        grouped = groups.GroupBy(rows, by="place", hash=["word:2^6"])
        found = grouped.fit(groups.Boosting(rounds=20), y="y", workers=1)
        chances = found.predict(self.rows(a=[None, mean, 0.0]))["probability_1"].to_pylist()
        assert chances[0] == pytest.approx(chances[1])
        assert chances[0] > 0.9 > 0.5 > chances[2]

    def test_sql(self, session: penstock.Session, caplog: pytest.LogCaptureFixture) -> None:
        rows = self.training()
        stored(session, "t", rows)
        session.sql("SELECT a, b, word, y FROM t TRAIN BY boosting AS m WITH (label = 'y', workers = 1, rounds = 20)")
        stored(session, "n", self.rows(a=[None, float(np.mean(rows["a"].to_numpy())), 0.0]))
        chances = session.sql("SELECT * FROM n PREDICT BY m").column("probability_1")
        assert chances[0] == pytest.approx(chances[1])
        assert chances[0] > 0.9 > 0.5 > chances[2]
        assert caplog.text.count("1 row has no 'a'; no feature of the model tells of that") == 1
        caplog.clear()
        assert session.sql("EVALUATE MODEL m ON SELECT * FROM t").column("accuracy")[0] > 0.95
        assert "no 'b'" not in caplog.text  # of which the trees have learned


class TestValuesThatCannotBePredicted:
    def test_text_that_is_no_number(self) -> None:
        rows = table(lacking=0.0)
        pq.write_table(rows, "t.parquet")
        command("train", "t.parquet", "--label", "y", "--features", "a,b", "--out", "m.penstock")
        odd = pa.array([*map(str, rows["a"].to_pylist()[1:]), "about 5"])
        pq.write_table(rows.set_column(0, "a", odd), "odd.parquet")
        result = CliRunner().invoke(app, ["predict", "m.penstock", "odd.parquet"])
        assert f"column 'a' is 'about 5' in row {ROWS - 1}" in result.stderr
        assert "mend it, or make it null where the number is missing" in result.stderr

    @pytest.mark.parametrize("door", ["predict", "evaluate"])
    def test_infinity(self, door: str) -> None:
        rows = table(lacking=0.0)
        pq.write_table(rows, "t.parquet")
        command("train", "t.parquet", "--label", "y", "--features", "a,b", "--out", "m.penstock")
        pq.write_table(rows.set_column(0, "a", pa.array([float("inf")] * ROWS)), "odd.parquet")
        result = CliRunner().invoke(app, [door, "m.penstock", "odd.parquet"])
        assert "mend such values, or leave such rows out" in result.stderr
        assert "before training" not in result.stderr

    @pytest.mark.parametrize("kind", ["logistic", "linear", "softmax"])
    def test_infinity_has_no_prediction_in_sql(self, session: penstock.Session, kind: str) -> None:
        stored(session, "t", table(lacking=0.0))
        session.sql(f"SELECT a, b, y FROM t TRAIN BY {kind} AS m WITH (label = 'y')")
        infinite = ", ".join(f"('{value}'::float8, 1::float8)" for value in ("Infinity", "-Infinity", "5"))
        found = session.sql(f"SELECT * FROM (SELECT * FROM (VALUES {infinite}) AS v(a, b)) AS u PREDICT BY m")
        for name in (found.columns or ())[2:]:
            assert [value is None for value in found.column(name)] == [True, True, False]
