"""``penstock compare``: several shuffling strategies on the same data, under the same budget, side by side."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import options as o

if TYPE_CHECKING:
    from penstock.compare import Job


def compare(
    data: o.Data,
    label: o.Label = None,
    features: o.Features = None,
    exclude: o.Exclude = None,
    hash: o.Hash = None,
    weight: o.Weight = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    model: o.Model = "logistic",
    epochs: o.Epochs = 20,
    batch_size: o.BatchSize = 1,
    learning_rate: o.LearningRate = None,
    rate: o.Rate = "exponential",
    decay: o.Decay = 0.95,
    power: o.Power = 0.25,
    l1: o.L1 = 0.0,
    l2: o.L2 = 0.0,
    no_intercept: o.NoIntercept = False,
    standardize: o.Standardize = None,
    seed: o.Seed = 0,
    shuffles: Annotated[
        str,
        typer.Option(
            "--shuffles",
            metavar="A,B,C",
            help="The strategies to compare; also epoch and global.",
            rich_help_panel="Shuffling and memory",
        ),
    ] = "none,sliding-window,mrs,block-only,once,corgipile",
    memory: o.Memory = "512MB",
    scratch: o.Scratch = None,
    test: o.Test = None,
    validation: o.Validation = 0.05,
    patience: o.Patience = None,
    tolerance: o.Tolerance = 1e-4,
    report: Annotated[
        str, typer.Option("--report", metavar="FILE", help="The page to write.", rich_help_panel="Output")
    ] = "penstock-compare.html",
    json: o.Json = False,
) -> None:
    """Train by several shuffling strategies and show how they differ: a table, and a page of plots.

    Each strategy runs in a process of its own, under the same memory. They are measured on --test data, or on a share
    of the rows held out.
    """
    from penstock.budget import peak_memory
    from penstock.cli.paths import require_writable
    from penstock.cli.results import follow, show_table, write_page
    from penstock.cli.screen import Screen
    from penstock.compare import Job
    from penstock.compare import compare as run_all
    from penstock.config import Config
    from penstock.training import Columns

    began = time.perf_counter()
    config = Config(
        model=model, learning_rate=learning_rate, rate=rate, decay=decay, power=power, epochs=epochs,
        batch_size=batch_size, l1=l1, l2=l2, intercept=not no_intercept, memory=memory, seed=seed,
        standardize=standardize, validation=0.0 if test else validation, patience=patience, tolerance=tolerance,
    )  # fmt: skip
    columns = Columns(
        label=label,
        features=o.names(features) or None,
        weight=weight,
        exclude=o.names(exclude),
        hash=o.names(hash),
    )
    job = Job(
        data=data,
        config=config,
        columns=columns,
        test=test,
        format=format,
        scratch=scratch,
        options=o.reading(header, delimiter),
    )
    target = require_writable(report)
    with Screen(json=json, rows=False) as screen:
        clustering = _how_rows_lie(job)
        if clustering:
            screen.say(clustering)
        compared = run_all(job, o.names([shuffles]), listen=lambda event: follow(screen, event))
        show_table(screen, compared)
        for sentence in write_page(compared, target, clustering=clustering):
            screen.say(sentence)
        screen.say(f"wrote {target}")
        screen.give(
            {
                **compared,
                "clustering": clustering,
                "seconds": time.perf_counter() - began,
                "peak_memory_bytes": peak_memory(),
                "report": str(target),
                "out": str(target),
            }
        )


def _how_rows_lie(job: Job) -> str | None:
    """Ask explain; what is wrong with the data is left for training to tell."""
    from penstock.cli.results import lie_of
    from penstock.errors import PenstockError
    from penstock.explain import explain

    columns = job.columns
    with contextlib.suppress(PenstockError):
        found = explain(
            job.data,
            label=columns.label,
            features=columns.features,
            weight=columns.weight,
            exclude=columns.exclude,
            hash=columns.hash,
            model=job.config.model,
            memory=job.config.memory,
            seed=job.config.seed,
            measure=False,
            format=job.format,
            **job.options,
        )
        return lie_of(found)
    return None
