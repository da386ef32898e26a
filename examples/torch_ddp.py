"""Two processes train one model with DistributedDataParallel, on data that do not divide evenly.

Run `python examples/torch_ddp.py`, which starts two processes by itself, or let torchrun start any number:
`torchrun --nproc-per-node 3 examples/torch_ddp.py`. Each process opens the same file; the loader asks torch.distributed
which of them it is. All get the same number of batches, so none waits for a gradient that never comes.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import penstock
from penstock.torch import DataLoader

ROWS = 5003


def write_rows(path: Path) -> None:
    """Write rows sorted by their label."""
    chance = np.random.default_rng(0)
    x = chance.standard_normal((ROWS, 8)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int64)
    order = np.argsort(y, kind="stable")
    rows = pa.FixedSizeListArray.from_arrays(pa.array(x[order].reshape(-1)), 8)
    penstock.convert(pa.table({"x": rows, "y": y[order]}), path, block_size="4kB")


def train(path: str, uneven: Literal["pad", "drop"], *, epochs: int = 8) -> tuple[list[int], int, float]:
    """Train in this process; return the rows it had in the last epoch, the number of batches and their mean loss."""
    torch.manual_seed(0)
    layers = (nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    with DataLoader(path, 32, memory="1MB", uneven=uneven, row_numbers=True) as loader:
        for epoch in range(epochs):
            loader.set_epoch(epoch)  # each pass is the next epoch anyway; here it is said
            rows: list[int] = []
            losses: list[float] = []
            for batch in loader:
                loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
                optimizer.zero_grad()
                loss.backward()  # waits for the other processes
                optimizer.step()
                losses.append(loss.item())
                rows.extend(batch["row_number"].tolist())
        assert len(losses) == len(loader)
    return rows, len(losses), float(np.mean(losses))


def work() -> None:
    """Be one of the processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    with tempfile.TemporaryDirectory() as own:
        where = [str(Path(own, "rows.arrow"))]
        if rank == 0:
            write_rows(Path(where[0]))
        dist.broadcast_object_list(where, src=0)  # the others read the first one's file
        for uneven in ("pad", "drop"):
            told: list[Any] = [None] * world
            dist.all_gather_object(told, train(where[0], uneven))
            if rank == 0:
                tell(uneven, told)
    dist.destroy_process_group()


def tell(uneven: str, told: list[tuple[list[int], int, float]]) -> None:
    """Print what the processes had in the last epoch."""
    everyone = [row for rows, *_ in told for row in rows]
    counts = {count for _, count, _ in told}
    assert len(counts) == 1
    print(
        f"uneven={uneven}: {len(told)} processes, {counts.pop()} batches each; {len(everyone):,} rows given out,"
        f" {len(set(everyone)):,} different of {ROWS:,}; loss {np.mean([loss for *_, loss in told]):.3f}"
    )


def start(rank: int, world: int, port: int) -> None:
    """Be one of the processes, told of its place as torchrun would tell it."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    work()


def main(world: int = 2) -> None:
    """Run the example: start the processes, or be one of them under torchrun."""
    if "RANK" in os.environ:
        return work()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return torch.multiprocessing.spawn(start, (world, port), world)


if __name__ == "__main__":
    main()
