"""Columns of few whole numbers: what is told where they are codes that are learned from as quantities, and where they are none."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.blocks.memory import TableSource
from penstock.columns.level_effects import LevelEffects
from penstock.config import Config
from penstock.events import Stream, Warned
from penstock.memory_learner import linear_job
from penstock.training import Columns

ROWS = 6_000
RNG = np.random.default_rng(7)
CODES = RNG.integers(0, 12, ROWS)
EFFECTS = RNG.permutation(np.linspace(-2, 2, 12))[CODES]
AGES, COUNTS, RATINGS = RNG.integers(20, 60, ROWS), RNG.poisson(2, ROWS), RNG.integers(1, 6, ROWS)
NOISE = RNG.normal(size=ROWS)
CHANCE = RNG.random(ROWS)


def drawn(score):
    return (1 / (1 + np.exp(-score)) > CHANCE).astype(int)


def warned(table, *, model="logistic", **columns):
    told = []
    stream = Stream([lambda event: told.append(str(event.message)) if isinstance(event, Warned) else None])
    source = TableSource.of(table, block_size=4_000)
    trained = linear_job(source, Config(model=model), Columns(label="y", **columns), stream=stream).run()
    return told, trained


def table(column, y):
    return pa.table({"c": column, "x": NOISE, "y": y})


def explained(data, *, model="logistic", **columns):
    return [str(notice) for notice in penstock.explain(data, label="y", model=model, measure=False, **columns).notices]


@pytest.mark.parametrize("model", ["logistic", "svm", "softmax", "linear"])
@pytest.mark.parametrize("kind", [np.int32, np.float64])
def test_codes_that_are_learned_from_as_quantities_are_told_of(model, kind):
    y = {"linear": EFFECTS + NOISE, "softmax": CODES * 5 % 12 % 3}.get(model, drawn(EFFECTS))
    data = table(CODES.astype(kind), y)
    message = (
        r"learned from as quantities: 'c' \(its 12 values explain \d+% of how 'y' varies, a line .*category=\['c'\]"
    )
    for told in (warned(data, model=model)[0], explained(data, model=model)):
        assert [text for text in told if "quantities" in text]
        assert re.search(message, " ".join(told))


def test_codes_with_missing_values_are_told_of_too():
    data = table(pa.array(CODES, mask=NOISE > 0.8), drawn(EFFECTS))
    assert any("'c' (its 12 values" in text for text in warned(data)[0])
    assert any("'c' (its 12 values" in text for text in explained(data))


@pytest.mark.parametrize("named", [{"category": ["c"]}, {"number": ["c"]}])
def test_columns_whose_kind_is_named_are_not_told_of(named):
    data = table(CODES, drawn(EFFECTS))
    assert not any("quantities" in text for text in (*warned(data, **named)[0], *explained(data, **named)))


@pytest.mark.parametrize(
    ("column", "y", "model"),
    [
        (AGES, drawn((AGES - 40) / 5), "logistic"),
        (COUNTS, drawn(3.0 * (COUNTS - 2)), "logistic"),
        (RATINGS, drawn(RATINGS - 3.0), "logistic"),
        (RATINGS, 2.0 * RATINGS + NOISE, "linear"),
        (COUNTS, np.log1p(COUNTS) + NOISE, "linear"),
        (COUNTS, RNG.standard_cauchy(ROWS), "linear"),
        (RATINGS, np.digitize(RATINGS + NOISE, [2, 4]), "softmax"),
        (CODES, drawn(np.zeros(ROWS)), "logistic"),
        (CODES, drawn(0.05 * EFFECTS), "logistic"),
        (CODES % 2, drawn(CODES % 2 - 0.5), "logistic"),
    ],
)
def test_quantities_and_noise_are_not_told_of(column, y, model):
    data = table(column, y)
    assert not any(
        "as quantities: 'c' (its" in text for text in (*warned(data, model=model)[0], *explained(data, model=model))
    )


def test_few_rows_say_nothing():
    found = LevelEffects(["c"])
    found.add({"c": CODES[:60].astype(float)}, drawn(EFFECTS)[:60].astype(float))
    assert found.levels == {"c": 12}
    assert not found.codes(classes=True)


def test_columns_of_many_or_of_broken_numbers_are_looked_at_no_more():
    found = LevelEffects(["many", "broken", "few"])
    for start in (0, 40):
        rows = np.arange(start, start + 40.0)
        found.add({"many": rows, "broken": rows / 2, "few": rows % 5}, rows % 2)
        assert found.columns == (["many", "few"] if not start else ["few"])


def test_a_useless_model_names_the_columns_of_few_whole_numbers():
    code = np.arange(ROWS) % 20
    data = pa.table({"code": code, "y": np.array([0, 1, 1, 0])[code % 4]})
    told, model = warned(data)
    useless = next(text for text in told if "the model is useless" in text)
    assert useless.endswith(
        "whole numbers were taken as quantities: 'code' (20 different); where they are codes, use category=['code']"
    )
    assert model.metrics["few_valued"] == {"code": 20}
    assert "few_valued" not in warned(data, category=["code"])[1].metrics


def test_a_look_at_some_blocks_leaves_row_numbers_out_and_keeps_quantities(tmp_path):
    rows = 40_000
    rng = np.random.default_rng(0)
    columns = {
        "rownum": np.arange(5, rows + 5),
        "shuffled": rng.permutation(rows),
        "amount": rng.integers(0, rows, rows),
        "sparse": rng.permutation(10 * rows)[:rows],
        "y": rng.integers(0, 2, rows),
    }
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=100)
    with penstock.open(path, block_size=4_000) as source:
        assert len(source.block_rows) > 256, "not all blocks are looked at"
        told = penstock.explain(source, label="y", measure=False)
        assert dict(told.left_out) == {"rownum": "row numbers", "shuffled": "row numbers"}
        assert told.left_out == Columns(label="y").recipe(source).left_out | dict(
            linear_job(source, Config(), Columns(label="y")).run().recipe.left_out
        )
        named = penstock.explain(source, label="y", features=["rownum", "amount"], measure=False)
        assert not named.left_out
