"""What every executor must do, as tests: subclass `ExecutorContract`, say how to make your executor, run pytest.

    class TestMyExecutor(ExecutorContract):
        def make(self, maker, workers):
            return MyExecutor(maker, workers=workers)

        def kill(self, executor, worker):
            os.kill(executor.pids[worker], signal.SIGKILL)

        def alive(self, executor):
            return processes_of(executor)

Workers serve `Calculator`, which lives here so that a fresh interpreter can import it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from penstock.errors import DataError, PenstockError, UsageError, WorkerDiedError
from penstock.groups.executor import Done, Executor, Lost, Make

_PATIENCE = 60.0
"""Seconds after which what never comes is taken for lost."""


@dataclass(slots=True)
class Calculator:
    """What workers serve in these tests."""

    secret: int = 7
    calls: int = 0

    def add(self, one: Any, two: Any) -> Any:
        """Add two things."""
        self.calls += 1
        return one + two

    def pid(self) -> int:
        """Return the process that this runs in."""
        return os.getpid()

    def counted(self) -> tuple[int, int]:
        """Return what it was made with, and the calls so far."""
        return self.secret, self.calls

    def wait_for(self, begun: str, go: str) -> str:
        """Say in one file that it has begun, and end when the other is there."""
        Path(begun).touch()
        await_file(Path(go))
        return go

    def fail(self, kind: type[Exception], message: str) -> None:
        """Raise an error."""
        raise kind(message)

    def lock(self) -> Any:
        """Return something that cannot travel."""
        return threading.Lock()

    def leave(self, status: int) -> None:
        """End the process."""
        os._exit(status)


@dataclass(slots=True)
class Hopeless:
    """An object that cannot be made."""

    message: str = field(default="no rows here")

    def __post_init__(self) -> None:
        raise DataError(self.message)


class _Unknown:
    """Pickles to something that is not there on the other side."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return _lookup, ("calculator_that_is_not_there",)


def _lookup(name: str) -> Any:
    return globals()[name]


def await_file(path: Path) -> None:
    """Wait until a file is there."""
    await_that(path.exists, f"{path} never came")


def await_that(holds: Callable[[], Any], otherwise: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.005)


class InlineExecutor:
    """Runs tasks in this process when they are waited for: enough for whoever drives to be tested without processes.

    Parameters
    ----------
    make, workers
        As for any executor; all workers share one object.
    lose : callable, optional
        Is given the number of tasks so far and the arguments of one, and says whether it is lost with its worker.
    backwards : bool
        Answer the last task first.
    """

    def __init__(
        self,
        make: Make,
        *,
        workers: int | None = None,
        lose: Callable[[int, tuple[Any, ...]], bool] | None = None,
        backwards: bool = False,
    ) -> None:
        self.workers = workers or 1
        self.asked: list[tuple[int, tuple[Any, ...]]] = []
        self._served, self._lose, self._backwards = make(), lose, backwards
        self._waiting: deque[tuple[int, int, str, tuple[Any, ...]]] = deque()

    def submit(self, worker: int, task: int, method: str, *arguments: Any) -> None:
        assert worker not in [busy for busy, *_ in self._waiting], f"worker {worker} was given a second task"
        self._waiting.append((worker, task, method, arguments))
        self.asked.append((worker, arguments))

    def wait(self) -> Done | Lost:
        worker, task, method, arguments = self._waiting.pop() if self._backwards else self._waiting.popleft()
        if self._lose is not None and self._lose(len(self.asked), arguments):
            return Lost(worker, (task,), "killed by chance")
        return Done(worker, task, getattr(self._served, method)(*arguments), 0.001)

    def close(self) -> None:
        self._waiting.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def answers(executor: Executor, count: int) -> dict[int, Any]:
    """Wait for so many answers and return them by task."""
    found: dict[int, Any] = {}
    for _ in range(count):
        happened = executor.wait()
        assert isinstance(happened, Done), happened
        found[happened.task] = happened.value
    return found


class ExecutorContract:
    """The suite. Tests that leave the workers as they were share one executor of two workers."""

    def make(self, maker: Callable[[], Any], workers: int) -> Executor:
        """Return an executor whose workers serve what the maker makes."""
        raise NotImplementedError

    def kill(self, executor: Any, worker: int) -> None:
        """Kill a worker as kill -9 does."""
        raise NotImplementedError

    def alive(self, executor: Any) -> Callable[[], list[Any]]:
        """Return what tells which of the workers that there are now are still there, zombies among them."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def executor(cls) -> Iterator[Executor]:
        """Two workers."""
        with cls().make(partial(Calculator, 42), 2) as made:
            yield made

    def test_workers(self, executor: Executor) -> None:
        assert executor.workers == 2

    def test_an_answer_says_whose_it_is(self, executor: Executor) -> None:
        for worker, task in ((0, 11), (1, 12)):
            executor.submit(worker, task, "add", task, 100)
        found = {}
        for _ in range(2):
            happened = executor.wait()
            assert isinstance(happened, Done)
            assert happened.seconds >= 0
            found[happened.task] = (happened.worker, happened.value)
        assert found == {11: (0, 111), 12: (1, 112)}

    def test_workers_are_processes_of_their_own(self, executor: Executor) -> None:
        for worker in (0, 1):
            executor.submit(worker, worker, "pid")
        found = answers(executor, 2)
        assert len({found[0], found[1], os.getpid()}) == 3

    def test_one_object_serves_all_tasks_of_a_worker(self, executor: Executor) -> None:
        executor.submit(0, 0, "counted")
        secret, before = answers(executor, 1)[0]
        for task in (1, 2):
            executor.submit(0, task, "add", 1, 1)
        executor.submit(0, 3, "counted")
        assert secret == 42
        assert answers(executor, 3)[3] == (42, before + 2)

    def test_a_worker_answers_in_the_order_it_was_asked(self, executor: Executor) -> None:
        for task in range(20):
            executor.submit(task % 2, task, "add", task, 0)
        seen: dict[int, list[int]] = {0: [], 1: []}
        for _ in range(20):
            happened = executor.wait()
            assert isinstance(happened, Done)
            assert happened.value == happened.task
            seen[happened.worker].append(happened.task)
        assert seen == {0: list(range(0, 20, 2)), 1: list(range(1, 20, 2))}

    def test_a_slow_worker_does_not_hold_up_another(self, executor: Executor, tmp_path: Path) -> None:
        go = tmp_path / "go"
        executor.submit(0, 1, "wait_for", str(tmp_path / "begun"), str(go))
        await_file(tmp_path / "begun")
        executor.submit(1, 2, "add", 1, 2)
        assert answers(executor, 1) == {2: 3}
        go.touch()
        assert answers(executor, 1) == {1: str(go)}

    def test_arrays_travel_both_ways(self, executor: Executor) -> None:
        large = np.arange(3_000_000, dtype=np.float64).reshape(-1, 3)
        executor.submit(0, 1, "add", large, np.float32(1))
        np.testing.assert_array_equal(answers(executor, 1)[1], large + 1)

    def test_an_error_of_ours_is_raised_as_it_was(self, executor: Executor) -> None:
        executor.submit(0, 1, "fail", DataError, "block 3 is upside down")
        with pytest.raises(DataError, match="block 3") as raised:
            executor.wait()
        assert str(raised.value) == "block 3 is upside down"
        assert any("in fail" in note for note in raised.value.__notes__), "the worker's own traceback is missing"
        self._still_works(executor)

    def test_any_other_error_is_told_with_its_kind_and_place(self, executor: Executor) -> None:
        executor.submit(1, 1, "fail", KeyError, "hat")
        with pytest.raises(WorkerDiedError, match="fail: KeyError: 'hat'") as raised:
            executor.wait()
        assert any("in fail" in note for note in raised.value.__notes__), "the worker's own traceback is missing"
        self._still_works(executor)

    def test_a_method_that_is_not_there(self, executor: Executor) -> None:
        executor.submit(0, 1, "subtract")
        with pytest.raises(WorkerDiedError, match="subtract"):
            executor.wait()
        self._still_works(executor)

    def test_an_answer_that_cannot_travel(self, executor: Executor) -> None:
        executor.submit(0, 1, "lock")
        with pytest.raises(PenstockError, match="lock"):
            executor.wait()
        self._still_works(executor)

    def test_an_argument_that_cannot_travel_is_refused_at_once(self, executor: Executor) -> None:
        with pytest.raises(UsageError, match="add"):
            executor.submit(0, 1, "add", threading.Lock(), 1)
        self._still_works(executor)

    def test_an_argument_that_does_not_arrive(self, executor: Executor) -> None:
        executor.submit(0, 1, "add", _Unknown(), 1)
        with pytest.raises(WorkerDiedError, match="add"):
            executor.wait()
        self._still_works(executor)

    def test_waiting_for_nothing_does_not_hang(self, executor: Executor) -> None:
        with pytest.raises(UsageError, match="submit a task"):
            executor.wait()

    def test_a_killed_worker_is_replaced_and_its_tasks_are_told(self, executor: Executor, tmp_path: Path) -> None:
        begun, never = str(tmp_path / "begun"), str(tmp_path / "never")
        executor.submit(1, 5, "pid")
        before = answers(executor, 1)[5]
        executor.submit(1, 6, "wait_for", begun, never)
        executor.submit(1, 7, "add", 1, 1)
        executor.submit(0, 8, "add", 2, 2)
        assert answers(executor, 1) == {8: 4}
        await_file(Path(begun))
        self.kill(executor, 1)
        lost = executor.wait()
        assert isinstance(lost, Lost)
        assert (lost.worker, lost.tasks) == (1, (6, 7))
        assert lost.reason
        executor.submit(1, 9, "pid")
        executor.submit(1, 10, "counted")
        after = answers(executor, 2)
        assert after[9] != before
        assert after[10] == (42, 0), "the worker in its place has an object of its own"
        assert executor.workers == 2

    def test_a_worker_killed_while_idle_is_replaced(self, executor: Executor) -> None:
        self._still_works(executor)
        self.kill(executor, 0)
        executor.submit(0, 1, "add", 1, 2)
        happened = executor.wait()
        while isinstance(happened, Lost):  # told with the task, or before it was taken
            for task in happened.tasks:
                executor.submit(0, task, "add", 1, 2)
            happened = executor.wait()
        assert happened.value == 3

    def test_a_worker_that_ends_by_itself_is_lost_too(self, executor: Executor) -> None:
        executor.submit(0, 1, "leave", 3)
        lost = executor.wait()
        assert isinstance(lost, Lost)
        assert (lost.worker, lost.tasks) == (0, (1,))
        self._still_works(executor)

    def test_close_ends_all_whatever_they_do(self, tmp_path: Path) -> None:
        executor = self.make(Calculator, 2)
        executor.submit(0, 1, "wait_for", str(tmp_path / "begun"), str(tmp_path / "never"))
        executor.submit(1, 2, "pid")
        answers(executor, 1)
        await_file(tmp_path / "begun")
        alive = self.alive(executor)
        assert len(alive()) == 2
        executor.close()
        assert alive() == []
        executor.close()

    @pytest.mark.parametrize(
        ("maker", "error", "match"),
        [
            (Hopeless, DataError, "no rows here"),
            (partial(Calculator, _Unknown()), WorkerDiedError, "calculator_that_is_not_there"),  # type: ignore[arg-type]  # meant to fail
        ],
    )
    def test_an_object_that_cannot_be_made(self, maker: Callable[[], Any], error: type[Exception], match: str) -> None:
        with self.make(maker, 1) as executor:
            alive = self.alive(executor)
            assert len(alive()) == 1
            executor.submit(0, 1, "pid")
            with pytest.raises(error, match=match):
                executor.wait()
        assert alive() == []

    def test_a_maker_that_cannot_travel_is_refused_at_once(self) -> None:
        with pytest.raises(UsageError, match="pickle"):
            self.make(lambda: Calculator(), 1)

    def _still_works(self, executor: Executor) -> None:
        for worker in (0, 1):
            executor.submit(worker, worker, "add", worker, 1)
        assert answers(executor, 2) == {0: 1, 1: 2}
