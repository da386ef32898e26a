"""The fast layout: an Arrow IPC file of record batches with the same number of rows each.

`BlockWriter` regroups whatever batches it is given and writes to a temporary name in the same folder; only a
finished file takes the name asked for, and a failure leaves nothing behind. The schema's metadata says how the
file is laid out, so that opening it need not look at every block; every block has a checksum. `convert` brings any data into
this layout.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa

from penstock.blocks.block_sums import write_sums
from penstock.blocks.ipc import CHECKSUMS
from penstock.blocks.storage import PathLike
from penstock.checksum import checksum
from penstock.columns.base import without_dictionary
from penstock.columns.schema_notes import METADATA_KEY, index_columns
from penstock.errors import DataError, UsageError, WriteError
from penstock.outputs import Draft, read_at, sync_folder, write_failure

# Numbers known only at the end are written over these, in the schema at both ends of the file.
_FILLER = {
    "rows": 999999999999001,
    "blocks": 999999999999002,
    "width": 999999999999003,
    "nulls": 999999999999004,
    "rows_per_block": 999999999999005,
}


class BlockWriter:
    """Writes record batches as blocks of a constant number of rows.

    Parameters
    ----------
    path : path
        The file to make; it appears when the writer is closed without an error.
    schema : pyarrow.Schema
        Its columns. Those marked not nullable are checked to have no nulls; dictionaries are written as values.
    rows_per_block : int
        Rows in every block but the last.
    most_bytes : int, optional
        A block that would hold more ends early. A file with such a block notes no constant number of rows, and is
        opened by asking every block for its own.
    metadata : dict
        More to note about the layout: ``features``, ``label``, ``width``, ``sparse``, ``columns``.

    Examples
    --------
    >>> import tempfile, os, pyarrow as pa
    >>> folder = tempfile.TemporaryDirectory()
    >>> batch = pa.record_batch({"x": [1.0, 2.0, 3.0, 4.0, 5.0]})
    >>> with BlockWriter(os.path.join(folder.name, "a.arrow"), batch.schema, rows_per_block=2) as writer:
    ...     writer.write(batch)
    >>> writer.rows, writer.blocks
    (5, 3)
    """

    def __init__(
        self,
        path: PathLike,
        schema: pa.Schema,
        *,
        rows_per_block: int,
        most_bytes: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        if rows_per_block < 1:
            raise UsageError("must be 1 or more", option="rows_per_block", value=rows_per_block)
        self.path = os.fspath(path)
        self.rows = 0
        self.blocks = 0
        self.nulls = 0
        self.width: int | None = (metadata or {}).get("width")
        self._size = rows_per_block
        self._pending: list[pa.RecordBatch] = []
        self._held = 0
        self._most = most_bytes
        self._held_bytes = 0
        self._uneven = False
        self._plain = pa.schema([_without_dictionary(field) for field in schema])
        index = [name for name in index_columns(schema) if name in schema.names]
        noted = {"version": 1, CHECKSUMS: True, **(metadata or {}), **({"index": index} if index else {}), **_FILLER}
        others = {k: v for k, v in (schema.metadata or {}).items() if k not in (METADATA_KEY, b"pandas")}
        self.schema = self._plain.with_metadata({**others, METADATA_KEY: json.dumps(noted).encode()})
        self._sums: dict[tuple[int, int], int] = {}
        self._sink: Any = None
        self._writer: Any = None
        self._draft = Draft(self.path)
        try:
            self._sink = pa.OSFile(str(self._draft.path), "wb")
            self._writer = pa.ipc.new_file(self._sink, self.schema)
        except OSError as error:
            self.discard()
            raise write_failure(self.path, error) from error

    @property
    def nbytes(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell()) if self._sink is not None else os.path.getsize(self.path)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; they reach the file whenever a block is full."""
        batch = self._conform(batch)
        at = 0
        while at < batch.num_rows:
            piece = batch.slice(at, self._size - self._held)
            if self._most is not None:
                piece = self._fitting(piece)
                if not piece.num_rows:
                    self._uneven = True
                    self._flush()
                    continue
                self._held_bytes += piece.nbytes
            self._pending.append(piece)
            self._held += piece.num_rows
            at += piece.num_rows
            if self._held == self._size:
                self._flush()

    def close(self) -> None:
        """Write the last rows and give the file its name."""
        if self._sink is None:
            return
        try:
            if self._pending:
                self._flush()
            self._writer.close()
            self._sink.close()
            self._fill_in()
            write_sums(self._draft.path, self._sums)
            self._draft.publish()
            sync_folder(os.path.dirname(self.path))
        except OSError as error:
            failure = error if isinstance(error, WriteError) else write_failure(self.path, error)
            self.discard()
            raise failure from error
        except BaseException:
            self.discard()
            raise
        self._sink = self._writer = None

    def discard(self) -> None:
        """Remove what was written; what stood at the path before still does."""
        for part in (self._writer, self._sink):
            if part is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    part.close()
        self._writer = self._sink = None
        self._pending = []
        self._draft.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _fitting(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        """Return as much of a piece as the block may still hold: nothing if it is full, a row at least if empty."""
        least = 0 if self._held else 1
        while piece.num_rows > least and self._held_bytes + piece.nbytes > (self._most or 0):
            piece = piece.slice(0, max(piece.num_rows // 2, least))
        return piece

    def _flush(self) -> None:
        whole = self._pending[0] if len(self._pending) == 1 else pa.concat_batches(self._pending)
        self._pending, self._held, self._held_bytes = [], 0, 0
        try:
            before = self._sink.tell() if self.blocks else 0
            self._writer.write_batch(whole)
            self._note_sum(before, self._sink.tell())
        except OSError as error:
            failure = write_failure(self.path, error)
            self.discard()
            raise failure from error
        self.rows += whole.num_rows
        self.nulls += sum(_nulls(column) for column in whole.columns)
        self.blocks += 1

    def _note_sum(self, start: int, stop: int) -> None:
        """Note the checksum of a block just written, read back while the system still has it in memory."""
        if not start:  # the schema was written with the first block
            start = int.from_bytes(read_at(self._draft.fileno(), 4, 12), "little") + 16
        data = read_at(self._draft.fileno(), stop - start, start)
        self._sums[start, len(data)] = checksum(data, start)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for field in self._plain:
            array = without_dictionary(batch.column(field.name))
            if not field.nullable and array.null_count:
                raise DataError(f"column {field.name!r} holds a null, but the layout of {self.path} has none there")
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _fill_in(self) -> None:
        """Write the totals over their fillers, in the schema at the head and in the footer."""
        totals = {
            "rows": self.rows,
            "blocks": self.blocks,
            "width": self.width or 0,
            "nulls": self.nulls,
            "rows_per_block": 0 if self._uneven else self._size,
        }
        with open(self._draft.path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            head = _number_at(file, 12) + 16  # magic, marker and length, then the schema
            foot = _number_at(file, size - 10) + 10
            for start, length in ((0, head), (size - foot, foot)):
                file.seek(start)
                found = file.read(length)
                for name, filler in _FILLER.items():
                    digits = str(filler).encode()
                    for match in re.finditer(digits, found):
                        file.seek(start + match.start())
                        file.write(str(totals[name]).rjust(len(digits)).encode())


def _without_dictionary(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _nulls(array: pa.Array) -> int:
    """Count a column's nulls, those inside its lists too."""
    kind = array.type
    count = int(array.null_count)
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        count += _nulls(array.flatten())
    return count


def _number_at(file: BinaryIO, offset: int) -> int:
    file.seek(offset)
    return int.from_bytes(file.read(4), "little")
