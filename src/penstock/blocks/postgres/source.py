"""A PostgreSQL table as a source: blocks are ranges of pages, asked for by their row identifiers in one snapshot.

This is the paper's BlockShuffle (section 5.2) from outside the server: the pages of a block are read by a TID range scan,
which costs the same whatever the order of the blocks. Views, foreign and temporary tables are refused.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from penstock.blocks.base import NULLS, Nulls, Snapshot, Source, require_block, require_columns
from penstock.blocks.postgres.connect import Address, Connection, explained
from penstock.blocks.postgres.faults import diagnose, serves_nulls, without_nulls
from penstock.blocks.postgres.fetch import WAYS, ColumnForm, Fetch
from penstock.blocks.postgres.relation import Leaf, StoredColumn, files, look_up, require_rights
from penstock.blocks.postgres.snapshots import Snapshots
from penstock.blocks.postgres.survey import Block, Survey, cut_pages, plan_blocks, spread_blocks, survey_relation
from penstock.blocks.postgres.wire import WireError
from penstock.blocks.refined_source import RefinedSource
from penstock.blocks.sampled_source import TableSize
from penstock.columns.pairs import PAIRS
from penstock.errors import DataChangedError, SourceError, UnknownOptionError, UsageError
from penstock.parallel import cores

_T = TypeVar("_T")
_CONNECTIONS = 4
_SAMPLED, _SMALL = 4, 8
"""Blocks that are looked at where rows are not counted first, and the blocks of a table that is counted all the same."""


class PostgresSource(Source):
    """A table, partitioned table or materialised view of a PostgreSQL server (14 or later) as blocks.

    Rows are read over several connections that share one snapshot: all blocks are of one state of the table, whoever
    writes to it meanwhile. Nothing is installed on the server and nothing is written there. A connection that is lost is
    replaced, and the block asked for again.

    Parameters
    ----------
    address : str
        ``postgresql://user@host/database``, or libpq's ``key=value`` words.
    table : str
        The table's name as in a query, with its schema and quotes where needed.
    columns : sequence of str, optional
        The columns wanted; all if not given.
    block_size : int, optional
        Bytes of a block as they are stored; a megabyte if not given, and less for small tables.
    nulls : str
        ``fill``: serve nulls, for the recipe to fill, but for those of arrays; ``error``: refuse rows with a null in a column
        that is read, with their number; ``skip``: leave out rows with a null in any of the columns.
    connections : int, optional
        How many blocks may be read at once; as many as there are cores if not given, between two and four.
    exact : bool
        Keep to the snapshot in which the rows were counted, for as long as the source is open. Otherwise every epoch
        begins with a new one, so that the server can clean up behind writers, and ``block_rows`` is an estimate. While a
        snapshot lasts, statements that rewrite the table wait.
    listen : callable, optional
        Is told warnings; they are logged if there is none.
    counted : bool
        Whether the rows of all blocks are counted first. Where they are not, ``block_rows`` is an estimate, by the server's statistics
        or a few blocks, and all blocks are of one state until an epoch begins a new one. For a reader that reads every block once
        and keeps it. Small tables are counted all the same.
    sample : int, optional
        Serve so many blocks only, at most a megabyte of each, spread evenly over the table: for a plan, which takes the others
        to be like them. ``whole`` says how large the table is, and ``survey_seconds`` what counting all of it would take.

    Attributes
    ----------
    table : str
        The table's name with its schema.
    whole : TableSize
        The rows, blocks and bytes of the table, estimated where a sample is served.
    survey_seconds : float
        About what counting the rows of all blocks takes.
    snapshots : list of Snapshot
        Every snapshot read from, and when it was taken.
    warnings : list of str
        What was warned of: connections lost with their snapshot.
    lengths : dict
        The shortest and the longest value of each column of arrays, vectors or bytes.
    """

    def __init__(
        self,
        address: str | Address,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        block_size: int | None = None,
        nulls: Nulls = "fill",
        connections: int | None = None,
        exact: bool = True,
        listen: Callable[[str], None] | None = None,
        counted: bool = True,
        sample: int | None = None,
    ) -> None:
        if nulls not in NULLS:
            raise UnknownOptionError.of("nulls", nulls, NULLS)
        if connections is not None and connections < 1:
            raise UsageError(
                "cannot read anything", option="connections", value=connections, fixes=["choose 1 or more"]
            )
        place = address if isinstance(address, Address) else Address.parse(address)
        self.exact_rows = exact
        self._one_state = False
        self.threads = connections or max(2, min(_CONNECTIONS, cores()))
        self._closed = False
        self._epoch = 0
        self._way = 0
        self._fetches: dict[tuple[tuple[str, ...], int], Fetch] = {}
        self._lock, self._surveying = threading.Lock(), threading.Lock()
        try:
            with place.connect() as connection:
                self.relation = look_up(connection, table, place=str(place))
                self.table = self.relation.name
                self.name = f"{self.table} in {place}"
                chosen = self.relation.choose(columns, place=self.name)
                require_rights(connection, self.relation, chosen, place=str(place))
        except psycopg.Error as error:
            raise explained(error, place=f"table {table!r} in {place}") from None
        if not chosen:
            raise SourceError(f"{self.name} has no columns to read")
        self._pool = Snapshots(place, connections=self.threads, listen=listen)
        self._pool.guard = partial(_hold, leaves=self.relation.leaves, name=self.name)
        self._end = weakref.finalize(self, self._pool.close)  # also where nobody calls close
        self._nulls = nulls
        self._where: sql.Composable = without_nulls(chosen) if nulls == "skip" else sql.SQL("")
        try:
            few = _SAMPLED if sample is None and not counted else sample
            sampled = None if few is None else spread_blocks(self.relation, chosen, block_size, few)
            if sample is None and sampled is not None and sampled.count <= _SMALL:
                sampled = None
            self._survey = partial(
                survey_relation,
                self._run,
                self.relation,
                chosen,
                nulls=nulls,
                cover=not exact,
                threads=self.threads,
            )
            self._plan = partial(plan_blocks, self.relation, chosen, block_size)
            found = self._survey(self._plan() if sampled is None else sampled.blocks)
            self._flaws = found.flaws
            self.lengths = found.lengths
            if columns is not None:
                self._require_sound([column.name for column in chosen])
        except psycopg.Error as error:
            self.close()
            raise explained(error, place=self.name) from None
        except BaseException:
            self.close()
            raise
        if self.relation.vectors is None:
            self._way = 1
        self._forms = {form.column.name: form for form in _forms(chosen, found)}
        self.schema = pa.schema([(name, form.type) for name, form in self._forms.items()])
        self._surveyed = sampled is None
        self._blocks: tuple[Block, ...] = found.blocks
        if sampled is not None and sample is None:
            rows = sampled.rows(self.relation, found.blocks) / max(sampled.pages, 1)
            self._blocks = tuple(block.with_rows(rows, self.relation) for block in self._plan())
            self.exact_rows, self._one_state = False, exact
        self.block_rows = np.array([block.rows for block in self._blocks], np.int64)
        self.block_bytes = np.array([block.nbytes for block in self._blocks], np.int64)
        self._found_rows = self.block_rows.copy()
        self.whole = TableSize(int(self.block_rows.sum()), len(self._blocks), int(self.block_bytes.sum()))
        self.survey_seconds = found.seconds / self.threads
        if sampled is not None and sample is not None:
            self.whole = TableSize(sampled.rows(self.relation, found.blocks), sampled.count, sampled.nbytes)
            self.survey_seconds *= sampled.nbytes / max(1, sum(block.nbytes for block in sampled.blocks))

    @property
    def snapshots(self) -> list[Snapshot]:
        """Every snapshot read from."""
        return self._pool.taken

    @property
    def warnings(self) -> list[str]:
        """What was warned of."""
        return self._pool.warnings

    @property
    def fingerprint(self) -> str:
        """A hash over the table's files, pages, number of rows and columns; it does not see values changed in place.

        Where rows are not counted first, it is that of the table once all blocks have been read.
        """
        leaves = [(leaf.oid, leaf.file, leaf.nbytes) for leaf in self.relation.leaves]
        columns = [(form.column.name, form.column.type, str(form.type)) for form in self._forms.values()]
        told = repr((self.relation.oid, leaves, int(self._found_rows.sum()), columns))
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; only the columns named, in that order."""
        require_block(block, len(self._blocks), name=self.name)
        batch = self._read_range(self._blocks[block], f"block {block}", columns)
        if not self.exact_rows:
            self._found_rows[block] = batch.num_rows
        return batch

    def refine(self, rows: int, most: int) -> RefinedSource:
        """Return the same rows in ranges of fewer pages; see `BlockSource.refine`."""
        if self._closed:
            raise SourceError(f"{self.name} is closed")
        owners, parts = cut_pages(
            self._run, self.relation, self._blocks, rows, where=self._where, exact=self.exact_rows
        )
        return RefinedSource(
            self,
            owners=np.array(owners, np.int64),
            rows=np.array([part.rows for part in parts], np.int64),
            nbytes=np.array([part.nbytes for part in parts], np.int64),
            read=lambda part, columns: self._read_range(parts[part], f"block {part}", columns),
        )

    def _read_range(self, block: Block, what: str, columns: Sequence[str] | None) -> pa.RecordBatch:
        if self._closed:
            raise SourceError(f"{self.name} is closed")
        wanted = tuple(self.schema.names if columns is None else columns)
        require_columns(self.schema, wanted, place=self.name)
        self._require_sound(wanted)
        rows = block.range
        leaf = self.relation.leaves[rows.leaf]
        while True:
            fetch = self._fetch(wanted)
            try:
                sent = self._run(partial(fetch.ask, rows=rows))
                if sent[1] != leaf.file:
                    raise _changed(self.name)
                batch = fetch.decode(sent)
                break
            except (WireError, psycopg.DataError) as error:
                self._survey_rest(wanted)
                if isinstance(error, WireError) and self._serve_nulls():  # a row changed since they were counted
                    continue
                if fetch.way == WAYS[-1]:
                    raise diagnose(self._run, self.relation, fetch, rows, error, place=self.name) from None
                # What the faster ways refuse may be in order: vectors hold no NaN, arrays may count from 0.
                self._way = max(self._way, WAYS.index(fetch.way) + 1)
        if self.exact_rows and batch.num_rows != block.rows:
            raise DataChangedError(
                f"{self.name}: {what} has {batch.num_rows} rows where {block.rows} were counted, as the"
                " snapshot they were counted in is gone; open it again and start afresh"
            )
        if self._one_state and len(self._pool.taken) > 1:
            raise DataChangedError(
                f"{self.name}: the snapshot in which the blocks before {what} were read is gone; open it again and start afresh"
            )
        return batch

    def _survey_rest(self, wanted: Sequence[str]) -> None:
        """Look at all blocks for what the few looked at first did not show, and refuse columns that cannot be read."""
        with self._surveying:  # whoever comes across the same meanwhile waits for what is found
            if not self._surveyed:
                self._flaws = self._survey(self._plan()).flaws
                self._surveyed = True
        self._require_sound(wanted)

    def begin(self, epoch: int) -> None:
        """Read from here on in a new snapshot, where rows need not be those that were counted."""
        before, self._epoch = self._epoch, epoch
        if epoch > 0 and epoch != before and not self.exact_rows:
            self._one_state = False
            self._pool.renew()

    def check(self) -> None:
        """Raise `DataChangedError` if the table was truncated, rewritten or dropped.

        A snapshot looks after that itself when it is taken: none is taken just for this.
        """
        if self._pool.open and not self._closed:
            self._run(partial(_verify, leaves=self.relation.leaves, name=self.name))

    def release(self) -> None:
        """End the transactions and close the connections, so that the server can clean up; reading opens them again."""
        self._pool.release()

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        self._end()

    def explain(self, block: int = 0, columns: Sequence[str] | None = None) -> str:
        """Return the server's plan for reading a block."""
        rows = self._blocks[block].range
        fetch = self._fetch(tuple(self.schema.names if columns is None else columns))
        query = sql.SQL("EXPLAIN ") + fetch.query(self.relation.leaves[rows.leaf], rows.condition)
        lines = self._run(lambda connection: connection.execute(query, rows.bounds).fetchall())
        return "\n".join(line[0] for line in lines)

    def _fetch(self, wanted: tuple[str, ...]) -> Fetch:
        with self._lock:
            key = wanted, self._way
            if key not in self._fetches:
                forms = [self._forms[name] for name in wanted]
                self._fetches[key] = Fetch(forms, self.relation, WAYS[self._way], self._where)
            return self._fetches[key]

    def _serve_nulls(self) -> bool:
        """Ask from here on for the nulls of all columns that may have some; return whether that is new."""
        if self._nulls != "fill":
            return False
        with self._lock:
            more = [form for form in self._forms.values() if not (form.nullable or form.column.required)]
            more = [form for form in more if serves_nulls(form.column)]
            self._forms |= {form.column.name: replace(form, nullable=True) for form in more}
            self._fetches = {} if more else self._fetches
        return bool(more)

    def _run(self, work: Callable[[Connection], _T]) -> _T:
        """Do work with the server, whose errors are explained; those of a row's values are for the caller."""
        try:
            return self._pool.run(work)
        except psycopg.DataError:
            raise
        except psycopg.Error as error:
            raise explained(error, place=self.name) from None

    def _require_sound(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._flaws:
                raise self._flaws[name].error(place=self.name)


def _hold(connection: Connection, leaves: Sequence[Leaf], name: str) -> None:
    """Keep tables from being rewritten while a snapshot lasts, and see that they have not been before."""
    for leaf in leaves:
        connection.execute(sql.SQL("SELECT FROM ONLY {} LIMIT 0").format(leaf.identifier))
    _verify(connection, leaves, name)


def _verify(connection: Connection, leaves: Sequence[Leaf], name: str) -> None:
    now = files(connection, leaves)
    if any(now.get(leaf.oid) != leaf.file for leaf in leaves):
        raise _changed(name)


def _changed(name: str) -> DataChangedError:
    return DataChangedError(
        f"{name} was truncated, rewritten (VACUUM FULL, CLUSTER, ALTER TABLE) or dropped while it was in use: its rows are"
        " no longer where they were; open it again and start afresh"
    )


def _forms(columns: Sequence[StoredColumn], found: Survey) -> list[ColumnForm]:
    """Return how each column is served; the parts of sparse rows are lists also where all are of one length."""
    names = {column.name for column in columns}
    sparse = {name for pair in PAIRS if names.issuperset(pair) for name in pair}
    forms = []
    for column in columns:
        lengths = found.lengths.get(column.name)
        if column.kind == "vector" and (lengths is None or lengths[0] != lengths[1]):
            column = replace(column, kind="array", cast="float4[]")
        form = ColumnForm.of(column, lengths, alike=column.name not in sparse)
        forms.append(replace(form, nullable=column.name in found.nullable))
    return forms
