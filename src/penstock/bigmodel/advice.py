"""What to be warned of before a model on disk is trained, and what would help."""

from __future__ import annotations

from dataclasses import replace

from penstock.bigmodel.storage import Storage
from penstock.bigmodel.survey import Counts, together
from penstock.bigmodel.traffic import Traffic
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.budget import show_share
from penstock.errors import BudgetError
from penstock.loader.plan import round_up

# Below this share of the entries, features that stay in memory do not carry an epoch.
_FEW_HOT = 0.5
# From this share on, entries that may need a page from anywhere do weigh on it.
_MANY_REPEATED = 0.2
# Features that come again with the same others so often find their pages together.
_COMPANY = 0.25


def warnings_of(
    source: BlockSource, asked: Encoder, counts: Counts, storage: Storage, traffic: Traffic, *, seed: int = 0
) -> list[str]:
    """Return what to be warned of: that nothing in the data tells where to put which feature.

    Features that occur once lie beside their row's others, frequent ones stay in memory, and those that occur together
    lie together. Where most are none of these, each wants a page from anywhere.
    """
    if traffic.whole or traffic.hot_share >= _FEW_HOT or traffic.repeated_share < _MANY_REPEATED:
        return []
    if together(source, asked, seed=seed) >= _COMPANY:
        return []
    fits = _fitting(storage, counts.features)
    many = f"2^{fits}" if fits else "fewer"
    if any(part.kind == "hash" for part in asked.parts):
        fewer = f"hash to fewer features (--hash COLUMN:{many if fits else '2^BITS'} fits in this memory)"
    else:
        fewer = f"hash the indices to fewer features beforehand ({many} of them fit in this memory)"
    return [
        "no layout will help here: features occur about equally often and in no company, so that nothing tells which ones to"
        f" put together. Expected hit rate: {show_share(traffic.hit_rate)}; {show_share(traffic.hot_share)} of the entries fall"
        f" on features that stay in memory, and {show_share(traffic.repeated_share)} on others that rows from everywhere share,"
        f" so nearly every row waits for pages from the disk. Give the model more memory (--model-memory"
        f" {_enough(counts, storage)} holds all of it), or {fewer}."
    ]


def _enough(counts: Counts, storage: Storage) -> str:
    """Return the memory that holds all pages, as a user would give it."""
    least, most = storage.model_bytes(counts.features), 1 << 50
    while most - least > 100_000:
        middle = (least + most) // 2
        whole = _whole(replace(storage, model_memory=middle), counts.features)
        least, most = (least, middle) if whole else (middle, most)
    return round_up(most)


def _fitting(storage: Storage, features: int) -> int:
    """Return the power of two of features whose pages all fit in the memory given; 0 if none does."""
    given = replace(storage, model_memory=storage.memory(features))
    return next((bits for bits in range(features.bit_length(), 0, -1) if _whole(given, 1 << bits)), 0)


def _whole(storage: Storage, features: int) -> bool:
    try:
        return storage.pool_memory(features) >= storage.model_bytes(features)
    except BudgetError:
        return False
