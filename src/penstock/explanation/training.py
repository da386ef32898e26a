"""What training a linear model will cost and how random it will be, without training.

`explain` looks at a bounded sample: it reads some blocks for how the rows lie (section 4.2), times the storage at
several block sizes (section 7.2.4), times decoding and learning, and from these predicts an epoch of every strategy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.blocks.arrow import index_notice
from penstock.blocks.base import BlockSource
from penstock.blocks.open import open as open_source
from penstock.blocks.open import split_table, without_password
from penstock.blocks.storage import expand, is_remote
from penstock.budget import Budget, available_memory
from penstock.config import Config
from penstock.errors import DataError, FeatureError
from penstock.explanation import advice
from penstock.explanation.clustering import Clustering, measure_clustering
from penstock.explanation.cost import Setting, strategy_costs
from penstock.explanation.explanation import Explanation, StrategyCost
from penstock.explanation.fit import QuickFit, quick_fit
from penstock.explanation.gain import conversion_gain
from penstock.explanation.sample import DataSample, exclude_null_columns, take_sample, usable_columns
from penstock.explanation.speed import measure_speeds
from penstock.explanation.training_text import training_sections
from penstock.loader.plan import Plan
from penstock.messages import Text, TextPart
from penstock.sgd.losses import loss_of
from penstock.shuffle import ORDERS
from penstock.solvers import DataShape
from penstock.storage_timer import StorageSpeeds, measure_storage
from penstock.training import Columns, default_label


@dataclass(frozen=True, slots=True)
class DataSummary:
    """How the data lie.

    ``exact_rows`` says whether rows were counted or estimated; of sparse data that do not say, ``features`` is the highest
    seen. ``layout`` is ``packed`` (rows go from the file to their places as they are) or ``decoded``. ``row_groups`` are those
    larger than a block, which are served in parts, and ``row_groups_open`` how many of them a window mixes rows of.
    """

    rows: int
    exact_rows: bool
    blocks: int
    rows_per_block: float
    block_bytes: float
    stored_bytes: int
    decoded_bytes: int
    columns: int
    features: int
    sparse: bool
    layout: str
    row_groups: int
    row_groups_open: int

    @classmethod
    def of(cls, source: BlockSource, sample: DataSample, plan: Plan, units: int) -> DataSummary:
        """Summarize a source of which a sample was taken."""
        blocks = len(source.block_rows)
        return cls(
            rows=sample.rows_in_all,
            exact_rows=sample.counted,
            blocks=blocks,
            rows_per_block=sample.rows_in_all / blocks,
            block_bytes=float(source.block_bytes.mean()),
            stored_bytes=int(source.block_bytes.sum()),
            decoded_bytes=int(sample.row_bytes * sample.rows_in_all),
            columns=len(source.schema),
            features=sample.width,
            sparse=sample.encoder.sparse,
            layout="packed" if sample.feed.decoder.waits else "decoded",
            row_groups=units,
            row_groups_open=units if plan.kept_bytes else min(plan.units, units),
        )


def explain(
    data: Any,
    *,
    label: str | None = None,
    features: Sequence[str] | None = None,
    weight: str | None = None,
    exclude: Sequence[str] = (),
    hash: Sequence[str] = (),
    model: str = "logistic",
    memory: str | int = "512MB",
    seed: int = 0,
    measure: bool = True,
    **options: Any,
) -> Explanation:
    """Say how data lie, how fast they can be read, and how to train on them; nothing is trained.

    Parameters
    ----------
    data : path, address, folder, glob, table or source
        Whatever `penstock.open` takes.
    label, features, weight, exclude, hash
        Which columns play which part, as for training.
    model : str
        ``logistic``, ``svm``, ``linear`` or ``softmax``.
    memory : str or int
        What training would be given.
    seed : int
        Chooses the sample.
    measure : bool
        Whether to time the storage, which takes two or three seconds.
    **options
        As for `penstock.open`: ``block_size``, ``format``, ``delimiter``, ``header``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"x": [float(i % 7) for i in range(1000)], "y": [i // 500 for i in range(1000)]})
    >>> explanation = explain(table, label="y", measure=False)
    >>> explanation.shape.rows, explanation.recommendation.strategy, explanation.clustering.by
    (1000, 'corgipile', 'label')
    """
    began = time.perf_counter()
    loss_of(model)
    columns = Columns(label, features, weight, tuple(exclude), tuple(hash))
    with ExitStack() as stack:
        source = open_source(data, **options)
        if source is not data:
            stack.callback(source.close)
        if not len(source.block_rows) or not int(source.block_rows.sum()):
            raise DataError(f"{source.name} has no rows; there is nothing to explain")
        files = _files(source, data) if measure else None
        explanation = _explain(source, _name(data, source), columns, files, model=model, memory=memory, seed=seed)
    return replace(explanation, seconds=time.perf_counter() - began)


def _explain(
    source: BlockSource,
    name: str,
    columns: Columns,
    files: Sequence[str] | None,
    *,
    model: str,
    memory: str | int,
    seed: int,
) -> Explanation:
    warnings: list[TextPart] = []
    columns = usable_columns(source, columns, warnings)
    notice = index_notice(source.schema, columns.encoder(source).columns, exclude=columns.exclude)
    if notice is not None:
        warnings.append(f"{notice}.")
    try:
        sample = take_sample(source, columns.encoder(source), model=model, seed=seed, warnings=warnings)
    except FeatureError:
        fewer = exclude_null_columns(source, columns, seed=seed, warnings=warnings)
        if fewer is columns:
            raise
        columns = fewer
        sample = take_sample(source, columns.encoder(source), model=model, seed=seed, warnings=warnings)
    with closing(sample.feed.decoder):
        clustering = measure_clustering(sample, seed=seed)
        speeds = measure_speeds(sample, seed=seed)
    fit = quick_fit(sample.fitted, sample.model, outputs=sample.outputs, seed=seed)
    storage = "not asked for" if files is None else measure_storage(files, seed=seed)
    curve = storage if isinstance(storage, StorageSpeeds) else None
    known = clustering if isinstance(clustering, Clustering) else None
    plans = advice.plans_for(source, sample.encoder, memory)
    plan = plans["corgipile"]
    units = 0 if source.units is None else len(np.unique(source.units))
    units = units if units < len(source.block_rows) else 0
    blocks, room = len(source.block_rows), available_memory()
    setting = Setting(sample.rows_in_all, blocks, sample.row_bytes, units, plans, curve, room, known)
    costs = tuple(replace(cost, quality=_quality(cost, setting)) for cost in strategy_costs(setting, speeds))
    block_bytes = advice.best_block(curve, layout=speeds.packed or speeds.stored, speeds=speeds)
    gain = conversion_gain(source, columns, name, setting=setting, speeds=speeds, costs=costs, block_bytes=block_bytes)
    recommendation, shuffled = advice.recommend(
        source,
        sample.encoder,
        data=name,
        columns=columns,
        model=sample.model,
        asked=Budget.parse(memory).resolve(plan.data_bytes),
        costs=costs,
        setting=setting,
        block_bytes=block_bytes,
        gain=gain,
        solver=_solver(sample, memory),
    )
    small = advice.too_small(source, sample.encoder, memory)
    warnings += advice.memory_warnings(small, recommendation, setting)
    if isinstance(fit, QuickFit) and not fit.better:
        warnings.append(
            f"a fit on {fit.rows:,} sampled rows is no better than a constant prediction: the features may tell nothing of"
            f" {sample.encoder.label!r}, or not in a {sample.model} model."
        )
    facts = {
        "data": name,
        "label": columns.label or default_label(source),
        "model": sample.model,
        "memory_bytes": plan.memory,
        "resident": plan.resident,
        "shape": DataSummary.of(source, sample, plan, units),
        "storage": curve,
        "storage_note": storage if isinstance(storage, str) else "",
        "clustering": known,
        "clustering_note": clustering if isinstance(clustering, Text) else Text(),
        "shuffled": shuffled,
        "predictions": costs,
        "recommendation": recommendation,
        "fit": fit if isinstance(fit, QuickFit) else None,
        "fit_note": fit if isinstance(fit, str) else "",
        "converting": gain,
        "speeds": speeds,
    }
    return Explanation(
        facts,
        costs,
        training_sections(facts),
        command=recommendation.command,
        notices=tuple(map(Text, warnings)),
    )


def _quality(cost: StrategyCost, setting: Setting) -> float | None:
    """Return how much labels of a strategy's batches vary, over a full shuffle's; None where it is not known."""
    plan, order = setting.plans[cost.strategy], ORDERS[cost.strategy].facts
    if order.copy != "never" or order.by_row:
        return 1.0
    clustering = setting.clustering_in(plan)
    if clustering is None or not (order.by_block and order.places_rows):
        return None
    return 1.0 if plan.resident else clustering.balance(plan.held_rows, opened=plan.units)


def _solver(sample: DataSample, memory: str | int) -> str:
    """Return the solver that training would take with that memory and no options of its own."""
    decoded = int(sample.row_bytes * sample.rows_in_all)
    fits = decoded <= Budget.parse(memory).resolve(decoded)
    shape = DataShape(rows=sample.rows_in_all, width=sample.width, in_memory=fits)
    return Config(model=sample.model).resolve(shape).solver


def _files(source: BlockSource, data: Any) -> list[str]:
    """Return the local files that the data are in, as far as they can be told."""
    named = split_table(data)
    path = source.name if named is None else named[0]
    if os.path.isfile(path):
        return [path]
    if named is not None:
        return []
    if isinstance(data, (str, os.PathLike, list, tuple)) and not is_remote(data):
        return [file for file in expand(data) if not is_remote(file)]
    return []


def _name(data: Any, source: BlockSource) -> str:
    return without_password(os.fspath(data)) if isinstance(data, (str, os.PathLike)) else source.name
