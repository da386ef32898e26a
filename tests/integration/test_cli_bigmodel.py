"""Models on disk at the command line: trained, gone on with, asked and explained; and options that do not go together."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.bigmodel.model import BigLinearModel, Saved
from penstock.cli import app
from penstock.modelfile import read_model

ROWS, NNZ = 6_000, 24
TRAIN = ("train", "clicks.parquet", "--label", "clicked", "--model-dir", "ctr.model", "--model-memory", "150kB")
FACTOR = (
    *("train", "ratings.parquet", "--model", "factor", "--user", "who", "--item", "what", "--rating", "stars"),
    *("--rank", "4", "--model-dir", "mf.model", "--model-memory", "1MB"),
)


def clicks(rows: int, seed: int) -> pa.Table:
    """Make sparse rows, of more features than 150 kB hold; a row's first feature decides whether it was clicked."""
    chance = np.random.default_rng(seed)
    indices = (10**9 ** chance.random((rows, NNZ))).astype(np.uint64) * np.uint64(2654435761)
    clicked = chance.integers(0, 2, rows)
    indices[:, 0] = np.uint64(1 << 50) + clicked.astype(np.uint64)
    return pa.table(
        {
            "indices": pa.array(list(indices), pa.list_(pa.uint64())),
            "values": pa.array(list(np.ones((rows, NNZ), np.float32)), pa.list_(pa.float32())),
            "clicked": clicked,
        }
    )


def ratings(rows: int) -> pa.Table:
    chance = np.random.default_rng(0)
    who, what = chance.integers(0, 60, rows), chance.integers(0, 40, rows)
    stars = 3 + 0.02 * (who - 30) + 0.03 * (what - 20)
    return pa.table({"who": who, "what": [f"item {n}" for n in what], "stars": stars})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pa.Table]:
    return {
        "clicks.parquet": clicks(ROWS, 0),
        "test.parquet": clicks(400, 1),
        "ratings.parquet": ratings(2_000),
        "dense.parquet": pa.table({"x": np.arange(100.0), "y": np.arange(100) % 2}),
    }


@pytest.fixture(autouse=True)
def here(made: dict[str, pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, table in made.items():
        pq.write_table(table, name, row_group_size=200)


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def as_json(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*args, "--json").stdout)
    return found


def refused(*args: str, code: int = 2) -> str:
    """Run a command that fails, by people's and by machines' way, and return its message."""
    plain = run(*args, code=code)
    assert plain.stderr.startswith("error: ")
    assert "Traceback" not in plain.stderr
    told = json.loads(run(*args, "--json", code=code).stdout)
    assert list(told) == ["error"]
    message: str = plain.stderr
    return message


def weights(folder: str) -> tuple[bytes, float]:
    indices = np.unique(pq.read_table("clicks.parquet")["indices"].combine_chunks().flatten().to_numpy())
    with BigLinearModel(folder) as model:
        return model.weights(indices).tobytes(), model.intercept


def test_train_resume_predict_evaluate() -> None:
    first = as_json(*TRAIN, "--epochs", "2", "--test", "test.parquet")
    assert (first["model"], first["shuffle"], first["optimizer"]) == ("logistic", "corgipile", "sgd")
    assert [row["epoch"] for row in first["epochs"]] == [1, 2]
    assert first["out"] == "ctr.model"
    assert first["features"] == Saved.read("ctr.model").layout.features
    assert first["model_bytes"] >= 4 * first["features"]
    assert 0 < first["hit_rate"] < 1
    assert first["page_bytes_read"] > 0
    assert first["disk_bytes"] > first["extra_disk_bytes"] > 0
    assert first["test_accuracy"] > 0.95
    assert first["seconds"] > first["training_seconds"]
    assert first["peak_memory_bytes"] > 10_000_000

    again = as_json(*TRAIN, "--epochs", "4", "--test", "test.parquet", "--resume")
    assert [row["progressive_loss"] for row in again["epochs"][:2]] == [
        row["progressive_loss"] for row in first["epochs"]
    ]
    assert [row["epoch"] for row in again["epochs"]] == [1, 2, 3, 4]
    whole = [word.replace("ctr.model", "whole.model") for word in TRAIN]
    run(*whole, "--epochs", "4", "--test", "test.parquet")
    assert weights("ctr.model") == weights("whole.model")

    measured = as_json("evaluate", "ctr.model", "test.parquet", "--memory", "1MB")
    assert measured["model"] == "logistic"
    assert measured["rows"] == 400
    assert measured["loss"] == pytest.approx(again["test_loss"], rel=1e-5)
    assert measured["test_accuracy"] == again["test_accuracy"]
    done = as_json("predict", "ctr.model", "test.parquet", "--keep", "clicked", "--memory", "1MB", "--out", "p.parquet")
    assert done["rows"] == 400
    table = pq.read_table("p.parquet")
    assert table.column_names == ["clicked", "prediction", "probability_0", "probability_1"]
    right = (table["clicked"].to_numpy() == table["prediction"].to_numpy()).mean()
    assert right == pytest.approx(measured["accuracy"])


def test_people_get_a_row_per_epoch_and_what_lies_where() -> None:
    result = run(*TRAIN, "--epochs", "2", "--test", "test.parquet")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["epoch", "progressive", "loss", "test", "accuracy", "seconds", "rows/s", "MB/s"]
    assert [line.split()[0] for line in lines[1:3]] == ["1", "2"]
    assert lines[3].startswith("test: AUC ")
    assert lines[4].startswith("saved ctr.model: logistic, ")
    for words in (" features, ", " on disk, test accuracy ", ", hit rate ", " s, peak memory "):
        assert words in lines[4]
    assert "hit rate" not in run(*TRAIN[:-2], "--epochs", "1").stdout  # all of it fits in a gigabyte
    assert run("evaluate", "ctr.model", "test.parquet").stdout.startswith("accuracy ")


def test_options_reach_the_model() -> None:
    run(
        *(*TRAIN, "--model", "svm", "--optimizer", "adagrad", "--threads", "2", "--epochs", "1", "--memory", "5MB"),
        *("--learning-rate", "0.05", "--l2", "1e-6", "--no-intercept", "--seed", "7", "--shuffle", "none"),
        *("--validation", "0.1", "--patience", "3", "--tolerance", "0.01", "--rate", "constant", "--no-standardize"),
    )
    header = Saved.read("ctr.model").header
    assert header["kind"] == "svm"
    stored = {name: header["storage"][name] for name in ("model_memory", "optimizer", "threads")}
    assert stored == {"model_memory": "150kB", "optimizer": "adagrad", "threads": 2}
    chosen = {"learning_rate": 0.05, "l2": 1e-6, "intercept": False, "seed": 7, "shuffle": "none", "memory": "5MB"}
    chosen |= {"validation": 0.1, "patience": 3, "tolerance": 0.01, "rate": "constant", "standardize": False}
    assert {name: header["config"][name] for name in chosen} == chosen
    assert "held_out_accuracy" in header["history"][0]


def test_a_linear_model_is_told_by_r2() -> None:
    found = as_json(*TRAIN, "--model", "linear", "--epochs", "2")
    assert "progressive_r2" in found["epochs"][0]
    assert as_json("evaluate", "ctr.model", "test.parquet")["test_r2"] > 0.3


def test_libsvm_text_names_its_own_label() -> None:
    chance = np.random.default_rng(0)
    with Path("rows.svm").open("w") as file:
        for _ in range(500):
            label = int(chance.integers(0, 2))
            others = " ".join(f"{n}:1" for n in np.unique(chance.integers(10, 10**6, 5)))
            file.write(f"{label} {label + 1}:1 {others}\n")
    found = as_json("train", "rows.svm", "--model-dir", "text.model", "--epochs", "3")
    assert found["label"] == "label"
    assert found["progressive_accuracy"] > 0.9
    assert as_json("evaluate", "text.model", "rows.svm")["accuracy"] == 1
    assert as_json("predict", "text.model", "rows.svm")["rows"] == 500


def test_hashed_text_columns() -> None:
    chance = np.random.default_rng(0)
    clicked = chance.integers(0, 2, 600)
    text = [f"{'yes' if c else 'no'} word{n}" for c, n in zip(clicked, chance.integers(0, 300, 600), strict=True)]
    pq.write_table(pa.table({"text": text, "city": ["a", "b"] * 300, "clicked": clicked}), "words.parquet")
    columns = ("--label", "clicked", "--hash", "text:2^30:words", "--hash", "city:2^20", "--model-dir", "t.model")
    found = as_json("train", "words.parquet", *columns, "--epochs", "3")
    assert found["dimension"] == 2**30 + 2**20
    assert found["features"] < 310
    assert as_json("evaluate", "t.model", "words.parquet")["accuracy"] == 1
    told = as_json("explain", "words.parquet", *columns)
    assert (told["features"], told["dimension"], told["prepared"]) == (found["features"], found["dimension"], True)


def test_factor_train_resume_predict_evaluate() -> None:
    first = as_json(*FACTOR, "--epochs", "2", "--validation", "0.1", "--learning-rate", "0.05")
    assert (first["model"], first["users"], first["items"], first["rank"]) == ("factor", 60, 40, 4)
    assert first["out"] == "mf.model"
    assert first["model_bytes"] >= 100 * 5 * 4
    again = as_json(*FACTOR, "--epochs", "5", "--validation", "0.1", "--learning-rate", "0.05", "--resume")
    assert [row["progressive_rmse"] for row in again["epochs"][:2]] == [
        row["progressive_rmse"] for row in first["epochs"]
    ]
    assert again["progressive_rmse"] < first["progressive_rmse"]
    assert again["held_out_rmse"] < first["held_out_rmse"]
    measured = as_json("evaluate", "mf.model", "ratings.parquet", "--memory", "1MB")
    assert measured["rmse"] == measured["test_rmse"]
    assert measured["rows"] == 2_000
    done = as_json("predict", "mf.model", "ratings.parquet", "--keep", "what,stars", "--out", "p.parquet")
    assert done["rows"] == 2_000
    table = pq.read_table("p.parquet")
    assert table.column_names == ["what", "stars", "prediction"]
    assert table["what"].to_pylist() == pq.read_table("ratings.parquet")["what"].to_pylist()
    errors = table["stars"].to_numpy() - table["prediction"].to_numpy()
    assert np.sqrt((errors**2).mean()) == pytest.approx(measured["rmse"], rel=1e-4)


def test_factor_for_people_and_its_own_defaults() -> None:
    lines = run(*FACTOR, "--epochs", "1").stdout.splitlines()
    assert lines[0].split()[:3] == ["epoch", "progressive", "loss"]
    assert lines[-1].startswith("saved mf.model: factor, 60 users and 40 items of rank 4, ")
    assert " on disk, held-out RMSE " in lines[-1]
    config = read_model("mf.model/state.penstock")[1]["config"]
    assert (config["l2"], config["learning_rate"], config["memory"]) == (0.02, 0.01, "1MB")
    run(*FACTOR, "--epochs", "1", "--l2", "0", "--learning-rate", "0.1", "--threads", "2")
    config = read_model("mf.model/state.penstock")[1]["config"]
    assert (config["l2"], config["learning_rate"], config["threads"]) == (0, 0.1, 2)
    assert run("evaluate", "mf.model", "ratings.parquet").stdout.startswith("RMSE ")
    assert run("predict", "mf.model", "ratings.parquet").stdout.startswith("saved predictions.parquet: 2,000 ")
    assert "no rating column 'starz'" in refused("evaluate", "mf.model", "ratings.parquet", "--label", "starz", code=1)


@pytest.mark.parametrize(
    "option",
    [("--model-memory", "1GB"), ("--threads", "2"), ("--dimension", "9")],
)
def test_options_of_models_on_disk_want_a_directory(option: tuple[str, str]) -> None:
    message = refused("train", "clicks.parquet", "--label", "clicked", *option)
    assert f"{option[0]} is for models on disk" in message
    assert "--model-dir DIR" in message


@pytest.mark.parametrize("option", [("--out", "model.penstock"), ("--scratch", ".")])
def test_what_a_model_on_disk_has_no_use_for(option: tuple[str, str]) -> None:
    assert f"{option[0]} is not for a model on disk" in refused(*TRAIN, *option)
    assert f"{option[0]} is not for a model on disk" in refused(*FACTOR, *option)
    assert not Path("ctr.model").exists()


@pytest.mark.parametrize("option", [("--user", "a"), ("--item", "a"), ("--rating", "a"), ("--rank", "5")])
def test_options_of_factor_alone(option: tuple[str, str]) -> None:
    assert f"{option[0]} is for --model factor alone" in refused(*TRAIN, *option)


@pytest.mark.parametrize(
    "option",
    [
        ("--label", "stars"), ("--features", "a"), ("--exclude", "a"), ("--hash", "a"), ("--weight", "a"),
        ("--batch-size", "2"), ("--l1", "1"), ("--no-intercept",), ("--standardize",), ("--no-standardize",),
        ("--shuffle", "none"), ("--optimizer", "sgd"),
    ],
)  # fmt: skip
def test_what_factor_has_no_use_for(option: tuple[str, ...]) -> None:
    name = option[0].replace("--no-standardize", "--standardize")
    assert f"{name} is not for a factor model" in refused(*FACTOR, *option)


def test_one_number_for_memory_is_split_between_rows_and_pages() -> None:
    told = run(*TRAIN[:-2], "--memory", "4MB", "--epochs", "1").stderr
    assert "memory of 4MB: 1.0 MB for rows, 3.0 MB for the model" in told
    assert "for the model" not in run(*TRAIN, "--epochs", "1").stderr
    assert as_json("explain", *TRAIN[1:-2], "--memory", "4MB")["model_memory_bytes"] == 3_000_000


def test_factor_wants_a_directory_and_its_columns() -> None:
    assert "--model-dir DIR" in refused("train", "ratings.parquet", "--model", "factor")
    for missing in ("--user", "--item", "--rating"):
        at = FACTOR.index(missing)
        assert f"{missing} is missing" in refused(*FACTOR[:at], *FACTOR[at + 2 :])
    assert "did you mean 'who'?" in refused(*FACTOR, "--user", "whoo", code=1)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--optimizer", "adam"), "is for models in memory; those on disk learn by one of: adagrad, sgd"),
        (("--threads", "0"), "is not a number of threads"),
        (("--model-memory", "much"), "is not an amount of memory"),
        (("--model", "softmax"), "cannot live on disk"),
        (("--solver", "lbfgs"), "is not there for models on disk, which learn by sgd or adagrad"),
        (("--l1", "0.1"), "--l1 0.1 is not there for models on disk"),
        (("--optimizer", "adagrad", "--batch-size", "4"), "AdaGrad makes an update after every row"),
        (("--shuffle", "corgi"), "corgipile"),
    ],
)
def test_values_that_cannot_be(option: tuple[str, ...], words: str) -> None:
    assert words in refused(*TRAIN, *option)


def test_too_little_memory_dense_rows_and_misspelt_columns() -> None:
    assert "too little" in run(*TRAIN[:-1], "2kB", "--epochs", "1", code=2).stderr
    dense = ("train", "dense.parquet", "--label", "y", "--model-dir", "d.model")
    assert "train in memory, with the estimators of penstock itself or without --model-dir" in refused(*dense)
    assert not Path("d.model").exists()
    assert "did you mean 'clicked'?" in refused(*[w.replace("clicked", "clickt") for w in TRAIN], code=1)
    Path("a file").touch()
    assert "a file is a file; name a folder" in refused(*TRAIN[:5], "a file", code=1)


def test_an_index_beyond_the_dimension_is_refused_by_its_row() -> None:
    told = refused(*TRAIN, "--dimension", "1000", code=1)
    assert "row 0" in told
    assert "1000" in told
    assert not Path("ctr.model", "state.penstock").exists()


def test_resume_without_a_checkpoint_says_so_and_trains() -> None:
    result = run(*TRAIN, "--epochs", "1", "--resume")
    assert "there is no checkpoint in ctr.model; training starts from the beginning" in result.stderr
    assert Path("ctr.model/state.penstock").exists()


def test_resume_with_nothing_left_to_do_says_so() -> None:
    for command, words in ((TRAIN, "logistic, "), (FACTOR, "factor, ")):
        place = command[command.index("--model-dir") + 1]
        assert f"saved {place}: {words}" in run(*command, "--epochs", "2").stdout
        told = run(*command, "--epochs", "2", "--resume").stdout
        assert told.splitlines()[-1].startswith(f"nothing was left to do, {place} has had its 2 epochs: {words}")
        assert "saved" not in told
        assert f"saved {place}: {words}" in run(*command, "--epochs", "3", "--resume").stdout


def test_a_damaged_checkpoint_and_memory_that_is_none() -> None:
    assert "--model-memory much is not an amount" in refused(*FACTOR[:-1], "much")
    run(*TRAIN, "--epochs", "1")
    Path("ctr.model/state.penstock").write_bytes(b"damaged")
    for command in (("predict", "ctr.model", "test.parquet"), ("evaluate", "ctr.model", "test.parquet"), TRAIN):
        assert "; restore ctr.model from a copy, or remove it and train anew" in refused(*command, code=1)


def test_resume_refuses_other_options_and_other_data() -> None:
    run(*TRAIN, "--epochs", "1")
    again = (*TRAIN, "--epochs", "2", "--resume")
    assert "optimizer" in refused(*again, "--optimizer", "adagrad")
    assert "this run has 0.5" in refused(*again, "--learning-rate", "0.5")
    other = [word.replace("clicks.parquet", "test.parquet") for word in again]
    assert "is not the data that the model in ctr.model" in refused(*other, code=1)
    assert "holds a model of other data" in refused(*other[:-1])
    assert len(Saved.read("ctr.model").header["history"]) == 1


def test_a_folder_that_is_no_model_and_memory_for_a_file() -> None:
    Path("empty").mkdir()
    for command in ("predict", "evaluate"):
        told = refused(command, "empty", "test.parquet", code=1)
        assert "there is no model in empty: it has no state.penstock; name the directory" in told
        assert "there is no model file at nowhere; check the path" in refused(
            command, "nowhere", "test.parquet", code=1
        )
    run("train", "dense.parquet", "--label", "y", "--epochs", "1", "--out", "dense.penstock")
    assert "--memory is for models on disk" in refused("predict", "dense.penstock", "dense.parquet", "--memory", "1MB")


def test_explain_tells_before_and_after_what_training_finds() -> None:
    options = (*TRAIN[1:], "--memory", "2MB")
    before = as_json("explain", *options)
    assert before["prepared"] is False
    assert not Path("ctr.model").exists()
    trained = as_json(*TRAIN, "--memory", "2MB", "--epochs", "2")
    after = as_json("explain", *options)
    assert after["prepared"] is True
    for told in (before, after):
        assert told["exact"] is True
        assert told["features"] == trained["features"]
        assert told["model_bytes"] == trained["model_bytes"]
        assert told["full_model_bytes"] == 4 * trained["dimension"]
        assert trained["hit_rate"] / 2 < told["hit_rate"] < 2 * trained["hit_rate"]
        assert trained["epochs"][1]["bytes"] / 2 < told["epoch"]["rows_read_bytes"] + told["epoch"]["pages_read_bytes"]
        assert told["peak_memory_bytes"] > 0
    text = run("explain", *options).stdout
    for words in (
        "different ones (counted when ctr.model was prepared)",
        "Expected hit rate: ",
        "An epoch: about ",
        "Disk: up to ",
    ):
        assert words in text
    assert as_json("explain", *options, "--optimizer", "adagrad")["full_model_bytes"] == 8 * trained["dimension"]


def test_explain_refuses_what_makes_no_sense() -> None:
    data = ("explain", "clicks.parquet", "--label", "clicked")
    assert "--model-memory is for models on disk" in refused(*data, "--model-memory", "1GB")
    assert "--optimizer is for models on disk" in refused(*data, "--optimizer", "sgd")
    assert "--storage is not for a model on disk" in refused(*data, "--model-dir", "m", "--no-storage")
    assert "linear, logistic, svm" in refused(*data, "--model-dir", "m", "--model", "forest")
    assert "cannot live on disk" in refused(*data, "--model-dir", "m", "--model", "softmax")
    assert "--dimension is for models on disk" in refused(*data, "--dimension", "9")
    assert "--rank is for --model factor alone" in refused(*data, "--model-dir", "m", "--rank", "9")
    assert "without --model-dir" in refused("explain", "dense.parquet", "--label", "y", "--model-dir", "m")


def test_explain_takes_a_dimension() -> None:
    told = as_json("explain", *TRAIN[1:], "--dimension", str(1 << 63))
    assert told["dimension"] == 1 << 63
    assert told["full_model_bytes"] == 4 << 63
    assert "1000" in refused("explain", *TRAIN[1:], "--dimension", "1000", code=1)


def test_explain_tells_of_a_directory_of_other_data() -> None:
    run(*TRAIN, "--epochs", "1")
    other = ("explain", "test.parquet", *TRAIN[2:])
    told = as_json(*other)
    assert (told["rows"], told["prepared"]) == (400, False)
    assert "ctr.model holds a model of other data (clicks.parquet, where this is test.parquet)" in told["warnings"][0]
    assert "warning: ctr.model holds a model of other data" in run(*other).stdout


def test_explain_tells_of_factor_models() -> None:
    asked = ("explain", *FACTOR[1:])
    before = as_json(*asked)
    assert not Path("mf.model").exists()
    trained = as_json(*FACTOR, "--epochs", "1")
    for told in (before, as_json(*asked)):
        assert all(told[name] == trained[name] for name in ("users", "items", "rank", "model_bytes"))
        assert (told["model"], told["rows"], told["model_memory_bytes"]) == ("factor", 2_000, 1_000_000)
        assert told["epoch"]["bytes"] > 2_000 * 12
    assert "The model in mf.model (factor, rank 4)" in run(*asked).stdout
    assert "--storage is not for a model on disk" in refused(*asked, "--no-storage")
    assert as_json(*asked[:-2], "--memory", "2MB")["model_memory_bytes"] == 2_000_000
    assert "--item is missing" in refused(*(w for w in asked if w not in ("--item", "what")))
    assert "--model-dir DIR" in refused("explain", "ratings.parquet", "--model", "factor")


def test_help_has_a_panel_for_models_on_disk() -> None:
    for command in ("train", "explain"):
        text = run(command, "--help").stdout
        assert "─ Models on disk ─" in text
        assert "--model-memory" in text


def test_ctrl_c_leaves_a_checkpoint_to_go_on_from() -> None:
    long = (*TRAIN, "--epochs", "400")
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *long], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    state, until = Path("ctr.model/state.penstock"), time.monotonic() + 90
    while process.poll() is None and time.monotonic() < until:
        if state.exists() and len(read_model(state)[1]["history"]) >= 2:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert stderr.endswith(f"interrupted; continue with: penstock {' '.join(long)} --resume\n")
    done = len(Saved.read("ctr.model").header["history"])
    assert 2 <= done < 400
    assert as_json("evaluate", "ctr.model", "test.parquet")["accuracy"] > 0.9
    epochs = str(done + 1)
    assert len(as_json(*TRAIN, "--epochs", epochs, "--resume")["epochs"]) == done + 1
    whole = [word.replace("ctr.model", "whole.model") for word in TRAIN]
    run(*whole, "--epochs", epochs)
    assert weights("ctr.model") == weights("whole.model")


def test_libsvm_text_with_indices_of_62_bits(tmp_path: Path) -> None:
    far = (10**12, 2**40, 2**62)
    lines = [f"{2 * (n % 2) - 1} {3 + n % 2}:1 {far[n % 3]}:0.5 {2**62 + 7 + n % 2}:1" for n in range(900)]
    Path("clicks.svm").write_text("\n".join(lines) + "\n")
    told = as_json("train", "clicks.svm", "--model-dir", "ctr.model", "--epochs", "3")
    assert told["dimension"] == 2**62 + 9
    measured = as_json("evaluate", "ctr.model", "clicks.svm")
    assert measured["accuracy"] == 1.0
    run("predict", "ctr.model", "clicks.svm", "--out", "out.parquet")
    assert pq.read_table("out.parquet")["prediction"].to_pylist()[:4] == [-1, 1, -1, 1]
    with BigLinearModel("ctr.model") as model:
        low, high = model.weights([2**62 + 7, 2**62 + 8])
        assert low < 0 < high
    message = refused("train", "clicks.svm", "--out", "m.penstock", code=1)
    assert str(2**62 + 8) in message
    assert "model" in message


def test_threads_and_batches_are_refused_by_their_options() -> None:
    message = refused(*TRAIN, "--threads", "2", "--batch-size", "8")
    assert "--threads 2" in message
    assert "--batch-size 8" in message
    assert not Path("ctr.model/state.penstock").exists()
