"""A linear model in its directory: predictions for data of any size within the memory given, and single weights.

Features of rows that are not in the prepared copy are looked up in the index map. Rows are scored many at a time, so that each
part of the map and each page is read once for all of them. Features that the model has never met count nothing.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.bigmodel.checkpoint import copy_directory, read_state
from penstock.bigmodel.chunks import Chunker, PositionScale
from penstock.bigmodel.index_map import IndexMap
from penstock.bigmodel.page_trainer import BESIDE_PAGES, PageTrainer
from penstock.bigmodel.pages import ABSENT
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.rewrite import FeatureLayout
from penstock.bigmodel.storage import Storage
from penstock.bigmodel.store import PageStore
from penstock.blocks.base import BlockSource, one_piece_open
from penstock.budget import Budget, give_back, show_bytes
from penstock.closing import Closing
from penstock.columns.base import UnseenValues
from penstock.columns.pairs import Pairs
from penstock.columns.recipe import Recipe
from penstock.columns.summary import column_lines, column_summaries
from penstock.errors import UsageError
from penstock.evaluation import both, measured_recipe, unmeasured
from penstock.linear import EncodedModel, Scored, encoded
from penstock.loader.decode import divided, unit_bytes
from penstock.measures import OnScores
from penstock.measuring import measures_for
from penstock.model import Description
from penstock.parallel import in_order
from penstock.sgd import kernels, losses
from penstock.sgd.loop import EpochStats, Spec
from penstock.sgd.losses import loss_of

_LEAST = 1 << 20
_COPIES = 6
"""What scoring holds of its rows, as a multiple of their bytes: themselves, what the index map sorts to look features up (2.3),
and the entries of known features with their positions, scaled values and slots (2.1)."""


class Scorer(Closing):
    """Scores rows by a model on disk, whose pages are in the trainer's pool; ``memory`` is for rows and what is looked up for them."""

    def __init__(self, folder: str | os.PathLike[str], trainer: PageTrainer, *, memory: int) -> None:
        self._trainer = trainer
        self._map = IndexMap.open(folder)
        self._memory = memory

    def batches(
        self, source: BlockSource, recipe: Recipe, keep: Sequence[str] = ()
    ) -> Generator[tuple[pa.RecordBatch, Batch], None, None]:
        """Yield a source's rows in stored order, encoded, with the columns to keep beside them; many blocks together."""
        columns = list(dict.fromkeys([*recipe.columns, *keep]))
        beside = unit_bytes(source, columns) if divided(source) else 0
        most = max(_LEAST, (self._memory - beside) // _COPIES)

        def read(block: int) -> tuple[pa.RecordBatch, Batch]:
            rows = source.read(block, columns)
            return rows.select(list(keep)), encoded(recipe, source, block, rows, wide=True)

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

    def scores(self, batch: Batch, recipe: Recipe | None = None) -> Floats:
        """Return the scores of rows whose indices are the data's own; a ``recipe`` counts those with unknown features."""
        return self._trainer.scores(self.dots(batch, recipe))

    def dots(self, batch: Batch, recipe: Recipe | None = None) -> Floats:
        """Return the rows' dot products, before the weights' common factor and the intercept."""
        x = batch.x
        assert isinstance(x, Csr)
        at = self._map.positions(x.indices.astype(np.uint64, copy=False))
        kept = at != ABSENT
        running = np.zeros(len(at) + 1, np.uint64)
        np.cumsum(kept, out=running[1:])
        ends = running[x.indptr.astype(np.int64)]
        known = Batch(Csr(ends, at[kept], x.values[kept], 0))
        if recipe is not None and recipe.unseen is not None and not kept.all():
            _count_unknown(recipe, recipe.unseen, int(np.count_nonzero(np.diff(ends) != np.diff(x.indptr))))
        trainer = self._trainer
        shift, scale = int(trainer.shift), trainer.scale
        chunker = Chunker(iter([known]), trainer.pool, shift=shift, learning=False, scale=scale)
        return np.concatenate([np.zeros(0, np.float32), *map(trainer.dots, chunker.each())])

    def measure(self, source: BlockSource, recipe: Recipe, *, on_scores: OnScores | None = None) -> EpochStats:
        """Return the loss and score on a source's rows; ``on_scores`` hears the scores of all of them."""
        loss, totals = losses.find_loss(self._trainer.spec.loss), kernels.Totals(on_scores)
        with closing(self.batches(source, recipe)) as blocks:
            for _, batch in blocks:
                assert batch.y is not None  # the recipe has a label
                totals.start(batch)
                weight = np.zeros(0, np.float32) if batch.weight is None else batch.weight
                kernels.add_scores(self.scores(batch, recipe)[:, None], batch.y, weight, loss=loss, totals=totals)
        return self._trainer.stats(totals)

    def close(self) -> None:
        """Close the map; the pool stays."""
        self._map.close()


def _count_unknown(recipe: Recipe, unseen: UnseenValues, rows: int) -> None:
    """Count rows with features that training did not see, where the data name features themselves."""
    for part in recipe.parts:
        if isinstance(part, Pairs):
            unseen.count_features(part.columns[0], rows)


def _join(held: list[tuple[pa.RecordBatch, Batch]]) -> tuple[pa.RecordBatch, Batch]:
    """Return blocks as one and empty the list: the parts are not to stay in memory while the whole is scored."""
    rows = pa.concat_batches([rows for rows, _ in held]) if held[0][0].num_columns else held[0][0]
    batch = Batch.concat([batch for _, batch in held])
    held.clear()
    return rows, batch


_ROWS_SHARE = 2
"""Of the memory, for rows being scored: one part in so many."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What a checkpoint in a model's directory says."""

    header: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Saved:
        """Read the checkpoint of a linear model.

        Raises
        ------
        ModelFileError
            There is none, or it is something else.
        """
        arrays, header = read_state(folder, kind="linear")
        return cls(header, arrays)

    @property
    def layout(self) -> FeatureLayout:
        """Where features lie."""
        return FeatureLayout.from_dict(self.header["layout"])

    @property
    def storage(self) -> Storage:
        """How the model lies on disk."""
        return Storage(**self.header["storage"])

    @property
    def scale(self) -> PositionScale | None:
        """What values of features are multiplied by."""
        factors = self.arrays.get("scale")
        return None if factors is None else PositionScale(factors)

    def store(self, folder: str | os.PathLike[str], *, writable: bool) -> PageStore:
        """Open the pages."""
        storage = self.storage
        return PageStore(
            folder,
            pages=storage.pages(self.layout.features),
            page_floats=storage.page_floats,
            saved=self.arrays,
            writable=writable,
            staging=self.storage.staging(self.layout.features),
        )


@dataclass(frozen=True, slots=True)
class TrainedPages:
    """What training leaves: the model's directory, and what came of its pages.

    Attributes
    ----------
    folder : Path
        The model's directory.
    traffic : dict
        ``hits`` and ``misses``: pages wanted by chunks that were in memory, and that had to be read; nothing where all fit.
        ``requests``: pages read or written. ``bytes_read`` and ``bytes_written`` of pages.
    """

    folder: Path
    traffic: dict[str, int]


class BigLinearModel(EncodedModel):
    """A linear model whose weights are on disk.

    Parameters
    ----------
    folder : path
        The model's directory.
    memory : str or int
        What scoring may take: rows, pages and the map's parts in use.
    """

    def __init__(self, folder: str | os.PathLike[str], *, memory: str | int = "1GB") -> None:
        self.folder = Path(folder)
        saved = Saved.read(folder)
        header, self.layout, self.storage = saved.header, saved.layout, saved.storage
        self.kind = str(header["kind"])
        self.recipe = Recipe.from_dict(header["encoder"])
        self.config: Mapping[str, Any] = header["config"]
        self._history = list(header["history"])
        self.metrics: Mapping[str, Any] = header.get("metrics", {})
        self.fingerprint = str(header["fingerprint"])
        self._finished = bool(header.get("done", True))
        total = Budget.parse(memory).resolve(self.storage.model_bytes(self.layout.features))
        self._memory = total // _ROWS_SHARE
        with ExitStack() as stack:
            store = stack.enter_context(saved.store(folder, writable=False))
            pool = PagePool(store, memory=max(store.page_bytes, total - total // _ROWS_SHARE))
            shift, optimizer = self.storage.shift, self.storage.optimizer
            self._trainer = PageTrainer(
                Spec(loss_of(self.kind).name), pool, shift=shift, optimizer=optimizer, scale=saved.scale
            )
            self._trainer.restore({name: saved.arrays.get(f"best.{name}", saved.arrays[name]) for name in BESIDE_PAGES})
            self._scorer = stack.enter_context(Scorer(folder, self._trainer, memory=self._memory))
            self._open = stack.pop_all()

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        return self._history

    @property
    def finished(self) -> bool:
        return self._finished

    @property
    def intercept(self) -> float:
        return float(self._trainer.intercept[0])

    def weights(self, indices: Any) -> Floats:
        """Return the weights of some features by their indices, for values as they are in the data; zero for those that never
        occurred.
        """
        wanted = np.asarray(indices)
        if wanted.shape == (0,):  # NumPy takes an empty list for one of floats
            return np.zeros(0, np.float32)
        if wanted.dtype.kind not in "iu" or wanted.ndim != 1:
            raise UsageError(f"indices are a list of whole numbers, not {wanted.dtype} of {wanted.ndim} dimensions")
        if len(wanted) and int(wanted.min()) < 0:
            raise UsageError(f"index {int(wanted.min())} is negative; features are numbered from 0")
        rows = Csr(
            np.arange(len(wanted) + 1, dtype=np.uint64), wanted.astype(np.uint64), np.ones(len(wanted), np.float32), 0
        )
        return self._trainer.factor * self._scorer.dots(Batch(rows))

    def scores(self, batch: Batch) -> Floats:
        """Return a score a row; indices are the data's own."""
        return self._scorer.scores(batch)

    def scored(self, source: BlockSource, recipe: Recipe, *, keep: Sequence[str] = ()) -> Generator[Scored, None, None]:
        with closing(self._scorer.batches(source, recipe, keep)) as found:
            for rows, batch in found:
                yield rows, batch, self._scorer.scores(batch, recipe)

    def evaluate(
        self,
        source: BlockSource,
        *,
        label: str | None = None,
        memory: str | int | None = None,
        on_scores: OnScores | None = None,
    ) -> dict[str, Any]:
        """Return the loss, all measures and the number of rows; see `penstock.model.Model`.

        Pages and rows take what the model was opened with; an eighth of ``memory`` is for ranks of scores.
        """
        recipe, loss = measured_recipe(self.recipe, source, label), loss_of(self.kind).name
        measures = measures_for(recipe, loss, self._memory if memory is None else memory)
        stats = self._scorer.measure(source, recipe, on_scores=both(measures.add, on_scores))
        if not stats.rows:
            raise unmeasured(recipe, source.name)
        return {"loss": stats.loss, **measures.figures(), stats.metric: stats.score, "rows": stats.rows}

    def describe(self, *, most: int | None = None) -> Description:
        """Say what is in the model; its weights are too many to sort, and are read singly."""
        features, size = self.layout.features, self.storage.model_bytes(self.layout.features)
        columns = column_summaries(self.recipe)
        values = {
            "features": features,
            "dimension": self.layout.dimension,
            "hot_features": self.layout.hot,
            "optimizer": self.storage.optimizer,
            "model_bytes": size,
            "intercept": [self.intercept],
            "columns": [asdict(each) for each in columns],
            "left_out": dict(self.recipe.left_out),
        }
        lines = (
            f"intercept {self.intercept:.5g}; optimizer {self.storage.optimizer}, {len(self.history)} epochs",
            f"weights are read by the indices of their features: penstock.load({str(self.folder)!r}).weights([…])",
            *column_lines(columns, self.recipe.left_out, most=most),
        )
        return Description.of(self, f"{features:,} features, {show_bytes(size)} on disk", values=values, lines=lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Copy the model's directory to another one."""
        copy_directory(self.folder, path)

    def close(self) -> None:
        self._open.close()
