"""One training job for a linear model on disk: prepare the directory, run the epochs, write a checkpoint after each.

A kill at any moment leaves the last checkpoint whole, and resuming goes on from it to the same weights (on one thread).
What was prepared for the same data and columns is used again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.batch import Batch
from penstock.bigmodel.chunks import Chunk, Chunker, ahead
from penstock.bigmodel.hogwild import Learner
from penstock.bigmodel.model import FORMAT, STATE, Saved
from penstock.bigmodel.pool import Pool
from penstock.bigmodel.prepare import Prepared, prepare
from penstock.bigmodel.rewrite import ROWS, open_rows
from penstock.bigmodel.scoring import Scorer
from penstock.bigmodel.storage import Storage
from penstock.bigmodel.store import PageStore
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.budget import Budget
from penstock.config import Config
from penstock.errors import DataChangedError, LabelError, ModelFileError, UsageError, some_of
from penstock.events import Advanced, Epoch, Finished, Started, Stream
from penstock.loader.holdout import Part
from penstock.loader.loader import Loader
from penstock.loader.scan import scan
from penstock.lock import locked
from penstock.modelfile import write_model
from penstock.sgd.loop import EarlyStopping, EpochStats
from penstock.training import Columns, require_same_columns, warn_of_large_steps

KINDS = ("logistic", "svm", "linear")
# Measuring held-out rows needs windows of its own.
_MEASURING = 8


@dataclass(slots=True)
class BigTraining:
    """A job as it stands: run it with `run`, or resume it first.

    Attributes
    ----------
    source : BlockSource
        The rows.
    folder : path
        The model's directory.
    config : Config
        Hyper-parameters; its ``memory`` is for rows.
    storage : Storage
        How the model lies on disk; its ``model_memory`` is for the model.
    dimension : int, optional
        How many features there may be; an index at or beyond it is refused.
    memory : str, optional
        What was given for rows and model together, where it was one number: messages name it.
    hits, misses : int
        Pages wanted by chunks in the run that were in memory, and that had to be read; nothing where all fit.
    page_bytes_read, page_bytes_written : int
        What pages came to in the run, on their way from the disk and to it.
    requests : int
        Pages read or written in the run.
    """

    source: BlockSource
    folder: str | os.PathLike[str]
    config: Config
    storage: Storage = field(default_factory=Storage)
    columns: Columns = field(default_factory=Columns)
    test: BlockSource | None = None
    dimension: int | None = None
    memory: str | None = None
    stream: Stream = field(default_factory=Stream)
    hits: int = field(default=0, init=False)
    misses: int = field(default=0, init=False)
    page_bytes_read: int = field(default=0, init=False)
    page_bytes_written: int = field(default=0, init=False)
    requests: int = field(default=0, init=False)

    def run(self, *, resume: bool = False) -> Path:
        """Train to the end and return the model's directory."""
        self._require_possible()
        asked = self._asked()
        with locked(self.folder, marks=(STATE,)) as place, ExitStack() as stack:
            saved = self._saved(place, asked) if resume else None
            if saved is None:
                self._require_own(place)
                prepared, progress = self._prepare(place, asked), Progress.start(self.config)
            else:
                prepared = Prepared(Encoder.from_dict(saved.header["encoder"]), saved.layout)
                progress = Progress.load(saved.header, self.config)
            # All that may be refused comes before a model that is there is given up.
            loader, held_out = self._loaders(stack, place)
            if self.test is not None:
                self._test_encoder(prepared)
            learner = self._learner(stack, place, saved, prepared.layout.features)
            scorer = None
            if self.test is not None:
                memory = Budget.parse(self.config.memory).resolve(int(prepared.layout.rows_bytes))
                scorer = stack.enter_context(Scorer(place, learner, memory=memory // _MEASURING))
            self.stream.emit(Started("train", prepared.layout.rows * (self.config.epochs - progress.epoch), "rows"))
            while progress.epoch < self.config.epochs and not progress.watch.stop:
                event = self._epoch(progress.epoch, loader, learner)
                event = self._tested(event, held_out, learner, scorer, prepared)
                progress.record(event)
                self._save(place, learner, prepared, progress)
                self.stream.emit(event)
                if progress.epoch == 1:
                    remedy = "use a smaller learning rate"
                    if self.storage.optimizer != "adagrad":
                        remedy += ", or the optimizer adagrad"
                    warn_of_large_steps(event, learner.spec.loss, 2, self.stream, remedy=remedy)
            if not progress.history:
                self._save(place, learner, prepared, progress)
            self.stream.emit(Finished("train"))
            pool, store = learner.pool, learner.pool.store
            self.hits, self.misses, self.requests = pool.hits, pool.misses, store.requests
            self.page_bytes_read, self.page_bytes_written = store.bytes_read, store.bytes_written
            return place

    def _learner(self, stack: ExitStack, place: Path, saved: Saved | None, features: int) -> Learner:
        """Open the pages, new ones or those of a checkpoint, with a pool and a learner on them."""
        storage = self.storage
        memory, beside = storage.pool_memory(features), Learner.beside(storage.optimizer, storage.threads)
        if saved is not None:
            store = stack.enter_context(saved.store(place, writable=True))
        else:
            (place / STATE).unlink(missing_ok=True)  # its pages are about to be given up
            pages, floats, staging = storage.pages(features), storage.page_floats, storage.staging(features)
            store = stack.enter_context(PageStore(place, pages=pages, page_floats=floats, staging=staging))
        pool = Pool(store, memory=memory, beside=beside)
        learner = Learner(
            self.config.spec(), pool, shift=storage.shift, optimizer=storage.optimizer, threads=storage.threads
        )
        if saved is not None:
            learner.restore(dict(saved.arrays))
        return stack.enter_context(learner)

    def _require_possible(self) -> None:
        if self.config.model not in KINDS:
            raise UsageError(
                f"a {self.config.model} model cannot live on disk; choose one of: {', '.join(KINDS)}, or leave out"
                " --model-dir to train it in memory"
            )
        if self.config.solver != "sgd":
            raise UsageError(
                f"solver={self.config.solver!r} is not there for models on disk, which learn by sgd or adagrad; leave it"
                " out, or train in memory"
            )
        if self.config.l1 > 0:
            raise UsageError("l1 is not there for models on disk; use l2, or train in memory")
        if self.config.standardize:
            raise UsageError("features of models on disk are taken as they are; leave standardize out")
        if self.storage.optimizer == "adagrad" and self.config.batch_size != 1:
            raise UsageError(f"batch_size={self.config.batch_size}: AdaGrad makes an update after every row; use 1")

    def _asked(self) -> Encoder:
        """Return what is to be made of the columns, of the dimension declared."""
        asked, dimension = self.columns.encoder(self.source, wide=True), self.dimension
        if dimension is None:
            return asked
        fixed = sum(part.width or 0 for part in asked.parts if part.kind != "pairs")
        if asked.parts[-1].kind != "pairs" and dimension != fixed:
            raise UsageError(f"dimension={dimension}: these columns make {fixed} features; leave it out")
        if dimension <= fixed:
            why = f"is too few: other columns make {fixed} features" if fixed else "is not a number of features"
            raise UsageError(f"dimension={dimension} {why}; choose {fixed + 1} or more")
        return asked.with_width(dimension)

    def _saved(self, place: Path, asked: Encoder) -> Saved | None:
        """Return the checkpoint to go on from, or None where there is none yet."""
        if not (place / STATE).exists():
            return None
        saved = Saved.read(place)
        if saved.header["fingerprint"] != self.source.fingerprint:
            raise DataChangedError(
                f"{self.source.name} is not the data that the model in {place} is being learnt from; restore the data,"
                " or train in another directory"
            )
        if not (place / ROWS).exists():
            raise ModelFileError(
                f"{place / ROWS} is gone, and training cannot go on without it; start anew without --resume"
            )
        self._require_same(saved)
        require_same_columns(asked, Encoder.from_dict(saved.header["encoder"]))
        mine, other = self.storage.to_dict(), saved.header["storage"]
        for name in ("optimizer", "page_size"):
            if mine[name] != other[name]:
                raise UsageError(
                    f"the checkpoint was made with {name}={other[name]!r}, this run has {mine[name]!r}; resume with the"
                    " same value, or start anew without --resume"
                )
        return saved

    def _require_same(self, saved: Saved) -> None:
        """Raise unless the checkpoint's config trains alike; memory is named as it was given."""
        mine, other = self.config, {"memory": self.config.memory, **saved.header["config"]}
        if Budget.parse(mine.memory) != Budget.parse(other["memory"]):
            given = saved.header.get("memory") or other["memory"]
            raise UsageError(
                f"the checkpoint was made with memory={given!r}, this run has {self.memory or mine.memory!r}; resume with"
                " the same value, or start anew without --resume"
            )
        mine.require_same({**other, "memory": mine.memory})

    def _require_own(self, place: Path) -> None:
        """Raise where the directory holds a model of other data, which is not to be lost by a slip."""
        if not (place / STATE).exists():
            return
        saved = Saved.read(place)
        if saved.header["fingerprint"] != self.source.fingerprint:
            raise UsageError(
                f"{place} holds a model of other data ({_known(saved.header['data'], self.source.name)}); choose another"
                " directory, or remove that one"
            )

    def _prepare(self, place: Path, asked: Encoder) -> Prepared:
        if asked.label is None:
            raise UsageError(
                f"say which column of {self.source.name} is the label; it has: {some_of(self.source.schema.names)}"
            )
        if not asked.sparse:
            raise UsageError(
                f"{self.source.name} has {asked.width} dense features, a model that fits in memory; a model on disk is for"
                " sparse rows (lists of indices and values, LibSVM text, columns to hash, or a sparse matrix): train in"
                " memory, with the estimators of penstock itself or without --model-dir"
            )
        found = scan(self.source, asked, classes=self.config.model != "linear", width=False, stream=self.stream).encoder
        if found.labels is not None:
            if len(found.labels.classes) > 2:
                raise LabelError(
                    f"{asked.label!r} has {len(found.labels.classes)} classes, and models on disk are for two; for a label"
                    " that is a number choose linear regression (--model linear), or train softmax in memory: leave out"
                    " --model-dir, or use penstock.SoftmaxRegression"
                )
            found = found.with_labels(found.labels.as_binary(True))
        memory = Budget.parse(self.config.memory).bytes or 1 << 28
        return prepare(
            self.source, found, place, storage=self.storage, memory=memory, seed=self.config.seed, stream=self.stream
        )

    def _loaders(self, stack: ExitStack, place: Path) -> tuple[Loader[Batch], Loader[Batch] | None]:
        config = self.config
        source, encoder = open_rows(place)
        stack.enter_context(source)
        part = Part(config.validation, config.seed, held_out=False) if config.validation else None
        common: dict[str, Any] = {"seed": config.seed, "scratch": place}
        rows = int(source.block_bytes.sum())
        memory, measured = Budget.parse(config.memory).resolve(rows), None
        if part is not None:
            measured = stack.enter_context(
                Loader(source, encoder, "none", memory=memory // _MEASURING, part=part.other(), stretch=True, **common)
            )
            memory -= measured.plan.memory
        loader = stack.enter_context(Loader(source, encoder, config.shuffle, memory=memory, part=part, **common))
        return loader, measured

    def _epoch(self, number: int, loader: Loader[Batch], learner: Learner) -> Epoch:
        pool, store = learner.pool, learner.pool.store
        read, prepared = loader.bytes_read + store.bytes_read, loader.prepare_seconds
        hits, misses = pool.hits, pool.misses

        def tell(batch: Batch, stats: EpochStats) -> None:
            note = f"epoch {number + 1}/{self.config.epochs}  loss {stats.loss:.4f}  {stats.metric} {stats.score:.4f}"
            if pool.misses > misses:
                found = pool.hits - hits
                note += f"  hits {found / (found + pool.misses - misses):.1%}"
            self.stream.emit(Advanced("train", len(batch), note))

        began = time.perf_counter()
        with closing(self._chunks(loader, number, learner)) as chunks:
            stats = learner.epoch(chunks, number, on_chunk=tell)
        prepared = loader.prepare_seconds - prepared
        return Epoch(
            epoch=number + 1,
            loss=stats.loss,
            metric=stats.metric,
            score=stats.score,
            seconds=time.perf_counter() - began - prepared,
            rows=stats.rows,
            bytes=loader.bytes_read + store.bytes_read - read,
            prepare_seconds=prepared,
        )

    def _chunks(
        self, loader: Loader[Batch], number: int, learner: Learner, *, learning: bool = True
    ) -> Generator[Chunk, None, None]:
        """Yield an epoch's chunks, each made ready while the one before is in use."""
        with closing(loader.epoch(number)) as windows:
            chunker = Chunker(
                (window.batch for window in windows),
                learner.pool,
                shift=self.storage.shift,
                batch_size=self.config.batch_size if learning else 1,
                rows=learner.most_rows if learning else None,
                entries=self.storage.chunk_entries(learner.pool.store.pages << self.storage.shift),
                learning=learning,
            )

            def make() -> Chunk | None:
                if learning and learner.faded and not learner.pool.pinned:
                    learner.settle()
                return chunker.make()

            with closing(ahead(make, chunker.release)) as chunks:
                yield from chunks

    def _test_encoder(self, prepared: Prepared) -> Encoder:
        assert self.test is not None
        return prepared.encoder.for_schema(self.test.schema, place=self.test.name, scored=True)

    def _tested(
        self,
        event: Epoch,
        held_out: Loader[Batch] | None,
        learner: Learner,
        scorer: Scorer | None,
        prepared: Prepared,
    ) -> Epoch:
        """Return the epoch's event with the loss and score of the rows held out, or of the test set."""
        if scorer is not None:
            assert self.test is not None
            found = scorer.evaluate(self.test, self._test_encoder(prepared), self.config.spec().loss)
            return replace(event, test_loss=found["loss"], test_score=found[event.metric])
        if held_out is None:
            return event
        with closing(self._chunks(held_out, 0, learner, learning=False)) as chunks:
            stats = learner.measure(chunks)
        return replace(event, test_loss=stats.loss, test_score=stats.score)

    def _save(self, place: Path, learner: Learner, prepared: Prepared, progress: Progress) -> None:
        """Write a checkpoint: pages first, then what names them as good."""
        store = learner.pool.store
        learner.pool.flush()
        store.sync()
        header = {
            "bigmodel": "linear",
            "format": FORMAT,
            "kind": self.config.model,
            "data": self.source.name,
            "config": self.config.to_dict(),
            "storage": self.storage.to_dict(),
            "memory": self.memory,
            "encoder": prepared.encoder.to_dict(),
            "layout": prepared.layout.to_dict(),
            "fingerprint": self.source.fingerprint,
            "history": progress.history,
            "watch": [progress.watch.best, progress.watch.waited],
            "done": progress.epoch >= self.config.epochs or progress.watch.stop,
        }
        write_model(place / STATE, {**learner.state(), **store.arrays()}, header)
        store.committed()


def _known(before: str, now: str) -> str:
    """Tell data apart for a message."""
    return f"{before} as it was before it changed" if before == now else f"{before}, where this is {now}"


@dataclass(slots=True)
class Progress:
    """How far training has come."""

    history: list[dict[str, Any]]
    watch: EarlyStopping
    stopping: bool

    @classmethod
    def start(cls, config: Config) -> Progress:
        """Begin."""
        watch = EarlyStopping(config.patience or config.epochs + 1, config.tolerance)
        return cls([], watch, config.patience is not None)

    @classmethod
    def load(cls, header: Any, config: Config) -> Progress:
        """Go on from a checkpoint."""
        progress = cls.start(config)
        progress.history = list(header["history"])
        best, waited = header["watch"]
        progress.watch = EarlyStopping(progress.watch.patience, config.tolerance, best, waited)
        return progress

    @property
    def epoch(self) -> int:
        """Epochs that are behind."""
        return len(self.history)

    def record(self, event: Epoch) -> None:
        """Take note of an epoch."""
        self.history.append(event.row())
        if self.stopping:
            self.watch = self.watch.after(event.loss if event.test_loss is None else event.test_loss)
