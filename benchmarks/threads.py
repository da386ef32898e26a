"""Speed-up of learning with threads: whole epochs on pages, learning alone from rows in memory, and loading alone.

On `skewed` (see `benchmarks.bigmodel`), with memory for all pages. Loading alone tells what no number of learning threads
can pass; learning alone tells what threads that write to the same weights gain or lose. Caches are warm.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.bigmodel import DIMENSION, NNZ, RATE, ROWS, paged
from benchmarks.bigmodel_data import sparse
from benchmarks.harness import Claim

MEMORY = 1_000_000_000


def load(folder: str) -> dict[str, float]:
    """Return the seconds that an epoch's rows take to load, with nothing done to them; the second epoch's."""
    from penstock.bigmodel.rewrite import prepared_rows
    from penstock.loader.loader import Loader

    source, recipe = prepared_rows(Path(folder))
    began = 0.0
    with Loader(source, recipe, "corgipile", memory=256_000_000) as loader:
        for epoch in range(2):
            began = time.perf_counter()
            with closing(loader.epoch(epoch)) as windows:
                for _ in windows:
                    pass
    return {"seconds": time.perf_counter() - began}


def learn(folder: str, threads: int, rows: int) -> dict[str, float]:
    """Return the seconds of a pass over rows in memory, all pages being there; the second pass's."""
    from penstock.bigmodel.chunks import Chunker
    from penstock.bigmodel.page_trainer import PageTrainer
    from penstock.bigmodel.pool import PagePool
    from penstock.bigmodel.rewrite import prepared_rows
    from penstock.bigmodel.storage import Storage
    from penstock.bigmodel.store import PageStore
    from penstock.config import Config
    from penstock.loader.loader import Loader

    source, recipe = prepared_rows(Path(folder))
    with Loader(source, recipe, "corgipile", memory=256_000_000) as loader:
        held, batches = 0, []
        for window in loader.epoch(0):
            for start in range(0, len(window.batch), 10_000):
                batch = window.batch.slice(start, min(start + 10_000, len(window.batch)))
                batches.append(batch.take(np.arange(len(batch))))  # a window's arrays are used again for the next
                held += len(batch)
            if held >= rows:
                break
    storage = Storage(model_memory=MEMORY)
    spec = Config(model="logistic", learning_rate=RATE).spec()
    began = 0.0
    with tempfile.TemporaryDirectory(dir=folder) as place:
        pages = storage.pages(int(recipe.width or 0))
        with PageStore(place, pages=pages, page_floats=storage.page_floats) as store:
            pool = PagePool(store, memory=MEMORY, beside=PageTrainer.beside("sgd", threads))
            with PageTrainer(spec, pool, shift=storage.shift, threads=threads) as learner:
                for epoch in range(2):
                    chunker = Chunker(iter(batches), pool, shift=storage.shift)
                    chunks = list(iter(chunker.make, None))
                    began = time.perf_counter()
                    learner.epoch(chunks, epoch)
    return {"seconds": time.perf_counter() - began}


def run(quick: bool) -> list[Claim]:
    rows, cores = (ROWS // 20 if quick else ROWS), os.cpu_count() or 1
    counts = [n for n in (1, 2, 4, 8, 16) if n <= cores]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=os.environ.get("PENSTOCK_BENCH_DIR")) as name:
        path, folder = Path(name) / "skewed.arrow", Path(name) / "model"
        sparse(path, rows=rows, nnz=NNZ, dimension=DIMENSION, zipf=True)
        common: dict[str, Any] = {"path": str(path), "folder": str(folder), "memory": MEMORY}
        harness.run_child(paged, arguments={**common, "epochs": 1})
        losses: dict[int, float] = {}

        def whole(threads: int) -> float:
            found = harness.run_child(paged, arguments={**common, "epochs": 3, "threads": threads})
            losses[threads] = found["loss"][-1]
            return float(np.median(found["seconds"]))

        def alone(threads: int) -> float:
            arguments = {"folder": str(folder), "threads": threads, "rows": rows // 5}
            return float(harness.run_child(learn, arguments=arguments)["seconds"])

        contestants: dict[str, Any] = {
            "loading alone": lambda: float(harness.run_child(load, arguments={"folder": str(folder)})["seconds"])
        }
        for n in counts:
            contestants[f"epoch, {n} threads"] = lambda n=n: whole(n)
            contestants[f"learning alone, {n} threads"] = lambda n=n: alone(n)
        results = harness.interleave(contestants, repeats=1 if quick else 3)
        print(f"seconds (learning alone: of a fifth of the rows)\n{results.table()}", file=sys.stderr)
        return [
            Claim(
                f"{what}, {n} threads over 1: speed-up",
                results.ratio(f"{what}, 1 threads", f"{what}, {n} threads"),
                "printed; the paper has 4-14 on 16",
                True,
                f"{rows:,} rows, warm; loading alone takes {results.median('loading alone'):.2f} s of the"
                f" {results.median('epoch, 1 threads'):.2f} s of an epoch; loss {losses[n]:.4f}, {losses[1]:.4f} on one",
            )
            for what in ("epoch", "learning alone")
            for n in counts[1:]
        ]


if __name__ == "__main__":
    sys.exit(harness.main(run))
