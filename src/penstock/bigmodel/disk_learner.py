"""Training of a linear model on disk: the learner of a job (`penstock.job`) whose weights are in pages.

A kill at any moment leaves the last checkpoint whole, and resuming goes on from it to the same weights (on one thread).
What was prepared for the same data and columns is used again.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from numpy.typing import NDArray

from penstock.batch import Batch
from penstock.bigmodel.checkpoint import CheckpointDirectory, begin_anew
from penstock.bigmodel.chunks import Chunk, Chunker, PositionScale, ahead
from penstock.bigmodel.model import Saved, Scorer, TrainedPages
from penstock.bigmodel.page_trainer import PageTrainer
from penstock.bigmodel.pool import PagePool
from penstock.bigmodel.prepare import prepare
from penstock.bigmodel.rewrite import ROWS, prepared_rows
from penstock.bigmodel.storage import FeatureLayout, Storage
from penstock.bigmodel.store import PageStore
from penstock.blocks.base import BlockSource
from penstock.budget import Budget
from penstock.checkpoint import Checkpoint, require_same_columns
from penstock.class_weights import ClassWeights
from penstock.columns.recipe import Recipe
from penstock.config import Config
from penstock.errors import LabelError, ModelFileError, UsageError
from penstock.events import Epoch, Warned
from penstock.job import Job, Limits, OnRows, Progress, Usage, progressive_note
from penstock.loader.holdout import RowSplit
from penstock.loader.loader import CurrentWindow
from penstock.loader.row_forms import Scaling
from penstock.measures import Measures, OnScores
from penstock.measuring import EncodedRows, Measuring, held_out_noise, measures_with, open_rows
from penstock.messages import START_ANEW, Given, Name, Text, TextPart, Use
from penstock.metric_names import useless_reason
from penstock.options import made_with
from penstock.sgd.loop import EpochStats
from penstock.solvers import DataShape
from penstock.training import (
    Columns,
    class_weights_of,
    large_steps,
    saved_class_weights,
    scan_labels,
    shown_class_weights,
    shown_dropped_rows,
)

# Scoring a test set needs memory of its own.
_MEASURING = 8
# AdaGrad's steps are not bounded here, as they are by default in memory, and so are smaller.
_ADAGRAD_RATE = 0.1


@dataclass(slots=True)
class DiskLearner:
    """Learns a linear model whose weights are in pages on disk.

    Attributes
    ----------
    checkpoint : CheckpointDirectory
        The model's directory.
    storage : Storage
        How the model lies on disk; its ``model_memory`` is for the model, the config's ``memory`` for rows. It takes the config's
        optimizer.
    columns : Columns
        Features, label and weight.
    dimension : int, optional
        How many features there may be; an index at or beyond it is refused.
    memory : str, optional
        What was given for rows and model together, where it was one number: messages name it.
    """

    stops_on_test: ClassVar[bool] = False
    measured_at_end: ClassVar[bool] = True
    saves_start: ClassVar[bool] = False
    converged: ClassVar[bool] = False

    checkpoint: CheckpointDirectory
    storage: Storage
    columns: Columns
    dimension: int | None = None
    memory: str | None = None
    _job: Job[Config, TrainedPages] = field(init=False)
    _recipe: Recipe = field(init=False)
    _layout: FeatureLayout = field(init=False)
    _class_weights: ClassWeights | None = field(init=False)
    _dropped_rows: int = field(init=False)
    _rows: Measuring = field(init=False)
    _trainer: PageTrainer = field(init=False)
    _scorer: Scorer | None = field(init=False)
    _final: dict[str, NDArray[Any]] | None = field(init=False)

    def check(self, job: Job[Config, TrainedPages], /) -> None:
        """Take the job over; refuse what a model on disk cannot do."""
        self._job, self._class_weights, self._scorer, self._final = job, None, None, None
        config = job.config
        storage = self.storage = replace(self.storage, optimizer=config.optimizer or "sgd")
        require_possible(config, storage)
        self._recipe = recipe_of_dimension(
            self.columns, job.source, self.dimension, standardize=bool(config.standardize)
        )

    def require_same(self, saved: Checkpoint, /) -> dict[str, Any]:
        """Raise where a checkpoint has no rows, or other columns, pages or memory; return its config."""
        rows, config = self.checkpoint.place / ROWS, self._job.config
        if not rows.exists():
            raise ModelFileError(f"{rows} is gone, and training cannot go on without it", fixes=[START_ANEW])
        storage = saved.header["storage"]
        # Old checkpoints do not name these.
        other = {"memory": config.memory, "optimizer": Storage(**storage).optimizer, **saved.header["config"]}
        if Budget.parse(config.memory) != Budget.parse(other["memory"]):  # told as it was given
            raise made_with("memory", saved.header.get("memory") or other["memory"], self.memory or config.memory)
        require_same_columns(self._recipe, Recipe.from_dict(saved.header["encoder"]))
        if storage["page_size"] != self.storage.to_dict()["page_size"]:
            raise made_with("page_size", storage["page_size"], self.storage.to_dict()["page_size"])
        return {**other, "memory": config.memory}

    def prepare(self, saved: Checkpoint | None, /) -> int:
        """Copy the rows with positions in place of features, unless that is done; return how many there are."""
        if saved is None:
            self.checkpoint.require_own(self._job.source)
            self._layout = self._prepare()
        else:
            known = Saved(saved.header, saved.arrays)
            self._recipe, self._layout = Recipe.from_dict(saved.header["encoder"]), known.layout
            self._class_weights = saved_class_weights(saved.header)
            self._dropped_rows = int(saved.header.get("dropped_rows", 0))
        return self._layout.rows

    def start(self, share: float, saved: Checkpoint | None, stack: ExitStack, /) -> Limits:
        """Open rows and pages; all that may be refused comes before a model that is there is given up."""
        job, layout = self._job, self._layout
        self._rows = self._open(stack, share)
        if job.test is not None:
            self._test_recipe()
        learned = round(layout.rows * (1 - share - job.test_share))
        shape = DataShape(rows=learned, width=layout.features, in_memory=False)
        config = job.config.resolve(shape, held_out=share > 0)
        known = None if saved is None else Saved(saved.header, saved.arrays)
        self._trainer = self._new_trainer(stack, config, known)
        if job.test is not None:
            memory = Budget.parse(config.memory).resolve(int(layout.rows_bytes))
            self._scorer = stack.enter_context(
                Scorer(self.checkpoint.place, self._trainer, memory=memory // _MEASURING)
            )
        noise = held_out_noise(round(layout.rows * share), job.config.patience)
        return Limits(learned, config.epoch_limit, config.patience or 0, config.tolerance, noise)

    @property
    def splits(self) -> tuple[str, ...]:
        return (*self._rows.splits, "test") if self._scorer is not None else self._rows.splits

    @property
    def usage(self) -> Usage:
        """What was read of rows and pages."""
        loader = self._rows.loader
        read = loader.bytes_read + self._trainer.pool.store.bytes_read
        return Usage(read, loader.prepare_seconds, loader.extra_disk_bytes)

    @property
    def facts(self) -> Mapping[str, Any]:
        return shown_class_weights(self._recipe, self._class_weights) | shown_dropped_rows(self._dropped_rows)

    def run_epoch(self, epoch: int, on_rows: OnRows, /) -> EpochStats:
        pool = self._trainer.pool
        hits, misses = pool.hits, pool.misses

        def tell(batch: Batch, stats: EpochStats) -> None:
            note = progressive_note(stats)
            if pool.misses > misses:
                share = (pool.hits - hits) / (pool.hits - hits + pool.misses - misses)
                note += f"  hits {share:.1%}"
            on_rows(len(batch), note)

        with closing(self._chunks(epoch)) as chunks:
            return self._trainer.epoch(chunks, epoch, on_chunk=tell)

    def warnings(self, event: Epoch, /, *, last: bool) -> Iterator[str]:
        """Say that steps were too large."""
        spec, adagrad = self._trainer.spec, self.storage.optimizer == "adagrad"
        if event.epoch == 1 and (adagrad or not spec.rate.bounded):
            remedy = "use a smaller learning rate" + ("" if adagrad else ", or the optimizer adagrad")
            remedy += "" if spec.scaled else ", or standardize the features"
            yield from large_steps(event, spec.loss, 2, remedy=remedy)

    def evaluate(self, split: str, on_scores: OnScores | None, /) -> EpochStats:
        if split == "test" and self._scorer is not None:
            assert self._job.test is not None
            return self._scorer.measure(self._job.test, self._test_recipe(), on_scores=on_scores)
        return self._rows.of(split, self._layout.rows).measure(self._trainer, on_scores=on_scores)

    def measures(self, *, finished: bool) -> list[Measures]:
        loss, memory = self._trainer.spec.loss, self._job.config.memory
        return measures_with(self._recipe, loss, memory, self._class_weights, finished=finished)

    def keep_best(self) -> None:
        """Write all pages, and keep them."""
        self._flush()
        self._trainer.keep_best()

    def use_best(self) -> None:
        """Read the best pages from now on, where they were kept; nothing is written afterwards."""
        self._final = self._arrays()
        self._trainer.show_best()

    def useless(self, metrics: Mapping[str, Any], /) -> str | None:
        return useless_reason(metrics)

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Write all pages, and return what names them as good, with how the model was made."""
        arrays = self._final if self._final is not None else self._arrays()
        return arrays, {
            "kind": self._job.config.model,
            "storage": self.storage.to_dict(),
            "memory": self.memory,
            "encoder": self._recipe.to_dict(),
            "layout": self._layout.to_dict(),
            "dropped_rows": self._dropped_rows,
            "class_weights": None if self._class_weights is None else self._class_weights.factors.tolist(),
        }

    def saved(self) -> None:
        """Let pages of the checkpoint before be written over."""
        if self._final is None:
            self._trainer.pool.store.committed()

    def model(self, progress: Progress, metrics: dict[str, Any], /) -> TrainedPages:
        """Return the model's directory, and what came of its pages."""
        pool, store = self._trainer.pool, self._trainer.pool.store
        traffic = {"requests": store.requests, "hits": pool.hits, "misses": pool.misses}
        traffic |= {"bytes_read": store.bytes_read, "bytes_written": store.bytes_written}
        return TrainedPages(self.checkpoint.place, traffic)

    def _flush(self) -> None:
        self._trainer.pool.flush()
        self._trainer.pool.store.sync()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Write all pages, and return what names them as good."""
        self._flush()
        trainer = self._trainer
        scale = {} if trainer.scale is None else {"scale": trainer.scale.factors}
        return {**trainer.state(), **trainer.pool.store.arrays(), **scale}

    def _scale(self) -> PositionScale | None:
        """Return what features are to be scaled by, as far as that changes anything."""
        if not self._job.config.standardize:
            return None
        layout = self._layout
        source, recipe = prepared_rows(self.checkpoint.place, features=layout.features)
        with source:
            own = min(layout.hot, self.storage.keep)
            return PositionScale.sampled(source, recipe, own=own, seed=self._job.config.seed)

    def _new_trainer(self, stack: ExitStack, config: Config, saved: Saved | None) -> PageTrainer:
        """Open the pages, new ones or those of a checkpoint, with a pool and a trainer on them."""
        storage, place, features = self.storage, self.checkpoint.place, self._layout.features
        scale = self._scale() if saved is None else saved.scale
        memory, beside = storage.pool_memory(features), PageTrainer.beside(storage.optimizer, storage.threads)
        if saved is not None:
            store = stack.enter_context(saved.store(place, writable=True))
        else:
            begin_anew(place)
            pages, floats, staging = storage.pages(features), storage.page_floats, storage.staging(features)
            store = stack.enter_context(PageStore(place, pages=pages, page_floats=floats, staging=staging))
        if config.optimizer == "adagrad" and config.learning_rate is None:
            config = replace(config, learning_rate=_ADAGRAD_RATE)
        trainer = PageTrainer(
            config.spec().for_classes(self._class_weights),
            PagePool(store, memory=memory, beside=beside),
            shift=storage.shift,
            optimizer=storage.optimizer,
            threads=storage.threads,
            scale=scale,
            entries=storage.chunk_entries(features),
        )
        if saved is not None:
            trainer.restore(saved.arrays)
        return stack.enter_context(trainer)

    def _prepare(self) -> FeatureLayout:
        job, chosen = self._job, self._recipe
        if chosen.label is not None and not chosen.sparse:
            raise UsageError(
                f"{job.source.name} has {chosen.width} dense features, a model that fits in memory",
                fixes=[
                    Text(
                        "a model on disk is for sparse rows (lists of indices and values, LibSVM text, columns to hash, or"
                        " a sparse matrix): train in memory, with the estimators of penstock itself or without ",
                        Name("model_dir"),
                    )
                ],
            )
        result = scan_labels(job, self.columns, chosen, width=False)
        recipe, config = result.recipe, job.config
        if recipe.labels is not None:
            if len(recipe.labels.classes) > 2:
                raise LabelError(
                    f"{chosen.label!r} has {len(recipe.labels.classes)} classes, and models on disk are for two",
                    fixes=[
                        Text("for a label that is a number choose linear regression (", Use("model", "linear"), ")"),
                        Text("train softmax in memory: leave out ", Name("model_dir")),
                        "use penstock.SoftmaxRegression",
                    ],
                )
            recipe = recipe.with_labels(recipe.labels.as_binary(True))
        self._recipe, self._class_weights = recipe, class_weights_of(config, result)
        self._dropped_rows = result.dropped_rows
        memory = Budget.parse(config.memory).bytes or 1 << 28
        return prepare(
            job.source,
            recipe,
            self.checkpoint.place,
            storage=self.storage,
            memory=memory,
            seed=config.seed,
            stream=job.stream,
        )

    def _open(self, stack: ExitStack, share: float) -> Measuring:
        """Open the prepared rows, to learn from and to measure on."""
        job, place = self._job, self.checkpoint.place
        source, recipe = prepared_rows(place, features=self._layout.features)
        stack.enter_context(source)
        rows = open_rows(
            stack,
            EncodedRows(source, recipe, Scaling.none()),
            test=None,
            split=RowSplit(job.config.seed, job.test_share, share),
            shuffle=job.config.shuffle,
            memory=job.config.memory,
            window=CurrentWindow(),
            seed=job.config.seed,
            scratch=place,
        )
        raised = self.storage.raised(self._layout.features)
        for notice in (*rows.loader.plan.notices, *([raised] if raised else [])):
            job.stream.emit(Warned(notice))
        return rows

    def _chunks(self, epoch: int) -> Generator[Chunk, None, None]:
        """Yield an epoch's chunks, each made ready while the one before is in use."""
        weights, trainer = self._class_weights, self._trainer
        with closing(self._rows.loader.epoch(epoch)) as windows:
            chunker = Chunker(
                (window.batch if weights is None else weights.weigh(window.batch) for window in windows),
                trainer.pool,
                shift=self.storage.shift,
                batch_size=self._job.config.batch_size,
                rows=trainer.most_rows,
                entries=self.storage.chunk_entries(trainer.pool.store.pages << self.storage.shift),
                learning=True,
                scale=trainer.scale,
            )

            def make() -> Chunk | None:
                if trainer.faded and not trainer.pool.pinned:
                    trainer.settle()
                return chunker.make()

            with closing(ahead(make, chunker.release)) as chunks:
                yield from chunks

    def _test_recipe(self) -> Recipe:
        test = self._job.test
        assert test is not None
        return self._recipe.for_schema(test.schema, place=test.name, scored=True).to_measure()


def disk_job(
    source: BlockSource,
    folder: str | os.PathLike[str],
    config: Config,
    storage: Storage | None = None,
    columns: Columns | None = None,
    *,
    dimension: int | None = None,
    memory: str | None = None,
    **more: Any,
) -> Job[Config, TrainedPages]:
    """Return the job of training a linear model in its directory; see `DiskLearner`, and `Job` for ``more``."""
    checkpoint = CheckpointDirectory(folder, "linear")
    learner = DiskLearner(checkpoint, storage or Storage(), columns or Columns(), dimension, memory)
    return Job(source, learner, config, checkpoint=checkpoint, **more)


KINDS = ("logistic", "svm", "linear")


def require_possible(config: Config, storage: Storage) -> None:
    """Raise for a kind or an option that models on disk do not have."""

    def refused(option: str, *reason: TextPart, fixes: list[TextPart]) -> UsageError:
        value = storage.threads if option == "threads" else getattr(config, option)
        return UsageError(*reason, option=option, value=value, fixes=fixes)

    if config.model not in KINDS:
        fix = Text("leave out ", Name("model_dir"), " to train it in memory")
        reason = f"a {config.model} model cannot live on disk"
        raise UsageError(reason, fixes=[f"choose one of: {', '.join(KINDS)}", fix])
    if config.full_passes:
        reason = "is not there for models on disk, which learn by sgd or adagrad"
        raise refused("solver", reason, fixes=["leave it out", "train in memory"])
    if config.l1 > 0:
        raise refused("l1", "is not there for models on disk", fixes=[Text("use ", Name("l2")), "train in memory"])
    if storage.optimizer == "adagrad" and config.batch_size != 1:
        raise refused("batch_size", ": AdaGrad makes an update after every row", fixes=["use 1"])
    if storage.threads > 1 and config.batch_size != 1:
        reason = ": several threads learn where every row is an update"
        given = Given("batch_size", config.batch_size)
        raise refused("threads", "with ", given, reason, fixes=[Use("batch_size", 1), Use("threads", 1)])


def recipe_of_dimension(
    columns: Columns, source: BlockSource, dimension: int | None, *, standardize: bool = True
) -> Recipe:
    """Return what is to be made of the columns, of the dimension declared.

    Numbers are centered by the recipe, if they are to be standardized: pages of weights have no place for a shift.

    Raises
    ------
    UsageError
        The columns make another number of features.
    """
    recipe = columns.labelled_recipe(source, wide=True, standardize=standardize)
    if dimension is None:
        return recipe
    fixed = sum(part.width or 0 for part in recipe.parts if part.kind != "pairs")
    if recipe.parts[-1].kind != "pairs" and dimension != fixed:
        reason = f": these columns make {fixed} features"
        raise UsageError(reason, option="dimension", value=dimension, fixes=["leave it out"])
    if dimension <= fixed:
        reason = f"is too few: other columns make {fixed} features" if fixed else "is not a number of features"
        raise UsageError(reason, option="dimension", value=dimension, fixes=[f"choose {fixed + 1} or more"])
    return recipe.with_width(dimension)
