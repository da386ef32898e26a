"""``predict``, ``evaluate`` and ``show`` take models of every kind, and say so where an option is of another kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock import bigmodel
from penstock.cli import app
from penstock.groups import Boosting, GroupBy


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def as_json(*args: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*args, "--json").stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model of some kinds, and their rows."""
    place = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    city = np.array(["A", "B"])[np.arange(400) % 2]
    rows = pa.table({"city": city, "a": x[:, 0], "b": x[:, 1], "y": np.where(x[:, 0] > 0, "yes", "no")})
    pq.write_table(rows, place / "rows.parquet")
    by_city = GroupBy(rows, by="city").fit(Boosting(rounds=4), y="y", workers=1, out=place / "groups")
    by_city.best("A").save(place / "trees.txt")
    indices = rng.integers(0, 60, (400, 4)).astype(np.uint64)
    wide = {"indices": list(indices), "values": list(np.ones((400, 4), np.float32)), "y": indices[:, 0] > 30}
    pq.write_table(pa.table(wide), place / "wide.parquet")
    bigmodel.LogisticRegression(place / "disk", epochs=2).fit(str(place / "wide.parquet"), y="y").close()
    rated = {"user": np.arange(400) % 20, "item": np.arange(400) // 20, "rating": rng.normal(size=400)}
    pq.write_table(pa.table(rated), place / "ratings.parquet")
    bigmodel.MatrixFactorization(place / "factors", rank=2, epochs=2).fit(str(place / "ratings.parquet"))
    return place


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


DATA = {"groups": "rows", "trees.txt": "rows", "disk": "wide", "factors": "ratings"}


@pytest.mark.parametrize("model", DATA)
def test_predict_evaluate_and_show(model: str, tmp_path: Path) -> None:
    data, out = f"{DATA[model]}.parquet", str(tmp_path / "p.parquet")
    done = as_json("predict", model, data, "--out", out)
    assert (done["rows"], done["model_file"]) == (400, model)
    assert pq.read_metadata(out).num_rows == 400
    measured = as_json("evaluate", model, data)
    assert measured["rows"] == 400
    assert {"accuracy", "rmse"} & measured.keys()
    shown = as_json("show", model)
    assert shown["model"] == done["model"] == measured["model"]
    assert shown["label"] == ("rating" if model == "factors" else "y")
    assert "not finished" not in run("show", model).stderr


def test_each_kind_shows_what_it_has() -> None:
    assert {"users": 20, "items": 20, "rank": 2}.items() <= as_json("show", "factors").items()
    assert "20 users and 20 items of rank 2" in run("show", "factors").stdout
    assert as_json("show", "disk")["features"] == 60
    assert "penstock.load('disk').weights([" in run("show", "disk").stdout
    assert as_json("show", "trees.txt")["importances"]["a"] > 0
    assert run("show", "trees.txt", "--lines", "0").stdout.splitlines()[-1].startswith("and ")
    assert as_json("show", "groups")["groups"] == 2


def test_the_commands_of_groups_are_the_same(tmp_path: Path) -> None:
    for command in ("show", "evaluate", "predict"):
        data = () if command == "show" else ("rows.parquet",)
        out = ("--out", str(tmp_path / "p.parquet")) if command == "predict" else ()
        one, other = (as_json(*words, "groups", *data, *out) for words in ((command,), ("groups", command)))
        timed = {"seconds", "peak_memory_bytes"}
        assert {k: v for k, v in one.items() if k not in timed} == {k: v for k, v in other.items() if k not in timed}
        assert one["models"] == "groups"


def test_an_option_of_another_kind_is_refused() -> None:
    assert "--unseen is for folders of groups; disk is one" in run(
        "predict", "disk", "wide.parquet", "--unseen", "null", code=2
    ).stderr.replace("\n", " ")
    assert "--memory is for models on disk; trees.txt is one" in run(
        "predict", "trees.txt", "rows.parquet", "--memory", "1MB", code=2
    ).stderr.replace("\n", " ")
    assert "are for folders of groups, and disk is" in run("show", "disk", "--group", "A", code=2).stderr


def test_a_training_that_was_broken_off_is_told_of(tmp_path: Path) -> None:
    bigmodel.MatrixFactorization.load("factors").model_.save(tmp_path / "m")
    model = bigmodel.MatrixFactorization.load(tmp_path / "m").set_params(epochs=4)

    def stop(event: object) -> None:
        if getattr(event, "epoch", 0) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.fit("ratings.parquet", resume=True, listeners=[stop])
    told = run("show", str(tmp_path / "m")).stderr
    assert "was not finished; go on with it by --resume" in told
