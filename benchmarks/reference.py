"""The option tables of docs/reference.md, made from the option table: ``python -m benchmarks.reference docs/reference.md``.

What stands between the two marks on the page is replaced; all else on it is written by hand.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from penstock.cli.options import flag_of
from penstock.command_lines import flag
from penstock.options import ARGUMENT, REQUIRED, TABLE, Option

BEGIN, END = "<!-- options: made by python -m benchmarks.reference -->\n", "<!-- end of options -->\n"
_COMMANDS = ("explain", "train", "evaluate", "show", "predict", "convert", "compare", "sql", "demo")
_DOORS = (*_COMMANDS, "groups-train", "groups-explain", "groups-report")


def option_tables() -> str:
    """Return a heading and a table for each part of the help pages; an option that differs by command has several rows.

    Examples
    --------
    >>> "| `--l1 X` | 0 | Penalty on the weights' sizes. | `train` `compare` |" in option_tables()
    True
    """
    panels: dict[str, list[str]] = {}
    for option in TABLE.values():
        doors: dict[tuple[str, str], list[str]] = {}
        for door in _DOORS:
            if door in option.doors and (here := option.at(door)).panel != ARGUMENT:
                doors.setdefault((here.panel, _row(here)), []).append(f"`{door.replace('-', ' ')}`")
        for (panel, row), commands in doors.items():
            panels.setdefault(panel, []).append(f"{row} | {' '.join(commands)} |")
    head = "| option | default | meaning | of |\n|---|---|---|---|\n"
    return "\n".join(f"#### {panel}\n\n{head}" + "\n".join(rows) + "\n" for panel, rows in panels.items())


def with_tables(page: str) -> str:
    """Return the page with its option tables made anew."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{option_tables()}\n{END}{rest.split(END)[1]}"


def _row(option: Option) -> str:
    names = [f"`{flag_of(option.name)} {option.metavar}".rstrip() + "`"]
    if option.kind == "flag" and option.default is not False:
        names.append(f"`{flag(f'no_{option.name}')}`")
    if option.short:
        names.append(f"`-{option.short}`")
    default = _words(option.default_text or _value(option.default))
    return f"| {', '.join(names)} | {default} | {_words(option.help)}".replace("|  |", "| |")


def _value(default: object) -> str:
    if default is None or default is False:
        return ""
    if default is True or default is REQUIRED:
        return "yes" if default is True else "required"
    return f"`{default}`" if isinstance(default, str) else f"{default:g}"


def _words(text: str) -> str:
    """Return a text of the option table with flags for ``{options}``."""
    return re.sub(r"\{(\w+)\}", lambda match: f"`{flag_of(match[1])}`", text).replace("\\[", "[").replace("|", "\\|")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(with_tables(target.read_text(encoding="utf-8")), encoding="utf-8")
