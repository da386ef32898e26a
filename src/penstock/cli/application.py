"""The application: its commands, its exit codes, and how every error is told.

An error on purpose is one message on stderr that begins with ``error:``, never a traceback; with ``--json`` it is
also ``{"error": …}`` on stdout, so that a machine always reads exactly one object there.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shlex
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock import __version__
from penstock.cli.wording import in_own_words
from penstock.errors import PenstockError, UsageError

# typer's own errors of usage; where their class lives depends on typer's version.
_Refused: Any = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")
_ARGUMENTS = "penstock.arguments"


class _Commands(TyperGroup):
    """Turns what a command raises into messages and exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = ctx.meta[_ARGUMENTS] = list(args)
        try:
            return super().parse_args(ctx, args)
        except _Refused as error:
            raise _refused(error, given) from None

    def list_commands(self, ctx: Any) -> list[str]:
        # In the order of a user's work, not of the alphabet; typer puts a group of commands behind all others.
        return sorted(self.commands, key="demo".__eq__)

    def invoke(self, ctx: Any) -> Any:
        args: list[str] = ctx.meta[_ARGUMENTS]
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            raise _failed(in_own_words(error), args, code=2 if isinstance(error, UsageError) else 1) from None
        except _Refused as error:
            raise _refused(error, args) from None
        except KeyboardInterrupt:
            raise _failed(_interrupted(args), args, code=130, word="") from None
        except BrokenPipeError:
            raise
        except (OSError, MemoryError) as error:
            raise _failed(str(error) or type(error).__name__, args, code=1) from None
        except Exception as error:
            if not _from_interrupt(error):
                raise
            raise _failed(_interrupted(args), args, code=130, word="") from None


def _from_interrupt(error: BaseException | None) -> bool:
    """Say whether an error came up while an interrupt was being dealt with: it is the interrupt that counts."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _failed(message: str, args: list[str], *, code: int, word: str = "error: ") -> typer.Exit:
    """Tell what went wrong, and return what ends the command."""
    typer.echo(typer.style(word, fg="red", bold=True) + message if word else message, err=True)
    if "--json" in args:
        typer.echo(json.dumps({"error": message.split("\nhelp: ")[0]}))
    return typer.Exit(code)


def _refused(error: Any, args: list[str]) -> typer.Exit:
    where = getattr(error, "ctx", None)
    path = where.command_path if where is not None else "penstock"
    return _failed(f"{error.format_message()}\nhelp: {path} --help", args, code=2)


def _interrupted(args: list[str]) -> str:
    if args[:1] != ["train"] and args[:2] != ["groups", "train"]:
        return "interrupted"
    more = [] if "--resume" in args else ["--resume"]
    return f"interrupted; continue with: {shlex.join(['penstock', *args, *more])}"


app = typer.Typer(
    name="penstock",
    cls=_Commands,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]penstock demo[/bold], or with [bold]penstock explain DATA --label COLUMN[/bold].",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def penstock(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar=" ", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Train models straight from storage: shuffled well, read fast, in the memory you give it."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


# The order is that of the help page: a user's work from beginning to end.
_COMMANDS = {
    "explain": "penstock explain clicks.parquet --label clicked",
    "train": "penstock train clicks.parquet --label clicked --test test.parquet --memory 512MB",
    "evaluate": "penstock evaluate model.penstock test.parquet",
    "show": "penstock show model.penstock",
    "predict": "penstock predict model.penstock new.parquet --out predictions.parquet",
    "convert": "penstock convert clicks.csv clicks.arrow --label clicked",
    "compare": "penstock compare clicks.parquet --label clicked --shuffles none,once,corgipile",
    "sql": "penstock sql --db shop.duckdb 'SELECT * FROM clicks TRAIN BY logistic AS m'",
    "demo": "penstock demo",
}
for _name, _example in _COMMANDS.items():
    if importlib.util.find_spec(f"penstock.cli.{_name}"):
        _function = getattr(importlib.import_module(f"penstock.cli.{_name}"), f"{_name}_command")
        app.command(_name, epilog=f"Example: [bold]{_example}[/bold]", no_args_is_help=False)(_function)
app.add_typer(importlib.import_module("penstock.cli.groups").app)
