"""``penstock convert``: any data into the fast layout, in memory of a few blocks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.cli import options as o


@o.takes("convert")
def convert_command(**params: Any) -> None:
    """Write data in the layout that trains fastest: one Arrow file, its features packed together."""
    from penstock.blocks.conversion import convert as write
    from penstock.budget import peak_memory, show_bytes
    from penstock.cli.screen import Screen

    with Screen(json=params["json"]) as screen:
        screen.watch(Path(params["target"]))
        done = write(
            params["source"],
            params["target"],
            **o.column_arguments(params),
            keep=o.names(params["keep"]),
            block_size=params["block_size"],
            format=params["format"],
            split=params["split"],
            listen=screen.listen,
            **o.reading(params["header"], params["delimiter"]),
            **_extensions(params["extensions"]),
        )
        screen.close()
        screen.say(
            f"saved {done.path}: {done.rows:,} rows in {done.blocks:,} blocks, {show_bytes(done.bytes)},"
            f" {done.seconds:.1f} s"
        )
        if done.skipped:
            screen.say(f"passed over {done.skipped:,} files that are not images")
        screen.give({**asdict(done), "out": done.path, "peak_memory_bytes": peak_memory()})


def _extensions(texts: list[str] | None) -> dict[str, Any]:
    pairs = [name.partition(":") for name in o.names(texts)]
    return {"extensions": {name: kind or None for name, _, kind in pairs}} if pairs else {}
