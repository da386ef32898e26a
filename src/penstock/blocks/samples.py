"""Data sets of samples that other tools wrote: which kind a path holds, and what reads it.

Hugging Face folders, folders of images, WebDataset tars and MDS shards cannot be read in blocks as they are; `convert`
reads each once, from front to back. They are told by what a folder holds; what fits two kinds is refused by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import pyarrow as pa

from penstock.blocks.storage import is_remote, open_file
from penstock.errors import CorruptFileError, SourceNotFoundError, UsageError, some_of

SAMPLES = {
    "hf": "a Hugging Face data set",
    "images": "a folder of images",
    "webdataset": "WebDataset tars",
    "mds": "MDS shards",
}
_READERS = {"hf": "hf_rows", "images": "image_rows", "webdataset": "webdataset_rows", "mds": "mds_rows"}
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
TARS = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz")
_TABLES = (".parquet", ".pq", ".arrow", ".feather", ".ipc", ".npy", ".csv", ".tsv", ".libsvm", ".svm", ".svmlight")
_HF_MARKS = ("state.json", "dataset_dict.json", "dataset_info.json")
FEATURES_KEY = b"huggingface"
MEDIA = ("Image", "Audio", "Video", "Pdf", "Nifti", "Mesh")
"""Features that are files: bytes, a path, or both."""


def samples_reader(kind: str) -> Callable[..., Any]:
    """Return what reads this kind of data set; it takes the path and ``split=``."""
    read: Callable[..., Any] = getattr(import_module(f"penstock.blocks.{kind}"), _READERS[kind])
    return read


def samples_format(data: Any) -> str | None:
    """Return which kind of data set of samples this is, or None for tables.

    Examples
    --------
    >>> samples_format("shards/train-000.tar"), samples_format("rows.parquet")
    ('webdataset', None)
    """
    if isinstance(data, (list, tuple)):
        return "webdataset" if data and all(samples_format(item) == "webdataset" for item in data) else None
    path = os.fspath(data)
    if is_remote(path) or not os.path.isdir(path):
        return "webdataset" if path.split("?")[0].lower().endswith(TARS) else None
    marked = marked_format(path)
    return marked if marked is not None else _by_files(path)


def marked_format(path: str) -> str | None:
    """Return ``hf`` or ``mds`` for a folder that has their marks, without looking at all its files."""
    hf = [mark for mark in _HF_MARKS if os.path.isfile(os.path.join(path, mark))]
    mds = _is_mds_index(os.path.join(path, "index.json"))
    if hf and mds:
        raise _ambiguous(path, {"hf": hf[0], "mds": "index.json"})
    return "hf" if hf else "mds" if mds else None


def files_below(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder at and below a path, in order, with the names of its visible files, in order."""

    def failed(error: OSError) -> None:
        raise SourceNotFoundError(f"{error.filename} cannot be listed: {error.strerror}") from error

    for folder, inner, names in os.walk(path, followlinks=True, onerror=failed):
        inner[:] = sorted(name for name in inner if not name.startswith((".", "_")))
        yield folder, sorted(name for name in names if not name.startswith((".", "_")))


def choose_split(splits: Mapping[str, Any], split: str | None, *, place: str) -> str:
    """Return the split asked for, or the only one there is."""
    names = list(splits)
    if split is not None:
        if split not in splits:
            raise UsageError(f"{place} has no split {split!r}; it has: {some_of(names)}")
        return split
    if len(names) != 1:
        raise UsageError(f"{place} holds several splits: {some_of(names)}; name one with split= (--split)")
    return names[0]


def read_json(path: str) -> Any:
    """Return what a small JSON file says."""
    file = open_file(path)
    try:
        return json.loads(file.read_at(0, file.size))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is damaged: it is not JSON ({error})") from error
    finally:
        file.close()


def note_features(schema: pa.Schema, features: Mapping[str, Any]) -> pa.Schema:
    """Return the schema with features noted where Hugging Face tools look for them."""
    noted = {**(schema.metadata or {}), FEATURES_KEY: json.dumps({"info": {"features": features}}).encode()}
    return schema.with_metadata(noted) if features else schema


def noted_features(schema: pa.Schema) -> dict[str, Any]:
    """Return the features noted in a schema, by column, or an empty dict."""
    try:
        found = json.loads((schema.metadata or {}).get(FEATURES_KEY, b"{}"))
        features = found.get("info", {}).get("features")
    except (ValueError, AttributeError):
        return {}
    return features if isinstance(features, dict) else {}


def _by_files(path: str) -> str | None:
    seen: dict[str, str] = {}
    nested: dict[str, list[str]] = {"hf": [], "mds": []}
    for folder, names in files_below(path):
        for name in names:
            lower = name.lower()
            kind = (
                "images"
                if lower.endswith(IMAGES)
                else "webdataset"
                if lower.endswith(TARS)
                else "mds"
                if lower.endswith(".mds")
                else "table"
                if lower.endswith(_TABLES)
                else None
            )
            if kind is not None:
                seen.setdefault(kind, os.path.relpath(os.path.join(folder, name), path))
            elif name in _HF_MARKS:
                nested["hf"].append(os.path.relpath(folder, path))
            elif name == "index.json" and _is_mds_index(os.path.join(folder, name)):
                nested["mds"].append(os.path.relpath(folder, path))
    if nested["hf"]:
        folders = some_of(dict.fromkeys(nested["hf"]), 5)
        raise UsageError(f"{path} holds Hugging Face data sets in folders below it; name one of them: {folders}")
    if nested["mds"]:
        seen["mds"] = os.path.join(nested["mds"][0], "index.json")
    if len(seen) > 1:
        raise _ambiguous(path, seen)
    return next((kind for kind in seen if kind != "table"), None)


def _is_mds_index(path: str) -> bool:
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("shards"), list)


def _ambiguous(path: str, seen: Mapping[str, str]) -> UsageError:
    told = " and ".join(f"{SAMPLES.get(kind, 'tables')} ({name})" for kind, name in sorted(seen.items()))
    words = ", ".join(kind for kind in sorted(seen) if kind in SAMPLES)
    return UsageError(f"{path} holds {told}; say which is meant with format= (--format): {words}, or a table's format")
