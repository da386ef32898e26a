"""SGD over groups: the weights of plain SGD, wherever the rows lie, whoever dies, in one go or with breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.config import Config
from penstock.errors import UsageError
from penstock.groups.drivers import sgd_driver
from penstock.groups.drivers.sgd_driver import HopsDrive
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from penstock.groups.halving import Halving
from penstock.groups.patterns import row_order as patterns
from penstock.groups.patterns.base import Fit
from penstock.groups.patterns.linear import GroupedLinear, LinearSgd
from penstock.groups.patterns.row_order import ORDERED, Shuffled
from penstock.groups.patterns.sequential import SequentialWorker
from penstock.groups.place import Placement, sequential, spread
from penstock.groups.schedule import Hopper, shard_order
from penstock.sgd import terms
from penstock.sgd.loop import Spec, Trainer
from penstock.testing.executors import InlineExecutor
from tests.schedule_traces import check, traced

SIZES = (900, 300, 60, 40, 30, 20)
ONE_CLASS, TINY, NOT_A_NUMBER = 3, 6, 7
CHOICES: list[dict[str, Any]] = [{"learning_rate": 0.3}, {"l2": 0.1}, {"l1": 0.01}, {"batch_size": 8}]


def rows_of(*, sparse: bool = False) -> pa.Table:
    """Return groups of all sizes; one has a single class, one a single row, and one a NaN."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(SIZES) + 2), (*SIZES, 1, 50))
    x = rng.standard_normal((len(owner), 4)).astype(np.float32)
    y = x @ np.array([1, -1, 0.5, 0]) + rng.standard_normal(len(owner)) > 0
    y[owner == ONE_CLASS] = True
    x[np.flatnonzero(owner == NOT_A_NUMBER)[3], 1] = np.inf
    if sparse:
        kept = rng.integers(0, 2, x.shape).astype(bool)
        kept[owner == NOT_A_NUMBER] = True
        ends = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
        indices = np.nonzero(kept)[1].astype(np.int32)
        columns = {
            "indices": pa.ListArray.from_arrays(ends, indices),
            "values": pa.ListArray.from_arrays(ends, x[kept]),
        }
        return pa.table({"g": owner, "y": y, **columns})
    return pa.table({"g": owner, "y": y, **{name: x[:, place] for place, name in enumerate("abcd")}})


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grouped]:
    folder = tmp_path_factory.mktemp("sequential") / "rows"
    with group(rows_of(), "g", folder, label="y", memory="100MB", block_size=3000) as made:
        yield made


def job_of(grouped: Grouped, choices: list[dict[str, Any]] | None = None, **options: Any) -> LinearSgd:
    validation = options.pop("validation", 0.1)
    usual = {"model": "logistic", "solver": "sgd", "epochs": 3, "seed": 5, "l2": 0.0, "standardize": False}
    config = Config(**(usual | options))
    job = GroupedLinear(config).job(grouped, CHOICES if choices is None else choices, validation=validation)
    assert isinstance(job, LinearSgd)
    return job


def trained(
    grouped: Grouped,
    job: LinearSgd,
    *,
    workers: int = 1,
    place: Callable[[Any, int, int], Placement] = sequential,
    halving: Halving | None = None,
    **options: Any,
) -> tuple[dict[int, Fit], HopsDrive]:
    fits: dict[int, Fit] = {}

    def keep(fit: Fit) -> None:
        assert fit.group not in fits, f"group {fit.group} is done twice"
        fits[fit.group] = fit

    placement = place(grouped.rows, workers, job.configs)
    run = HopsDrive(
        job, grouped, placement, InlineExecutor(job.make(), workers=workers, **options), keep, halving=halving
    )
    run.run()
    assert sorted(fits) == list(range(len(grouped)))
    assert not run._going
    assert not run._measuring
    return fits, run


def plain_sgd(grouped: Grouped, job: LinearSgd, number: int, config: int, placement: Placement) -> Trainer:
    """Train by the plain trainer over a group's parts, one after another in the order in which a config hops."""
    worker = SequentialWorker(job)
    shuffled = Shuffled(worker, job.shuffle, job.memory, job.seed)
    shards = [placement.shards[place] for place in placement.held[number]]
    order = shard_order(config, shards=len(shards))
    trainer = Trainer(job.specs[config], grouped.width)
    for epoch in range(int(job.epochs[config])):
        parts = [shards[place] for place in order]
        batches = (batch for part in parts for batch in shuffled.windows(number, part.first, part.rows, epoch))
        trainer.run_epoch(batches, epoch)
    return trainer


def equal(found: dict[int, Fit], expected: dict[int, Fit]) -> None:
    for number, fit in expected.items():
        other = found[number]
        assert other.reason == fit.reason
        for name in ("weights", "loss", "selection_loss", "selection_score", "epochs", "status"):
            np.testing.assert_array_equal(getattr(other, name), getattr(fit, name), err_msg=f"{number} {name}")


@pytest.fixture
def hoppers(monkeypatch: pytest.MonkeyPatch) -> list[Hopper]:
    """The schedulers that drivers make."""
    made: list[Hopper] = []

    def record(*arguments: Any, **named: Any) -> Hopper:
        made.append(traced(Hopper(*arguments, **named)))
        return made[-1]

    monkeypatch.setattr(sgd_driver, "Hopper", record)
    return made


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("backwards", [False, True])
def test_the_weights_are_those_of_plain_sgd_to_the_last_bit(
    grouped: Grouped, hoppers: list[Hopper], workers: int, backwards: bool
) -> None:
    job = job_of(grouped)
    fits, run = trained(grouped, job, workers=workers, backwards=backwards)
    check(hoppers[0], run.placement)
    assert (max(map(len, run.placement.held.values())) > 1) == (workers > 1)
    for number in (0, 1, 2, 4):
        for config in range(job.configs):
            plain = plain_sgd(grouped, job, number, config, run.placement)
            coef, intercept = plain.weights.coef[0], plain.weights.intercept
            weights = fits[number].weights
            assert weights is not None
            np.testing.assert_array_equal(weights[:, config], np.concatenate([coef, intercept]))


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "ftrl"])
def test_what_an_optimizer_keeps_goes_from_part_to_part_with_the_weights(grouped: Grouped, optimizer: str) -> None:
    job = job_of(grouped, [{}, {"batch_size": 8}], optimizer=optimizer)
    fits, run = trained(grouped, job, workers=3)
    assert max(map(len, run.placement.held.values())) > 1
    for number in (0, 1):
        for config in range(job.configs):
            plain = plain_sgd(grouped, job, number, config, run.placement)
            weights = fits[number].weights
            assert weights is not None
            expected = np.concatenate([plain.weights.coef[0], plain.weights.intercept])
            np.testing.assert_array_equal(weights[:, config], expected)


def test_groups_that_cannot_be_trained(grouped: Grouped) -> None:
    fits, _ = trained(grouped, job_of(grouped))
    assert fits[ONE_CLASS].reason == "only one class among its rows"
    assert fits[TINY].reason.startswith("too few rows")
    assert fits[NOT_A_NUMBER].reason == "a feature is not a finite number"


def test_a_split_group_that_cannot_be_trained(grouped: Grouped) -> None:
    fits, run = trained(grouped, job_of(grouped), workers=40, place=lambda sizes, p, configs: spread(sizes, p))
    assert len(run.placement.held[NOT_A_NUMBER]) > 1
    assert fits[NOT_A_NUMBER].reason == "a feature is not a finite number"
    assert not fits[0].reason


@pytest.mark.parametrize("model", ["logistic", "svm", "linear"])
@pytest.mark.parametrize("sparse", [False, True])
def test_models_rows_and_scales(model: str, sparse: bool, tmp_path: Any) -> None:
    table = rows_of(sparse=sparse)
    if model == "linear":
        table = table.set_column(1, "y", table["y"].cast(pa.float32()))
    with group(table, "g", tmp_path / "rows", label="y", memory="100MB", block_size=3000, model=model) as made:
        job = job_of(made, [{}, {"l2": 0.01}], model=model, standardize=True)
        one, _ = trained(made, job)
        three, run = trained(made, job, workers=3)
        assert len(run.placement.held[0]) > 1
        for fits in (one, three):
            assert fits[0].selection_score.min() > (0.6 if model != "linear" else 0.1)
            assert np.isfinite(fits[0].selection_loss).all()


def test_features_of_other_scales_learn_alike_when_brought_to_one(tmp_path: Any) -> None:
    table = rows_of().filter(pa.compute.less(rows_of()["g"], 2))
    large = table.set_column(2, "a", pa.array(table["a"].to_numpy() * 1000 + 5000))
    found = []
    for name, each in (("plain", table), ("large", large)):
        with group(each, "g", tmp_path / name, label="y", memory="100MB") as made:
            found.append(trained(made, job_of(made, [{}], standardize=True), workers=3)[0][0])
    np.testing.assert_allclose(found[0].selection_loss, found[1].selection_loss, rtol=1e-3)
    assert found[0].weights is not None
    assert found[1].weights is not None
    np.testing.assert_allclose(found[0].weights[0], found[1].weights[0] * 1000, rtol=1e-2)


@pytest.mark.parametrize("workers", [1, 3])
def test_configs_of_differing_epochs(grouped: Grouped, hoppers: list[Hopper], workers: int) -> None:
    job = job_of(grouped, [{"epochs": 1}, {"epochs": 4}, {"epochs": 2}])
    fits, run = trained(grouped, job, workers=workers)
    check(hoppers[0], run.placement)
    assert fits[0].epochs.tolist() == fits[2].epochs.tolist() == [1, 4, 2]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_messages_of_one_epoch_each(grouped: Grouped, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(grouped, [{"epochs": 1}, {"epochs": 4}, {"epochs": 2}])
    expected, _ = trained(grouped, job, workers=workers)
    monkeypatch.setattr(sgd_driver, "_LONG", 1)
    equal(trained(grouped, job, workers=workers)[0], expected)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("patience", [None, 1])
def test_what_is_lost_is_done_again(
    grouped: Grouped, hoppers: list[Hopper], workers: int, every: int, patience: int | None
) -> None:
    seen: dict[str, int] = {}

    def lose(number: int, items: tuple[Any, ...]) -> bool:
        seen[repr(items)] = seen.get(repr(items), 0) + 1
        return number % every == 0 and seen[repr(items)] < 3

    job = job_of(grouped, patience=patience, tolerance=1e-3)
    expected, _ = trained(grouped, job, workers=workers)
    fits, run = trained(grouped, job, workers=workers, lose=lose)
    equal(fits, expected)
    check(hoppers[-1], run.placement)
    assert run.deaths or workers == 1


@pytest.mark.parametrize("what", ["look", "train", "measure"])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_group_that_kills_every_worker(
    grouped: Grouped, what: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sgd_driver, "_LONG", 1)

    def deadly(number: int, items: tuple[Any, ...]) -> bool:
        return items[0][0][:2] == (what, 0)

    fits, _ = trained(grouped, job_of(grouped, patience=2), workers=workers, lose=deadly)
    if what != "look" or workers > 1:
        assert "killed by chance 3 times" in fits[0].reason
    assert not fits[1].reason
    assert not fits[2].reason


@pytest.mark.parametrize("workers", [1, 3])
def test_patience_ends_configs_that_have_stopped_falling(grouped: Grouped, workers: int) -> None:
    job = job_of(grouped, [{"learning_rate": 3e-3}, {"learning_rate": 1e-6}], epochs=12, patience=1, tolerance=1e-3)
    fits, _ = trained(grouped, job, workers=workers)
    fit = fits[0]
    assert fit.epochs[1] <= 2, "it never fell"
    assert fit.epochs[0] > fit.epochs[1]
    assert fit.status[1] == terms.CONVERGED


@pytest.mark.parametrize("workers", [1, 3])
def test_patience_of_each_config(grouped: Grouped, workers: int) -> None:
    choices = [{"patience": 1, "tolerance": 1.0}, {"patience": 3, "tolerance": 1.0}, {"tolerance": 1.0}]
    fits, _ = trained(grouped, job_of(grouped, choices, epochs=6), workers=workers)
    assert fits[0].epochs.tolist() == fits[2].epochs.tolist() == [2, 4, 6]


@pytest.mark.parametrize("workers", [1, 3])
def test_with_patience_the_model_is_that_of_the_best_epoch(grouped: Grouped, workers: int) -> None:
    choices = [{"learning_rate": 2.0}, {"learning_rate": 1.0}]  # too large: the losses go up and down
    fits, _ = trained(grouped, job_of(grouped, choices, epochs=6, patience=6), workers=workers)
    each = [trained(grouped, job_of(grouped, choices, epochs=epochs), workers=workers)[0] for epochs in range(1, 7)]
    for number in (0, 1):
        best = np.argmin([one[number].selection_loss for one in each], axis=0)
        assert (best < 5).any(), "the last epoch is not always the best"
        for config, epoch in enumerate(best.tolist()):
            assert fits[number].weights is not None
            np.testing.assert_array_equal(fits[number].weights[:, config], each[epoch][number].weights[:, config])
            assert fits[number].selection_loss[config] == each[epoch][number].selection_loss[config]


def test_a_config_that_diverges_disturbs_no_other(tmp_path: Any) -> None:
    table = rows_of().filter(pa.compute.less(rows_of()["g"], 2))
    table = table.set_column(1, "y", table["y"].cast(pa.float32()))
    with group(table, "g", tmp_path / "rows", label="y", memory="100MB", model="linear") as made:
        job = job_of(made, [{"learning_rate": 100.0}, {"learning_rate": 0.01}], model="linear", epochs=6)
        for workers in (1, 3):
            fits, _ = trained(made, job, workers=workers)
            assert fits[0].status.tolist() == [terms.FAILED, terms.SPENT]
            assert fits[0].weights is not None
            assert np.isnan(fits[0].weights[:, 0]).all()
            assert np.isfinite(fits[0].weights[:, 1]).all()
            assert fits[0].epochs[0] < 6, "no pass is spent on it any more"


class TestOrders:
    @pytest.mark.parametrize("shuffle", ORDERED)
    def test_every_row_once_and_none_held_out(
        self, grouped: Grouped, shuffle: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(patterns, "_CHUNK", 400)
        worker = SequentialWorker(job_of(grouped))
        stored = [
            batch.take(np.flatnonzero(parts == 0)) for batch, parts in worker.rows(0, 100, 700) if parts is not None
        ]
        expected = np.concatenate([batch.x for batch in stored])
        shuffled = Shuffled(worker, shuffle, 3000, 1)
        epochs = [np.concatenate([b.x for b in shuffled.windows(0, 100, 700, epoch)]) for epoch in (0, 1)]
        for found in epochs:
            np.testing.assert_array_equal(np.sort(found, axis=0), np.sort(expected, axis=0))
        assert (shuffle == "none") == np.array_equal(*epochs)
        assert (shuffle == "none") == np.array_equal(epochs[0], expected)

    def test_orders_that_need_a_copy_are_refused(self, grouped: Grouped) -> None:
        with pytest.raises(UsageError, match="shuffle='once' is not there for groups; choose one of: block-only"):
            job_of(grouped, shuffle="once")

    def test_parts_of_a_group_and_groups_have_orders_of_their_own(self, grouped: Grouped) -> None:
        shuffled = Shuffled(SequentialWorker(job_of(grouped, validation=0.0)), "corgipile", 1 << 20, 1)
        first = [
            np.concatenate([batch.y for batch in shuffled.windows(*where, 0)]) for where in ((0, 0, 50), (1, 0, 50))
        ]
        assert not np.array_equal(*first)


class TestHalving:
    def race(self, grouped: Grouped, configs: int, **options: Any) -> Halving:
        given: dict[str, Any] = {"eta": 2, "least": 1, "most": 4, "asynchronous": False} | options
        return Halving(len(grouped), configs, cost=grouped.rows.tolist(), **given)

    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_the_best_go_on_and_train_as_if_alone(self, grouped: Grouped, hoppers: list[Hopper], workers: int) -> None:
        choices = [{"learning_rate": rate} for rate in (1e-5, 0.1, 1e-4, 0.03)]
        job = job_of(grouped, choices, epochs=4)
        fits, run = trained(grouped, job, workers=workers, halving=self.race(grouped, 4))
        assert len(hoppers) >= 3
        for hopper in hoppers:
            check(hopper, run.placement)
        for number in (0, 1, 2):
            fit = fits[number]
            assert fit.given_up is not None
            assert fit.given_up[[0, 2]].all(), "they hardly learn"
            best = int(np.flatnonzero(~fit.given_up)[0])
            assert fit.epochs[best] == 4
            assert sorted(fit.epochs.tolist()) == [1, 1, 2, 4]
            plain = plain_sgd(grouped, job, number, best, run.placement)
            assert fit.weights is not None
            np.testing.assert_array_equal(fit.weights[:-1, best], plain.weights.coef[0])
            assert np.isnan(fit.weights[:, fit.given_up]).all()
        assert fits[ONE_CLASS].reason

    def test_one_budget_for_all(self, grouped: Grouped) -> None:
        passes = 6 * int(grouped.rows.sum())
        race = self.race(grouped, 4, budget=passes)
        job = job_of(grouped, epochs=4)
        fits, _ = trained(grouped, job, workers=2, halving=race)
        spent = sum(int(fit.epochs.sum()) * int(grouped.rows[number]) for number, fit in fits.items())
        assert spent <= passes
        assert all((fit.epochs == 4).any() for fit in fits.values() if not fit.reason)

    def test_configs_that_are_not_begun_have_not_failed(self, grouped: Grouped) -> None:
        race = self.race(grouped, 4, budget=4 * int(grouped.rows.sum()))
        fits, _ = trained(grouped, job_of(grouped, epochs=4), halving=race)
        assert fits[0].epochs.tolist() == [4, 0, 0, 0]
        assert fits[0].given_up is not None
        assert fits[0].given_up.tolist() == [False, True, True, True]
        assert terms.FAILED not in fits[0].status

    def test_losses_of_workers_change_nothing(self, grouped: Grouped) -> None:
        job = job_of(grouped, epochs=4)
        expected, _ = trained(grouped, job, workers=3, halving=self.race(grouped, 4))
        chance = iter(np.random.default_rng(1).integers(0, 5, 10_000).tolist())
        found, run = trained(
            grouped, job, workers=3, halving=self.race(grouped, 4), lose=lambda number, items: next(chance) == 0
        )
        assert run.deaths
        equal(found, expected)


def test_specs_travel(grouped: Grouped) -> None:
    job = job_of(grouped)
    assert isinstance(job.specs[0], Spec)
    made = partial(SequentialWorker, job)()
    assert isinstance(made, SequentialWorker)
