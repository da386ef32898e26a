"""What a stack counts, keeps, draws and refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from penstock.errors import DataError, UnknownOptionError, UsageError  # noqa: E402
from penstock.torch.stacked import Stack  # noqa: E402
from tests.stacks import (  # noqa: E402
    BATCH,
    OPTIMIZERS,
    RATES,
    ROWS,
    SEEDS,
    WIDTH,
    Branching,
    Residual,
    creators,
    data,
    flat,
    learnt,
    mlp,
    plain,
    wide,
)


def test_rows_of_weight_zero_are_left_out_and_others_count_by_theirs() -> None:
    x, y = data()
    weight = np.where(np.arange(ROWS) % 3 == 0, 0, 2).astype(np.float32)
    mine = learnt(Stack(creators(), RATES, batch_sizes=BATCH, seeds=SEEDS), x, y, weight)
    there = weight > 0
    other = learnt(Stack(creators(), RATES, batch_sizes=BATCH, seeds=SEEDS), x[there], y[there], weight[there])
    assert (mine.weights() == other.weights()).all()
    function = Stack(
        creators(loss=lambda output, y: F.softplus(-y * output).mean(), kind="logistic"),
        RATES,
        batch_sizes=BATCH,
        seeds=SEEDS,
    )
    np.testing.assert_allclose(learnt(function, x, y, weight).weights(), mine.weights(), rtol=1e-4, atol=1e-6)
    for taken in (mine.take_losses(), function.take_losses()):
        assert taken[1].tolist() == [2 * 2.0 * there.sum()] * 3
    assert mine.take_losses()[0].tolist() == [0, 0, 0]
    for stack in (mine, function):
        sums, right = stack.measure(x, y, weight)
        scores = np.stack(stack.scores(x))
        np.testing.assert_allclose(sums, (weight * np.log1p(np.exp(-y * scores))).sum(1), rtol=1e-4)
        assert right.tolist() == (weight * ((scores > 0) == (y > 0))).sum(1).tolist()


def test_answers_of_classes_and_numbers_are_judged() -> None:
    x, y = data(3)
    stack = learnt(Stack(creators(wide(3), loss="softmax"), RATES, batch_sizes=BATCH, seeds=SEEDS), x, y)
    assert stack.measure(x, y)[1].tolist() == [(scores.argmax(1) == y).sum() for scores in stack.scores(x)]
    stack = learnt(Stack(creators(loss="squared"), RATES, batch_sizes=BATCH, seeds=SEEDS), x, y)
    sums, errors = stack.measure(x, y)
    np.testing.assert_allclose(errors, 2 * sums, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd momentum", "adam", "rmsprop all", "adagrad", "own: nadam"])
@pytest.mark.parametrize("make", [wide(1), lambda config: Residual(), lambda config: Branching()])
def test_states_go_on_to_the_last_bit(make: Any, name: str) -> None:
    kind, configs = OPTIMIZERS[name]
    made = creators(make, lambda module, config: kind(module.parameters(), **config))
    x, y = data()
    seeds = SEEDS[: len(configs)]
    through = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=seeds), x, y, epochs=4)
    first = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=seeds), x, y)
    states = first.states()
    assert all(isinstance(value, np.ndarray) for state in states for value in state.values())
    learnt(first, x, y)  # what was taken out is a copy
    again = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=seeds, states=states), x, y)
    assert (again.weights() == through.weights()).all()
    assert (first.weights() == through.weights()).all()
    alone = learnt(Stack(made, configs[1:2], batch_sizes=BATCH, seeds=seeds[1:2], states=states[1:2]), x, y)
    np.testing.assert_allclose(alone.weights()[:, 0], through.weights()[:, 1], rtol=1e-4, atol=1e-6)


def dropping(config: dict[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(config["p"]), nn.Linear(64, 1))


class DroppingOtherwise(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.inner = dropping({"p": 0.0})
        self.share = share

    def forward(self, x: Any) -> Any:
        return self.inner(F.dropout(x, self.share, training=self.training))


@pytest.mark.parametrize("otherwise", [False, True])
def test_chance_is_each_configs_own_and_goes_on_from_a_state(otherwise: bool) -> None:
    configs: list[dict[str, Any]] = [{"p": 0.5}, {"p": 0.0}, {"p": 0.3}]
    make: Any = (lambda config: DroppingOtherwise(config["p"])) if otherwise else dropping
    made = creators(make, lambda module, config: torch.optim.SGD(module.parameters(), lr=0.1))
    x, y = data()
    before = torch.get_rng_state()
    stack = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=SEEDS), x, y)
    assert torch.equal(torch.get_rng_state(), before)  # the caller's own chance is left alone
    assert stack.ways[0] == ("one by one" if otherwise else "products")
    alone = learnt(Stack(made, configs[2:], batch_sizes=BATCH, seeds=SEEDS[2:]), x, y)
    np.testing.assert_allclose(alone.weights()[:, 0], stack.weights()[:, 2], rtol=1e-4, atol=1e-6)
    half = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=SEEDS), x, y, epochs=1)
    again = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=SEEDS, states=half.states()), x, y, epochs=1)
    assert (again.weights() == stack.weights()).all()
    other = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=[1, *SEEDS[1:]]), x, y)
    assert (other.weights()[:, 0] != stack.weights()[:, 0]).any()
    assert (other.weights()[:, 1:] == stack.weights()[:, 1:]).all()
    undropped = plain(made, configs[1], SEEDS[1], x, y)[0]
    np.testing.assert_allclose(stack.weights()[:, 1], flat(undropped), rtol=1e-4, atol=1e-6)
    scores = [stack.scores(x), stack.scores(x)]
    assert all((one == two).all() for one, two in zip(*scores, strict=True))


def test_dropout_leaves_out_its_share() -> None:
    model = lambda config: nn.Sequential(nn.Dropout(config["p"]), nn.Linear(WIDTH, 1, bias=False))  # noqa: E731
    made = creators(model, lambda module, config: torch.optim.SGD(module.parameters(), lr=1.0), loss="squared")
    x, y = np.ones((4000, WIDTH), np.float32), np.ones(4000, np.float32)
    shares: list[dict[str, Any]] = [{"p": 0.25}, {"p": 1.0}]
    stack = Stack(made, shares, batch_sizes=4000, seeds=SEEDS[:2])
    for _, part in stack._parts:
        part._tensors["1.weight"].zero_()  # type: ignore[attr-defined]  # a part of products
    stack.learn(x, y)
    np.testing.assert_allclose(stack.weights()[:, 0], 1, atol=0.05)  # what stays is made larger for what goes
    assert not stack.weights()[:, 1].any()


@pytest.mark.parametrize("make", [mlp, lambda config: Residual(), lambda config: Branching()])
def test_a_config_that_leaves_the_finite_numbers_is_alone_with_that(make: Any) -> None:
    made = creators(make, lambda module, config: torch.optim.SGD(module.parameters(), **config), loss="squared")
    x, y = data()
    configs = [RATES[0], {"lr": 1e12}, RATES[2]]
    stack = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=SEEDS), x, y)
    assert stack.failed().tolist() == [False, True, False]
    sums, right = stack.measure(x, y)
    assert np.isfinite(sums).tolist() == np.isfinite(right).tolist() == [True, False, True]
    assert np.isfinite(stack.take_losses()[0]).tolist() == [True, False, True]
    again = learnt(Stack(made, configs, batch_sizes=BATCH, seeds=SEEDS, states=stack.states()), x, y)
    assert again.failed().tolist() == [False, True, False]
    sound = learnt(Stack(made, [RATES[0], RATES[2]], batch_sizes=BATCH, seeds=[SEEDS[0], SEEDS[2]]), x, y)
    np.testing.assert_allclose(stack.weights()[:, [0, 2]], sound.weights(), rtol=1e-4, atol=1e-6)


def test_what_cannot_be_trained_is_refused_in_words() -> None:
    def refused(expected: type[Exception], words: str, configs: Any = None, **given: Any) -> None:
        with pytest.raises(expected, match=words):
            Stack(creators(**given), configs or RATES, batch_sizes=4, seeds=SEEDS).learn(*data(3))

    refused(UnknownOptionError, "loss='hinge' is not known", loss="hinge")
    refused(UsageError, "is not a loss", loss=3)
    refused(UsageError, "model_creator returned None", model=lambda config: None)
    refused(UsageError, "optimizer_creator returned", optimizer=lambda module, config: None)
    refused(
        UsageError, "LBFGS asks for the loss several times", optimizer=lambda m, c: torch.optim.LBFGS(m.parameters())
    )
    refused(UsageError, "cannot take rows of 6 features", model=lambda config: nn.Linear(5, 1))
    refused(UsageError, r"wants one score for each row, \(rows, 1\)", model=wide(2))
    refused(UsageError, "a score for each class", model=wide(1), loss="softmax")
    refused(DataError, "a class number 2, and the module has 2 outputs", model=wide(2), loss="softmax")
    refused(UsageError, "returns a tuple", model=lambda config: nn.LSTM(WIDTH, 1))
    refused(UsageError, "mean over rows", loss=lambda output, y: output - y)
    refused(UsageError, "does not hang on the outputs", loss=lambda output, y: y.mean())
    refused(
        UsageError,
        r"optimizer_creator failed .* KeyError: 'rate'; a config has what is searched, lr",
        optimizer=lambda m, c: c["rate"],
    )
    refused(UsageError, "model_creator failed for .* ZeroDivisionError", model=lambda config: 1 / 0)
    other = nn.Linear(2, 2)
    refused(
        UsageError, "has no parameter of the module", optimizer=lambda m, c: torch.optim.SGD(other.parameters(), lr=1)
    )
    sizes = iter([4, 4, 4, 5, 5, 5])
    refused(UsageError, "another module than before", model=lambda config: wide(1)({}) if next(sizes) == 4 else mlp({}))
