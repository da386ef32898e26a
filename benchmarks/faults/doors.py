"""The doors of Penstock as faults see them: what each writes, and what a user gets from it.

A door works in one folder. Its inputs are written there, its commands run there, and its answer is a list of arrays
that a user would get from the files in it: weights, predictions, rows. A fault is harmless if the answer stays the same.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Answer = list[NDArray[Any]]
PENSTOCK = (sys.executable, "-m", "penstock.cli")


@dataclass(frozen=True, slots=True)
class Door:
    """One way to use Penstock.

    Attributes
    ----------
    name : str
        What tables call it.
    inputs : callable
        Writes the user's data into a folder.
    commands : sequence of argument lists
        The command lines that make the door's files from them, in order, run in that folder.
    answer : callable
        What a user gets from the files in the current folder.
    resumable : bool
        Whether the last command takes ``--resume``.
    tolerance : float
        How far answers of two runs may differ: 0, unless sums are added up in the order in which workers end.
    """

    name: str
    inputs: Callable[[Path], None]
    commands: Sequence[Sequence[str]]
    answer: Callable[[], Answer]
    resumable: bool = False
    tolerance: float = 0.0

    def same(self, first: Answer, second: Answer) -> bool:
        """Say whether two answers agree."""
        return len(first) == len(second) and all(map(self._equal, first, second))

    def _equal(self, a: NDArray[Any], b: NDArray[Any]) -> bool:
        if a.shape != b.shape:
            return False
        if a.dtype.kind == "f":
            return bool(np.allclose(a, b, rtol=self.tolerance, atol=self.tolerance, equal_nan=True))
        return bool((a == b).all())


def doors() -> dict[str, Door]:
    """Return every door by name."""
    every = (LINEAR, CHECKPOINT, CONVERTED, SPARSE, ENCODED, LOADER, ON_DISK, FACTORS, GROUPS, GROUP_ROWS, ANSWERS)
    return {door.name: door for door in every}


def build(door: Door, folder: Path) -> float:
    """Write a door's inputs into a folder and run its commands there; return the seconds that they took."""
    door.inputs(folder)
    began = time.monotonic()
    for line in door.commands:
        subprocess.run([*PENSTOCK, *line], cwd=folder, check=True, capture_output=True)
    return time.monotonic() - began


def _write_clicks(folder: Path) -> None:
    """Write dense rows sorted by label, and some to predict."""
    chance = np.random.default_rng(1)
    for name, rows in (("clicks", 4_000), ("new", 300)):
        x = chance.normal(size=(rows, 6)).astype(np.float32)
        clicked = (x @ np.array([1.5, -1, 0.8, 0, 0.6, -0.4]) + 0.3 * chance.normal(size=rows) > 0).astype(np.int8)
        order = np.argsort(clicked, kind="stable")
        columns = {f"x{i}": x[order, i] for i in range(6)}
        table = pa.table({**columns, "clicked": clicked[order]})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=250)


def _write_cached_clicks(folder: Path) -> None:
    """Write dense rows, and the folder in which they are to be kept when they are encoded."""
    _write_clicks(folder)
    (folder / "kept").mkdir()


def _write_sparse(folder: Path) -> None:
    """Write sparse rows whose indices reach far beyond what an array could have."""
    chance = np.random.default_rng(2)
    rows, entries = 2_000, 20
    indices = np.sort((1e6 ** chance.random((rows, entries))).astype(np.int64), axis=1)
    values = chance.normal(size=(rows, entries)).astype(np.float32)
    y = (np.where(indices % 3 == 0, values, 0).sum(axis=1) > 0).astype(np.int64)
    table = pa.table({"indices": list(indices), "values": list(values), "y": y})
    pq.write_table(table, folder / "sparse.parquet", row_group_size=200)


def _write_ratings(folder: Path) -> None:
    chance = np.random.default_rng(3)
    who, what = (200 * chance.random(6_000) ** 1.5).astype(int), (80 * chance.random(6_000) ** 1.5).astype(int)
    users, items = chance.normal(size=(200, 3)), chance.normal(size=(80, 3))
    stars = (3 + 0.5 * np.einsum("ij,ij->i", users[who], items[what])).astype(np.float32)
    table = pa.table({"user": [f"user {n}" for n in who], "item": what, "stars": stars})
    pq.write_table(table, folder / "ratings.parquet", row_group_size=500)


def _write_visits(folder: Path) -> None:
    chance = np.random.default_rng(4)
    rows = 4_000
    country = chance.choice(["FR", "DE", "IT", "NO"], rows, p=[0.5, 0.25, 0.15, 0.1])
    x = chance.normal(size=(rows, 4)).astype(np.float32)
    clicked = x[:, 0] * np.where(country == "FR", 2, -1) + x[:, 1] + 0.5 * chance.normal(size=rows) > 0
    columns = {f"x{i}": x[:, i] for i in range(4)}
    pq.write_table(pa.table({"country": country, **columns, "clicked": clicked}), folder / "visits.parquet")


def _write_texts(folder: Path) -> None:
    """Write rows of text and arrays, as a neural network reads them."""
    chance = np.random.default_rng(5)
    texts = ["".join(chance.choice(list("abcdef "), chance.integers(1, 200))) for _ in range(1_500)]
    image = pa.FixedSizeListArray.from_arrays(pa.array(chance.integers(0, 255, 1_500 * 48).astype(np.uint8)), 48)
    pq.write_table(pa.table({"text": texts, "image": image, "y": np.arange(1_500)}), folder / "texts.parquet")


class Refused(Exception):  # noqa: N818 - it names what happened
    """A command ended with an error message and a status other than 0."""


def command(*args: str) -> None:
    """Run a command line in this process and in the current folder; raise `Refused` with its message if it fails."""
    from typer.testing import CliRunner

    from penstock.cli.application import app

    result = CliRunner().invoke(app, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise Refused(result.output)


def _leave_checkpoint(folder: Path) -> None:
    """Start a long training and end it by SIGKILL once it has a checkpoint."""
    _write_clicks(folder)
    with subprocess.Popen([*PENSTOCK, *_TRAIN, "--epochs", "100000"], cwd=folder, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (folder / "model.penstock.checkpoint").exists():
            time.sleep(0.01)
        process.kill()
    from penstock.modelfile import read_model

    reached = len(read_model(folder / "model.penstock.checkpoint")[1]["history"])
    (folder / "epochs.txt").write_text(str(reached + 2))


def _linear() -> Answer:
    import penstock

    return [penstock.load("model.penstock").predict_proba("new.parquet")]


def _resumed() -> Answer:
    """Train two epochs more than the checkpoint has."""
    command(*_TRAIN, "--epochs", Path("epochs.txt").read_text(), "--resume")
    return _linear()


def _trained(path: str, **options: Any) -> Answer:
    from penstock import LogisticRegression

    model = LogisticRegression(epochs=2, **options).fit(path)
    return [model.coef_, model.intercept_]


def _encoded() -> Answer:
    """Train again, from the encoded rows that the first training kept."""
    command(*_ENCODE, "again.penstock")
    return _coefficients("model.penstock") + _coefficients("again.penstock")


def _rows() -> Answer:
    import penstock

    found: Answer = []
    for shuffle in ("corgipile", "global"):
        with penstock.batches("texts.arrow", 100, shuffle=shuffle, memory="100%") as stream:
            for batch in stream:
                found += [np.array([str(text) for text in batch["text"]]), batch["image"], batch["y"]]
    return found


def _coefficients(path: str) -> Answer:
    import penstock

    model = penstock.load(path)
    return [model.coef_, model.intercept_]


def _on_disk() -> Answer:
    """Predict, and learn one epoch more, which reads the rows and pages that prediction does not."""
    command("predict", "disk.model", "sparse.parquet", "--out", "first.parquet")
    command(*_SPARSE, "--epochs", "4", "--resume")
    command("predict", "disk.model", "sparse.parquet", "--out", "second.parquet")
    return _columns("first.parquet") + _columns("second.parquet")


def _factors() -> Answer:
    command("predict", "factors.model", "ratings.parquet", "--out", "first.parquet")
    command(*_FACTOR, "--epochs", "4", "--resume")
    command("predict", "factors.model", "ratings.parquet", "--out", "second.parquet")
    return _columns("first.parquet") + _columns("second.parquet")


def _groups() -> Answer:
    command("groups", "predict", "models", "visits.parquet", "--out", "answers.parquet")
    return _columns("answers.parquet")


def _group_rows() -> Answer:
    """Train again from the rows that were sorted by group before."""
    command(*_GROUPS, "--workers", "1", "--rows", "rows", "--out", "again")
    command("groups", "predict", "again", "visits.parquet", "--out", "answers.parquet")
    return _columns("answers.parquet")


def _columns(path: str) -> Answer:
    import penstock

    with penstock.open(path) as source:
        table = pa.Table.from_batches([source.read(block) for block in range(len(source.block_rows))])
    return [np.asarray(column) for column in table.columns]


_TRAIN = ("train", "clicks.parquet", "--label", "clicked", "--memory", "1MB")
LINEAR = Door("linear", _write_clicks, [(*_TRAIN, "--epochs", "60")], _linear, resumable=True)
CHECKPOINT = Door("checkpoint", _leave_checkpoint, [], _resumed)
CONVERTED = Door(
    "converted, dense",
    _write_clicks,
    [("convert", "clicks.parquet", "clicks.arrow", "--label", "clicked", "--block-size", "4KB")],
    lambda: _trained("clicks.arrow", memory="50%") + _trained("clicks.arrow", shuffle="global"),
)
SPARSE = Door(
    "converted, sparse",
    _write_sparse,
    [("convert", "sparse.parquet", "sparse.arrow", "--label", "y", "--block-size", "4KB")],
    lambda: _trained("sparse.arrow", memory="100%"),
)
_ENCODE = ("train", "clicks.parquet", "--label", "clicked", "--solver", "sgd", "--memory", "120KB", "--epochs", "3")
_ENCODE = (*_ENCODE, "--cache", "kept", "--out")
ENCODED = Door("encoded rows", _write_cached_clicks, [(*_ENCODE, "model.penstock")], _encoded)
LOADER = Door("loader", _write_texts, [("convert", "texts.parquet", "texts.arrow", "--block-size", "4KB")], _rows)
_DISK = ("--model-memory", "16MB", "--learning-rate", "0.05", "--model-dir")
_SPARSE = ("train", "sparse.parquet", "--label", "y", "--memory", "4MB", *_DISK, "disk.model")
ON_DISK = Door("model on disk", _write_sparse, [(*_SPARSE, "--epochs", "3")], _on_disk, resumable=True)
_RATED = ("--user", "user", "--item", "item", "--rating", "stars", "--rank", "8")
_FACTOR = ("train", "ratings.parquet", "--model", "factor", *_RATED, *_DISK, "factors.model")
FACTORS = Door("factors", _write_ratings, [(*_FACTOR, "--epochs", "3")], _factors, resumable=True)
_GROUPS = ("groups", "train", "visits.parquet", "--by", "country", "--label", "clicked", "--try", "l2=0.1,0.01,0.001")
GROUPS = Door("groups", _write_visits, [(*_GROUPS, "--out", "models")], _groups, resumable=True, tolerance=1e-4)
GROUP_ROWS = Door(
    "rows by group",
    _write_visits,
    [(*_GROUPS, "--out", "models", "--rows", "rows")],
    _group_rows,
    resumable=True,
    tolerance=1e-4,
)
ANSWERS = Door(
    "predictions",
    _write_clicks,
    [(*_TRAIN, "--epochs", "2"), ("predict", "model.penstock", "new.parquet", "--out", "answers.parquet")],
    lambda: _linear() + _columns("answers.parquet"),
)
