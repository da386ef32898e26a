"""Models on disk of ordinary tables: numbers, text and dates with missing values, and nothing said of any column."""

from __future__ import annotations

import json
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

import penstock
from penstock.bigmodel import LogisticRegression
from penstock.cli import app

NAN = float("nan")


def clicks(rows=4000, seed=0):
    """Make a table whose label hangs on numbers far from 0, on text, on a date, and on what is missing."""
    r = np.random.default_rng(seed)
    score = np.zeros(rows)
    columns = {"id": pa.array(np.arange(rows) + 7)}
    for at in range(4):
        x = r.normal(size=rows)
        missing = r.random(rows) < (0.0, 0.2)[at % 2]
        score += (1.0, -1.5, 0.5, 0.0)[at] * x * ~missing + (2.0 if at == 1 else 0.0) * missing
        columns[f"x{at}"] = pa.array(100.0 + 10.0**at * x, mask=missing)
    for at in range(3):
        level = r.integers(0, 20, rows)
        missing = r.random(rows) < 0.1
        score += np.where(missing, -1.0, (level % 2) * 2.0 - 1.0) * (at < 2)
        columns[f"c{at}"] = pa.array(np.char.add("v", level.astype(str)).tolist(), pa.string(), mask=missing)
    day = r.integers(0, 400, rows)
    score += day / 200.0 - 1
    columns["day"] = pa.array(19_000 + day, pa.int32(), mask=r.random(rows) < 0.02).cast(pa.date32())
    columns["click"] = pa.array((r.random(rows) < 1 / (1 + np.exp(-score))).astype(np.int8))
    return pa.table(columns)


def learnt(folder, data, **options):
    return LogisticRegression(folder, memory="60MB", **{"epochs": 8, **options}).fit(data, y="click")


@pytest.mark.parametrize("order", ["random", "sorted"])
def test_an_ordinary_table_is_learnt_as_well_as_in_memory(tmp_path, order):
    data, test = clicks(), clicks(2000, seed=1)
    path = tmp_path / "clicks.parquet"
    parquet.write_table(data.sort_by("click") if order == "sorted" else data, path, row_group_size=512)
    with closing(learnt(tmp_path / "m", path)) as model:
        on_disk = model.evaluate(test)["loss"]
        kinds = {part.columns[0]: part.kind for part in model.model_.recipe.parts if part.kind != "category"}
        assert kinds == {**{f"x{i}": "number" for i in range(4)}, **{f"c{i}": "hash" for i in range(3)}, "day": "date"}
        assert model.model_.recipe.left_out == {"id": "row numbers"}
    in_memory = penstock.LogisticRegression(epochs=8).fit(path, y="click").evaluate(test)["loss"]
    assert on_disk < 1.02 * in_memory < 0.55


def test_numbers_are_left_as_they_are_where_nothing_is_standardized(tmp_path):
    with closing(learnt(tmp_path / "m", clicks(500), standardize=False, learning_rate=1e-6)) as model:
        assert not any(part.standardized for part in model.model_.recipe.parts if part.kind == "number")


def test_rows_without_a_label_are_left_out(tmp_path):
    data = clicks()
    labels = data["click"].to_numpy().astype(float)
    labels[::3] = NAN
    partly = data.set_column(data.schema.get_field_index("click"), "click", pa.array(labels, from_pandas=True))
    with closing(learnt(tmp_path / "m", partly)) as model:
        assert model.model_.recipe.unlabelled
        kept = data.filter(pa.array(~np.isnan(labels)))
        with closing(learnt(tmp_path / "n", kept)) as other:
            test = clicks(2000, seed=1)
            assert model.evaluate(test)["loss"] == pytest.approx(other.evaluate(test)["loss"], rel=0.02)
        assert model.evaluate(partly)["loss"] == pytest.approx(model.evaluate(kept)["loss"], rel=1e-5)
        assert len(model.predict(partly)) == len(partly)


def test_an_infinite_number_is_named_by_its_row(tmp_path):
    data = clicks(500)
    x = data["x0"].to_numpy().copy()
    x[300] = np.inf
    with pytest.raises(penstock.PenstockError, match="300"):
        learnt(tmp_path / "m", data.set_column(data.schema.get_field_index("x0"), "x0", pa.array(x)))


def test_new_nulls_and_unseen_levels_are_scored(tmp_path):
    data = clicks(1000)
    with closing(learnt(tmp_path / "m", data)) as model:
        row = data.slice(0, 1).drop_columns(["click", "id"])
        names = row.schema.names
        nulls = pa.table({name: pa.nulls(1, row.schema.field(name).type) for name in names})
        unseen = row.set_column(names.index("c0"), "c0", pa.array(["never seen"]))
        for rows in (nulls, unseen):
            assert np.isfinite(model.predict_proba(rows)).all()
        mean = nulls.set_column(names.index("x0"), "x0", pa.array([pa.compute.mean(data["x0"]).as_py()]))
        np.testing.assert_allclose(model.predict_proba(mean), model.predict_proba(nulls), rtol=1e-5)


def test_resumed_is_as_if_there_had_been_no_break(tmp_path):
    path = tmp_path / "clicks.parquet"
    parquet.write_table(clicks(1500), path, row_group_size=256)
    learnt(tmp_path / "whole", path, epochs=4).close()
    learnt(tmp_path / "parts", path, epochs=2).close()
    again = LogisticRegression(tmp_path / "parts", memory="60MB", epochs=4).fit(path, y="click", resume=True)
    with closing(again), closing(penstock.load(tmp_path / "whole")) as whole:
        test = penstock.open(clicks(300, seed=2))
        assert again.model_.evaluate(test) == whole.evaluate(test)


def test_the_command_needs_the_label_alone(tmp_path):
    path, folder = str(tmp_path / "clicks.parquet"), str(tmp_path / "m")
    parquet.write_table(clicks(1000), path, row_group_size=256)
    said = {}
    for name, command in {
        "explain": ["explain", path, "--label", "click", "--model-dir", folder, "--memory", "100MB"],
        "train": ["train", path, "--label", "click", "--model-dir", folder, "--memory", "100MB", "--epochs", "2"],
        "show": ["show", folder],
        "predict": ["predict", folder, path, "--out", str(tmp_path / "out.parquet")],
    }.items():
        result = CliRunner().invoke(app, [*command, "--json"])
        assert result.exit_code == 0, result.output
        said[name] = json.loads(result.stdout)
    assert said["train"]["features"] == said["show"]["features"] > 60
    assert len(parquet.read_table(tmp_path / "out.parquet")) == 1000


def test_prose_is_hashed_by_words_and_dates_as_text_are_dates(tmp_path):
    r, rows = np.random.default_rng(3), 3000
    good, day = r.random(rows) < 0.5, r.integers(0, 300, rows)
    words = np.array(["fine", "great", "lovely", "poor", "bad", "awful"])
    picks = np.where(good[:, None], r.integers(0, 4, (rows, 5)), r.integers(2, 6, (rows, 5)))
    table = pa.table({
        "review": [" ".join([*words[some], f"n{n}"]) for n, some in enumerate(picks)],
        "day": [str(np.datetime64("2024-01-01") + int(n)) for n in day],
        "ad": [f"ad {n}" for n in r.integers(0, 500, rows)],
        "code": [str(n) for n in r.integers(10_000, 99_999, rows)],
        "click": (r.random(rows) < np.where(good, 0.7, 0.3) + 0.2 * (day > 150)).astype(np.int8),
    })  # fmt: skip
    with closing(learnt(tmp_path / "m", table)) as model:
        parts = {part.columns[0]: part for part in model.model_.recipe.parts if part.kind != "category"}
        assert {name: part.kind for name, part in parts.items()} == {
            "review": "hash",
            "day": "date",
            "ad": "hash",
            "code": "hash",
        }
        assert parts["review"].words
        assert not parts["ad"].words
        assert model.evaluate(table)["auc"] > 0.7
