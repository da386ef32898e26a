"""What the front asks of a database: rows in blocks, statements run, a place for models.

An engine is one open database and a session on it. Training reads over connections of its own, so that reading overlaps
learning; a table that only the session can see (temporary, or changed in an open transaction) is read through the
session instead, once, into a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.blocks.sampled_source import TableSize
from penstock.budget import show_bytes
from penstock.closing import Closing
from penstock.errors import DatabaseError, PenstockError
from penstock.events import Stream
from penstock.sql.dialect import Dialect
from penstock.sql.query_copy import QueryCopy
from penstock.sql.query_copy import Reading as Reading
from penstock.sql.query_copy import copy_rows as copy_rows
from penstock.sql.statements import Query

if TYPE_CHECKING:
    from penstock.groups.results import GroupModels
    from penstock.linear import LinearModel
    from penstock.sql.catalog import Catalog
    from penstock.sql.options import PackSettings, Settings
    from penstock.sql.result import Result
    from penstock.sql.statements import Train

_COPY = "Copy of the query's result"
SAMPLED_BLOCKS = 4
"""Blocks of a table that a plan looks at."""
_GUESSED = 128
"""Bytes of a list, a text or the like whose length nobody told."""


@dataclass(frozen=True, slots=True)
class QueryScan:
    """How a query's rows are read, for EXPLAIN.

    Attributes
    ----------
    title : str
        Such as ``TID Range Scan on public.higgs`` or ``Scan of row groups of main.higgs``.
    details : tuple of str
        What else there is to know, a line each.
    rows, nbytes : int
        How many; an estimate where ``exact`` is false.
    copied : bool
        Whether the query's result is copied to a file first.
    """

    title: str
    details: tuple[str, ...]
    rows: int
    nbytes: int
    exact: bool = True
    copied: bool = False
    run_seconds: float = 0.0
    """What the engine itself is expected to take to make the rows that are copied."""


@dataclass(slots=True)
class QuerySample(Closing):
    """A few blocks of a stored table, for a plan: how large the table is, how its rows are read, what surveying it takes."""

    source: BlockSource
    size: TableSize
    scan: QueryScan
    survey_seconds: float
    exact: bool = True

    def close(self) -> None:
        """Close the source."""
        self.source.close()


@dataclass(slots=True)
class QueryBlocks(Closing):
    """A query's rows as blocks, and how they came about; closing it removes the copy, if there is one."""

    source: BlockSource
    scan: QueryScan
    copied: QueryCopy | None = None

    def close(self) -> None:
        """Close the source, and remove what was written for it."""
        (self.source if self.copied is None else self.copied).close()


def blocks_of_copy(copied: QueryCopy, why: str) -> QueryBlocks:
    """Return a copy as opened rows; ``why`` there had to be one is for EXPLAIN."""
    details = [f"copied once, {show_bytes(copied.nbytes)} in a temporary file, because {why}"]
    if copied.skipped:
        details.append(f"{copied.skipped:,} rows with a null are left out")
    return QueryBlocks(copied.source, QueryScan(_COPY, tuple(details), copied.rows, copied.nbytes, copied=True), copied)


def estimate_copy(why: str, rows: int, kinds: Iterable[pa.DataType], *, seconds: float = 0.0) -> QueryScan:
    """Return how a query would be read that has to be copied, by an estimate of its rows and its columns' types.

    ``seconds`` are those in which the engine is expected to make the rows.
    """
    detail = f"would be copied once to a temporary file, because {why}"
    nbytes = rows * sum(map(estimated_bytes, kinds))
    return QueryScan(_COPY, (detail,), rows, nbytes, exact=False, copied=True, run_seconds=seconds)


def estimated_bytes(kind: pa.DataType) -> int:
    """Return about how many bytes a value of a type takes."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * 4
    try:
        return max(int(kind.bit_width) // 8, 1)
    except ValueError:
        return _GUESSED


@dataclass(frozen=True, slots=True)
class StatementRows:
    """What a statement gave back: columns and rows as Python values, or how many rows it touched.

    ``columns`` is empty for statements without rows, and ``types`` are the columns' as Arrow has them; ``status`` is the
    engine's word for what was done, ``notices`` what else it had to say.
    """

    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[Any]] = ()
    status: str = ""
    notices: Sequence[str] = ()
    types: tuple[pa.DataType, ...] = ()


class ModelTable(Protocol):
    """The table of an engine's database that holds models, a row each.

    Attributes
    ----------
    name : str
        Its quoted name.
    created : str
        SQL for the time of a row in microseconds since 1970; the column ``created_at`` has it by default.
    weights_type, header_type : str
        What a parameter is cast to that holds weights (a NumPy array of float32) or JSON.
    most_weights : int or None
        The most weights that a row can hold.
    """

    name: str
    created: str
    weights_type: str
    header_type: str
    most_weights: int | None

    def exists(self) -> bool:
        """Return whether the table is there."""
        ...

    def create(self) -> None:
        """Make the table, which is not there, with the columns of `model_columns`."""
        ...

    def require_trusted(self) -> None:
        """Raise where using the table could run code of another user."""
        ...

    def is_conflict(self, error: DatabaseError) -> bool:
        """Return whether a statement failed because another session did the same at the same time."""
        ...

    def is_missing(self, error: DatabaseError) -> bool:
        """Return whether a statement failed because it did not see the table."""
        ...

    def refusal(self, error: DatabaseError, rights: str | None) -> PenstockError | None:
        """Return what tells users how to get the rights that they lack, to make the table where ``rights`` is None."""
        ...


def model_columns(
    weights: str = "float4[]", header: str = "json", created: str = "timestamptz NOT NULL DEFAULT now()"
) -> str:
    """Write the columns of a table of models."""
    return (
        f"name text PRIMARY KEY, kind text NOT NULL, outputs int NOT NULL, width bigint NOT NULL, coef {weights} NOT NULL,"
        f" intercept {weights} NOT NULL, header {header} NOT NULL, format int NOT NULL, created_at {created},"
        " penstock_version text NOT NULL"
    )


class CatalogRun(Protocol):
    """Runs a statement on the table of models."""

    def __call__(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement; a parameter that is a NumPy array of float32 stands for a list of floats."""
        ...


class ServerTraining(Protocol):
    """A server that can train by itself, so that no row leaves it."""

    def accepts(self, chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
        """Return whether the server can train with these settings now."""
        ...

    def accepts_groups(self, statement: Train, chosen: Settings, features: Sequence[str], schema: pa.Schema) -> bool:
        """Return whether the server can train a model per group with these settings now."""
        ...

    def train_groups(
        self, statement: Train, chosen: Settings, features: Sequence[str], *, catalog: Catalog, stream: Stream
    ) -> GroupModels | None:
        """Train a model per group under the statement's name, and return them as the catalogue has them. None as of `train`."""
        ...

    def train(
        self, statement: Train, chosen: Settings, features: Sequence[str], *, catalog: Catalog, stream: Stream
    ) -> LinearModel | None:
        """Train a model under the statement's name, and return it as the catalogue has it.

        None where rows hold what the server cannot learn from and a recipe can, such as nulls that are to be filled.
        """
        ...

    def explain(self, statement: Train, chosen: Settings, features: Sequence[str], *, analyze: bool) -> Result | None:
        """Return the server's own plan of a training; with ``analyze`` it runs, and keeps no model. None as of `train`."""
        ...


class Engine(Protocol):
    """One open database.

    The first attributes declare what an engine can do; nothing outside its package asks which engine it is.

    Attributes
    ----------
    remote : bool
        Whether rows come over a wire, so that caching them and reading over several connections has a meaning.
    packs : bool
        Whether `pack` is supported.
    server_training : ServerTraining or None
        What trains inside the database, where that is possible.
    models : ModelTable
        Where models are kept.
    dialect : Dialect
        Its SQL; with ``predictions`` where models can be written as expressions.
    name : str
        Its name in the registry, such as ``duckdb``.
    place : str
        What messages call the database; never with a password in it.
    """

    remote: bool
    packs: bool
    server_training: ServerTraining | None
    models: ModelTable
    dialect: Dialect
    name: str
    place: str

    def run(self, text: str, parameters: Sequence[Any] = ()) -> StatementRows:
        """Run one statement on the session's own connection; parameters stand as ``$1``, ``$2`` in the text."""
        ...

    def in_transaction(self) -> bool:
        """Return whether the session has a transaction open, which models are then written in."""
        ...

    def catalog_transaction(self) -> AbstractContextManager[CatalogRun]:
        """Give what runs statements on the table of models: of the open transaction, or else of one that ends with the block.

        A block that raises takes back what it did, in an open transaction as far as the engine has savepoints.
        """
        ...

    def run_in_catalog(self, text: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement in a `catalog_transaction`."""
        ...

    def describe(self, query: Query) -> pa.Schema:
        """Return the columns of a query as Arrow types, without running it; lists of unknown length are lists."""
        ...

    def keys(self, query: Query) -> tuple[str, ...]:
        """Return those columns of a stored table that are its primary key, to warn where they would be features."""
        ...

    def open(self, query: Query, columns: Sequence[str], reading: Reading, *, stream: Stream) -> QueryBlocks:
        """Open a query's rows as blocks, only the columns named; lists of equal length become fixed-size lists."""
        ...

    def estimate(self, query: Query, columns: Sequence[str], reading: Reading) -> QueryScan:
        """Say how `open` would read a query that it would have to copy, without running any of it."""
        ...

    def sample(self, query: Query, columns: Sequence[str], reading: Reading) -> QuerySample | None:
        """Open a few blocks of a query's rows, as many whatever the size of the table; None where `open` would copy the rows."""
        ...

    def stream_rows(self, query: Query) -> AbstractContextManager[pa.RecordBatchReader]:
        """Give a query's rows as a stream of Arrow batches, in the types of `describe`; good inside the ``with``."""
        ...

    def store_rows(self, rows: pa.RecordBatchReader) -> str:
        """Put rows into a new temporary table of the session, and return its quoted name."""
        ...

    def pack(self, table: str, into: str, chosen: PackSettings, *, stream: Stream) -> int:
        """Copy a table, named as the user wrote it, with its features as one packed column; return its rows."""
        ...

    def user(self) -> str | None:
        """Return who runs the session's statements, to be kept with models; None where that is not known."""
        ...

    def quote(self, name: str) -> str:
        """Write a name as an identifier."""
        ...

    def tables(self) -> list[tuple[str, dict[str, str]]]:
        """Return the tables and views that the session can name, with their columns and the engine's words for their types."""
        ...

    def cancel(self) -> None:
        """Stop the statement that is running; called from another thread or a signal handler."""
        ...

    def close(self) -> None:
        """Close the session."""
        ...
