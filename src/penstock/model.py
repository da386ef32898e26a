"""What every trained model offers, whatever its kind: figures, a description, predictions, measures, saving.

`Model` is the contract; `penstock.testing.models` has its conformance suite, and `penstock.model_kinds` the table of kinds by
which a saved model is opened. A kind makes batches of predictions; the functions here bring them to an array or a file, so
that there is one writer of predictions for all kinds.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.errors import some_of
from penstock.events import Advanced, Finished, Started, Stream
from penstock.measure_lines import final_score, finished_lines, strict_json
from penstock.measures import OnScores
from penstock.outputs import atomic_path, only_writer, require_other

if TYPE_CHECKING:
    from penstock.columns.recipe import Recipe
    from penstock.linear import LinearModel

_NOTHING = pa.schema([("prediction", pa.float32())])


@dataclass(frozen=True, slots=True)
class Description:
    """What is in a model, for machines and for people.

    Attributes
    ----------
    values : dict
        Plain JSON: ``model`` (its word), ``label``, ``classes``, ``metrics``, ``config``, and what else a kind has.
    lines : tuple of str
        The same in words; ``print(model.describe())`` prints them.
    """

    values: dict[str, Any]
    lines: tuple[str, ...]

    @classmethod
    def of(
        cls, model: Model, counted: str, *, values: Mapping[str, Any] | None = None, lines: Iterable[str] = ()
    ) -> Description:
        """Begin with what every kind has; ``counted`` is the size in words, such as ``"3 features"``."""
        classes = None if model.classes is None else model.classes.tolist()
        told = "" if classes is None else f", classes {some_of(map(str, classes), 10)}"
        score = [final_score(model.metrics)] if model.metrics else []
        common = {
            "model": model.word,
            "label": model.label,
            "classes": classes,
            "epochs": list(model.history),
            "metrics": model.metrics,
            "config": model.config,
        }
        heading = f"{model.word} model of {model.label!r}: {counted}{told}"
        return cls(strict_json(common | dict(values or {})), (heading, *score, *finished_lines(model.metrics), *lines))

    def __str__(self) -> str:
        return "\n".join(self.lines)


@runtime_checkable
class Model(Protocol):
    """A trained model."""

    @property
    def kind(self) -> str:
        """What it predicts, and how: logistic, svm, softmax, linear or factor."""

    @property
    def word(self) -> str:
        """What models such as this one are called, in databases by the word after TRAIN BY: boosting, torch, mostly the kind."""

    @property
    def label(self) -> str | None:
        """The column that it predicts."""

    @property
    def classes(self) -> NDArray[Any] | None:
        """The class labels in ascending order; None for a number."""

    @property
    def metric(self) -> str:
        """The measure that is named first: accuracy, r2 or rmse."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The hyper-parameters."""

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """A row of metrics for each epoch; empty where none were kept."""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Figures of the finished model, such as ``held_out_accuracy``."""

    @property
    def fingerprint(self) -> str:
        """That of the data it was trained on."""

    @property
    def finished(self) -> bool:
        """Whether its training came to its end."""

    @property
    def by(self) -> tuple[str, ...]:
        """The columns that say which group a row is of, where each group has a model; empty for a single model."""

    @property
    def recipe(self) -> Recipe | None:
        """How columns become features; None for kinds that read columns in a way of their own."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that predictions are made of, with those of ``by``."""

    @property
    def linear(self) -> LinearModel | None:
        """The model as one set of linear weights in memory; None for kinds that have no such form.

        Where there is one, the model has coefficients, can be kept in a database and be written as SQL
        (`penstock.sql.prediction_query.select_predictions`).
        """

    def describe(self, *, most: int | None = None) -> Description:
        """Say what is in the model, with at most ``most`` of its coefficients, groups or other parts."""

    def predictions(self, source: BlockSource, *, keep: Sequence[str] = ()) -> Generator[pa.RecordBatch, None, None]:
        """Yield the predictions of a source's rows in stored order, after the columns to keep.

        The column is called ``prediction``; probabilities, where there are any, follow as ``probability_…``, one for each
        class.
        """

    def evaluate(
        self,
        source: BlockSource,
        *,
        label: str | None = None,
        memory: str | int = "512MB",
        on_scores: OnScores | None = None,
    ) -> dict[str, Any]:
        """Return the measures on labelled rows by name, and ``rows``, the number of rows measured.

        Parameters
        ----------
        label : str, optional
            The label column, where it is not the one that the model was trained on.
        memory : str or int
            What rows may occupy; a model on disk takes no more than it was opened with.
        on_scores : callable, optional
            Hears the scores of all rows, to measure what is not among the measures.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, so that `penstock.load` opens it."""

    def close(self) -> None:
        """Close files; a second call does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def predict(model: Model, source: BlockSource) -> NDArray[Any]:
    """Return the prediction of each row as an array, in stored order."""
    with closing(model.predictions(source)) as batches:
        columns = [batch.column("prediction") for batch in batches]
    if not columns:
        return np.empty(0, np.float32)
    return np.asarray(pa.chunked_array(columns).to_numpy(zero_copy_only=False))


def write_predictions(
    model: Model,
    source: BlockSource,
    path: str | os.PathLike[str],
    *,
    keep: Sequence[str] = (),
    stream: Stream | None = None,
) -> int:
    """Write predictions to a Parquet file as they are made, and return how many there are.

    The file is there whole or not at all.
    """
    stream = stream or Stream()
    require_other(path, source.name)
    stream.emit(Started("predict", int(source.block_rows.sum()), "rows"))
    count = 0
    with only_writer(path), atomic_path(path) as temporary, ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for batch in stack.enter_context(closing(model.predictions(source, keep=keep))):
            writer = writer or stack.enter_context(_writer(temporary, batch.schema))
            writer.write_batch(batch)
            count += len(batch)
            stream.emit(Advanced("predict", len(batch)))
        if writer is None:
            stack.enter_context(_writer(temporary, _NOTHING))
    stream.emit(Finished("predict"))
    return count


def _writer(path: os.PathLike[str], schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, write_page_checksum=True)
