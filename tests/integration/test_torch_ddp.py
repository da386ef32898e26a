"""Two processes that train together, over gloo on the CPU: each finds its own part, and neither waits for ever."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import torch.distributed
import torch.multiprocessing

from penstock.torch import DataLoader
from tests import samples

ORDERS = ("corgipile", "global", "none")
ROWS = 1003  # in blocks of 10: no two ranks have as many


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 3)).astype(np.float32)
    features = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 3)
    return pa.table({"x": features, "y": x.sum(axis=1), "number": np.arange(ROWS)})


def loader_of(folder: Path, task: dict, **options) -> DataLoader:
    columns, chosen = ("x", "y", "number"), {name: task[name] for name in ("shuffle", "memory", "uneven")}
    return DataLoader(folder / "data.arrow", 16, columns=columns, **chosen, **options)


def train(rank: int, world: int, folder: Path, tasks: list[dict]) -> None:
    """Train in one of several processes; write down the rows seen, and the state where it was left."""
    torch.set_num_threads(1)
    meet = f"file://{folder}/meet"
    torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
    told = []
    for task in tasks:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        seen: list[list[list[int]]] = []
        with loader_of(folder, task) as loader:
            for epoch in range(task.get("epochs", 1)):
                loader.set_epoch(epoch)
                length = len(loader)
                seen.append([])
                for x, y, number in loader:
                    optimizer.zero_grad()
                    torch.nn.functional.mse_loss(model(x).squeeze(1), y).backward()  # all-reduces the gradients
                    optimizer.step()
                    seen[-1].append(number.tolist())
                    if task.get("stop") == len(seen[-1]):
                        break
            state = loader.state_dict()
        weights = model.module.weight.flatten().tolist()
        told.append({"seen": seen, "length": length, "state": state, "weights": weights})
    (folder / f"told-{rank}.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()
    os._exit(0)  # gloo's threads abort the interpreter's exit now and then, without Penstock too (4 of 63 runs)


def run(folder: Path, tasks: list[dict]) -> list[list[dict]]:
    """Run two processes through all tasks; return what each told of each."""
    context = torch.multiprocessing.spawn(train, args=(2, folder, tasks), nprocs=2, join=False)
    until = time.monotonic() + 100
    try:
        while not context.join(timeout=1):
            assert time.monotonic() < until, "the processes wait for each other"
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
    both = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(2)]
    return [list(pair) for pair in zip(*both, strict=True)]


def rows(told: dict) -> list[int]:
    return [row for epoch in told["seen"] for batch in epoch for row in batch]


def test_two_processes_train_together_and_one_goes_on_alone(tmp_path):
    with samples.store("converted", tmp_path, table(), block_rows=10) as source:
        (tmp_path / "converted.arrow").rename(tmp_path / "data.arrow")
        memory = {order: samples.small_memory(source, order) for order in ORDERS}
    tasks = [
        {"shuffle": order, "memory": memory[order], **task}
        for order in ORDERS
        for task in ({"uneven": "drop"}, {"uneven": "pad", "epochs": 2}, {"uneven": "pad", "stop": 11})
    ]
    for task, (one, two) in zip(tasks, run(tmp_path, tasks), strict=True):
        assert [list(map(len, epoch)) for epoch in one["seen"]] == [list(map(len, epoch)) for epoch in two["seen"]]
        assert one["length"] == two["length"]
        assert one["weights"] == two["weights"]
        assert one["state"] == two["state"]
        assert one["state"]["world"] == 2
        if "stop" in task:
            goes_on_alone(tmp_path, task, rows(one) + rows(two), one["state"])
        elif task["uneven"] == "drop":
            assert len(one["seen"][0]) == one["length"]
            given = rows(one) + rows(two)
            assert len(set(given)) == len(given) >= ROWS - 30
        else:
            for epoch in range(2):
                given = [row for told in (one, two) for batch in told["seen"][epoch] for row in batch]
                assert set(given) == set(range(ROWS))
                assert len(given) <= ROWS + 30


def goes_on_alone(folder: Path, task: dict, given: list[int], state: dict) -> None:
    assert len(set(given)) == len(given) == 2 * 11 * 16
    with loader_of(folder, task) as alone:
        alone.load_state_dict(state)
        assert len(alone) == -(-(ROWS - len(given)) // 16)
        rest = [row for _, _, number in alone for row in number.tolist()]
    assert sorted(given + rest) == list(range(ROWS))
