"""One schema for files of one data set that differ in the order of their columns, or in how wide their types are.

Columns come in the order of the first file, each in the narrowest type that holds what all files have: int32 beside int64 is
int64, int64 beside float32 is float64, text with a dictionary beside text without is text. A column that one file lacks, or types
that have nothing in common, are refused with the names of both files.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.blocks.base import require_distinct_names
from penstock.blocks.storage import require_equal
from penstock.columns.base import is_number, is_text, without_dictionary
from penstock.columns.schema_notes import layout_of

_UNITS = ("s", "ms", "us", "ns")


def common_schema(schemas: Sequence[pa.Schema], names: Sequence[str]) -> pa.Schema:
    """Return the schema that the columns of all files can be read in.

    Files that `penstock convert` wrote have to be equal: what they note of their layout holds for their own columns.

    Raises
    ------
    SchemaError
        A file lacks a column or has one twice, or the types of a column have nothing in common.

    Examples
    --------
    >>> one, other = pa.schema([("x", pa.int32()), ("y", pa.string())]), pa.schema([("y", pa.string()), ("x", pa.int64())])
    >>> common_schema([one, other], ["a.parquet", "b.parquet"])
    x: int64
    y: string
    """
    for schema, name in zip(schemas, names, strict=True):
        require_distinct_names(schema.names, place=name)
    found: pa.Schema = schemas[0]
    for schema, name in zip(schemas[1:], names[1:], strict=True):
        if schema.equals(found):
            continue
        if layout_of(found) or layout_of(schema) or set(schema.names) != set(found.names):
            require_equal(schemas[0], schema, names=(names[0], name))
            continue
        for at, field in enumerate(found):
            kind = common_type(field.type, schema.field(field.name).type)
            if kind is None:
                require_equal(found, schema, names=(names[0], name))
            found = found if kind is None or kind == field.type else found.set(at, field.with_type(kind))
    return found


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of two, or None where there is none.

    Examples
    --------
    >>> common_type(pa.int64(), pa.float32()), common_type(pa.dictionary(pa.int8(), pa.string()), pa.large_string())
    (DataType(double), DataType(large_string))
    >>> common_type(pa.int64(), pa.string()) is None
    True
    """
    if one == other:
        return one
    kinds = [one, other]
    for kind, beside in (kinds, kinds[::-1]):
        if pa.types.is_null(kind):
            return beside
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
    if kinds != [one, other]:
        return common_type(*kinds)
    if all(map(is_text, kinds)):
        return pa.large_string()
    if all(map(is_number, kinds)):
        if any(map(pa.types.is_decimal, kinds)):
            return pa.float64()
        return pa.from_numpy_dtype(np.promote_types(*(kind.to_pandas_dtype() for kind in kinds)))
    if all(pa.types.is_date(kind) for kind in kinds):
        return pa.date32()
    if all(pa.types.is_date(kind) or pa.types.is_timestamp(kind) for kind in kinds):
        return _common_timestamp([kind for kind in kinds if pa.types.is_timestamp(kind)])
    if all(pa.types.is_fixed_size_list(kind) for kind in kinds) and one.list_size == other.list_size:
        values = common_type(one.value_type, other.value_type)
        return None if values is None else pa.list_(values, one.list_size)
    if all(pa.types.is_list(kind) or pa.types.is_large_list(kind) for kind in kinds):
        values = common_type(one.value_type, other.value_type)
        large = any(map(pa.types.is_large_list, kinds))
        return None if values is None else (pa.large_list if large else pa.list_)(values)
    return None


def _common_timestamp(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the finer of two types of times; microseconds beside nanoseconds, which end in the year 2262."""
    if len({kind.tz for kind in kinds}) > 1:
        return None
    unit = max(_UNITS.index(kind.unit) for kind in kinds)
    return pa.timestamp("us" if unit == 3 and len(kinds) > 1 else _UNITS[unit], kinds[0].tz)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with its columns in the types that a schema has for them."""
    fields = [schema.field(name) for name in batch.schema.names]
    if all(array.type == field.type for array, field in zip(batch.columns, fields, strict=True)):
        return batch
    arrays = [_cast(array, field.type) for array, field in zip(batch.columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    array = without_dictionary(array)
    return array.cast(kind, safe=False)  # whole numbers beyond 2^53 are rounded beside floats
