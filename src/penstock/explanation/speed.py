"""How fast this machine makes windows of these rows and learns from them, timed on a sample in the page cache.

The loader's own parts are timed, not stand-ins: a window is filled by `WindowReader`, mixed by `Mixing` and
learned from by the kernels. The sample is also converted, which tells what converting would gain, and copied as
`once` would copy it. Each piece runs once to be compiled and warm, and then counts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa

from penstock import seeds
from penstock.batch import Batch, Csr
from penstock.blocks.base import BlockSource, Int64s
from penstock.blocks.conversion import BLOCK_SIZE, BLOCKS_WANTED, LEAST_BLOCK, convert
from penstock.blocks.memory import to_arrow
from penstock.blocks.open import open as open_source
from penstock.columns.choose import choose_features
from penstock.columns.recipe import Recipe
from penstock.explanation.sample import DataSample
from penstock.loader.decode import ResidentDecoder, divided
from penstock.loader.loader import Loader
from penstock.loader.mixing import Mixing
from penstock.loader.plan import default_threads
from penstock.loader.row_forms import Scaling
from penstock.loader.windows import Feed, LoadedWindow, WindowReader
from penstock.sgd import kernels, losses
from penstock.sgd.model import Weights
from penstock.shuffle import ORDERS, Window
from penstock.shuffle.mixers import Reservoir, SlidingBuffer

_TRIALS, _SECONDS = 5, 0.5
_Timer = Callable[[Callable[[], object]], tuple[float, int]]
# A buffer that processors' caches cannot hold, as the loader's cannot be held either.
_MIXED_BYTES = 48_000_000


@dataclass(frozen=True, slots=True)
class WorkSeconds:
    """Seconds for a row: by the clock, and of all processors together."""

    wall: float
    cpu: float

    def times(self, factor: float) -> WorkSeconds:
        """Return the same for so many times as much."""
        return WorkSeconds(self.wall * factor, self.cpu * factor)


@dataclass(frozen=True, slots=True)
class LayoutSpeed:
    """How fast windows are made of data stored in one way: in stored order (``plain``), and with rows in random places.

    ``touch`` are seconds for a row, more, when a window's memory is used for the first time; ``stored_bytes`` are of a row;
    ``threads`` are reads in flight, which only wait for storage (``waits``) or decode as well.
    """

    plain: WorkSeconds
    shuffled: WorkSeconds
    touch: float
    stored_bytes: float
    block_bytes: float
    threads: int
    waits: bool


@dataclass(frozen=True, slots=True)
class Speeds:
    """What was timed; seconds for a row where nothing else is said.

    ``stored`` are the data as they are, ``packed`` the same rows in the fast layout (None where no copy could be written).
    ``resident`` fills a window from rows in memory, ``decode`` decodes on one thread, ``sgd`` is one update of the model,
    ``slide`` and ``reserve`` are passing through the buffers of sliding-window and of mrs, ``copy`` is writing a shuffled
    copy and ``copied`` filling a window from it.
    """

    stored: LayoutSpeed
    packed: LayoutSpeed | None
    resident: WorkSeconds
    decode: float
    sgd: float
    slide: float
    reserve: float
    copy: float | None
    copied: WorkSeconds | None = None


def measure_speeds(
    sample: DataSample, *, seed: int = 0, orders: Sequence[str] = tuple(ORDERS), seconds: float = _SECONDS
) -> Speeds:
    """Time the work on a sample's blocks, as far as some orders need it; each piece for about so many ``seconds``."""
    feed, blocks = sample.feed, sample.timed
    facts = [ORDERS[name].facts for name in orders]
    typical = partial(_typical, seconds=seconds)
    parts = [feed.decoder.decode(int(b)) for b in blocks]
    decode, _ = typical(lambda: [feed.decoder.decode(int(b)) for b in blocks])
    counts = np.array([len(p) for p in parts], np.int64)
    rows = max(1, int(counts.sum()))
    if divided(feed.source):
        stored, batch = _divided_layout(feed, decode / rows), Batch.concat(parts)
    else:
        stored, batch = _layout(feed, blocks, seed, typical)
    memory = replace(feed, decoder=ResidentDecoder(parts, feed.form), block_rows=counts, exact=True, units=None)
    resident = _fill(memory, np.arange(len(parts)), seed, typical, shuffled=True)[0]
    batch = _teachable(batch, sample)
    del parts, memory
    packed, copy, copied = None, None, None
    if any(each.copy != "never" or each.by_row for each in facts):
        packed, copy, copied = _copied(batch, sample.row_bytes * sample.rows_in_all, seed, typical)
    learning = _learning(batch, sample, typical)
    # Rows in all or a buffer's worth, the sample repeated where it has fewer.
    count = int(max(2, min(sample.rows_in_all, _MIXED_BYTES / max(sample.row_bytes, 1.0))))
    slide = reserve = 0.0
    if any(each.mixing != "none" for each in facts):
        slide, reserve = _mixing(batch.take(np.arange(count) % len(batch)), seed)
    return Speeds(
        stored=stored,
        packed=packed,
        resident=resident,
        decode=decode / rows,
        sgd=learning,
        slide=slide,
        reserve=reserve,
        copy=copy,
        copied=copied,
    )


def _layout(feed: Feed[Batch], blocks: Int64s, seed: int, typical: _Timer) -> tuple[LayoutSpeed, Batch]:
    plain, touch, _ = _fill(feed, blocks, seed, typical, shuffled=False)
    shuffled, _, batch = _fill(feed, blocks, seed, typical, shuffled=True)
    source = feed.source
    rows, stored = int(feed.block_rows[blocks].sum()), int(source.block_bytes[blocks].sum())
    layout = LayoutSpeed(
        plain=plain,
        shuffled=shuffled,
        touch=touch,
        stored_bytes=stored / max(1, len(batch) if not feed.exact else rows),
        block_bytes=float(source.block_bytes.mean()),
        threads=default_threads(decoding=not feed.decoder.waits),
        waits=feed.decoder.waits,
    )
    return layout, batch


def _divided_layout(feed: Feed[Batch], decode: float) -> LayoutSpeed:
    """Judge by decoding alone where blocks are parts of row groups: each thread goes through one from its start."""
    source, rows = feed.source, max(1, int(feed.block_rows.sum()))
    threads = default_threads(decoding=True)
    work = WorkSeconds(decode / threads, decode)
    stored = int(source.block_bytes.sum())
    return LayoutSpeed(work, work, 0.0, stored / rows, float(source.block_bytes.mean()), threads, waits=False)


def _fill(
    feed: Feed[Batch], blocks: Int64s, seed: int, typical: _Timer, *, shuffled: bool
) -> tuple[WorkSeconds, float, Batch]:
    """Time the making of a window, and how much longer it takes in fresh memory; return its rows as a copy."""
    rows = int(feed.block_rows[blocks].sum())
    key = seeds.key(seed, "explain", "window") if shuffled else None
    window = Window(0, blocks, rows, key)
    threads = default_threads(decoding=not feed.decoder.waits)
    with contextlib.closing(WindowReader(feed, capacity=max(rows, 1), threads=threads)) as reader:
        batch = reader.read(window).batch
        count = max(1, len(batch))
        # The reader takes turns between two windows, and now the second one's memory is touched for the first time.
        began = time.perf_counter()
        reader.read(window)
        first = time.perf_counter() - began
        cpu = time.process_time()
        wall, tries = typical(lambda: reader.read(window))
        cpu = (time.process_time() - cpu) / tries
        touch = max(0.0, first - wall) / count if feed.filled else 0.0
        return WorkSeconds(wall / count, max(cpu, wall) / count), touch, batch.take(np.arange(len(batch)))


def _teachable(batch: Batch, sample: DataSample) -> Batch:
    """Return the rows with finite features and a target each, made up where the data have none."""
    values = batch.x.values if isinstance(batch.x, Csr) else batch.x
    values[~np.isfinite(values)] = 0
    y = batch.y
    if y is None:
        y = np.arange(len(batch), dtype=np.float32) % 2
        y = y if losses.loss_of(sample.model).many else 2 * y - 1
    x = batch.x
    if isinstance(x, Csr):
        # Blocks of sparse rows know their own highest feature only.
        x = replace(x, width=max(sample.width, int(x.indices.max(initial=0)) + 1))
    return Batch(x, y, batch.weight)


def _learning(batch: Batch, sample: DataSample, typical: _Timer) -> float:
    weights = Weights.zeros(batch.width, sample.outputs)
    # So small a rate that no data diverge; the time of a step does not depend on it.
    step = kernels.Step(losses.loss_of(sample.model), base=1e-9)
    some = batch.slice(0, min(len(batch), 100_000))
    kernels.train(some.slice(0, 1), weights, step=step, totals=kernels.Totals())
    seconds, _ = typical(lambda: kernels.train(some, weights, step=step, totals=kernels.Totals()))
    return seconds / max(1, len(some))


def _mixing(batch: Batch, seed: int) -> tuple[float, float]:
    """Time the two orders that hold rows back, for each row that comes in."""
    edges = np.linspace(0, len(batch), 17).astype(int)
    nothing = np.zeros(0, np.int64)
    windows = [LoadedWindow(k, batch.slice(a, b), nothing, nothing, None) for k, (a, b) in enumerate(pairwise(edges))]
    held = max(1, len(batch) // 2)
    carried = batch.slice(0, held // 2)

    def run(kind: str, windows: Sequence[LoadedWindow[Batch]]) -> float:
        mixer = SlidingBuffer(held, seed) if kind == "slide" else Reservoir(held // 2, len(carried), seed)
        before = None if kind == "slide" else carried.take(np.arange(len(carried)))
        began = time.perf_counter()
        for _ in Mixing(mixer, before, Batch.concat).run(iter(windows), len(windows)):
            pass
        return (time.perf_counter() - began) / max(1, sum(len(w.batch) for w in windows))

    for kind in ("slide", "reserve"):
        run(kind, windows[:1])
    return run("slide", windows), run("reserve", windows)


def _copied(
    batch: Batch, data_bytes: float, seed: int, typical: _Timer
) -> tuple[LayoutSpeed | None, float | None, WorkSeconds | None]:
    """Write the rows in the fast layout and as a shuffled copy, and time both."""
    try:
        with tempfile.TemporaryDirectory(prefix=".penstock-explain-") as folder:
            rows = to_arrow(batch)
            path = os.path.join(folder, "sample.arrow")
            weight = "weight" if batch.weight is not None else None
            # The blocks that converting all of the data would make, not those of so small a file.
            size = int(np.clip(data_bytes / BLOCKS_WANTED, LEAST_BLOCK, BLOCK_SIZE))
            reader = pa.RecordBatchReader.from_batches(rows.schema, [rows])
            convert(reader, path, label="label", weight=weight, block_size=size)
            with open_source(path) as source:
                recipe = choose_features(source.schema, label="label", weight=weight, place=path)
                feed = Feed.of(source, recipe, Scaling.none())
                with contextlib.closing(feed.decoder):
                    layout, _ = _layout(feed, np.arange(len(source.block_rows)), seed, typical)
                tries = [_copy(source, recipe, batch.nbytes, folder) for _ in range(2)]
                seconds, copied = min(tries, key=lambda each: each[0])
                share = 1 / max(1, len(batch))
                return layout, seconds * share, copied.times(share)
    except OSError:  # no room, or no leave, to write: the data can still be explained
        return None, None, None


def _copy(source: BlockSource, recipe: Recipe, nbytes: int, folder: str) -> tuple[float, WorkSeconds]:
    """Return the seconds that a shuffled copy takes, and the work of making windows of it, in all."""
    # As much memory as three buckets need, so that there are a few of them.
    with Loader(source, recipe, "once", memory=max(nbytes, 1), scratch=folder, stretch=True) as loader:
        for epoch in range(2):
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in loader.epoch(epoch):
                pass
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return loader.prepare_seconds, WorkSeconds(wall, max(wall, cpu))


def _typical(work: Callable[[], object], *, seconds: float) -> tuple[float, int]:
    """Return the middle one of a few times, and how many there were: the machine as busy as it is."""
    times: list[float] = []
    while len(times) < _TRIALS and sum(times) < seconds:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return max(sorted(times)[len(times) // 2], 1e-9), len(times)
