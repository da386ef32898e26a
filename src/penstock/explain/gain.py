"""What converting to the fast layout would gain, and the line that does it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.blocks.arrow import layout_of
from penstock.blocks.base import BlockSource
from penstock.blocks.conversion import BLOCK_SIZE
from penstock.explain.clustering import Clustering
from penstock.explain.cost import Prediction, Setting, predict
from penstock.explain.reads import KB, MB
from penstock.explain.speed import Speeds
from penstock.training import Columns


@dataclass(frozen=True, slots=True)
class Converting:
    """What the fast layout would gain.

    Attributes
    ----------
    seconds_now, seconds_then : float
        An epoch of corgipile now, and from the converted file.
    first_now, first_then : float
        The same of the first epoch.
    bytes_then : int
        The size of that file.
    worth_it : bool
        Whether an epoch would take a fifth less or shuffle better, and not all rows fit in memory anyhow.
    command : str
        The line to run.
    """

    seconds_now: float
    seconds_then: float
    first_now: float
    first_then: float
    bytes_then: int
    worth_it: bool
    command: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)


def converting(
    source: BlockSource,
    columns: Columns,
    data: str,
    *,
    setting: Setting,
    speeds: Speeds,
    predictions: Sequence[Prediction],
    clustering: Clustering | None,
    block_bytes: int,
) -> Converting | None:
    """Say what the fast layout would gain; None where the data are in it, or no copy could be tried."""
    if speeds.stored.waits or speeds.packed is None or layout_of(source.schema).get("columns"):
        return None
    blocks = max(1, int(speeds.packed.stored_bytes * setting.rows / block_bytes))
    then = predict(
        replace(setting, blocks=blocks, units=0),
        replace(speeds, stored=speeds.packed, decode=speeds.packed.shuffled.cpu),
    )
    now = next(p for p in predictions if p.strategy == "corgipile")
    after = next(p for p in then if p.strategy == "corgipile")
    mixes_better = bool(setting.units) and clustering is not None and clustering.clustered
    resident = setting.plans["corgipile"].resident
    worth = not resident and (mixes_better or after.seconds < 0.8 * now.seconds)
    return Converting(
        seconds_now=now.seconds,
        seconds_then=after.seconds,
        first_now=now.first_seconds,
        first_then=after.first_seconds,
        bytes_then=int(speeds.packed.stored_bytes * setting.rows),
        worth_it=worth,
        command=convert_command(data, columns, block_bytes),
    )


def convert_command(data: str, columns: Columns, block_bytes: int) -> str:
    """Return the line that converts the data, ready for a shell.

    Examples
    --------
    >>> convert_command("my clicks.csv", Columns(label="clicked"), BLOCK_SIZE)
    "penstock convert 'my clicks.csv' 'my clicks.arrow' --label clicked"
    """
    stem = data.rstrip("/").rsplit("/", 1)
    target = "/".join([*stem[:-1], stem[-1].split("*")[0].rsplit(".", 1)[0] or "data"]) + ".arrow"
    if target == data:
        target = target[: -len(".arrow")] + "-packed.arrow"
    words = ["penstock", "convert", data, target, *column_words(columns)]
    if block_bytes != BLOCK_SIZE:
        words += ["--block-size", f"{block_bytes // KB}KiB" if block_bytes % MB else f"{block_bytes // MB}MiB"]
    return shlex.join(words)


def column_words(columns: Columns) -> list[str]:
    """Return the options that name the columns."""
    words: list[str] = []
    for name, value in (("--label", columns.label), ("--weight", columns.weight)):
        words += [name, value] if value else []
    for name, values in (("--features", columns.features), ("--exclude", columns.exclude)):
        words += [name, ",".join(values)] if values else []
    for spec in columns.hash:
        words += ["--hash", spec]
    return words
