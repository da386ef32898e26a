"""A model for every group at the command line: trained, shown, gone on with and asked; and what is refused."""

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
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.groups import GroupModels

TRAIN = ("groups", "train", "visits.parquet", "--by", "country,device", "--label", "clicked", "--workers", "1")
COUNTRIES, DEVICES = ("FR", "DE", "NO"), ("ios", "web")
TRIED = ("--try", "l2=1,0.001")


def visits(rows: int, seed: int) -> pa.Table:
    """Make rows of five groups with a sign of their own each, and a sixth, NO/web, of one class."""
    chance = np.random.default_rng(seed)
    country = chance.choice(COUNTRIES, rows, p=[0.6, 0.3, 0.1])
    device = chance.choice(DEVICES, rows)
    x = chance.normal(size=(rows, 2)).astype(np.float32)
    sign = np.where(device == "ios", 1, -1) * np.where(country == "DE", -1, 1)
    clicked = sign * x[:, 0] + 0.2 * chance.normal(size=rows) > 0
    clicked[(country == "NO") & (device == "web")] = True
    seconds = 3 + sign * x[:, 0] + 0.01 * chance.normal(size=rows)
    return pa.table(
        {"country": country, "device": device, "age": x[:, 0], "hour": x[:, 1], "clicked": clicked, "seconds": seconds}
    )


@pytest.fixture(scope="module")
def made() -> dict[str, pa.Table]:
    train, new = visits(1_500, 0).drop_columns(["seconds"]), visits(200, 1).drop_columns(["seconds"])
    strange = new.slice(0, 20).set_column(0, "country", pa.array(["XX", *["FR"] * 19]))
    return {
        "visits.parquet": train,
        "new.parquet": new,
        "strange.parquet": strange,
        "times.parquet": visits(1_500, 0).drop_columns(["clicked"]),
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
    assert not Path("models").exists() or args[:2] != ("groups", "train")
    message: str = plain.stderr
    return message


def test_rows_that_are_not_finite_in_a_group_without_a_model() -> None:
    table = visits(1_500, 0).drop_columns(["seconds"])
    bad = np.flatnonzero((table["country"].to_numpy() == "DE") & (table["device"].to_numpy() == "ios"))
    age = table["age"].to_numpy().copy()
    age[bad[::2]] = np.inf
    pq.write_table(table.set_column(2, "age", pa.array(age)), "visits.parquet")
    told = as_json(*TRAIN)
    assert told["groups_without_model"] == 2
    told = as_json("groups", "predict", "models", "visits.parquet")
    assert told["without_model"] >= len(bad)
    age[np.flatnonzero(table["country"].to_numpy() == "FR")[3]] = np.inf
    pq.write_table(table.set_column(2, "age", pa.array(age)), "visits.parquet")
    assert "'age' is not a finite number in row" in refused("groups", "predict", "models", "visits.parquet", code=1)


def test_train_show_predict() -> None:
    told = as_json(*TRAIN, *TRIED)
    assert (told["model"], told["by"], told["label"]) == ("logistic", ["country", "device"], "clicked")
    assert (told["groups"], told["groups_without_model"], told["configs"], told["rows"]) == (6, 1, 2, 1_500)
    assert told["trained"] == 6
    assert told["reasons"] == [{"reason": "only one class among its rows", "groups": 1, "models": 2}]
    assert told["chosen"] == [{"config": 1, "params": {"l2": 0.001}, "groups": 5}]
    score = told["score"]
    assert 0.8 < score["min"] <= score["median"] <= score["max"] <= 1
    assert score["median"] <= score["max"]
    assert told["seconds"] > told["worker_seconds"] > 0
    assert told["peak_memory_bytes"] > 10_000_000
    assert told["out"] == "models"

    shown = as_json("groups", "show", "models")
    assert shown["finished"] is True
    rows = [row["rows"] for row in shown["best"]]
    assert rows == sorted(rows, reverse=True)
    assert sum(rows) == 1_500
    failed = next(row for row in shown["best"] if row["group"] == "NO/web")
    assert (failed["config"], failed["params"]) == (None, None)
    assert failed["reason"] == "only one class among its rows"
    text = run("groups", "show", "models").stdout
    assert "failed    1 group: only one class among its rows\n" in text
    assert "chosen    l2=0.001 for 5 groups\n" in text
    assert [line.split()[0] for line in text.splitlines()[-6:]] == [row["group"] for row in shown["best"]]

    done = as_json(
        "groups", "predict", "models", "new.parquet", "--keep", "country,device,clicked", "--out", "p.parquet"
    )
    assert (done["rows"], done["unseen"]) == (200, "null")
    table = pq.read_table("p.parquet")
    assert table.column_names[:4] == ["country", "device", "clicked", "prediction"]
    assert table["prediction"].null_count == done["without_model"] > 0
    answered = table.filter(pa.compute.is_valid(table["prediction"]))
    assert (answered["clicked"].to_numpy() == answered["prediction"].to_numpy()).mean() > 0.9


def test_what_train_prints_for_people() -> None:
    text = run(*TRAIN, *TRIED).stdout
    for words in (
        "groups    6 by country, device, 1 of them without a model\n",
        "configs   2 for each\n",
        "rows      1,500\n",
        "failed    1 group: only one class among its rows\n",
        "held out  accuracy ",
        " rows that no choice has seen\n",
        " groups with at least 10 held-out rows, median ",
        "pooled    accuracy ",
        " on the same rows, by one model for all groups, without 'country' and 'device' (l2=",
        "          compare with a model that has them: train one without groups, or name them as category here\n",
        "it is better than the group's own model in 0 of 5 groups, worse in ",
        "chosen    l2=0.001 for 5 groups\n",
        "saved models: logistic, 5 models, ",
        "peak memory ",
    ):
        assert words in text


def test_a_search_from_a_file_and_by_try_are_the_same() -> None:
    Path("grid.toml").write_text("[grid]\nl2 = [1, 0.001]\nlearning_rate = [1, 0.5]\n")
    by_file = as_json(*TRAIN, "--grid", "grid.toml", "--out", "a")
    by_try = as_json(*TRAIN, "--try", "l2=1,0.001", "--try", "learning_rate=1, 0.5", "--out", "b")
    assert by_file["configs"] == by_try["configs"] == 4
    one, other = GroupModels.open("a"), GroupModels.open("b")
    assert one.frame.drop_columns(["seconds"]).equals(other.frame.drop_columns(["seconds"]))


def test_a_random_search() -> None:
    Path("some.toml").write_text('[random]\ncount = 3\nseed = 1\nl2 = ["log", 1e-4, 1.0]\n')
    assert as_json(*TRAIN, "--grid", "some.toml")["configs"] == 3


def test_without_a_search_there_is_one_config() -> None:
    told = as_json(*TRAIN, "--epochs", "3")
    assert (told["configs"], told["chosen"][0]["params"]) == (1, {})
    assert max(GroupModels.open("models").frame["epochs"].to_pylist()) == 3
    assert "as given" in run("groups", "show", "models").stdout


def test_linear_gd_placement_validation_intercept() -> None:
    options = ("groups", "train", "times.parquet", "--by", "country,device", "--label", "seconds", "--model", "linear")
    told = as_json(*options, "--solver", "gd", "--epochs", "60", "--placement", "wrap-around", "--workers", "2")
    assert told["score"]["metric"] == "held_out_r2"
    assert told["held_out_r2"] > 0.9
    assert "held out  R² 0.9" in run("groups", "show", "models").stdout
    none = as_json(*options, "--validation", "0", "--no-intercept", "--out", "none")
    assert none["score"] is None
    assert "\ntraining  loss from " in run("groups", "show", "none").stdout
    model = GroupModels.open("none").best("FR/ios")
    assert model.weights.intercept.tolist() == [0]
    weights = {seed: as_json(*options, "--seed", seed, "--out", f"s{seed}")["held_out_loss"] for seed in ("1", "2")}
    assert weights["1"] != weights["2"]


def test_columns() -> None:
    table = pq.read_table("visits.parquet")
    table = table.append_column("mass", pa.array(np.arange(len(table)) % 2)).append_column("city", table["country"])
    pq.write_table(table, "visits.parquet", row_group_size=200)
    run(*TRAIN, "--out", "every")
    assert GroupModels.open("every").best("FR/ios").weights.coef.shape == (1, 6)
    run(*TRAIN, "--exclude", "city", "--weight", "mass", "--out", "a")
    assert GroupModels.open("a").best("FR/ios").weights.coef.shape == (1, 2)
    run(*TRAIN, "--features", "age", "--out", "b")
    assert GroupModels.open("b").best("FR/ios").weights.coef.shape == (1, 1)
    run(*TRAIN, "--hash", "city:2^5", "--exclude", "mass", "--out", "c")
    assert GroupModels.open("c").best("FR/ios").weights.coef.shape == (1, 34)


def test_csv_text_without_a_header() -> None:
    pa_csv.write_csv(
        pq.read_table("visits.parquet"), "visits.txt", pa_csv.WriteOptions(include_header=False, delimiter=";")
    )
    options = ("--format", "csv", "--no-header", "--delimiter", ";")
    told = as_json(
        "groups", "train", "visits.txt", "--by", "column_0", "--exclude", "column_1", "--label", "column_4", *options
    )
    assert told["groups"] == 3
    done = as_json("groups", "predict", "models", "visits.txt", *options)
    assert (done["rows"], done["without_model"]) == (1_500, 0)


def test_folders_that_name_the_groups() -> None:
    table = pq.read_table("visits.parquet").drop_columns(["device"])
    for country in COUNTRIES:
        place = Path("parts", f"country={country}")
        place.mkdir(parents=True)
        part = table.filter(pa.compute.equal(table["country"], country)).drop_columns(["country"])
        pq.write_table(part, place / "rows.parquet")
    run("groups", "train", "parts", "--by", "country", "--label", "clicked")
    assert GroupModels.open("models").groups == ["DE", "FR", "NO"]
    assert as_json("groups", "predict", "models", "parts")["without_model"] == 0


def test_rows_are_kept_and_used_again() -> None:
    run(*TRAIN, "--rows", "rows", "--memory", "100MB", "--out", "a")
    again = ("groups", "train", "rows", "--by", "country,device", "--out", "b", "--json")
    assert json.loads(run(*again).stdout)["label"] == "clicked"
    np.testing.assert_allclose(GroupModels.open("a").frame["loss"], GroupModels.open("b").frame["loss"], rtol=1e-6)
    assert "--features is not for rows: its rows are grouped already" in refused(*again[:-1], "--features", "age")
    assert "rows by country, device, not by country" in refused("groups", "train", "rows", "--by", "country")
    assert "'clicked', not 'age'" in refused("groups", "train", "rows", "--by", "country,device", "--label", "age")


def test_resume() -> None:
    run(*TRAIN, *TRIED)
    assert "models holds models already; go on with --resume" in run(*TRAIN, *TRIED, code=2).stderr
    told = run(*TRAIN, *TRIED, "--resume").stdout
    assert "nothing was left to do in models: logistic, 5 models" in told
    assert as_json(*TRAIN, *TRIED, "--resume")["trained"] == 0
    assert "models of another training" in run(*TRAIN, "--try", "l2=1,0.1", "--resume", code=2).stderr
    fresh = run(*TRAIN, *TRIED, "--resume", "--out", "fresh")
    assert "there are no models in fresh; training starts from the beginning" in fresh.stderr
    assert Path("fresh/index.json").exists()


def test_ctrl_c_keeps_the_groups_that_are_done() -> None:
    # Groups enough for several seconds; what is done is committed every two.
    chance = np.random.default_rng(0)
    many = pa.table(
        {
            "group": np.repeat(np.arange(4_000), 100),
            **{f"x{n}": chance.normal(size=400_000).astype(np.float32) for n in range(12)},
            "y": chance.random(400_000) < 0.5,
        }
    )
    pq.write_table(many, "many.parquet", row_group_size=20_000)
    train = ["groups", "train", "many.parquet", "--by", "group", "--label", "y", "--rows", "rows", "--workers", "1"]
    train += ["--try", "l2=1,0.1,0.01,0.001,0.0001,0.00001", "--try", "tolerance=1e-4,1e-6,1e-8", "--epochs", "60"]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *train], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 100
    while process.poll() is None and time.monotonic() < until and not list(Path("models").glob("groups-*.parquet")):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert stderr.endswith(f"interrupted; continue with: penstock {' '.join(train)} --resume\n")
    part = run("groups", "show", "models", "--lines", "0")
    assert "was not finished, and groups may lack their models; go on with it by --resume" in part.stderr
    done = len(GroupModels.open("models").groups)
    assert 0 < done < 4_000


def test_show_one_group_some_lines_and_csv() -> None:
    run(*TRAIN, *TRIED)
    told = as_json("groups", "show", "models", "--group", "FR/ios")
    assert [config["chosen"] for config in told["configs"]] == [False, True]
    assert [config["params"]["l2"] for config in told["configs"]] == [1, 0.001]
    text = run("groups", "show", "models", "--group", "FR/ios").stdout
    assert [line.split()[0] for line in text.splitlines()] == ["config", "l2=1", "l2=0.001"]
    assert text.rstrip().endswith("chosen")
    assert "only one class" in run("groups", "show", "models", "--group", "NO/web").stdout
    some = run("groups", "show", "models", "--lines", "2").stdout
    assert some.splitlines()[-1].startswith("… and 4 smaller groups")
    assert "saved all.csv: 12 rows" in run("groups", "show", "models", "--csv", "all.csv").stdout
    assert pa_csv.read_csv("all.csv")["param_l2"].to_pylist() == [1, 0.001] * 6
    assert as_json("groups", "show", "models", "--csv", "one.csv", "--group", "FR/ios")["rows"] == 2
    assert "did you mean 'FR/ios'?" in refused("groups", "show", "models", "--group", "FR/io")
    assert "there is no group 'XX'" in refused("groups", "show", "models", "--group", "XX", "--csv", "x.csv")
    assert not Path("x.csv").exists()
    assert "--lines -1 is not a number of lines" in refused("groups", "show", "models", "--lines", "-1")
    assert "there is no folder nowhere" in refused("groups", "show", "models", "--csv", "nowhere/a.csv", code=1)
    assert "there is no model file at nowhere" in refused("groups", "show", "nowhere", code=1)


def test_a_terminal_gets_the_largest_groups_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.groups import tables

    run(*TRAIN)
    result = GroupModels.open("models")
    rows = tables.best(result) * 10
    assert len(list(tables.table(rows, result))) == 61
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    lines = list(tables.table(rows, result))
    assert len(lines) == 22
    assert lines[-1].startswith("… and 40 smaller groups")


def test_rows_of_groups_without_a_model() -> None:
    run(*TRAIN, *TRIED)
    ask = ("groups", "predict", "models", "strange.parquet", "--out", "p.parquet")
    told = run(*ask).stdout
    assert "20 predictions, " in told
    assert "of them null (no model of their group)" in told
    assert pq.read_table("p.parquet")["prediction"][0].as_py() is None
    assert as_json(*ask, "--unseen", "largest")["without_model"] == 0
    message = refused(*ask[:-1], "q.parquet", "--unseen", "error", code=1)
    assert "strange.parquet: row 0: there is no group 'XX/" in message
    assert "--unseen null leaves such rows without a prediction" in message
    assert not Path("q.parquet").exists()
    assert "--unseen nothing is not known; choose one of: error, largest, null" in refused(*ask, "--unseen", "nothing")


def test_predict_refuses_what_cannot_be() -> None:
    run(*TRAIN)
    ask = ("groups", "predict", "models")
    assert "there is no model file at nowhere" in refused("groups", "predict", "nowhere", "new.parquet", code=1)
    assert "name it p.parquet" in refused(*ask, "new.parquet", "--out", "p.csv")
    assert "nope" in refused(*ask, "new.parquet", "--keep", "nope", code=1)
    pq.write_table(pq.read_table("new.parquet").drop_columns(["device"]), "less.parquet")
    assert "group column 'device'" in refused(*ask, "less.parquet", code=1)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--by", "county", "--label", "clicked"), 1, "did you mean 'country'?"),
        (("--by", "country", "--label", "clickd", "--exclude", "device"), 1, "did you mean 'clicked'?"),
        (("--by", "country", "--label", "country"), 2, "'country' is given as the label and to group by"),
        (("--by", "country", "--label", "clicked", "--weight", "country"), 2, "given as the weight and to group by"),
        (("--by", "country,country", "--label", "clicked"), 2, "'country' twice"),
        (("--by", " , ", "--label", "clicked"), 2, "--by names no column"),
        (("--label", "clicked"), 2, "--by"),
        (("--by", "country"), 2, "--label clicked, say"),
        (("--by", "country,device", "--label", "age"), 2, "classes"),
    ],
)
def test_columns_that_cannot_be(options: tuple[str, ...], code: int, words: str) -> None:
    assert words in refused("groups", "train", "visits.parquet", *options, code=code)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--model", "forest"),
            "--model forest is not there for groups; choose one of: logistic, svm, linear, softmax, lightgbm",
        ),
        (
            ("--model", "svm", "--solver", "exact"),
            "--solver exact is not there for --model svm; choose one of: auto, lbf",
        ),
        (("--model", "lightgbm", "--solver", "gd"), "--solver is of linear models"),
        (("--model", "lightgbm", "--try", "num_leafs=3"), "did you mean 'num_leaves'?"),
        (("--patience", "2", "--solver", "lbfgs"), "--patience is of sgd and lightgbm"),
        (("--patience", "0", "--solver", "sgd"), "--patience 0 is too few"),
        (("--halving", "3"), "halving is for models that learn row by row"),
        (("--halving", "1", "--solver", "sgd"), "eta=1 cannot be halved by"),
        (("--halving", "2", "--solver", "sgd", "--budget", "3"), "give at least 20, or fewer epochs"),
        (("--budget", "3"), "--budget 3 is of --halving"),
        (("--executor", "rai"), "did you mean 'ray'?"),
        (("--address", "auto"), "--executor ray"),
        (("--epochs", "0"), "--epochs 0 is too few"),
        (("--workers", "0"), "--workers 0 is too few"),
        (("--workers", "two"), "--workers"),
        (("--validation", "1"), "--validation 1.0 is not a share of the rows"),
        (("--placement", "spred"), "did you mean 'spread'?"),
        (("--memory", "lots"), "--memory lots is not an amount of memory"),
        (("--memory", "1kB"), "--memory 1.0 kB is too little"),
        (("--out", "here", "--rows", "here"), "--rows and --out are both here"),
        (("--try", "l2"), "--try l2 is not a name with its values; write --try l2=1,0.1,0.01"),
        (("--try", "l2=1,,2"), "--try l2=1,,2 is not a name with its values"),
        (("--try", "=1"), "--try =1 is not a name with its values"),
        (("--try", "l2=1", "--try", "l2=2"), "l2 was given before"),
        (("--try", "l2=1,1.0"), "lists 1.0 twice"),
        (("--try", "l2=-1"), "error: --try l2=-1: l2 = -1 is out of range; choose a number of at least 0"),
        (("--try", "l2=much"), "l2 = 'much' is of the wrong type"),
        (("--try", "l2=nan"), "not a finite number"),
        (("--try", "epochs=1.5"), "epochs = 1.5 is of the wrong type"),
        (
            ("--try", "learning_rat=1"),
            "'learning_rat' is not known; choose one of: batch_size, decay, epochs, l1, l2, ",
        ),
        (("--try", "l2=1", "--grid", "grid.toml"), "--grid and --try both say what to try"),
    ],
)
def test_options_that_cannot_be(options: tuple[str, ...], words: str) -> None:
    assert words in refused(*TRAIN, *options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("l2 = [1,", "grid.toml is not TOML"),
        ("", "it needs one table, [grid] or [random]"),
        ("[grit]\nl2 = [1]", "'grit'"),
        ("[grid]\nl2 = 1", "l2 = 1 is not a list of values"),
        ("[grid]\nl3 = [1]", "--grid grid.toml: 'l3' is not known"),
        ('[grid]\nl2 = ["log", 0.1, 1.0]', "a table [random]"),
        ("[random]\nl2 = [1]", "needs a count"),
        (
            "[grid]\nl2 = [" + ", ".join(map(str, range(200))) + "]\nl1 = [" + ", ".join(map(str, range(200))) + "]",
            "40,000",
        ),
    ],
)
def test_files_that_are_no_search(text: str, words: str) -> None:
    Path("grid.toml").write_text(text)
    message = refused(*TRAIN, "--grid", "grid.toml")
    assert words in message
    assert "grid.toml" in message


def test_a_missing_search_and_folders_that_cannot_be() -> None:
    assert "there is no search file at nope.toml" in refused(*TRAIN, "--grid", "nope.toml", code=1)
    assert "visits.parquet is a file; name a folder" in refused(*TRAIN, "--out", "visits.parquet", code=1)
    assert "is a file; name a folder" in refused(*TRAIN, "--rows", "visits.parquet/rows", code=1)
    Path("full").mkdir()
    Path("full/letter").touch()
    assert "full holds no models but other files (letter)" in refused(*TRAIN, "--out", "full")
    assert "nowhere.parquet" in refused("groups", "train", "nowhere.parquet", *TRAIN[3:], code=1)


def test_help() -> None:
    assert "groups" in run("--help").stdout
    for words in ("train", "show", "predict"):
        assert words in run("groups").stdout
        assert "Example" in run("groups", words, "--help").stdout
    assert "No such command 'trian'" in run("groups", "trian", code=2).stderr


def test_no_model_at_all_is_no_success() -> None:
    table = visits(300, 0).append_column("visit", pa.array(range(300)))
    pq.write_table(table, "single.parquet")
    found = run(
        "groups",
        "train",
        "single.parquet",
        "--by",
        "visit",
        "--label",
        "clicked",
        "--features",
        "age",
        "--out",
        "none",
        code=1,
    )
    assert "no group has a model" in found.stdout + found.stderr
