"""Any data to rows by group: the same rows whatever the source and the memory; what cannot be done is refused."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import pickle
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.batch import Batch, Csr
from penstock.blocks.memory import TableSource
from penstock.columns import choose_features
from penstock.errors import (
    BudgetError,
    ColumnError,
    CorruptFileError,
    DataError,
    SourceNotFoundError,
    UnknownOptionError,
    UsageError,
)
from penstock.groups import etl, external_sort, group_files
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from tests.grouped_rows import MEMORY, assert_grouped, rows_table, store, whole


@pytest.mark.parametrize("kind", ["table", "small blocks", "parquet", "csv", "arrow"])
@pytest.mark.usefixtures("in_parts")
def test_every_source_gives_the_same_rows(kind, tmp_path):
    table = rows_table() if kind != "csv" else rows_table().filter(pa.compute.is_valid(rows_table()["city"]))
    if kind == "csv":
        table = table.set_column(1, "row", pa.array(3 * np.arange(len(table)), pa.float32()))
    grouped = group(store(kind, table, tmp_path), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert_grouped(grouped, table)
    assert grouped.width == 2
    assert grouped.recipe.labels.classes == ("no", "yes")


@pytest.mark.usefixtures("in_parts")
def test_weights_and_several_columns(tmp_path):
    table = rows_table(weight=True).append_column("day", pa.array(np.arange(2000) % 3 == 0))
    source = TableSource.of(table, block_size=1000)
    grouped = group(source, ["day", "city"], tmp_path / "g", label="y", weight="w", memory=MEMORY)
    assert_grouped(grouped, table, ["day", "city"], weight="w")
    assert grouped.texts[0].startswith("true/")
    assert grouped.width == 2


def test_the_label_of_a_regression_is_a_number(tmp_path):
    table = rows_table().set_column(3, "y", pa.array(np.linspace(-5, 5, 2000)))
    grouped = group(table, "city", tmp_path / "g", label="y", memory=MEMORY, model="linear")
    assert grouped.recipe.labels is None
    assert_grouped(grouped, table)


@pytest.mark.parametrize("memory", ["small", "large"])
def test_sparse_rows(memory, tmp_path, request):
    if memory == "small":
        request.getfixturevalue("small_runs")
    rng = np.random.default_rng(0)
    lists = [sorted({0, *rng.integers(1, 50, n % 9).tolist()}) for n in range(1000)]
    values = [[float(n), *rng.random(len(each) - 1).astype(np.float32).tolist()] for n, each in enumerate(lists)]
    table = pa.table(
        {
            "city": pa.array(rng.choice(["a", "b", "c"], 1000, p=[0.8, 0.1, 0.1])),
            "indices": pa.array(lists, pa.list_(pa.int64())),
            "values": pa.array(values, pa.list_(pa.float32())),
            "y": pa.array(rng.choice(["no", "yes"], 1000)),
        }
    )
    source = TableSource.of(table, block_size=2000)
    grouped = group(source, "city", tmp_path / "g", label="y", memory=MEMORY, block_size="6kB")
    assert grouped.width == 50
    assert (grouped.block_rows > 0).all()
    assert len(grouped.block_rows) > 10
    for number, (key,) in enumerate(grouped.keys):
        rows = np.flatnonzero(np.array(table["city"]) == key)
        found = whole(grouped, number).x
        assert found.width == 50
        ends = found.indptr.astype(int)
        for k, row in enumerate(rows.tolist()):
            assert found.indices[ends[k] : ends[k + 1]].tolist() == lists[row]
            assert found.values[ends[k] : ends[k + 1]].tolist() == values[row]
    sizes = [grouped.read(block).x.nbytes for block in range(len(grouped.block_rows))]
    assert max(sizes) <= 6000


def test_text_can_be_hashed_the_grouping_column_too(tmp_path):
    table = rows_table(200)
    grouped = group(table, "city", tmp_path / "g", label="y", memory=MEMORY, hash=["city:2^4"])
    assert grouped.width == 2 + 16
    assert isinstance(grouped.read(0).x, Csr)


def test_grouping_columns_are_features_only_when_named(tmp_path):
    table = rows_table(300).append_column("day", pa.array(np.arange(300) % 2))
    plain = group(table, "day", tmp_path / "a", label="y", memory=MEMORY, exclude=["city"])
    assert plain.recipe.names == ("row", "x")
    named = group(table, "day", tmp_path / "b", label="y", memory=MEMORY, features=["row", "day"])
    assert named.recipe.names == ("row", "day")


@pytest.mark.parametrize("small", [None, "small_runs", "small_chunks"])
def test_one_group_with_all_the_rows_is_cut_into_blocks(small, tmp_path, request):
    if small:
        request.getfixturevalue(small)
    table = rows_table().set_column(0, "city", pa.array(["Oslo"] * 2000))
    source = TableSource.of(table, block_size=1000)
    grouped = group(source, "city", tmp_path / "g", label="y", memory=MEMORY, block_size="5kB")
    assert_grouped(grouped, table)
    fits = (5000 - 1024) // 12
    assert grouped.block_rows.tolist() == [fits] * (2000 // fits) + [2000 % fits]


@pytest.mark.usefixtures("in_parts")
def test_many_groups_of_three_rows(tmp_path):
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(2000), 3))
    table = rows_table(6000).set_column(0, "city", pa.array(order))
    grouped = group(TableSource.of(table, block_size=5000), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert_grouped(grouped, table)
    assert len(grouped.block_rows) == len(grouped) == 2000


def test_as_many_groups_as_rows(tmp_path):
    table = rows_table(50).set_column(0, "city", pa.array(np.arange(50) / 4))
    assert_grouped(group(table, "city", tmp_path / "g", label="y", memory=MEMORY), table)


def test_blocks_do_not_hang_on_the_memory(tmp_path, request):
    table = rows_table(groups=3)

    def made(name):
        source = TableSource.of(table, block_size=1000)
        return group(source, "city", tmp_path / name, label="y", memory=MEMORY, block_size="4kB")

    large = made("large")
    for name in ("small_chunks", "small_runs"):
        request.getfixturevalue(name)
        found = made(name)
        for file in ("rows-00000.arrow", "blocks.parquet", "groups.parquet"):
            assert (found.folder / file).read_bytes() == (large.folder / file).read_bytes()


@pytest.mark.usefixtures("small_runs")
def test_more_runs_than_can_be_merged_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(external_sort, "FAN", 3)
    merges = []
    merge = etl.merge_runs
    monkeypatch.setattr(
        etl, "merge_runs", lambda runs, *args, **kw: merges.append(len(runs)) or merge(runs, *args, **kw)
    )
    table = rows_table(weight=True)
    grouped = group(
        TableSource.of(table, block_size=1000),
        "city",
        tmp_path / "g",
        label="y",
        weight="w",
        memory=MEMORY,
        block_size="2kB",
    )
    assert_grouped(grouped, table, weight="w")
    assert len(merges) > 3
    assert max(merges) == 3
    assert os.listdir(tmp_path) == ["g"]


def test_files_end_at_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(group_files, "FILE_BYTES", 10_000)
    table = rows_table()
    grouped = group(table, "city", tmp_path / "g", label="y", memory=MEMORY)
    assert len(list(grouped.folder.glob("rows-*.arrow"))) > 2
    assert_grouped(grouped, table)


def test_rows_open_as_any_arrow_file(tmp_path):
    table = rows_table(weight=True)
    grouped = group(table, "city", tmp_path / "g", label="y", weight="w", memory=MEMORY)
    with penstock.open(grouped.folder / "rows-00000.arrow") as source:
        recipe = choose_features(source.schema, label="y", weight="weight")
        assert recipe.names == ("row", "x")
        found = Batch.concat([recipe.encode(source.read(block)) for block in range(len(source.block_rows))])
    expected = Batch.concat([grouped.read(block) for block in range(len(grouped.block_rows))])
    for name in ("x", "y", "weight"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))


def test_reading_copies_nothing(tmp_path):
    table = rows_table(weight=True)
    with group(table, "city", tmp_path / "g", label="y", weight="w", memory=MEMORY) as grouped:
        found = grouped.read(1)
        stored = np.frombuffer(grouped._map(0), np.uint8)
        for array in (found.x, found.y, found.weight):
            assert np.shares_memory(array, stored)
            assert not array.flags.writeable
        assert np.shares_memory(grouped.read(1).x, found.x)
    assert found.x.shape == (grouped.rows[1], 2)  # rows stay when the folder is closed


def _sums(grouped):
    return [float(grouped.read(block).x.sum(dtype=np.float64)) for block in range(len(grouped.block_rows))]


def test_several_processes_read_at_once(tmp_path):
    grouped = group(rows_table(), "city", tmp_path / "g", label="y", memory=MEMORY)
    expected = _sums(grouped)
    assert _sums(pickle.loads(pickle.dumps(grouped))) == expected
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_sums, [grouped, grouped]) == [expected, expected]


def test_groups_are_found_by_text_or_values(tmp_path):
    grouped = group(rows_table(), "city", tmp_path / "g", label="y", memory=MEMORY)
    assert grouped.keys[grouped.number("city 3%2F3")] == ("city 3/3",)
    assert grouped.number((None,)) == grouped.number("%null")
    with pytest.raises(UsageError, match=r"no group 'city 3%2F' by city; it has: .*did you mean 'city 3%2F3'"):
        grouped.number("city 3%2F")
    everything = grouped.blocks(7)  # one past the groups: all rows as one
    assert everything.tolist() == list(range(len(grouped.block_rows)))
    for wrong in (lambda: grouped.blocks(8), lambda: grouped.read(7), lambda: grouped.read(-1)):
        with pytest.raises(UsageError, match="it has 7"):
            wrong()


def test_some_blocks_of_a_group(tmp_path):
    grouped = group(rows_table(groups=2), "city", tmp_path / "g", label="y", memory=MEMORY, block_size="4kB")
    parts = grouped.batch(0)
    assert len(parts) > 3
    assert [len(part) for part in grouped.batch(0, 1, 3)] == [len(part) for part in parts[1:3]]


@pytest.mark.parametrize("name", ["rows-00000.arrow", "blocks.parquet", "grouped.json"])
def test_a_damaged_folder_is_told(name, tmp_path):
    table = rows_table()
    folder = group(table, "city", tmp_path / "g", label="y", memory=MEMORY).folder
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFileError):
        Grouped(folder)
    assert_grouped(group(table, "city", tmp_path / "g", label="y", memory=MEMORY), table)  # and is made anew


def test_what_is_no_grouped_folder_is_told(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"grouped\.json"):
        Grouped(tmp_path)
    (tmp_path / "grouped.json").write_text(json.dumps({"version": 99}))
    with pytest.raises(DataError, match="99"):
        Grouped(tmp_path)


def test_groups_made_before_are_used_again(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    table = rows_table()
    pq.write_table(table, path)
    first = group(path, "city", tmp_path / "g", label="y", memory=MEMORY)
    with monkeypatch.context() as patch:
        patch.setattr(etl.GroupColumns, "recipe", None)  # nothing of the data is read
        group(str(path), ["city"], str(tmp_path / "g"), label="y", memory="1GB")
    assert (first.folder / "grouped.json").stat().st_ino == (tmp_path / "g" / "grouped.json").stat().st_ino
    with pytest.raises(UsageError, match="rows by city of other columns"):
        group(path, "city", tmp_path / "g", label="y", memory=MEMORY, features=["row"])
    with pytest.raises(UsageError, match="holds rows by city, not by row"):
        group(path, "row", tmp_path / "g", label="y", memory=MEMORY, features=["x"])
    pq.write_table(table.slice(500), path)
    assert group(path, "city", tmp_path / "g", label="y", memory=MEMORY).rows.sum() == 1500
    assert sorted(os.listdir(tmp_path)) == ["g", "t.parquet"]


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match="something else"):
        group(rows_table(), "city", tmp_path / "mine", label="y", memory=MEMORY)
    with pytest.raises(UsageError, match="is a file"):
        group(rows_table(), "city", tmp_path / "mine" / "letter.txt", label="y", memory=MEMORY)
    (tmp_path / "empty").mkdir()
    group(rows_table(), "city", tmp_path / "empty", label="y", memory=MEMORY)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"by": "cty"}, ColumnError, r"no column to group by 'cty'; it has: .*did you mean 'city'"),
        ({"by": []}, UsageError, "by names no column"),
        ({"by": ["city", "city"]}, UsageError, "twice"),
        ({"by": "y"}, UsageError, "'y' is given as the label and to group by"),
        ({"by": "x", "weight": "x"}, UsageError, "'x' is given as the weight"),
        ({"label": "z"}, ColumnError, "no label column 'z'"),
        ({"model": "forest"}, UnknownOptionError, "logistic"),
        ({"label": "row", "exclude": ["y"]}, UsageError, "2000 classes.*model='lightgbm'"),
        ({"memory": "lots"}, UsageError, "memory='lots'"),
        ({"memory": "50kB"}, BudgetError, "give at least "),
    ],
)
def test_what_cannot_be_done_is_refused(given, error, match, tmp_path):
    asked = {"by": "city", "label": "y", "memory": MEMORY, **given}
    with pytest.raises(error, match=match):
        group(rows_table(), asked.pop("by"), tmp_path / "g", **asked)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("memory", ["5MB", "10%"])
def test_few_rows_need_little_memory(memory, tmp_path, caplog):
    made = group(rows_table(), "city", tmp_path / "rows", label="y", memory=memory)
    assert_grouped(made, rows_table())
    assert len(made.block_rows) == len(made), "a group is one block, as with more memory"
    raised = [float(told) for told in re.findall(r"too little; ([0-9.]+) MB are used instead", caplog.text)]
    assert raised == [] if memory == "5MB" else raised[0] < 5


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(DataError, match="no rows"):
        group(rows_table().slice(0, 0), "city", tmp_path / "g", label="y", memory=MEMORY)


def test_lists_do_not_name_groups(tmp_path):
    table = rows_table(3).append_column("tags", pa.array([[1], [2], [3]]))
    with pytest.raises(ColumnError, match="'tags' is list"):
        group(table, "tags", tmp_path / "g", label="y", memory=MEMORY, features=["x"])


def test_a_group_of_bad_numbers_is_kept_for_training_to_judge(tmp_path):
    table = rows_table(10).set_column(2, "x", pa.array([math.inf, *range(9)], pa.float32()))
    grouped = group(table, "city", tmp_path / "g", label="y", memory=MEMORY)
    assert np.isinf(whole(grouped, 0).x[0, 1])
