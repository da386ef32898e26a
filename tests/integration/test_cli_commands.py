"""``predict``, ``evaluate`` and ``convert`` in-process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app


def run(*args: str) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result


def as_json(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*args, "--json").stdout)
    return found


@pytest.fixture(autouse=True)
def _model(desk: Path) -> None:
    run("train", "clicks.parquet", "--label", "clicked", "--epochs", "2")


def test_predict_writes_predictions_and_probabilities_in_stored_order() -> None:
    result = run("predict", "model.penstock", "new.parquet")
    assert result.stdout.startswith("saved predictions.parquet: 4,000 predictions")
    made = pq.read_table("predictions.parquet")
    assert made.column_names == ["prediction", "probability_0", "probability_1"]
    assert made.num_rows == 4_000
    truth = pq.read_table("test.parquet").column("clicked").to_numpy()
    assert (made.column("prediction").to_numpy() == truth).mean() > 0.94


def test_predict_keeps_columns_and_tells_machines() -> None:
    found = as_json("predict", "model.penstock", "test.parquet", "--out", "p.parquet", "--keep", "age,clicked")
    assert found["rows"] == 4_000
    assert found["out"] == "p.parquet"
    assert found["model"] == "logistic"
    assert pq.read_table("p.parquet").column_names[:2] == ["age", "clicked"]


def test_evaluate_equals_what_training_measured() -> None:
    trained = as_json(
        *("train", "clicks.parquet", "--label", "clicked", "--epochs", "2", "--test", "test.parquet", "--out", "b")
    )
    found = as_json("evaluate", "b", "test.parquet")
    assert found["test_accuracy"] == found["accuracy"] == trained["test_accuracy"]
    assert found["rows"] == 4_000
    assert found["shuffle"] == "corgipile"
    assert len(found["epochs"]) == 2
    assert run("evaluate", "model.penstock", "test.parquet").stdout.startswith("accuracy 9")


def test_evaluate_takes_another_label() -> None:
    table = pq.read_table("test.parquet").rename_columns(
        ["age", "visits", "price", "hour", "scroll", "seconds", "truth"]
    )
    pq.write_table(table, "renamed.parquet")
    assert as_json("evaluate", "model.penstock", "renamed.parquet", "--label", "truth")["accuracy"] > 0.94


def test_convert_packs_features_for_the_same_model() -> None:
    found = as_json("convert", "clicks.csv", "clicks.arrow", "--label", "clicked", "--block-size", "64KB")
    assert found["rows"] == 20_000
    assert found["out"] == "clicks.arrow"
    with penstock.open("clicks.arrow") as source:
        assert source.schema.names == ["features", "clicked"]
        assert len(source.block_rows) == found["blocks"] > 5
    assert as_json("evaluate", "model.penstock", "clicks.arrow")["accuracy"] > 0.94


def test_convert_chooses_columns() -> None:
    table = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "city": ["x", "y"], "id": [7, 8], "w": [1.0, 2.0], "y": [0, 1]})
    pq.write_table(table, "t.parquet")
    run(
        *("convert", "t.parquet", "t.arrow", "--label", "y", "--weight", "w", "--exclude", "b", "--keep", "id"),
        *("--hash", "city:2^4"),
    )
    with penstock.open("t.arrow") as source:
        assert source.schema.names == ["indices", "values", "y", "w", "id"]
    run("convert", "t.parquet", "u.arrow", "--label", "y", "--features", "a,b")
    with penstock.open("u.arrow") as source:
        assert source.read(0).column("features").to_pylist() == [[1.0, 3.0], [2.0, 4.0]]


def test_convert_reads_compressed_text() -> None:
    import gzip

    Path("clicks.csv.gz").write_bytes(gzip.compress(Path("clicks.csv").read_bytes()))
    result = run("convert", "clicks.csv.gz", "clicks.arrow", "--label", "clicked")
    assert "20,000 rows" in result.stdout
    assert result.stderr == ""


def test_columns_to_hash_may_be_given_with_commas_between_them() -> None:
    pq.write_table(pa.table({"city": ["a", "b"], "kind": ["x", "y"], "y": [0, 1]}), "towns.parquet")
    run("convert", "towns.parquet", "towns.arrow", "--label", "y", "--hash", "city:2^4,kind:2^3")
    with penstock.open("towns.arrow") as source:
        assert source.read(0).column("indices").to_pylist()[0][1] >= 16


REPLACED = {
    "model.penstock": ("train", "clicks.csv", "--label", "clicked", "--epochs", "1", "--out", "model.penstock"),
    "p.parquet": ("predict", "model.penstock", "test.parquet", "--out", "p.parquet"),
    "clicks.arrow": ("convert", "clicks.csv", "clicks.arrow", "--label", "clicked"),
    "page.html": ("evaluate", "model.penstock", "test.parquet", "--report", "page.html"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_file_that_is_replaced_is_told_of(name: str) -> None:
    command, told = REPLACED[name], f"replaced {name}, which was there"
    if name != "model.penstock":  # which is there
        assert told not in run(*command).stderr
    before = Path(name).stat().st_ino
    assert told in run(*command).stderr.splitlines()
    assert Path(name).stat().st_ino != before
    quiet = run(*command, "--json")
    assert "replaced" not in quiet.stdout + quiet.stderr


def test_a_model_that_is_kept_is_not_told_of() -> None:
    chance = np.random.default_rng(0)
    table = pa.table({"x": chance.random(4000), "y": chance.integers(0, 2, 4000)})
    pq.write_table(table, "chance.parquet")
    before = Path("model.penstock").stat().st_ino
    done = CliRunner().invoke(app, ["train", "chance.parquet", "--label", "y", "--out", "model.penstock"])
    assert "not saved, the model is useless" in done.stdout
    assert "replaced" not in done.stdout + done.stderr
    assert Path("model.penstock").stat().st_ino == before
