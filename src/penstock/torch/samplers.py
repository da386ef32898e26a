"""The order of indices: torch's own shuffle in an eighth of its memory or less, and chance that can be replayed.

`ShuffleSampler` draws what torch's ``RandomSampler`` draws, but holds a tensor instead of a Python list; `SeededSampler`
draws by a seed and an epoch alone. `capture` and `replay` keep and restore the generators that an epoch's order came
from, so that an epoch can be taken up in the middle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence, Sized
from functools import partial
from typing import Any

import torch
from torch.utils.data import RandomSampler, Sampler

from penstock import seeds

_PIECE = 4096
"""Indices turned into Python numbers at a time."""


class ShuffleSampler(RandomSampler):
    """Every index once, in the order of torch's ``RandomSampler`` with the same generator.

    A permutation takes 4 bytes a row (8 from 2³¹ rows on) rather than the 40 of a list of Python numbers. It is a
    ``RandomSampler``, so that Lightning and accelerate know it for a shuffle and put one in its place that all ranks
    agree on.

    Parameters
    ----------
    source
        Whatever has a length.
    generator
        The generator to draw from; it moves on just as ``RandomSampler`` moves it. Without one, a seed is drawn from
        torch's global generator for each epoch, as ``RandomSampler`` does.

    Examples
    --------
    >>> mine = ShuffleSampler(range(5), generator=torch.Generator().manual_seed(7))
    >>> theirs = RandomSampler(range(5), generator=torch.Generator().manual_seed(7))
    >>> list(mine) == list(theirs)
    True
    """

    def __init__(self, source: Sized, *, generator: torch.Generator | None = None) -> None:
        # Not that of RandomSampler, which refuses data without rows.
        self.data_source, self.generator = source, generator
        self.replacement, self._num_samples = False, None

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        if self.generator is None:
            return _permuted(len(self), torch.Generator().manual_seed(draw_seed(None)))
        return _permuted(len(self), self.generator, again=True)


class SeededSampler(Sampler[int]):
    """Every index once, in an order that depends on a seed and on ``set_epoch`` alone."""

    def __init__(self, source: Sized, seed: int) -> None:
        self.seed = seed
        self._source = source
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[int]:
        key = seeds.key(self.seed, "unordered", self._epoch)
        return _permuted(len(self), torch.Generator().manual_seed(key))


def _permuted(count: int, generator: torch.Generator, *, again: bool = False) -> Iterator[int]:
    dtype = torch.int32 if count < 2**31 else torch.int64
    order = torch.randperm(count, generator=generator, dtype=dtype)
    for start in range(0, count, _PIECE):
        yield from order[start : start + _PIECE].tolist()
    del order
    if again and count:
        # RandomSampler makes one more permutation and leaves it; the next epoch depends on it.
        torch.randperm(count, generator=generator, dtype=dtype)


def tell_epoch(epoch: int, *listeners: object) -> None:
    """Tell an epoch to each sampler or dataset that has ``set_epoch``, once."""
    told: list[object] = []
    for listener in listeners:
        tell = getattr(listener, "set_epoch", None)
        if isinstance(tell, partial) and tell.func is tell_epoch_of:
            listener, tell = listener.sampler, listener.sampler.set_epoch  # type: ignore[attr-defined]
        if callable(tell) and not any(listener is other for other in told):
            tell(epoch)
            told.append(listener)


def told_epochs(*listeners: object) -> Iterator[int]:
    """Yield the epochs that samplers were told, of those that say so, as torch's ``DistributedSampler`` does."""
    for listener in listeners:
        epoch = getattr(listener, "epoch", None)
        if isinstance(epoch, int) and hasattr(listener, "set_epoch"):
            yield epoch


def forward_epochs(batch_sampler: Any) -> None:
    """Have torch's own batch sampler pass an epoch on to its sampler.

    Hugging Face's Trainer tells the epoch in which it resumes to the batch sampler alone. A sampler that is not told
    would begin with the order of epoch 0, and repeat rows of the epoch that is resumed.
    """
    sampler = getattr(batch_sampler, "sampler", None)
    if callable(getattr(sampler, "set_epoch", None)) and not hasattr(batch_sampler, "set_epoch"):
        batch_sampler.set_epoch = partial(tell_epoch_of, batch_sampler)


def tell_epoch_of(batch_sampler: Any, epoch: int) -> None:
    """Tell an epoch to the sampler that a batch sampler has at the time."""
    tell_epoch(epoch, batch_sampler.sampler)


def draw_seed(generator: torch.Generator | None) -> int:
    """Draw a 63-bit number, as the stock loader does at the start of every epoch."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def generators(*places: object) -> list[torch.Generator]:
    """Return the generators that samplers draw from: those of the objects given and of the samplers within them."""
    found: list[torch.Generator] = []
    for place in places:
        for owner in (
            place,
            getattr(place, "generator", None),
            getattr(getattr(place, "sampler", None), "generator", None),
        ):
            if isinstance(owner, torch.Generator) and not any(owner is known for known in found):
                found.append(owner)
    return found


def capture(sources: Sequence[torch.Generator]) -> dict[str, Any]:
    """Return the state of torch's global generator and of those given."""
    return {"torch": torch.get_rng_state(), "generators": [g.get_state() for g in sources]}


@contextlib.contextmanager
def replay(chance: Mapping[str, Any], sources: Sequence[torch.Generator]) -> Generator[None, None, None]:
    """Put generators back to a captured state; torch's global one for the length of the block only."""
    now = torch.get_rng_state()
    for generator, state in zip(sources, chance["generators"], strict=True):
        generator.set_state(state)
    torch.set_rng_state(chance["torch"])
    try:
        yield
    finally:
        torch.set_rng_state(now)
