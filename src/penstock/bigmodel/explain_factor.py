"""What a factorisation on disk will take, told before it is trained: its size, what fits in memory, an epoch's traffic.

Users and items are counted in a sample of the blocks and extrapolated, or taken from the directory where it holds a model
of the same data. The pages that an epoch reads follow from the grid of its visits. Nothing is written.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.bigmodel.directory import held
from penstock.bigmodel.factor_training import FactorConfig, Shares, planned
from penstock.bigmodel.grid import Grid, Layout
from penstock.bigmodel.keys import as_keys, hashed
from penstock.bigmodel.ratings import ROW_BYTES, Roles
from penstock.bigmodel.survey import MOST_ENTRIES, counted, draw
from penstock.blocks.base import BlockSource
from penstock.budget import Budget, show_bytes, show_share
from penstock.errors import DataError
from penstock.parallel import in_order


@dataclass(frozen=True, slots=True)
class FactorExplanation:
    """What is expected of a factorisation on disk.

    Attributes
    ----------
    data, folder : str
        What was explained.
    roles : Roles
        The columns.
    rows : int
        Ratings.
    layout : Layout
        Users and items, and the pages that they take.
    grid : Grid
        The parts that they are cut into.
    memory : int
        Bytes for pages and ratings.
    share : float
        The share of the data that was looked at; with 1, users and items are counts.
    prepared : bool
        Whether the directory has them counted already.
    pages_read, pages_written : int
        Bytes in an epoch after the first, and at its checkpoint.
    warnings : tuple of str
        What to look out for.
    seconds : float
        How long this took.
    """

    data: str
    folder: str
    roles: Roles
    rows: int
    layout: Layout
    grid: Grid
    memory: int
    share: float
    prepared: bool
    pages_read: int
    pages_written: int
    warnings: tuple[str, ...]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether all pages stay in memory."""
        return self.grid.buckets == 1

    @property
    def ratings_bytes(self) -> int:
        """What the copy of the ratings takes, which every epoch reads."""
        return ROW_BYTES * self.rows

    @property
    def epoch_bytes(self) -> int:
        """What an epoch reads and writes together."""
        return self.ratings_bytes + self.pages_read + self.pages_written

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        layout, grid = self.layout, self.grid
        return {
            "data": self.data,
            "model": "factor",
            "model_dir": self.folder,
            **asdict(self.roles),
            "exact": self.share >= 1,
            "prepared": self.prepared,
            "sample_share": self.share,
            "rows": self.rows,
            "users": layout.users,
            "items": layout.items,
            "rank": layout.rank,
            "model_memory_bytes": self.memory,
            "model_bytes": layout.nbytes,
            "user_parts": grid.user_parts,
            "item_parts": grid.item_parts,
            "epoch": {
                "rows_read_bytes": self.ratings_bytes,
                "pages_read_bytes": self.pages_read,
                "pages_written_bytes": self.pages_written,
                "bytes": self.epoch_bytes,
            },
            "disk": {
                "rows_bytes": self.ratings_bytes,
                "pages_bytes": 2 * layout.nbytes,
                "bytes": self.ratings_bytes + 2 * layout.nbytes,
            },
            "warnings": list(self.warnings),
            "seconds": self.seconds,
        }

    def lines(self) -> list[str]:
        """Return the explanation for people."""
        layout, grid = self.layout, self.grid
        about = "" if self.share >= 1 else "about "
        how = "counted in all blocks" if self.share >= 1 else f"an estimate from {show_share(self.share)} of the data"
        if self.prepared:
            how = f"counted when the model in {self.folder} was begun"
        told = [
            self.data,
            f"  {about}{self.rows:,} ratings by {about}{layout.users:,} users of {about}{layout.items:,} items ({how})",
            "",
            f"The model in {self.folder} (factor, rank {layout.rank})",
            f"  {about}{show_bytes(layout.nbytes)}: the factors and the bias of each, in pages of"
            f" {show_bytes(4 * layout.page_floats)}",
        ]
        if self.whole:
            told.append(f"  All of it stays in {show_bytes(self.memory)} of memory")
        else:
            times = self.pages_read / layout.nbytes
            told.append(
                f"  {show_bytes(self.memory)} of memory hold a part of it: {grid.user_parts:,} parts of users by"
                f" {grid.item_parts:,} of items, visited pair by pair; an epoch reads {times:,.1f} times its size"
            )
        told += [
            "",
            f"An epoch: about {show_bytes(self.epoch_bytes)}",
            f"  reads {show_bytes(self.ratings_bytes)} of ratings, and {show_bytes(self.pages_read)} of pages; writes"
            f" {show_bytes(self.pages_written)} of pages",
            "",
            f"Disk: up to {show_bytes(self.ratings_bytes + 2 * layout.nbytes)}, and the keys of users and items",
            f"  {show_bytes(self.ratings_bytes)} for a copy of the ratings, up to {show_bytes(2 * layout.nbytes)} for pages in"
            " two files",
        ]
        return [*told, *(line for text in self.warnings for line in ("", f"warning: {text}"))]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def explain_factor(
    source: BlockSource,
    folder: str | os.PathLike[str],
    *,
    roles: Roles | None = None,
    config: FactorConfig | None = None,
) -> FactorExplanation:
    """Say what a factorisation on disk will take, without training it.

    Parameters
    ----------
    source : BlockSource
        The ratings.
    folder : path
        The model's directory; need not be there.
    roles : Roles
        Which columns are users, items and ratings.
    config : FactorConfig
        Of which rank, memory and seed count here.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock.blocks import open
    >>> ratings = open(pa.table({"user": [1, 2, 1], "item": ["a", "b", "b"], "rating": [3.0, 4.0, 5.0]}))
    >>> found = explain_factor(ratings, "mf.model", config=FactorConfig(rank=8))
    >>> found.layout.users, found.layout.items, found.whole, found.pages_read
    (2, 2, True, 0)
    """
    began = time.perf_counter()
    roles, config = roles or Roles(), config or FactorConfig()
    roles.require(source)
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no ratings; there is nothing to explain")
    there = held(folder, source, kind="factor")
    warning, prepared = there.warning, False
    if there.header is not None and there.header["roles"] != asdict(roles):
        warning = (
            f"{folder} holds a model of other columns of these data ({', '.join(Roles(**there.header['roles']).names)});"
            " training there begins anew and gives it up"
        )
    elif there.header is not None:
        prepared, share, rows = True, 1.0, int(there.header["rows"])
        users, items = (int(there.header["layout"][name]) for name in ("users", "items"))
    if not prepared:
        rows, users, items, share = _surveyed(source, roles, config.seed)
    memory = Budget.parse(config.memory).resolve((users + items) * (config.rank + 1) * 4)
    layout, grid, frames = _planned(config.rank, users, items, memory=memory)
    page, whole = layout.page_floats * 4, grid.buckets == 1
    # A page that is there when an epoch ends is still there when the next one wants it if that is soon enough.
    kept = frames * frames / layout.pages
    return FactorExplanation(
        data=source.name,
        folder=os.fspath(folder),
        roles=roles,
        rows=rows,
        layout=layout,
        grid=grid,
        memory=memory,
        share=share,
        prepared=prepared,
        pages_read=0 if whole else round(grid.page_reads() - kept) * page,
        # Every page that was there has changed by the time it leaves, or by the checkpoint.
        pages_written=layout.nbytes if whole else round(grid.page_reads()) * page,
        warnings=() if warning is None else (warning,),
        seconds=time.perf_counter() - began,
    )


def _planned(rank: int, users: int, items: int, *, memory: int) -> tuple[Layout, Grid, int]:
    """Return where users and items would lie, how they would be visited, and the pages that memory holds.

    What training refuses is refused.
    """
    layout = planned(rank, users, items, memory=memory)
    page, pool = layout.page_floats * 4, Shares.of(memory).pool
    frames = min(layout.pages, pool // page)
    return layout, Grid.plan(layout, frames=frames), frames


def _surveyed(source: BlockSource, roles: Roles, seed: int) -> tuple[int, int, int, float]:
    """Return how many ratings, users and items there are, and the share of the data that was looked at."""
    found: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []
    names = [roles.user, roles.item]
    rows = stored = 0
    sizes = source.block_bytes

    def read(block: int) -> tuple[int, list[NDArray[np.uint64]]]:
        batch = source.read(block, names)
        return block, [hashed(as_keys(batch.column(name), name, place=source.name), 0) for name in names]

    chosen = draw(source, seeds.generator(seed, "survey"))
    with closing(in_order(read, chosen, threads=source.threads)) as blocks:
        for block, (users, items) in blocks:
            found.append((users, items))
            rows, stored = rows + len(users), stored + int(sizes[block])
            if rows >= MOST_ENTRIES:
                break
    share = 1.0 if len(found) == len(sizes) else min(stored / max(1, int(sizes.sum())), 1.0)
    if share < 1 and source.exact_rows:
        share = rows / int(source.block_rows.sum())
    many = [
        counted(np.concatenate(keys), rows, share=share, dimension=0, known=False).features
        for keys in zip(*found, strict=True)
    ]
    return round(rows / share), many[0], many[1], share
