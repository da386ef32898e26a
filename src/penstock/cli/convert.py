"""``penstock convert``: any data into the fast layout, in memory of a few blocks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from penstock.cli import options as o


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="Rows in any format, compressed text and Arrow streams too.", show_default=False
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="The Arrow file to write.", show_default=False)],
    block_size: Annotated[
        str,
        typer.Option(
            "--block-size",
            metavar="SIZE",
            help="Bytes of a block, such as 10MB; auto suits fast storage.",
            rich_help_panel="Output",
        ),
    ] = "auto",
    label: o.Label = None,
    features: o.Features = None,
    exclude: o.Exclude = None,
    hash: o.Hash = None,
    weight: o.Weight = None,
    keep: o.Keep = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    json: o.Json = False,
) -> None:
    """Write data in the layout that trains fastest: one Arrow file, its features packed together."""
    from penstock.blocks.conversion import convert as write
    from penstock.budget import peak_memory, show_bytes
    from penstock.cli.paths import require_writable
    from penstock.cli.screen import Screen

    require_writable(target)
    with Screen(json=json) as screen:
        done = write(
            source,
            target,
            label=label,
            weight=weight,
            features=o.names(features) or None,
            exclude=o.names(exclude),
            hash=o.names(hash),
            keep=o.names(keep),
            block_size=block_size,
            format=format,
            listen=screen.listen,
            **o.reading(header, delimiter),
        )
        screen.close()
        screen.say(
            f"saved {done.path}: {done.rows:,} rows in {done.blocks:,} blocks, {show_bytes(done.bytes)},"
            f" {done.seconds:.1f} s"
        )
        screen.give({**asdict(done), "out": done.path, "peak_memory_bytes": peak_memory()})
