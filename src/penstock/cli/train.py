"""``penstock train``: learn a model from data of any size, and save it.

A checkpoint is written beside the model after every epoch; ``--resume`` goes on from it, to the same weights as a
run without a break. With ``--model-dir`` the model itself lives on disk: `penstock.cli.ondisk` trains it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import options as o

if TYPE_CHECKING:
    from penstock.compare import Job


def train(
    ctx: typer.Context,
    data: o.Data,
    label: o.Label = None,
    features: o.Features = None,
    exclude: o.Exclude = None,
    hash: o.Hash = None,
    weight: o.Weight = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    model: o.AnyModel = "logistic",
    epochs: o.Epochs = 20,
    solver: o.Solver = "sgd",
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
    model_dir: o.ModelDir = None,
    model_memory: o.ModelMemory = None,
    threads: o.Threads = None,
    optimizer: o.Optimizer = None,
    dimension: o.Dimension = None,
    user: o.User = None,
    item: o.Item = None,
    rating: o.Rating = None,
    rank: o.Rank = None,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Where the model goes.", rich_help_panel="Output")
    ] = "model.penstock",
    resume: o.Resume = False,
    json: o.Json = False,
) -> None:
    """Learn a model from data of any size, in the memory you give it."""
    from penstock.cli.together import FACTOR, require_together
    from penstock.compare import Job
    from penstock.config import Config
    from penstock.shuffle import order
    from penstock.training import Columns

    require_together(o.given(ctx), model=model)
    if model == FACTOR:
        _train_factor(ctx.params, o.given(ctx))
        return
    order(shuffle)  # a misspelt one must not first cost a pass over the data
    if model_dir is not None and standardize is None:
        standardize = False  # features of models on disk are taken as they are
    config = Config(
        model=model, solver=solver, learning_rate=learning_rate, rate=rate, decay=decay, power=power, epochs=epochs,
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
    if model_dir is None:
        _train_in_memory(job, out, resume=resume, json=json)
    else:
        _train_on_disk(job, ctx.params)


def _train_in_memory(job: Job, out: str, *, resume: bool, json: bool) -> None:
    from penstock.budget import show_bytes
    from penstock.cli.paths import require_writable
    from penstock.cli.screen import Screen, final_score
    from penstock.compare import figures
    from penstock.modelfile import require_other

    began = time.perf_counter()
    target = require_writable(out)
    checkpoint = Path(f"{target}.checkpoint")
    with Screen(json=json) as screen, job.opened(screen.stream, checkpoint=checkpoint) as training:
        require_other(target, training.source.name)
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


def _train_on_disk(job: Job, params: dict[str, Any]) -> None:
    from penstock.bigmodel.storage import Storage
    from penstock.cli.ondisk import Inputs, train_linear

    chosen = {name: params[name] for name in ("model_memory", "threads", "optimizer") if params[name] is not None}
    train_linear(
        Inputs(job.data, job.test, job.format, job.options),
        params["model_dir"],
        config=job.config,
        columns=job.columns,
        storage=Storage(**chosen),
        dimension=params["dimension"],
        resume=params["resume"],
        json=params["json"],
    )


def _train_factor(params: dict[str, Any], given: list[str]) -> None:
    from penstock.bigmodel.factor_training import FactorConfig
    from penstock.bigmodel.ratings import Roles
    from penstock.bigmodel.storage import Storage
    from penstock.cli.ondisk import Inputs, train_factor
    from penstock.errors import UsageError

    if params["solver"] != "sgd":
        raise UsageError("--solver is not for a factor model: it learns by sgd; leave it out")
    shared = ("rate", "decay", "power", "epochs", "seed", "validation")
    own = (name for name in ("rank", "learning_rate", "l2", "threads") if name in given)
    chosen = {name: params[name] for name in (*shared, *own)}
    if "model_memory" in given:
        chosen["memory"] = Storage(model_memory=params["model_memory"]).model_memory  # refused by this option's name
    train_factor(
        Inputs(params["data"], params["test"], params["format"], o.reading(params["header"], params["delimiter"])),
        params["model_dir"],
        config=FactorConfig(**chosen),
        roles=Roles(params["user"], params["item"], params["rating"]),
        resume=params["resume"],
        json=params["json"],
    )
