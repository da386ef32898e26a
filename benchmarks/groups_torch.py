"""Small torch modules for every config of a group: stacked, against one at a time by plain torch; seconds and the losses reached.

A network of 40 - 32 - 16 - 1, batches of 128, twelve configs of learning rate and weight decay, by SGD with momentum and by
Adam; the same rows in the same order, from the same first weights, on one thread. `vmap` is the same network with a
residual step, which is no chain of layers. The slopes that are computed by hand for chains of layers have to be twice as fast
as `torch.vmap` of the same chain, or they are not worth their code. `whole` is a search over the skewed groups of `benchmarks.groups_data` from the file to
the models chosen, in fresh processes, imports and sorting by group included, against the loop that a user would write: over
groups, configs, epochs and batches.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import groups_data as groups
from benchmarks import harness
from benchmarks.harness import Claim
from penstock.groups.split import SELECTION, TRAINING

WIDTH, BATCH = 40, 128
CONFIGS = [{"lr": lr, "decay": decay} for lr in (0.03, 0.01, 0.003) for decay in (1e-2, 1e-3, 1e-4, 1e-5)]


def rows_of(count: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, WIDTH)).astype(np.float32)
    score = x[:, 0] * x[:, 1] + x @ rng.normal(size=WIDTH) / 4 + rng.logistic(size=count) / 2
    return x, np.where(score > 0, 1, -1).astype(np.float32)


def network(config: dict[str, Any]) -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))


def residual(config: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(WIDTH, 32), nn.Linear(32, 32), nn.Linear(32, 1)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.first(x))
            return self.last(x + torch.relu(self.second(x)))

    made = _CLASSES.setdefault("residual", Residual)
    return made()


_CLASSES: dict[str, Any] = {}


def sgd(module: Any, config: dict[str, Any]) -> Any:
    import torch

    return torch.optim.SGD(module.parameters(), lr=config["lr"], weight_decay=config["decay"], momentum=0.9)


def adam(module: Any, config: dict[str, Any]) -> Any:
    import torch

    return torch.optim.Adam(module.parameters(), lr=config["lr"] / 3, weight_decay=config["decay"])


def creators(model: Any, optimizer: Any) -> Any:
    from penstock.torch.creators import Creators
    from penstock.torch.scoring import ModuleLoss

    return Creators(model, optimizer, loss=ModuleLoss.of("logistic"), width=WIDTH)


def stacked(made: Any, x: Any, y: Any, epochs: int) -> Any:
    from penstock.torch.stacked import Stack

    stack = Stack(made, CONFIGS, batch_sizes=BATCH, seeds=list(range(len(CONFIGS))))
    for _ in range(epochs):
        stack.learn(x, y)
    return stack


def by_vmap(model: Any, optimizer: Any) -> Any:
    """Return creators whose chains of layers are trained by `torch.vmap`, as other modules are."""
    made = creators(model, optimizer)
    with mock.patch("penstock.torch.creators.chain", return_value=None):
        for config in CONFIGS:
            assert made.blueprint(config).way == "vmap"
    return made


def one_by_one(made: Any, x: Any, y: Any, epochs: int) -> list[Any]:
    """Train as the manual does: a module, its optimiser, and a loop over batches, config after config."""
    import torch
    from torch.nn import functional as F  # noqa: N812

    rows, targets = torch.from_numpy(x), torch.from_numpy(y)
    modules = []
    for seed, config in enumerate(CONFIGS):
        module = made.module(config, seed)
        optimizer = made.optimizer(module, config)
        for _ in range(epochs):
            for at in range(0, len(y), BATCH):
                optimizer.zero_grad()
                loss = F.soft_margin_loss(module(rows[at : at + BATCH]).squeeze(1), targets[at : at + BATCH])
                loss.backward()
                optimizer.step()
        modules.append(module)
    return modules


def compare(name: str, rows: int, epochs: int, rounds: int) -> dict[str, Any]:
    """Measure one kind of training in this process."""
    import torch

    torch.set_num_threads(1)
    model, optimizer = {"sgd": (network, sgd), "adam": (network, adam), "vmap": (residual, sgd)}[name]
    made, (x, y) = creators(model, optimizer), rows_of(rows)
    warm = stacked(made, x[:256], y[:256], 1)
    one_by_one(made, x[:256], y[:256], 1)
    vmapped = by_vmap(model, optimizer)
    stacked(vmapped, x[:256], y[:256], 1)
    kept: dict[str, Any] = {}
    results = harness.interleave(
        {
            "stacked": lambda: kept.update(stacked=stacked(made, x, y, epochs)),
            "vmap": lambda: kept.update(vmap=stacked(vmapped, x, y, epochs)),
            "one by one": lambda: kept.update(plain=one_by_one(made, x, y, epochs)),
        },
        repeats=rounds,
    )
    losses, _ = kept["stacked"].measure(x, y)
    with torch.no_grad():
        margins = [torch.from_numpy(y) * module(torch.from_numpy(x)).squeeze(1) for module in kept["plain"]]
        plain = [float(torch.nn.functional.softplus(-margin).mean()) for margin in margins]
    return {
        "way": warm.way,
        "table": results.table(),
        "medians": [results.median("stacked"), results.median("one by one")],
        "ratio": results.ratio("one by one", "stacked"),
        "against_vmap": results.ratio("vmap", "stacked"),
        "losses": float(np.max(np.abs(losses / len(y) / np.array(plain) - 1))),
    }


def whole(path: str, folder: str, epochs: int) -> dict[str, Any]:
    """Search over all groups by Penstock."""
    began = time.perf_counter()
    from penstock.groups import GroupBy
    from penstock.torch import TorchModel

    search = {"lr": sorted({c["lr"] for c in CONFIGS}), "decay": sorted({c["decay"] for c in CONFIGS})}
    model = TorchModel(network, sgd, epochs=epochs, batch_size=BATCH)
    result = GroupBy(path, by="group", memory="1GB", rows=f"{folder}/rows").fit(
        model, y="clicked", search=search, validation=groups.SHARE, pooled=False, out=f"{folder}/out"
    )
    loss = float(np.nanmean(result.chosen["selection_loss"].to_numpy()))  # the smallest groups have none to choose by
    return {"seconds": time.perf_counter() - began, "loss": loss}


def loop(path: str, epochs: int) -> dict[str, Any]:
    """Search over all groups by a loop in plain torch, on one thread: at these sizes two of them take longer."""
    began = time.perf_counter()
    import torch
    from torch.nn import functional as F  # noqa: N812

    torch.set_num_threads(1)
    torch.manual_seed(0)
    found, held = groups.parts(path)
    best = []
    for (rows, labels), part in zip(found, held, strict=True):
        x, y = torch.from_numpy(rows[part == TRAINING]), torch.from_numpy(labels[part == TRAINING])
        aside, truth = torch.from_numpy(rows[part == SELECTION]), torch.from_numpy(labels[part == SELECTION])
        losses = []
        for config in CONFIGS:
            module = network(config)
            optimizer = sgd(module, config)
            for _ in range(epochs):
                order = torch.randperm(len(y))
                for at in range(0, len(y), BATCH):
                    here = order[at : at + BATCH]
                    optimizer.zero_grad()
                    F.binary_cross_entropy_with_logits(module(x[here]).squeeze(1), y[here]).backward()
                    optimizer.step()
            with torch.no_grad():
                losses.append(float(F.binary_cross_entropy_with_logits(module(aside).squeeze(1), truth)))
        best.append(min(losses))
    return {"seconds": time.perf_counter() - began, "loss": float(np.nanmean(best))}


def run(quick: bool) -> list[Claim]:
    rows, epochs, rounds = (BATCH * 20, 1, 3) if quick else (BATCH * 100, 2, 7)
    claims = []
    for name, bar in (("sgd", 3.0), ("adam", 3.0), ("vmap", 1.0)):
        found = harness.run_child(compare, arguments={"name": name, "rows": rows, "epochs": epochs, "rounds": rounds})
        print(f"{name} ({found['way']}), seconds\n{found['table']}", file=sys.stderr)
        ours, theirs = found["medians"]
        note = (
            f"12 configs, {rows:,} x {WIDTH}, {epochs} epochs, batches of {BATCH}, {found['way']}, one thread;"
            f" {ours:.2f} s against {theirs:.2f} s"
        )
        title = f"modules, {name}: stacked configs faster than one at a time by plain torch"
        claims.append(Claim.at_least(title, found["ratio"], bar, note=note))
        if found["way"] == "products":
            title = f"modules, {name}: slopes by hand faster than torch.vmap"
            claims.append(Claim.at_least(title, found["against_vmap"], 2.0, note=note))
        claims.append(Claim.at_most(f"modules, {name}: losses off plain torch's", found["losses"], 0.01, unit=""))
    return claims + _whole(40_000 if quick else 200_000, 2 if quick else 5, 1 if quick else 2)


def _whole(rows: int, epochs: int, rounds: int) -> list[Claim]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        path = groups.write(Path(name) / "skewed.arrow", groups.sizes_of("skewed", rows))
        kept: dict[str, Any] = {}

        def ours() -> float:
            with tempfile.TemporaryDirectory(dir=name) as folder:
                given = {"path": str(path), "folder": folder, "epochs": epochs}
                kept["ours"] = harness.run_child(whole, arguments=given)
            return float(kept["ours"]["seconds"])

        def theirs() -> float:
            kept["loop"] = harness.run_child(loop, arguments={"path": str(path), "epochs": epochs})
            return float(kept["loop"]["seconds"])

        results = harness.interleave({"ours": ours, "loop": theirs}, repeats=rounds)
    print(f"a whole search, seconds\n{results.table()}", file=sys.stderr)
    note = f"{rows:,} x {WIDTH}, 280 groups, 12 configs, {epochs} epochs, from the file: {results.median('ours'):.1f} s against"
    note += f" {results.median('loop'):.1f} s; {os.cpu_count()} workers against one thread"
    ratio = kept["ours"]["loss"] / kept["loop"]["loss"]
    losses = f"{kept['ours']['loss']:.4f} against {kept['loop']['loss']:.4f}; first weights and orders are others"
    return [
        Claim.at_least(
            "modules, a search over groups: faster than a loop in plain torch",
            results.ratio("loop", "ours"),
            3,
            note=note,
        ),
        Claim.at_most(
            "modules, a search over groups: mean loss on the rows to choose by over the loop's",
            ratio,
            1.02,
            note=losses,
        ),
    ]


if __name__ == "__main__":
    sys.exit(harness.main(run))
