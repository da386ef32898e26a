"""What a linear model on disk will take, before it is trained: its size, what stays in memory, the traffic of an epoch.

Where the directory is prepared for the data, features are counted already; elsewhere they are estimated from a sample
of the blocks (`penstock.explanation.feature_counts`). Nothing is written.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.bigmodel.checkpoint import directory_contents
from penstock.bigmodel.disk_learner import KINDS
from penstock.bigmodel.storage import Storage
from penstock.blocks.base import BlockSource
from penstock.budget import Budget, show_bytes, show_share
from penstock.columns.recipe import Recipe
from penstock.command_lines import shell_line
from penstock.errors import BudgetError, DataError, UnknownOptionError, UsageError
from penstock.explanation.explanation import Explanation, Section, StrategyCost
from penstock.explanation.feature_counts import FeatureCounts, company, count_features
from penstock.explanation.page_traffic import PageTraffic, expected_traffic
from penstock.loader.plan import round_up
from penstock.messages import Name, Text, Use
from penstock.sgd.losses import linear_models
from penstock.training import Columns

_NUMBERS_BYTES, _FOUND_BYTES = 4, 20
"""What preparing writes to disk for a while: a number for each entry beside its feature, and a record of each feature."""
# Below this share of the entries, features that stay in memory do not carry an epoch.
_FEW_HOT = 0.5
# From this share on, entries that may need a page from anywhere do weigh on it.
_MANY_REPEATED = 0.2
# Features that come again with the same others so often find their pages together.
_COMPANY = 0.25


def explain_model(
    source: BlockSource,
    folder: str | os.PathLike[str],
    *,
    columns: Columns | None = None,
    storage: Storage | None = None,
    memory: str | int = "512MB",
    model: str = "logistic",
    dimension: int | None = None,
    seed: int = 0,
) -> Explanation:
    """Say what a linear model on disk will take, without training it.

    Parameters
    ----------
    source : BlockSource
        The data.
    folder : path
        The model's directory; need not be there.
    columns : Columns
        Which columns play which part, as for training.
    storage : Storage
        How the model is to lie on disk, and the memory for it.
    memory : str or int
        For rows.
    model : str
        ``logistic``, ``svm`` or ``linear``.
    dimension : int, optional
        How many features there may be; an index at or beyond it is refused where the sample has one.
    seed : int
        Draws the sample.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock import open
    >>> rows = {"indices": [[3, 10**9], [5]] * 50, "values": [[1.0, 0.5], [1.0]] * 50, "clicked": [1, 0] * 50}
    >>> explanation = explain_model(open(pa.table(rows)), "ctr.model", columns=Columns("clicked"))
    >>> explanation.features, explanation.model_bytes, explanation.full_model_bytes, explanation.hit_rate
    (3, 4096, 4000000004, 1.0)
    """
    began = time.perf_counter()
    columns, storage = columns or Columns(), storage or Storage()
    recipe = _recipe(source, columns, model, dimension)
    directory = directory_contents(folder, source, kind="linear", asked=recipe)
    prepared = directory.layout is not None
    counts = FeatureCounts.of(directory.layout) if directory.layout else count_features(source, recipe, seed=seed)
    if not counts.entries:
        raise DataError(f"{source.name} has no features in any row of the sample; there is nothing to explain")
    budget = Budget.parse(memory)
    row_memory = budget.resolve(counts.rows_bytes)
    traffic = expected_traffic(
        counts, storage, memory=row_memory, prepare_memory=(budget.bytes or 1 << 28) + storage.least_memory
    )
    model_bytes, model_memory = storage.model_bytes(counts.features), storage.memory(counts.features)
    hot_bytes = model_bytes if traffic.whole else storage.model_bytes(traffic.hot) if traffic.hot else 0
    disk = {"rows_bytes": counts.rows_bytes, "map_bytes": counts.map_bytes, "pages_bytes": 2 * model_bytes}
    disk["bytes"] = sum(disk.values())
    scratch = counts.entries * (8 + _NUMBERS_BYTES) + counts.features * _FOUND_BYTES
    warnings = [
        storage.raised(counts.features),
        directory.warning,
        _no_layout_helps(source, recipe, counts, storage, traffic, seed=seed),
    ]
    facts: dict[str, Any] = {
        "data": source.name,
        "label": recipe.label,
        "model": model,
        "model_dir": os.fspath(folder),
        "optimizer": storage.optimizer,
        "exact": counts.exact,
        "prepared": prepared,
        "sample_share": counts.share,
        "rows": counts.rows,
        "entries": counts.entries,
        "features": counts.features,
        "dimension": counts.dimension,
        "memory_bytes": row_memory,
        "model_memory_bytes": model_memory,
        "model_bytes": model_bytes,
        "full_model_bytes": counts.dimension * storage.cells * 4,
        "hot_features": traffic.hot,
        "hot_bytes": hot_bytes,
        "hot_share": traffic.hot_share,
        "repeated_share": traffic.repeated_share,
        "hit_rate": traffic.hit_rate,
        "epoch": epoch_bytes(traffic.rows_read, traffic.pages_read, traffic.pages_written),
        "disk": {**disk, "while_preparing_bytes": scratch},
    }
    about = "" if counts.exact else "about "
    cells = "its weight" if storage.optimizer == "sgd" else "its weight and AdaGrad's sum of squares"
    size = [
        f"{about}{show_bytes(model_bytes)}: the features that occur, each with {cells}",
        f"{show_bytes(counts.dimension * storage.cells * 4)} it would be with all {counts.dimension:,} features that there"
        " could be",
    ]
    if traffic.whole:
        size.append(f"All of it stays in {show_bytes(model_memory)} of memory: hit rate 100%")
    else:
        size += [
            f"Hot: {about}{traffic.hot:,} features ({show_bytes(hot_bytes)}) stay in {show_bytes(model_memory)} of memory;"
            f" {show_share(traffic.hot_share)} of the entries fall on them",
            f"Expected hit rate: {show_share(traffic.hit_rate)} of the pages that chunks of rows want",
        ]
    space = [
        f"{show_bytes(counts.rows_bytes)} for a copy of the rows, {show_bytes(counts.map_bytes)} for the index map, up to"
        f" {show_bytes(2 * model_bytes)} for pages in two files"
    ]
    if not prepared:
        space.append(f"While it is prepared, up to {show_bytes(scratch)} more")
    sections = (
        Section(
            source.name,
            [
                f"{about}{counts.rows:,} rows, {counts.entries / max(1, counts.rows):,.3g} features to a row;"
                f" {about}{counts.features:,} different ones ({how_counted(counts.share, prepared and f'{folder} was prepared')})"
            ],
        ),
        Section(f"The model in {os.fspath(folder)} ({model}, {storage.optimizer})", size),
        epoch_section(facts["epoch"], "rows"),
        Section(f"Disk: up to {show_bytes(disk['bytes'])}", space),
    )
    options = columns.to_options() | ({"model": model} if model != "logistic" else {})
    options |= {"model_dir": os.fspath(folder), "model_memory": storage.model_memory, "memory": memory}
    options |= {"optimizer": storage.optimizer} if storage.optimizer != "sgd" else {}
    options |= {"dimension": dimension} if dimension is not None else {}
    return Explanation(
        facts,
        (disk_cost(row_memory + model_memory, disk["bytes"]),),
        sections,
        command=shell_line(["penstock", "train", source.name], options),
        notices=tuple(Text(text) for text in warnings if text is not None),
        seconds=time.perf_counter() - began,
    )


def epoch_bytes(rows_read: int, pages_read: int, pages_written: int) -> dict[str, int]:
    """Return what an epoch reads and writes, by kind and in all."""
    kinds = {"rows_read_bytes": rows_read, "pages_read_bytes": pages_read, "pages_written_bytes": pages_written}
    return {**kinds, "bytes": sum(kinds.values())}


def epoch_section(epoch: Mapping[str, int], rows: str) -> Section:
    """Return the section on an epoch's traffic; ``rows`` is what rows are called."""
    read = epoch["rows_read_bytes"]
    what = f"{show_bytes(read)} of {rows}" if read else f"no {rows}, which stay in memory"
    pages_read, written = (show_bytes(epoch[f"pages_{way}_bytes"]) for way in ("read", "written"))
    traffic = f"reads {what}, and {pages_read} of pages; writes {written} of pages"
    return Section(f"An epoch: about {show_bytes(epoch['bytes'])}", [traffic])


def how_counted(share: float, counted_when: str | bool) -> str:
    """Say where counts come from: a directory (``counted_when`` it was prepared), all blocks, or a share of the data."""
    if counted_when:
        return f"counted when {counted_when}"
    return "counted in all blocks" if share >= 1 else f"an estimate from {show_share(share)} of the data"


def disk_cost(memory: int, disk: int) -> StrategyCost:
    """Return the row of a model on disk, whose storage is not timed."""
    return StrategyCost("on disk", math.nan, math.nan, math.nan, memory_bytes=memory, disk_bytes=disk)


def _recipe(source: BlockSource, columns: Columns, model: str, dimension: int | None) -> Recipe:
    """Return what makes features of the columns; what training would refuse is refused."""
    if model not in linear_models():
        raise UnknownOptionError.of("model", model, KINDS)
    if model not in KINDS:
        raise UsageError(f"a {model} model cannot live on disk; choose one of: {', '.join(KINDS)}")
    recipe = columns.recipe(source, wide=True, standardize=True)
    if not recipe.sparse:
        advice = "a model on disk is for sparse rows (lists of indices and values, LibSVM text, or columns to hash):"
        raise UsageError(
            f"{source.name} has {recipe.width} dense features, a model that fits in memory",
            fixes=[Text(f"{advice} explain it without ", Name("model_dir"))],
        )
    if dimension is not None:
        fixed = sum(part.width or 0 for part in recipe.parts if part.kind != "pairs")
        if dimension <= fixed and recipe.parts[-1].kind == "pairs":
            fix = f"choose {fixed + 1} or more"
            raise UsageError("is too few for these columns", option="dimension", value=dimension, fixes=[fix])
        recipe = recipe.with_width(dimension)
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no rows; there is nothing to explain")
    return recipe


def _no_layout_helps(
    source: BlockSource, recipe: Recipe, counts: FeatureCounts, storage: Storage, traffic: PageTraffic, *, seed: int
) -> Text | None:
    """Return the warning that nothing in the data tells where to put which feature, or None.

    Features that occur once lie beside their row's others, frequent ones stay in memory, and those that occur together
    lie together. Where most are none of these, each wants a page from anywhere.
    """
    if traffic.whole or traffic.hot_share >= _FEW_HOT or traffic.repeated_share < _MANY_REPEATED:
        return None
    if company(source, recipe, seed=seed) >= _COMPANY:
        return None
    bits = _fitting_bits(storage, counts.features)
    many = f"2^{bits}" if bits else "fewer"
    if any(part.kind == "hash" for part in recipe.parts):
        spec = f"COLUMN:{many if bits else '2^BITS'}"
        fewer = Text("hash to fewer features (", Use("hash", [spec]), " fits in this memory)")
    else:
        fewer = Text(f"hash the indices to fewer features beforehand ({many} of them fit in this memory)")
    reason = (
        "no layout will help here: features occur about equally often and in no company, so that nothing tells which ones to"
        f" put together. Expected hit rate: {show_share(traffic.hit_rate)}; {show_share(traffic.hot_share)} of the entries fall"
        f" on features that stay in memory, and {show_share(traffic.repeated_share)} on others that rows from everywhere share,"
        " so nearly every row waits for pages from the disk. Give the model more memory ("
    )
    return Text(reason, Use("model_memory", _enough_memory(counts, storage)), " holds all of it), or ", fewer, ".")


def _enough_memory(counts: FeatureCounts, storage: Storage) -> str:
    """Return the memory that holds all pages, as a user would give it."""
    least, most = storage.model_bytes(counts.features), 1 << 50
    while most - least > 100_000:
        middle = (least + most) // 2
        whole = _holds_all(replace(storage, model_memory=middle), counts.features)
        least, most = (least, middle) if whole else (middle, most)
    return round_up(most)


def _fitting_bits(storage: Storage, features: int) -> int:
    """Return the power of two of features whose pages all fit in the memory given; 0 if none does."""
    fixed = replace(storage, model_memory=storage.memory(features))
    return next((bits for bits in range(features.bit_length(), 0, -1) if _holds_all(fixed, 1 << bits)), 0)


def _holds_all(storage: Storage, features: int) -> bool:
    try:
        return storage.pool_memory(features) >= storage.model_bytes(features)
    except BudgetError:
        return False
