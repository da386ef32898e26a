"""Write grouped rows: record batches of one group each, in Arrow files of about 256 MB, and what tells where each lies.

The files are in the fast layout, so any reader of Arrow, ours too, can open them. Rows come group by group, or find their
places laid out beforehand. Files are brought to disk in the background; the note comes last.
"""

from __future__ import annotations

import contextlib
import json
import os
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.batch import Batch, Csr, Floats
from penstock.blocks.base import Int64s
from penstock.blocks.block_sums import write_sums
from penstock.blocks.ipc import CHECKSUMS, read_footer
from penstock.blocks.storage import LocalFile
from penstock.closing import Closing
from penstock.columns.recipe import Recipe
from penstock.columns.schema_notes import METADATA_KEY
from penstock.errors import WriteError
from penstock.groups import keys
from penstock.groups.external_sort import Piece
from penstock.groups.grouped import BLOCKS, GROUPS, NOTE, padded, rows_name
from penstock.groups.keys import Key
from penstock.groups.row_scatter import HollowFile, Laid
from penstock.groups.sorted_runs import RowShape
from penstock.outputs import atomic_path, writing
from penstock.sealed import seal, write_note

FILE_BYTES = 256_000_000


class GroupedWriter(Closing):
    """Writes the rows of groups, one group after another, into an empty folder, in blocks of ``most`` bytes."""

    def __init__(self, folder: Path, recipe: Recipe, *, most: int) -> None:
        self.folder = folder
        self.rows = self.nbytes = 0
        self._shape = RowShape(recipe)
        self._schema = _schema(recipe)
        self._kinds = [field.type for field in self._schema]
        self._most = most
        # Of each block; arrays, since there may be many.
        self._blocks = {name: array("q") for name in ("group", "file", "rows", "first", "entries")}
        self._places: list[np.ndarray[Any, Any]] = []
        self._sizes: list[int] = []
        self._sink: Any = None
        self._writer: Any = None
        self._syncing: list[Future[None]] = []
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="penstock-sync")
        self._group = self._written = -1
        self._done = 0
        self._held: list[Batch] = []
        self._held_bytes = 0
        self._blank: Floats | None = None
        self._whole = True

    def lay(self, counts: Int64s) -> Laid:
        """Write all but the rows, of which each group has so many; they must all be put in place before `finish`."""
        shape, most = self._shape, int(counts.max())
        fits = max(self._most // shape.row_bytes, 1)
        self._blank = np.zeros(min(fits, most) * shape.width, np.float32)  # never touched, so it takes no memory
        x = self._blank.reshape(-1, shape.width)
        blocks = -(-counts // fits)
        with writing(self._path()):
            for group, count in enumerate(counts.tolist()):
                for start in range(0, count, fits):
                    rows = min(fits, count - start)
                    blank = self._blank[:rows]
                    self._write(group, Batch(x[:rows], blank, blank if shape.weighted else None))
            self._end_file()
        self.rows = int(counts.sum())
        self.nbytes = int(shape.nbytes(self.rows, 0))
        file, rows = (np.array(self._blocks[name], np.int64) for name in ("file", "rows"))
        paths = [self.folder / rows_name(number) for number in range(len(self._sizes))]
        return Laid(paths, file, np.concatenate(self._places), rows, np.cumsum(blocks) - blocks, fits, self._whole)

    def sync(self) -> None:
        """Bring to disk in the background what was put in place so far, unless that is going on."""
        if all(future.done() for future in self._syncing):
            self._wait()
            self._syncing = [self._pool.submit(_sync, self.folder / rows_name(n)) for n in range(len(self._sizes))]

    def put(self, piece: Piece) -> None:
        """Write whole groups, or a block of one."""
        at = 0
        with writing(self._path()):
            for group, count in enumerate(piece.counts.tolist(), piece.first):
                if count:
                    self._write(group, piece.rows if count == len(piece.rows) else piece.rows.slice(at, at + count))
                    at += count
        self.rows += len(piece.rows)
        self.nbytes += self._size(piece.rows)

    def add(self, group: int, rows: Batch) -> None:
        """Add rows of the group that came last, or of a new one; they reach the file when they fill a block."""
        if group != self._group:
            self.flush()
        self._held.append(rows)
        self._held_bytes += self._size(rows)
        self._group = group
        while self._held_bytes > self._most and (len(self._held) > 1 or len(self._held[0]) > 1):
            whole = Batch.concat(self._held)
            count = self._fitting(whole)
            self.put(Piece(group, np.array([count]), whole.slice(0, count)))
            rest = whole.take(np.arange(count, len(whole)))  # a copy: what was written is let go
            self._held, self._held_bytes = ([rest], self._size(rest)) if len(rest) else ([], 0)
            if not self._held:
                break

    def flush(self) -> None:
        """Write what is held."""
        if self._held:
            whole = Batch.concat(self._held)
            self._held, self._held_bytes = [], 0
            self.put(Piece(self._group, np.array([len(whole)]), whole))

    def finish(self, found: Sequence[Key], kinds: Sequence[pa.DataType], note: Mapping[str, Any]) -> None:
        """Write the last rows, the tables of groups and blocks, and the note."""
        self.flush()
        with writing(self._path()):
            self._end_file()
        self._wait()
        if self._blank is not None:
            with writing(self.folder):
                for number in range(len(self._sizes)):
                    write_sums(self.folder / rows_name(number))
                    self._sizes[number] = (self.folder / rows_name(number)).stat().st_size
            self.sync()
            self._wait()
        columns = {name: np.array(column, np.int64) for name, column in self._blocks.items()}
        columns["at"] = np.concatenate([np.zeros(0, np.int64), *self._places])
        columns["batch"] = np.arange(len(columns["file"])) - np.searchsorted(columns["file"], columns["file"])
        totals = np.zeros(len(found), np.int64)
        np.add.at(totals, columns["group"], columns["rows"])
        names = ["number", "text", "rows"]
        while set(names) & set(note["by"]):
            names = [f"{name}_" for name in names]
        texts = pa.array((keys.to_text(key) for key in found), pa.string())
        arrays = [pa.array(np.arange(len(found))), texts, pa.array(totals), *keys.to_columns(found, kinds)]
        told = {
            **note,
            "groups": len(found),
            "rows": self.rows,
            "bytes": self.nbytes,
            "files": self._sizes,
        }
        with writing(self.folder):
            for name, table in (
                (GROUPS, pa.Table.from_arrays(arrays, names=[*names, *note["by"]])),
                (BLOCKS, pa.table(columns)),
            ):
                with atomic_path(self.folder / name) as temporary:
                    pq.write_table(table, temporary, write_page_checksum=True)
                    seal(temporary)
            write_note(self.folder / NOTE, told)

    def close(self) -> None:
        """Stop writing."""
        for part in (self._writer, self._sink):
            if part is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    part.close()
        self._writer = self._sink = None
        self._pool.shutdown()

    def _write(self, group: int, rows: Batch) -> None:
        if self._writer is None:
            path = self._path()
            self._sink = pa.OSFile(str(path), "wb") if self._blank is None else HollowFile(path, self._blank)
            self._writer = pa.ipc.new_file(self._sink, self._schema)
        self._writer.write_batch(self._arrow(rows))
        first = self._done if group == self._written else 0
        entries = len(rows.x.indices) if isinstance(rows.x, Csr) else 0
        for column, value in zip(self._blocks.values(), (group, len(self._sizes), len(rows), first, entries)):
            column.append(value)
        self._written, self._done = group, first + len(rows)
        if self._sink.tell() >= FILE_BYTES:
            self._end_file()

    def _end_file(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._sink.close()
        path = self._path()
        if isinstance(self._sink, HollowFile):
            self._whole = self._whole and self._sink.whole
        else:
            write_sums(path)
            self._syncing.append(self._pool.submit(_sync, path))
        self._writer = self._sink = None
        file = LocalFile(path)
        try:
            footer, size = read_footer(file), file.size
        finally:
            file.close()
        rows, entries = (np.array(self._blocks[name][-len(footer.body) :], np.int64) for name in ("rows", "entries"))
        if not np.array_equal(
            body_bytes(self._shape, rows, entries), footer.body
        ):  # rows are found by where they must lie
            raise WriteError(f"{path} is not laid out as it should be by pyarrow {pa.__version__}; use another version")
        self._sizes.append(size)
        self._places.append(footer.offset + footer.meta)

    def _wait(self) -> None:
        with writing(self.folder):
            for future in self._syncing:
                future.result()

    def _path(self) -> Path:
        return self.folder / rows_name(len(self._sizes))

    def _arrow(self, rows: Batch) -> pa.RecordBatch:
        """Return rows as Arrow, sharing their memory; from arrays, since of a slice Arrow may write more than it is."""
        kinds = self._kinds
        columns: list[pa.Array]
        if isinstance(rows.x, Csr):
            offsets = pa.array(rows.x.indptr.astype(np.int32))  # a slice's begin at zero
            inner = (rows.x.indices, rows.x.values)
            columns = [pa.ListArray.from_arrays(offsets, pa.array(v), type=k) for v, k in zip(inner, kinds)]
        else:
            columns = [pa.FixedSizeListArray.from_arrays(pa.array(rows.x.reshape(-1)), type=kinds[0])]
        columns += [pa.array(column) for column in (rows.y, rows.weight) if column is not None]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _size(self, rows: Batch) -> int:
        return int(self._shape.nbytes(len(rows), len(rows.x.indices) if isinstance(rows.x, Csr) else 0))

    def _fitting(self, rows: Batch) -> int:
        """Return how many rows fill a block, at least one."""
        ends = rows.x.indptr[1:].astype(np.int64) if isinstance(rows.x, Csr) else np.zeros(len(rows), np.int64)
        sizes = self._shape.nbytes(np.arange(1, len(rows) + 1), ends)
        return max(int(np.searchsorted(sizes, self._most, side="right")), 1)


def body_bytes(shape: RowShape, rows: Int64s, entries: Int64s) -> Int64s:
    """Return the bytes of record batches' bodies: what `Grouped.read` counts on."""
    lists = 2 * (padded(4 * rows + 4) + padded(4 * entries)) if shape.sparse else padded(4 * rows * shape.width)
    sizes: Int64s = lists + padded(4 * rows) * (1 + shape.weighted)
    return sizes


def _schema(recipe: Recipe) -> pa.Schema:
    """Return the columns of grouped rows: features, ``y``, and the weight if there is one."""
    width = recipe.width or 0
    items = [pa.field("item", kind, nullable=False) for kind in (pa.float32(), pa.uint32())]
    if recipe.sparse:
        packed = {"indices": pa.list_(items[1]), "values": pa.list_(items[0])}
    else:
        packed = {"features": pa.list_(items[0], width)}
    others = {"y": pa.float32(), **({"weight": pa.float32()} if recipe.weighted else {})}
    noted = {
        "version": 1,
        CHECKSUMS: True,
        "features": list(recipe.names) if recipe.names else None,
        "columns": list(packed),
        "label": "y",
        "weight": "weight" if recipe.weighted else None,
        "sparse": recipe.sparse,
        "width": recipe.width,
        "encoder": recipe.origin or [part.to_dict() for part in recipe.parts],
    }
    fields = [pa.field(name, kind, nullable=False) for name, kind in {**packed, **others}.items()]
    return pa.schema(fields, {METADATA_KEY: json.dumps(noted).encode()})


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
