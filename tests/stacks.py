"""Modules and optimisers for tests of stacks, and plain torch to compare them with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from penstock.groups.modules import finite
from penstock.torch.creators import Creators
from penstock.torch.scoring import ModuleLoss
from penstock.torch.stacked import Stack

WIDTH, ROWS, BATCH = 6, 70, 16
SEEDS = [11, 12, 13]
RATES = [{"lr": 0.1}, {"lr": 0.03}, {"lr": 0.01}]


def data(classes: int = 2) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    score = x[:, 0] * x[:, 1] + x[:, 2]
    if classes == 2:
        return x, np.where(score > 0, 1, -1).astype(np.float32)
    return x, np.digitize(score, np.quantile(score, np.arange(1, classes) / classes)).astype(np.float32)


def mlp(config: dict[str, Any]) -> nn.Module:
    hidden = config.get("hidden", 8)
    return nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, 5), nn.Tanh(), nn.Linear(5, 1))


def sgd(module: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), **config)


def creators(model: Any = mlp, optimizer: Any = sgd, loss: Any = "logistic", kind: str | None = None) -> Creators:
    return Creators(model, optimizer, loss=ModuleLoss.of(loss, kind), width=WIDTH)


def mean_loss(loss: Any, output: Any, y: Any, weight: Any) -> Any:
    if not isinstance(loss, str):
        return loss(output.squeeze(-1) if output.shape[-1:] == (1,) else output, y)
    if loss == "softmax":
        each = F.cross_entropy(output, y, reduction="none")
    else:
        score = output.reshape(len(y))
        each = F.softplus(-y * score) if loss == "logistic" else 0.5 * (score - y) ** 2
    return (each if weight is None else each * weight).sum() / len(y)


def plain(
    made: Creators, config: dict[str, Any], seed: int, x: Any, y: Any, weight: Any = None, epochs: int = 2
) -> Any:
    """Train one config by plain torch; return its module and the sum of its losses."""
    module = made.module(config, seed)
    optimizer = made.optimizer(module, config)
    targets = torch.from_numpy(y.astype(np.int64) if made.loss.kind == "softmax" else y)
    total = 0.0
    for _ in range(epochs):
        for at in range(0, len(y), BATCH):
            here = slice(at, at + BATCH)
            optimizer.zero_grad()
            mass = None if weight is None else torch.from_numpy(weight[here])
            loss = mean_loss(made.loss.loss, module(torch.from_numpy(x[here])), targets[here], mass)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(y[here])
    return module, total


def flat(module: nn.Module) -> Any:
    return finite(torch.cat([value.detach().float().reshape(-1) for value in module.state_dict().values()]).numpy())


def learnt(stack: Stack, x: Any, y: Any, weight: Any = None, epochs: int = 2) -> Stack:
    for _ in range(epochs):
        stack.learn(x, y, weight)
    return stack


def agree(made: Creators, configs: list[dict[str, Any]], x: Any, y: Any, *, way: str, weight: Any = None) -> None:
    stack = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=SEEDS[: len(configs)]), x, y, weight)
    assert stack.way == way
    sums, _ = stack.take_losses()
    weights = stack.weights()
    for place, config in enumerate(configs):
        module, total = plain(made, config, SEEDS[place], x, y, weight)
        np.testing.assert_allclose(weights[:, place], flat(module), rtol=2e-4, atol=2e-6, err_msg=str(config))
        assert sums[place] == pytest.approx(total, rel=1e-4)


OPTIMIZERS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "sgd": (torch.optim.SGD, RATES),
    "sgd decay": (torch.optim.SGD, [{"lr": 0.1, "weight_decay": d} for d in (0, 0.1, 0.01)]),
    "sgd momentum": (torch.optim.SGD, [{"lr": 0.03, "momentum": m, "weight_decay": 0.01} for m in (0, 0.5, 0.9)]),
    "sgd dampening": (torch.optim.SGD, [{"lr": 0.1, "momentum": m, "dampening": 0.3} for m in (0, 0.5, 0.9)]),
    "sgd nesterov": (torch.optim.SGD, [{"lr": r, "momentum": 0.9, "nesterov": True} for r in (0.1, 0.01)]),
    "adam": (torch.optim.Adam, [{"lr": r, "betas": (b, 0.99)} for r, b in ((0.03, 0.9), (0.01, 0.5), (0.01, 0.0))]),
    "adam decay": (torch.optim.Adam, [{"lr": 0.01, "weight_decay": d} for d in (0, 0.1)]),
    "adam amsgrad": (torch.optim.Adam, [{"lr": r, "amsgrad": True} for r in (0.03, 0.01)]),
    "adamw": (torch.optim.AdamW, [{"lr": 0.01, "weight_decay": d} for d in (0, 0.1, 0.5)]),
    "rmsprop": (torch.optim.RMSprop, [{"lr": 0.01, "alpha": a, "weight_decay": 0.01} for a in (0.9, 0.99)]),
    "rmsprop all": (
        torch.optim.RMSprop,
        [{"lr": 0.01, "momentum": m, "centered": True, "eps": 1e-4} for m in (0, 0.9)],
    ),
    "adagrad": (torch.optim.Adagrad, [{"lr": r, "lr_decay": 0.1, "weight_decay": 0.01} for r in (0.1, 0.03)]),
    "adagrad begun": (torch.optim.Adagrad, [{"lr": 0.1, "initial_accumulator_value": v} for v in (0.0, 0.5)]),
    "own: nadam": (torch.optim.NAdam, RATES),
    "own: adamax": (torch.optim.Adamax, RATES),
    "own: maximize": (torch.optim.SGD, [{"lr": 0.001, "maximize": True}, {"lr": 0.002, "maximize": True}]),
}


class Residual(nn.Module):
    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.share, self.first, self.last = share, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.register_buffer("far", torch.full((1,), -torch.inf))

    def forward(self, x: Any) -> Any:
        return self.last(x + self.share * torch.maximum(self.first(x), self.far))


class Branching(Residual):
    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.last(x if float(x.sum()) > 0 else -x)


class Outputs(Residual):
    """As many outputs as are wanted, not as a chain."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, outputs)


def wide(outputs: int) -> Any:
    return lambda config: nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, outputs))
