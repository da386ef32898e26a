"""Folders whose paths name the groups, such as country=FR, are taken as they are."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import DataError
from penstock.events import Stream
from penstock.groups import etl
from penstock.groups.etl import group
from tests.grouped_rows import MEMORY, rows_table, whole


def hive(folder, table, by):
    """Write a table partitioned as Hive does it."""
    import pyarrow.dataset as ds

    kinds = pa.schema([table.schema.field(name) for name in by])
    ds.write_dataset(
        table,
        folder,
        format="parquet",
        partitioning=ds.partitioning(kinds, flavor="hive"),
        max_rows_per_group=100,
        max_rows_per_file=100,
    )
    return folder


def partitioned_rows(grouped):
    return {text: whole(grouped, n).x[:, 0].tolist() for n, text in enumerate(grouped.texts)}


@pytest.mark.parametrize("by", [["city"], ["day"], ["day", "city"]])
def test_partitioned_folders_need_no_sorting(by, tmp_path, monkeypatch):
    table = rows_table().append_column("day", pa.array(np.arange(2000) % 2))
    folder = hive(tmp_path / "data", table, ["city", "day"])
    monkeypatch.setattr(etl, "Sorter", None)
    monkeypatch.setattr(etl, "Scatter", None)
    exclude = [name for name in ("city", "day") if name not in by]
    grouped = group(folder, by, tmp_path / "g", label="y", memory=MEMORY, block_size="2kB", exclude=exclude)
    monkeypatch.undo()
    expected = partitioned_rows(group(table, by, tmp_path / "h", label="y", memory=MEMORY, features=["row", "x"]))
    assert {text: sorted(rows) for text, rows in partitioned_rows(grouped).items()} == expected
    assert grouped.recipe.names == ("row", "x")
    assert (np.diff(grouped.block_group) >= 0).all()
    assert int(grouped.rows.sum()) == 2000
    assert grouped.kinds[0] == (pa.string() if by == ["city"] else pa.int64())
    fits = (2000 - 1024) // 12
    assert grouped.block_rows.max() == fits


def test_columns_of_paths_that_are_no_keys_are_columns_like_others(tmp_path, monkeypatch):
    table = rows_table().append_column("day", pa.array(np.arange(2000) % 2))
    folder = hive(tmp_path / "in=here" / "data", table, ["day", "city"])
    monkeypatch.setattr(etl, "Sorter", None)
    monkeypatch.setattr(etl, "Scatter", None)
    grouped = group(folder, "city", tmp_path / "g", label="y", memory=MEMORY, block_size="2kB")
    assert grouped.recipe.names == ("row", "x", "day")  # what stands above the folder that was named is not of it
    for number in range(len(grouped)):
        x = whole(grouped, number).x
        assert (x[:, 0] // 3 % 2 == x[:, 2]).all()
    assert (np.diff(grouped.block_group) >= 0).all()
    monkeypatch.undo()
    named = group(folder, "day", tmp_path / "h", label="y", memory=MEMORY).recipe.names
    assert named is not None
    assert "city=city 0/0" in named
    labelled = group(folder, "city", tmp_path / "i", label="day", exclude=["y"], memory=MEMORY)
    assert labelled.recipe.label == "day"
    pq.write_table(table.drop_columns(["day", "city"]), folder / "stray.parquet")
    with pytest.raises(DataError, match=r"stray\.parquet is of none"):
        group(folder, "city", tmp_path / "j", label="y", memory=MEMORY)


@pytest.mark.usefixtures("small_runs")
def test_columns_of_paths_and_of_files_together(tmp_path):
    table = rows_table().append_column("day", pa.array(np.arange(2000) % 3))
    folder = hive(tmp_path / "data", table, ["city"])
    grouped = group(folder, ["city", "day"], tmp_path / "g", label="y", memory=MEMORY)
    expected = partitioned_rows(group(table, ["city", "day"], tmp_path / "h", label="y", memory=MEMORY))
    assert {text: sorted(rows) for text, rows in partitioned_rows(grouped).items()} == expected


def test_a_changed_partition_is_grouped_anew(tmp_path):
    table = rows_table(groups=3)
    folder = hive(tmp_path / "data", table, ["city"])
    group(folder, "city", tmp_path / "g", label="y", memory=MEMORY)
    for name in ("city=new%2Ftown", "city=empty"):
        (tmp_path / "data" / name).mkdir()
    extra = tmp_path / "data" / "city=new%2Ftown"
    pq.write_table(table.drop_columns(["city"]).slice(0, 0), tmp_path / "data" / "city=empty" / "part-0.parquet")
    pq.write_table(table.drop_columns(["city"]).slice(0, 5), extra / "part-0.parquet")
    grouped = group(folder, "city", tmp_path / "g", label="y", memory=MEMORY)
    assert int(grouped.rows[grouped.number(("new/town",))]) == 5
    assert "empty" not in grouped.texts  # a group has rows


def test_thousands_of_partitions_do_not_stay_open(tmp_path):
    table = rows_table(10).drop_columns(["city"])
    for n in range(60):
        (tmp_path / "data" / f"city={n:03d}").mkdir(parents=True)
        pq.write_table(table, tmp_path / "data" / f"city={n:03d}" / "a.parquet")
    before = len(os.listdir("/proc/self/fd"))
    most = []
    stream = Stream([lambda event: most.append(len(os.listdir("/proc/self/fd")))])
    grouped = group(tmp_path / "data", "city", tmp_path / "g", label="y", memory=MEMORY, stream=stream)
    assert max(most) - before < 20
    assert grouped.texts[:2] == ["000", "001"]  # leading zeros: text, not numbers
    assert len(os.listdir("/proc/self/fd")) <= before + 1
