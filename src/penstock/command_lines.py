"""Lines for a shell: a command with its options, which are data until here.

The names of options are Python's; flags are made of them in this file alone, so that code below the command line can tell
a user what to run without knowing how flags are spelled.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

_REPEATED = {"hash"}
"""Options that take one of several values at a time."""
_PAIRED = {"extensions": ":"}
"""What stands between the two sides of a pair on the command line, where it is no equals sign."""


def flag(option: str) -> str:
    """Return an option's name as a shell has it."""
    return "--" + option.replace("_", "-")


def shell_words(option: str, value: object) -> list[str]:
    """Return an option with its value as words of a command; there are none for None.

    Examples
    --------
    >>> shell_words("exclude", ["a", "b"]), shell_words("hash", ["a", "b"])
    (['--exclude', 'a,b'], ['--hash', 'a', '--hash', 'b'])
    >>> shell_words("standardize", False), shell_words("class_weight", {"yes": 5, "no": 1})
    (['--no-standardize'], ['--class-weight', 'yes=5,no=1'])
    """
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag(option) if value else flag(f"no_{option}")]
    if isinstance(value, Mapping):
        return [flag(option), ",".join(f"{key}{_PAIRED.get(option, '=')}{each}" for key, each in value.items())]
    if isinstance(value, list | tuple):
        texts = [str(each) for each in value]
        if option in _REPEATED:
            return [word for text in texts for word in (flag(option), text)]
        return [flag(option), ",".join(texts)]
    return [flag(option), value if isinstance(value, str) else repr(value)]


def shell_line(words: Iterable[str], options: Mapping[str, Any]) -> str:
    """Return a line for a shell.

    Examples
    --------
    >>> shell_line(["penstock", "convert", "my clicks.csv", "a.arrow"], {"block_size": "64KB", "hash": ["a", "b"]})
    "penstock convert 'my clicks.csv' a.arrow --block-size 64KB --hash a --hash b"
    """
    line = list(words)
    for option, value in options.items():
        line += shell_words(option, value)
    return shlex.join(line)
