"""What schedulers of groups give out and keep track of: turns, waits, workers, and groups that lie on one worker.

A `Turn` is what a worker does at a stretch, a `Wait` what travels between turns. `Floor` knows which worker is free,
keeps the trace, and cuts the work of whole groups into turns so short that nobody waits for a split group because of
them. The schedulers themselves are in `penstock.groups.schedule`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.errors import UsageError
from penstock.groups.place import Placement


class Turn(NamedTuple):
    """What a worker is to do now: configs of one shard, for some epochs (or passes).

    Each config of the range runs from ``epoch`` on, until ``epochs`` are over or its own epochs are. ``units`` are
    the rows × configs that this comes to.
    """

    worker: int
    shard: int
    group: int
    whole: bool
    """The group lies on this worker alone, and nobody else is to be told."""
    config: int
    configs: int
    epoch: int
    epochs: int
    units: int


class Wait(NamedTuple):
    """What is under way after a turn: a config to its next worker, or partial sums to be added and a model sent out."""

    group: int
    config: int
    configs: int
    """How many configs, from that one on, go on together."""
    workers: tuple[int, ...]
    """Who will go on with it."""


class Scheduler(Protocol):
    """What a driver needs of a scheduler."""

    trace: list[tuple[str, Turn | Wait]]
    """What began, what ended, and which waits were the last of their config or group, in that order."""

    def next(self, worker: int) -> Turn | None:
        """Give a free worker its next turn; None while there is none for it."""
        ...

    def done(self, turn: Turn, *, finished: bool = False) -> Wait | None:
        """Take note that a turn is over; ``finished`` where its whole group needs no further epochs."""
        ...

    def ready(self, wait: Wait, *, finished: bool = False) -> None:
        """Take note that what was under way has arrived; ``finished`` where it needs no further epochs."""
        ...

    def woken(self) -> list[int]:
        """Name the workers that may have got something to do since this was last asked."""
        ...

    @property
    def finished(self) -> bool:
        """Whether all is trained."""
        ...


def shard_order(config: int, *, shards: int) -> list[int]:
    """Return the order in which a config goes over a group's shards, in every epoch.

    A rotation, so that configs begin at different shards and follow one another around. Plain SGD over the shards in
    this order gives the same weights.

    Examples
    --------
    >>> [shard_order(config, shards=3) for config in range(4)]
    [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    """
    first = config if config < shards else 0
    return [*range(first, shards), *range(first)]


class Floor:
    """The workers, what each is running, and the whole groups that each has. Common to both schedulers."""

    def __init__(
        self,
        placement: Placement,
        *,
        configs: int,
        epochs: int | Sequence[int],
        begun: Mapping[tuple[int, int], int],
        long: int | None = None,
        by_passes: Collection[int] = (),
    ) -> None:
        each = [epochs] * configs if isinstance(epochs, int) else list(epochs)
        if configs < 1 or len(each) != configs or min(each) < 1:
            raise UsageError(
                f"for {configs!r} configs",
                option="epochs",
                value=epochs,
                fixes=["give one number, at least 1, or one for each"],
            )
        self.placement = placement
        self.configs = configs
        self.epochs = each
        self.most = max(each)
        self.even = len(set(each)) == 1
        self.begun = begun
        self.trace: list[tuple[str, Turn | Wait]] = []
        self.running: dict[int, Turn] = {}
        self.woken: list[int] = list(range(placement.workers))
        self.split: dict[int, list[int]] = {}
        self.whole: list[list[int]] = [[] for _ in range(placement.workers)]
        self.at: dict[int, list[int]] = {}
        """Of a whole group that is under way: epochs that each config has had."""
        self.due = [0] * placement.workers
        """Turns of split groups that a worker still has before it."""
        self.open = len(placement.held)
        shared = [0] * placement.workers
        for group, held in placement.held.items():
            units = self.units(placement.shards[held[0]].rows, 0, self.most)
            if len(held) > 1 or group in by_passes or (long is not None and units >= long):
                self.split[group] = held
                for number in held:
                    shared[placement.shards[number].worker] += placement.shards[number].rows
            elif self.unfinished(group, held[0]):
                self.whole[placement.shards[held[0]].worker].append(held[0])
            else:
                self.open -= 1
        for numbers in self.whole:
            numbers.sort(key=lambda number: (placement.shards[number].rows, -number))
        # In the time of one round of the busiest worker, each does its shards of split groups once. As long as a turn
        # of a whole group fits in what such a round leaves over, nobody who waits for a shard waits longer for it.
        busiest = placement.makespan if placement.shards else 0
        self.spare = [max(1, busiest - rows) for rows in shared]

    def unfinished(self, group: int, number: int) -> bool:
        """Take up a whole group where it was left; say whether anything of it is left to do."""
        if not self.begun:
            return True
        at = [min(own, self.begun.get((group, config), 0)) for config, own in enumerate(self.epochs)]
        if any(at):
            self.at[number] = at
        return at != self.epochs

    def units(self, rows: int, first: int, count: int, configs: slice = slice(None)) -> int:
        """Return rows × configs of passes over a shard, counting the configs that take part in each."""
        taken = self.epochs[configs]
        if self.even:
            return rows * len(taken) * min(count, max(0, self.most - first))
        return rows * sum(min(count, max(0, own - first)) for own in taken)

    def begin(self, turn: Turn) -> Turn:
        self.running[turn.worker] = turn
        self.trace.append(("begin", turn))
        return turn

    def free(self, worker: int) -> None:
        if not 0 <= worker < self.placement.workers:
            raise UsageError(f"there is no worker {worker!r}; there are {self.placement.workers}, from 0 on")
        if worker in self.running:
            raise UsageError(
                f"worker {worker} is running {self.running[worker]}; say that it is done before asking anew"
            )

    def end(self, turn: Turn) -> None:
        if self.running.get(turn.worker) != turn:
            raise UsageError(f"worker {turn.worker} is not running {turn}; say what was given to it, once")
        del self.running[turn.worker]
        self.trace.append(("end", turn))
        self.woken.append(turn.worker)

    def drop(self, wait: Wait) -> None:
        self.trace.append(("drop", wait))

    def take_woken(self) -> list[int]:
        woken, self.woken = self.woken, []
        return woken

    def next_whole(self, worker: int) -> Turn | None:
        """Give a turn of the largest whole group that is left: all of it, or as much as others can wait for."""
        if not self.whole[worker]:
            return None
        number = self.whole[worker].pop()
        shard = self.placement.shards[number]
        spare, rows = self.spare[worker] if self.due[worker] else None, shard.rows
        at = self.at.get(number)
        if at is None:
            if spare is None or self.units(rows, 0, self.most) <= spare:
                everything = self.units(rows, 0, self.most)
                return self.begin(Turn(worker, number, shard.group, True, 0, self.configs, 0, self.most, everything))
            at = self.at[number] = [0] * self.configs
        left = [config for config in range(self.configs) if at[config] < self.epochs[config]]
        first = min(left, key=lambda config: at[config])
        epoch = at[first]
        together = all(at[config] == min(epoch, self.epochs[config]) for config in range(self.configs))
        if together and (spare is None or rows * len(left) <= spare):
            count = self.most - epoch if spare is None else min(self.most - epoch, spare // (rows * len(left)))
            units = self.units(rows, epoch, count)
            return self.begin(Turn(worker, number, shard.group, True, 0, self.configs, epoch, count, units))
        count = self.epochs[first] - epoch
        count = count if spare is None else min(count, max(1, spare // rows))
        return self.begin(Turn(worker, number, shard.group, True, first, 1, epoch, count, rows * count))

    def done_whole(self, turn: Turn, finished: bool) -> None:
        self.end(turn)
        at = self.at.get(turn.shard)
        if at is not None and not finished:
            for config in range(turn.config, turn.config + turn.configs):
                at[config] = max(at[config], min(self.epochs[config], turn.epoch + turn.epochs))
            if any(had < own for had, own in zip(at, self.epochs, strict=True)):
                self.whole[turn.worker].append(turn.shard)
                return
        self.at.pop(turn.shard, None)
        self.open -= 1
