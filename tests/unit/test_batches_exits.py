"""However a loop over batches is left: no thread, no file stays behind, nothing waits for ever, errors are clear."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import CorruptFileError, DataChangedError, UsageError
from penstock.loader import stream_pass
from penstock.loader.batches import Batches
from tests import samples

SMALL = "800kB"  # of over 2 MB: read by windows
KINDS = {"fixed": ["number", "image"], "ragged": ["number", "text"]}
ROWS = 8000
ORDERS = ("corgipile", "global")


def table(rows):
    numbers = np.arange(rows)
    image = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 32).astype(np.float32)), 32)
    texts = pa.array([f"{n}" * (n % 80) for n in numbers])
    return pa.table({"number": numbers, "image": image, "text": texts})


@pytest.fixture
def path(tmp_path):
    samples.store("converted", tmp_path, table(ROWS), block_rows=50).close()
    return tmp_path / "converted.arrow"


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock")]


def open_files():
    return len(os.listdir("/proc/self/fd"))


def settled(before):
    """Wait for threads that were told to end, and say whether all have."""
    until = time.monotonic() + 20
    while len(threads()) > before and time.monotonic() < until:
        time.sleep(0.01)
    return len(threads()) <= before


def loop(stream, number, act):
    """Go through a stream, doing something at one batch."""
    for at, _ in enumerate(stream):
        if at == number:
            act()


@pytest.mark.slow
@pytest.mark.parametrize("columns", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files by /proc")
def test_200_epochs_left_early_leave_no_thread_and_no_file(path, order, columns):
    with Batches(path, 32, shuffle=order, columns=columns, memory=SMALL) as stream:
        next(iter(stream))
        held, files = len(threads()), open_files()
        for _ in range(200):
            for _ in stream:
                break
        assert len(threads()) <= held + 1  # a pool may start one of its threads late
        assert open_files() <= files
        assert stream.epoch == 200
    assert threads() == []
    files = open_files()
    for _ in range(10):  # streams that nobody closes
        next(iter(Batches(path, 32, shuffle=order, columns=columns, memory=SMALL, transform=lambda batch: batch)))
    gc.collect()
    assert settled(0)
    assert open_files() <= files


def test_ctrl_c_in_the_loop_ends_it_and_the_stream_goes_on(path):
    with Batches(path, 32, columns=("number", "image"), memory=SMALL) as stream:
        with pytest.raises(KeyboardInterrupt):
            loop(stream, 3, lambda: signal.raise_signal(signal.SIGINT))
        state = stream.state_dict()
        assert state["batches"] == 4
        stream.load_state_dict(state)
        assert sum(len(number) for number, _ in stream) == ROWS - 128


def test_two_iterators_over_one_stream_are_told_apart(path):
    with Batches(path, 32, columns=("number", "image"), shuffle="global", memory=SMALL) as stream:
        first = iter(stream)
        next(first)
        second = iter(stream)
        with pytest.raises(UsageError, match=r"another pass over the same stream was begun.*second stream"):
            next(first)
        assert len(list(second)) == ROWS // 32
        assert list(second) == []
        third = iter(stream)
        next(third)
        stream.set_epoch(0)
        with pytest.raises(UsageError, match="set_epoch"):
            next(third)
    with Batches(path, 32) as one, Batches(path, 32) as two:
        assert all(np.array_equal(a["number"], b["number"]) for a, b in zip(one, two, strict=True))


def test_after_close(path):
    stream = Batches(path, 32, memory=SMALL)
    running = iter(stream)
    next(running)
    stream.close()
    stream.close()
    with pytest.raises(UsageError, match=r"this pass has ended: the stream was closed"):
        next(running)
    with pytest.raises(UsageError, match=r"was closed; make another"):
        iter(stream)
    assert len(stream) == ROWS // 32
    assert threads() == []


def test_a_source_that_was_given_stays_open(path):
    with samples.store("converted", path.parent, table(200)) as source:
        for _ in range(2):
            with Batches(source, 32) as stream:
                assert len(list(stream)) == 7


def test_a_pass_in_a_reference_cycle_is_collected_without_waiting(path):
    before = len(threads())
    holder = {}
    stream = Batches(path, 32, shuffle="global", memory=SMALL, transform=lambda batch: batch)
    holder["pass"] = iter(stream)
    next(holder["pass"])
    holder["self"], holder["stream"] = holder, stream
    del stream, holder
    gc.collect()
    assert stream_pass._left  # set aside, not ended in the middle of a collection
    with Batches(path, 32) as another:
        next(iter(another))
    assert stream_pass._left == []
    gc.collect()
    assert settled(before)


def test_a_pass_that_outlives_its_module_ends_without_a_word():
    """As at the interpreter's exit, where a module's names are set to None before its objects go."""
    program = """if True:
        from penstock.loader import stream_pass

        running = stream_pass.ActivePass(iter(()))
        last = stream_pass.Pass(running)
        for name in list(vars(stream_pass)):
            setattr(stream_pass, name, None)
        del last
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.slow
def test_collection_in_a_thread_of_a_pool_does_not_hang(path):
    """Garbage may be collected while another pool starts its threads, which holds a lock that all pools need."""
    for _ in range(5):
        holder = {"pass": iter(Batches(path, 32, shuffle="global", memory=SMALL))}
        next(holder["pass"])
        holder["self"] = holder
        del holder
        with Batches(
            path, 32, columns=("number", "image"), transform=lambda batch: (gc.collect() and None) or batch
        ) as stream:
            for at, _ in enumerate(stream):
                if at == 2:
                    break
    stream_pass.end_left()
    gc.collect()
    assert settled(0)


def in_child(work):
    """Run in a forked process; return whether it ended well, and in time."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return ended(pid)


def ended(pid):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


FORKS = pytest.mark.skipif(not hasattr(os, "fork") or sys.version_info >= (3, 12), reason="forks with threads running")


@FORKS
@pytest.mark.parametrize("order", [*ORDERS, "once", "sliding-window"])
@pytest.mark.parametrize("memory", [SMALL, "50MB"])
def test_a_forked_process_can_use_the_stream(path, order, memory, tmp_path):
    stream = Batches(path, 32, shuffle=order, columns=("number", "image"), memory=memory, scratch=tmp_path)
    whole = [number.tolist() for number, _ in stream]
    stream.set_epoch(0)

    def again():
        stream.set_epoch(0)
        with stream:
            assert [number.tolist() for number, _ in stream] == whole

    assert in_child(again)  # between epochs
    running = iter(stream)
    given = [next(running)[0].tolist() for _ in range(5)]
    assert in_child(again)  # in the middle of one

    def further():
        with pytest.raises(UsageError, match="begun in another process"):
            next(running)

    assert in_child(further)
    assert given + [number.tolist() for number, _ in running] == whole
    stream.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".penstock")) == []


EXITS = """
import os, sys
from penstock.loader.batches import Batches
path, scratch, memory, order = sys.argv[1:]
with Batches(path, 32, shuffle=order, columns=("number", "image"), memory=memory, scratch=scratch) as stream:
    running = iter(stream)
    given = len(next(running)[0])
    pid = os.fork()
    if pid == 0:
        sys.exit(3)  # ends as a program does, all that is registered for its exit included
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    print(given + sum(len(number) for number, _ in running))
"""


@pytest.mark.slow
@FORKS
@pytest.mark.parametrize("order", ["once", "global"])
def test_a_forked_process_that_exits_leaves_the_parents_pass_and_copy_alone(path, order, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    task = [sys.executable, "-c", EXITS, path, scratch, SMALL, order]
    done = subprocess.run(task, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{ROWS}\n", "")
    assert list(scratch.iterdir()) == []


def spoil(path, how):
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, path.stat().st_size // 3)
    elif how == "replaced":
        other = path.with_suffix(".new")
        other.write_bytes(path.read_bytes())
        os.replace(other, path)
    else:
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"x" * 5000)
        os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("how", ["deleted", "truncated", "replaced", "overwritten"])
@pytest.mark.parametrize("order", [*ORDERS, "sliding-window", "once"])
@pytest.mark.parametrize("columns", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("kind", ["converted", "arrow-lz4", "parquet"])
def test_a_file_changed_in_the_middle_of_an_epoch_is_named(how, order, columns, kind, tmp_path):
    source = samples.store(kind, tmp_path, table(1500), block_rows=50)
    path = next(p for p in tmp_path.iterdir() if p.is_file())
    memory = samples.small_memory(source, order, columns) + 20_000
    with source, Batches(source, 16, shuffle=order, columns=columns, memory=memory, scratch=tmp_path) as stream:
        assert not stream.plan.resident
        with pytest.raises((DataChangedError, CorruptFileError), match=path.name):
            loop(stream, 0, lambda: spoil(path, how))
        assert stream.epoch == 0
        with pytest.raises(DataChangedError, match=path.name):
            next(iter(stream))
