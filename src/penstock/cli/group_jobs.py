"""The work of ``penstock groups`` train, explain and report: the search, what is refused before any row is read, and results."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.blocks.open import open as open_source
from penstock.blocks.open import without_password
from penstock.blocks.storage import show_names
from penstock.budget import peak_memory, show_bytes
from penstock.cli import options as o
from penstock.cli.explain import show_explanation
from penstock.cli.screen import Screen
from penstock.config import Config
from penstock.errors import UsageError, some_of
from penstock.events import Advanced, Event
from penstock.explanation.explanation import Explanation
from penstock.explanation.group_training import explain_groups
from penstock.groups.boosting import Boosting
from penstock.groups.group_by import GroupBy
from penstock.groups.grouped import NOTE
from penstock.groups.index import INDEX
from penstock.groups.patterns.base import Trainable
from penstock.groups.patterns.linear import GroupedLinear
from penstock.groups.results import GroupModels
from penstock.groups.search_space import Search
from penstock.groups.tables import figures, lines
from penstock.groups.training_run import Race
from penstock.lock import LOCK
from penstock.messages import UNSET
from penstock.metric_names import useless_reason
from penstock.options import default
from penstock.report import GroupPage, write_report
from penstock.report.group_page import group_findings
from penstock.sgd.losses import linear_models

if TYPE_CHECKING:
    from penstock.groups.search_space import Search


def write_group_page(result: GroupModels, path: Path, *, title: str, data: str | None = None) -> dict[str, Any]:
    """Write the page, and return what it found in sentences and how large it is.

    Parameters
    ----------
    result : GroupModels
        The models.
    path : Path
        The file to write.
    title, data : str
        Where the models are, and what they were trained on, where that is known.
    """
    page = GroupPage.of(result, title=title, data=data, date=date.today().isoformat())
    write_report(page, path)
    return {"findings": group_findings(page), "report_bytes": path.stat().st_size}


def workers_of(given: Sequence[str] | None) -> list[int]:
    """Read ``--workers 1,2,4``.

    Examples
    --------
    >>> workers_of(["4,1", "16"])
    [1, 4, 16]
    """
    counts = set()
    for text in o.names(given):
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"--workers {text} is not a number of workers; write --workers 1,4,16")
        counts.add(int(text))
    if counts and max(counts) > 1_000:
        raise UsageError(f"--workers {max(counts)} is more than can be played through; choose at most 1000")
    return sorted(counts)


def run_explain(params: dict[str, Any], *, by: list[str], search: Search, what: Trainable) -> None:
    """Explain as the options of ``groups explain`` say."""
    workers = workers_of(params["workers"])
    name = f"{params['model']} by {params['solver']}" if params["solver"] else str(params["model"])

    def explain() -> Explanation:
        with _opened(params) as data:
            return explain_groups(
                data,
                by,
                model=what,
                choices=[choice.params for choice in search.choices(what.known)],
                workers=workers,
                label=params["label"],
                validation=params["validation"],
                seed=params["seed"],
                columns=_columns(params),
                name=name,
            )

    show_explanation(explain, json=params["json"], model=params["model"], told=name)


def search_of(grid: str | None, tries: Sequence[str], *, known: Mapping[str, Any]) -> Search:
    """Return what to try, held against what the model takes.

    Examples
    --------
    >>> from penstock.groups.search_space import LINEAR
    >>> len(search_of(None, ["l2=1,0.1", "epochs=5,10,20"], known=LINEAR).choices())
    6
    >>> search_of(None, ["l2=-1"], known=LINEAR)
    Traceback (most recent call last):
    penstock.errors.UsageError: --try l2=-1: l2 = -1 is out of range; choose a number of at least 0
    """
    from penstock.groups.search_space import Search

    if grid is not None and tries:
        raise UsageError("--grid and --try both say what to try; put all of it in the file, or leave --grid out")
    place = f"--grid {grid}" if grid is not None else " ".join(f"--try {text}" for text in tries)
    values = _values(tries)
    try:
        search = Search.from_toml(grid) if grid is not None else Search.grid(values)
        search.choices(known)
    except UsageError as error:
        error = error.replace(place=place)
        error.wording = _TableWording()
        raise error from None
    return search


@dataclass(frozen=True, slots=True)
class _TableWording:
    """Parameters as a search's file has them: the command has no options of these names."""

    def given(self, option: str, value: object) -> str:
        """Return ``name = value``."""
        if value is UNSET:
            return option
        return repr(value) if option == "search" else f"{option} = {value!r}"  # a search is the file itself

    use = given

    def name(self, option: str) -> str:
        """Return the name."""
        return option


def _values(tries: Sequence[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for text in tries:
        name, equals, values = (part.strip() for part in text.partition("="))
        texts = [value.strip() for value in values.split(",")]
        if not equals or not name or not all(texts):
            raise UsageError(f"--try {text} is not a name with its values; write --try l2=1,0.1,0.01")
        if name in found:
            raise UsageError(f"--try {text}: {name} was given before; write all its values in one --try")
        found[name] = [_value(each) for each in texts]
    return found


def _value(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)


# What rows that are grouped already have settled.
_SETTLED = (
    *("features", "exclude", "hash", "category", "number", "date", "missing", "null_values", "weight"),
    *("format", "header", "delimiter", "rows", "memory"),
)


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


def require_new(data: str | list[str], given: list[str], label: str | None) -> None:
    """Raise `UsageError` where rows have no label, or are grouped already and are given what that has settled."""
    if isinstance(data, list) or not (Path(data) / NOTE).is_file():
        if label is None:
            raise UsageError("say which column is to be learnt: --label clicked, say")
        return
    for name in _SETTLED:
        if name in given:
            raise UsageError(
                f"{o.flag_of(name)} is not for {data}: its rows are grouped already, and have their columns; leave it out"
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
    began, named = time.perf_counter(), params["data"]
    with Screen(json=params["json"], rows=False) as screen, _opened(params) as data:
        if params["resume"] and not (Path(params["out"]) / INDEX).exists():
            screen.note(f"there are no models in {params['out']}; training starts from the beginning")
        work = GroupBy(data, by=by, memory=params["memory"], rows=params["rows"], **_columns(params))
        trained: list[Event] = []

        def listen(event: Event) -> None:
            screen.listen(event)
            if isinstance(event, Advanced) and event.task == "groups":
                trained.append(event)

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
            listeners=[listen],
        )
        told = {
            **figures(result),
            "data": without_password(named) if isinstance(named, str) else show_names(named),
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
            screen.watch(Path(params["report"]))
            write_group_page(result, Path(params["report"]), title=params["out"], data=told["data"])
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


@contextmanager
def _opened(params: Mapping[str, Any]) -> Iterator[Any]:
    """Give the data as they were named, or opened where options say how to read them."""
    reading = o.reading(params["header"], params["delimiter"])
    if not reading and params["format"] is None:
        yield params["data"]
        return
    with open_source(params["data"], format=params["format"], **reading) as source:
        yield source


def _columns(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in o.column_arguments(params).items() if name != "label"}
