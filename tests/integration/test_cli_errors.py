"""Bad input at the command line: each has one clear message on stderr, the right exit code, and no traceback."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app

pytestmark = pytest.mark.usefixtures("desk")


def refused(*args: str, code: int = 1) -> str:
    """Run a command that fails, by people's and by machines' way, and return its message."""
    plain = CliRunner().invoke(app, list(args))
    assert plain.exit_code == code, (plain.stdout, plain.stderr, plain.exception)
    assert plain.stderr.startswith("error: ")
    assert "Traceback" not in plain.stderr
    machine = CliRunner().invoke(app, [*args, "--json"])
    assert machine.exit_code == code
    told: dict[str, Any] = json.loads(machine.stdout)
    assert list(told) == ["error"]
    assert told["error"] in machine.stderr
    return plain.stderr


def train(data: str = "clicks.parquet", *more: str, label: str = "clicked", code: int = 1) -> str:
    return refused("train", data, "--label", label, "--epochs", "1", *more, code=code)


def table(**columns: Any) -> str:
    columns = {"x": np.arange(100.0), "y": np.arange(100) % 2, **columns}
    pq.write_table(pa.table(columns), "made.parquet")
    return "made.parquet"


def test_misspelt_label_names_the_nearest_and_all_columns() -> None:
    message = train(label="cliked")
    assert "clicks.parquet has no label column 'cliked'" in message
    assert "age, visits, price, hour, scroll, seconds, clicked" in message
    assert "did you mean 'clicked'?" in message


def test_no_label_at_all() -> None:
    message = refused("train", "clicks.parquet", code=2)
    assert "say which column of clicks.parquet is the label" in message
    assert "clicked" in message


@pytest.mark.parametrize("value", [None, float("nan")])
@pytest.mark.parametrize("model", ["logistic", "linear"])
def test_missing_labels_name_the_row(value: float | None, model: str) -> None:
    labels = [float(i % 2) for i in range(100)]
    labels[57] = value  # type: ignore[call-overload]  # a null is what is tested
    message = train(table(y=pa.array(labels)), "--model", model, "--missing", "refuse", label="y")
    assert "'y' is" in message
    assert "row 57" in message


def test_single_class() -> None:
    message = train(table(y=np.ones(100, int)), label="y")
    assert re.search(r"one class|single class|only", message), message
    assert "1" in message


def test_three_classes_want_softmax() -> None:
    message = train(table(y=np.arange(100) % 3), "--model", "svm", label="y")
    assert "softmax" in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_feature_names_row_and_column(value: float) -> None:
    x = np.arange(100.0)
    x[31] = value
    for more in (["--no-standardize"], ["--standardize"]):
        message = train(table(x=x), *more, "--missing", "refuse", label="y")
        assert "row 31" in message
        assert "x" in message


def test_a_kind_that_a_column_is_not() -> None:
    message = train(table(city=["a", "b"] * 50), "--number", "city", label="y", code=2)
    assert "--number city" in message
    assert "the value 'a', not a number" in message


def test_nothing_there() -> None:
    assert "nowhere.parquet" in train("nowhere.parquet")


@pytest.mark.parametrize("name", ["empty.parquet", "empty.arrow", "empty.csv", "empty.svm"])
def test_empty_file(name: str) -> None:
    Path(name).touch()
    message = train(name)
    assert name in message
    assert "empty" in message


def test_no_rows() -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.float32()), "y": pa.array([], pa.int8())}), "none.parquet")
    assert "no rows" in train("none.parquet", label="y")


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_truncated_file(kind: str) -> None:
    CliRunner().invoke(app, ["convert", "clicks.parquet", "clicks.arrow", "--label", "clicked"])
    whole = Path(f"clicks.{kind}").read_bytes()
    Path(f"cut.{kind}").write_bytes(whole[: len(whole) // 2])
    message = train(f"cut.{kind}")
    assert f"cut.{kind}" in message
    assert re.search("truncated|damaged|not a whole|corrupt", message), message


@pytest.mark.parametrize("line", ["1 3:1.0 2:5.0", "1 1:abc", "1 nonsense"])
def test_bad_libsvm_line_names_file_and_line(line: str) -> None:
    lines = ["1 1:0.5 2:1.5", "0 1:-0.5"] * 10
    lines[13] = line
    Path("bad.svm").write_text("\n".join(lines) + "\n")
    message = refused("train", "bad.svm", "--epochs", "1")
    assert "bad.svm:14: " in message


def test_differing_schemas() -> None:
    Path("parts").mkdir()
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), "parts/a.parquet")
    pq.write_table(pa.table({"z": [1.0, 2.0], "y": [0, 1]}), "parts/b.parquet")
    message = train("parts", label="y")
    assert "a.parquet" in message
    assert "b.parquet" in message


@pytest.mark.parametrize("more", [[], ["--validation", "0.1"], ["--test", "test.parquet"]])
@pytest.mark.parametrize("shuffle", ["corgipile", "sliding-window"])
def test_the_smallest_budget_named_does_work(more: list[str], shuffle: str) -> None:
    message = train("clicks.parquet", "--memory", "1kB", "--shuffle", shuffle, *more, code=2)
    found = re.search(r"the smallest that works is ([0-9.]+[kMG]?B)", message)
    assert found, message
    result = CliRunner().invoke(
        app,
        ["train", "clicks.parquet", "--label", "clicked", "--shuffle", shuffle, *more, "--memory", found[1]],
    )
    assert result.exit_code == 0, result.stderr


def test_unknown_names_list_the_valid_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.training.scan", lambda *_, **__: pytest.fail("the data were read first"))
    assert "linear, logistic, softmax, svm" in train("clicks.parquet", "--model", "logistics", code=2)
    message = train("clicks.parquet", "--shuffle", "corgipil", code=2)
    assert "--shuffle corgipil is not known" in message
    assert "did you mean 'corgipile'?" in message
    assert "sliding-window" in message
    assert "exponential" in train("clicks.parquet", "--rate", "fast", code=2)
    assert "parquet" in train("clicks.parquet", "--format", "excel", code=2)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--memory", "lots"),
        ("--epochs", "-1"),
        ("--batch-size", "0"),
        ("--learning-rate", "0"),
        ("--l2", "-1"),
        ("--validation", "1.5"),
        ("--patience", "-1"),
        ("--seed", "-3"),
        ("--hash", "city:2^99"),
        ("--decay", "2"),
    ],
)
def test_wrong_values_are_wrong_usage(option: str, value: str) -> None:
    message = train("clicks.parquet", option, value, code=2)
    assert value.removeprefix("city:") in message


def test_unknown_option_and_command_are_wrong_usage() -> None:
    assert "Invalid value for '--epochs'" in train("clicks.parquet", "--epochs", "three", code=2)
    assert "--labell" in refused("train", "clicks.parquet", "--labell", "clicked", code=2)
    assert "Did you mean 'train'?" in refused("trian", "clicks.parquet", code=2)
    assert "Missing argument 'DATA'" in refused("train", code=2)
    assert "help: penstock train --help" in refused("train", code=2)
    assert "--nothing" in refused("--nothing", code=2)


def test_unwritable_outputs_are_found_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.job.Job.run", lambda *_, **__: pytest.fail("it trained"))
    assert "there is no folder nowhere" in train("clicks.parquet", "--out", "nowhere/model.penstock")
    Path("folder").mkdir()
    assert "it is a folder" in train("clicks.parquet", "--out", "folder")
    for command in (
        ["predict", "model.penstock", "clicks.parquet", "--out", "nowhere/p.parquet"],
        ["convert", "clicks.parquet", "nowhere/c.arrow"],
        ["compare", "clicks.parquet", "--label", "clicked", "--report", "nowhere/page.html"],
        ["demo", "--size", "1MB", "--report", "nowhere/page.html"],
    ):
        assert "there is no folder nowhere" in refused(*command)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder() -> None:
    Path("locked").mkdir(mode=0o555)
    assert "Permission denied" in train("clicks.parquet", "--out", "locked/model.penstock")


def test_model_files_that_are_none() -> None:
    from safetensors.numpy import save_file

    CliRunner().invoke(app, ["train", "clicks.parquet", "--label", "clicked", "--epochs", "1"])
    whole = Path("model.penstock").read_bytes()
    Path("cut.penstock").write_bytes(whole[: len(whole) // 2])
    save_file({"coef": np.zeros(3, np.float32)}, "foreign.safetensors")
    for command in ("evaluate", "predict"):
        assert "not a whole model file" in refused(command, "cut.penstock", "test.parquet")
        assert "not a Penstock model" in refused(command, "foreign.safetensors", "test.parquet")
        assert "there is no model file" in refused(command, "missing.penstock", "test.parquet")
        Path("page.html").write_text("<html></html>")
        assert "not a whole model file" in refused(command, "page.html", "test.parquet")


def test_data_where_the_model_should_be() -> None:
    CliRunner().invoke(app, ["train", "clicks.parquet", "--label", "clicked", "--epochs", "1"])
    penstock.convert("clicks.parquet", "clicks.arrow", label="clicked")
    Path("unnamed").write_bytes(Path("clicks.parquet").read_bytes())
    kinds = {"clicks.parquet": "Parquet", "clicks.arrow": "Arrow", "clicks.csv": "CSV", "unnamed": "Parquet"}
    for command in ("evaluate", "predict"):
        for name, kind in kinds.items():
            message = refused(command, name, "model.penstock")
            assert f"{name} is a{'n' * (kind == 'Arrow')} {kind} file, not a model; MODEL comes first" in message


def test_evaluate_and_predict_name_missing_columns() -> None:
    CliRunner().invoke(app, ["train", "clicks.parquet", "--label", "clicked", "--epochs", "1"])
    assert "'clicked'" in refused("evaluate", "model.penstock", "new.parquet")
    assert "'clickd'" in refused("evaluate", "model.penstock", "test.parquet", "--label", "clickd")
    pq.write_table(pq.read_table("test.parquet").drop_columns(["age"]), "less.parquet")
    assert "'age'" in refused("predict", "model.penstock", "less.parquet")
    assert "'nam'" in refused("predict", "model.penstock", "test.parquet", "--keep", "nam")


def test_a_column_that_stands_in_the_folder_names_is_told_of() -> None:
    for value in (0, 1):
        folder = Path("hive", f"label={value}")
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0]}), folder / "p.parquet")
    message = train("hive/label=0/p.parquet", label="label")
    assert "hive/label=0/p.parquet has no label column 'label'; it has: a, b" in message
    assert "'label' stands in the folder names ('label=0'), which are columns of the folder above them" in message
    assert "folder names" not in train("hive", label="abel")


def test_divergence_names_the_epoch_and_the_remedy() -> None:
    x = 1e6 * np.random.default_rng(0).standard_normal(1_000)
    data = table(x=x, y=3.0 * x)
    message = train(data, "--model", "linear", "--no-standardize", "--rate", "exponential", label="y")
    assert "diverged in epoch 1" in message
    assert "smaller learning rate (try 0.001) or --standardize" in message
    assert "leave" not in message  # no rate was given
    assert not Path("m.penstock.checkpoint").exists()


def test_steps_that_nobody_would_try_are_to_be_left_out_and_leave_nothing_behind() -> None:
    drawn = np.random.default_rng(0)
    x = drawn.standard_normal(2_000)
    data = table(x=x, y=(x + drawn.standard_normal(2_000) > 0).astype(float))
    Path("other.checkpoint").write_text("of another run")
    done = CliRunner().invoke(app, ["train", data, "--label", "y", "--learning-rate", "1e9", "--out", "m.penstock"])
    message = done.stderr.partition("error: ")[2]
    assert "diverged in epoch 2" in message  # so there was a checkpoint of the first
    assert (
        "leave --learning-rate out, and steps are sized by the rows, or use a smaller learning rate (try 0.1)"
        in message
    )
    assert [path.name for path in Path().glob("*checkpoint*")] == ["other.checkpoint"]


def test_demo_needs_room_on_the_disk() -> None:
    message = refused("demo", "--size", "900TB")
    assert "2250.0 TB" in message
    assert "--dir" in message
    assert "--size" in message
    assert "there is no folder nowhere" in refused("demo", "--dir", "nowhere", "--size", "1MB")


def test_predictions_are_not_written_as_parquet_under_another_formats_name() -> None:
    message = refused("predict", "model.penstock", "test.parquet", "--out", "p.csv", code=2)
    assert "name it p.parquet" in message
    assert not Path("p.csv").exists()


def test_an_error_on_the_way_out_of_an_interrupt_is_the_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise ValueError("generator already executing")

    monkeypatch.setattr("penstock.job.Job.run", interrupted)
    found = CliRunner().invoke(app, ["train", "clicks.parquet", "--label", "clicked"])
    assert found.exit_code == 130
    assert "generator" not in found.stderr


def test_the_data_are_not_written_over() -> None:
    CliRunner().invoke(app, ["train", "clicks.parquet", "--label", "clicked", "--epochs", "1", "--out", "m.penstock"])
    before = Path("clicks.parquet").read_bytes()
    assert "is the file being read" in train("clicks.parquet", "--out", "clicks.parquet", code=2)
    assert "is the file being read" in refused(
        "predict", "m.penstock", "clicks.parquet", "--out", "./clicks.parquet", code=2
    )
    Path("many").mkdir()
    Path("many/a.parquet").write_bytes(before)
    assert "is the file being read" in refused("predict", "m.penstock", "many", "--out", "many/a.parquet", code=2)
    assert Path("clicks.parquet").read_bytes() == before == Path("many/a.parquet").read_bytes()
