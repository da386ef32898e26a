"""Workers as processes: the contract of executors, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError, WorkerDiedError
from penstock.groups import executor as executors
from penstock.groups import local
from penstock.groups.executor import Lost
from penstock.groups.local import LocalExecutor
from penstock.parallel import cores
from penstock.testing.executors import Calculator, ExecutorContract, answers, await_file, await_that


def there(pids: list[int]) -> list[int]:
    """Return which processes the system still knows, zombies among them."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def descriptors() -> set[str]:
    return {f"{entry.name} {os.readlink(entry)}" for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}


class TestLocal(ExecutorContract):
    def make(self, maker: Callable[[], Any], workers: int) -> LocalExecutor:
        return LocalExecutor(maker, workers=workers)

    def kill(self, executor: LocalExecutor, worker: int) -> None:
        os.kill(executor.pids[worker], signal.SIGKILL)

    def alive(self, executor: LocalExecutor) -> Callable[[], list[Any]]:
        return partial(there, executor.pids)


@pytest.fixture(scope="module")
def one() -> Iterator[LocalExecutor]:
    with LocalExecutor(Calculator, workers=1) as executor:
        yield executor


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=f"workers={workers}"):
        LocalExecutor(Calculator, workers=workers)


def test_as_many_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores() == len(os.sched_getaffinity(0))
    started: list[int] = []
    monkeypatch.setattr(LocalExecutor, "_started", lambda self: started.append(1))
    monkeypatch.setattr(LocalExecutor, "close", lambda self: None)
    assert LocalExecutor(Calculator).workers == len(started) == cores()


@pytest.mark.slow
def test_workers_that_keep_dying_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "RESTARTS", 1)
    before = descriptors()
    with LocalExecutor(partial(os._exit, 9), workers=1) as executor:
        pids = executor.pids
        executor.submit(0, 0, "pid")
        assert isinstance(executor.wait(), Lost)
        pids += executor.pids
        executor.submit(0, 1, "pid")
        with pytest.raises(
            WorkerDiedError, match="died 2 times, the last one ended with status 9; look whether memory"
        ):
            executor.wait()
    assert there(pids) == []
    assert descriptors() == before


def test_a_start_that_fails_ends_those_already_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start, pids = LocalExecutor._started, []

    def second_fails(self: LocalExecutor) -> Any:
        if pids:
            raise OSError("no more processes")
        slot = start(self)
        pids.append(slot.process.pid)
        return slot

    monkeypatch.setattr(LocalExecutor, "_started", second_fails)
    with pytest.raises(OSError, match="no more processes"):
        LocalExecutor(Calculator, workers=2)
    assert len(pids) == 1
    assert there(pids) == []


def test_a_worker_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_PATIENCE", 0.2)
    executor = LocalExecutor(Calculator, workers=1)
    executor.submit(0, 1, "pid")
    answers(executor, 1)
    pids = executor.pids
    os.kill(pids[0], signal.SIGSTOP)
    executor.close()
    assert there(pids) == []


def test_workers_have_one_thread_for_matrices_and_the_path_of_the_driver(one: LocalExecutor) -> None:
    one.submit(0, 1, "pid")
    answers(one, 1)  # its program is running: until then it has no environment
    environment = Path(f"/proc/{one.pids[0]}/environ").read_bytes().split(b"\0")
    for name in (b"OPENBLAS_NUM_THREADS", b"OMP_NUM_THREADS", b"MKL_NUM_THREADS"):
        assert name + b"=1" in environment
    assert any(entry.startswith(b"PYTHONPATH=") for entry in environment)


def test_workers_do_not_hear_a_key_pressed_at_the_terminal(one: LocalExecutor) -> None:
    # Ctrl-C goes to the terminal's foreground group; the driver alone is to answer it.
    assert os.getpgid(one.pids[0]) != os.getpgid(0)


def test_workers_end_when_their_driver_is_killed(tmp_path: Path) -> None:
    script = """
import sys, time
from penstock.groups.local import LocalExecutor
from penstock.testing.executors import Calculator
executor = LocalExecutor(Calculator, workers=2)
for worker in (0, 1):
    executor.submit(worker, worker, "pid")
for _ in range(2):
    executor.wait()
executor.submit(0, 2, "wait_for", sys.argv[1], sys.argv[2])
print(*executor.pids, flush=True)
time.sleep(600)
"""
    begun, go = tmp_path / "begun", tmp_path / "never"
    driver = subprocess.Popen(
        [sys.executable, "-c", script, str(begun), str(go)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(there(pids)) == 2
    await_file(begun)
    driver.kill()
    _, said = driver.communicate()
    assert said == ""
    await_that(lambda: not there(pids), "a worker outlives its driver")


@pytest.mark.slow
def test_a_script_needs_no_guard_around_its_main_part(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from penstock.groups.local import LocalExecutor\n"
        "from penstock.testing.executors import Calculator\n"
        "with LocalExecutor(Calculator, workers=1) as executor:\n"
        "    executor.submit(0, 1, 'add', 20, 22)\n"
        "    print(executor.wait().value)\n"
    )
    found = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr, found.returncode) == ("42\n", "", 0)
