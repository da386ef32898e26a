"""How random an order is, and how clustered the data are (sections 3.5 and 4.2).

`visit` plays an order through on row numbers, for tests and pictures of small data; `block_variance` estimates h_D from a
sample of per-row gradients. Nothing is read here: gradients, or any vectors that stand for them, come as arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.errors import UsageError
from penstock.shuffle.base import Int64s, Order, RowWindow, Shape, Window
from penstock.shuffle.permute import KeyedPermutation, slots

Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Traced:
    """What one window of an epoch gives out, and what its mixer holds afterwards, as row numbers."""

    window: Window | RowWindow
    given: Int64s
    held: Int64s


def trace(order: Order, shape: Shape, epoch: int, *, carried: Int64s | None = None) -> Iterator[Traced]:
    """Play one rank's epoch through on row numbers, window by window.

    ``carried`` are the rows held from the epoch before, for orders that carry.
    """
    held = np.empty(0, np.int64) if carried is None else carried
    mixer = order.mixer(shape, epoch, len(held))
    starts = np.cumsum(shape.block_rows) - shape.block_rows
    ahead: Iterator[Window | RowWindow] = iter(order.windows(shape, epoch))
    window = next(ahead, None)
    while window is not None:
        following = next(ahead, None)
        rows = window.numbers if isinstance(window, RowWindow) else _rows_of(window, shape, starts)
        if mixer is None:
            yield Traced(window, rows, held)
        else:
            mix = mixer.step(len(rows), last=following is None)
            rows = np.concatenate([held, rows])
            held = rows[mix.keeps]
            yield Traced(window, rows[mix.picks], held)
        window = following


def _rows_of(window: Window, shape: Shape, starts: Int64s) -> Int64s:
    lengths = shape.block_rows[window.blocks]
    ends = np.cumsum(lengths)
    numbers = np.repeat(starts[window.blocks] - (ends - lengths), lengths) + np.arange(lengths.sum())
    if window.key is None:
        return numbers
    placed = np.empty_like(numbers)
    placed[slots(len(numbers), window.key)] = numbers
    return placed


def visit(order: Order, shape: Shape, epoch: int) -> Int64s:
    """Return the row numbers in the order in which one rank's epoch visits them; for small data.

    For orders that write a shuffled copy, a keyed permutation stands for the copy. For orders that carry rows
    over, the epochs before are played through first.

    Examples
    --------
    >>> from penstock.shuffle import order as named
    >>> shape = Shape(np.array([2, 3]), held_rows=5)
    >>> visit(named("none"), shape, 0).tolist()
    [0, 1, 2, 3, 4]
    """
    held = np.empty(0, np.int64)
    for earlier in range(epoch if order.facts.carries else 0):
        carried = held
        for step in trace(order, shape, earlier, carried=carried):
            held = step.held
    parts = [step.given for step in trace(order, shape, epoch, carried=held)]
    rows = np.concatenate([np.empty(0, np.int64), *parts])
    if order.facts.copy == "never" or not len(rows):
        return rows
    copied = epoch if order.facts.copy == "epoch" else 0
    return KeyedPermutation(shape.rows, seeds.key(shape.seed, "copy", copied)).apply(rows)


def _components(sampled: Sequence[Floats], b: float) -> tuple[NDArray[np.float64], float]:
    """Return each block's squared distance from the overall mean, noise taken off, and the variance of rows."""
    parts = [np.asarray(part, np.float64) for part in sampled]
    if len(parts) < 2 or any(part.ndim != 2 or len(part) < min(2, b) for part in parts):
        raise UsageError("h_D needs arrays (rows, features) of two rows or more from each of two blocks or more")
    means = np.stack([part.mean(axis=0) for part in parts])
    counts = np.array([len(part) for part in parts])
    within = np.array([part.var(axis=0, ddof=1).sum() if len(part) > 1 else 0.0 for part in parts])
    apart = ((means - means.mean(axis=0)) ** 2).sum(axis=1)
    # The mean of k of a block's b rows strays from the block's own by chance; that much is not clustering.
    apart = apart - within / counts * np.maximum(0.0, 1 - counts / b)
    return apart, float((within * (b - 1) / b).mean() + max(0.0, apart.mean()))


def block_variance(sampled: Sequence[Floats], b: float) -> float:
    """Estimate h_D, the block variance factor: 1 for shuffled rows, b where all rows of a block are alike.

    Parameters
    ----------
    sampled : sequence of (rows, features) arrays
        Per-row gradients, or vectors that stand for them such as ``y * x``, of some rows of each of some blocks.
    b : float
        Rows in a block.

    Returns
    -------
    float
        From 0 to b. How far chance moves it, `block_variance_error` tells.

    Examples
    --------
    >>> block_variance([np.ones((10, 2)), -np.ones((10, 2))], b=10)
    10.0
    """
    apart, variance = _components(sampled, b)
    return float(np.clip(b * apart.mean() / variance, 0.0, b)) if variance > 0 else 1.0


def block_variance_error(sampled: Sequence[Floats], b: float) -> float:
    """Estimate the standard error of `block_variance`: it shrinks with more rows a block and more blocks.

    Examples
    --------
    >>> block_variance_error([np.ones((10, 2)), -np.ones((10, 2))], b=10)
    0.0
    """
    apart, variance = _components(sampled, b)
    return float(b * apart.std(ddof=1) / np.sqrt(len(apart)) / variance) if variance > 0 else 0.0


def alpha(held: float, blocks: int) -> float:
    """Return the theorem's α = (n - 1) / (N - 1): 0 when one block is held, 1 when all are.

    Examples
    --------
    >>> alpha(held=11, blocks=101)
    0.1
    """
    return 1.0 if blocks <= 1 else float(np.clip((held - 1) / (blocks - 1), 0.0, 1.0))


def describe_hd(h_D: float, b: float, *, error: float = 0.0, by: str = "") -> str:
    """Say in a sentence what h_D means.

    Parameters
    ----------
    h_D, b : float
        As in `block_variance`.
    error : float
        The estimate's standard error; what chance may explain is not called clustering.
    by : str
        What the gradients tell apart, such as "label".

    Examples
    --------
    >>> describe_hd(1.1, 1000)
    'h_D = 1.1 (1 is shuffled, 1000 is sorted): rows lie as if shuffled, so any order will do.'
    >>> describe_hd(800.0, 1000, by="label")
    'h_D = 800 (1 is shuffled, 1000 is sorted): rows are clustered by label: training in stored order would lose \
accuracy.'
    """
    kind = f" by {by}" if by else ""
    sure = h_D - 2 * error
    # h_D runs from 1 to b over orders of magnitude, so its range is divided on a logarithmic scale.
    if sure <= max(2.0, b**0.25):
        meaning = "rows lie as if shuffled, so any order will do."
    elif sure <= b**0.5:
        meaning = f"rows are somewhat clustered{kind}: training in stored order may lose accuracy."
    else:
        meaning = f"rows are clustered{kind}: training in stored order would lose accuracy."
    return f"h_D = {h_D:.3g} (1 is shuffled, {b:.4g} is sorted): {meaning}"
