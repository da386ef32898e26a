"""The table of a model's columns, names of sparse features, and counts of values that training did not see."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.application import app
from penstock.coefficients import coefficients
from penstock.columns import Recipe
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.hashing import Hashed
from penstock.columns.number import Number
from penstock.columns.pairs import Pairs
from penstock.columns.vector import Vector

ROWS = 1_000


def rows(towns: int = 3, **changes: Any) -> pa.Table:
    chance = np.random.default_rng(1)
    x, town = chance.normal(3, 2, ROWS), chance.integers(0, towns, ROWS)
    columns = {
        "id": np.arange(ROWS),
        "x": x,
        "holes": pa.array(chance.normal(size=ROWS), mask=chance.random(ROWS) < 0.2),
        "town": [f"t{each}" for each in town],
        "day": np.datetime64("2025-01-01") + chance.integers(0, 300, ROWS).astype("timedelta64[D]"),
        "same": ["a"] * ROWS,
        "y": np.where(x + 4 * (town == 1) > 4, "yes", "no"),
    }
    return pa.table({**columns, **changes})


def trained(table: pa.Table, **options: Any) -> Any:
    return penstock.LogisticRegression(validation=0).fit(table, y="y", **options)


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    trained(rows()).save(tmp_path / "m.penstock")
    return tmp_path / "m.penstock"


def test_show_has_a_table_of_columns(saved: Path) -> None:
    text = run("show", str(saved))
    assert "column" in text.split("\n\n")[1]
    assert "left out: same (one value), id (row numbers)" in text
    assert "coefficient" in text
    found = json.loads(run("show", str(saved), "--json"))
    table = {each["column"]: each for each in found["columns"]}
    assert table["x"]["kind"] == "number"
    assert table["x"]["mean"] == pytest.approx(3, abs=0.3)
    assert table["x"]["scale"] == pytest.approx(2, abs=0.3)
    assert (table["town"]["kind"], table["town"]["levels"], table["holes"]["missing"]) == (
        "category",
        3,
        "own feature",
    )
    assert found["left_out"] == {"id": "row numbers", "same": "one value"}
    sizes = {each["feature"]: abs(each["standardized"]) for each in found["coefficients"]}
    assert table["town"]["weight"] == pytest.approx(max(s for name, s in sizes.items() if name.startswith("town")))
    assert [each["weight"] for each in found["columns"]] == sorted(
        (each["weight"] for each in found["columns"]), reverse=True
    )


def test_the_mean_of_a_date_is_shown_as_a_date(saved: Path) -> None:
    line = next(line for line in run("show", str(saved)).splitlines() if line.startswith("day  ") and " date " in line)
    assert " 2025-0" in line


def test_features_of_sparse_recipes_have_names() -> None:
    model = trained(rows(towns=60), hash=["day"]).model_
    assert model.recipe.sparse
    names = {each.feature for each in coefficients(model)}
    assert {"x", "town=t1"} <= names
    assert any(name.startswith("day#") for name in names)


def test_every_kind_names_its_features() -> None:
    pieces = (
        Number("a", 0.0, True),
        Date("d", 0.0),
        Vector("v", 2, ("v[0]", "v[1]")),
        Category("c", ("x", "y"), rare=True, missing=True),
        Hashed("h", 2, missing=True),
        Pairs(("indices", "values"), 3),
    )
    recipe = Recipe(pieces)
    assert recipe.feature_names(range(recipe.width or 0)) == [
        *("a", "a is missing", "d in days", "v[0]", "v[1]"),
        *("c=x", "c=y", "c is rare", "c is missing"),
        *("h#0", "h#1", "h#2", "h#3", "h is missing"),
        *("feature 0", "feature 1", "feature 2"),
    ]
    for part in pieces:
        assert list(part.names) in ([], [part.feature_name(place) for place in range(part.width or 0)])


def strangers() -> pa.Table:
    table = rows().slice(0, 100)
    town, x = table["town"].to_pylist(), table["x"].to_pylist()
    town[:3], x[5:7] = ["Bonn", "Kiel", "Bonn"], [None, float("nan")]
    day = table["day"].to_pylist()
    day[0] = None
    town[4] = None
    changed = table.set_column(3, "town", pa.array(town)).set_column(1, "x", pa.array(x, pa.float64()))
    return changed.set_column(4, "day", pa.array(day, pa.date32()))


@pytest.mark.parametrize("towns", [3, 70])
def test_predictions_count_what_training_did_not_see(tmp_path: Path, towns: int) -> None:
    trained(rows(towns=towns)).save(tmp_path / "m.penstock")
    pq.write_table(strangers(), tmp_path / "new.parquet")
    words = [
        "predict",
        str(tmp_path / "m.penstock"),
        str(tmp_path / "new.parquet"),
        "--out",
        str(tmp_path / "p.parquet"),
    ]
    found = json.loads(run(*words, "--json"))["unseen"]
    assert found["missing"] == {"day": 1, "town": 1, "x": 2}
    assert found["levels"]["town"] == 3
    text = run(*words)
    assert "3 rows have levels of 'town' that training did not see" in text
    assert "2 rows have no 'x'" in text


@pytest.mark.parametrize("towns", [3, 70])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_measures_count_what_training_did_not_see(tmp_path: Path, towns: int, suffix: str) -> None:
    trained(rows(towns=towns)).save(tmp_path / "m.penstock")
    new = tmp_path / f"new.{suffix}"  # rows of text are read twice, the first time to learn how many there are
    (pq.write_table if suffix == "parquet" else pa.csv.write_csv)(strangers(), new)
    words = ["evaluate", str(tmp_path / "m.penstock"), str(new)]
    found = json.loads(run(*words, "--json"))["unseen"]
    assert found["levels"]["town"] == 3
    assert found["missing"]["town"] == 1
    assert "3 rows have levels of 'town' that training did not see" in run(*words)


def test_models_on_disk_have_the_table_and_the_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, folder = tmp_path / "rows.parquet", tmp_path / "model"
    pq.write_table(rows(), path)
    with penstock.bigmodel.LogisticRegression(folder, validation=0, epochs=2) as model:
        model.fit(path, "y", category=["town"])
        pq.write_table(strangers(), tmp_path / "new.parquet")
        assert model.predict(tmp_path / "new.parquet", out=tmp_path / "p.parquet") == 100
        model.score(tmp_path / "new.parquet")
    assert sum("3 rows have levels of 'town'" in line for line in caplog.messages) == 2
    found = json.loads(run("show", str(folder), "--json"))
    assert {each["column"]: each["kind"] for each in found["columns"]}["town"] == "category"
    assert "town" in run("show", str(folder))
    words = ["predict", str(folder), str(tmp_path / "new.parquet"), "--out", str(tmp_path / "q.parquet"), "--json"]
    assert json.loads(run(*words))["unseen"]["levels"]["town"] == 3


def test_predictions_of_known_values_count_nothing(tmp_path: Path) -> None:
    trained(rows()).save(tmp_path / "m.penstock")
    pq.write_table(rows(), tmp_path / "rows.parquet")
    words = [
        "predict",
        str(tmp_path / "m.penstock"),
        str(tmp_path / "rows.parquet"),
        "--out",
        str(tmp_path / "p.parquet"),
    ]
    assert json.loads(run(*words, "--json"))["unseen"] == {"levels": {}, "missing": {}}


def test_estimators_log_what_training_did_not_see(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = trained(rows())
    pq.write_table(strangers(), tmp_path / "new.parquet")
    with caplog.at_level(logging.WARNING, "penstock"):
        assert model.predict(tmp_path / "new.parquet", out=tmp_path / "p.parquet") == 100
        model.score(strangers())
    lines = [line for line in caplog.messages if "3 rows have levels of 'town' that training did not see" in line]
    assert len(lines) == 2
    assert model.model_.recipe.unseen is None


@pytest.mark.parametrize("door", ["predict", "predict_proba", "decision_function"])
def test_predictions_warn_of_values_that_are_new_in_most_rows(door: str, caplog: pytest.LogCaptureFixture) -> None:
    model, table = trained(rows()), rows()
    town = table.schema.get_field_index("town")

    def with_strangers(count: int) -> pa.Table:
        texts = ["Tokyo" if at < count else text for at, text in enumerate(table["town"].to_pylist())]
        return table.set_column(town, "town", pa.array(texts))

    with caplog.at_level(logging.WARNING, "penstock"):
        predict = getattr(model, door)
        for silent in (table, with_strangers(ROWS // 3), with_strangers(ROWS)[:1]):
            predict(silent)
            assert not [line for line in caplog.messages if "did not see" in line]
        for new in (with_strangers(ROWS), with_strangers(ROWS).to_pandas()):
            caplog.clear()
            predict(new)
            told = [
                line
                for line in caplog.messages
                if f"{ROWS:,} rows have levels of 'town' that training did not see" in line
            ]
            assert len(told) == 1
    assert model.model_.recipe.unseen is None


def test_a_column_of_lists_goes_by_its_name() -> None:
    lists = pa.FixedSizeListArray.from_arrays(np.arange(2 * ROWS) % 5, 2)
    columns = penstock.columns.summary.column_summaries(trained(rows(v=lists)).model_.recipe)
    assert next(each.column for each in columns if each.kind == "vector") == "v"


def test_a_model_of_a_converted_file_names_the_columns_that_it_was_packed_from(tmp_path: Path) -> None:
    penstock.convert(rows(towns=60), tmp_path / "rows.arrow", label="y")
    trained(tmp_path / "rows.arrow").save(tmp_path / "m.penstock")
    found = json.loads(run("show", str(tmp_path / "m.penstock"), "--json"))
    table = {each["column"]: each for each in found["columns"]}
    assert {"x", "holes", "town", "day", "day month"} <= table.keys()
    assert (table["town"]["levels"], table["holes"]["missing"]) == (60, "own feature")
    assert table["x"]["mean"] == pytest.approx(3, abs=0.3)
    assert "town=t1" in {each["feature"] for each in found["coefficients"]}


def test_a_model_on_disk_has_means_and_scales_and_counts_no_column_that_is_there(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "rows.parquet")
    words = ["--label", "y", "--model-dir", str(tmp_path / "model"), "--epochs", "2", "--keep-anyway"]
    run("train", str(tmp_path / "rows.parquet"), *words)
    table = {each["column"]: each for each in json.loads(run("show", str(tmp_path / "model"), "--json"))["columns"]}
    assert (table["x"]["mean"], table["x"]["scale"]) == (pytest.approx(3, abs=0.3), pytest.approx(2, abs=0.3))
    pq.write_table(strangers(), tmp_path / "new.parquet")
    words = ["predict", str(tmp_path / "model"), str(tmp_path / "new.parquet"), "--out", str(tmp_path / "p.parquet")]
    assert json.loads(run(*words, "--json"))["unseen"]["missing"] == {"day": 1, "x": 2}


def test_groups_have_the_table_and_the_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shops = [f"s{each % 3}" for each in range(ROWS)]
    pq.write_table(rows(shop=shops), tmp_path / "rows.parquet")
    pq.write_table(strangers().append_column("shop", [shops[:100]]), tmp_path / "new.parquet")
    models, new = str(tmp_path / "models"), str(tmp_path / "new.parquet")
    run("groups", "train", str(tmp_path / "rows.parquet"), "--by", "shop", "--label", "y", "--out", models)
    found = json.loads(run("show", models, "--json"))
    assert {each["column"]: each["levels"] for each in found["columns"]}["town"] == 3
    assert found["left_out"]["id"] == "row numbers"
    assert "town" in run("show", models)
    out = ["--out", str(tmp_path / "p.parquet")]
    for words in (["predict", models, new, *out], ["evaluate", models, new]):
        told = json.loads(run("groups", *words, "--json"))["unseen_values"]
        assert (told["levels"]["town"], told["missing"]["x"]) == (3, 2)
        assert "3 rows have levels of 'town' that training did not see" in run("groups", *words)
    known = penstock.load(models)
    known.predict(new, out=tmp_path / "q.parquet")
    known.score(new)
    assert sum("3 rows have levels of 'town'" in line for line in caplog.messages) == 2


def test_explain_has_means_and_scales_and_some_columns_of_every_kind(tmp_path: Path) -> None:
    numbers = {f"n{at:02}": np.arange(ROWS) % (at + 2) for at in range(40)}
    pq.write_table(rows(towns=60, **numbers), tmp_path / "rows.parquet")
    words = ["explain", str(tmp_path / "rows.parquet"), "--label", "y"]
    table = {each["column"]: each for each in json.loads(run(*words, "--json"))["columns"]}
    assert (table["x"]["mean"], table["x"]["scale"]) == (pytest.approx(3, abs=0.3), pytest.approx(2, abs=0.3))
    assert table["n08"]["mean"] == pytest.approx(4.5, abs=0.1)
    assert table["day"]["mean"] == pytest.approx(20_239, abs=20)  # days since 1970
    assert table["town"]["levels"] == 60
    text = run(*words)
    assert "more columns" in text
    lines = text.splitlines()
    for name, kind in (("town", "category"), ("day", "date"), ("x", "number")):
        assert any(line.split()[:2] == [name, kind] for line in lines)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_rows_with_features_that_a_sparse_model_does_not_have_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("seen.svm").write_text("".join(f"{i % 9 // 5} {1 + i % 9}:1 {10 + i % 7}:2\n" for i in range(2000)))
    Path("new.svm").write_text("1 1:1 17:1 99:2\n0 2:1\n0 3:1 4:1\n1 16:1 50:1\n")
    run("train", "seen.svm", "--out" if kind == "file" else "--model-dir", "m", "--epochs", "2")
    told = "2 rows have features in 'indices' that the model does not have; they count for nothing"
    assert told in run("predict", "m", "new.svm", "--out", "p.parquet")
    assert told in run("evaluate", "m", "new.svm")
    found = json.loads(run("predict", "m", "new.svm", "--out", "p.parquet", "--json"))["unseen"]
    assert found == {"levels": {}, "missing": {}, "features": {"indices": 2}}
    assert "features in" not in run("predict", "m", "seen.svm", "--out", "p.parquet")
