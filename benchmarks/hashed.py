"""Logistic regression on hashed features against Vowpal Wabbit: equal bits, equal rows, rows/s and the loss reached.

Features are numbers below 2^24, hashed by Penstock and given to Vowpal Wabbit as numbers, which it takes as they are: both
learn from the same entries. Penstock reads its converted file and shuffles it; Vowpal Wabbit reads its binary cache, whose
rows were shuffled once beforehand, since it takes them as they come. It learns by its default update, and by ``--sgd``
with the very rates that Penstock uses. Each has its learning rate chosen from as many, on a tenth of the training rows
held out; test rows are only measured. Penstock's losses are medians over seeds, one a round. Caches are warm; what the
first epoch costs beyond the others counts for neither.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.bigmodel_data import sparse
from benchmarks.harness import Claim

DATA = Path(os.environ.get("PENSTOCK_DATA", harness.ROOT.parent / "shared" / "data"))
BITS, DECAY = 24, 0.95
UPDATES = {"vw": "", "vw --sgd": "--sgd --power_t 0"}
"""Vowpal Wabbit's updates: adaptive, normalised and invariant by default; plain with ours for the rate."""
VW_RATES = (0.1, 0.5, 2.0)
"""Its default is 0.5."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to learn from and to measure on, as converted files, and the rates of plain steps to choose from."""

    name: str
    train: Path
    test: Path
    rates: tuple[float, ...]

    def text(self, part: str) -> str:
        return str(self.train.with_name(f"{self.name}-{part}.vw"))


def imdb(folder: Path, few: int | None) -> Rows:
    """Hash the reviews' words; a row's entries are scaled to length one. Rows stay in the order of their classes."""
    import pyarrow.parquet as pq
    import scipy.sparse as sp

    from penstock.blocks.conversion import convert
    from penstock.blocks.memory import ArraySource
    from penstock.columns.hashing import Hashed

    table = pq.read_table(DATA / "imdb" / "imdb_labelled.parquet", columns=["split", "label", "text"])
    if few is not None:
        table = table.take(np.sort(np.random.default_rng(0).permutation(len(table))[:few]))
    hashed: Any = Hashed.parse(f"text:2^{BITS}:words").encode(table["text"].combine_chunks())
    counts = np.asarray(hashed.indptr[1:] - hashed.indptr[:-1], np.int64)
    values = hashed.values / np.sqrt(np.repeat(np.maximum(counts, 1), counts)).astype(np.float32)
    shape = len(table), hashed.width
    x = sp.csr_matrix((values, hashed.indices.astype(np.int64), hashed.indptr.astype(np.int64)), shape)
    y = np.array([label == "pos" for label in table["label"].to_pylist()], np.float32)
    train = np.array([split == "train" for split in table["split"].to_pylist()])
    paths = folder / "imdb.arrow", folder / "imdb-test.arrow"
    for path, picks in zip(paths, (train, ~train), strict=True):
        convert(ArraySource(x[picks], y[picks]), path, label="label")
    return Rows("imdb", *paths, rates=(0.1, 0.5, 2.0))


def zipf(folder: Path, rows: int) -> Rows:
    """Make rows of 100 features by zipf's law."""
    common: dict[str, Any] = {"nnz": 100, "dimension": 2**BITS, "zipf": True}
    train = sparse(folder / "zipf.arrow", rows=rows, **common)
    return Rows(
        "zipf",
        train,
        sparse(folder / "zipf-test.arrow", rows=rows // 10, seed=1, **common),
        rates=(0.0005, 0.002, 0.01),
    )


def in_memory(train: str, test: str, epochs: int, rate: float, seed: int) -> dict[str, Any]:
    """Learn with the weights in one array."""
    from penstock import LogisticRegression

    model = LogisticRegression(learning_rate=rate, decay=DECAY, epochs=epochs, seed=seed)
    ends = _Ends()
    model.fit(train, y="label", listeners=[ends])
    return {"rate": ends.rate(model.history_), **model.evaluate(test)}


def on_disk(train: str, test: str, folder: str, memory: int, epochs: int, rate: float, seed: int) -> dict[str, Any]:
    """Learn with the weights in pages; checkpoints count."""
    from penstock.bigmodel import LogisticRegression

    # A quarter of an estimator's memory is for rows.
    model = LogisticRegression(
        folder, memory=memory * 4 // 3, learning_rate=rate, decay=DECAY, epochs=epochs, seed=seed
    )
    ends = _Ends()
    model.fit(train, y="label", listeners=[ends])
    found = {"rate": ends.rate(model.history_), **model.evaluate(test), "misses": model.traffic_["misses"]}
    model.close()
    return found


def chosen(train: str, epochs: int, rates: Sequence[float]) -> float:
    """Return the learning rate whose loss is least on a tenth of the training rows, held out."""
    from penstock import LogisticRegression

    def loss(rate: float) -> float:
        model = LogisticRegression(learning_rate=rate, decay=DECAY, epochs=epochs, validation=0.1)
        return float(model.fit(train, y="label").history_[-1]["test_loss"])

    return min(rates, key=loss)


def vowpal_chosen(tune: str, check: str, epochs: int) -> float:
    """Do the same for Vowpal Wabbit's default update."""
    losses = {rate: vowpal_wabbit(tune, check, epochs, rate, "", 1)["loss"] for rate in VW_RATES}
    return min(losses, key=lambda rate: losses[rate])


class _Ends:
    """Hears when epochs end, and tells the rows/s from the first's end on."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, event: Any) -> None:
        from penstock.events import Epoch

        if isinstance(event, Epoch):
            self.times.append(time.perf_counter())

    def rate(self, history: Sequence[Mapping[str, Any]]) -> float:
        return float(history[-1]["rows"] / np.median(np.diff(self.times)))


def vowpal_wabbit(train: str, test: str, epochs: int, rate: float, update: str, rows: int) -> dict[str, Any]:
    """Pass over the cache once, then ``epochs`` times: what the passes add is their price, without start and end."""
    from vowpalwabbit import Workspace

    steps = f"{update} -l {rate}" + f" --decay_learning_rate {DECAY}" * bool(update)
    common = f"--cache_file {train}.cache -b {BITS} --loss_function logistic --holdout_off --quiet {steps}"
    with tempfile.TemporaryDirectory(dir=Path(train).parent) as folder:
        seconds = {}
        for passes in (1, 1, epochs):  # the very first also opens the library
            began = time.perf_counter()
            learner = Workspace(f"{common} --passes {passes} -f {folder}/model")
            seconds[passes] = time.perf_counter() - began
            learner.finish()
        Workspace(f"-i {folder}/model -t -d {test} -p {folder}/scores --quiet").finish()
        scores = np.loadtxt(f"{folder}/scores", dtype=np.float64, ndmin=1)
    with open(test) as file:
        y = np.array([-1.0 if line.startswith("-") else 1.0 for line in file])
    added = seconds[epochs] - seconds[1]
    apart = added > seconds[epochs] / 4
    return {
        "rate": rows * (epochs - 1) / added if apart else rows * epochs / seconds[epochs],
        "apart": apart,
        "loss": float(np.logaddexp(0, -y * scores).mean()),
        "accuracy": float(((scores > 0) == (y > 0)).mean()),
    }


def write_text(path: str, text: str, shuffled: bool) -> dict[str, Any]:
    """Write a converted file's rows as Vowpal Wabbit's text, and its cache of those to learn from."""
    from penstock.blocks.open import open as open_source
    from penstock.training import Columns

    lines, features = [], []
    with open_source(path) as source:
        recipe = Columns("label").recipe(source)
        for block in range(len(source.block_rows)):
            batch: Any = recipe.encode(source.read(block, recipe.columns))
            ends, indices, values = batch.x.indptr.tolist(), batch.x.indices.tolist(), batch.x.values.tolist()
            features.append(np.unique(batch.x.indices))
            for label, start, stop in zip(batch.y.tolist(), ends, ends[1:], strict=False):
                entries = zip(indices[start:stop], values[start:stop], strict=True)
                row = " ".join(str(i) if v == 1 else f"{i}:{v:.7g}" for i, v in entries)
                lines.append(f"{1 if label > 0 else -1} | {row}\n")
    if not shuffled:
        Path(text).write_text("".join(lines))
    else:
        lines = [lines[i] for i in np.random.default_rng(0).permutation(len(lines))]
        held = len(lines) // 10
        Path(f"{text}.check").write_text("".join(lines[:held]))
        for name, part in ((text, lines), (f"{text}.tune", lines[held:])):
            Path(name).write_text("".join(part))
            _cache(name)
    return {"rows": len(lines), "features": len(np.unique(np.concatenate(features)))}


def _cache(text: str) -> None:
    from vowpalwabbit import Workspace

    Workspace(f"-d {text} --cache_file {text}.cache -k -b {BITS} --loss_function logistic --quiet").finish()


def run(quick: bool) -> list[Claim]:
    name = f"hashed to 2^{BITS}: against Vowpal Wabbit"
    if importlib.util.find_spec("vowpalwabbit") is None:
        return [Claim.not_measured(name, "rows/s and loss", "vowpalwabbit is not installed; run: make bench")]
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as folder:
        if (DATA / "imdb").is_dir():
            claims += _compared(imdb(Path(folder), 2000 if quick else None), quick)
        else:
            claims.append(
                Claim.not_measured(
                    f"{name}, imdb", "rows/s and loss", f"{DATA / 'imdb'} is not there; set PENSTOCK_DATA"
                )
            )
        claims += _compared(zipf(Path(folder), 5000 if quick else 200_000), quick)
    return claims


def _compared(data: Rows, quick: bool) -> list[Claim]:
    epochs, rounds = (3, 1) if quick else (6, 5)
    space = 4 * 2**BITS
    paths = {"train": str(data.train), "test": str(data.test)}
    wrote = harness.run_child(
        write_text, arguments={"path": paths["train"], "text": data.text("train"), "shuffled": True}
    )
    harness.run_child(write_text, arguments={"path": paths["test"], "text": data.text("test"), "shuffled": False})
    text, kept = data.text("train"), dict[str, list[Any]]()
    found = harness.run_child(chosen, arguments={"train": paths["train"], "epochs": epochs, "rates": data.rates})
    rate = found["value"]
    tuning = {"tune": f"{text}.tune", "check": f"{text}.check", "epochs": epochs}
    rates = {"vw": harness.run_child(vowpal_chosen, arguments=tuning)["value"], "vw --sgd": rate}

    def child(name: str, function: Any, **arguments: Any) -> Callable[[], float]:
        def turn() -> float:
            told = kept.setdefault(name, [])
            own = {} if name in UPDATES else {"rate": rate, "seed": len(told)}
            told.append(harness.run_child(function, arguments={**arguments, "epochs": epochs, **own}))
            return float(told[-1]["rate"])

        return turn

    contestants = {"in memory": child("in memory", in_memory, **paths)}
    for share, memory in (("25 %", space // 4), ("whole", space)):
        place = str(data.train.with_name(f"{data.name}-{share[:2]}.model"))
        contestants[f"on disk, {share}"] = child(f"on disk, {share}", on_disk, **paths, folder=place, memory=memory)
    texts = {"train": text, "test": data.text("test"), "rows": wrote["rows"]}
    for name, update in UPDATES.items():
        contestants[name] = child(name, vowpal_wabbit, **texts, update=update, rate=rates[name])
    results = harness.interleave(contestants, repeats=rounds)
    print(f"{data.name}, rows/s\n{results.table()}", file=sys.stderr)
    about = (
        f"{wrote['rows']:,} rows, {wrote['features']:,} of 2^{BITS} features occur; "
        + ", ".join(f"{name} {results.median(name) / 1e3:.0f}k rows/s" for name in contestants)
        + "; warm"
    )
    apart = all(one.get("apart", True) for told in kept.values() for one in told)
    if not apart:
        about += "; passes too short to tell from the start, which is counted for Vowpal Wabbit"
    loss, accuracy = (
        {name: float(np.median([one[key] for one in told])) for name, told in kept.items()}
        for key in ("loss", "accuracy")
    )
    seeds = [one["loss"] for one in kept["in memory"]]
    measured = "; ".join(f"{name} {loss[name]:.4f}, accuracy {accuracy[name]:.4f}" for name in contestants)
    claims = []
    for mine in ("in memory", "on disk, 25 %", "on disk, whole"):
        for peer in UPDATES:
            ratio, title = results.ratio(mine, peer), f"{data.name}, 2^{BITS}, {mine}: rows/s over {peer}"
            if mine == "in memory":
                claim = Claim.at_least(title, ratio, 1, note=about)
                claims.append(claim if apart else replace(claim, met=None))
            else:
                claims.append(Claim(title, ratio, "printed", True))
    note = (
        f"after {epochs} epochs: {measured}; in memory from {min(seeds):.4f} to {max(seeds):.4f} over {len(seeds)} seeds;"
        f" rates chosen of three each: {rate:g}, vw {rates['vw']:g}"
    )
    title = f"{data.name}, 2^{BITS}: test loss over"
    claims.append(
        Claim.at_most(f"{title} vw --sgd at equal rates", loss["in memory"] / loss["vw --sgd"], 1.01, note=note)
    )
    claims.append(Claim(f"{title} vw", loss["in memory"] / loss["vw"], "printed", True, note))
    worst = max(abs(loss[name] / loss["in memory"] - 1) for name in loss if name.startswith("on disk"))
    claims.append(
        Claim.at_most(f"{data.name}, 2^{BITS}, on disk: test loss against in memory", 100 * worst, 1, unit=" %")
    )
    return claims


if __name__ == "__main__":
    sys.exit(harness.main(run))
