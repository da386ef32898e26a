"""A model per group in SQL: ``TRAIN BY … GROUP BY`` learns what `GroupBy` does, and rows find their model inside the engine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import ColumnError, DatabaseError, DataError, ModelFileError, UsageError
from penstock.events import Event, Finished
from penstock.groups import GroupBy
from penstock.sql import Session
from tests.servers import Server

ROWS = 1800
VISITS = """
    CREATE TABLE visits AS SELECT CASE WHEN g % 6 = 5 THEN NULL ELSE (ARRAY['FR', 'D/E', 'I%T', 'ünï', ''])[1 + g % 6] END AS country,
        (g % 2)::int AS device, DATE '2024-01-01' + (g % 3)::int AS day, TIMESTAMP '1969-12-31 23:59:59.5' + (g % 3) * INTERVAL '1 hour' AS moment,
        TIME '10:00:00.25' + (g % 2) * INTERVAL '1 hour' AS clock, g % 3 = 0 AS flag, (g % 3) / 4.0::float8 - 0.25::float8 AS ratio,
        (g % 2 + 0.1)::numeric(9, 2) AS price, x1, x2, word, x1 * (CASE WHEN g % 2 = 0 THEN -1 ELSE 1 END) + noise > 0.1 AS clicked
    FROM (SELECT i * 7 % 6 AS g, (i * 37 % 101)::float8 / 50 - 1 AS x1, CASE WHEN i % 9 <> 0 THEN (i * 53 % 97)::float8 / 48 - 1 END AS x2,
        (ARRAY['a', 'b', 'c'])[1 + (i * 13 % 4)] AS word, (i * 53 % 7)::float8 / 20 AS noise FROM {} AS n(i)) AS t
"""
KEYS = ["country", "device", "day", "moment", "clock", "flag", "ratio", "price"]
TRAIN = f"SELECT * FROM visits TRAIN BY logistic AS m WITH (label = 'clicked', l2 = (1, 0.01), workers = 1) GROUP BY {', '.join(KEYS)}"
NEW = "SELECT CASE WHEN x1 > 0.5 THEN 'XX' ELSE country END AS country, {} FROM visits"
OTHERS = ", ".join([*KEYS[1:], "x1", "x2", "word"])


@pytest.fixture(scope="module", params=["duckdb", "postgresql"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """A database with the table and a model ``m``: what opens it, and the table's address."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/shop.duckdb"
        if request.param == "duckdb":
            with closing(penstock.connect(path)) as session:
                session.sql(VISITS.format(f"range({ROWS})"))
                session.sql(TRAIN)
            yield path, f"{path}::visits"
            return
        postgres: Server = request.getfixturevalue("postgres")
        with postgres.database() as address:
            with closing(penstock.connect(address)) as session:
                session.sql(VISITS.format(f"generate_series(0, {ROWS - 1})"))
                session.sql(TRAIN)
            yield address, f"{address}::visits"


@pytest.fixture
def session(place: tuple[str, str]) -> Iterator[Session]:
    with closing(penstock.connect(place[0])) as session:
        yield session


def as_client(session: Session, query: str, name: str = "m") -> tuple[pa.Table, pa.Table]:
    """Return what the engine predicts of a query's rows, and what the models do here."""
    found = session.sql(f"{query} PREDICT BY {name}").to_arrow()
    made = [column for column in found.column_names if column.startswith(("prediction", "probability"))]
    model: Any = session.catalog.load(name)
    rows = found.drop_columns(made)
    for at, name in enumerate(rows.column_names):  # as engines give them out to learn from
        if pa.types.is_decimal(rows.schema.field(name).type):
            rows = rows.set_column(at, name, rows[name].cast(pa.float64()))
        elif pa.types.is_list(rows.schema.field(name).type):
            rows = rows.set_column(at, name, rows[name].cast(pa.list_(pa.float32(), 3)))
    return found.select(made), model.predict(rows)


def same(found: pa.Table, own: pa.Table) -> bool:
    assert found["prediction"].to_pylist() == own["prediction"].to_pylist()
    for name in found.column_names[1:]:
        np.testing.assert_allclose(*(np.array(each[name].to_pylist(), float) for each in (found, own)), atol=1e-5)
    return True


def test_it_learns_what_group_by_does(session: Session, place: tuple[str, str]) -> None:
    result = GroupBy(place[1], by=KEYS).fit(
        penstock.LogisticRegression(), y="clicked", search={"l2": [1, 0.01]}, workers=1
    )
    model: Any = session.catalog.load("m")
    assert model.metrics == result.metrics
    shown = session.sql("SHOW MODEL m")
    assert sorted(shown.column("held_out_accuracy")) == sorted(result.chosen["held_out_accuracy"].to_pylist())
    assert sorted(shown.column("param_l2")) == sorted(result.chosen["param_l2"].to_pylist())
    assert sum(shown.column("rows")) == ROWS
    assert len(session.sql("SHOW TRAINING m")) == 2 * len(shown) == 2 * len(result.groups)
    for key in result.groups:
        assert np.array_equal(model.best(key).weights.coef, result.best(key).weights.coef)
    (entry,) = session.sql("SHOW MODELS").dicts()
    assert (entry["groups"], entry["rows"]) == (6, ROWS)
    assert entry["score"] == result.metrics["held_out_accuracy"]


def test_rows_find_their_model_by_keys_of_every_type(session: Session) -> None:
    found, own = as_client(session, "SELECT * FROM visits")
    assert same(found, own)
    accuracy = session.sql(
        "SELECT avg((prediction = clicked)::int::float8) FROM (SELECT * FROM visits PREDICT BY m) AS p"
    )
    assert accuracy.rows[0][0] == session.sql("EVALUATE MODEL m ON SELECT * FROM visits").column("accuracy")[0] > 0.9


def test_rows_of_other_groups_get_the_pooled_model_or_none(session: Session) -> None:
    found, own = as_client(session, NEW.format(OTHERS))
    assert same(found, own)
    assert found["prediction"].null_count == 0
    session.sql(TRAIN.replace("AS m", "AS n").replace("l2 = (1, 0.01)", "l2 = 0.1, unseen = null"))
    found, own = as_client(session, NEW.format(OTHERS), "n")
    assert 0 < found["prediction"].null_count < ROWS
    assert same(found, own)
    assert session.sql("EVALUATE MODEL n ON SELECT * FROM visits").column("rows_without_model") == [0]
    session.sql("DROP MODEL n")


def test_a_view_keeps_to_its_model(session: Session) -> None:
    with tempfile.TemporaryDirectory() as folder:
        session.sql(f"EXPORT MODEL m TO '{folder}/m'; IMPORT MODEL v FROM '{folder}/m'")
        loaded: Any = penstock.load(f"{folder}/m")
        assert loaded.groups == session.catalog.load("m").groups  # type: ignore[union-attr]
    session.sql("CREATE VIEW seen AS SELECT * FROM visits PREDICT BY v")
    both = "SELECT count(*) FROM (SELECT * FROM visits PREDICT BY m) AS a"
    assert session.sql("SELECT count(prediction) FROM seen").rows == session.sql(both).rows == [(ROWS,)]
    session.sql("DROP MODEL v")
    with pytest.raises(DatabaseError, match="dropped or renamed; train or name another, and make this view"):
        session.sql("SELECT count(prediction) FROM seen")


def test_measures_and_functions(session: Session) -> None:
    rows = session.sql("SELECT * FROM ML.PREDICT(MODEL m, TABLE visits)")
    assert rows.columns[-2:] == ("predicted_clicked", "predicted_clicked_probs")
    measures = session.sql("SELECT * FROM ML.EVALUATE(MODEL m, TABLE visits)").dicts()[0]
    assert measures["roc_auc"] > 0.9
    assert len(session.sql("SELECT * FROM ML.CONFUSION_MATRIX(MODEL m, TABLE visits)")) == 2
    assert session.sql("EVALUATE MODEL m").column("held_out_accuracy")[0] > 0.8
    notes = " ".join(session.sql("SHOW MODEL m").notes)
    assert "by one model for all groups, without " in notes
    assert "compare with a model that has " in notes
    told = dict(session.sql("DESCRIBE MODEL m").rows)
    assert (told["by"], told["groups"], told["unseen"]) == (KEYS, 6, "pooled")
    with pytest.raises(UsageError, match="8 values"):
        session.sql("DESCRIBE MODEL m FOR ('FR', 1)")
    for function in ("WEIGHTS", "TRAINING_INFO", "FEATURE_INFO"):
        with pytest.raises(UsageError, match="model per group"):
            session.sql(f"SELECT * FROM ML.{function}(MODEL m)")
    with pytest.raises(UsageError, match="model per group"):
        session.sql("SELECT * FROM ML.EXPLAIN_PREDICT(MODEL m, TABLE visits)")
    with pytest.raises(ColumnError, match="country"):
        session.sql("SELECT x1, x2, word FROM visits PREDICT BY m")
    with pytest.raises(ColumnError, match="integer"):
        session.sql(f"SELECT {OTHERS.replace('device', 'country AS device')}, country FROM visits PREDICT BY m")


def test_classes_lists_and_hashed_text(session: Session) -> None:
    """Softmax over a list is written as SQL; a model of hashed text is scored here."""
    three = "CASE WHEN x1 < -0.3 THEN 'low' WHEN x1 < 0.3 THEN 'middle' ELSE 'high' END AS size"
    rows = f"SELECT device, ARRAY[x1, device, 1]::real[] AS v, {three} FROM visits"
    session.sql(f"{rows} TRAIN BY logistic AS s WITH (label = size, workers = 1) GROUP BY device")
    found, own = as_client(session, rows, "s")
    assert same(found, own)
    assert found.num_columns == 4
    assert dict(session.sql("DESCRIBE MODEL s FOR (1)").rows)["group"] == "1"
    hashed = "SELECT device, word, x1, clicked FROM visits WHERE word IS NOT NULL"
    session.sql(
        f"{hashed} TRAIN BY logistic AS h WITH (label = clicked, hash = 'word:2^6', workers = 1, unseen = 'null') GROUP BY device"
    )
    assert same(
        *as_client(
            session,
            "SELECT * FROM ("
            + hashed.replace("device,", "device + (CASE WHEN x1 > 0.5 THEN 9 ELSE 0 END) AS device,")
            + ") AS q",
            "h",
        )
    )
    session.sql("DROP MODEL s; DROP MODEL h")


def test_models_per_group_have_no_directory(session: Session) -> None:
    with pytest.raises(UsageError, match="leave out model_dir or GROUP BY") as raised:
        session.sql(
            "SELECT device, x1, clicked FROM visits TRAIN BY logistic AS d WITH (label = clicked, model_dir = 'd') GROUP BY device"
        )
    assert raised.value.place is not None, "the option is pointed at"


def test_create_model_has_groups_too(session: Session) -> None:
    session.sql("""CREATE MODEL c OPTIONS (model_type = 'logistic_reg', input_label_cols = ['clicked'], workers = 1,
        l2_reg = HPARAM_CANDIDATES([1, 0.1]), unseen = 'null') GROUP BY device AS SELECT device, x1, clicked FROM visits""")
    assert session.sql("SHOW TRAINING c").column("param_l2") == [1.0, 0.1, 1.0, 0.1]
    with pytest.raises(DataError, match="already"):
        session.sql(TRAIN.replace("AS m", "AS c"))
    session.sql("DROP MODEL c")


def test_what_breaks_off_leaves_nothing(
    place: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def stop(event: Event) -> None:
        if isinstance(event, Finished) and event.task == "fit columns":
            raise KeyboardInterrupt

    with closing(penstock.connect(place[0], listeners=[stop])) as session:
        with pytest.raises(KeyboardInterrupt):
            session.sql(TRAIN.replace("AS m", "AS broken"))
        assert "broken" not in session.sql("SHOW MODELS").column("name")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "error", "told"),
    [
        ("GROUP BY country", "GROUP BY countri", ColumnError, "countri"),
        ("GROUP BY country", "GROUP BY device", UsageError, "'device' twice"),
        ("workers = 1", "workers = 0", UsageError, "number of workers"),
        ("workers = 1", "unseen = 'all'", UsageError, "unseen"),
        ("l2 = (1, 0.01)", "l2 = (1, -1)", UsageError, "l2"),
        ("l2 = (1, 0.01)", "l2 = (1, 0.01), search = 'halving', solver = 'lbfgs'", UsageError, "halv"),
        ("l2 = (1, 0.01)", "optimizer = 'adam'", UsageError, "full passes"),
        (f"workers = 1) GROUP BY {', '.join(KEYS)}", "unseen = 'null')", UsageError, "GROUP BY"),
    ],
)
def test_mistakes_are_told(session: Session, old: str, new: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        session.sql(TRAIN.replace("AS m", "AS wrong").replace(old, new))
    with pytest.raises(ModelFileError, match="no model 'wrong'"):
        session.sql("SHOW MODEL wrong")
