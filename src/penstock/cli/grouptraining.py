"""The work of ``penstock groups train``: what is refused before any row is read, the training, and what is told of it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from penstock.blocks.open import open as open_source
from penstock.blocks.open import without_password
from penstock.budget import peak_memory, show_bytes
from penstock.cli import options as o
from penstock.cli.groupreport import write_group_page
from penstock.cli.screen import Screen
from penstock.config import Config
from penstock.errors import UsageError, some_of
from penstock.events import Advanced, Event
from penstock.groups.boosting import Boosting
from penstock.groups.group_by import GroupBy
from penstock.groups.grouped import NOTE
from penstock.groups.index import INDEX
from penstock.groups.patterns.base import Trainable
from penstock.groups.patterns.linear import GroupedLinear
from penstock.groups.search_space import Search
from penstock.groups.tables import figures, lines
from penstock.groups.training_run import Race
from penstock.lock import LOCK
from penstock.metric_names import useless_reason
from penstock.options import default
from penstock.sgd.losses import linear_models

# What rows that are grouped already have settled.
_SETTLED = ("features", "exclude", "hash", "weight", "format", "header", "delimiter", "rows", "memory")


def trainable_of(params: dict[str, Any]) -> Trainable:
    """Return what the options of ``groups train`` ask to be trained."""
    model, solver, epochs = params["model"], params["solver"], params["epochs"]
    if model == "lightgbm":
        for name in ("solver", "optimizer", "intercept", "class_weight"):
            if name in params and params[name] != default(name, "groups-train"):
                flag = "--no-intercept" if name == "intercept" else o.flag_of(name)
                raise UsageError(f"{flag} is of linear models; leave it out with --model lightgbm")
        return Boosting(rounds=epochs or 100, patience=params["patience"], seed=params["seed"])
    models = linear_models()
    if model not in models:
        known = ", ".join([*models, "lightgbm"])
        raise UsageError(f"--model {model} is not there for groups; choose one of: {known}")
    solver = solver or "auto"
    solvers = ("auto", *models[model].solvers, "sgd")
    if solver not in solvers:
        raise UsageError(f"--solver {solver} is not there for --model {model}; choose one of: {', '.join(solvers)}")
    if params["patience"] is not None and solver not in ("auto", "sgd"):
        raise UsageError(
            f"--patience is of sgd and lightgbm; --solver {solver} ends by its tolerance: --try tolerance=1e-4"
        )
    names = ("optimizer", "epochs", "patience", "class_weight", "intercept", "seed", "standardize")
    config = Config(model=model, solver=solver, **{name: params[name] for name in names if name in params})
    return GroupedLinear(config)


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
            **{name: value for name, value in o.column_arguments(params).items() if name != "label"},
        )
        trained: list[Event] = []
        result = work.fit(
            what,
            y=params["label"],
            search=search,
            validation=params["validation"],
            pooled=params["pooled"],
            halving=None if params["halving"] is None else Race(params["halving"], budget=params["budget"]),
            executor=params["executor"],
            workers=params["workers"],
            address=params["address"],
            placement=params["placement"],
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
        # Held-out rows are not counted by class weights, so that nothing can be said of models that were trained with them.
        told["useless"] = useless = None if params["class_weight"] else useless_reason(told)
        told |= {"seconds": time.perf_counter() - began, "peak_memory_bytes": peak_memory(), "out": params["out"]}
        screen.close()
        for line in lines(told):
            screen.say(line)
        done = "nothing was left to do in" if params["resume"] and not trained else "saved"
        screen.say(
            f"{done} {params['out']}: {told['model']}, {told['groups'] - told['groups_without_model']:,} models,"
            f" {told['seconds']:.1f} s, peak memory {show_bytes(told['peak_memory_bytes'])}"
        )
        if params["report"] is not None:
            told["report"] = params["report"]
            write_group_page(result, Path(params["report"]), title=params["out"], data=params["data"])
            screen.say(f"wrote {params['report']}")
        if useless is not None and not params["keep_anyway"]:
            screen.say(
                f"the models are useless: {useless}; look for columns that tell more of {told['label']!r}, or accept them:"
                " --resume --keep-anyway"
            )
        without = told["groups_without_model"] == told["groups"]
        if without:
            screen.say(f"no group has a model; for the reasons: penstock groups show {params['out']}")
        screen.give(told)
        if without or (useless is not None and not params["keep_anyway"]):
            raise typer.Exit(1)


def _is_group(event: Event) -> bool:
    return isinstance(event, Advanced) and event.task == "groups"
