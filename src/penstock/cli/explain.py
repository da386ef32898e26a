"""``penstock explain``: what training will cost and how random it will be, before anything is trained."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import options as o


def explain(
    data: o.Data,
    label: o.Label = None,
    model: o.Model = "logistic",
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
    json: o.Json = False,
) -> None:
    """Say how the rows lie, how fast they can be read, and what an epoch of every strategy will take.

    Nothing is trained: a sample is read, and the storage is timed at several block sizes.
    """
    from penstock.budget import peak_memory
    from penstock.cli.screen import Screen
    from penstock.explain import explain as look

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
