"""How the models of groups are told of: a few lines for all of them, and a table of the chosen ones, or of one's configs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from penstock.columns.summary import column_lines, column_summaries
from penstock.errors import UsageError
from penstock.groups.results import GroupModels
from penstock.groups.score_words import pooled_words, spread_of, spread_words
from penstock.groups.search_space import Choice
from penstock.measure_lines import show_score, strict_json
from penstock.metric_names import title
from penstock.model import Description
from penstock.outputs import atomic_path

_ON_TERMINAL = 20
"""Groups that are listed where a person looks on."""
_FEW = 3
"""Reasons, and configs, that are told of all groups together."""


def describe_groups(result: GroupModels, *, most: int | None = None) -> Description:
    """Say how the models came out; see `GroupModels.describe`. All groups are among the values, ``most`` among the lines."""
    told, rows = figures(result), best(result)
    common = {"label": result.label, "classes": result.classes, "metrics": result.metrics, "config": result.config}
    columns, left_out = column_summaries(result.recipe), dict(result.recipe.left_out)
    more = {"columns": [asdict(each) for each in columns], "left_out": left_out}
    values = {"models": str(result.registry.folder), **common, **told, **more, "best": rows}
    listed = column_lines(columns, left_out, most=most)
    return Description(strict_json(values), (*lines(told), *listed, "", *table(rows, result, most=most)))


def figures(result: GroupModels) -> dict[str, Any]:
    """Return the figures of all groups together, as plain values."""
    told = result.summary()
    told["worker_seconds"] = told.pop("seconds")
    told["reasons"] = reasons(result)
    told["score"] = figure_spread(result, result.registry.index.score)
    told["loss_spread"] = figure_spread(result, "loss")
    return told


def reasons(result: GroupModels) -> list[dict[str, Any]]:
    """Return why groups and configs failed, the most common reason first."""
    failed = result.failed
    configs = Counter(failed["reason"].to_pylist())
    groups = Counter(reason for reason, _ in set(zip(failed["reason"].to_pylist(), failed["group"].to_pylist())))
    return [
        {"reason": reason, "groups": groups[reason], "models": count}
        for reason, count in sorted(configs.items(), key=lambda pair: (-groups[pair[0]], -pair[1], pair[0]))
    ]


def figure_spread(result: GroupModels, name: str) -> dict[str, Any] | None:
    """Return how a figure of the chosen models is spread over groups: for held-out scores, groups of enough such rows."""
    chosen = result.chosen
    held_out_rows = chosen["held_out_rows"].to_numpy() if name.startswith("held_out_") else None
    spread = spread_of(chosen[name].to_numpy(), held_out_rows)
    return None if spread is None else {"metric": name, **spread}


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `figures` found, for people."""
    without = told["groups_without_model"]
    gaps = f", {without:,} of them without a model" if without else ""
    yield f"groups    {told['groups']:,} by {', '.join(told['by'])}{gaps}"
    yield f"configs   {told['configs']:,} for each"
    yield f"rows      {told['rows']:,}"
    yield from _failures(told)
    yield from _scores(told)
    chosen = told["chosen"]
    if told["configs"] > 1:
        for place, each in enumerate(chosen[:_FEW]):
            groups = "1 group" if each["groups"] == 1 else f"{each['groups']:,} groups"
            yield f"{'' if place else 'chosen':<10}{Choice(each['config'], each['params'])} for {groups}"
        if len(chosen) > _FEW:
            rest = sum(each["groups"] for each in chosen[_FEW:])
            yield f"{'':<10}{len(chosen) - _FEW:,} other configs for {rest:,} groups"
    if told["refitted"]:
        models = "1 model" if told["refitted"] == 1 else f"{told['refitted']:,} models"
        yield f"{'refit':<10}{models} learned from all rows in the end, those held out too; the scores are from before"


def _failures(told: Mapping[str, Any]) -> Iterator[str]:
    found = told["reasons"]
    if not found:
        yield "failed    none"
        return
    for place, each in enumerate(found[:_FEW]):
        groups = "1 group" if each["groups"] == 1 else f"{each['groups']:,} groups"
        if each["models"] < each["groups"] * told["configs"]:  # other configs of these went well
            groups = f"{each['models']:,} of the models of {groups}"
        yield f"{'' if place else 'failed':<10}{groups}: {each['reason']}"
    if len(found) > _FEW:
        yield f"{'':<10}and {len(found) - _FEW:,} more reasons"


def _scores(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield how models do on rows that no choice has seen, or in training where nothing was held out."""
    score = told["score"]
    if score is None:
        if told["loss_spread"] is not None:
            yield f"{'training':<10}loss {spread_words(told['loss_spread'], '{:.5g}'.format)}; {_why_not(told)}"
        return
    metric = score["metric"]
    name = title(metric.removeprefix("held_out_"))
    yield f"{'held out':<10}{name} {show_score(told[metric], metric)} over {told['held_out_rows']:,} rows that no choice has seen"
    yield f"{'':<10}{spread_words(score, partial(show_score, metric=metric))}"
    missing = told["groups"] - told["groups_without_model"] - score["groups"]
    if missing:
        yield f"{'':<10}{missing:,} of the models are not judged: none of their rows were held out"
    pooled = told["pooled"]
    if pooled is None:
        return
    if pooled["config"] is None:
        yield f"{'pooled':<10}no model for all groups: {pooled['reason']}"
        return
    config = str(Choice(pooled["config"], pooled["params"]))
    yield (
        f"{'pooled':<10}{name} {show_score(pooled[metric], metric)} on the same rows, by {pooled_words(pooled['without'])}"
        + (f" ({config})" if config else "")
    )
    if pooled["groups"]:
        better = f"{pooled['better']:,} of {pooled['groups']:,} groups"
        yield f"{'':<10}it is better than the group's own model in {better}, worse in {pooled['worse']:,}"
    if pooled["without"]:
        them = "it" if len(pooled["without"]) == 1 else "them"
        yield f"{'':<10}compare with a model that has {them}: train one without groups, or name {them} as category here"


def _why_not(told: Mapping[str, Any]) -> str:
    return "nothing was held out to judge by" if told["finished"] else "judged when training is finished"


def best(result: GroupModels) -> list[dict[str, Any]]:
    """Return a row for each group, the largest first: of the config chosen, or of a failed one where none was."""
    frame, chosen = result.frame, result.chosen
    first = np.unique(frame["group"].to_numpy(), return_index=True)[1]
    bare = frame.take(pa.array(first))
    bare = bare.filter(pc.invert(pc.is_in(bare["group"], chosen["group"].combine_chunks())))
    found = pa.concat_tables([chosen, bare])
    order = np.lexsort([found["group"].to_numpy(), -found["rows"].to_numpy()])
    return _rows(result, found.take(pa.array(order)), set(chosen["group"].to_pylist()))


def of_group(result: GroupModels, text: str) -> list[dict[str, Any]]:
    """Return a row for each config of a group."""
    rows = result.frame.filter(pc.equal(result.frame["text"], text))
    if not len(rows):
        raise UsageError(result.missing(text))
    chosen = result.chosen
    number = rows["group"][0].as_py()
    config = chosen.filter(pc.equal(chosen["group"], number))["config"].to_pylist()
    found = _rows(result, rows, {number})
    return [{**row, "chosen": row["config"] in config} for row in found]


def _rows(result: GroupModels, table: pa.Table, with_model: set[int]) -> list[dict[str, Any]]:
    index = result.registry.index
    kept = (
        *("rows", "selection_rows", "held_out_rows", "config", "loss", "selection_loss", index.selection_score),
        *("held_out_loss", index.score, f"pooled_{index.metric}", "epochs", "status", "reason", "traceback"),
    )
    found = []
    for row in table.to_pylist():
        told = {"group": row["text"]} | {name: row[name] for name in kept}
        told["params"] = dict(index.configs[row["config"]])
        if row["group"] not in with_model:
            told |= {"config": None, "params": None}
        found.append(told)
    return found


def table(
    rows: Sequence[Mapping[str, Any]], result: GroupModels, *, most: int | None = None, chosen: bool = False
) -> Iterator[str]:
    """Yield the lines of a table of such rows.

    Parameters
    ----------
    rows, result
        What `best` or `of_group` found, and in what.
    most : int, optional
        Lines to show; if not given, some on a terminal and all elsewhere.
    chosen : bool
        Whether rows are configs of one group, of which the chosen one is marked.
    """
    if most is None:
        most = _ON_TERMINAL if sys.stdout.isatty() and not chosen else len(rows)
    index = result.registry.index
    name = title(index.metric)
    # Configs of one group are told apart by what they were chosen by; groups by rows that no choice has seen.
    names = (
        ("selection_rows", "selection_loss", index.selection_score)
        if chosen
        else ("held_out_rows", "held_out_loss", index.score, f"pooled_{index.metric}")
    )
    titles = (
        ["selection rows", "selection loss", f"selection {name}"]
        if chosen
        else ["held out", "loss there", name, "pooled"]
    )
    head = ["config" if chosen else "group", "rows", "training loss", *titles, ""]
    cells = [head]
    for row in rows[:most]:
        shown = [f"{row[names[0]]:,}", _number(row[names[1]]), *(show_score(row[each], each) for each in names[2:])]
        figures = [_number(row["loss"]), *shown]
        told = "" if row["params"] is None else str(Choice(row["config"], row["params"])) or "as given"
        if chosen:
            first, last = told, row["reason"] or ("chosen" if row["chosen"] else "")
        else:
            first, last = row["group"], told or row["reason"]
        cells.append([first, f"{row['rows']:,}", *figures, last])
    head[-1] = "" if chosen else "config"
    yield from _aligned(cells)
    if len(rows) > most:
        yield f"… and {len(rows) - most:,} smaller groups"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.5f}"


def _aligned(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    from rich.cells import cell_len

    widths = [max(cell_len(row[place]) for row in cells) for place in range(len(cells[0]))]
    for row in cells:
        parts = []
        for place, (text, width) in enumerate(zip(row, widths)):
            gap = " " * (width - cell_len(text))
            parts.append(text + gap if place in (0, len(row) - 1) else gap + text)
        yield "  ".join(parts).rstrip()


def write_csv(result: GroupModels, path: Path, *, group: str | None = None) -> int:
    """Write the frame, of all groups or one, and return how many rows it has."""
    frame = result.frame
    if group is not None:
        frame = frame.filter(pc.equal(frame["text"], group))
        if not len(frame):
            raise UsageError(result.missing(group))
    with atomic_path(path) as temporary:
        pyarrow.csv.write_csv(frame, temporary)
    return len(frame)
