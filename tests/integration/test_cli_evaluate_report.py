"""``penstock evaluate --report``: a page of its own with curves and coefficients, escaped and well formed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.cli import app


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(700, 2))
    kind = np.digitize(x[:, 0] + rng.normal(size=700), [-0.5, 0.5])
    table = pa.table({"a<b": x[:, 0], "b": x[:, 1], "two": (kind > 1).astype(int), "three": kind, "z": x[:, 0] + 1})
    pq.write_table(table, "data.parquet")


def drawn(label: str, model: str) -> tuple[str, list[str]]:
    """Return the page of a model, and the titles of its drawings."""
    columns = ("--label", label, "--features", "a<b,b")
    run("train", "data.parquet", *columns, "--model", model, "--epochs", "2", "--out", "m")
    found = json.loads(run("evaluate", "m", "data.parquet", "--report", "page.html", "--json").stdout)
    assert found["out"] == "page.html"
    text = Path("page.html").read_text()
    for drawing in re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL):
        ElementTree.fromstring(drawing)
    assert "a&lt;b" in text
    assert "a<b" not in text
    titles = [each for each in ("ROC curve", "Calibration", "Largest coefficients", "Confusion matrix") if each in text]
    return text, titles


def test_two_classes() -> None:
    text, titles = drawn("two", "logistic")
    assert titles == ["ROC curve", "Calibration", "Largest coefficients", "Confusion matrix"]
    assert "Brier score" in text


def test_what_a_model_has_not_is_not_drawn() -> None:
    assert drawn("two", "svm")[1] == ["ROC curve", "Largest coefficients", "Confusion matrix"]
    assert drawn("three", "softmax")[1] == ["Largest coefficients", "Confusion matrix"]
    assert drawn("z", "linear")[1] == ["Largest coefficients"]


def test_what_cannot_be_is_refused_before_rows_are_read() -> None:
    run("train", "data.parquet", "--label", "two", "--epochs", "1", "--out", "m")
    assert "gone" in run("evaluate", "m", "data.parquet", "--report", "gone/p.html", code=1).stderr


def test_a_model_of_another_kind_has_a_page_without_coefficients() -> None:
    table = pq.read_table("data.parquet")
    pq.write_table(table.append_column("side", pa.array(np.arange(700) % 2)), "sides.parquet")
    columns = ("--by", "side", "--label", "two", "--features", "a<b,b")
    run("groups", "train", "sides.parquet", *columns, "--workers", "1", "--no-pooled", "--out", "models")
    run("evaluate", "models", "sides.parquet", "--report", "page.html")
    text = Path("page.html").read_text()
    assert "ROC curve" in text
    assert "Largest coefficients" not in text
