"""What messages call a row that is being learned from: its number in the data, whatever shuffled it.

A window knows where its rows came from. Rows that a mixer held back are looked for in the data once more, which is
done for an error alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing

import numpy as np

from penstock.batch import Batch, Csr
from penstock.blocks.base import row_place
from penstock.blocks.features import Encoder
from penstock.loader.holdout import SplitPart
from penstock.loader.loader import Loader
from penstock.loader.row_forms import Scaling
from penstock.loader.windows import Feed, LoadedWindow


class CurrentWindow:
    """Remembers which window of which loader is in use, so that an error can name a row of the data."""

    def __init__(self) -> None:
        self._loader: Loader[Batch] | None = None
        self._window: LoadedWindow[Batch] | None = None

    def follow(self, loader: Loader[Batch], epoch: int) -> Iterator[Batch]:
        """Yield an epoch's batches, a window each."""
        return self._batches(loader, loader.epoch(epoch))

    def follow_stored(self, loader: Loader[Batch], part: SplitPart | None) -> Iterator[Batch]:
        """Yield the rows that a part keeps in stored order, as `Loader.stored` reads them."""
        return self._batches(loader, loader.stored(part))

    def _batches(self, loader: Loader[Batch], windows: Generator[LoadedWindow[Batch], None, None]) -> Iterator[Batch]:
        self._loader = loader
        with closing(windows):
            for window in windows:
                self._window = window
                if len(window.batch):  # blocks whose rows are estimated may turn out to have none
                    yield window.batch
        self._window = None

    def name(self, batch: Batch, position: int) -> str:
        """Name a row of the batch in use by its number in the data."""
        loader, window = self._loader, self._window
        if loader is None or window is None or window.batch is not batch:
            return f"row {position} of the batch"
        place = window.locate(position) if window.located else find_bad(loader, batch, position)
        if place is None:
            return f"a row of {loader.source.name}"
        name, row = row_place(loader.source, *place)
        return f"row {row} of {name}"


def find_bad(loader: Loader[Batch], batch: Batch, position: int) -> tuple[int, int] | None:
    """Return the block and row of the first row in the data that is not finite in the feature in which this one is."""
    feature, value = _first_bad(batch.slice(position, position + 1))
    if feature < 0:
        return None
    assert isinstance(loader.encoder, Encoder)
    feed = Feed.of(loader.source, loader.encoder, Scaling.none())
    with closing(feed.decoder):
        for block in range(len(feed.block_rows)):
            rows = feed.decoder.decode(block)
            x = rows.x
            if isinstance(x, Csr):
                entries = np.flatnonzero((x.indices == feature) & _alike(x.values, value))
                found = np.searchsorted(x.indptr, entries[:1].astype(np.uint64), side="right") - 1
            else:
                found = np.flatnonzero(_alike(x[:, feature], value))
            if len(found):
                return block, int(found[0])
    return None


def _first_bad(row: Batch) -> tuple[int, float]:
    values = row.x.values if isinstance(row.x, Csr) else row.x[0]
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):
        return -1, 0.0
    at = int(bad[0])
    return int(row.x.indices[at]) if isinstance(row.x, Csr) else at, float(values[at])


def _alike(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]], value: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.isnan(values) if np.isnan(value) else values == value
