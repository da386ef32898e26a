"""Ratings made ready: keys and their positions, the grid of buckets, and the file of ratings by buckets."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bigmodel import keys as keys_module
from penstock.bigmodel.grid import FactorLayout, Grid
from penstock.bigmodel.keys import KeyCounts, KeyTable, as_keys
from penstock.bigmodel.ratings import RatingsFile, Roles, read_ratings, scan_ratings, triples, write_ratings
from penstock.blocks.memory import TableSource
from penstock.errors import (
    BudgetError,
    ColumnError,
    CorruptFileError,
    DataError,
    LabelError,
    ModelFileError,
    UsageError,
)
from penstock.loader.holdout import SplitPart
from penstock.sgd.factor import ABSENT

ROLES = Roles("user", "item", "rating")


def rated(rows=3000, users=60, items=40, seed=0, text=True):
    rng = np.random.default_rng(seed)
    user = (users * rng.random(rows) ** 2).astype(np.int64) * 37 - 500
    item = (items * rng.random(rows) ** 2).astype(np.int64)
    names = [f"book {k}" for k in item] if text else item.astype(np.uint32)
    return pa.table({"rating": rng.integers(1, 6, rows).astype(np.float32), "user": user, "item": names})


def source_of(table, block_size=4000):
    return TableSource.of(table, block_size=block_size, name="rated.parquet")


def with_value(column, row, value, kind):
    table = rated()
    values = table.column(column).to_pylist()
    values[row] = value
    return source_of(table.set_column(table.schema.names.index(column), column, pa.array(values, kind)))


class TestKeys:
    def test_positions_fall_in_frequency_and_ties_go_by_key(self):
        counts = KeyCounts()
        for block in (["b", "a", "c"], ["c", "b"], ["d"]):
            counts.add(as_keys(pa.array(block), "user"))
        table = counts.table()
        assert table.keys.to_pylist() == ["b", "c", "a", "d"]
        assert table.counts.tolist() == [2, 2, 1, 1]

    @pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.large_string()])
    def test_counts_are_those_of_one_pass_however_often_there_is_more_room(self, monkeypatch, kind):
        monkeypatch.setattr(keys_module, "_LEAST", 8)
        values = np.random.default_rng(1).integers(0, 500, 5000)
        counts = KeyCounts()
        for block in np.split(values, 50):
            counts.add(pa.array(block).cast(kind))
        table = counts.table()
        found, expected = np.unique(values.astype(str) if kind == pa.large_string() else values, return_counts=True)
        order = np.lexsort((found, -expected))
        assert table.keys.type == kind
        assert table.keys.to_pylist() == found[order].tolist()
        assert table.counts.tolist() == expected[order].tolist()

    def test_texts_that_share_half_their_hash_are_counted_apart(self, monkeypatch):
        real = keys_module._hash_texts

        def poor(offsets, data, seed, out):
            real(offsets, data, seed, out)
            if seed == 0:
                out[:] = out % np.uint64(3)

        monkeypatch.setattr(keys_module, "_hash_texts", poor)
        monkeypatch.setattr(keys_module, "_LEAST", 8)
        counts = KeyCounts()
        for _ in range(3):
            counts.add(pa.array([f"k{n}" for n in range(20)], pa.large_string()))
        assert counts.table().counts.tolist() == [3] * 20

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.text(max_size=6), unique=True, max_size=60), st.lists(st.text(max_size=6), max_size=20))
    def test_finds_each_text_and_no_other(self, known, others):
        table = KeyTable(pa.array(known, pa.large_string()), np.ones(len(known), np.int64))
        where = {key: k for k, key in enumerate(known)}
        asked = [*known, *others]
        found = table.find(pa.array(asked, pa.large_string()))
        assert found.tolist() == [where.get(key, int(ABSENT)) for key in asked]

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60))
    def test_finds_each_number_and_no_other(self, known):
        table = KeyTable(pa.array(known, pa.int64()), np.ones(len(known), np.int64))
        assert table.find(pa.array(known, pa.int64())).tolist() == list(range(len(known)))
        strangers = [k for k in (5, -7, 2**62) if k not in known]
        assert (table.find(pa.array(strangers, pa.int64())) == ABSENT).all()

    def test_two_texts_of_one_hash_are_told_apart(self, monkeypatch):
        real = keys_module._hash_texts

        def poor(offsets, data, seed, out):
            real(offsets, data, seed, out)
            if seed == 0:
                out[:] = out % np.uint64(3)

        monkeypatch.setattr(keys_module, "_hash_texts", poor)
        known = [f"k{n}" for n in range(20)]
        table = KeyTable(pa.array(known, pa.large_string()), np.ones(20, np.int64))
        assert table.find(pa.array(known, pa.large_string())).tolist() == list(range(20))

    def test_a_stranger_with_the_hash_of_a_known_text_is_not_known(self, monkeypatch):
        monkeypatch.setattr(keys_module, "_hash_texts", lambda offsets, data, seed, out: out.fill(9))
        table = KeyTable(pa.array(["a"], pa.large_string()), np.ones(1, np.int64))
        assert table.find(pa.array(["b", "a"], pa.large_string())).tolist() == [int(ABSENT), 0]

    def test_signed_and_unsigned_numbers_are_found_by_value(self):
        table = KeyTable(pa.array([2**64 - 1, 7], pa.uint64()), np.ones(2, np.int64))
        assert table.find(pa.array([-1, 7], pa.int64())).tolist() == [int(ABSENT), 1]

    def test_text_where_numbers_are_known_is_refused(self):
        table = KeyTable(pa.array([7], pa.int64()), np.ones(1, np.int64))
        with pytest.raises(ColumnError, match="are text came where the model's are whole numbers"):
            table.find(pa.array(["7"], pa.large_string()))

    @pytest.mark.parametrize(
        "column",
        [
            pa.array(["x", "y"]),
            pa.array(["x", "y"]).dictionary_encode(),
            pa.array([1, 2], pa.int8()),
            pa.array([1, 2], pa.uint64()),
            pa.array([1.0, 2.0]),
        ],
    )
    def test_keys_of_any_whole_number_or_text_type(self, column):
        assert as_keys(column, "user").to_pylist() == column.to_pylist()

    def test_what_cannot_be_a_key_is_refused(self):
        with pytest.raises(DataError, match=r"has 1.5 as 'user' in row 11; keys are whole numbers or text"):
            as_keys(pa.array([1.0, 1.5]), "user", first_row=10, place="f.csv")
        with pytest.raises(ColumnError, match=r"'user' is list<item: int64>"):
            as_keys(pa.array([[1]]), "user", place="f.csv")

    @pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.large_string()])
    def test_a_saved_table_is_the_same_again(self, tmp_path, kind):
        table = KeyTable(pa.array([3, 1, 2]).cast(kind), np.array([5, 4, 4]))
        table.save(tmp_path / "users.arrow")
        again = KeyTable.load(tmp_path / "users.arrow")
        assert again.keys.equals(table.keys)
        assert again.counts.tolist() == [5, 4, 4]

    def test_a_damaged_table_is_refused(self, tmp_path):
        (tmp_path / "users.arrow").write_bytes(b"ARROW1 but no more")
        with pytest.raises(ModelFileError, match=r"users.arrow is not a whole table"):
            KeyTable.load(tmp_path / "users.arrow")


class TestScan:
    def test_finds_users_items_and_the_mean(self):
        table = rated()
        found = scan_ratings(source_of(table), ROLES)
        ratings = table.column("rating").to_numpy()
        assert found.rows == len(table)
        assert found.mean == pytest.approx(ratings.mean(), rel=1e-6)
        assert found.spread == pytest.approx(ratings.std(), rel=1e-5)
        assert sorted(found.users.keys.to_pylist()) == sorted(set(table.column("user").to_pylist()))
        assert sorted(found.items.keys.to_pylist()) == sorted(set(table.column("item").to_pylist()))
        assert found.users.counts.sum() == found.items.counts.sum() == len(table)
        assert (np.diff(found.users.counts) <= 0).all()

    def test_knows_of_the_rows_of_its_part_alone(self):
        part = SplitPart(0.5, 3, held_out=False)
        one, other = (scan_ratings(source_of(rated()), ROLES, part=side) for side in (part, part.other()))
        assert one.rows + other.rows == 3000
        assert one.rows == one.users.counts.sum()

    @pytest.mark.parametrize(
        ("column", "value", "kind", "error", "words"),
        [
            ("user", None, pa.int64(), DataError, r"rated.parquet has no 'user' in row 2345"),
            ("item", None, pa.string(), DataError, r"rated.parquet has no 'item' in row 2345"),
            ("rating", None, pa.float32(), LabelError, r"has no value as 'rating' in row 2345"),
            ("rating", float("nan"), pa.float32(), LabelError, r"has nan as 'rating' in row 2345"),
            ("rating", float("inf"), pa.float32(), LabelError, r"has inf as 'rating' in row 2345"),
            ("rating", 1e300, pa.float64(), LabelError, r"has inf as 'rating' in row 2345"),
        ],
    )
    def test_what_cannot_be_used_is_refused_by_its_row(self, column, value, kind, error, words):
        with pytest.raises(error, match=words):
            scan_ratings(with_value(column, 2345, value, kind), ROLES)

    def test_a_missing_column_is_named_with_those_there_are(self):
        with pytest.raises(
            ColumnError, match=r"no user column 'users'; it has: rating, user, item \(did you mean 'user'\?\)"
        ):
            scan_ratings(source_of(rated()), Roles("users", "item", "rating"))
        with pytest.raises(ColumnError, match=r"no rating column 'stars'"):
            scan_ratings(source_of(rated()), Roles("user", "item", "stars"))

    def test_ratings_that_are_no_numbers_are_refused(self):
        table = rated().append_column("name", rated().column("item"))
        with pytest.raises(ColumnError, match=r"rating column 'name' is string; ratings are numbers"):
            scan_ratings(source_of(table), Roles("user", "item", "name"))

    def test_one_column_is_not_two_things(self):
        with pytest.raises(UsageError, match="three different columns"):
            scan_ratings(source_of(rated()), Roles("user", "user", "rating"))

    def test_no_ratings_at_all(self):
        with pytest.raises(DataError, match="has no ratings"):
            scan_ratings(source_of(rated().slice(0, 0)), ROLES)


class TestGrid:
    @settings(max_examples=200, deadline=None)
    @given(
        st.integers(1, 300), st.integers(1, 4000), st.integers(1, 4000), st.integers(100, 70_000), st.floats(0.01, 1.2)
    )
    def test_a_bucket_and_the_part_that_comes_next_fit(self, rank, users, items, page_bytes, share):
        layout = FactorLayout.of(rank, users=users, items=items, page_bytes=page_bytes)
        assert layout.page_floats % 1024 == 0
        assert layout.width * layout.page_records == layout.page_floats
        assert layout.page_records == 1 << layout.shift
        assert rank + 1 <= layout.width <= 1.25 * (rank + 4)
        frames = max(3, int(share * layout.pages))
        grid = Grid.plan(layout, frames=frames)
        used = min(grid.user_part, layout.user_pages), min(grid.item_part, layout.item_pages)
        moving = used[0] if grid.by_items else used[1]
        parts = grid.user_parts if grid.by_items else grid.item_parts
        assert sum(used) + (moving if parts > 1 else 0) <= max(frames, layout.pages if grid.buckets == 1 else 0)
        assert (grid.buckets == 1) == (layout.pages <= frames)
        order = grid.order(np.random.default_rng(0))
        assert sorted(order.tolist()) == list(range(grid.buckets))

    def test_neighbours_share_a_part_and_epochs_differ(self):
        grid = Grid.plan(FactorLayout.of(100, users=50_000, items=40_000), frames=40)
        assert grid.user_parts > 3
        assert grid.item_parts > 3
        orders = [grid.order(np.random.default_rng(seed)) for seed in (1, 2)]
        assert orders[0].tolist() != orders[1].tolist()
        for order in (*orders, grid.order(None)):
            user, item = divmod(order, grid.item_parts)
            assert ((np.diff(user) == 0) | (np.diff(item) == 0)).all()

    def test_buckets_are_those_of_the_records_pages(self):
        layout = FactorLayout.of(100, users=5000, items=3000)
        grid = Grid(layout, user_part=10, item_part=5)
        users = np.array([0, 1279, 1280, 4999, int(ABSENT)], np.uint32)
        items = np.array([0, 639, 640, 2999, 0], np.uint32) + np.uint32(layout.first_item)
        assert grid.bucket_of(users, items).tolist() == [0, 0, 6, 3 * 5 + 4, 0]
        assert grid.bucket_of(users[1:2], np.array([ABSENT])).tolist() == [0]

    def test_too_little_memory_is_refused_with_what_is_enough(self):
        with pytest.raises(BudgetError, match=r"2 pages of 53.2 kB fit .* give at least 213 kB in all"):
            Grid.plan(FactorLayout.of(100, users=5000, items=3000), frames=2)

    def test_more_records_than_have_numbers_are_refused(self):
        with pytest.raises(UsageError, match="more than the 4294967294"):
            FactorLayout.of(8, users=2**32 - 10, items=100)


class TestFile:
    def written(self, tmp_path, frames=6, memory=20_000, block=100, table=None):
        table = rated() if table is None else table
        source = source_of(table)
        found = scan_ratings(source, ROLES)
        layout = FactorLayout.of(255, users=len(found.users), items=len(found.items), page_bytes=4096)
        grid = Grid.plan(layout, frames=frames)
        rows = [triples(read, found.users, found.items, layout) for read in read_ratings(source, ROLES)]
        path = tmp_path / "ratings.bin"
        count = write_ratings(path, iter(rows), grid, seed=5, memory=memory, about={"a": 1}, block=block)
        assert count == len(table)
        return path, grid, np.concatenate(rows)

    @pytest.mark.parametrize("memory", [100, 20_000, 10**9])
    @pytest.mark.parametrize("frames", [5, 1000])
    def test_every_rating_once_in_its_bucket(self, tmp_path, memory, frames):
        path, grid, rows = self.written(tmp_path, frames, memory)
        assert (grid.buckets == 1) == (frames == 1000)
        seen = []
        with RatingsFile(path) as file:
            assert file.rows == len(rows)
            assert file.about == {"a": 1}
            for bucket in range(grid.buckets):
                for blocks in file.pieces(file.blocks(bucket), most=250):
                    found = file.read(blocks)
                    assert 0 < len(found) <= 250
                    assert (grid.bucket_of(found[:, 0], found[:, 1]) == bucket).all()
                    seen.append(found)
        np.testing.assert_array_equal(np.sort(np.concatenate(seen), axis=0), np.sort(rows, axis=0))
        assert sorted(map(bytes, np.concatenate(seen))) == sorted(map(bytes, rows))

    def test_keys_and_ratings_survive(self, tmp_path):
        table = rated(500)
        source = source_of(table)
        found = scan_ratings(source, ROLES)
        layout = FactorLayout.of(8, users=len(found.users), items=len(found.items))
        rows = np.concatenate([triples(r, found.users, found.items, layout) for r in read_ratings(source, ROLES)])
        assert found.users.keys.take(pa.array(rows[:, 0])).to_pylist() == table.column("user").to_pylist()
        items = rows[:, 1] - np.uint32(layout.first_item)
        assert found.items.keys.take(pa.array(items)).to_pylist() == table.column("item").to_pylist()
        assert rows[:, 2].copy().view(np.float32).tolist() == table.column("rating").to_pylist()

    def test_the_same_seed_writes_the_same_bytes(self, tmp_path):
        first = self.written(tmp_path)[0].read_bytes()
        assert first == self.written(tmp_path)[0].read_bytes()
        assert list(tmp_path.iterdir()) == [tmp_path / "ratings.bin"]

    @pytest.mark.parametrize("at", [20, -200, -5])
    def test_flipped_bytes_are_found(self, tmp_path, at):
        path, grid, _ = self.written(tmp_path)
        content = bytearray(path.read_bytes())
        content[at] ^= 0x10
        path.write_bytes(content)

        def read_all():
            with RatingsFile(path) as file:
                for bucket in range(grid.buckets):
                    file.read(file.blocks(bucket))

        with pytest.raises(CorruptFileError, match=r"ratings.bin is damaged"):
            read_all()

    @pytest.mark.parametrize("size", [0, 5, 1000])
    def test_a_file_cut_short_is_found(self, tmp_path, size):
        path, _, _ = self.written(tmp_path)
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(CorruptFileError, match=r"ratings.bin is damaged"):
            RatingsFile(path)

    def test_a_failure_leaves_nothing_behind(self, tmp_path):
        grid = Grid.plan(FactorLayout.of(8, users=10, items=10), frames=100)

        def broken():
            yield np.zeros((10, 3), np.uint32)
            raise DataError("no more")

        with pytest.raises(DataError):
            write_ratings(tmp_path / "ratings.bin", broken(), grid, seed=0, memory=1000, about={})
        assert list(tmp_path.iterdir()) == []
