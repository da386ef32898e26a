"""The index of a pandas table that was stored is no feature, in any door, unless it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock import bigmodel, groups
from penstock.cli import app
from penstock.columns.schema_notes import index_columns
from penstock.errors import ColumnError
from penstock.events import Warned
from penstock.sql.session import Session

ROWS = 600


def frame(index: Any = None) -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=ROWS)
    return pd.DataFrame({"x": x, "g": np.arange(ROWS) % 2, "y": (x > 0).astype(int)}, index=index)


INDICES = {
    "unnamed": (lambda: frame(np.random.default_rng(1).permutation(ROWS)), ["__index_level_0__"]),
    "named": (lambda: frame(pd.Index(np.arange(ROWS)[::-1], name="customer")), ["customer"]),
    "two": (
        lambda: frame(pd.MultiIndex.from_arrays([np.arange(ROWS)] * 2, names=["a", None])),
        ["a", "__index_level_1__"],
    ),
    "dates": (lambda: frame(pd.date_range("2020", periods=ROWS, name="day")), ["day"]),
    "range": (frame, []),
}


class Heard(list[str]):
    """What was said about indices."""

    def __call__(self, event: Any) -> None:
        if isinstance(event, Warned) and "of the pandas table" in event.message:
            self.append(event.message)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    INDICES["named"][0]().to_parquet("t.parquet")
    return tmp_path


@pytest.mark.parametrize("kind", ["parquet", "feather", "table", "converted"])
@pytest.mark.parametrize("index", INDICES)
def test_what_is_learnt_from(index: str, kind: str, tmp_path: Path) -> None:
    make, names = INDICES[index]
    table = pa.Table.from_pandas(make())
    data: Any = tmp_path / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(table, data)
    elif kind == "feather":
        feather.write_feather(table, data)
    elif kind == "converted":
        data = tmp_path / "t.arrow"
        penstock.convert(table, data)  # columns as they are: the index stays, and stays one
    else:
        data = table
    with penstock.open(data) as source:
        assert index_columns(source.schema) == names
    heard = Heard()
    model = penstock.LogisticRegression(epochs=1).fit(data, y="y", listeners=[heard])
    assert model.model_.recipe.names == ("x", "g")
    assert len(heard) == bool(names)
    assert all(repr(name) in heard[0] for name in names)


def test_an_index_that_is_named_is_used(stored: Path) -> None:
    for given in ({"features": ["customer", "x"]}, {"features": ["x"], "hash": ["customer"]}, {"hash": ["customer"]}):
        heard = Heard()
        model = penstock.LogisticRegression(epochs=1).fit("t.parquet", y="y", listeners=[heard], **given)
        assert "customer" in model.model_.recipe.columns
        assert not heard
    heard = Heard()
    assert penstock.LinearRegression(epochs=1).fit("t.parquet", y="customer", listeners=[heard]).model_.recipe.names
    penstock.LogisticRegression(epochs=1).fit("t.parquet", y="y", exclude=["customer"], listeners=[heard])
    assert not heard


def test_convert_packs_no_index(stored: Path) -> None:
    heard = Heard()
    penstock.convert("t.parquet", "t.arrow", label="y", listen=heard)
    with pa.ipc.open_file("t.arrow") as file:
        assert file.schema.names == ["features", "y"]
    assert len(heard) == 1
    penstock.convert("t.parquet", "kept.arrow", label="y", keep=["customer"], listen=heard)
    assert penstock.LogisticRegression(epochs=1).fit("kept.arrow").model_.recipe.names == ("x", "g")
    assert len(heard) == 1


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("command", ["train", "explain"])
def test_commands_tell_of_it_once(command: str) -> None:
    done = CliRunner().invoke(app, [command, "t.parquet", "--label", "y", *(["--no-storage"] * (command == "explain"))])
    assert done.exit_code == 0, done.stderr
    assert (done.stdout + done.stderr).count("'customer'") == 1


def test_groups(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.groups import training_run
    from penstock.testing.executors import InlineExecutor

    monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)
    heard = Heard()
    result = groups.GroupBy("t.parquet", by="g").fit(
        penstock.LogisticRegression(solver="lbfgs"), y="y", workers=1, listeners=[heard]
    )
    assert result.recipe.names == ("x",)
    assert len(heard) == 1
    by = groups.GroupBy("t.parquet", by="customer", exclude=["g"]).fit(
        penstock.LinearRegression(solver="lbfgs"), y="y", workers=1, validation=0, listeners=[heard]
    )
    assert by.recipe.names == ("x",)
    assert len(heard) == 1


def test_models_on_disk(stored: Path) -> None:
    heard = Heard()
    frame = INDICES["unnamed"][0]()
    frame["t"] = "a"
    frame.to_parquet("u.parquet")
    bigmodel.LogisticRegression("m", epochs=1).fit("u.parquet", y="y", hash=["t:2^4"], listeners=[heard])
    assert len(heard) == 1
    assert bigmodel.LogisticRegression.load("m").evaluate("u.parquet")["rows"] == ROWS


def test_statements(stored: Path) -> None:
    INDICES["unnamed"][0]().to_parquet("u.parquet")
    heard = Heard()
    with Session(listeners=[heard]) as session:
        session.sql("SELECT * FROM 'u.parquet' TRAIN BY logistic AS m WITH (label = y, epochs = 1)")
        assert session.catalog.load("m").recipe.names == ("x", "g")
        assert len(heard) == 1
        del heard[:]
        session.sql(
            "SELECT * FROM 'u.parquet' TRAIN BY logistic AS n WITH (label = y, epochs = 1, exclude = '__index_level_0__')"
        )
        assert not heard
        session.sql(
            "SELECT * FROM 'u.parquet' TRAIN BY logistic AS o"
            " WITH (label = y, epochs = 1, features = ['x', '__index_level_0__'])"
        )
        assert session.catalog.load("o").recipe.names == ("x", "__index_level_0__")


def test_nothing_but_an_index(tmp_path: Path) -> None:
    frame()[["y"]].set_index(np.arange(ROWS)[::-1]).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ColumnError, match="no feature columns"):
        penstock.LogisticRegression().fit(tmp_path / "t.parquet", y="y")


@pytest.mark.parametrize(
    "noted", [b"nonsense", b"[]", b'{"index_columns": 3}', b'{"index_columns": [{"kind": "range"}, "z"]}']
)
def test_odd_metadata(noted: bytes) -> None:
    assert index_columns(pa.schema([("x", pa.int64())], {b"pandas": noted})) == []


def test_the_index_that_pandas_writes_to_csv_is_left_out(tmp_path: Path) -> None:
    frame().sort_values("y").reset_index(drop=True).to_csv(tmp_path / "t.csv")
    with penstock.open(tmp_path / "t.csv") as source:
        assert index_columns(source.schema) == ["column_0"]
    model = penstock.LogisticRegression(epochs=1).fit(tmp_path / "t.csv", y="y")
    assert list(model.feature_names_in_) == ["x", "g"]
    model = penstock.LogisticRegression(epochs=1).fit(tmp_path / "t.csv", y="y", features=["x", "column_0"])
    assert list(model.feature_names_in_) == ["x", "column_0"]
