"""Who runs what next: schedulers of placed groups, driven by events alone and the same for the same events.

`Hopper` lets the configs of a group hop over its shards (SGD, section 4.2): a config is at one place at a time, and its
order of shards is fixed. `Passes` asks for one partial sum per shard and pass (algebraic work) and goes on with a group
when all are in. A driver, or the simulator, asks `next` for each free worker, says `done` when a turn is over, carries
what `done` gives back to where it is wanted, and then says `ready`; `woken` names the workers worth asking again.
Both keep a trace, and `check` reads the invariants off it. They train nothing and know no time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from penstock.errors import UsageError
from penstock.groups.place import Placement
from penstock.groups.scheduler_state import Floor, Turn, Wait, shard_order


class Hopper:
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
    long
        Rows × configs × epochs from which on a group is scheduled epoch by epoch though it lies on one worker.

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
        long: int | None = None,
    ) -> None:
        self._floor = floor = Floor(placement, configs=configs, epochs=epochs, begun=begun or {}, long=long)
        self.trace = floor.trace
        self._queue: list[list[tuple[int, int, int, int]]] = [[] for _ in range(placement.workers)]
        self._at: dict[tuple[int, int], list[int]] = {}
        """Of a config of a split group: its epoch, its place in the order of shards, and the rows still before it."""
        floor.open -= len(floor.split)
        for group, held in floor.split.items():
            size = sum(placement.shards[number].rows for number in held)
            for config in range(configs):
                had = floor.begun.get((group, config), 0)
                left = floor.epochs[config] - had
                if left > 0:
                    self._at[group, config] = [had, 0, size * left]
                    floor.open += 1
                    for number in held:
                        floor.due[placement.shards[number].worker] += left
                    self._arrive(group, config)

    @property
    def finished(self) -> bool:
        """Whether all is trained."""
        return self._floor.open == 0

    def woken(self) -> list[int]:
        """Name the workers that may have got something to do since this was last asked."""
        return self._floor.take_woken()

    def next(self, worker: int) -> Turn | None:
        """Give a free worker its next turn; None while there is none for it."""
        floor = self._floor
        floor.free(worker)
        queue = self._queue[worker]
        if queue:
            group, config = heapq.heappop(queue)[2:]
            number, epoch = self._shard(group, config), self._at[group, config][0]
            rows = floor.placement.shards[number].rows
            return floor.begin(Turn(worker, number, group, False, config, 1, epoch, 1, rows))
        return floor.next_whole(worker)

    def done(self, turn: Turn, *, finished: bool = False) -> Wait | None:
        """Take note that a turn is over, and say where its config goes next."""
        floor = self._floor
        if turn.whole:
            floor.done_whole(turn, finished)
            return None
        floor.end(turn)
        floor.due[turn.worker] -= 1
        at = self._at[turn.group, turn.config]
        at[1] += 1
        at[2] -= turn.units
        if at[1] == len(floor.split[turn.group]):
            at[0], at[1] = at[0] + 1, 0
        if at[0] == floor.epochs[turn.config]:
            floor.open -= 1
            return None
        following = floor.placement.shards[self._shard(turn.group, turn.config)].worker
        return Wait(turn.group, turn.config, 1, (following,))

    def ready(self, wait: Wait, *, finished: bool = False) -> None:
        """Take note that a config has arrived at its next worker; ``finished`` where it needs no further epochs."""
        floor, at = self._floor, self._at[wait.group, wait.config]
        if not finished:
            self._arrive(wait.group, wait.config)
            return
        floor.drop(wait)
        floor.open -= 1
        left = floor.epochs[wait.config] - at[0]
        order = shard_order(wait.config, shards=len(floor.split[wait.group]))
        for place, position in enumerate(order):
            worker = floor.placement.shards[floor.split[wait.group][position]].worker
            floor.due[worker] -= left - (place < at[1])
        at[0] = floor.epochs[wait.config]

    def _shard(self, group: int, config: int) -> int:
        held = self._floor.split[group]
        return held[self._position(config, self._at[group, config][1], len(held))]

    @staticmethod
    def _position(config: int, place: int, shards: int) -> int:
        """Return an element of `shard_order` without making it."""
        return ((config if config < shards else 0) + place) % shards

    def _arrive(self, group: int, config: int) -> None:
        """Put a config into the queue of the worker that has its next shard."""
        floor = self._floor
        held, (epoch, place, rows) = floor.split[group], self._at[group, config]
        position, slots = self._position(config, place, len(held)), max(floor.configs, len(held))
        # Among configs with as much before them, that of the Latin square's next slot (see `bound_sequential`).
        slot = epoch * slots + (position - config) % slots
        worker = floor.placement.shards[held[position]].worker
        heapq.heappush(self._queue[worker], (-rows, slot, group, config))
        floor.woken.append(worker)


class Passes:
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
    begun
        Passes that a group has behind it, where a run is taken up again.
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
        begun: Mapping[int, int] | None = None,
        long: int | None = None,
        by_passes: Collection[int] = (),
    ) -> None:
        if lanes < 1:
            raise UsageError("carry no config", option="lanes", value=lanes, fixes=["give at least 1"])
        had = {(group, config): passes for group, passes in (begun or {}).items() for config in range(configs)}
        self._floor = floor = Floor(
            placement, configs=configs, epochs=epochs, begun=had, long=long, by_passes=by_passes
        )
        self.trace = floor.trace
        self._queue: list[list[tuple[int, int, int, int]]] = [[] for _ in range(placement.workers)]
        lanes = min(lanes, configs)
        self._lanes = {configs * lane // lanes: configs * (lane + 1) // lanes for lane in range(lanes)}
        """The configs of each lane: its first, and the one after its last."""
        self._at: dict[tuple[int, int], list[int]] = {}
        """Of a lane of a split group: its pass, the last one of its configs, and shards whose sum is not in yet."""
        floor.open += (len(self._lanes) - 1) * len(floor.split)
        for group, held in floor.split.items():
            passes = floor.begun.get((group, 0), 0)
            for first, end in self._lanes.items():
                last = max(floor.epochs[first:end])
                self._at[group, first] = [passes, last, 0]
                for number in held:
                    floor.due[placement.shards[number].worker] += max(0, last - passes)
                self._start(group, first)

    @property
    def finished(self) -> bool:
        """Whether all is trained."""
        return self._floor.open == 0

    def woken(self) -> list[int]:
        """Name the workers that may have got something to do since this was last asked."""
        return self._floor.take_woken()

    def next(self, worker: int) -> Turn | None:
        """Give a free worker its next turn; None while there is none for it."""
        floor = self._floor
        floor.free(worker)
        if not self._queue[worker]:
            return floor.next_whole(worker)
        _, group, first, number = heapq.heappop(self._queue[worker])
        epoch, end = self._at[group, first][0], self._lanes[first]
        units = floor.units(floor.placement.shards[number].rows, epoch, 1, slice(first, end))
        return floor.begin(Turn(worker, number, group, False, first, end - first, epoch, 1, units))

    def done(self, turn: Turn, *, finished: bool = False) -> Wait | None:
        """Take note that a turn is over; say so when it was the last of its group's pass."""
        floor = self._floor
        if turn.whole:
            floor.done_whole(turn, finished)
            return None
        floor.end(turn)
        floor.due[turn.worker] -= 1
        at = self._at[turn.group, turn.config]
        at[2] -= 1
        if at[2]:
            return None
        workers = tuple(floor.placement.shards[number].worker for number in floor.split[turn.group])
        return Wait(turn.group, turn.config, turn.configs, workers)

    def ready(self, wait: Wait, *, finished: bool = False) -> None:
        """Take note that models are changed and sent out; ``finished`` where none of them needs a further pass."""
        floor, at = self._floor, self._at[wait.group, wait.config]
        at[0] += 1
        if finished:
            floor.drop(wait)
            for worker in wait.workers:
                floor.due[worker] -= at[1] - at[0]
            at[0] = at[1]
        self._start(wait.group, wait.config)

    def _start(self, group: int, first: int) -> None:
        """Queue a pass at the workers that hold the group, or close this lane of it."""
        floor, at = self._floor, self._at[group, first]
        if at[0] >= at[1]:
            floor.open -= 1
            return
        shards, held = floor.placement.shards, floor.split[group]
        at[2] = len(held)
        # The longest way still to go first: as many passes as are left, none shorter than its largest shard.
        way = (at[1] - at[0]) * max(shards[number].rows for number in held)
        for number in held:
            heapq.heappush(self._queue[shards[number].worker], (-way, group, first, number))
            floor.woken.append(shards[number].worker)


def check(scheduler: Hopper | Passes, placement: Placement) -> None:
    """Read a scheduler's trace, and raise where it breaks an invariant (section 4.2).

    Data sharding: a turn runs where its shard lies, and every epoch of a config goes over each shard once. Worker
    exclusivity: a worker has one turn at a time. For a `Hopper`, config isolation (a config is at one place at a time)
    and the order of shards; for `Passes`, no shard is ahead of a pass that others are still at.
    """
    hops = isinstance(scheduler, Hopper)
    workers: dict[int, Turn] = {}
    configs: dict[tuple[int, int], Turn] = {}
    visits: dict[tuple[int, int], deque[int]] = {}
    for what, turn in scheduler.trace:
        key = (turn.group, turn.config)
        if isinstance(turn, Wait):
            visits.pop(key, None)
            continue
        shard, held = placement.shards[turn.shard], placement.held[turn.group]
        if what == "end":
            del workers[turn.worker]
            if hops or turn.whole:
                del configs[key]
            continue
        if shard.worker != turn.worker or shard.group != turn.group:
            raise UsageError(f"{turn} runs a shard that lies on worker {shard.worker}: data sharding is broken")
        if turn.worker in workers:
            raise UsageError(f"{turn} runs beside {workers[turn.worker]}: worker exclusivity is broken")
        if key in configs:
            raise UsageError(f"{turn} runs beside {configs[key]}: config isolation is broken")
        workers[turn.worker] = turn
        if hops or turn.whole:
            configs[key] = turn
        if turn.whole:
            continue
        due = visits.setdefault(key, deque())
        if not due:
            order = shard_order(turn.config, shards=len(held)) if hops else range(len(held))
            due.extend(held[place] for place in order)
        if turn.shard not in due or (hops and turn.shard != due[0]):
            raise UsageError(f"{turn} comes before shard {due[0]}: the order of shards is broken")
        due.remove(turn.shard)
    if scheduler.finished and any(visits.values()):
        raise UsageError(f"shards left out: {[key for key, due in visits.items() if due]}; an epoch is not complete")
