"""How clustered the stored rows are: h_D of section 4.2, from gradients at weights of zero.

A row's gradient there is its features times the loss's slope, with one more coordinate for the intercept. Dense
features count in units of their own size, so that none drowns the others; wide rows are projected at random
onto a few dimensions, which keeps variances as they are on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.batch import Batch, Csr
from penstock.blocks.base import Int64s
from penstock.explanation.sample import DataSample
from penstock.messages import Text, Use
from penstock.sgd import losses
from penstock.shuffle import quality

Doubles = NDArray[np.float64]
DIMENSIONS, CLASS_DIMENSIONS = 64, 8
BATCH = 256
# With fewer blocks than this, runs of rows inside the blocks stand for blocks.
_PIECES = 32
_SHUFFLES = 20


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How well the recommended way shuffles: the theorem's α, (1 - α)·h_D, and the balance of batches.

    ``balance`` is the variance of the label's share over batches of 256 rows, over that of a full shuffle.
    """

    alpha: float
    factor: float
    balance: float


@dataclass(frozen=True, slots=True)
class Clustering:
    """h_D, the block variance factor of the gradients, with its standard error, and what follows from it.

    ``piece_rows`` are the rows of a block (or of the runs that stand for blocks): what h_D is where all rows of one are alike.
    ``pieces`` of all ``pieces_in_all`` were sampled. ``units`` are row groups that are served in parts and read side by side; 0
    where blocks are read freely. ``by`` is what tells the blocks apart: label, feature, or nothing.
    """

    h_D: float  # noqa: N815 - the paper's symbol
    error: float
    label_h_D: float  # noqa: N815
    piece_rows: float
    pieces: int
    pieces_in_all: int
    units: int
    rows: int
    by: str
    meaning: str

    @property
    def clustered(self) -> bool:
        """Whether stored order would cost accuracy, beyond what chance explains."""
        return self.by != ""

    def draws(self, window_rows: float, *, opened: int) -> float:
        """Return how many places of the data a window's rows are from, with so many row groups open at a time."""
        pieces = max(1.0, window_rows / self.piece_rows)
        return min(pieces, self.units, opened) if self.units else pieces

    def alpha(self, window_rows: float) -> float:
        """Return the theorem's α for a window of so many rows."""
        return quality.alpha(window_rows / self.piece_rows, self.pieces_in_all)

    def factor(self, window_rows: float) -> float:
        """Return (1 - α)·h_D for a window of so many rows."""
        return (1 - self.alpha(window_rows)) * self.h_D

    def balance(self, window_rows: float, *, opened: int) -> float:
        """Return the variance of the label's share over batches of 256 rows, over the binomial's.

        A batch strays as its own rows do, and with the window that it is from; a window strays the less, the
        more places its rows are from.
        """
        shared = min(1.0, self.label_h_D / self.piece_rows)
        return 1 + (BATCH - 1) * shared * (1 - self.alpha(window_rows)) / self.draws(window_rows, opened=opened)

    def shuffled(self, window_rows: float, *, opened: int) -> ShuffleQuality:
        """Return how well windows of so many rows shuffle."""
        balance = self.balance(window_rows, opened=opened)
        return ShuffleQuality(alpha=self.alpha(window_rows), factor=self.factor(window_rows), balance=balance)

    def in_blocks(self, rows: float) -> Clustering:
        """Return the same for data whose blocks have so many rows, fewer than now, and are read freely."""
        smaller = min(1.0, rows / self.piece_rows)
        return replace(
            self,
            units=0,
            piece_rows=smaller * self.piece_rows,
            pieces_in_all=int(self.pieces_in_all / smaller),
            h_D=max(1.0, smaller * self.h_D),
            label_h_D=max(1.0, smaller * self.label_h_D),
        )

    def enough_rows(self, balance: float = 1.1) -> int:
        """Return the rows of the smallest window whose batches are balanced that well."""
        need = (BATCH - 1) * min(1.0, max(self.label_h_D, self.h_D) / self.piece_rows) / (balance - 1)
        return int(np.ceil(self.piece_rows * need / (1 + need / max(self.pieces_in_all, 1))))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {**asdict(self), "clustered": self.clustered}


def measure_clustering(sample: DataSample, *, seed: int = 0) -> Clustering | Text:
    """Estimate h_D from a sample, or say why it cannot be."""
    source = sample.feed.source
    if sample.recipe.label is None:
        return Text("no label is known: name it with ", Use("label", "COLUMN"))
    if sample.rows < 4:
        return Text(f"{sample.rows} rows are too few")
    gradients, labels = row_gradients(sample.parts, sample.model, outputs=sample.outputs, seed=seed)
    blocks = len(source.block_rows)
    units = 0 if source.units is None else len(np.unique(source.units))
    split = -(-_PIECES // blocks)
    # A row's piece is its block, or one of several runs of rows within that.
    runs = [
        k * split + place * split // count
        for k, (place, count) in enumerate(zip(sample.places, sample.counts, strict=True))
    ]
    owners = np.concatenate(runs)
    piece_rows = max(1.0, sample.rows_in_all / blocks / split)
    parts = _by_owner(gradients, owners)
    if len(parts) < 2:
        return Text("too few rows lie in more than one place")
    h_D = quality.block_variance(parts, piece_rows)
    error = quality.block_variance_error(parts, piece_rows)
    sides = _by_owner(labels, owners)
    label_h_D = quality.block_variance(sides, piece_rows)
    # Where few of the sampled places differ from all others, the estimate is vague, yet no shuffle would look so.
    label_error = min(quality.block_variance_error(sides, piece_rows), _by_chance(sides, piece_rows, seed=seed))
    # Gradients of many features drown the label in their own variance; so it is asked by itself as well.
    shuffled = max(2.0, piece_rows**0.25)
    by_label, by_any = label_h_D - 2 * label_error > shuffled, h_D - 2 * error > shuffled
    by = "label" if by_label or (by_any and label_h_D >= h_D) else "feature" if by_any else ""
    stated = (label_h_D, label_error) if by_label else (h_D, error)
    meaning = quality.describe_hd(stated[0], piece_rows, error=stated[1], by=by).split("): ", 1)[1]
    return Clustering(
        h_D=h_D,
        error=error,
        label_h_D=label_h_D,
        piece_rows=piece_rows,
        pieces=len(parts),
        pieces_in_all=blocks * split,
        units=units if units < blocks else 0,
        rows=sample.rows,
        by=by,
        meaning=meaning,
    )


def row_gradients(parts: Sequence[Batch], model: str, *, outputs: int, seed: int = 0) -> tuple[Doubles, Doubles]:
    """Return each row's gradient at zero (projected where wide), and what of it is the label alone.

    Examples
    --------
    >>> batch = Batch(np.array([[2.0], [2.0]], np.float32), np.array([1, -1], np.float32))
    >>> row_gradients([batch], "svm", outputs=1)[0]
    array([[-1., -1.],
           [ 1.,  1.]])
    """
    y = np.concatenate([p.y for p in parts if p.y is not None]).astype(np.float64)
    loss = losses.loss_of(model)
    if not loss.classifies:
        y = y - y.mean()  # what an intercept learns at once
    at_zero = loss.slope(np.zeros((len(y), outputs)) if loss.many else np.zeros(len(y)), y)
    slope: Doubles = at_zero.reshape(len(y), -1).astype(np.float64)
    rng = seeds.generator(seed, "explain", "projection")
    if slope.shape[1] > CLASS_DIMENSIONS:
        slope = slope @ _signs(rng, slope.shape[1], CLASS_DIMENSIONS)
    x = np.column_stack([_project(parts, rng), np.ones(len(y))])
    return np.einsum("ik,ij->ikj", slope, x).reshape(len(y), -1), slope


def _project(parts: Sequence[Batch], rng: np.random.Generator) -> Doubles:
    if isinstance(parts[0].x, Csr):
        x = Csr.concat([p.x for p in parts if isinstance(p.x, Csr)])
        names, index = np.unique(x.indices, return_inverse=True)
        place = rng.integers(0, DIMENSIONS, len(names)) if len(names) > DIMENSIONS else np.arange(len(names))
        sign = rng.choice([-1.0, 1.0], len(names))
        owner = np.repeat(np.arange(len(x)), np.diff(x.indptr).astype(np.int64))
        size = min(DIMENSIONS, max(1, len(names)))
        cells = owner * size + place[index]
        sums: Doubles = np.bincount(cells, x.values * sign[index], len(x) * size).astype(np.float64)
        return sums.reshape(len(x), size)
    dense: Doubles = np.concatenate([p.x for p in parts if not isinstance(p.x, Csr)]).astype(np.float64)
    typical = np.sqrt((dense**2).mean(axis=0))
    dense /= np.where(typical > 0, typical, 1)
    return dense if dense.shape[1] <= DIMENSIONS else dense @ _signs(rng, dense.shape[1], DIMENSIONS)


def _signs(rng: np.random.Generator, wide: int, narrow: int) -> Doubles:
    return np.asarray(rng.choice([-1.0, 1.0], (wide, narrow)) / np.sqrt(narrow), np.float64)


def _by_chance(parts: Sequence[Doubles], piece_rows: float, *, seed: int) -> float:
    """Return how much the variance factor of these rows strays when they are shuffled among their places."""
    rng = seeds.generator(seed, "explain", "chance")
    rows, cuts = np.concatenate(parts), np.cumsum([len(part) for part in parts])[:-1]
    drawn = [quality.block_variance(np.split(rng.permutation(rows), cuts), piece_rows) for _ in range(_SHUFFLES)]
    return float(np.std(drawn, ddof=1))


def _by_owner(rows: Doubles, owners: Int64s) -> list[Doubles]:
    """Split rows by the block they belong to; blocks of which only one row was seen tell nothing."""
    order = np.argsort(owners, kind="stable")
    cuts = np.flatnonzero(np.diff(owners[order])) + 1
    return [part for part in np.split(rows[order], cuts) if len(part) > 1]
