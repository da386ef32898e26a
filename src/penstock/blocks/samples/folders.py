"""What the readers of samples share: the files of a folder, its splits, small JSON files, and batches of bounded size."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from penstock.blocks.storage import open_file
from penstock.errors import CorruptFileError, SourceNotFoundError, UsageError, some_of
from penstock.messages import Text, Use

BATCH_BYTES = 4 << 20
BATCH_ROWS = 1024
_T = TypeVar("_T")


def files_below(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder at and below a path, in order, with the names of its visible files, in order."""

    def failed(error: OSError) -> None:
        raise SourceNotFoundError(f"{error.filename} cannot be listed: {error.strerror}") from error

    for folder, inner, names in os.walk(path, followlinks=True, onerror=failed):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "_")))
        yield folder, sorted(name for name in names if not name.startswith((".", "_")))


def choose_split(splits: Mapping[str, Any], split: str | None, *, place: str) -> str:
    """Return the split asked for, or the only one there is."""
    names = list(splits)
    if split is not None:
        if split not in splits:
            raise UsageError(f"{place} has no split {split!r}; it has: {some_of(names)}")
        return split
    if len(names) != 1:
        raise UsageError(
            f"{place} holds several splits: {some_of(names)}",
            fixes=[Text("name one with ", Use("split"))],
        )
    return names[0]


def read_json(path: str) -> Any:
    """Return what a small JSON file says."""
    file = open_file(path)
    try:
        return json.loads(file.read_at(0, file.size))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is damaged: it is not JSON ({error})") from error
    finally:
        file.close()


def batched(items: Iterable[_T], *, weigh: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Yield items in lists of at most `BATCH_ROWS` that weigh at most `BATCH_BYTES`, or of one that weighs more.

    Examples
    --------
    >>> list(batched([1, BATCH_BYTES, 2, 3], weigh=lambda nbytes: nbytes))
    [[1], [4194304], [2, 3]]
    """
    held: list[_T] = []
    nbytes = 0
    for item in items:
        weight = weigh(item)
        if held and (nbytes + weight > BATCH_BYTES or len(held) == BATCH_ROWS):
            yield held
            held, nbytes = [], 0
        held.append(item)
        nbytes += weight
    if held:
        yield held
