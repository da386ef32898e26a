"""Every kind of model passes the suite that is shipped with the package."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock import bigmodel
from penstock.groups import Boosting, GroupBy, GroupModels
from penstock.model_kinds import KINDS, kind_of, open_model
from penstock.testing.models import ModelContract

rng = np.random.default_rng(5)
X = rng.normal(size=(300, 3)).astype(np.float32)


def vectors(width: int = 3, **label) -> pa.Table:
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.resize(X, (300, width)).ravel()), width)
    return pa.table({"row": np.arange(300), "x": x, **label})


class TestLogistic(ModelContract):
    loaded = penstock.LogisticRegression

    def make(self, folder):
        penstock.LogisticRegression(epochs=3).fit(self.table(), y="y", exclude=["row"]).save(folder / "m")
        return folder / "m"


class TestSvm(ModelContract):
    loaded = penstock.LinearSVM
    feature = "x"

    def table(self):
        return vectors(y=X[:, 0] > 0)

    def make(self, folder):
        penstock.LinearSVM(epochs=3).fit(self.table(), y="y", exclude=["row"]).save(folder / "m")
        return folder / "m"

    def rows_of_other_width(self):
        return vectors(4, y=X[:, 0] > 0)


class TestSoftmax(ModelContract):
    loaded = penstock.SoftmaxRegression

    def table(self):
        table = super().table()
        return table.set_column(3, "y", pa.array(np.digitize(table["a"], [-0.5, 0.5])))

    def make(self, folder):
        penstock.SoftmaxRegression(epochs=3).fit(self.table(), y="y", exclude=["row"]).save(folder / "m")
        return folder / "m"


class TestLinear(ModelContract):
    loaded = penstock.LinearRegression

    def table(self):
        table = super().table()
        return table.set_column(3, "y", pa.array(3.0 + table["a"].to_numpy()))

    def make(self, folder):
        penstock.LinearRegression().fit(self.table(), y="y", exclude=["row"]).save(folder / "m")
        return folder / "m"


class OnDisk(ModelContract):
    feature = "indices"

    def table(self):
        indices = np.random.default_rng(0).integers(0, 60, (300, 4)).astype(np.uint64) * 10**9
        return pa.table(
            {
                "row": np.arange(300),
                "indices": list(indices),
                "values": list(np.ones((300, 4), np.float32)),
                "y": self.label(indices),
            }
        )

    def make(self, folder):
        with self.loaded(folder / "m", memory="20MB", epochs=3, threads=1) as model:
            model.fit(self.table(), y="y", exclude=["row"])
        return folder / "m"


class TestLogisticOnDisk(OnDisk):
    loaded = bigmodel.LogisticRegression

    def label(self, indices):
        return (indices < 2 * 10**10).sum(axis=1) > 1


class TestLinearOnDisk(OnDisk):
    loaded = bigmodel.LinearRegression

    def label(self, indices):
        return (indices < 2 * 10**10).sum(axis=1).astype(np.float64)


class TestFactors(ModelContract):
    loaded = bigmodel.MatrixFactorization
    feature = "item"

    def table(self):
        user, item = np.divmod(np.arange(300), 15)
        rating = 3 + np.sin(user) + np.cos(item)
        return pa.table({"row": np.arange(300), "user": [f"u{n}" for n in user], "item": item, "rating": rating})

    def make(self, folder):
        bigmodel.MatrixFactorization(folder / "m", rank=2, memory="1MB", epochs=3).fit(self.table())
        return folder / "m"


class Groups(ModelContract):
    """Models of three groups, one of which has no model since it has but one class."""

    feature = "x"

    def table(self, width=3):
        city = np.array(["A", "B", "C"])[np.arange(300) % 3]
        return vectors(width, y=np.where((city == "C") | (X[:, 0] > 0), "yes", "no"), city=city)

    def rows_of_other_width(self):
        return self.table(4)

    def trainable(self):
        return penstock.LogisticRegression()

    def fit(self, folder):
        table = self.table()
        groups = GroupBy(table, by="city", exclude=["row"])
        return groups.fit(self.trainable(), y="y", workers=1, out=folder / "models")

    def make(self, folder):
        self.fit(folder)
        return folder / "models"


class TestGroups(Groups):
    pass


class TestGroupsByKey(Groups):
    feature = "city"


class TestGroupsOfTrees(Groups):
    def trainable(self):
        pytest.importorskip("lightgbm")
        return Boosting(rounds=5)


class TestTrees(TestGroupsOfTrees):
    def make(self, folder):
        self.fit(folder).best("A").save(folder / "a.txt")
        return folder / "a.txt"


def torch_model():
    nn = pytest.importorskip("torch").nn
    from penstock.torch import TorchModel

    optimizer = pytest.importorskip("torch").optim.SGD
    return TorchModel(
        lambda config: nn.Linear(3, 1), lambda module, config: optimizer(module.parameters(), 0.1), epochs=3
    )


class Modules(Groups):
    def trainable(self):
        return torch_model()

    def open(self, path):
        return open_model(path, model=torch_model())


class TestGroupsOfModules(Modules):
    pass


class TestModule(Modules):
    def make(self, folder):
        self.fit(folder).best("A").save(folder / "a.safetensors")
        return folder / "a.safetensors"


def test_every_kind_in_the_table_is_tested_here(tmp_path_factory):
    contracts = (TestLogistic, TestLogisticOnDisk, TestFactors, TestGroups, TestTrees, TestModule)
    tested = [kind_of(each().saved(tmp_path_factory)) for each in contracts]
    assert all(kind in tested for kind in KINDS.values())


def test_rows_of_unseen_groups_get_what_was_asked_for(tmp_path_factory):
    contract = TestGroups()
    path, table = contract.saved(tmp_path_factory), contract.table()
    strange = table.set_column(3, "city", pa.array(["Z"] * len(table)))
    with open_model(path, unseen="largest") as model:
        assert isinstance(model, GroupModels)
        assert pa.Table.from_batches(model.predictions(contract.source(strange)))["prediction"].null_count == 0
    with open_model(path) as model:
        assert pa.Table.from_batches(model.predictions(contract.source(strange)))["prediction"].null_count == 300


class Reversed:
    """A model whose predictions come in the wrong order: the suite must notice."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def predictions(self, source, *, keep=()):
        yield from reversed(list(self._model.predictions(source, keep=keep)))


def test_the_suite_catches_a_model_that_mixes_up_rows(tmp_path):
    class Broken(TestLinear):
        def open(self, path):
            return Reversed(super().open(path))

    broken = Broken()
    path = broken.make(tmp_path)
    with pytest.raises(AssertionError):
        broken.test_predictions_are_in_the_order_of_the_rows(path)
    with pytest.raises(AssertionError):
        broken.test_evaluating_is_measuring_the_predictions(path)
