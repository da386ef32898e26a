"""The work of ``penstock groups train``: what is refused before any row is read, the training, and what is told of it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.bigmodel.lock import LOCK
from penstock.blocks.open import open as open_source
from penstock.budget import peak_memory, show_bytes
from penstock.cli import options as o
from penstock.cli.grouptables import figures, lines
from penstock.cli.screen import Screen
from penstock.compare import finite
from penstock.config import Config
from penstock.errors import UsageError, some_of
from penstock.events import Advanced, Event
from penstock.groups.group_by import GroupBy
from penstock.groups.grouped import NOTE
from penstock.groups.index import INDEX
from penstock.groups.patterns.algebraic import SOLVERS
from penstock.groups.spec import Search

_MODELS = ("logistic", "linear")
# What rows that are grouped already have settled.
_SETTLED = ("features", "exclude", "hash", "weight", "format", "header", "delimiter", "rows", "memory")


def require_known(model: str, solver: str) -> None:
    """Raise `UsageError` unless a model and a solver are there for groups."""
    for option, value, known in (("model", model, _MODELS), ("solver", solver, SOLVERS)):
        if value not in known:
            raise UsageError(f"--{option} {value} is not there for groups; choose one of: {', '.join(known)}")


def require_new(data: str, given: list[str], label: str | None) -> None:
    """Raise `UsageError` where rows have no label, or are grouped already and are given what that has settled."""
    if not (Path(data) / NOTE).is_file():
        if label is None:
            raise UsageError("say which column is to be learnt: --label clicked, say")
        return
    for name in _SETTLED:
        if name in given:
            raise UsageError(
                f"--{name} is not for {data}: its rows are grouped already, and have their columns; leave it out"
            )


def require_own(folder: Path, *, resume: bool) -> None:
    """Raise `UsageError` unless a folder is for these models: sorting must not come before that is found out."""
    names = sorted(path.name for path in folder.iterdir() if path.name != LOCK) if folder.exists() else []
    if INDEX in names and not resume:
        raise UsageError(f"{folder} holds models already; go on with --resume, or choose another folder")
    if names and INDEX not in names:
        raise UsageError(
            f"{folder} holds no models but other files ({some_of(names, 5)}); choose a new folder for --out"
        )


def run(params: dict[str, Any], *, by: list[str], search: Search, config: Config) -> None:
    """Train as the options of ``groups train`` say, and tell of it."""
    began = time.perf_counter()
    reading = o.reading(params["header"], params["delimiter"])
    with ExitStack() as stack:
        screen = stack.enter_context(Screen(json=params["json"], rows=False))
        if params["resume"] and not (Path(params["out"]) / INDEX).exists():
            screen.note(f"there are no models in {params['out']}; training starts from the beginning")
        data: Any = params["data"]
        if reading or params["format"] is not None:
            data = stack.enter_context(open_source(data, format=params["format"], **reading))
        work = GroupBy(
            data,
            by=by,
            memory=params["memory"],
            rows=params["rows"],
            weight=params["weight"],
            features=o.names(params["features"]) or None,
            exclude=o.names(params["exclude"]),
            hash=o.names(params["hash"]),
        )
        trained: list[Event] = []
        result = work.fit(
            _Fixed(config),
            y=params["label"],
            search=search,
            validation=params["validation"],
            workers=params["workers"],
            placement=params["placement"],
            out=params["out"],
            resume=params["resume"],
            listeners=[screen.listen, lambda event: trained.append(event) if _is_group(event) else None],
        )
        told = {
            **figures(result),
            "data": params["data"],
            "label": result.registry.index.label,
            "trained": len(trained),
        }
        told |= {"seconds": time.perf_counter() - began, "peak_memory_bytes": peak_memory(), "out": params["out"]}
        screen.close()
        for line in lines(told):
            screen.say(line)
        done = "nothing was left to do in" if params["resume"] and not trained else "saved"
        screen.say(
            f"{done} {params['out']}: {told['model']}, {told['groups'] - told['groups_without_model']:,} models,"
            f" {told['seconds']:.1f} s, peak memory {show_bytes(told['peak_memory_bytes'])}"
        )
        screen.give(finite(told))


def _is_group(event: Event) -> bool:
    return isinstance(event, Advanced) and event.task == "groups"


class _Fixed:
    """Hyper-parameters in the place of an estimator, which would bring scikit-learn along."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def to_config(self) -> Config:
        return self._config
