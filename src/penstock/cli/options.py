"""Parameters of commands, made from the option table (flags, types, defaults and help), and which of them go together."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from penstock.command_lines import flag
from penstock.errors import UsageError
from penstock.options import ARGUMENT, REQUIRED, TABLE, Option, default, options_of

if TYPE_CHECKING:
    from penstock.bigmodel.storage import MemorySplit


Command = TypeVar("Command", bound=Callable[..., None])

_LISTS = ("columns", "texts", "hash", "paths")
_TYPES = {"whole": int, "number": float, "flag": bool, **dict.fromkeys(_LISTS, list[str])}
_ENVIRONMENT = {("sql", "db"): "PENSTOCK_DB"}


def takes(door: str) -> Callable[[Command], Command]:
    """Give a command the parameters that the option table has for it; it is called with all of them by name."""

    def decorate(command: Command) -> Command:
        parameters = [_parameter(option, door) for option in options_of(door).values()]
        if "ctx" in inspect.signature(command).parameters:
            parameters.insert(0, inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))

        @functools.wraps(command)
        def call(**params: Any) -> None:
            command(**{name: _paths(value) if name == "data" else value for name, value in params.items()})

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
        return cast(Command, call)

    return decorate


def _paths(given: Sequence[str]) -> str | list[str]:
    """Return the one path that was given, or the list of several, as the shell makes of ``*``."""
    return given[0] if len(given) == 1 else list(given)


def flag_of(name: str) -> str:
    """Return the flag of an option.

    Examples
    --------
    >>> flag_of("model_dir"), flag_of("tries")
    ('--model-dir', '--try')
    """
    return flag(TABLE[name].spelling or name)


def with_flags(text: str) -> str:
    """Return a text of the option table with flags for ``{options}`` and bold type for what is in backticks."""
    text = re.sub(r"\{(\w+)\}", lambda match: flag_of(match[1]), text)
    return re.sub(r"`([^`]+)`", r"[bold]\1[/bold]", text)


def _parameter(option: Option, door: str) -> inspect.Parameter:
    kind: Any = _TYPES.get(option.kind, str)
    if option.auto and option.kind == "number":
        kind = Any
    elif option.default is None:
        kind = kind | None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if option.default is REQUIRED else option.default,
        annotation=Annotated[kind, _typer_info(option, door)],
    )


def _typer_info(option: Option, door: str) -> Any:
    text = with_flags(option.help)
    if option.panel == ARGUMENT:
        return typer.Argument(metavar=option.metavar, help=text, show_default=False)
    if option.default_text:
        text += f" [dim]\\[default: {with_flags(option.default_text)}][/dim]"
    names = [flag_of(option.name)]
    if option.kind == "flag" and option.default is not False:
        names = [f"{names[0]}/{flag(f'no_{option.name}')}"]
    if option.short:
        names.append(f"-{option.short}")
    more: dict[str, Any] = {}
    if option.kind == "number":
        more["parser"] = _number_or_auto if option.auto else _number
    elif option.kind == "whole" and option.name != "rows":
        more["parser"] = _whole
    return typer.Option(
        *names,
        help=text,
        metavar=option.metavar,
        rich_help_panel=option.panel,
        show_default=not option.default_text,
        envvar=_ENVIRONMENT.get((door, option.name)),
        min=0 if option.kind == "whole" and option.name == "rows" else None,
        **more,
    )


def _number_or_auto(text: str) -> float | None:
    return None if text == "auto" else _number(text, more=", or auto")


def _number(text: str, more: str = "") -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number; give one, such as 0.1{more}") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number; give one, such as 10") from None


def given(ctx: typer.Context) -> list[str]:
    """Return the parameters that were given on the command line, by their Python names, in the command's order."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def names(texts: Sequence[str] | None) -> list[str]:
    """Return the names of an option that takes ``a,b,c`` and may be repeated.

    Examples
    --------
    >>> names(["a,b", "c"])
    ['a', 'b', 'c']
    """
    return [name.strip() for text in texts or () for name in text.split(",") if name.strip()]


def column_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return which columns play which part, as keyword arguments."""
    return {
        "label": params["label"],
        "features": names(params["features"]) or None,
        "weight": params["weight"],
        "exclude": names(params["exclude"]),
        "hash": names(params["hash"]),
        **recipe_arguments(params),
    }


def recipe_arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kinds of columns and what is done with missing values, of a command that has such options."""
    given = {name: names(params[name]) for name in ("category", "number", "date", "null_values") if name in params}
    missing = params.get("missing", "auto")
    return given | ({"missing": missing} if missing != "auto" else {})


def memory_on_disk(params: Mapping[str, Any], given: Sequence[str]) -> MemorySplit:
    """Return what rows and the pages of a model on disk get: parts of one number, unless the model's is given."""
    from penstock.bigmodel.storage import MemorySplit

    if params["model_memory"] is not None:
        return MemorySplit(params["memory"], params["model_memory"])
    return MemorySplit.of(params["memory"] if "memory" in given else default("memory", "disk"))


def reading(header: bool | None, delimiter: str | None) -> dict[str, Any]:
    """Return what `penstock.open` is told of CSV text."""
    values = {"header": header, "delimiter": {"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter)}
    return {name: value for name, value in values.items() if value is not None}


FACTOR = "factor"
_RATINGS = ("user", "item", "rating")
_WORDS = {"disk": "a model on disk", "factor": "a factor model"}


def require_together(given: Iterable[str], *, model: str) -> None:
    """Raise `UsageError` where options of ``train`` were given that make no sense together, or one is missing.

    Examples
    --------
    >>> require_together(["data", "threads"], model="logistic")
    Traceback (most recent call last):
    penstock.errors.UsageError: --threads is for models on disk; say where the model is to be with --model-dir DIR
    """
    names = list(given)
    if model == FACTOR and "model_dir" not in names:
        raise UsageError("a factor model lives on disk; say where it is to be with --model-dir DIR")
    _require_needed(names)
    _refuse(names, "disk")
    if model == FACTOR:
        _refuse(names, FACTOR)
        missing = [name for name in _RATINGS if name not in names]
        if missing:
            raise UsageError(
                f"a factor model learns from ratings; say which columns they are in: {flag_of(missing[0])} is missing"
                " (--user COL --item COL --rating COL)"
            )
        return
    for name in (*_RATINGS, "rank"):
        if name in names:
            raise UsageError(f"{flag_of(name)} is for --model {FACTOR} alone; leave it out of a {model} model")


def require_explained(given: Iterable[str]) -> None:
    """Raise `UsageError` where options of ``explain`` were given that make no sense together."""
    names = list(given)
    if "optimizer" in names:  # which changes nothing of the cost of a model in memory
        _require_model_dir("optimizer", names)


def _require_needed(names: list[str]) -> None:
    for name in names:
        if TABLE[name].needs == "model_dir":
            _require_model_dir(name, names)


def _require_model_dir(name: str, names: list[str]) -> None:
    if "model_dir" not in names:
        raise UsageError(f"{flag_of(name)} is for models on disk; say where the model is to be with --model-dir DIR")


def _refuse(names: list[str], model: str) -> None:
    for name in names if "model_dir" in names else ():
        if model in TABLE[name].refused:
            flag = "--no-intercept" if name == "intercept" else flag_of(name)
            reason = with_flags(TABLE[name].refused[model])
            raise UsageError(f"{flag} is not for {_WORDS[model]}: {reason}; leave it out")
