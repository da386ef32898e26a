"""The library side of ``compare``: jobs, figures, judging, pictures, and processes that fail."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.budget import peak_memory
from penstock.compare import TrainingRequest, compare, order_pictures, page_facts, page_run
from penstock.compare import process as children
from penstock.compare.runs import _error, _judged
from penstock.config import Config
from penstock.errors import BudgetError, ColumnError, DataError, UnknownOptionError, UsageError
from penstock.events import Advanced, Epoch, Event, Finished, Started
from penstock.measure_lines import strict_json
from penstock.report import Comparison, render
from penstock.shuffle import ORDERS
from penstock.training import Columns

CLICKS = TrainingRequest(data="clicks.parquet", config=Config(epochs=2, memory="3MB"), columns=Columns(label="clicked"))


def made(name: str, *scores: float, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    rows = [{"epoch": i + 1, "test_accuracy": s, "seconds": seconds} for i, s in enumerate(scores)]
    return {"shuffle": name, "epochs": rows, "test_accuracy": scores[-1], "failed": None, **more}


def test_a_job_survives_json() -> None:
    job = TrainingRequest(
        data="a",
        config=Config(model="svm", memory=10**6, patience=2),
        columns=Columns("y", ["a", "b"], "w", ["c"], ["d:2^4"]),
        test="t",
        format="csv",
        scratch="s",
        options={"header": False},
    )
    assert TrainingRequest.from_dict(json.loads(json.dumps(job.to_dict()))) == job


def test_strict_json_leaves_no_number_that_json_lacks() -> None:
    value = {"a": [np.float32(1.5), float("inf")], "b": (np.nan, 1), 3: np.arange(2), "s": "x", "n": None, "t": True}
    assert strict_json(value) == {"a": [1.5, None], "b": [None, 1], "3": [0, 1], "s": "x", "n": None, "t": True}
    json.dumps(strict_json(value), allow_nan=False)


def test_judging_counts_epochs_and_seconds_to_99_percent_of_the_best() -> None:
    copied = made("once", 0.895, 0.90)
    copied["epochs"][0]["prepare_seconds"] = 10.0
    best, slow, never, failed = _judged(
        [copied, made("corgipile", 0.5, 0.8909, 0.8911), made("none", 0.5, 0.6), {**made("mrs", 1.0), "failed": "no"}]
    )
    assert (best["final"], best["epochs_to_99"], best["seconds_to_99"]) == (0.90, 1, 11.0)
    assert (slow["epochs_to_99"], slow["seconds_to_99"]) == (3, 3.0)
    assert (never["epochs_to_99"], never["seconds_to_99"]) == (None, None)
    assert (failed["final"], failed["epochs_to_99"]) == (None, None)


def test_judging_works_below_zero_and_without_scores() -> None:
    rows = [{"epoch": 1, "held_out_r2": -0.5, "seconds": 1.0}, {"epoch": 2, "held_out_r2": -0.2, "seconds": 1.0}]
    (run,) = _judged([{"shuffle": "none", "epochs": rows, "held_out_r2": -0.2, "failed": None}])
    assert run["epochs_to_99"] == 2
    (run,) = _judged([{"shuffle": "none", "epochs": [], "failed": None}])
    assert (run["final"], run["epochs_to_99"]) == (None, None)


def test_a_copy_made_once_belongs_to_no_epoch_on_the_page() -> None:
    once = made("once", 0.8, 0.9, training_seconds=7.0, seconds=9.0)
    once["epochs"][0]["prepare_seconds"] = 5.0
    told = page_run(once)
    assert told["prepare_seconds"] == 5.0
    assert told["seconds"] == 7.0
    assert "prepare_seconds" not in told["epochs"][0]
    assert "prepare_seconds" in once["epochs"][0]
    for row in once["epochs"]:
        row["prepare_seconds"] = 5.0
    assert page_run(once)["prepare_seconds"] == 0.0
    assert [row["prepare_seconds"] for row in page_run(once)["epochs"]] == [5.0, 5.0]


def test_pictures_of_every_strategy() -> None:
    pictures = order_pictures(list(ORDERS))
    for name, picture in pictures.items():
        assert set(picture["position"]) <= set(range(1_000))
        assert sum(map(sum, picture["labels"])) == len(picture["position"])
        if ORDERS[name].facts.exact:
            assert sorted(picture["position"]) == list(range(1_000))
    assert [low for low, _ in pictures["none"]["labels"]] == [20] * 25 + [0] * 25
    assert all(0 < low < 20 for low, _ in pictures["corgipile"]["labels"][:10])
    assert order_pictures(["corgipile"]) == order_pictures(["corgipile"])
    assert order_pictures(["corgipile"], seed=1) != order_pictures(["corgipile"])


@pytest.mark.slow
@pytest.mark.usefixtures("desk")
def test_comparing_gives_runs_events_and_a_page() -> None:
    heard: list[Event] = []
    found = compare(CLICKS, ["none", "corgipile", "none"], listen=heard.append)
    assert [run["shuffle"] for run in found["runs"]] == ["none", "corgipile"]
    assert (found["rows"], found["label"], found["model"]) == (20_000, "clicked", "logistic")
    tasks = {event.task for event in heard if isinstance(event, Started)}
    assert {"none: train", "corgipile: train"} <= tasks
    assert sum(isinstance(event, Epoch) for event in heard) == 4
    advanced = sum(event.amount for event in heard if isinstance(event, Advanced) and event.task == "none: train")
    assert advanced == sum(row["rows"] for row in found["runs"][0]["epochs"]) < 40_000
    assert found["runs"][0]["final"] == found["runs"][0]["held_out_accuracy"]
    assert isinstance(heard[-1], Finished)
    json.dumps(found, allow_nan=False)
    assert "small example" in render(Comparison.from_dict(page_facts(found, clustering="They lie so.")))


@pytest.mark.slow
@pytest.mark.usefixtures("desk")
def test_a_childs_run_equals_one_in_this_process() -> None:
    run = compare(CLICKS, ["sliding-window"])["runs"][0]
    from dataclasses import replace

    mine = replace(CLICKS, config=replace(CLICKS.config, shuffle="sliding-window")).run()
    assert [row["progressive_loss"] for row in run["epochs"]] == [row["progressive_loss"] for row in mine["epochs"]]


@pytest.mark.usefixtures("desk")
def test_wrong_names_and_columns_are_told_before_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.compare.runs.in_process", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(UnknownOptionError, match="did you mean 'once'"):
        compare(CLICKS, ["onc"])
    with pytest.raises(UsageError, match="no strategy was named"):
        compare(CLICKS, [])
    with pytest.raises(ColumnError, match="did you mean 'clicked'"):
        compare(TrainingRequest(data="clicks.parquet", config=Config(), columns=Columns(label="cliked")))
    with pytest.raises(UsageError, match="say which column"):
        compare(TrainingRequest(data="clicks.parquet", config=Config()))


def test_the_error_of_all_keeps_its_kind_and_names_each_reason_once() -> None:
    runs = [{"shuffle": "a", "failed": "too small", "kind": "BudgetError"}, {"shuffle": "b", "failed": "too small"}]
    assert isinstance(_error(runs), BudgetError)
    assert str(_error(runs)) == "too small"
    other = [*runs, {"shuffle": "c", "failed": "worse", "kind": "DataError"}]
    assert str(_error(other)) == "a, b: too small\nc: worse"
    assert isinstance(_error([{"shuffle": "c", "failed": "worse", "kind": "DataError"}]), DataError)


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL; memory may have run out"),
        ("raise RuntimeError('the moon is full')", "ended with code 1: RuntimeError: the moon is full"),
        ("import sys; sys.exit(3)", "ended with code 3: it said nothing"),
    ],
)
def test_a_process_that_dies_is_a_failed_run(code: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_CHILD", code)
    run = children.in_process(CLICKS)
    assert reason in str(run["failed"])
    assert run["epochs"] == []


@pytest.mark.usefixtures("desk")
def test_a_listener_that_raises_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    code += 'print(\'{"event": "Finished", "task": "x"}\', flush=True); time.sleep(60)'

    def listen(event: Event) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(children, "_CHILD", code)
    with pytest.raises(KeyboardInterrupt):
        children.in_process(CLICKS, listen)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)


@pytest.mark.slow
def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory()
    held = np.ones(before // 4, np.float64)
    assert peak_memory() > before + held.nbytes // 2
