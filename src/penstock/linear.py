"""A trained linear model: weights, what it knows of the columns, how it came to be; saving and scoring.

The weights are in the features' own units whatever scaling training used, so a model needs nothing but its
file. Scoring streams: predictions of a path of any size are written as they are made.

`EncodedModel` is what models share whose rows are numbers made by an `Recipe`: linear models, in memory and on disk, boosted
trees and torch modules. Each adds how it scores rows.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.blocks.base import BlockSource, naming_rows, require_columns
from penstock.blocks.open import opened
from penstock.closing import Closing
from penstock.columns.base import UnseenValues
from penstock.columns.recipe import Recipe
from penstock.errors import ModelFileError, UsageError
from penstock.loader.row_forms import NOTHING, Scaling
from penstock.measures import OnScores
from penstock.messages import Text, Use
from penstock.model import Description, write_predictions
from penstock.modelfile import read_model, write_model
from penstock.outputs import require_file
from penstock.parallel import in_order
from penstock.sgd.losses import linear_models, loss_of
from penstock.sgd.model import Weights

Scored = tuple[pa.RecordBatch, Batch, Floats]
"""Rows as they are stored, encoded, and their scores."""


class EncodedModel(Closing):
    """The part of `penstock.model.Model` that follows from a recipe and scores.

    A subclass has ``kind``, ``recipe``, ``config``, ``metrics`` and ``fingerprint``, and defines `scores`, ``describe`` and
    ``save``.
    """

    __slots__ = ()

    kind: str
    recipe: Recipe
    config: Mapping[str, Any]
    takes_nan: ClassVar[bool] = False
    """Whether rows with features that are not finite numbers can be scored."""
    by: ClassVar[tuple[str, ...]] = ()

    def scores(self, batch: Batch) -> Floats:
        """Return a score a row, or for softmax one a row and class."""
        raise NotImplementedError

    @property
    def word(self) -> str:
        return self.kind

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that its features are made of."""
        return replace(self.recipe, label=None, weight=None).columns

    @property
    def label(self) -> str | None:
        return self.recipe.label

    @property
    def classes(self) -> NDArray[Any] | None:
        return None if self.recipe.labels is None else np.array(self.recipe.labels.classes)

    @property
    def metric(self) -> str:
        """The accuracy of classes, the R² of a regression."""
        return "r2" if self.recipe.labels is None else "accuracy"

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        return ()

    @property
    def finished(self) -> bool:
        """Whether its training came to its end, as that of every model in a file did."""
        return True

    @property
    def known_loss(self) -> bool:
        """Whether it was trained by the loss of its kind, rather than by a function of the user's."""
        return True

    @property
    def linear(self) -> LinearModel | None:
        """No linear form; see `penstock.model.Model`."""
        return None

    def counting(self, unseen: UnseenValues) -> Self:
        """Return the model that counts values that training did not see, in the rows that it scores.

        It shares what is open with this one, which is to be closed.
        """
        model = copy.copy(self)
        object.__setattr__(model, "recipe", replace(self.recipe, unseen=unseen))  # of models that cannot be changed too
        return model

    def decide(self, scores: Floats) -> NDArray[Any]:
        """Turn scores into classes, or into numbers for a regression."""
        return decide(self.kind, self.recipe, scores)

    def probabilities(self, scores: Floats) -> Floats | None:
        """Turn scores into a probability for each class; None for models that have none."""
        return probabilities(self.kind, scores)

    def scored(self, source: BlockSource, recipe: Recipe, *, keep: Sequence[str] = ()) -> Generator[Scored, None, None]:
        """Yield the rows of a source with their scores, block by block in stored order; ``recipe`` fits its schema."""
        columns = list(dict.fromkeys([*recipe.columns, *keep]))

        def score(block: int) -> Scored:
            rows = source.read(block, columns)
            batch = encoded(recipe, source, block, rows, finite=not self.takes_nan)
            return rows, batch, self.scores(batch)

        return in_order(score, range(len(source.block_rows)), threads=source.threads)

    def predictions(self, source: BlockSource, *, keep: Sequence[str] = ()) -> Generator[pa.RecordBatch, None, None]:
        require_columns(source.schema, keep, place=source.name)
        recipe = self.recipe.for_schema(source.schema, place=source.name)
        with closing(self.scored(source, recipe, keep=keep)) as blocks:
            for rows, _, scores in blocks:
                yield predicted(self.kind, self.recipe, scores, rows, keep)

    def predict_to(self, data: Any, out: str | os.PathLike[str], *, keep: Sequence[str] = ()) -> int:
        """Write predictions to a Parquet file and return how many; values that training did not see are counted in the log."""
        require_file(out)
        unseen = UnseenValues()
        model: Any = self.counting(unseen)
        with opened(data) as source:
            count = write_predictions(model, source, out, keep=keep)
        unseen.warn(out)
        return count

    def evaluate_warned(self, source: BlockSource, **options: Any) -> dict[str, Any]:
        """Return what `evaluate` does; values that training did not see are counted in the log."""
        unseen = UnseenValues()
        found = self.counting(unseen).evaluate(source, **options)
        unseen.warn(source.name)
        return found

    def block_scores(self, source: BlockSource) -> Iterator[Floats]:
        """Yield the scores of a source's rows in stored order, some blocks at a time."""
        recipe = self.recipe.for_schema(source.schema, place=source.name)
        with closing(self.scored(source, recipe)) as blocks:
            for _, _, scores in blocks:
                yield scores

    def evaluate(
        self,
        source: BlockSource,
        *,
        label: str | None = None,
        memory: str | int = "512MB",
        on_scores: OnScores | None = None,
    ) -> dict[str, Any]:
        """Return the loss, all measures of `penstock.measures` and the number of rows; see `penstock.model.Model`."""
        from penstock.evaluation import evaluate_scores, measured_recipe, without_loss

        recipe = measured_recipe(self.recipe, source, label)
        with closing(self.scored(source, recipe)) as blocks:
            rows = ((scores, batch.y, batch.weight) for _, batch, scores in blocks)
            found = evaluate_scores(rows, recipe, self.kind, memory=memory, on_scores=on_scores, place=source.name)
        return found if self.known_loss else without_loss(found)

    def close(self) -> None:
        """Do nothing: no file is open."""


def decide(kind: str, recipe: Recipe, scores: Floats) -> NDArray[Any]:
    """Turn the scores of a kind of model into classes, or into numbers for a regression."""
    return scores if recipe.labels is None else recipe.labels.decode(loss_of(kind).decision(scores))


def probabilities(kind: str, scores: Floats) -> Floats | None:
    """Turn the scores of a kind of model into a probability for each class; None where it has none."""
    loss = loss_of(kind)
    return None if loss.probabilities is None else loss.probabilities(scores)


def log_probabilities(kind: str, scores: Floats) -> NDArray[np.float64] | None:
    """Return the logarithms of `probabilities`, finite where these are nearly 0; None where a kind of model has none."""
    chances, exact = probabilities(kind, scores), loss_of(kind).log_probabilities
    if chances is None or exact is None:
        return None if chances is None else np.log(chances.astype(np.float64))
    return np.where(chances == 1, 0.0, exact(scores))  # as the probabilities say, which are rounded to float32


def predicted(
    kind: str,
    recipe: Recipe,
    scores: Floats,
    rows: pa.RecordBatch,
    keep: Sequence[str],
    *,
    missing: NDArray[np.bool_] | None = None,
) -> pa.RecordBatch:
    """Return the columns to keep, the predictions, and probabilities where there are any.

    Rows that are ``missing`` a model get nulls.
    """
    out = {name: rows.column(name) for name in keep}
    out["prediction"] = pa.array(decide(kind, recipe, scores), mask=missing)
    chances = probabilities(kind, scores)
    if chances is not None and recipe.labels is not None:
        names = [f"probability_{c}" for c in recipe.labels.classes]
        out |= {name: pa.array(np.ascontiguousarray(chances[:, k]), mask=missing) for k, name in enumerate(names)}
    return pa.record_batch(out)


def encoded(
    recipe: Recipe, source: BlockSource, block: int, rows: pa.RecordBatch, *, wide: bool = False, finite: bool = True
) -> Batch:
    """Return a block's rows for scoring; what cannot be scored is refused by its row in the data."""

    def encode(place: str, first_row: int) -> Batch:
        batch = recipe.at(place).encode(rows, first_row=first_row, wide=wide)
        if finite:
            recipe.at(place).require_finite(batch, first_row=first_row)
        return batch

    return naming_rows(source, block, encode)


@dataclass(frozen=True, slots=True)
class ColumnTransform:
    """Expressions that make a model's columns of raw ones inside a database: SQL by column, and the engine that reads it."""

    engine: str
    columns: Mapping[str, str]

    def __post_init__(self) -> None:
        texts = [self.engine, *self.columns, *self.columns.values()]
        if not all(isinstance(each, str) for each in texts):
            raise TypeError("a transform has other values than texts")


@dataclass(frozen=True, slots=True)
class LinearModel(EncodedModel):
    """A linear model that can be saved, loaded and asked.

    Attributes
    ----------
    kind : str
        logistic, svm, linear or softmax.
    weights : Weights
        In the features' own units.
    recipe : Recipe
        How columns become features, and labels targets.
    config : dict
        The hyper-parameters.
    history : list of dict
        A metric row for each epoch.
    fingerprint : str
        Of the data it was trained on.
    metrics : dict
        Figures of the finished model, such as ``held_out_accuracy``; `penstock.metric_names` says what names mean.
    scaling : Scaling
        By which features were brought to one scale in training, to say how much each counts; the weights need none.
    transform : ColumnTransform or None
        What a database makes the model's columns by; rows from elsewhere are then refused.
    """

    kind: str
    weights: Weights
    recipe: Recipe
    config: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Mapping[str, Any]] = ()
    fingerprint: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=Scaling.none)
    transform: ColumnTransform | None = None

    @property
    def linear(self) -> LinearModel:
        """The model itself."""
        return self

    def scores(self, batch: Batch) -> Floats:
        scores = self.weights.scores(batch)
        return loss_of(self.kind).scored(scores)

    def evaluate(
        self,
        source: BlockSource,
        *,
        label: str | None = None,
        memory: str | int = "512MB",
        on_scores: OnScores | None = None,
    ) -> dict[str, Any]:
        from penstock.evaluation import evaluate

        self._require_own_columns(source)
        return evaluate(self, source, label=label, memory=memory, on_scores=on_scores)

    def scored(self, source: BlockSource, recipe: Recipe, *, keep: Sequence[str] = ()) -> Generator[Scored, None, None]:
        """Yield the rows of a source with their scores; see `EncodedModel.scored`."""
        self._require_own_columns(source)
        return EncodedModel.scored(self, source, recipe, keep=keep)

    def _require_own_columns(self, source: BlockSource) -> None:
        if self.transform is not None:
            raise UsageError(
                f"{source.name} has raw columns, and the model learned from columns that TRANSFORM made of them in"
                f" {self.transform.engine}; predict in that database: SELECT … PREDICT BY m"
            )

    def describe(self, *, most: int | None = None) -> Description:
        """Say what is in the model: its measures, and its largest coefficients by name."""
        from penstock.coefficients import describe

        return describe(self, most=most)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as one safetensors file with a JSON header."""
        write_model(path, self.tensors(), self.header())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LinearModel:
        """Read a model that `save` wrote."""
        return cls.of(*read_model(path), place=str(path))

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return the weights by name: ``coef`` with a row for each output, and ``intercept``.

        Where features were scaled, ``shift`` and ``scale`` are what was taken from each and what it was multiplied by.
        """
        named = {"shift": self.scaling.shift, "scale": self.scaling.scale}
        scaling = {name: array for name, array in named.items() if len(array)}
        return {"coef": self.weights.coef, "intercept": self.weights.intercept, **scaling}

    def header(self) -> dict[str, Any]:
        """Return all but the weights as plain JSON."""
        return {
            "kind": self.kind,
            "encoder": self.recipe.to_dict(),
            "features": self.recipe.names,
            "classes": None if self.recipe.labels is None else list(self.recipe.labels.classes),
            "config": dict(self.config),
            "history": [dict(row) for row in self.history],
            "fingerprint": self.fingerprint,
            "metrics": dict(self.metrics),
            **({} if self.transform is None else {"transform": asdict(self.transform)}),
        }

    @classmethod
    def of(cls, tensors: Mapping[str, NDArray[Any]], header: Mapping[str, Any], *, place: str) -> LinearModel:
        """Put together what `tensors` and `header` gave; ``place`` is what messages call where they were."""
        try:
            weights = Weights.zeros(tensors["coef"].shape[1], tensors["coef"].shape[0])
            weights.coef[:] = tensors["coef"]
            weights.intercept[:] = tensors["intercept"]
            recipe = Recipe.from_dict(header["encoder"])
            if header["kind"] not in linear_models():
                raise KeyError(header["kind"])
            return cls(
                header["kind"],
                weights,
                recipe,
                header["config"],
                header["history"],
                header["fingerprint"],
                header["metrics"],
                Scaling(tensors.get("shift", NOTHING), tensors.get("scale", NOTHING)),
                ColumnTransform(**header["transform"]) if "transform" in header else None,
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ModelFileError(
                f"{place} is a Penstock file but not a linear model: {error!r}",
                fixes=[Text("a checkpoint is continued with ", Use("resume", True))],
            ) from error
