"""Measuring a model: figures equal to NumPy's, whatever the data lie in and whatever the label is called."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from pyarrow import parquet

import penstock
from penstock.batch import Batch
from penstock.blocks.memory import TableSource
from penstock.config import Config
from penstock.errors import ColumnError, DataError, LabelError, UsageError
from penstock.evaluation import evaluate
from penstock.memory_learner import linear_job
from penstock.training import Columns
from tests import kinds

X, Y = kinds.rows(700)
X[:, 0] = np.random.default_rng(0).standard_normal(700) + Y


def learn(kind):
    return linear_job(TableSource.of(kinds.table(X, Y)), Config(model=kind, epochs=3), Columns(label="label")).run()


@pytest.mark.parametrize("kind", ["logistic", "svm", "linear", "softmax"])
def test_figures_equal_numpys(kind):
    model = learn(kind)
    found = evaluate(model, TableSource.of(kinds.table(X, Y), block_size=1000), memory="40kB")
    scores, sign = model.scores(Batch(X)).astype(np.float64), 2.0 * Y - 1
    assert found["rows"] == 700
    if kind == "linear":
        residual = ((Y - scores) ** 2).sum()
        assert found["r2"] == pytest.approx(1 - residual / ((Y - Y.mean()) ** 2).sum(), rel=1e-4)
        assert found["loss"] == pytest.approx(residual / 2 / 700, rel=1e-4)
        return
    assert found["accuracy"] == pytest.approx(np.mean(model.decide(scores) == Y))
    losses = {
        "logistic": np.log1p(np.exp(-sign * scores)) if scores.ndim == 1 else None,
        "svm": np.maximum(0, 1 - sign * scores) if scores.ndim == 1 else None,
        "softmax": np.log(np.exp(scores).sum(axis=-1)) - scores[np.arange(700), Y] if scores.ndim == 2 else None,
    }
    assert found["loss"] == pytest.approx(losses[kind].mean(), rel=1e-4)


@pytest.mark.parametrize("stored", kinds.KINDS)
def test_every_kind_of_data_is_measured_alike(stored, tmp_path):
    with kinds.store(stored, tmp_path, X, Y) as source:
        recipe = kinds.recipe(source)
        model = linear_job(source, Config(epochs=2), Columns(label=recipe.label)).run()
        large, small = (evaluate(model, source, memory=m) for m in ("10MB", kinds.small_memory(source, recipe, "none")))
    assert large["rows"] == small["rows"] == 700
    assert large["accuracy"] == small["accuracy"]
    assert large["loss"] == pytest.approx(small["loss"], rel=1e-6)


def test_the_label_may_have_another_name():
    model = learn("logistic")
    renamed = TableSource.of(kinds.table(X, Y).rename_columns(["f0", "f1", "f2", "f3", "clicked"]))
    assert evaluate(model, renamed, label="clicked") == evaluate(model, TableSource.of(kinds.table(X, Y)))
    with pytest.raises(ColumnError, match=r"has no label column 'label'; it has: .*clicked"):
        evaluate(model, renamed)


def test_what_cannot_be_measured_is_refused():
    model = learn("logistic")
    with pytest.raises(LabelError, match=r"'label' has the class 7 in row 500, which is not one of the classes seen"):
        evaluate(model, TableSource.of(kinds.table(X, np.where(np.arange(700) == 500, 7, Y))))
    with pytest.raises(LabelError, match=r"'other' has the class 7"):
        evaluate(model, TableSource.of(kinds.table(X, Y).append_column("other", pa.array([7] * 700))), label="other")
    with pytest.raises(UsageError, match="is a feature that the model predicts from"):
        evaluate(model, TableSource.of(kinds.table(X, Y)), label=model.recipe.parts[0].columns[0])
    with pytest.raises(DataError, match="has no row with a label 'label' to measure the model on"):
        evaluate(model, TableSource.of(kinds.table(X[:0], Y[:0])))


def test_text_labels_that_are_missing_in_every_row_of_a_text_file_are_told_as_such(tmp_path):
    classes = np.where(Y > 0, "yes", "no")
    penstock.LogisticRegression(epochs=2).fit(kinds.table(X, classes), y="label").save(tmp_path / "m.penstock")
    text = tmp_path / "rows.csv"
    text.write_text("f0,f1,f2,f3,label\n" + "1,2,3,4,\n" * 30)  # a column without values is taken for one of numbers
    model = penstock.load(tmp_path / "m.penstock")
    with pytest.raises(DataError, match="has no row with a label 'label'"):
        model.evaluate(str(text))
    text.write_text("f0,f1,f2,f3,label\n1,2,3,4,\n1,2,3,4,7\n")
    with pytest.raises(LabelError, match=r"'label' has the class 7.0 in row 1"):
        model.evaluate(str(text))


def test_measuring_takes_a_block_where_the_memory_of_training_is_less():
    model = learn("logistic")
    assert evaluate(model, TableSource.of(kinds.table(X, Y)), memory="1kB")["rows"] == 700


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_share_of_memory_is_of_the_training_data(tmp_path, suffix):
    rng = np.random.default_rng(0)
    for name, rows in (("train", 100_000), ("test", 60)):
        x = rng.random(rows)
        table = pa.table({"x": x, "y": (x > 0.5).astype(int)})
        if suffix == ".csv":
            pa.csv.write_csv(table, tmp_path / f"{name}.csv")
        else:
            parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=500)
    model = penstock.LogisticRegression(memory="50%", epochs=1).fit(str(tmp_path / f"train{suffix}"), y="y")
    assert model.score(str(tmp_path / f"test{suffix}")) > 0.8
    model.save(tmp_path / "m.penstock")
    assert penstock.load(tmp_path / "m.penstock").evaluate(str(tmp_path / f"test{suffix}"))["rows"] == 60
