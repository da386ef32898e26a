"""Models on disk and factorizations in SQL, the same text on both engines: by their directory, or as files in their row."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.bigmodel import LogisticRegression, MatrixFactorization
from penstock.errors import ColumnError, DataError, ModelFileError, UsageError
from penstock.sql import Session
from tests.servers import Server

ROWS = 1500
TABLE = """
    CREATE TABLE clicks AS SELECT i AS id, (i * 37 % 101)::float8 / 50 - 1 AS x, CASE WHEN i % 9 <> 0 THEN (i * 53 % 97)::float8 / 48 - 1 END AS z,
        (ARRAY['a', 'b', 'c'])[1 + (i * 13 % 4)] AS word, (i * 37 % 101)::float8 / 50 - 1 > 0 AS clicked,
        i % 40 AS person, (ARRAY['k', 'l', 'm', 'n', 'o'])[1 + (i / 40)::int % 5] AS film, ((i % 40) % 5 - ((i / 40)::int % 5))::float8 + 3 AS stars FROM {} AS n(i)
"""
FACTOR = "SELECT * FROM clicks TRAIN BY factor AS {} WITH (user = 'person', item = 'film', rating = 'stars', rank = 4, epochs = 20{})"


@pytest.fixture(scope="module", params=["duckdb", "postgresql"])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """What opens a database with the table in it."""
    with tempfile.TemporaryDirectory() as folder:
        if request.param == "duckdb":
            with closing(penstock.connect(f"{folder}/shop.duckdb")) as session:
                session.sql(TABLE.format(f"range({ROWS})"))
            yield f"{folder}/shop.duckdb"
            return
        postgres: Server = request.getfixturevalue("postgres")
        with postgres.database() as address:
            with closing(penstock.connect(address)) as session:
                session.sql(TABLE.format(f"generate_series(0, {ROWS - 1})"))
            yield address


@pytest.fixture
def session(place: str) -> Iterator[Session]:
    with closing(penstock.connect(place)) as session:
        yield session
        for entry in session.catalog.entries():
            session.catalog.drop(entry.name)


def on_disk(folder: Path, name: str = "big", more: str = "") -> str:
    return (
        f"SELECT x, z, word, clicked FROM clicks TRAIN BY logistic AS {name} WITH (label = 'clicked', model_dir = '{folder}',"
        f" memory = '100MB', epochs = 3{more})"
    )


def test_a_model_in_a_directory_is_referred_to(session: Session, tmp_path: Path) -> None:
    trained = session.sql(on_disk(tmp_path / "big"))
    assert any(str(tmp_path / "big") in note for note in trained.notes)
    rows = session.sql("SELECT * FROM clicks ORDER BY id").to_arrow()
    found = session.sql("SELECT * FROM clicks PREDICT BY big").to_arrow().sort_by("id")
    with LogisticRegression.load(tmp_path / "big") as model:
        assert found["prediction"].to_pylist() == model.predict(rows).tolist()
        np.testing.assert_allclose(found["probability_True"].to_numpy(), model.predict_proba(rows)[:, 1], atol=1e-6)
        assert session.sql("EVALUATE MODEL big ON SELECT * FROM clicks").column("accuracy") == [
            model.score(rows, "clicked")
        ]
    warehouse = session.sql("SELECT predicted_clicked FROM ML.PREDICT(MODEL big, TABLE clicks)")
    assert sum(warehouse.column("predicted_clicked")) == sum(found["prediction"].to_pylist())
    shown = dict(session.sql("SHOW MODEL big").rows)
    assert (shown["kind"], shown["model_dir"], shown["features"]) == ("logistic", str(tmp_path / "big"), 7)
    assert len(session.sql("SHOW TRAINING big")) == len(trained) == 3
    assert session.sql("EVALUATE MODEL big").column("held_out_rows")[0] > 0
    (entry,) = session.sql("SHOW MODELS").dicts()
    assert (entry["kind"], entry["features"]) == ("logistic", 7)
    session.sql("DROP MODEL big")
    assert (tmp_path / "big" / "state.penstock").exists()


def test_a_directory_that_is_gone_or_changed_is_told(session: Session, tmp_path: Path) -> None:
    folder = tmp_path / "big"
    session.sql(on_disk(folder))
    session.sql(on_disk(folder, "other", ", learning_rate = 0.3"))
    for text in (
        "SELECT * FROM clicks PREDICT BY big",
        "EVALUATE MODEL big ON SELECT * FROM clicks",
        "DESCRIBE MODEL big",
    ):
        with pytest.raises(ModelFileError, match=r"has changed since.*IMPORT OR REPLACE MODEL"):
            session.sql(text)
    imported = session.sql(f"IMPORT OR REPLACE MODEL big FROM '{folder}'")
    assert str(folder) in imported.notes[0]
    same = session.sql("EVALUATE MODEL big ON SELECT * FROM clicks").rows
    assert same == session.sql("EVALUATE MODEL other ON SELECT * FROM clicks").rows
    session.sql(f"EXPORT MODEL big TO '{tmp_path / 'copy'}'")
    shutil.rmtree(folder)
    with pytest.raises(ModelFileError, match="is not there"):
        session.sql("SELECT * FROM clicks PREDICT BY big")
    with LogisticRegression.load(tmp_path / "copy") as model:
        assert model.score(session.sql("SELECT * FROM clicks").to_arrow(), "clicked") > 0.9


def test_what_cannot_live_on_disk_is_refused(session: Session, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave out model_dir or GROUP BY"):
        session.sql(on_disk(tmp_path / "m") + " GROUP BY word")
    with pytest.raises(UsageError, match="softmax model cannot live on disk"):
        session.sql(on_disk(tmp_path / "m").replace("BY logistic", "BY softmax"))
    with pytest.raises(UsageError, match="no option 'solver'"):
        session.sql(on_disk(tmp_path / "m", more=", solver = 'lbfgs'"))
    with pytest.raises(UsageError, match="no option 'threads'"):
        session.sql("SELECT * FROM clicks TRAIN BY logistic WITH (label = 'clicked', threads = 2)")


def test_explain_tells_of_pages_and_leaves_nothing(session: Session, tmp_path: Path) -> None:
    told = "\n".join(row[0] for row in session.sql(f"EXPLAIN ANALYZE {on_disk(tmp_path / 'big')}").rows)
    assert "An epoch" in told
    assert "Took" in told
    assert not (tmp_path / "big").exists()
    told = "\n".join(row[0] for row in session.sql(f"EXPLAIN {FACTOR.format('f', '')}").rows)
    assert f"{ROWS:,} ratings by 40 users of 5 items" in told
    assert session.sql("SHOW MODELS").rows == []


def test_a_factorization_is_kept_as_its_files(session: Session, place: str, tmp_path: Path) -> None:
    trained = session.sql(FACTOR.format("films", ""))
    assert len(trained) == 20
    rows = session.sql("SELECT person, film, stars FROM clicks ORDER BY id").to_arrow()
    own = MatrixFactorization(tmp_path / "own", rank=4, epochs=20).fit(rows, user="person", item="film", rating="stars")
    with closing(penstock.connect(place)) as other:  # which has nothing unpacked yet
        found = other.sql(
            "SELECT id, stars, prediction FROM (SELECT * FROM clicks PREDICT BY films) AS p ORDER BY id"
        ).to_arrow()
        errors = found["prediction"].to_numpy() - found["stars"].to_numpy()
        measures = other.sql("EVALUATE MODEL films ON SELECT * FROM clicks").dicts()[0]
        assert measures["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-4)
        assert measures["rmse"] < 0.2
        assert measures["rows"] == ROWS
        stranger = other.sql("SELECT 99 AS person, 'zzz' AS film PREDICT BY films").column("prediction")
        assert stranger == [pytest.approx(own.mean_, abs=0.05)]
    assert own.evaluate(rows)["rmse"] == pytest.approx(measures["rmse"], abs=0.05)
    assert (
        session.sql("SELECT * FROM ML.PREDICT(MODEL films, (SELECT person, film FROM clicks LIMIT 2))").columns[-1]
        == "predicted_stars"
    )
    assert session.sql("SELECT r2_score FROM ML.EVALUATE(MODEL films, TABLE clicks)").rows[0][0] > 0.9
    shown = dict(session.sql("DESCRIBE MODEL films").rows)
    assert (shown["kind"], shown["label"], shown["columns"], shown["users"], shown["items"], shown["rank"]) == (
        "factor", "stars", ["person", "film"], 40, 5, 4,
    )  # fmt: skip
    assert "model_dir" not in shown
    (entry,) = session.sql("SHOW MODELS").dicts()
    assert (entry["kind"], entry["features"], entry["groups"]) == ("factor", None, None)
    session.sql(f"EXPORT MODEL films TO '{tmp_path / 'films'}'; IMPORT MODEL again FROM '{tmp_path / 'films'}'")
    assert dict(session.sql("SHOW MODEL again").rows)["model_dir"] == str(tmp_path / "films")
    same = [session.sql(f"EVALUATE MODEL {name} ON SELECT * FROM clicks").rows for name in ("films", "again")]
    assert same[0] == same[1]


def test_a_factorization_may_have_a_directory(session: Session, tmp_path: Path) -> None:
    session.sql(FACTOR.format("films", f", model_dir = '{tmp_path / 'films'}'"))
    assert dict(session.sql("SHOW MODEL films").rows)["model_dir"] == str(tmp_path / "films")
    assert session.sql("EVALUATE MODEL films ON SELECT * FROM clicks").column("rmse")[0] < 0.2
    session.sql("DROP MODEL films")
    options = "OPTIONS (model_type = 'matrix_factorization', user_col = 'person', item_col = 'film', rating_col = 'stars', num_factors = 3)"
    session.sql(f"CREATE MODEL films {options} AS SELECT * FROM clicks")
    assert dict(session.sql("SHOW MODEL films").rows)["rank"] == 3
    session.sql("DROP MODEL films")


def test_what_a_factorization_has_not_is_refused(session: Session) -> None:
    with pytest.raises(UsageError, match="say item = "):
        session.sql("SELECT * FROM clicks TRAIN BY factor WITH (user = 'person', rating = 'stars')")
    with pytest.raises(ColumnError, match="no item column 'movie'"):
        session.sql("SELECT * FROM clicks TRAIN BY factor WITH (user = 'person', item = 'movie', rating = 'stars')")
    with pytest.raises(ColumnError, match="ratings are numbers"):
        session.sql("SELECT * FROM clicks TRAIN BY factor WITH (user = 'person', item = 'film', rating = 'word')")
    with pytest.raises(UsageError, match="no option 'label'"):
        session.sql(FACTOR.format("films", ", label = 'stars'"))
    session.sql(FACTOR.format("films", ""))
    with pytest.raises(UsageError, match="predicts numbers"):
        session.sql("SELECT * FROM ML.CONFUSION_MATRIX(MODEL films, TABLE clicks)")
    with pytest.raises(UsageError, match="two classes"):
        session.sql("SELECT * FROM ML.ROC_CURVE(MODEL films, TABLE clicks)")
    with pytest.raises(UsageError, match="factor model; DESCRIBE MODEL films"):
        session.sql("SELECT * FROM ML.WEIGHTS(MODEL films)")
    with pytest.raises(ColumnError, match="film"):
        session.sql("SELECT person FROM clicks PREDICT BY films")
    with pytest.raises(DataError, match="row 0"):
        session.sql("SELECT NULL::int AS person, 'k' AS film PREDICT BY films")
