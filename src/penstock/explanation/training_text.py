"""The explanation of a training as sections of text: what the data are, what they will cost, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.budget import show_bytes, show_share
from penstock.explanation.clustering import BATCH
from penstock.explanation.explanation import StrategyCost
from penstock.explanation.formatting import (
    Section,
    TableRow,
    capitalized,
    show_bar,
    show_block_size,
    show_seconds,
    show_speed,
)
from penstock.explanation.gain import EPOCHS
from penstock.measure_lines import show_items
from penstock.messages import Text
from penstock.solvers import FULL_PASS_SOLVERS
from penstock.storage_timer import IN_FLIGHT, StorageSpeeds

_CACHE = {True: "cold: out of the page cache", False: "warm: partly from the page cache", None: "perhaps cached"}


def training_sections(facts: Mapping[str, Any]) -> tuple[Section, ...]:
    """Return the sections of what `penstock.explain` knows."""
    makers = (_data, _clustering, _storage, _costs, _fit, _recommendation, _conversion)
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
