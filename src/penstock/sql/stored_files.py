"""Models that are no row of weights: kept in the catalogue as the files they are saved as, or by the directory they lie in.

A kind of model needs nothing for it but its line in `penstock.model_kinds`: what ``save`` writes is kept in the header, and
opened again from a copy in a temporary folder. Files of text, such as trees, stay readable; others are base64. Of a model in a
directory of its own, which may be larger than any field, the row has the path and the checksum of its state.
"""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from penstock.bigmodel.checkpoint import STATE
from penstock.budget import show_bytes
from penstock.checksum import checksum, checksum_path
from penstock.errors import ModelFileError, UsageError
from penstock.groups.results import GroupModels
from penstock.messages import Text, Use
from penstock.model import Model
from penstock.model_kinds import KINDS, ModelKind, kind_of, open_model
from penstock.sql.module_code import NamedModules

SAVED = "saved"
"""The part of a header that has a model's files, or their place."""
_MOST_BYTES = 256 << 20
"""Bytes of files in a row: a field of PostgreSQL holds 1 GB, and the row passes through memory several times."""
_MEND = "have it dropped and trained or imported anew"


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a model is kept: by the directory it lies in, if that is to stay where it is; and what it is opened with again."""

    folder: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def saved_header(model: Model, keeping: Keeping, *, name: str, engine: str) -> dict[str, Any]:
    """Return the header of a model's row: what is known of it, and its files or their place."""
    if keeping.folder is not None:
        found, saved = kind_of(keeping.folder), _reference(keeping.folder)
    else:
        with tempfile.TemporaryDirectory(prefix="penstock-model-") as folder:
            path = Path(folder, "model")
            model.save(path)
            found = kind_of(path)
            saved = {"files": _files(path, found.training_files, name=name, engine=engine)}
    options = {**found.kept_options(model), **keeping.options}
    return {
        "kind": model.word,
        "encoder": {"label": model.label},
        "features": _features(model),
        "config": dict(model.config),
        "metrics": dict(model.metrics),
        "history": [dict(row) for row in model.history] or [{"rows": _rows(model)}],
        **({"groups": {"count": len(model.chosen_rows)}} if isinstance(model, GroupModels) else {}),
        SAVED: {"kind": kind_name(found), "options": options, **saved},
    }


def directory_of(header: Mapping[str, Any]) -> str | None:
    """Return the directory that a model lies in, if its row only refers to it."""
    path: str | None = header.get(SAVED, {}).get("path")
    return path


def kind_name(kind: ModelKind) -> str:
    """Return the name that the table of kinds has for an entry."""
    return next(name for name, each in KINDS.items() if each is kind)


class SavedModels:
    """The files of models, unpacked; the folder goes with `close`, or with this. ``modules`` is the code that may run for them."""

    def __init__(self, modules: NamedModules) -> None:
        self.modules = modules
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def open(self, saved: Mapping[str, Any], *, place: str) -> Model:
        """Open the model of a header's part that `saved_header` made; ``place`` is what messages call it.

        Raises
        ------
        ModelFileError
            The row is damaged; or the directory is missing, or no longer as it was.
        """
        kind, options = str(saved["kind"]), dict(saved["options"])
        if kind not in KINDS:
            raise ModelFileError(
                f"{place} is of the kind {kind!r}, which is not known here; import the module that registers it in"
                " penstock.model_kinds, or upgrade with: pip install -U penstock"
            )
        if "module" in options:
            options["model"] = self.modules.maker(options.pop("module"), place=place)
        if "path" in saved:
            _require_unchanged(saved, place)
            return open_model(saved["path"], kind=kind, **options)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="penstock-models-")
        self._count += 1
        path = Path(self._folder.name, str(self._count))
        for name, file in saved["files"].items():
            _unpack(file, path, PurePosixPath(name), place=place)
        return open_model(path, kind=kind, **options)

    def close(self) -> None:
        """Remove what was unpacked."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _features(model: Model) -> int | None:
    """Return the number of features; None of models that have none."""
    if isinstance(model, GroupModels):
        return model.recipe.width
    found = model.describe(most=0).values.get("features")
    return found if isinstance(found, int) else None


def _rows(model: Model) -> Any:
    return model.summary()["rows"] if isinstance(model, GroupModels) else model.metrics.get("rows")


def _reference(folder: Path) -> dict[str, Any]:
    return {"path": str(folder.resolve()), "state": f"{checksum_path(folder / STATE):016x}"}


def _require_unchanged(saved: Mapping[str, Any], place: str) -> None:
    folder = Path(saved["path"])
    if not (folder / STATE).is_file():
        why = "is not there" if not folder.exists() else f"has no {STATE}"
        raise ModelFileError(
            f"{place} lies in the directory {folder}, which {why}; restore it, or have the model dropped and trained anew"
            " (a model by its directory is found only on machines that see the directory)"
        )
    if f"{checksum_path(folder / STATE):016x}" != saved["state"]:
        raise ModelFileError(
            f"{place} lies in the directory {folder}, which has changed since: another training wrote to it; take the model"
            f" as it is now with: IMPORT OR REPLACE MODEL … FROM '{folder}'"
        )


def _files(path: Path, left_out: Sequence[str], *, name: str, engine: str) -> dict[str, Any]:
    """Return the content of a saved model by file: the one that it is has no name but a dot."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    files = [each for each in files if each.name not in left_out]
    size = sum(each.stat().st_size for each in files)
    if size > _MOST_BYTES:
        raise UsageError(
            f"model {name!r} takes {show_bytes(size)}, and {engine} keeps up to {show_bytes(_MOST_BYTES)} of files in a row",
            fixes=[
                Text("of factor, and of logistic, svm or linear, keep it in a directory: ", Use("model_dir", "…")),
                "make it smaller",
            ],
        )
    return {each.relative_to(path).as_posix(): _packed(each.read_bytes()) for each in files}


def _packed(content: bytes) -> dict[str, str]:
    try:
        text = content.decode()
        form = {} if "\0" in text else {"text": text}  # which PostgreSQL's JSON has no way to write
    except UnicodeDecodeError:
        form = {}
    return {**(form or {"base64": base64.b64encode(content).decode()}), "checksum": f"{checksum(content):016x}"}


def _unpack(file: Mapping[str, str], folder: Path, name: PurePosixPath, *, place: str) -> None:
    if name.is_absolute() or ".." in name.parts or (os.sep != "/" and os.sep in str(name)):
        raise ModelFileError(f"{place} is damaged: it has a file {str(name)!r}, outside of the model; {_MEND}")
    content = file["text"].encode() if "text" in file else base64.b64decode(file["base64"])
    if f"{checksum(content):016x}" != file["checksum"]:
        raise ModelFileError(f"{place} is damaged: the checksum of its file {str(name)!r} is another one; {_MEND}")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
