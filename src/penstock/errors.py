"""Every error that Penstock raises on purpose, in one tree.

    PenstockError
    ├── UsageError (ValueError)            an argument or option is wrong
    │   ├── UnknownOptionError             a name that is not one of the valid ones
    │   ├── BudgetError                    the memory given cannot do the work
    │   ├── MissingExtraError (ImportError)  an optional dependency is not installed
    │   ├── NoLengthError (TypeError)      how much there will be cannot be said beforehand
    │   └── SQLSyntaxError                 a statement of ours cannot be read; shows the place
    ├── DataError (ValueError)             what stands in the data cannot be used
    │   ├── ColumnError                    a column is missing or of the wrong kind
    │   ├── LabelError                     a label is missing, not finite, or of one class only
    │   ├── FeatureError                   a feature is not finite or not numeric
    │   ├── ParseError                     a line of text cannot be read
    │   └── SchemaError                    files of one data set disagree
    ├── SourceError (OSError)              a file cannot be read at all
    │   ├── SourceNotFoundError (FileNotFoundError)
    │   ├── CorruptFileError               truncated or damaged
    │   └── DataChangedError               not the file it was when the work began
    ├── DatabaseError (RuntimeError)       a database refused a statement; said in its own words
    ├── WriteError (OSError)               an output cannot be written; nothing half written is left
    ├── ModelFileError (ValueError)        not a Penstock model, or a damaged one
    ├── BatchTimeoutError (TimeoutError)   a batch took longer than the time allowed for it
    ├── WorkerDiedError (RuntimeError)     a worker process ended without being asked to
    └── DivergedError (ArithmeticError)    training left the finite numbers

Each also inherits the built-in that a Python user would catch. A message says what happened, with the
values and the place, and then how to mend it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# The most characters of a line of SQL that a message shows.
_SHOWN = 100


class PenstockError(Exception):
    """Base of every error raised on purpose by Penstock."""


class UsageError(PenstockError, ValueError):
    """An argument or option has a value that cannot work."""


class UnknownOptionError(UsageError):
    """An option's value is not one of its valid names."""

    @classmethod
    def of(cls, option: str, value: object, valid: Iterable[str]) -> UnknownOptionError:
        """Build the error from the option's name, the value given, and the names it takes."""
        names = sorted(valid)
        return cls(f"{option}={value!r} is not known; choose one of: {', '.join(names)}{nearest(str(value), names)}")


class BudgetError(UsageError):
    """The memory budget is too small for the work asked of it."""


class MissingExtraError(UsageError, ImportError):
    """An optional dependency is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtraError:
        """Build the error from the package missing, the extra that brings it, and what it is for."""
        return cls(f"{purpose} needs {package}, which is not installed; run: pip install 'penstock[{extra}]'")


class NoLengthError(UsageError, TypeError):
    """How much there will be cannot be said beforehand."""


class SQLSyntaxError(UsageError):
    """A statement of ours in a script of SQL cannot be read."""

    @classmethod
    def of(cls, told: str, script: str, at: int) -> SQLSyntaxError:
        """Build the error from what is wrong, the script, and the offset in it; the line is shown with a caret."""
        line, column = line_and_column(script, at)
        first = at - column + 1
        whole = script[first:].split("\n", 1)[0].rstrip("\r")
        cut = max(0, column - 1 - _SHOWN // 2) if len(whole) > _SHOWN else 0
        shown = whole[cut : cut + _SHOWN]
        under = "".join("\t" if c == "\t" else " " for c in shown[: column - 1 - cut])
        return cls(f"line {line}, column {column}: {told}\n    {shown}\n    {under}^")


class DataError(PenstockError, ValueError):
    """What stands in the data cannot be used."""


class ColumnError(DataError):
    """A column is missing, or of a kind that cannot be used as asked."""

    @classmethod
    def missing(cls, wanted: str, present: Iterable[str], *, place: str, role: str = "column") -> ColumnError:
        """Build the error for a column that is not there, naming those that are."""
        names = list(present)
        return cls(f"{place} has no {role} {wanted!r}; it has: {some_of(names)}{nearest(wanted, names)}")


class LabelError(DataError):
    """A label is missing, not finite, or there is only one class of them."""


class FeatureError(DataError):
    """A feature is not finite or not numeric."""


class ParseError(DataError):
    """A line of a text file cannot be read."""


class SchemaError(DataError):
    """Files of one data set do not have the same columns."""


class SourceError(PenstockError, OSError):
    """A file or table cannot be read."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """There is nothing at the path given."""


class CorruptFileError(SourceError):
    """A file is truncated, damaged, or not of the format its name says."""


class DataChangedError(SourceError):
    """The data are not what they were when the work began."""


class DatabaseError(PenstockError, RuntimeError):
    """A database refused a statement, or was told to stop it; the message is the database's own."""

    code = ""  # SQLSTATE, where the database gives one


class WriteError(PenstockError, OSError):
    """An output could not be written; what stood there before still does."""


class ModelFileError(PenstockError, ValueError):
    """A file is not a Penstock model, or a damaged one."""


class BatchTimeoutError(PenstockError, TimeoutError, RuntimeError):
    """A batch took longer than the time allowed for it."""


class WorkerDiedError(PenstockError, RuntimeError):
    """A worker process ended without being asked to."""


class DivergedError(PenstockError, ArithmeticError):
    """Training left the finite numbers."""


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Return the line and column of an offset in a text, both counted from 1."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def some_of(names: Iterable[str], most: int = 20) -> str:
    """Return names for a message: the first ones, and how many there are where that is not all."""
    names = list(names)
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def nearest(wanted: str, names: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the name closest to the one wanted, or nothing."""
    close = difflib.get_close_matches(wanted, list(names), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
