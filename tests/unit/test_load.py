"""`penstock.load` opens whatever training left: a file as before, or a model's directory by its kind."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock import bigmodel
from penstock.errors import ModelFileError

LINEAR = (bigmodel.LogisticRegression, bigmodel.LinearSVM, bigmodel.LinearRegression)


@pytest.fixture(scope="module")
def rows():
    chance = np.random.default_rng(0)
    indices = chance.integers(0, 60, (200, 4)).astype(np.uint64) * 10**9
    return pa.table(
        {
            "indices": list(indices),
            "values": list(np.ones((200, 4), np.float32)),
            "y": (indices < 2 * 10**10).sum(axis=1) > 1,
        }
    )


@pytest.fixture
def table(rows, request):
    return rows.set_column(2, "y", rows["y"].cast(pa.float32())) if request.param else rows


@pytest.mark.parametrize(
    ("kind", "table"), [(kind, kind is bigmodel.LinearRegression) for kind in LINEAR], indirect=["table"]
)
def test_a_directory_gives_the_estimator_of_its_kind(tmp_path, kind, table):
    options = {"epochs": 2, "learning_rate": 0.03, "l2": 1e-4, "optimizer": "adagrad", "threads": 2, "seed": 7}
    with closing(kind(tmp_path / "m", memory="20MB", **options).fit(table, y="y")) as trained:
        expected, history = trained.predict(table), trained.history_
    with closing(penstock.load(tmp_path / "m", memory="5MB")) as model:
        assert type(model) is kind
        np.testing.assert_array_equal(model.predict(table), expected)
        assert model.history_ == history
        params = model.get_params()
        assert {name: params[name] for name in options} == options
        assert (params["memory"], params["model_dir"]) == ("5MB", tmp_path / "m")


def test_a_loaded_directory_can_be_trained_on(tmp_path, rows):
    bigmodel.LogisticRegression(tmp_path / "m", memory="1GB", epochs=1, decay=0.5).fit(rows, y="y").close()
    with closing(penstock.load(str(tmp_path / "m"))) as model:
        assert model.memory == "1GB"
        model.set_params(epochs=3).fit(rows, y="y", resume=True)
        assert [row["epoch"] for row in model.history_] == [1, 2, 3]


def test_a_directory_of_ratings_gives_a_factorisation(tmp_path):
    rated = pa.table({"user": ["ann", "ann", "bob"], "item": [1, 2, 1], "rating": [5.0, 1.0, 4.0]})
    trained = bigmodel.MatrixFactorization(model_dir=tmp_path, rank=3, memory="1MB", epochs=4).fit(rated)
    for options, memory in (({}, "1MB"), ({"memory": "2MB"}, "2MB")):
        model = penstock.load(tmp_path, **options)
        assert type(model) is bigmodel.MatrixFactorization
        assert (model.rank, model.epochs, model.memory) == (3, 4, memory)
        np.testing.assert_array_equal(model.predict(rated), trained.predict(rated))


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"there is no model in .*: it has no state\.penstock; name the dir"):
        penstock.load(tmp_path)


def test_memory_is_also_for_a_file(tmp_path, rows):
    x, y = np.arange(20.0)[:, None] / 20, np.arange(20) > 9
    penstock.LinearSVM(epochs=3, memory="7MB").fit(x, y).save(tmp_path / "svm.penstock")
    assert penstock.load(tmp_path / "svm.penstock").memory == "7MB"
    model = penstock.load(tmp_path / "svm.penstock", memory="9MB")
    assert (type(model), model.memory, model.epochs) == (penstock.LinearSVM, "9MB", 3)
