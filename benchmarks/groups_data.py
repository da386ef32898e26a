"""The data of the benchmarks over groups: rows of all groups mixed, how each group's are split, and other forms of the same rows.

`skewed` is made after the paper's Criteo by partner: 280 groups of which the largest has 26 % of the rows. `small` has groups of
200 rows, `one` a group with 82 % of the rows.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, SHARE, SEED, PASSES = 40, 0.1, 0, 10
PENALTIES = (1.0, 0.3, 0.1, 0.03, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
"""Twelve configs, for everyone the same: L-BFGS has no step size to search."""
FILES = 8
"""As many files of Parquet, so that readers have something to share."""


def sizes_of(kind: str, rows: int, *, groups: int = 280) -> Any:
    """Return the rows of each group; ``groups`` is how many there are of the skewed ones."""
    if kind == "small":
        return np.full(rows // 200, 200)
    count, largest = (groups, 0.26) if kind == "skewed" else (21, 0.82)
    rest = 1 / np.arange(1, count) ** 0.8
    shares = np.concatenate([[largest], (1 - largest) * rest / rest.sum()])
    return np.maximum(20, (rows * shares).astype(np.int64))


def write(path: Path, sizes: Any) -> Path:
    """Write rows of all groups mixed; every group has weights of its own, about common ones."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    common, own = rng.normal(size=WIDTH) / 4, rng.normal(size=(len(sizes), WIDTH)) / 4
    schema = pa.schema(
        {"group": pa.int32(), "clicked": pa.int8(), "features": pa.list_(pa.float32(), WIDTH)},
        metadata={},
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for start in range(0, len(group), 50_000):
            here = group[start : start + 50_000]
            x = rng.normal(size=(len(here), WIDTH)).astype(np.float32)
            score = x @ common + np.einsum("ij,ij->i", x, own[here]) + 2 * rng.logistic(size=len(here)) / 4
            features = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH)
            columns = [pa.array(here.astype(np.int32)), pa.array((score > 0).astype(np.int8)), features]
            writer.write(pa.RecordBatch.from_arrays(columns, schema=schema))
    return path


def by_group(path: str) -> tuple[Any, Any, Any, Any]:
    """Read the file and sort it by group; return rows, labels, the part of each row, and where groups begin and end."""
    x, y, group = _read(path)
    order, edges, part = _held(group)
    return x[order], y[order], part, edges


def parts(path: str) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """Read the file and part it by group; return rows and labels of each, and the part of each row:

    to train on, to choose a config by, or held out, as Penstock numbers them.
    """
    x, y, part, edges = by_group(path)
    ranges = [slice(low, high) for low, high in itertools.pairwise(edges)]
    return [(x[each], y[each]) for each in ranges], [part[each] for each in ranges]


def to_parquet(path: str, folder: str) -> None:
    """Write the same rows as Parquet, with a column that says which part each is in, as others know no order within groups.

    Features are a column of lists, of which Ray Data and Spark both make rows sooner than of 40 columns; pages are plain, since
    random numbers are not made smaller by anything.
    """
    import pyarrow as pa
    from pyarrow import parquet

    x, y, group = _read(path)
    order, _, part = _held(group)
    held = np.empty_like(part)
    held[order] = part
    Path(folder).mkdir()
    each = -(-len(y) // FILES)
    for number in range(FILES):
        here = slice(number * each, (number + 1) * each)
        features = pa.FixedSizeListArray.from_arrays(pa.array(x[here].ravel()), WIDTH)
        columns = {"group": group[here], "clicked": y[here].astype(np.int8), "part": held[here], "features": features}
        name = f"{folder}/part-{number}.parquet"
        parquet.write_table(pa.table(columns), name, compression="none", use_dictionary=False)


def _read(path: str) -> tuple[Any, Any, Any]:
    import pyarrow as pa

    with pa.memory_map(path) as file:
        table = pa.ipc.open_file(file).read_all()
        group = table["group"].to_numpy()
        y = table["clicked"].to_numpy().astype(np.float32)
        x = np.concatenate([chunk.flatten().to_numpy().reshape(-1, WIDTH) for chunk in table["features"].chunks])
    return x, y, group


def _held(group: Any) -> tuple[Any, Any, Any]:
    """Return the order by group, where each begins and ends in it, and the part of each row of that order."""
    from penstock.groups.split import Split

    order = np.argsort(group, kind="stable")
    edges = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    first = {int(g): n for n, g in enumerate(dict.fromkeys(group.tolist()))}
    part, split = np.empty(len(group), np.uint8), Split.of(SHARE, SEED, chooses=True)
    for low, high in itertools.pairwise(edges):
        number = first[int(group[order[low]])]  # groups are numbered as they come, in Penstock
        part[low:high] = split.parts(number, 0, high - low)
    return order, edges, part
