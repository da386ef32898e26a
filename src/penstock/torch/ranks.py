"""Which process of a job this is: its rank, and the number of ranks."""

from __future__ import annotations

import os

import torch.distributed

from penstock.errors import UsageError
from penstock.messages import Given, Text, Use


def check_rank(rank: int | None, world: int | None) -> None:
    """Refuse a rank without a world, or one outside of it."""
    if (rank is None) != (world is None):
        raise UsageError(
            "and ",
            Given("world", world),
            ": give both, or none to have torch.distributed say",
            option="rank",
            value=rank,
        )
    if rank is not None and world is not None and not 0 <= rank < world:
        raise UsageError("of ", Given("world", world), ": ranks count from 0 to world - 1", option="rank", value=rank)


def current_rank() -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    By ``torch.distributed`` where it is initialised. Before that, by the variables ``RANK`` and ``WORLD_SIZE``, which
    torchrun sets. Otherwise this is the only process.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world is None:
        return 0, 1
    if not (rank.isdecimal() and world.isdecimal() and int(rank) < int(world)):
        raise UsageError(
            f"the environment has RANK={rank!r} and WORLD_SIZE={world!r}, which are no rank of a job",
            fixes=["unset them", Text("give ", Use("rank"), " and ", Use("world"))],
        )
    return int(rank), int(world)
