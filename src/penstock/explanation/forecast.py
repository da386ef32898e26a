"""What a training on a table will take, by a few blocks of it: for SQL's EXPLAIN, which has to answer at once.

The pass before the first epoch is made over these blocks alone, as a training makes it over all. Then windows of them are
filled and learned from, in the order and with the cut that the whole table would have, and nothing else is timed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.batch import Batch
from penstock.blocks.base import BlockSource
from penstock.blocks.sampled_source import SampledSource, TableSize
from penstock.budget import available_memory
from penstock.columns.recipe import Recipe
from penstock.config import Config
from penstock.errors import DataError, PenstockError
from penstock.events import Stream
from penstock.explanation.advice import plan_for
from penstock.explanation.cost import Setting, strategy_cost
from penstock.explanation.explanation import StrategyCost
from penstock.explanation.fit import QuickFit, quick_fit
from penstock.explanation.sample import DataSample
from penstock.explanation.speed import measure_speeds
from penstock.loader.block_cuts import Needs, open_fitted
from penstock.loader.plan import Plan
from penstock.loader.row_forms import Scaling
from penstock.loader.scan import scan
from penstock.loader.windows import Feed
from penstock.sgd.losses import Loss, loss_of
from penstock.shuffle import order as order_named
from penstock.solvers import WIDEST, DataShape
from penstock.training import Columns

_SECONDS = 0.01
"""What each piece of work is timed for, at least."""
_BLOCKS = 16
"""Blocks that windows are filled of."""
_FITTED = 4_000
"""Rows of the quick fit."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was found of a training.

    ``config`` has nothing left open; ``scan_seconds`` is the pass before the first epoch. ``cost`` and ``fit`` are None where
    the blocks looked at cannot be learned from.
    """

    config: Config
    plan: Plan
    scan_seconds: float
    cost: StrategyCost | None = None
    fit: QuickFit | None = None


def forecast_training(
    source: BlockSource,
    size: TableSize,
    columns: Columns,
    config: Config,
    *,
    exact: bool = True,
    fits: bool = True,
    seed: int = 0,
) -> Forecast:
    """Say what a training will take.

    Parameters
    ----------
    source : BlockSource
        A few blocks; one that keeps what it has read has read nothing yet.
    size : TableSize
        How large the table is that these are of.
    columns : Columns
        What is learned from.
    config : Config
        How; what it leaves open is settled as a training settles it.
    exact : bool
        Whether the training will know how many rows each block has.
    fits : bool
        Whether a model is fitted to some of the rows.
    seed : int
        Chooses the order.
    """
    began = time.perf_counter()
    recipe, scaling = _scanned(source, columns, config)
    seen = max(int(source.block_rows.sum()), 1)
    seconds = (time.perf_counter() - began) * max(size.rows / seen, 1.0)
    whole = SampledSource(source, size, exact=exact)
    plan = plan_for(whole, recipe, config.shuffle, config.memory)
    config = _resolved(config, recipe, plan, size.rows)
    if config.shuffle != "corgipile":  # full passes read in stored order
        plan = plan_for(whole, recipe, config.shuffle, config.memory)
    found = Forecast(config, plan, seconds)
    try:
        cost, batches = _epochs(whole, recipe, scaling, found, seed=seed)
    except PenstockError:  # what is wrong with the rows is for the training to say
        return found
    labels = recipe.labels
    fitted: QuickFit | str = ""
    if fits and recipe.label is not None and (recipe.width or 0) <= WIDEST:
        loss = loss_of(config.model)
        some = [each.take(np.arange(0, len(each), -(-seen // _FITTED))) for each in batches]
        fitted = quick_fit(
            some, config.model, outputs=loss.outputs(0 if labels is None else len(labels.classes)), seed=seed
        )
    return replace(found, cost=cost, fit=fitted if isinstance(fitted, QuickFit) else None)


def _scanned(source: BlockSource, columns: Columns, config: Config) -> tuple[Recipe, Scaling]:
    """Pass over the blocks as a training does over all of them; without a label where theirs cannot be learned."""
    recipe = columns.labelled_recipe(source)
    loss = loss_of(config.model)
    wanted: dict[str, Any] = {
        "standardize": bool(config.standardize),
        "fill": True,
        "identifiers": columns.features is None,
        "stream": Stream.muted(),  # what it warns of is of these blocks alone
    }
    try:
        found = scan(source, recipe, classes=loss.classifies, weights=True, **wanted)
        recipe = found.recipe
        if recipe.labels is not None:
            recipe = recipe.with_labels(recipe.labels.as_binary(not _loss_for(config, recipe).many))
    except DataError:
        recipe = replace(recipe, label=None, weight=None)
        found = scan(source, recipe, classes=False, **wanted)
        recipe = found.recipe
    return recipe, found.scaling


def _loss_for(config: Config, recipe: Recipe) -> Loss:
    """Return the loss that a training takes for as many classes."""
    loss = loss_of(config.model)
    classes = 0 if recipe.labels is None else len(recipe.labels.classes)
    return loss_of(loss.several) if loss.several and classes > 2 else loss


def _resolved(config: Config, recipe: Recipe, plan: Plan, rows: int) -> Config:
    """Return the config with nothing left open, for as many classes as were seen."""
    loss = loss_of(config.model)
    if loss.several and recipe.labels is not None and len(recipe.labels.classes) > 2:
        config = replace(config, model=loss.several)
    shape = DataShape(rows, recipe.width or 0, in_memory=plan.data_bytes <= plan.memory, sparse=recipe.sparse)
    return config.resolve(shape, held_out=True)


def _epochs(
    whole: SampledSource, recipe: Recipe, scaling: Scaling, found: Forecast, *, seed: int
) -> tuple[StrategyCost, Sequence[Batch]]:
    """Time the work of an epoch on the few blocks, cut as those of the whole table are; return their rows, too."""
    config, plan = found.config, found.plan
    order = order_named(config.shuffle)
    planned: Feed[Batch]
    planned, _, _ = open_fitted(whole, recipe, scaling, order, Needs.of(order, config.memory, stretch=True))
    planned.decoder.close()
    source, labels = planned.source, recipe.labels
    assert isinstance(source, SampledSource)  # cut or not
    feed = Feed.of(source.stored, recipe, scaling)
    with closing(feed.decoder):
        stored = len(feed.block_rows)
        few = np.unique(np.linspace(0, stored - 1, min(stored, _BLOCKS)).astype(np.int64))
        sample = DataSample(
            feed=feed,
            blocks=few,
            timed=few,
            parts=(),
            fitted=(),
            places=(),
            counts=(),
            rows_in_all=whole.size.rows,
            counted=False,
            row_bytes=feed.size()[0],
            model=config.model,
            outputs=loss_of(config.model).outputs(0 if labels is None else len(labels.classes)),
        )
        speeds = measure_speeds(sample, seed=seed, orders=(config.shuffle,), seconds=_SECONDS)
        batches = [feed.decoder.decode(int(block)) for block in few]
    blocks = len(planned.block_rows)
    setting = Setting(whole.size.rows, blocks, sample.row_bytes, 0, {config.shuffle: plan}, None, available_memory())
    return strategy_cost(config.shuffle, setting, speeds), batches
