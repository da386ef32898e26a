"""Boosted trees for every group, from rows to predictions: alone, by several workers at a time, and through deaths."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.batch import Batch
from penstock.errors import ModelFileError, UnknownOptionError, UsageError
from penstock.groups import GroupBy, GroupModels, training_run
from penstock.groups.boosting import Boosting
from penstock.groups.drivers.boosting_driver import GangsDrive
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from penstock.groups.local import LocalExecutor
from penstock.groups.patterns.base import Fit
from penstock.groups.patterns.sampling import Boosted, BoostWorker, booster_of
from penstock.groups.place import Placement, Shard, spread
from penstock.testing.executors import InlineExecutor, await_that

SIZES = {"FR": 1500, "DE": 400, "IT": 200, "NO": 60, "IS": 1}
SEARCH = {"learning_rate": [0.3, 0.05], "num_leaves": [4, 15]}


def rows_of(kind: str = "binary", seed: int = 0) -> pa.Table:
    """Return rows of countries, some of their features missing; in NO there is one class only."""
    rng = np.random.default_rng(seed)
    country = rng.permutation(np.repeat(list(SIZES), list(SIZES.values())))
    x = rng.standard_normal((len(country), 4))
    score = x[:, 0] * x[:, 1] * np.where(country == "FR", 1, -1) + x[:, 2] + rng.standard_normal(len(country)) / 3
    if kind == "multiclass":
        label: Any = np.array(["cold", "mild", "warm"])[np.digitize(score, [-0.6, 0.6])]
    else:
        label = score if kind == "regression" else np.where(score > 0, "yes", "no")
    if kind != "regression":
        label[country == "NO"] = label[0]
    x[rng.random(x.shape) < 0.05] = np.nan
    words = [f"w{word} w{word % 3}" for word in rng.integers(0, 9, len(country))]
    return pa.table({"country": country, "y": label, "words": words, **{f"x{n}": x[:, n] for n in range(4)}})


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression", "sparse"])
def test_from_rows_to_predictions(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(kind)
    objective = {"binary": "binary", "regression": "regression"}.get(kind)
    hashed: Any = {"hash": ["words:2^12:words"]} if kind == "sparse" else {"exclude": ["words"]}
    if kind == "sparse":
        rows = pa.table({name: rows[name] for name in ("country", "y", "words")})
    out = tmp_path / "models"
    made = GroupBy(rows, by="country", **hashed).fit(
        Boosting(objective, rounds=20, patience=5), y="y", search=SEARCH, validation=0.2, workers=2, out=out
    )
    result = GroupModels.open(out)
    assert made.groups == result.groups
    assert result.frame.num_rows == len(SIZES) * 4
    reasons = {row["text"]: row["reason"] for row in result.failed.to_pylist()}
    assert reasons.pop("IS") == "too few rows: 1 to learn from"
    assert reasons == ({} if kind == "regression" else {"NO": "only one class among its rows"})
    assert set(result.timeline["what"].to_pylist()) == {"boost"}

    predicted = result.predict(rows)
    answers, country = np.array(predicted["prediction"].to_pylist()), rows["country"].to_numpy(zero_copy_only=False)
    assert all(answer is None for answer in answers[country == "IS"])
    recipe = result.recipe.for_schema(rows.schema, place="here")
    for text in ("FR", "DE", "IT"):
        model = result.best(text)
        here = pa.table(rows).filter(pa.array(country == text)).combine_chunks().to_batches()[0]
        batch: Batch = recipe.encode(here)
        scores = model.scores(batch)
        np.testing.assert_array_equal(model.decide(scores), answers[country == text])
        if kind != "sparse":  # LightGBM's own answers
            own = model.booster.predict(np.asarray(batch.x))
            if model.probabilities(scores) is None:
                np.testing.assert_allclose(scores, own, rtol=1e-5)
            else:
                chances = own if own.ndim == 2 else np.column_stack([1 - own, own])
                np.testing.assert_allclose(model.probabilities(scores), chances, atol=1e-5)
                columns = [f"probability_{name}" for name in model.classes]
                told = np.column_stack([predicted[name].to_numpy()[country == text] for name in columns])
                np.testing.assert_allclose(told, chances, atol=1e-5)
    right = float(np.mean(answers[country == "FR"] == rows["y"].to_numpy(zero_copy_only=False)[country == "FR"]))
    assert kind in ("regression", "sparse") or right > 0.7
    best = result.best("FR")
    assert best.metrics["group"] == "FR"
    assert best.config["rounds"] == 20
    assert best.importances()
    assert best.importances().keys() == best.importances("split").keys()
    with pytest.raises(UnknownOptionError, match="gain"):
        best.importances("size")
    best.save(tmp_path / "fr.txt")
    assert booster_of((tmp_path / "fr.txt").read_text()).num_trees() == best.booster.num_trees()
    assert capfd.readouterr() == ("", "")


def test_the_same_models_for_a_seed_and_resuming(tmp_path: Path) -> None:
    rows, model = rows_of(), Boosting(rounds=6, bagging_fraction=0.5, seed=2)
    data = GroupBy(rows, by="country", exclude=["words"])
    fitted = [data.fit(model, y="y", search=SEARCH, workers=workers, out=tmp_path / str(workers)) for workers in (1, 2)]
    assert all(
        one.read_bytes() == two.read_bytes()
        for one, two in zip(*(sorted((tmp_path / n / "trees").rglob("*.txt")) for n in ("1", "2")), strict=True)
    )
    for name in ("loss", "selection_loss", "held_out_accuracy", "epochs"):
        assert fitted[0].frame[name] == fitted[1].frame[name]
    again = data.fit(model, y="y", search=SEARCH, workers=1, out=tmp_path / "1", resume=True)
    assert again.frame["seconds"] == fitted[0].frame["seconds"], "what is there is not trained again"
    with pytest.raises(UsageError, match="another training"):
        data.fit(Boosting(rounds=7), y="y", search=SEARCH, workers=1, out=tmp_path / "1", resume=True)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_fails_its_group_alone(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        training_run.EXECUTORS, "local", lambda make, workers=None: InlineExecutor(make, workers=workers or 1)
    )
    for name in ("_boost", "call"):  # whole groups, and one that several workers are called for
        real = getattr(BoostWorker, name)

        def work(self: Any, group: int, *rest: Any, real: Any = real) -> Any:
            if group == bad:
                raise ZeroDivisionError("by zero")
            return real(self, group, *rest)

        monkeypatch.setattr(BoostWorker, name, work)
    rows = rows_of()
    order = list(dict.fromkeys(rows["country"].to_pylist()))
    for country in ("FR", "DE") if workers == 1 else ("FR",):
        bad = order.index(country)
        data = GroupBy(rows, by="country", exclude=["words"])
        # Others would be split in a refit, and workers of one process cannot train together.
        result = data.fit(Boosting(rounds=3), y="y", workers=workers, validation=0.1)
        failed = {row["text"]: row["reason"] for row in result.failed.to_pylist()}
        assert set(failed) == {country, "NO", "IS"}
        assert "ZeroDivisionError: by zero (" in failed[country]
        assert len(result.chosen) == 2


def test_a_damaged_model_is_named(tmp_path: Path) -> None:
    rows = rows_of()
    data = GroupBy(rows, by="country", exclude=["words"])
    result = data.fit(Boosting(rounds=2), y="y", workers=1, out=tmp_path / "models")
    path = next((tmp_path / "models" / "refit" / "trees").rglob("*.txt"))
    path.write_text(path.read_text()[:300])
    with pytest.raises(ModelFileError, match="its checksum is not that of its content"):
        result.predict(rows)
    pq.write_table(rows, tmp_path / "rows.parquet")
    path.unlink()
    with pytest.raises(ModelFileError, match="cannot read the model"):
        GroupModels.open(tmp_path / "models").predict(tmp_path / "rows.parquet", out=tmp_path / "out.parquet")


def test_lightgbm_is_imported_only_when_it_is_used() -> None:
    program = "import sys, penstock.groups, penstock.groups.boosting, penstock.groups.families; print('lightgbm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "False"


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grouped]:
    """A group that two workers share, and small ones for each."""
    rng = np.random.default_rng(1)
    owner = np.repeat([0, 1, 2, 3], [12_000, 900, 500, 30])
    x = rng.standard_normal((len(owner), 6)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + x[:, 2] + rng.standard_normal(len(owner)) > 0
    table = pa.table(
        {"g": owner, "y": y, "w": rng.choice([0.5, 1.0], len(owner)), **{f"x{n}": x[:, n] for n in range(6)}}
    )
    folder = tmp_path_factory.mktemp("large") / "rows"
    with group(table, "g", folder, label="y", weight="w", memory="100MB", block_size=50_000) as made:
        yield made


def job_of(grouped: Grouped, **options: Any) -> Boosted:
    choices = [{"learning_rate": 0.3, "max_bin": 63}, {"learning_rate": 0.1}]
    return Boosting("binary", **options).job(grouped, choices, validation=0.2)


def trained(grouped: Grouped, job: Boosted, make: Any = LocalExecutor, workers: int = 2) -> tuple[dict[int, Fit], Any]:
    fits: dict[int, Fit] = {}
    with make(job.make(), workers=workers) as executor:
        drive = GangsDrive(job, grouped, _placed(grouped, workers), executor, lambda fit: fits.update({fit.group: fit}))
        drive.run()
    assert sorted(fits) == [0, 1, 2, 3]
    return fits, drive


def _placed(grouped: Grouped, workers: int) -> Placement:
    """Cut the largest group over all workers, and deal out the others."""
    if workers == 1:
        return spread(grouped.rows, 1)
    edges = np.linspace(0, int(grouped.rows[0]), workers + 1).astype(int)
    shards = [Shard(0, worker, int(edges[worker]), int(np.diff(edges)[worker])) for worker in range(workers)]
    shards += [Shard(number, number % workers, 0, int(grouped.rows[number])) for number in (1, 2, 3)]
    load = np.zeros(workers, np.int64)
    for shard in shards:
        load[shard.worker] += shard.rows
    return Placement(tuple(shards), load, int(load.max()))


@pytest.mark.parametrize(("workers", "patience"), [(2, None), (3, 4)])
def test_a_group_that_several_share(large: Grouped, workers: int, patience: int | None, capfd: Any) -> None:
    job = job_of(large, rounds=25, patience=patience)
    alone, shared = (trained(large, job, workers=count)[0] for count in (1, workers))
    for number in (1, 2, 3):
        assert alone[number].trees == shared[number].trees
    one, two = alone[0], shared[0]
    assert (one.targets.rows, one.targets.selection_rows) == (two.targets.rows, two.targets.selection_rows)
    # Bins come from a part of the rows each, and splits that are nearly as good as others change places.
    np.testing.assert_allclose(two.loss, one.loss, rtol=0.05)
    np.testing.assert_allclose(two.selection_loss, one.selection_loss, rtol=0.03)
    np.testing.assert_allclose(two.selection_score, one.selection_score, atol=0.015)
    assert two.trees is not None
    batches = large.batch(0)
    x, y = np.concatenate([np.asarray(b.x) for b in batches]), np.concatenate([np.asarray(b.y) for b in batches])
    weight = np.concatenate([np.asarray(b.weight) for b in batches])
    parts = np.concatenate([parts for _, parts in job.make()().rows(0)])
    for config, text in enumerate(two.trees):
        scores = booster_of(text or "").predict(x, raw_score=True)
        losses = np.log1p(np.exp(-scores * y))
        assert two.loss[config] == pytest.approx(np.average(losses[parts == 0], weights=weight[parts == 0]), rel=1e-5)
        assert two.selection_loss[config] == pytest.approx(
            np.average(losses[parts == 1], weights=weight[parts == 1]), rel=1e-5
        )
        right = np.average((scores > 0)[parts == 1] == (y > 0)[parts == 1], weights=weight[parts == 1])
        assert two.selection_score[config] == pytest.approx(right)
        assert "127.0.0.1" not in (text or ""), "ports in the text would differ each time"
    assert capfd.readouterr() == ("", "")


class _Killing(LocalExecutor):
    """Kills a worker as soon as LightGBM's sockets have found one another."""

    def __init__(self, make: Any, *, workers: int | None = None, rank: int = 0, times: int = 1) -> None:
        self.rank, self.times, self.killed = rank, times, list[int]()
        super().__init__(make, workers=workers)

    def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
        super().submit(worker, task, method, *arguments)
        what, *rest = arguments[0][0]
        members = rest[4] if what == "together" else []
        if members and rest[3] == len(members) - 1 and len(self.killed) < self.times:  # all of them have been asked
            await_that(partial(_connected, members[-1].port), "the gang never met")
            victim = self.pids[(worker + 1 + self.rank) % self.workers]
            os.kill(victim, signal.SIGKILL)
            self.killed.append(victim)


def _connected(port: int) -> bool:
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net/tcp")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_gang_whose_worker_is_killed_trains_again(large: Grouped, rank: int) -> None:
    job = job_of(large, rounds=100)
    expected, _ = trained(large, job)
    found, drive = trained(large, job, partial(_Killing, rank=rank))
    assert drive.deaths == [f"worker {rank} killed by SIGKILL"]
    for number, fit in expected.items():
        assert found[number].trees == fit.trees
        np.testing.assert_array_equal(found[number].selection_loss, fit.selection_loss)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net/tcp")
def test_a_gang_that_is_killed_each_time_is_given_up(large: Grouped) -> None:
    found, drive = trained(large, job_of(large, rounds=100), partial(_Killing, rank=1, times=3))
    assert "worker 1 was killed by SIGKILL" in found[0].reason
    assert len(drive.deaths) == 3
    assert not any(found[number].reason for number in (1, 2, 3))
