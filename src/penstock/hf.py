"""Converted files as `datasets.Dataset`: what `penstock convert` wrote, handed to Hugging Face tools.

The file is mapped, never read whole; features come from its metadata, and images stored as plain bytes are images
again. Index it, `set_format("torch")`, `map` it, give it to `Trainer`. For speed in random order use
`penstock.torch.DataLoader` over the same file. The `datasets` library is imported here alone, and only when used.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.blocks.ipc import read_footer
from penstock.blocks.samples.features import MEDIA, noted_features
from penstock.blocks.storage import PathLike, fingerprint, is_remote, open_file
from penstock.columns.schema_notes import layout_of
from penstock.errors import ColumnError, MissingExtraError, UsageError

_MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def open_dataset(path: PathLike, *, columns: list[str] | None = None) -> Any:
    """Open a converted file as a `datasets.Dataset`.

    Parameters
    ----------
    path : path
        An Arrow file, as `penstock.convert` writes it.
    columns : list of str, optional
        The columns wanted; all if not given.

    Returns
    -------
    datasets.Dataset
        Over the file, which must stay where it is. Pickling it, as worker processes do, pickles the path.

    Examples
    --------
    >>> import os, tempfile, penstock
    >>> import pyarrow as pa
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = os.path.join(folder.name, "a.arrow")
    >>> done = penstock.convert(pa.table({"text": ["to", "be"], "label": [0, 1]}), path)
    >>> open_dataset(path)[1]  # doctest: +SKIP
    {'text': 'be', 'label': 1}
    """
    datasets = _datasets()
    name = os.fspath(path)
    if is_remote(name):
        raise UsageError(f"{name}: files are mapped from this machine's disk; copy it here first")
    file = open_file(name)
    try:
        read_footer(file)  # tells a stream, a truncated file and any other apart, with the line that helps
        mark = fingerprint([file])
    finally:
        file.close()
    table = _table_class().of(os.path.abspath(name), [])
    features = datasets.Features.from_arrow_schema(table.schema)
    dataset = datasets.Dataset(table, info=datasets.DatasetInfo(features=features), fingerprint=mark[:16])
    if columns is None:
        return dataset
    for column in columns:
        if column not in dataset.column_names:
            raise ColumnError.missing(column, dataset.column_names, place=name)
    return dataset.select_columns(list(columns))


def _datasets() -> Any:
    try:
        import datasets  # type: ignore[import-not-found, unused-ignore]  # an extra, without types
    except ImportError:
        raise MissingExtraError.of("datasets", "hf", "penstock.hf.open_dataset") from None
    return datasets


def _mapped(path: str) -> pa.Table:
    """Map a file as a table, images and sounds in the form that `datasets` knows."""
    table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    features = noted_features(table.schema)
    paths: dict[str, str] = layout_of(table.schema).get("paths") or {}
    for name, feature in features.items():
        at = table.schema.get_field_index(name)
        if at < 0 or not isinstance(feature, dict):
            continue
        if feature.get("_type") in MEDIA and _is_bytes(table.schema.field(at).type):
            beside = table.column(paths[name]) if paths.get(name) in table.column_names else None
            table = table.set_column(at, pa.field(name, _MEDIA), _with_paths(table.column(at), beside))
        elif str(feature.get("_type")).startswith("Array"):
            kind = _datasets().Features.from_dict({name: feature}).arrow_schema.field(0).type
            table = table.set_column(at, pa.field(name, kind), _as_array(table.column(at), kind))
    return table.drop_columns([name for name in paths.values() if name in table.column_names])


def _as_array(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return lists of lists over the same values, which stay mapped; only where each begins is new."""
    stored = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in values.chunks]
    return pa.chunked_array([pa.ExtensionArray.from_storage(kind, s.cast(kind.storage_type)) for s in stored], kind)


def _with_paths(values: pa.ChunkedArray, paths: pa.ChunkedArray | None) -> pa.ChunkedArray:
    chunks = []
    for number, chunk in enumerate(values.chunks):
        beside = paths.chunk(number) if paths is not None else pa.nulls(len(chunk), pa.string())
        if paths is not None:
            beside = pc.if_else(pc.equal(beside, ""), None, beside)
        chunks.append(
            pa.StructArray.from_arrays(
                [chunk.cast(pa.binary()), beside],
                fields=list(_MEDIA),
                mask=chunk.is_null() if chunk.null_count else None,
            )
        )
    return pa.chunked_array(chunks, _MEDIA)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _restore(path: str, replays: list[Any]) -> Any:
    return _table_class().of(path, replays)


@functools.cache
def _table_class() -> Any:
    """Return the class of tables over mapped files of ours, made when `datasets` is there to derive it from."""
    from datasets.table import MemoryMappedTable  # type: ignore[import-not-found, unused-ignore]  # likewise

    class FileTable(MemoryMappedTable):  # type: ignore[misc]  # datasets may be missing, and then has no types
        """A `MemoryMappedTable` over the Arrow *file* format, which the library itself does not map."""

        @classmethod
        def of(cls, path: str, replays: list[Any]) -> Any:
            return cls(cls._apply_replays(_mapped(path), replays), path, replays)

        def __reduce__(self) -> Any:
            return _restore, (self.path, self.replays)

    def kept(method: Any) -> Any:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            made = method(self, *args, **options)
            return FileTable(made.table, made.path, made.replays) if type(made) is MemoryMappedTable else made

        return call

    for name, method in vars(MemoryMappedTable).items():
        if not name.startswith("_") and callable(method) and not isinstance(method, (classmethod, staticmethod)):
            setattr(FileTable, name, kept(method))  # what it returns must be pickled in our way too
    return FileTable
