"""MosaicML's MDS shards as rows, read without their library.

`index.json` lists the shards; each is the number of samples, where they begin, and the samples one after another: the
sizes of the columns that vary, then the columns. Shards under gzip, zstd, brotli, bz2 or snappy are decompressed as they
are read (snappy shard by shard). Images stay encoded; arrays become lists. Pickled columns are refused: nothing is ever
unpickled. What each encoding becomes stands in `mds_columns.py`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.blocks.row_streams import RowStream, decompressed, read_chunk, read_errors
from penstock.blocks.samples.features import note_features
from penstock.blocks.samples.folders import BATCH_BYTES, choose_split, read_json
from penstock.blocks.samples.mds_columns import MdsColumn, Runs, mds_columns
from penstock.blocks.storage import PathLike, SeekableView, is_remote, open_file
from penstock.errors import CorruptFileError, DataError, SchemaError, SourceError, SourceNotFoundError, UsageError

BATCH_ROWS = 65536
_CODECS = {"gz": ".gz", "bz2": ".bz2", "zstd": ".zstd", "br": ".br", "snappy": ".snappy"}


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard as the index tells it; ``codec`` is None for one that lies uncompressed."""

    path: str
    codec: str | None
    rows: int
    raw_bytes: int
    stored_bytes: int


def mds_rows(data: PathLike, *, split: str | None = None) -> RowStream:
    """Return the rows of a folder of MDS shards."""
    if isinstance(data, (list, tuple)):
        raise UsageError("one folder of MDS shards is read at a time; convert each by itself")
    folder, index = _index(os.fspath(data), split)
    described = [(entry["column_names"], entry["column_encodings"], entry["column_sizes"]) for entry in index]
    for number, other in enumerate(described):
        if other[:2] != described[0][:2]:
            raise SchemaError(
                f"{folder}: shard {number} has the columns {dict(zip(*other[:2]))} and shard 0"
                f" {dict(zip(*described[0][:2]))}; convert them by themselves"
            )
    shards = [_shard(folder, entry) for entry in index]
    columns = mds_columns(*described[0], place=folder, first=lambda: _first_row(shards, described[0][2]))
    features = {column.name: column.feature for column in columns if column.feature is not None}
    schema = note_features(pa.schema([field for column in columns for field in column.fields]), features)
    return RowStream(
        folder,
        schema,
        sum(shard.stored_bytes for shard in shards),
        tuple(shard.path for shard in shards),
        lambda names: _batches(shards, columns, schema, names),
        lambda: None,
        count=sum(shard.rows for shard in shards),
    )


def _index(path: str, split: str | None) -> tuple[str, list[dict[str, Any]]]:
    """Return the folder meant and the shards that its index lists."""
    name = os.path.join(path, "index.json")
    if not is_remote(path) and not os.path.isfile(name):
        below = sorted(os.listdir(path)) if os.path.isdir(path) else []
        splits = {inner: 0 for inner in below if os.path.isfile(os.path.join(path, inner, "index.json"))}
        if not splits:
            raise SourceNotFoundError(f"{path} has no index.json, without which MDS shards cannot be read; copy it too")
        path = os.path.join(path, choose_split(splits, split, place=path))
        name = os.path.join(path, "index.json")
    elif split is not None:
        path = os.path.join(path, split)
        name = os.path.join(path, "index.json")
    found = read_json(name)
    shards = found.get("shards") if isinstance(found, dict) else None
    if not isinstance(shards, list) or not shards:
        raise CorruptFileError(f"{name} lists no shards; write the data set again")
    for number, entry in enumerate(shards):
        if not isinstance(entry, dict) or entry.get("format") != "mds" or entry.get("version") != 2:
            told = {key: entry.get(key) for key in ("format", "version")} if isinstance(entry, dict) else entry
            raise SourceError(f"{name}: shard {number} is {told}; only MDS shards of version 2 are read")
        needed = ("column_names", "column_encodings", "column_sizes", "samples", "raw_data")
        lacking = [key for key in needed if not isinstance(entry.get(key), list if "column" in key else (int, dict))]
        if lacking or not len(entry["column_names"]) == len(entry["column_encodings"]) == len(entry["column_sizes"]):
            what = (
                f"it has no {lacking[0]!r}" if lacking else "its columns' names, encodings and sizes differ in number"
            )
            raise CorruptFileError(f"{name} is damaged at shard {number}: {what}")
        for key in ("raw_data", "zip_data"):
            file = entry.get(key)
            if file is not None and not (
                isinstance(file, dict)
                and isinstance(file.get("basename"), str)
                and isinstance(file.get("bytes"), int)
                and isinstance(entry["samples"], int)
            ):
                raise CorruptFileError(f"{name} is damaged at shard {number}: {key!r} names no file with its bytes")
    return path, shards


def _shard(folder: str, entry: dict[str, Any]) -> _Shard:
    raw, packed = entry["raw_data"], entry.get("zip_data")
    rows, raw_bytes = int(entry["samples"]), int(raw["bytes"])
    path = _inside(folder, raw["basename"])
    if (is_remote(folder) and packed is None) or os.path.isfile(path):
        return _Shard(path, None, rows, raw_bytes, raw_bytes)
    if packed is None:
        raise SourceNotFoundError(f"index.json in {folder} names the shard {raw['basename']}, which is not there")
    path = _inside(folder, packed["basename"])
    codec = str(entry.get("compression") or "").partition(":")[0]
    if codec not in _CODECS:
        raise SourceError(
            f"{path} is compressed with {codec!r}, which is not read; one of these is: {', '.join(sorted(_CODECS))}"
        )
    if not is_remote(folder) and not os.path.isfile(path):
        raise SourceNotFoundError(
            f"index.json in {folder} names the shard {packed['basename']}, and neither it nor {raw['basename']} is there"
        )
    return _Shard(path, codec, rows, raw_bytes, int(packed["bytes"]))


def _inside(folder: str, name: Any) -> str:
    parts = str(name).replace("\\", "/").split("/")
    if os.path.isabs(str(name)) or ".." in parts:
        raise SourceError(f"index.json in {folder} names {name!r}, which lies outside the folder; that is not read")
    return os.path.join(folder, str(name))


def _batches(
    shards: Sequence[_Shard], columns: Sequence[MdsColumn], schema: pa.Schema, names: Sequence[str] | None
) -> Generator[tuple[pa.RecordBatch, int], None, None]:
    wanted = list(schema.names if names is None else names)
    chosen = pa.schema([schema.field(name) for name in wanted], schema.metadata)
    for shard in shards:
        with closing(_pieces(shard)) as pieces:
            for data, starts, ends, first in pieces:
                arrays = _decode(data, starts, ends, columns, place=f"{shard.path}: sample", first=first)
                batch = pa.RecordBatch.from_arrays([arrays[name] for name in wanted], schema=chosen)
                yield batch, len(data) * shard.stored_bytes // max(shard.raw_bytes, 1)


def _pieces(shard: _Shard) -> Generator[tuple[bytes, NDArray[np.int64], NDArray[np.int64], int], None, None]:
    """Yield runs of a shard's samples, with where each begins and ends and the number of the first."""
    file = open_file(shard.path)
    try:
        with closing(_stream(shard, file)) as stream:
            rows = int.from_bytes(_exactly(stream, 4, shard, 0), "little")
            if rows != shard.rows:
                raise CorruptFileError(
                    f"{shard.path} has {rows} samples where index.json says {shard.rows}; fetch both again"
                )
            head = 4 + 4 * (rows + 1)
            offsets = np.frombuffer(_exactly(stream, head - 4, shard, 4), "<u4").astype(np.int64)
            if rows == 0:
                return
            if offsets[0] < head or (np.diff(offsets) < 0).any() or offsets[-1] != shard.raw_bytes:
                raise CorruptFileError(f"{shard.path} is damaged: its samples' places are not in order; fetch it again")
            _exactly(stream, int(offsets[0]) - head, shard, head)  # the writer's settings, which the index has too
            row = 0
            while row < rows:
                stop = int(np.searchsorted(offsets, offsets[row] + BATCH_BYTES, side="right")) - 1
                stop = min(max(stop, row + 1), row + BATCH_ROWS, rows)
                data = _exactly(stream, int(offsets[stop] - offsets[row]), shard, int(offsets[row]))
                places = offsets[row : stop + 1] - offsets[row]
                yield data, places[:-1], places[1:], row
                row = stop
    finally:
        file.close()


def _stream(shard: _Shard, file: Any) -> Any:
    if shard.codec == "br":
        return pa.CompressedInputStream(pa.PythonFile(SeekableView(file), mode="r"), "brotli")
    if shard.codec == "snappy":
        with read_errors(shard.path):
            whole = pa.decompress(file.read_at(0, file.size), shard.raw_bytes, codec="snappy")
        return pa.BufferReader(whole)
    return decompressed(file)


def _exactly(stream: Any, nbytes: int, shard: _Shard, at: int) -> bytes:
    data = read_chunk(stream, shard.path, nbytes)
    if len(data) < nbytes:
        raise CorruptFileError(
            f"{shard.path} is truncated: it ends at byte {at + len(data)} of {shard.raw_bytes}; fetch it again"
        )
    return data


def _decode(
    data: bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    columns: Sequence[MdsColumn],
    *,
    place: str,
    first: int,
) -> dict[str, pa.Array]:
    """Return the arrays of all columns of a run of samples."""
    found: dict[str, pa.Array] = {}
    for column, runs in zip(columns, _runs(data, starts, ends, [column.size for column in columns], place, first)):
        try:
            arrays = column.decode(runs)
        except (ValueError, OverflowError, IndexError) as error:
            row = first + getattr(error, "row", 0)
            raise DataError(f"{place} {row}: column {column.name!r} is not {column.encoding} ({error})") from error
        found.update(zip((field.name for field in column.fields), arrays))
    return found


def _runs(
    data: bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    sizes: Sequence[int | None],
    place: str,
    first: int,
) -> Iterator[Runs]:
    """Yield, for each column, where its bytes lie in every sample."""
    flat = np.frombuffer(data, np.uint8)
    varying = sum(size is None for size in sizes)
    short = np.flatnonzero(ends - starts < 4 * varying)
    if len(short):
        raise CorruptFileError(f"{place} {first + int(short[0])} is damaged: it is too short for its columns")
    told = flat[(starts[:, None] + np.arange(4 * varying))].reshape(len(starts), varying, 4).view("<u4")[:, :, 0]
    lengths = iter(told.astype(np.int64).T)
    each = [next(lengths) if size is None else np.full(len(starts), size, np.int64) for size in sizes]
    wrong = np.flatnonzero(starts + 4 * varying + sum(each) != ends)
    if len(wrong):
        raise CorruptFileError(
            f"{place} {first + int(wrong[0])} is damaged: its columns' sizes do not come to its own; fetch it again"
        )
    at = starts + 4 * varying
    for length in each:
        yield Runs(data, at, at + length)
        at = at + length


def _first_row(shards: Sequence[_Shard], sizes: Sequence[int | None]) -> list[bytes]:
    """Return the first sample's columns, for encodings that only samples tell in full."""
    for shard in shards:
        with closing(_pieces(shard)) as pieces:
            piece = next(pieces, None)
        if piece is not None:
            data, starts, ends, _ = piece
            runs = _runs(data, starts[:1], ends[:1], [size or None for size in sizes], f"{shard.path}: sample", 0)
            return [run[0] for run in runs]
    return [b""] * len(sizes)
