"""Converted tables with text, dates and missing values: they are learnt from as the tables themselves are."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import penstock
from penstock.errors import FeatureError, LabelError
from penstock.events import Warned


def table(rows=2000, *, levels=4, seed=0):
    """Make a table of numbers far from 0, text of some levels, and a date; some of each are missing."""
    r = np.random.default_rng(seed)
    x, z = r.normal(size=rows), r.normal(size=rows)
    level, day = r.integers(0, levels, rows), r.integers(0, 300, rows)
    missing = [r.random(rows) < share for share in (0.2, 0.1, 0.005)]
    score = 2 * x * ~missing[0] + z + (level % 2) * 2 - 1 + missing[1] + day / 150 - 1
    return pa.table(
        {
            "id": np.arange(rows),
            "x": pa.array(1000 + x, mask=missing[0]),
            "z": pa.array(np.round(50 + 10 * z).astype(int), mask=missing[2]),
            "level": pa.array(np.char.add("v", level.astype(str)), mask=missing[1]),
            "day": pa.array(19_000 + day, pa.int32()).cast(pa.date32()),
            "y": np.where(r.random(rows) < 1 / (1 + np.exp(-score)), "yes", "no"),
        }
    )


@pytest.mark.parametrize(("levels", "columns"), [(4, ["features"]), (200, ["indices", "values"])])
def test_a_converted_table_gives_the_same_model(tmp_path, levels, columns):
    raw, packed, heard = tmp_path / "t.parquet", tmp_path / "t.arrow", []
    parquet.write_table(table(levels=levels), raw, row_group_size=300)
    penstock.convert(raw, packed, label="y", listen=heard.append)
    assert penstock.open(packed).schema.names == [*columns, "y"]
    assert any(isinstance(event, Warned) and "'id' (row numbers)" in event.message for event in heard)
    test = table(1000, levels=levels, seed=1)
    models = [penstock.LogisticRegression(epochs=5).fit(path, y="y") for path in (raw, packed)]
    losses = [model.evaluate(test)["loss"] for model in models]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[0] < 0.55
    for model in models:  # each scores both
        np.testing.assert_allclose(model.predict_proba(raw), model.predict_proba(packed), rtol=1e-4, atol=1e-6)
        assert np.isfinite(model.predict_proba(test)).all()


@pytest.mark.parametrize("shuffle", ["once", "corgipile"])
def test_numbers_beside_sparse_features_are_centered_in_every_order(tmp_path, shuffle):
    raw, packed = tmp_path / "t.parquet", tmp_path / "t.arrow"
    parquet.write_table(table(levels=200), raw, row_group_size=300)
    penstock.convert(raw, packed, label="y")
    for path in (raw, packed):
        model = penstock.LogisticRegression(epochs=5, shuffle=shuffle).fit(path, y="y")
        assert model.evaluate(table(1000, levels=200, seed=1))["loss"] < 0.55


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_numbers_alone_are_filled(tmp_path, missing):
    x = [*np.arange(3000.0) % 7, missing]
    data = pa.table({"x": pa.array(x, pa.float64()), "y": [0, 1, 1] * 1000 + [1]})
    penstock.convert(data, tmp_path / "t.arrow", label="y")
    stored = parquet_rows(tmp_path / "t.arrow")
    assert stored[-1].tolist() == [pytest.approx(np.mean(x[:-1]), rel=1e-5)]
    assert stored[:7, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]


def parquet_rows(path):
    with penstock.open(path) as source:
        blocks = [source.read(block).column("features") for block in range(len(source.block_rows))]
    return np.concatenate([block.flatten().to_numpy().reshape(len(block), -1) for block in blocks])


def test_rows_that_come_once_are_refused_for_their_text(tmp_path):
    data = table(100)
    with pytest.raises(FeatureError, match="'level'"):
        penstock.convert(pa.RecordBatchReader.from_batches(data.schema, data.to_batches()), tmp_path / "a", label="y")
    with gzip.open(tmp_path / "t.csv.gz", "wb") as file:
        csv.write_csv(data, file)
    with pytest.raises(FeatureError, match="'level'"):
        penstock.convert(tmp_path / "t.csv.gz", tmp_path / "t.arrow", label="y")
    assert not (tmp_path / "t.arrow").exists()


def test_text_and_folders_are_fitted_too(tmp_path):
    data = table(600)
    for part in range(2):
        (tmp_path / "t" / f"shop=s{part}").mkdir(parents=True)
        csv.write_csv(data.slice(300 * part, 300), tmp_path / "t" / f"shop=s{part}" / "t.csv")
    penstock.convert(tmp_path / "t", tmp_path / "t.arrow", label="y")
    with penstock.open(tmp_path / "t.arrow") as source:
        names = penstock.LogisticRegression(epochs=1).fit(source, y="y").model_.recipe.names
    assert {"shop=s0", "shop=s1", "x", "x is missing", "level=v0", "level is missing", "day in days"} <= set(names)


def test_rows_without_a_label_are_left_out_and_counted_or_refused(tmp_path):
    data, heard = table(500), []
    labels = pa.array([None if at % 10 == 3 else each for at, each in enumerate(data["y"].to_pylist())])
    data = data.set_column(5, "y", labels)
    done = penstock.convert(data, tmp_path / "t.arrow", label="y", listen=heard.append)
    assert (done.rows, done.left_out) == (450, 50)
    assert any(isinstance(event, Warned) and "50 rows have no 'y', the label" in event.message for event in heard)
    with penstock.open(tmp_path / "t.arrow") as source:
        kept = pa.concat_arrays([source.read(block, ["y"]).column("y") for block in range(len(source.block_rows))])
    assert kept.to_pylist() == labels.drop_null().to_pylist()
    with pytest.raises(LabelError, match="row 3"):
        penstock.convert(data, tmp_path / "u.arrow", label="y", missing="refuse", exclude=["x", "z", "level"])


def test_kinds_and_what_is_done_with_missing_values_are_as_in_a_training(tmp_path):
    data = table(500)
    options = {"category": ["z"], "missing": "drop", "null_values": ["v2"], "exclude": ["id"]}
    done = penstock.convert(data, tmp_path / "t.arrow", label="y", **options)
    rows = zip(*(data[name].to_pylist() for name in ("x", "z", "level")), strict=True)
    there = [x is not None and z is not None and level not in (None, "v2") for x, z, level in rows]
    assert (done.rows, done.rows + done.left_out) == (sum(there), 500)
    with penstock.open(tmp_path / "t.arrow") as source:
        names = penstock.LogisticRegression(epochs=1).fit(source, y="y").model_.recipe.feature_names(range(400))
    assert {"z=50", "level=v3"} <= set(names)
    assert "level=v2" not in names
