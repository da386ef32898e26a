"""``penstock sql``: statements on DuckDB or PostgreSQL, with training among them; from an argument, a file, stdin or a prompt.

The prompt takes several lines to a statement, keeps a history and completes names with Tab. Ctrl-C stops the statement that
is running, or forgets the lines typed so far; Ctrl-D ends the session.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock import __version__
from penstock.cli import options as o
from penstock.cli.wording import in_own_words
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.screen import Screen
    from penstock.sql.result import Result
    from penstock.sql.session import Session


@o.takes("sql")
def sql_command(
    *, script: str | None, db: str, file: str | None, read_only: bool, rows: int, csv: bool, json: bool
) -> None:
    """Run SQL on DuckDB or PostgreSQL, with SELECT … TRAIN BY and PREDICT BY among it.

    Statements come from the argument, from --file, from stdin, or, on a terminal, from a prompt.
    """
    from penstock.cli.screen import Screen
    from penstock.errors import UsageError
    from penstock.sql import connect

    if script is not None and file is not None:
        raise UsageError("statements are given as an argument and by --file; give one of them")
    if csv and json:
        raise UsageError("--csv and --json are given; choose one of them")
    text = script if script is not None else _read(file)
    with Screen(json=json, rows=False) as screen:
        with connect(db, read_only=read_only, listeners=[screen.listen]) as session:
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


def show(result: Result, screen: Any, *, most: int | None) -> None:
    """Print a result for people: its rows to stdout, what is to be known beside them to stderr."""
    for line in result.lines(most):
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
    return told if result.model is None else {**told, "useless": result.useless}


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


PROMPT, MORE = "penstock> ", "      ... "
HELP = """\
statements end with a semicolon; Tab completes names, Ctrl-C stops a statement, Ctrl-D ends

  SELECT * FROM t TRAIN BY logistic AS m WITH (learning_rate = 0.1, max_epoch_num = 20);
  SELECT * FROM t PREDICT BY m;                 CREATE TABLE p AS SELECT * FROM t PREDICT BY m;
  EVALUATE MODEL m ON SELECT * FROM t;          EXPLAIN ANALYZE SELECT * FROM t TRAIN BY svm;
  SHOW MODELS;   DESCRIBE MODEL m;   DROP MODEL m;   EXPORT MODEL m TO 'm.penstock';

  \\d          tables and their columns          \\m          models
  \\i FILE     run a file                        \\?  this    \\q  end"""
_LENGTH = 10_000


class Shell:
    """Reads statements from a terminal and shows what they give back."""

    def __init__(self, session: Session, screen: Screen, *, most: int | None = 40) -> None:
        self._session = session
        self._screen = screen
        self._most = most
        self._names: list[str] | None = None
        self._commands: dict[str, Callable[[str], None]] = {
            "\\d": self._tables,
            "\\m": lambda _: self._execute("SHOW MODELS"),
            "\\i": self._include,
            "\\?": lambda _: self._screen.say(HELP),
            "\\h": lambda _: self._screen.say(HELP),
        }

    def run(self) -> None:
        """Read and run statements until the end of input."""
        self._screen.say(f"penstock {__version__} on {self._session.engine.place}; \\? for help, \\q to end")
        with _line_editor(self._completions):
            while self._next():
                pass
        self._screen.say()

    def _next(self) -> bool:
        """Read and run one statement; say whether there may be more."""
        try:
            text = self._statement()
            if text is not None:
                self._one(text)
        except KeyboardInterrupt:
            self._screen.note("stopped; nothing of this statement was kept")
            return True
        finally:
            self._screen.close()
        return text is not None

    def _statement(self) -> str | None:
        """Return the next statement typed, or None at the end."""
        from penstock.sql.grammar import is_complete

        lines: list[str] = []
        while True:
            try:
                line = input(MORE if lines else PROMPT)
            except EOFError:
                return None
            except KeyboardInterrupt:
                self._screen.say("^C")
                lines = []
                continue
            if not lines and line.strip() in ("\\q", "exit", "quit", "exit;", "quit;"):
                return None
            if not lines and (line.lstrip().startswith("\\") or not line.strip()):
                return line.strip()
            lines.append(line)
            text = "\n".join(lines)
            if is_complete(text, dialect=self._session.engine.dialect):
                return text

    def _one(self, text: str) -> None:
        if not text:
            return
        name, _, rest = text.partition(" ")
        try:
            if not text.startswith("\\"):
                self._execute(text)
            elif name in self._commands:
                self._commands[name](rest.strip())
            else:
                self._screen.note(f"{name} is not a command; \\? lists them")
        except PenstockError as error:
            self._screen.close()
            self._screen.note(f"error: {in_own_words(error)}")

    def _execute(self, text: str) -> None:
        self._names = None
        for result in self._session.execute(text):
            self._screen.close()
            show(result, self._screen, most=self._most)

    def _include(self, path: str) -> None:
        self._execute(read_script(path))

    def _tables(self, _: str) -> None:
        for table, columns in self._session.engine.tables():
            self._screen.say(f"{table} ({', '.join(columns)})")

    def _completions(self, start: str) -> list[str]:
        """Return the words that begin so: keywords, tables, columns and models."""
        from penstock.sql.grammar import keywords

        if self._names is None:
            names = {word for table, columns in self._session.engine.tables() for word in (table, *columns)}
            self._names = sorted({*names, *(entry.name for entry in self._session.catalog.entries())})
        words = [*self._names, *(k.lower() if start.islower() else k for k in keywords())]
        return list(dict.fromkeys(word for word in words if word.lower().startswith(start.lower())))


@contextlib.contextmanager
def _line_editor(complete: Callable[[str], list[str]]) -> Any:
    """Have Python's line editor complete words and remember lines, where it is there."""
    try:
        import readline
    except ImportError:  # some builds of Python have none; typing works all the same
        yield
        return
    history = history_file()
    found: list[str] = []

    def next_word(text: str, state: int) -> str | None:
        nonlocal found
        if state == 0:
            try:
                found = complete(text) if text else []
            except Exception:  # a failing look-up must not disturb typing
                found = []
        return found[state] if state < len(found) else None

    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    before = readline.get_completer(), readline.get_completer_delims()
    readline.set_history_length(_LENGTH)
    readline.set_completer(next_word)
    readline.set_completer_delims(" \t\n\"'`@$><=;|&{(,)}")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)


def history_file() -> Path:
    """Return where typed lines are remembered; statements may hold passwords, so only the user may read it."""
    folder = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(folder) / "penstock" / "sql_history"
