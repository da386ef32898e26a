"""An explanation as some forty lines of text: what the data are, what they will cost, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.budget import show_bytes, show_share
from penstock.explain.clustering import BATCH
from penstock.explain.storage import IN_FLIGHT, Curve

if TYPE_CHECKING:
    from penstock.explain.explanation import Explanation

_BAR = 16
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def lines(found: Explanation) -> list[str]:
    """Return the lines, section by section."""
    parts = [
        _shape(found),
        _clustering(found),
        _storage(found),
        _predictions(found),
        _recommendation(found),
        _converting(found),
        [f"warning: {text}" for text in found.warnings],
    ]
    out: list[str] = []
    for part in parts:
        if part:
            out += ([""] if out else []) + part
    return out


def _shape(found: Explanation) -> list[str]:
    shape = found.shape
    about = "" if shape.exact_rows else "about "
    rows = f"{about}{shape.rows:,} rows{'' if shape.exact_rows else ' (an estimate; text is not counted beforehand)'}"
    blocks = f"{shape.blocks:,} blocks" if shape.blocks != 1 else "1 block"
    kind = "sparse" if shape.sparse else "dense"
    width = f"{shape.features:,} "
    label = f", label {found.label!r}" if found.label else ", no label"
    way = "packed: read without decoding" if shape.layout == "packed" else "decoded when read"
    told = [
        found.data,
        f"  {rows} in {blocks} of {about}{shape.rows_per_block:,.0f} rows ({show_bytes(shape.block_bytes)})",
        f"  {show_bytes(shape.stored_bytes)} stored, {about}{show_bytes(shape.decoded_bytes)} as rows in memory",
        f"  {width}{kind} features{label}; {way}",
    ]
    if shape.row_groups and not found.resident:
        count = f"{shape.row_groups:,} row groups larger" if shape.row_groups > 1 else "1 row group larger"
        told.append(
            f"  {count} than a block, served in parts, {min(shape.row_groups_open, shape.row_groups)} at a time:"
            " a window mixes rows of those only"
        )
    return told


def _clustering(found: Explanation) -> list[str]:
    if found.clustering is None:
        return [f"How the rows lie: h_D was not measured ({found.clustering_note})"]
    c = found.clustering
    sorted_ = f"{c.piece_rows:,.0f}"
    told = [
        "How the rows lie",
        f"  h_D = {_number(c.h_D)} of the gradients, {_number(c.label_h_D)} of the label alone (1 is shuffled, {sorted_} is sorted)",
        f"  {c.meaning[0].upper()}{c.meaning[1:]}",
    ]
    if found.shuffled is not None:
        s = found.shuffled
        told.append(
            f"  Shuffled with {show_bytes(found.recommendation.memory)}: α = {s.alpha:.2g}, (1-α)·h_D = {_number(s.factor)};"
            f" labels in batches of {BATCH} vary {s.balance:.3g}× as in a full shuffle"
        )
    return told


def _storage(found: Explanation) -> list[str]:
    curve = found.storage
    if curve is None:
        return [f"Storage was not measured ({found.storage_note}); reading is taken to cost nothing"]
    state = {True: "cold: out of the page cache", False: "warm: partly from the page cache", None: "perhaps cached"}
    top = max(curve.sequential, curve.sequential_many, *(max(p.one, p.many) for p in curve.points), 1.0)
    told = [
        f"Random reads of {curve.place} ({state[curve.cold]})",
        f"  {'block':<11}{'one at a time':<28}{IN_FLIGHT} in flight",
    ]
    for name, one, many in [
        *((_size(p.block_bytes), p.one, p.many) for p in curve.points),
        ("sequential", curve.sequential, curve.sequential_many),
    ]:
        told.append(f"  {name:<11}{_speed(one):>9} {_bar(one / top)}  {_speed(many):>9} {_bar(many / top)}".rstrip())
    told.append(f"  Within 10% of sequential: {_knee(curve, many=False)}; {_knee(curve, many=True)}")
    return told


def _knee(curve: Curve, *, many: bool) -> str:
    size = curve.knee(many=many)
    how = f"with {IN_FLIGHT} in flight" if many else "one at a time"
    return f"no size {how}" if size is None else f"from {_size(size)} {how}"


def _predictions(found: Explanation) -> list[str]:
    told = [
        f"Predicted seconds per epoch ({found.model}, {show_bytes(found.memory)})",
        f"  {'strategy':<16}{'first':>9}{'later':>9}{'before':>9}",
    ]
    for p in found.predictions:
        before = show_seconds(p.prepare_seconds) if p.prepare_seconds else "–"
        mark = "→" if p.strategy == found.recommendation.strategy else " "
        row = f"{mark} {p.strategy:<16}{show_seconds(p.first_seconds):>9}{show_seconds(p.seconds):>9}{before:>9}"
        told.append(f"{row}   {p.note}".rstrip())
    return told


def _recommendation(found: Explanation) -> list[str]:
    advice = found.recommendation
    share = f"{show_share(advice.window_share)} of the rows" if advice.window_share < 1 else "all rows"
    return [
        f"Recommended: {advice.command}",
        f"  {advice.strategy}: {advice.reason}.",
        f"  {show_bytes(advice.memory)} shuffle {share} together. {_blocks(found)}",
    ]


def _blocks(found: Explanation) -> str:
    wanted, mine = found.recommendation.block_bytes, found.shape.block_bytes
    if found.shape.layout != "packed" or found.storage is None:
        return f"Blocks to convert to: {_size(wanted)}."
    fits = "about what this file has" if 0.5 <= mine / wanted <= 2 else f"this file has {show_bytes(mine)}"
    return f"Blocks of {_size(wanted)} suit this storage; {fits}."


def _converting(found: Explanation) -> list[str]:
    c = found.converting
    if c is None:
        return []
    size = show_bytes(c.bytes_then)
    if found.resident:
        if c.first_now < 1 or c.first_then > 0.7 * c.first_now:
            return ["Converting would gain little: the rows are decoded once and stay in memory."]
        first = f"{show_seconds(c.first_now)} now, {show_seconds(c.first_then)} once converted ({size})"
        return [f"Converting would shorten the first epoch alone: {first}:", f"  {c.command}"]
    told = f"{show_seconds(c.seconds_now)} an epoch now, {show_seconds(c.seconds_then)} once converted ({size})"
    if not c.worth_it:
        return [f"Converting to the fast layout would gain little: {told}."]
    gain = "pays" if c.seconds_then < c.seconds_now else "lets a window mix rows from everywhere"
    return [f"Converting to the fast layout {gain}: {told}:", f"  {c.command}"]


def _bar(share: float) -> str:
    """Draw a share of the bar's length in eighths of a character."""
    eighths = round(8 * _BAR * max(0.0, min(1.0, share)))
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(_BAR)


def _size(count: int) -> str:
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB"


def _speed(count: float) -> str:
    return f"{show_bytes(count)}/s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def show_seconds(value: float) -> str:
    """Write a time for people.

    Examples
    --------
    >>> show_seconds(0.0213), show_seconds(3.14), show_seconds(5400)
    ('21 ms', '3.1 s', '90 min')
    """
    if value >= 600:
        return f"{value / 60:.0f} min"
    if value < 0.1:
        return f"{1000 * value:.2g} ms"
    return f"{value:.0f} s" if value >= 20 else f"{value:.1f} s" if value >= 1 else f"{value:.2f} s"
