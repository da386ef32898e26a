"""Tables stored in DuckDB: blocks are rowid ranges inside row groups, read as Arrow in any order.

DuckDB keeps rows in row groups of 122,880 (the last one of each load can be smaller) and skips those a rowid range does
not touch, and inside them vectors of 2,048 rows, from version 2.0 on; older ones are refused. Every reading thread has a
cursor of its own. Views and temporary tables are refused: `penstock.connect` copies them.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.blocks.base import NULLS, Nulls, Source, require_block, require_columns
from penstock.blocks.duckdb_blocks import VECTOR, TableLayout, cut_vectors, state_of, survey_table
from penstock.blocks.duckdb_table import (
    DuckDBColumn,
    TableName,
    fetch_rows,
    find_table,
    plain_type,
    quote_name,
    tables_in,
)
from penstock.blocks.refined_source import RefinedSource
from penstock.errors import (
    CorruptFileError,
    DatabaseInUseError,
    DataChangedError,
    DataError,
    MissingExtraError,
    SourceError,
    SourceNotFoundError,
    UnknownOptionError,
    UsageError,
    some_of,
)
from penstock.messages import Text, Use

MEMORY = ":memory:"
_CACHE = "256MB"
"""What DuckDB may hold of a file that is opened here for reading alone; the system's own cache is beside it."""
_SAMPLED, _SAMPLE_ROWS = 32, 256
SETTLED = "SET python_enable_replacements = false; SET enable_progress_bar = false"
"""A name in a statement is a table, never a variable of whichever function happens to run it; stdout is for results."""


def connect_duckdb(database: str | os.PathLike[str] = MEMORY, *, read_only: bool = False, **config: Any) -> Any:
    """Open a DuckDB database: a file, made if it is not there, or ``:memory:``.

    Examples
    --------
    >>> connect_duckdb(":memory:").execute("SELECT 6 * 7").fetchone()
    (42,)
    """
    duckdb = _library()
    path = os.fspath(database)
    if read_only and path == MEMORY:
        raise UsageError("is for files", option="read_only", value=True, fixes=["a database in memory begins empty"])
    if path != MEMORY and (read_only or not os.path.isdir(os.path.dirname(path) or ".")) and not os.path.exists(path):
        raise SourceNotFoundError(f"there is no file {path}")
    try:
        connection = duckdb.connect(path, read_only=read_only, config=config)
        connection.execute(SETTLED)
    except duckdb.Error as error:
        raise _unopened(path, first_line(error)) from None
    return connection


def first_line(error: BaseException) -> str:
    """Return what DuckDB says is wrong, without the kind of error in front and the statement behind."""
    return re.sub(r"^[A-Z][\w ]* Error: ", "", str(error)).strip().split("\n")[0]


@contextmanager
def translated_errors(told: Callable[[str, Exception], Exception]) -> Iterator[None]:
    """Tell what DuckDB refuses as the error that is made of its message, and Ctrl-C as what it is."""
    duckdb = _library()
    try:
        yield
    except duckdb.InterruptException as error:
        raise told("the statement was stopped", error) from None
    except duckdb.Error as error:
        raise told(first_line(error), error) from None
    except RuntimeError as error:
        if str(error) != "Query interrupted":
            raise
        raise KeyboardInterrupt from None


class DuckDBSource(Source):
    """A stored table as blocks.

    A change by another connection of this process is noticed by the rows of a block, by the table's own number, and at
    each epoch by the rows in all; values changed in place are not. The fingerprint is over the columns' types, the rows of
    each block and some rows of 32 of them: it stays the same when the file is opened again, or another table is written.

    Parameters
    ----------
    database : path or open DuckDB connection
        A connection stays open when the source is closed.
    table : str or sequence of str
        The table's name, or its parts: ``("main", "higgs")``. It may be left out where there is only one table.
    columns : list of str, optional
        The columns to serve. Lists that are null or hold a null, or are not equally long, are then refused; of all the
        columns (None) those that are so are served as they are.
    block_size : int, optional
        Bytes of a block; 2 MB if not given, and less, down to a vector of 2,048 rows, where the table would make under
        128 blocks.
    nulls : str
        ``fill`` serves nulls, for the recipe to fill; ``error`` refuses rows with one, ``skip`` leaves them out.
    sample : int, optional
        Serve so many blocks only, spread evenly over the table: for a plan, which takes the others to be like them.

    Attributes
    ----------
    whole : TableSize
        The rows, blocks and bytes of the table, estimated where a sample is served.
    survey_seconds : float
        About what looking for nulls and the lengths of lists takes in all rows.

    Examples
    --------
    >>> connection = connect_duckdb(":memory:")
    >>> _ = connection.execute("CREATE TABLE t AS SELECT [i, i + 1]::FLOAT[2] AS x, i % 2 AS y FROM range(5000) r(i)")
    >>> with DuckDBSource(connection, "t") as source:
    ...     source.block_rows.tolist(), source.read(2, ["x"]).column(0)[0].as_py()
    ([2048, 2048, 904], [4096.0, 4097.0])
    """

    decodes = True

    def __init__(
        self,
        database: Any,
        table: str | Sequence[str] | None = None,
        *,
        columns: Sequence[str] | None = None,
        block_size: int | None = None,
        nulls: Nulls = "fill",
        sample: int | None = None,
    ) -> None:
        if nulls not in NULLS:
            raise UnknownOptionError.of("nulls", nulls, NULLS)
        self._duckdb = _library()
        self._own = _read_only(database) if isinstance(database, (str, os.PathLike)) else None
        self._lock = threading.Lock()
        self._free: list[Any] = []
        self._closed = False
        self._process = os.getpid()
        self._root: Any = None
        try:
            with translated_errors(lambda told, _: SourceError(f"{database if self._own else 'the database'}: {told}")):
                self._root = _cursor_of(database if self._own is None else self._own)
                place = database_name(self._root) if self._own is None else os.path.basename(os.fspath(database))
                self._table = _stored(self._root, table, place=place)
                self.name = f"{place}:{self._table}"
                layout = survey_table(
                    self._root, self._table, columns, block_size, place=self.name, nulls=nulls, sample=sample
                )
        except BaseException:
            self.close()
            raise
        self._layout = layout
        self.whole, self.survey_seconds = layout.whole, layout.survey_seconds
        self._named = {column.name: column for column in layout.columns}
        self.schema = pa.schema([(column.name, column.type) for column in layout.columns])
        self.block_rows = layout.rows
        self.block_bytes = np.maximum((layout.rows * layout.row_bytes).astype(np.int64), 1)

    @cached_property
    def fingerprint(self) -> str:
        """A hash over types, the rows of each block, and some rows."""
        layout = self._layout
        known = [self.schema.to_string(), layout.where, *(column.expression for column in layout.columns)]
        digest = hashlib.sha256(repr(known).encode())
        for numbers in (layout.starts, layout.rows):
            digest.update(numbers.tobytes())
        if len(layout.starts):
            picks = np.unique(np.linspace(0, len(layout.starts) - 1, _SAMPLED).astype(int))
            some = [f"rowid >= {at} AND rowid < {at + _SAMPLE_ROWS}" for at in layout.starts[picks].tolist()]
            hashed = ", ".join(quote_name(column.name) for column in layout.columns)
            text = f"SELECT sum(hash(rowid, {hashed})) FROM {self._table.sql} WHERE ({' OR '.join(some)})"
            with self._asked("its rows") as cursor:
                digest.update(str(fetch_rows(cursor, f"{text} AND {layout.where}")).encode())
        return digest.hexdigest()

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order."""
        require_block(block, len(self.block_rows), name=self.name)
        return self._read_ranges(self._layout, [block], columns)[0]

    def refine(self, rows: int, most: int) -> RefinedSource:
        """Return the same rows in smaller blocks, several of which are read by one statement; see `BlockSource.refine`.

        A statement decodes whole vectors, so blocks are no smaller than one unless ``most`` is.
        """
        with self._asked("its blocks") as cursor:
            owners, finer = cut_vectors(cursor, self._table, self._layout, rows, most)
        return RefinedSource(
            self,
            owners=owners,
            rows=finer.rows,
            nbytes=np.maximum((finer.rows * finer.row_bytes).astype(np.int64), 1),
            read=lambda block, columns: self._read_ranges(finer, [block], columns)[0],
            read_many=lambda blocks, columns: self._read_ranges(finer, blocks, columns),
        )

    def check(self) -> None:
        """Raise `DataChangedError` if there are other rows, or another table of that name."""
        with self._asked("its rows") as cursor:
            found = state_of(cursor, self._table, self._layout.where)
        if found != self._layout.state:
            raise DataChangedError(
                f"{self.name} was changed while it was in use (it had {self._layout.state[0]} rows, now {found[0]}); open it"
                " again and start afresh"
            )

    def close(self) -> None:
        """Close the cursors, and the database where it was opened here."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for each in (*free, self._root, self._own):
            if each is not None:
                each.close()
        self._root = self._own = None

    def _read_ranges(
        self, layout: TableLayout, blocks: Sequence[int], columns: Sequence[str] | None
    ) -> list[pa.RecordBatch]:
        """Read blocks of a layout, whose numbers ascend, by one statement: rows come as they are stored."""
        wanted = self._named if columns is None else {name: self._named.get(name) for name in columns}
        require_columns(self.schema, list(wanted), place=self.name)
        chosen = [column for column in wanted.values() if column is not None]
        ranges = " OR ".join(f"(rowid >= {layout.starts[b]} AND rowid < {layout.ends[b]})" for b in blocks)
        rows = layout.rows[list(blocks)]
        text = (
            f"SELECT {', '.join(c.selected for c in chosen)} FROM {self._table.sql} WHERE ({ranges}) AND {layout.where}"
        )
        with self._asked(f"block {blocks[0]}") as cursor:
            found = cursor.sql(text).to_arrow_table(max(int(rows.sum()), VECTOR))
        if found.num_rows != rows.sum():
            low, high = int(layout.starts[blocks[0]]), int(layout.ends[blocks[-1]])
            raise DataChangedError(
                f"{self.name} was changed while it was in use: block {blocks[0]} (rowids {low} to {high - 1}) had"
                f" {int(rows.sum())} rows, now {found.num_rows}; open it again and start afresh"
            )
        arrays = [self._shaped(array, column) for array, column in zip(found.columns, chosen)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([self.schema.field(c.name) for c in chosen]))
        ends = np.cumsum(rows)
        return [batch.slice(int(end - count), int(count)) for end, count in zip(ends, rows)]

    def _shaped(self, chunks: pa.ChunkedArray, column: DuckDBColumn) -> pa.Array:
        array = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
        kind, stored = column.type, plain_type(array.type)
        if array.type == kind:
            return array
        if stored == kind and (array.null_count or not pa.types.is_fixed_size_list(kind)):
            return array.cast(kind)
        size, flat = kind.list_size if pa.types.is_fixed_size_list(kind) else 0, None
        if size and stored == pa.binary():
            offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
            if (np.diff(offsets) == 4 * size).all():
                data = array.buffers()[2].slice(int(offsets[0]))
                flat = pa.Array.from_buffers(pa.float32(), len(array) * size, [None, data])
        elif size and stored == pa.list_(pa.float32()):
            flat = array.flatten() if (np.diff(array.offsets.to_numpy()) == size).all() else None
        elif size and stored == kind:
            flat = array.flatten()
        if flat is None or array.null_count:
            raise DataChangedError(
                f"{self.name} was changed while it was in use: column {column.name!r} is {stored}, it was served as {kind};"
                " open it again and start afresh"
            )
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)

    def _failure(self, what: str, told: str, error: Exception) -> Exception:
        if isinstance(error, (self._duckdb.CatalogException, self._duckdb.BinderException)):
            return DataChangedError(
                f"{self.name} was dropped or altered while it was in use ({told}); open it again and start afresh"
            )
        if isinstance(error, self._duckdb.ConversionException):
            return DataError(f"{self.name}: {what} holds a number beyond float32 ({told}); scale or remove it")
        return SourceError(f"{self.name}: {what} cannot be read ({told})")

    @contextmanager
    def _asked(self, what: str) -> Iterator[Any]:
        """Lend a cursor to one thread, and tell what goes wrong with it as an error of ours."""
        if self._process != os.getpid():
            raise SourceError(
                f"{self.name} was opened before this process was forked; open it in the process that reads it"
            )
        with self._lock:
            if self._closed:
                raise SourceError(f"{self.name} is closed")
            cursor = self._free.pop() if self._free else _cursor_of(self._root)
        try:
            with translated_errors(lambda told, error: self._failure(what, told, error)):
                yield cursor
        except BaseException:
            cursor.close()
            raise
        with self._lock:
            if not self._closed:
                self._free.append(cursor)
                return
        cursor.close()


def database_name(connection: Any) -> str:
    """Return what messages call a connection's database: its file, or memory."""
    path = fetch_rows(connection, "SELECT path FROM duckdb_databases() WHERE database_name = current_database()")[0][0]
    return os.path.basename(path) if path else "memory"


def _stored(cursor: Any, name: str | Sequence[str] | None, *, place: str) -> TableName:
    """Return the table meant; views and temporary tables are refused."""
    if name is None:
        names = [found for found, kind in tables_in(cursor) if kind == "table" and found.schema != "penstock"]
        if len(names) != 1:
            told = f"holds {len(names)} tables: {some_of(map(str, names))}" if names else "holds no tables"
            which = ("say which is meant: ", Use("table", str(names[0]))) if names else ("say which is meant",)
            raise UsageError(f"{place} {told}", fixes=[Text(*which)])
        return names[0]
    found, kind = find_table(cursor, name, place=place)
    if kind != "table":
        what = {"view": "a view", "temporary": "a temporary table", "foreign": "a table of another engine"}[kind]
        raise UsageError(
            f"{place}:{found} is {what}, which has no blocks; store its rows (CREATE TABLE new AS SELECT * FROM"
            f" {quote_name(found.table)}), or train by a statement of penstock.connect, which copies them"
        )
    return found


def _cursor_of(connection: Any) -> Any:
    cursor = connection.cursor()
    cursor.execute(SETTLED)
    return cursor


def _read_only(database: str | os.PathLike[str]) -> Any:
    """Open a file for reading alone; one that this process has open for writing already is shared."""
    if os.fspath(database) == MEMORY:
        raise UsageError("a database in memory is its connection's own; give the connection that made it")
    with suppress(DatabaseInUseError):
        return connect_duckdb(database, read_only=True, memory_limit=_CACHE)
    with suppress(DatabaseInUseError):
        return connect_duckdb(database)
    return connect_duckdb(database, read_only=True)


def _unopened(path: str, told: str) -> Exception:
    """Return the error for a database that cannot be opened."""
    if "lock on file" in told:
        pid = re.search(r"PID (\d+)", told)
        return SourceError(
            f"{path} is open in another process{(f' ({pid[1]})' if pid else '')}, and DuckDB gives a file to one"
            " that writes, or to several that read",
            fixes=["close it there", Text("open it with ", Use("read_only", True), " in both")],
        )
    if "not a valid DuckDB" in told:
        return CorruptFileError(f"{path} is not a DuckDB database, or a damaged one")
    if "different configuration" in told:
        return DatabaseInUseError(
            f"{path} is open in this process already, with other settings; give that connection instead of the path"
        )
    return SourceError(f"{path} cannot be opened: {told}")


def _library() -> Any:
    try:
        import duckdb
    except ImportError:
        raise MissingExtraError.of("duckdb", "sql", "reading DuckDB databases") from None
    if int(duckdb.__version__.split(".")[0]) < 2:
        raise MissingExtraError(
            f"DuckDB {duckdb.__version__} is installed, but rowid ranges are read in blocks from 2.0 on; run: pip install"
            " 'duckdb>=2.0'"
        )
    return duckdb
