"""What a first trial stumbled over: numbers beside hashed columns, numbers as classes, refused fits, useless models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app
from penstock.config import Config
from penstock.errors import ColumnError, LabelError, SourceNotFoundError, UsageError
from penstock.metric_names import useless_reason


def sales(rows: int = 3000) -> pa.Table:
    """Numbers far from 0 beside their spread, and a column of text."""
    rng = np.random.default_rng(0)
    city, effect = rng.integers(0, 4, rows), np.array([1.0, -1.0, 0.5, 0.0])
    year, price = 2010.0 + rng.integers(-3, 4, rows), 1e5 + 2e3 * rng.normal(size=rows)
    score = 0.8 * (year - 2010) + 1.5 * (price - 1e5) / 2e3 + effect[city]
    y = (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
    return pa.table({"year": year, "price": price, "city": pa.array([f"c{c}" for c in city]), "y": y})


@pytest.mark.parametrize("options", [{}, {"solver": "sgd"}])
def test_numbers_beside_hashed_columns_are_centered(tmp_path: Path, options: dict[str, Any]) -> None:
    table = sales()
    pq.write_table(table, tmp_path / "a.parquet")
    model = penstock.LogisticRegression(**options).fit(tmp_path / "a.parquet", y="y", hash=["city:2^6"])
    codes = table["city"].dictionary_encode().combine_chunks().indices.to_numpy()
    x = np.column_stack([table["year"], table["price"], np.eye(4)[codes]])
    dense = penstock.LogisticRegression().fit(x, table["y"].to_numpy())
    assert model.evaluate(tmp_path / "a.parquet")["accuracy"] == pytest.approx(
        dense.score(x, table["y"].to_numpy()), abs=0.01
    )
    np.testing.assert_allclose(model.coef_[0][:2], dense.coef_[0][:2], rtol=0.1)


def test_many_different_values_are_not_taken_for_classes() -> None:
    table = pa.table({"x": np.arange(300.0), "y": np.arange(300) / 7})
    with pytest.raises(UsageError, match="'y' has 300 different values, which are hardly classes") as caught:
        penstock.LogisticRegression().fit(table, y="y")
    assert "model='linear'" in str(caught.value)
    texts = table.set_column(1, "y", pa.array([f"id {n}" for n in range(300)]))
    with pytest.raises(UsageError, match=r"'y' has 300 different values.*name another label") as caught:
        penstock.LogisticRegression().fit(texts, y="y")
    assert "linear" not in str(caught.value)


def test_a_label_that_holds_infinity_is_called_that(tmp_path) -> None:
    for value in (np.inf, -np.inf):
        table = pa.table({"x": np.arange(40.0), "y": np.where(np.arange(40) == 7, value, np.arange(40) % 2)})
        with pytest.raises(LabelError, match=rf"'y' holds {value}, .*remove such rows"):
            penstock.LogisticRegression().fit(table, y="y")


def test_an_empty_folder_says_what_to_name(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceNotFoundError, match=r"empty holds no file.*; name the folder or the file"):
        penstock.open(tmp_path / "empty")


def test_a_refused_fit_leaves_the_model_as_it_was() -> None:
    x = np.random.default_rng(0).normal(size=(100, 2))
    model = penstock.LogisticRegression().fit(x, x[:, 0] > 0)
    coef = model.coef_.copy()
    with pytest.raises(ColumnError):
        model.fit(pa.table({"a": [1.0], "b": [0]}), y="nope")
    np.testing.assert_array_equal(model.coef_, coef)
    assert model.predict(x).shape == (100,)


@pytest.mark.parametrize("option", ["epochs", "seed", "l2", "batch_size"])
def test_a_number_that_is_text_is_refused_by_name(option: str) -> None:
    with pytest.raises(UsageError, match=f"{option}='3' is not a number"):
        Config(**{option: "3"})


def test_an_accuracy_above_the_largest_class_by_chance_is_useless() -> None:
    figures = {"test_confusion_matrix": [[260, 240], [236, 264]], "test_accuracy": 0.524, "test_rows": 1000}
    assert useless_reason(figures | {"test_log_loss": 0.70}) is not None
    assert useless_reason(figures | {"test_log_loss": 0.68}) is None
    assert useless_reason(figures | {"test_log_loss": 0.70, "test_accuracy": 0.60}) is None


def test_rare_texts_that_decide_the_label_are_learned(tmp_path: Path) -> None:
    """Invoices of six rows each, all of one class: a penalty as that of few features would keep them near zero."""
    rng = np.random.default_rng(0)
    invoice = np.arange(66_000) % 11_000
    paid = (rng.random(11_000) < 0.5)[invoice] ^ (rng.random(66_000) < 0.02)
    table = pa.table({"invoice": [f"i{n}" for n in invoice], "x": rng.normal(size=66_000), "paid": paid.astype(int)})
    pq.write_table(table, tmp_path / "a.parquet")
    model = penstock.LogisticRegression(seed=1).fit(tmp_path / "a.parquet", y="paid", test_share=0.2)
    assert model.model_.recipe.sparse
    assert model.model_.metrics["test_log_loss"] < 0.36  # 0.40 by 1 / rows


def test_whole_numbers_of_text_files_are_classes_as_they_are_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    lines = "".join(f"{value},{3 + int(value > 0)}\n" for value in x)
    (tmp_path / "a.csv").write_text("x,y\n" + lines)
    model = penstock.LogisticRegression(epochs=2).fit(tmp_path / "a.csv", y="y")
    assert model.classes_.dtype == np.int64
    assert model.predict(tmp_path / "a.csv").dtype == np.int64
    (tmp_path / "b.csv").write_text("x,y\n" + lines.replace(",4", ",3.5"))
    assert penstock.LogisticRegression(epochs=2).fit(tmp_path / "b.csv", y="y").classes_.tolist() == [3.0, 3.5]


def test_that_a_saved_model_learned_from_the_held_out_rows_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(sales(), "a.parquet")
    told = "measured so, it learned from the held-out rows too: 3,000 rows in all"
    done = CliRunner().invoke(app, ["train", "a.parquet", "--label", "y", "--out", "m.penstock"])
    assert told in done.stdout
    assert told in CliRunner().invoke(app, ["show", "m.penstock"]).stdout
    kept = CliRunner().invoke(app, ["train", "a.parquet", "--label", "y", "--validation", "0.2", "--out", "n.penstock"])
    assert kept.exit_code == 0
    assert "measured so" not in kept.stdout


def test_a_feature_that_is_the_label_is_suspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = sales()
    pq.write_table(table.append_column("copy", table["y"]), "a.parquet")
    pq.write_table(table, "b.parquet")
    suspicion = "see whether a feature tells the label itself (penstock show MODEL)"
    line = ["train", "a.parquet", "--label", "y", "--out", "m.penstock"]
    assert suspicion in " ".join(CliRunner().invoke(app, line).stderr.split())
    line[1] = "b.parquet"
    assert suspicion not in " ".join(CliRunner().invoke(app, line).stderr.split())


def test_a_checkpoint_of_more_epochs_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pq.write_table(pa.table({"x": rng.normal(size=2000), "y": rng.integers(0, 2, 2000)}), "a.parquet")
    line = ["train", "a.parquet", "--label", "y", "--solver", "sgd", "--learning-rate", "5", "--no-average"]
    assert CliRunner().invoke(app, [*line, "--epochs", "3"]).exit_code == 1  # useless, so that its checkpoint stays
    again = CliRunner().invoke(app, [*line, "--epochs", "2", "--resume", "--keep-anyway"])
    assert again.exit_code == 0, again.stderr
    assert "the checkpoint has 3 epochs, more than --epochs 2" in " ".join(again.stderr.split())
    assert CliRunner().invoke(app, [*line, "--epochs", "0"]).exit_code == 2
