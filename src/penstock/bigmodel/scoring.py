"""Scores of rows that are not in the prepared copy: features are looked up in the index map, pages brought in order.

Rows are scored many at a time, as many as the memory has room for, so that each part of the map and each page is read
once for all of them. Features that the model has never met count nothing.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa

from penstock.batch import Batch, Csr, Floats
from penstock.bigmodel.chunks import Chunker
from penstock.bigmodel.hogwild import Learner
from penstock.bigmodel.index_map import ABSENT, IndexMap
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.closing import Closing
from penstock.linear import encoded
from penstock.parallel import in_order
from penstock.sgd import kernels, losses

_LEAST = 1 << 20


class Scorer(Closing):
    """Scores rows by a model on disk.

    Parameters
    ----------
    folder : path
        The model's directory.
    learner : Learner
        Has the pool of pages.
    memory : int
        Bytes for rows and what is looked up for them.
    """

    def __init__(self, folder: str | os.PathLike[str], learner: Learner, *, memory: int) -> None:
        self._learner = learner
        self._map = IndexMap.open(folder)
        # Of rows as they came, as they are encoded, the places of their features, and those once more in the pool.
        self._most = max(_LEAST, memory // 4)

    def batches(
        self, source: BlockSource, encoder: Encoder, columns: Sequence[str]
    ) -> Generator[tuple[pa.RecordBatch, Batch], None, None]:
        """Yield a source's rows in stored order with their encoded form, many blocks together."""

        def read(block: int) -> tuple[pa.RecordBatch, Batch]:
            rows = source.read(block, columns)
            return rows, encoded(encoder, source, block, rows, wide=True)

        held: list[tuple[pa.RecordBatch, Batch]] = []
        size = 0
        with closing(in_order(read, range(len(source.block_rows)), threads=source.threads)) as blocks:
            for rows, batch in blocks:
                if held and size + batch.nbytes > self._most:
                    yield _joined(held)
                    held, size = [], 0
                held.append((rows, batch))
                size += batch.nbytes
        if held:
            yield _joined(held)

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of rows whose indices are the data's own."""
        return self._learner.scores(self.dots(batch))

    def dots(self, batch: Batch) -> Floats:
        """Return the rows' dot products, before the weights' common factor and the intercept."""
        x = batch.x
        assert isinstance(x, Csr)
        at = self._map.positions(x.indices.astype(np.uint64, copy=False))
        kept = at != ABSENT
        running = np.zeros(len(at) + 1, np.uint64)
        np.cumsum(kept, out=running[1:])
        known = Batch(Csr(running[x.indptr.astype(np.int64)], at[kept], x.values[kept], 0))
        chunker = Chunker(iter([known]), self._learner.pool, shift=int(self._learner.shift), learning=False)
        dots = [np.zeros(0, np.float32)]
        while (chunk := chunker.make()) is not None:
            dots.append(self._learner.dots(chunk))
            chunker.release(chunk)
        return np.concatenate(dots)

    def evaluate(self, source: BlockSource, encoder: Encoder, loss: str) -> dict[str, float]:
        """Return the loss, accuracy or r2 of a source's rows, and how many there are."""
        measure, totals = losses.named(loss), kernels.Totals()
        with closing(self.batches(source, encoder, encoder.columns)) as found:
            for _, batch in found:
                assert batch.y is not None  # the encoder has a label
                totals.start(batch)
                weight = np.zeros(0, np.float32) if batch.weight is None else batch.weight
                kernels.add_scores(self.scores(batch)[:, None], batch.y, weight, loss=measure, totals=totals)
        return {"loss": totals.loss(), measure.metric: totals.score(measure), "rows": totals.rows}

    def close(self) -> None:
        """Close the map; the pool stays."""
        self._map.close()


def _joined(held: list[tuple[pa.RecordBatch, Batch]]) -> tuple[pa.RecordBatch, Batch]:
    return pa.concat_batches([rows for rows, _ in held]), Batch.concat([batch for _, batch in held])
