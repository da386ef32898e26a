"""Rows kept back from window to window, for the orders whose buffer outlives a window.

A mixer decides by places; here the rows move. The buffer is updated where it lies, except at the end of an
epoch, when what remains of it is small or goes to the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.loader.holdout import SplitPart, mixed_shape
from penstock.loader.row_forms import R
from penstock.loader.windows import LoadedWindow
from penstock.native import kernel
from penstock.shuffle import Mix, Mixer, Order, Shape, Window

Counted: TypeAlias = Callable[[Window], int]


class Mixing(Generic[R]):
    """Passes windows through a mixer; afterwards ``kept`` holds what the next epoch begins with."""

    def __init__(self, mixer: Mixer, carried: R | None, concat: Callable[[Sequence[R]], R]) -> None:
        self._mixer = mixer
        self.kept = carried
        self._concat = concat

    def run(self, windows: Iterable[LoadedWindow[R]], total: int) -> Iterator[LoadedWindow[R]]:
        """Yield, for each of ``total`` windows that come in, the rows that go out."""
        for count, window in enumerate(windows, 1):
            last = count == total
            mix = self._mixer.step(len(window.batch), last=last)
            out = self._select(window.batch, mix.picks)
            self.kept = self._keep(window.batch, mix.keeps, last=last)
            # Which stored row stands where is no longer known without simulating the mixer.
            yield LoadedWindow(window.index, out, window.blocks, window.block_rows, None, located=False)

    def _keep(self, incoming: R, keeps: NDArray[np.int64], *, last: bool) -> R:
        held = self.kept
        if last or held is None or len(held) != len(keeps) or not isinstance(held, Batch) or not _dense(held):
            return self._select(incoming, keeps)
        assert isinstance(incoming, Batch)  # rows of one source are of one kind
        changed = np.flatnonzero(keeps >= len(held))
        replace_rows(held.x, incoming.x, changed, keeps[changed] - len(held))
        for mine, theirs in ((held.y, incoming.y), (held.weight, incoming.weight)):
            if mine is not None and theirs is not None:
                mine[changed] = theirs[keeps[changed] - len(held)]
        return held

    def _select(self, incoming: R, picks: NDArray[np.int64]) -> R:
        """Return rows by their places, counting the rows held first and then the incoming ones, as a copy."""
        held = self.kept
        if held is None or not len(held):
            return incoming.take(picks)
        if isinstance(held, Batch) and isinstance(incoming, Batch) and _dense(held):
            return take_from_both(held, incoming, picks)  # type: ignore[return-value]  # R is Batch here
        return self._concat([held, incoming]).take(picks)


def _dense(rows: Batch) -> bool:
    return not isinstance(rows.x, Csr)


def take_from_both(held: Batch, incoming: Batch, picks: NDArray[np.int64]) -> Batch:
    """Do it for dense rows, in one pass."""
    x = np.empty((len(picks), held.width), np.float32)
    gather_two(held.x, incoming.x, picks, x)
    early = picks < len(held)
    place = np.where(early, picks, picks - len(held))
    columns: list[Floats | None] = []
    for mine, theirs in ((held.y, incoming.y), (held.weight, incoming.weight)):
        if mine is None or theirs is None:
            columns.append(None)
        else:
            column = np.empty(len(picks), np.float32)
            column[early] = mine[place[early]]
            column[~early] = theirs[place[~early]]
            columns.append(column)
    return Batch(x, columns[0], columns[1])


def given_out(order: Order, shape: Shape, epoch: int, *, part: SplitPart | None, count: Counted) -> int:
    """Count the rows that an order with a mixer gives out to a worker, without reading any."""
    carried = handed_on(order, shape, epoch - 1, part=part, count=count) if order.facts.carries and epoch > 0 else 0
    return sum(len(mix.picks) for mix in _mixed(order, shape, epoch, carried, part, lambda window: window.rows))


def handed_on(order: Order, shape: Shape, epoch: int, *, part: SplitPart | None, count: Counted) -> int:
    """Return how many rows an epoch hands on to the next, without reading any; ``count`` says a window's rows."""
    kept = 0
    for mix in _mixed(order, shape, epoch, 0, part, count):
        kept = len(mix.keeps)
    return kept


def _mixed(
    order: Order, shape: Shape, epoch: int, carried: int, part: SplitPart | None, count: Counted
) -> Iterator[Mix]:
    mixer = order.mixer(mixed_shape(shape, part), epoch, carried)
    windows: Any = list(order.windows(shape, epoch))
    for window in windows:
        assert mixer is not None
        yield mixer.step(count(window), last=window is windows[-1])


@kernel
def gather_two(first: Floats, second: Floats, picks: NDArray[np.int64], out: Floats) -> None:
    """Copy rows by their places in the first array followed by the second."""
    for i in range(len(picks)):
        p = picks[i]
        if p < len(first):
            for j in range(out.shape[1]):
                out[i, j] = first[p, j]
        else:
            for j in range(out.shape[1]):
                out[i, j] = second[p - len(first), j]


def gather_two_reference(first: Floats, second: Floats, picks: NDArray[np.int64], out: Floats) -> None:
    """Say what `gather_two` does."""
    out[:] = np.concatenate([first, second])[picks]


@kernel
def replace_rows(held: Floats, incoming: Floats, places: NDArray[np.int64], picks: NDArray[np.int64]) -> None:
    """Overwrite rows of the buffer with incoming ones."""
    for i in range(len(places)):
        for j in range(held.shape[1]):
            held[places[i], j] = incoming[picks[i], j]


def replace_rows_reference(held: Floats, incoming: Floats, places: NDArray[np.int64], picks: NDArray[np.int64]) -> None:
    """Say what `replace_rows` does."""
    held[places] = incoming[picks]
