"""What schedulers of groups gave out and took back, and whether it kept their invariants."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from penstock.groups.place import Placement
from penstock.groups.schedule import Hopper, Scheduler, Turn, Wait, shard_order

Trace = list[tuple[str, Turn | Wait]]
"""What began, what ended, and which waits were the last of their config or group, in that order."""
AnyScheduler = TypeVar("AnyScheduler", bound=Scheduler)


def traced(scheduler: AnyScheduler) -> AnyScheduler:
    """Have a scheduler keep a trace."""
    trace: Trace = []
    begin, end, ready = scheduler.begin, scheduler.end, scheduler.ready

    def began(turn: Turn) -> Turn:
        trace.append(("begin", turn))
        return begin(turn)

    def ended(turn: Turn) -> None:
        end(turn)
        trace.append(("end", turn))

    def dropped(wait: Wait, *, finished: bool = False) -> None:
        if finished:
            trace.append(("drop", wait))
        ready(wait, finished=finished)

    for name, method in (("begin", began), ("end", ended), ("ready", dropped), ("trace", trace)):
        setattr(scheduler, name, method)
    return scheduler


def trace_of(scheduler: Scheduler) -> Trace:
    trace: Any = vars(scheduler)["trace"]
    return trace  # type: ignore[no-any-return]  # as `traced` made it


def check(scheduler: Scheduler, placement: Placement) -> None:
    """Read a scheduler's trace, and raise where it breaks an invariant (section 4.2).

    Data sharding: a turn runs where its shard lies, and every epoch of a config goes over each shard once. Worker
    exclusivity: a worker has one turn at a time. For a `Hopper`, config isolation (a config is at one place at a time)
    and the order of shards; for `Passes`, no shard is ahead of a pass that others are still at.
    """
    hops = isinstance(scheduler, Hopper)
    workers: dict[int, Turn] = {}
    configs: dict[tuple[int, int], Turn] = {}
    visits: dict[tuple[int, int], deque[int]] = {}
    for what, turn in trace_of(scheduler):
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
            raise AssertionError(f"{turn} runs a shard that lies on worker {shard.worker}: data sharding is broken")
        if turn.worker in workers:
            raise AssertionError(f"{turn} runs beside {workers[turn.worker]}: worker exclusivity is broken")
        if key in configs:
            raise AssertionError(f"{turn} runs beside {configs[key]}: config isolation is broken")
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
            raise AssertionError(f"{turn} comes before shard {due[0]}: the order of shards is broken")
        due.remove(turn.shard)
    if scheduler.finished and any(visits.values()):
        raise AssertionError(
            f"shards left out: {[key for key, due in visits.items() if due]}; an epoch is not complete"
        )
