"""What lies in a directory that is to hold a model: nothing yet, what was prepared for these data, or something else.

Nothing is written, and nothing is refused here: what training would refuse or give up is told.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bigmodel.layout import Layout
from penstock.bigmodel.model import STATE
from penstock.bigmodel.prepare import NOTE
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.errors import ModelFileError, UsageError, some_of
from penstock.lock import strangers
from penstock.modelfile import read_model
from penstock.training import require_same_columns

_ELSEWHERE = "choose another directory, or remove that one"


@dataclass(frozen=True, slots=True)
class Held:
    """What a directory holds.

    Attributes
    ----------
    header : mapping, optional
        That of a model of these data, of the kind asked for.
    layout : Layout, optional
        What was found when it was prepared for these data and columns.
    warning : str, optional
        What else it holds, and what training would do about it.
    """

    header: Mapping[str, Any] | None = None
    layout: Layout | None = None
    warning: str | None = None


def held(folder: str | os.PathLike[str], source: BlockSource, *, kind: str, asked: Encoder | None = None) -> Held:
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
    >>> from penstock.blocks import open
    >>> held("no.model", open(pa.table({"x": [1.0]})), kind="linear")
    Held(header=None, layout=None, warning=None)
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        return Held(warning=f"{place} is a file, and training there will be refused; choose another directory")
    header = None
    if (place / STATE).is_file():
        try:
            header = read_model(place / STATE)[1]
            warning = _other_model(place, header, source, kind)
        except (ModelFileError, KeyError) as error:
            warning = f"{place} holds no whole model, and training there will be refused: {error}; {_ELSEWHERE}"
        if warning is not None:
            return Held(warning=warning)
    if asked is not None and (place / NOTE).is_file():
        return _noted(place, source, asked, header)
    return Held(header, warning=None if header is not None else _strangers(place))


def _other_model(place: Path, header: Mapping[str, Any], source: BlockSource, kind: str) -> str | None:
    """Say that a directory holds a model of another kind or of other data, if it does."""
    if header.get("bigmodel") != kind:
        known = {"factor": "a factorisation", "linear": "a linear model"}
        what = known.get(str(header.get("bigmodel")), "something other than a model on disk")
        return f"{place} holds {what}, and training there will be refused; {_ELSEWHERE}"
    if header["fingerprint"] != source.fingerprint:
        before, now = header["data"], source.name
        data = f"{before} as it was before it changed" if before == now else f"{before}, where this is {now}"
        return (
            f"{place} holds a model of other data ({data}), and training there will be refused; {_ELSEWHERE}."
            f" What is told here is of {now} alone."
        )
    return None


def _noted(place: Path, source: BlockSource, asked: Encoder, header: Mapping[str, Any] | None) -> Held:
    """Take what a directory was prepared with, or say what else it was prepared for."""
    lost = " and gives up the model that it holds" if header is not None else ""
    anew = f"training there prepares it anew{lost}"
    try:
        noted = json.loads((place / NOTE).read_text())
        if noted["fingerprint"] != source.fingerprint:
            return Held(header, warning=f"{place} was prepared for other data than {source.name}; {anew}")
        encoder = Encoder.from_dict(noted["encoder"])
        if asked.label != encoder.label:
            told = f"with the label {encoder.label!r}, where this has {asked.label!r}"
            return Held(header, warning=f"{place} was prepared {told}; {anew}")
        require_same_columns(asked, encoder)
        if asked.width != encoder.width:
            widths = ("any" if each.width is None else f"{each.width:,}" for each in (encoder, asked))
            told = "for a dimension of {}, where this is {}".format(*widths)
            return Held(header, warning=f"{place} was prepared {told}; {anew}")
        return Held(header, Layout.from_dict(noted["layout"]))
    except UsageError:
        return Held(header, warning=f"{place} was prepared for other columns of these data; {anew}")
    except (OSError, ValueError, KeyError, TypeError):  # half of one, or by another version
        return Held(header, warning=f"{place / NOTE} is not whole; {anew}")


def _strangers(place: Path) -> str | None:
    """Say that a directory holds files that are of no model, if it does."""
    names = strangers(place, (STATE,))
    if not names:
        return None
    return (
        f"{place} holds no model but other files ({some_of(names)}), and training there will be refused; {_ELSEWHERE}"
    )
