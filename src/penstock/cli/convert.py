"""``penstock convert``: any data into the fast layout, in memory of a few blocks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from penstock.cli import options as o


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Rows in any format, compressed text and Arrow streams too; a Hugging Face folder, a folder of images,"
            " WebDataset tars, MDS shards.",
            show_default=False,
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
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="parquet, arrow, npy, csv, libsvm, hf, images, webdataset or mds, where the data do not tell.",
            rich_help_panel="Columns",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split",
            metavar="NAME",
            help="Which part, where the data come in several, such as train.",
            rich_help_panel="Columns",
        ),
    ] = None,
    extensions: Annotated[
        list[str] | None,
        typer.Option(
            "--extensions",
            metavar="A,B:TYPE",
            help="Of tars: the columns to take, each with its type (int, string, binary) if you like.",
            rich_help_panel="Columns",
        ),
    ] = None,
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
            split=split,
            listen=screen.listen,
            **o.reading(header, delimiter),
            **_extensions(extensions),
        )
        screen.close()
        screen.say(
            f"saved {done.path}: {done.rows:,} rows in {done.blocks:,} blocks, {show_bytes(done.bytes)},"
            f" {done.seconds:.1f} s"
        )
        if done.skipped:
            screen.say(f"passed over {done.skipped:,} files that are not images")
        screen.give({**asdict(done), "out": done.path, "peak_memory_bytes": peak_memory()})


def _extensions(given: list[str] | None) -> dict[str, Any]:
    pairs = [name.partition(":") for name in o.names(given)]
    return {"extensions": {name: kind or None for name, _, kind in pairs}} if pairs else {}
