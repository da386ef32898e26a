"""Penstock itself, over the file that `penstock convert` makes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.samples import Data

FORMAT = "penstock"
FILE = "data.arrow"
BLOCK_SIZE: int | str = "auto"
"""Of the file written; ``--block-size`` sets it."""


def write(folder: Path, data: Data) -> None:
    from penstock.blocks.conversion import convert

    convert(data.batches(), folder / FILE, block_size=BLOCK_SIZE)


def load(folder: Path, job: Job, *, shuffle: str) -> Epochs:
    from penstock.torch import DataLoader

    loader = DataLoader(
        str(folder / FILE),
        batch_size=job.batch_size,
        shuffle=shuffle,
        memory=int(job.data.nbytes * job.shares[shuffle]),
        columns=("x", "label"),
        seed=job.seed,
    )

    def epoch(number: int) -> Iterator[Batch]:
        loader.set_epoch(number)
        return iter(loader)

    return epoch


CONTESTANTS = tuple(
    Contestant(
        f"penstock {shuffle}",
        FORMAT,
        write,
        partial(load, shuffle=shuffle),
        imports=("penstock.torch", "pyarrow"),
        globally=shuffle == "global",
        ours=True,
    )
    for shuffle in ("corgipile", "global")
)
