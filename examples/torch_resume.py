"""A training killed in the middle of an epoch goes on, row for row, as if nothing had happened.

Run `python examples/torch_resume.py`. A process trains, keeps its place in a JSON file after every few batches, and ends
itself by SIGKILL. The one that started it goes on from there. The rows that both have seen, and the weights, equal those
of a run without a break. Then the same state is given to three workers instead of one, who share what is left.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import penstock
from penstock.torch import DataLoader

ROWS, BATCH, EPOCHS, SAVED_EVERY = 5003, 32, 2, 10


def write_rows(path: Path) -> None:
    """Write rows of 8 numbers and a target."""
    x = np.random.default_rng(0).standard_normal((ROWS, 8)).astype(np.float32)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 8)
    penstock.convert(pa.table({"x": rows, "y": x.sum(axis=1)}), path, block_size="4kB")


def open_rows(path: Path, **place: int) -> DataLoader:
    """Open the rows; a state is only taken up with the same order, seed and memory."""
    return DataLoader(path, BATCH, shuffle="corgipile", memory="1MB", seed=7, row_numbers=True, **place)


def save(folder: Path, model: nn.Module, loader: DataLoader, seen: list[int]) -> None:
    """Write the weights, then the place that belongs to them: whenever a kill comes, the two that are named fit."""
    place = loader.state_dict()
    weights = f"{place['epoch']}-{place['batches']}.safetensors"
    save_file(model.state_dict(), folder / weights)
    (folder / "state.tmp").write_text(json.dumps({"loader": place, "weights": weights, "seen": seen}))
    os.replace(folder / "state.tmp", folder / "state.json")


def train(path: Path, folder: Path, dies_after: int | None = None) -> None:
    """Train from the last state in a folder, or from the beginning; die after so many batches, if asked to."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # one with momentum would be saved like the weights
    seen: list[int] = []
    with open_rows(path) as loader:
        if (folder / "state.json").exists():
            state = json.loads((folder / "state.json").read_text())
            loader.load_state_dict(state["loader"])
            model.load_state_dict(load_file(folder / state["weights"]))
            seen = state["seen"]
        count = 0
        while loader.epoch < EPOCHS:
            for batch in loader:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"]).backward()
                optimizer.step()
                seen.extend(batch["row_number"].tolist())
                count += 1
                if count % SAVED_EVERY == 0:
                    save(folder, model, loader, seen)
                if count == dies_after:
                    os.kill(os.getpid(), signal.SIGKILL)
        save(folder, model, loader, seen)


def left_in(folder: Path) -> dict[str, Any]:
    """Return the last state that was saved in a folder."""
    return json.loads((folder / "state.json").read_text())


def main() -> None:
    """Run the example in a folder of its own."""
    with tempfile.TemporaryDirectory() as own:
        path, broken, whole = (Path(own, name) for name in ("rows.arrow", "broken", "whole"))
        write_rows(path)
        broken.mkdir()
        whole.mkdir()
        child = multiprocessing.get_context("spawn").Process(target=train, args=(path, broken, 75))
        child.start()
        child.join()
        left = left_in(broken)
        print(f"killed by signal {-(child.exitcode or 0)}; last saved after {len(left['seen']):,} rows")

        train(path, broken)
        train(path, whole)
        resumed, straight = left_in(broken), left_in(whole)
        assert resumed["seen"] == straight["seen"]
        weights = [load_file(folder / left_in(folder)["weights"]) for folder in (broken, whole)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        print(f"resumed: {len(resumed['seen']):,} rows and the weights equal those of a run without a break")

        shared: list[list[int]] = []
        for rank in range(3):
            with open_rows(path, rank=rank, world=3) as loader:
                loader.load_state_dict(left["loader"])
                shared.append([row for batch in loader for row in batch["row_number"].tolist()])
        rest = {row for rows in shared for row in rows}
        assert rest == set(range(ROWS)) - set(left["seen"])
        print(
            f"or dealt out to 3 workers: {[len(rows) for rows in shared]} rows, {len(rest):,} different, none seen before"
        )


if __name__ == "__main__":
    main()
