"""A recipe in SQL gives the scores that it gives in Python, on both engines and whatever the columns hold."""

from __future__ import annotations

import datetime
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
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.labels import LabelMap
from penstock.columns.number import Number
from penstock.columns.recipe import Recipe
from penstock.linear import LinearModel
from penstock.sgd.model import Weights
from penstock.sql.engines.duckdb.engine import DuckDBEngine
from penstock.sql.engines.postgres.engine import PostgresEngine
from penstock.sql.prediction_query import select_predictions
from penstock.sql.statements import Query
from tests.servers import Server

LEVELS = ("", "a", "A", " a", "it's", "back\\slash", "größe ☃", "null", '"quoted"', "{1,2}", "$1", "%s")
UNSEEN = ("b", "NA", "?", "e\u0301", "𝔘", "line\nbreak")
NULLS = ("NA", "?")
MOMENTS = st.datetimes(datetime.datetime(1903, 1, 1), datetime.datetime(2140, 1, 1)).map(
    lambda each: each.replace(microsecond=each.microsecond // 1000 * 1000)
)
DATES = st.dates(datetime.date(1903, 1, 1), datetime.date(2140, 1, 1))
FLOATS = st.one_of(st.floats(-1000, 1000, width=32), st.just(math.nan))
TEXTS = st.sampled_from([*LEVELS, *UNSEEN])
NUMBERS = st.one_of(st.integers(-99, 99).map(str), st.sampled_from(["2.5", " 7 ", "1e2", "nan", *NULLS]))
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "real": (pa.float32(), FLOATS),
    "double": (pa.float64(), FLOATS),
    "small": (pa.int16(), st.integers(-9, 9)),
    "large": (pa.int64(), st.integers(-999, 999)),
    "flag": (pa.bool_(), st.booleans()),
    "tiny": (pa.uint8(), st.integers(0, 255)),
    "count": (pa.uint64(), st.integers(0, 9999)),
    "price": (pa.decimal128(9, 2), st.decimals(-999, 999, places=2)),
    "clock": (pa.time64("us"), st.times()),
    "span": (pa.duration("us"), st.timedeltas(datetime.timedelta(days=-9), datetime.timedelta(days=900))),
    "term": (
        pa.month_day_nano_interval(),
        st.tuples(
            st.integers(-40, 40), st.integers(-99, 99), st.integers(-(10**9), 10**9).map(lambda each: 1000 * each)
        ),
    ),
    "figures": (pa.string(), NUMBERS),
    "text": (pa.string(), TEXTS),
    "code": (pa.int32(), st.integers(0, 4)),
    "answer": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), DATES),
    "moment": (pa.timestamp("us"), MOMENTS),
    "zoned": (pa.timestamp("us", "UTC"), MOMENTS),
    "written": (
        pa.string(),
        st.one_of(MOMENTS.map(lambda each: each.isoformat(" ", "seconds")), st.sampled_from(NULLS)),
    ),
    "written_zoned": (
        pa.string(),
        st.one_of(
            st.tuples(MOMENTS, st.sampled_from(["Z", "+00:00", "-05:30", "+0200", "+14"])).map(
                lambda each: each[0].isoformat("T", "milliseconds") + each[1]
            ),
            st.sampled_from(NULLS),
        ),
    ),
}


@pytest.fixture(scope="module")
def engines(postgres: Server) -> Iterator[list[Any]]:
    with postgres.database() as address, closing(PostgresEngine(address)) as server, closing(DuckDBEngine()) as file:
        server.run("SET TimeZone = 'Asia/Tokyo'")  # parts of dates are those of UTC wherever a session is
        yield [server, file]


@st.composite
def parts(draw: st.DrawFn, name: str) -> list[Any]:
    """The features of a column, with what a fit may have found."""
    yes = st.booleans()
    nulls = NULLS if name in ("figures", "written", "written_zoned") or (name == "text" and draw(yes)) else ()
    if name in ("text", "code", "answer"):
        known = {"text": LEVELS, "code": ("0", "1", "2"), "answer": ("false", "true")}[name]
        levels = tuple(draw(st.lists(st.sampled_from(known), unique=True)))
        return [Category(name, levels, draw(yes), draw(yes), draw(yes), nulls)]
    if name in ("day", "moment", "zoned", "written", "written_zoned"):
        months, days, hours = ([str(n) for n in range(*ends)] for ends in ((1, 13), (1, 8), (0, 24)))
        found: list[Any] = [Date(name, float(draw(st.integers(-9000, 9000))), draw(yes), nulls)]
        for of, levels in (("month", months), ("weekday", days), ("hour", hours)):
            if draw(yes):
                found.append(Category(name, tuple(levels[:5]), draw(yes), draw(yes), null_values=nulls, of=of))
        return found
    return [Number(name, draw(st.floats(-9, 9)), draw(yes), nulls)]


@st.composite
def models(draw: st.DrawFn) -> tuple[LinearModel, pa.Table]:
    """A model of random weights over some columns, and rows for it."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=6, unique=True))
    found = sorted((part for name in names for part in draw(parts(name))), key=lambda part: part.sparse)
    rows = draw(st.integers(1, 4))
    columns = {}
    for name in names:
        kind, values = VALUES[name]
        columns[name] = pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
    several = draw(st.booleans())
    labels = LabelMap(("x", "y", "z") if several else ("x", "y"), binary=not several)
    recipe = Recipe(tuple(found), "label", labels=labels)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    size = (3 if several else 1, recipe.width or 0)
    sizes = {"span": 1e-8, "term": 1e-8} | {part.columns[0]: 1e-3 for part in found if part.kind == "date"}
    scale = np.concatenate([np.full(part.width or 0, sizes.get(part.columns[0], 0.05)) for part in found])
    weights = Weights((scale * rng.normal(size=size)).astype(np.float32), np.zeros(size[0], np.float32))
    return LinearModel("softmax" if several else "logistic", weights, recipe), pa.table(columns)


def probabilities(engine: Any, model: LinearModel, query: str) -> list[Any]:
    schema = engine.describe(Query(query))
    text = select_predictions(model, query, schema=schema, dialect=engine.dialect)
    assert text is not None
    names = ", ".join(f"probability_{each}" for each in ("x", "y", "z")[: len(model.classes)])
    return engine.run(f"SELECT {names} FROM ({text}) AS p").rows


@settings(max_examples=150)
@given(models())
def test_scores_in_sql_are_those_of_the_recipe(engines: list[Any], data: tuple[LinearModel, pa.Table]) -> None:
    model, rows = data
    wanted = pa.Table.from_batches(list(model.predictions(TableSource.of(rows)))).drop_columns(["prediction"])
    for engine in engines:
        found = probabilities(engine, model, f"SELECT * FROM {engine.store_rows(rows.to_reader())}")
        assert np.array(found, float) == pytest.approx(
            np.array([list(r.values()) for r in wanted.to_pylist()]), abs=1e-5
        )
