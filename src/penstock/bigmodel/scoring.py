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
from penstock.bigmodel.index_map import ABSENT, IndexMap
from penstock.bigmodel.page_trainer import PageTrainer
from penstock.blocks.base import BlockSource, one_piece_open
from penstock.blocks.features import Encoder
from penstock.budget import give_back
from penstock.closing import Closing
from penstock.linear import encoded
from penstock.loader.decode import divided, unit_bytes
from penstock.measures import OnScores
from penstock.parallel import in_order
from penstock.sgd import kernels, losses
from penstock.sgd.loop import EpochStats

_LEAST = 1 << 20
_COPIES = 6
"""What scoring holds of its rows, as a multiple of their bytes: themselves, what the index map sorts to look features up (2.3),
and the entries of known features with their positions, scaled values and slots (2.1)."""


class Scorer(Closing):
    """Scores rows by a model on disk.

    Parameters
    ----------
    folder : path
        The model's directory.
    trainer : PageTrainer
        Has the pool of pages.
    memory : int
        Bytes for rows and what is looked up for them.
    """

    def __init__(self, folder: str | os.PathLike[str], trainer: PageTrainer, *, memory: int) -> None:
        self._trainer = trainer
        self._map = IndexMap.open(folder)
        self._memory = memory

    def batches(
        self, source: BlockSource, encoder: Encoder, keep: Sequence[str] = ()
    ) -> Generator[tuple[pa.RecordBatch, Batch], None, None]:
        """Yield a source's rows in stored order, encoded, with the columns to keep beside them; many blocks together."""
        columns = list(dict.fromkeys([*encoder.columns, *keep]))
        beside = unit_bytes(source, columns) if divided(source) else 0
        most = max(_LEAST, (self._memory - beside) // _COPIES)

        def read(block: int) -> tuple[pa.RecordBatch, Batch]:
            rows = source.read(block, columns)
            return rows.select(list(keep)), encoded(encoder, source, block, rows, wide=True)

        give_back()  # what training, or another pass over the rows, has left
        held: list[tuple[pa.RecordBatch, Batch]] = []
        size = 0
        with (
            one_piece_open(source),
            closing(in_order(read, range(len(source.block_rows)), threads=source.threads)) as blocks,
        ):
            for rows, batch in blocks:
                if held and size + rows.nbytes + batch.nbytes > most:
                    yield _join(held)
                    size = 0
                held.append((rows, batch))
                size += rows.nbytes + batch.nbytes
        if held:
            yield _join(held)

    def scores(self, batch: Batch) -> Floats:
        """Return the scores of rows whose indices are the data's own."""
        return self._trainer.scores(self.dots(batch))

    def dots(self, batch: Batch) -> Floats:
        """Return the rows' dot products, before the weights' common factor and the intercept."""
        x = batch.x
        assert isinstance(x, Csr)
        at = self._map.positions(x.indices.astype(np.uint64, copy=False))
        kept = at != ABSENT
        running = np.zeros(len(at) + 1, np.uint64)
        np.cumsum(kept, out=running[1:])
        known = Batch(Csr(running[x.indptr.astype(np.int64)], at[kept], x.values[kept], 0))
        trainer = self._trainer
        shift, scale = int(trainer.shift), trainer.scale
        chunker = Chunker(iter([known]), trainer.pool, shift=shift, learning=False, scale=scale)
        return np.concatenate([np.zeros(0, np.float32), *map(trainer.dots, chunker.each())])

    def measure(self, source: BlockSource, encoder: Encoder, *, on_scores: OnScores | None = None) -> EpochStats:
        """Return the loss and score on a source's rows; ``on_scores`` hears the scores of all of them."""
        loss, totals = losses.find_loss(self._trainer.spec.loss), kernels.Totals(on_scores)
        with closing(self.batches(source, encoder)) as blocks:
            for _, batch in blocks:
                assert batch.y is not None  # the encoder has a label
                totals.start(batch)
                weight = np.zeros(0, np.float32) if batch.weight is None else batch.weight
                kernels.add_scores(self.scores(batch)[:, None], batch.y, weight, loss=loss, totals=totals)
        return self._trainer.stats(totals)

    def close(self) -> None:
        """Close the map; the pool stays."""
        self._map.close()


def _join(held: list[tuple[pa.RecordBatch, Batch]]) -> tuple[pa.RecordBatch, Batch]:
    """Return blocks as one and empty the list: the parts are not to stay in memory while the whole is scored."""
    rows = pa.concat_batches([rows for rows, _ in held]) if held[0][0].num_columns else held[0][0]
    batch = Batch.concat([batch for _, batch in held])
    held.clear()
    return rows, batch
