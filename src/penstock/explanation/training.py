"""What training a linear model will cost and how random it will be, without training.

`explain` looks at a bounded sample: it reads some blocks for how the rows lie (section 4.2), times the storage at
several block sizes (section 7.2.4), times decoding and learning, and from these predicts an epoch of every strategy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.blocks.base import BlockSource
from penstock.blocks.open import naming_arguments, split_table, without_password
from penstock.blocks.open import open as open_source
from penstock.blocks.storage import expand, is_remote
from penstock.budget import Budget, available_memory, show_bytes, show_share
from penstock.columns.schema_notes import codes_notice, index_notice
from penstock.columns.summary import ColumnSummary, column_lines
from penstock.config import Config
from penstock.errors import DataError
from penstock.explanation import advice
from penstock.explanation.advice import EPOCHS, conversion_gain
from penstock.explanation.clustering import BATCH, Clustering, measure_clustering
from penstock.explanation.cost import Setting, strategy_costs
from penstock.explanation.explanation import (
    Explanation,
    Section,
    StrategyCost,
    TableRow,
    capitalized,
    show_bar,
    show_block_size,
    show_seconds,
    show_speed,
)
from penstock.explanation.fit import QuickFit, quick_fit
from penstock.explanation.sample import DataSample, SampledColumns, take_sample
from penstock.explanation.speed import measure_speeds
from penstock.loader.plan import Plan
from penstock.measure_lines import show_items
from penstock.messages import Text, TextPart
from penstock.metric_names import codes_advice
from penstock.sgd.losses import loss_of
from penstock.shuffle import ORDERS
from penstock.solvers import FULL_PASS_SOLVERS, DataShape
from penstock.storage_timer import IN_FLIGHT, StorageSpeeds, measure_storage
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
            sparse=sample.recipe.sparse,
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
    category: Sequence[str] = (),
    number: Sequence[str] = (),
    date: Sequence[str] = (),
    missing: str | None = None,
    null_values: Sequence[str] = (),
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
    label, features, weight, exclude, hash, category, number, date, missing, null_values
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
    kinds: dict[str, Any] = {"category": tuple(category), "number": tuple(number), "date": tuple(date)}
    columns = Columns(
        label, features, weight, tuple(exclude), tuple(hash), missing=missing, null_values=tuple(null_values), **kinds
    )
    with ExitStack() as stack:
        with naming_arguments(explain):
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
    sampled = SampledColumns.of(source, columns, seed=seed)
    notice = index_notice(source.schema, sampled.recipe.columns, exclude=columns.exclude)
    if notice is not None:
        warnings.append(f"{notice}.")
    sample = take_sample(source, sampled, model=model, seed=seed, warnings=warnings)
    with closing(sample.feed.decoder):
        clustering = measure_clustering(sample, seed=seed)
        speeds = measure_speeds(sample, seed=seed)
    fit = quick_fit(sample.fitted, sample.model, outputs=sample.outputs, seed=seed)
    storage = "not asked for" if files is None else measure_storage(files, seed=seed)
    curve = storage if isinstance(storage, StorageSpeeds) else None
    known = clustering if isinstance(clustering, Clustering) else None
    plans = {name: advice.plan_for(source, sample.recipe, name, memory) for name in ORDERS}
    plan = plans["corgipile"]
    units = 0 if source.units is None else len(np.unique(source.units))
    units = units if units < len(source.block_rows) else 0
    blocks, room = len(source.block_rows), available_memory()
    setting = Setting(sample.rows_in_all, blocks, sample.row_bytes, units, plans, curve, room, known)
    costs = tuple(replace(cost, quality=_quality(cost, setting)) for cost in strategy_costs(setting, speeds))
    block_bytes = advice.best_block(curve, layout=speeds.packed or speeds.stored, speeds=speeds)
    gain = None
    if sampled.recipe.missing != "drop":
        gain = conversion_gain(
            source, columns, name, setting=setting, speeds=speeds, costs=costs, block_bytes=block_bytes
        )
    recommendation, shuffled = advice.recommend(
        source,
        sample.recipe,
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
    small = advice.too_small(source, sample.recipe, memory)
    warnings += advice.memory_warnings(small, recommendation, setting)
    effects = sample.level_effects(columns.number)
    codes = effects.codes(classes=loss_of(sample.model).classifies)
    if codes:
        warnings.append(Text(codes_notice(codes, sample.recipe.label), "."))
    if isinstance(fit, QuickFit) and not fit.better:
        advice_on_codes = codes_advice({"few_valued": effects.levels})
        warnings.append(
            Text(
                f"a fit on {fit.rows:,} sampled rows is no better than a constant prediction: the features may tell nothing of"
                f" {sample.recipe.label!r}, or not in a {sample.model} model",
                "; " if advice_on_codes else "",
                advice_on_codes,
                ".",
            )
        )
    facts = {
        "data": name,
        "label": columns.label or default_label(source),
        "model": sample.model,
        "memory_bytes": plan.memory,
        "resident": plan.resident,
        "shape": DataSummary.of(source, sample, plan, units),
        "columns": [_summary(each) for each in sample.column_summaries()],
        "left_out": dict(sampled.recipe.left_out),
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


def _summary(summary: ColumnSummary) -> dict[str, Any]:
    """Return what is known of a column before training."""
    return {name: getattr(summary, name) for name in ("column", "kind", "levels", "missing", "mean", "scale")}


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


_COLUMNS_SHOWN = 30
_CACHE = {True: "cold: out of the page cache", False: "warm: partly from the page cache", None: "perhaps cached"}


def training_sections(facts: Mapping[str, Any]) -> tuple[Section, ...]:
    """Return the sections of what `penstock.explain` knows."""
    makers = (_data, _columns, _clustering, _storage, _costs, _fit, _recommendation, _conversion)
    return tuple(section for maker in makers if (section := maker(facts)) is not None)


def _data(facts: Mapping[str, Any]) -> Section:
    shape = facts["shape"]
    about = "" if shape.exact_rows else "about "
    rows = f"{about}{shape.rows:,} rows{'' if shape.exact_rows else ' (an estimate; text is not counted beforehand)'}"
    label = f", label {facts['label']!r}" if facts["label"] else ", no label"
    way = "packed: read without decoding" if shape.layout == "packed" else "decoded when read"
    lines = [
        f"{rows} in {show_items(shape.blocks, 'block')} of {about}{shape.rows_per_block:,.0f} rows"
        f" ({show_bytes(shape.block_bytes)})",
        f"{show_bytes(shape.stored_bytes)} stored, {about}{show_bytes(shape.decoded_bytes)} as rows in memory",
        f"{shape.features:,} {'sparse' if shape.sparse else 'dense'} features{label}; {way}",
    ]
    if shape.row_groups_open < shape.row_groups and not facts["resident"]:
        lines.append(
            f"{show_items(shape.row_groups, 'row group')} larger than a block, served in parts, {shape.row_groups_open} at a time:"
            " a window mixes rows of those only"
        )
    return Section(facts["data"], lines)


def _columns(facts: Mapping[str, Any]) -> Section:
    summaries = [ColumnSummary(**each) for each in facts["columns"]]
    return Section("Columns", column_lines(summaries, facts["left_out"], most=_COLUMNS_SHOWN, varied=True)[1:])


def _clustering(facts: Mapping[str, Any]) -> Section:
    known, shuffled, advice = facts["clustering"], facts["shuffled"], facts["recommendation"]
    if known is None:
        return Section(Text("How the rows lie: h_D was not measured (", facts["clustering_note"], ")"))
    lines = [
        f"h_D = {_number(known.h_D)} of the gradients, {_number(known.label_h_D)} of the label alone (1 is shuffled,"
        f" {known.piece_rows:,.0f} is sorted)",
        capitalized(known.meaning),
    ]
    if shuffled is not None:
        how = "Converted and shuffled" if advice.convert else "Shuffled"
        lines.append(
            f"{how} as recommended, with {show_bytes(advice.memory)}: α = {shuffled.alpha:.2g}, (1-α)·h_D ="
            f" {_number(shuffled.factor)}; labels in batches of {BATCH} vary {shuffled.balance:.3g}× as in a full shuffle"
        )
    return Section("How the rows lie", lines)


def _storage(facts: Mapping[str, Any]) -> Section:
    curve: StorageSpeeds | None = facts["storage"]
    if curve is None:
        return Section(f"Storage was not measured ({facts['storage_note']}); reading is taken to cost nothing")
    speeds = [(show_block_size(p.block_bytes), p.one, p.many) for p in curve.points]
    speeds.append(("sequential", curve.sequential, curve.sequential_many))
    top = max(1.0, *(max(one, many) for _, one, many in speeds))
    lines = [f"{'block':<11}{'one at a time':<28}{IN_FLIGHT} in flight"]
    for name, one, many in speeds:
        bars = (f"{show_speed(speed):>9} {show_bar(speed / top)}" for speed in (one, many))
        lines.append(f"{name:<11}{'  '.join(bars)}".rstrip())
    knees = []
    for in_flight, how in ((False, "one at a time"), (True, f"with {IN_FLIGHT} in flight")):
        size = curve.knee(many=in_flight)
        knees.append(f"no size {how}" if size is None else f"from {show_block_size(size)} {how}")
    return Section(
        f"Random reads of {curve.place} ({_CACHE[curve.cold]})",
        [*lines, f"Within 10% of sequential: {'; '.join(knees)}"],
    )


def _costs(facts: Mapping[str, Any]) -> Section:
    advice, gain = facts["recommendation"], facts["converting"]
    rows = [
        _row(cost.strategy, cost, cost.note, marked=cost.strategy == advice.strategy and not advice.convert)
        for cost in facts["predictions"]
    ]
    if gain is not None and not facts["resident"]:
        note = "corgipile from the fast layout; converts first"
        rows.append(_row("converted", gain.cost, note, marked=bool(advice.convert)))
    heading = f"Predicted seconds per epoch ({facts['model']}, {show_bytes(facts['memory_bytes'])})"
    return Section(heading, columns=("strategy", "first", "later", "before"), rows=rows)


def _row(name: str, cost: StrategyCost, note: str, *, marked: bool) -> TableRow:
    before = show_seconds(cost.prepare_seconds) if cost.prepare_seconds else "–"
    return TableRow(name, (show_seconds(cost.first_seconds), show_seconds(cost.seconds), before), note, marked)


def _fit(facts: Mapping[str, Any]) -> Section | None:
    if facts["fit"] is not None:
        return Section(f"A {facts['fit']}")
    return Section(f"A quick fit on the sample was not made ({facts['fit_note']})") if facts["label"] else None


def _recommendation(facts: Mapping[str, Any]) -> Section:
    advice = facts["recommendation"]
    lines = [advice.command] if advice.convert else []
    lines.append(f"{advice.solver} on {advice.scaling}")
    if advice.solver in FULL_PASS_SOLVERS:
        lines.append(f"{capitalized(advice.reason)}.")
    else:
        rows = "rows of the converted file" if advice.convert else "rows"
        share = f"{show_share(advice.window_share)} of the {rows}" if advice.window_share < 1 else f"all {rows}"
        note = f" {advice.memory_note}" if advice.memory_note else ""
        lines.append(f"{'converting' if advice.convert else advice.strategy}: {advice.reason}.")
        lines.append(f"{show_bytes(advice.memory)} shuffle {share} together.{note} {_blocks(facts)}")
    return Section(f"Recommended: {advice.convert or advice.command}", lines)


def _blocks(facts: Mapping[str, Any]) -> str:
    wanted, shape = facts["recommendation"].block_bytes, facts["shape"]
    if shape.layout != "packed" or facts["storage"] is None:
        return f"Blocks to convert to: {show_block_size(wanted)}."
    near = 0.5 <= shape.block_bytes / wanted <= 2
    fits = "about what this file has" if near else f"this file has {show_bytes(shape.block_bytes)}"
    return f"Blocks of {show_block_size(wanted)} suit this storage; {fits}."


def _conversion(facts: Mapping[str, Any]) -> Section | None:
    gain = facts["converting"]
    if gain is None or facts["recommendation"].convert:
        return None
    size = show_bytes(gain.bytes_then)
    if facts["resident"]:
        if gain.first_now < 1 or gain.first_then > 0.7 * gain.first_now:
            return Section("Converting would gain little: the rows are decoded once and stay in memory.")
        first = f"{show_seconds(gain.first_now)} now, {show_seconds(gain.first_then)} once converted ({size})"
        return Section(f"Converting would shorten the first epoch alone: {first}:", [gain.command])
    times = (
        f"{show_seconds(gain.seconds_now)} an epoch now, {show_seconds(gain.seconds_then)} once converted ({size},"
        f" {show_seconds(gain.convert_seconds)} to convert)"
    )
    if not gain.worth_it:
        return Section(f"Converting to the fast layout would gain little: {times}.")
    corgipile = next(cost for cost in facts["predictions"] if cost.strategy == "corgipile")
    faster = gain.cost.total(EPOCHS) < corgipile.total(EPOCHS)
    effect = "pays" if faster else "lets a window mix rows from everywhere"
    return Section(f"Converting to the fast layout {effect}: {times}:", [gain.command])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
