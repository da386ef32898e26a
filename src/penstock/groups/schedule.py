"""Who runs what next: schedulers of placed groups, driven by events alone and the same for the same events.

`Hopper` lets the configs of a group hop over its shards (SGD, section 4.2): a config is at one place at a time, and its
order of shards is fixed. `Passes` asks for one partial sum per shard and pass (algebraic work) and goes on with a group
when all are in. A driver, or the simulator, asks `next` for each free worker, says `done` when a turn is over, carries
what `done` gives back to where it is wanted, and then says `ready`; `woken` names the workers worth asking again.
They train nothing and know no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

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


def shard_order(config: int, *, shards: int) -> list[int]:
    """Return the order in which a config goes over a group's shards, in every epoch.

    A rotation, so that configs begin at different shards and follow one another around. Plain SGD over the shards in
    this order gives the same weights.

    Examples
    --------
    >>> [shard_order(config, shards=3) for config in range(4)]
    [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    """
    return [_position(config, place, shards) for place in range(shards)]


def _position(config: int, place: int, shards: int) -> int:
    return ((config if config < shards else 0) + place) % shards


class Scheduler:
    """What both schedulers are: the workers, what each is running, and the whole groups that each has.

    Whole groups are cut into turns so short that nobody waits for a split group because of them.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        configs: int,
        epochs: int | Sequence[int],
        begun: Mapping[tuple[int, int], int] | None = None,
        long: int | None = None,
        by_passes: Collection[int] = (),
    ) -> None:
        self.epochs = each = [epochs] * configs if isinstance(epochs, int) else list(epochs)
        self.placement = placement
        self.configs = configs
        self.most = max(each)
        self.even = len(set(each)) == 1
        self.begun = begun or {}
        self.running: dict[int, Turn] = {}
        self._woken: list[int] = list(range(placement.workers))
        self._queue: list[list[tuple[int, int, int, int]]] = [[] for _ in range(placement.workers)]
        """Parts of split groups that a worker can do now."""
        self.split: dict[int, list[int]] = {}
        self.whole: list[list[int]] = [[] for _ in range(placement.workers)]
        self.progress: dict[int, list[int]] = {}
        """Of a whole group that is under way: epochs that each config has had."""
        self.due = [0] * placement.workers
        """Turns of split groups that a worker still has before it."""
        self.open = len(placement.held)
        shared = [0] * placement.workers
        for group, held in placement.held.items():
            rows = placement.shards[held[0]].rows
            if len(held) > 1 or group in by_passes or (long is not None and self.units(rows, 0, self.most) >= long):
                self.split[group] = held
                for number in held:
                    shared[placement.shards[number].worker] += placement.shards[number].rows
                continue
            at = [min(own, self.begun.get((group, config), 0)) for config, own in enumerate(each)] if self.begun else []
            if any(at):
                self.progress[held[0]] = at
            if at == each:
                self.open -= 1
            else:
                self.whole[placement.shards[held[0]].worker].append(held[0])
        for numbers in self.whole:
            numbers.sort(key=lambda number: (placement.shards[number].rows, -number))
        # In the time of one round of the busiest worker, each does its shards of split groups once. As long as a turn
        # of a whole group fits in what such a round leaves over, nobody who waits for a shard waits longer for it.
        busiest = placement.makespan if placement.shards else 0
        self.spare = [max(1, busiest - rows) for rows in shared]

    @property
    def finished(self) -> bool:
        """Whether all is trained."""
        return self.open == 0

    def woken(self) -> list[int]:
        """Name the workers that may have got something to do since this was last asked."""
        woken, self._woken = self._woken, []
        return woken

    def next(self, worker: int) -> Turn | None:
        """Give a free worker its next turn; None while there is none for it."""
        raise NotImplementedError

    def done(self, turn: Turn, *, finished: bool = False) -> Wait | None:
        """Take note that a turn is over, ``finished`` where its whole group needs no further epochs; return what is under way."""
        self.end(turn)
        if not turn.whole:
            self.due[turn.worker] -= 1
            return self.went_on(turn)
        at = self.progress.get(turn.shard)
        if at is not None and not finished:
            for config in range(turn.config, turn.config + turn.configs):
                at[config] = max(at[config], min(self.epochs[config], turn.epoch + turn.epochs))
            if any(had < own for had, own in zip(at, self.epochs, strict=True)):
                self.whole[turn.worker].append(turn.shard)
                return None
        self.progress.pop(turn.shard, None)
        self.open -= 1
        return None

    def went_on(self, turn: Turn) -> Wait | None:
        """Return what is under way after a turn of a split group."""
        raise NotImplementedError

    def ready(self, wait: Wait, *, finished: bool = False) -> None:
        """Take note that what was under way has arrived; ``finished`` where it needs no further epochs."""
        raise NotImplementedError

    def units(self, rows: int, first: int, count: int, configs: slice = slice(None)) -> int:
        """Return rows × configs of passes over a shard, counting the configs that take part in each."""
        taken = self.epochs[configs]
        if self.even:
            return rows * len(taken) * min(count, max(0, self.most - first))
        return rows * sum(min(count, max(0, own - first)) for own in taken)

    def begin(self, turn: Turn) -> Turn:
        self.running[turn.worker] = turn
        return turn

    def end(self, turn: Turn) -> None:
        if self.running.get(turn.worker) != turn:
            raise UsageError(f"worker {turn.worker} is not running {turn}; say what was given to it, once")
        del self.running[turn.worker]
        self._woken.append(turn.worker)

    def next_whole(self, worker: int) -> Turn | None:
        """Give a turn of the largest whole group that is left: all of it, or as much as others can wait for."""
        if not self.whole[worker]:
            return None
        number = self.whole[worker].pop()
        shard = self.placement.shards[number]
        spare, rows = self.spare[worker] if self.due[worker] else None, shard.rows
        at = self.progress.get(number)
        if at is None:
            everything = self.units(rows, 0, self.most)
            if spare is None or everything <= spare:
                return self.begin(Turn(worker, number, shard.group, True, 0, self.configs, 0, self.most, everything))
            at = self.progress[number] = [0] * self.configs
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


class Hopper(Scheduler):
    """Schedules SGD: every config of a group goes over all its shards in an epoch, one after another.

    Two configs of a group may run at the same time on different shards; the paper's fourth invariant, by which they may
    not, would make a group take as long as if it were not split. A worker prefers the config with the most rows still
    before it, and split groups to whole ones, which nobody waits for. Groups on one worker run all their configs together, in turns no longer than others can wait.

    Parameters
    ----------
    placement
        Where the shards lie.
    configs, epochs
        How many configs each group has, and the epochs of all or of each.
    begun
        Epochs that a config has behind it, by (group, config), where a run is taken up again.

    Examples
    --------
    >>> from penstock.groups.place import sequential
    >>> hopper = Hopper(sequential([4], 2, 2), configs=2, epochs=1)
    >>> turns = [hopper.next(worker) for worker in (0, 1)]
    >>> [(turn.config, turn.shard) for turn in turns]
    [(0, 0), (1, 1)]
    >>> [hopper.ready(hopper.done(turn)) for turn in turns]
    [None, None]
    >>> [(turn.config, turn.shard) for turn in map(hopper.next, (0, 1))]
    [(1, 0), (0, 1)]
    """

    def __init__(
        self,
        placement: Placement,
        *,
        configs: int,
        epochs: int | Sequence[int],
        begun: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        super().__init__(placement, configs=configs, epochs=epochs, begun=begun)
        self._at: dict[tuple[int, int], list[int]] = {}
        """Of a config of a split group: its epoch, its place in the order of shards, and the rows still before it."""
        self.open -= len(self.split)
        for group, held in self.split.items():
            size = sum(placement.shards[number].rows for number in held)
            for config in range(configs):
                had = self.begun.get((group, config), 0)
                left = self.epochs[config] - had
                if left > 0:
                    self._at[group, config] = [had, 0, size * left]
                    self.open += 1
                    for number in held:
                        self.due[placement.shards[number].worker] += left
                    self._arrive(group, config)

    def next(self, worker: int) -> Turn | None:
        queue = self._queue[worker]
        if queue:
            group, config = heapq.heappop(queue)[2:]
            number, epoch = self._shard(group, config), self._at[group, config][0]
            rows = self.placement.shards[number].rows
            return self.begin(Turn(worker, number, group, False, config, 1, epoch, 1, rows))
        return self.next_whole(worker)

    def went_on(self, turn: Turn) -> Wait | None:
        at = self._at[turn.group, turn.config]
        at[1] += 1
        at[2] -= turn.units
        if at[1] == len(self.split[turn.group]):
            at[0], at[1] = at[0] + 1, 0
        if at[0] == self.epochs[turn.config]:
            self.open -= 1
            return None
        following = self.placement.shards[self._shard(turn.group, turn.config)].worker
        return Wait(turn.group, turn.config, 1, (following,))

    def ready(self, wait: Wait, *, finished: bool = False) -> None:
        at = self._at[wait.group, wait.config]
        if not finished:
            self._arrive(wait.group, wait.config)
            return
        self.open -= 1
        left = self.epochs[wait.config] - at[0]
        for place, position in enumerate(shard_order(wait.config, shards=len(self.split[wait.group]))):
            worker = self.placement.shards[self.split[wait.group][position]].worker
            self.due[worker] -= left - (place < at[1])
        at[0] = self.epochs[wait.config]

    def _shard(self, group: int, config: int) -> int:
        held = self.split[group]
        return held[_position(config, self._at[group, config][1], len(held))]

    def _arrive(self, group: int, config: int) -> None:
        """Put a config into the queue of the worker that has its next shard."""
        held, (epoch, place, rows) = self.split[group], self._at[group, config]
        position, slots = _position(config, place, len(held)), max(self.configs, len(held))
        # Among configs with as much before them, that of the Latin square's next slot (see `bound_sequential`).
        slot = epoch * slots + (position - config) % slots
        worker = self.placement.shards[held[position]].worker
        heapq.heappush(self._queue[worker], (-rows, slot, group, config))
        self._woken.append(worker)


class Passes(Scheduler):
    """Schedules algebraic work: a pass over a split group asks one partial sum of each shard, for many configs at once.

    When the last sum of a pass is in, ``done`` says so; the driver adds them up, changes the models, and says
    ``ready``. Until then the workers do something else: sums are added when they are there, and nobody stands still
    for them. Whole groups are solved where they lie.

    Parameters
    ----------
    placement
        Where the shards lie.
    configs, epochs
        How many configs each group has, and the passes of all or of each.
    lanes
        Into how many batches the configs of a split group are parted, each with passes of its own. With two, workers
        that have nothing but one group go on with one batch while the sums of the other are under way.
    long
        Rows × configs × epochs from which on a group is scheduled pass by pass though it lies on one worker.
    by_passes
        Groups that are scheduled so in any case.

    Examples
    --------
    >>> from penstock.groups.place import spread
    >>> passes = Passes(spread([6, 2], 2), configs=3, epochs=2)
    >>> turns = [passes.next(worker) for worker in (0, 1)]
    >>> [(turn.group, turn.epoch, turn.units) for turn in turns]
    [(0, 0, 12), (0, 0, 6)]
    >>> [passes.done(turn) for turn in turns]
    [None, Wait(group=0, config=0, configs=3, workers=(0, 1))]
    """

    def __init__(
        self,
        placement: Placement,
        *,
        configs: int,
        epochs: int | Sequence[int],
        lanes: int = 1,
        long: int | None = None,
        by_passes: Collection[int] = (),
    ) -> None:
        super().__init__(placement, configs=configs, epochs=epochs, long=long, by_passes=by_passes)
        lanes = min(lanes, configs)
        self._lanes = {configs * lane // lanes: configs * (lane + 1) // lanes for lane in range(lanes)}
        """The configs of each lane: its first, and the one after its last."""
        self._at: dict[tuple[int, int], list[int]] = {}
        """Of a lane of a split group: its pass, the last one of its configs, and shards whose sum is not in yet."""
        self.open += (len(self._lanes) - 1) * len(self.split)
        for group, held in self.split.items():
            for first, end in self._lanes.items():
                last = max(self.epochs[first:end])
                self._at[group, first] = [0, last, 0]
                for number in held:
                    self.due[placement.shards[number].worker] += last
                self._start(group, first)

    def next(self, worker: int) -> Turn | None:
        if not self._queue[worker]:
            return self.next_whole(worker)
        _, group, first, number = heapq.heappop(self._queue[worker])
        epoch, end = self._at[group, first][0], self._lanes[first]
        units = self.units(self.placement.shards[number].rows, epoch, 1, slice(first, end))
        return self.begin(Turn(worker, number, group, False, first, end - first, epoch, 1, units))

    def went_on(self, turn: Turn) -> Wait | None:
        at = self._at[turn.group, turn.config]
        at[2] -= 1
        if at[2]:
            return None
        workers = tuple(self.placement.shards[number].worker for number in self.split[turn.group])
        return Wait(turn.group, turn.config, turn.configs, workers)

    def ready(self, wait: Wait, *, finished: bool = False) -> None:
        at = self._at[wait.group, wait.config]
        at[0] += 1
        if finished:
            for worker in wait.workers:
                self.due[worker] -= at[1] - at[0]
            at[0] = at[1]
        self._start(wait.group, wait.config)

    def _start(self, group: int, first: int) -> None:
        """Queue a pass at the workers that hold the group, or close this lane of it."""
        at = self._at[group, first]
        if at[0] >= at[1]:
            self.open -= 1
            return
        shards, held = self.placement.shards, self.split[group]
        at[2] = len(held)
        # The longest way still to go first: as many passes as are left, none shorter than its largest shard.
        way = (at[1] - at[0]) * max(shards[number].rows for number in held)
        for number in held:
            heapq.heappush(self._queue[shards[number].worker], (-way, group, first, number))
            self._woken.append(shards[number].worker)
