"""Tables in memory that other libraries made, as Arrow: pandas and Polars frames, DuckDB relations, pyarrow tables and data sets.

Whatever offers the Arrow C stream interface (``__arrow_c_stream__``) is taken through it, so that no library but pyarrow is
needed. The index of a pandas frame is no column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import require_distinct_names
from penstock.columns.base import without_dictionary
from penstock.errors import UsageError


def is_pandas(data: Any) -> bool:
    """Whether data are of pandas: a DataFrame, a Series or an index."""
    return type(data).__module__.split(".")[0] == "pandas"


def is_frame(data: Any) -> bool:
    """Whether data are a table in memory with names for its columns.

    Examples
    --------
    >>> is_frame(pa.table({"x": [1]})), is_frame(pa.chunked_array([[1]])), is_frame([[1]])
    (True, False, False)
    """
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return True
    if isinstance(data, (pa.ChunkedArray, pa.RecordBatchReader)) or hasattr(data, "dtype"):  # a column; read once only
        return False
    return is_pandas(data) or hasattr(data, "__arrow_c_stream__")


def is_dataset(data: Any) -> bool:
    """Whether data are a pyarrow Dataset."""
    return type(data).__module__.startswith("pyarrow._dataset")


def is_plain_pandas(frame: Any) -> bool:
    """Whether a pandas frame holds numbers alone, and none is missing, so that it is as good as an array.

    Examples
    --------
    >>> import pandas as pd
    >>> is_plain_pandas(pd.DataFrame({"x": [1.0, 2.0]})), is_plain_pandas(pd.DataFrame({"x": [1.0, None]}))
    (True, False)
    """
    columns = [column for _, column in frame.items()]
    return all(column.dtype.kind in "biufc" for column in columns) and not any(c.isna().any() for c in columns)


def frame_names(frame: Any) -> list[str]:
    """Return the names of a frame's columns, as text."""
    if isinstance(frame, (pa.Table, pa.RecordBatch)):
        return list(frame.schema.names)
    return list(map(str, frame.columns)) if hasattr(frame, "columns") else list(frame_to_arrow(frame).schema.names)


def frame_to_arrow(frame: Any) -> pa.Table:
    """Return a table of another library as Arrow.

    A pandas column of several types, such as numbers and text, becomes text.

    Examples
    --------
    >>> import pandas as pd
    >>> frame_to_arrow(pd.DataFrame({"x": [1, "a", None]}, index=[7, 8, 9])).to_pydict()
    {'x': ['1', 'a', None]}
    """
    if not is_pandas(frame):
        table = frame
        if not isinstance(frame, pa.Table):
            table = pa.Table.from_batches([frame]) if isinstance(frame, pa.RecordBatch) else pa.table(frame)
        require_distinct_names(table.schema.names, place="the table")
        return table
    names = frame_names(frame)
    require_distinct_names(names, place="the frame")
    return pa.table(dict(zip(names, (series_to_arrow(frame.iloc[:, at]) for at in range(len(names))), strict=True)))


def series_to_arrow(series: Any) -> pa.Array | pa.ChunkedArray:
    """Return a pandas column as Arrow; values that Arrow has no one type for become text."""
    try:
        array = pa.Array.from_pandas(series)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        array = None
    if array is not None and not isinstance(array.type, pa.BaseExtensionType):
        return array
    return pa.array([None if missing else str(value) for value, missing in zip(series, series.isna(), strict=True)])


def values_to_arrow(values: Any) -> pa.Array:
    """Return the values of one column, such as labels, as Arrow: a Series, an array, a list, or a frame of one column."""
    if is_frame(values):
        table = frame_to_arrow(values)
        if table.num_columns != 1:
            raise UsageError(f"a column of values is needed, and this frame has {table.num_columns}; name one of them")
        values = table.column(0)
    elif is_pandas(values):
        values = series_to_arrow(values)
    elif hasattr(values, "__arrow_c_stream__"):
        values = pa.chunked_array(values)
    elif not isinstance(values, pa.Array):
        array = np.asarray(values)
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        if array.ndim != 1:
            raise UsageError(f"one value a row is needed, and this array has the shape {array.shape}")
        values = pa.array(array.tolist() if array.dtype.kind in "UO" else np.ascontiguousarray(array), from_pandas=True)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return without_dictionary(values)


def with_column(table: pa.Table, values: pa.Array, names: Sequence[str]) -> tuple[pa.Table, str]:
    """Return a table with a column more, and its name: the first of ``names`` that no other column has.

    Raises
    ------
    UsageError
        There are more values, or fewer, than rows.
    """
    if len(values) != len(table):
        raise UsageError(f"{names[-1]} has {len(values)} values for {len(table)} rows of X")
    taken = set(table.schema.names)
    name = next((each for each in names if each not in taken), None)
    while name is None or name in taken:
        name = f"{name or names[-1]}_"
    return table.append_column(name, values), name


def dataset_files(dataset: Any) -> list[str] | None:
    """Return the local Parquet files that a pyarrow Dataset consists of, to be read in blocks; None for any other data set.

    A data set with a filter, or with columns that its files and the names of their folders do not have, is not its files.
    """
    from pyarrow.dataset import FileSystemDataset, ParquetFileFormat
    from pyarrow.fs import LocalFileSystem

    if not isinstance(dataset, FileSystemDataset) or not isinstance(dataset.format, ParquetFileFormat):
        return None
    if not isinstance(dataset.filesystem, LocalFileSystem) or getattr(dataset, "_scan_options", None):
        return None
    return list(dataset.files)
