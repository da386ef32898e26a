"""``penstock explain``: what training will cost and how random it will be, before anything is trained."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli import options as o


def explain(
    ctx: typer.Context,
    data: o.Data,
    label: o.Label = None,
    model: o.AnyModel = "logistic",
    memory: o.Memory = "512MB",
    block_size: Annotated[
        str | None,
        typer.Option(
            "--block-size",
            metavar="SIZE",
            help="Bytes of a block, such as 1MB, where the file leaves that open (text, Parquet, .npy).",
            rich_help_panel="Shuffling and memory",
            show_default=False,
        ),
    ] = None,
    storage: Annotated[
        bool,
        typer.Option(
            "--storage/--no-storage",
            help="Time reads of this storage, which takes two or three seconds.",
            rich_help_panel="Shuffling and memory",
        ),
    ] = True,
    features: o.Features = None,
    exclude: o.Exclude = None,
    hash: o.Hash = None,
    weight: o.Weight = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    seed: o.Seed = 0,
    model_dir: o.ModelDir = None,
    model_memory: o.ModelMemory = None,
    optimizer: o.Optimizer = None,
    dimension: o.Dimension = None,
    user: o.User = None,
    item: o.Item = None,
    rating: o.Rating = None,
    rank: o.Rank = None,
    json: o.Json = False,
) -> None:
    """Say how the rows lie, how fast they can be read, and what an epoch of every strategy will take.

    Nothing is trained: a sample is read, and the storage is timed at several block sizes. With --model-dir, say instead
    what a model on disk will take: its size, what of it stays in memory, and the traffic of an epoch.
    """
    from penstock.budget import peak_memory
    from penstock.cli.screen import Screen
    from penstock.cli.together import FACTOR, require_explained, require_together
    from penstock.explain import explain as look

    given = o.given(ctx)
    require_together(given, model=model)
    if model == FACTOR:
        _explain_factor(ctx.params, given)
        return
    require_explained(given)
    if model_dir is not None:
        _explain_on_disk(ctx.params)
        return
    with Screen(json=json) as screen:
        found = look(
            data,
            label=label,
            features=o.names(features) or None,
            weight=weight,
            exclude=o.names(exclude),
            hash=o.names(hash),
            model=model,
            memory=memory,
            seed=seed,
            measure=storage,
            block_size=block_size,
            format=format,
            **o.reading(header, delimiter),
        )
        for line in found.lines():
            screen.say(line)
        screen.give({**found.to_dict(), "peak_memory_bytes": peak_memory()})


def _explain_on_disk(params: dict[str, Any]) -> None:
    from penstock.bigmodel.explain import explain_model
    from penstock.bigmodel.storage import Storage
    from penstock.blocks.open import open as open_source
    from penstock.budget import peak_memory
    from penstock.cli.screen import Screen
    from penstock.training import Columns

    chosen = {name: params[name] for name in ("model_memory", "optimizer") if params[name] is not None}
    columns = Columns(
        label=params["label"],
        features=o.names(params["features"]) or None,
        weight=params["weight"],
        exclude=o.names(params["exclude"]),
        hash=o.names(params["hash"]),
    )
    reading = {"block_size": params["block_size"], **o.reading(params["header"], params["delimiter"])}
    with (
        Screen(json=params["json"]) as screen,
        open_source(params["data"], format=params["format"], **reading) as source,
    ):
        found = explain_model(
            source,
            params["model_dir"],
            columns=columns,
            storage=Storage(**chosen),
            memory=params["memory"],
            model=params["model"],
            dimension=params["dimension"],
            seed=params["seed"],
        )
        for line in found.lines():
            screen.say(line)
        screen.give({**found.to_dict(), "peak_memory_bytes": peak_memory()})


def _explain_factor(params: dict[str, Any], given: list[str]) -> None:
    from penstock.bigmodel.explain_factor import explain_factor
    from penstock.bigmodel.factor_training import FactorConfig
    from penstock.bigmodel.ratings import Roles
    from penstock.blocks.open import open as open_source
    from penstock.budget import peak_memory
    from penstock.cli.screen import Screen
    from penstock.errors import UsageError

    if "storage" in given:
        raise UsageError("--storage is not for a model on disk: its storage is not timed; leave it out")
    names = {"rank": "rank", "model_memory": "memory", "seed": "seed"}
    config = FactorConfig(**{name: params[option] for option, name in names.items() if option in given})
    reading = {"block_size": params["block_size"], **o.reading(params["header"], params["delimiter"])}
    with (
        Screen(json=params["json"]) as screen,
        open_source(params["data"], format=params["format"], **reading) as source,
    ):
        roles = Roles(params["user"], params["item"], params["rating"])
        found = explain_factor(source, params["model_dir"], roles=roles, config=config)
        for line in found.lines():
            screen.say(line)
        screen.give({**found.to_dict(), "peak_memory_bytes": peak_memory()})
