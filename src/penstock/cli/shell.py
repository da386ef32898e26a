"""The prompt of ``penstock sql``: several lines to a statement, a history that lasts, names completed with Tab.

Ctrl-C stops the statement that is running, or forgets the lines typed so far; Ctrl-D ends the session.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.cli.sql import show
from penstock.cli.wording import in_own_words
from penstock.errors import PenstockError

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
        from penstock.cli.sql import read_script

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
