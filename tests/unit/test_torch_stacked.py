"""A stack of configs learns what each would alone, by plain torch: optimisers, layers, ways, losses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from penstock.torch.stacked import Stack  # noqa: E402
from tests.stacks import (  # noqa: E402
    BATCH,
    OPTIMIZERS,
    RATES,
    ROWS,
    SEEDS,
    WIDTH,
    Branching,
    Outputs,
    Residual,
    agree,
    creators,
    data,
    flat,
    learnt,
    mlp,
    plain,
    wide,
)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_step_as_torchs_own(name: str) -> None:
    kind, configs = OPTIMIZERS[name]
    made = creators(optimizer=lambda module, config: kind(module.parameters(), **config))
    known = made.blueprint(configs[0]).rule is not None
    assert known != name.startswith("own")
    agree(made, configs, *data(), way="products")


def test_groups_of_parameters_have_rates_of_their_own() -> None:
    def optimizer(module: Any, config: dict[str, Any]) -> torch.optim.Optimizer:
        groups = [
            {"params": [w for n, w in module.named_parameters() if n.endswith("weight")], "weight_decay": 0.1},
            {"params": [w for n, w in module.named_parameters() if n.endswith("bias")], "lr": 0.2},
        ]
        return torch.optim.SGD(groups, lr=config["lr"])

    agree(creators(optimizer=optimizer), RATES, *data(), way="products")


@pytest.mark.parametrize(
    "middle",
    [nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.LeakyReLU(0.2), nn.ELU(0.7),
     nn.Identity(), nn.Flatten(), nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False), nn.LayerNorm(8, bias=False),
     nn.BatchNorm1d(8), nn.BatchNorm1d(8, affine=False), nn.BatchNorm1d(8, bias=False), nn.Dropout(0.0)],
    ids=str,
)  # fmt: skip
def test_layers_learn_as_torchs_own(middle: nn.Module) -> None:
    def model(config: dict[str, Any]) -> nn.Module:
        first = nn.LayerNorm(WIDTH) if isinstance(middle, nn.LayerNorm) else nn.Identity()
        return nn.Sequential(first, nn.Linear(WIDTH, 8), copy.deepcopy(middle), nn.Linear(8, 1, bias=False))

    x, y = data()
    agree(creators(model), RATES, x, y, way="products")
    made = creators(model)
    stack = learnt(Stack(made, RATES, batch_sizes=BATCH, seeds=SEEDS), x, y)
    module, _ = plain(made, RATES[1], SEEDS[1], x, y)
    with torch.no_grad():  # scored without learning: what a layer does otherwise then
        expected = module.eval()(torch.from_numpy(x))[:, 0].numpy()
    np.testing.assert_allclose(stack.scores(x)[1], expected, rtol=1e-3, atol=1e-5)


class Functions(nn.Module):
    """A chain written out, as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, 4), nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.first(torch.flatten(x, 1)))
        x = F.leaky_relu(self.second(x), 0.1).tanh()
        return self.last(x).squeeze(-1)


class Unused(Residual):
    def forward(self, x: Any) -> Any:
        return self.last(x)


def hooked() -> nn.Module:
    module = mlp({})
    module.register_forward_hook(lambda module, given, output: output * 2)
    return module


def cumulative() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 1))


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1))
    module[2].weight = module[0].weight
    return module


def frozen() -> nn.Module:
    module = mlp({})
    module[0].weight.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("make", "way"),
    [(Functions, "products"), (frozen, "products"), (lambda: nn.Linear(WIDTH, 1), "products"), (lambda: nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(1)), "products"),
     (Residual, "vmap"), (tied, "vmap"), (lambda: nn.Sequential(nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 2, 3),
      nn.Flatten(), nn.Linear(8, 1)), "vmap"), (Branching, "one by one"), (Unused, "one by one"), (hooked, "one by one"),
     (cumulative, "one by one")],
)  # fmt: skip
def test_modules_go_the_fastest_way_that_they_can(make: Any, way: str) -> None:
    made = creators(lambda config: make(), lambda module, config: torch.optim.SGD(
        [weight for weight in module.parameters() if weight.requires_grad], weight_decay=0.01, **config))  # fmt: skip
    agree(made, RATES, *data(), way=way)


@pytest.mark.parametrize("make", [Residual, Branching])
@pytest.mark.parametrize("name", ["adamw", "own: nadam"])
def test_optimisers_step_in_every_way(make: Any, name: str) -> None:
    kind, configs = OPTIMIZERS[name]
    agree(
        creators(lambda config: make(), lambda module, config: kind(module.parameters(), **config)),
        configs,
        *data(),
        way="vmap" if make is Residual else "one by one",
    )


def test_configs_of_different_modules_are_parted() -> None:
    configs: list[dict[str, Any]] = [{"lr": 0.1, "hidden": 8}, {"lr": 0.1, "hidden": 3}, {"lr": 0.01, "hidden": 8}]
    made = creators(optimizer=lambda module, config: torch.optim.SGD(module.parameters(), lr=config["lr"]))
    x, y = data()
    stack = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=SEEDS), x, y)
    weights = stack.weights()
    for place, config in enumerate(configs):
        expected = flat(plain(made, config, SEEDS[place], x, y)[0])
        np.testing.assert_allclose(weights[: len(expected), place], expected, rtol=1e-4, atol=1e-6)
        assert not weights[len(expected) :, place].any()
    assert len(stack._parts) == 2


def test_what_a_module_is_told_beside_its_numbers_parts_configs_too() -> None:
    made = creators(
        lambda config: Residual(config["share"]), lambda module, config: torch.optim.SGD(module.parameters(), lr=0.1)
    )
    agree(made, [{"share": 1.0}, {"share": 0.2}], *data(), way="vmap")
    assert made.blueprint({"share": 1.0}).key != made.blueprint({"share": 0.2}).key


LOSSES: dict[str, tuple[Any, str | None, int]] = {
    "logistic": ("logistic", None, 1),
    "squared": ("squared", None, 1),
    "softmax": ("softmax", None, 3),
    "a function of numbers": (nn.SmoothL1Loss(), None, 1),
    "a function of signs": (lambda output, y: F.relu(1 - output * y).mean(), "logistic", 1),
    "a function of classes": (nn.CrossEntropyLoss(label_smoothing=0.1), "softmax", 3),
    "a function of several outputs": (lambda output, y: (output - y[:, None]).square().mean(), None, 2),
}


@pytest.mark.parametrize(
    ("name", "weighted"),
    [
        *((name, False) for name in LOSSES),
        *((name, True) for name, (loss, _, _) in LOSSES.items() if isinstance(loss, str)),
    ],
)
def test_losses_are_torchs_own(name: str, weighted: bool) -> None:
    loss, kind, outputs = LOSSES[name]
    x, y = data(3 if outputs == 3 else 2)
    weight = np.random.default_rng(1).uniform(0.1, 2, ROWS).astype(np.float32) if weighted else None
    agree(creators(wide(outputs), loss=loss, kind=kind), RATES, x, y, way="products", weight=weight)
    agree(creators(lambda config: Outputs(outputs), loss=loss, kind=kind), RATES[:2], x, y, way="vmap", weight=weight)
