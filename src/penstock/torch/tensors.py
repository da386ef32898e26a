"""Columns as tensors: without a copy where torch has the type, as lists where rows are unequal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.loader.transforms import cut_column
from penstock.records import Column, Ragged


def tensor(column: Column | torch.Tensor) -> Any:
    """Return a column as a tensor; ragged rows as a list of tensors, of ``str`` or of ``bytes``, objects as a list.

    Examples
    --------
    >>> tensor(np.zeros((2, 3), np.uint8)).dtype
    torch.uint8
    >>> tensor(Ragged.of(["a", "bc"]))
    ['a', 'bc']
    """
    if isinstance(column, torch.Tensor):
        return column
    if isinstance(column, Ragged):
        if column.kind != "list":
            return list(column)
        values = column.values[column.offsets[0] : column.offsets[-1]]
        return list(torch.split(_tensor(values), column.lengths.tolist()))
    return column.tolist() if column.dtype == object else _tensor(column)


def _tensor(values: NDArray[Any]) -> torch.Tensor:
    if values.dtype.kind in "mM":  # torch has no type for time: the number of units since 1970
        values = values.view(np.int64)
    return torch.from_numpy(values)


def cut_tensors(column: Column, size: int) -> list[Any]:
    """Return a column of several batches as that of each.

    They share memory, but neither a storage nor a version, as pieces cut by torch would: what is done to one in place says
    nothing of the others, and saving one saves no more.
    """
    plain = not isinstance(column, Ragged) and column.dtype.kind not in "mMO"
    return list(map(torch.from_numpy if plain else tensor, cut_column(column, size)))


def tensors(batch: Any) -> Any:
    """Return a batch, a dict or a tuple of columns, with tensors for columns."""
    if isinstance(batch, dict):
        return {name: tensor(column) for name, column in batch.items()}
    return tuple(tensor(column) for column in batch)


def pinned(value: Any) -> Any:
    """Return tensors, wherever they stand in dicts, tuples and lists, in page-locked memory."""
    if isinstance(value, torch.Tensor):
        return value if value.is_cuda else value.pin_memory()
    if isinstance(value, dict):
        return {name: pinned(entry) for name, entry in value.items()}
    if isinstance(value, (tuple, list)):
        made = [pinned(entry) for entry in value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*made)
        return type(value)(made)
    own = getattr(value, "pin_memory", None)
    return own() if callable(own) else value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch, wherever they stand in dicts, tuples and lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(entry)


def whole(batch: Any) -> Any:
    """Return a batch that needs no collating."""
    return batch
