"""The formats that files are read in, block by block: one entry each, which is all that opening a file asks about its format.

A format is told by a file's suffix, or by what the file begins with; its source is imported when a file is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class FileFormat:
    """What is known of a format.

    Parameters
    ----------
    title : str
        What messages call a file of it.
    suffixes : tuple of str
        How names of its files end, in lower case.
    source : str or callable
        What opens files as a `BlockSource`, or the name of that, as ``module.Class`` in `penstock.blocks`.
    magic : bytes
        What its files hold at byte ``magic_at``; nothing for text.
    one_file : str
        For a format of which one file is read at a time, what to do with several.
    in_folders : bool
        Whether its files may stand in folders such as ``country=FR``, which are columns.
    """

    title: str
    suffixes: tuple[str, ...]
    source: str | Callable[..., Any]
    magic: bytes = b""
    magic_at: int = 0
    one_file: str = ""
    in_folders: bool = False

    def load(self) -> Callable[..., Any]:
        """Return what opens its files."""
        if not isinstance(self.source, str):
            return self.source
        module, name = self.source.split(".")
        found: Callable[..., Any] = getattr(import_module(f"penstock.blocks.{module}"), name)
        return found


FILE_FORMATS = {
    "parquet": FileFormat(
        "a Parquet file", (".parquet", ".pq"), "parquet.ParquetSource", magic=b"PAR1", in_folders=True
    ),
    "arrow": FileFormat(
        "an Arrow file", (".arrow", ".feather", ".ipc"), "arrow.ArrowSource", magic=b"ARROW1", in_folders=True
    ),
    "npy": FileFormat(
        "a NumPy array", (".npy",), "numpy.NpySource", magic=b"\x93NUMPY", one_file="convert each, then open those"
    ),
    "csv": FileFormat("a CSV file", (".csv", ".tsv", ".tab"), "csv.CsvSource", in_folders=True),
    "libsvm": FileFormat("a LibSVM file", (".libsvm", ".svm", ".svmlight"), "libsvm.LibsvmSource"),
    "duckdb": FileFormat(
        "a DuckDB database",
        (".duckdb", ".ddb"),
        "duckdb.DuckDBSource",
        magic=b"DUCK",
        magic_at=8,
        one_file="ATTACH others in penstock sql",
    ),
}
"""Every format, by its name; the entry of a format is its registration."""


def known_suffixes() -> tuple[str, ...]:
    """Return the suffixes of all formats."""
    return tuple(suffix for each in FILE_FORMATS.values() for suffix in each.suffixes)


def format_of_suffix(suffix: str) -> str | None:
    """Return the format whose files end so.

    Examples
    --------
    >>> format_of_suffix(".pq"), format_of_suffix(".txt")
    ('parquet', None)
    """
    return next((name for name, each in FILE_FORMATS.items() if suffix in each.suffixes), None)


def format_of_head(head: bytes) -> str | None:
    """Return the format whose files begin so; None for text.

    Examples
    --------
    >>> format_of_head(b"PAR1..."), format_of_head(b"a,b")
    ('parquet', None)
    """
    return next(
        (name for name, each in FILE_FORMATS.items() if each.magic and head[each.magic_at :].startswith(each.magic)),
        None,
    )
