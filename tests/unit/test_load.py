"""`penstock.load` opens whatever training left: a file as before, or a model's directory by its kind."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock import bigmodel
from penstock.errors import ModelFileError, UnknownOptionError, UsageError
from penstock.groups import Boosting, GroupBy
from penstock.groups.registry import Index, Outcome, Writer
from penstock.model_kinds import open_model

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


def test_a_folder_of_groups_gives_its_models_and_is_no_single_model(tmp_path):
    index = Index("linear", {"parts": []}, ("country",), ({},))
    with Writer(tmp_path / "models", index, keys=pa.schema({"country": pa.string()})) as writer:
        writer.add([Outcome(group=0, key=("FR",), rows=10, loss=[0.5], weights=np.ones((3, 1), np.float32))])
        writer.finish()
    assert penstock.load(tmp_path / "models").groups == ["FR"]
    told = "is a folder of models, one for each group.*penstock predict.*penstock evaluate.*best"
    with pytest.raises(ModelFileError, match=told):
        bigmodel.LogisticRegression.load(tmp_path / "models")


def test_an_option_of_another_kind_is_refused(tmp_path):
    penstock.LinearSVM().fit(np.arange(20.0)[:, None], np.arange(20) > 9).save(tmp_path / "svm.penstock")
    with pytest.raises(
        UsageError, match=r"unseen is for folders of groups; .*svm\.penstock is one of the linear models"
    ):
        open_model(tmp_path / "svm.penstock", unseen="largest")
    with pytest.raises(UsageError, match="model is for folders of groups and torch modules"):
        penstock.load(tmp_path / "svm.penstock", model=object())
    with pytest.raises(UnknownOptionError, match=r"kind='line' .*linear"):
        open_model(tmp_path / "svm.penstock", kind="line")
    with pytest.raises(ModelFileError, match="no models of groups"):
        open_model(tmp_path / "svm.penstock", kind="groups")


def test_memory_is_also_for_a_file(tmp_path, rows):
    x, y = np.arange(20.0)[:, None] / 20, np.arange(20) > 9
    penstock.LinearSVM(epochs=3, memory="7MB").fit(x, y).save(tmp_path / "svm.penstock")
    assert penstock.load(tmp_path / "svm.penstock").memory == "7MB"
    model = penstock.load(tmp_path / "svm.penstock", memory="9MB")
    assert (type(model), model.memory, model.epochs) == (penstock.LinearSVM, "9MB", 3)


def test_damaged_and_foreign_trees_are_refused(tmp_path):
    table = pa.table({"city": ["A", "B"] * 60, "x": np.arange(120.0), "y": ["a", "b", "b", "a"] * 30})
    path = tmp_path / "a.txt"
    GroupBy(table, by="city").fit(Boosting(rounds=2), y="y", workers=1).best("A").save(path)
    text = path.read_text()
    assert open_model(path).booster.num_trees() == 2
    foreign = text[: text.index("\npenstock:")]
    for damaged in (
        text.replace("leaf_value=", "leaf_value=1", 1),
        text.replace('"kind": "', '"kind": "x', 1),
        foreign,
    ):
        path.write_text(damaged)
        with pytest.raises(ModelFileError, match="is not a whole model of boosted trees"):
            penstock.load(path)


def test_a_copy_does_not_go_over_another_model(tmp_path):
    rated = pa.table({"user": ["ann", "bob"], "item": [1, 2], "rating": [5.0, 1.0]})
    model = bigmodel.MatrixFactorization(tmp_path / "m", rank=2, memory="1MB", epochs=1).fit(rated).model_
    model.save(tmp_path / "copy")
    model.save(tmp_path / "m")  # where it is already
    with pytest.raises(UsageError, match="holds a model already"):
        model.save(tmp_path / "copy")
