"""The rows of a part of a group in the order in which an epoch of SGD visits them.

The order is one of `penstock.shuffle`, planned over chunks of the part as it is over the blocks of a file; windows are
gathered from the memory map. It hangs on the seed, the group, the part and the epoch alone: every config sees the same
order, and so does plain SGD over the same parts one after another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Batch, Csr
from penstock.class_weights import ClassWeights
from penstock.errors import UsageError
from penstock.groups.patterns.base import Worker
from penstock.groups.scale import Scale
from penstock.groups.split import TRAINING
from penstock.shuffle import ORDERS, RowWindow, Shape, order
from penstock.shuffle.permute import slots

_CHUNK = 64 << 10
"""Bytes of rows that lie together, and are moved together, in an order's eyes."""
ORDERED = tuple(
    sorted(name for name, each in ORDERS.items() if each.facts.copy == "never" and each.facts.mixing == "none")
)
"""The orders that need neither a copy of the rows nor rows held back from window to window."""


@dataclass(slots=True)
class Shuffled:
    """Gathers windows of ``memory`` bytes of rows, which the worker reads, in one of the orders in `ORDERED`."""

    worker: Worker
    shuffle: str
    memory: int
    seed: int
    _kept: tuple[tuple[int, int, int, int], Batch] | None = field(default=None)

    def __post_init__(self) -> None:
        require_ordered(self.shuffle)

    def windows(
        self,
        group: int,
        first: int,
        rows: int,
        epoch: int,
        *,
        scale: Scale | None = None,
        mean_weight: float = 1.0,
        class_weights: ClassWeights | None = None,
    ) -> Iterator[Batch]:
        """Yield the rows to learn from, others left out, brought to a scale.

        Their weights are divided by the mean, and multiplied by their classes' factors.
        """
        key = (group, first, rows, epoch)
        if self._kept is not None and self._kept[0] == key:
            yield self._kept[1]
            return
        self._kept = None
        shape = self._shape(group, first, rows)
        for index, numbers in enumerate(self._numbers(shape, epoch)):
            batch = self._gathered(group, numbers + first, scale, mean_weight)
            if class_weights is not None:
                batch = class_weights.weigh(batch)
            if not index and len(numbers) == rows:  # configs that hop follow one another over the same rows
                self._kept = (key, batch)
            if len(batch):
                yield batch

    def _shape(self, group: int, first: int, rows: int) -> Shape:
        row_bytes = max(1.0, self.worker.grouped.nbytes / max(1, int(self.worker.grouped.rows.sum())))
        chunk = max(1, int(_CHUNK / row_bytes))
        sizes = np.full(-(-rows // chunk), chunk, np.int64)
        sizes[-1] = rows - chunk * (len(sizes) - 1)
        held = max(1, int(self.memory / row_bytes))
        return Shape(sizes, held, seed=seeds.key(self.seed, "group", group, first))

    def _numbers(self, shape: Shape, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each window, counted within the part, in the order of an epoch."""
        starts = np.concatenate([[0], np.cumsum(shape.block_rows)])
        for window in order(self.shuffle).windows(shape, epoch):
            if isinstance(window, RowWindow):
                yield window.numbers
                continue
            stored = np.concatenate([np.arange(starts[block], starts[block + 1]) for block in window.blocks.tolist()])
            if window.key is not None:
                places = slots(len(stored), window.key)
                moved = np.empty_like(stored)
                moved[places] = stored
                stored = moved
            yield stored

    def _gathered(self, group: int, numbers: NDArray[np.int64], scale: Scale | None, mean_weight: float) -> Batch:
        low, high = int(numbers.min()), int(numbers.max()) + 1
        parts, start, training = [], low, np.ones(high - low, bool)
        for batch, part in self.worker.rows(group, low, high - low):
            parts.append((start, batch))
            if part is not None:
                training[start - low : start - low + len(batch)] = part == TRAINING
            start += len(batch)
        numbers = numbers[training[numbers - low]]
        batch = _taken(parts, numbers)
        if not len(batch):
            return batch
        x = batch.x if scale is None else scale.rows(batch.x)
        weight = None if batch.weight is None else (batch.weight / np.float64(mean_weight)).astype(np.float32)
        return Batch(x, batch.y, weight)


def require_ordered(shuffle: str) -> None:
    """Raise `UsageError` unless an order can be had within groups."""
    order(shuffle)
    if shuffle not in ORDERED:
        raise UsageError(
            "is not there for groups", option="shuffle", value=shuffle, fixes=[f"choose one of: {', '.join(ORDERED)}"]
        )


def _taken(parts: list[tuple[int, Batch]], numbers: NDArray[np.int64]) -> Batch:
    """Return rows picked from parts that lie one after another, by the number of each."""
    if len(parts) == 1:
        return parts[0][1].take(numbers - parts[0][0])
    owner = np.searchsorted([start for start, _ in parts], numbers, side="right") - 1
    if isinstance(parts[0][1].x, Csr):
        by_part = np.argsort(owner, kind="stable")
        picked = [batch.take(numbers[owner == at] - start) for at, (start, batch) in enumerate(parts)]
        back = np.empty_like(by_part)
        back[by_part] = np.arange(len(by_part))
        return Batch.concat(picked).take(back)
    first = parts[0][1]
    x = np.empty((len(numbers), first.width), np.float32)
    y, weight = np.empty(len(numbers), np.float32), None if first.weight is None else np.empty(len(numbers), np.float32)
    for at, (start, batch) in enumerate(parts):
        here = np.flatnonzero(owner == at)
        places = numbers[here] - start
        x[here] = batch.x[places]  # type: ignore[index]  # all parts are dense
        if batch.y is not None:
            y[here] = batch.y[places]
        if weight is not None and batch.weight is not None:
            weight[here] = batch.weight[places]
    return Batch(x, y, weight)
