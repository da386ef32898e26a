"""The executor that `examples/own_executor.py` shows is a whole one: it passes the conformance suite."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from penstock.groups.executor import Lost
from penstock.groups.training_run import EXECUTORS
from penstock.testing.executors import ExecutorContract
from tests.example_modules import load_example

own_executor = load_example("own_executor")
del EXECUTORS["background"]  # the example itself, which is run, shows that it is found by its name

pytestmark = pytest.mark.slow


def _there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class TestBackground(ExecutorContract):
    def make(self, maker: Callable[[], Any], workers: int) -> Any:
        return own_executor.BackgroundExecutor(maker, workers=workers)

    def kill(self, executor: Any, worker: int) -> None:
        os.kill(executor.pids[worker], signal.SIGKILL)

    def alive(self, executor: Any) -> Callable[[], list[int]]:
        pids = executor.pids
        return lambda: [pid for pid in pids if _there(pid)]

    def test_workers_let_others_go_first_also_those_that_came_later(self, executor: Any) -> None:
        executor.submit(0, 1, "wait_for", os.devnull, "never")
        self.kill(executor, 0)
        assert isinstance(executor.wait(), Lost)
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in executor.pids} == {own_executor.NICENESS}
