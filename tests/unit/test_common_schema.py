"""Files of one data set that differ in the order of columns or in the width of types are read as one table."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.blocks.common_schema import common_type
from penstock.blocks.row_streams import rows_of
from penstock.errors import SchemaError

ONE = pa.table(
    {"id": pa.array([1, 2], pa.int32()), "size": pa.array([1.5, 2.5], pa.float32()), "city": ["Rome", "Oslo"]}
)
OTHER = pa.table(
    {
        "city": pa.array(["Lima", None]).dictionary_encode(),
        "size": pa.array([3, None], pa.int64()),
        "id": pa.array([2**40, 4], pa.int64()),
    }
)
BOTH = {"id": [1, 2, 2**40, 4], "size": [1.5, 2.5, 3.0, None], "city": ["Rome", "Oslo", "Lima", None]}


def write_table(table: pa.Table, path: Path) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        feather.write_feather(table, path, compression="uncompressed")
    return path


def rows_of_source(source: Any, columns: list[str] | None = None) -> dict[str, list[Any]]:
    batches = [source.read(block, columns) for block in range(len(source.block_rows))]
    return pa.Table.from_batches(batches).to_pydict()


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_files_of_other_order_and_width_are_one_table(tmp_path, suffix):
    write_table(ONE, tmp_path / f"1{suffix}")
    write_table(OTHER, tmp_path / f"2{suffix}")
    with penstock.open(tmp_path) as source:
        assert source.schema.names == ["id", "size", "city"]
        assert source.schema.types[:2] == [pa.int64(), pa.float64()]
        assert rows_of_source(source) == BOTH
        assert rows_of_source(source, ["city", "id"]) == {name: BOTH[name] for name in ("city", "id")}
        finer = source.refine(1, 1)
        if finer is not None:
            assert rows_of_source(finer) == BOTH
        for block in range(len(source.block_rows)):
            assert source.read(block).schema.types == source.schema.types


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_what_cannot_be_one_column_is_refused_by_name(tmp_path, suffix):
    one = write_table(ONE, tmp_path / f"1{suffix}")
    lacking = write_table(OTHER.drop_columns("size"), tmp_path / f"2{suffix}")
    with pytest.raises(SchemaError, match=rf"1\{suffix} and .*2\{suffix} .*'size' \(float against missing\)"):
        penstock.open([one, lacking])
    text = write_table(OTHER.set_column(2, "id", pa.array(["a", "b"])), tmp_path / f"3{suffix}")
    with pytest.raises(SchemaError, match="'id'"):
        penstock.open([one, text])


@pytest.mark.parametrize("compressed", [False, True])
def test_text_files_in_another_order(tmp_path, compressed):
    suffix, pack = (".csv.gz", gzip.compress) if compressed else (".csv", bytes)
    (tmp_path / f"1{suffix}").write_bytes(pack(b"x,city\n1,Rome\n2,Oslo\n"))
    (tmp_path / f"2{suffix}").write_bytes(pack(b"city,x\nLima,3\n"))
    if compressed:
        rows = rows_of(tmp_path)
        table = pa.Table.from_batches([batch for batch, _ in rows.batches(None)])
        rows.close()
        assert table.to_pydict() == {"x": [1.0, 2.0, 3.0], "city": ["Rome", "Oslo", "Lima"]}
        return
    with penstock.open(tmp_path) as source:
        assert rows_of_source(source) == {"x": [1.0, 2.0, 3.0], "city": ["Rome", "Oslo", "Lima"]}
        assert rows_of_source(source, ["city"]) == {"city": ["Rome", "Oslo", "Lima"]}


def test_text_files_of_other_types(tmp_path):
    """A column that is a number in one file and not in another is text; the others keep their types."""
    (tmp_path / "1.csv").write_text("a,b,c\n1,true,7\n2,false,8\n")
    (tmp_path / "2.csv").write_text("a,b,c\nx,maybe,9\n")
    with penstock.open(tmp_path) as source:
        assert source.schema.types == [pa.string(), pa.string(), pa.float64()]
        assert rows_of_source(source) == {"a": ["1", "2", "x"], "b": ["true", "false", "maybe"], "c": [7.0, 8.0, 9.0]}
    (tmp_path / "2.csv").write_text("a,b,c\n3,,9\n")
    with penstock.open(tmp_path) as source:
        assert source.schema.types == [pa.float64(), pa.bool_(), pa.float64()]


@pytest.mark.parametrize(
    ("one", "other", "want"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint32(), pa.int32(), pa.int64()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(9, 2), pa.int32(), pa.float64()),
        (pa.null(), pa.string(), pa.string()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.date32(), pa.timestamp("ms"), pa.timestamp("ms")),
        (pa.timestamp("ns"), pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us"), None),
        (pa.list_(pa.float32(), 4), pa.list_(pa.float64(), 4), pa.list_(pa.float64(), 4)),
        (pa.list_(pa.float32(), 4), pa.list_(pa.float32(), 5), None),
        (pa.bool_(), pa.int64(), None),
        (pa.string(), pa.int64(), None),
    ],
)
def test_common_types(one, other, want):
    assert common_type(one, other) == want
    assert common_type(other, one) == want


def test_training_on_files_that_differ(tmp_path):
    """A model learns from all of them."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=600).astype(np.float32), rng.choice(["a", "b"], 600)
    label = ((x > 0) ^ (y == "a")).astype(np.int8)
    table = pa.table({"x": x, "y": y, "label": label})
    pq.write_table(table.slice(0, 300), tmp_path / "1.parquet")
    wide = pa.table(
        {"label": label[300:].astype(np.int64), "y": pa.array(y[300:]).dictionary_encode(), "x": x[300:].astype(float)}
    )
    pq.write_table(wide, tmp_path / "2.parquet")
    model = penstock.LogisticRegression(validation=0).fit(tmp_path, y="label")
    want = penstock.LogisticRegression(validation=0).fit(table, y="label")
    np.testing.assert_allclose(model.predict_proba(tmp_path), want.predict_proba(table), atol=1e-3)


def doubled(rows: int = 60) -> pa.Table:
    x = pa.array(np.arange(rows) % 7 - 3.0)
    return pa.Table.from_arrays([x, x, pa.array(np.arange(rows) % 2)], names=["a", "a", "y"])


def as_csv(table: pa.Table, path: Path) -> Path:
    lines = [",".join(table.schema.names), *(",".join(map(str, row)) for row in zip(*table.columns, strict=True))]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("name", ["d.parquet", "d.arrow", "d.csv"])
def test_a_file_with_a_column_twice_is_refused_by_its_name(tmp_path, name):
    path = as_csv(doubled(), tmp_path / name) if name == "d.csv" else tmp_path / name
    if name == "d.parquet":
        pq.write_table(doubled(), path)
    elif name == "d.arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, doubled().schema) as writer:
            writer.write_table(doubled())
    model = penstock.LogisticRegression(epochs=1)
    told = rf"{name} has the column 'a' more than once; give every column its own name"
    for use in (
        lambda: model.fit(path, "y"),
        lambda: penstock.explain(path, label="y"),
        lambda: penstock.convert(path, tmp_path / "out.arrow"),
        lambda: penstock.open([path]),
    ):
        with pytest.raises(SchemaError, match=told):
            use()


def test_a_table_with_a_column_twice_is_refused(tmp_path):
    once = doubled().remove_column(1)
    model = penstock.LogisticRegression(epochs=1).fit(once, "y")
    for table in (doubled(), doubled().to_batches()[0], doubled().to_pandas()):
        for use in (
            lambda table=table: penstock.LogisticRegression(epochs=1).fit(table, "y"),
            lambda table=table: model.predict(table),
            lambda table=table: model.predict_proba(table),
            lambda table=table: penstock.open(table),
        ):
            with pytest.raises(SchemaError, match="has the column 'a' more than once"):
                use()
    with pytest.raises(SchemaError, match="the reader has the column 'a' more than once"):
        penstock.convert(doubled().to_reader(), tmp_path / "out.arrow")
