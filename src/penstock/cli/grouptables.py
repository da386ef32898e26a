"""How the models of groups are told of: a few lines for all of them, and a table of the chosen ones, or of one's configs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from penstock.cli.screen import name_of, show_score
from penstock.errors import UsageError
from penstock.groups.results import Result
from penstock.groups.spec import Choice
from penstock.modelfile import atomic_path

_ON_TERMINAL = 20
"""Groups that are listed where a person looks on."""
_FEW = 3
"""Reasons, and configs, that are told of all groups together."""


def figures(result: Result) -> dict[str, Any]:
    """Return the figures of all groups together, as plain values."""
    told = result.summary()
    told["worker_seconds"] = told.pop("seconds")
    told["reasons"] = reasons(result)
    told["score"] = spread(result, result.registry.index.score)
    told["loss_spread"] = spread(result, "loss")
    return told


def reasons(result: Result) -> list[dict[str, Any]]:
    """Return why groups and configs failed, the most common reason first."""
    failed = result.failed
    configs = Counter(failed["reason"].to_pylist())
    groups = Counter(reason for reason, _ in set(zip(failed["reason"].to_pylist(), failed["group"].to_pylist())))
    return [
        {"reason": reason, "groups": groups[reason], "models": count}
        for reason, count in sorted(configs.items(), key=lambda pair: (-groups[pair[0]], -pair[1], pair[0]))
    ]


def spread(result: Result, name: str) -> dict[str, Any] | None:
    """Return how a figure of the chosen models is spread over groups, and its mean by the rows that it is of."""
    chosen = result.chosen
    values = chosen[name].to_numpy()
    weights = chosen["rows" if name == "loss" else "held_rows"].to_numpy()
    there = np.isfinite(values) & (weights > 0)
    if not there.any():
        return None
    return {
        "metric": name,
        "groups": int(there.sum()),
        "min": float(values[there].min()),
        "median": float(np.median(values[there])),
        "max": float(values[there].max()),
        "mean_by_rows": float(np.average(values[there], weights=weights[there])),
    }


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `figures` found, for people."""
    without = told["groups_without_model"]
    gaps = f", {without:,} of them without a model" if without else ""
    yield f"groups    {told['groups']:,} by {', '.join(told['by'])}{gaps}"
    yield f"configs   {told['configs']:,} for each"
    yield f"rows      {told['rows']:,}"
    yield from _failures(told)
    found = told["score"] or told["loss_spread"]
    if found is not None:
        yield _spread_line(found)
        missing = told["groups"] - without - found["groups"]
        if missing:
            yield f"          {missing:,} of the models chosen by their training loss: none of their rows were held out"
    chosen = told["chosen"]
    if told["configs"] > 1:
        for place, each in enumerate(chosen[:_FEW]):
            groups = "1 group" if each["groups"] == 1 else f"{each['groups']:,} groups"
            yield f"{'' if place else 'chosen':<10}{Choice(each['config'], each['params'])} for {groups}"
        if len(chosen) > _FEW:
            rest = sum(each["groups"] for each in chosen[_FEW:])
            yield f"{'':<10}{len(chosen) - _FEW:,} other configs for {rest:,} groups"


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
        yield f"{'':<10}and {len(found) - _FEW:,} more reasons; see groups show --csv"


def _spread_line(found: Mapping[str, Any]) -> str:
    metric = found["metric"].removeprefix("held_")
    shown = {
        name: f"{found[name]:.5g}" if metric == "loss" else show_score(found[name], metric)
        for name in ("min", "median", "max", "mean_by_rows")
    }
    where = "loss" if metric == "loss" else "held out"
    name = "" if metric == "loss" else f"{name_of(metric)} "
    return (
        f"{where:<10}{name}from {shown['min']} to {shown['max']}, median {shown['median']};"
        f" mean over rows {shown['mean_by_rows']}"
    )


def best(result: Result) -> list[dict[str, Any]]:
    """Return a row for each group, the largest first: of the config chosen, or of a failed one where none was."""
    frame, chosen = result.frame, result.chosen
    first = np.unique(frame["group"].to_numpy(), return_index=True)[1]
    bare = frame.take(pa.array(first))
    bare = bare.filter(pc.invert(pc.is_in(bare["group"], chosen["group"].combine_chunks())))
    found = pa.concat_tables([chosen, bare])
    order = np.lexsort([found["group"].to_numpy(), -found["rows"].to_numpy()])
    return _rows(result, found.take(pa.array(order)), set(chosen["group"].to_pylist()))


def of_group(result: Result, text: str) -> list[dict[str, Any]]:
    """Return a row for each config of a group."""
    rows = result.frame.filter(pc.equal(result.frame["text"], text))
    if not len(rows):
        raise UsageError(result.missing(text))
    chosen = result.chosen
    number = rows["group"][0].as_py()
    config = chosen.filter(pc.equal(chosen["group"], number))["config"].to_pylist()
    found = _rows(result, rows, {number})
    return [{**row, "chosen": row["config"] in config} for row in found]


def _rows(result: Result, table: pa.Table, with_model: set[int]) -> list[dict[str, Any]]:
    index = result.registry.index
    kept = ("rows", "held_rows", "config", "loss", "held_loss", index.score, "epochs", "status", "reason")
    found = []
    for row in table.to_pylist():
        told = {"group": row["text"]} | {name: row[name] for name in kept}
        told["params"] = dict(index.configs[row["config"]])
        if row["group"] not in with_model:
            told |= {"config": None, "params": None}
        found.append(told)
    return found


def table(
    rows: Sequence[Mapping[str, Any]], result: Result, *, most: int | None = None, chosen: bool = False
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
    score = result.registry.index.score
    head = [
        "config" if chosen else "group",
        "rows",
        "held out",
        "loss",
        "held loss",
        name_of(score.removeprefix("held_")),
        "chosen",
    ]
    cells = [head]
    for row in rows[:most]:
        figures = [_number(row["loss"]), _number(row["held_loss"]), show_score(row[score], score)]
        told = "" if row["params"] is None else str(Choice(row["config"], row["params"])) or "as given"
        if chosen:
            first, last = told, row["reason"] or ("chosen" if row["chosen"] else "")
        else:
            first, last = row["group"], told or row["reason"]
        cells.append([first, f"{row['rows']:,}", f"{row['held_rows']:,}", *figures, last])
    head[-1] = "" if chosen else "config"
    yield from _aligned(cells)
    if len(rows) > most:
        yield f"… and {len(rows) - most:,} smaller groups; --lines {len(rows)} lists all, --csv FILE writes them"


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


def write_csv(result: Result, path: Path, *, group: str | None = None) -> int:
    """Write the frame, of all groups or one, and return how many rows it has."""
    frame = result.frame
    if group is not None:
        frame = frame.filter(pc.equal(frame["text"], group))
        if not len(frame):
            raise UsageError(result.missing(group))
    with atomic_path(path) as temporary:
        pyarrow.csv.write_csv(frame, temporary)
    return len(frame)


def unanswered(path: Path) -> int:
    """Return how many predictions of a file are null, from what the file says of itself."""
    noted = pq.read_metadata(path)
    names = [noted.schema.column(place).path for place in range(noted.num_columns)]
    at = names.index("prediction")
    return sum(noted.row_group(group).column(at).statistics.null_count for group in range(noted.num_row_groups))
