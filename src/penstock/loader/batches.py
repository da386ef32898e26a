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
from typing import Any, Literal

from penstock.blocks.arrays import table_of
from penstock.blocks.base import BlockSource
from penstock.blocks.counted import counted
from penstock.blocks.fields import Fields
from penstock.blocks.open import open as open_source
from penstock.budget import Budget
from penstock.closing import Closing
from penstock.errors import DataChangedError, DataError, UnknownOptionError, UsageError
from penstock.loader.loader import Loader
from penstock.loader.passes import Pass, Running, end_left
from penstock.loader.plan import default_threads
from penstock.loader.transforms import ROW_NUMBERS, Finish, Transform
from penstock.native import load_compiler
from penstock.records import Records
from penstock.shuffle import Order
from penstock.shuffle.remainder import Stretch

Uneven = Literal["pad", "drop"]

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
    columns : tuple or list of str, optional
        Which columns: a tuple gives batches as tuples in this order, a list or None (all columns) as dicts.
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
    """

    def __init__(
        self,
        data: Any,
        batch_size: int = 32,
        *,
        shuffle: str | Order = "corgipile",
        memory: str | int | Budget = "512MB",
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        per_sample: bool = False,
        workers: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        uneven: Uneven = "pad",
        drop_last: bool = False,
        row_numbers: bool = False,
        scratch: str | os.PathLike[str] | None = None,
        each_thread: Callable[[], None] | None = None,
    ) -> None:
        size = (
            -1 if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") else operator.index(batch_size)
        )
        if size < 1:
            raise UsageError(f"batch_size={batch_size!r} is not a number of rows; choose 1 or more")
        if uneven not in ("pad", "drop"):
            raise UnknownOptionError.of("uneven", uneven, ("pad", "drop"))
        if per_sample and transform is None:
            raise UsageError("per_sample=True says how transform= is called, and there is none; give one")
        if workers is not None and workers < 1:
            raise UsageError(f"workers={workers} cannot transform anything; choose 1 or more, or leave it out")
        if isinstance(columns, str):
            raise UsageError(
                f"columns={columns!r} is one text; give a tuple or a list of names: columns=({columns!r},)"
            )
        self.batch_size = size
        self.uneven, self.drop_last = uneven, drop_last
        threads = workers or default_threads(decoding=True)
        self._finish = Finish(isinstance(columns, tuple), transform, per_sample, threads, each_thread)
        self._source: BlockSource = open_source(table_of(data))
        self._owned = self._source is not data
        try:
            self._source = counted(self._source)
            if not int(self._source.block_rows.sum()):
                raise DataError(f"{self._source.name} has no rows")
            fields = Fields.of(self._source.schema, columns, place=self._source.name, numbered=row_numbers)
            if row_numbers and ROW_NUMBERS in fields.columns:
                raise UsageError(
                    f"row_numbers=True adds a column {ROW_NUMBERS!r}, and {self._source.name} has one of that name;"
                    " leave it out with columns=, or do without row_numbers"
                )
            self._loader: Loader[Records] = Loader(
                self._source,
                fields,
                shuffle,
                memory=memory,
                seed=seed,
                rank=rank,
                world=world,
                scratch=scratch,
            )
        except BaseException:
            if self._owned:
                self._source.close()
            raise
        self.rank, self.world = rank, world
        self._epoch, self._given, self._done = 0, 0, ()  # type: int, int, tuple[Stretch, ...]
        self._begun = False  # whether a batch has been given out since the place was set
        self._running: Running | None = None
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

    @property
    def plain(self) -> bool:
        """Whether batches are given out as they are, without a transform."""
        return self._finish.transform is None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; without this, each pass is the epoch after the last.

        A place in the middle of this very epoch, set by `load_state_dict`, is kept.
        """
        if epoch < 0:
            raise UsageError(f"epoch={epoch}: epochs count from 0")
        if epoch == self._epoch and not self._begun:
            return
        self._stop("set_epoch() was called since")
        self._epoch, self._given, self._done, self._begun = epoch, 0, (), False

    def __len__(self) -> int:
        """Return the batches of a whole epoch, or of what is left of one that was dealt out anew."""
        return -(-self._rows() // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise UsageError(f"this stream of {self._source.name} was closed; make another")
        self._stop("another pass over the same stream was begun; make a second stream to have two at a time")
        if self._begun:
            self._advance()  # the pass before was left early
        self._running = Running(self._run())
        return Pass(self._running)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the stream: after the batches given out so far.

        After the last batch of an epoch this is its end: a pass that begins there is empty, and the next epoch follows.
        """
        return {
            "version": 1,
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
            "epoch_batches": len(self),
            "done": [[s.world, s.rows, s.held_rows, s.open_units] for s in self._done],
            "held_rows": self._loader.stretch(0).held_rows,
            "open_units": self._loader.stretch(0).open_units,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream over the same data stood; any worker's state does for all of them.

        With another number of workers, or another batch size, the rows that none has given out yet are dealt out anew.
        """
        mine = self.state_dict()
        missing = [name for name in mine if not isinstance(state, dict) or name not in state]
        if missing or state["version"] != 1:
            raise UsageError(
                f"this is not a state of a stream of batches: it lacks {', '.join(missing) or 'version 1'}"
            )
        for name in ("epoch", "batches"):
            if not isinstance(state[name], int) or state[name] < 0:
                raise UsageError(f"this state is damaged: {name}={state[name]!r} is not a number from 0 on")
        if state["batches"] > state["epoch_batches"]:
            raise UsageError(
                f"this state is damaged: {state['batches']} batches of {state['epoch_batches']} were given out"
            )
        # Single rows are dealt out by their numbers alone; which rows meet in a window of blocks hangs on its size.
        names = ("order", "seed") if self._loader.by_row else ("order", "seed", "memory")
        for name in names:
            if state[name] != mine[name]:
                raise UsageError(
                    f"this state was saved with {name}={state[name]!r}, the stream has {mine[name]!r}; make them equal"
                )
        if state["fingerprint"] != mine["fingerprint"]:
            raise DataChangedError(
                f"{self._source.name} is not the data that the state was saved with; restore them or start anew"
            )
        windows = ("held_rows", "open_units")
        if not self._loader.by_row and any(state[name] != mine[name] for name in windows):
            raise UsageError(
                f"this state was saved by a stream whose windows hold {state['held_rows']} rows, and those of this one"
                f" hold {mine['held_rows']}; give it the same columns="
            )
        done = tuple(Stretch(*numbers) for numbers in state["done"])
        given = int(state["batches"])
        same = all(state[name] == mine[name] for name in ("world", "batch_size"))
        if not same and given:
            # Those that left out rows at the end of the epoch have done with it all the same.
            ended = given >= state["epoch_batches"]
            rows = int(self._source.block_rows.sum()) if ended else given * state["batch_size"]
            done = (*done, Stretch(state["world"], rows, state["held_rows"], state["open_units"]))
            given = 0
        if not same and done and self._loader.mixed:
            raise UsageError(
                f"shuffle={self._loader.order.name!r} keeps rows back from window to window, so what is left of its epoch"
                f" cannot be dealt out to {self.world} workers instead of {state['world']}, nor in batches of another"
                " size; resume with the same, or start the next epoch"
            )
        self._stop("load_state_dict() was called since")
        self._epoch, self._given, self._done, self._begun = int(state["epoch"]), given, done, False

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

    def _advance(self) -> None:
        self._epoch, self._given, self._done, self._begun = self._epoch + 1, 0, (), False

    def _counts(self) -> list[int]:
        """Return the rows of each worker in what is left of the epoch."""
        place = (self._epoch, self._done)
        if self._known is None or self._known[0] != place:
            counts = [self._loader.count(self._epoch, done=self._done, rank=rank) for rank in range(self.world)]
            if not self._done and min(counts) == 0:
                raise UsageError(self._too_few(counts.count(0)))
            self._known = (place, counts)
        return self._known[1]

    def _too_few(self, idle: int) -> str:
        blocks, rows = len(self._source.block_rows), int(self._source.block_rows.sum())
        told = f"{idle} of world={self.world} workers would get no row of {self._source.name}: "
        if self._loader.by_row:
            return f"{told}it has {rows} rows; use fewer workers"
        return (
            f"{told}shuffle={self._loader.order.name!r} deals out whole blocks, and there are {blocks}; use"
            " shuffle='global', fewer workers, or smaller blocks: penstock convert --block-size"
        )

    def _rows(self) -> int:
        """Return the rows that every worker gives out in what is left of the epoch."""
        counts = self._counts()
        rows = max(counts) if self.uneven == "pad" else min(counts)
        return rows // self.batch_size * self.batch_size if self.drop_last else rows

    def _run(self) -> Generator[Any, None, None]:
        with closing(self._cut()) as records, closing(self._finish.run(records)) as stream:
            for batch in stream:
                self._given += 1
                self._begun = True
                yield batch
        self._advance()

    def _cut(self) -> Generator[Records, None, None]:
        """Cut the rows of what is left of the epoch into batches."""
        rows, at = self._rows(), self._given * self.batch_size
        held: list[Records] = []
        missing = min(self.batch_size, rows - at)
        with closing(self._pieces(at, rows)) as pieces:
            for piece in pieces:
                start = 0
                while start < len(piece) and missing > 0:
                    part = piece.slice(start, min(len(piece), start + missing))
                    held.append(part.copy())
                    start += len(part)
                    missing -= len(part)
                    at += len(part)
                    if missing == 0:
                        yield Records.concat(held)
                        held, missing = [], min(self.batch_size, rows - at)

    def _pieces(self, at: int, rows: int) -> Generator[Records, None, None]:
        """Yield this worker's rows from ``at`` on until there were ``rows``, beginning anew where they end.

        A worker that gets none of the last rows of an epoch that was dealt out anew repeats another's.
        """
        counts = self._counts()
        having = [rank for rank, count in enumerate(counts) if count]
        rank = self.rank if counts[self.rank] else having[self.rank % len(having)] if having else self.rank
        while at < rows:
            left = self._loader.rest(self._epoch, done=self._done, skip=at % counts[rank], rank=rank)
            with closing(left) as windows:
                for window in windows:
                    yield window.batch
                    at += len(window.batch)
                    if at >= rows:
                        break
