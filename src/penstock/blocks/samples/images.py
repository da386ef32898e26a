"""A folder of images as rows: the files' bytes as they are, nothing decoded.

A folder per class, as TorchVision's ImageFolder has it (same classes, same order of rows), gives `image`, `label` and
`path`; a flat folder gives no `label`. The classes' names are noted as Hugging Face features. `image` is a plain binary
column, which loads fastest; `penstock.hf.open_dataset` hands it on as an image. Paths are never all held: a class is listed
when its turn comes.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from penstock.blocks.row_streams import RowStream
from penstock.blocks.samples.features import note_features
from penstock.blocks.samples.folders import batched, choose_split, files_below
from penstock.blocks.samples.formats import IMAGES
from penstock.blocks.storage import PathLike, is_remote
from penstock.errors import CorruptFileError, SourceError, SourceNotFoundError, UsageError, some_of
from penstock.messages import Text, Use
from penstock.parallel import in_order

SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")


@dataclass(frozen=True, slots=True)
class _Image:
    """A file to read: its path from the root, its class (-1 if there are none) and its size."""

    path: str
    label: int
    size: int


def image_rows(data: PathLike, *, split: str | None = None) -> RowStream:
    """Return the rows of a folder of images."""
    if isinstance(data, (list, tuple)):
        raise UsageError("one folder of images is read at a time; convert each by itself")
    root = os.fspath(data)
    if is_remote(root) or not os.path.isdir(root):
        raise SourceNotFoundError(f"{root} is not a folder on this machine; name the folder that holds the images")
    classes = _folders(root)
    if classes and (split is not None or all(name.lower() in SPLITS for name in classes)):
        root = os.path.join(root, choose_split(dict.fromkeys(classes), split, place=root))
        classes = _folders(root)
    elif split is not None:
        raise UsageError(
            f"{root} holds no folders, so it has no split {split!r}", fixes=[Text("leave ", Use("split"), " out")]
        )
    stray = [name for name in _visible(root) if name.lower().endswith(IMAGES)]
    if classes and stray:
        if any(_count(os.path.join(root, name))[0] for name in classes):
            raise UsageError(
                f"{root} holds images beside its folders ({some_of(stray, 3)}); move them into the folder of their class"
            )
        classes = []
    counted = [_count(os.path.join(root, name)) for name in classes] or [_count(root)]
    for name, (count, *_) in zip(classes, counted):
        if not count:
            raise SourceNotFoundError(
                f"the class folder {os.path.join(root, name)} holds no image (a name ending in {', '.join(IMAGES)});"
                " remove it or fill it"
            )
    count, nbytes, skipped = (sum(part) for part in zip(*counted))
    skipped += len(_visible(root)) if classes else 0
    if not count:
        raise SourceNotFoundError(f"{root} holds no image: no name ends in {', '.join(IMAGES)}")
    schema = _schema(classes)
    return RowStream(
        root,
        schema,
        nbytes,
        (),
        lambda columns: _batches(root, classes, schema, columns),
        lambda: None,
        count=count,
        skipped=skipped,
    )


def _schema(classes: Sequence[str]) -> pa.Schema:
    fields = [pa.field("image", pa.binary()), pa.field("label", pa.int64()), pa.field("path", pa.string())]
    if not classes:
        return note_features(pa.schema([fields[0], fields[2]]), {"image": {"_type": "Image"}})
    label = {"names": list(classes), "_type": "ClassLabel"}
    text = {"dtype": "string", "_type": "Value"}
    return note_features(pa.schema(fields), {"image": {"_type": "Image"}, "label": label, "path": text})


def _batches(
    root: str, classes: Sequence[str], schema: pa.Schema, columns: Sequence[str] | None
) -> Generator[tuple[pa.RecordBatch, int], None, None]:
    names = list(schema.names if columns is None else columns)
    fields = pa.schema([schema.field(name) for name in names], schema.metadata)

    def read(image: _Image) -> tuple[_Image, bytes]:
        return image, _read(os.path.join(root, image.path))

    with closing(in_order(read, _images(root, classes), threads=4, weigh=lambda image: image.size)) as files:
        for held in batched(files, weigh=lambda found: len(found[1])):
            values = {
                "image": [content for _, content in held],
                "label": [image.label for image, _ in held],
                "path": [os.fsencode(image.path).decode("utf-8", "backslashreplace") for image, _ in held],
            }
            arrays = [pa.array(values[field.name], field.type) for field in fields]
            yield pa.RecordBatch.from_arrays(arrays, schema=fields), sum(len(content) for _, content in held)


def _images(root: str, classes: Sequence[str]) -> Iterator[_Image]:
    """Yield every image: classes in order, in each its folders and names in order."""
    for label, name in enumerate(classes) if classes else [(-1, "")]:
        for folder, names in files_below(os.path.join(root, name)):
            for file in names:
                if file.lower().endswith(IMAGES):
                    path = os.path.join(folder, file)
                    yield _Image(os.path.relpath(path, root), label, _size(path))


def _count(path: str) -> tuple[int, int, int]:
    """Return the images at and below a path, their bytes, and how many other files there are."""
    count = nbytes = others = 0
    for folder, names in files_below(path):
        images = [name for name in names if name.lower().endswith(IMAGES)]
        count += len(images)
        nbytes += sum(_size(os.path.join(folder, name)) for name in images)
        others += len(names) - len(images)
    return count, nbytes, others


def _folders(root: str) -> list[str]:
    try:
        with os.scandir(root) as found:
            return sorted(entry.name for entry in found if entry.is_dir() and not entry.name.startswith((".", "_")))
    except OSError as error:
        raise SourceError(f"{root} cannot be listed: {error.strerror}") from error


def _visible(root: str) -> list[str]:
    with os.scandir(root) as found:
        return sorted(entry.name for entry in found if entry.is_file() and not entry.name.startswith((".", "_")))


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; mend or remove it") from error


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            content = file.readall()
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}; mend or remove it") from error
    if not content:
        raise CorruptFileError(f"{path} is empty (0 bytes), so it holds no image; mend or remove it")
    return content
