"""A trained linear model: weights, what it knows of the columns, how it came to be; saving and scoring.

The weights are in the features' own units whatever scaling training used, so a model needs nothing but its
file. Scoring streams: predictions of a path of any size are written as they are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.blocks.reading import require_columns
from penstock.config import LOSSES
from penstock.errors import DataError, ModelFileError
from penstock.events import Advanced, Finished, Started, Stream
from penstock.loader.decode import row_number
from penstock.modelfile import atomic_path, read_model, require_other, write_model
from penstock.parallel import in_order
from penstock.sgd.model import Weights


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A linear model that can be saved, loaded and asked.

    Attributes
    ----------
    kind : str
        logistic, svm, linear or softmax.
    weights : Weights
        In the features' own units.
    encoder : Encoder
        How columns become features, and labels targets.
    config : dict
        The hyper-parameters.
    history : list of dict
        A metric row for each epoch.
    fingerprint : str
        Of the data it was trained on.
    metrics : dict
        Final figures, such as the test accuracy.
    """

    kind: str
    weights: Weights
    encoder: Encoder
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    fingerprint: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> NDArray[Any] | None:
        """The class labels in ascending order; None for a regression."""
        return None if self.encoder.labels is None else np.array(self.encoder.labels.classes)

    def scores(self, batch: Batch) -> Floats:
        """Return a score a row, or for softmax one a row and class."""
        scores = self.weights.scores(batch)
        return scores if self.kind == "softmax" else scores[:, 0]

    def decide(self, scores: Floats) -> NDArray[Any]:
        """Turn scores into classes, or into numbers for a regression."""
        return decide(self.kind, self.encoder, scores)

    def probabilities(self, scores: Floats) -> Floats | None:
        """Turn scores into a probability for each class; None for models that have none."""
        return probabilities(self.kind, scores)

    def block_scores(self, source: BlockSource) -> Iterator[Floats]:
        """Yield, block by block in stored order, the scores of each row."""
        encoder = self.encoder.for_schema(source.schema, place=source.name)

        def score(block: int) -> Floats:
            return self.scores(encoded(encoder, source, block, source.read(block, encoder.columns)))

        return in_order(score, range(len(source.block_rows)), threads=source.threads)

    def predictions(self, source: BlockSource, *, keep: Sequence[str] = ()) -> Generator[pa.RecordBatch, None, None]:
        """Yield, block by block in stored order, the prediction of each row (and columns to keep beside it)."""
        require_columns(source.schema, keep, place=source.name)
        encoder = self.encoder.for_schema(source.schema, place=source.name)
        columns = list(dict.fromkeys([*encoder.columns, *keep]))

        def score(block: int) -> pa.RecordBatch:
            rows = source.read(block, columns)
            scores = self.scores(encoded(encoder, source, block, rows))
            return predicted(self.kind, self.encoder, scores, rows, keep)

        return in_order(score, range(len(source.block_rows)), threads=source.threads)

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

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as one safetensors file with a JSON header."""
        write_model(path, self.tensors(), self.header())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearModel:
        """Read a model that `save` wrote."""
        return cls.of(*read_model(path), place=str(path))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the weights by name: ``coef`` with a row for each output, and ``intercept``."""
        return {"coef": self.weights.coef, "intercept": self.weights.intercept}

    def header(self) -> dict[str, Any]:
        """Return all but the weights as plain JSON."""
        return {
            "kind": self.kind,
            "encoder": self.encoder.to_dict(),
            "features": self.encoder.names,
            "classes": None if self.encoder.labels is None else list(self.encoder.labels.classes),
            "config": dict(self.config),
            "history": [dict(row) for row in self.history],
            "fingerprint": self.fingerprint,
            "metrics": dict(self.metrics),
        }

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]], header: Mapping[str, Any], *, place: str) -> LinearModel:
        """Put together what `tensors` and `header` gave; ``place`` is what messages call where they were."""
        try:
            weights = Weights.zeros(tensors["coef"].shape[1], tensors["coef"].shape[0])
            weights.coef[:] = tensors["coef"]
            weights.intercept[:] = tensors["intercept"]
            encoder = Encoder.from_dict(header["encoder"])
            if header["kind"] not in LOSSES:
                raise KeyError(header["kind"])
            return cls(
                header["kind"],
                weights,
                encoder,
                header["config"],
                header["history"],
                header["fingerprint"],
                header["metrics"],
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ModelFileError(
                f"{place} is a Penstock file but not a linear model: {error!r}; a checkpoint is continued with --resume"
            ) from error


def decide(kind: str, encoder: Encoder, scores: Floats) -> NDArray[Any]:
    """Turn the scores of a kind of model into classes, or into numbers for a regression."""
    if encoder.labels is None:
        return scores
    return encoder.labels.decode(scores.argmax(axis=1) if kind == "softmax" else scores)


def probabilities(kind: str, scores: Floats) -> Floats | None:
    """Turn the scores of a kind of model into a probability for each class; None where it has none."""
    if kind == "softmax":
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        share: Floats = raised / raised.sum(axis=1, keepdims=True)
        return share
    if kind == "logistic":
        positive = 1 / (1 + np.exp(-np.clip(scores.astype(np.float64), -500, 500)))
        return np.column_stack([1 - positive, positive]).astype(np.float32)
    return None


def predicted(kind: str, encoder: Encoder, scores: Floats, rows: pa.RecordBatch, keep: Sequence[str]) -> pa.RecordBatch:
    """Return rows' predictions, with probabilities where there are any, and the columns to keep beside them."""
    out = {name: rows.column(name) for name in keep}
    out["prediction"] = pa.array(decide(kind, encoder, scores))
    chances = probabilities(kind, scores)
    if chances is not None and encoder.labels is not None:
        names = [f"probability_{c}" for c in encoder.labels.classes]
        out |= {name: pa.array(np.ascontiguousarray(chances[:, k])) for k, name in enumerate(names)}
    return pa.record_batch(out)


def write_predictions(
    make: Callable[[], Generator[pa.RecordBatch, None, None]],
    source: BlockSource,
    path: str | os.PathLike[str],
    *,
    stream: Stream,
) -> int:
    """Write the predictions of a source to a Parquet file as they are made, and return how many there are."""
    require_other(path, source.name)
    stream.emit(Started("predict", int(source.block_rows.sum()), "rows"))
    count = 0
    with atomic_path(path) as temporary:
        with ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for batch in stack.enter_context(closing(make())):
                writer = writer or stack.enter_context(pq.ParquetWriter(temporary, batch.schema))
                writer.write_batch(batch)
                count += len(batch)
                stream.emit(Advanced("predict", len(batch)))
        if writer is None:
            pq.write_table(pa.table({"prediction": pa.array([], pa.float32())}), temporary)
    stream.emit(Finished("predict"))
    return count


def encoded(encoder: Encoder, source: BlockSource, block: int, rows: pa.RecordBatch, *, wide: bool = False) -> Batch:
    """Return a block's rows for scoring; what cannot be scored is refused by its row in the data."""
    try:
        batch = encoder.encode(rows, wide=wide)
        encoder.require_finite(batch)
    except DataError:
        batch = encoder.encode(rows, first_row=row_number(source, block, 0), wide=wide)
        encoder.require_finite(batch, first_row=row_number(source, block, 0))
    return batch
