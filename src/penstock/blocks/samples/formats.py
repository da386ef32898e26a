"""The formats of data sets of samples: how each is told from others, and what reads it.

A format is one file with a `SampleReader` and one entry of `FORMATS`; `penstock.testing.samples` has the tests that it has to
pass. A path's format is told by what a folder holds; what fits two of them is refused by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from penstock.blocks.samples.folders import files_below
from penstock.blocks.storage import is_remote
from penstock.errors import UsageError, some_of
from penstock.messages import Text, Use

if TYPE_CHECKING:
    from penstock.blocks.row_streams import RowStream

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
TARS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
_TABLES = (
    ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npy", ".csv", ".tsv", ".jsonl", ".ndjson",
    ".libsvm", ".svm", ".svmlight",
)  # fmt: skip


class SampleReader(Protocol):
    """Reads a data set of samples once, from front to back, in batches of bounded size.

    Nothing is decoded and nothing is run: images and sounds stay bytes, and pickled columns are refused. Damage is an
    error that names the file and the place, never an early end.
    """

    def __call__(self, data: Any, *, split: str | None = None) -> RowStream:
        """Return the rows of a path; ``split`` names one part of a data set that comes in several."""
        ...


@dataclass(frozen=True, slots=True)
class SampleFormat:
    """A format of data sets of samples.

    Attributes
    ----------
    title : str
        What messages call it.
    reader : str
        The function that reads it, a `SampleReader`, in the module of ``penstock.blocks.samples`` with the format's name.
    suffixes : tuple of str
        How the names of its files end.
    marks : tuple of str
        Files by which a folder says that it is such a data set.
    confirm : callable, optional
        Takes the path of a mark whose name others use too, and says whether it is one.
    single : bool
        Whether a marked folder is a data set by itself, so that the folder above it holds several.
    """

    title: str
    reader: str
    suffixes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    confirm: Callable[[str], bool] | None = None
    single: bool = False

    def mark(self, folder: str, names: Collection[str] | None = None) -> str | None:
        """Return the file that marks a folder, if there is one; ``names`` are the folder's files, where they are known."""
        for mark in self.marks:
            path = os.path.join(folder, mark)
            there = os.path.isfile(path) if names is None else mark in names
            if there and (self.confirm is None or self.confirm(path)):
                return mark
        return None


def _is_mds_index(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("shards"), list)


FORMATS: dict[str, SampleFormat] = {
    "hf": SampleFormat(
        "a Hugging Face data set",
        "hf_rows",
        marks=("state.json", "dataset_dict.json", "dataset_info.json"),
        single=True,
    ),
    "images": SampleFormat("a folder of images", "image_rows", suffixes=IMAGES),
    "webdataset": SampleFormat("WebDataset tars", "webdataset_rows", suffixes=TARS),
    "mds": SampleFormat("MDS shards", "mds_rows", suffixes=(".mds",), marks=("index.json",), confirm=_is_mds_index),
}


def sample_reader(name: str) -> Callable[..., RowStream]:
    """Return what reads a format, a `SampleReader` that may have further options."""
    read: Callable[..., RowStream] = getattr(import_module(f"penstock.blocks.samples.{name}"), FORMATS[name].reader)
    return read


def sample_format(data: Any) -> str | None:
    """Return which format of samples this is, or None for tables.

    Examples
    --------
    >>> sample_format("shards/train-000.tar"), sample_format("rows.parquet")
    ('webdataset', None)
    """
    if isinstance(data, (list, tuple)):
        return "webdataset" if data and all(sample_format(item) == "webdataset" for item in data) else None
    path = os.fspath(data)
    if is_remote(path) or not os.path.isdir(path):
        return "webdataset" if path.split("?")[0].lower().endswith(TARS) else None
    marked = marked_format(path)
    return marked if marked is not None else _by_files(path)


def marked_format(path: str) -> str | None:
    """Return the format of a folder that has the mark of one, without looking at all its files."""
    found = {name: mark for name, each in FORMATS.items() if (mark := each.mark(path)) is not None}
    if len(found) > 1:
        raise _ambiguous(path, found)
    return next(iter(found), None)


def format_by_suffix(path: str) -> str | None:
    """Return the format that a file's name tells."""
    lower = path.lower()
    return next((name for name, each in FORMATS.items() if each.suffixes and lower.endswith(each.suffixes)), None)


def _by_files(path: str) -> str | None:
    seen: dict[str, str] = {}
    marked: dict[str, str] = {}
    below: list[str] = []
    for folder, names in files_below(path):
        for name in names:
            kind = format_by_suffix(name) or ("table" if name.lower().endswith(_TABLES) else None)
            if kind is not None:
                seen.setdefault(kind, os.path.relpath(os.path.join(folder, name), path))
        for kind, each in FORMATS.items():
            mark = each.mark(folder, names)
            if mark is not None and each.single:
                below.append(os.path.relpath(folder, path))
            elif mark is not None:
                marked.setdefault(kind, os.path.relpath(os.path.join(folder, mark), path))
    if below:
        raise UsageError(
            f"{path} holds Hugging Face data sets in folders below it; name one of them: {some_of(below, 5)}"
        )
    seen |= marked
    if len(seen) > 1:
        raise _ambiguous(path, seen)
    return next((kind for kind in seen if kind != "table"), None)


def _ambiguous(path: str, seen: Mapping[str, str]) -> UsageError:
    told = " and ".join(
        f"{FORMATS[kind].title if kind in FORMATS else 'tables'} ({name})" for kind, name in sorted(seen.items())
    )
    words = ", ".join(kind for kind in sorted(seen) if kind in FORMATS)
    return UsageError(
        f"{path} holds {told}",
        fixes=[Text("say which is meant with ", Use("format"), f": {words}, or a table's format")],
    )
