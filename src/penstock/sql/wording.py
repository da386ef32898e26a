"""What the rooms below say, in the words of a statement: they name options as the command line has them."""

from __future__ import annotations

import re

from penstock.errors import PenstockError

_COMMAND = re.compile(r"penstock (?!sql)[a-z]+\b.*")  # a command to be run in a shell stays one
_MODEL = re.compile(r"--model (\w+)")
_OPTION = re.compile(
    r"--(exclude|features|hash|label|memory|shuffle|weight|block-size) ([^\s;()]+)(?: --\1 ([^\s;()]+))*"
)


def as_statement(text: str) -> str:
    """Write advice to give an option of the command line as one of a statement.

    Examples
    --------
    >>> as_statement("leave them out (--exclude a,b) or hash them: --hash a:2^20 --hash b:2^20")
    "leave them out (WITH (exclude = 'a,b')) or hash them: WITH (hash = 'a:2^20, b:2^20')"
    >>> as_statement("use --model linear for a number")
    'use TRAIN BY linear for a number'
    """
    command = _COMMAND.search(text)
    told, rest = (text[: command.start()], text[command.start() :]) if command else (text, "")

    def option(found: re.Match[str]) -> str:
        values = re.findall(rf"--{found[1]} ([^\s;()]+)", found[0])
        return f"WITH ({found[1].replace('-', '_')} = '{', '.join(values)}')"

    return _OPTION.sub(option, _MODEL.sub(r"TRAIN BY \1", told)) + rest


def reword(error: PenstockError) -> None:
    """Put an error's advice into the words of a statement."""
    if error.args and isinstance(error.args[0], str):
        error.args = (as_statement(error.args[0]), *error.args[1:])
