"""Rows/s of batches where all data fit in memory, and where only the file's pages do: ``python -m benchmarks.warm_rows``.

Rows of 28 floats and a label, warm, at three batch sizes. The floor is the ten-line loop that a user would write: NumPy takes the rows of
a permutation for each batch, torch shares their memory. The peer is the stock ``DataLoader`` over a memory map whose dataset gives a batch
at a time (``__getitems__``); beside it, without a bar, stands one whose sampler gives arrays of numbers, which few write. Epochs after the
first are measured; the loop's permutation is made outside of its time, the others' are not.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import harness
from benchmarks.harness import Claim
from benchmarks.loaders.memory_mapped import RandomBatches, Samples

WIDTH = 28
SIZES = (256, 1024, 8192)
OF_LOOP, OVER_STOCK, OF_LOOP_CACHED = 0.6, 4.0, 0.4
LOOP, STOCK = "loop over a permutation", "stock DataLoader over a memory map, batched"
SAMPLED = "stock DataLoader over a memory map, batched by a sampler of arrays"


class _Data:
    """What `Samples` asks of the data."""

    dtype, width = np.dtype(np.float32), WIDTH

    def __init__(self, rows: int) -> None:
        self.rows = rows


class _Gotten(Samples):
    """Gives the rows of a list of indices together, as torch asks for a batch."""

    def __getitems__(self, indices: list[int]) -> Any:
        return self[np.array(indices)]


class _Job:
    """What `RandomBatches` asks of a job."""

    seed = 0

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size


def run(quick: bool) -> list[Claim]:
    rows, rounds, memory, window = (100_000, 2, "200MB", "2MB") if quick else (4_000_000, 5, "2GB", "100MB")
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        folder = Path(name)
        x = np.random.default_rng(0).standard_normal((rows, WIDTH), dtype=np.float32)
        label = (x[:, 0] > 0).astype(np.int64)
        x.tofile(folder / "x.bin")
        label.tofile(folder / "label.bin")
        _write(folder / "rows.arrow", x, label)
        for size in SIZES:
            with ExitStack() as stack:
                ways: dict[str, Callable[[], float]] = {
                    LOOP: partial(_loop, x, size),
                    STOCK: _stock(folder, rows, size),
                    SAMPLED: _sampled(folder, rows, size),
                }
                for order, held in (("global", memory), ("corgipile", memory), ("corgipile", window)):
                    loader = stack.enter_context(_ours(folder / "rows.arrow", size, order, held))
                    ways[f"{order}, memory {held}"] = partial(_rate, rows, loader)
                for way in ways.values():  # the first epoch reads the rows, and compiles
                    way()
                found = harness.interleave(ways, repeats=rounds)
                print(f"\nbatches of {size}: rows/s\n{found.table()}", file=sys.stderr, flush=True)
                for way in list(ways)[3:]:
                    fits = memory in way
                    bar = OF_LOOP if fits else OF_LOOP_CACHED
                    about = f"{found.median(way) / 1e6:.1f}M rows/s of {found.median(LOOP) / 1e6:.1f}M"
                    where = "all in memory" if fits else "a file in the page cache"
                    title = f"{way}, {where}, batches of {size}"
                    claims.append(Claim.at_least(f"{title}: of the loop", found.ratio(way, LOOP), bar, note=about))
                    if fits:
                        over = found.ratio(way, STOCK)
                        about = f"{found.median(STOCK) / 1e6:.2f}M rows/s"
                        claims.append(Claim.at_least(f"{title}: over the stock loader", over, OVER_STOCK, note=about))
                        over, about = found.ratio(way, SAMPLED), f"{found.median(SAMPLED) / 1e6:.2f}M rows/s"
                        claims.append(
                            Claim(f"{title}: over the same with a sampler of arrays", over, "printed", True, about)
                        )
    return claims


def _write(path: Path, x: np.ndarray[Any, Any], label: np.ndarray[Any, Any]) -> None:
    from penstock.blocks.conversion import convert
    from penstock.blocks.open import open as open_source

    rows = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), WIDTH)
    with open_source(pa.table({"x": rows, "label": label})) as source:
        convert(source, path)


def _rate(rows: int, batches: Iterable[Any]) -> float:
    began = time.perf_counter()
    for _ in batches:
        pass
    return rows / (time.perf_counter() - began)


def _loop(x: np.ndarray[Any, Any], size: int) -> float:
    import torch

    permutation = np.random.default_rng(0).permutation(len(x))
    began = time.perf_counter()
    for at in range(0, len(x), size):
        torch.from_numpy(x.take(permutation[at : at + size], axis=0))
    return len(x) / (time.perf_counter() - began)


def _stock(folder: Path, rows: int, size: int) -> Callable[[], float]:
    from torch.utils.data import DataLoader

    data: Any = _Data(rows)
    samples: Any = _Gotten(folder, data)
    return partial(_rate, rows, DataLoader(samples, batch_size=size, shuffle=True, collate_fn=_same))


def _same(batch: Any) -> Any:
    return batch


def _sampled(folder: Path, rows: int, size: int) -> Callable[[], float]:
    from torch.utils.data import DataLoader

    data: Any = _Data(rows)
    job: Any = _Job(size)
    samples: Any = Samples(folder, data)
    sampler: Any = RandomBatches(rows, job)
    return partial(_rate, rows, DataLoader(samples, sampler=sampler, batch_size=None))


def _ours(path: Path, size: int, order: str, memory: str) -> Any:
    from penstock.torch import DataLoader

    return DataLoader(str(path), size, shuffle=order, memory=memory, columns=("x", "label"))


if __name__ == "__main__":
    sys.exit(harness.main(run))
