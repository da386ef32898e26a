"""``penstock show``: coefficients by name, in the units of the data, the most important first."""

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


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a label that hangs most on ``large``, whose coefficient is the smaller one because of its unit."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    large, small = 5000 + 1000 * rng.normal(size=800), rng.normal(size=800)
    table = pa.table({"small": small, "large": large, "y": 0.003 * large + small + 2})
    pq.write_table(table, "data.parquet")
    run("train", "data.parquet", "--label", "y", "--model", "linear", "--standardize", "--out", "m.penstock")


def test_coefficients_in_original_units_sorted_by_what_a_spread_adds() -> None:
    found = json.loads(run("show", "m.penstock", "--json").stdout)
    first, second = found["coefficients"]
    assert (first["feature"], second["feature"]) == ("large", "small")
    assert first["coefficient"] == pytest.approx(0.003, rel=0.02)
    assert second["coefficient"] == pytest.approx(1.0, rel=0.02)
    assert found["intercept"][0] == pytest.approx(2.0, abs=0.3)
    assert first["mean"] == pytest.approx(5000, rel=0.05)
    assert first["spread"] == pytest.approx(1000, rel=0.1)
    assert first["standardized"] == pytest.approx(first["coefficient"] * first["spread"])
    assert {"held_out_rmse", "held_out_mae"} <= set(found["metrics"])


def test_people_get_a_table() -> None:
    lines = run("show", "m.penstock").stdout.splitlines()
    heads = next(number for number, line in enumerate(lines) if line.startswith("feature"))
    assert lines[heads].split() == ["feature", "coefficient", "per", "spread", "mean", "spread"]
    assert [line.split()[0] for line in lines[heads + 1 : heads + 4]] == ["intercept", "large", "small"]
    assert "and 1 smaller" in run("show", "m.penstock", "--lines", "1").stdout


def test_raw_features_and_many_classes() -> None:
    rows = pq.read_table("data.parquet")
    kind = pa.array(np.digitize(rows["small"].to_numpy(), [-0.5, 0.5]))
    pq.write_table(rows.append_column("kind", kind), "kinds.parquet")
    options = ("--model", "softmax", "--no-standardize", "--features", "small", "--epochs", "2", "--out", "k")
    run("train", "kinds.parquet", "--label", "kind", *options)
    found = json.loads(run("show", "k", "--json").stdout)
    sizes = [abs(each["coefficient"]) for each in found["coefficients"]]
    assert sorted(each["class"] for each in found["coefficients"]) == [0, 1, 2]
    assert sizes == sorted(sizes, reverse=True)
    assert found["coefficients"][0]["standardized"] is None
    assert "small (0)" in run("show", "k").stdout


def test_the_scaling_is_kept_in_the_file() -> None:
    model = penstock.load("m.penstock").model_
    np.testing.assert_allclose(model.scaling.shift[1], 5000, rtol=0.05)
    np.testing.assert_allclose(1 / model.scaling.scale[1], 1000, rtol=0.1)


def test_what_is_no_model_is_refused() -> None:
    Path("folder").mkdir()
    assert "there is no model in folder: it has no state.penstock" in run("show", "folder", code=1).stderr
    assert "no model file at gone" in run("show", "gone", code=1).stderr
    assert "not a model" in run("show", "data.parquet", code=1).stderr
