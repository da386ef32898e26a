"""The small data that examples use, in README, docs/ and docstrings alike, under the names they use.

Every docstring example of the package runs in a fresh folder that holds them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    import pyarrow as pa

FEATURES = ("age", "visits", "price", "hour", "scroll", "seconds")


def clicks(rows: int, seed: int) -> pa.Table:
    """Make rows clustered by label: first all that were not clicked, then all that were."""
    import pyarrow as pa

    chance = np.random.default_rng(seed)
    x = chance.standard_normal((rows, len(FEATURES))).astype(np.float32)
    score = x @ np.array([1.5, -1.0, 0.8, 0.0, 0.6, -0.4]) + 0.3 * chance.standard_normal(rows)
    clicked = (score > 0).astype(np.int8)
    order = np.argsort(clicked, kind="stable")
    columns = {name: x[order, i] for i, name in enumerate(FEATURES)}
    return pa.table({**columns, "clicked": clicked[order]})


def visits(rows: int, seed: int) -> pa.Table:
    """Make rows of twelve groups of unequal sizes, in which the first feature counts for or against a click."""
    import pyarrow as pa

    chance = np.random.default_rng(seed)
    country = chance.choice(["FR", "DE", "IT", "NO"], rows, p=[0.5, 0.25, 0.15, 0.1])
    device = chance.choice(["ios", "android", "web"], rows)
    x = chance.standard_normal((rows, 3)).astype(np.float32)
    clicked = x[:, 0] * np.where(device == "ios", 2, -1) + x[:, 1] + 0.5 * chance.standard_normal(rows) > 0
    columns = dict(zip(FEATURES, x.T))
    return pa.table({"country": country, "device": device, **columns, "clicked": clicked})


@pytest.fixture(scope="session")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the originals: clicks.parquet, test.parquet, new.parquet, visits.parquet, clicks.csv and .svm."""
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    folder = tmp_path_factory.mktemp("examples")
    train, test = clicks(20_000, seed=1), clicks(4_000, seed=2)
    parquet.write_table(train, folder / "clicks.parquet", row_group_size=1_000)
    parquet.write_table(test, folder / "test.parquet", row_group_size=1_000)
    parquet.write_table(test.drop_columns(["clicked"]), folder / "new.parquet", row_group_size=1_000)
    parquet.write_table(visits(4_000, seed=3), folder / "visits.parquet", row_group_size=1_000)
    csv.write_csv(train, folder / "clicks.csv")
    with (folder / "clicks.svm").open("w") as file:
        for row in train.slice(9_000, 2_000).to_pylist():  # where the labels change
            pairs = " ".join(f"{i}:{row[name]:.6g}" for i, name in enumerate(FEATURES, 1))
            file.write(f"{row['clicked']} {pairs}\n")
    return folder


@pytest.fixture
def desk(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a fresh current folder with the examples' data in it."""
    for file in examples.iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _examples_have_a_desk(request: pytest.FixtureRequest) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        request.getfixturevalue("desk")
