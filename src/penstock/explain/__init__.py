"""What a plan will cost and how random it will be, without training.

`explain` looks at a bounded sample: it reads some blocks for how the rows lie (section 4.2), times the storage at
several block sizes (section 7.2.4), times decoding and learning, and from these predicts an epoch of every strategy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.blocks.open import open as open_source
from penstock.blocks.open import split_table, without_password
from penstock.blocks.storage import expand, is_remote
from penstock.budget import available_memory
from penstock.config import LOSSES
from penstock.errors import DataError, FeatureError, UnknownOptionError
from penstock.explain import advice
from penstock.explain.clustering import Clustering, measure_clustering
from penstock.explain.cost import Prediction, Setting, predict
from penstock.explain.explanation import Explanation, Shape, Shuffled
from penstock.explain.gain import converting
from penstock.explain.sample import Sample, take_sample, usable_columns, without_nulls
from penstock.explain.speed import measure_speeds
from penstock.explain.storage import Curve, measure_storage
from penstock.loader.plan import Plan
from penstock.training import Columns, default_label

__all__ = ["Clustering", "Curve", "Explanation", "Prediction", "explain"]


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
    """Say how data lie, how fast they can be read, and how to train on them.

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

    Returns
    -------
    Explanation
        ``print`` it, or take its ``to_dict()``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> table = pa.table({"x": [float(i % 7) for i in range(1000)], "y": [i // 500 for i in range(1000)]})
    >>> found = explain(table, label="y", measure=False)
    >>> found.shape.rows, found.recommendation.strategy, found.clustering.by
    (1000, 'corgipile', 'label')
    """
    began = time.perf_counter()
    if model not in LOSSES:
        raise UnknownOptionError.of("model", model, LOSSES)
    columns = Columns(label, features, weight, tuple(exclude), tuple(hash))
    with ExitStack() as stack:
        source = open_source(data, **options)
        if source is not data:
            stack.callback(source.close)
        if not len(source.block_rows) or not int(source.block_rows.sum()):
            raise DataError(f"{source.name} has no rows; there is nothing to explain")
        return _explain(source, data, columns, model=model, memory=memory, seed=seed, measure=measure, began=began)


def _explain(
    source: BlockSource,
    data: Any,
    columns: Columns,
    *,
    model: str,
    memory: str | int,
    seed: int,
    measure: bool,
    began: float,
) -> Explanation:
    warnings: list[str] = []
    columns = usable_columns(source, columns, warnings)
    try:
        sample = take_sample(source, columns.encoder(source), model=model, seed=seed, warnings=warnings)
    except FeatureError:
        fewer = without_nulls(source, columns, seed=seed, warnings=warnings)
        if fewer is columns:
            raise
        columns = fewer
        sample = take_sample(source, columns.encoder(source), model=model, seed=seed, warnings=warnings)
    with closing(sample.feed.decoder):
        clustering = measure_clustering(sample, seed=seed)
        speeds = measure_speeds(sample, seed=seed)
    storage: Curve | str = "not asked for"
    if measure:
        storage = measure_storage(_files(source, data), seed=seed)
    curve = storage if isinstance(storage, Curve) else None
    known = clustering if isinstance(clustering, Clustering) else None
    plans = advice.plans_for(source, sample.encoder, memory)
    given = plans["corgipile"]
    units = 0 if source.units is None else len(np.unique(source.units))
    units = units if units < len(source.block_rows) else 0
    setting = Setting(
        sample.rows_in_all, len(source.block_rows), sample.row_bytes, units, plans, curve, available_memory()
    )
    predictions = predict(setting, speeds)
    chosen = advice.recommend(
        source,
        sample.encoder,
        data=_name(data, source),
        columns=columns,
        model=sample.model,
        given=given,
        clustering=known,
        predictions=predictions,
        setting=setting,
        speeds=speeds,
    )
    gained = converting(
        source,
        columns,
        _name(data, source),
        setting=setting,
        speeds=speeds,
        predictions=predictions,
        clustering=known,
        block_bytes=chosen.block_bytes,
    )
    small = advice.too_small(source, sample.encoder, memory)
    warnings += advice.memory_warnings(given, small, chosen, setting, known)
    opened = advice.plan_for(source, sample.encoder, "corgipile", chosen.memory).units
    return Explanation(
        data=_name(data, source),
        label=columns.label or default_label(source),
        model=sample.model,
        memory=given.memory,
        resident=given.resident,
        shape=_shape(source, sample, given, units),
        storage=curve,
        storage_note="" if isinstance(storage, Curve) else storage,
        clustering=known,
        clustering_note="" if isinstance(clustering, Clustering) else clustering,
        shuffled=None if known is None else _shuffled(known, chosen.window_rows, opened),
        predictions=predictions,
        recommendation=chosen,
        converting=gained,
        speeds=speeds,
        warnings=tuple(warnings),
        seconds=time.perf_counter() - began,
    )


def _shape(source: BlockSource, sample: Sample, given: Plan, units: int) -> Shape:
    encoder, blocks = sample.encoder, len(source.block_rows)
    return Shape(
        rows=sample.rows_in_all,
        exact_rows=sample.counted,
        blocks=blocks,
        rows_per_block=sample.rows_in_all / blocks,
        block_bytes=float(source.block_bytes.mean()),
        stored_bytes=int(source.block_bytes.sum()),
        decoded_bytes=int(sample.row_bytes * sample.rows_in_all),
        columns=len(source.schema),
        features=sample.width,
        sparse=encoder.sparse,
        layout="packed" if sample.feed.decoder.waits else "decoded",
        row_groups=units,
        row_groups_open=given.units if units else 0,
    )


def _shuffled(clustering: Clustering, window_rows: int, opened: int) -> Shuffled:
    return Shuffled(
        alpha=clustering.alpha(window_rows),
        factor=clustering.factor(window_rows),
        balance=clustering.balance(window_rows, opened=opened),
    )


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
