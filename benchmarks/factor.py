"""Matrix factorisation on pages against in memory and a key-value engine: an epoch's seconds, and the error reached.

Ratings are made after MovieLens' measures (6,040 users, 3,706 items, a million ratings) at rank 1000, as in the paper
(section 7), and taken from Book-Crossing at rank 100. An epoch on pages counts with its checkpoint. Contestants with a
limit run in a control group of their budget and 400 MB; a model of 40 MB would lie in that group's page cache whole, so
after the first epoch the group is filled up with ballast but for `ROOM`. The key-value engine is loaded beforehand, has
a larger group and no ballast in it, sees some of the ratings, and its time is scaled up.
"""

from __future__ import annotations

import io
import lzma
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks import harness
from benchmarks.harness import Claim

DATA = Path(os.environ.get("PENSTOCK_DATA", harness.ROOT.parent / "shared" / "data"))
BESIDE = 400_000_000
"""What the interpreter and its libraries take beside the budget."""
ROOM = 24_000_000
"""What is left of a filled group for the page cache."""
CHUNK = 256
"""Ratings of a mini-batch of the key-value engine."""
PIECE = 1 << 15
"""Keys asked for at once: those of a chunk, as Python's objects, take a hundred bytes each."""
KEYS = 200_000_000
"""What the key-value engine's group has beyond the others', for these objects."""
RATE, DECAY, L2 = 0.01, 0.95, 0.02


@dataclass(frozen=True, slots=True)
class Ratings:
    """Ratings in two Parquet files, and what there is in the first."""

    train: Path
    test: Path
    rows: int
    users: int
    items: int

    @classmethod
    def write(cls, folder: Path, name: str, table: pa.Table, *, share: float = 0.05) -> Ratings:
        """Part a table at random and write both files."""
        held = np.random.default_rng(1).random(len(table)) < share
        train, test = (table.filter(pa.array(mask)) for mask in (~held, held))
        paths = folder / f"{name}.parquet", folder / f"{name}-test.parquet"
        for path, part in zip(paths, (train, test), strict=True):
            pq.write_table(part, path, row_group_size=1 << 16)
        counts = (pc.count_distinct(train[column]).as_py() for column in ("user", "item"))
        return cls(*paths, len(train), *counts)

    def model_bytes(self, rank: int) -> int:
        return (self.users + self.items) * (rank + 1) * 4


def movies(folder: Path, *, users: int, items: int, rows: int) -> Ratings:
    """Make ratings of one to five stars: a few users and items have most of them, ten tastes and noise explain them."""
    chance, tastes = np.random.default_rng(0), 10
    drawn = np.empty(0, np.int64)
    while len(drawn) < rows:  # nobody rates an item twice
        who = _skewed(chance, users, rows // 2, offset=0.15)
        what = _skewed(chance, items, rows // 2, offset=0.05)
        drawn = np.unique(np.concatenate([drawn, who * items + what]))
    user, item = np.divmod(chance.permutation(drawn)[:rows], items)
    biases = chance.normal(0, 0.4, users)[user] + chance.normal(0, 0.4, items)[item]
    p, q = (chance.normal(0, math.sqrt(0.5 / math.sqrt(tastes)), (n, tastes)) for n in (users, items))
    score = 3.6 + biases + (p[user] * q[item]).sum(axis=1) + chance.normal(0, 0.7, rows)
    stars = np.clip(np.rint(score), 1, 5).astype(np.float32)
    return Ratings.write(folder, "movies", pa.table({"user": user, "item": item, "rating": stars}))


def _skewed(chance: np.random.Generator, n: int, size: int, *, offset: float) -> np.ndarray:
    """Draw numbers below ``n``, the frequent ones anywhere among them, by zipf's law flattened at its head."""
    weights = 1 / (np.arange(n) + offset * n)
    return chance.permutation(n)[chance.choice(n, size, p=weights / weights.sum())]


def books(folder: Path) -> Ratings:
    """Read Book-Crossing's explicit ratings, one to ten."""
    with lzma.open(DATA / "bookcrossing" / "BX-Book-Ratings.csv.xz") as file:
        text = io.BytesIO(file.read())
    names = pa.csv.ReadOptions(encoding="latin-1", column_names=["user", "item", "rating"], skip_rows=1)
    types = pa.csv.ConvertOptions(column_types={"user": pa.int64(), "item": pa.string(), "rating": pa.float32()})
    table = pa.csv.read_csv(
        text, read_options=names, parse_options=pa.csv.ParseOptions(delimiter=";"), convert_options=types
    )
    return Ratings.write(folder, "books", table.filter(pc.greater(table["rating"], 0)))


def in_memory(train: str, test: str, rank: int, epochs: int) -> dict[str, Any]:
    """Learn with all factors in one array, from ratings in a new random order each epoch."""
    from penstock.bigmodel.factor_model import blank
    from penstock.bigmodel.grid import FactorLayout
    from penstock.sgd.factor import COUNT, SQUARES, TOTALS, factor_rows, factor_scores

    users, items, ratings, known = _columns(train)
    layout = FactorLayout(rank, len(known[0]), len(known[1]), -(-(rank + 1) // 16) * 16, 1)
    records, pages = np.empty((layout.pages, layout.width), np.float32), np.arange(layout.pages)
    blank(layout, seed=0, spread=float(ratings.std()))(pages, pages, records)
    items += np.uint32(layout.first_item)
    mean, seconds, errors = np.float32(ratings.mean(dtype=np.float64)), [], []
    for epoch in range(epochs):
        began, totals = time.perf_counter(), np.zeros(TOTALS)
        order = np.random.default_rng((0, epoch)).permutation(len(ratings))
        rate = np.float32(RATE * DECAY**epoch)
        rows = users[order], items[order], ratings[order]
        if factor_rows(records, *rows, mean, rate, np.float32(L2), rank, totals) >= 0:
            raise ArithmeticError("training in memory diverged")
        seconds.append(time.perf_counter() - began)
        errors.append(math.sqrt(totals[SQUARES] / totals[COUNT]))
    users, items, ratings, _ = _columns(test, known)
    items[items != _ABSENT] += np.uint32(layout.first_item)
    scores = np.empty(len(ratings), np.float32)
    factor_scores(records, users, items, mean, rank, scores)
    reached = math.sqrt(np.mean((scores.astype(np.float64) - ratings) ** 2))
    return {"seconds": seconds[1:], "rmse": errors, "test_rmse": reached}


_ABSENT = np.uint32(0xFFFFFFFF)


def _columns(path: str, known: Any = None) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Return users and items numbered by ``known``, or as they first occur, the ratings, and what was numbered."""
    table = pq.read_table(path)
    keys = [table[name].combine_chunks() for name in ("user", "item")]
    if known is None:
        known = [pc.unique(column) for column in keys]
    found = [pc.index_in(column, values) for column, values in zip(keys, known, strict=True)]
    users, items = (column.fill_null(-1).to_numpy().astype(np.int32).view(np.uint32) for column in found)
    return users.copy(), items.copy(), table["rating"].to_numpy().astype(np.float32), known


def paged(
    train: str, test: str, folder: str, rank: int, memory: int, epochs: int, threads: int = 1, fill: int = 0
) -> dict[str, Any]:
    """Learn with the factors in pages; from the second epoch on the group of ``fill`` bytes has no room for a cache."""
    from penstock.bigmodel import MatrixFactorization
    from penstock.events import Epoch

    ends, weight = list[float](), list[np.ndarray]()
    began = time.perf_counter()

    def hear(event: Any) -> None:
        if isinstance(event, Epoch):
            if not ends and fill:
                weight.append(_ballast(fill))
            ends.append(time.perf_counter())

    model = MatrixFactorization(
        model_dir=folder,
        rank=rank,
        memory=memory,
        threads=threads,
        epochs=epochs,
        learning_rate=RATE,
        decay=DECAY,
        l2=L2,
    )
    model.fit(train, listeners=[hear])
    weight.clear()
    history = model.history_
    return {
        # From one epoch's end to the next: the checkpoint between them is part of the price.
        "seconds": np.diff(ends).tolist(),
        "inside": [row["seconds"] for row in history[1:]],
        "bytes": [row["bytes"] for row in history[1:]],
        "first": ends[0] - began,
        "rmse": [row["progressive_rmse"] for row in history],
        "test_rmse": model.evaluate(test)["rmse"],
    }


def key_value(train: str, folder: str, rank: int, memory: int, chunks: int, composite: bool) -> dict[str, Any]:
    """Learn from some ratings with every number under a key of its own, or a user's or item's numbers under one.

    A chunk's numbers are got, learnt from by the same kernel, got again, changed by what was learnt, and put.
    """
    from benchmarks.rivals.engine import Engine
    from penstock.bigmodel.factor_model import blank
    from penstock.bigmodel.grid import FactorLayout
    from penstock.sgd.factor import TOTALS, factor_rows

    users, items, ratings, known = _columns(train)
    layout = FactorLayout(rank, len(known[0]), len(known[1]), rank + 1, 1)
    items += np.uint32(layout.first_item)
    given = np.float32(ratings.mean()), np.float32(RATE), np.float32(L2), rank
    size = 4 * layout.width if composite else 4

    def keys_of(records: np.ndarray) -> list[bytes]:
        if composite:
            return _cut(records.astype(">u4").tobytes(), 4)
        pairs = np.empty((len(records), layout.width, 2), ">u4")
        pairs[..., 0], pairs[..., 1] = records[:, None], np.arange(layout.width)
        return _cut(pairs.tobytes(), 8)

    def get(keys: list[bytes]) -> np.ndarray:
        parts = [b"".join(engine.get(keys[at : at + PIECE])) for at in range(0, len(keys), PIECE)]
        return np.frombuffer(b"".join(parts), np.float32).reshape(-1, layout.width).copy()

    def put(keys: list[bytes], cells: np.ndarray) -> None:
        text = cells.tobytes()
        for at in range(0, len(keys), PIECE):
            some = keys[at : at + PIECE]
            engine.put(some, _cut(text[at * size : (at + len(some)) * size], size))

    engine = Engine(folder, memory=max(memory, 1 << 20), readers=8)
    first = blank(layout, seed=0, spread=float(ratings.std()))
    for start in range(0, layout.pages, 64):
        some = np.arange(start, min(start + 64, layout.pages))
        cells = np.empty((len(some), layout.width), np.float32)
        first(some, np.arange(len(some)), cells)
        put(keys_of(some), cells)
    picks = np.random.default_rng(0).permutation(len(ratings))[: (chunks + 1) * CHUNK]
    requests, began = 0, 0.0
    for number, start in enumerate(range(0, len(picks), CHUNK)):
        if number == 1:  # the first chunk compiles
            requests, began = 0, time.perf_counter()
        here = picks[start : start + CHUNK]
        records, places = np.unique(np.concatenate([users[here], items[here]]), return_inverse=True)
        keys = keys_of(records)
        got = get(keys)
        learnt, slots = got.copy(), places.astype(np.uint32)
        factor_rows(learnt, slots[: len(here)], slots[len(here) :], ratings[here], *given, np.zeros(TOTALS))
        latest = get(keys)
        latest += learnt - got
        put(keys, latest)
        requests += 3 * len(keys)
    took, seen = time.perf_counter() - began, len(picks) - CHUNK
    engine.close()
    return {"seconds": [took / seen * len(ratings)], "requests": requests / seen * len(ratings), "seen": seen}


def _cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _ballast(limit: int) -> np.ndarray:
    """Take what a group has beyond this process and ``ROOM``, so that no model hides in its page cache."""
    status = Path("/proc/self/status")
    if not limit or not status.exists():
        return np.empty(0, np.uint8)
    line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon:"))
    return np.ones(max(0, limit - 1024 * int(line.split()[1]) - ROOM), np.uint8)


def run(quick: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        return _movies(Path(name), quick) + _books(Path(name), quick)


def _movies(folder: Path, quick: bool) -> list[Claim]:
    sizes = (
        {"users": 1200, "items": 740, "rows": 60_000} if quick else {"users": 6040, "items": 3706, "rows": 1_000_000}
    )
    rank, data, kept = 1000, movies(folder, **sizes), dict[str, Any]()
    epochs, rounds = (3, 1) if quick else (8, 3)
    budget = data.model_bytes(rank) // 4
    limit = budget + BESIDE
    contestants = _both(folder, data, rank, epochs, kept)
    for name, composite, chunks in (("kv", False, 1 if quick else 4), ("kv-vp", True, 10 if quick else 200)):

        def turn(name: str = name, composite: bool = composite, chunks: int = chunks) -> float:
            with tempfile.TemporaryDirectory(dir=folder) as store:
                arguments = {
                    "train": str(data.train),
                    "folder": store,
                    "rank": rank,
                    "memory": budget,
                    "chunks": chunks,
                }
                arguments["composite"] = composite
                return _told(kept, name, harness.run_child(key_value, arguments=arguments, limit=limit + KEYS))

        contestants[name] = turn
    results = harness.interleave(contestants, repeats=rounds, before=lambda: harness.evict(folder))
    print(f"movies, seconds an epoch\n{results.table()}", file=sys.stderr)
    about = f"movies, rank {rank}, 25 % memory"
    claims = _claims(about, data, rank, results, kept, bar=2.0)
    for name, bar in (("kv", 7), ("kv-vp", None)):
        ratio, found = results.ratio(name, "paged"), kept[name][-1]
        note = (
            f"{results.median(name):.0f} s an epoch, scaled from {found['seen']:,} ratings in chunks of {CHUNK},"
            f" {found['requests']:.3g} requests; paged {results.median('paged'):.2f} s"
        )
        title = f"{about}: epoch against {name}"
        claims.append(
            Claim.at_least(title, ratio, bar, note=note) if bar else Claim(title, ratio, "printed", True, note)
        )
    return claims


def _books(folder: Path, quick: bool) -> list[Claim]:
    rank, about = 100, "Book-Crossing, rank 100, 25 % memory"
    if not (DATA / "bookcrossing").is_dir():
        why = f"{DATA / 'bookcrossing'} is not there; set PENSTOCK_DATA"
        return [Claim.not_measured(f"{about}: RMSE against in memory", "≤ 1 %", why)]
    data, kept = books(folder), dict[str, Any]()
    contestants = _both(folder, data, rank, 2 if quick else 8, kept)
    results = harness.interleave(contestants, repeats=1 if quick else 3, before=lambda: harness.evict(folder))
    print(f"books, seconds an epoch\n{results.table()}", file=sys.stderr)
    return _claims(about, data, rank, results, kept, bar=None)


def _both(folder: Path, data: Ratings, rank: int, epochs: int, kept: dict[str, Any]) -> dict[str, Callable[[], float]]:
    """Return the contestants in memory and on pages; what they tell goes to ``kept``."""
    budget, paths = data.model_bytes(rank) // 4, {"train": str(data.train), "test": str(data.test)}
    common = {**paths, "rank": rank, "epochs": epochs}
    pages = {**common, "folder": str(data.train.with_suffix(".model")), "memory": budget}
    full = {"fill": budget + BESIDE}

    def turn(name: str, function: Any, limit: int | None, **arguments: Any) -> Callable[[], float]:
        return lambda: _told(kept, name, harness.run_child(function, arguments=arguments, limit=limit))

    limit = budget + BESIDE
    kept["prepared"] = [harness.run_child(paged, arguments={**pages, "epochs": 1}, limit=limit)]
    return {
        "in memory": turn("in memory", in_memory, None, **common),
        "paged": turn("paged", paged, limit, **pages, **full),
        "paged, cached": turn("paged, cached", paged, limit, **pages),
        "paged, 2 threads": turn("paged, 2 threads", paged, limit, **pages, **full, threads=2),
    }


def _told(kept: dict[str, Any], name: str, found: dict[str, Any]) -> float:
    kept.setdefault(name, []).append(found)
    return float(np.median(found["seconds"]))


def _claims(about: str, data: Ratings, rank: int, results: Any, kept: Any, *, bar: float | None) -> list[Claim]:
    mine, child = kept["paged"][-1], kept["paged"][-1]["child"]
    limited = (
        f"limited to the budget + {BESIDE / 1e6:.0f} MB of which {ROOM / 1e6:.0f} MB are left for the page cache"
        if child["limited"]
        else f"NOT limited: {child['why']}"
    )
    note = (
        f"{data.rows:,} ratings, {data.users:,} users, {data.items:,} items, model of {data.model_bytes(rank) / 1e6:.0f}"
        f" MB; {results.median('paged'):.2f} s against {results.median('in memory'):.2f} s, of it"
        f" {np.median(mine['inside']):.2f} s before the checkpoint; {np.median(mine['bytes']) / 1e6:.0f} MB read and"
        f" written; {limited}; prepared and first epoch in {kept['prepared'][0]['first']:.1f} s"
    )
    title, ratio = f"{about}: epoch over in memory", results.ratio("paged", "in memory")
    claims = [Claim.at_most(title, ratio, bar, note=note) if bar else Claim(title, ratio, "printed", True, note)]
    ratio = results.ratio("paged, cached", "in memory")
    claims.append(Claim(f"{title}, the page cache helping", ratio, "printed", True, "no ballast in the group"))
    ratio = results.ratio("paged", "paged, 2 threads")
    claims.append(Claim(f"{about}: speed-up of 2 threads over 1", ratio, "printed", True))
    base = _errors(kept["in memory"][-1])
    for threads, name in ((1, "paged"), (2, "paged, 2 threads")):
        last = kept[name][-1]
        worst = max(abs(r[key] / base[key] - 1) for r in map(_errors, kept[name]) for key in r)
        note = (
            f"training {last['rmse'][-1]:.4f} against {base['training']:.4f}, test {last['test_rmse']:.4f} against"
            f" {base['test']:.4f}, after {len(last['rmse'])} epochs; the worse of the two"
        )
        title = f"{about}: RMSE against in memory, {threads} thread{'s' * (threads > 1)}"
        claims.append(Claim.at_most(title, 100 * worst, 1, unit=" %", note=note))
    return claims


def _errors(found: dict[str, Any]) -> dict[str, float]:
    return {"training": found["rmse"][-1], "test": found["test_rmse"]}


if __name__ == "__main__":
    sys.exit(harness.main(run))
