"""Sources: data sets cut into blocks, and the fast layout that they can be converted to.

`penstock.open` gives a source for whatever a user names; `convert` writes the fast layout. Each source's library is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.blocks.arrow import ArrowSource
    from penstock.blocks.cached_source import CachedSource
    from penstock.blocks.conversion import Converted, convert
    from penstock.blocks.csv import CsvSource
    from penstock.blocks.duckdb import DuckDBSource
    from penstock.blocks.libsvm import LibsvmSource
    from penstock.blocks.memory import ArraySource, TableSource
    from penstock.blocks.numpy import NpySource
    from penstock.blocks.parquet import ParquetSource
    from penstock.blocks.postgres import PostgresSource
    from penstock.blocks.write import BlockWriter

_HOMES = {
    "ArraySource": "memory",
    "ArrowSource": "arrow",
    "BlockWriter": "write",
    "CachedSource": "cached_source",
    "Converted": "conversion",
    "CsvSource": "csv",
    "DuckDBSource": "duckdb",
    "LibsvmSource": "libsvm",
    "NpySource": "numpy",
    "ParquetSource": "parquet",
    "PostgresSource": "postgres",
    "TableSource": "memory",
    "convert": "conversion",
}

__all__ = [
    "ArraySource",
    "ArrowSource",
    "BlockWriter",
    "CachedSource",
    "Converted",
    "CsvSource",
    "DuckDBSource",
    "LibsvmSource",
    "NpySource",
    "ParquetSource",
    "PostgresSource",
    "TableSource",
    "convert",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"penstock.blocks.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
