"""A saved place in a stream of batches: checked against the stream that is to go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from penstock.errors import DataChangedError, UsageError
from penstock.loader.block_cuts import PLAN_VERSION
from penstock.messages import Given, Text, Use
from penstock.shuffle.remainder import Stretch

_WINDOWS = ("held_rows", "open_units", "cut")


@dataclass(frozen=True, slots=True)
class BatchesState:
    """Where a stream stood: so many batches of an epoch given out by each of ``world`` workers.

    ``done`` tells what other sets of workers had given out of the same epoch before.
    """

    epoch: int
    batches: int
    epoch_batches: int
    world: int
    batch_size: int
    held_rows: int
    open_units: int
    done: tuple[Stretch, ...]

    @classmethod
    def of(cls, state: Mapping[str, Any], mine: Mapping[str, Any], *, by_row: bool, place: str) -> Self:
        """Read a state dict; one that does not fit the stream whose own is ``mine`` is refused."""
        if isinstance(state, dict) and state.get("version") == 1:
            raise UsageError(
                "this state was saved by an earlier version of Penstock, which put other rows together in a window; begin"
                " the epoch anew"
            )
        missing = [name for name in mine if not isinstance(state, dict) or name not in state]
        if missing or state["version"] != PLAN_VERSION:
            raise UsageError(
                f"this is not a state of a stream of batches: it lacks {', '.join(missing) or f'version {PLAN_VERSION}'}"
            )
        for name in ("epoch", "batches"):
            if not isinstance(state[name], int) or state[name] < 0:
                raise UsageError("this state is damaged: ", Given(name, state[name]), " is not a number from 0 on")
        if state["batches"] > state["epoch_batches"]:
            raise UsageError(
                f"this state is damaged: {state['batches']} batches of {state['epoch_batches']} were given out"
            )
        # Single rows are dealt out by their numbers alone; which rows meet in a window of blocks depends on its size.
        for name in ("order", "seed") if by_row else ("order", "seed", "memory"):
            if state[name] != mine[name]:
                raise UsageError(
                    "this state was saved with ",
                    Given(name, state[name]),
                    f", the stream has {mine[name]!r}",
                    fixes=["make them equal"],
                )
        if state["fingerprint"] != mine["fingerprint"]:
            raise DataChangedError(f"{place} is not the data that the state was saved with; restore them or start anew")
        if not by_row and any(state[name] != mine[name] for name in _WINDOWS):
            raise UsageError(
                f"this state was saved by a stream whose windows hold {state['held_rows']} rows, and those of this"
                f" one hold {mine['held_rows']}",
                fixes=[Text("give it the same ", Use("columns"))],
            )
        return cls(
            epoch=state["epoch"],
            batches=state["batches"],
            epoch_batches=state["epoch_batches"],
            world=state["world"],
            batch_size=state["batch_size"],
            held_rows=state["held_rows"],
            open_units=state["open_units"],
            done=tuple(Stretch(*numbers) for numbers in state["done"]),
        )

    def dealt(self, world: int, batch_size: int, *, rows: int) -> tuple[int, tuple[Stretch, ...]]:
        """Return the batches given out, and by whom before, as a number of workers with a batch size sees it.

        Where either is another than that of the state, the rows that none has given out are dealt out anew.
        """
        if (world, batch_size) == (self.world, self.batch_size) or not self.batches:
            return self.batches, self.done
        # Those that left out rows at the end of the epoch are done with it all the same.
        ended = self.batches >= self.epoch_batches
        given = rows if ended else self.batches * self.batch_size
        return 0, (*self.done, Stretch(self.world, given, self.held_rows, self.open_units))

    def check_deal(self, world: int, batch_size: int, *, order: str) -> None:
        """Refuse to deal an epoch out anew in an order that keeps rows back from window to window."""
        if (world, batch_size) != (self.world, self.batch_size) and (self.batches or self.done):
            raise UsageError(
                "keeps rows back from window to window, so what is left of its epoch cannot be dealt out to "
                f"{world} workers instead of {self.world}, nor in batches of another size",
                option="shuffle",
                value=order,
                fixes=["resume with the same", "start the next epoch"],
            )
