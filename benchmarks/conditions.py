"""The conditions of a measurement: cold caches, the disk's read-ahead, and children under a memory limit.

All of it needs Linux and most of it root. Whatever could not be arranged is said by a return value, so that a
report never passes a warm or unlimited run off as a cold or limited one.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_serial = itertools.count()
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def drop_caches() -> bool:
    """Empty the page cache; return whether it worked, so that a report can say cold or warm."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def evict(path: str | os.PathLike[str]) -> bool:
    """Drop one file (or every file of a folder) from the page cache; return whether that could be asked for."""
    if not hasattr(os, "posix_fadvise"):
        return False
    top = Path(path)
    for file in [top] if top.is_file() else [p for p in top.rglob("*") if p.is_file()]:
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)  # dirty pages would stay
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return True


def read_through(folder: Path) -> None:
    """Read every file of a folder once, so that the page cache has what it can hold of them."""
    buffer = bytearray(1 << 20)
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def read_ahead_settings() -> dict[str, int]:
    """Return the read-ahead in kB of each real disk."""
    found = {}
    for file in sorted(Path("/sys/block").glob("*/queue/read_ahead_kb")):
        disk = file.parent.parent.name
        if not disk.startswith(("loop", "ram", "zram")):
            with contextlib.suppress(OSError, ValueError):
                found[disk] = int(file.read_text())
    return found


@contextlib.contextmanager
def read_ahead(kb: int) -> Iterator[bool]:
    """Set every disk's read-ahead, and set it back afterwards; gives whether it could be set."""
    old, done = read_ahead_settings(), True

    def write(disk: str, value: int) -> bool:
        try:
            Path(f"/sys/block/{disk}/queue/read_ahead_kb").write_text(f"{value}\n")
        except OSError:
            return False
        return True

    try:
        for disk in old:
            done = write(disk, kb) and done
        yield bool(old) and done
    finally:
        for disk, value in old.items():
            write(disk, value)


class ChildFailed(RuntimeError):  # noqa: N818 - it names what happened
    """A child ended badly; ``out_of_memory`` says whether the limit killed it."""

    def __init__(self, message: str, *, out_of_memory: bool) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


@dataclass(frozen=True, slots=True)
class Limit:
    """A memory limit to start children under. ``folder`` is None, and ``why`` set, where there can be none."""

    bytes: int
    folder: Path | None
    why: str = ""

    @property
    def works(self) -> bool:
        return self.folder is not None

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Return the command that joins the group and then becomes ``argv``."""
        if self.folder is None:
            return list(argv)
        return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *argv]

    def peak(self) -> int | None:
        """Return the most bytes the group held, page cache included."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if self.folder is not None and (self.folder / name).exists():
                return int((self.folder / name).read_text())
        return None

    def kills(self) -> int:
        """Return how many processes the limit has killed."""
        for name in ("memory.oom_control", "memory.events"):
            if self.folder is not None and (self.folder / name).exists():
                words = (self.folder / name).read_text().split()
                return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
        return 0


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Limit]:
    """Make a control group (v1, else v2) that holds at most so many bytes, page cache included.

    Pages cached before the child began are charged to whoever read them: drop the caches first.
    """
    name = f"penstock-{os.getpid()}-{next(_serial)}"
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    v1 = (old / "memory.limit_in_bytes").exists()
    folder = (old if v1 else new) / name
    try:
        if not v1 and "memory" not in (new / "cgroup.subtree_control").read_text().split():
            raise OSError("the memory controller is not enabled here")
        folder.mkdir()
    except OSError as error:
        yield Limit(limit_bytes, None, f"no memory limit could be set: {error}")
        return
    try:
        try:
            (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit_bytes))
            with contextlib.suppress(OSError):
                (folder / ("memory.swappiness" if v1 else "memory.swap.max")).write_text("0")
            limit = Limit(limit_bytes, folder)
        except OSError as error:
            limit = Limit(limit_bytes, None, f"no memory limit could be set: {error}")
        yield limit
    finally:
        with contextlib.suppress(OSError):
            (folder / "memory.force_empty").write_text("0")
        for _ in range(20):  # a group stays busy for a moment after its last process
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.05)


@contextlib.contextmanager
def disk_limit(bytes_per_second: int) -> Iterator[Limit]:
    """Make a control group (v1) whose processes read at most so fast from each disk, as a slower one would let them."""
    folder = Path("/sys/fs/cgroup/blkio") / f"penstock-{os.getpid()}-{next(_serial)}"
    try:
        folder.mkdir()
    except OSError as error:
        raise ChildFailed(f"reads cannot be slowed here: {error}", out_of_memory=False) from error
    try:
        for disk in read_ahead_settings():
            device = Path(f"/sys/block/{disk}/dev").read_text().strip()
            (folder / "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_second}")
        yield Limit(bytes_per_second, folder)
    finally:
        for _ in range(20):
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def run_child(
    target: Callable[..., Any] | str | Sequence[str],
    *,
    arguments: Mapping[str, Any] | None = None,
    limit: int | None = None,
    disk: int | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Run a contestant in a fresh process, under ``limit`` bytes of memory if given, and return its result.

    With ``disk`` the child reads at most so many bytes a second from any disk; where that cannot be arranged it
    is a `ChildFailed`.

    ``target`` is a function of a module (or ``"module:function"``), called with ``arguments`` and returning
    something that JSON can hold, or a command whose standard output is one JSON value. A result that is not a
    dict comes back as ``{"value": …}``. Under ``"child"`` it gains ``seconds`` (start-up included),
    ``peak_bytes`` (largest resident set), ``limited`` and ``why`` (there was no limit).
    """
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(memory_limit(limit)) if limit is not None else Limit(0, None, "none was asked for")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-child-")))
        answer, usage = folder / "answer.json", folder / "usage.json"
        command = [] if callable(target) or isinstance(target, str) else list(target)
        call = _address(target) if callable(target) or isinstance(target, str) else None
        job = {"call": call, "arguments": dict(arguments or {}), "answer": str(answer), "usage": str(usage)}
        argv = [sys.executable, "-c", "from benchmarks.conditions import _child; _child()", json.dumps(job), *command]
        path = os.pathsep.join([str(ROOT), *(p for p in sys.path if p)])
        slowed = stack.enter_context(disk_limit(disk)) if disk is not None else None
        start = time.perf_counter()
        done = subprocess.run(
            held.wrap(argv) if slowed is None else slowed.wrap(held.wrap(argv)),
            env={**os.environ, "PYTHONPATH": path, **(env or {})},
            stdout=subprocess.PIPE if call is None else None,
            stderr=subprocess.PIPE,
            timeout=timeout,
            check=False,
        )
        seconds = time.perf_counter() - start
        killed = held.kills() > 0 or (limit is not None and done.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL))
        if done.returncode != 0:
            tail = done.stderr.decode(errors="replace").strip()[-2000:]
            what = f"out of memory under a limit of {limit} bytes" if killed else f"exit status {done.returncode}"
            raise ChildFailed(f"{call or command}: {what}\n{tail}", out_of_memory=killed)
        value = json.loads(answer.read_text() if call else done.stdout)
        result = value if isinstance(value, dict) else {"value": value}
        peak = json.loads(usage.read_text())["peak_bytes"]
        result["child"] = {
            "seconds": seconds,
            "peak_bytes": peak,
            "group_peak_bytes": held.peak(),
            "limited": held.works,
            "why": held.why,
        }
        return result


def _address(target: Callable[..., Any] | str) -> str:
    if isinstance(target, str):
        return target
    module = target.__module__
    if module == "__main__":  # a benchmark run alone: the child must find it by its name
        spec = sys.modules["__main__"].__spec__
        module = spec.name if spec is not None else f"benchmarks.{Path(sys.argv[0]).stem}"
    return f"{module}:{target.__qualname__}"


def own_peak_bytes() -> int:
    """Return the largest resident set of this process since it was started.

    ``ru_maxrss`` would be no less than that of the process that started it: Linux keeps it through fork and exec.
    """
    import resource

    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


def _child() -> None:
    """Do one job in this fresh process: call a function, or run a command and watch its memory."""
    import resource

    job, command = json.loads(sys.argv[1]), sys.argv[2:]
    if job["call"] is not None:
        module, function = job["call"].split(":")
        value = getattr(importlib.import_module(module), function)(**job["arguments"])
        Path(job["answer"]).write_text(json.dumps(value))
        status, peak = 0, own_peak_bytes()
    else:
        status = subprocess.run(command, check=False).returncode
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _RSS_UNIT
    Path(job["usage"]).write_text(json.dumps({"peak_bytes": peak}))
    sys.exit(status if status >= 0 else 128 - status)


def machine() -> dict[str, Any]:
    """Describe this machine: every figure is worth only as much as that."""
    cpu, memory = platform.processor(), 0
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "read_ahead_kb": read_ahead_settings(),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
