"""The models that ``penstock groups train`` knows, each trained, shown and asked."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.test_cli_groups import TRAIN, as_json, run, visits


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(visits(1_500, 0).drop_columns(["seconds"]), "visits.parquet", row_group_size=200)
    pq.write_table(visits(200, 1).drop_columns(["seconds"]), "new.parquet")


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "svm"),
        ("--solver", "sgd", "--patience", "2", "--try", "learning_rate=0.1,0.01"),
        ("--model", "lightgbm", "--epochs", "20", "--try", "num_leaves=3,7"),
    ],
)
def test_train_show_predict(options: tuple[str, ...]) -> None:
    told = as_json(*TRAIN, *options)
    assert (told["groups"], told["groups_without_model"]) == (6, 1)
    assert told["model"] == (options[1] if options[1] == "svm" else "boosting" if "lightgbm" in options else "logistic")
    assert as_json("groups", "show", "models")["model"] == told["model"]
    assert told["held_out_accuracy"] > 0.8
    assert "NO/web" in run("groups", "show", "models").stdout
    run("groups", "predict", "models", "new.parquet", "--keep", "clicked")
    answers = pq.read_table("predictions.parquet").drop_null()
    right = [row["prediction"] == row["clicked"] for row in answers.to_pylist()]
    assert len(right) > 150
    assert sum(right) / len(right) > 0.8


def test_halving_within_a_budget() -> None:
    tried = ("--try", "learning_rate=0.1,0.03,0.00001,0.000001")
    told = as_json(*TRAIN, "--solver", "sgd", "--epochs", "4", *tried, "--halving", "2", "--budget", "10")
    assert told["groups_without_model"] == 1
    run("groups", "show", "models", "--csv", "all.csv")
    text = Path("all.csv").read_text()
    assert "stopped" in text
    assert "others did better after 1 epoch" in text
