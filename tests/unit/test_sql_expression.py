"""A model as SQL agrees with the model itself, on both engines and whatever the columns hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.blocks.memory import TableSource
from penstock.columns.choose import choose_features
from penstock.columns.labels import LabelMap
from penstock.errors import ColumnError, DatabaseError, FeatureError, UsageError
from penstock.linear import LinearModel
from penstock.sgd.model import Weights
from penstock.sql.catalog import Catalog
from penstock.sql.dialect import double_literal, nested_sum, quote_identifier
from penstock.sql.engines.duckdb.engine import DuckDBEngine
from penstock.sql.engines.duckdb.predictions import DUCKDB
from penstock.sql.engines.postgres.engine import PostgresEngine
from penstock.sql.engines.postgres.predictions import POSTGRES
from penstock.sql.prediction_query import added_columns, select_predictions
from penstock.sql.statements import Query
from tests.servers import Server

HOSTILE = ['a"b', "x'); DROP TABLE t;--", "100%s", "back\\slash", "{brace}", "größe ☃", "select", "Mixed Case", "$1"]


@pytest.fixture(scope="module")
def engines(postgres: Server) -> Iterator[dict[str, Any]]:
    with postgres.database() as address, closing(PostgresEngine(address)) as server, closing(DuckDBEngine()) as file:
        server.run("CREATE SCHEMA away")
        server.run("CREATE EXTENSION vector SCHEMA away")
        yield {"postgresql": server, "duckdb": file}


@pytest.fixture(params=["duckdb", "postgresql"])
def engine(request: pytest.FixtureRequest, engines: dict[str, Any]) -> Any:
    return engines[request.param]


def model_of(
    rows: pa.Table, kind: str = "logistic", *, classes: tuple[Any, ...] = (0, 1), scale: float = 1.0, width: int = 0
) -> LinearModel:
    """A model of random weights over all columns but ``label``."""
    recipe = choose_features(rows.schema, label="label")
    if recipe.width is None:
        recipe = recipe.with_width(width)
    if kind != "linear":
        recipe = recipe.with_labels(LabelMap(classes, binary=kind != "softmax"))
    outputs, rng = len(classes) if kind == "softmax" else 1, np.random.default_rng(7)
    coef = (scale * rng.normal(size=(outputs, recipe.width or 0))).astype(np.float32)
    return LinearModel(kind, Weights(coef, rng.normal(size=outputs).astype(np.float32)), recipe)


def asked(engine: Any, model: LinearModel, query: str, **options: Any) -> list[dict[str, Any]]:
    text = select_predictions(model, query, schema=engine.describe(Query(query)), dialect=engine.dialect, **options)
    assert text is not None
    found = engine.run(text)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def compare(engine: Any, model: LinearModel, rows: pa.Table, **options: Any) -> None:
    """See that the engine predicts what the model does, but for ties."""
    found = asked(engine, model, f"SELECT * FROM {engine.store_rows(rows.to_reader())}", **options)
    source = TableSource.of(rows)
    wanted = pa.Table.from_batches(list(model.predictions(source))).to_pylist()
    assert len(found) == len(wanted)
    scores = np.concatenate([np.asarray(block, np.float64) for block in model.block_scores(source)])
    size = 1e-5 * (1 + np.abs(scores).max(initial=0))
    for row, want, score in zip(found, wanted, scores, strict=True):
        assert list(row) == rows.schema.names + list(want)
        for name, value in want.items():
            if name != "prediction":
                assert row[name] == pytest.approx(value, abs=1e-5)
        if model.kind == "linear":
            assert row["prediction"] == pytest.approx(want["prediction"], abs=size)
            continue
        two = np.sort(np.append(score, 0.0) if np.ndim(score) == 0 else score)[-2:]
        if abs(two[1] - two[0]) > 10 * size:
            assert row["prediction"] == want["prediction"]
            assert type(row["prediction"]) is type(want["prediction"])


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, int]:
    """Rows of some mixture of columns, and how many features the sparse ones have."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 5))
    columns: dict[str, pa.Array] = {}
    kinds = draw(st.lists(st.sampled_from(["float", "double", "int", "bool", "vector"]), max_size=4))
    for place, kind in enumerate(kinds):
        values = rng.normal(size=rows) * 10.0 ** rng.integers(-3, 3)
        made = {
            "float": pa.array(values, pa.float32()),
            "double": pa.array(values),
            "int": pa.array(rng.integers(-5, 5, rows), pa.int64()),
            "bool": pa.array(rng.random(rows) < 0.5),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * rows), pa.float32()), 3),
        }
        columns[f"{kind} {place}"] = made[kind]
    if draw(st.booleans()) or not kinds:
        counts = rng.integers(0, 4, rows)
        columns["features_k"] = pa.array([rng.integers(0, 12, n).tolist() for n in counts], pa.list_(pa.int32()))
        columns["features_v"] = pa.array([rng.normal(size=n).tolist() for n in counts], pa.list_(pa.float32()))
    return pa.table({**columns, "label": pa.array(np.zeros(rows, np.int64))}), 10


CLASSES: list[tuple[Any, ...]] = [(0, 1), (-1.5, 2.0), ("ham", "it's"), (False, True), (0, 1, 2), ("a", "b%", "c\\")]


@settings(max_examples=40)
@given(tables(), st.sampled_from(["logistic", "svm", "linear", "softmax"]), st.sampled_from(CLASSES))
def test_agrees_with_the_model(
    engines: dict[str, Any], data: tuple[pa.Table, int], kind: str, classes: tuple[Any, ...]
) -> None:
    rows, width = data
    classes = classes[:2] if kind in ("logistic", "svm") else classes
    width += sum(3 if name.startswith("vector") else 1 for name in rows.schema.names if " " in name)
    model = model_of(rows, kind, classes=classes, width=width)
    for engine in engines.values():
        compare(engine, model, rows)


def vectors(width: int, rows: int = 4) -> pa.Table:
    values = np.random.default_rng(1).normal(size=(rows, width)).astype(np.float32)
    features = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), width)
    return pa.table({"features_v": features, "label": np.zeros(rows, np.int64)})


def pairs(width: int, rows: int = 4) -> pa.Table:
    rng = np.random.default_rng(1)
    places = [rng.integers(0, width, 20).tolist() for _ in range(rows)]
    values = [rng.normal(size=20).tolist() for _ in range(rows)]
    columns = {"features_k": pa.array(places, pa.list_(pa.int32()))}
    return pa.table(
        {**columns, "features_v": pa.array(values, pa.list_(pa.float32())), "label": np.zeros(rows, np.int64)}
    )


@pytest.mark.parametrize("kind", ["svm", "softmax"])
@pytest.mark.parametrize("make", [vectors, pairs])
def test_wide_weights_come_as_arrays_or_from_the_catalogue(engine: Any, kind: str, make: Any) -> None:
    rows = make(1500)
    model = model_of(rows, kind, classes=(0, 1, 2) if kind == "softmax" else (0, 1), width=1500, scale=0.1)
    compare(engine, model, rows)
    catalog = Catalog(engine)
    catalog.save(f"wide '{kind}'", model, exists="replace")
    stored = catalog.find(f"wide '{kind}'")[1]
    compare(engine, model, rows, stored=stored)
    text = select_predictions(model, "SELECT 1", schema=rows.schema, dialect=engine.dialect, stored=stored)
    assert text is not None
    assert len(text) < 8000  # the weights, of some 20 characters each, are not in it


def test_a_view_keeps_to_its_version_until_that_is_dropped(engine: Any) -> None:
    rows, catalog = vectors(1200), Catalog(engine)
    model = model_of(rows, "linear", scale=0.1)
    catalog.save("m", model, exists="replace")
    engine.run("DROP TABLE IF EXISTS wide_rows CASCADE")
    engine.run(f"CREATE TABLE wide_rows AS SELECT * FROM {engine.store_rows(rows.to_reader())}")
    query = "SELECT * FROM wide_rows"
    text = select_predictions(
        model, query, schema=engine.describe(Query(query)), dialect=engine.dialect, stored=catalog.find("m")[1]
    )
    engine.run(f"CREATE OR REPLACE VIEW foretold AS {text}")
    assert len(engine.run("SELECT prediction FROM foretold").rows) == 4
    before = engine.run("SELECT prediction FROM foretold").rows
    catalog.save("m", model_of(rows, "linear", scale=0.7), exists="replace")
    assert engine.run("SELECT prediction FROM foretold").rows == before
    catalog.set_default("m", catalog.versions("m")[-2][0].number)
    assert engine.run("SELECT prediction FROM foretold").rows == before
    catalog.drop("m")
    with pytest.raises(
        DatabaseError, match="the model m was dropped or renamed; train or name another, and make this view"
    ):
        engine.run("SELECT prediction FROM foretold")
    engine.run("DROP VIEW foretold")


def test_what_is_missing_makes_the_prediction_null(engine: Any) -> None:
    nan = math.nan
    rows = pa.table(
        {
            "x": pa.array([1.0, None, nan, 1.0, 1.0, 1.0, 1.0, 1.0]),
            "f": pa.array([[1, 2], [1, 2], [1, 2], None, [1, None], [1], [1, 2, 3], [1, nan]], pa.list_(pa.float32())),
        }
    )
    learnt = pa.schema({"x": pa.float64(), "f": pa.list_(pa.float32(), 2), "label": pa.int64()})
    for kind, classes in (("logistic", ("a", "b")), ("softmax", (0, 1, 2)), ("linear", ())):
        model = model_of(learnt.empty_table(), kind, classes=classes)
        for warehouse in (False, True):
            found = asked(engine, model, f"SELECT * FROM {engine.store_rows(rows.to_reader())}", warehouse=warehouse)
            added = [[value for name, value in row.items() if name.startswith("pr")] for row in found]
            assert all(value is not None for value in added[0])
            assert [set(values) for values in added[1:]] == [{None}] * 7


def test_odd_arrays_of_a_wide_model(engine: Any) -> None:
    good = [0.5] * 1500
    odd = pa.array([good, [*good[1:], None], good[1:], [*good, 1.0], None], pa.list_(pa.float32()))
    query = f"SELECT * FROM {engine.store_rows(pa.table({'features_v': odd}).to_reader())}"
    found = [row["prediction"] is None for row in asked(engine, model_of(vectors(1500), "linear"), query)]
    assert found == [False, True, True, True, True]


def test_sparse_rows_that_are_odd(engine: Any) -> None:
    nothing: list[Any] = []
    cases: list[tuple[Any, Any, float | None]] = [
        ([0, 1], [1.0, 1.0], 3.0),
        ([1, 1], [1.0, 2.0], 6.0),  # the same place twice
        (nothing, nothing, 0.0),
        ([0, 9, 2_147_483_647], [1.0, 5.0, 5.0], 1.0),  # places that the model has not seen are left out
        ([-1], [1.0], None),
        (None, [1.0], None),
        ([0], None, None),
        ([0, None], [1.0, 1.0], None),
        ([0, 1], [1.0, None], None),
        ([0, 1], [1.0], None),
        ([0], [math.nan], None),
    ]
    columns = zip(*cases, strict=True)
    rows = pa.table(
        [pa.array(next(columns), pa.list_(pa.int32())), pa.array(next(columns), pa.list_(pa.float32()))],
        names=["features_k", "features_v"],
    )
    model = model_of(pairs(2), "linear", width=2)
    model.weights.coef[:], model.weights.intercept[:] = [[1, 2]], 0
    found = asked(engine, model, f"SELECT * FROM {engine.store_rows(rows.to_reader())}")
    assert [row["prediction"] for row in found] == list(next(columns))


@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_scores_far_out_do_not_overflow(engine: Any, kind: str) -> None:
    rows = pa.table({"x": [0.0, 1e4, -1e4, 3e30, -3e30], "label": [0] * 5})
    model = model_of(rows, kind, classes=(0, 1))
    model.weights.coef[:] = [[1], [-1]] if kind == "softmax" else [[1]]
    model.weights.intercept[:] = 0
    found = asked(engine, model, f"SELECT * FROM {engine.store_rows(rows.to_reader())}")
    first = [row["probability_0"] for row in found]
    assert first == pytest.approx([0.5, 1, 0, 1, 0] if kind == "softmax" else [0.5, 0, 1, 0, 1], abs=1e-9)
    assert [row["probability_1"] for row in found] == pytest.approx([1 - share for share in first], abs=1e-9)


def test_hostile_names_of_columns_and_classes(engine: Any) -> None:
    rng = np.random.default_rng(0)
    rows = pa.table({**{name: rng.normal(size=3) for name in HOSTILE}, "label": ["a"] * 3})
    compare(engine, model_of(rows, "softmax", classes=tuple(sorted(HOSTILE))), rows)
    if engine.name == "postgresql":
        engine.run("SET standard_conforming_strings = off")
        engine.run("SET escape_string_warning = off")
        compare(engine, model_of(rows, "logistic", classes=("\\", "\\' OR '1'='1")), rows)
        engine.run("RESET ALL")


def test_a_thousand_terms_do_not_nest_too_deep(engine: Any) -> None:
    rng = np.random.default_rng(0)
    rows = pa.table({**{f"c{place}": rng.normal(size=2).astype(np.float32) for place in range(1200)}, "label": [0, 1]})
    compare(engine, model_of(rows, "linear", scale=0.1), rows)
    deepest = max(text.count("(") for text in nested_sum(["x"] * 1000).split("x"))
    assert deepest <= 10


def test_packed_features(engines: dict[str, Any]) -> None:
    values = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    values[1] = [0, -0.0, 1e-42, 3e38, -3e38, 1]
    rows = pa.table(
        {"f": pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 6), "label": np.zeros(5, np.int64)}
    )
    odd = [*(row.tobytes() for row in values), b"\0" * 20, None, np.full(6, np.nan, np.float32).tobytes()]
    packed = pa.table({"f": pa.array(odd, pa.binary())})
    model = model_of(rows, "linear")
    wanted = pa.Table.from_batches(list(model.predictions(TableSource.of(rows))))["prediction"].to_pylist()
    server, file = engines["postgresql"], engines["duckdb"]
    for wide in (False, True):
        if wide:  # as an array of weights
            coef = np.concatenate([model.weights.coef] * 3 + [np.zeros((1, 1500), np.float32)], axis=1)
            more = pa.field("g", pa.list_(pa.float32(), coef.shape[1] - 6))
            recipe = choose_features(
                pa.schema([rows.schema.field("f"), more, rows.schema.field("label")]), label="label"
            )
            model = LinearModel("linear", Weights(coef, model.weights.intercept), recipe)
        query = (
            f"SELECT *{', array_fill(0::real, ARRAY[1512]) AS g' * wide} FROM {server.store_rows(packed.to_reader())}"
        )
        found = [row["prediction"] for row in asked(server, model, query)]
        assert found[:5] == pytest.approx(wanted, rel=1e-5)
        assert found[5:] == [None, None, None]
    query = f"SELECT * FROM {file.store_rows(packed.to_reader())}"
    model = model_of(rows, "linear")
    assert select_predictions(model, query, schema=file.describe(Query(query)), dialect=DUCKDB) is None


def test_pgvector(engines: dict[str, Any]) -> None:
    rows, server = vectors(3), engines["postgresql"]
    model = model_of(rows, "linear")
    wanted = pa.Table.from_batches(list(model.predictions(TableSource.of(rows))))["prediction"].to_pylist()
    name = server.store_rows(rows.to_reader())
    for kind in ("away.vector", "away.vector(3)"):
        query = f"SELECT label, features_v::{kind} FROM {name}"
        text = select_predictions(model, query, schema=server.describe(Query(query)), dialect=POSTGRES) or ""
        assert "<#>" in text
        assert [row["prediction"] for row in asked(server, model, query)] == pytest.approx(wanted, abs=1e-5)
    query = "SELECT features_v FROM (VALUES ('[1,2]'::away.vector), (NULL)) AS v(features_v)"
    assert [row["prediction"] for row in asked(server, model, query)] == [None, None]


def test_arrays_that_count_from_elsewhere_are_not_mistaken(engines: dict[str, Any]) -> None:
    model = model_of(vectors(2), "linear")
    query = "SELECT * FROM (VALUES ('[0:1]={1,2}'::real[]), ('{{1,2}}'), ('[2:3]={1,2}')) AS v(features_v)"
    assert [row["prediction"] for row in asked(engines["postgresql"], model, query)] == [None, None, None]


def test_a_model_learnt_from_a_packed_copy_reads_the_columns_it_was_packed_from(engine: Any) -> None:
    rows = pa.table({"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]})
    plain = model_of(rows, "linear")
    packed = choose_features(pa.schema({"features": pa.list_(pa.float32(), 2), "label": pa.int64()}), label="label")
    origin = [part.to_dict() for part in plain.recipe.parts]
    recipe = type(packed)(packed.parts, "label", origin=origin)
    model = LinearModel("linear", plain.weights, recipe)
    query = f"SELECT * FROM {engine.store_rows(rows.to_reader())}"
    assert asked(engine, model, query) == asked(engine, plain, query)


def test_the_columns_that_are_added(engine: Any) -> None:
    rows = pa.table({"x": [1.0], "label": [0]})
    query = f"SELECT * FROM {engine.store_rows(rows.to_reader())} -- and a comment"
    row = asked(engine, model_of(rows, "logistic"), query, warehouse=True)[0]
    assert list(row) == ["x", "label", "predicted_label", "predicted_label_probs"]
    probable = {each["label"]: each["prob"] for each in row["predicted_label_probs"]}
    plain = asked(engine, model_of(rows, "logistic"), query)[0]
    assert probable == {0: plain["probability_0"], 1: plain["probability_1"]}
    for kind in ("svm", "linear"):
        assert list(asked(engine, model_of(rows, kind), query, warehouse=True)[0])[2:] == ["predicted_label"]
        assert list(asked(engine, model_of(rows, kind), query)[0])[2:] == ["prediction"]
    with pytest.raises(UsageError, match=r"has a column .prediction. already.*AS other"):
        asked(engine, model_of(rows, "svm"), "SELECT 1.5 AS x, 2 AS prediction")
    ordered = asked(engine, model_of(rows, "svm"), "SELECT x FROM generate_series(1, 50) AS g(x) ORDER BY 7 * x % 50")
    assert [row["x"] for row in ordered] == sorted(range(1, 51), key=lambda x: 7 * x % 50)


def test_names_that_an_engine_takes_for_one_another() -> None:
    rows = pa.table({"x": [1.0], "label": ["a"]})
    model = model_of(rows, classes=("A", "a"))
    assert added_columns(model, dialect=DUCKDB) == ["prediction", "probability_A", "probability_a_2"]
    assert added_columns(model, dialect=POSTGRES) == ["prediction", "probability_A", "probability_a"]
    with pytest.raises(UsageError, match="'PREDICTION' already"):
        added_columns(model, dialect=DUCKDB, present=["PREDICTION"])
    long = model_of(rows, classes=("é" * 40 + "1", "é" * 40 + "2"))
    first, second = added_columns(long, dialect=POSTGRES)[1:]
    assert (first, second) == ("probability_" + "é" * 25, "probability_" + "é" * 24 + "_2")
    many = model_of(rows, "softmax", classes=tuple(range(1600)))
    with pytest.raises(UsageError, match="1600 classes"):
        added_columns(many, dialect=POSTGRES)


def test_what_cannot_be_written_or_does_not_fit() -> None:
    schema = pa.schema({"word": pa.string(), "label": pa.int64()})
    recipe = choose_features(schema, label="label", hash=["word:2^4"])
    hashed = LinearModel("linear", Weights.zeros(16), recipe)
    assert select_predictions(hashed, "q", schema=schema, dialect=DUCKDB) is None
    model = model_of(vectors(3), "svm")
    wrong = [
        (pa.schema({"other": pa.float32()}), ColumnError, "no feature column 'features_v'"),
        (pa.schema({"features_v": pa.list_(pa.float32(), 4)}), ColumnError, "holds 4 values a row where 3"),
        (pa.schema({"features_v": pa.string()}), ColumnError, "is string, where lists of 3 numbers"),
        (pa.schema([("features_v", pa.list_(pa.float32()))] * 2), UsageError, "two columns 'features_v'"),
    ]
    for present, error, told in wrong:
        with pytest.raises(error, match=told):
            select_predictions(model, "q", schema=present, dialect=POSTGRES)
    numbers = model_of(pa.table({"x": [1.0], "label": [0]}), "svm")
    with pytest.raises(FeatureError, match=r"'x' is date32.*, where a number was learnt from"):
        select_predictions(numbers, "q", schema=pa.schema({"x": pa.date32()}), dialect=DUCKDB)
    assert '"X"' in (select_predictions(numbers, "q", schema=pa.schema({"X": pa.int32()}), dialect=DUCKDB) or "")


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_weights_are_written_to_the_last_bit(weight: float) -> None:
    written = double_literal(np.float32(weight))
    assert written.endswith("'::float8")
    assert np.float32(float(written.split("'")[1])) == np.float32(weight)


def test_literals_come_back_as_they_were(engine: Any) -> None:
    values: list[Any] = [None, True, 3, -(2**63), 2**63, 0.1, -1e300, "", "it's %s \\ \" {}", *HOSTILE]
    text = "SELECT " + ", ".join(engine.dialect.literal(value) for value in values)
    assert list(engine.run(text).rows[0]) == values
    assert engine.run(f"SELECT 1 AS {quote_identifier(HOSTILE[0])}").columns == ('a"b',)
    with pytest.raises(UsageError, match="zero byte"):
        quote_identifier("a\0b")
    with pytest.raises(UsageError, match="zero byte"):
        POSTGRES.literal("a\0b")
