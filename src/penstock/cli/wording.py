"""The command line's wording of errors and warnings: ``memory='1GB'`` is ``--memory 1GB`` here."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from typing import Any

from penstock.command_lines import flag, shell_words
from penstock.errors import PenstockError
from penstock.events import Warned
from penstock.messages import PYTHON, UNSET

# Words that no shell takes apart; of those that shlex would quote, a power such as 2^20.
_PLAIN = re.compile(r"[\w@%+=:,./^-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class CommandLineWording:
    """Options as flags, their values quoted for a shell; what is no flag of any command is written as in Python.

    Examples
    --------
    >>> words = CommandLineWording(frozenset({"--memory", "--resume", "--standardize", "--no-standardize", "--exclude"}))
    >>> words.given("memory", "a b"), words.given("memory", None), words.use("standardize", False)
    ("--memory 'a b'", 'no --memory', '--no-standardize')
    >>> words.use("resume", True), words.use("exclude", ["a", "b"]), words.given("page_size", 3)
    ('--resume', '--exclude a,b', 'page_size=3')
    """

    flags: frozenset[str]

    def given(self, option: str, value: object) -> str:
        """Return the flag with its value."""
        name = flag(f"no_{option}" if value is False else option)
        if name not in self.flags:
            return PYTHON.given(option, value)
        if value is UNSET:
            return name
        if value is None:
            return f"no {name}"
        first, *rest = shell_words(option, value)
        # An amount such as 12.5 MB is what was understood, not what could be written.
        if isinstance(value, str | list | tuple | dict):
            rest = [word if _PLAIN.fullmatch(word) else shlex.quote(word) for word in rest]
        return " ".join([first, *rest])

    use = given

    def name(self, option: str) -> str:
        """Return the flag."""
        return flag(option) if flag(option) in self.flags else option


@cache
def command_line() -> CommandLineWording:
    """Return the wording that knows the flags of all commands."""
    import typer.main

    from penstock.cli.application import app

    return CommandLineWording(frozenset(_flags(typer.main.get_command(app))))


def in_own_words(message: PenstockError | Warned) -> str:
    """Return an error or warning in the command line's words; one in a statement's words stays in those."""
    return message.render(command_line() if message.wording is PYTHON else message.wording)


def _flags(command: Any) -> set[str]:
    found = {name for each in command.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")}
    for each in getattr(command, "commands", {}).values():
        found |= _flags(each)
    return found
