"""The options of the recipe in Python, on the command line and in SQL: kinds of columns, and what is done with missing values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.application import app
from penstock.columns import Recipe, choose_features
from penstock.compare import TrainingRequest
from penstock.config import Config
from penstock.errors import DataError, FeatureError, LabelError, UsageError
from penstock.groups import GroupBy
from penstock.sql.options import settings
from penstock.sql.statements import Query, StatementOption, Train
from penstock.training import Columns

ROWS = 400


def rows(**changes: Any) -> pa.Table:
    """Return a table with a number, a code, a date as text, a town and a label that follows from all of them."""
    chance = np.random.default_rng(0)
    x, code = chance.normal(size=ROWS), chance.integers(0, 4, ROWS)
    columns = {
        "x": x,
        "code": code,
        "day": [f"2026-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(ROWS)],
        "town": [["Oslo", "Rome", "Lima"][i % 3] for i in range(ROWS)],
        "y": np.where(x + (code == 2) > 0, "yes", "no"),
    }
    return pa.table({**columns, **changes})


def recipe_of(table: Any, **options: Any) -> Recipe:
    with penstock.open(table) as source:
        return Columns(label="y", **options).recipe(source)


def parts(recipe: Recipe) -> dict[str, str]:
    return {part.columns[0]: part.kind for part in recipe.parts if not getattr(part, "of", "")}


def trained(table: Any, **options: Any) -> Any:
    return penstock.LogisticRegression(validation=0).fit(table, y="y", **options).model_


def stored(table: pa.Table, folder: Path, suffix: str) -> Path:
    path = folder / f"rows.{suffix}"
    if suffix == "csv":
        arrow_csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


def test_kinds_that_are_asked_for_are_taken() -> None:
    assert parts(recipe_of(rows())) == {"x": "number", "code": "number", "day": "date", "town": "category"}
    recipe = recipe_of(rows(), category=["code", "day"])
    assert parts(recipe) == {"x": "number", "code": "category", "day": "category", "town": "category"}
    numbers = rows(town=[str(i % 3) for i in range(ROWS)])
    assert parts(recipe_of(numbers))["town"] == "category"
    assert parts(recipe_of(numbers, number=["town"]))["town"] == "number"
    assert parts(recipe_of(rows(), hash=["*"], date=["day"])) | {"code": ""} == {
        "x": "number",
        "code": "",
        "day": "date",
        "town": "hash",
    }


def test_estimators_take_the_options_of_the_recipe(tmp_path: Path) -> None:
    path = stored(rows(), tmp_path, "parquet")
    model = trained(path, category=["code"], number=["x"], date=["day"])
    assert parts(model.recipe)["code"] == "category"
    hashed = penstock.bigmodel.LogisticRegression(tmp_path / "model", validation=0)
    hashed.fit(path, "y", category=["code"], null_values=["Rome"], missing="fill")
    assert parts(hashed.model_.recipe) == {"x": "number", "code": "category", "day": "date", "town": "hash"}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_null_values_stand_for_missing_numbers_in_text_and_in_numbers(tmp_path: Path, suffix: str) -> None:
    x = [str(i) for i in range(ROWS)]
    x[5], x[7] = "?", "unknown"
    size = np.arange(ROWS, dtype=np.int64) * 3 % 97
    share = np.arange(ROWS) / 7.0
    size[:40], share[:40] = -999, -999
    path = stored(rows(x=x, size=size, share=share), tmp_path, suffix)
    recipe = trained(path, null_values=["unknown", "-999"]).recipe
    kinds = {part.columns[0]: part for part in recipe.parts if not getattr(part, "of", "")}
    assert kinds["x"].kind == "number"
    assert kinds["x"].fill == pytest.approx((sum(range(ROWS)) - 12) / (ROWS - 2))
    assert kinds["size"].fill == pytest.approx(size[40:].mean())
    assert kinds["size"].missing
    assert kinds["share"].missing
    assert kinds["share"].fill == pytest.approx(share[40:].mean())
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again.parts == recipe.parts


def test_numbers_that_stand_for_missing_ones_are_refused_or_dropped_if_asked() -> None:
    table = rows(x=[-999.0] * 10 + list(range(10, ROWS)))
    with pytest.raises(FeatureError, match="'x' is null in row 0"):
        trained(table, missing="refuse", null_values=["-999"])
    dropped = trained(table, missing="drop", null_values=["-999"])
    assert dropped.recipe.missing == "drop"
    part = next(part for part in dropped.recipe.parts if part.columns == ("x",))
    assert part.fill == pytest.approx(np.arange(10, ROWS).mean())


def test_rows_without_a_label_are_left_out_or_refused() -> None:
    labels = rows()["y"].to_pylist()
    labels[3] = None
    table = rows(y=labels)
    assert trained(table).recipe.unlabelled
    with pytest.raises((LabelError, DataError), match="row 3"):
        trained(table, missing="refuse")


def test_the_missing_policy_decides_on_indicators() -> None:
    table = rows(x=[None, *range(1, ROWS)])
    assert "x is missing" not in (trained(table).recipe.names or ())
    assert "x is missing" in (trained(table, missing="indicator").recipe.names or ())
    with pytest.raises(UsageError) as refused:
        trained(table, missing="guess")
    assert refused.value.option == "missing"


def test_commands_take_the_options_of_the_recipe(tmp_path: Path) -> None:
    path, out = stored(rows(), tmp_path, "parquet"), tmp_path / "m.penstock"
    words = ["train", str(path), "--label", "y", "--out", str(out), "--category", "code", "--date", "day", "--json"]
    done = CliRunner().invoke(app, [*words, "--missing", "indicator", "--null-values", "Rome,?", "--hash", "*"])
    assert done.exit_code == 0, done.output
    recipe = penstock.load(out).model_.recipe
    assert parts(recipe) == {"x": "number", "code": "category", "day": "date", "town": "hash"}
    assert recipe.missing == "indicator"
    assert next(part for part in recipe.parts if part.columns == ("town",)).to_dict()["null_values"] == ("Rome", "?")


def test_a_training_request_keeps_the_options() -> None:
    columns = Columns("y", category=["code"], date=["day"], missing="fill", null_values=["?"])
    request = TrainingRequest(data="rows.csv", config=Config(), columns=columns)
    assert TrainingRequest.from_dict(json.loads(json.dumps(request.to_dict()))) == request


def test_groups_hand_the_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.groups import group_by

    heard: dict[str, Any] = {}

    def stop(*_: Any, **options: Any) -> Any:
        heard.update(options)
        raise UsageError("stop")

    monkeypatch.setattr(group_by, "write_grouped", stop)
    options = {"category": ["code"], "number": ["x"], "date": ["day"], "missing": "fill", "null_values": ["?"]}
    with pytest.raises(UsageError, match="stop"):
        GroupBy(rows(), by="town", **options).fit(penstock.LogisticRegression(), y="y")
    assert {name: heard[name] for name in options} == options


def test_statements_take_the_options_of_the_recipe() -> None:
    asked = {
        "label": "Y",
        "category": "CODE",
        "date": ["day"],
        "missing": "Drop",
        "null_values": "?, -999",
        "hash": "*",
    }
    options = {name: StatementOption(value) for name, value in asked.items()}
    found = settings(Train(Query("TABLE t"), "svm", options=options), rows().schema)
    columns = found.columns
    assert (columns.category, columns.date, columns.missing) == (("code",), ("day",), "drop")
    assert (columns.null_values, columns.hash) == (("?", "-999"), ("*",))
    number = settings(
        Train(Query("TABLE t"), "svm", options={"label": StatementOption("y"), "null_values": StatementOption(-999)}),
        rows().schema,
    )
    assert number.columns.null_values == ("-999",)
    with pytest.raises(UsageError):
        settings(
            Train(Query("TABLE t"), "svm", options={"label": StatementOption("y"), "missing": StatementOption("no")}),
            rows().schema,
        )


def test_a_statement_fetches_columns_of_a_kind_beside_the_features() -> None:
    options = {"label": "y", "features": ["x"], "category": ["code"]}
    asked = {name: StatementOption(value) for name, value in options.items()}
    assert settings(Train(Query("TABLE t"), "svm", options=asked), rows().schema).wanted == ("x", "code", "y")


def test_plain_numbers_keep_no_null_values_that_are_text() -> None:
    recipe = choose_features(pa.schema([("x", pa.float64())]), null_values=["?", "-1"])
    assert recipe.parts[0].to_dict()["null_values"] == ("-1",)


LISTS = {
    "place": pa.array([{"x": float(i % 7), "town": "ab"[i % 2]} for i in range(ROWS)]),
    "tags": pa.array([list(range(i % 4)) for i in range(ROWS)]),
    "raw": pa.array([bytes([255, i % 7]) for i in range(ROWS)]),
}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"category": ["tags"]}, "'tags', which is list<item: int64>, which is not written as text"),
        ({"category": ["raw"]}, "'raw', which is binary, which is not written as text"),
        ({"number": ["raw"]}, "'raw', which is binary, neither a number nor text"),
        ({"hash": ["tags"]}, "'tags', which is list<item: int64>, which cannot be hashed"),
        ({"category": ["place"]}, "'place', which is a struct; name its members: 'place.x', 'place.town'"),
        ({"hash": ["place:2^8"]}, "'place', which is a struct"),
    ],
)
def test_columns_that_cannot_be_of_a_kind_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        recipe_of(rows(**LISTS), **options)
    assert told in str(caught.value)
    assert caught.value.option == next(iter(options))


def test_a_struct_stands_for_its_members() -> None:
    assert set(parts(recipe_of(rows(**LISTS), features=["place", "x"]))) == {"place.x", "place.town", "x"}
    assert "place.town" not in parts(recipe_of(rows(**LISTS), exclude=["place.town"]))
    assert not {"place.x", "place.town"} & parts(recipe_of(rows(**LISTS), exclude=["place"])).keys()
    inner = {"outer": pa.array([{"in": {"a": i % 3, "b": 1.5 * (i % 5)}, "c": i % 4} for i in range(ROWS)])}
    assert "outer.c" in (found := parts(recipe_of(rows(**inner), exclude=["outer.in"])))
    assert not {"outer.in.a", "outer.in.b"} & found.keys()


@pytest.mark.parametrize("kind", ["town", "day", "text", "hash"])
def test_missing_text_and_dates_are_refused_by_their_row(kind: str) -> None:
    """So are they where a user has text hashed, and in converted rows and rows for a network."""
    values = {
        "town": ["ab"[i % 2] for i in range(ROWS)],
        "day": [f"2026-01-{1 + i % 28:02}" for i in range(ROWS)],
        "text": [f"some words of row {i}" for i in range(ROWS)],
        "hash": ["ab"[i % 2] for i in range(ROWS)],
    }[kind]
    table = pa.table(
        {"c": [None if i == 7 else each for i, each in enumerate(values)], "y": [i % 2 for i in range(ROWS)]}
    )
    options = {"missing": "refuse", **({"hash": ["c:2^8"]} if kind == "hash" else {})}
    with pytest.raises(FeatureError, match="'c' is null in row 7"):
        penstock.LogisticRegression().fit(table, y="y", **options)
    if kind == "town":
        with (
            pytest.raises(FeatureError, match="'c' is null in row 7"),
            penstock.torch.DataLoader(table, 32, columns=penstock.recipe_for(table, label="y", **options)) as loader,
        ):
            list(loader)


def test_hashed_text_tells_of_missing_values_where_all_shall() -> None:
    table = rows(town=[None if i % 5 == 0 else "ab"[i % 2] for i in range(ROWS)])
    for options in ({"hash": ["town:2^8"]}, {"hash": ["*"], "date": ["day"]}):
        widths = [
            next(part.width for part in recipe_of(table, missing=missing, **options).parts if part.columns == ("town",))
            for missing in ("auto", "indicator")
        ]
        assert widths[1] == widths[0] + 1
