"""Training of linear models in memory: the learner of a job (`penstock.job`), by SGD, full passes or the normal equations.

It scans what must be known first, has rows loaded by the order chosen, and hands back a model in the features' own units.
Estimators, the command line and the SQL front all come through here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.blocks.base import BlockSource
from penstock.budget import Budget, CacheChoice
from penstock.checkpoint import Checkpoint, CheckpointFile, require_same_columns
from penstock.columns.labels import learned_as_number
from penstock.columns.recipe import Recipe
from penstock.config import Config
from penstock.errors import UsageError
from penstock.events import Advanced, Epoch, Finished, Started, Warned
from penstock.intercepts import LabelSpread, fit_intercepts
from penstock.job import Job, Limits, OnRows, Progress, Usage, progressive_note
from penstock.linear import LinearModel
from penstock.loader.holdout import RowSplit
from penstock.loader.loader import CurrentWindow
from penstock.loader.row_forms import NOTHING, Scaling
from penstock.measures import Measures, OnScores
from penstock.measuring import (
    EncodedRows,
    Measuring,
    held_out_noise,
    measures_with,
    open_rows,
)
from penstock.messages import Text, Use
from penstock.metric_names import useless_reason
from penstock.outputs import require_scratch
from penstock.sgd.exact import ExactTrainer
from penstock.sgd.faults import Names
from penstock.sgd.loop import EpochStats, Trainer
from penstock.sgd.losses import find_loss, loss_of
from penstock.sgd.model import Weights
from penstock.sgd.passes import FullTrainer
from penstock.shuffle import order as order_named
from penstock.solvers import DataShape
from penstock.training import (
    Columns,
    LinearData,
    WeightTrainer,
    class_weights_of,
    far_label_notice,
    feature_name,
    large_steps,
    saved_class_weights,
    scan_labels,
    shown_class_weights,
    shown_dropped_rows,
    shown_few_valued,
    started_weights,
    without_shift,
)

_MOST_CLASSES = 100
"""Different values of a label that a logistic model takes for classes."""

REFIT_ROWS = 100_000
"""Rows up to which SGD is run again with those held out: a tenth of the data then, a smaller part of more rows."""
REFIT_PASSES = 25
"""Full passes that learn from the rows held out at most: the weights are all but converged."""


@dataclass(slots=True)
class MemoryLearner:
    """Learns a linear model whose weights are in memory.

    Attributes
    ----------
    columns : Columns
        Features, label and weight.
    recipe : Recipe, optional
        Instead: what is made of the columns.
    first : LinearModel, optional
        A model of the same features and classes, whose weights training begins with rather than with zeros.
    scratch : path, optional
        Where shuffled copies, and encoded rows, are written.
    cache : bool, int or Path
        Whether rows that do not fit in memory and take long to encode are kept on disk from the first epoch on, in how many bytes
        at most, or in which folder, for later runs too.
    """

    stops_on_test: ClassVar[bool] = False
    measured_at_end: ClassVar[bool] = True
    saves_start: ClassVar[bool] = False

    columns: Columns = field(default_factory=Columns)
    recipe: Recipe | None = None
    first: LinearModel | None = None
    scratch: str | os.PathLike[str] | None = None
    cache: CacheChoice = True
    _job: Job[Config, LinearModel] = field(init=False)
    _data: LinearData = field(init=False)
    _source_rows: EncodedRows = field(init=False)
    _config: Config = field(init=False)
    _share: float = field(init=False)
    _rows: Measuring = field(init=False)
    _trainer: WeightTrainer = field(init=False)
    _judge: WeightTrainer = field(init=False)
    _best: Weights | None = field(init=False)
    _window: CurrentWindow = field(init=False)
    _uneven: bool = field(init=False, default=False)

    def check(self, job: Job[Config, LinearModel], /) -> None:
        """Take the job over; refuse a scratch folder that cannot be written to."""
        self._job, self._best, self._window = job, None, CurrentWindow()
        if self.scratch is not None:
            require_scratch(self.scratch)

    def require_same(self, saved: Checkpoint, /) -> dict[str, Any]:
        chosen = self.recipe or self.columns.recipe(self._job.source)
        require_same_columns(chosen, Recipe.from_dict(saved.header["encoder"]))
        config: dict[str, Any] = saved.header["config"]
        return config

    def prepare(self, saved: Checkpoint | None, /) -> int:
        """Scan the data, or take what a checkpoint says of them; return the number of rows with a weight."""
        data = self._data = self._scanned() if saved is None else self._restored(saved)
        self._source_rows = EncodedRows(self._job.source, data.recipe, data.scaling)
        return data.weighted_rows

    def start(self, share: float, saved: Checkpoint | None, stack: ExitStack, /) -> Limits:
        """Make a trainer of zero weights, of those to begin with or of a checkpoint's, and open the rows."""
        job, data, self._share = self._job, self._data, share
        config = self._config = self._resolved(saved)
        learned = round(data.rows * (1 - share - job.test_share))
        trainer = self._trainer = self._judge = self._new_trainer(config, learned)
        if saved is not None:
            trainer.restore(_under("train.", saved.arrays))
            best = _under("best.", saved.arrays)
            self._best = Weights.from_arrays(best) if best else None
            self._uneven = bool(saved.header.get("uneven_windows", False))
        elif self.first is not None:
            trainer.start(started_weights(self.first, data.recipe, data.scaling, outputs=data.outputs))
        self._rows = self._open(stack, share, config.epoch_limit)
        for notice in self._rows.loader.plan.notices:
            job.stream.emit(Warned(notice))
        noise = held_out_noise(round(data.weighted_rows * share), job.config.patience)
        return Limits(learned, config.epoch_limit, config.patience or 0, config.tolerance, noise)

    @property
    def splits(self) -> tuple[str, ...]:
        return self._rows.splits

    @property
    def converged(self) -> bool:
        return self._trainer.done

    @property
    def usage(self) -> Usage:
        """What the loader has read and written."""
        loader = self._rows.loader
        return Usage(loader.bytes_read, loader.prepare_seconds, loader.extra_disk_bytes)

    @property
    def facts(self) -> Mapping[str, Any]:
        data = self._data
        shown = shown_class_weights(data.recipe, data.class_weights) | shown_dropped_rows(data.dropped_rows)
        return shown | shown_few_valued(data.few_valued)

    def run_epoch(self, epoch: int, on_rows: OnRows, /) -> EpochStats:
        spread = LabelSpread()

        def tell(batch: Batch, stats: EpochStats) -> None:
            spread.add(batch)
            on_rows(len(batch), progressive_note(stats))

        stats = self._trainer.run_epoch(self._window.follow(self._rows.loader, epoch), epoch, on_batch=tell)
        self._uneven = spread.uneven
        return stats

    def warnings(self, event: Epoch, /, *, last: bool) -> Iterator[str]:
        """Say that steps were too large, or that more epochs would be needed."""
        config, spec = self._config, self._trainer.spec
        remedy = "" if config.standardize else ", or standardize the features"
        if event.epoch == 1 and not config.full_passes and not spec.rate.bounded:
            yield from large_steps(event, spec.loss, self._data.outputs, remedy="use a smaller learning rate" + remedy)
        if last and config.full_passes and not self.converged:
            remedy = "allow more epochs, or a larger tolerance" + remedy
            yield f"{config.solver} has not converged in {event.epoch} epochs; {remedy}"

    def evaluate(self, split: str, on_scores: OnScores | None, /) -> EpochStats:
        return self._rows.of(split, self._data.rows).measure(self._judge, on_scores=on_scores)

    def measures(self, *, finished: bool) -> list[Measures]:
        data = self._data
        return measures_with(
            data.recipe, self._trainer.spec.loss, self._config.memory, data.class_weights, finished=finished
        )

    def keep_best(self) -> None:
        self._best = self._trainer.model_weights.copy()

    def use_best(self) -> None:
        """Measure the weights that were kept, or the last ones, from now on; their intercepts fit the classes' shares."""
        weights = self._best if self._best is not None else self._trainer.model_weights
        self._judge = self._trainer_of(self._with_intercepts(weights, self._rows, self._share))

    def _trainer_of(self, weights: Weights) -> Trainer:
        trainer = Trainer(self._config.spec(), weights.width, outputs=weights.outputs, names=self._names)
        trainer.weights = weights
        return trainer

    def _with_intercepts(self, weights: Weights, rows: Measuring, held_out: float) -> Weights:
        """Return weights whose intercepts fit the shares of classes in the rows learned from, where windows were uneven.

        Orders that do not mix rows of several blocks are left as they learn: what they teach badly is not intercepts alone.
        """
        config, loss = self._config, find_loss(self._trainer.spec.loss)
        mixed = order_named(config.shuffle).facts.places_rows and config.solver == "sgd"
        if not (self._uneven and mixed and config.intercept and loss.probabilities is not None):
            return weights
        learned = RowSplit(config.seed, self._job.test_share, held_out).train
        fitted = weights.settled().copy()

        def measure(weights: Weights, on_scores: OnScores) -> object:
            return rows.sample(learned).measure(self._trainer_of(weights), on_scores=on_scores)

        fit_intercepts(fitted, loss, self._data.class_weights, measure)
        return fitted

    def useless(self, metrics: Mapping[str, Any], /) -> str | None:
        return useless_reason(metrics)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Return the trainer's state, the best weights, the scaling and what was found in the data."""
        data, best = self._data, {} if self._best is None else self._best.arrays()
        arrays = {f"train.{name}": array for name, array in self._trainer.state().items()}
        arrays |= {f"best.{name}": array for name, array in best.items()}
        if len(data.scaling.scale):
            arrays |= {"shift": data.scaling.shift, "scale": data.scaling.scale}
        return arrays, {
            "model": data.model,
            "solver": self._config.solver,
            "optimizer": self._config.optimizer,
            "l2": self._config.l2,
            "encoder": data.recipe.to_dict(),
            "rows": data.rows,
            "zero_rows": data.zero_rows,
            "dropped_rows": data.dropped_rows,
            "few_valued": dict(data.few_valued),
            "uneven_windows": self._uneven,
            "class_weights": None if data.class_weights is None else data.class_weights.factors.tolist(),
        }

    def saved(self) -> None:
        """Do nothing."""

    def model(self, progress: Progress, metrics: dict[str, Any], /) -> LinearModel:
        """Return the model in the features' own units, after it has learned from the rows held out too."""
        epochs = self._refit_epochs(progress) if self._share else 0
        weights = self._refitted(epochs) if epochs else self._judge.model_weights
        if epochs:
            metrics = {**metrics, "refit_rows": self._refit_rows}
        if (notice := far_label_notice(self._data.recipe.label, float(weights.intercept[0]), metrics)) is not None:
            self._job.stream.emit(Warned(notice))
        raw, scaling = weights.settled().copy(), self._data.scaling
        raw.arrange(sparse=False)
        if len(scaling.scale):
            raw.coef *= scaling.scale
            if len(scaling.shift):
                raw.intercept -= raw.coef @ scaling.shift
        return LinearModel(
            kind=self._config.model,
            weights=raw,
            recipe=self._data.recipe,
            config=self._config.to_dict(),
            history=progress.history,
            fingerprint=self._job.source.fingerprint,
            metrics=metrics,
            scaling=scaling,
        )

    @property
    def _names(self) -> Names:
        return Names(row=self._window.name, feature=partial(feature_name, self._data.recipe))

    def _new_trainer(self, config: Config, epoch_rows: int) -> WeightTrainer:
        spec, width, data = config.spec(), self._data.recipe.width or 0, self._data
        if config.solver == "exact":
            return ExactTrainer(spec, width, names=self._names)
        shared: dict[str, Any] = {"outputs": data.outputs, "names": self._names, "class_weights": data.class_weights}
        if config.solver == "sgd":
            return Trainer(spec, width, epoch_rows=epoch_rows, **shared)
        return FullTrainer(spec, width, solver=config.solver, tolerance=config.tolerance, **shared)

    def _open(self, stack: ExitStack, share: float, epochs: int) -> Measuring:
        job, data, config, test = self._job, self._data, self._config, None
        if job.test is not None:
            recipe = data.recipe.for_schema(job.test.schema, place=job.test.name, scored=True).to_measure()
            test = EncodedRows(job.test, recipe, data.scaling)
        return open_rows(
            stack,
            self._source_rows,
            test=test,
            split=RowSplit(config.seed, job.test_share, share),
            shuffle=config.shuffle,
            memory=config.memory,
            window=self._window,
            seed=config.seed,
            scratch=self._copies_folder(),
            cache=self.cache if epochs > 1 or isinstance(self.cache, Path) else False,
        )

    def _refit_epochs(self, progress: Progress) -> int:
        """Return for how many epochs at most the model also learns from the rows held out.

        None where the user said how to hold out or to stop, and where SGD holds out only a small part of many rows.
        """
        given = self._job.config
        if given.validation is not None or given.patience is not None:
            return 0
        if self._config.full_passes:
            return min(self._config.epoch_limit, REFIT_PASSES)
        return progress.best_epoch if given.epochs is None and self._data.rows <= REFIT_ROWS else 0

    @property
    def _refit_rows(self) -> int:
        """The rows to learn from when those held out are learned from too."""
        return round(self._data.weighted_rows * (1 - self._job.test_share))

    def _refitted(self, epochs: int) -> Weights:
        """Learn from all rows, now that those held out have been measured.

        Full passes go on from the weights, SGD begins anew for the number of epochs that was best. The figures of
        the rows held out stay those of the weights that had not seen them.
        """
        job, data, config, count = self._job, self._data, self._config, self._refit_rows
        trainer = self._new_trainer(replace(config, l2=replace(config, l2=job.config.l2).penalty(count)), count)
        if config.full_passes:
            trainer.start(self._judge.model_weights)
        elif self.first is not None:
            trainer.start(started_weights(self.first, data.recipe, data.scaling, outputs=data.outputs))
        job.stream.emit(Started("refit", None, "rows"))
        self._rows.loader.close()  # its memory, and the rows that it keeps on disk, are of no more use
        with ExitStack() as stack:
            rows = self._open(stack, 0.0, epochs)
            loader = rows.loader
            for epoch in range(epochs):
                trainer.run_epoch(
                    self._window.follow(loader, epoch),
                    epoch,
                    on_batch=lambda batch, stats: job.stream.emit(Advanced("refit", len(batch))),
                )
                if trainer.done:
                    break
            weights = self._with_intercepts(trainer.model_weights, rows, 0.0)
        job.stream.emit(Finished("refit"))
        return weights

    def _resolved(self, saved: Checkpoint | None) -> Config:
        """Return the config with nothing left open; a run that is resumed keeps the solver it had."""
        job, data = self._job, self._data
        config = replace(job.config, model=data.model)
        if saved is not None:
            header = saved.header
            optimizer = header.get("optimizer", config.optimizer or "sgd")
            config = replace(config, solver=header["solver"], optimizer=optimizer, l2=header["l2"])
        row_bytes, count = self._source_rows.size
        decoded = int(row_bytes * count)
        shape = DataShape(
            rows=round(data.weighted_rows * (1 - self._share - job.test_share)),
            width=data.recipe.width or 0,
            in_memory=decoded <= Budget.parse(config.memory).resolve(decoded),
            sparse=data.recipe.sparse,
        )
        return config.resolve(shape, held_out=self._share > 0)

    def _restored(self, saved: Checkpoint) -> LinearData:
        """Return what a checkpoint says of the data."""
        source, header = self._job.source, saved.header
        recipe = Recipe.from_dict(header["encoder"]).for_schema(source.schema, place=source.name, scored=True)
        scaling = Scaling(saved.arrays.get("shift", NOTHING), saved.arrays.get("scale", NOTHING))
        return LinearData(
            recipe,
            scaling,
            int(header["rows"]),
            header["model"],
            int(header["zero_rows"]),
            saved_class_weights(header),
            int(header.get("dropped_rows", 0)),
            dict(header.get("few_valued", {})),
        )

    def _scanned(self) -> LinearData:
        job, config = self._job, self._job.config
        recipe = self.recipe or self.columns.labelled_recipe(job.source)
        result = scan_labels(job, self.columns, recipe, standardize=bool(config.standardize))
        recipe, scaling, model = result.recipe, result.scaling, config.model
        if not config.intercept:
            scaling = without_shift(scaling)
        if recipe.labels is not None:
            count = len(recipe.labels.classes)
            if loss_of(model).several and count > _MOST_CLASSES:
                raise UsageError(
                    f"the label {recipe.label!r} has {count:,} different values, which are hardly classes",
                    fixes=[
                        *learned_as_number(recipe.labels.classes),
                        *([] if recipe.labels.numeric else ["name another label"]),
                        Text("learn so many classes: ", Use("model", "softmax")),
                    ],
                )
            if count > 2 and (several := loss_of(model).several):
                model = several
                job.stream.emit(Warned(f"the label {recipe.label!r} has {count} classes, so the model is {model}"))
            recipe = recipe.with_labels(recipe.labels.as_binary(not loss_of(model).many))
        weights = class_weights_of(config, result)
        counts = (result.rows, model, result.zero_rows)
        return LinearData(recipe, scaling, *counts, weights, result.dropped_rows, result.few_valued)

    def _copies_folder(self) -> str | os.PathLike[str] | None:
        if self.scratch is not None:
            return self.scratch
        name = self._job.source.name
        folder = Path(name).parent
        return folder if Path(name).exists() and os.access(folder, os.W_OK) else None


LinearJob = Job[Config, LinearModel]


def linear_job(
    source: BlockSource,
    config: Config,
    columns: Columns | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    recipe: Recipe | None = None,
    first: LinearModel | None = None,
    scratch: str | os.PathLike[str] | None = None,
    cache: CacheChoice = True,
    **more: Any,
) -> LinearJob:
    """Return the job of training a linear model in memory; see `MemoryLearner`, and `Job` for ``more``."""
    learner = MemoryLearner(columns or Columns(), recipe, first, scratch, cache)
    return Job(source, learner, config, checkpoint=None if checkpoint is None else CheckpointFile(checkpoint), **more)


def _under(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
