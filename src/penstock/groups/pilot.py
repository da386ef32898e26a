"""A pilot run: a few small groups trained by the very worker, to find what single things take on this machine.

Of data that are not sorted yet, sizes come from the grouping columns alone, of all rows or of as many as there is time for;
the rows of a sample are dealt to artificial groups of these sizes, since what a row costs does not depend on its group.
Timed are groups of unlike sizes, with all configs together and with configs alone, messages, and reading. `cost.fit` makes
rates of it. The worker is a process of its own with one thread; what it compiles or loads the first time is not counted.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock import seeds
from penstock.blocks.base import BlockSource, Int64s
from penstock.errors import ColumnError, DataError, UsageError
from penstock.groups.cost import Pilot, Timed, fit
from penstock.groups.executor import Done
from penstock.groups.group_counts import stretches
from penstock.groups.group_files import GroupedWriter
from penstock.groups.grouped import Grouped
from penstock.groups.keys import Numbering, coded, key_type
from penstock.groups.local import LocalExecutor
from penstock.groups.patterns.base import Fit, GroupJob, Trainable
from penstock.parallel import in_order

PILOT = "penstock pilot"
"""The column that tells which row of the sample is in which of the groups made for it."""
_TOGETHER = 2_000_000
"""Stored bytes that are read at once."""
_LEAST = 8
"""Rows of the smallest group that is timed: fewer may lack a class."""
_PARTS = 8
"""The sample is of so many places at least, where there are as many."""
_BUNDLE, _MANY = 2_000, 40
"""Rows that small groups have together, of each size, and how many there are at most."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows groups have; ``seen`` of all ``total`` rows were looked at, and the sizes are estimates if not all."""

    rows: Int64s
    seen: int
    total: int

    @property
    def exact(self) -> bool:
        return self.seen >= self.total


@dataclass(frozen=True, slots=True)
class Taken:
    """A sample of rows, and the seconds that reading one took."""

    rows: pa.Table
    row_seconds: float


def sizes_of(source: BlockSource, by: Sequence[str], *, seconds: float = math.inf, seed: int = 0) -> Sizes:
    """Count the rows of each group, for so long; the rest is taken to be like what was seen.

    Examples
    --------
    >>> from penstock.blocks.open import open
    >>> sizes_of(open(pa.table({"city": ["Oslo", "Rome", "Oslo", None]})), ["city"]).rows.tolist()
    [2, 1, 1]
    """
    if not by and source.exact_rows:
        total = int(source.block_rows.sum())
        return Sizes(np.array([total], np.int64), total, total)
    for name in by:
        if name not in source.schema.names:
            raise ColumnError.missing(name, source.schema.names, place=source.name, role="column to group by")
    kinds = [key_type(source.schema.field(name).type, column=name, place=source.name) for name in by]
    tasks = _spread_out(source, seed)

    def read(number: int) -> tuple[NDArray[np.int64], list[tuple[object, ...]]]:
        parts = [source.read(block, list(by) or source.schema.names[:1]) for block in tasks[number]]
        columns = [pa.chunked_array([rows.column(name) for rows in parts]) for name in by]
        return coded(columns, kinds, rows=sum(map(len, parts)))

    numbering, counts, seen, begun = Numbering(), np.zeros(0, np.int64), 0, time.perf_counter()
    done = 0
    with closing(in_order(read, range(len(tasks)), threads=source.threads)) as found:
        for codes, keys in found:
            numbers = numbering.number(keys)
            counts = np.concatenate([counts, np.zeros(len(numbering) - len(counts), np.int64)])
            counts += np.bincount(numbers[codes], minlength=len(numbering))
            seen, done = seen + len(codes), done + 1
            if time.perf_counter() - begun > seconds and seen:
                break
    if not seen:
        raise DataError(f"{source.name} has no rows; there is nothing to group")
    if done == len(tasks):
        return Sizes(counts, seen, seen)
    total = max(seen, int(source.block_rows.sum()))
    return Sizes(np.maximum(1, np.round(counts * (total / seen))).astype(np.int64), seen, total)


def to_time(sizes: Int64s, most: int) -> list[tuple[int, int]]:
    """Choose the sizes of groups to time, and how many of each: sizes that many groups have, or many rows are in.

    Parameters
    ----------
    sizes : int64 array
        Rows of all groups.
    most : int
        Rows of all that is chosen.

    Examples
    --------
    >>> to_time(np.array([50_000, 400, 400, 100, 100, 100, 100]), 40_000)
    [(100, 20), (400, 5), (20000, 1)]
    """
    real = np.sort(sizes[sizes > 0])
    by_rows = real[np.searchsorted(np.cumsum(real), np.array([0.25, 0.5, 0.75, 1.0]) * real.sum())]
    wanted = np.concatenate([np.quantile(real, [0.25, 0.5, 0.75]), by_rows])
    chosen: list[int] = []
    for size in np.unique(np.clip(wanted, _LEAST, max(_LEAST, most // 2)).astype(np.int64)).tolist():
        if not chosen or size >= 1.5 * chosen[-1]:
            chosen.append(size)
    # What a row costs, and what a group costs whatever its rows, are told apart by unlike sizes only.
    if chosen[-1] < 4 * chosen[0]:
        chosen = [max(_LEAST, chosen[0] // 4), *chosen] if chosen[0] > _LEAST else [*chosen, 8 * chosen[-1]]
    picked: list[tuple[int, int]] = []
    left = most
    for size in chosen:
        room = left if size == chosen[-1] else left // 2  # some is for those that are larger
        size = min(size, room)
        if size < (1.5 * picked[-1][0] if picked else _LEAST):
            break
        count = int(np.clip(min(_BUNDLE, room) // size, 1, _MANY))
        picked.append((size, count))
        left -= size * count
    return picked or [(_LEAST, 1)]


def take(source: BlockSource, rows: int, *, seed: int = 0) -> Taken:
    """Read so many rows from several places, with all their columns."""
    began, read = time.perf_counter(), 0
    taken: list[pa.Table] = []
    tasks = _spread_out(source, seed)
    share, left = -(-rows // min(_PARTS, len(tasks))) if tasks else 0, rows
    for task in tasks:
        here = min(share, left)
        for block in task:
            batch = source.read(block)
            read += len(batch)
            step = max(1, len(batch) // here) if here else 1
            taken.append(pa.Table.from_batches([batch]).take(pa.array(np.arange(0, len(batch), step)[:here])))
            here, left = here - len(taken[-1]), left - len(taken[-1])
            if not here:
                break
        if not left:
            break
    if not read:
        raise DataError(f"{source.name} has no rows; there is nothing to group")
    return Taken(pa.concat_tables(taken), (time.perf_counter() - began) / read)


def dealt(rows: pa.Table, label: str, wanted: Sequence[tuple[int, int]]) -> tuple[pa.Table, list[list[int]]]:
    """Deal rows to groups of the sizes wanted, so that each has its share of every label.

    Returns
    -------
    pyarrow.Table, list of list of int
        The rows with the number of their group in the column `PILOT`, and the groups of each size.
    """
    if label not in rows.column_names:
        raise ColumnError.missing(label, rows.column_names, place="the data", role="label")
    counts: list[int] = []
    bundles: list[list[int]] = []
    left = len(rows)
    for size, many in wanted:
        bundle = []
        for _ in range(many):
            if min(size, left) >= _LEAST:
                bundle.append(len(counts))
                counts.append(min(size, left))
                left -= counts[-1]
        if bundle:
            bundles.append(bundle)
    if not counts:
        raise DataError(f"{len(rows)} rows are too few for a pilot run; train, which takes no time")
    codes = rows[label].combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    order = order[np.linspace(0, len(order) - 1, sum(counts)).astype(np.int64)]
    # Each group's places lie evenly over the rows by label.
    places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    owner = np.repeat(np.arange(len(counts)), counts)[np.argsort(places, kind="stable")]
    table = rows.take(pa.array(order)).append_column(PILOT, pa.array(owner))
    return table.take(pa.array(np.argsort(owner, kind="stable"))), bundles


def _spread_out(source: BlockSource, seed: int) -> list[range]:
    """Return stretches of blocks that are read together, in an order that is everywhere at once."""
    if source.units is None:
        found = list(stretches(source.block_bytes, _TOGETHER))
    else:  # a piece is decoded from its start
        edges = np.flatnonzero(np.diff(source.units, prepend=-1, append=-1))
        found = [range(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    return [found[int(at)] for at in seeds.generator(seed, "pilot").permutation(len(found))]


_REPEATS = 3
_PATIENCE = 3.0
"""Seconds of timing after which nothing is timed a second time."""
_SHORT = {"sequential": (1, 3), "sampling": (4, 12)}
"""Passes that are timed where each takes as long as any other, so that a few tell of all; two numbers, to tell them from what
is done once for a group."""
_HISTOGRAM = 16 * 255
"""Bytes that workers who grow a tree together tell each other of a feature."""
_ALONE = (1, 3)
"""Configs that are timed alone: after so many quarters of them."""
_FEW = 3
"""Groups of a size that are timed where each takes long."""
_MESSAGES = 20
_PAYLOAD = 1 << 20
_BLOCK = 25_000_000 - 1024


@dataclass(frozen=True, slots=True)
class Rates:
    """What single things take on this machine.

    ``together`` is where all configs of a group are trained at once, ``alone`` where each is by itself; ``update`` of both is
    what a pass of a config over a group takes whatever its rows. ``passes`` are the most of each config, on the average, and
    ``epochs`` how many to count: all, unless those that were timed were done after fewer than half. ``batch`` are rows to a
    change of the model, ``start`` the seconds until a worker is there, ``groups`` and ``rows`` those that were timed.
    """

    together: Pilot
    alone: Pilot
    pattern: str
    configs: int
    passes: int
    epochs: int
    batch: int
    start: float
    row_bytes: float
    model_bytes: float
    width: int
    groups: int
    rows: int
    seconds: float


class PilotWorker:
    """Does what the workers of several jobs would do."""

    def __init__(self, jobs: Sequence[GroupJob]) -> None:
        self._workers = [job.make()() for job in jobs]

    def run(self, which: int, groups: Sequence[int]) -> list[Fit]:
        """Train whole groups by one of the jobs."""
        fits: list[Fit] = self._workers[which].run([("solve", group) for group in groups])
        return fits

    def echo(self, payload: Any) -> Any:
        """Answer with what was sent."""
        return payload

    def read(self, groups: Sequence[int]) -> float:
        """Go once over the rows of groups, and return the seconds."""
        grouped: Grouped = self._workers[0].grouped
        began = time.perf_counter()
        for group in groups:
            for batch in grouped.batch(group):
                (batch.x if isinstance(batch.x, np.ndarray) else batch.x.values).sum()
        return time.perf_counter() - began


def run_pilot(
    model: Trainable,
    grouped: Grouped,
    bundles: Sequence[Sequence[int]],
    *,
    choices: Sequence[Mapping[str, Any]],
    validation: float = 0.1,
) -> Rates:
    """Train some groups, and return what single things took; groups of a bundle are of about one size, and timed together."""
    began = time.perf_counter()
    whole: Any = model.job(grouped, choices, validation=validation)
    places = {whole.configs * part // 4 for part in _ALONE}
    some = [whole, *(whole.only([place]) for place in sorted(places))]
    lengths = _SHORT.get(whole.pattern)
    jobs: list[list[Any]] = [
        [job] if lengths is None else [replace(job, epochs=np.minimum(job.epochs, most)) for most in lengths]
        for job in some
    ]
    if lengths is not None:
        bundles = [bundle[:_FEW] for bundle in bundles]
    with LocalExecutor(partial(PilotWorker, [job for each in jobs for job in each]), workers=1) as executor:
        ask = _Asking(executor)
        ask("run", 0, [bundles[0][0]])  # loads or compiles what is native, as a worker's first task does
        start = time.perf_counter() - began
        tasks = _timed(ask, sum(map(len, jobs)), bundles, grouped)
        byte, message, sent = _moving(ask, grouped, bundles)
    own = len(jobs[0])
    if lengths is None:  # there is nothing to tell what is done once from
        tasks = [[replace(task, read_bytes=0.0) for task in each] for each in tasks]
    mine, theirs = (_rates([task for each in part for task in each]) for part in (tasks[:own], tasks[own:]))
    made = statistics.fmean(task.updates for task in tasks[0]) / whole.configs
    passes = max(1, round(float(np.mean(whole.epochs))))
    epochs = max(1, round(made)) if lengths is None and 2 * made < passes else passes
    row_bytes = grouped.nbytes / int(grouped.rows.sum())
    # What is done once for a group is done once for each config where these are trained alone.
    own_once = theirs.row_config + theirs.byte * row_bytes / epochs
    return Rates(
        replace(mine, byte=mine.byte + byte, message=message, sent=sent),
        replace(theirs, row_config=own_once, byte=byte, message=message, sent=sent),
        pattern=whole.pattern,
        configs=whole.configs,
        passes=passes,
        epochs=epochs,
        batch=_batch(whole),
        start=start,
        row_bytes=row_bytes,
        model_bytes=float(_HISTOGRAM * grouped.width if whole.pattern == "sampling" else 8 * (grouped.width + 1)),
        width=grouped.width,
        groups=len(grouped),
        rows=int(grouped.rows.sum()),
        seconds=time.perf_counter() - began,
    )


def copied(grouped: Grouped, wanted: Sequence[tuple[int, int]], folder: Path) -> tuple[Grouped, list[list[int]]]:
    """Copy rows of groups that are large enough to a folder of their own, as groups of the sizes wanted."""
    folder.mkdir()
    order = np.argsort(grouped.rows, kind="stable")
    bundles: list[list[int]] = []
    with GroupedWriter(folder, grouped.recipe, most=_BLOCK) as writer:
        made = 0
        for size, many in wanted:
            first = int(np.searchsorted(grouped.rows[order], size))
            # The smallest that have as many rows; where there are too few of them, some serve again.
            fit_for_it = order[first : first + many] if first < len(order) else order[-1:]
            bundle = []
            for place in range(many):
                left = size
                for batch in grouped.batch(int(fit_for_it[place % len(fit_for_it)])):
                    some = batch.slice(0, min(left, len(batch)))
                    writer.add(made, some)
                    left -= len(some)
                    if not left:
                        break
                bundle.append(made)
                made += 1
            bundles.append(bundle)
        kept_notes = ("version", "asked", "by", "encoder", "classes", "width")
        writer.finish([grouped.keys[0]] * made, grouped.kinds, {name: grouped.note[name] for name in kept_notes})
    return Grouped(folder), bundles


class _Asking:
    """Asks a worker one thing after another."""

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor
        self.seconds = self.total = 0.0
        """What the worker took for the last thing, and for all of them."""

    def __call__(self, method: str, *arguments: Any) -> Any:
        self._executor.submit(0, 0, method, *arguments)
        done = self._executor.wait()
        if not isinstance(done, Done):
            raise UsageError(f"the pilot's worker was {done.reason}; look whether memory ran out")
        self.seconds = done.seconds
        self.total += done.seconds
        return done.value


def _timed(ask: _Asking, jobs: int, bundles: Sequence[Sequence[int]], grouped: Grouped) -> list[list[Timed]]:
    """Time each bundle by each of the jobs, which take turns, so that what else the machine does hinders them alike."""
    tasks: list[list[Timed]] = [[] for _ in range(jobs)]
    row_bytes, before, why = grouped.nbytes / int(grouped.rows.sum()), ask.total, ""
    for bundle in bundles:
        first = ask("run", 0, list(bundle))  # loads what such sizes need
        some = [each.group for each in first if not each.reason]
        why = next((each.reason for each in first if each.reason), why)
        if not some:
            continue
        for job in range(1, jobs):
            ask("run", job, some[:1])
        taken: list[list[float]] = [[] for _ in range(jobs)]
        fits: list[list[Fit]] = [[] for _ in range(jobs)]
        while len(taken[0]) < (_REPEATS if ask.total - before < _PATIENCE else 1):
            for job in range(jobs):
                fits[job] = ask("run", job, some)
                taken[job].append(ask.seconds)
        rows = grouped.rows[some]
        for job in range(jobs):
            passes = np.array([each.epochs for each in fits[job]], np.float64).sum(axis=1)
            # What it takes on this machine as it is now, rather than at its best; passes and all that is for one group.
            took, each = statistics.median(taken[job]) / len(some), len(some)
            tasks[job].append(
                Timed(took, float(rows @ passes) / each, float(passes.mean()), float(rows.mean()) * row_bytes)
            )
    if not tasks[0]:
        raise UsageError(
            f"nothing can be learnt from the rows of the pilot run: {why}; look at the label, or just train"
        )
    return tasks


def _rates(tasks: Sequence[Timed]) -> Pilot:
    """Find the rates behind tasks; of what noise hides, the rest makes do without."""
    for some in (tasks, [replace(task, read_bytes=0.0) for task in tasks]):
        with suppress(UsageError):
            return fit(some)
    return fit([Timed(sum(task.seconds for task in tasks), sum(task.row_configs for task in tasks))])


def _moving(ask: _Asking, grouped: Grouped, bundles: Sequence[Sequence[int]]) -> tuple[float, float, float]:
    """Return seconds to read a byte of rows, for a message, and for each byte that it carries."""
    largest = list(bundles[-1])
    nbytes = sum(batch.nbytes for group in largest for batch in grouped.batch(group))
    byte = min(ask("read", largest) for _ in range(_REPEATS)) / max(1, nbytes)
    message = statistics.median(_clocked(lambda: ask("echo", None)) for _ in range(_MESSAGES)) / 2
    payload = np.zeros(_PAYLOAD, np.uint8)
    whole = min(_clocked(lambda: ask("echo", payload)) for _ in range(_REPEATS)) / 2
    return byte, message, max(0.0, whole - message) / _PAYLOAD


def _clocked(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _batch(job: Any) -> int:
    sizes = getattr(job, "batch_sizes", None) or [spec.batch_size for spec in getattr(job, "specs", ())]
    return int(min(sizes, default=1))
