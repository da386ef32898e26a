"""Arrays in memory as columns that keep their types and shapes: an array, or a dict of them, as a table.

`ArraySource` is for linear models, whose features are float32; this is for everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import UsageError


def as_table(data: Any) -> Any:
    """Return arrays, or tensors that NumPy can see, as a table; anything else as it is.

    Examples
    --------
    >>> as_table({"tokens": np.zeros((4, 8), np.uint16), "label": np.arange(4)}).schema.field("tokens").type.list_size
    8
    >>> as_table("data.arrow")
    'data.arrow'
    """
    if _is_array(data):
        return as_table({"features": data})
    if not isinstance(data, Mapping):
        return data
    columns = {str(name): np.asarray(value) for name, value in data.items()}
    lengths = {name: len(column) if column.ndim else None for name, column in columns.items()}
    if not columns or None in lengths.values() or len(set(lengths.values())) > 1:
        raise UsageError(f"a dict of columns needs arrays of one length; these have {lengths}")
    return pa.table({name: _column(column, name) for name, column in columns.items()})


def _is_array(data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return True
    # A torch tensor, say; tables and data frames also turn into arrays, but have columns of their own.
    return hasattr(data, "__array__") and hasattr(data, "ndim") and not hasattr(data, "columns")


def _column(array: NDArray[Any], name: str) -> pa.Array:
    if array.ndim == 1:
        return pa.array(array)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"column {name!r} is an array of {array.dtype} in {array.ndim} dimensions; give numbers")
    values = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values
