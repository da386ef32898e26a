"""The baselines learn alike whatever holds their weights, and count their requests as one would by hand."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.rivals.arrays import Baseline, MemmapModel, MemoryModel
from benchmarks.rivals.chunked import MiniBatchModel
from benchmarks.rivals.key_value import KeyValueModel
from benchmarks.rivals.keys import Keys
from penstock.batch import Batch, Csr, Floats
from penstock.errors import BudgetError, FeatureError, LabelError, MissingExtraError, UsageError, WriteError
from penstock.sgd import kernels
from penstock.sgd.kernels import Step, Totals
from penstock.sgd.losses import find_loss
from penstock.sgd.model import Weights
from penstock.sgd.reference import train_reference

WIDTH, MB = 60, 1 << 20
ALL = np.arange(WIDTH, dtype=np.uint64)
PARTITIONS = [np.array([1, 5, 50]), np.array([30, 2]), np.array([9])]


def step_of(loss: str = "logistic", **options: float) -> Step:
    return replace(Step(find_loss(loss), base=0.5), **options)  # type: ignore[arg-type]  # numbers all


def rows_of(rows: int, *, seed: int = 0, loss: str = "logistic", width: int = WIDTH, weighted: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 8, rows)
    indices = np.concatenate([rng.choice(width, n, replace=False) for n in counts]).astype(np.uint32)
    values = rng.standard_normal(len(indices)).astype(np.float32)
    x = Csr(np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64), indices, values, WIDTH)
    plane = x.to_dense() @ np.random.default_rng(99).standard_normal(WIDTH)
    y = plane if loss == "squared" else np.where(plane > 0, 1, -1)
    weight = rng.choice([0.0, 0.5, 1.0, 2.0], rows).astype(np.float32) if weighted else None
    return Batch(x, y.astype(np.float32), weight)


def tiny(features: list[list[int]], labels: list[float], width: int = WIDTH) -> Batch:
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in features])]).astype(np.uint64)
    indices = np.array([f for row in features for f in row], np.uint32)
    return Batch(Csr(indptr, indices, np.ones(len(indices), np.float32), width), np.array(labels, np.float32))


def key_value(folder: Path, step: Step, *, vp: bool = False, memory: int = MB) -> KeyValueModel:
    pytest.importorskip("rocksdict", reason="the extra bench is not installed")
    return KeyValueModel(folder / ("vp" if vp else "kv"), step=step, memory=memory, partitions=PARTITIONS if vp else ())


def plain_mini_batch(batch: Batch, coef: Floats, intercept: float, step: Step, updates: int) -> float:
    """Apply one chunk's mean gradient in NumPy, to the chunk's own features; return the new intercept."""
    assert isinstance(batch.x, Csr)
    assert batch.y is not None
    x, weight = batch.x.to_dense().astype(np.float64), np.ones(len(batch)) if batch.weight is None else batch.weight
    slopes = step.loss.slope(x @ coef + intercept, batch.y) * weight / np.count_nonzero(weight)
    rate, own = step.base * (1 + updates) ** -step.power, np.unique(batch.x.indices)
    coef[own] = (1 - rate * step.l2) * coef[own] - rate * (slopes @ x)[own]
    return intercept - rate * slopes.sum() if step.intercept else intercept


@pytest.mark.parametrize("vp", [False, True])
@pytest.mark.parametrize(
    ("loss", "options"),
    [("logistic", {}), ("hinge", {"l2": 0.1}), ("squared", {"base": 0.1, "power": 0.5, "intercept": False})],
)
def test_key_value_learns_as_a_plain_mini_batch(tmp_path: Path, vp: bool, loss: str, options: dict[str, float]) -> None:
    step = step_of(loss, **options)
    coef, intercept = np.zeros(WIDTH), 0.0
    with key_value(tmp_path, step, vp=vp) as model, MiniBatchModel(WIDTH, step=step) as twin:
        for seed in range(6):
            batch = rows_of(50, seed=seed, loss=loss, weighted=seed % 2 == 1, width=WIDTH // (1 + seed % 2))
            assert model.train(batch) == twin.train(batch) == -1
            intercept = plain_mini_batch(batch, coef, intercept, step, seed)
        assert np.array_equal(model.weights(ALL), twin.weights(ALL))
        assert model.intercept == twin.intercept == pytest.approx(intercept, abs=1e-5)
        np.testing.assert_allclose(model.weights(ALL), coef, atol=1e-5)
        scores = model.scores(batch)
        assert np.array_equal(scores, twin.scores(batch))
        assert model.totals.loss() == twin.totals.loss()
        assert model.totals.rows == 300
    assert isinstance(batch.x, Csr)
    np.testing.assert_allclose(scores[:, 0], batch.x.to_dense() @ coef + intercept, atol=1e-4)


def test_without_l2_a_chunk_is_a_mini_batch_of_the_kernels() -> None:
    batch, step = rows_of(80), step_of()
    coef, intercept = np.zeros((1, WIDTH)), np.zeros(1)
    train_reference(batch, coef, intercept, step=replace(step, batch_size=80), updates=0)
    with MiniBatchModel(WIDTH, step=step) as model:
        assert model.train(batch) == -1
        np.testing.assert_allclose(model.weights(ALL), coef[0], atol=1e-6)
        assert model.intercept == pytest.approx(intercept[0], abs=1e-6)


def test_requests_are_those_counted_by_hand(tmp_path: Path) -> None:
    # Features 1, 5 and 50 share a key, so do 30 and 2: of 1, 2, 5, 9, 30 that makes three keys.
    chunk = tiny([[1, 5, 2], [5, 30], [9, 1]], [1, -1, 1])
    with key_value(tmp_path, step_of()) as kv, key_value(tmp_path, step_of(), vp=True) as vp:
        for model, keys in ((kv, 5), (vp, 3)):
            assert model.train(chunk) == -1
            assert (model.gets, model.puts, model.requests) == (2 * keys, keys, 3 * keys)
            model.scores(chunk)
            assert model.requests == 3 * keys


def test_composite_keys_make_fewer_requests_for_features_that_occur_together(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict", reason="the extra bench is not installed")
    parts = [np.arange(at, at + 10) for at in range(0, WIDTH, 10)]
    kv = KeyValueModel(tmp_path / "kv", step=step_of(), memory=MB)
    vp = KeyValueModel(tmp_path / "vp", step=step_of(), memory=MB, partitions=parts)
    with kv, vp:
        for first in (0, 10, 20):
            chunk = tiny([list(range(first, first + 10))] * 3, [1, -1, 1])
            assert kv.train(chunk) == vp.train(chunk) == -1
        assert kv.requests == 10 * vp.requests
        assert np.array_equal(kv.weights(ALL), vp.weights(ALL))


def test_composite_keys_keep_what_the_chunk_does_not_touch(tmp_path: Path) -> None:
    with key_value(tmp_path, step_of("hinge", l2=0.5), vp=True) as model:
        model.train(tiny([[50]], [1]))
        before = model.weights(ALL)
        model.train(tiny([[1, 5]], [-1]))
        after = model.weights(ALL)
    assert before[50] == after[50] == 0.5
    assert after[1] == after[5] == -0.5


@pytest.mark.parametrize("vp", [False, True])
def test_threads_share_the_store(tmp_path: Path, vp: bool) -> None:
    # Features of their own and no intercept: what each thread learns does not depend on the other.
    step = step_of("squared", base=0.1)
    step = replace(step, intercept=False)
    chunks = [[tiny([[1, 5], [1]], [3, 1])] * 20, [tiny([[30, 7], [8]], [1, 2])] * 20]
    with key_value(tmp_path, step, vp=vp) as model, MiniBatchModel(WIDTH, step=step) as twin:
        threads = [threading.Thread(target=lambda own=own: [model.train(chunk) for chunk in own]) for own in chunks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for chunk in chunks[0] + chunks[1]:
            twin.train(chunk)
        assert np.array_equal(model.weights(ALL), twin.weights(ALL))
        assert model.totals.rows == 80
        assert model.gets == 2 * model.puts == 2 * (20 * (1 if vp else 2) + 20 * 3)


def test_many_chunks_in_little_memory_survive_the_engines_flushes(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict", reason="the extra bench is not installed")
    rng, width = np.random.default_rng(0), 200_000
    with (
        KeyValueModel(tmp_path / "kv", step=step_of("squared", base=0.1), memory=MB, readers=3) as model,
        MiniBatchModel(width, step=step_of("squared", base=0.1)) as twin,
    ):
        for _ in range(6):
            picks = rng.integers(0, width, (100, 200))
            chunk = tiny(picks.tolist(), rng.standard_normal(100).tolist(), width)
            assert model.train(chunk) == twin.train(chunk) == -1
        some = rng.integers(0, width, 5000).astype(np.uint64)
        assert np.array_equal(model.weights(some), twin.weights(some))
        assert model.weights(some).any()
        assert model.bytes > 100_000
        assert any(file.suffix == ".sst" for file in (tmp_path / "kv").iterdir())


def test_wide_features_have_keys_too(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict", reason="the extra bench is not installed")
    far = np.array([3, 2**40, 2**64 - 1], np.uint64)
    x = Csr(np.array([0, 3], np.uint64), far, np.ones(3, np.float32), 2**63)
    with KeyValueModel(tmp_path / "kv", step=step_of("hinge"), memory=MB, partitions=[far[:2]]) as model:
        assert model.train(Batch(x, np.ones(1, np.float32))) == -1
        assert model.weights(np.append(far, np.uint64(4))).tolist() == [0.5, 0.5, 0.5, 0]
        assert model.puts == 2
    with MemoryModel(WIDTH, step=step_of()) as memory, pytest.raises(UsageError, match=str(2**64 - 1)):
        memory.train(Batch(x, np.ones(1, np.float32)))


@pytest.mark.parametrize("options", [{}, {"l2": 0.01}, {"batch_size": 16, "l2": 0.01}])
@pytest.mark.parametrize("wide", [False, True])
def test_memory_and_memmap_are_the_kernel_to_the_last_bit(
    tmp_path: Path, options: dict[str, float], wide: bool
) -> None:
    step, weights, totals = step_of(**options), Weights.zeros(WIDTH), Totals()
    with MemoryModel(WIDTH, step=step) as memory, MemmapModel(tmp_path / "w", WIDTH, step=step) as mapped:
        for seed in range(4):
            batch = rows_of(60, seed=seed, weighted=True)
            kernels.train(batch, weights, step=step, totals=totals)
            assert isinstance(batch.x, Csr)
            if wide:
                x = batch.x
                batch = replace(batch, x=Csr(x.indptr, x.indices.astype(np.uint64), x.values, x.width))
            assert memory.train(batch) == mapped.train(batch) == -1
        expected = weights.scores(batch) if not wide else weights.scores(rows_of(60, seed=3))
        weights.settle()
        for model in (memory, mapped):
            assert np.array_equal(model.scores(batch), expected)
            assert np.array_equal(model.weights(ALL), weights.coef[0])
            assert model.intercept == weights.intercept[0]
            assert model.totals.loss() == totals.loss()
            assert model.bytes == 4 * WIDTH
        assert memory.requests == 0
        assert mapped.requests >= 0
    assert np.array_equal(np.fromfile(tmp_path / "w", np.float32), weights.coef[0])


def test_the_mapped_file_is_changed_in_place_and_holds_all_penalties_when_closed(tmp_path: Path) -> None:
    model = MemmapModel(tmp_path / "w", WIDTH, step=step_of("hinge", l2=0.5))
    model.train(tiny([[3]], [1]))
    assert np.fromfile(tmp_path / "w", np.float32)[3] != 0
    model.train(tiny([[4]], [1]))
    model.close()
    model.close()
    saved = np.fromfile(tmp_path / "w", np.float32)
    assert saved[3] == pytest.approx(0.375)
    assert saved[4] == pytest.approx(0.5)
    with pytest.raises(UsageError, match="closed"):
        model.train(tiny([[3]], [1]))


KINDS: dict[str, Callable[[Path], Baseline]] = {
    "memory": lambda folder: MemoryModel(WIDTH, step=step_of()),
    "memmap": lambda folder: MemmapModel(folder / "w", WIDTH, step=step_of()),
    "mini-batch": lambda folder: MiniBatchModel(WIDTH, step=step_of()),
    "kv": lambda folder: key_value(folder, step_of()),
    "kv-vp": lambda folder: key_value(folder, step_of(), vp=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_learns_names_its_bad_row_and_takes_a_new_rate(tmp_path: Path, kind: str) -> None:
    batch = rows_of(400)
    bad = rows_of(40)
    assert bad.y is not None
    bad.y[17] = np.nan
    model, losses = KINDS[kind](tmp_path), []
    for epoch in range(6):
        model.totals, model.step = Totals(), step_of(base=0.5 if epoch < 4 else 0.1)
        for start in range(0, 400, 20):
            assert model.train(batch.slice(start, start + 20)) == -1
        losses.append(model.totals.loss())
    assert losses[-1] < 0.8 * losses[0]
    assert model.step.base == 0.1
    assert model.bytes > 0
    assert model.train(bad) == 17
    model.close()


@pytest.mark.parametrize("vp", [False, True])
def test_a_bad_row_or_rows_of_no_weight_change_nothing_in_the_store(tmp_path: Path, vp: bool) -> None:
    with key_value(tmp_path, step_of(), vp=vp) as model:
        model.train(rows_of(20))
        before, puts, loss = model.weights(ALL), model.puts, model.totals.loss()
        bad = rows_of(20)
        assert isinstance(bad.x, Csr)
        bad.x.values[5] = np.inf
        assert model.train(bad) >= 0
        assert model.train(replace(rows_of(20), weight=np.zeros(20, np.float32))) == -1
        assert model.train(tiny([], [])) == model.train(tiny([[], []], [1, 1])) == -1
        assert np.array_equal(model.weights(ALL), before)
        assert model.puts == puts
        assert np.isfinite(loss)


def test_a_missing_engine_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(MissingExtraError, match=r"rocksdict.*pip install 'penstock\[bench\]'"):
        KeyValueModel(tmp_path / "kv", step=step_of(), memory=MB)


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict", reason="the extra bench is not installed")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UsageError, match="not empty"):
        KeyValueModel(tmp_path / "full", step=step_of(), memory=MB)
    with pytest.raises(UsageError, match="is there already"):
        MemmapModel(tmp_path / "full" / "file", WIDTH, step=step_of())
    with pytest.raises(WriteError, match="cannot be made"):
        MemmapModel(tmp_path / "nowhere" / "file", WIDTH, step=step_of())
    with pytest.raises(WriteError, match="no store can be made"):
        KeyValueModel(tmp_path / "full" / "file", step=step_of(), memory=MB)
    with pytest.raises(BudgetError, match="1000 bytes"):
        key_value(tmp_path, step_of(), memory=1000)
    with pytest.raises(UsageError, match="readers=0"):
        KeyValueModel(tmp_path / "kv", step=step_of(), memory=MB, readers=0)
    with pytest.raises(UsageError, match="softmax"):
        MemoryModel(WIDTH, step=step_of("softmax"))
    with pytest.raises(UsageError, match="no L1"):
        key_value(tmp_path, step_of(l1=0.1))
    with pytest.raises(UsageError, match="feature 5 is in two"):
        Keys([np.array([1, 5]), np.array([5, 6])])
    with pytest.raises(UsageError, match="numbers from 0"):
        Keys([np.array([1, -5])])
    with MiniBatchModel(WIDTH, step=step_of()) as model:
        with pytest.raises(FeatureError, match="feature 70"):
            model.train(tiny([[70]], [1], width=80))
        with pytest.raises(LabelError, match="no labels"):
            model.train(replace(rows_of(5), y=None))
        with pytest.raises(UsageError, match="dense"):
            model.train(Batch(np.ones((2, WIDTH), np.float32), np.ones(2, np.float32)))
        with pytest.raises(UsageError, match="2 labels"):
            model.train(replace(rows_of(5), y=np.ones(2, np.float32)))
