"""MosaicML Streaming over local MDS shards: its global shuffle by ranges (py1e) and by blocks (py1br)."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.loaders.contest import Contestant, Epochs, Job
from benchmarks.loaders.samples import Data

FORMAT = "mds"


def base() -> Any:
    """Import what is needed of streaming; its front door also imports torchvision, which may not fit torch."""
    if "streaming" not in sys.modules:
        found = importlib.util.find_spec("streaming")
        if found is None:
            raise ModuleNotFoundError("mosaicml-streaming is not installed; run: make peers")
        door = ModuleType("streaming")
        door.__path__ = list(found.submodule_search_locations or ())
        sys.modules["streaming"] = door
    return importlib.import_module("streaming.base")


def write(folder: Path, data: Data) -> None:
    columns = {"x": f"ndarray:{data.dtype}:{data.width}", "label": "int64"}
    with base().MDSWriter(out=str(folder), columns=columns) as to:
        for x, labels in data.chunks():
            for row, label in zip(x, labels, strict=True):
                to.write({"x": row, "label": label})


def load(folder: Path, job: Job, *, algorithm: str, workers: int) -> Epochs:
    from torch.utils.data import DataLoader

    streaming = base()
    importlib.import_module("streaming.base.util").clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(
        local=str(folder), shuffle=True, shuffle_algo=algorithm, shuffle_seed=job.seed, batch_size=job.batch_size
    )
    loader = DataLoader(dataset, batch_size=job.batch_size, num_workers=workers, persistent_workers=workers > 0)
    return lambda number: ((batch["x"], batch["label"]) for batch in loader)


CONTESTANTS = tuple(
    Contestant(
        f"mosaic {algorithm}, {workers} workers",
        FORMAT,
        write,
        partial(load, algorithm=algorithm, workers=workers),
        imports=("torch.utils.data", "benchmarks.loaders.mosaic"),
        globally=algorithm == "py1e",
    )
    for algorithm, workers in (("py1e", 0), ("py1e", 2), ("py1br", 2))
)
