"""Runs the strategies one after another, judges them against the best, and makes what their page is drawn from."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np

from penstock import errors
from penstock.compare.process import in_process
from penstock.compare.training_request import TrainingRequest
from penstock.errors import PenstockError, UsageError
from penstock.events import Listener
from penstock.messages import Text, Use, joined
from penstock.metric_names import epoch_score, headline
from penstock.parallel import cores
from penstock.shuffle import Shape, order
from penstock.shuffle.quality import visit

DEFAULT_SHUFFLES = ("none", "sliding-window", "mrs", "block-only", "once", "corgipile")


def compare(
    job: TrainingRequest, shuffles: Sequence[str] = DEFAULT_SHUFFLES, *, listen: Listener | None = None
) -> dict[str, Any]:
    """Train by each strategy in turn and return what the table and the page need.

    Parameters
    ----------
    job : TrainingRequest
        The data and the config; its own ``shuffle`` is not used. Without test data, a part of the rows must be held
        out (``validation``), or scores on training rows are compared.
    shuffles : list of str
        The strategies, by name.
    listen : callable, optional
        Hears every process's events; the tasks' names begin with the strategy's.

    Returns
    -------
    dict
        ``runs``, one dict a strategy as `run_figures` makes it, with ``final``, ``epochs_to_99``, ``seconds_to_99`` and
        ``failed``; and the facts of the data, the machine and the config.
    """
    if not shuffles:
        raise UsageError(
            "no strategy was named to compare",
            fixes=[Text("name some, such as ", Use("shuffles", "none,once,corgipile"))],
        )
    for name in shuffles:
        order(name)
    facts = _facts(job)
    jobs = [replace(job, config=replace(job.config, shuffle=name)) for name in dict.fromkeys(shuffles)]
    runs = [in_process(each, listen) for each in jobs]
    if all(run["failed"] is not None for run in runs):
        raise _error(runs)
    return {**facts, "runs": _judged(runs)}


def _facts(job: TrainingRequest) -> dict[str, Any]:
    """Open the data once here: what is wrong with the names or options is told before any process is started."""
    with job.opened() as training:
        source, recipe = training.source, job.columns.labelled_recipe(training.source)
        return {
            "data": source.name,
            "test": job.test,
            "rows": int(source.block_rows.sum()),
            "blocks": len(source.block_rows),
            "bytes": int(source.block_bytes.sum()),
            "label": recipe.label,
            "model": job.config.model,
            "memory": job.config.memory,
            "seed": job.config.seed,
            "validation": None if job.test else job.config.validation,
            "date": date.today().isoformat(),
            "machine": machine(),
        }


def machine() -> str:
    """Say in a line what this machine is."""
    count = cores()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0
    held = f", {memory:.0f} GiB of memory" if memory > 0 else ""
    plural = "" if count == 1 else "s"
    return f"{platform.system()} {platform.machine()}, {count} core{plural}{held}, Python {platform.python_version()}"


def score_of(run: Mapping[str, Any]) -> float | None:
    """Return the score of a run's finished model: on test rows, else on held-out rows, else on training rows."""
    score = headline(run)
    return None if score is None else score.value


def _judged(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add each run's final score, and when it came to 99 % of the best one."""
    finals = [score for run in runs if run["failed"] is None and (score := score_of(run)) is not None]
    best = max(finals, default=None)
    judged = []
    for run in runs:
        done = run["failed"] is None
        epochs, seconds = _reached(run, None if best is None else best - 0.01 * abs(best)) if done else (None, None)
        judged.append(
            {
                **run,
                "failed": None if done else str(run["failed"]),
                "final": score_of(run) if done else None,
                "epochs_to_99": epochs,
                "seconds_to_99": seconds,
            }
        )
    return judged


def _reached(run: Mapping[str, Any], goal: float | None) -> tuple[int | None, float | None]:
    clock = 0.0
    for row in run["epochs"]:
        clock += (row.get("seconds") or 0.0) + (row.get("prepare_seconds") or 0.0)
        score = epoch_score(row)
        if goal is not None and score is not None and score.value >= goal:
            return int(row["epoch"]), clock
    return None, None


def _error(runs: Sequence[Mapping[str, Any]]) -> PenstockError:
    """Return the error for strategies that all failed; each reason once, with those it stopped."""
    kind = getattr(errors, runs[0].get("kind", ""), PenstockError)
    reasons: dict[Text, list[str]] = {}
    for run in runs:
        reasons.setdefault(run["failed"], []).append(run["shuffle"])
    texts = [
        reason if len(reasons) == 1 else Text(f"{', '.join(names)}: ", reason) for reason, names in reasons.items()
    ]
    error: PenstockError = kind(joined(texts, "\n"))
    return error


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
