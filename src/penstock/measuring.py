"""The rows that a training is measured on (held out, of a test set, or a sample of those it learns from), and its progress.

Which rows are held out is computed, not stored (`penstock.loader.holdout`), so they are found again by reading the data.
Where they fit in an eighth of the memory they are read once and kept; otherwise they are read again after every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from penstock.batch import Batch
from penstock.blocks.base import BlockSource
from penstock.budget import Budget, CacheChoice
from penstock.class_weights import ClassWeights
from penstock.columns.recipe import Recipe
from penstock.errors import BudgetError, DataError
from penstock.loader.holdout import SAMPLE_ROWS, RowSplit, SplitPart
from penstock.loader.loader import CurrentWindow, Loader
from penstock.loader.row_forms import Scaling
from penstock.loader.windows import Feed
from penstock.measures import Doubles, Measures, OnScores, measures_of, weighted_sum
from penstock.sgd.loop import EpochStats
from penstock.sgd.losses import find_loss

_SHARE = 8
"""Measured rows may take one part in so many of the memory."""
_MARGIN, _FEW = 1.1, 100
"""A hash may keep so many times its share of the rows, and so many more."""


class Evaluates(Protocol):
    """What a model is measured by: its weights as they are now."""

    def evaluate(self, batches: Iterable[Batch], *, on_scores: OnScores | None = None) -> EpochStats:
        """Return the loss and score on rows; ``on_scores`` hears the scores of all of them."""


class MeasuredRows:
    """Rows that a model is measured on, kept in memory after the first reading where they are within ``room`` bytes."""

    def __init__(self, read: Callable[[], Iterable[Batch]], *, room: int = 0, what: str = "the rows held out") -> None:
        self._read = read
        self._room = room
        self._what = what
        self._kept: list[Batch] | None = None

    def measure(self, trainer: Evaluates, *, on_scores: OnScores | None = None) -> EpochStats:
        """Return what a trainer's weights come to on the rows; ``on_scores`` hears the scores of all of them.

        Raises
        ------
        DataError
            There are no rows.
        """
        stats = trainer.evaluate(self._batches(), on_scores=on_scores)
        if not stats.rows:
            raise DataError(f"{self._what} are none, so nothing can be measured; give more rows, or a larger share")
        return stats

    def _batches(self) -> Iterator[Batch]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Batch] = []
        room = self._room
        for batch in self._read():
            yield batch
            room -= batch.nbytes
            if room >= 0:
                kept.append(batch.take(np.arange(len(batch))))  # a window's own arrays are used again
            else:
                kept.clear()
        if room >= 0:
            self._kept = kept


@dataclass(slots=True)
class Measuring:
    """What a training reads by: the loader of its epochs, and the rows it is measured on afterwards."""

    loader: Loader[Batch]
    held_out: MeasuredRows | None
    test: MeasuredRows | None
    sample: Callable[[SplitPart | None], MeasuredRows]
    seed: int

    @property
    def splits(self) -> tuple[str, ...]:
        """Which rows there are to measure on: ``"held_out"``, ``"test"``."""
        return tuple(split for split in ("held_out", "test") if getattr(self, split) is not None)

    def of(self, split: str, count: int) -> MeasuredRows:
        """Return the rows of a split, or about 10,000 of the ``"training"`` rows, of which there are ``count``."""
        if split == "training":
            return self.sample(
                SplitPart(SAMPLE_ROWS / count, self.seed, held_out=True) if count > SAMPLE_ROWS else None
            )
        rows: MeasuredRows = getattr(self, split)
        return rows


@dataclass(frozen=True)
class EncodedRows:
    """Rows with what is made of them, as loaders take them."""

    source: BlockSource
    recipe: Recipe
    scaling: Scaling

    @cached_property
    def size(self) -> tuple[float, int]:
        """The decoded bytes of a row, and the number of rows; some blocks may have to be decoded to tell."""
        feed = Feed.of(self.source, self.recipe, self.scaling)
        with closing(feed.decoder):
            return feed.size()

    def loader(self, order: str, **more: Any) -> Loader[Batch]:
        """Return a loader of them."""
        return Loader(self.source, self.recipe, order, scaling=self.scaling, **more)


def open_rows(
    stack: ExitStack,
    rows: EncodedRows,
    *,
    test: EncodedRows | None,
    split: RowSplit,
    shuffle: str,
    memory: str | int,
    window: CurrentWindow,
    cache: CacheChoice = False,
    **common: Any,
) -> Measuring:
    """Divide the memory between epochs and measuring, and open what reads the rows of both.

    Measuring never makes a memory too small that is enough for the epochs: what cannot be kept beside them is read in
    turns with them.

    Parameters
    ----------
    stack : ExitStack
        Closes what is opened.
    rows, test : EncodedRows
        To learn from, and to measure on.
    split : RowSplit
        Which of the rows to learn from are held out or tested on instead.
    shuffle, memory
        As in `penstock.config.Config`.
    window : CurrentWindow
        Told which window is in use, so that errors name its rows.
    cache : bool, int or Path
        Whether the loader of the epochs keeps encoded rows on disk, in how many bytes at most, or in which folder.
    common
        Other arguments of `Loader`.
    """
    row_bytes, count = rows.size
    budget = Budget.parse(memory)
    total = budget.resolve(int(row_bytes * count))
    most = total // _SHARE

    def room_of(kept: SplitPart | None) -> int:
        return 0 if kept is None else int(row_bytes * (_MARGIN * kept.share * count + _FEW))

    held_room = room_of(split.held_out)
    held_room = held_room if held_room <= most else 0
    test_room = room_of(split.test) if test is None else int(np.prod(test.size)) + 1
    test_room = test_room if test_room <= most - held_room else 0
    part = split.train
    try:
        loader = rows.loader(shuffle, memory=total - held_room - test_room, part=part, cache=cache, **common)
    except BudgetError:
        if not held_room + test_room and budget.share is None:
            raise
        held_room = test_room = 0
        loader = rows.loader(shuffle, memory=budget, part=part, cache=cache, **common)
        most = max(most, loader.plan.memory // _SHARE)
    stack.enter_context(loader)

    def apart(other: EncodedRows, kept: SplitPart | None) -> Callable[[], Iterable[Batch]]:
        """Read rows by a loader of their own, in turns with the epochs: these give up their windows meanwhile."""

        def read() -> Iterator[Batch]:
            loader.idle()
            units = other.source.max_open
            with other.loader("none", memory=most, part=kept, stretch=True, **common) as own:
                yield from window.follow(own, 0)
            other.source.max_open = units  # which the smaller memory has lowered

        return read

    def reading(kept: SplitPart | None) -> Callable[[], Iterable[Batch]]:
        return partial(window.follow_stored, loader, kept) if loader.shares_windows else apart(rows, kept)

    def sample(kept: SplitPart | None) -> MeasuredRows:
        return MeasuredRows(reading(kept), what="the training rows measured")

    held_out = None if split.held_out is None else MeasuredRows(reading(split.held_out), room=held_room)
    tested = None
    if test is not None:
        tested = MeasuredRows(apart(test, None), room=test_room, what=f"the rows of {test.source.name}")
    elif split.test is not None:
        tested = MeasuredRows(reading(split.test), room=test_room, what="the rows of the test")
    return Measuring(loader, held_out, tested, sample, split.seed)


def measures_for(recipe: Recipe, loss: str, memory: str | int) -> Measures:
    """Return what measures models of a loss on rows that a recipe makes, within an eighth of the memory for rows."""
    classes = 0 if recipe.labels is None else len(recipe.labels.classes)
    unit = recipe.weight_mean if recipe.weight is not None else 1.0
    probable = find_loss(loss).probabilities is not None
    return measures_of(classes=classes, probabilities=probable, memory=Budget.parse(memory).bytes, unit=unit)


class ClassWeightedLoss:
    """The mean loss where rows count by their class weights too, as they do in training; a kind of `Measures`.

    It decides when training stops, and whether the model is better than a constant prediction.
    """

    def __init__(self, loss: str, class_weights: ClassWeights) -> None:
        self._loss, self._class_weights = find_loss(loss), class_weights
        self._sum = self._weight = 0.0

    def add(self, scores: Doubles, labels: Doubles, weights: Doubles) -> None:
        share = weights * self._class_weights.of(labels)
        self._sum += float(weighted_sum(share, self._loss.value(scores, labels)))
        self._weight += float(share.sum())

    def figures(self) -> dict[str, Any]:
        return {"weighted_loss": self._sum / self._weight if self._weight else None}


def measures_with(
    recipe: Recipe, loss: str, memory: str | int, class_weights: ClassWeights | None, *, finished: bool
) -> list[Measures]:
    """Return what measures a model beside its loss and score: by class weights, and if it is finished by all else there is."""
    weighted: list[Measures] = [] if class_weights is None else [ClassWeightedLoss(loss, class_weights)]
    return [measures_for(recipe, loss, memory), *weighted] if finished else weighted


def held_out_noise(rows: int, patience: int | None) -> float:
    """Return the relative error of a loss on so many held-out rows, which early stopping that is left open allows for.

    A figure of few rows is noisy, so not every rise is a turn; a ``patience`` that was given is taken at its word.
    """
    return rows**-0.5 if rows and patience is None else 0.0
