"""Loaders whose columns are those of a recipe: numbers, categories and a label for a network with embeddings."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import penstock
from penstock.columns import Recipe
from penstock.errors import UsageError

ROWS = 600


def table(rows=ROWS, seed=0):
    r = np.random.default_rng(seed)
    some = partial(np.less, r.random(rows))
    return pa.table(
        {
            "row": pa.array(np.arange(rows)),
            "age": pa.array(r.normal(1e6, 3, rows), mask=some(0.2)),
            "color": pa.array(r.choice(["blue", "green", "red"], rows), mask=r.random(rows) < 0.1),
            "day": pa.array(19_000 + r.integers(0, 300, rows), pa.int32(), mask=r.random(rows) < 0.1).cast(pa.date32()),
            "note": pa.array([f"one more note about {i % 37} things" for i in range(rows)]),
            "y": pa.array(r.choice(["no", "perhaps", "yes"], rows)),
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("table") / "t.parquet"
    parquet.write_table(table(), found, row_group_size=64)
    return found


@pytest.fixture(scope="module")
def recipe(path):
    return penstock.recipe_for(path, label="y")


def all_rows(data, columns, **options):
    with penstock.batches(data, 50, columns=columns, row_numbers=True, **options) as stream:
        parts = list(stream)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def in_order(rows):
    order = np.argsort(rows["row_number"], kind="stable")
    return {name: column[order] for name, column in rows.items()}


def test_numbers_categories_and_labels(path, recipe):
    assert recipe.left_out == {"row": "row numbers", "note": "prose"}
    assert list(recipe.cardinalities)[:2] == ["color", "day month"]
    assert recipe.cardinalities["color"] == 5
    data, found = table(), all_rows(path, recipe, shuffle="none")
    assert found["numbers"].dtype == np.float32
    assert found["categories"].dtype == found["label"].dtype == np.int64
    numbers = dict(zip([n for p in recipe.parts for n in p.names if p.kind in ("number", "date")], found["numbers"].T))
    missing = data["age"].is_null().to_numpy()
    np.testing.assert_array_equal(numbers["age is missing"], missing)
    assert abs(numbers["age"].mean()) < 1e-4
    assert abs(numbers["age"].std() - 1) < 1e-3
    assert not numbers["age"][missing].any()
    assert abs(numbers["day in days"].std() - 1) < 0.01
    codes = {None: 4, "blue": 0, "green": 1, "red": 2}
    assert found["categories"][:, 0].tolist() == [codes[color] for color in data["color"].to_pylist()]
    assert (found["categories"] < list(recipe.cardinalities.values())).all()
    assert [recipe.labels.classes[y] for y in found["label"]] == data["y"].to_pylist()


@pytest.mark.parametrize("shuffle", ["corgipile", "global", "once", "sliding-window"])
def test_every_order_gives_the_same_rows(path, recipe, shuffle, tmp_path):
    plain = all_rows(path, recipe, shuffle="none")
    mixed = all_rows(path, recipe, shuffle=shuffle, memory="4MB", scratch=tmp_path)
    assert mixed["row_number"].tolist() != list(range(ROWS))
    for name, column in in_order(mixed).items():
        np.testing.assert_array_equal(column, plain[name])


def test_a_converted_table_of_the_same_columns(path, recipe, tmp_path):
    penstock.convert(path, tmp_path / "t.arrow")
    plain, converted = (all_rows(each, recipe, shuffle="none") for each in (path, tmp_path / "t.arrow"))
    for name in plain:
        np.testing.assert_array_equal(plain[name], converted[name])
    mixed = all_rows(tmp_path / "t.arrow", recipe, shuffle="global")
    np.testing.assert_array_equal(in_order(mixed)["categories"], plain["categories"])


def test_ranks_share_the_rows_and_a_state_goes_on(path, recipe):
    parts = [all_rows(path, recipe, rank=rank, world=2) for rank in range(2)]
    assert set(np.concatenate([part["row_number"] for part in parts])) == set(range(ROWS))  # some padded
    whole = all_rows(path, recipe)
    with penstock.batches(path, 50, columns=recipe) as stream:
        passed = iter(stream)
        for _ in range(5):
            next(passed)
        state = json.loads(json.dumps(stream.state_dict()))
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    with penstock.batches(path, 50, columns=again) as stream:
        stream.load_state_dict(state)
        rest = np.concatenate([batch["numbers"] for batch in stream])
    np.testing.assert_array_equal(rest, whole["numbers"][250:])


def test_new_values_missing_ones_and_no_label(recipe):
    new = pa.table(
        {
            "age": pa.array([None], pa.float64()),
            "color": ["pink"],
            "day": pa.array([None], pa.date32()),
        }
    )
    found = all_rows(new, recipe, shuffle="none")
    assert sorted(found) == ["categories", "numbers", "row_number"]
    assert found["categories"][0].tolist()[0] == 3
    assert found["categories"][0].tolist()[1] == recipe.cardinalities["day month"] - 1
    assert np.isfinite(found["numbers"]).all()


def test_labels_that_are_numbers_or_missing():
    data = pa.table({"x": [1.5, 2.5, 4.0, None], "y": pa.array([2**40, None, 7, 7])})
    found = all_rows(data, penstock.recipe_for(data, label="y"), shuffle="none")
    assert found["label"].tolist() == [2**40, 0, 7, 7]
    assert found["weight"].tolist() == [1, 0, 1, 1]
    found = all_rows(data, penstock.recipe_for(data, label="y", classes=True), shuffle="none")
    assert found["label"].tolist() == [1, 0, 0, 0]
    numbers = pa.table({"x": [1.5, 2.5], "y": [0.25, -1.0]})
    assert all_rows(numbers, penstock.recipe_for(numbers, label="y"), shuffle="none")["label"].tolist() == [0.25, -1.0]


def test_many_values_are_hashed():
    text = [f"v{i % 11_000}" for i in range(22_000)]
    data = pa.table({"t": pa.array([*text, None]), "x": np.arange(22_001) % 7})
    recipe = penstock.recipe_for(data)
    found = all_rows(data, recipe, shuffle="none")["categories"][:, 0]
    assert recipe.cardinalities == {"t": 2**16 + 1}
    assert found[-1] == 2**16
    assert found[:-1].max() < 2**16
    np.testing.assert_array_equal(found[:11_000], found[11_000:22_000])


def test_what_has_many_values_in_a_row_is_refused(path):
    recipe = penstock.recipe_for(path, label="y", features=["note", "age"])
    with pytest.raises(UsageError, match="'note' has many values"):
        penstock.batches(path, 50, columns=recipe)


def test_torch_loaders_take_a_recipe(path, recipe):
    torch = pytest.importorskip("torch")
    from penstock.torch import CorgiPileDataset, DataLoader

    with DataLoader(path, 64, columns=recipe, shuffle=False) as loader:
        batch = next(iter(loader))
    assert batch["categories"].dtype == batch["label"].dtype == torch.int64
    tables = [torch.nn.Embedding(count, 2) for count in recipe.cardinalities.values()]
    inputs = torch.cat([batch["numbers"], *(t(c) for t, c in zip(tables, batch["categories"].T))], dim=1)
    assert inputs.shape == (64, 4 + 2 * len(tables))
    dataset = CorgiPileDataset(path, columns=recipe, row_numbers=True, batch_size=100)
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=100, num_workers=2))
    numbers = torch.cat([each["row_number"] for each in batches])
    assert sorted(numbers.tolist()) == list(range(ROWS))
    plain = all_rows(path, recipe, shuffle="none")
    found = torch.cat([each["categories"] for each in batches])[numbers.argsort()]
    np.testing.assert_array_equal(found.numpy(), plain["categories"])
