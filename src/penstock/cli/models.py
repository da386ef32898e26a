"""A saved model by its path, or by its name in a database, and the data it is asked about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli import options as o
from penstock.errors import ModelFileError, PenstockError, UsageError
from penstock.events import Stream, Warned
from penstock.messages import LeaveOut, Name

if TYPE_CHECKING:
    from penstock.blocks.base import BlockSource
    from penstock.model import Model

MEMORY = "512MB"
"""What rows, and the pages of a model on disk, may occupy where nothing else is said."""


@contextmanager
def opened_model(
    path: str, *, db: str | None = None, default_memory: str = MEMORY, stream: Stream, **options: str | None
) -> Iterator[Model]:
    """Open a model, to be closed afterwards, and warn where its training was broken off.

    Parameters
    ----------
    path : str
        Where it is; with a database, its name there.
    db : str, optional
        The database.
    default_memory : str
        What pages and rows may occupy, where the kind of model asks for it and ``memory`` is not among the options.
    options
        What the user gave of the options of `penstock.model_kinds.open_model`; one that the model does not take is refused.

    Raises
    ------
    ModelFileError
        There is no model.
    """
    with _from_path(path, default_memory, options) if db is None else _from_database(path, db, options) as model:
        warn_unfinished(model, path, stream)
        yield model


def warn_unfinished(model: Model, path: str, stream: Stream) -> None:
    """Say so where the training of a model was broken off."""
    if not model.finished:
        lacking = ", and groups may lack their models" if model.by else ""
        stream.emit(Warned(f"the training of {path} was not finished{lacking}; go on with it by --resume"))


def open_data(model: Model, params: Mapping[str, Any]) -> BlockSource:
    """Open the data that a model is asked about; the columns of groups may stand in their paths."""
    from penstock.blocks.open import open as open_source

    data, format, reading = params["data"], params["format"], o.reading(params["header"], params["delimiter"])
    if model.by and format is None and not reading:
        from penstock.groups.partitioned import partitioned

        source = partitioned(data, model.by)
        if source is not None:
            return source
    return open_source(data, format=format, **reading)


def _from_path(path: str, default_memory: str, options: Mapping[str, str | None]) -> Model:
    from penstock.model_kinds import kind_of, open_model

    if "memory" in kind_of(path).options:
        options = {**options, "memory": options.get("memory") or default_memory}
    try:
        return open_model(path, **options)
    except ModelFileError:
        if Path(path).is_file():
            _refuse_data(path)
        raise


def _refuse_data(path: str) -> None:
    """Raise `ModelFileError` where a file named as the model holds data, as when the arguments are swapped."""
    from penstock.blocks.file_kinds import title_of
    from penstock.blocks.open import detect

    try:
        kind = detect(path)
    except PenstockError:
        return  # of no known kind: what is wrong with it as a model is the better message
    raise ModelFileError(f"{path} is {title_of(kind)}, not a model; MODEL comes first, then DATA")


@contextmanager
def _from_database(name: str, db: str, options: Mapping[str, str | None]) -> Iterator[Model]:
    from penstock.sql.engines.registry import engine_kind
    from penstock.sql.session import Session

    for option, value in options.items():
        if value is not None:
            raise UsageError(
                Name(option),
                " is not for models of a database, which are opened as they were trained",
                fixes=[LeaveOut(option)],
            )
    with Session(db, read_only=engine_kind(db).read_only) as session, session.catalog.load(name) as model:
        yield model
