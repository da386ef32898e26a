"""Tables with text, dates and missing numbers: the server finds the recipe that Python finds, and encodes rows as Python does."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from psycopg import errors

from penstock.batch import Csr
from penstock.blocks.memory import TableSource
from penstock.columns.base import FeatureColumn
from penstock.columns.choose import choose_features
from penstock.columns.hashing import Hashed
from penstock.columns.kinds import column_from_dict
from penstock.columns.recipe import Recipe
from penstock.linear import LinearModel
from penstock.loader.fit_columns import fit_from
from penstock.sql import connect
from penstock.sql.engines.postgres.engine import PostgresEngine
from tests.postgres_extension.extension import ExtensionServer
from tests.property.test_sql_recipe import LEVELS, UNSEEN, models, probabilities

Session = psycopg.Connection[Any]
LABEL = "label"


def rows_of(size: int) -> pa.Table:
    """Return rows with a column of every kind, and what spoils them."""
    at = np.arange(size)
    rng = np.random.default_rng(5)
    shuffled = rng.permutation(size)
    start = datetime.datetime(2024, 2, 27, 22, 30)
    moments = [start + datetime.timedelta(minutes=int(i) * 7) for i in shuffled]
    days = [moment.date() for moment in moments]
    words = np.array(["fast", "slow", "cheap", "good", "bad"])

    def some(values: Any, missing: Any) -> list[Any]:
        return [None if gone else value for value, gone in zip(values, missing, strict=True)]

    columns: dict[str, Any] = {
        "id": pa.array(shuffled + 7),
        "whole": pa.array(some((at % 31).tolist(), at % 11 == 0), pa.int32()),
        "hardly_missing": pa.array(some((shuffled * 0.25).tolist(), at == 3), pa.float64()),
        "nan": pa.array(np.where(at % 7 == 0, np.nan, at % 13), pa.float32()),
        "flag": pa.array(some((at % 3 == 0).tolist(), at % 40 == 1), pa.bool_()),
        "constant": pa.array(np.full(size, 4), pa.int16()),
        "empty": pa.array([None] * size, pa.int64()),
        "city": pa.array(some([("Oslo", "Rome", "größe ☃", "", "a'\\b")[i % 5] for i in at], at % 9 == 0)),
        "seldom": pa.array([("a", "b", f"once {i}")[2 if i % 200 == 0 else i % 2] for i in at]),
        "figures": pa.array([("NA", "?")[i % 2] if i % 50 == 0 else f" {shuffled[i] / 4}" for i in at]),
        "strays": pa.array(["about 3" if i % 500 == 1 else str(shuffled[i]) for i in at]),
        "code": pa.array([f"{i % 60:03}" for i in shuffled]),
        "numbers_rows": pa.array(np.where(at % 50 == 0, shuffled, shuffled * 2 - shuffled % 3), pa.float64()),
        "amount": pa.array(shuffled % 1500 * 3),
        "spelled": pa.array([f"{i},5 %" for i in at]),
        "currency": pa.array(["?" if i % 90 == 0 else "900" if i % 3 == 0 else f"${i + 1_000:,}.50" for i in at]),
        "few_spelled": pa.array([f"{i % 10},5" for i in at]),
        "few_odd": pa.array(["about 3" if i == 77 else "NA" if i % 50 == 0 else str(i % 12) for i in at]),
        "odd": pa.array(
            [("it's", "a\\b", 'say "it\'s"', "less", "more")[i // 40 % 5] if i % 40 == 1 else str(i * 7) for i in at]
        ),
        "slashes": pa.array([f"{1 + i % 12}/{1 + i % 28}/{1900 + i % 120}" for i in at]),
        "months": pa.array([f"Wed {1 + i % 28}th Sept. {i + 1_000}" for i in at]),
        "nearly_iso": pa.array(
            [f"week {i}" if i % 50 == 0 else str(days[i] + datetime.timedelta(days=int(i))) for i in at]
        ),
        "key": pa.array([f"user {i}" for i in shuffled]),
        "one": pa.array(["x"] * size),
        "nothing": pa.array([None] * size, pa.string()),
        "said": pa.array([" ".join(words[rng.integers(0, 5, 6)]) for _ in at]),
        "many": pa.array([f"c{i}" for i in shuffled % (size // 4)]),
        "day": pa.array(some(days, at % 30 == 0), pa.date32()),
        "moment": pa.array(moments, pa.timestamp("us")),
        "zoned": pa.array(some(moments, at % 90 == 0), pa.timestamp("us", "UTC")),
        "written": pa.array([moment.isoformat(" ", "seconds") for moment in moments]),
        "written_zoned": pa.array(
            ["NA" if i % 60 == 0 else moments[i].isoformat("T", "seconds") + "+02:00" for i in at]
        ),
        "clock": pa.array([moment.time() for moment in moments], pa.time64("us")),
        LABEL: pa.array((rng.random(size) + (at % 5 == 0) + (at % 31) / 31 > 1).astype(int)),
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def engine(extended: ExtensionServer) -> Iterator[PostgresEngine]:
    with extended.database() as address:
        extended.run("CREATE EXTENSION penstock", at=address)
        with closing(PostgresEngine(address)) as engine:
            engine.run("SET TimeZone = 'Asia/Tokyo'")
            yield engine


def dense(recipe: Recipe, rows: pa.Table) -> Any:
    x = replace(recipe, label=None).encode(rows.combine_chunks().to_batches()[0]).x
    if not isinstance(x, Csr):
        return x
    found = np.zeros((rows.num_rows, recipe.width or 0), np.float32)
    np.add.at(found, (np.repeat(np.arange(rows.num_rows), np.diff(x.indptr.astype(int))), x.indices), x.values)
    return found


def encoded(engine: PostgresEngine, parts: Any, table: str) -> Any:
    """Return rows as the server encodes them, from the dense form, which is to be that of the sparse one."""
    columns = ", ".join(engine.quote(name) for name in dict.fromkeys(part.columns[0] for part in parts))
    asked = json.dumps([part.to_dict() for part in parts])
    call = f"$1::jsonb, ROW({columns})"
    text = (
        f"SELECT penstock.encode({call}), penstock.encode_indices({call}), penstock.encode_values({call}) FROM {table}"
    )
    rows = engine.run(text, [asked]).rows
    found = np.array([row[0] for row in rows], np.float32)
    sparse = np.zeros_like(found)
    for to, (_, indices, values) in zip(sparse, rows, strict=True):
        np.add.at(to, np.array(indices, int), np.array(values, np.float32))
    np.testing.assert_array_equal(sparse, found)
    return found


@settings(max_examples=60)
@given(models())
def test_rows_are_encoded_as_in_python_and_scored_as_in_sql(
    engine: PostgresEngine, data: tuple[LinearModel, pa.Table]
) -> None:
    model, rows = data
    table = engine.store_rows(rows.to_reader())
    wanted = dense(model.recipe, rows)
    np.testing.assert_allclose(encoded(engine, model.recipe.parts, table), wanted, rtol=1e-6, atol=1e-6)
    scores = wanted.astype(float) @ model.weights.coef.T.astype(float)
    chances = model.probabilities(scores.astype(np.float32) if scores.shape[1] > 1 else scores[:, 0].astype(np.float32))
    assert np.array(probabilities(engine, model, f"SELECT * FROM {table}"), float) == pytest.approx(chances, abs=1e-5)


def test_text_is_hashed_as_in_python(engine: PostgresEngine) -> None:
    texts = [*LEVELS, *UNSEEN, None, "a b a  c\ta", "x" * 9, "word " * 40]
    rows = pa.table({"größe": pa.array(texts), "code": pa.array(range(len(texts)), pa.int32())})
    parts = [Hashed("größe", 10, False, True, ("NA",)), Hashed("code", 6)]
    table = engine.store_rows(rows.to_reader())
    np.testing.assert_array_equal(encoded(engine, parts, table), dense(Recipe(tuple(parts)), rows))
    words = [Hashed("größe", 12, True, True)]
    np.testing.assert_array_equal(encoded(engine, words, table), dense(Recipe(tuple(words)), rows))


def same(found: FeatureColumn, wanted: FeatureColumn) -> None:
    """Require two columns to be the same, but for the last digits of means and spreads."""
    told, asked = found.to_dict(), wanted.to_dict()
    numbers = [name for name in ("fill", "center", "scale", "origin") if name in asked]
    for name in numbers:
        assert told.pop(name) == pytest.approx(asked.pop(name), rel=1e-9)
    assert told == asked


@pytest.mark.parametrize("rows", [rows_of(2_000), rows_of(2_000).select(["id", "flag", "city", "day", LABEL])])
def test_the_recipe_that_is_found_is_pythons(engine: PostgresEngine, rows: pa.Table) -> None:
    table = engine.store_rows(rows.to_reader())
    source = TableSource.of(rows)
    wanted = choose_features(source.schema, label=LABEL, fit=fit_from(source), standardize=True)
    names = [name for name in rows.column_names if name != LABEL]
    types = engine.run(
        f"SELECT {', '.join(f'pg_typeof({engine.quote(name)})::text' for name in names)} FROM {table} LIMIT 1"
    )
    text = "SELECT * FROM penstock.fitted($1, $2, $3::text[], $4::regtype[], false, true, true, current_setting('search_path'))"
    parts, left_out, unlabelled, count = engine.run(text, [f"{table} AS q", LABEL, names, list(types.rows[0])]).rows[0]
    assert (left_out, unlabelled, count) == (wanted.left_out, 0, rows.num_rows)
    assert [part["columns"][0] for part in parts] == [part.columns[0] for part in wanted.parts]
    for found, expected in zip(map(column_from_dict, parts), wanted.parts, strict=True):
        same(found, expected)
    narrow = replace(wanted, parts=tuple(part for part in wanted.parts if not isinstance(part, Hashed)))
    np.testing.assert_allclose(encoded(engine, narrow.parts, table), dense(narrow, rows), rtol=1e-5, atol=1e-5)


@pytest.fixture
def visits(session: Session, address: str) -> Session:
    """Give a session with a table ``visits`` of 2,000 rows, 20 of them without a label."""
    rows = rows_of(2_000)
    with closing(PostgresEngine(address)) as engine:
        table = engine.store_rows(rows.to_reader())
        engine.run(f"CREATE TABLE public.visits AS SELECT * FROM {table}")
    session.execute("UPDATE visits SET label = NULL WHERE id % 100 = 0")
    return session


def test_a_model_of_any_columns_predicts_the_same_everywhere(visits: Session, address: str) -> None:
    visits.execute("SELECT penstock.train('visits', 'logistic', 'm')")
    visits.execute(
        "ALTER TABLE visits DROP whole; ALTER TABLE visits ADD whole bigint"
    )  # of another type, and at another place
    visits.execute("UPDATE visits SET whole = id % 40, city = CASE WHEN id % 10 = 0 THEN 'Paris' ELSE city END")
    query = "SELECT penstock.predict_probabilities('m', v), penstock.predict_class('m', v) FROM visits AS v ORDER BY id"
    chances, classes = zip(*visits.execute(query).fetchall(), strict=True)
    with connect(address) as session:
        found = session.sql("SELECT * FROM (SELECT * FROM visits PREDICT BY m) AS p ORDER BY id")
        np.testing.assert_allclose([c[1] for c in chances], found.column("probability_1"), atol=1e-5)
        assert [int(c) for c in classes] == found.column("prediction")
        told = dict(session.sql("DESCRIBE MODEL m").rows)
        assert "city" in told["columns"]
    scores = visits.execute("SELECT penstock.predict('m', v) > 0 FROM visits AS v ORDER BY id").fetchall()
    assert [row[0] for row in scores] == [c == "1" for c in classes]


def test_rows_without_a_label_are_left_out_and_columns_that_tell_nothing_too(visits: Session) -> None:
    told: list[str] = []
    visits.add_notice_handler(lambda notice: told.append(f"{notice.severity}: {notice.message_primary}"))
    rows = visits.execute("SELECT rows + held_out_rows FROM penstock.train('visits', 'logistic', 'm')").fetchall()
    assert set(rows) == {(1980,)}
    assert 'WARNING: 20 rows have no "label", and are left out' in told
    assert any(note.startswith("NOTICE: left out: ") and '"one" (one value)' in note for note in told)
    found = visits.execute(
        "SELECT header->'encoder'->'left_out', header->'encoder'->'unlabelled' FROM penstock.models"
    ).fetchone()
    assert found is not None
    assert (found[0]["nothing"], found[0]["key"], found[1]) == ("empty", "a value of its own in nearly every row", True)


def test_arrays_and_bytes_beside_other_columns_are_left_out(session: Session) -> None:
    session.execute("""CREATE TABLE t AS SELECT i % 7 AS x, 'c' || i % 5 AS code, ARRAY[i, 1] AS pair, ARRAY['a'] AS tags, '\\x00'::bytea AS raw,
        (i % 7 > 3)::int AS label FROM generate_series(1, 700) AS i""")
    told: list[str] = []
    session.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
    for query, columns in (("t", {"x", "code"}), ("SELECT x, pair, label FROM t", {"x"})):
        session.execute("SELECT penstock.train(%s, 'logistic', %s)", (query, f"of {len(columns)}"))
        text = "SELECT header->'encoder'->'parts' FROM penstock.models WHERE name = %s"
        found = session.execute(text, (f"of {len(columns)}",)).fetchone()
        assert found is not None
        assert {part["columns"][0] for part in found[0]} == columns
        assert any('"pair" (integer[], an array beside other columns)' in note for note in told)
    assert any('"raw" (binary)' in note and '"tags" (text[], ' in note for note in told)
    session.execute("SELECT penstock.train('SELECT pair, label FROM t', 'logistic', 'alone')")
    with pytest.raises(errors.DatatypeMismatch, match="features are one array"):
        session.execute("""SELECT penstock.train('t', 'logistic', 'n', '{"features": ["x", "pair"]}')""")


@pytest.mark.parametrize("source", ["SELECT whole, label FROM visits", "SELECT whole, city, label FROM visits"])
def test_rows_with_nulls_are_filled_left_out_or_refused(visits: Session, source: str) -> None:
    train = "SELECT rows + held_out_rows FROM penstock.train(%s, 'logistic', 'm', %s)"
    nulls = "label IS NULL OR whole IS NULL" + (" OR city IS NULL" if "city" in source else "")
    whole = visits.execute(f"SELECT count(*) FROM visits WHERE NOT ({nulls})".encode()).fetchone()
    assert visits.execute(train, (source, '{"nulls": "skip", "replace": true}')).fetchone() == whole
    assert visits.execute(train, (source, '{"nulls": "fill", "replace": true}')).fetchone() == (1980,)
    with pytest.raises(errors.DataException, match="null") as caught:
        visits.execute(train, (source, '{"nulls": "error", "replace": true}'))
    assert "The row is" in str(caught.value.diag.message_detail)


@pytest.mark.parametrize("model", ["linear", "svm", "softmax"])
@pytest.mark.parametrize("many", [False, True], ids=["dense", "sparse"])
def test_all_models_learn_from_categories(session: Session, model: str, many: bool) -> None:
    session.execute(
        f"""CREATE TABLE t AS SELECT 'c' || i % {300 if many else 30} AS code, 1e6 + i % 7 AS far, (i % 30 < 10)::int AS label
        FROM generate_series(1, 6000) AS i""".encode()
    )
    session.execute("SELECT penstock.train('t', %s, 'm')", (model,))
    width = session.execute("SELECT width, array_length(coef, 1) / outputs FROM penstock.models").fetchone()
    assert width == ((301, 301) if many else (31, 31))
    guess = "round(penstock.predict('m', t))::text" if model == "linear" else "penstock.predict_class('m', t)"
    assert session.execute(f"SELECT avg(({guess} = label::text)::int) FROM t".encode()).fetchone() == (1,)


@pytest.mark.parametrize(("levels", "share"), [(3000, 0.1), (300, 1.0)])
def test_many_rare_features_are_penalized_less(session: Session, levels: int, share: float) -> None:
    session.execute(
        f"""CREATE TABLE t AS SELECT 'c' || i % {levels} AS code, (i % {levels} < {levels // 3} OR i % 7 = 0)::int AS label
        FROM generate_series(1, 9000) AS i""".encode()
    )
    for name, options in (("usual", {}), ("told", {"l2": share / 9000})):
        text = json.dumps({"validation": 0, **options})
        session.execute("SELECT penstock.train('t', 'logistic', %s, %s)", (name, text))
    usual, told = session.execute("SELECT coef FROM penstock.models ORDER BY name DESC").fetchall()
    assert len(usual[0]) == levels
    assert usual == told


def test_an_infinite_number_is_named_by_its_column(session: Session) -> None:
    session.execute("""CREATE TABLE t AS SELECT 'c' || i % 300 AS code, i % 7 + CASE WHEN i = 500 THEN 'Infinity'::float8 ELSE 0 END AS x,
        i % 2 AS label FROM generate_series(1, 2000) AS i""")
    with pytest.raises(errors.DataException, match='the column "x" is Infinity'):
        session.execute("SELECT penstock.train('t')")
    session.execute(
        "UPDATE t SET x = 0 WHERE x > 10; ALTER TABLE t ADD day date; UPDATE t SET day = 'infinity' WHERE label = 1"
    )
    with pytest.raises(errors.DataException, match="infinite"):
        session.execute("SELECT penstock.train('t')")


def test_a_row_that_lacks_a_column_or_holds_another_kind_is_refused(session: Session) -> None:
    session.execute("""CREATE TABLE t AS SELECT ('2024-01-01'::date + i % 90)::text AS day, i % 40 AS x, i % 2 AS label
        FROM generate_series(1, 400) AS i; SELECT penstock.train('t', 'logistic', 'm')""")
    for row, told in (
        ("SELECT x FROM t", 'no column "day"'),
        ("SELECT x, 7 AS day FROM t", '"day" is a number, where dates'),
        ("SELECT x, 'soon' AS day FROM t", '"day" is "soon" in a row, where dates'),
        ("SELECT now() AS x, day FROM t", '"x" is a date, where a number'),
    ):
        with pytest.raises(psycopg.Error, match=told):
            session.execute(f"SELECT penstock.predict('m', q) FROM ({row}) AS q".encode())
    session.execute("CREATE TABLE p AS SELECT i % 3 AS a, i % 5 AS b, i % 2 AS label FROM generate_series(1, 400) AS i")
    session.execute("SELECT penstock.train('p', 'logistic', 'plain')")
    asked = (
        "SELECT penstock.predict('plain', q), penstock.predict('plain', ARRAY[a, b]) FROM (SELECT 2 AS b, {} AS a) AS q"
    )
    found = session.execute(asked.format("1").encode()).fetchone()
    assert found is not None
    assert found[0] == pytest.approx(found[1])
    assert session.execute(asked.format("NULL::int").encode()).fetchone() == (None, None)
