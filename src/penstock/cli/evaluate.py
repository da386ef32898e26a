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
    json: o.Json = False,
) -> None:
    """Measure a saved model on labelled data: its loss, and its accuracy or R²."""
    from penstock.blocks.open import open as open_source
    from penstock.budget import peak_memory
    from penstock.cli.screen import Screen, show_score
    from penstock.compare import finite
    from penstock.evaluation import evaluate as measure
    from penstock.linear import LinearModel

    began = time.perf_counter()
    known = LinearModel.load(model)
    with Screen(json=json) as screen, open_source(data, format=format, **o.reading(header, delimiter)) as source:
        found = measure(known, source, label=label, memory=memory)
        metric = "r2" if "r2" in found else "accuracy"
        name = "R²" if metric == "r2" else metric
        screen.say(f"{name} {show_score(found[metric], metric)}, loss {found['loss']:.5g}, {found['rows']:,} rows")
        screen.give(
            finite(
                {
                    "model": known.kind,
                    "model_file": model,
                    "shuffle": known.config.get("shuffle"),
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
