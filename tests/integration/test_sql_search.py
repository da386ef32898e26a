"""Searches in SQL without GROUP BY: several values of options are tried, the best by held-out rows is kept, and all are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import SQLSyntaxError, UsageError
from penstock.sql import Session

ROWS = 1500
TABLE = """
    CREATE TABLE t AS SELECT x1, x2, word, x1 - CASE WHEN word = 'a' THEN 0.5 ELSE 0 END + noise > 0 AS clicked FROM (
        SELECT (i * 37 % 101)::float8 / 50 - 1 AS x1, CASE WHEN i % 9 <> 0 THEN (i * 53 % 97)::float8 / 48 - 1 END AS x2,
            (ARRAY['a', 'b', 'c'])[1 + (i * 13 % 3)] AS word, (i * 71 % 41)::float8 / 80 - 0.25 AS noise FROM {} AS n(i)) AS s
"""
SEARCH = "SELECT * FROM t TRAIN BY logistic AS m WITH (label = clicked, l2 = (10, 0.1, 0.001), workers = 1{})"


@pytest.fixture(params=["duckdb", "postgresql"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Session]:
    if request.param == "duckdb":
        place, rows = str(tmp_path / "t.duckdb"), f"range({ROWS})"
    else:
        place, rows = request.getfixturevalue("database"), f"generate_series(0, {ROWS - 1})"
    with closing(penstock.connect(place)) as found:
        found.sql(TABLE.format(rows))
        yield found


def test_the_best_of_all_values_is_kept_and_all_are_shown(session: Session, tmp_path: Path) -> None:
    found = session.sql(SEARCH.format(", tolerance = (0.001, 0.0001)"))
    assert found.status == f"TRAIN {ROWS}"
    assert list(zip(found.column("param_l2"), found.column("param_tolerance"), strict=True)) == [
        (l2, tolerance) for l2 in (10, 0.1, 0.001) for tolerance in (0.001, 0.0001)
    ]
    losses = found.column("selection_loss")
    assert [row for row, chosen in enumerate(found.column("chosen")) if chosen] == [int(np.argmin(losses))]
    assert session.sql("SHOW TRAINING m").dicts() == found.dicts()
    told = dict(session.sql("DESCRIBE MODEL m").rows)
    assert told["l2"] == 0.001
    assert told["held_out_accuracy"] > 0.8
    assert "trials" not in told
    assert session.sql("SHOW MODELS").column("score") == [told["held_out_accuracy"]]
    assert session.sql("EVALUATE MODEL m").dicts()[0]["held_out_rows"] > 100
    # It is a model like any other: predicted by inside the engine, in views, and exported.
    session.sql("CREATE VIEW v AS SELECT * FROM t PREDICT BY m")
    assert session.sql("SELECT count(*) FROM v WHERE prediction = clicked").rows[0][0] > 0.8 * ROWS
    file = tmp_path / "m.penstock"
    session.sql(f"EXPORT MODEL m TO '{file}'; IMPORT MODEL again FROM '{file}'")
    assert session.sql("SHOW TRAINING again").dicts() == found.dicts()
    assert len(session.sql("SELECT * FROM ML.TRAINING_INFO(MODEL m)")) == 1
    assert penstock.load(file).get_params()["l2"] == 0.001


def test_it_is_what_a_group_of_all_rows_gets(session: Session) -> None:
    session.sql(SEARCH.format(""))
    grouped = SEARCH.replace("SELECT *", "SELECT 0 AS part, *").replace("AS m", "AS g").format(", unseen = 'null'")
    session.sql(f"{grouped} GROUP BY part")
    ours: Any = session.catalog.load("m")
    theirs: Any = session.catalog.load("g")
    assert ours.weights.coef.tolist() == theirs.best("0").weights.coef.tolist()


def test_the_warehouses_spelling_and_transform(session: Session) -> None:
    session.sql("""
        CREATE MODEL w TRANSFORM (x1 * 2 AS double_x1, word, clicked)
        OPTIONS (model_type = 'logistic_reg', input_label_cols = ['clicked'], l2_reg = HPARAM_CANDIDATES([10, 0.001]))
        AS SELECT * FROM t
    """)
    assert session.sql("SHOW TRAINING w").column("param_l2") == [10, 0.001]
    assert len(session.sql("SELECT predicted_clicked FROM ML.PREDICT(MODEL w, TABLE t)")) == ROWS


def test_halving_tries_in_rounds(session: Session) -> None:
    found = session.sql(SEARCH.format(", solver = sgd, epochs = 4, search = 'halving'"))
    assert set(found.column("status")) == {"done", "stopped"}
    assert sum(found.column("chosen")) == 1


def test_without_rows_to_choose_by_the_training_loss_decides(session: Session) -> None:
    found = session.sql(SEARCH.format(", validation = 0"))
    assert [row for row, chosen in enumerate(found.column("chosen")) if chosen] == [
        int(np.argmin(found.column("loss")))
    ]
    assert "training_loss" in dict(session.sql("DESCRIBE MODEL m").rows)


def test_explain_says_what_a_search_takes(session: Session) -> None:
    for word in ("EXPLAIN", "EXPLAIN ANALYZE"):
        plan = str(session.sql(f"{word} {SEARCH.format('')}"))
        assert "3" in plan
    assert "chosen" in plan
    assert session.sql("SHOW MODELS").rows == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("workers = 2", "several values to try"),
        ("search = 'halving'", "several values to try"),
        ("unseen = 'null'", "models per group"),
        ("l2 = (1, 1)", "twice"),
        ("l2 = (1, -1)", "positive"),
        ("l2 = (1, 0.1), optimizer = 'adam'", "sgd or full passes"),
        ("shuffle = ('none', 'once')", "is not"),
    ],
)
def test_what_is_no_search_is_refused(session: Session, options: str, told: str) -> None:
    with pytest.raises((UsageError, SQLSyntaxError), match=told):
        session.sql(f"SELECT * FROM t TRAIN BY logistic AS m WITH (label = clicked, {options})")
    assert session.sql("SHOW MODELS").rows == []
