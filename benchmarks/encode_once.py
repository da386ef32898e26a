"""Epochs from compressed Parquet that does not fit in memory: encoded anew each time, encoded once, and from a converted file.

The same training three times: by default, with ``cache=off``, and from what ``penstock convert`` makes of the data. Both with SGD in
windows of shuffled blocks and with full passes in stored order. The first epoch is counted with what is prepared for it. Text
columns, which are hashed or one-hot encoded, are compared with ``cache=off`` alone. Caches are warm.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import ROOT, Claim, Results, interleave, main
from penstock.blocks.conversion import convert
from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.memory_learner import linear_job
from penstock.training import Columns

WIDTH, GROUPS, EPOCHS = 28, 40, 5
MEMORY = "20%"
ANEW, ONCE, CONVERTED = "cache=off", "encoded once", "converted"
SOLVERS = {"SGD, corgipile": {"solver": "sgd"}, "full passes": {"solver": "lbfgs"}}


def run(quick: bool) -> list[Claim]:
    rows, texts, rounds = (200_000, 50_000, 3) if quick else (4_000_000, 500_000, 5)
    claims: list[Claim] = []
    with _folder() as folder:
        parquet, converted = folder / "numbers.parquet", folder / "numbers.arrow"
        _numbers(parquet, rows)
        with open_source(parquet) as source:
            convert(source, converted, label="label")
        for name, settings in SOLVERS.items():
            ways = {
                ANEW: partial(_epochs, parquet, settings, cache=False),
                ONCE: partial(_epochs, parquet, settings, cache=True),
                CONVERTED: partial(_epochs, converted, settings, cache=True),
            }
            claims += _claims(f"numbers, {name}", ways, rounds=rounds)
        text = folder / "text.parquet"
        _texts(text, texts)
        settings = SOLVERS["SGD, corgipile"]
        ways = {
            ANEW: partial(_epochs, text, settings, cache=False),
            ONCE: partial(_epochs, text, settings, cache=True),
        }
        claims += _claims("text, SGD, corgipile", ways, rounds=rounds)
    return claims


def _claims(name: str, ways: dict[str, Callable[[], list[float]]], *, rounds: int) -> list[Claim]:
    for way in ways.values():  # compiles the kernels
        way()
    found = interleave(ways, repeats=rounds)
    print(f"\n{name}: seconds of an epoch, medians of {rounds} rounds")
    for way in ways:
        print(f"  {way:14} first {_first(found, way):7.3f}   later {_later(found, way):7.3f}")
    anew, once = (f"{_first(found, way):.3g} s" for way in (ANEW, ONCE))
    claims = [
        Claim.at_most(
            f"encode once: first epoch of {name}, against cache=off",
            _first(found, ONCE) / _first(found, ANEW),
            1.15,
            note=f"{once} against {anew}",
        )
    ]
    if CONVERTED in ways:
        claims.append(
            Claim.at_least(
                f"encode once: speed of later epochs of {name}, against a converted file",
                _later(found, CONVERTED) / _later(found, ONCE),
                0.8,
                note=f"{_later(found, ONCE):.3g} s against {_later(found, CONVERTED):.3g} s; {_later(found, ANEW):.3g} s without",
            )
        )
    else:
        claims.append(
            Claim.at_least(
                f"encode once: speed of later epochs of {name}, against cache=off",
                _later(found, ANEW) / _later(found, ONCE),
                1.0,
                note=f"{_later(found, ONCE):.3g} s against {_later(found, ANEW):.3g} s",
            )
        )
    return claims


def _first(found: Results, way: str) -> float:
    return statistics.median(seconds[0] for seconds in found.values[way])


def _later(found: Results, way: str) -> float:
    return statistics.median(statistics.median(seconds[1:]) for seconds in found.values[way])


def _epochs(path: Path, settings: dict[str, Any], *, cache: bool) -> list[float]:
    """Train, and return the seconds of each epoch, with what was prepared for it."""
    with open_source(path) as source:
        config = Config(epochs=EPOCHS, memory=MEMORY, validation=0.0, tolerance=0.0, **settings)
        model = linear_job(source, config, Columns(label="label"), cache=cache).run()
    return [row["seconds"] + row.get("prepare_seconds", 0.0) for row in model.history]


def _numbers(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=WIDTH).astype(np.float32)
    schema = pa.schema([*((f"x{j}", pa.float32()) for j in range(WIDTH)), ("label", pa.int8())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(GROUPS):
            # Two digits, as measured values have, so that there is something to compress.
            x = np.round(rng.normal(size=(rows // GROUPS, WIDTH)), 2).astype(np.float32)
            y = (x @ weights + rng.normal(size=len(x)) > 0).astype(np.int8)
            writer.write_table(pa.table([*x.T, y], schema=schema))


def _texts(path: Path, rows: int) -> None:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {f"x{j}": rng.normal(size=rows) for j in range(10)}
    total = columns["x0"]
    for j, levels in enumerate((10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)):
        codes = rng.integers(0, levels, rows)
        total = total + rng.normal(size=levels)[codes] / 3
        columns[f"c{j}"] = np.array([f"level {level}" for level in range(levels)])[codes]
    columns["label"] = (total > 0).astype(np.int8)
    pq.write_table(pa.table(columns), path, compression="zstd", row_group_size=max(1, rows // GROUPS))


@contextmanager
def _folder() -> Iterator[Path]:
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield Path(name)


if __name__ == "__main__":
    sys.exit(main(run))
