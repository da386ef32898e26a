"""What a model on disk will take, told before it is trained: its size, what of it stays in memory, the traffic of an epoch.

Where the directory is prepared for the data, features are counted already; elsewhere they are estimated from a sample
of the blocks (`penstock.bigmodel.survey`). Nothing is written.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from penstock.bigmodel.advice import warnings_of
from penstock.bigmodel.directory import held
from penstock.bigmodel.storage import Storage
from penstock.bigmodel.survey import Counts, survey
from penstock.bigmodel.traffic import Traffic, expect
from penstock.bigmodel.training import KINDS
from penstock.blocks.base import BlockSource
from penstock.budget import Budget, show_bytes, show_share
from penstock.config import LOSSES
from penstock.errors import DataError, UnknownOptionError, UsageError
from penstock.training import Columns

_NUMBERS_BYTES, _FOUND_BYTES = 4, 20
"""What preparing writes to disk for a while: a number for each entry beside its feature, and a record of each feature."""


@dataclass(frozen=True, slots=True)
class ModelExplanation:
    """What is expected of a model on disk.

    Attributes
    ----------
    data, label, model, folder, optimizer : str
        What was explained.
    counts : Counts
        Rows, entries and features; ``counts.exact`` says whether counted or estimated.
    prepared : bool
        Whether the directory has them counted already.
    model_bytes, full_bytes : int
        Features that occur, with the optimiser's state, in pages; and what the full dimension would take.
    memory, model_memory : int
        Bytes for rows and for the model.
    hot_bytes : int
        Pages that stay in memory.
    traffic : Traffic
        An epoch's hit rate, and what it reads and writes.
    pages_disk_bytes, scratch_bytes : int
        What pages take on disk at most, each having a place in two files; what preparing takes beside for a while.
    warnings : tuple of str
        What to look out for.
    seconds : float
        How long this took.
    """

    data: str
    label: str | None
    model: str
    folder: str
    optimizer: str
    counts: Counts
    prepared: bool
    model_bytes: int
    full_bytes: int
    memory: int
    model_memory: int
    hot_bytes: int
    traffic: Traffic
    pages_disk_bytes: int
    scratch_bytes: int
    warnings: tuple[str, ...]
    seconds: float

    @property
    def disk_bytes(self) -> int:
        """What the directory will take: the copy of the rows, the index map, and pages."""
        return self.counts.rows_bytes + self.counts.map_bytes + self.pages_disk_bytes

    @property
    def epoch_bytes(self) -> int:
        """What an epoch reads and writes together."""
        return self.traffic.rows_read + self.traffic.pages_read + self.traffic.pages_written

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        counts, traffic = self.counts, self.traffic
        return {
            "data": self.data,
            "label": self.label,
            "model": self.model,
            "model_dir": self.folder,
            "optimizer": self.optimizer,
            "exact": counts.exact,
            "prepared": self.prepared,
            "sample_share": counts.share,
            "rows": counts.rows,
            "entries": counts.entries,
            "features": counts.features,
            "dimension": counts.dimension,
            "memory_bytes": self.memory,
            "model_memory_bytes": self.model_memory,
            "model_bytes": self.model_bytes,
            "full_model_bytes": self.full_bytes,
            "hot_features": traffic.hot,
            "hot_bytes": self.hot_bytes,
            "hot_share": traffic.hot_share,
            "repeated_share": traffic.repeated_share,
            "hit_rate": traffic.hit_rate,
            "epoch": {
                "rows_read_bytes": traffic.rows_read,
                "pages_read_bytes": traffic.pages_read,
                "pages_written_bytes": traffic.pages_written,
                "bytes": self.epoch_bytes,
            },
            "disk": {
                "rows_bytes": counts.rows_bytes,
                "map_bytes": counts.map_bytes,
                "pages_bytes": self.pages_disk_bytes,
                "bytes": self.disk_bytes,
                "while_preparing_bytes": self.scratch_bytes,
            },
            "warnings": list(self.warnings),
            "seconds": self.seconds,
        }

    def lines(self) -> list[str]:
        """Return the explanation for people."""
        counts, traffic = self.counts, self.traffic
        about = "" if counts.exact else "about "
        cells = "its weight" if self.optimizer == "sgd" else "its weight and AdaGrad's sum of squares"
        if self.prepared:
            how = f"counted when {self.folder} was prepared"
        elif counts.exact:
            how = "counted in all blocks"
        else:
            how = f"an estimate from {show_share(counts.share)} of the data"
        told = [
            self.data,
            f"  {about}{counts.rows:,} rows, {counts.entries / max(1, counts.rows):,.3g} features to a row;"
            f" {about}{counts.features:,} different ones ({how})",
            "",
            f"The model in {self.folder} ({self.model}, {self.optimizer})",
            f"  {about}{show_bytes(self.model_bytes)}: the features that occur, each with {cells}",
            f"  {show_bytes(self.full_bytes)} it would be with all {counts.dimension:,} features that there could be",
        ]
        if traffic.whole:
            told.append(f"  All of it stays in {show_bytes(self.model_memory)} of memory: hit rate 100%")
        else:
            told += [
                f"  Hot: {about}{traffic.hot:,} features ({show_bytes(self.hot_bytes)}) stay in {show_bytes(self.model_memory)}"
                f" of memory; {show_share(traffic.hot_share)} of the entries fall on them",
                f"  Expected hit rate: {show_share(traffic.hit_rate)} of the pages that chunks of rows want",
            ]
        rows = f"{show_bytes(traffic.rows_read)} of rows" if traffic.rows_read else "no rows, which stay in memory"
        told += [
            "",
            f"An epoch: about {show_bytes(self.epoch_bytes)}",
            f"  reads {rows}, and {show_bytes(traffic.pages_read)} of pages; writes {show_bytes(traffic.pages_written)} of pages",
            "",
            f"Disk: up to {show_bytes(self.disk_bytes)}",
            f"  {show_bytes(counts.rows_bytes)} for a copy of the rows, {show_bytes(counts.map_bytes)} for the index map, up to"
            f" {show_bytes(self.pages_disk_bytes)} for pages in two files",
        ]
        if not self.prepared:
            told.append(f"  While it is prepared, up to {show_bytes(self.scratch_bytes)} more")
        return [*told, *(line for text in self.warnings for line in ("", f"warning: {text}"))]

    def __str__(self) -> str:
        return "\n".join(self.lines())


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
) -> ModelExplanation:
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
    >>> from penstock.blocks import open
    >>> rows = {"indices": [[3, 10**9], [5]] * 50, "values": [[1.0, 0.5], [1.0]] * 50, "clicked": [1, 0] * 50}
    >>> found = explain_model(open(pa.table(rows)), "ctr.model", columns=Columns("clicked"))
    >>> found.counts.features, found.model_bytes, found.full_bytes, found.traffic.hit_rate
    (3, 4096, 4000000004, 1.0)
    """
    began = time.perf_counter()
    if model not in LOSSES:
        raise UnknownOptionError.of("model", model, KINDS)
    if model not in KINDS:
        raise UsageError(f"a {model} model cannot live on disk; choose one of: {', '.join(KINDS)}")
    storage = storage or Storage()
    asked = (columns or Columns()).encoder(source, wide=True)
    if not asked.sparse:
        raise UsageError(
            f"{source.name} has {asked.width} dense features, a model that fits in memory; a model on disk is for sparse"
            " rows (lists of indices and values, LibSVM text, or columns to hash): explain it without --model-dir"
        )
    if dimension is not None:
        fixed = sum(part.width or 0 for part in asked.parts if part.kind != "pairs")
        if dimension <= fixed and asked.parts[-1].kind == "pairs":
            raise UsageError(f"dimension={dimension} is too few for these columns; choose {fixed + 1} or more")
        asked = asked.with_width(dimension)
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no rows; there is nothing to explain")
    there = held(folder, source, kind="linear", asked=asked)
    counts = survey(source, asked, seed=seed) if there.layout is None else Counts.of(there.layout)
    if not counts.entries:
        raise DataError(f"{source.name} has no features in any row of the sample; there is nothing to explain")
    budget = Budget.parse(memory)
    rows = budget.resolve(counts.rows_bytes)
    traffic = expect(counts, storage, memory=rows, prepare_memory=(budget.bytes or 1 << 28) + storage.least_memory)
    model_bytes = storage.model_bytes(counts.features)
    warnings = warnings_of(source, asked, counts, storage, traffic, seed=seed)
    return ModelExplanation(
        data=source.name,
        label=asked.label,
        model=model,
        folder=os.fspath(folder),
        optimizer=storage.optimizer,
        counts=counts,
        prepared=there.layout is not None,
        model_bytes=model_bytes,
        full_bytes=counts.dimension * storage.cells * 4,
        memory=rows,
        model_memory=storage.memory(counts.features),
        hot_bytes=model_bytes if traffic.whole else storage.model_bytes(traffic.hot) if traffic.hot else 0,
        traffic=traffic,
        pages_disk_bytes=2 * model_bytes,
        scratch_bytes=counts.entries * (8 + _NUMBERS_BYTES) + counts.features * _FOUND_BYTES,
        warnings=tuple(text for text in (there.warning, *warnings) if text is not None),
        seconds=time.perf_counter() - began,
    )
