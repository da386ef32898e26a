"""``penstock predict``: the predictions of a saved model for data of any size, streamed to a Parquet file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from penstock.cli import options as o


@o.takes("predict")
def predict_command(**params: Any) -> None:
    """Write a saved model's predictions, and probabilities where it has them, to a Parquet file."""
    from penstock.budget import peak_memory, show_bytes
    from penstock.cli.models import open_data, opened_model
    from penstock.cli.screen import Screen
    from penstock.columns.base import UnseenValues
    from penstock.groups.results import GroupModels
    from penstock.linear import EncodedModel
    from penstock.model import write_predictions
    from penstock.outputs import require_parquet

    began = time.perf_counter()
    model_file, unseen = params["model_file"], params["unseen"]
    target = require_parquet(params["out"])
    with (
        Screen(json=params["json"]) as screen,
        opened_model(
            model_file, db=params["db"], stream=screen.stream, memory=params["memory"], unseen=unseen
        ) as known,
        open_data(known, params) as source,
    ):
        screen.watch(target)
        values = UnseenValues()
        model = known.counting(values) if isinstance(known, (EncodedModel, GroupModels)) else known
        rows = write_predictions(model, source, target, keep=o.names(params["keep"]), stream=screen.stream)
        without = _nulls(target) if known.by else 0
        seconds, peak = time.perf_counter() - began, peak_memory()
        screen.close()
        gaps = f", {without:,} of them null (no model of their group)" if without else ""
        screen.say(f"saved {target}: {rows:,} predictions{gaps}, {seconds:.1f} s, peak memory {show_bytes(peak)}")
        for line in values.lines():
            screen.say(line)
        screen.give(
            {
                "model": known.word,
                "model_file": model_file,
                "data": source.name,
                "rows": rows,
                **({"models": model_file, "without_model": without, "unseen": unseen or "null"} if known.by else {}),
                **({"unseen_values" if known.by else "unseen": values.to_dict()} if model is not known else {}),
                "seconds": seconds,
                "peak_memory_bytes": peak,
                "out": str(target),
            }
        )


def _nulls(path: Path) -> int:
    """Return how many predictions of a file are null, from what the file says of itself."""
    import pyarrow.parquet as pq

    noted = pq.read_metadata(path)
    names = [noted.schema.column(place).path for place in range(noted.num_columns)]
    at = names.index("prediction")
    return sum(noted.row_group(group).column(at).statistics.null_count for group in range(noted.num_row_groups))
