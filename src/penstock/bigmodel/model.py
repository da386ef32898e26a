"""A linear model in its directory: predictions for data of any size, within the memory given, and single weights."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.bigmodel.hogwild import Learner
from penstock.bigmodel.pool import Pool
from penstock.bigmodel.rewrite import Layout
from penstock.bigmodel.scoring import Scorer
from penstock.bigmodel.storage import Storage
from penstock.bigmodel.store import PageStore
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.blocks.reading import require_columns
from penstock.budget import Budget
from penstock.closing import Closing
from penstock.config import LOSSES
from penstock.errors import ModelFileError, UsageError
from penstock.events import Stream
from penstock.linear import predicted, probabilities, write_predictions
from penstock.modelfile import read_model
from penstock.sgd.loop import Spec
from penstock.training import default_label

STATE = "state.penstock"
FORMAT = 1
# Of the memory, for rows being scored.
_ROWS_SHARE = 2


def read_state(
    folder: str | os.PathLike[str], *, kind: str | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the header of the last checkpoint in a model's directory: of ``kind``, linear or factor.

    Raises
    ------
    ModelFileError
        There is none, it is damaged, or it is of another kind.
    """
    place = Path(folder)
    if not (place / STATE).is_file():
        why = f"it has no {STATE}" if place.is_dir() else "it is a file" if place.exists() else "it does not exist"
        raise ModelFileError(
            f"there is no model in {place}: {why}; name the directory that was given as model_dir or --model-dir, or"
            " train a model there first"
        )
    try:
        arrays, header = read_model(place / STATE)
    except ModelFileError as error:
        if error.__cause__ is None:  # of another program or a newer version, and it says so
            raise
        raise ModelFileError(f"{error}; restore {place} from a copy, or remove it and train anew") from error
    if kind not in (None, header.get("bigmodel")):
        raise ModelFileError(
            f"{place} holds a {header.get('kind')} model, not a {kind} one; choose another directory, or remove that one"
        )
    if int(header.get("format", 0)) > FORMAT:
        raise ModelFileError(f"{place} was written by a newer Penstock; upgrade with: pip install -U penstock")
    return arrays, header


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
    def layout(self) -> Layout:
        """Where features lie."""
        return Layout.from_dict(self.header["layout"])

    @property
    def storage(self) -> Storage:
        """How the model lies on disk."""
        return Storage(**self.header["storage"])

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


class BigLinearModel(Closing):
    """A linear model whose weights are on disk.

    Parameters
    ----------
    folder : path
        The model's directory.
    memory : str or int
        What scoring may take: rows, pages and the map's parts in use.
    """

    def __init__(self, folder: str | os.PathLike[str], *, memory: str | int = "512MB") -> None:
        self.folder = Path(folder)
        saved = Saved.read(folder)
        header, self.layout, self.storage = saved.header, saved.layout, saved.storage
        self.kind = str(header["kind"])
        self.encoder = Encoder.from_dict(header["encoder"])
        self.config: Mapping[str, Any] = header["config"]
        self.history: list[dict[str, Any]] = list(header["history"])
        self.fingerprint = str(header["fingerprint"])
        total = Budget.parse(memory).resolve(self.storage.model_bytes(self.layout.features))
        with ExitStack() as stack:
            store = stack.enter_context(saved.store(folder, writable=False))
            pool = Pool(store, memory=max(store.page_bytes, total - total // _ROWS_SHARE))
            shift, optimizer = self.storage.shift, self.storage.optimizer
            self._learner = Learner(Spec(LOSSES[self.kind]), pool, shift=shift, optimizer=optimizer)
            self._learner.restore(dict(saved.arrays))
            self._scorer = stack.enter_context(Scorer(folder, self._learner, memory=total // _ROWS_SHARE))
            self._open = stack.pop_all()

    @property
    def classes(self) -> NDArray[Any] | None:
        """The class labels in ascending order; None for a regression."""
        return None if self.encoder.labels is None else np.array(self.encoder.labels.classes)

    @property
    def intercept(self) -> float:
        """The intercept."""
        return float(self._learner.intercept[0])

    def weights(self, indices: Any) -> Floats:
        """Return the weights of some features by their indices; zero for those that never occurred."""
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
        return self._learner.factor * self._scorer.dots(Batch(rows))

    def block_scores(self, source: BlockSource) -> Iterator[Floats]:
        """Yield the scores of a source's rows, in stored order, many blocks at a time."""
        encoder = self.encoder.for_schema(source.schema, place=source.name)
        with closing(self._scored(source, encoder, encoder.columns)) as found:
            for _, scores in found:
                yield scores

    def predictions(self, source: BlockSource, *, keep: Sequence[str] = ()) -> Generator[pa.RecordBatch, None, None]:
        """Yield the prediction of each row, in stored order (and columns to keep beside it)."""
        require_columns(source.schema, keep, place=source.name)
        encoder = self.encoder.for_schema(source.schema, place=source.name)
        columns = list(dict.fromkeys([*encoder.columns, *keep]))
        with closing(self._scored(source, encoder, columns)) as found:
            for rows, scores in found:
                yield predicted(self.kind, self.encoder, scores, rows, keep)

    def predict_to(
        self,
        source: BlockSource,
        path: str | os.PathLike[str],
        *,
        keep: Sequence[str] = (),
        stream: Stream | None = None,
    ) -> int:
        """Write the predictions of a source to a Parquet file, and return how many there are."""
        made = partial(self.predictions, source, keep=keep)
        return write_predictions(made, source, path, stream=stream or Stream())

    def probabilities(self, scores: Floats) -> Floats | None:
        """Turn scores into a probability for each class; None for models that have none."""
        return probabilities(self.kind, scores)

    def evaluate(self, source: BlockSource, *, label: str | None = None) -> dict[str, float]:
        """Return the model's loss, accuracy or r2 and the number of rows it was measured on."""
        fitted = self.encoder
        wanted = label or (fitted.label if fitted.label in source.schema.names else default_label(source))
        encoder = replace(fitted, label=wanted or fitted.label, weight=None)
        encoder = encoder.for_schema(source.schema, place=source.name, scored=True)
        return self._scorer.evaluate(source, encoder, LOSSES[self.kind])

    def close(self) -> None:
        """Close the files."""
        self._open.close()

    def _scored(
        self, source: BlockSource, encoder: Encoder, columns: Sequence[str]
    ) -> Generator[tuple[pa.RecordBatch, Floats], None, None]:
        with closing(self._scorer.batches(source, encoder, columns)) as found:
            for rows, batch in found:
                yield rows, self._scorer.scores(batch)
