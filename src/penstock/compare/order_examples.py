"""What the page needs beside the runs: the order in which each strategy visits rows, on an example small enough to see.

The example is that of the CorgiPile paper's section 3, figure 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.shuffle import Shape, order
from penstock.shuffle.quality import visit

ORDERS_NOTE = (
    "The pictures show a small example, not these data: 1,000 rows stored by label, the negatives first, in blocks of"
    " 20 rows, with a buffer of 10 blocks; the second epoch is drawn."
)


def order_pictures(shuffles: Sequence[str], *, seed: int = 0) -> dict[str, dict[str, Any]]:
    """Play each strategy through on 1,000 rows stored by label, for the pictures of the page.

    Examples
    --------
    >>> picture = order_pictures(["none"])["none"]
    >>> picture["position"][:3], picture["labels"][0], picture["labels"][-1]
    ([0, 1, 2], [20, 0], [0, 20])
    """
    group, rows = 20, 1_000
    shape = Shape(np.full(rows // group, group), held_rows=10 * group, seed=seed)
    pictures = {}
    for name in shuffles:
        visited = visit(order(name), shape, 1)
        starts = range(0, len(visited), group)
        positives = [int((visited[at : at + group] >= rows // 2).sum()) for at in starts]
        counts = [[min(group, len(visited) - at) - high, high] for at, high in zip(starts, positives)]
        pictures[name] = {"position": visited.tolist(), "labels": counts, "group": group}
    return pictures


def page_facts(compared: Mapping[str, Any], *, clustering: str | None = None) -> dict[str, Any]:
    """Return what `penstock.report.Comparison.from_dict` takes."""
    runs = [page_run(run) for run in compared["runs"]]
    names = [run["shuffle"] for run in runs]
    return {
        **compared,
        "runs": runs,
        "orders": order_pictures(names, seed=int(compared.get("seed") or 0)),
        "orders_note": ORDERS_NOTE,
        "clustering": clustering,
    }


def page_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run as the page takes it, whose clock counts a copy before the first epoch, or one before each."""
    epochs = [dict(row) for row in run.get("epochs", ())]
    first = 0.0
    if epochs and not any("prepare_seconds" in row for row in epochs[1:]):
        first = epochs[0].pop("prepare_seconds", 0.0)
    return {**run, "epochs": epochs, "prepare_seconds": first, "seconds": run.get("training_seconds")}
