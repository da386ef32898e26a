"""Torch modules for every group: trained as by a plain loop, wherever the rows lie, kept, opened and asked."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from penstock import seeds  # noqa: E402
from penstock.batch import Batch  # noqa: E402
from penstock.errors import MissingExtraError, ModelFileError, UnknownOptionError, UsageError  # noqa: E402
from penstock.groups import GroupBy, training_run  # noqa: E402
from penstock.groups.etl import group  # noqa: E402
from penstock.groups.grouped import Grouped  # noqa: E402
from penstock.groups.modules import config_arrays, finite  # noqa: E402
from penstock.groups.patterns.row_order import Shuffled  # noqa: E402
from penstock.groups.patterns.sequential import SequentialWorker  # noqa: E402
from penstock.groups.results import GroupModels  # noqa: E402
from penstock.groups.schedule import shard_order  # noqa: E402
from penstock.testing.executors import InlineExecutor  # noqa: E402
from penstock.torch import TorchModel  # noqa: E402
from penstock.torch.groups import ModuleSgd  # noqa: E402

SIZES = (600, 200, 80)
SEARCH = {"lr": [0.3, 0.1, 0.03], "hidden": [6]}


def rows_of(*, classes: int = 2, sparse: bool = False) -> pa.Table:
    """Return rows of three groups whose labels no linear model tells apart."""
    rng = np.random.default_rng(0)
    owner = rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    x = rng.standard_normal((len(owner), 4)).astype(np.float32)
    amount = x[:, 0] * x[:, 1] * np.where(owner == 1, -1, 1) + 0.3 * x[:, 2]
    y = np.array(["no", "yes"])[(amount > 0).astype(int)]
    if classes > 2:
        y = np.array(list("abc"))[np.digitize(amount, [-0.3, 0.3])]
    features = {name: x[:, place] for place, name in enumerate("abcd")}
    if sparse:
        ends = np.arange(0, 4 * len(x) + 1, 4, dtype=np.int32)
        indices = np.tile(np.arange(4, dtype=np.int32), len(x))
        features = {
            "indices": pa.ListArray.from_arrays(ends, indices),
            "values": pa.ListArray.from_arrays(ends, x.ravel()),
        }
    return pa.table({"city": np.array(["A", "B", "C"])[owner], "y": y, "amount": amount.astype(np.float32), **features})


def network(config: dict[str, Any]) -> nn.Module:
    hidden = config.get("hidden", 6)
    return nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, config.get("outputs", 1)))


def adam(module: nn.Module, config: dict[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters(), lr=config.get("lr", 0.05))


def model(**options: Any) -> TorchModel:
    return TorchModel(
        options.pop("model", network), options.pop("optimizer", adam), **{"epochs": 3, "batch_size": 16} | options
    )


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in this process: fresh ones take seconds to import torch."""
    monkeypatch.setitem(
        training_run.EXECUTORS, "local", lambda make, workers=None: InlineExecutor(make, workers=workers or 1)
    )


def fit(what: TorchModel, table: pa.Table | None = None, **options: Any) -> GroupModels:
    data = GroupBy(rows_of() if table is None else table, by="city", exclude=options.pop("exclude", ["amount"]))
    return data.fit(what, **{"y": "y", "search": SEARCH, "validation": 0.2} | options)


def plain(job: ModuleSgd, grouped: Grouped, number: int, config: int, *, parts: list[tuple[int, int]]) -> Any:
    """Train a config of a group by a plain loop over its parts, one after another, and return its weights."""
    torch.manual_seed(seeds.key(job.seed, "module", number, config))
    module = network(dict(job.choices[config]))
    optimizer = adam(module, dict(job.choices[config]))
    shuffled = Shuffled(SequentialWorker(job), job.shuffle, job.memory, job.seed)
    for epoch in range(int(job.epochs[config])):
        for first, rows in parts:
            for window in shuffled.windows(number, first, rows, epoch):
                for at in range(0, len(window), job.batch_sizes[config]):
                    batch = window.slice(at, at + job.batch_sizes[config])
                    optimizer.zero_grad()
                    x, y = torch.from_numpy(np.array(batch.x)), torch.from_numpy(np.array(batch.y))
                    F.softplus(-y * module(x)[:, 0]).mean().backward()
                    optimizer.step()
    return np.concatenate([value.numpy().ravel() for value in module.state_dict().values()])


@pytest.mark.parametrize("workers", [1, 2])
def test_modules_are_those_of_a_plain_loop_wherever_the_rows_lie(tmp_path: Path, workers: int) -> None:
    from penstock.groups.drivers.sgd_driver import HopsDrive
    from penstock.groups.place import sequential

    choices: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 0.03}, {"lr": 0.1, "batch_size": 40}, {"lr": 0.1, "epochs": 1}]
    with group(
        rows_of(), "city", tmp_path / "rows", label="y", exclude=["amount"], memory="100MB", block_size=4000
    ) as grouped:
        job = model(seed=4).job(grouped, choices, validation=0.1)
        fits: dict[int, Any] = {}
        placement = sequential(grouped.rows, workers, job.configs)
        HopsDrive(
            job,
            grouped,
            placement,
            InlineExecutor(job.make(), workers=workers),
            lambda fit: fits.update({fit.group: fit}),
        ).run()
        assert (len(placement.held[int(np.argmax(grouped.rows))]) > 1) == (workers > 1)
        for number in range(3):
            shards = [placement.shards[at] for at in placement.held[number]]
            for config in range(job.configs):
                order = shard_order(config, shards=len(shards))
                parts = [(shards[at].first, shards[at].rows) for at in order]
                expected = plain(job, grouped, number, config, parts=parts)
                np.testing.assert_allclose(fits[number].weights[:, config], expected, rtol=2e-3, atol=2e-5)


def test_figures_models_and_predictions(tmp_path: Path) -> None:
    table = rows_of()
    result = fit(model(epochs=30), table, out=tmp_path / "models")
    assert result.frame.num_rows == 9
    assert set(result.frame["status"].to_pylist()) == {"done"}
    assert min(result.chosen["held_out_accuracy"].to_pylist()) > 0.7
    best = result.best("B")
    assert list(best.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert best.params["hidden"] == 6
    module = best.module()
    x = np.column_stack([table[name] for name in "abcd"]).astype(np.float32)
    with torch.no_grad():
        scores = module(torch.from_numpy(x))[:, 0].numpy()
    np.testing.assert_allclose(best.scores(Batch(x)), scores, rtol=1e-5, atol=1e-6)
    predicted = result.predict(table, keep=["city"])
    here = np.array(predicted["city"].to_pylist()) == "B"
    assert np.array_equal(np.array(predicted["prediction"].to_pylist())[here], np.where(scores > 0, "yes", "no")[here])
    np.testing.assert_allclose(
        predicted["probability_yes"].to_numpy()[here], 1 / (1 + np.exp(-scores[here])), rtol=1e-4
    )
    assert np.mean(np.array(predicted["prediction"].to_pylist()) == np.array(table["y"].to_pylist())) > 0.75

    opened = GroupModels.open(tmp_path / "models")
    np.testing.assert_array_equal(opened.best("B").state_dict()["2.weight"], best.state_dict()["2.weight"])
    with pytest.raises(UsageError, match=r"GroupModels.open\(folder, model=TorchModel"):
        opened.predict(table)
    with pytest.raises(UsageError, match="code of these modules is not in their folder"):
        opened.best("B").module()
    again = GroupModels.open(tmp_path / "models", model=model())
    assert again.predict(table).equals(result.predict(table))
    with pytest.raises(ModelFileError, match="makes another module than the one that was trained"):
        GroupModels.open(tmp_path / "models", model=model(model=lambda config: nn.Linear(4, 1))).predict(table)
    result.save(tmp_path / "copy")
    assert GroupModels.open(tmp_path / "copy", model=model()).predict(table).equals(result.predict(table))
    best.save(tmp_path / "b.safetensors")
    from safetensors.torch import load_file

    network({"hidden": 6}).load_state_dict(load_file(tmp_path / "b.safetensors"))
    missing = result.predict(table.set_column(0, "city", pa.array(["Z"] * len(table))))
    assert missing["prediction"].null_count == len(table)


def test_classes_numbers_and_own_losses() -> None:
    wide = {"model": lambda config: network({**config, "outputs": 3})}
    three = rows_of(classes=3)
    result = fit(model(loss="softmax", epochs=20, **wide), three)
    assert min(result.chosen["held_out_accuracy"].to_pylist()) > 0.5
    predicted = result.predict(three)
    assert predicted.column_names[1:] == ["probability_a", "probability_b", "probability_c"]
    assert set(predicted["prediction"].to_pylist()) == {"a", "b", "c"}
    few, search = {"epochs": 2}, {"lr": [0.03, 0.01]}
    own = fit(model(loss=nn.CrossEntropyLoss(), targets="classes", **few, **wide), three, search=search)
    same = fit(model(loss="softmax", **few, **wide), three, search=search)
    np.testing.assert_allclose(own.frame["selection_loss"], same.frame["selection_loss"], rtol=1e-4)

    numbers: dict[str, Any] = {"y": "amount", "exclude": ["y"]}
    assert fit(model(loss="squared", epochs=20), **numbers).chosen["held_out_r2"][0].as_py() > 0.5
    own = fit(model(loss=lambda output, y: 0.5 * (output - y).square().mean(), **few), search=search, **numbers)
    same = fit(model(loss="squared", **few), search=search, **numbers)
    np.testing.assert_allclose(own.frame["selection_r2"], same.frame["selection_r2"], rtol=1e-3)
    with pytest.raises(UsageError, match=r"has 2 outputs, and there are 3 classes: a, b, c"):
        fit(model(loss="softmax", model=lambda config: nn.Linear(4, 2)), three)


def test_features_are_brought_to_scale_before_a_module_sees_them() -> None:
    table = rows_of()
    large = table.set_column(3, "a", pa.array(table["a"].to_numpy() * 100 + 500))
    plain, scaled = (fit(model(standardize=True, epochs=10), each) for each in (table, large))
    np.testing.assert_allclose(scaled.frame["selection_loss"], plain.frame["selection_loss"], rtol=1e-2)
    best = scaled.best("A")
    assert best.scale[0][0] == pytest.approx(500, rel=0.1)
    assert best.scale[1][0] == pytest.approx(100, rel=0.1)
    x = np.column_stack([large[name] for name in "abcd"]).astype(np.float32)
    with torch.no_grad():
        found = best.module()(torch.from_numpy(x))[:, 0].numpy()
    np.testing.assert_allclose(best.scores(Batch(x)), found, rtol=1e-4, atol=1e-5)
    assert list(best.state_dict()) == list(network({}).state_dict())
    here = np.array(large["city"].to_pylist()) == "A"
    predicted = np.array(scaled.predict(large)["prediction"].to_pylist())
    assert np.array_equal(predicted[here], np.where(found > 0, "yes", "no")[here])


def test_configs_may_have_modules_of_different_sizes(tmp_path: Path) -> None:
    search = {"hidden": [3, 8], "lr": [0.1, 0.03]}
    result = fit(model(standardize=True), search=search, out=tmp_path / "models")
    for config, hidden in enumerate([3, 3, 8, 8]):
        found = result.model("A", config)
        assert found.state_dict()["0.weight"].shape == (hidden, 4)
        alone = fit(model(standardize=True), search={"hidden": [hidden], "lr": [found.params["lr"], 0.5]})
        if config == 0:  # another number in the search has another chance
            np.testing.assert_allclose(alone.model("A", 0).arrays["2.weight"], found.arrays["2.weight"], rtol=1e-4)
    assert GroupModels.open(tmp_path / "models", model=model()).predict(rows_of()).num_rows == sum(SIZES)
    halved = fit(model(epochs=3), search=search, halving=True)
    assert sorted(set(halved.frame["status"].to_pylist())) == ["done", "stopped"]
    assert halved.predict(rows_of()).num_rows == sum(SIZES)


def test_halving_and_patience_end_training_early() -> None:
    halved = fit(model(epochs=9), halving=True)
    assert sorted(set(halved.frame["status"].to_pylist())) == ["done", "stopped"]
    patient = fit(model(epochs=50, patience=2, tolerance=0.5))
    assert max(patient.frame["epochs"].to_pylist()) < 10
    searched = fit(model(epochs=12, tolerance=0.5), search={"patience": [1, 100]})
    assert searched.frame["epochs"].to_pylist()[1::2] == [12] * 3
    assert max(searched.frame["epochs"].to_pylist()[::2]) < 6


def test_sparse_rows_are_made_dense_where_they_are_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    dense, sparse = fit(model()), fit(model(), rows_of(sparse=True))
    np.testing.assert_allclose(sparse.frame["selection_loss"], dense.frame["selection_loss"], rtol=1e-4)
    assert sparse.predict(rows_of(sparse=True))["prediction"].equals(dense.predict(rows_of())["prediction"])
    scaled = fit(model(standardize=True, epochs=10), rows_of(sparse=True))
    right = np.array(scaled.predict(rows_of(sparse=True))["prediction"]) == np.array(rows_of()["y"])
    assert right.mean() > 0.7
    monkeypatch.setattr("penstock.torch.groups._SPARSE", 3)
    with pytest.raises(UsageError, match="the rows are sparse and have 4 features; modules take dense rows"):
        fit(model(), rows_of(sparse=True))


def test_a_config_that_diverges_fails_alone() -> None:
    wild = model(optimizer=lambda module, config: torch.optim.SGD(module.parameters(), lr=config["lr"]), loss="squared")
    result = fit(wild, y="amount", exclude=["y"], search={"lr": [0.01, 1e9]})
    assert result.frame["status"].to_pylist() == ["done", "failed"] * 3
    assert result.chosen["config"].to_pylist() == [0, 0, 0]


class Picky(nn.Module):
    """A module that does not take the rows of a group whose features are large."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.abs().max() > 100:
            raise ValueError("rows that are too large")
        return self.inner(x)


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"halving": True}], ids=str)
def test_an_exception_in_one_group_fails_that_group_alone(options: dict[str, Any], tmp_path: Path) -> None:
    table, search = rows_of(), {"lr": [0.1, 0.03]}
    for bad, city in ((0, "A"), (1, "B")):  # the largest, which is split between workers, and one that is not
        x = np.array(table["a"]).copy()
        x[np.array(table["city"]) == city] += 1000
        result = fit(
            model(model=lambda config: Picky()),
            table.set_column(table.column_names.index("a"), "a", pa.array(x)),
            search=search,
            out=tmp_path / f"models {bad}",
            **options,
        )
        failed = result.failed
        assert set(failed["text"].to_pylist()) == {city}
        assert len(failed) == 2
        for row in failed.to_pylist():
            assert row["reason"].startswith("ValueError: rows that are too large (")
            assert "in forward" in row["traceback"]
        assert sorted(result.chosen["text"].to_pylist()) == sorted({"A", "B", "C"} - {city})
        assert result.chosen["traceback"].null_count == 2


def test_what_is_infinite_in_a_module_is_kept() -> None:
    assert np.isfinite(finite(np.array([np.inf, -np.inf]))).all()
    kept = config_arrays([["mask", [3], "float32"]], 0, finite(np.array([1, np.inf, -np.inf])))
    assert kept["mask"].tolist() == [1, np.inf, -np.inf]
    with pytest.raises(ModelFileError, match="a model has 2 numbers, and its layout 3"):
        config_arrays([["mask", [3], "float32"]], 0, np.zeros(2, np.float32))


def test_batches_of_one_row_and_batch_norm() -> None:
    normal = lambda config: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))  # noqa: E731
    result = fit(model(model=normal, batch_size=13, epochs=5))  # 40 of some rows, 3 × 13 and one left over
    assert set(result.frame["status"].to_pylist()) == {"done"}
    assert result.best("A").state_dict()["1.num_batches_tracked"].dtype == np.int64
    assert (result.best("A").state_dict()["1.running_var"] > 0).all()
    with pytest.raises(UsageError, match="batch_size=1 does not go with a module that normalises"):
        fit(model(model=normal, batch_size=1))


def test_what_is_wrong_is_said_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    for options, words in (
        ({"loss": "hinge"}, "loss='hinge' is not known"),
        ({"targets": "classes"}, "targets='classes' is for a loss that is a function"),
        ({"loss": nn.MSELoss(), "targets": "words"}, "targets='words' is not known"),
        ({"epochs": 0}, "epochs=0 is out of range"),
        ({"batch_size": 1.5}, "batch_size=1.5 is of the wrong type"),
        ({"shuffle": "once"}, "shuffle='once' is not there for groups"),
        ({"model": None}, "model_creator=None is not a function"),
    ):
        with pytest.raises((UsageError, UnknownOptionError), match=words):
            model(**options)
    with pytest.raises(UsageError, match="cannot take rows of 4 features"):
        fit(model(model=lambda config: nn.Linear(3, 1)))
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be sent to workers .*; they may use nothing from outside"):
        fit(model(optimizer=lambda module, config: adam(module, config) if lock else None))
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MissingExtraError, match=r"needs cloudpickle, .* pip install 'penstock\[torch\]'"):
        fit(model())


SCRIPT = """
import json, sys
import torch
from torch import nn
from penstock.groups import GroupBy
from penstock.torch import TorchModel

class Network(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.first, self.last = nn.Linear(4, hidden), nn.Linear(hidden, 1)
    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))

def adam(module, config):
    return torch.optim.Adam(module.parameters(), lr=config["lr"])

model = TorchModel(lambda config: Network(config["hidden"]), adam, epochs=3, batch_size=16)
result = GroupBy(sys.argv[1], by="city", exclude=["amount"]).fit(
    model, y="y", search={"lr": [0.3, 0.1, 0.03], "hidden": [6]}, validation=0.2, workers=2)
print(json.dumps(result.frame["selection_loss"].to_pylist()))
"""


def test_functions_of_a_script_travel_to_fresh_processes(tmp_path: Path) -> None:
    pq.write_table(rows_of(), tmp_path / "rows.parquet")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py", "rows.parquet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = fit(model()).frame["selection_loss"]
    np.testing.assert_allclose(json.loads(done.stdout), expected, rtol=0.3)  # cut elsewhere, and so in another order


def test_the_chosen_module_learns_from_all_rows_in_the_end() -> None:
    search = {"hidden": [2, 8], "lr": [0.1, 0.01]}
    found, whole = (fit(model(standardize=True), search=search, validation=share) for share in (None, 0.0))
    assert found.summary()["refitted"] == len(found.chosen_rows)
    for text, config in zip(found.groups, found.chosen["config"].to_pylist(), strict=True):
        mine, theirs = (each.model(text, config).module().state_dict() for each in (found, whole))
        for name, values in mine.items():
            torch.testing.assert_close(values, theirs[name])
