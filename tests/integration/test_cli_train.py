"""``penstock train`` in-process: what it learns, saves, prints and answers to machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.linear import LinearModel

pytestmark = pytest.mark.usefixtures("desk")


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def as_json(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*args, "--json").stdout)
    return found


def train(*args: str) -> dict[str, Any]:
    return as_json("train", "clicks.parquet", "--label", "clicked", "--epochs", "2", *args)


def test_json_has_every_promised_key() -> None:
    found = train("--test", "test.parquet")
    assert found["model"] == "logistic"
    assert found["shuffle"] == "corgipile"
    assert [row["epoch"] for row in found["epochs"]] == [1, 2]
    for row in found["epochs"]:
        assert {"epoch", "progressive_loss", "progressive_accuracy", "seconds", "rows", "bytes"} <= set(row)
        assert row["rows"] == 20_000
    assert found["test_accuracy"] > 0.94
    assert found["seconds"] > 0
    assert found["peak_memory_bytes"] > 10_000_000
    assert found["out"] == "model.penstock"
    assert Path("model.penstock").exists()
    assert not Path("model.penstock.checkpoint").exists()


def test_without_a_test_set_the_score_is_that_of_rows_held_out() -> None:
    found = train()
    assert 0.94 < found["held_out_accuracy"] <= 1
    assert found["held_out_rows"] == 20_000 - found["epochs"][-1]["rows"]
    assert 1_800 < found["held_out_rows"] < 2_200
    assert not {"loss", "accuracy", "progressive_accuracy", "test_accuracy"} & set(found)


def test_where_nothing_is_held_out_the_score_is_that_of_training_rows() -> None:
    found = train("--validation", "0")
    assert found["epochs"][-1]["rows"] == 20_000
    measured = as_json("evaluate", "model.penstock", "clicks.parquet")
    assert found["training_accuracy"] == pytest.approx(measured["accuracy"], abs=0.01)
    assert 9_500 < found["training_rows"] < 10_500
    text = run("train", "clicks.parquet", "--label", "clicked", "--epochs", "1", "--validation", "0").stdout
    lines = text.splitlines()
    assert lines[0].split()[:5] == ["epoch", "progressive", "loss", "progressive", "accuracy"]
    assert ", training accuracy 9" in lines[-1]


def test_people_get_a_row_per_epoch_and_where_the_model_is() -> None:
    result = run("train", "clicks.parquet", "--label", "clicked", "--epochs", "3", "--test", "test.parquet")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["epoch", "progressive", "loss", "test", "accuracy", "seconds", "rows/s", "MB/s"]
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4].startswith("test: AUC 0.9")
    assert lines[5].startswith("saved model.penstock: logistic, 6 features, test accuracy 9")
    assert result.stderr == ""


def test_options_reach_the_model() -> None:
    train(
        *("--model", "svm", "--batch-size", "4", "--learning-rate", "0.05", "--rate", "inverse-scaling"),
        *("--power", "0.5", "--decay", "0.9", "--l1", "1e-6", "--l2", "1e-5", "--no-intercept", "--seed", "7"),
        *("--shuffle", "global", "--memory", "5MB", "--standardize", "--validation", "0.1", "--patience", "3"),
        *(
            "--tolerance",
            "0.01",
            "--class-weight",
            "0=1,1=2",
            "--features",
            "age,visits",
            "--features",
            "price",
            "--out",
            "other.penstock",
        ),
    )
    model = LinearModel.load("other.penstock")
    assert model.kind == "svm"
    assert model.recipe.names == ("age", "visits", "price")
    assert not model.weights.intercept.any()
    assert dict(model.config) == {
        "model": "svm", "solver": "sgd", "optimizer": "sgd", "learning_rate": 0.05, "rate": "inverse-scaling", "decay": 0.9, "power": 0.5, "epochs": 2,
        "batch_size": 4, "l1": 1e-6, "l2": 1e-5, "average": True, "class_weight": {"0": 1.0, "1": 2.0}, "intercept": False, "shuffle": "global", "memory": "5MB", "seed": 7,
        "standardize": True, "validation": 0.1, "patience": 3, "tolerance": 0.01,
    }  # fmt: skip


def test_a_solver_of_full_passes_ends_when_it_has_converged() -> None:
    found = train("--solver", "lbfgs", "--standardize", "--epochs", "100", "--test", "test.parquet", "--memory", "2MB")
    assert 3 < len(found["epochs"]) < 60
    assert found["shuffle"] == "none"
    assert found["test_accuracy"] > 0.95
    losses = [row["progressive_loss"] for row in found["epochs"]]
    assert losses == sorted(losses, reverse=True)
    assert "progressive_loss" not in found  # which describes no finished model
    assert LinearModel.load("model.penstock").config["solver"] == "lbfgs"
    result = run("train", "clicks.parquet", "--label", "clicked", "--solver", "lbfgs", "--epochs", "2")
    assert "warning: lbfgs has not converged in 2 epochs; allow more" in result.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--solver", "newton"), "gd, lbfgs, sgd"),
        (("--solver", "exact", "--model", "svm"), "solves least squares"),
        (("--solver", "lbfgs", "--batch-size", "8"), "makes one step for each pass over all rows"),
        (("--solver", "gd", "--rate", "constant"), "makes one step for each pass over all rows"),
        (
            *(
                (
                    "--solver",
                    "gd",
                    "--model",
                    "factor",
                    "--model-dir",
                    "m",
                    "--user",
                    "a",
                    "--item",
                    "b",
                    "--rating",
                    "c",
                ),
            ),
            "--solver is not for a factor model",
        ),
    ],
)
def test_what_does_not_go_with_a_solver_is_refused(options: tuple[str, ...], words: str) -> None:
    label = () if "factor" in options else ("--label", "clicked")
    assert words in run("train", "clicks.parquet", *label, *options, code=2).stderr


def test_excluded_columns_are_left_out() -> None:
    train("--exclude", "hour,scroll")
    assert LinearModel.load("model.penstock").recipe.names == ("age", "visits", "price", "seconds")


def test_a_feature_that_is_excluded_too_is_refused() -> None:
    both = "--features", "hour,age", "--exclude", "hour"
    message = "--features hour names 'hour', which is excluded too; leave it out of --features or of --exclude"
    assert message in run("train", "clicks.parquet", "--label", "clicked", *both, code=2).stderr
    grouped = "groups", "train", "clicks.parquet", "--by", "visits", "--label", "clicked", "--out", "models"
    assert message in run(*grouped, *both, code=2).stderr


@pytest.mark.parametrize("shuffle", ["none", "once", "epoch", "sliding-window", "mrs", "block-only", "global"])
def test_every_strategy_trains(shuffle: str) -> None:
    found = train("--shuffle", shuffle, "--memory", "2MB", "--scratch", ".", "--cache", "off")
    assert found["shuffle"] == shuffle
    assert len(found["epochs"]) == 2
    copies = {"once": 1, "epoch": 2}.get(shuffle, 0)
    assert sum("prepare_seconds" in row for row in found["epochs"]) == copies
    assert (found["extra_disk_bytes"] > 0) == bool(copies)
    assert not list(Path().glob(".penstock*"))


@pytest.mark.parametrize(("cache", "kept"), [("on", True), ("off", False), ("10MB", True), ("1kB", False)])
def test_encoded_rows_are_kept_on_disk_for_later_epochs(cache: str, kept: bool) -> None:
    before = sorted(Path().iterdir())
    found = train("--shuffle", "none", "--memory", "2MB", "--cache", cache)
    assert (found["extra_disk_bytes"] > 0) == kept
    assert {path.name for path in set(Path().iterdir()) - set(before)} <= {"model.penstock"}


def test_a_cache_that_is_neither_a_switch_nor_a_size_is_refused() -> None:
    assert "--cache" in run("train", "clicks.parquet", "--label", "clicked", "--cache", "maybe", code=2).stderr


def test_regression_reports_r2() -> None:
    found = train("--model", "linear", "--test", "test.parquet")
    assert found["test_r2"] > 0.3
    assert "progressive_r2" in found["epochs"][0]
    text = run("train", "clicks.parquet", "--label", "clicked", "--model", "linear", "--epochs", "1").stdout
    assert "R²" in text


def test_softmax_with_text_classes_and_weights_and_hashing() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(3_000)
    kind = np.array(["low", "mid", "high"])[np.digitize(x, [-0.5, 0.5])]
    table = pa.table({"x": x, "city": np.char.add("c_", kind), "w": np.ones(3_000), "kind": kind})
    pq.write_table(table, "kinds.parquet")
    found = as_json(
        *("train", "kinds.parquet", "--label", "kind", "--model", "softmax", "--weight", "w", "--hash", "city:2^8"),
        *("--epochs", "5"),
    )
    assert found["features"] == 1 + 2**8
    assert found["held_out_accuracy"] > 0.98
    assert LinearModel.load("model.penstock").classes.tolist() == ["high", "low", "mid"]  # type: ignore[union-attr]


def test_text_formats_need_no_label_where_they_name_it() -> None:
    assert as_json("train", "clicks.svm", "--epochs", "2")["label"] == "label"
    run("convert", "clicks.csv", "clicks.arrow", "--label", "clicked")
    assert as_json("train", "clicks.arrow", "--epochs", "1")["label"] == "clicked"


def test_csv_without_a_header() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 2))
    lines = [f"{int(a + b > 0)};{a:.4f};{b:.4f}" for a, b in x]
    Path("bare.txt").write_text("\n".join(lines) + "\n")
    found = as_json(
        *(
            "train",
            "bare.txt",
            "--format",
            "csv",
            "--no-header",
            "--delimiter",
            ";",
            "--label",
            "column_0",
            "--epochs",
            "3",
        )
    )
    assert found["features"] == 2
    assert found["held_out_accuracy"] > 0.9


def test_early_stopping_keeps_the_best_epoch() -> None:
    found = train("--patience", "1", "--epochs", "30", "--validation", "0.2", "--learning-rate", "1.0", "--no-average")
    best = min(found["epochs"], key=lambda row: row["held_out_loss"])
    assert len(found["epochs"]) < 30
    assert found["held_out_accuracy"] == best["held_out_accuracy"]
    measured = as_json("evaluate", "model.penstock", "clicks.parquet")["loss"]
    assert measured == pytest.approx(best["held_out_loss"], rel=0.2)


def test_same_seed_same_model() -> None:
    train("--out", "a.penstock", "--seed", "3")
    train("--out", "b.penstock", "--seed", "3")
    train("--out", "c.penstock", "--seed", "4")
    a, b, c = (LinearModel.load(f"{name}.penstock").weights.coef for name in "abc")
    assert a.tobytes() == b.tobytes() != c.tobytes()


def test_resume_without_a_checkpoint_says_so_and_trains() -> None:
    result = run("train", "clicks.parquet", "--label", "clicked", "--epochs", "1", "--resume")
    assert "there is no checkpoint model.penstock.checkpoint; training starts from the beginning" in result.stderr
    assert Path("model.penstock").exists()


def test_help_is_grouped_and_has_an_example() -> None:
    text = run("train", "--help").stdout
    for panel in ("Columns", "Learning", "Shuffling and memory", "Testing and stopping", "Output"):
        assert f"─ {panel} ─" in text
    assert "Example: penstock train clicks.parquet --label clicked" in text


@pytest.mark.parametrize("command", ["train", "predict", "evaluate", "convert", "compare", "demo"])
def test_every_command_has_help_with_an_example_and_json(command: str) -> None:
    text = run(command, "--help").stdout
    assert f"Example: penstock {command}" in text
    assert "--json" in text


def test_penstock_alone_prints_help_and_version_its_version() -> None:
    text = run().stdout
    assert text == run("--help").stdout
    for command in ("train", "predict", "evaluate", "convert", "compare", "demo"):
        assert command in text
    from penstock import __version__

    assert run("--version").stdout == f"penstock {__version__}\n"


def test_a_useless_model_is_told_of_and_not_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = pa.table({"a": rng.standard_normal(2000), "y": (rng.random(2000) < 0.3).astype(int)})
    pq.write_table(noise, tmp_path / "noise.parquet")
    line = ["train", str(tmp_path / "noise.parquet"), "--label", "y", "--out", str(tmp_path / "m"), "--json"]
    found = json.loads(run(*line, code=1).stdout)
    assert "no better than predicting the largest class" in found["useless"]
    assert found["out"] is None
    assert not (tmp_path / "m").exists()
    run(*line, "--resume", "--keep-anyway")
    assert (tmp_path / "m").exists()
