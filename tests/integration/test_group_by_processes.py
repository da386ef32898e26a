"""Learning over groups in processes that die: a worker, the driver, or all at the press of a key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.errors import UsageError
from penstock.events import Advanced, Event, Warned
from penstock.groups import GroupBy, training_run
from penstock.groups.drivers import sgd_driver, sums_driver
from penstock.groups.index import JUDGED
from penstock.groups.local import LocalExecutor
from penstock.groups.results import GroupModels
from penstock.testing.executors import InlineExecutor, await_that
from tests.group_tables import frame_rows, logistic, rows_of, same_results

pytestmark = pytest.mark.usefixtures("temporary")


class TestProcesses:
    SIZES: ClassVar = {(f"g{number}",): 700 if number == 0 else 30 + number for number in range(12)}

    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        place = tmp_path_factory.mktemp("processes") / "data.parquet"
        pq.write_table(rows_of(cls.SIZES, by=("g",)).drop_columns(["amount"]), place)
        return place

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, path: Path) -> Iterator[GroupModels]:
        """What an uninterrupted run gives."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(training_run.EXECUTORS, "local", InlineExecutor)
            yield GroupBy(path, by="g").fit(logistic(epochs=4), y="clicked", search={"l2": [0.5, 0.2]}, workers=2)

    def test_a_worker_is_killed(self, path: Path, expected: GroupModels, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sums_driver, "BUNDLE", 1)
        made: list[LocalExecutor] = []
        seen: set[int] = set()

        def make(*arguments: Any, **named: Any) -> LocalExecutor:
            made.append(LocalExecutor(*arguments, **named))
            return made[0]

        monkeypatch.setitem(training_run.EXECUTORS, "local", make)
        warned: list[str] = []

        def listen(event: Event) -> None:
            if isinstance(event, Warned):
                warned.append(event.message)
            if isinstance(event, Advanced) and event.task == "groups":
                if not seen:
                    os.kill(made[0].pids[1], signal.SIGKILL)
                seen.update(made[0].pids)

        found = GroupBy(path, by="g").fit(
            logistic(epochs=4), y="clicked", search={"l2": [0.5, 0.2]}, workers=2, listeners=[listen]
        )
        same_results(found, expected)
        assert warned == ["worker 1 killed by SIGKILL; what it was doing was done again"]
        assert len(seen) == 3
        assert not any(Path(f"/proc/{pid}").exists() for pid in seen)

    def test_the_driver_is_killed_and_goes_on(
        self, path: Path, expected: GroupModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out, done = tmp_path / "models", 5
        with self.driver(path, out, tmp_path, when=done, what="os.kill(os.getpid(), signal.SIGKILL)") as killed:
            told, said = killed.communicate(timeout=100)
        pids = [int(pid) for pid in told.split()]
        assert killed.returncode == -signal.SIGKILL
        assert said == ""
        await_that(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "a worker is left")
        finished = GroupModels.open(out)
        assert not finished.summary()["finished"]
        assert len(finished.groups) == done - 1, "the one that was being told of is not written yet"
        monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)
        heard: list[Event] = []
        found = GroupBy(path, by="g").fit(
            logistic(epochs=4),
            y="clicked",
            search={"l2": [0.5, 0.2]},
            workers=2,
            out=out,
            resume=True,
            listeners=[heard.append],
        )
        steps = [event for event in heard if isinstance(event, Advanced) and event.task == "groups"]
        assert len(steps) == len(self.SIZES) - len(finished.groups)
        assert steps[-1].note.startswith("12/12 groups")
        assert found.summary()["finished"]
        same_results(found, expected)
        for text in finished.groups:
            mine, before = (
                [
                    {name: value for name, value in row.items() if name not in JUDGED}
                    for row in frame_rows(each, (text,))
                ]
                for each in (found, finished)
            )
            assert mine == before, "a finished group was trained again"

    def test_a_key_is_pressed_at_the_terminal(self, tmp_path: Path) -> None:
        path = tmp_path / "data.parquet"
        pq.write_table(rows_of({("x",): 20_000, ("y",): 1}, by=("g",)).drop_columns(["amount"]), path)
        # The large group would take hours; the small one is found wanting at once, on the other worker.
        with self.driver(path, tmp_path / "models", tmp_path, when=1, what="None", forever=True) as stopped:
            try:
                assert stopped.stdout is not None
                pids = [int(pid) for pid in stopped.stdout.readline().split()]
                os.killpg(stopped.pid, signal.SIGINT)
                _, said = stopped.communicate(timeout=100)
            finally:
                stopped.kill()
        assert len(pids) == 2
        assert stopped.returncode == -signal.SIGINT
        assert said.count("Traceback") == 1
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert list((tmp_path / "left").iterdir()) == []
        assert GroupModels.open(tmp_path / "models").groups == ["y"], "what was done is kept"

    def driver(
        self, path: Path, out: Path, folder: Path, *, when: int, what: str, forever: bool = False
    ) -> subprocess.Popen[str]:
        """Start a program that trains, tells its workers after some groups, and then does something."""
        solver = "solver='gd', epochs=10**7, tolerance=0.0" if forever else "solver='lbfgs', epochs=4, tolerance=1e-6"
        options = f"{solver}, standardize=False"
        script = f"""
import os, signal, sys
import penstock
from penstock.events import Advanced
from penstock.groups import GroupBy, local, training_run
from penstock.groups.drivers import sums_driver
sums_driver.BUNDLE, training_run._COMMIT = 1, -1.0
made, seen = [], []
def make(*arguments, **named):
    made.append(local.LocalExecutor(*arguments, **named))
    return made[0]
training_run.EXECUTORS["local"] = make
def listen(event):
    if isinstance(event, Advanced) and event.task == "groups":
        seen.append(event)
        if len(seen) == {when}:
            print(*made[0].pids, flush=True)
            {what}
GroupBy(sys.argv[1], by="g").fit(
    penstock.LogisticRegression({options}), y="clicked", search={{"l2": [0.5, 0.2]}}, workers=2, out=sys.argv[2],
    listeners=[listen], placement={"'wrap-around'" if forever else "'spread'"}, pooled={not forever},
)
"""
        (folder / "left").mkdir()
        return subprocess.Popen(
            [sys.executable, "-c", script, os.fspath(path), os.fspath(out)],
            env={**os.environ, "TMPDIR": os.fspath(folder / "left")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


class TestSgd:
    """Two groups on two workers: the larger one lies on both, and configs hop between them."""

    SEARCH: ClassVar = {"learning_rate": [0.1, 0.03], "l2": [0.0, 1e-3]}

    @pytest.fixture(scope="class")
    @classmethod
    def path(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        place = tmp_path_factory.mktemp("sgd") / "data.parquet"
        pq.write_table(rows_of({("x",): 3000, ("y",): 400}, by=("g",)).drop_columns(["amount"]), place)
        return place

    def fit(self, path: Path, **options: Any) -> GroupModels:
        model = penstock.LogisticRegression(solver="sgd", epochs=4, seed=3)
        return GroupBy(path, by="g").fit(model, y="clicked", search=self.SEARCH, **{"workers": 2, **options})

    def test_processes_give_what_one_gives(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = self.fit(path)
        monkeypatch.setitem(training_run.EXECUTORS, "local", InlineExecutor)
        same_results(found, self.fit(path))

    def test_a_worker_is_killed_in_the_middle_of_an_epoch(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = self.fit(path, pooled=False)
        made: list[LocalExecutor] = []
        trains: list[int] = []

        class Killing(LocalExecutor):
            def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
                super().submit(worker, task, method, *arguments)
                item = arguments[0][0]
                if (
                    item[0] == "train"
                ):  # one config, or several of a group that lies on one worker, by when they are asked for
                    had, until = item[8:10]
                    trains.append(int(np.sum(np.subtract(until, had))))
                    if len(trains) == 5:
                        os.kill(self.pids[worker], signal.SIGKILL)

        def make(*arguments: Any, **named: Any) -> LocalExecutor:
            made.append(Killing(*arguments, **named))
            return made[0]

        monkeypatch.setitem(training_run.EXECUTORS, "local", make)
        monkeypatch.setattr(sgd_driver, "_LONG", 1)
        warned: list[str] = []
        listen = lambda event: warned.append(event.message) if isinstance(event, Warned) else None  # noqa: E731
        found = self.fit(path, listeners=[listen], pooled=False)
        same_results(found, expected)
        assert len(warned) == 1
        undisturbed = 4 * 4 * (2 + 1)  # configs x epochs x parts of both groups
        assert sum(trains) == undisturbed + trains[4], "the turn that was under way, and nothing else, was done again"

    def test_what_workers_did_is_kept(self, path: Path, tmp_path: Path) -> None:
        result = self.fit(path, out=tmp_path / "models")
        spans = result.timeline
        assert spans is not None
        assert set(spans["worker"].to_pylist()) == {0, 1}
        assert set(spans["what"].to_pylist()) - {"solve"} == {"look", "train", "measure"}
        begin, end = (spans[name].to_numpy() for name in ("begin", "end"))
        assert (begin <= end).all()
        for worker in (0, 1):
            own = np.flatnonzero(spans["worker"].to_numpy() == worker)
            assert (begin[own][1:] >= end[own][:-1] - 1e-3).all(), "a worker does one thing at a time"

    def test_progress_tells_the_slowest_worker(self, path: Path) -> None:
        heard: list[Event] = []
        self.fit(path, listeners=[heard.append], pooled=False)
        notes = [event.note for event in heard if isinstance(event, Advanced) and event.task == "groups"]
        assert "slowest: worker" in notes[0]
        assert notes[-1].endswith("0% left")

    def test_a_budget_for_one_config(self, path: Path) -> None:
        found = self.fit(path, halving={"eta": 2, "budget": 4}).frame.to_pylist()
        assert [row["status"] for row in found] == 2 * ["done", "stopped", "stopped", "stopped"]
        assert found[1]["reason"] == "not begun: the budget was spent on configs listed before it"

    def test_what_differs_is_named_when_going_on(self, path: Path, tmp_path: Path) -> None:
        self.fit(path, out=tmp_path / "models")
        model = penstock.LogisticRegression(solver="sgd", epochs=4, seed=4)
        with pytest.raises(UsageError, match=r"another training: seed was 3, and is now 4; go on with the same"):
            GroupBy(path, by="g").fit(
                model, y="clicked", search=self.SEARCH, out=tmp_path / "models", resume=True, workers=1
            )

    @pytest.mark.parametrize("validation", [0.0, 0.2])
    def test_halving(self, path: Path, validation: float) -> None:
        found = self.fit(path, halving={"eta": 2, "least": 1}, validation=validation)
        for row in found.frame.to_pylist():
            assert (row["status"] == "done") == (row["epochs"] == 4)
            assert ("others did better" in row["reason"]) == (row["status"] == "stopped")
        assert found.chosen["status"].to_pylist() == ["done", "done"]
        for text in ("x", "y"):
            assert found.best(text) is not None
