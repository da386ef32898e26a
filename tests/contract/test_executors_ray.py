"""Workers as actors of a Ray cluster: the contract of executors, and what only clusters do, such as losing a node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import UsageError, WorkerDiedError, WriteError
from penstock.groups import cluster as cluster_module
from penstock.groups import executor as executors
from penstock.groups import ray as ray_module
from penstock.groups.executor import Lost
from penstock.groups.ray import RayExecutor
from penstock.testing.executors import Calculator, ExecutorContract, answers, await_file, await_that
from tests.rays import STORE, ray_cluster

ray = pytest.importorskip("ray")

CORES = 4
"""Pretended: three of the node that this program is connected to, and one of another."""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Any]:
    with ray_cluster(CORES - 1, 1) as made:
        yield made


@pytest.fixture
def other(cluster: Any) -> Iterator[Callable[[], str]]:
    """Kills the node that this program is not connected to, as a power cut does, and says which it was."""
    (node,) = cluster.worker_nodes

    def remove() -> str:
        cluster.remove_node(node, allow_graceful=False)
        return str(node.node_id)

    yield remove
    cluster.add_node(num_cpus=1, object_store_memory=STORE)


@pytest.fixture
def free() -> None:
    """No worker of the test before is left."""
    await_that(lambda: ray.available_resources().get("CPU") == CORES, "cores are still used")


@pytest.fixture
def take() -> Iterator[Callable[[int], Any]]:
    """Takes cores, when they are free, as another program does; what it returns is ready when it has them."""
    taken = []

    def take(cpus: int) -> Any:
        class Taker:  # within a function, for others cannot import these tests
            def here(self) -> bool:
                return True

        taken.append(ray.remote(num_cpus=cpus)(Taker).remote())
        return taken[-1].here.remote()

    yield take
    for taker in taken:
        ray.kill(taker)


def there(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


class TestRay(ExecutorContract):
    def make(self, maker: Callable[[], Any], workers: int) -> RayExecutor:
        return RayExecutor(maker, workers=workers)

    def kill(self, executor: RayExecutor, worker: int) -> None:
        os.kill(executor.pids[worker], signal.SIGKILL)

    def alive(self, executor: RayExecutor) -> Callable[[], list[Any]]:
        pids = executor.pids

        def left() -> list[int]:
            if not executor.workers:  # Ray ends them in its own time
                await_that(lambda: not there(pids), "an actor outlives its executor")
            return there(pids)

        return left


def await_begun(executor: RayExecutor, tmp_path: Path) -> None:
    """Have every worker do something that ends when a file called ``go`` is there."""
    for worker in range(executor.workers):
        executor.submit(worker, worker, "wait_for", str(tmp_path / f"begun-{worker}"), str(tmp_path / "go"))
    for worker in range(executor.workers):
        await_file(tmp_path / f"begun-{worker}")


@pytest.mark.usefixtures("free")
def test_tasks_of_a_node_that_dies_are_done_on_another(other: Callable[[], str], tmp_path: Path) -> None:
    with RayExecutor(Calculator, workers=2) as executor:
        await_begun(executor, tmp_path)
        before, gone = executor.nodes, other()
        assert len(set(before)) == 2, "they are not spread over nodes"
        lost = executor.wait()
        assert isinstance(lost, Lost)
        assert lost.tasks == (lost.worker,) == (before.index(gone),)
        assert lost.reason.startswith("lost with its node")
        executor.submit(lost.worker, 5, "add", 1, 2)
        assert answers(executor, 1) == {5: 3}
        (tmp_path / "go").touch()
        assert set(answers(executor, 1)) == {1 - lost.worker}
        assert set(executor.nodes) == set(before) - {gone}


@pytest.mark.usefixtures("free")
def test_where_too_few_cores_are_left_they_are_shared(other: Callable[[], str], tmp_path: Path) -> None:
    with RayExecutor(Calculator) as executor:
        assert executor.workers == CORES, "not all of the cluster is used"
        await_begun(executor, tmp_path)
        other()
        worker = executor.wait().worker
        executor.submit(worker, 5, "add", 1, 2)
        assert answers(executor, 1) == {5: 3}, "it waits for a core that is gone"
        assert len(set(executor.nodes)) == 1


@pytest.mark.usefixtures("free")
def test_a_replacement_whose_core_another_took_shares_one(
    monkeypatch: pytest.MonkeyPatch, take: Callable[[int], Any]
) -> None:
    monkeypatch.setattr(ray_module, "_ROOM", 0.5)
    with RayExecutor(Calculator, workers=1) as executor:
        ray.get([take(CORES - 2), take(1)])
        next_in_line = take(1)
        os.kill(executor.pids[0], signal.SIGKILL)
        ray.get(next_in_line)
        executor.submit(0, 1, "pid")
        assert isinstance(executor.wait(), Lost)
        executor.submit(0, 2, "pid")
        assert answers(executor, 1) == {2: executor.pids[0]}


@pytest.mark.usefixtures("free")
def test_cores_that_are_taken_are_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, take: Callable[[int], Any]
) -> None:
    ray.get([take(CORES - 1), take(1)])
    monkeypatch.setattr(cluster_module, "_SETTLE", 0.1)
    monkeypatch.setattr(ray_module, "_PATIENCE", 1.0)
    with pytest.raises(UsageError, match="has 4 cores, 0 of them free; wait until there is room"):
        RayExecutor(Calculator)
    with pytest.raises(WorkerDiedError, match=r"only 0 of 1 workers were there after 1 seconds: .* 0 of them free"):
        RayExecutor(Calculator, workers=1)


@pytest.mark.usefixtures("free")
def test_a_replacement_that_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with RayExecutor(Calculator, workers=1) as executor:
        monkeypatch.setattr(ray_module, "_PATIENCE", 0.0)
        monkeypatch.setattr(ray_module, "_CHECK", 0.0)
        os.kill(executor.pids[0], signal.SIGKILL)
        executor.submit(0, 1, "pid")
        assert isinstance(executor.wait(), Lost)
        executor.submit(0, 2, "pid")
        with pytest.raises(
            WorkerDiedError, match=r"worker 0 died, and another was not there .*: the Ray cluster at .* has 4"
        ):
            executor.wait()


def test_more_workers_than_cores_are_refused_at_once() -> None:
    with pytest.raises(
        UsageError, match=r"workers=100 are more than the 4 cores of the Ray cluster at .*; use at most 4"
    ):
        RayExecutor(Calculator, workers=100)


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=f"workers={workers}"):
        RayExecutor(Calculator, workers=workers)


def test_another_cluster_than_the_one_of_the_program_is_refused(cluster: Any) -> None:
    with pytest.raises(UsageError, match=f"address='10.0.0.9:6379' is not the Ray cluster at {cluster.address}"):
        RayExecutor(Calculator, workers=1, address="10.0.0.9:6379")


def test_the_cluster_of_the_program_is_used_and_left_as_it_was(cluster: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with RayExecutor(Calculator, workers=1, address=f"localhost:{cluster.address.split(':')[1]}") as executor:
        environment = Path(f"/proc/{executor.pids[0]}/environ").read_bytes().split(b"\0")
    for name in (b"OPENBLAS_NUM_THREADS", b"OMP_NUM_THREADS", b"MKL_NUM_THREADS"):
        assert name + b"=1" in environment
    assert ray.is_initialized()
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.usefixtures("free")
def test_workers_that_keep_dying_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "RESTARTS", 1)
    with RayExecutor(partial(os._exit, 9), workers=1) as executor:
        executor.submit(0, 0, "pid")
        assert isinstance(executor.wait(), Lost)
        executor.submit(0, 1, "pid")
        with pytest.raises(
            WorkerDiedError, match=r"died 2 times, the last one ended unasked on .*; look whether memory"
        ):
            executor.wait()


@pytest.fixture
def rows(tmp_path: Path) -> str:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "note").write_text("hello")
    return str(tmp_path / "rows")


def paths(executor: RayExecutor) -> list[str]:
    """Return the folder of each worker's object, which is a path."""
    for worker in range(executor.workers):
        executor.submit(worker, worker, "as_posix")
    return [path for _, path in sorted(answers(executor, executor.workers).items())]


@pytest.mark.usefixtures("free")
def test_workers_that_see_the_folder_use_it_as_it_is(rows: str) -> None:
    with RayExecutor(partial(Path, rows), workers=1, files=rows, make_at=Path) as executor:
        assert paths(executor) == [rows]


@pytest.mark.usefixtures("free")
def test_a_folder_is_sent_once_to_a_node_that_does_not_see_it(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    home = ray.get_runtime_context().get_node_id()

    def sees(executor: RayExecutor, slot: Any) -> bool:
        asked.append(slot.node)
        return slot.node != home

    monkeypatch.setattr(RayExecutor, "_sees", sees)
    with RayExecutor(partial(Path, rows), workers=3, files=rows, make_at=Path) as executor:
        found = dict(zip(executor.nodes, paths(executor), strict=True))
        assert sorted(asked) == sorted(found), "nodes are asked more than once"
        copy = found.pop(home)
        assert copy != rows
        assert Path(copy, "note").read_text() == "hello"
        assert set(found.values()) <= {rows}
        os.kill(executor.pids[executor.nodes.index(home)], signal.SIGKILL)
        again = executor.nodes.index(home)
        executor.submit(again, 1, "as_posix")
        assert isinstance(executor.wait(), Lost)
        assert paths(executor)[again] == copy, "it was sent again"
    await_that(lambda: not os.path.exists(copy), "the copy is left")


@pytest.mark.usefixtures("free")
def test_a_folder_that_changes_on_its_way_is_refused(rows: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def sees(executor: RayExecutor, slot: Any) -> bool:
        Path(rows, "note").write_text("bye")
        return False

    monkeypatch.setattr(RayExecutor, "_sees", sees)
    with pytest.raises(WriteError, match="changed while it was copied"):
        RayExecutor(partial(Path, rows), workers=1, files=rows, make_at=Path)


SCRIPT = """
import json, os, pathlib, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from penstock.errors import UsageError
from penstock.groups.executor import Lost
from penstock.groups.ray import RayExecutor
from penstock.testing.executors import Calculator
told = {}
for address in ("127.0.0.1:1", "rubbish", "ray://127.0.0.1:1"):
    try:
        RayExecutor(Calculator, address=address)
    except UsageError as error:
        told[address] = str(error)
with RayExecutor(Calculator, workers=1 if sys.argv[2] else None, address=sys.argv[2] or None) as executor:
    told["workers"] = executor.workers
    os.kill(executor.pids[0], signal.SIGKILL)
    executor.submit(0, 1, "add", 20, 22)
    happened = executor.wait()
    while isinstance(happened, Lost):
        told["lost"] = happened.reason
        executor.submit(0, 1, "add", 20, 22)
        happened = executor.wait()
    told["answer"] = happened.value
    path = pathlib.Path(f"/proc/{executor.pids[0]}/environ")
    told["threads"] = path.read_bytes().split(b"\\0").count(b"OPENBLAS_NUM_THREADS=1")
    told["folders"] = os.listdir(sys.argv[1])
told["left"] = os.listdir(sys.argv[1])
import ray
told["up"] = ray.is_initialized()
told["handled"] = signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
told["environment"] = [name for name in os.environ if name in ("RAY_USAGE_STATS_ENABLED", "OMP_NUM_THREADS")]
print(json.dumps(told))
"""


def run(folder: str, address: str = "") -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OMP_"))}
    command = [sys.executable, "-W", "error", "-c", SCRIPT, folder, address]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (found.stderr, found.returncode) == ("", 0)
    told: dict[str, Any] = json.loads(found.stdout)  # nothing of what Ray likes to print is there
    assert told["answer"] == 42
    assert told["lost"].startswith("ended unasked on")
    assert told["threads"] == 1
    assert (told["left"], told["up"], told["handled"], told["environment"]) == ([], False, False, [])
    return told


@pytest.fixture
def short() -> Iterator[str]:
    folder = Path("/tmp") / f"r{os.getpid()}"
    folder.mkdir()
    yield str(folder)
    folder.rmdir()


def test_a_cluster_of_its_own_leaves_nothing_behind(short: str) -> None:
    told = run(short)
    assert told["workers"] == len(os.sched_getaffinity(0))
    assert [name.startswith("penstock-") for name in told["folders"]] == [True]
    for address in ("127.0.0.1:1", "rubbish", "ray://127.0.0.1:1"):
        assert f"address='{address}' leads to no Ray cluster" in told[address]


def test_a_running_cluster_is_joined_by_its_address(cluster: Any, short: str) -> None:
    told = run(short, cluster.address)
    assert (told["workers"], told["folders"]) == (1, [])
    assert ray.cluster_resources()["CPU"] == CORES, "it is not there any more"
