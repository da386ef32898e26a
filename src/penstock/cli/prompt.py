"""The prompt of ``penstock sql``: statements typed line by line, and commands that begin with a backslash.

A statement may take several lines; lines are remembered, and Tab completes names. Ctrl-C stops the statement that is running, or
forgets the lines typed so far; Ctrl-D ends the session.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.cli.sql import read_script, show
from penstock.cli.wording import in_own_words
from penstock.errors import PenstockError, SQLSyntaxError, nearest
from penstock.sql.result import Result

if TYPE_CHECKING:
    from penstock.cli.screen import Screen
    from penstock.sql.session import Session

PROMPT, MORE = "penstock> ", "      ... "
HELP = """\
statements end with a semicolon; Tab completes names, Ctrl-C stops a statement, Ctrl-D ends

  SELECT * FROM t TRAIN BY logistic AS m WITH (learning_rate = 0.1, max_epoch_num = 20);
  SELECT * FROM t PREDICT BY m;                 CREATE TABLE p AS SELECT * FROM t PREDICT BY m;
  EVALUATE MODEL m ON SELECT * FROM t;          EXPLAIN ANALYZE SELECT * FROM t TRAIN BY svm;
  SHOW MODELS;   DESCRIBE MODEL m;   DROP MODEL m;   EXPORT MODEL m TO 'm.penstock';
  SHOW VERSIONS m;   ALTER MODEL m SET DEFAULT VERSION 2;   SELECT * FROM t PREDICT BY m@1;

  \\d [TABLE]  tables and their columns, or one   \\dt         tables
               table's columns with their types  \\m          models
  \\i FILE     run a file                        \\x          rows as a line per value, on or off
  \\timing     seconds of statements, on or off  help, \\?    this          \\q    end"""
_LENGTH = 10_000


class Shell:
    """Reads statements from a terminal and shows what they give back."""

    def __init__(self, session: Session, screen: Screen, *, most: int | None = 40) -> None:
        self._session = session
        self._screen = screen
        self._most = most
        self._names: list[str] | None = None
        self._expanded = self._timing = False
        self._commands: dict[str, Callable[[str], None]] = {
            "\\d": self._describe,
            "\\dt": self._tables,
            "\\m": lambda _: self._execute("SHOW MODELS"),
            "\\i": self._include,
            "\\timing": self._time_statements,
            "\\x": self._expand_rows,
            "\\?": lambda _: self._screen.say(HELP),
            "\\h": lambda _: self._screen.say(HELP),
        }

    def run(self) -> None:
        """Read and run statements until the end of input."""
        self._screen.say(f"penstock {__version__} on {self._session.engine.place}; help lists what there is, \\q ends")
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
            word = line.strip().rstrip(";").lower()
            if (not lines and word in ("exit", "quit")) or (word == "\\q" and not self._is_quoted(lines)):
                return None
            if not lines and word == "help":
                return "\\?"
            if not lines and (word.startswith("\\") or not word):
                return line.strip()
            lines.append(line)
            text = "\n".join(lines)
            if is_complete(text, dialect=self._session.engine.dialect):
                return text

    def _is_quoted(self, lines: list[str]) -> bool:
        """Whether what comes after these lines is inside of a quote or comment."""
        from penstock.sql.tokens import tokenize

        try:
            tokenize("\n".join(lines), self._session.engine.dialect)
        except SQLSyntaxError:
            return True
        return False

    def _one(self, text: str) -> None:
        if not text.strip(";"):
            return
        name, _, rest = text.partition(" ")
        name = name.rstrip(";")
        try:
            if not text.startswith("\\"):
                self._execute(text)
            elif name in self._commands:
                self._commands[name](rest.strip().rstrip(";"))
            else:
                self._screen.note(f"{name} is not a command; \\? lists them")
        except PenstockError as error:
            self._screen.close()
            self._screen.note(f"error: {in_own_words(error)}")

    def _execute(self, text: str) -> None:
        self._names = None
        results = self._session.execute(text)
        while True:
            began = time.perf_counter()
            result = next(results, None)
            seconds = time.perf_counter() - began
            if result is None:
                return
            self._screen.close()
            show(result, self._screen, most=self._most, expanded=self._expanded)
            if self._timing:
                self._screen.say(f"time: {1000 * seconds:.1f} ms")

    def _include(self, path: str) -> None:
        self._execute(read_script(path))

    def _expand_rows(self, _: str) -> None:
        self._expanded = not self._expanded
        self._screen.say(f"rows are shown as {'a line for each value' if self._expanded else 'tables'}")

    def _time_statements(self, _: str) -> None:
        self._timing = not self._timing
        self._screen.say(f"the time of statements is {'shown' if self._timing else 'not shown'}")

    def _tables(self, _: str) -> None:
        names = [(table, len(columns)) for table, columns in self._session.engine.tables()]
        show(Result(("table", "columns"), names), self._screen, most=None)

    def _describe(self, name: str) -> None:
        tables = self._session.engine.tables()
        if not name:
            for table, columns in tables:
                self._screen.say(f"{table} ({', '.join(columns)})")
            return
        alike = [columns for table, columns in tables if _folded(table) == _folded(name)]
        found = [columns for table, columns in tables if table == name] or alike
        if found:
            show(Result(("column", "type"), list(found[0].items())), self._screen, most=None)
        else:
            self._screen.note(
                f"there is no table {name!r}{nearest(name, [table for table, _ in tables])}; \\dt lists them"
            )

    def _completions(self, start: str) -> list[str]:
        """Return the words that begin so: keywords, tables, columns and models."""
        from penstock.sql.grammar import keywords

        if self._names is None:
            names = {word for table, columns in self._session.engine.tables() for word in (table, *columns)}
            self._names = sorted({*names, *(entry.name for entry in self._session.catalog.entries())})
        words = [*self._names, *(k.lower() if start.islower() else k for k in keywords())]
        return list(dict.fromkeys(word for word in words if word.lower().startswith(start.lower())))


def _folded(name: str) -> str:
    """Return a table's name without quotes and in lower case."""
    return name.replace('"', "").lower()


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
