"""``penstock train``: learn a linear model from data of any size, and save it.

A checkpoint is written beside the model after every epoch; ``--resume`` goes on from it, to the same weights as a
run without a break.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options as o


def train(
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
    shuffle: o.Shuffle = "corgipile",
    memory: o.Memory = "512MB",
    scratch: o.Scratch = None,
    test: o.Test = None,
    validation: o.Validation = 0.0,
    patience: o.Patience = None,
    tolerance: o.Tolerance = 1e-4,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where the model goes.", rich_help_panel="Output")
    ] = "model.penstock",
    resume: o.Resume = False,
    json: o.Json = False,
) -> None:
    """Learn a linear model from data of any size, in the memory you give it."""
    from penstock.budget import show_bytes
    from penstock.cli.paths import require_writable
    from penstock.cli.screen import Screen, final_score
    from penstock.compare import Job, figures
    from penstock.config import Config
    from penstock.shuffle import order
    from penstock.training import Columns

    began = time.perf_counter()
    order(shuffle)  # a misspelt one must not first cost a pass over the data
    config = Config(
        model=model, learning_rate=learning_rate, rate=rate, decay=decay, power=power, epochs=epochs,
        batch_size=batch_size, l1=l1, l2=l2, intercept=not no_intercept, shuffle=shuffle, memory=memory, seed=seed,
        standardize=standardize, validation=validation, patience=patience, tolerance=tolerance,
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
    target = require_writable(out)
    checkpoint = Path(f"{target}.checkpoint")
    with Screen(json=json) as screen, job.opened(screen.stream, checkpoint=checkpoint) as training:
        if resume and not checkpoint.exists():
            screen.note(f"there is no checkpoint {checkpoint}; training starts from the beginning")
        found = training.run(resume=resume)
        found.save(target)
        checkpoint.unlink(missing_ok=True)
        told = {**figures(training, found, seconds=time.perf_counter() - began), "out": str(target)}
        screen.close()
        screen.say(
            f"saved {target}: {found.kind}, {told['features']:,} features, {final_score(told)},"
            f" {told['seconds']:.1f} s, peak memory {show_bytes(told['peak_memory_bytes'])}"
        )
        screen.give(told)
