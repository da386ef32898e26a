"""The conformance suite for kinds of models: what ``predict``, ``evaluate``, ``show`` and `penstock.load` rely on.

Subclass `ModelContract` in a test file and say how a model is made; pytest collects the rest::

    class TestMine(ModelContract):
        def make(self, folder):
            path = folder / "mine.json"
            MyModel(...).save(path)
            return path
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import penstock
from penstock.blocks.memory import TableSource
from penstock.errors import ColumnError, PenstockError
from penstock.model import Model, predict, write_predictions
from penstock.model_kinds import open_model


class ModelContract:
    """The suite; override `table` and ``feature`` where the model wants other columns."""

    feature: str = "a"
    """A column without which the model cannot predict."""
    loaded: type | None = None
    """What `penstock.load` returns; None where that is the model itself."""
    _made: ClassVar[dict[type, Path]] = {}

    def table(self) -> pa.Table:
        """Return labelled rows to ask the model about, in which each row is different."""
        rng = np.random.default_rng(3)
        a, b = rng.normal(size=(2, 300))
        return pa.table({"row": np.arange(300), "a": a, "b": b, "y": np.where(a + b / 2 > 0, "yes", "no")})

    def make(self, folder: Path) -> Path:
        """Save a trained model under the folder, and return its path."""
        raise NotImplementedError

    def open(self, path: Path) -> Model:
        """Open the model at a path."""
        return open_model(path)

    def rows_of_other_width(self) -> pa.Table | None:
        """Return rows with another number of features than the model's; None where no column can have that."""
        return None

    @pytest.fixture
    def path(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Where the model under test is saved."""
        return self.saved(tmp_path_factory)

    def saved(self, folders: pytest.TempPathFactory) -> Path:
        """Return the path of the model under test, which is made once for all tests of a class."""
        made: dict[type, Path] = self._made
        if type(self) not in made:
            made[type(self)] = self.make(folders.mktemp("model"))
        return made[type(self)]

    def source(self, table: pa.Table | None = None) -> TableSource:
        """Return rows as a source of several blocks."""
        table = self.table() if table is None else table
        return TableSource.of(table, block_size=max(1, table.nbytes // 7))

    def test_is_a_model(self, path: Path) -> None:
        with self.open(path) as model:
            assert isinstance(model, Model)
            assert isinstance(model.kind, str)
            assert isinstance(model.word, str)
            assert model.metric in ("accuracy", "r2", "rmse")
            assert (model.metric == "accuracy") == (model.classes is not None)
            assert model.label in self.table().column_names
            assert isinstance(model.config, Mapping)
            assert isinstance(model.metrics, Mapping)
            assert all(isinstance(row, Mapping) for row in model.history)
            assert isinstance(model.fingerprint, str)
            assert isinstance(model.finished, bool)
            assert set(model.by) <= set(model.columns) <= set(self.table().column_names)
            assert model.recipe is None or model.recipe.label == model.label
            assert model.linear is None or model.linear.kind == model.kind

    def test_load_opens_it(self, path: Path) -> None:
        with self.open(path) as model, penstock.load(path) as found:
            assert type(found) is (self.loaded or type(model))

    def test_predictions_are_in_the_order_of_the_rows(self, path: Path) -> None:
        table = self.table()
        order = np.random.default_rng(0).permutation(len(table))
        with self.open(path) as model:
            whole = predict(model, self.source())
            assert len(whole) == len(table)
            assert len(set(whole.tolist())) > 1, "predictions that are all alike have no order to compare"
            assert_same(predict(model, self.source(table.take(order))), whole[order])
            assert_same(predict(model, self.source(table.slice(20, 50))), whole[20:70])
            assert len(predict(model, self.source(table.slice(0, 0)))) == 0

    def test_a_file_has_what_an_array_has_and_the_columns_kept(self, path: Path, tmp_path: Path) -> None:
        table, out = self.table(), tmp_path / "p.parquet"
        with self.open(path) as model:
            assert write_predictions(model, self.source(), out, keep=["row"]) == len(table)
            written = pq.read_table(out)
            assert written.column_names[:2] == ["row", "prediction"]
            assert written["row"].to_pylist() == table["row"].to_pylist()
            assert_same(written["prediction"].to_numpy(), predict(model, self.source()))
            for name in written.column_names[2:]:
                assert name in {f"probability_{each}" for each in ([] if model.classes is None else model.classes)}
            with pytest.raises(ColumnError, match="gone"):
                write_predictions(model, self.source(), tmp_path / "q.parquet", keep=["gone"])
            assert not (tmp_path / "q.parquet").exists()
            assert write_predictions(model, self.source(table.slice(0, 0)), out) == 0
            assert pq.read_table(out)["prediction"].to_pylist() == []

    def test_evaluating_is_measuring_the_predictions(self, path: Path) -> None:
        table, heard = self.table(), []
        with self.open(path) as model:
            found = model.evaluate(self.source(), on_scores=lambda scores, *_: heard.append(len(scores)))
            predictions = np.array(predict(model, self.source()).tolist(), object)
            truth = np.array(table[model.label].to_pylist(), object)
        there = np.array([each is not None and each == each for each in predictions])  # NaN and None are no prediction
        assert found["rows"] == sum(heard) == there.sum()
        assert json.dumps(found)
        if model.metric == "accuracy":
            assert found["accuracy"] == pytest.approx(np.mean(predictions[there] == truth[there]))
        else:
            errors = (predictions[there] - truth[there]).astype(np.float64)
            assert found["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-4)

    def test_the_label_may_have_another_name(self, path: Path) -> None:
        table = self.table()
        with self.open(path) as model:
            assert model.label is not None
            names = ["other" if name == model.label else name for name in table.column_names]
            renamed = table.rename_columns(names)
            assert model.evaluate(self.source(renamed), label="other") == model.evaluate(self.source())
            with pytest.raises(ColumnError, match="nowhere"):
                model.evaluate(self.source(renamed), label="nowhere")

    @pytest.mark.parametrize("kind", [pa.null(), pa.float64(), pa.string()])
    def test_rows_that_all_lack_a_label_are_refused(self, path: Path, kind: pa.DataType) -> None:
        table = self.table()
        with self.open(path) as model:
            assert model.label is not None
            at = table.column_names.index(model.label)
            without = table.set_column(at, model.label, pa.nulls(len(table), kind))
            with pytest.raises(PenstockError, match=repr(model.label)):
                model.evaluate(self.source(without))

    def test_the_description_is_json_and_text(self, path: Path) -> None:
        with self.open(path) as model:
            description = model.describe()
            assert json.loads(json.dumps(description.values, allow_nan=False)) == description.values
            assert description.values["model"] == model.word
            assert {"label", "classes", "metrics", "config"} <= description.values.keys()
            assert str(description) == "\n".join(description.lines)
            assert len(model.describe(most=1).lines) <= len(description.lines)

    def test_saved_and_opened_it_is_the_same(self, path: Path, tmp_path: Path) -> None:
        with self.open(path) as model:
            model.save(tmp_path / "copy")
            with self.open(tmp_path / "copy") as again:
                assert type(again) is type(model)
                for name in ("kind", "label", "metric", "by", "fingerprint", "finished"):
                    assert getattr(again, name) == getattr(model, name)
                for name in ("config", "metrics"):
                    assert json.dumps(dict(getattr(again, name))) == json.dumps(dict(getattr(model, name)))
                assert json.dumps(list(again.history)) == json.dumps(list(model.history))
                assert_same(predict(again, self.source()), predict(model, self.source()))

    def test_closing_twice_is_closing_once(self, path: Path) -> None:
        model = self.open(path)
        next(model.predictions(self.source())).num_rows  # noqa: B018 - a generator that is left half used
        model.close()
        model.close()
        with self.open(path) as again:
            again.close()

    def test_a_missing_column_is_refused_by_its_name(self, path: Path) -> None:
        less = self.table().drop_columns([self.feature])
        with self.open(path) as model:
            with pytest.raises(ColumnError, match=self.feature):
                predict(model, self.source(less))
            with pytest.raises(ColumnError, match=self.feature):
                model.evaluate(self.source(less))

    def test_rows_of_another_width_are_refused(self, path: Path) -> None:
        other = self.rows_of_other_width()
        if other is None:
            pytest.skip("no column of these rows can have another width")
        with self.open(path) as model, pytest.raises(PenstockError):
            predict(model, self.source(other))


def assert_same(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Compare predictions: classes exactly, numbers within rounding; those of rows without a model are both missing."""
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    else:
        assert found.tolist() == expected.tolist()
