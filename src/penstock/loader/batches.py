"""`batches`: the stream of batches that a neural network trains on, as NumPy arrays.

One pass over it is one epoch. Threads of this process read, shuffle and transform; nothing is pickled. Every worker of
a job gets the same number of batches. The place in the stream is a small dict, from which any number of workers can go
on: no row comes twice, none is lost.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Literal

from penstock.blocks.base import BlockSource
from penstock.blocks.fields import Fields
from penstock.blocks.memory import as_table
from penstock.blocks.open import open as open_source
from penstock.blocks.refined_source import with_row_counts
from penstock.blocks.storage import convert_line
from penstock.budget import Budget
from penstock.closing import Closing
from penstock.columns.recipe import Recipe
from penstock.errors import DataError, NoLengthError, UnknownOptionError, UsageError
from penstock.events import log
from penstock.loader.batches_state import BatchesState
from penstock.loader.block_cuts import PLAN_VERSION
from penstock.loader.loader import Loader
from penstock.loader.plan import default_threads
from penstock.loader.stream_pass import ActivePass, Pass, end_left
from penstock.loader.transforms import BatchFinisher, Cut, Finish, Transform, check_form, cut_column
from penstock.loader.windows import LoadedWindow
from penstock.messages import Given, Text, Use
from penstock.native import load_compiler
from penstock.records import Records
from penstock.shuffle import Order
from penstock.shuffle.remainder import Stretch

Uneven = Literal["pad", "drop"]

# Rows that are copied out of a window at a time: enough batches to make nothing of what is done for each run of them.
_RUN_BYTES = 1 << 20

# Here and not with the first batch, which someone waits for.
load_compiler()


def batches(data: Any, batch_size: int = 32, **options: Any) -> Batches:
    """Open data as a stream of shuffled batches.

    Parameters
    ----------
    data : path, source or table
        Whatever `penstock.open` takes.
    batch_size : int
        Rows of a batch.
    **options
        Those of `Batches`: ``shuffle``, ``memory``, ``columns``, ``transform`` and more.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"x": [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], "y": [0, 1, 0]})
    >>> table = table.set_column(0, "x", table["x"].cast(pa.list_(pa.float32(), 2)))
    >>> with batches(table, 2, shuffle="none") as stream:
    ...     for batch in stream:
    ...         print(batch["x"].tolist(), batch["y"].tolist())
    [[0.0, 1.0], [2.0, 3.0]] [0, 1]
    [[4.0, 5.0]] [0]
    """
    return Batches(data, batch_size, **options)


def open_counted(data: Any) -> tuple[BlockSource, bool]:
    """Open data with their rows counted, and say whether they are ours to close; those without rows are refused."""
    source = open_source(data)
    owned = source is not data
    try:
        source = with_row_counts(source)
        if not int(source.block_rows.sum()):
            raise DataError(f"{source.name} has no rows")
    except BaseException:
        if owned:
            source.close()
        raise
    return source, owned


class Batches(Closing):
    """A stream of batches; one pass over it is one epoch.

    One pass runs at a time: beginning another ends it, and leaving the loop early makes the next pass the next epoch.
    A stream that was closed is opened anew by making another.

    Parameters
    ----------
    data : path, source, table or arrays
        Whatever `penstock.open` takes; an array or a dict of arrays, which keep their types. A source given stays open
        when the stream is closed.
    batch_size : int
        Rows of a batch.
    shuffle : str or Order
        ``corgipile`` (two-level shuffle at sequential speed), ``global`` (an exact shuffle of all rows) or any other
        order: ``none``, ``once``, ``epoch``, ``sliding-window``, ``mrs``, ``block-only``.
    memory : str, int or Budget
        What reading ahead and shuffling may hold.
    columns : tuple or list of str, or Recipe, optional
        Which columns: a tuple gives batches as tuples in this order, a list or None (all columns) as dicts.
        Or a recipe (`penstock.recipe_for`): dicts of ``numbers``, ``categories`` (one number a column, for embeddings), ``label``.
    transform : callable, optional
        Applied to each batch, or with ``per_sample`` to each row, in threads beside reading; what it returns is given
        out. Rows come as dicts or tuples of their values, and what becomes of them is stacked again.
    per_sample : bool
        Whether ``transform`` takes one row.
    workers : int, optional
        Threads that transform; as many as there are cores, if not given.
    seed : int
        Chance. The same seed gives the same batches, whatever the number of threads.
    rank, world : int
        This worker's place among all that share the data.
    placement : callable, optional
        Instead of ``rank`` and ``world``: returns both. It is called before each pass, and by ``len`` and ``state_dict``
        where no pass is under way, so that a job may form after the stream was made.
    uneven : str
        What workers with fewer rows than others do at the end of an epoch: ``pad`` repeats some of their own first
        rows, ``drop`` leaves out the last rows of those that have more. All give out the same number of batches.
        Where an epoch is resumed by more workers than have rows left, ``pad`` has the idle ones repeat others' rows.
    drop_last : bool
        Leave out the last batch of an epoch where it is smaller than the others.
    row_numbers : bool
        Add a column ``row_number``, the last: where each row stands in the data.
    scratch : path, optional
        Where orders that write a shuffled copy (``once``, ``epoch``) may do so.
    each_thread : callable, optional
        Called once in each transforming thread, before anything else.
    cut : callable
        Makes of a column of several batches that of each, where nothing is transformed.
    finish : BatchFinisher, optional
        What makes of rows what is given out, instead of ``transform`` and what belongs to it.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int = 32,
        *,
        shuffle: str | Order = "corgipile",
        memory: str | int | Budget = "512MB",
        columns: Sequence[str] | Recipe | None = None,
        transform: Transform | None = None,
        per_sample: bool = False,
        workers: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        placement: Callable[[], tuple[int, int]] | None = None,
        uneven: Uneven = "pad",
        drop_last: bool = False,
        row_numbers: bool = False,
        scratch: str | os.PathLike[str] | None = None,
        each_thread: Callable[[], None] | None = None,
        cut: Cut = cut_column,
        finish: BatchFinisher | None = None,
    ) -> None:
        size = (
            -1 if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") else operator.index(batch_size)
        )
        if size < 1:
            raise UsageError(
                "is not a number of rows", option="batch_size", value=batch_size, fixes=["choose 1 or more"]
            )
        if uneven not in ("pad", "drop"):
            raise UnknownOptionError.of("uneven", uneven, ("pad", "drop"))
        check_form(columns, transform, per_sample=per_sample)
        if workers is not None and workers < 1:
            raise UsageError(
                "cannot transform anything", option="workers", value=workers, fixes=["choose 1 or more", "leave it out"]
            )
        self._placement = placement
        self.rank, self.world = (rank, world) if placement is None else placement()
        self.batch_size = size
        self.uneven, self.drop_last = uneven, drop_last
        threads = workers or default_threads(decoding=True)
        self._finish: BatchFinisher = finish or Finish(
            isinstance(columns, tuple), transform, per_sample, threads, each_thread, cut
        )
        self._source, self._owned = open_counted(as_table(data))
        try:
            fields = Fields.of(self._source.schema, columns, place=self._source.name, numbered=row_numbers)
            self.fields = fields
            self._open_loader = partial(
                Loader[Records], self._source, fields, shuffle, memory=memory, seed=seed, scratch=scratch
            )
            self._loader = self._open_loader(rank=self.rank, world=self.world)
        except BaseException:
            if self._owned:
                self._source.close()
            raise
        for notice in self._loader.plan.notices if self.rank == 0 else ():
            log.warning("%s", notice)
        self._state: BatchesState | None = None  # loaded, and no pass begun since
        self._go_to(0)
        self._running: ActivePass | None = None
        self._known: tuple[tuple[int, tuple[Stretch, ...]], list[int]] | None = None
        self._closed = False

    @property
    def epoch(self) -> int:
        """The epoch that the next pass gives out, or that a pass under way does."""
        return self._epoch

    @property
    def plan(self) -> Any:
        """How the memory is divided."""
        return self._loader.plan

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; without this, each pass is the epoch after the last.

        A place in the middle of this very epoch, set by `load_state_dict`, is kept.
        """
        if epoch < 0:
            raise UsageError(": epochs count from 0", option="epoch", value=epoch)
        if epoch == self._epoch and not self._begun:
            return
        self._stop("set_epoch() was called since")
        self._go_to(epoch)

    @property
    def rows(self) -> int:
        """The number of rows of the data."""
        return int(self._source.block_rows.sum())

    @property
    def next_batch(self) -> int:
        """The number within its epoch of the batch that the next pass begins with."""
        return 0 if self._begun else self._given

    def __len__(self) -> int:
        """Return the batches of a whole epoch, or of what is left of one that was dealt out anew."""
        if not self._loader.order.facts.exact:
            raise NoLengthError(
                "has another number of batches in each epoch",
                option="shuffle",
                value=self._loader.order.name,
                fixes=["count them as they come"],
            )
        return self.epoch_batches()

    def epoch_batches(self) -> int:
        """Return the batches of the epoch under way, or of the next one where none is."""
        self._settle()
        return -(-self._rows() // self.batch_size)

    def begin_at(self, batch: int) -> Iterator[Any]:
        """Begin a pass over the next epoch with the batch of this number; those before it are not read."""
        self._end_pass()
        self._settle()
        self._given = batch
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise UsageError(f"this stream of {self._source.name} was closed; make another")
        self._end_pass()
        self._settle()
        if self._state is not None and self._loader.mixed:
            self._state.check_deal(self.world, self.batch_size, order=self._loader.order.name)
        self._running = ActivePass(self._run())
        return Pass(self._running)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream: after the batches given out so far.

        After the last batch of an epoch this is its end: a pass that begins there is empty, and the next epoch follows.
        """
        batches = self.epoch_batches()  # first of all: it asks for the world
        return {
            "version": PLAN_VERSION,
            "order": self._loader.order.name,
            "seed": self._loader.seed,
            "memory": self._loader.plan.memory,
            "batch_size": self.batch_size,
            "world": self.world,
            "uneven": self.uneven,
            "drop_last": self.drop_last,
            "fingerprint": self._source.fingerprint,
            "epoch": self._epoch,
            "batches": self._given,
            "epoch_batches": batches,
            "done": [[s.world, s.rows, s.held_rows, s.open_units] for s in self._done],
            "held_rows": self._loader.stretch(0).held_rows,
            "open_units": self._loader.stretch(0).open_units,
            "cut": [self._loader.cut.rows, self._loader.cut.most],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream over the same data stood; any worker's state does for all of them.

        With another number of workers, or another batch size, the rows that none has given out yet are dealt out anew.
        """
        loaded = BatchesState.of(state, self.state_dict(), by_row=self._loader.by_row, place=self._source.name)
        if self._placement is None and self._loader.mixed:  # otherwise the number of workers may still change
            loaded.check_deal(self.world, self.batch_size, order=self._loader.order.name)
        self._stop("load_state_dict() was called since")
        self._state = loaded
        self._take_up(loaded)

    def close(self) -> None:
        """Stop the threads and close the files; of a stream that is closed already, nothing."""
        self._stop("the stream was closed")
        self._closed = True
        self._loader.close()
        if self._owned:
            self._source.close()

    def _stop(self, why: str) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.end(why)
        end_left()

    def _end_pass(self) -> None:
        """End the pass under way; what is left of its epoch is given up."""
        self._stop("another pass over the same stream was begun; make a second stream to have two at a time")
        if self._begun:
            self._go_to(self._epoch + 1)

    def _go_to(self, epoch: int) -> None:
        self._epoch, self._given = epoch, 0
        self._done: tuple[Stretch, ...] = ()
        self._begun = False  # whether a batch has been given out since the place was set
        self._state = None

    def _settle(self) -> None:
        """Ask for rank and world again, unless a pass has given out batches as one of so many."""
        if self._placement is None or self._begun or self._closed:
            return
        rank, world = self._placement()
        if (rank, world) == (self.rank, self.world):
            return
        loader = self._open_loader(rank=rank, world=world)
        self._loader.close()
        self._loader, self._known, self.rank, self.world = loader, None, rank, world
        if self._state is not None:
            self._take_up(self._state)

    def _take_up(self, state: BatchesState) -> None:
        """Go to the place that a state tells, as one of the workers that there are now."""
        given, done = state.dealt(self.world, self.batch_size, rows=self.rows)
        self._epoch, self._given, self._done, self._begun = state.epoch, given, done, False

    def _counts(self) -> list[int]:
        """Return the rows of each worker in what is left of the epoch."""
        place = (self._epoch, self._done)
        if self._known is None or self._known[0] != place:
            counts = [self._loader.count(self._epoch, done=self._done, rank=rank) for rank in range(self.world)]
            if not self._done and min(counts) == 0:
                raise self._too_few(counts.count(0))
            self._known = (place, counts)
        return self._known[1]

    def _too_few(self, idle: int) -> UsageError:
        start = Text(f"{idle} of ", Given("world", self.world), f" workers would get no row of {self._source.name}: ")
        if self._loader.by_row:
            return UsageError(start, f"it has {self.rows} rows", fixes=["use fewer workers"])
        return UsageError(
            start,
            Given("shuffle", self._loader.order.name),
            f" deals out whole blocks, and there are {len(self._source.block_rows)}",
            fixes=[
                Use("shuffle", "global"),
                "fewer workers",
                Text("smaller blocks: ", convert_line(self._source.name, block_size="16KB")),
            ],
        )

    def _rows(self) -> int:
        """Return the rows that every worker gives out in what is left of the epoch."""
        counts = self._counts()
        rows = max(counts) if self.uneven == "pad" else min(counts)
        return rows // self.batch_size * self.batch_size if self.drop_last else rows

    def _run(self) -> Generator[Any, None, None]:
        with closing(self._runs()) as runs, closing(self._finish.run(runs, self.batch_size, self._epoch)) as stream:
            for batch in stream:
                self._given += 1
                self._begun = True
                yield batch
        self._go_to(self._epoch + 1)

    def _runs(self) -> Generator[Records, None, None]:
        """Give the rows of what is left of the epoch in runs of whole batches, in memory of their own."""
        size = self.batch_size
        rows, at = self._rows(), self._given * size
        begun: list[Records] = []  # a batch whose rows lie in several windows
        missing = size
        with closing(self._pieces(at, rows)) as pieces:
            for window in pieces:
                batch, stop = window.batch, min(len(window.batch), rows - at)
                at += stop
                start = min(missing, stop) if begun else 0
                if begun:
                    begun.append(_own(window, 0, start))
                    missing -= start
                    if not missing or at == rows:
                        yield Records.concat(begun)
                        begun = []
                whole = stop if at == rows else stop - (stop - start) % size
                # What is copied together belongs together: its memory is free again when the last of its batches is.
                step = size * max(1, _RUN_BYTES * len(batch) // (max(1, batch.nbytes) * size))
                if window.owned:
                    step = max(1, whole - start)
                for first in range(start, whole, step):
                    yield _own(window, first, min(first + step, whole))
                if not begun and whole < stop:
                    begun, missing = [_own(window, whole, stop)], size - (stop - whole)

    def _pieces(self, at: int, rows: int) -> Generator[LoadedWindow[Records], None, None]:
        """Yield windows of this worker's rows from ``at`` on until there were ``rows``, beginning anew where they end.

        A worker that gets none of the last rows of an epoch that was dealt out anew repeats another's.
        """
        counts = self._counts()
        having = [rank for rank, count in enumerate(counts) if count]
        rank = self.rank if counts[self.rank] else having[self.rank % len(having)] if having else self.rank
        while at < rows:
            left = self._loader.rest(
                self._epoch, done=self._done, skip=at % counts[rank], rank=rank, multiple=self.batch_size
            )
            with closing(left) as windows:
                for window in windows:
                    yield window
                    at += len(window.batch)
                    if at >= rows:
                        break


def _own(window: LoadedWindow[Records], start: int, stop: int) -> Records:
    """Return rows of a window, in memory that nobody else will write to."""
    rows = window.batch.slice(start, stop)
    return rows if window.owned else rows.copy()
