"""Torch modules in SQL: learned by code that a statement names, asked where a session names it too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import penstock
from penstock.errors import UsageError
from penstock.groups import training_run
from penstock.sql import Session
from penstock.testing.executors import InlineExecutor

CODE = """
    import torch
    from torch import nn
    from penstock.torch import TorchModel

    def small():
        return TorchModel(
            lambda config: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)),
            lambda module, config: torch.optim.Adam(module.parameters(), lr=0.03),
            epochs=30,
        )

    number = 3
"""
TRAIN = "SELECT x, z, clicked{} FROM visits TRAIN BY torch AS {} WITH (label = 'clicked', module = 'shop_nets:small', standardize = true, workers = 1{})"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    pytest.importorskip("torch")
    (tmp_path / "shop_nets.py").write_text(dedent(CODE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)
    monkeypatch.delitem(sys.modules, "shop_nets", raising=False)
    with penstock.connect(tmp_path / "shop.duckdb") as session:
        session.sql("""
            CREATE TABLE visits AS SELECT i AS id, x, z, CASE WHEN i % 2 = 0 THEN 'a' ELSE 'b' END AS word, x * z > 0 AS clicked
            FROM (SELECT i, (i * 37 % 101) / 50.0 - 1 AS x, (i * 53 % 97) / 48.0 - 1 AS z FROM range(1200) AS n(i)) AS t
        """)
        yield session
    sys.modules.pop("shop_nets", None)


def test_a_module_learns_and_is_asked(session: Session, tmp_path: Path) -> None:
    session.sql(TRAIN.format("", "net", ""))
    measures = session.sql("EVALUATE MODEL net ON SELECT * FROM visits").dicts()[0]
    assert measures["accuracy"] > 0.9
    share = "SELECT avg((prediction = clicked)::int) FROM (SELECT * FROM visits PREDICT BY net) AS p"
    assert session.sql(share).rows[0][0] == pytest.approx(measures["accuracy"])
    assert session.sql("SELECT * FROM ML.PREDICT(MODEL net, TABLE visits)").columns[-1] == "predicted_clicked_probs"
    shown = dict(session.sql("SHOW MODEL net").rows)
    assert (shown["kind"], shown["config.standardize"], shown["config.epochs"]) == ("torch", True, 30)
    assert session.sql("SHOW MODELS").column("kind") == ["torch"]
    session.sql(f"EXPORT MODEL net TO '{tmp_path}/net.penstock'")
    session.sql("DROP MODEL net")


def test_modules_of_groups(session: Session) -> None:
    session.sql(TRAIN.format(", word", "local", ", epochs = (2, 20)") + " GROUP BY word")
    assert set(session.sql("SHOW MODEL local").column("param_epochs")) == {20}
    assert session.sql("EVALUATE MODEL local ON SELECT * FROM visits").column("accuracy")[0] > 0.8
    assert session.sql("SELECT count(prediction) FROM (SELECT * FROM visits PREDICT BY local) AS p").rows == [(1200,)]


def test_code_that_a_row_names_is_not_run_unless_the_session_names_it(session: Session, tmp_path: Path) -> None:
    session.sql(TRAIN.format("", "net", ", epochs = 1"))
    session.close()
    sys.modules.pop("shop_nets")
    with penstock.connect(tmp_path / "shop.duckdb") as other:
        assert dict(other.sql("SHOW MODEL net").rows)["kind"] == "torch"
        for text in ("SELECT * FROM visits PREDICT BY net", "EVALUATE MODEL net ON SELECT * FROM visits"):
            with pytest.raises(UsageError, match=r"shop_nets:small.*modules="):
                other.sql(text)
        assert "shop_nets" not in sys.modules
    with penstock.connect(tmp_path / "shop.duckdb", modules=["shop_nets:small"]) as third:
        assert len(third.sql("SELECT * FROM visits PREDICT BY net")) == 1200


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("", "say which code"),
        ("shop_nets", "is not the name of a module and a function"),
        ("nowhere:small", "cannot be imported"),
        ("shop_nets:nothing", "has no 'nothing'"),
        ("shop_nets:number", "no penstock.torch.TorchModel"),
    ],
)
def test_code_that_is_none_is_told(session: Session, module: str, message: str) -> None:
    text = f", module = '{module}'" if module else ""
    with pytest.raises(UsageError, match=message):
        session.sql(f"SELECT x, z, clicked FROM visits TRAIN BY torch WITH (label = 'clicked'{text})")
