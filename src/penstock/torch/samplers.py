"""The order of indices: torch's own shuffle in an eighth of its memory or less, and chance that can be replayed.

`ShuffleSampler` draws what torch's ``RandomSampler`` draws, but holds a tensor instead of a Python list.
`capture` and `replay` keep and restore the generators that an epoch's order came from, so that an epoch can be
taken up in the middle.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from penstock import seeds

_PIECE = 4096
"""Indices turned into Python numbers at a time."""


class ShuffleSampler(Sampler[int]):
    """Every index once, in the order of torch's ``RandomSampler`` with the same generator.

    A permutation takes 4 bytes a row (8 from 2³¹ rows on) rather than the 40 of a list of Python numbers.

    Parameters
    ----------
    source
        Whatever has a length.
    generator
        The generator to draw from; it moves on just as ``RandomSampler`` moves it. Without one, a seed is drawn from
        torch's global generator for each epoch, as ``RandomSampler`` does.
    seed
        Instead of a generator: the order then depends on the seed and on ``set_epoch`` alone.

    Examples
    --------
    >>> from torch.utils.data import RandomSampler
    >>> mine = ShuffleSampler(range(5), generator=torch.Generator().manual_seed(7))
    >>> theirs = RandomSampler(range(5), generator=torch.Generator().manual_seed(7))
    >>> list(mine) == list(theirs)
    True
    """

    def __init__(self, source: Sized, *, generator: torch.Generator | None = None, seed: int | None = None) -> None:
        self.generator = generator
        self._source = source
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next, where a seed was given."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[int]:
        count = len(self._source)
        dtype = torch.int32 if count < 2**31 else torch.int64
        generator = self.generator
        if generator is None:
            generator = torch.Generator()
            drawn = draw(None) if self._seed is None else seeds.key(self._seed, "unordered", self._epoch)
            generator.manual_seed(drawn)
        order = torch.randperm(count, generator=generator, dtype=dtype)
        for start in range(0, count, _PIECE):
            yield from order[start : start + _PIECE].tolist()
        del order
        if self.generator is not None and count:
            # RandomSampler makes one more permutation and leaves it; the next epoch depends on it.
            torch.randperm(count, generator=generator, dtype=dtype)


def draw(generator: torch.Generator | None) -> int:
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
