"""Hugging Face data sets as rows, read without their library.

Both layouts: what `save_to_disk` writes (`state.json` lists the files; `dataset_dict.json` the splits) and the cache's
(`dataset_info.json` beside `name-split-00000-of-00002.arrow`). Images and sounds, which come as a struct of bytes and
path, are stored as plain bytes, and arrays of a known shape as fixed-size lists, which load fastest; `penstock.hf.open_dataset`
gives them back as they were. The features' metadata are kept. A saved selection of rows (an indices file) is refused with the line that writes it out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.blocks.arrow_streams import PIECE, StreamFile, open_streams, read_parts, total_rows
from penstock.blocks.row_streams import RowStream
from penstock.blocks.samples.features import MEDIA, note_features, noted_features
from penstock.blocks.samples.folders import choose_split, read_json
from penstock.blocks.storage import PathLike, is_remote
from penstock.columns.schema_notes import METADATA_KEY
from penstock.errors import CorruptFileError, DataError, SourceError, SourceNotFoundError, UsageError
from penstock.messages import Text, Use

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<all>\d{5})")


def hf_rows(data: PathLike, *, split: str | None = None) -> RowStream:
    """Return the rows of a Hugging Face data set's folder."""
    if isinstance(data, (list, tuple)):
        raise UsageError("one Hugging Face folder is read at a time; convert each by itself")
    path = os.fspath(data)
    if not is_remote(path) and not os.path.isdir(path):
        raise SourceNotFoundError(f"{path} is not a folder; name the folder of a Hugging Face data set")
    folder, files, info = _files_of(path, split)
    streams = open_streams(files)
    schema = streams[0].schema
    if not noted_features(schema):
        schema = note_features(schema, info.get("features") or {})
    form = _Form(schema, folder)
    form.look_for_paths(streams[0])

    def close() -> None:
        for stream in streams:
            stream.close()

    return RowStream(
        folder,
        form.schema,
        sum(stream.size for stream in streams),
        tuple(files),
        lambda columns: form.batches(streams, columns),
        close,
        count=total_rows(streams),
    )


def _files_of(path: str, split: str | None) -> tuple[str, list[str], dict[str, Any]]:
    """Return the folder meant, its files, and what its dataset_info.json says."""
    if _has(path, "dataset_dict.json"):
        named = read_json(os.path.join(path, "dataset_dict.json"))
        splits = {name: os.path.join(path, name) for name in _get(named, "splits", list, path, "dataset_dict.json")}
        path, split = splits[choose_split(splits, split, place=path)], None
    found = read_json(os.path.join(path, "dataset_info.json")) if _has(path, "dataset_info.json") else {}
    info = found if isinstance(found, dict) else {}
    if not _has(path, "state.json"):
        return path, _cached(path, split), info
    if split is not None:
        raise UsageError(f"{path} is one split by itself", fixes=[Text("leave out ", Use("split", split))])
    state = read_json(os.path.join(path, "state.json"))
    listed = _get(state, "_data_files", list, path, "state.json")
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise SourceError(
            f"{path} was saved as a selection or shuffle of other rows (state.json names an indices file); write its"
            f" rows out first: datasets.load_from_disk({path!r}).flatten_indices().save_to_disk(NEW)"
        )
    files = [os.path.join(path, _get(entry, "filename", str, path, "state.json")) for entry in listed]
    if not files:
        raise CorruptFileError(f"{path} holds no rows: state.json names no data files")
    for name in files:
        if not is_remote(path) and not os.path.isfile(name):
            raise SourceNotFoundError(f"state.json in {path} names {os.path.basename(name)}, which is not there")
    return path, files, info


def _cached(path: str, split: str | None) -> list[str]:
    """Return the files of a split in the cache's layout."""
    if is_remote(path):
        raise UsageError(f"{path}: of remote folders only those with a state.json are read; copy it here first")
    splits: dict[str, dict[int, str]] = {}
    wanted: dict[str, int] = {}
    for name in sorted(os.listdir(path)):
        stem, suffix = os.path.splitext(name)
        if suffix != ".arrow" or name.startswith("cache-"):  # those hold what `map` made of other rows
            continue
        shard = _SHARD.fullmatch(stem)
        key = (shard["stem"] if shard else stem).rpartition("-")[2]
        splits.setdefault(key, {})[int(shard["number"]) if shard else 0] = os.path.join(path, name)
        wanted[key] = int(shard["all"]) if shard else 1
    if not splits:
        raise SourceNotFoundError(f"{path} has a dataset_info.json but no .arrow files; is the download complete?")
    chosen = choose_split(splits, split, place=path)
    for number in range(wanted[chosen]):
        if number not in splits[chosen]:
            raise SourceNotFoundError(
                f"{path}: file {number} of {wanted[chosen]} of the split {chosen!r} is missing; fetch it again"
            )
    return [splits[chosen][number] for number in sorted(splits[chosen])]


class _Form:
    """How columns are stored: media as plain bytes, their paths beside them where there are any."""

    def __init__(self, schema: pa.Schema, place: str) -> None:
        features = noted_features(schema)
        self.place = place
        self.media = [
            field.name
            for field in schema
            if (features.get(field.name) or {}).get("_type") in MEDIA
            and pa.types.is_struct(field.type)
            and {child.name for child in field.type} == {"bytes", "path"}
        ]
        self.paths: dict[str, str] = {}
        self.schema = schema
        for name in self.media:
            at = self.schema.get_field_index(name)
            kind = schema.field(name).type.field("bytes").type
            self.schema = self.schema.set(at, pa.field(name, kind))
        self.arrays = {
            field.name: kind
            for field in schema
            if (kind := _array_type(field.type, features.get(field.name))) is not None
        }
        for name, kind in self.arrays.items():
            self.schema = self.schema.set(self.schema.get_field_index(name), pa.field(name, kind))

    def look_for_paths(self, stream: StreamFile) -> None:
        """Add a column of paths for media whose first rows have them."""
        if not self.media:
            return
        with closing(stream.batches(self.media)) as batches:
            first = next(batches, (pa.RecordBatch.from_pylist([], stream.schema), 0))[0]
        for name in self.media:
            beside = f"{name}_path"
            paths = pc.struct_field(first.column(name), "path")
            if paths.null_count < len(paths) and beside not in self.schema.names:
                self.paths[name] = beside
                self.schema = self.schema.append(pa.field(beside, pa.string()))
        note = {"version": 1, "paths": self.paths}
        self.schema = self.schema.with_metadata(
            {**(self.schema.metadata or {}), METADATA_KEY: json.dumps(note).encode()}
        )

    def batches(
        self, streams: Sequence[StreamFile], columns: Sequence[str] | None
    ) -> Generator[tuple[pa.RecordBatch, int], None, None]:
        """Yield batches in the form to be stored."""
        wanted = list(self.schema.names if columns is None else columns)
        behind = {beside: name for name, beside in self.paths.items()}
        asked = list(dict.fromkeys(behind.get(name, name) for name in wanted))
        row = 0
        with closing(read_parts(streams, asked)) as parts:
            for batch, nbytes in parts:
                for piece in _small(batch, [name for name in self.media if name in asked], self.place, row):
                    share = nbytes * piece.num_rows // max(batch.num_rows, 1)
                    yield self._shape(piece, wanted, behind, row), share
                    row += piece.num_rows

    def _shape(self, batch: pa.RecordBatch, wanted: list[str], behind: dict[str, str], row: int) -> pa.RecordBatch:
        arrays = []
        for name in wanted:
            if name in behind:
                paths = pc.struct_field(batch.column(behind[name]), "path")
                arrays.append(pc.fill_null(paths, "").cast(pa.string()))
            elif name in self.media:
                arrays.append(self._bytes(batch.column(name), name, row))
            elif name in self.arrays:
                arrays.append(self._cast(batch.column(name), name, row))
            else:
                arrays.append(batch.column(name))
        fields = [self.schema.field(name) for name in wanted]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields, self.schema.metadata))

    def _bytes(self, column: pa.Array, name: str, row: int) -> pa.Array:
        inside, outside = _bytes_and_paths(column)
        if not outside:
            return inside
        found = inside.to_pylist()
        for at, path in outside.items():
            found[at] = _read_outside(path, place=f"{self.place}: column {name!r} in row {row + at}")
        return pa.array(found, inside.type)

    def _cast(self, column: pa.Array, name: str, row: int) -> pa.Array:
        stored = column.storage if isinstance(column, pa.ExtensionArray) else column
        try:
            return stored.cast(self.arrays[name])
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{self.place}: column {name!r} does not have the shape that its features tell in every row from {row} to"
                f" {row + len(column) - 1} ({error})"
            ) from error


def _array_type(kind: pa.DataType, feature: Any) -> pa.DataType | None:
    """Return the fixed-size list that an array feature of known shape is stored as, or None for other columns."""
    stored = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    told = feature if isinstance(feature, dict) and str(feature.get("_type")).startswith("Array") else {}
    shape = told.get("shape")
    if not isinstance(shape, list) or not shape or not all(isinstance(length, int) and length > 0 for length in shape):
        return None
    for _ in shape:
        if not pa.types.is_list(stored):
            return None
        stored = stored.value_type
    for length in reversed(shape):
        stored = pa.list_(stored, length)
    return stored


def _bytes_and_paths(column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return a media column's bytes, and where there are none the path of the file that has them."""
    inside = pc.struct_field(column, "bytes")
    if not inside.null_count:
        return inside, {}
    paths = pc.struct_field(column, "path")
    lacking = pc.indices_nonzero(pc.and_(pc.is_null(inside), pc.is_valid(paths))).to_pylist()
    return inside, {at: paths[at].as_py() for at in lacking}


def _small(batch: pa.RecordBatch, media: Sequence[str], place: str, row: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch where the files that its paths name would come to more than a few megabytes."""
    sizes = [0] * batch.num_rows
    for name in media:
        for at, path in _bytes_and_paths(batch.column(name))[1].items():
            try:
                sizes[at] += os.path.getsize(path)
            except OSError:
                raise _missing(path, place=f"{place}: column {name!r} in row {row + at}") from None
    if sum(sizes) <= PIECE:
        yield batch
        return
    start = held = 0
    for at, size in enumerate(sizes):
        if at > start and held + size > PIECE:
            yield batch.slice(start, at - start)
            start, held = at, 0
        held += size
    yield batch.slice(start)


def _read_outside(path: str, *, place: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        raise _missing(path, place=place) from None


def _missing(path: str, *, place: str) -> SourceNotFoundError:
    return SourceNotFoundError(
        f"{place} holds no bytes but the path {path}, where there is no file that can be read; put it there, or save the"
        " data set with datasets' save_to_disk, which takes the files in"
    )


def _has(path: str, name: str) -> bool:
    if not is_remote(path):
        return os.path.isfile(os.path.join(path, name))
    try:
        read_json(os.path.join(path, name))
    except SourceError:
        return False
    return True


def _get(found: Any, key: str, kind: type, path: str, name: str) -> Any:
    if not isinstance(found, dict) or not isinstance(found.get(key), kind):
        raise CorruptFileError(f"{os.path.join(path, name)} is damaged: it has no {key!r}")
    return found[key]
