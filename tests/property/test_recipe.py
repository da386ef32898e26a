"""Recipes of generated tables: saved and read again they are the same, and rows do not depend on how they are cut."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.batch import Csr
from penstock.blocks.memory import TableSource
from penstock.columns.recipe import Recipe
from penstock.errors import PenstockError
from penstock.training import Columns

PAIR = pa.struct([("a", pa.float64()), ("b", pa.string())])
VALUES = {
    "number": (st.floats(-1e6, 1e6, width=32) | st.just(float("nan")), pa.float64()),
    "whole": (st.integers(-(2**31), 2**31 - 1), pa.int64()),
    "flag": (st.booleans(), pa.bool_()),
    "level": (st.sampled_from(["a", "b", "", "ü", "NA", "?", " "]), pa.string()),
    "text": (st.text(max_size=8), pa.large_string()),
    "digits": (st.integers(0, 99).map(str) | st.just("?"), pa.string()),
    "day": (st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)), pa.date32()),
    "time": (st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)), pa.timestamp("us")),
    "iso": (st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)).map(str), pa.string()),
    "span": (st.timedeltas(datetime.timedelta(0), datetime.timedelta(days=9)), pa.duration("us")),
    "term": (st.tuples(*[st.integers(-40, 40)] * 3), pa.month_day_nano_interval()),
    "price": (st.decimals(-999, 999, places=2), pa.decimal128(9, 2)),
    "count": (st.integers(0, 2**64 - 1), pa.uint64()),
    "clock": (st.times(), pa.time64("us")),
    "coded": (st.sampled_from(["a", "b", "", "ü"]), pa.dictionary(pa.int8(), pa.string())),
    "view": (st.sampled_from(["a", "b", ""]), pa.string_view()),
    "list": (st.lists(st.floats(-9, 9, width=32), min_size=2, max_size=2), pa.list_(pa.float32(), 2)),
    "pair": (st.fixed_dictionaries({"a": st.none() | st.floats(-9, 9), "b": st.none() | st.text(max_size=3)}), PAIR),
}


@st.composite
def tables(draw):
    rows = draw(st.integers(1, 40))
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5, unique=True))
    columns = {}
    for name in names:
        values, kind = VALUES[name]
        values = values if name == "list" else st.none() | values  # a list is in every row
        columns[name] = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
    return pa.table(columns | {"label": pa.array([i % 2 for i in range(rows)])})


def dense(x):
    return x.to_dense() if isinstance(x, Csr) else x


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.sampled_from(["auto", "fill", "indicator"]), st.integers(1, 40), st.integers(1, 40))
def test_a_recipe_is_the_same_after_json_and_for_any_cut_of_the_rows(table, policy, cut, known):
    """It is fitted to some of the rows, so that the others have levels and missing values that it does not know."""
    names = [name for name in table.schema.names if name not in ("label", "pair")]
    names += ["pair.a", "pair.b"] if "pair" in table.schema.names else []
    source = TableSource.of(table.slice(0, known), block_size=100)
    try:
        recipe = Columns(label="label", features=names, missing=policy).recipe(source)
    except PenstockError:  # no column has a value
        return
    recipe = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))).for_schema(table.schema, place="again")
    filled = [
        each if each.kind != "number" or each.fill is not None else type(each)(each.column, 0.0)
        for each in recipe.parts
    ]
    recipe = Recipe(tuple(filled), place="again", members=recipe.members)
    rows = table.combine_chunks().to_batches()[0]
    whole = dense(recipe.encode(rows).x)
    assert whole.shape == (len(rows), recipe.width)
    assert np.isfinite(whole).all()
    parts = [dense(recipe.encode(rows.slice(at, cut)).x) for at in range(0, len(rows), cut)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
