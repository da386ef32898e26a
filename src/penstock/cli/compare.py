"""``penstock compare``: several shuffling strategies on the same data, under the same budget, side by side."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from penstock.cli import options as o

if TYPE_CHECKING:
    from penstock.compare import TrainingRequest


@o.takes("compare")
def compare_command(**params: Any) -> None:
    """Train by several shuffling strategies and show how they differ: a table, and a page of plots.

    Each strategy runs in a process of its own, under the same memory. They are measured on --test data, or on a share
    of the rows held out, by the last weights of SGD: their mean over the epochs, which `train` takes, hides the order.
    """
    from penstock.cli.results import follow, give_comparison, show_table, write_page
    from penstock.cli.screen import Screen
    from penstock.cli.train import job_of
    from penstock.compare import compare as run_all
    from penstock.outputs import require_file, require_scratch

    began = time.perf_counter()
    job = job_of(params, solver="sgd", average=False, validation=0.0 if params["test"] else params["validation"])
    target = require_file(params["report"])
    if job.scratch is not None:
        require_scratch(job.scratch)
    with Screen(json=params["json"], rows=False) as screen:
        screen.watch(target)
        clustering = _how_rows_lie(job)
        if clustering:
            screen.say(clustering)
        compared = run_all(job, o.names([params["shuffles"]]), listen=lambda event: follow(screen, event))
        show_table(screen, compared)
        screen.say("Scores are of SGD's last weights, which show the order; train takes their mean over the epochs.")
        write_page(screen, compared, target, clustering=clustering)
        screen.say(f"wrote {target}")
        give_comparison(screen, compared, target, clustering=clustering, seconds=time.perf_counter() - began)


def _how_rows_lie(job: TrainingRequest) -> str | None:
    """Ask explain; what is wrong with the data is left for training to tell."""
    from penstock.cli.results import lie_of
    from penstock.errors import PenstockError
    from penstock.explanation import explain

    with contextlib.suppress(PenstockError):
        found = explain(
            job.data,
            **job.columns.to_options(),
            model=job.config.model,
            memory=job.config.memory,
            seed=job.config.seed,
            measure=False,
            format=job.format,
            **job.options,
        )
        return lie_of(found)
    return None
