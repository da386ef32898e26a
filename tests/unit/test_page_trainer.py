"""Learning on the pool is learning in memory: to the last bit on one thread, nearly so on two."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from penstock.batch import Batch, Csr
from penstock.bigmodel import pages
from penstock.bigmodel.chunks import Chunker, CrowdedError, ahead
from penstock.bigmodel.page_trainer import PageTrainer
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.store import PageStore
from penstock.errors import DivergedError, UsageError
from penstock.sgd import kernels, losses
from penstock.sgd.loop import Spec, Trainer
from penstock.sgd.model import Weights
from penstock.sgd.rates import exponential

FEATURES, BYTES = 64 * 1024, 4096


def rows(count=600, *, nnz=20, seed=0, features=FEATURES, spread=1.0):
    """Sparse rows whose features are mostly low numbers, with labels that some of them decide."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 2 * nnz, count)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)
    indices = (features ** rng.random(int(indptr[-1])) ** (1 / spread)).astype(np.uint32) % features
    values = rng.normal(size=len(indices)).astype(np.float32)
    score = np.add.reduceat(np.where(indices % 3 == 0, values, 0), indptr[:-1].astype(int).clip(0, len(indices) - 1))
    y = np.where(score > 0, 1, -1).astype(np.float32)
    weight = rng.integers(0, 3, count).astype(np.float32)
    return Batch(Csr(indptr, indices, values, features), y, weight)


def learnt(folder, batches, spec, *, frames, epochs=3, optimizer="sgd", threads=1, entries=1 << 12):
    cells = {"sgd": 1, "adagrad": 2}[optimizer]
    shift = 10 if cells == 1 else 9
    pages = FEATURES >> shift
    with PageStore(folder, pages=pages, page_floats=1024) as store:
        pool = PagePool(store, memory=frames * BYTES, beside=PageTrainer.beside(optimizer, threads))
        with PageTrainer(spec, pool, shift=shift, optimizer=optimizer, threads=threads) as learner:
            for epoch in range(epochs):
                chunker = Chunker(
                    iter(batches),
                    pool,
                    shift=shift,
                    batch_size=spec.batch_size,
                    rows=learner.most_rows,
                    entries=entries,
                )

                def make(chunker=chunker):
                    if learner.faded and not pool.pinned:
                        learner.settle()
                    return chunker.make()

                with closing(ahead(make, chunker.release)) as chunks:
                    stats = learner.epoch(chunks, epoch)
            learner.settle()
            pool.flush()
            assert not pool.pinned
            weights = np.empty((pages, 1024), np.float32)
            store.read(np.arange(pages), np.arange(pages), weights)
            return weights.reshape(-1, cells), learner.intercept.copy(), stats


def in_memory(batches, spec, epochs=3):
    trainer = Trainer(spec, FEATURES)
    for epoch in range(epochs):
        stats = trainer.run_epoch(batches, epoch)
    return trainer.weights.coef[0], trainer.weights.intercept, stats


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize("frames", [60, 100])
def test_one_thread_is_the_kernel_in_memory_to_the_last_bit(tmp_path, loss, batch_size, frames):
    batches = [rows(seed=0), rows(317, seed=1)]
    spec = Spec(loss, batch_size=batch_size)
    weights, intercept, stats = learnt(tmp_path, batches, spec, frames=frames)
    expected, bias, told = in_memory(batches, spec)
    np.testing.assert_array_equal(weights[:, 0], expected)
    np.testing.assert_array_equal(intercept, bias)
    assert stats.loss == pytest.approx(told.loss, rel=1e-12)
    assert (stats.rows, stats.score) == (told.rows, told.score)


def test_l2_is_exact_though_pages_come_and_go(tmp_path):
    batches = [rows(seed=0), rows(317, seed=1)]
    spec = Spec("logistic", l2=0.05, rate=exponential(0.1))
    weights, intercept, _ = learnt(tmp_path, batches, spec, frames=24)
    expected, bias, _ = in_memory(batches, spec)
    np.testing.assert_allclose(weights[:, 0], expected, rtol=2e-4, atol=1e-7)
    np.testing.assert_allclose(intercept, bias, rtol=1e-4)


def test_an_l2_that_would_undo_all_learning_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"below 0\.5"):
        learnt(tmp_path, [rows()], Spec("logistic", l2=6.0), frames=100)


@pytest.mark.parametrize(("optimizer", "batch_size"), [("sgd", 1), ("sgd", 50), ("adagrad", 1)])
def test_rows_whose_pages_do_not_fit_are_learnt_in_passes(tmp_path, batch_size, optimizer):
    batches = [rows(200, nnz=30, spread=9.0)]
    spec = Spec("logistic", batch_size=batch_size)
    few, _, stats = learnt(tmp_path, batches, spec, frames=3, optimizer=optimizer)
    all_, _, told = learnt(tmp_path, batches, spec, frames=200, optimizer=optimizer)
    np.testing.assert_allclose(few, all_, rtol=1e-3, atol=1e-6)
    assert stats.loss == pytest.approx(told.loss, rel=1e-5)


def test_adagrad_on_pages_is_adagrad_in_memory(tmp_path):
    batches = [rows(seed=0), rows(317, seed=1)]
    spec = Spec("logistic")
    weights, intercept, _ = learnt(tmp_path, batches, spec, frames=40, optimizer="adagrad")
    cells, bias, clock = np.zeros((FEATURES, 2), np.float32), np.zeros(2, np.float32), np.zeros(3)
    for epoch in range(3):
        base, power = spec.rate.native(epoch)
        step = kernels.Step(losses.find_loss("logistic"), base, power)
        for batch in batches:
            assert kernels.train_adagrad(batch, cells, bias, clock, step=step, totals=kernels.Totals()) < 0
    np.testing.assert_array_equal(weights, cells)
    np.testing.assert_array_equal(intercept, bias)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("l2", [0.0, 1e-4])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_learn_as_one_nearly(tmp_path, optimizer, l2, threads):
    batches = [rows(4000, seed=0)]
    spec = Spec("logistic", l2=l2, rate=exponential(0.02))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    _, _, one = learnt(tmp_path / "a", batches, spec, frames=40, optimizer=optimizer, entries=1 << 15)
    _, _, two = learnt(tmp_path / "b", batches, spec, frames=40, optimizer=optimizer, entries=1 << 15, threads=threads)
    assert two.rows == one.rows
    assert two.loss == pytest.approx(one.loss, rel=0.02)


@pytest.mark.parametrize("hot", [0, 60])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_shared_kernels_on_one_thread_do_what_the_others_do(optimizer, hot):
    batch = rows(333)
    step = kernels.Step(losses.find_loss("logistic"), 0.1, 0.1, l2=1e-3 if optimizer == "adagrad" else 0.0)
    cells, bias, clock = (
        np.zeros((FEATURES + hot, 1 + (optimizer == "adagrad")), np.float32),
        np.zeros(2, np.float32),
        np.zeros(3),
    )
    clock[1] = 1.0
    expected, intercept, count = cells[:FEATURES].copy(), bias.copy(), clock.copy()
    own = (7, FEATURES - 7, np.empty((hot, cells.shape[1]), np.float32))  # records 7 to 66 are the thread's own
    totals, told = kernels.Totals().share(), kernels.Totals()
    if optimizer == "adagrad":
        assert kernels.train_adagrad(batch, expected, intercept, count, step=step, totals=told) < 0
    else:
        weights = Weights(expected.T, intercept, count)
        assert kernels.train(batch, weights, step=step, totals=told) < 0
    for part in ((0, 100), (100, 333)):
        kept = int(np.count_nonzero(batch.weight[: part[0]]))
        clock[0] = kept - part[0]
        assert kernels.train_shared(batch, cells, bias, clock, rows=part, step=step, totals=totals, hot=own) < 0
    np.testing.assert_allclose(cells[:FEATURES], expected, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(bias, intercept, rtol=1e-4, atol=1e-6)
    found, wanted = ((t.loss(), t.sums[1], t.sums[2]) for t in (totals, told))
    assert found == pytest.approx(wanted, rel=1e-5)


def test_threads_need_room_beside_the_frames(tmp_path):
    with PageStore(tmp_path, pages=4, page_floats=1024) as store, pytest.raises(ValueError, match="beside"):
        PageTrainer(Spec("logistic"), PagePool(store, memory=4 * BYTES), shift=10, threads=2)


def test_a_learning_rate_that_explodes_is_told(tmp_path):
    with pytest.raises(DivergedError, match="learning"), np.errstate(all="ignore"):
        learnt(tmp_path, [rows()], Spec("squared", rate=exponential(1e6)), frames=100, epochs=20)


def test_an_update_is_never_parted(tmp_path):
    with PageStore(tmp_path, pages=64, page_floats=1024) as store:
        pool = PagePool(store, memory=16 * BYTES)
        chunker = Chunker(iter([replace(rows(103), weight=None)]), pool, shift=10, batch_size=10, entries=300)
        sizes = []
        while (chunk := chunker.make()) is not None:
            sizes.append(len(chunk.batch))
            chunker.release(chunk)
    assert sum(sizes) == 103
    assert len(sizes) > 3
    assert all(size % 10 == 0 for size in sizes[:-1])


def test_a_chunk_waits_for_room(tmp_path):
    x = Csr(np.array([0, 3, 6], np.uint64), np.arange(6, dtype=np.uint32) * 1024, np.ones(6, np.float32), FEATURES)
    with PageStore(tmp_path, pages=64, page_floats=1024) as store:
        pool = PagePool(store, memory=4 * BYTES)
        chunker = Chunker(iter([Batch(x, np.ones(2, np.float32))]), pool, shift=10)
        first = chunker.make()
        with pytest.raises(CrowdedError):
            chunker.make()
        chunker.release(first)
        second = chunker.make()
        np.testing.assert_array_equal(np.sort(second.pages), [3, 4, 5])


@pytest.mark.parametrize("stop", [0, 1, 3, 10])
def test_ahead_releases_all_it_made_however_it_ends(stop):
    class Item:
        alone = False

    made, released = [], []

    def make():
        if len(made) == 5:
            return None
        made.append(Item())
        return made[-1]

    with closing(ahead(make, released.append)) as items:
        for number, _ in enumerate(items):
            if number == stop:
                break
    assert sorted(map(id, released)) == sorted(map(id, made))


def test_a_failure_while_making_is_raised_and_what_was_made_released():
    released = []

    class Item:
        alone = False

    turns = iter([Item(), Item(), ValueError("bad page")])

    def make():
        item = next(turns)
        if isinstance(item, Exception):
            raise item
        return item

    with pytest.raises(ValueError, match="bad page"), closing(ahead(make, released.append)) as items:
        for _ in items:
            pass
    assert len(released) == 2


def test_partial_dots_and_updates_are_their_twins():
    batch = rows(50, nnz=10, features=4096)
    x = batch.x
    assert isinstance(x, Csr)
    weights = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    frame_of = np.random.default_rng(1).permutation(64).astype(np.int32)
    cells = np.empty((64, 64), np.float32)
    cells[frame_of] = weights.reshape(64, 64)
    cells = cells.reshape(-1, 1)
    dots, expected = np.zeros(50, np.float32), np.zeros(50, np.float32)
    for low, high in ((0, 10), (10, 40), (40, 64)):
        pages.page_dots(x.indptr, x.indices, x.values, np.uint32(6), low, high, frame_of, cells, dots)
    pages.page_dots_reference(x, weights, expected)
    np.testing.assert_allclose(dots, expected, rtol=1e-4, atol=1e-5)
    pushes = np.linspace(-1, 1, 50, dtype=np.float32)
    for low, high in ((0, 30), (30, 64)):
        pages.update_pages(x.indptr, x.indices, x.values, np.uint32(6), low, high, frame_of, cells, pushes)
    pages.update_pages_reference(x, weights, pushes)
    np.testing.assert_allclose(cells.reshape(64, 64)[frame_of].ravel(), weights, rtol=1e-4, atol=1e-5)


def test_absent_features_count_nothing():
    x = Csr(np.array([0, 2], np.uint64), np.array([3, pages.ABSENT], np.uint32), np.ones(2, np.float32), 0)
    dots = np.zeros(1, np.float32)
    cells = np.arange(64, dtype=np.float32)[:, None]
    pages.page_dots(x.indptr, x.indices, x.values, np.uint32(6), 0, 1, np.zeros(1, np.int32), cells, dots)
    assert dots[0] == 3
