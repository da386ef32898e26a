"""The checkpoint in a model's directory, which with the pages that it names is the model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from penstock.bigmodel.store import SIDES
from penstock.blocks.base import BlockSource
from penstock.checkpoint import Checkpoint
from penstock.errors import ModelFileError, UsageError
from penstock.lock import LOCK, locked
from penstock.messages import START_ANEW, Name, Text
from penstock.modelfile import read_model, refuse_groups, write_model
from penstock.outputs import local_path

STATE = "state.penstock"
BEGUN = "begun"
"""Stands in a model's directory from the beginning of a training to its first checkpoint."""
FORMAT = 1


def begin_anew(place: Path) -> None:
    """Give up the checkpoint in a model's directory, and note that it was not lost: its pages are about to be written over."""
    (place / BEGUN).touch()
    (place / STATE).unlink(missing_ok=True)


class CheckpointDirectory:
    """Checkpoints of a model on disk, in its directory.

    Parameters
    ----------
    folder : path
        The directory; need not be there.
    kind : str
        ``"linear"`` or ``"factor"``.
    """

    is_model = True

    def __init__(self, folder: str | os.PathLike[str], kind: str) -> None:
        self.place, self.kind = local_path(folder), kind

    @property
    def where(self) -> str:
        """The directory."""
        return f"in {self.place}"

    def reserve(self) -> AbstractContextManager[Path]:
        """Keep other processes from training in the directory."""
        return locked(self.place, marks=(STATE,))

    def read(self) -> Checkpoint | None:
        """Return the last checkpoint, or None where there is none yet.

        Raises
        ------
        ModelFileError
            It is damaged or of another kind, or the directory holds pages of a model whose checkpoint is gone.
        """
        place = self.place
        if not (place / STATE).exists():
            if any((place / name).exists() for name in SIDES) and not (place / BEGUN).exists():
                raise ModelFileError(
                    f"{place / STATE} is gone, without which the pages in {place} cannot be told",
                    fixes=["restore it from a copy", START_ANEW],
                )
            return None
        arrays, header = read_state(place, kind=self.kind)
        return Checkpoint(f"the model in {place}", arrays, header, anew="train in another directory")

    def require_own(self, source: BlockSource) -> None:
        """Raise where the directory holds a model of other data, which is not to be lost by a slip."""
        if not (self.place / STATE).exists():
            return
        header, now = read_state(self.place, kind=self.kind)[1], source.name
        if header["fingerprint"] != source.fingerprint:
            raise UsageError(
                f"{self.place} holds a model of other data ({other_data(header['data'], now)}); choose another directory,"
                " or remove that one"
            )

    def write(self, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any], /) -> None:
        """Write the checkpoint, after its pages."""
        write_model(self.place / STATE, arrays, {"bigmodel": self.kind, "format": FORMAT, **header})
        (self.place / BEGUN).unlink(missing_ok=True)


def other_data(before: str, now: str) -> str:
    """Tell the data of a model and those of a run apart, for a message."""
    return f"{before} as it was before it changed" if before == now else f"{before}, where this is {now}"


def read_state(
    folder: str | os.PathLike[str], *, kind: str | None = None
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the header of the last checkpoint in a model's directory: of ``kind``, linear or factor.

    Raises
    ------
    ModelFileError
        There is none, it is damaged, or it is of another kind.
    """
    place = Path(folder)
    refuse_groups(place)
    if not (place / STATE).is_file():
        why = f"it has no {STATE}" if place.is_dir() else "it is a file" if place.exists() else "it does not exist"
        raise ModelFileError(
            f"there is no model in {place}: {why}",
            fixes=[
                Text("name the directory that was given as ", Name("model_dir")),
                "train a model there first",
            ],
        )
    try:
        arrays, header = read_model(place / STATE)
    except ModelFileError as error:
        if error.__cause__ is None:  # of another program or a newer version, and it says so
            raise
        raise ModelFileError(f"{error}; restore {place} from a copy, or remove it and train anew") from error
    if kind not in (None, header.get("bigmodel")):
        raise ModelFileError(
            f"{place} holds a {header.get('kind')} model, not a {kind} one; choose another directory, or remove that one"
        )
    if int(header.get("format", 0)) > FORMAT:
        raise ModelFileError(f"{place} was written by a newer Penstock; upgrade with: pip install -U penstock")
    return arrays, header


def copy_directory(folder: Path, target: str | os.PathLike[str]) -> None:
    """Copy a model's directory; the checkpoint comes last, so that a copy cut short is no model.

    Raises
    ------
    UsageError
        There is a model at the target.
    """
    if Path(target).resolve() == folder.resolve():
        return
    with locked(target, marks=(STATE,)) as place:
        if (place / STATE).exists():
            raise UsageError(f"{place} holds a model already; choose another directory")
        files = [path for path in folder.iterdir() if path.is_file() and path.name not in (STATE, LOCK)]
        for path in (*files, folder / STATE):
            shutil.copyfile(path, place / path.name)
