"""An exact shuffle by sweeps: the rows of a permutation in its order, whatever the memory, ranks, starts and blocks."""

from __future__ import annotations

import itertools
import math
import threading
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.fields import Fields
from penstock.blocks.open import open as open_source
from penstock.errors import DataError
from penstock.loader import Loader, sweep
from penstock.loader.holdout import SplitPart
from penstock.loader.sweep import GROWTH, Reach, Sweep, edges
from penstock.loader.windows import Feed
from penstock.shuffle.permute import KeyedPermutation


def table(rows: int) -> pa.Table:
    number = np.arange(rows)
    return pa.table({"n": number, "text": pa.array([str(i) * (i % 3) for i in range(rows)])})


def feed_of(data: pa.Table, kind: str, folder=None, *, block: int = 50):
    """Return a feed whose rows lie in memory, are decoded by the block, or are read singly; fixed or ragged."""
    columns = ["n"] if kind.endswith("fixed") else ["n", "text"]
    if kind.startswith("file"):
        with pa.ipc.new_file(folder / "a.arrow", data.schema) as writer:
            writer.write_table(data, max_chunksize=block)
        source = ArrowSource(folder / "a.arrow")
    else:
        source = open_source(pa.Table.from_batches(data.to_batches(max_chunksize=block), data.schema))
    feed = Feed.of_records(source, Fields.of(source.schema, columns, numbered=True))
    return feed.resident() if kind.startswith("memory") else feed


KINDS = ["memory-fixed", "memory-ragged", "blocks-fixed", "blocks-ragged", "file-fixed", "file-ragged"]


def check(feed, order: Sweep, *, start: int = 0, expected: np.ndarray | None = None) -> np.ndarray:
    """Run a sweep and compare every window with the permutation; return the rows given out."""
    given_out = []
    bounds = order.edges(start)
    with closing(order.windows(bounds)) as windows:
        for index, window in enumerate(windows):
            rows = window.batch.rows.copy()
            assert window.index == index
            assert window.batch.columns["n"].tolist() == rows.tolist()
            if "text" in window.batch.columns:
                assert list(window.batch.columns["text"]) == [str(i) * (i % 3) for i in rows]
            assert window.numbers().tolist() == rows.tolist()
            given_out.append(rows)
            if len(rows):
                block, local = window.locate(len(rows) // 2)
                assert int(feed.block_rows[:block].sum()) + local == rows[len(rows) // 2]
                assert 0 <= local < feed.block_rows[block]
    assert len(given_out) == max(0, len(bounds) - 1)
    found = np.concatenate(given_out) if given_out else np.empty(0, np.int64)
    if expected is None:
        positions = np.arange(start, order.rows) * order.world + order.offset + order.rank
        expected = order.permutation.apply(positions)
    assert found.tolist() == expected.tolist()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("span", [1, 90, 700, 10**6])
def test_rows_come_in_the_order_of_the_permutation(tmp_path, kind, span):
    feed = feed_of(table(1230), kind, tmp_path)
    order = Sweep(feed, KeyedPermutation(1230, 5), span, 4)
    check(feed, order)
    check(feed, order)  # and once more, by the same sweep
    feed.decoder.close()
    feed.source.close()


@settings(max_examples=150)
@given(
    rows=st.integers(1, 900),
    span=st.integers(1, 2000),
    world=st.integers(1, 5),
    offset=st.integers(0, 1000),
    starts=st.floats(0, 1),
    block=st.integers(1, 200),
    threads=st.integers(1, 5),
    kind=st.sampled_from(["memory-fixed", "memory-ragged", "blocks-fixed", "blocks-ragged"]),
)
@example(rows=1, span=1, world=5, offset=0, starts=0.0, block=1, threads=1, kind="blocks-fixed")
@example(rows=899, span=3, world=1, offset=0, starts=0.0, block=899, threads=5, kind="blocks-fixed")
def test_every_rank_gets_its_rows_in_order_and_all_get_each_once(
    rows, span, world, offset, starts, block, threads, kind
):
    feed = feed_of(table(rows), kind, block=block)
    permutation = KeyedPermutation(rows, 7)
    everything = []
    for rank in range(world):
        order = Sweep(feed, permutation, span, threads, rank=rank, world=world, offset=offset)
        start = int(starts * order.rows)
        everything.append(check(feed, order, start=start))
        assert len(everything[-1]) == order.rows - start
        if start:
            everything[-1] = np.append(everything[-1], permutation.apply(np.arange(start) * world + offset + rank))
    left = permutation.apply(np.arange(min(offset, rows), rows))
    assert sorted(np.concatenate(everything).tolist()) == sorted(left.tolist())


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_part_only_its_rows_come_in_the_same_order(tmp_path, kind):
    rows = 1000
    feed = feed_of(table(rows), kind, tmp_path)
    permutation = KeyedPermutation(rows, 2)
    found = []
    for part in (SplitPart(0.2, 1, held_out=True), SplitPart(0.2, 1, held_out=False)):
        order = Sweep(feed, permutation, 150, 3, part=part.of(feed.source))
        shuffled = permutation.apply(np.arange(rows))
        kept = part.has(np.int64(0), shuffled)
        found.append(check(feed, order, expected=shuffled[kept]))
    assert sorted(np.concatenate(found).tolist()) == list(range(rows))
    feed.source.close()


@given(
    start=st.integers(0, 10**12),
    rows=st.integers(1, 10**10),
    first=st.integers(1, 5000),
    span=st.integers(1, 10**9),
    chunks=st.integers(1, 256),
)
@example(start=2**52, rows=10**10, first=1, span=7, chunks=255)
def test_the_reach_never_shrinks_nor_grows_by_more_than_a_span(start, rows, first, span, chunks):
    reach = Reach(start, start + rows, min(first, max(1, span // GROWTH)), span)
    assert reach.at(0) > start
    times = [s + c / chunks for s in range(6) for c in range(chunks)]
    reached = [reach.at(t) for t in times]
    assert all(a <= b for a, b in itertools.pairwise(reached))
    assert all(reach.at(t + 1) - reach.at(t) <= span + 1 for t in times)
    assert reach.at(8 + math.ceil(math.log2(rows + 1)) + rows / span) == start + rows


@given(start=st.integers(0, 5000), rows=st.integers(0, 5000), most=st.integers(64, 2000))
def test_windows_cover_all_positions_and_grow_to_their_size(start, rows, most):
    bounds = edges(start, rows, most)
    assert bounds[-1] == rows
    if start < rows:
        assert bounds[0] == start
        sizes = np.diff(bounds)
        assert sizes.min() > 0
        assert sizes.max() <= most
        assert sizes[0] <= 128
        assert (sizes[1:-1] >= np.minimum(sizes[:-2], most)).all()
    else:
        assert len(bounds) == 1


def test_the_first_windows_ask_for_few_rows_and_later_sweeps_for_a_span(tmp_path):
    feed = feed_of(table(20_000), "file-fixed", tmp_path, block=500)
    order = Sweep(feed, KeyedPermutation(20_000, 1), 4000, 2)
    asked = []
    pick = feed.decoder.pick_into
    feed.decoder.pick_into = lambda owner, *rest: (asked.append(len(owner)), pick(owner, *rest))[1]
    with closing(order.windows(order.edges())) as windows:
        next(windows)
        early = sum(asked)
        for _ in windows:
            pass
    assert early < 6000  # a few windows, not the file
    assert sum(asked) == 20_000  # each row once
    feed.source.close()


@pytest.mark.parametrize("kind", ["file-fixed", "blocks-fixed"])
@pytest.mark.parametrize("span", [2000, 6000])
def test_no_more_is_held_than_was_planned_for(tmp_path, kind, span):
    feed = feed_of(table(30_000), kind, tmp_path, block=100)
    order = Sweep(feed, KeyedPermutation(30_000, 1), span, 2)
    held, most, lock = [0], [0], threading.Lock()
    pick = feed.decoder.pick_into

    def counted(owner, *rest):
        pick(owner, *rest)
        with lock:
            held[0] += len(owner)
            most[0] = max(most[0], held[0])

    feed.decoder.pick_into = counted
    with closing(order.windows(order.edges())) as windows:
        for window in windows:
            with lock:
                held[0] -= len(window.batch)
    # Two windows are outside the pool: the one in use and the next.
    assert 0.4 * span < most[0] <= order._share * span + 2 * order.window + 64
    feed.source.close()


def test_a_failure_in_a_thread_comes_up_and_leaves_no_thread(tmp_path):
    data = table(3000)
    data = data.set_column(0, "n", pa.array([None if i == 2222 else i for i in range(3000)]))
    feed = feed_of(data, "file-fixed", tmp_path)
    order = Sweep(feed, KeyedPermutation(3000, 1), 500, 4)
    before = threading.active_count()
    with pytest.raises(DataError, match="column 'n' holds a null"):
        for _ in order.windows(order.edges()):
            pass
    assert threading.active_count() == before
    feed.source.close()


@pytest.mark.parametrize("kind", ["file-fixed", "file-ragged", "blocks-fixed"])
def test_sweeps_left_early_leave_no_thread(tmp_path, kind):
    feed = feed_of(table(3000), kind, tmp_path)
    order = Sweep(feed, KeyedPermutation(3000, 1), 500, 4)
    before = threading.active_count()
    for stop in (0, 1, 5):
        with closing(order.windows(order.edges())) as windows:
            for _ in range(stop):
                next(windows)
        assert threading.active_count() == before
    feed.source.close()


def test_bytes_are_counted(tmp_path):
    feed = feed_of(table(4000), "file-fixed", tmp_path)
    for span, least in ((10**6, 1.0), (400, 4.0)):
        order = Sweep(feed, KeyedPermutation(4000, 1), span, 2)
        for _ in order.windows(order.edges()):
            pass
        assert order.bytes_read >= least * 8 * 4000
    blocks = feed_of(table(4000), "blocks-fixed")
    order = Sweep(blocks, KeyedPermutation(4000, 1), 1000, 2)
    for _ in order.windows(order.edges()):
        pass
    stored = int(blocks.source.block_bytes.sum())
    # About one pass for each span, and one more.
    assert 3 * stored < order.bytes_read < 8 * stored
    feed.source.close()


def test_a_loader_counts_the_bytes_of_sweeps(tmp_path):
    data = table(4000)
    with pa.ipc.new_file(tmp_path / "a.arrow", data.schema) as writer:
        writer.write_table(data, max_chunksize=50)
    with (
        ArrowSource(tmp_path / "a.arrow") as source,
        Loader(source, Fields.of(source.schema, ["n"]), "global", memory="560kB", threads=2) as loader,
    ):
        assert not loader.plan.resident
        given_out = np.concatenate([window.batch.columns["n"].copy() for window in loader.epoch(0)])
        assert sorted(given_out.tolist()) == list(range(4000))
        assert loader.bytes_read >= 8 * 4000


def test_a_billion_rows_take_no_more_than_their_windows(monkeypatch):
    """The order of more rows than anyone holds is worked out window by window."""

    class Nowhere:
        single, waits, cached, thread_bytes = True, True, True, 0

        def pick_into(self, owner, local, slots, into):
            into.columns["n"][slots] = owner * 10**6 + local

    rows = 10**9
    small = feed_of(table(10), "memory-fixed")
    fields = Fields.of(pa.schema({"n": pa.int64()}))
    feed = Feed(small.source, Feed.of_records(small.source, fields).form, Nowhere(), np.full(1000, 10**6), True, None)
    order = Sweep(feed, KeyedPermutation(rows, 9), 10**6, 2, rank=1, world=3)
    monkeypatch.setattr(sweep, "_FIRST_ROWS", 300)
    bounds = order.edges(10**6)
    with closing(order.windows(bounds)) as windows:
        seen = [window.batch.columns["n"].copy() for window in itertools.islice(windows, 3)]
    positions = np.arange(10**6, bounds[3]) * 3 + 1
    assert np.concatenate(seen).tolist() == order.permutation.apply(positions).tolist()
