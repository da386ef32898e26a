"""Single rows of 10 KB from random places of a cold file: which way of asking for them is fastest?

Every way fetches the same rows, a look-ahead of several batches at a time, sorted by place. Ours are ``pread`` calls of
threads inside a compiled loop, around the page cache and through it, with and without joining neighbours; beside them
io_uring (by the package ``liburing``, where it is installed), a memory map, and Arrow's own reader of record batches.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import ROOT, Claim, drop_caches, interleave, main
from penstock.loader import read_kernels
from penstock.loader.direct_reads import PAGE, aligned

ROW = 10_240
LOOK_AHEAD = 4096
THREADS = 16
ROOM = 1 << 19


def run(quick: bool) -> list[Claim]:
    rows, rounds = (20_000, 2) if quick else (200_000, 5)
    with _file(rows) as path:
        fetch = np.sort(np.random.default_rng(0).choice(rows, min(rows // 4, 4 * LOOK_AHEAD), replace=False))
        ways: dict[str, Callable[[], None]] = {
            "pread, 16 threads, direct, joined": lambda: _ours(path, fetch, direct=True, gap=32 * 1024),
            "pread, 16 threads, direct": lambda: _ours(path, fetch, direct=True, gap=0),
            "pread, 16 threads, page cache, joined": lambda: _ours(path, fetch, direct=False, gap=32 * 1024),
            "pread, 16 threads, page cache": lambda: _ours(path, fetch, direct=False, gap=0),
            "pread, 1 thread, page cache": lambda: _ours(path, fetch, direct=False, gap=0, threads=1),
            "memory map, advised random": lambda: _mapped(path, fetch),
            "Arrow record batches, 16 threads": lambda: _arrow(path.with_suffix(".arrow"), fetch),
        }
        if _has_liburing():
            ways["io_uring, 256 in flight, page cache"] = lambda: _ring(path, fetch)
        else:
            print("liburing is not installed: io_uring is left out (pip install liburing)")
        cold = drop_caches()
        found = interleave(ways, repeats=rounds, before=drop_caches)
        best = min(ways, key=found.median)
        print(f"\n{len(fetch)} of {rows} rows of 10 KB, {'cold' if cold else 'WARM: caches could not be dropped'}")
        for name in sorted(ways, key=found.median):
            print(f"  {name:42} {len(fetch) / found.median(name):10,.0f} rows/s")
        ours = "pread, 16 threads, direct, joined"
        return [
            Claim.at_least(
                "reads: the way the loader takes, against the fastest of all ways",
                found.median(best) / found.median(ours),
                0.8,
                note=f"{'cold' if cold else 'warm'}; fastest: {best}",
            )
        ]


def _ours(path: Path, fetch: np.ndarray, *, direct: bool, gap: int, threads: int = THREADS) -> None:
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    if not direct:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    out = np.empty((len(fetch), ROW), np.uint8)

    def work(part: np.ndarray) -> None:
        staging = aligned(ROOM)
        at, to = fetch[part] * ROW, out.ctypes.data + part * ROW
        sizes = np.full(len(part), ROW, np.int64)
        status, _, _ = read_kernels.read_pieces(
            fd, at, sizes, to, gap, staging.ctypes.data, ROOM, PAGE if direct else 1
        )
        assert status == read_kernels.DONE

    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, np.array_split(np.arange(len(fetch)), 4 * threads)))
    finally:
        os.close(fd)
    _checked(out, fetch)


def _mapped(path: Path, fetch: np.ndarray) -> None:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as whole:
        whole.madvise(mmap.MADV_RANDOM)
        rows = np.frombuffer(whole, np.uint8).reshape(-1, ROW)
        out = rows[fetch]
        del rows
    _checked(out, fetch)


def _arrow(path: Path, fetch: np.ndarray) -> None:
    out = np.empty((len(fetch), ROW), np.uint8)
    # A record batch for each row, as an index of rows would need.
    with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:

        def work(part: np.ndarray) -> None:
            for place in part.tolist():
                out[place] = reader.get_batch(int(fetch[place])).column(0).flatten().to_numpy()

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, np.array_split(np.arange(len(fetch)), 4 * THREADS)))
    _checked(out, fetch)


def _has_liburing() -> bool:
    try:
        import liburing  # noqa: F401
    except ImportError:
        return False
    return True


def _ring(path: Path, fetch: np.ndarray, depth: int = 256) -> None:
    import liburing as u

    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    ring, cqe = u.Ring(), u.Cqe()
    u.io_uring_queue_init(depth, ring)
    out = np.empty((len(fetch), ROW), np.uint8)
    try:
        for start in range(0, len(fetch), depth):
            places = range(start, min(start + depth, len(fetch)))
            buffers = [bytearray(ROW) for _ in places]
            for buffer, place in zip(buffers, places):
                u.io_uring_prep_read(u.io_uring_get_sqe(ring), fd, buffer, int(fetch[place]) * ROW)
            u.io_uring_submit_and_wait(ring, len(buffers))
            waiting = u.io_uring_cqe_iter_init(ring)
            while u.io_uring_cqe_iter_next(waiting, cqe):
                pass
            u.io_uring_cq_advance(ring, len(buffers))
            for buffer, place in zip(buffers, places):
                out[place] = np.frombuffer(buffer, np.uint8)
    finally:
        u.io_uring_queue_exit(ring)
        os.close(fd)
    _checked(out, fetch)


def _checked(out: np.ndarray, fetch: np.ndarray) -> None:
    # Each row begins with its number.
    found = out[:, :8].copy().view(np.int64).reshape(-1)
    assert (found == fetch).all(), "a row is not the one asked for"


@contextmanager
def _file(rows: int) -> Iterator[Path]:
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        path = Path(name) / "rows.bin"
        rng = np.random.default_rng(0)
        kind = pa.list_(pa.uint8(), ROW)
        schema = pa.schema({"x": kind})
        with (
            open(path, "wb") as file,
            pa.OSFile(str(path.with_suffix(".arrow")), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            for start in range(0, rows, 2000):
                count = min(2000, rows - start)
                some = rng.integers(0, 256, (count, ROW), np.uint8)
                some[:, :8] = np.arange(start, start + count, dtype=np.int64).view(np.uint8).reshape(-1, 8)
                file.write(some.tobytes())
                for row in some:
                    batch = pa.record_batch(
                        [pa.FixedSizeListArray.from_arrays(pa.array(row), type=kind)], schema=schema
                    )
                    writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        yield path


if __name__ == "__main__":
    sys.exit(main(run))
