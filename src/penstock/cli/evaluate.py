"""``penstock evaluate``: how good a saved model is on labelled data of any size."""

from __future__ import annotations

import time

from penstock.cli import options as o


def evaluate(
    model: o.ModelFile,
    data: o.Data,
    label: o.Label = None,
    memory: o.Memory = "512MB",
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    db: o.Database = None,
    json: o.Json = False,
) -> None:
    """Measure a saved model on labelled data: its loss, and its accuracy, R² or RMSE."""
    from penstock.blocks.open import open as open_source
    from penstock.budget import peak_memory
    from penstock.cli.models import opened
    from penstock.cli.screen import Screen, name_of, show_score
    from penstock.compare import finite

    began = time.perf_counter()
    with (
        Screen(json=json) as screen,
        opened(model, memory=memory, db=db) as known,
        open_source(data, format=format, **o.reading(header, delimiter)) as source,
    ):
        found = known.evaluate(source, label=label)
        metric = next(name for name in ("rmse", "r2", "accuracy") if name in found)
        screen.say(
            f"{name_of(metric)} {show_score(found[metric], metric)}, loss {found['loss']:.5g}, {found['rows']:,} rows"
        )
        screen.give(
            finite(
                {
                    "model": known.kind,
                    "model_file": model,
                    "shuffle": known.shuffle,
                    "epochs": list(known.history),
                    "data": source.name,
                    **found,
                    f"test_{metric}": found[metric],
                    "seconds": time.perf_counter() - began,
                    "peak_memory_bytes": peak_memory(),
                    "out": None,
                }
            )
        )
