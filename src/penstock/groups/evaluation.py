"""Measuring the models of groups on labelled rows of any size, each row by the model of its group."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.blocks.base import BlockSource
from penstock.evaluation import evaluate_scores, measured_encoder, without_loss
from penstock.measures import OnScores

if TYPE_CHECKING:
    from penstock.groups.results import GroupModels


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
    are not measured; ``rows_without_model`` counts them.

    Parameters
    ----------
    label : str, optional
        The label column, where it is not the one that the models were trained on.
    memory : str or int
        An eighth of it is for ranks of scores.
    on_scores : callable, optional
        Hears the scores of all rows that are measured.

    Raises
    ------
    DataError
        No row has a model and a weight.
    """
    encoder, missing = measured_encoder(result.encoder, source, label), 0

    def rows() -> Generator[tuple[Floats, NDArray[Any], NDArray[Any] | None], None, None]:
        nonlocal missing
        with closing(result.scored(source, encoder)) as blocks:
            for _, batch, scores, models in blocks:
                assert batch.y is not None  # the encoder has a label
                here = np.flatnonzero(models >= 0)
                missing += len(batch) - len(here)
                yield scores[here], batch.y[here], None if batch.weight is None else batch.weight[here]

    with closing(rows()) as scored:
        found = evaluate_scores(scored, encoder, result.kind, memory=memory, on_scores=on_scores, place=source.name)
    return {**(found if result.known_loss else without_loss(found)), "rows_without_model": missing}
