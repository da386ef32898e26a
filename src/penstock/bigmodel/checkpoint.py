"""The checkpoint in a model's directory, which with the pages that it names is the model; and what else a directory holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from penstock.bigmodel.storage import FeatureLayout
from penstock.bigmodel.store import SIDES
from penstock.blocks.base import BlockSource
from penstock.checkpoint import Checkpoint, require_same_columns
from penstock.columns.recipe import Recipe
from penstock.errors import ModelFileError, UsageError, some_of
from penstock.lock import LOCK, locked, strangers
from penstock.messages import START_ANEW, Name, Text
from penstock.modelfile import read_model, refuse_groups, write_model
from penstock.outputs import local_path
from penstock.sealed import read_note

STATE = "state.penstock"
NOTE = "layout.json"
"""What the directory was prepared with."""
BEGUN = "begun"
"""Stands in a model's directory from the beginning of a training to its first checkpoint."""
FORMAT = 1


def begin_anew(place: Path) -> None:
    """Give up the checkpoint in a model's directory, and note that it was not lost: its pages are about to be written over."""
    (place / BEGUN).touch()
    (place / STATE).unlink(missing_ok=True)


class CheckpointDirectory:
    """Checkpoints of a model on disk, in its directory, which need not be there; ``kind`` is ``"linear"`` or ``"factor"``."""

    is_model = True

    def __init__(self, folder: str | os.PathLike[str], kind: str) -> None:
        self.place, self.kind = local_path(folder), kind

    @property
    def where(self) -> str:
        return f"in {self.place}"

    def reserve(self) -> AbstractContextManager[Path]:
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

    def remove(self) -> None:
        """Keep the model of the epochs before."""


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


_ELSEWHERE = "choose another directory, or remove that one"


@dataclass(frozen=True, slots=True)
class DirectoryContents:
    """What a directory holds.

    Attributes
    ----------
    header : mapping, optional
        That of a model of these data, of the kind asked for.
    layout : FeatureLayout, optional
        What was found when it was prepared for these data and columns.
    warning : str, optional
        What else it holds, and what training would do about it.
    """

    header: Mapping[str, Any] | None = None
    layout: FeatureLayout | None = None
    warning: str | None = None


def directory_contents(
    folder: str | os.PathLike[str], source: BlockSource, *, kind: str, asked: Recipe | None = None
) -> DirectoryContents:
    """Look at a model's directory, which need not be there, before it learns from some data.

    ``kind`` is ``"linear"``, where ``asked`` are the columns, or ``"factor"``.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from penstock import open
    >>> directory_contents("no.model", open(pa.table({"x": [1.0]})), kind="linear")
    DirectoryContents(header=None, layout=None, warning=None)
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        return DirectoryContents(
            warning=f"{place} is a file, and training there will be refused; choose another directory"
        )
    header = None
    if (place / STATE).is_file():
        try:
            header = read_model(place / STATE)[1]
            warning = _other_model(place, header, source, kind)
        except (ModelFileError, KeyError) as error:
            warning = f"{place} holds no whole model, and training there will be refused: {error}; {_ELSEWHERE}"
        if warning is not None:
            return DirectoryContents(warning=warning)
    if asked is not None and (place / NOTE).is_file():
        return _noted(place, source, asked, header)
    return DirectoryContents(header, warning=None if header is not None else _strangers(place))


def _other_model(place: Path, header: Mapping[str, Any], source: BlockSource, kind: str) -> str | None:
    """Say that a directory holds a model of another kind or of other data, if it does."""
    if header.get("bigmodel") != kind:
        known = {"factor": "a factorisation", "linear": "a linear model"}
        what = known.get(str(header.get("bigmodel")), "something other than a model on disk")
        return f"{place} holds {what}, and training there will be refused; {_ELSEWHERE}"
    if header["fingerprint"] != source.fingerprint:
        now = source.name
        return (
            f"{place} holds a model of other data ({other_data(header['data'], now)}), and training there will be refused; {_ELSEWHERE}."
            f" What is told here is of {now} alone."
        )
    return None


def _noted(place: Path, source: BlockSource, asked: Recipe, header: Mapping[str, Any] | None) -> DirectoryContents:
    """Take what a directory was prepared with, or say what else it was prepared for."""
    lost = " and gives up the model that it holds" if header is not None else ""
    anew = f"training there prepares it anew{lost}"
    try:
        noted = read_note(place / NOTE)
        if noted["fingerprint"] != source.fingerprint:
            return DirectoryContents(header, warning=f"{place} was prepared for other data than {source.name}; {anew}")
        recipe = Recipe.from_dict(noted["encoder"])
        if asked.label != recipe.label:
            told = f"with the label {recipe.label!r}, where this has {asked.label!r}"
            return DirectoryContents(header, warning=f"{place} was prepared {told}; {anew}")
        require_same_columns(asked, recipe)
        if asked.width != recipe.width:
            widths = ("any" if each.width is None else f"{each.width:,}" for each in (recipe, asked))
            told = "for a dimension of {}, where this is {}".format(*widths)
            return DirectoryContents(header, warning=f"{place} was prepared {told}; {anew}")
        return DirectoryContents(header, FeatureLayout.from_dict(noted["layout"]))
    except UsageError:
        return DirectoryContents(header, warning=f"{place} was prepared for other columns of these data; {anew}")
    except (OSError, ValueError, KeyError, TypeError):  # half of one, or by another version
        return DirectoryContents(header, warning=f"{place / NOTE} is not whole; {anew}")


def _strangers(place: Path) -> str | None:
    """Say that a directory holds files that are of no model, if it does."""
    names = strangers(place, (STATE,))
    if not names:
        return None
    return (
        f"{place} holds no model but other files ({some_of(names)}), and training there will be refused; {_ELSEWHERE}"
    )
