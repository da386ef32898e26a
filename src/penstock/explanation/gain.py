"""What converting to the fast layout would gain, and the line that does it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.blocks.arrow import layout_of
from penstock.blocks.base import BlockSource
from penstock.blocks.conversion import BLOCK_SIZE
from penstock.command_lines import shell_line
from penstock.config import Config
from penstock.explanation.cost import Setting, read_seconds, strategy_costs
from penstock.explanation.explanation import StrategyCost
from penstock.explanation.speed import Speeds
from penstock.storage_timer import KB, MB
from penstock.training import Columns

EPOCHS = Config().epoch_limit
"""What a training is taken to have where costs are weighed against one another."""


@dataclass(frozen=True, slots=True)
class ConversionGain:
    """What the fast layout would gain: an epoch of corgipile now and from the converted file, and the first one of each.

    ``worth_it`` says whether a training of the default number of epochs would take a fifth less, converting included, or
    shuffle better; it never is where all rows fit in memory anyhow.
    """

    seconds_now: float
    seconds_then: float
    first_now: float
    first_then: float
    convert_seconds: float
    bytes_then: int
    worth_it: bool
    command: str

    @property
    def target(self) -> str:
        """The file that the command writes."""
        return shlex.split(self.command)[3]

    @property
    def cost(self) -> StrategyCost:
        """The cost of corgipile from the converted file, with converting as its preparation."""
        return StrategyCost(
            "corgipile", self.seconds_then, self.first_then, self.convert_seconds, disk_bytes=self.bytes_then
        )


def conversion_gain(
    source: BlockSource,
    columns: Columns,
    data: str,
    *,
    setting: Setting,
    speeds: Speeds,
    costs: Sequence[StrategyCost],
    block_bytes: int,
) -> ConversionGain | None:
    """Say what the fast layout would gain; None where the data are in it, or no copy could be tried."""
    if speeds.stored.waits or speeds.packed is None or layout_of(source.schema).get("columns"):
        return None
    blocks = max(1, int(speeds.packed.stored_bytes * setting.rows / block_bytes))
    then = strategy_costs(
        replace(setting, blocks=blocks, units=0),
        replace(speeds, stored=speeds.packed, decode=speeds.packed.shuffled.cpu),
    )
    now = next(p for p in costs if p.strategy == "corgipile")
    after = next(p for p in then if p.strategy == "corgipile")
    apart = setting.units and not setting.base_plan.kept_bytes
    mixes_better = bool(apart) and setting.clustering is not None and setting.clustering.clustered
    resident = setting.base_plan.resident
    seconds = _convert_seconds(setting, speeds)
    faster = seconds + after.total(EPOCHS) < 0.8 * now.total(EPOCHS)
    worth = not resident and (mixes_better or faster)
    return ConversionGain(
        seconds_now=now.seconds,
        seconds_then=after.seconds,
        first_now=now.first_seconds,
        first_then=after.first_seconds,
        convert_seconds=seconds,
        bytes_then=int(speeds.packed.stored_bytes * setting.rows),
        worth_it=worth,
        command=conversion_line(data, columns, block_bytes),
    )


def _convert_seconds(setting: Setting, speeds: Speeds) -> float:
    """Return the seconds of converting: rows are read and decoded in order, and written once."""
    assert speeds.packed is not None
    rows, written = setting.rows, speeds.packed.stored_bytes * setting.rows
    # A shuffled copy writes every row twice, to a bucket and from there to its place.
    writing = (speeds.copy / 2 if speeds.copy is not None else 10 * speeds.packed.shuffled.wall) * rows
    if setting.curve is not None and not setting.cached(2 * written):
        writing = max(writing, written / setting.curve.sequential_many)
    return speeds.decode * rows + read_seconds(setting, speeds.stored, random=False) + writing


def conversion_line(data: str, columns: Columns, block_bytes: int) -> str:
    """Return the line that converts the data, ready for a shell.

    Examples
    --------
    >>> conversion_line("my clicks.csv", Columns(label="clicked"), BLOCK_SIZE)
    "penstock convert 'my clicks.csv' 'my clicks.arrow' --label clicked"
    """
    stem = data.rstrip("/").rsplit("/", 1)
    target = "/".join([*stem[:-1], stem[-1].split("*")[0].rsplit(".", 1)[0] or "data"]) + ".arrow"
    if target == data:
        target = target[: -len(".arrow")] + "-packed.arrow"
    options = column_options(columns)
    if block_bytes != BLOCK_SIZE:
        options["block_size"] = f"{block_bytes // KB}KiB" if block_bytes % MB else f"{block_bytes // MB}MiB"
    return shell_line(["penstock", "convert", data, target], options)


def column_options(columns: Columns) -> dict[str, Any]:
    """Return the options that name the columns."""
    named = {name: getattr(columns, name) for name in ("label", "weight", "features", "exclude", "hash")}
    return {name: value for name, value in named.items() if value}
