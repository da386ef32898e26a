"""The command line: one module per command, built with typer.

Importing this room is cheap; a command imports what it works with when it runs, so ``--help`` is immediate.
Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys

from penstock.cli.application import app

__all__ = ["app", "main"]


def main() -> None:
    """Run the command that the process was started with."""
    try:
        app(prog_name="penstock")
    except KeyboardInterrupt:
        # Before any command ran or after it was done; the commands have their own word for it.
        print("interrupted", file=sys.stderr)
        sys.exit(130)
