"""One training job: a source, a config, and everything between them and a saved model.

Scan what must be known first, load by the order chosen, run the epochs, measure the test set, write a
checkpoint after each epoch, and hand back a model in the features' own units. Estimators, the command line
and the SQL front all come through here.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.batch import Batch
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder, choose
from penstock.budget import Budget, show_bytes
from penstock.config import Config
from penstock.errors import BudgetError, DataChangedError, ModelFileError, UsageError, some_of
from penstock.events import Advanced, Epoch, Finished, Started, Stream, Warned
from penstock.linear import LinearModel
from penstock.loader.feed import Feed
from penstock.loader.forms import NOTHING, Scaling
from penstock.loader.holdout import Part
from penstock.loader.loader import Loader
from penstock.loader.naming import Current
from penstock.loader.plan import round_up
from penstock.loader.scan import scan
from penstock.modelfile import read_model, write_model
from penstock.sgd.faults import Names
from penstock.sgd.loop import EarlyStopping, EpochStats, Trainer
from penstock.sgd.model import Weights
from penstock.sgd.passes import FullTrainer

# Measuring a test set needs windows of its own; this share of the memory is set aside for them.
_MEASURING = 8
_MOSTLY_RIGHT = 0.75
"""Accuracy of an epoch from which on a loss somewhat above a guess's is no cause for a warning."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns play which part; see `penstock.blocks.features.choose`."""

    label: str | None = None
    features: Sequence[str] | None = None
    weight: str | None = None
    exclude: Sequence[str] = ()
    hash: Sequence[str] = ()

    def encoder(self, source: BlockSource, *, wide: bool = False) -> Encoder:
        """Settle them for a source; ``wide`` for a model on disk, which may have any number of features."""
        label = self.label if self.label is not None else default_label(source)
        return choose(
            source.schema,
            label=label,
            features=self.features,
            weight=self.weight,
            exclude=self.exclude,
            hash=self.hash,
            place=source.name,
            wide=wide,
        )


@dataclass(slots=True)
class Training:
    """A job as it stands: run it with `run`, or resume it first."""

    source: BlockSource
    config: Config
    columns: Columns = field(default_factory=Columns)
    test: BlockSource | None = None
    stream: Stream = field(default_factory=Stream)
    checkpoint: str | os.PathLike[str] | None = None
    scratch: str | os.PathLike[str] | None = None
    encoder: Encoder | None = None
    prepare_seconds: float = 0.0
    extra_disk_bytes: int = 0

    def run(self, *, resume: bool = False) -> LinearModel:
        """Train to the end and return the model."""
        saved = self._saved() if resume else None
        found = self._scanned(saved)
        config, labels = self.config, found.encoder.labels
        outputs = len(labels.classes) if labels is not None and config.model == "softmax" else 1
        window = Current()
        names = Names(row=window.name, feature=lambda j: feature_name(found.encoder, j))
        trainer = _trainer(config, found.encoder.width or 0, outputs=outputs, names=names)
        progress = _Progress.start(config)
        if saved is not None:
            progress = _Progress.load(saved, config)
            trainer.restore({k[len("train.") :]: v for k, v in saved[0].items() if k.startswith("train.")})
        with ExitStack() as stack:
            loader, measured = self._loaders(stack, found)
            self.stream.emit(Started("train", found.rows * (config.epochs - progress.epoch), "rows"))
            while progress.epoch < config.epochs and not (progress.watch.stop or _is_done(trainer)):
                self._epoch(loader, trainer, window, measured, progress)
                if self.checkpoint is not None:
                    self._save(trainer, found, progress)
            self.stream.emit(Finished("train"))
            if isinstance(trainer, FullTrainer) and 0 < progress.epoch == config.epochs and not trainer.done:
                told = f"{config.solver} has not converged in {progress.epoch} epochs"
                self.stream.emit(Warned(f"{told}; allow more, a larger tolerance, or standardize the features"))
            self.prepare_seconds, self.extra_disk_bytes = loader.prepare_seconds, loader.extra_disk_bytes
        weights = progress.best if progress.best is not None else trainer.weights
        return self._model(weights, found, progress)

    def _scanned(self, saved: tuple[dict[str, Any], dict[str, Any]] | None) -> _Found:
        if saved is not None:
            tensors, header = saved
            encoder = Encoder.from_dict(header["encoder"]).for_schema(
                self.source.schema, place=self.source.name, scored=True
            )
            scaling = Scaling(tensors.get("shift", NOTHING), tensors.get("scale", NOTHING))
            return _Found(encoder, scaling, int(header["rows"]))
        encoder = self.encoder or self.columns.encoder(self.source)
        if encoder.label is None:
            raise UsageError(
                f"say which column of {self.source.name} is the label; it has: {some_of(self.source.schema.names)}"
            )
        classes = self.config.model != "linear"
        result = scan(
            self.source, encoder, classes=classes, standardize=bool(self.config.standardize), stream=self.stream
        )
        encoder, scaling = result.encoder, result.scaling
        if not self.config.intercept:
            scaling = _about_zero(scaling)
        if encoder.labels is not None:
            encoder = encoder.with_labels(encoder.labels.as_binary(self.config.model != "softmax"))
        return _Found(encoder, scaling, result.rows)

    def _loaders(self, stack: ExitStack, found: _Found) -> tuple[Loader[Batch], Loader[Batch] | None]:
        config, measured = self.config, None
        part = Part(config.validation, config.seed, held_out=False) if config.validation else None
        common: dict[str, Any] = {"seed": config.seed, "scaling": found.scaling, "scratch": self._scratch()}
        feed = Feed.of(self.source, found.encoder, found.scaling)
        with closing(feed.decoder):
            row_bytes, rows = feed.size()
        memory = Budget.parse(config.memory).resolve(int(row_bytes * rows))
        if self.test is not None or part is not None:
            source, encoder, kept = self.source, found.encoder, part.other() if part else None
            if self.test is not None:
                source, kept = self.test, None
                encoder = found.encoder.for_schema(self.test.schema, place=self.test.name, scored=True)
            share = memory // _MEASURING
            measured = stack.enter_context(
                Loader(source, encoder, "none", memory=share, part=kept, stretch=True, **common)
            )
            self._require_both(found, memory, measured)
            memory -= measured.plan.memory
        loader = stack.enter_context(
            Loader(self.source, found.encoder, config.shuffle, memory=memory, part=part, **common)
        )
        return loader, measured

    def _require_both(self, found: _Found, memory: int, measured: Loader[Batch]) -> None:
        """Raise where the memory is too little for learning and measuring together; say how much is enough."""
        with Loader(self.source, found.encoder, self.config.shuffle, memory=1, stretch=True) as smallest:
            least = smallest.plan.memory
        if memory - measured.plan.memory < least:
            with Loader(measured.source, measured.encoder, "none", memory=1, stretch=True) as smallest:
                beside = smallest.plan.memory
            enough = max(least + beside, -(-least * _MEASURING // (_MEASURING - 1)) + 1)
            raise BudgetError(
                f"memory={show_bytes(memory)} cannot hold two blocks of {self.source.name} and those of the rows that"
                f" the model is measured on; the smallest that works is {round_up(enough)}."
                " Or write smaller blocks: penstock convert --block-size 64KB"
            )

    def _epoch(
        self,
        loader: Loader[Batch],
        trainer: Trainer | FullTrainer,
        window: Current,
        measured: Loader[Batch] | None,
        progress: _Progress,
    ) -> None:
        number, before, prepared = progress.epoch, loader.bytes_read, loader.prepare_seconds

        def tell(batch: Batch, stats: EpochStats) -> None:
            note = f"epoch {number + 1}/{self.config.epochs}  loss {stats.loss:.4f}  {stats.metric} {stats.score:.4f}"
            self.stream.emit(Advanced("train", len(batch), note))

        began = time.perf_counter()
        stats = trainer.run_epoch(window.follow(loader, number), number, on_batch=tell)
        prepared = loader.prepare_seconds - prepared
        seconds = time.perf_counter() - began - prepared
        test = None
        if measured is not None:
            test = trainer.evaluate(window.follow(measured, 0))
        event = Epoch(
            epoch=number + 1,
            loss=stats.loss,
            metric=stats.metric,
            score=stats.score,
            seconds=seconds,
            rows=stats.rows,
            bytes=loader.bytes_read - before,
            test_score=None if test is None else test.score,
            test_loss=None if test is None else test.loss,
            prepare_seconds=prepared,
        )
        progress.record(event, trainer)
        self.stream.emit(event)
        if number == 0 and isinstance(trainer, Trainer):
            warn_of_large_steps(event, trainer.spec.loss, trainer.weights.outputs, self.stream)

    def _model(self, weights: Weights, found: _Found, progress: _Progress) -> LinearModel:
        raw = weights.settled().copy()
        raw.arrange(sparse=False)
        if len(found.scaling.scale):
            raw.coef *= found.scaling.scale
            if len(found.scaling.shift):
                raw.intercept -= raw.coef @ found.scaling.shift
        metrics = {
            name: value
            for name, value in progress.chosen().items()
            if name in ("loss", "accuracy", "r2") or name.startswith("test_")
        }
        return LinearModel(
            kind=self.config.model,
            weights=raw,
            encoder=found.encoder,
            config=self.config.to_dict(),
            history=progress.history,
            fingerprint=self.source.fingerprint,
            metrics=metrics,
        )

    def _save(self, trainer: Trainer | FullTrainer, found: _Found, progress: _Progress) -> None:
        assert self.checkpoint is not None
        tensors = {f"train.{name}": array for name, array in trainer.state().items()}
        if progress.best is not None:
            tensors |= {f"best.{name}": array for name, array in progress.best.arrays().items()}
        if len(found.scaling.scale):
            tensors |= {"shift": found.scaling.shift, "scale": found.scaling.scale}
        header = {
            "checkpoint": True,
            "config": self.config.to_dict(),
            "encoder": found.encoder.to_dict(),
            "rows": found.rows,
            "fingerprint": self.source.fingerprint,
            "history": progress.history,
            "watch": [progress.watch.best, progress.watch.waited],
        }
        write_model(self.checkpoint, tensors, header)

    def _saved(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the checkpoint to go on from, or None where there is none yet."""
        if self.checkpoint is None or not Path(self.checkpoint).exists():
            return None
        tensors, header = read_model(self.checkpoint)
        if not header.get("checkpoint"):
            raise ModelFileError(f"{self.checkpoint} is a finished model, not a checkpoint; train without --resume")
        if header["fingerprint"] != self.source.fingerprint:
            raise DataChangedError(
                f"{self.source.name} is not the data that {self.checkpoint} was made from; restore the data,"
                " or start anew without --resume"
            )
        self.config.require_same(header["config"])
        require_same_columns(self.encoder or self.columns.encoder(self.source), Encoder.from_dict(header["encoder"]))
        return tensors, header

    def _scratch(self) -> str | os.PathLike[str] | None:
        if self.scratch is not None:
            return self.scratch
        folder = Path(self.source.name).parent
        return folder if Path(self.source.name).exists() and os.access(folder, os.W_OK) else None


def _about_zero(scaling: Scaling) -> Scaling:
    """Return the scaling without its shift, for a model that has no intercept to take the shift back with.

    Dense features are then brought to one root mean square; sparse ones are never shifted.
    """
    if not len(scaling.shift):
        return scaling
    mean, spread = scaling.shift.astype(np.float64), 1 / scaling.scale.astype(np.float64)
    return Scaling(np.zeros_like(scaling.shift), (1 / np.hypot(mean, spread)).astype(np.float32))


@dataclass(frozen=True, slots=True)
class _Found:
    encoder: Encoder
    scaling: Scaling
    rows: int


@dataclass(slots=True)
class _Progress:
    """How far training has come, and the best weights where a held-out set decides."""

    epoch: int
    history: list[dict[str, Any]]
    watch: EarlyStopping
    best: Weights | None = None
    stopping: bool = False

    @classmethod
    def start(cls, config: Config) -> _Progress:
        watch = EarlyStopping(config.patience or config.epochs + 1, config.tolerance)
        return cls(0, [], watch, stopping=config.patience is not None)

    @classmethod
    def load(cls, saved: tuple[dict[str, Any], dict[str, Any]], config: Config) -> _Progress:
        tensors, header = saved
        progress = cls.start(config)
        progress.history = list(header["history"])
        progress.epoch = len(progress.history)
        best, waited = header["watch"]
        progress.watch = EarlyStopping(progress.watch.patience, config.tolerance, best, waited)
        arrays = {k[len("best.") :]: v for k, v in tensors.items() if k.startswith("best.")}
        progress.best = Weights.from_arrays(arrays) if arrays else None
        return progress

    def record(self, event: Epoch, trainer: Trainer | FullTrainer) -> None:
        self.epoch += 1
        self.history.append(event.row())
        if self.stopping:
            loss = _held_out_loss(self.history[-1])
            if loss <= min(map(_held_out_loss, self.history)):
                self.best = trainer.weights.copy()
            self.watch = self.watch.after(loss)

    def chosen(self) -> dict[str, Any]:
        """Return the metric row of the weights that the model takes: the best epoch's or the last one's."""
        if not self.history:
            return {}
        return self.history[-1] if self.best is None else min(reversed(self.history), key=_held_out_loss)


def _trainer(config: Config, width: int, *, outputs: int, names: Names) -> Trainer | FullTrainer:
    if config.solver == "sgd":
        return Trainer(config.spec(), width, outputs=outputs, names=names)
    return FullTrainer(config.spec(), width, solver=config.solver, tolerance=config.tolerance, names=names)


def _is_done(trainer: Trainer | FullTrainer) -> bool:
    return isinstance(trainer, FullTrainer) and trainer.done


def _held_out_loss(row: dict[str, Any]) -> float:
    return float(row["loss"] if row.get("test_loss") is None else row["test_loss"])


def require_same_columns(asked: Encoder, saved: Encoder) -> None:
    """Raise unless the columns asked for are those of a checkpoint."""
    for name, mine, other in (
        ("label", asked.label, saved.label),
        ("weight", asked.weight, saved.weight),
        ("features", [(p.columns, p.hashed) for p in asked.parts], [(p.columns, p.hashed) for p in saved.parts]),
    ):
        if mine != other:
            told = f"another choice of {name}" if name == "features" else f"{name}={other!r}, this run has {mine!r}"
            raise UsageError(
                f"the checkpoint was made with {told}; resume with the same columns, or start anew without --resume"
            )


def warn_of_large_steps(
    event: Epoch,
    loss: str,
    outputs: int,
    stream: Stream,
    *,
    remedy: str = "use a smaller learning rate, or standardize the features",
) -> None:
    """Warn where a model of zero weights, or for a regression the mean, would have done better than the first epoch.

    Large steps can raise the loss of a classifier that is right in most rows; that is told only where it is far off.
    """
    guess = {"logistic": math.log(2), "hinge": 1.0}.get(loss, math.log(outputs))
    most = guess if event.score < _MOSTLY_RIGHT else 10 * guess
    if event.score < 0 if event.metric == "r2" else event.loss > most:
        stream.emit(
            Warned(
                f"after the first epoch the loss is {event.loss:.3g}, worse than a guess: the steps are too large for these"
                f" features; {remedy}"
            )
        )


def default_label(source: BlockSource) -> str | None:
    """Return the label that the file itself names: a converted file's, or LibSVM's."""
    from penstock.blocks.arrow import layout_of

    noted = layout_of(source.schema).get("label")
    if isinstance(noted, str):
        return noted
    names = source.schema.names
    return "label" if names == ["label", "indices", "values"] else None


def feature_name(encoder: Encoder, index: int) -> str:
    """Return what messages call a feature."""
    return encoder.names[index] if encoder.names is not None else f"feature {index}"
