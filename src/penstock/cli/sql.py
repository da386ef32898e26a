"""``penstock sql``: statements on DuckDB or PostgreSQL, with training among them; from an argument, a file, stdin or a prompt."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import options as o

if TYPE_CHECKING:
    from penstock.sql.result import Result


@o.takes("sql")
def sql_command(
    *,
    script: str | None,
    db: str,
    file: str | None,
    read_only: bool,
    module: list[str] | None,
    rows: int,
    csv: bool,
    json: bool,
) -> None:
    """Run SQL on DuckDB or PostgreSQL, with SELECT … TRAIN BY and PREDICT BY among it.

    Statements come from the argument, from --file, from stdin, or, on a terminal, from a prompt.
    """
    from penstock.cli.prompt import Shell
    from penstock.cli.screen import Screen
    from penstock.errors import UsageError
    from penstock.sql import connect

    if script is not None and file is not None:
        raise UsageError("statements are given as an argument and by --file; give one of them")
    if csv and json:
        raise UsageError("--csv and --json are given; choose one of them")
    text = script if script is not None else _read(file)
    with Screen(json=json, rows=False) as screen:
        with connect(db, read_only=read_only, listeners=[screen.listen], modules=o.names(module)) as session:
            if text is None:
                Shell(session, screen, most=rows or None).run()
                return
            found = []
            for result in session.execute(text):
                found.append(result)
                if csv:
                    _print_csv(result)
                elif not json:
                    show(result, screen, most=rows or None)
        screen.give({"results": [_plain(result) for result in found]})
    if any(result.useless is not None for result in found):
        raise typer.Exit(1)


def show(result: Result, screen: Any, *, most: int | None, expanded: bool = False) -> None:
    """Print a result for people: its rows to stdout, what is to be known beside them to stderr."""
    for line in result.lines(most, expanded=expanded):
        screen.say(line)
    for note in result.notes:
        screen.note(note)


def _read(file: str | None) -> str | None:
    """Return a script from a file or from stdin, or None where a prompt is wanted."""
    if file is None or file == "-":
        return None if file is None and sys.stdin.isatty() else sys.stdin.read()
    return read_script(file)


def read_script(file: str) -> str:
    """Return the text of a file of statements."""
    from penstock.errors import SourceError, SourceNotFoundError

    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except FileNotFoundError:
        raise SourceNotFoundError(f"there is no file {file}; check the path") from None
    except UnicodeDecodeError as error:
        raise SourceError(f"{file} is not text in UTF-8 ({error}); save it as such") from None


def _print_csv(result: Result) -> None:
    import csv

    if result.columns:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows(["" if value is None else value for value in row] for row in result.rows)


def _plain(result: Result) -> dict[str, Any]:
    rows = [[_json(value) for value in row] for row in result.rows]
    told = {"columns": result.columns, "rows": rows, "status": result.status, "notes": list(result.notes)}
    return told if result.model is None and result.useless is None else {**told, "useless": result.useless}


def _json(value: Any) -> Any:
    """Return a value as JSON has it: what it has no word for as text, numbers that are not finite as None."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    return bytes(value).hex() if isinstance(value, (bytes, memoryview)) else str(value)
