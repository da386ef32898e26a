"""``penstock evaluate``: how good a saved model is on labelled data of any size."""

from __future__ import annotations

import time
from typing import Any

from penstock.cli import options as o


@o.takes("evaluate")
def evaluate_command(**params: Any) -> None:
    """Measure a saved model on labelled data: accuracy, AUC, precision, recall, log loss and others, or R², RMSE, MAE."""
    from penstock.budget import peak_memory
    from penstock.cli.evaluationpage import EvaluationPage
    from penstock.cli.models import open_data, opened_model
    from penstock.cli.screen import Screen
    from penstock.columns.base import UnseenValues
    from penstock.groups.results import GroupModels
    from penstock.linear import EncodedModel
    from penstock.measure_lines import evaluation_lines
    from penstock.outputs import require_file

    began = time.perf_counter()
    model_file, memory, report = (params[name] for name in ("model_file", "memory", "report"))
    target = None if report is None else require_file(report)
    with (
        Screen(json=params["json"]) as screen,
        opened_model(model_file, db=params["db"], default_memory=memory, stream=screen.stream) as known,
        open_data(known, params) as source,
    ):
        page = None if target is None else EvaluationPage.of(known, model_file, target)
        if target is not None:
            screen.watch(target)
        values = UnseenValues()
        model = known.counting(values) if isinstance(known, (EncodedModel, GroupModels)) else known
        found = model.evaluate(
            source, label=params["label"], memory=memory, on_scores=None if page is None else page.add
        )
        classes = None if known.classes is None else known.classes.tolist()
        for line in evaluation_lines(found, known.metric, classes=classes):
            screen.say(line)
        if found.get("rows_without_model"):
            screen.say(f"{found['rows_without_model']:,} more rows are of groups without a model")
        for line in values.lines():
            screen.say(line)
        if page is not None:
            screen.say(f"wrote {page.write(found, data=source.name)}")
        screen.give(
            {
                "model": known.word,
                "model_file": model_file,
                **({"models": model_file} if known.by else {}),
                "shuffle": known.config.get("shuffle"),
                "epochs": list(known.history),
                "data": source.name,
                "classes": classes,
                **found,
                **({"unseen_values" if known.by else "unseen": values.to_dict()} if model is not known else {}),
                f"test_{known.metric}": found[known.metric],
                "seconds": time.perf_counter() - began,
                "peak_memory_bytes": peak_memory(),
                "out": report,
            }
        )
