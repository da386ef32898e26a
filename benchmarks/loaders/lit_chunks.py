"""LitData over its own chunks on the local disk, with its own loader, in this process and in two workers.

Its chunks come in random order and rows are shuffled within a chunk; it maps the chunks into memory in place.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.loaders.contest import Contestant, Epochs, Job
from benchmarks.loaders.samples import Data

FORMAT = "litdata"


def write(folder: Path, data: Data) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer, number = BinaryWriter(str(folder), chunk_bytes="64MB"), 0
    for x, labels in data.chunks():
        for row, label in zip(x, labels, strict=True):
            writer[number] = {"x": row, "label": int(label)}
            number += 1
    writer.done()
    writer.merge(1)


def load(folder: Path, job: Job, *, workers: int, window: str) -> Epochs:
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        str(folder),
        shuffle=True,
        seed=job.seed,
        item_shuffle_window=window,
        batch_decode="all" if window == "full" else "auto",  # the two go together, says its documentation
    )
    loader = StreamingDataLoader(dataset, batch_size=job.batch_size, num_workers=workers)
    return lambda number: ((batch["x"], batch["label"]) for batch in loader)


CONTESTANTS = tuple(
    Contestant(
        f"litdata, {workers} workers" + (", whole chunks shuffled" if window == "full" else ""),
        FORMAT,
        write,
        partial(load, workers=workers, window=window),
        imports=("torch.utils.data", "litdata"),
        mapped=True,
    )
    for workers, window in ((0, "auto"), (2, "auto"), (0, "full"))
)
