"""The work of ``penstock groups train``: what is refused before any row is read, the training, and what is told of it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from penstock.blocks.open import open as open_source
from penstock.blocks.open import without_password
from penstock.budget import peak_memory, show_bytes
from penstock.cli import options as o
from penstock.cli.groupreport import write_page
from penstock.cli.grouptables import figures, lines
from penstock.cli.screen import Screen
from penstock.compare import finite
from penstock.config import Config
from penstock.errors import UsageError, some_of
from penstock.events import Advanced, Event
from penstock.groups.boosting import Boosting
from penstock.groups.group_by import GroupBy
from penstock.groups.grouped import NOTE
from penstock.groups.index import INDEX
from penstock.groups.patterns.base import Trainable
from penstock.groups.patterns.linear import LinearModel
from penstock.groups.running import Race
from penstock.groups.spec import Search
from penstock.lock import LOCK

_SOLVERS = {"logistic": ("lbfgs", "gd", "sgd"), "linear": ("lbfgs", "gd", "sgd"), "svm": ("sgd",)}
# What rows that are grouped already have settled.
_SETTLED = ("features", "exclude", "hash", "weight", "format", "header", "delimiter", "rows", "memory")


def trainable_of(params: dict[str, Any]) -> Trainable:
    """Return what the options of ``groups train`` ask to be trained."""
    model, solver, epochs = params["model"], params["solver"], params["epochs"]
    if model == "lightgbm":
        for option in ("solver", "no_intercept"):
            if params[option]:
                raise UsageError(
                    f"--{option.replace('_', '-')} is of linear models; leave it out with --model lightgbm"
                )
        return Boosting(rounds=epochs or 100, patience=params["patience"], seed=params["seed"])
    if model not in _SOLVERS:
        known = ", ".join([*_SOLVERS, "lightgbm"])
        raise UsageError(f"--model {model} is not there for groups; choose one of: {known}")
    solver = solver or _SOLVERS[model][0]
    if solver not in _SOLVERS[model]:
        raise UsageError(
            f"--solver {solver} is not there for --model {model}; choose one of: {', '.join(_SOLVERS[model])}"
        )
    if params["patience"] is not None and solver != "sgd":
        raise UsageError(
            f"--patience is of sgd and lightgbm; --solver {solver} ends by its tolerance: --try tolerance=1e-4"
        )
    config = Config(
        model=model,
        solver=solver,
        epochs=epochs or 10,
        patience=params["patience"],
        intercept=not params["no_intercept"],
        seed=params["seed"],
        standardize=params["standardize"],
    )
    return LinearModel(config)


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


def run(params: dict[str, Any], *, by: list[str], search: Search, what: Trainable) -> None:
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
            what,
            y=params["label"],
            search=search,
            validation=params["validation"],
            halving=None if params["halving"] is None else Race(params["halving"], budget=params["budget"]),
            executor=params["executor"],
            workers=params["workers"],
            address=params["address"],
            placement=params["placement"],
            approach=params["approach"],
            out=params["out"],
            resume=params["resume"],
            listeners=[screen.listen, lambda event: trained.append(event) if _is_group(event) else None],
        )
        told = {
            **figures(result),
            "data": without_password(params["data"]),
            "label": result.registry.index.label,
            "trained": len(trained),
        }
        told |= {"seconds": time.perf_counter() - began, "peak_memory_bytes": peak_memory(), "out": params["out"]}
        screen.close()
        for line in lines(told):
            screen.say(line)
        done = "nothing was left to do in" if params["resume"] and not trained else "saved"
        screen.say(
            f"{done} {params['out']}: {params['model']}, {told['groups'] - told['groups_without_model']:,} models,"
            f" {told['seconds']:.1f} s, peak memory {show_bytes(told['peak_memory_bytes'])}"
        )
        if params["report"] is not None:
            told["report"] = params["report"]
            write_page(result, Path(params["report"]), title=params["out"], data=params["data"])
            screen.say(f"wrote {params['report']}")
        screen.give(finite(told))


def _is_group(event: Event) -> bool:
    return isinstance(event, Advanced) and event.task == "groups"
