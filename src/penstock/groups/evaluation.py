"""The figures of all groups together, and measuring the models of groups on labelled rows, each by the model of its group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.blocks.base import BlockSource
from penstock.evaluation import evaluate_scores, measured_recipe, without_loss
from penstock.groups.split import firsts, numbers
from penstock.measures import OnScores

if TYPE_CHECKING:
    from penstock.groups.results import GroupModels


def summarize(result: GroupModels) -> dict[str, Any]:
    """Return the figures of all groups together; see `penstock.groups.GroupModels.summary`."""
    frame, chosen, index = result.frame, result.chosen, result.registry.index
    told: dict[str, Any] = {
        "model": result.word,
        "by": list(index.by),
        "finished": index.finished,
        "groups": len(result.groups),
        "groups_without_model": len(result.groups) - len(result.chosen_rows),
        "refitted": int(result.registry.refitted.sum()),
        "configs": len(index.configs),
        "failed": len(result.failed),
        "rows": int(np.sum(numbers(frame["rows"])[firsts(numbers(frame["group"]))])),
        "seconds": float(np.nansum(numbers(frame["seconds"]))),
    }
    for name in ("held_out_rows", "held_out_loss", index.score):
        told[name] = index.held_out.get(name)
    told |= {name: value for name, value in index.held_out.items() if name.startswith("held_out_")}
    told["pooled"] = _pooled(result)
    for name, weight in (
        ("loss", "rows"),
        ("selection_loss", "selection_rows"),
        (index.selection_score, "selection_rows"),
    ):
        values, weights = numbers(chosen[name]), numbers(chosen[weight])
        there = np.isfinite(values) & (weights > 0)
        told[name] = float(np.average(values[there], weights=weights[there])) if there.any() else None
    counts = Counter(chosen["config"].to_pylist())
    told["chosen"] = [
        {"config": config, "params": dict(index.configs[config]), "groups": groups}
        for config, groups in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    ]
    return told


def _pooled(result: GroupModels) -> dict[str, Any] | None:
    index, pooled = result.registry.index, result.pooled
    if pooled is None:
        return None
    without = columns_without_feature(result)
    if not len(pooled.chosen_rows):
        reasons = [reason for reason in pooled.frame["reason"].to_pylist() if reason]
        return {"config": None, "params": None, "reason": reasons[0] if reasons else None, "without": without}
    config = pooled.chosen["config"][0].as_py()
    told = {"config": config, "params": dict(index.configs[config]), "without": without, **_compared(result)}
    told |= {f"held_out_{name}": index.held_out.get(f"pooled_{name}") for name in ("loss", index.metric)}
    every = {name: value for name, value in index.held_out.items() if name.startswith("pooled_")}
    return told | {f"held_out_{name.removeprefix('pooled_')}": value for name, value in every.items()}


def columns_without_feature(result: GroupModels) -> list[str]:
    """Return the group columns that are no features, so that the pooled model knows nothing of them."""
    return [name for name in result.by if name not in result.recipe.columns]


def _compared(result: GroupModels) -> dict[str, int]:
    """Return in how many groups the pooled model is better, or worse, on held-out rows than the group's own."""
    metric, chosen = result.registry.index.metric, result.chosen
    own, one = numbers(chosen[f"held_out_{metric}"]), numbers(chosen[f"pooled_{metric}"])
    judged = np.isfinite(own) & np.isfinite(one)
    counts = {"groups": judged, "better": judged & (one > own), "worse": judged & (one < own)}
    return {name: int(which.sum()) for name, which in counts.items()}


def evaluate_groups(
    result: GroupModels,
    source: BlockSource,
    *,
    label: str | None = None,
    memory: str | int = "512MB",
    on_scores: OnScores | None = None,
) -> dict[str, Any]:
    """Return the loss and all measures of `penstock.measures` over the rows of all groups together.

    Each row counts by its weight, if the data have the column of weights, whatever its group. Rows whose group has no model
    are not measured; ``rows_without_model`` counts them. The options are those of `penstock.model.Model.evaluate`.

    Raises
    ------
    DataError
        No row has a model and a weight.
    """
    recipe, missing = measured_recipe(result.recipe, source, label), 0

    def rows() -> Generator[tuple[Floats, NDArray[Any], NDArray[Any] | None], None, None]:
        nonlocal missing
        with closing(result.scored(source, recipe)) as blocks:
            for _, batch, scores, models in blocks:
                assert batch.y is not None  # the recipe has a label
                here = np.flatnonzero(models >= 0)
                missing += len(batch) - len(here)
                yield scores[here], batch.y[here], None if batch.weight is None else batch.weight[here]

    with closing(rows()) as scored:
        found = evaluate_scores(
            scored,
            recipe,
            result.kind,
            memory=memory,
            on_scores=on_scores,
            place=source.name,
            groups=", of groups that have a model",
        )
    return {**(found if result.known_loss else without_loss(found)), "rows_without_model": missing}
