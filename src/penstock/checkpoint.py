"""Checkpoints of training jobs: where they are kept, and whether one fits the run that is to go on from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.columns.base import FeatureColumn
from penstock.columns.hashing import Hashed
from penstock.columns.recipe import Recipe
from penstock.errors import DataChangedError, ModelFileError, UsageError
from penstock.loader.block_cuts import PLAN_VERSION
from penstock.messages import START_ANEW, Given, Text, TextPart, Use
from penstock.modelfile import read_model, write_model
from penstock.options import made_with
from penstock.outputs import only_writer, require_file


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was saved after an epoch: arrays, and a header of plain JSON.

    ``name`` is what messages call it, ``anew`` how to do without it.
    """

    name: str
    arrays: Mapping[str, NDArray[Any]]
    header: Mapping[str, Any]
    anew: TextPart = START_ANEW


class CheckpointStore(Protocol):
    """Where the checkpoints of a job are kept, each in place of the one before."""

    is_model: bool
    """Whether the last checkpoint is the model, and so has the figures of the finished model."""

    @property
    def where(self) -> str:
        """Where it is, as messages say it after "there is no checkpoint"."""

    def reserve(self) -> AbstractContextManager[Any]:
        """Keep other processes from writing here."""

    def read(self) -> Checkpoint | None:
        """Return the last checkpoint, or None where there is none yet."""

    def write(self, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any], /) -> None:
        """Write a checkpoint."""

    def remove(self) -> None:
        """Remove the last checkpoint, from which nothing can come, unless it is the model."""


class CheckpointFile:
    """Checkpoints in one file."""

    is_model = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.place = Path(path)

    @property
    def where(self) -> str:
        return str(self.place)

    def reserve(self) -> AbstractContextManager[None]:
        return only_writer(require_file(self.place))

    def read(self) -> Checkpoint | None:
        """Return the last checkpoint, or None where there is none yet.

        Raises
        ------
        ModelFileError
            The file is none, or was written by a version that planned epochs in another way.
        """
        if not self.place.exists():
            return None
        arrays, header = read_model(self.place)
        if not header.get("checkpoint"):
            raise ModelFileError(
                f"{self.place} is a finished model, not a checkpoint",
                fixes=[Text("train without ", Use("resume", True))],
            )
        if header.get("plan") != PLAN_VERSION:
            raise ModelFileError(
                f"{self.place} was made by another version of Penstock, which held out other rows and put other rows"
                " together in windows",
                fixes=[START_ANEW],
            )
        return Checkpoint(str(self.place), arrays, header)

    def write(self, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any], /) -> None:
        write_model(self.place, arrays, {"checkpoint": True, "plan": PLAN_VERSION, **header})

    def remove(self) -> None:
        self.place.unlink(missing_ok=True)


def held_out_share(header: Mapping[str, Any]) -> float:
    """Return the share of rows that a checkpoint holds out; older ones name it in their config alone."""
    return float(header.get("held_out_share", header["config"].get("validation")) or 0.0)


def require_same_data(source: BlockSource, saved: Checkpoint) -> None:
    """Raise unless a source is the data that a checkpoint was made from."""
    if saved.header["fingerprint"] != source.fingerprint:
        raise DataChangedError(
            f"{source.name} is not the data that {saved.name} was made from", fixes=["restore the data", saved.anew]
        )


def require_same_test(share: float, header: Mapping[str, Any]) -> None:
    """Raise unless the same share of rows is set apart for a test as by a checkpoint."""
    other = float(header.get("test_share", 0.0))
    if share != other:
        raise made_with("test_share", other, share)


def require_same_columns(recipe: Recipe, saved: Recipe) -> None:
    """Raise unless the columns of a run are those of a checkpoint."""
    for name, mine, other in (
        ("label", recipe.label, saved.label),
        ("weight", recipe.weight, saved.weight),
        ("missing", recipe.missing, saved.missing),
        ("features", [_identity(p) for p in recipe.parts], [_identity(p) for p in saved.parts]),
    ):
        if mine != other:
            choice = Text(Given(name, other), f", this run has {mine!r}")
            raise UsageError(
                "the checkpoint was made with ",
                f"another choice of {name}" if name == "features" else choice,
                option=name,
                value=mine,
                fixes=["resume with the same columns", START_ANEW],
            )


def _identity(part: FeatureColumn) -> tuple[Any, ...]:
    """Return what tells one choice of a column from another; what was found in the data follows from that."""
    return part.columns, (part.bits, part.words) if isinstance(part, Hashed) else part.kind
