"""Rows kept back from window to window, for the orders whose buffer outlives a window.

A mixer decides by places; here the rows move. The buffer is updated where it lies, except at the end of an
epoch, when what remains of it is small or goes to the next epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.loader.windows import LoadedWindow
from penstock.native import kernel
from penstock.shuffle import Mixer


class Mixing:
    """Passes windows through a mixer; afterwards ``kept`` holds what the next epoch begins with."""

    def __init__(self, mixer: Mixer, carried: Batch | None) -> None:
        self._mixer = mixer
        self.kept = carried

    def run(self, windows: Iterable[LoadedWindow], total: int) -> Iterator[LoadedWindow]:
        """Yield, for each of ``total`` windows that come in, the rows that go out."""
        for count, window in enumerate(windows, 1):
            last = count == total
            mix = self._mixer.step(len(window.batch), last=last)
            out = select(self.kept, window.batch, mix.picks)
            self.kept = self._keep(window.batch, mix.keeps, last=last)
            # Which stored row stands where is no longer known without simulating the mixer.
            yield LoadedWindow(window.index, out, window.blocks, window.block_rows, None, located=False)

    def _keep(self, incoming: Batch, keeps: NDArray[np.int64], *, last: bool) -> Batch | None:
        held = self.kept
        if not last and held is not None and len(held) == len(keeps) and not isinstance(held.x, Csr):
            assert not isinstance(incoming.x, Csr)  # rows of one source are of one kind
            changed = np.flatnonzero(keeps >= len(held))
            replace_rows(held.x, incoming.x, changed, keeps[changed] - len(held))
            for mine, theirs in ((held.y, incoming.y), (held.weight, incoming.weight)):
                if mine is not None and theirs is not None:
                    mine[changed] = theirs[keeps[changed] - len(held)]
            return held
        return select(held, incoming, keeps)


def select(held: Batch | None, incoming: Batch, picks: NDArray[np.int64]) -> Batch:
    """Return rows by their places, counting the rows held first and then the incoming ones, as a copy."""
    if held is None or not len(held):
        return incoming.take(picks)
    if isinstance(held.x, Csr) or isinstance(incoming.x, Csr):
        return Batch.concat([held, incoming]).take(picks)
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
