"""Shuffled copies: uniform, within the memory, counted, and gone afterwards whatever happens."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from penstock.blocks.memory import ArraySource
from penstock.errors import CorruptFileError, FeatureError, WriteError
from penstock.loader import Loader, shuffled_copies
from tests import kinds
from tests.order_quality import rank_correlation

KINDS = ("packed", "csv", "packed-sparse")


@pytest.fixture(params=KINDS)
def stored(request, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    with kinds.store(request.param, folder, *kinds.rows(3000)) as source:
        yield source, kinds.recipe(source)


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def order_of(loader, epoch=0):
    return kinds.numbers(w.batch for w in loader.epoch(epoch))


@pytest.mark.parametrize("order", ["once", "epoch"])
def test_copies_are_uniform_counted_and_removed(stored, scratch, order):
    source, recipe = stored
    memory = kinds.small_memory(source, recipe, order)
    with Loader(source, recipe, order, memory=memory, scratch=scratch) as loader:
        first = order_of(loader)
        spent, disk = loader.prepare_seconds, loader.extra_disk_bytes
        assert spent > 0
        assert 0.5 * loader.plan.data_bytes < disk < 8 * loader.plan.data_bytes  # small blocks have large headers
        assert len(list(scratch.iterdir())) == 1
        second = order_of(loader, 1)
        assert (loader.prepare_seconds > spent) == (order == "epoch")
        assert len(list(scratch.iterdir())) == 1
    assert list(scratch.iterdir()) == []
    assert np.array_equal(first, second) == (order == "once")
    for found in (first, second):
        assert np.array_equal(np.sort(found), np.arange(3000))
        assert abs(rank_correlation(found)) < 0.06  # three standard deviations of a uniform shuffle
        # Each third of the stream holds a third of each third of the data.
        counts = np.histogram2d(np.arange(3000), found, bins=3)[0]
        assert np.all(np.abs(counts - 1000 / 3) < 60)


def test_buckets_too_large_are_dealt_again(scratch, monkeypatch):
    monkeypatch.setattr(shuffled_copies, "_BUCKETS", 3)
    x, y = kinds.rows(5000)
    with ArraySource(x, y, block_size=800) as source:
        recipe = kinds.recipe(source)
        memory = kinds.small_memory(source, recipe, "once")
        with Loader(source, recipe, "once", memory=memory, scratch=scratch) as loader:
            assert 3 * memory < 5000 * 24  # more than three buckets could hold
            found = order_of(loader)
    assert np.array_equal(np.sort(found), np.arange(5000))
    assert abs(rank_correlation(found)) < 0.05
    assert list(scratch.iterdir()) == []


def test_weights_and_targets_go_along(scratch):
    x, y = kinds.rows(500)
    with ArraySource(x, y, weight=np.arange(500) / 10, block_size=800) as source:
        recipe = kinds.recipe(source, weight="weight")
        with Loader(source, recipe, "once", memory="1MB", scratch=scratch) as loader:
            for window in loader.epoch(0):
                number = window.batch.x[:, 0].astype(int)
                np.testing.assert_allclose(window.batch.weight, number / 10, rtol=1e-6)
                np.testing.assert_array_equal(window.batch.y, y[number])


def test_nothing_is_left_after_an_exception_in_the_middle(stored, scratch):
    source, recipe = stored

    def stop_early():
        with Loader(source, recipe, "once", scratch=scratch) as loader:
            for _ in loader.epoch(0):
                raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        stop_early()
    assert list(scratch.iterdir()) == []


def test_nothing_is_left_where_close_was_forgotten(stored, scratch):
    source, recipe = stored
    loader = Loader(source, recipe, "once", scratch=scratch)
    assert len(order_of(loader)) == 3000
    assert len(list(scratch.iterdir())) == 1
    del loader
    gc.collect()
    assert list(scratch.iterdir()) == []


def test_folders_of_killed_runs_are_removed_and_others_are_not(scratch):
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    stale = scratch / f".penstock-copy-{int(dead.stdout)}-abc"
    mine = scratch / f".penstock-copy-{os.getpid()}-abc"
    init = scratch / ".penstock-copy-1-abc"  # a process that lives, and may not be ours
    foreign = scratch / ".penstock-copy-notes"
    for folder in (stale, mine, init, foreign):
        folder.mkdir()
        (folder / "bucket-0.arrows").write_bytes(b"x")
    x, y = kinds.rows(100)
    with ArraySource(x, y) as source, Loader(source, kinds.recipe(source), "once", scratch=scratch) as loader:
        order_of(loader)
        assert not stale.exists()
    assert sorted(p.name for p in scratch.iterdir()) == sorted(p.name for p in (mine, init, foreign))


@pytest.mark.parametrize("fails_after", [0, 3, 40])
def test_a_full_disk_is_told_and_leaves_nothing(stored, scratch, monkeypatch, fails_after):
    source, recipe = stored
    written = 0
    real = shuffled_copies.pa.ipc.new_stream

    class Writer:
        def __init__(self, sink, schema):
            self._writer = real(sink, schema)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._writer.close()

        def write_batch(self, batch):
            nonlocal written
            written += 1
            if written > fails_after:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._writer.write_batch(batch)

    monkeypatch.setattr(shuffled_copies.pa.ipc, "new_stream", Writer)
    memory = kinds.small_memory(source, recipe, "once")
    with Loader(source, recipe, "once", memory=memory, scratch=scratch) as loader:
        with pytest.raises(WriteError, match=r"cannot write a shuffled copy in .*scratch: No space left.*corgipile"):
            order_of(loader)
        assert list(scratch.iterdir()) == []


def test_a_disk_that_fills_up_under_the_copy_itself_is_told_and_leaves_nothing(stored, scratch, monkeypatch):
    source, recipe = stored

    def full(writer, batch):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shuffled_copies.BlockWriter, "write", full)
    with Loader(source, recipe, "epoch", scratch=scratch) as loader:
        with pytest.raises(WriteError, match=r"cannot write a shuffled copy in .*No space left"):
            order_of(loader)
        assert list(scratch.iterdir()) == []


def test_a_full_file_system_is_told_and_leaves_nothing(tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "penstock-test", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    try:
        x = np.random.default_rng(0).standard_normal((20_000, 8)).astype(np.float32)
        with ArraySource(x, np.arange(20_000) % 2) as source:
            for memory in ("2MB", "100MB"):
                with (
                    Loader(source, kinds.recipe(source), "once", memory=memory, scratch=place) as loader,
                    pytest.raises(WriteError, match=r"cannot write a shuffled copy in .*(space|full).*corgipile"),
                ):
                    order_of(loader)
                assert list(place.iterdir()) == []
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    source = ArraySource(*kinds.rows(100))
    loader = Loader(source, kinds.recipe(source), "once", scratch=tmp_path / "missing")
    with loader, pytest.raises(WriteError, match=r"cannot write a shuffled copy in .*missing: No such file.*scratch"):
        order_of(loader)


def test_a_source_that_cannot_be_read_is_not_called_a_disk_that_cannot_be_written(tmp_path, scratch):
    with kinds.store("packed", tmp_path, *kinds.rows(3000)) as source:
        recipe = kinds.recipe(source)
        with Loader(
            source, recipe, "once", memory=kinds.small_memory(source, recipe, "once"), scratch=scratch
        ) as loader:
            real, calls = loader.source.packed, 0

            def damaged(*columns):
                nonlocal calls
                calls += 1
                raise CorruptFileError("packed.arrow: block 3 is damaged")

            source.packed = damaged
            with pytest.raises(CorruptFileError, match="block 3 is damaged"):
                order_of(loader)
            source.packed = real
    assert calls == 1
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_what_is_not_finite_is_named_by_its_row_in_the_data(kind, tmp_path, scratch):
    x, y = kinds.rows(1000)
    x[777, 0] = np.inf
    with kinds.store(kind, tmp_path, x, y) as source:
        recipe = kinds.recipe(source)
        name = "feature 0" if recipe.sparse else recipe.names[0].replace("[", r"\[")
        with (
            Loader(source, recipe, "epoch", scratch=scratch) as loader,
            pytest.raises(FeatureError, match=rf"'{name}' is not a finite number in row 777;"),
        ):
            order_of(loader)
    assert list(scratch.iterdir()) == []
