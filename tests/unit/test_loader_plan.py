"""How a memory budget is divided, and what is said where it is too small."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from penstock.blocks.conversion import convert
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.budget import Budget
from penstock.columns.choose import choose_features
from penstock.columns.labels import LabelMap
from penstock.errors import BudgetError
from penstock.loader import Loader, direct_reads
from penstock.loader.decode import unit_bytes
from penstock.loader.plan import plan_memory, round_up
from penstock.shuffle import ORDERS
from tests import kinds

SOURCE = SimpleNamespace(name="clicks.arrow")


def plan(memory, **changes):
    given = {
        "row_bytes": 100.0,
        "rows": 1_000_000,
        "block_rows": 2_000,
        "thread_bytes": 200_000,
        "most_threads": 16,
        "layout": "filled",
        "mixed": False,
    }
    return plan_memory(SOURCE, memory=Budget.parse(memory), **{**given, **changes})


def smallest_named(error):
    found = re.search(r"smallest that works is ([0-9.]+[kMG]?B)(?: \(([0-9.]+%) of the data\))?", str(error.value))
    assert found, str(error.value)
    return found[1], found[2]


@pytest.mark.parametrize("layout", ["filled", "assembled"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("beside", [0, 48])
@pytest.mark.parametrize("unit_bytes", [0, 3_000_000])
@pytest.mark.parametrize("memory", ["5MB", "20MB", "50MB", "1GB"])
def test_windows_reads_and_units_stay_within_the_budget(memory, layout, mixed, beside, unit_bytes):
    options = {"layout": layout, "mixed": mixed, "beside": beside, "unit_bytes": unit_bytes}
    made = plan(memory, **options)
    share = {"filled": 2.75 if mixed else 2.0, "assembled": 4.0 if mixed else 3.0}[layout]
    windows = share * made.held_rows * (100 + beside)
    assert windows + made.threads * 200_000 + (made.units if unit_bytes else 0) * unit_bytes <= made.memory
    assert made.held_rows >= 2_000
    assert made.threads >= 1
    if unit_bytes:
        assert made.threads <= made.units <= 32


def test_most_of_a_large_budget_goes_to_the_windows():
    made = plan("50MB")
    assert 2 * made.held_rows * 100 > 0.7 * made.memory
    assert not made.resident
    assert plan("400MB").resident
    assert plan("400MB").held_rows == 1_000_000


def test_the_rows_of_a_window_do_not_hang_on_the_threads():
    assert len({plan("50MB", most_threads=n).held_rows for n in (1, 2, 16, 64)}) == 1
    assert plan("50MB", most_threads=64).threads == 32


def test_a_share_is_of_the_decoded_rows():
    assert plan("10%").memory == 10_000_000


@pytest.mark.parametrize("memory", ["1kB", "100kB", "0.1%"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("unit_bytes", [0, 777_777])
@pytest.mark.parametrize("block_rows", [1, 333, 20_001])
def test_a_budget_too_small_names_the_smallest_that_works_and_it_does(memory, mixed, unit_bytes, block_rows):
    options = {"mixed": mixed, "unit_bytes": unit_bytes, "block_rows": block_rows}
    with pytest.raises(BudgetError, match=r"cannot hold two blocks of clicks.arrow") as error:
        plan(memory, **options)
    size, share = smallest_named(error)
    assert plan(size, **options).held_rows >= block_rows
    assert plan(share, **options).held_rows >= block_rows
    with pytest.raises(BudgetError):
        plan(int(0.8 * Budget.parse(size).resolve(0)), **options)
    stretched = plan(memory, **options, stretch=True)
    assert stretched.memory <= Budget.parse(size).resolve(0)
    assert stretched.held_rows == block_rows


def test_a_budget_too_small_is_told_what_would_help_these_blocks():
    with pytest.raises(BudgetError, match=r"largest block has 20001 rows.*--block-size 64KB"):
        plan("1kB", block_rows=20_001)
    with pytest.raises(BudgetError, match=r"largest block has 33 rows") as small:
        plan("1kB", block_rows=33)
    assert "convert" not in str(small.value)  # its blocks are smaller than that already
    with pytest.raises(BudgetError, match=r"a row group read in parts holds 5.0 MB.*or convert the data"):
        plan("1kB", block_rows=33, unit_bytes=5_000_000)


def test_sizes_are_rounded_up():
    for size in (1, 999, 1_001, 123_456, 99_999_999, 3 * 10**9 + 1):
        assert size <= Budget.parse(round_up(size)).resolve(0) <= 1.1 * size + 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_the_smallest_budget_named_works_for_every_source_and_order(tmp_path, kind, order):
    x, y = kinds.rows(300)
    with kinds.store(kind, tmp_path, x, y) as source:
        recipe = kinds.recipe(source)
        with pytest.raises(BudgetError) as error:
            Loader(source, recipe, order, memory=100)
        size, _ = smallest_named(error)
        with Loader(source, recipe, order, memory=size, scratch=tmp_path) as loader:
            if order != "global" or kind in kinds.EXACT:
                assert len(kinds.numbers(w.batch for w in loader.epoch(0)))


def test_no_more_row_groups_are_half_read_than_memory_allows(tmp_path):
    x, y = kinds.rows(4000)
    parquet.write_table(kinds.table(x, y), tmp_path / "a.parquet", row_group_size=400)
    with open_source(tmp_path / "a.parquet", block_size=1000) as source:
        recipe = kinds.recipe(source)
        for order in ("corgipile", "block-only", "none"):
            most = 0
            size = kinds.small_memory(source, recipe, order)
            with Loader(source, recipe, order, memory=size) as loader:
                assert loader.plan.units == 1
                for window in loader.epoch(0):
                    assert len(window.batch)
                    most = max(most, len(source._cursors))
            assert most <= 1
    with (
        open_source(tmp_path / "a.parquet", block_size=1000) as source,
        Loader(source, recipe, "corgipile", memory=size + 3 * int(1.5 * source.unit_bytes)) as loader,
    ):
        assert loader.plan.units > 1
        assert np.array_equal(np.sort(kinds.numbers(w.batch for w in loader.epoch(0))), np.arange(4000))


def test_reading_past_the_cache_takes_the_same_room_as_reading_through_it(monkeypatch, tmp_path):
    # Which rows meet in a window must not hang on the memory that happens to be free.
    rows = np.zeros((2_000, 50), np.float32)
    convert(ArraySource(rows, np.arange(2_000) % 2), tmp_path / "a.arrow", label="label")
    monkeypatch.setattr(direct_reads, "LEAST", 1)
    plans, ways, read = [], [], []
    for free in (1 << 40, 1):
        monkeypatch.setattr(direct_reads, "available_memory", lambda free=free: free)
        with open_source(tmp_path / "a.arrow") as source:
            recipe = choose_features(source.schema, label="label", place="a")
            with Loader(source, recipe, memory="200kB") as loader:
                plans.append(loader.plan.held_rows)
                ways.append(loader._feed.decoder.cached)
                read.append(np.concatenate([w.batch.y.copy() for w in loader.epoch(0)]))
    assert plans[0] == plans[1]
    assert ways[0]
    assert np.array_equal(read[0], read[1])


def test_a_memory_that_is_too_little_names_the_line_that_converts_and_no_share_above_all(tmp_path):
    folder = tmp_path / "my data"
    folder.mkdir()
    for name in "ab":
        parquet.write_table(
            pa.table({f"f{i}": np.random.default_rng(i).random(5000) for i in range(20)}), folder / f"{name}.parquet"
        )
    for data, named in ((folder, folder), (folder / "a.parquet", folder / "a.parquet")):
        with open_source(data) as source, pytest.raises(BudgetError) as caught:
            Loader(source, choose_features(source.schema, place="x"), memory="1kB")
        assert f"penstock convert '{named}' DST.arrow" in str(caught.value)
        assert not [share for share in re.findall(r"([\d.]+)% of the data", str(caught.value)) if float(share) > 100]


def test_a_large_row_group_is_cut_where_it_fits_in_parts_alone(tmp_path):
    """Sorted rows of one row group: whole, it would mix well but does not fit; in parts that are kept on disk it does."""
    rows = 60_000
    columns = {f"x{j}": np.random.default_rng(j).random(rows, np.float32) for j in range(10)}
    parquet.write_table(
        pa.table({**columns, "y": np.arange(rows) // (rows // 2)}), tmp_path / "t.parquet", row_group_size=rows
    )
    with open_source(tmp_path / "t.parquet") as source:
        recipe = choose_features(source.schema, label="y", place="here")
        memory = int(1.2 * unit_bytes(source, recipe.columns))
        with Loader(
            source, recipe.with_labels(LabelMap((0, 1))), "corgipile", memory=memory, scratch=tmp_path
        ) as loader:
            assert not loader.plan.warning
            shares = [window.batch.y.mean() for window in loader.epoch(0)]
    assert len(shares) > 1
    assert np.abs(shares).max() < 0.5  # targets are -1 and 1
