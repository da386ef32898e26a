"""What lies in a directory that is to hold a model: nothing yet, what was prepared for these data, or something else.

Nothing is written, and nothing is refused here: what training would refuse or give up is told.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bigmodel.checkpoint import STATE, other_data
from penstock.bigmodel.layout import FeatureLayout
from penstock.bigmodel.prepare import NOTE
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.checkpoint import require_same_columns
from penstock.errors import ModelFileError, UsageError, some_of
from penstock.lock import strangers
from penstock.modelfile import read_model
from penstock.sealed import read_note

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
    folder: str | os.PathLike[str], source: BlockSource, *, kind: str, asked: Encoder | None = None
) -> DirectoryContents:
    """Look at a model's directory.

    Parameters
    ----------
    folder : path
        The directory; need not be there.
    source : BlockSource
        The data that are to be learnt from.
    kind : str
        ``"linear"`` or ``"factor"``.
    asked : Encoder, optional
        Of a linear model: the columns.

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


def _noted(place: Path, source: BlockSource, asked: Encoder, header: Mapping[str, Any] | None) -> DirectoryContents:
    """Take what a directory was prepared with, or say what else it was prepared for."""
    lost = " and gives up the model that it holds" if header is not None else ""
    anew = f"training there prepares it anew{lost}"
    try:
        noted = read_note(place / NOTE)
        if noted["fingerprint"] != source.fingerprint:
            return DirectoryContents(header, warning=f"{place} was prepared for other data than {source.name}; {anew}")
        encoder = Encoder.from_dict(noted["encoder"])
        if asked.label != encoder.label:
            told = f"with the label {encoder.label!r}, where this has {asked.label!r}"
            return DirectoryContents(header, warning=f"{place} was prepared {told}; {anew}")
        require_same_columns(asked, encoder)
        if asked.width != encoder.width:
            widths = ("any" if each.width is None else f"{each.width:,}" for each in (encoder, asked))
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
