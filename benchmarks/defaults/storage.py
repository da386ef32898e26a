"""Rows of a table put where each door reads them: files, DuckDB, PostgreSQL."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.defaults.tables import LABEL, Part

ROW = "row_number"
"""A column of test tables in databases, by which predictions are put in order."""
KEY = "one_group"
"""The column that groups are made by; its only value is 0."""


def arrow_table(part: Part, *, lists: tuple[str, str] = ("indices", "values")) -> pa.Table:
    """Return the rows as an Arrow table; sparse rows are two columns of lists."""
    if isinstance(part.x, pa.Table):
        return part.x.append_column(LABEL, pa.array(part.y))
    offsets = pa.array(part.x.indptr.astype(np.int32))
    columns = (part.x.indices.astype(np.int32), part.x.data.astype(np.float32))
    made = {name: pa.ListArray.from_arrays(offsets, pa.array(values)) for name, values in zip(lists, columns)}
    return pa.table({**made, LABEL: pa.array(part.y)})


def write_file(part: Part, stem: Path, *, layout: str) -> Path:
    """Write rows as a user has them: Parquet (sparse rows as LibSVM text), CSV, or converted by ``penstock convert``."""
    from penstock.blocks.conversion import convert

    if part.sparse:
        from sklearn.datasets import dump_svmlight_file

        path = stem.with_suffix(".libsvm")
        dump_svmlight_file(part.x, part.y, str(path), zero_based=False)
    else:
        path = stem.with_suffix(".csv" if layout == "csv" else ".parquet")
        (pa_csv.write_csv if layout == "csv" else pq.write_table)(arrow_table(part), path)
    if layout != "arrow":
        return path
    converted = stem.with_suffix(".arrow")
    import penstock

    with penstock.open(str(path)) as source:
        convert(source, converted, label=LABEL)
    return converted


def write_groups(part: Part, stem: Path) -> Path:
    """Write rows with a column to group by."""
    path = stem.with_suffix(".parquet")
    data = arrow_table(part)
    pq.write_table(data.append_column(KEY, pa.array(np.zeros(len(data), np.int64))), path)
    return path


def _database_table(part: Part, *, numbered: bool) -> pa.Table:
    data = arrow_table(part, lists=("features_k", "features_v"))
    if data.num_columns > 1 and not part.sparse:
        data = data.rename_columns([f"c{i}" for i in range(data.num_columns - 1)] + [LABEL])
    return data.append_column(ROW, pa.array(np.arange(len(data)))) if numbered else data


def load_duckdb(connection: Any, name: str, part: Part, *, numbered: bool = False) -> None:
    """Make a table in DuckDB."""
    connection.register("rows_to_load", _database_table(part, numbered=numbered))
    connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM rows_to_load")
    connection.unregister("rows_to_load")


def load_postgres(connection: Any, name: str, part: Part, *, numbered: bool = False) -> None:
    """Make a table in PostgreSQL."""
    data = _database_table(part, numbered=numbered)
    columns = ", ".join(f"{field.name} {_postgres_type(field.type)}" for field in data.schema)
    connection.execute(f"DROP TABLE IF EXISTS {name}")
    connection.execute(f"CREATE TABLE {name} ({columns})")
    if part.sparse:
        arrays = [
            pa.array(["{" + ",".join(map(str, row)) + "}" for row in data[column].to_pylist()])
            for column in ("features_k", "features_v")
        ]
        rest = data.drop_columns(["features_k", "features_v"])
        data = pa.table(
            {"features_k": arrays[0], "features_v": arrays[1], **dict(zip(rest.column_names, rest.columns))}
        )
    text = io.BytesIO()
    pa_csv.write_csv(data, text, pa_csv.WriteOptions(include_header=False))
    with connection.cursor().copy(f"COPY {name} FROM STDIN (FORMAT csv)") as copy:
        copy.write(text.getvalue())
    connection.execute(f"ANALYZE {name}")


def _postgres_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return _postgres_type(kind.value_type) + "[]"
    if pa.types.is_integer(kind):
        return {1: "smallint", 2: "smallint" if pa.types.is_signed_integer(kind) else "integer"}.get(
            kind.byte_width, "integer" if kind.bit_width == 32 else "bigint"
        )
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if pa.types.is_floating(kind):
        return "real" if kind.bit_width <= 32 else "double precision"
    return "text"
