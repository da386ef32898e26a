"""The loader as a stream: errors of its threads, early ends and changed files."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.memory import ArraySource, TableSource
from penstock.columns.choose import choose_features
from penstock.errors import (
    CorruptFileError,
    DataChangedError,
    DataError,
    FeatureError,
    LabelError,
    UnknownOptionError,
    UsageError,
)
from penstock.loader import Loader
from penstock.parallel import in_order
from penstock.shuffle import ORDERS
from tests import kinds


def threads():
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("penstock"))


def open_files():
    """Return the files open besides the source's own, which may keep row groups half read."""
    gc.collect()
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(name for name in found if name.startswith("/") and not name.endswith(".parquet"))


@pytest.fixture(params=["packed", "parquet", "csv", "packed-sparse"])
def stored(request, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    with kinds.store(request.param, folder, *kinds.rows(2000)) as source:
        yield source, kinds.recipe(source)


@pytest.mark.parametrize("order", ORDERS)
def test_an_early_end_leaves_no_thread_and_no_open_file(stored, order, tmp_path):
    source, recipe = stored
    if order == "global" and not source.exact_rows:
        return
    files = open_files()
    size = kinds.small_memory(source, recipe, order)
    with Loader(source, recipe, order, memory=size, scratch=tmp_path) as loader:
        for _ in loader.epoch(0):
            break
        windows = loader.epoch(0)
        next(windows)
        windows.close()
        windows = loader.epoch(1)
        next(windows)
        assert threads()  # there is something to stop
    del windows
    assert threads() == []
    assert open_files() == files


def test_a_loader_that_was_closed_reads_again_when_asked(stored, tmp_path):
    source, recipe = stored
    for memory in (kinds.small_memory(source, recipe, "corgipile"), "100MB"):
        loader = Loader(source, recipe, "corgipile", memory=memory, scratch=tmp_path)
        first = kinds.numbers(w.batch for w in loader.epoch(0))
        loader.close()
        assert np.array_equal(kinds.numbers(w.batch for w in loader.epoch(0)), first)
        loader.close()
        loader.close()
    assert threads() == []


class Broken(ArraySource):
    """A source whose sixth block cannot be read."""

    error: Exception = OSError("the cable was pulled")

    def read(self, block, columns=None):
        if block == 5:
            raise self.error
        return super().read(block, columns)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "error", [OSError("the cable was pulled"), CorruptFileError("block 5 is damaged"), KeyError(5)]
)
def test_a_failure_in_a_thread_is_raised_to_the_caller_as_it_is(order, sparse, error, tmp_path):
    x, y = kinds.rows(1000)
    source = Broken(kinds.sparse(x) if sparse else x, y, block_size=800)
    source.error = error
    recipe = kinds.recipe(source)
    memory = kinds.small_memory(source, recipe, order)
    with Loader(source, recipe, order, memory=memory, scratch=tmp_path) as loader:
        with pytest.raises(type(error)) as raised:
            for _ in loader.epoch(0):
                pass
        # A copy that cannot be made for want of rows to read is told with the way out beside it.
        if not (ORDERS[order].facts.copy != "never" and type(error) is OSError):
            assert raised.value is error
        else:
            assert "the cable was pulled" in str(raised.value)
        frames = [f.name for f in raised.traceback]
        assert "read" in frames or "the cable" in str(raised.value)  # where it happened is still to be seen
    assert threads() == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("order", ["none", "corgipile", "global", "once", "mrs"])
def test_what_cannot_be_encoded_is_named_by_its_row_in_every_order(order, tmp_path):
    label = np.arange(1000) % 2
    table = pa.table({"a": np.arange(1000.0), "label": pa.array(label, mask=np.arange(1000) == 613)})
    source = TableSource.of(table, block_size=800)
    with (
        Loader(source, choose_features(source.schema, label="label"), order, memory="20kB", scratch=tmp_path) as loader,
        pytest.raises(LabelError, match=r"'label' is missing \(null\) in row 613;"),
    ):
        for _ in loader.epoch(0):
            pass
    weights = np.ones(1000)
    weights[321] = -2
    source = TableSource.of(pa.table({"a": np.arange(1000.0), "w": weights, "label": label}), block_size=800)
    recipe = choose_features(source.schema, label="label", weight="w")
    with (
        Loader(source, recipe, order, memory="40kB", scratch=tmp_path) as loader,
        pytest.raises((DataError, FeatureError), match=r"'w' is -2.0 in row 321;"),
    ):
        for _ in loader.epoch(0):
            pass


@pytest.mark.parametrize("kind", ["packed", "arrow", "parquet", "npy", "csv", "libsvm", "packed-sparse"])
@pytest.mark.parametrize("change", ["replaced", "truncated", "removed", "rewritten"])
def test_a_file_that_changes_between_epochs_is_noticed(kind, change, tmp_path):
    with kinds.store(kind, tmp_path, *kinds.rows(2000)) as source:
        recipe = kinds.recipe(source)
        with Loader(source, recipe, "corgipile", memory=kinds.small_memory(source, recipe, "corgipile")) as loader:
            for _ in loader.epoch(0):
                pass
            path = source.name
            if change == "replaced":
                shutil.copy(path, f"{path}.new")
                os.replace(f"{path}.new", path)
            elif change == "truncated":
                os.truncate(path, os.path.getsize(path) // 2)
            elif change == "removed":
                os.remove(path)
            else:
                os.utime(path, ns=(0, 0))
            with pytest.raises((DataChangedError, CorruptFileError), match=r"changed|removed|truncated|damaged"):
                for _ in loader.epoch(1):
                    pass
    assert threads() == []


@pytest.mark.parametrize("kind", ["packed", "parquet", "csv", "packed-sparse"])
def test_a_file_cut_short_within_an_epoch_is_noticed(kind, tmp_path):
    def cut_short(windows, path):
        for window in windows:
            if window.index == 0:
                os.truncate(path, os.path.getsize(path) // 3)

    with kinds.store(kind, tmp_path, *kinds.rows(4000)) as source:
        recipe = kinds.recipe(source)
        loader = Loader(source, recipe, "none", memory=kinds.small_memory(source, recipe, "none"))
        with loader, pytest.raises((DataChangedError, CorruptFileError)):
            cut_short(loader.epoch(0), source.name)


def test_options_that_cannot_be_are_refused():
    source = ArraySource(*kinds.rows())
    recipe = kinds.recipe(source)
    with pytest.raises(UnknownOptionError, match=r"shuffle='corgi' is not known.*did you mean 'corgipile'"):
        Loader(source, recipe, "corgi")
    with pytest.raises(UsageError, match="memory='much' is not an amount of memory"):
        Loader(source, recipe, memory="much")


def test_bytes_read_are_counted(tmp_path):
    with kinds.store("packed", tmp_path, *kinds.rows(2000)) as source:
        recipe, stored = kinds.recipe(source), int(source.block_bytes.sum())
        for order, expected in (("none", 2 * stored), ("corgipile", 2 * stored), ("sliding-window", 2 * stored)):
            with Loader(source, recipe, order, memory=kinds.small_memory(source, recipe, order)) as loader:
                for epoch in range(2):
                    for _ in loader.epoch(epoch):
                        pass
                assert loader.bytes_read == expected
        with Loader(source, recipe, memory="100MB") as loader:  # all in memory: read once
            for epoch in range(3):
                for _ in loader.epoch(epoch):
                    pass
            assert loader.bytes_read == stored


def test_the_next_window_is_read_while_one_is_in_use():
    begun = [threading.Event() for _ in range(4)]
    windows = in_order(lambda number: begun[number].set() or number, range(4), threads=1)
    assert next(windows) == 0
    assert begun[1].wait(5)
    assert not begun[2].is_set()
    assert list(windows) == [1, 2, 3]


def test_an_mrs_epoch_is_the_same_alone_and_after_those_before_it(stored):
    source, recipe = stored
    size = kinds.small_memory(source, recipe, "mrs")
    with Loader(source, recipe, "mrs", memory=size) as loader:
        inturn = [kinds.numbers(w.batch for w in loader.epoch(e)) for e in range(4)]
    with Loader(source, recipe, "mrs", memory=size) as loader:
        for epoch in (3, 1, 2, 3):
            assert np.array_equal(kinds.numbers(w.batch for w in loader.epoch(epoch)), inturn[epoch])
        for _ in loader.epoch(2):
            break
        assert np.array_equal(kinds.numbers(w.batch for w in loader.epoch(3)), inturn[3])
