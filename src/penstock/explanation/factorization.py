"""What a factorization on disk will take, before it is trained: its size, what fits in memory, an epoch's traffic.

Users and items are counted in a sample of the blocks and extrapolated, or taken from the directory where it holds a model
of the same data. The pages that an epoch reads follow from the grid of its visits. Nothing is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import seeds
from penstock.bigmodel.checkpoint import directory_contents
from penstock.bigmodel.factor_learner import FactorConfig
from penstock.bigmodel.grid import FactorLayout, Grid, Shares, model_memory, planned
from penstock.bigmodel.keys import as_keys, hashed
from penstock.bigmodel.ratings import ROW_BYTES, Roles
from penstock.blocks.base import BlockSource
from penstock.budget import show_bytes
from penstock.checkpoint import held_out_share
from penstock.command_lines import shell_line
from penstock.errors import DataError
from penstock.explanation.explanation import Explanation, Section
from penstock.explanation.feature_counts import MOST_ENTRIES, extrapolate, sample_blocks, sampled_share
from penstock.explanation.model_on_disk import disk_cost, epoch_bytes, epoch_section, how_counted
from penstock.loader.holdout import SplitPart, chosen_share
from penstock.messages import Text
from penstock.parallel import in_order


def explain_factor(
    source: BlockSource,
    folder: str | os.PathLike[str],
    *,
    roles: Roles | None = None,
    config: FactorConfig | None = None,
) -> Explanation:
    """Say what a factorization on disk will take, without training it.

    Parameters
    ----------
    source : BlockSource
        The ratings.
    folder : path
        The model's directory; need not be there.
    roles : Roles
        Which columns are users, items and ratings.
    config : FactorConfig
        Of which rank, memory, seed and validation count here.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock import open
    >>> ratings = open(pa.table({"user": [1, 2, 1], "item": ["a", "b", "b"], "rating": [3.0, 4.0, 5.0]}))
    >>> explanation = explain_factor(ratings, "mf.model", config=FactorConfig(rank=8))
    >>> explanation.users, explanation.items, explanation.epoch["pages_read_bytes"]
    (2, 2, 0)
    """
    began = time.perf_counter()
    roles, config, name = roles or Roles(), config or FactorConfig(), os.fspath(folder)
    roles.require(source)
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no ratings; there is nothing to explain")
    directory = directory_contents(folder, source, kind="factor")
    warning, prepared = directory.warning, False
    if directory.header is not None and directory.header["roles"] != asdict(roles):
        names = ", ".join(Roles(**directory.header["roles"]).names)
        warning = (
            f"{name} holds a model of other columns of these data ({names}); training there begins anew and gives it up"
        )
    elif directory.header is not None:
        prepared, share, rows = True, 1.0, _all_ratings(source, directory.header)
        users, items = (int(directory.header["layout"][side]) for side in ("users", "items"))
    if not prepared:
        rows, users, items, share = _surveyed(source, roles, config)
    memory, raised = model_memory(config.memory, config.rank, users=users, items=items)
    layout, grid, frames = _planned(config.rank, users, items, memory=memory)
    page, whole = layout.page_floats * 4, grid.buckets == 1
    # A page that is there when an epoch ends is still there when the next one wants it if that is soon enough.
    kept = frames * frames / layout.pages
    pages_read = 0 if whole else round(grid.page_reads() - kept) * page
    # Every page that was there has changed by the time it leaves, or by the checkpoint.
    pages_written = layout.nbytes if whole else round(grid.page_reads()) * page
    # Every epoch reads the copy of the ratings, to learn from them or to measure.
    ratings, pages = ROW_BYTES * rows, 2 * layout.nbytes
    epoch = epoch_bytes(ratings, pages_read, pages_written)
    facts = {
        "data": source.name,
        "model": "factor",
        "model_dir": name,
        **asdict(roles),
        "exact": share >= 1,
        "prepared": prepared,
        "sample_share": share,
        "rows": rows,
        "users": layout.users,
        "items": layout.items,
        "rank": layout.rank,
        "model_memory_bytes": memory,
        "model_bytes": layout.nbytes,
        "user_parts": grid.user_parts,
        "item_parts": grid.item_parts,
        "epoch": epoch,
        "disk": {"rows_bytes": ratings, "pages_bytes": pages, "bytes": ratings + pages},
    }
    about = "" if share >= 1 else "about "
    how = how_counted(share, prepared and f"the model in {name} was begun")
    fits = (
        f"All of it stays in {show_bytes(memory)} of memory"
        if whole
        else f"{show_bytes(memory)} of memory hold a part of it: {grid.user_parts:,} parts of users by {grid.item_parts:,} of"
        f" items, visited pair by pair; an epoch reads {pages_read / layout.nbytes:,.1f} times its size"
    )
    sections = (
        Section(
            source.name,
            [f"{about}{rows:,} ratings by {about}{layout.users:,} users of {about}{layout.items:,} items ({how})"],
        ),
        Section(
            f"The model in {name} (factor, rank {layout.rank})",
            [
                f"{about}{show_bytes(layout.nbytes)}: the factors and the bias of each, in pages of {show_bytes(page)}",
                fits,
            ],
        ),
        epoch_section(epoch, "ratings"),
        Section(
            f"Disk: up to {show_bytes(ratings + pages)}, and the keys of users and items",
            [f"{show_bytes(ratings)} for a copy of the ratings, up to {show_bytes(pages)} for pages in two files"],
        ),
    )
    options = {
        "model": "factor",
        **asdict(roles),
        "rank": config.rank,
        "model_dir": name,
        "model_memory": config.memory,
    }
    return Explanation(
        facts,
        (disk_cost(memory, ratings + pages),),
        sections,
        command=shell_line(["penstock", "train", source.name], options),
        notices=tuple(Text(each) for each in (raised, warning) if each is not None),
        seconds=time.perf_counter() - began,
    )


def _planned(rank: int, users: int, items: int, *, memory: int) -> tuple[FactorLayout, Grid, int]:
    """Return where users and items would lie, how they would be visited, and the pages that memory holds.

    What training refuses is refused.
    """
    layout = planned(rank, users, items, memory=memory)
    page, pool = layout.page_floats * 4, Shares.of(memory).pool
    frames = min(layout.pages, pool // page)
    return layout, Grid.plan(layout, frames=frames), frames


def _all_ratings(source: BlockSource, header: Mapping[str, Any]) -> int:
    """Return how many ratings there are: a model counts those that it learns from."""
    if source.exact_rows:
        return int(source.block_rows.sum())
    return round(int(header["rows"]) / (1 - held_out_share(header)))


def _surveyed(source: BlockSource, roles: Roles, config: FactorConfig) -> tuple[int, int, int, float]:
    """Return how many ratings there are, how many users and items to learn, and the share of the data looked at."""
    keys: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []
    done: list[int] = []
    names = [roles.user, roles.item]
    rows = 0
    held = chosen_share(config.validation, int(source.block_rows.sum()), tested=False, stopping=False)
    part = SplitPart(held, config.seed, held_out=False) if held else None

    def read(block: int) -> tuple[int, int, list[NDArray[np.uint64]]]:
        batch = source.read(block, names)
        columns = [hashed(as_keys(batch.column(name), name, place=source.name), 0) for name in names]
        if part is not None:
            kept = part.has(np.int64(block), np.arange(len(batch)))
            columns = [column[kept] for column in columns]
        return block, len(batch), columns

    chosen = sample_blocks(source, seeds.generator(config.seed, "survey"))
    with closing(in_order(read, chosen, threads=source.threads)) as blocks:
        for block, count, (users, items) in blocks:
            keys.append((users, items))
            done.append(block)
            rows += count
            if rows >= MOST_ENTRIES:
                break
    share = sampled_share(source, done, rows)
    many = [
        extrapolate(np.concatenate(side), rows, share=share, dimension=0, known=False).features
        for side in zip(*keys, strict=True)
    ]
    return round(rows / share), many[0], many[1], share
