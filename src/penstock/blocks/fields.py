"""Which columns a batch has and what becomes of their values: from Arrow to `Records`.

Numbers, fixed-size lists (of lists), tensors and fixed-size binary become arrays of the stored type; lists, text and
bytes become `Ragged`; everything else (structs, maps, nested lists) Python objects. Nulls have no place in an array
and are refused by row and column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from penstock.blocks.ipc_rows import offset_type
from penstock.columns.base import Place, without_dictionary
from penstock.columns.recipe import Recipe
from penstock.columns.table_rows import TableRows
from penstock.errors import ColumnError, DataError, UsageError
from penstock.messages import Text, Use
from penstock.records import Column, Ragged, Records

ROW_NUMBERS = "row_number"
"""The column that rows' numbers in the data are given out as."""
FieldKind = Literal["fixed", "list", "bytes", "text", "object"]


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name and Arrow type, and for fixed-width ones the NumPy type and shape of a row."""

    name: str
    type: pa.DataType
    kind: FieldKind
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, field: pa.Field) -> Field:
        """Work out what becomes of a column."""
        kind = field.type
        fixed = _fixed(kind)
        if fixed is not None:
            return cls(field.name, kind, "fixed", *fixed)
        types = pa.types
        if types.is_dictionary(kind):
            return cls.of(pa.field(field.name, kind.value_type))
        if types.is_string(kind) or types.is_large_string(kind):
            return cls(field.name, kind, "text", np.dtype(np.uint8))
        if types.is_binary(kind) or types.is_large_binary(kind):
            return cls(field.name, kind, "bytes", np.dtype(np.uint8))
        if types.is_list(kind) or types.is_large_list(kind):
            inner = _fixed(kind.value_type)
            if inner is not None and inner[1] == () and not types.is_boolean(kind.value_type):
                return cls(field.name, kind, "list", inner[0])
        return cls(field.name, kind, "object", np.dtype(object))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory; of a ragged one what comes beside its values."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64)) if self.kind == "fixed" else 8

    @property
    def packed(self) -> bool:
        """Whether rows lie in an Arrow file as they lie in memory."""
        return self.kind == "fixed" and not pa.types.is_boolean(_leaf(self.type))

    def empty(self, rows: int) -> np.ndarray[Any, np.dtype[Any]]:
        """Return memory for so many fixed-width rows."""
        return np.empty((rows, *self.shape), self.dtype)

    def decode(self, array: pa.Array, *, place: str, first_row: int) -> Column:
        """Return a column's values; fixed-width ones share the array's memory where they can."""
        array = without_dictionary(array)
        if array.null_count:
            row = first_row + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(
                f"column {self.name!r} is null in row {row}",
                place=place,
                fixes=["fill or remove such rows", Text("leave the column out with ", Use("columns"))],
            )
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if self.kind == "object":
            values = np.empty(len(array), object)
            values[:] = array.to_pylist()
            return values
        if self.kind == "fixed":
            return self._fixed_values(array, place=place, first_row=first_row)
        if self.kind == "list":
            offsets, flat = array.offsets.to_numpy(), array.values
            if flat.null_count and array.flatten().null_count:
                null = int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False)[offsets[0] :])[0]) + int(
                    offsets[0]
                )
                row = first_row + int(np.searchsorted(offsets, null, side="right")) - 1
                raise DataError(f"{place}: a list in column {self.name!r} holds a null in row {row}; fill or remove it")
            values = _numbers(flat, self.dtype)
        else:
            buffers = array.buffers()
            number = offset_type(array.type)
            start = array.offset * number.itemsize
            offsets = np.frombuffer(buffers[1], number, len(array) + 1, start) if len(array) else np.zeros(1, number)
            values = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
        return Ragged(offsets.astype(np.int64, copy=False), values, self.kind)

    def _fixed_values(self, array: pa.Array, *, place: str, first_row: int) -> np.ndarray[Any, np.dtype[Any]]:
        rows = len(array)
        while pa.types.is_fixed_size_list(array.type):
            size = array.type.list_size
            flat = array.values.slice(array.offset * size, len(array) * size)
            if flat.null_count:
                row = first_row + int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0]) // max(size, 1)
                raise DataError(f"{place}: a value in column {self.name!r} is null in row {row}; fill or remove it")
            array = flat
        if pa.types.is_fixed_size_binary(array.type):
            width = array.type.byte_width
            raw = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
            return raw.view(self.dtype).reshape(rows, *self.shape)
        return _numbers(array, self.dtype).reshape(rows, *self.shape)


@dataclass(frozen=True, slots=True)
class Fields:
    """The columns of a batch, in order."""

    fields: tuple[Field, ...]
    place: str = "the data"
    numbered: bool = False
    """Whether each row's number in the data is wanted."""
    numbers_from: str | None = None
    """The column that holds these numbers, where rows are not stored in their order."""
    encoder: TableRows | None = None
    """What makes these columns of stored ones, where a recipe was named."""

    @classmethod
    def of(
        cls,
        schema: pa.Schema,
        columns: Sequence[str] | Recipe | None = None,
        *,
        place: str = "the data",
        numbered: bool = False,
    ) -> Fields:
        """Choose columns of a schema by name, or take all; or those that a recipe makes of it.

        Examples
        --------
        >>> schema = pa.schema({"image": pa.list_(pa.uint8(), 12), "label": pa.int64(), "caption": pa.string()})
        >>> [(f.name, f.kind, f.shape) for f in Fields.of(schema).fields]
        [('image', 'fixed', (12,)), ('label', 'fixed', ()), ('caption', 'text', ())]
        """
        if isinstance(columns, Recipe):
            encoder = TableRows.of(columns, schema, place=place)
            return cls(tuple(map(Field.of, encoder.schema)), place, numbered, encoder=encoder)
        names = list(schema.names if columns is None else columns)
        for name in names:
            if name not in schema.names:
                raise ColumnError.missing(name, schema.names, place=place)
            if names.count(name) > 1:
                raise ColumnError(
                    f"names {name!r} twice", option="columns", value=names, fixes=["name each column once"]
                )
        if not names:
            raise ColumnError(
                "names no column", option="columns", value=names, fixes=[f"{place} has: {', '.join(schema.names)}"]
            )
        if numbered and ROW_NUMBERS in names:
            raise UsageError(
                f"adds a column {ROW_NUMBERS!r}, and {place} has one of that name",
                option="row_numbers",
                value=True,
                fixes=[Text("leave it out with ", Use("columns")), "do without row_numbers"],
            )
        return cls(tuple(Field.of(schema.field(name)) for name in names), place, numbered)

    @property
    def columns(self) -> list[str]:
        """The columns to read."""
        if self.encoder is not None:
            return list(self.encoder.columns)
        return [field.name for field in self.fields] + ([] if self.numbers_from is None else [self.numbers_from])

    @property
    def fixed(self) -> bool:
        """Whether all rows are equally long."""
        return all(field.kind == "fixed" for field in self.fields)

    @property
    def packed(self) -> bool:
        """Whether all rows lie in an Arrow file as they lie in memory."""
        return self.encoder is None and all(field.packed for field in self.fields)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory; where rows are unequal, what they need beside their values."""
        return sum(field.row_bytes for field in self.fields) + 8 * self.numbered

    def empty(self, rows: int) -> Records:
        """Return memory for so many rows, all of fixed width."""
        columns = {field.name: field.empty(rows) for field in self.fields}
        return Records(columns, np.empty(rows, np.int64) if self.numbered else None)

    def decode(self, batch: pa.RecordBatch, *, first_row: int = 0) -> Records:
        """Return a block's rows."""
        if self.encoder is not None:
            batch = self.encoder.encode(batch, Place(self.place, first_row))
        columns = {
            field.name: field.decode(batch.column(field.name), place=self.place, first_row=first_row)
            for field in self.fields
        }
        if not self.numbered:
            return Records(columns)
        if self.numbers_from is not None:
            return Records(columns, batch.column(self.numbers_from).to_numpy())
        return Records(columns, np.arange(first_row, first_row + len(batch), dtype=np.int64))

    def to_arrow(self, records: Records) -> pa.RecordBatch:
        """Return rows as Arrow, in the types they were stored in."""
        arrays = [_to_arrow(records.columns[field.name], field) for field in self.fields]
        names = [field.name for field in self.fields]
        if records.rows is not None:
            arrays, names = [*arrays, pa.array(records.rows)], [*names, _NUMBERS]
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def of_copy(self) -> Fields:
        """Return the fields that read what `to_arrow` wrote."""
        numbers_from = _NUMBERS if self.numbered else None
        return replace(self, place="the shuffled copy", numbers_from=numbers_from, encoder=None)


_NUMBERS = "__row__"


def _fixed(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return the NumPy type and the shape of a fixed-width value."""
    if isinstance(kind, pa.FixedShapeTensorType):
        inner = _fixed(kind.value_type)
        return None if inner is None or kind.permutation else (inner[0], tuple(kind.shape))
    if pa.types.is_fixed_size_list(kind):
        inner = _fixed(kind.value_type)
        return None if inner is None else (inner[0], (kind.list_size, *inner[1]))
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return np.dtype(np.uint8), (kind.byte_width,)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.dtype(kind.to_pandas_dtype()), ()
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return np.dtype(f"{'M' if pa.types.is_timestamp(kind) else 'm'}8[{kind.unit}]"), ()
    return None


def _leaf(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _numbers(array: pa.Array, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    if pa.types.is_boolean(array.type):
        flags: np.ndarray[Any, np.dtype[Any]] = array.to_numpy(zero_copy_only=False)
        return flags
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def _to_arrow(column: Column, field: Field) -> pa.Array:
    kind = field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    if isinstance(column, Ragged):
        packed = Ragged.concat([column])
        offsets = packed.offsets.astype(offset_type(kind))
        if field.kind == "list":
            make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
            return make.from_arrays(pa.array(offsets), pa.array(packed.values), type=kind)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(packed.values)]
        return pa.Array.from_buffers(kind, len(column), buffers)
    if field.kind == "object":
        return pa.array(column.tolist(), type=kind)
    column = np.ascontiguousarray(column)
    flat = (len(column), int(np.prod(field.shape, dtype=np.int64)))  # a tensor's storage has one axis
    return _wrap(kind, column.reshape(flat) if kind is not field.type else column)


def _wrap(kind: pa.DataType, column: np.ndarray[Any, np.dtype[Any]]) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(
            _wrap(kind.value_type, column.reshape(-1, *column.shape[2:])), type=kind
        )
    if pa.types.is_boolean(kind):
        return pa.array(column.reshape(-1))
    rows = column.size if not pa.types.is_fixed_size_binary(kind) else len(column)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(column.reshape(-1).view(np.uint8))])
