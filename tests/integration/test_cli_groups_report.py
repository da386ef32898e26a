"""The page about the models of groups, and the forecast before there are any, at the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.groups import GroupModels
from penstock.groups.cost import APPROACHES
from penstock.report import GroupPage
from penstock.sealed import read_note, write_note

HOSTILE = "<script>alert(1)</script>"
WHERE = ("visits.parquet", "--by", "country", "--label", "clicked")
TRAIN = ("groups", "train", *WHERE, "--workers", "1", "--try", "l2=1,0.01")
EXPLAIN = ("groups", "explain", *WHERE)


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def as_json(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*args, "--json").stdout)
    return found


def visits(rows: int = 1_200) -> pa.Table:
    """Make rows of three groups, of which NO has one class; and of two with names not to be trusted."""
    chance = np.random.default_rng(0)
    country = chance.choice(["FR", "DE", "NO", "日本/東京", HOSTILE], rows, p=[0.5, 0.2, 0.1, 0.1, 0.1])
    x = chance.normal(size=(rows, 2)).astype(np.float32)
    clicked = (x[:, 0] + 0.3 * chance.normal(size=rows) > 0) | (country == "NO")
    return pa.table({"country": country, "age": x[:, 0], "hour": x[:, 1], "clicked": clicked})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, models, rows by group and the page that training wrote."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pq.write_table(visits(), "visits.parquet", row_group_size=200)
        run(*TRAIN, "--rows", "rows", "--report", "page.html")
    return folder


@pytest.fixture(autouse=True)
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)


def test_train_writes_the_page() -> None:
    text = Path("page.html").read_text(encoding="utf-8")
    for told in ("<h1>models</h1>", "visits.parquet", "Who worked when", "worker 0", "What was chosen", "What failed",
                 "only one class among its rows", "日本%2F東京"):  # fmt: skip
        assert told in text
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_report_of_a_folder() -> None:
    told = as_json("groups", "report", "models", "--out", "again.html")
    assert told["out"] == "again.html"
    assert told["finished"] is True
    assert told["report_bytes"] == Path("again.html").stat().st_size < 200_000
    plain = run("groups", "report", "models", "--out", "again.html").stdout
    assert plain.splitlines() == [*told["findings"], "wrote again.html"]
    assert "1 group has no model: only one class among its rows." in plain
    assert Path("again.html").read_text(encoding="utf-8").count("<h1>models</h1>") == 1


def test_page_has_the_numbers_of_the_frame() -> None:
    result = GroupModels.open("models")
    page = GroupPage.of(result)
    assert (page.groups, len(page.configs), len(page.chosen), len(page.modelless)) == (5, 2, 4, 1)
    assert [page.text[at] for at in page.chosen] == result.chosen["text"].to_pylist()
    assert page.config[page.chosen].tolist() == result.chosen["config"].to_pylist()
    assert page.timeline is not None
    assert page.timeline.busy()[0] > 0


def test_unfinished_training_is_told_of(tmp_path: Path) -> None:
    GroupModels.open("models").save(tmp_path / "half")
    index = tmp_path / "half" / "index.json"
    write_note(index, read_note(index) | {"finished": False, "held_out": {}})
    found = run("groups", "report", str(tmp_path / "half"), "--out", str(tmp_path / "page.html"))
    assert "was not finished" in found.stderr
    assert "Training was not finished" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_report_refuses_what_is_not_there() -> None:
    assert "no models of groups" in run("groups", "report", "rows", code=1).stderr
    assert "there is no folder nowhere" in run("groups", "report", "models", "--out", "nowhere/x.html", code=1).stderr
    refused = run(*TRAIN, "--out", "others", "--report", "nowhere/x.html", code=1)
    assert "there is no folder nowhere" in refused.stderr
    assert not Path("others").exists()


@pytest.mark.parametrize(
    ("args", "rows"),
    [
        ((*EXPLAIN, "--try", "l2=1,0.1,0.01"), "visits.parquet"),
        (("groups", "explain", "rows", "--by", "country", "--try", "l2=1,0.1,0.01"), "rows"),
    ],
)
def test_explain_predicts_every_approach(args: tuple[str, ...], rows: str) -> None:
    told = as_json(*args, "--workers", "1,4")
    assert (told["data"], told["rows"], told["groups"], told["by"]) == (rows, 1_200, 5, ["country"])
    assert told["largest_rows"] == visits()["country"].to_pylist().count("FR")
    assert (told["sorting_seconds"] is None) == (rows == "rows")
    assert [(each["workers"], each["approach"]) for each in told["predictions"]] == [
        (count, approach) for count in (1, 4) for approach in APPROACHES
    ]
    for each in told["predictions"]:
        assert each["seconds"] > 0
        assert 0 <= each["idle"] < 1
        assert each["moved"] > 0
        assert each["bound"] <= each["seconds"] * (1 + 1e-9)
    assert told["pilot"]["configs"] == 3
    assert told["pilot"]["together"]["row_config"] > 0
    assert not list(Path().glob("*penstock*"))


def test_explain_for_people() -> None:
    plain = run(*EXPLAIN, "--solver", "sgd", "--epochs", "2", "--workers", "2").stdout
    assert plain.startswith("visits.parquet by country\n  1,200 rows in 5 groups\n")
    for told in ("the largest has", "to sort them will take about", "To train: logistic by sgd, 1 config for each group",
                 "Measured on", "Predicted for 2 workers", "(GTP)", "(MTP)", "(DP)", "(SP)", "at least",
                 "Best on 2 workers: "):  # fmt: skip
        assert told in plain
    marked = [line for line in plain.splitlines() if line.startswith("→")]
    assert len(marked) == 1
    assert re.match(r"→ [a-z-]+ +[\d.]+ m?s +\d+% +[\d.]+ kB", marked[0])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--workers", "0"), "--workers 0 is not a number of workers"),
        (("--workers", "two"), "--workers two is not a number of workers"),
        (("--workers", "5000"), "choose at most 1000"),
        (("--epochs", "0"), "--epochs 0 is too few"),
        (("--try", "l3=1"), "l3"),
        (("--validation", "2"), "not a share of the rows"),
        (("--model", "forest"), "--model forest is not there for groups"),
    ],
)
def test_explain_refuses_what_cannot_be_meant(args: tuple[str, ...], said: str) -> None:
    assert said in run(*EXPLAIN, *args, code=2).stderr
    assert said in json.loads(run(*EXPLAIN, *args, "--json", code=2).stdout)["error"]


def test_explain_wants_a_label_and_groups() -> None:
    assert "--label" in run("groups", "explain", "visits.parquet", "--by", "country", code=2).stderr
    assert (
        "names no column"
        in run("groups", "explain", "visits.parquet", "--by", ",", "--label", "clicked", code=2).stderr
    )
    wrong = run("groups", "explain", "visits.parquet", "--by", "contry", "--label", "clicked", code=1)
    assert "did you mean 'country'" in wrong.stderr
    settled = run("groups", "explain", "rows", "--by", "country", "--exclude", "age", code=2)
    assert "--exclude is not for rows" in settled.stderr


@pytest.mark.parametrize("command", ["report", "explain"])
def test_help_names_every_option(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = run("groups", command, "--help").stdout
    names = (
        ("--out", "--json") if command == "report" else ("--by", "--label", "--workers", "--try", "--grid", "--json")
    )
    assert all(name in text for name in names)
