"""`open`: a source for whatever a user names: a file, folder, glob or list, an address, a table, a source.

The format is told by the name's suffix, and by the first bytes where the name says nothing. Compressed text and JSON lines are
copied to a temporary file first; what else cannot be read in blocks (Arrow streams, one-shot readers, data sets of samples) is
refused with the line that converts it.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.blocks.file_formats import FILE_FORMATS, format_of_suffix, known_suffixes
from penstock.blocks.file_kinds import (
    COMPRESSED,
    STREAM_MARK,
    is_json_object,
    kind_of_head,
    refuse_foreign,
)
from penstock.blocks.folder_columns import AddedColumns, FolderSource
from penstock.blocks.frames import dataset_files, is_dataset, is_frame
from penstock.blocks.samples.formats import FORMATS, format_by_suffix, marked_format
from penstock.blocks.storage import expand, is_remote, open_file, show_names
from penstock.budget import parse_size
from penstock.errors import CorruptFileError, SourceError, UnknownOptionError, UsageError, nearest
from penstock.messages import Convert, Text, Use

JSON_LINES = (".jsonl", ".ndjson")
_GIVEN = ("path", "paths", "database", "address", "block_size")
"""Parameters of sources that are no options."""
_SERVERS = ("postgresql://", "postgres://")
_LIBSVM = re.compile(rb"\s*[^\s:,]+(?:\s+(?:qid|\d+):\S+)+\s*(#.*)?")


def open(
    data: Any,
    *,
    block_size: int | str | None = None,
    format: str | None = None,
    scratch: str | os.PathLike[str] | None = None,
    **options: Any,
) -> BlockSource:
    """Open data as a source of blocks.

    Parameters
    ----------
    data : path, address, folder, glob, list of these, table or source
        Parquet, Arrow IPC, ``.npy``, CSV/TSV or LibSVM files; JSON lines and compressed text, which are copied first; ``s3://``, ``gs://`` or ``https://`` addresses
        of these; a table of a DuckDB file (``shop.duckdb::clicks``) or of a PostgreSQL server
        (``postgresql://user@host/shop::public.clicks``); a pandas or Polars DataFrame, a DuckDB relation, a pyarrow Table
        or Dataset, or an array; a source passes through.
    block_size : int or str, optional
        The size of a block where the file itself does not fix it, such as ``"1MB"``.
    format : str, optional
        One of ``parquet``, ``arrow``, ``npy``, ``csv``, ``libsvm``, ``jsonl``, ``duckdb``; told from the data if not given.
    scratch : path, optional
        A folder for the copy of JSON lines or compressed text, which is removed with the source; the system's if not given.
    **options
        For CSV: ``delimiter`` and ``header``. For Parquet: ``max_open``. For DuckDB: ``table``, ``columns``, ``nulls``.
        For PostgreSQL these, ``connections`` and ``exact``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> open(pa.table({"x": [1.0, 2.0]})).block_rows.tolist()
    [2]
    """
    size = None if block_size is None else parse_size(block_size, option="block_size")
    if not isinstance(data, (str, os.PathLike, list, tuple)):
        require_known(options, (), what="data that are no file or address")
        return _open_object(data, size)
    named = split_table(data)
    if named is not None:
        if "table" in options:
            raise UsageError(
                f"and {data!r} name two tables", option="table", value=options["table"], fixes=["name one"]
            )
        data, options["table"] = named
    if isinstance(data, str) and data.startswith(_SERVERS):
        return _postgres(data, size, options)
    if format in FORMATS:
        raise _not_in_blocks(data, format)
    if format is not None and format not in (*FILE_FORMATS, "jsonl"):
        raise UnknownOptionError.of("format", format, FILE_FORMATS)
    suffixes = (
        known_suffixes() if format is None else JSON_LINES if format == "jsonl" else FILE_FORMATS[format].suffixes
    )
    if format is None:
        _refuse_marked(data)
    files = _files_of(data, suffixes)
    samples = None if format is not None or files[0].lower().endswith(suffixes) else format_by_suffix(files[0])
    if samples is not None and not FORMATS[samples].marks:  # a file of one that has marks tells nothing by itself
        raise _not_in_blocks(data, samples)
    found = format or _common_format(files)
    if found == "jsonl" or found in COMPRESSED.values() or _is_packed_text(files[0], found):
        from penstock.blocks.text_copy import copy_text

        return copy_text(data, name=show_names(files), format=format, block_size=size, folder=scratch, **options)
    if found == "arrow" and len(files) > 1 and is_stream(files[0]):
        raise SourceError(
            f"{_shown(data)} holds Arrow streams ({os.path.basename(files[0])}), which have no index of their blocks",
            fixes=[Text("turn them into an Arrow file first: ", Convert(_shown(data)))],
        )
    source = _open_files(found, files, size, options)
    if not FILE_FORMATS[found].in_folders or not any("=" in file for file in files):
        return source
    added = AddedColumns.of(data, source.schema, suffixes=suffixes)
    return source if added is None else FolderSource(source, added)


def opened(data: Any, **options: Any) -> AbstractContextManager[BlockSource]:
    """Open data for a ``with`` block, which closes what it has opened: not what came as a source."""
    source = open(data, **options)
    return nullcontext(source) if source is data else source


def detect(path: str) -> str:
    """Return a file's format by its suffix, then by its first bytes.

    Compressed files are told as ``gzip``, ``zstd``, ``bz2`` or ``xz``, JSON lines as ``jsonl``.
    """
    # A known suffix is believed: to open and close a DuckDB file would end the lock that this process may have on it.
    suffix = os.path.splitext(path.split("?")[0])[1].lower()
    if suffix in COMPRESSED:
        return COMPRESSED[suffix]
    if suffix in JSON_LINES:
        return "jsonl"
    return format_of_suffix(suffix) or detect_bytes(_first_bytes(path, 4096), name=path)


def detect_bytes(head: bytes, *, name: str) -> str:
    """Return the format that a file's first bytes tell."""
    if not head:
        raise CorruptFileError(f"{name} is empty (0 bytes); there is nothing to read")
    found = kind_of_head(head)
    if found is not None:
        return found
    refuse_foreign(head, name=name)
    if is_json_object(head):
        return "jsonl"
    lines = [line for line in head.splitlines() if line.strip() and not line.startswith(b"#")]
    if b"\x00" not in head and lines:
        if _LIBSVM.fullmatch(lines[0]):
            return "libsvm"
        if any(mark in lines[0] for mark in (b",", b"\t", b";", b"|")):
            return "csv"
    raise UsageError(
        f"the format of {name} is not known",
        fixes=[Text("name it with ", Use("format"), f", one of: {', '.join(sorted(FILE_FORMATS))}")],
    )


def is_stream(path: str) -> bool:
    """Whether a file is in the Arrow stream format."""
    return _first_bytes(path, len(STREAM_MARK)) == STREAM_MARK


def _first_bytes(path: str, most: int) -> bytes:
    file = open_file(path)
    try:
        return file.read_at(0, min(file.size, most))
    finally:
        file.close()


def _refuse_marked(data: Any) -> None:
    """Refuse folders that say of themselves that they are data sets of samples."""
    for path in map(os.fspath, data if isinstance(data, (list, tuple)) else [data]):
        kind = marked_format(path) if not is_remote(path) and os.path.isdir(path) else None
        if kind is not None:
            raise _not_in_blocks(path, kind)


def _not_in_blocks(data: Any, kind: str) -> SourceError:
    return SourceError(
        f"{_shown(data)} is read as {FORMATS[kind].title}, which cannot be done in blocks",
        fixes=[Text("convert it first: ", Convert(_shown(data)))],
    )


def _shown(data: Any) -> str:
    return os.fspath(data) if isinstance(data, (str, os.PathLike)) else " ".join(map(os.fspath, data[:1])) + " …"


def _open_object(data: Any, size: int | None) -> BlockSource:
    from penstock.blocks.memory import ArraySource, TableSource

    if isinstance(data, pa.RecordBatchReader):
        raise UsageError(
            "a RecordBatchReader can be read only once; write it to a file first: penstock.convert(reader, DST)"
        )
    if isinstance(data, BlockSource):
        return data
    if is_dataset(data):
        return _open_dataset(data, size)
    if is_frame(data):
        return TableSource.of(data, block_size=size)
    if isinstance(data, np.ndarray) or hasattr(data, "tocsr"):
        return ArraySource(data, block_size=size)
    if hasattr(data, "collect_schema"):  # of Polars
        raise UsageError("a LazyFrame is a plan, not rows", fixes=["collect it: frame.collect()"])
    raise UsageError(f"{type(data).__name__} cannot be opened; give a path, an address, a table, an array or a source")


def _open_dataset(dataset: Any, size: int | None) -> BlockSource:
    """Open a pyarrow Dataset: by its files where these are all there is to it, otherwise as a table in memory."""
    from penstock.blocks.memory import TableSource

    files = dataset_files(dataset)
    if files:
        source = open(files, block_size=size, format="parquet")
        if set(dataset.schema.names) == set(source.schema.names):
            return source
        source.close()
    return TableSource.of(dataset.to_table(), block_size=size)


def split_table(data: Any) -> tuple[str, str] | None:
    """Return a database's place and the table named behind ``::``; None for what is no such name.

    Examples
    --------
    >>> split_table("shop.duckdb::clicks"), split_table("clicks.parquet")
    (('shop.duckdb', 'clicks'), None)
    """
    if not isinstance(data, str) or "::" not in data:
        return None
    place, _, table = data.rpartition("::")
    database = place.startswith(_SERVERS) or place.lower().endswith(FILE_FORMATS["duckdb"].suffixes)
    if (
        not database or "/" in table or "]" in table or os.path.exists(data)
    ):  # an address such as [::1], or a file's name
        return None
    return place, table


def is_table(data: Any) -> bool:
    """Whether data are named as a table of a database, and so have no files to be listed."""
    return split_table(data) is not None or (isinstance(data, str) and data.startswith(_SERVERS))


def without_password(data: str) -> str:
    """Return a name of data such that it can be shown: the address of a server without its password.

    Examples
    --------
    >>> without_password("postgresql://ann:secret@db.example/shop::clicks")
    'postgresql://ann@db.example/shop::clicks'
    """
    if not data.startswith(_SERVERS):
        return data
    hidden = re.sub(r"(?<=://)([^/@:]*):.*@", r"\1@", data)
    return re.sub(r"([?&](?:ssl)?password=)[^&:]*", r"\1***", hidden)


def _postgres(address: str, size: int | None, options: dict[str, Any]) -> BlockSource:
    from penstock.blocks.postgres import PostgresSource

    if "table" not in options:
        raise UsageError(
            "a PostgreSQL server holds many tables",
            fixes=[
                Text(
                    "name one: penstock.open(address, ",
                    Use("table", "public.t"),
                    "), or ::public.t at the end of the address",
                )
            ],
        )
    return _call(PostgresSource, address, size, options)


def _files_of(data: Any, suffixes: tuple[str, ...]) -> list[str]:
    """Return the files meant; of a folder those with known suffixes, or all of them where none has one."""
    if isinstance(data, (list, tuple)):
        if not data:
            raise UsageError("no files were given; name at least one path")
        return [file for item in data for file in _files_of(item, suffixes)]
    found = expand(data)
    path = os.fspath(data)
    folder = os.path.isdir(path) if not is_remote(path) else path.endswith("/")
    if not folder:
        return found
    known = [f for f in found if f.lower().endswith(suffixes)]
    return known or found


def _is_packed_text(file: str, format: str) -> bool:
    """Whether a file that is named as text has the suffix of a compressed one."""
    return format in ("csv", "libsvm") and file.split("?")[0].lower().endswith(tuple(COMPRESSED))


def _common_format(files: list[str]) -> str:
    formats = {detect(file): file for file in files}
    if len(formats) > 1:
        told = ", ".join(f"{format} ({file})" for format, file in sorted(formats.items()))
        raise UsageError(
            f"the files are of several formats: {told}",
            fixes=["name files of one format", Text("give ", Use("format"))],
        )
    (format,) = formats
    return format


def _open_files(format: str, files: list[str], size: int | None, options: dict[str, Any]) -> BlockSource:
    """Open files of one format; its library is imported only now."""
    entry = FILE_FORMATS[format]
    if entry.one_file and len(files) > 1:
        raise UsageError(f"{len(files)} {entry.suffixes[0]} files were given; one is read at a time: {entry.one_file}")
    if format == "duckdb" and is_remote(files[0]):
        raise UsageError(f"{files[0]}: a DuckDB database is read on this machine alone; download it")
    return _call(entry.load(), files[0] if entry.one_file else files, size, options)


def require_known(options: Iterable[str], known: Sequence[str], *, what: str) -> None:
    """Raise `UnknownOptionError` for the first option that is not known; its value is the option's name."""
    for name in options:
        if name not in known:
            fixes = [f"choose one of: {', '.join(sorted(known))}{nearest(name, known)}"] if known else ["leave it out"]
            raise UnknownOptionError(f"there is no option {name!r} for {what}", value=name, fixes=fixes)


@contextmanager
def naming_arguments(function: Callable[..., Any]) -> Iterator[None]:
    """Name the nearest argument of a function that was given an unknown option, which it hands on to `open`."""
    try:
        yield
    except UnknownOptionError as error:
        if error.option is None and (near := nearest(str(error.value), inspect.signature(function).parameters)):
            reason = f"there is no option {error.value!r}{near}"
            raise UnknownOptionError(reason, value=error.value, fixes=error.fixes) from None
        raise


def _call(kind: Any, files: Any, size: int | None, options: dict[str, Any]) -> BlockSource:
    known = [name for name in inspect.signature(kind).parameters if name not in _GIVEN]
    require_known(options, known, what=f"a {kind.__name__}")
    given = {} if size is None else {"block_size": size}
    source: BlockSource = kind(files, **given, **options)
    return source
