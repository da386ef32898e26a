"""Training in SQL that goes on from a stored model: its weights, its recipe, and what cannot be gone on from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import PenstockError
from penstock.events import Event, Warned
from penstock.sql import Session

ROWS = 1200
TABLE = """
    CREATE TABLE t AS SELECT x1, x2, word, y, w, x1 - CASE WHEN word = 'a' THEN 0.5 ELSE 0 END + noise > 0 AS clicked FROM (
        SELECT (i * 37 % 101)::float8 / 50 - 1 AS x1, CASE WHEN i % 9 <> 0 THEN (i * 53 % 97)::float8 / 48 - 1 END AS x2,
            (ARRAY['a', 'b', 'c'])[1 + (i * 13 % 3)] AS word, (i * 71 % 41)::float8 / 80 - 0.25 AS noise,
            (i * 37 % 101)::float8 / 25 + 3 AS y, 1 + i % 3 AS w FROM {} AS n(i)) AS s
"""
SGD = "solver = sgd, shuffle = none, validation = 0, average = false, standardize = false, learning_rate = 0.01, rate = constant"
TRAIN = "SELECT x1, x2, word, clicked FROM t TRAIN BY logistic AS {} WITH (label = clicked, {})"


@pytest.fixture
def heard() -> list[Event]:
    """What a session had to say."""
    return []


@pytest.fixture(params=["duckdb", "postgresql"])
def session(request: pytest.FixtureRequest, tmp_path: Path, heard: list[Event]) -> Iterator[Session]:
    if request.param == "duckdb":
        place, rows = str(tmp_path / "t.duckdb"), f"range({ROWS})"
    else:
        place, rows = request.getfixturevalue("database"), f"generate_series(0, {ROWS - 1})"
    with closing(penstock.connect(place, listeners=[heard.append])) as found:
        found.sql(TABLE.format(rows))
        yield found


def coef(session: Session, name: str) -> Any:
    model: Any = session.catalog.load(name)
    return np.append(model.weights.coef, model.weights.intercept)


def test_epochs_go_on_where_they_stopped(session: Session) -> None:
    for name, epochs in (("one", 1), ("both", 3)):
        session.sql(TRAIN.format(name, f"epochs = {epochs}, {SGD}"))
    session.sql(TRAIN.format("m", f"init = 'one', epochs = 2, {SGD}"))
    assert len(session.sql("SHOW TRAINING m")) == 2
    # Rows come in stored order and steps do not change, so that two epochs after one are three.
    np.testing.assert_allclose(coef(session, "m"), coef(session, "both"), rtol=1e-4, atol=1e-5)
    assert not np.allclose(coef(session, "m"), coef(session, "one"), rtol=1e-3)


def test_it_is_the_next_version_under_its_own_name(session: Session) -> None:
    session.sql(TRAIN.format("m", f"epochs = 1, {SGD}"))
    session.sql(TRAIN.format("m", f"init = 'm', epochs = 1, {SGD}"))
    session.sql(TRAIN.format("m", f"init = 'm@1', epochs = 1, {SGD}"))
    assert session.sql("SHOW VERSIONS m").column("version") == [1, 2, 3]
    np.testing.assert_allclose(coef(session, "m@3"), coef(session, "m@2"))
    session.sql("""
        CREATE OR REPLACE MODEL m OPTIONS (model_type = 'logistic_reg', input_label_cols = ['clicked'], warm_start = true, max_iterations = 3)
        AS SELECT x1, x2, word, clicked FROM t
    """)
    assert session.sql("SHOW VERSIONS m").column("version") == [1, 2, 3, 4]
    with pytest.raises(PenstockError, match="no model 'none'"):
        session.sql(TRAIN.format("none", "init = 'none'"))
    with pytest.raises(PenstockError, match="there is a model 'm'"):
        session.sql(
            "CREATE MODEL m OPTIONS (model_type = 'logistic_reg', input_label_cols = ['clicked']) AS SELECT * FROM t"
        )


def test_features_keep_their_meaning(session: Session) -> None:
    session.sql(TRAIN.format("m", "epochs = 5"))
    before: Any = session.catalog.load("m")
    # Other rows: no 'a', a word that is new, and x2 of another mean.
    session.sql("""
        CREATE TABLE later AS SELECT x1, x2 + 5 AS x2, CASE WHEN word = 'a' THEN 'z' ELSE word END AS word, clicked FROM t
        WHERE x1 > -0.5
    """)
    session.sql("SELECT * FROM later TRAIN BY logistic AS m WITH (label = clicked, init = m, epochs = 2)")
    after: Any = session.catalog.load("m")
    assert after.recipe.names == before.recipe.names
    assert [part.to_dict() for part in after.recipe.parts] == [part.to_dict() for part in before.recipe.parts]
    assert len(session.sql("SELECT * FROM t PREDICT BY m")) == ROWS


def test_rows_may_weigh_otherwise(session: Session) -> None:
    train = "SELECT x1, w, clicked FROM t TRAIN BY logistic AS {} WITH (label = clicked, epochs = 2, {})"
    session.sql(train.format("m", "weight = w"))
    session.sql("SELECT x1, clicked FROM t TRAIN BY logistic AS n WITH (label = clicked, epochs = 2, init = m)")
    session.sql(train.format("o", "weight = w, init = n"))
    assert [session.catalog.load(name).recipe.weight for name in "mno"] == ["w", None, "w"]


def test_least_squares_that_is_solved_exactly_says_so(session: Session, heard: list[Event]) -> None:
    for extra in ("", ", init = m"):
        heard.clear()
        session.sql(f"SELECT x1, y FROM t TRAIN BY linear AS m WITH (label = y{extra})")
        told = [event for event in heard if isinstance(event, Warned) and "solved exactly" in str(event.message)]
        assert len(told) == bool(extra)


@pytest.mark.parametrize(
    ("query", "model", "options", "told"),
    [
        ("x1, x2, word, clicked", "svm", "init = m", r"names a model that is a logistic model; TRAIN BY logistic"),
        ("x1, x2, word, clicked, y > 5 AS late", "logistic", "init = m, label = late", "predicts 'clicked'"),
        ("x1, word, clicked", "logistic", "init = m", "no feature column 'x2'"),
        ("x1, x2, word, clicked, y", "logistic", "init = m", r"has not learned from 'y'; WITH \(exclude = 'y'\)"),
        ("x1, x2, word, clicked", "logistic", "init = m, category = x1", "category comes with model 'm'"),
        ("x1, x2, word, clicked", "logistic", "init = m, l2 = (1, 0.1)", "without a search"),
        ("x1, x2, word, clicked", "logistic", "init = g", "'g' is a model per group"),
        ("x1, (x1 > 0)::int AS x2, ARRAY[x1] AS word, clicked", "logistic", "init = m", "word"),
        ("x1, x2, word, CASE WHEN x1 > 0 THEN 'yes' ELSE 'no' END AS clicked", "logistic", "init = m", "clicked"),
    ],
)
def test_what_cannot_be_gone_on_from(session: Session, query: str, model: str, options: str, told: str) -> None:
    session.sql(TRAIN.format("m", "epochs = 1"))
    session.sql(TRAIN.format("g", "epochs = 1, workers = 1") + " GROUP BY word")
    label = "" if "label" in options else "label = clicked, "
    with pytest.raises(PenstockError, match=told):
        session.sql(f"SELECT {query} FROM t TRAIN BY {model} AS other WITH ({label}{options})")
    assert session.sql("SHOW MODELS").column("name") == ["g", "m"]
