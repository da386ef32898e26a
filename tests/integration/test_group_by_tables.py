"""Tables with nulls, text and dates by group: trained, predicted, measured and shown, as by the model of a file."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.groups import Boosting, GroupBy

COLORS = ["red", "green", "blue", "black"]


def table_of(rows: int = 800, seed: int = 0) -> pa.Table:
    """Return rows whose label hangs on a number, a category and the month, a tenth of all values missing."""
    rng = np.random.default_rng(seed)
    color, age, day = rng.integers(0, 4, rows), rng.normal(2013, 3, rows), rng.integers(0, 360, rows)
    score = (age - 2013) / 3 + np.array([2.0, -2.0, 0.0, 1.0])[color] + np.where(day < 180, 1.0, -1.0)
    there = rng.random((4, rows)) > 0.1

    def column(values: Any, present: Any) -> pa.Array:
        return pa.array([value if here else None for value, here in zip(values, present, strict=True)])

    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=int(each)) for each in day]
    return pa.table(
        {
            "g": pa.array(["one"] * rows),
            "age": column(age.tolist(), there[0]),
            "color": column([COLORS[each] for each in color], there[1]),
            "day": column(days, there[2]),
            "y": column(np.where(score + rng.logistic(size=rows) > 0, "yes", "no").tolist(), there[3]),
        }
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(table_of(), folder / "train.parquet")
    pq.write_table(table_of(400, 1), folder / "test.parquet")
    return folder / "train.parquet", folder / "test.parquet"


def unseen(rows: pa.Table) -> pa.Table:
    """Return rows without numbers, of a color that nobody has seen."""
    rows = rows.set_column(1, "age", pa.nulls(len(rows), pa.float64()))
    return rows.set_column(2, "color", pa.array(["pink"] * len(rows)))


@pytest.mark.parametrize("hashed", [[], ["color:2^7"]])
def test_one_group_of_all_rows_is_the_model_of_the_file(files: tuple[Path, Path], hashed: list[str]) -> None:
    train, test = files
    single = penstock.LogisticRegression().fit(train, y="y", hash=hashed, exclude=["g"])
    result = GroupBy(train, by="g", hash=hashed).fit(penstock.LogisticRegression(), y="y", pooled=False, workers=1)
    found, expected = result.evaluate(test), single.evaluate(test)
    assert found["rows"] == 400 - pq.read_table(test)["y"].null_count
    assert found["log_loss"] == pytest.approx(expected["log_loss"], rel=0.02)
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=0.005)


@pytest.mark.parametrize("model", [penstock.LogisticRegression(), Boosting(rounds=30)])
def test_new_nulls_and_unseen_levels_are_predicted(files: tuple[Path, Path], model: Any, tmp_path: Path) -> None:
    train, test = files
    out = tmp_path / "models"
    result = GroupBy(train, by="g", rows=tmp_path / "rows").fit(model, y="y", pooled=False, workers=1, out=out)
    assert result.predict(unseen(pq.read_table(test)))["prediction"].null_count == 0
    assert result.evaluate(test)["accuracy"] > 0.7
    one = result.best("one")
    assert any("color" in line for line in one.describe().lines)
    saved = tmp_path / ("one.txt" if isinstance(model, Boosting) else "one.model")
    one.save(saved)
    before, after = (each.evaluate(penstock.open(test)) for each in (one, penstock.load(saved)))
    assert before["log_loss"] == after["log_loss"]
    again = GroupBy(train, by="g", rows=tmp_path / "rows").fit(
        model, y="y", pooled=False, workers=1, out=out, resume=True
    )
    assert again.frame.equals(result.frame)


def test_trees_split_sets_of_categories(files: tuple[Path, Path]) -> None:
    result = GroupBy(files[0], by="g", features=["color"]).fit(
        Boosting(rounds=5, min_data_per_group=10), y="y", pooled=False, workers=1
    )
    assert re.search(r"^num_cat=[1-9]", result.best("one").text, re.MULTILINE)  # splits by categories


def test_options_of_columns(files: tuple[Path, Path]) -> None:
    table = pq.read_table(files[0]).append_column("size", pa.array(["?", "2", "3", "4"] * 200))
    by: dict[str, Any] = {"by": "g", "category": ["size"], "null_values": ["?"], "missing": "fill"}
    names = GroupBy(table, **by).fit(penstock.LogisticRegression(), y="y", pooled=False, workers=1).recipe.names
    assert [name for name in names if "size" in name or "missing" in name] == ["size=2", "size=3", "size=4"]


def test_trees_are_those_of_the_rows_with_a_label(files: tuple[Path, Path]) -> None:
    table, model = pq.read_table(files[0]), Boosting(rounds=5)
    whole, labelled = (
        GroupBy(rows, by="g").fit(model, y="y", validation=0, workers=1).best("one").text
        for rows in (table, table.filter(pa.compute.is_valid(table["y"])))
    )
    assert re.findall(r"^leaf_count=.*", whole, re.MULTILINE) == re.findall(r"^leaf_count=.*", labelled, re.MULTILINE)
