"""``penstock predict``: the predictions of a saved model for data of any size, streamed to a Parquet file."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from penstock.cli import options as o


def predict(
    model: o.ModelFile,
    data: o.Data,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="The Parquet file to write.", rich_help_panel="Output")
    ] = "predictions.parquet",
    keep: o.Keep = None,
    memory: o.ScoringMemory = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    db: o.Database = None,
    json: o.Json = False,
) -> None:
    """Write a saved model's predictions, and probabilities where it has them, to a Parquet file."""
    from penstock.blocks.open import open as open_source
    from penstock.budget import peak_memory, show_bytes
    from penstock.cli.models import opened, refuse_memory
    from penstock.cli.paths import require_parquet
    from penstock.cli.screen import Screen

    began = time.perf_counter()
    target = require_parquet(out)
    refuse_memory(model, memory)
    with (
        Screen(json=json) as screen,
        opened(model, memory=memory, db=db) as known,
        open_source(data, format=format, **o.reading(header, delimiter)) as source,
    ):
        rows = known.predict_to(source, target, keep=o.names(keep), stream=screen.stream)
        seconds, peak = time.perf_counter() - began, peak_memory()
        screen.close()
        screen.say(f"saved {target}: {rows:,} predictions, {seconds:.1f} s, peak memory {show_bytes(peak)}")
        screen.give(
            {
                "model": known.kind,
                "model_file": model,
                "data": source.name,
                "rows": rows,
                "seconds": seconds,
                "peak_memory_bytes": peak,
                "out": str(target),
            }
        )
