"""The rivals' programs: scikit-learn's L-BFGS for every group and config, given out by each in its own fast way.

Each returns seconds from the file to the last loss, and the mean over groups of the best config's loss on the rows to choose by. The
runtimes of Ray and Spark are up before the clock starts, which is in their favour; Penstock's workers start within its seconds.
Where processes take groups each has one thread for its products; the loop is run with one, and with as many as there are cores,
which wait for each other longer than they work where a product is small.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.groups_data import PASSES, PENALTIES, WIDTH, by_group, parts
from penstock.groups.split import SELECTION, TRAINING


def fit(x: Any, y: Any, part: Any, penalty: float) -> float:
    """Train one model by scikit-learn and return its loss on the rows to choose by."""
    import warnings

    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    x_train, y_train = x[part == TRAINING], y[part == TRAINING]
    model = LogisticRegression(C=1 / (penalty * len(y_train)), max_iter=PASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x_train, y_train)
    return float(log_loss(y[part == SELECTION], model.predict_proba(x[part == SELECTION])[:, 1], labels=[0, 1]))


def fit_all(x: Any, y: Any, part: Any) -> float:
    return min(fit(x, y, part, penalty) for penalty in PENALTIES)


def sklearn(path: str, workers: int, most: int | None = None) -> dict[str, Any]:
    """Train group after group, or by joblib over groups; of many groups only some, and the seconds are scaled up."""
    began = time.perf_counter()
    found, held = parts(path)
    loaded = time.perf_counter() - began
    tasks = list(zip(found, held, strict=True))
    scale = 1.0
    if most is not None and most < len(tasks):
        scale, tasks = len(tasks) / most, tasks[:most]
    if workers == 1:
        losses = [fit_all(x, y, part) for (x, y), part in tasks]
    else:
        from joblib import Parallel, delayed

        tasks.sort(key=lambda task: -len(task[1]))
        losses = Parallel(n_jobs=workers)(delayed(fit_all)(x, y, part) for (x, y), part in tasks)
    seconds = time.perf_counter() - began - loaded
    return {"seconds": loaded + scale * seconds, "loaded": loaded, "loss": float(np.mean(losses)), "scale": scale}


def ray_tasks(path: str, workers: int, by: str) -> dict[str, Any]:
    """Train by Ray's tasks: one for each group (GTP), or one for each group and config (MTP), the largest groups first.

    The sorted rows go into the object store once, and tasks have views of their group's.
    """
    import ray

    _start_ray(workers)
    try:
        began = time.perf_counter()
        x, y, part, edges = by_group(path)
        stored = [ray.put(array) for array in (x, y, part)]
        del x, y, part
        groups = sorted(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True), key=lambda each: each[0] - each[1])
        task = ray.remote(_fit_range)
        if by == "group":
            losses = ray.get([task.remote(*stored, *group, None) for group in groups])
        else:
            asked = [[task.remote(*stored, *group, p) for p in PENALTIES] for group in groups]
            losses = [min(ray.get(each)) for each in asked]
        return {"seconds": time.perf_counter() - began, "loss": float(np.mean(losses))}
    finally:
        ray.shutdown()


def ray_data(folder: str, workers: int) -> dict[str, Any]:
    """Train by Ray Data's ``groupby().map_groups``, its groups put together by sorting, which costs it less than hashing."""
    import ray
    from ray.data.context import DataContext, ShuffleStrategy

    _start_ray(workers)
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.shuffle_strategy = ShuffleStrategy.SORT_SHUFFLE_PULL_BASED
    try:
        began = time.perf_counter()
        groups = ray.data.read_parquet(folder).groupby("group")
        found = groups.map_groups(_fit_table, batch_format="pyarrow").take_all()
        return {"seconds": time.perf_counter() - began, "loss": float(np.mean([row["loss"] for row in found]))}
    finally:
        ray.shutdown()


def spark(folder: str, workers: int) -> dict[str, Any]:
    """Train by Spark's ``groupBy().applyInPandas``; rows go to Python as Arrow, and partitions are as it plans them itself."""
    import warnings

    from pyspark.sql import SparkSession

    warnings.simplefilter("ignore")  # of newer pandas than it has been tried with
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.driver.memory": "8g",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
    }
    with tempfile.TemporaryDirectory(dir=os.path.dirname(folder)) as place:
        builder = SparkSession.builder.master(f"local[{workers}]").config("spark.local.dir", place)
        session = builder.config(map=options).getOrCreate()
        try:
            session.sparkContext.setLogLevel("ERROR")
            session.range(1).count()
            began = time.perf_counter()
            groups = session.read.parquet(folder).groupBy("group")
            found = groups.applyInPandas(_fit_frame, "group int, loss double").collect()
            return {"seconds": time.perf_counter() - began, "loss": float(np.mean([row["loss"] for row in found]))}
        finally:
            session.stop()


@dataclass(frozen=True, slots=True)
class Peer:
    """A rival: its program, what that is called with, what it needs, and whether it reads the Parquet form of the rows."""

    program: Callable[..., dict[str, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    parquet: bool = False
    java: bool = False
    threads: int | None = 1
    """Of each process, for products of matrices; None is as many as there are cores."""

    @property
    def env(self) -> dict[str, str]:
        names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        return {} if self.threads is None else dict.fromkeys(names, str(self.threads))

    @property
    def missing(self) -> str:
        """What keeps it from running here, if anything."""
        absent = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if absent:
            return f"not installed: {', '.join(absent)}; pip install {' '.join(absent)}"
        if self.java and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
            return "not installed: Java 17 or newer, which pyspark runs on"
        return ""


PEERS = {
    "scikit-learn loop": Peer(sklearn, {"workers": 1}),
    "scikit-learn loop, threads": Peer(sklearn, {"workers": 1}, threads=None),
    "joblib": Peer(sklearn),
    "Ray GTP": Peer(ray_tasks, {"by": "group"}, needs=("ray",)),
    "Ray MTP": Peer(ray_tasks, {"by": "config"}, needs=("ray",)),
    "Ray Data map_groups": Peer(ray_data, needs=("ray", "pandas"), parquet=True),
    "Spark applyInPandas": Peer(spark, needs=("pyspark", "pandas"), parquet=True, java=True),
}


def _start_ray(workers: int) -> None:
    import ray

    ray.init(num_cpus=workers, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.get([ray.remote(_nothing).remote() for _ in range(workers)])


def _nothing() -> None:
    pass


def _fit_range(x: Any, y: Any, part: Any, low: int, high: int, penalty: float | None) -> float:
    rows = (x[low:high], y[low:high], part[low:high])
    return fit_all(*rows) if penalty is None else fit(*rows, penalty)


def _fit_table(table: Any) -> Any:
    """Train on a group that came as an Arrow table."""
    import pyarrow as pa

    table = table.combine_chunks()
    x = table["features"].chunk(0).flatten().to_numpy().reshape(-1, WIDTH)
    loss = fit_all(x, table["clicked"].to_numpy().astype(np.float32), table["part"].to_numpy())
    return pa.table({"group": table["group"][:1], "loss": [loss]})


def _fit_frame(frame: Any) -> Any:
    """Train on a group that came as a pandas frame."""
    import pandas as pd

    x = np.stack(frame["features"].to_numpy())
    loss = fit_all(x, frame["clicked"].to_numpy().astype(np.float32), frame["part"].to_numpy())
    return pd.DataFrame({"group": frame["group"].iloc[:1], "loss": [loss]})
