"""The unordered loader when something goes wrong: failures named, loops left early, forks, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from penstock.errors import BatchTimeoutError, PenstockError, UnknownOptionError, UsageError, WorkerDiedError
from penstock.torch import deliver
from penstock.torch.unordered import UnorderedDataLoader
from tests.unit.test_torch_unordered import KINDS, Numbers, Together, flat, lists, sets


class OwnError(Exception):
    """One whose constructor takes more than a message."""

    def __init__(self, code, place):
        super().__init__(f"code {code} at {place}")
        self.code, self.place = code, place

    def __reduce__(self):
        return OwnError, (self.code, self.place)


class Failing(Numbers):
    def __init__(self, count, bad, error, pause=0.0):
        super().__init__(count, pause)
        self.bad, self.error = set(bad), error

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error
        return super().__getitem__(index)


def ours():
    return [t for t in threading.enumerate() if t.name.startswith("penstock")]


def gone(seconds=10.0):
    """Whether the threads end by themselves."""
    until = time.monotonic() + seconds
    while ours() and time.monotonic() < until:
        time.sleep(0.005)
    return not ours()


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    gc.collect()
    assert gone()
    assert multiprocessing.active_children() == []


WRONG = [
    ({"shuffle": True, "sampler": [1]}, "sampler and shuffle=True exclude one another"),
    ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler excludes"),
    ({"batch_sampler": [[1]], "shuffle": True}, "batch_sampler excludes"),
    ({"batch_sampler": [[1]], "sampler": [1]}, "batch_sampler excludes"),
    ({"batch_sampler": [[1]], "drop_last": True}, "batch_sampler excludes"),
    ({"batch_size": None, "drop_last": True}, "batch_size=None makes no batches"),
    ({"batch_size": 0}, "batch_size=0 is not a positive whole number"),
    ({"batch_size": 2.5}, r"batch_size=2\.5 is not"),
    ({"batch_size": True}, "batch_size=True is not"),
    ({"num_workers": -1}, "num_workers=-1 is negative"),
    ({"timeout": -1}, "timeout=-1 is negative"),
    ({"prefetch_factor": -2}, "prefetch_factor=-2 is negative"),
    ({"seed": 1}, "seed=1 is for shuffle=True"),
    ({"seed": 1, "shuffle": True, "generator": torch.Generator()}, "seed=1 is for shuffle=True without a generator"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_options_that_exclude_one_another(options, message):
    with pytest.raises(UsageError, match=message) as caught:
        UnorderedDataLoader(Numbers(4), **options)
    assert isinstance(caught.value, ValueError)


def test_unknown_workers_and_datasets_that_cannot_be_indexed():
    with pytest.raises(UnknownOptionError, match=r"workers='thread' is not known.*did you mean 'threads'"):
        UnorderedDataLoader(Numbers(4), workers="thread")

    with pytest.raises(UsageError, match="set has no __getitem__"):
        UnorderedDataLoader({1, 2}, 2)


@pytest.mark.parametrize("workers", KINDS)
@pytest.mark.parametrize(
    "error",
    [ValueError("bad pixel"), KeyError("label"), OwnError(3, "disk"), IndexError(), FileNotFoundError(2, "none")],
)
def test_a_failing_sample_raises_its_own_error_and_names_its_index(workers, error):
    loader = UnorderedDataLoader(Failing(40, [17], error), 5, workers=workers, num_workers=2)
    seen = []
    with pytest.raises(type(error)) as caught:
        seen.extend(sorted(batch.tolist()) for batch in loader)
    assert flat(seen) == list(range(15))  # all batches before it
    assert "while fetching sample 17 of Failing" in caught.value.__notes__
    assert str(caught.value) == str(error)
    text = "".join(traceback.format_exception(caught.value))
    assert "in __getitem__" in text  # the traceback is the sample's
    assert "raise self.error" in text
    if isinstance(error, OwnError):
        assert (caught.value.code, caught.value.place) == (3, "disk")


@pytest.mark.parametrize("workers", KINDS)
def test_of_several_failures_in_a_batch_the_first_by_position_is_raised(workers):
    for _ in range(20 if workers == "threads" else 1):
        # Index 10 fails at once and 5 only after a while, but 5 was asked for before.
        class Slow(Numbers):
            def __getitem__(self, index):
                if index == 5:
                    time.sleep(0.01)
                if index in (5, 10):
                    raise ValueError(f"number {index}")
                return index

        loader = UnorderedDataLoader(Slow(12), 12, workers=workers, num_workers=1 if workers == "processes" else 12)
        with pytest.raises(ValueError, match="number 5"):
            next(iter(loader))


def test_the_same_error_object_gets_a_note_for_each_sample_once():
    error = ValueError("always the same")
    loader = UnorderedDataLoader(Failing(4, [0, 1, 2, 3], error), 1)
    batches = iter(loader)
    for _ in range(4):
        with pytest.raises(ValueError, match="always the same"):
            next(batches)
    assert sorted(error.__notes__) == [f"while fetching sample {n} of Failing" for n in range(4)]


@pytest.mark.parametrize("workers", KINDS)
@pytest.mark.parametrize("persistent", [False, True])
def test_after_a_failure_the_next_batch_can_be_asked_for(workers, persistent):
    data = Failing(30, [7], ValueError("no"))
    with UnorderedDataLoader(data, 5, workers=workers, num_workers=2, persistent_workers=persistent) as loader:
        batches = iter(loader)
        got = []
        while True:
            try:
                got.append(sorted(next(batches).tolist()))
            except ValueError:
                assert loader.state_dict()["batches"] == 2
            except StopIteration:
                break
        assert got == [list(range(at, at + 5)) for at in range(0, 30, 5) if at != 5]
        with pytest.raises(StopIteration):
            next(batches)


def test_a_stop_iteration_in_a_sample_does_not_end_the_loop_in_silence():
    loader = UnorderedDataLoader(Failing(10, [3], StopIteration()), 2)
    with pytest.raises(RuntimeError, match="StopIteration while fetching sample 3 of Failing"):
        list(loader)


def test_failures_in_getitems_are_traced_to_their_sample():
    class Many(Together):
        def __getitems__(self, indices):
            if 33 in indices:
                raise OSError("unreadable")
            return super().__getitems__(indices)

    for workers in KINDS:
        loader = UnorderedDataLoader(Many(40), 20, num_workers=2, workers=workers)
        with pytest.raises(OSError, match="unreadable") as caught:
            list(loader)
        assert "while fetching sample 33 of Many by __getitems__" in caught.value.__notes__


@pytest.mark.parametrize("answer", [{"x": [1, 2]}, [1], "ab"])
def test_getitems_must_give_one_sample_for_each_index(answer):
    class Columns(Together):
        def __getitems__(self, indices):
            return answer

    with pytest.raises(UsageError, match=r"Columns.__getitems__ was asked for 2 samples and gave a .*batch_size=None"):
        list(UnorderedDataLoader(Columns(4), 2, num_workers=1))


@pytest.mark.parametrize("workers", KINDS)
def test_a_failing_collate_names_the_batch(workers):
    data = [torch.zeros(n) for n in (1, 1, 1, 2)]
    loader = UnorderedDataLoader(data, 2, workers=workers, num_workers=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size") as caught:
        next(batches)
    assert "while collating samples 2, 3 of list" in caught.value.__notes__
    del batches


@pytest.mark.parametrize("workers", KINDS)
def test_a_failing_worker_init_fn_is_raised(workers):
    def init(number):
        raise PermissionError("not today")

    loader = UnorderedDataLoader(Numbers(8), 2, workers=workers, num_workers=1, worker_init_fn=init)
    with pytest.raises(PermissionError, match="not today") as caught:
        list(loader)
    assert "in worker_init_fn of worker 0" in caught.value.__notes__


def test_a_system_with_few_threads_left_makes_do_with_them(monkeypatch):
    start, started = threading.Thread.start, []

    def scarce(thread):
        if thread.name.startswith("penstock") and len(started) >= 2:
            raise RuntimeError("can't start new thread")
        started.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    assert sets(UnorderedDataLoader(Numbers(40), 10, num_workers=8)) == sets(DataLoader(Numbers(40), 10))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(UnorderedDataLoader(Numbers(40), 10))


def test_a_failing_sampler_is_raised_after_the_batches_before_it():
    def sampler():
        yield from range(6)
        raise LookupError("sampler broke")

    got = []
    with pytest.raises(LookupError, match="sampler broke"):
        got.extend(batch.item() for batch in UnorderedDataLoader(Numbers(9), batch_sampler=([n] for n in sampler())))
    assert got == list(range(6))


@pytest.mark.parametrize("workers", KINDS)
def test_an_interrupt_inside_a_sample_reaches_the_caller(workers):
    loader = UnorderedDataLoader(Failing(40, [17], KeyboardInterrupt()), 5, workers=workers, num_workers=2)
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    assert gone()


@pytest.mark.parametrize("moment", ["body", "waiting"])
def test_an_interrupt_of_the_caller_stops_the_threads(moment):
    release = threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, index):
            if moment == "waiting" and index >= 10:
                os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C does: in the main thread
                release.wait(0.5)
            return index

    loader = UnorderedDataLoader(Stuck(20), 5, num_workers=1, prefetch_factor=1)

    def train():
        for batch in loader:
            if moment == "body" and 5 in batch:
                raise KeyboardInterrupt
            if moment == "waiting":
                time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt) as caught:
        train()
    assert caught.value is not None  # its traceback holds frames, and these no threads
    release.set()
    assert gone()
    assert len(lists(UnorderedDataLoader(Numbers(4), 2))) == 2


@pytest.mark.parametrize("workers", KINDS)
def test_a_batch_that_takes_too_long_is_a_timeout(workers):
    release = threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, index):
            if index == 4:
                release.wait(20)
            return index

    loader = UnorderedDataLoader(Stuck(8), 2, timeout=0.3, workers=workers, num_workers=1)
    batches = iter(loader)
    assert [sorted(next(batches).tolist()) for _ in range(2)] == [[0, 1], [2, 3]]
    began = time.monotonic()
    with pytest.raises(BatchTimeoutError, match=r"batch 2 was not ready within") as caught:
        next(batches)
    assert time.monotonic() - began < 15  # it did not wait for the sample
    assert isinstance(caught.value, (TimeoutError, RuntimeError, PenstockError))
    release.set()


def test_a_batch_that_timed_out_can_be_asked_for_again():
    release = threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, index):
            if index == 4:
                release.wait(20)
            return index

    batches = iter(UnorderedDataLoader(Stuck(8), 4, timeout=0.1))
    next(batches)
    with pytest.raises(BatchTimeoutError):
        next(batches)
    release.set()
    assert sets(batches) == [[4, 5, 6, 7]]


@pytest.mark.parametrize("persistent", [False, True])
def test_loops_left_early_leave_no_thread_and_no_open_file(tmp_path, persistent):
    path = tmp_path / "data"
    path.write_bytes(bytes(100))

    class Files(Numbers):
        def __getitem__(self, index):
            with path.open("rb") as file:
                file.seek(index)
                return file.read(1)[0]

    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with UnorderedDataLoader(Files(100), 5, shuffle=True, num_workers=4, persistent_workers=persistent) as loader:
        for epoch in range(200):
            for at, _ in enumerate(loader):
                if at == epoch % 3:
                    break
            if epoch % 50 == 0 and not persistent:
                assert gone()
        assert len(ours()) <= 8 or gone()
    assert gone()
    gc.collect()
    assert not before or len(os.listdir("/proc/self/fd")) == before


def test_an_end_or_a_close_waits_for_the_threads():
    loader = UnorderedDataLoader(Numbers(20, 0.001), 5)
    list(loader)
    assert not ours()
    batches = iter(loader)
    next(batches)
    assert ours()
    batches.close()
    assert not ours()
    with pytest.raises(StopIteration):
        next(batches)
    batches = iter(loader)
    next(batches)
    loader.close()
    assert not ours()
    assert len(lists(loader)) == 4


def test_a_persistent_loader_that_is_dropped_ends_its_threads():
    loader = UnorderedDataLoader(Numbers(20), 5, persistent_workers=True)
    list(loader)
    assert ours()
    del loader
    assert gone()


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_processes_end_with_the_loop_however_it_ends(persistent):
    with UnorderedDataLoader(
        Numbers(40), 5, workers="processes", num_workers=2, persistent_workers=persistent, shuffle=True, seed=1
    ) as loader:
        assert sorted(flat(sets(loader))) == list(range(40))
        assert bool(multiprocessing.active_children()) is persistent
        for _ in loader:
            break
        assert bool(multiprocessing.active_children()) is persistent
        assert sorted(flat(sets(loader))) == list(range(40))
    assert multiprocessing.active_children() == []


def test_persistent_processes_serve_one_loop_at_a_time():
    with UnorderedDataLoader(Numbers(40), 5, workers="processes", num_workers=1, persistent_workers=True) as loader:
        first = iter(loader)
        next(first)
        assert len(sets(loader)) == 8
        with pytest.raises(UsageError, match="another loop over this loader has begun"):
            next(first)
    plain = UnorderedDataLoader(Numbers(10), 5, workers="processes", num_workers=1)
    assert [(a.tolist(), b.tolist()) for a, b in zip(plain, plain, strict=True)][1] == ([5, 6, 7, 8, 9],) * 2


def test_a_failure_in_a_process_ends_the_processes_even_while_it_is_looked_at():
    loader = UnorderedDataLoader(Failing(40, [3], ValueError("no")), 5, workers="processes", num_workers=2)
    with pytest.raises(ValueError, match="no") as caught:
        list(loader)
    assert caught.value.__traceback__ is not None
    assert multiprocessing.active_children() == []


def test_errors_that_cannot_be_sent_between_processes_go_by_their_text():
    class LocalError(Exception):
        pass

    loader = UnorderedDataLoader(Failing(4, [3], LocalError("hidden")), 4, workers="processes", num_workers=1)
    with pytest.raises(RuntimeError, match="LocalError: hidden") as caught:
        list(loader)
    assert "sample 3 of Failing" in "".join(traceback.format_exception(caught.value))


# torch opens files to see whether it still can when a process has died, and leaves them to the collector.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_process_that_dies_is_told_of(persistent):
    class Deadly(Numbers):
        def __getitem__(self, index):
            if index == 6 and not alive.is_set():
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    alive = multiprocessing.get_context("fork").Event()
    with UnorderedDataLoader(
        Deadly(12), 3, workers="processes", num_workers=1, persistent_workers=persistent
    ) as loader:
        with pytest.raises(WorkerDiedError, match=r"a worker process ended while batch \d was made"):
            list(loader)
        alive.set()
        assert len(list(loader)) == 4  # with new workers


def test_a_dead_process_that_torch_reports_twice_is_one_error(monkeypatch):
    """Torch's signal handler may raise at any line, also while its first report is handled."""

    class Deadly(Numbers):
        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL)

    def interrupted(loop, error):
        monkeypatch.setattr(deliver.ProcessDeliveries, "_translate", translate)
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    translate = deliver.ProcessDeliveries._translate
    monkeypatch.setattr(deliver.ProcessDeliveries, "_translate", interrupted)
    loader = UnorderedDataLoader(Deadly(12), 3, workers="processes", num_workers=1)
    with pytest.raises(WorkerDiedError, match="a worker process ended while batch 0 was made"):
        list(loader)


def test_processes_know_their_number_and_the_users_dataset():
    class Asking(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            info = torch.utils.data.get_worker_info()
            return info.id, info.num_workers, int(info.dataset is self), started[0]

    started = []
    loader = UnorderedDataLoader(Asking(), 2, workers="processes", num_workers=2, worker_init_fn=started.append)
    rows = [tuple(row) for batch in loader for row in zip(*(column.tolist() for column in batch), strict=True)]
    assert sorted(rows) == [(0, 2, 1, 0)] * 4 + [(1, 2, 1, 1)] * 4
    assert started == []  # another process's list


@pytest.mark.slow
def test_processes_can_be_spawned():
    loader = UnorderedDataLoader(list(range(6)), 3, workers="processes", num_workers=1, multiprocessing_context="spawn")
    assert sets(loader) == [[0, 1, 2], [3, 4, 5]]


def in_a_fork(work):
    """Run work in a forked process; return what it returned."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(write, pickle.dumps(work()))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return pickle.loads(answer)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_works_after_a_fork(persistent):
    with UnorderedDataLoader(Numbers(60), 5, num_workers=3, persistent_workers=persistent) as loader:
        expected = sets(DataLoader(Numbers(60), 5))
        batches = iter(loader)
        first = [sorted(next(batches).tolist()) for _ in range(3)]
        assert in_a_fork(lambda: sets(loader)) == expected
        assert in_a_fork(lambda: first + sets(batches)) == expected  # a loop half way
        assert first + sets(batches) == expected  # and the one it came from goes on undisturbed


@pytest.mark.slow
def test_an_interpreter_ends_with_a_loop_half_way():
    code = """
        import time
        from penstock.torch.unordered import UnorderedDataLoader
        class Slow:
            def __len__(self): return 1000
            def __getitem__(self, index):
                time.sleep(0.01)
                return index
        batches = iter(UnorderedDataLoader(Slow(), 4, persistent_workers=True))
        print(len(next(batches)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")


def test_a_path_is_not_taken_for_a_dataset_of_letters():
    with pytest.raises(UsageError, match="is a path, not a dataset"):
        UnorderedDataLoader("data.arrow", 16)
