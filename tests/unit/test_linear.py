"""A trained model: scores, decisions, files, and predictions that are streamed."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from penstock.batch import Batch
from penstock.blocks.memory import ArraySource, TableSource
from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.errors import ColumnError, CorruptFileError, FeatureError, WriteError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.linear import LinearModel, log_probabilities, probabilities
from penstock.memory_learner import linear_job
from penstock.model import write_predictions
from penstock.training import Columns
from tests import kinds

MODELS = ("logistic", "svm", "linear", "softmax")


def learn(kind, source, **options):
    return linear_job(source, Config(model=kind, epochs=4, **options), Columns(label="label")).run()


@pytest.fixture(scope="module")
def data():
    x, y = kinds.rows(900)
    x[:, 0] = np.random.default_rng(0).standard_normal(900)
    x[:, 0] += 3 * y
    return x, y


@pytest.fixture(scope="module")
def models(data):
    return {kind: learn(kind, TableSource.of(kinds.table(*data))) for kind in MODELS}


@pytest.mark.parametrize("kind", MODELS)
def test_scores_are_those_of_the_weights(models, data, kind):
    x, y = data
    model = models[kind]
    scores = model.scores(Batch(x))
    expected = x @ model.weights.coef.T + model.weights.intercept
    np.testing.assert_allclose(scores, expected if kind == "softmax" else expected[:, 0], rtol=1e-4, atol=1e-4)
    decided, chances = model.decide(scores), model.probabilities(scores)
    if kind == "linear":
        np.testing.assert_array_equal(decided, scores)
        assert model.classes is None
    else:
        assert np.mean(decided == y) > 0.9
        assert model.classes.tolist() == [0, 1]
    if kind in ("logistic", "softmax"):
        np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_array_equal(chances.argmax(axis=1), decided)
    else:
        assert chances is None


def test_probabilities_of_extreme_scores_are_finite(models):
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert models["logistic"].probabilities(np.array([-1e30, 0, 1e30], np.float32)).tolist() == [
            [1, 0], [0.5, 0.5], [0, 1],
        ]  # fmt: skip
        assert models["softmax"].probabilities(np.array([[500.0, -500.0]], np.float32)).tolist() == [[1, 0]]


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_is_the_same_model(models, data, kind, tmp_path):
    model = models[kind]
    model.save(tmp_path / "m")
    again = LinearModel.load(tmp_path / "m")
    np.testing.assert_array_equal(again.scores(Batch(data[0])), model.scores(Batch(data[0])))
    for name in ("kind", "config", "fingerprint", "metrics"):
        assert getattr(again, name) == getattr(model, name)
    assert list(again.history) == list(model.history)
    assert again.recipe.names == ("f0", "f1", "f2", "f3")
    assert again.recipe.to_dict() == model.recipe.to_dict()


@pytest.mark.parametrize("stored", ["packed", "arrow", "parquet", "csv", "packed-sparse", "libsvm"])
@pytest.mark.parametrize("kind", MODELS)
def test_streamed_predictions_equal_those_of_arrays(data, kind, stored, tmp_path):
    x, y = data
    with kinds.store(stored, tmp_path, x, y) as source:
        model = learn(kind, source)
        heard = []
        keep = [] if stored == "npy" else ["label"]
        count = write_predictions(model, source, tmp_path / "p.parquet", keep=keep, stream=Stream([heard.append]))
        told = parquet.read_table(tmp_path / "p.parquet")
        rows = kinds.sparse(x).toarray() if model.recipe.sparse else x
        scores = model.scores(Batch(np.ascontiguousarray(rows)))
        if kind == "linear":
            np.testing.assert_allclose(told["prediction"], scores, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(told["prediction"], model.decide(scores))
        if kind in ("logistic", "softmax"):
            assert told.column_names[-2:] == [f"probability_{c}" for c in model.classes.tolist()]
            np.testing.assert_allclose(told[told.column_names[-1]], model.probabilities(scores)[:, 1], atol=1e-5)
        np.testing.assert_array_equal(told["label"], y)
        np.testing.assert_array_equal(np.concatenate(list(model.block_scores(source))).shape[0], count)
    assert count == len(told) == len(x)
    assert isinstance(heard[0], Started)
    assert isinstance(heard[-1], Finished)
    assert sum(e.amount for e in heard if isinstance(e, Advanced)) == count


def test_columns_to_keep_must_be_there(models, data):
    source = TableSource.of(kinds.table(*data))
    with pytest.raises(ColumnError, match=r"has no column 'lable'.*did you mean 'label'"):
        list(models["svm"].predictions(source, keep=["lable"]))


def test_data_without_a_label_can_be_scored(models, data, tmp_path):
    table = kinds.table(*data).drop_columns(["label"])
    assert write_predictions(models["svm"], TableSource.of(table), tmp_path / "p.parquet") == len(table)
    with pytest.raises(ColumnError, match="has no feature column 'f2'"):
        list(models["svm"].predictions(TableSource.of(table.drop_columns(["f2"]))))


@pytest.mark.parametrize("stored", ["packed", "parquet", "csv", "libsvm"])
def test_what_cannot_be_scored_is_named_and_no_file_is_left(data, stored, tmp_path):
    x, y = data
    folder = tmp_path / "data"
    folder.mkdir()
    with kinds.store(stored, folder, x, y) as source:
        model = learn("svm", source)
    bad = x.copy()
    bad[700, 1] = np.inf
    os.remove(source.name)
    with (
        kinds.store(stored, folder, bad, y) as source,
        pytest.raises(FeatureError, match=r"'(f1|feature 1)' is not a finite number in row 700"),
    ):
        write_predictions(model, source, tmp_path / "p.parquet")
    assert os.listdir(tmp_path) == ["data"]


def test_a_source_that_fails_keeps_its_error_and_leaves_no_file(models, data, tmp_path):
    class Broken(TableSource):
        def read(self, block, columns=None):
            if block == 3:
                raise CorruptFileError("block 3 is damaged")
            return super().read(block, columns)

    source = Broken.of(kinds.table(*data), block_size=500)
    with pytest.raises(CorruptFileError, match="block 3 is damaged"):
        write_predictions(models["linear"], source, tmp_path / "p.parquet")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(models, data, tmp_path):
    with pytest.raises(WriteError, match="missing"):
        write_predictions(models["svm"], ArraySource(data[0]), tmp_path / "missing" / "p.parquet")


def test_no_rows_make_an_empty_file(models, tmp_path):
    empty = TableSource.of(kinds.table(np.empty((0, 4), np.float32), np.empty(0, np.int8)))
    assert write_predictions(models["svm"], empty, tmp_path / "p.parquet") == 0
    assert parquet.read_table(tmp_path / "p.parquet").num_rows == 0


def test_text_predictions_are_text(data, tmp_path):
    x, y = data
    table = kinds.table(x, y).set_column(4, "label", pa.array(np.where(y, "yes", "no").tolist()))
    model = learn("logistic", TableSource.of(table))
    write_predictions(model, TableSource.of(table), tmp_path / "p.parquet")
    told = parquet.read_table(tmp_path / "p.parquet")
    assert told.schema.field("prediction").type == pa.string()
    assert told.column_names == ["prediction", "probability_no", "probability_yes"]


def test_a_model_of_an_open_file_needs_only_its_own_file(data, tmp_path):
    with kinds.store("packed", tmp_path, *data) as source:
        learn("svm", source).save(tmp_path / "m")
    model = LinearModel.load(tmp_path / "m")
    with open_source(tmp_path / "packed.arrow") as source:
        told = np.concatenate([b.column("prediction").to_numpy() for b in model.predictions(source)])
    assert np.mean(told == data[1]) > 0.9


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_logarithms_of_probabilities(kind):
    scores = np.array([[-3.0], [0.0], [2.0]], np.float32)
    scores = np.hstack([-scores / 2, scores / 2]) if kind == "softmax" else scores[:, 0]
    chances = probabilities(kind, scores)
    np.testing.assert_allclose(log_probabilities(kind, scores), np.log(chances), rtol=1e-5)
    far = np.full_like(scores, 900.0)
    if kind == "softmax":
        far[:, 0] = -900.0
        np.testing.assert_allclose(log_probabilities(kind, far)[:, 0], -1800.0)
    else:
        np.testing.assert_allclose(log_probabilities(kind, far)[:, 0], -900.0)
    assert log_probabilities("svm", scores) is None
