"""Converts columns of a query's result to features: equally long lists and packed bytes become vectors of float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.feature_columns import PAIRS, is_list, is_number
from penstock.errors import DataError


def as_features(
    rows: pa.RecordBatch,
    columns: Sequence[str],
    *,
    widths: Mapping[str, int] | None = None,
    place: str = "the query",
    first_row: int | NDArray[np.int64] = 0,
) -> pa.RecordBatch:
    """Return columns of a batch as features are wanted: lists of numbers and packed bytes as fixed-size float32 lists.

    How long these are is told by ``widths``, or else by the first row; another length is refused, naming the row:
    ``first_row`` is the number of the first one, or those of all. Lists stay lists in a batch without rows whose width is
    not told, and where they are half of a sparse pair. A null in a list or in bytes is refused.

    Examples
    --------
    >>> as_features(pa.record_batch({"v": [[1, 2], [3, 4]], "y": [0, 1]}), ["v"]).schema.field("v").type
    FixedSizeListType(fixed_size_list<item: float not null>[2])
    """
    known = dict(widths or {})
    pair: tuple[str, ...] = next((pair for pair in PAIRS if all(name in columns for name in pair)), ())
    numbers = first_row + np.arange(len(rows)) if isinstance(first_row, int) else first_row
    arrays = []
    for name in columns:
        array = _plain(rows.column(name))
        fixed = pa.types.is_fixed_size_list(array.type)
        if name in pair:
            array = _half(array, values=name == pair[1])
        elif _is_binary(array.type) or ((fixed or is_list(array.type)) and is_number(array.type.value_type)):
            bad = rows_with_nulls(array)
            if bad is not None:
                raise DataError(
                    f"{place}: column {name!r} is or holds a null in row {numbers[int(np.argmax(bad))]}; fill it"
                )
            array = (
                fixed_lists(array.flatten(), array.type.list_size, len(array))
                if fixed
                else _equal(array, name, known.get(name), place=place, numbers=numbers)
            )
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _plain(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.float64()) if pa.types.is_decimal(array.type) else array


def _half(array: pa.Array, *, values: bool) -> pa.Array:
    """Return one of a sparse pair's columns; values are float32, indices as they are."""
    kind = array.type
    if not values or not is_list(kind) or not is_number(kind.value_type) or pa.types.is_float32(kind.value_type):
        return array
    return array.cast(pa.large_list(pa.float32()) if pa.types.is_large_list(kind) else pa.list_(pa.float32()))


def _equal(array: pa.Array, name: str, width: int | None, *, place: str, numbers: NDArray[np.int64]) -> pa.Array:
    """Return lists, or bytes, of one length as a fixed-size list; ``width`` is that length in float32 values."""
    packed = _is_binary(array.type)
    if packed:
        array = array.cast(pa.large_binary())
        start = 8 * array.offset
        offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, start) if len(array) else np.zeros(1, int)
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
    unit = 4 if packed else 1
    lengths = np.diff(offsets)
    if not len(lengths) and width is None:
        return array
    if width is None and (not lengths[0] or lengths[0] % unit):
        raise DataError(
            f"{place}: column {name!r} holds {lengths[0]} {'bytes' if packed else 'values'} in row {numbers[0]}; features are"
            " one number or more a row" + (", packed as float32 of four bytes each" if packed else "")
        )
    size = int(lengths[0]) // unit if width is None else width
    other = np.flatnonzero(lengths != size * unit)
    if len(other):
        at = int(other[0])
        raise DataError(
            f"{place}: column {name!r} holds {lengths[at] / unit:g} values in row {numbers[at]} where the rows before have"
            f" {size}; features are equally many in every row: leave such rows or the column out, or give sparse rows as two"
            " columns of lists, 'indices' and 'values'"
        )
    if packed:
        data = array.buffers()[2]
        at = int(offsets[0])
        values = np.frombuffer(data, np.uint8, int(offsets[-1]) - at, at) if data is not None else np.empty(0, np.uint8)
        return fixed_lists(pa.array(values.view("<f4").astype(np.float32, copy=False)), size, len(array))
    return fixed_lists(array.flatten(), size, len(array))


def fixed_lists(flat: pa.Array, size: int, rows: int) -> pa.Array:
    """Return numbers as rows of so many float32 each."""
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), size)
    if not pa.types.is_float32(flat.type):
        flat = _plain(flat).cast(pa.float32(), safe=False)
    return pa.FixedSizeListArray.from_arrays(flat.slice(0, rows * size), type=kind)


def rows_with_nulls(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return which rows are null, or hold a null in their list; None where none is."""
    bad = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    if not (is_list(array.type) or pa.types.is_fixed_size_list(array.type)):
        return bad
    flat = array.flatten()  # of rows that are null nothing is left
    if not flat.null_count:
        return bad
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(array)), lengths)
    inside = np.zeros(len(array), np.bool_)
    inside[rows[flat.is_null().to_numpy(zero_copy_only=False)]] = True
    return inside if bad is None else bad | inside


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
