"""The demo's data: rows of 28 features stored by label, all negatives first, written in bounded memory.

A row's label is the sign of a hidden linear score plus noise. Both are symmetric about zero, so turning a row of the
wrong label round gives one of the right label: no row is made in vain, and each label's rows are as if drawn so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from penstock import seeds
from penstock.events import Advanced, Finished, Started, Stream

if TYPE_CHECKING:
    import pyarrow as pa

WIDTH = 28
ROW_BYTES = 4 * WIDTH + 1
# Half as strong as the score, which leaves 1 - atan(1/2)/π = 85.2 % of the labels to be told.
_NOISE = 0.5
_CHUNK = 65_536


def write_clustered(
    path: str | os.PathLike[str], rows: int, *, seed: int, part: str = "train", stream: Stream | None = None
) -> int:
    """Write so many rows in the fast layout, stored by label, and return the file's size.

    Parameters
    ----------
    path : path
        The Arrow file to make.
    rows : int
        How many; half of each label.
    seed : int
        Of all chance; the hidden score depends on it, too.
    part : str
        Another word gives other rows with the same hidden score, for a test set.
    stream : Stream, optional
        Hears how far it is.

    Examples
    --------
    >>> write_clustered("demo.arrow", 1000, seed=0) > 1000 * ROW_BYTES
    True
    """
    import pyarrow as pa

    from penstock.blocks.conversion import convert

    stream = stream or Stream()
    batches = _chunks(rows, seed=seed, part=part)
    first = next(batches)

    def told() -> Iterator[pa.RecordBatch]:
        for batch in chain([first], batches):
            stream.emit(Advanced("make rows", len(batch)))
            yield batch

    stream.emit(Started("make rows", rows, "rows"))
    made = convert(pa.RecordBatchReader.from_batches(first.schema, told()), path, label="label")
    stream.emit(Finished("make rows"))
    return made.bytes


def _chunks(rows: int, *, seed: int, part: str) -> Iterator[pa.RecordBatch]:
    from penstock.parallel import in_order

    negatives = rows // 2
    starts = [*range(0, negatives, _CHUNK), *range(negatives, rows, _CHUNK)]

    def make(index: int) -> pa.RecordBatch:
        start = starts[index]
        stop = min(start + _CHUNK, rows if start >= negatives else negatives)
        return _rows(stop - start, positive=start >= negatives, seed=seed, place=(part, index))

    return in_order(make, range(len(starts)), threads=2)


def _rows(count: int, *, positive: bool, seed: int, place: tuple[str, int]) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    teacher = seeds.generator(seed, "demo", "teacher").standard_normal(WIDTH, np.float32)
    teacher /= np.linalg.norm(teacher)
    chance = seeds.generator(seed, "demo", *place)
    x = chance.standard_normal((count, WIDTH), np.float32)
    score = x @ teacher + np.float32(_NOISE) * chance.standard_normal(count, np.float32)
    x[(score > 0) != positive] *= -1
    features = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), WIDTH)
    return pa.record_batch({"features": features, "label": pa.array(np.full(count, positive, np.int8))})
