"""Every error that Penstock raises on purpose, in one tree.

    PenstockError
    ├── UsageError (ValueError)            an argument or option is wrong
    │   ├── UnknownOptionError             a name that is not one of the valid ones
    │   ├── BudgetError                    the memory given cannot do the work
    │   ├── MissingExtraError (ImportError)  an optional dependency is not installed
    │   ├── NoLengthError (TypeError)      how much there will be cannot be said beforehand
    │   ├── BlockIndexError (IndexError)   there is no block or row with this number
    │   ├── NoMethodError (AttributeError)  an object lacks a method that others of its kind have
    │   ├── DatabaseInUseError             this process has the database open with other settings
    │   └── SQLSyntaxError                 a statement of ours cannot be read; shows the place
    ├── DataError (ValueError)             what stands in the data cannot be used
    │   ├── ColumnError                    a column is missing or of the wrong kind
    │   ├── LabelError                     a label is missing, not finite, or of one class only
    │   ├── FeatureError                   a feature is not finite or not numeric
    │   ├── ParseError                     a line of text cannot be read
    │   └── SchemaError                    files of one data set disagree
    ├── SourceError (OSError)              a file cannot be read at all
    │   ├── ConnectError (ConnectionError)  a server cannot be reached
    │   ├── SourceNotFoundError (FileNotFoundError)
    │   ├── CorruptFileError               truncated or damaged
    │   └── DataChangedError               not the file it was when the work began
    ├── DatabaseError (RuntimeError)       a database refused a statement; said in its own words
    ├── WriteError (OSError)               an output cannot be written; nothing half written is left
    ├── ModelFileError (ValueError)        not a Penstock model, or a damaged one
    ├── BatchTimeoutError (TimeoutError)   a batch took longer than the time allowed for it
    ├── WorkerDiedError (RuntimeError)     a worker process ended without being asked to
    └── DivergedError (ArithmeticError)    training left the finite numbers

Each also inherits the built-in that a Python user would catch. An error is data: a reason, the option and the value that
it is about, the place, and fixes. ``str(error)`` is Python's wording; other faces render the same fields in theirs.
"""

from __future__ import annotations

import difflib
import pickle
import re
from collections.abc import Iterable
from typing import Any, Self

from penstock.messages import (
    PYTHON,
    UNSET,
    Command,
    Convert,
    Given,
    Location,
    Shown,
    Text,
    TextPart,
    Use,
    Wording,
    joined,
)

# The most characters of a line of SQL that a message shows.
_SHOWN = 100


class PenstockError(Exception):
    """Base of every error raised on purpose by Penstock.

    A message reads ``place: option=value reason; fix, or fix``. The option and the place are put in front unless the reason
    mentions them itself, as `Given` and as `Location`.

    Parameters
    ----------
    *reason : str or part of a message
        What is wrong; parts are joined as they are.
    option : str, optional
        The option that the error is about, by the name it has in Python.
    value : object, optional
        The option's value.
    place : Location or str, optional
        The file, row, column, or position in a statement.
    fixes : iterable of str or parts
        What a user can do instead, the likeliest first.

    Examples
    --------
    >>> error = UsageError("is not a number of epochs", option="epochs", value=0, fixes=["choose 1 or more"])
    >>> str(error), error.option, error.value
    ('epochs=0 is not a number of epochs; choose 1 or more', 'epochs', 0)
    >>> print(BudgetError("these rows need more than ", Given("memory", "1kB"), fixes=[Use("memory", "1MB")]))
    these rows need more than memory='1kB'; use memory='1MB'
    """

    wording: Wording = PYTHON
    """How ``str`` writes options; a face that raises an error in its own words sets it."""

    def __init__(
        self,
        *reason: TextPart,
        option: str | None = None,
        value: object = UNSET,
        place: Location | str | None = None,
        fixes: Iterable[TextPart] = (),
    ) -> None:
        self.reason = Text(*reason)
        self.option = option
        self._value = value
        self.place = Location(place) if isinstance(place, str) else place
        if place is None:
            self.place = next((part for part in self.reason.parts if isinstance(part, Location)), None)
        self.fixes = tuple(fixes)
        super().__init__(self.text.render())

    @property
    def value(self) -> Any:
        """The option's value, or None."""
        return None if self._value is UNSET else self._value

    @property
    def text(self) -> Text:
        """The whole message."""
        parts: list[TextPart] = []
        mentioned = {part.option for part in self.reason.parts if isinstance(part, Given)}
        if self.place is not None and self.place not in self.reason.parts:
            parts += [self.place, ": "]
        if self.option is not None and self.option not in mentioned:
            parts += [Given(self.option, self._value), "" if str(self.reason).startswith((":", ",")) else " "]
        parts.append(self.reason)
        if self.fixes:
            parts += ["; ", joined(map(_advice, self.fixes), last=", or ")]
        if self.place is not None and self.place.excerpt:
            parts += ["\n", self.place.excerpt]
        return Text(*parts)

    def render(self, wording: Wording) -> str:
        """Return the message in the words of one face."""
        return self.text.render(wording)

    def replace(self, **changes: Any) -> Self:
        """Return the same error with some fields changed."""
        old = {"reason": self.reason, "option": self.option, "value": self._value, "place": self.place}
        fields = {**old, "fixes": self.fixes, **changes}
        error = type(self)(fields.pop("reason"), **fields)
        error.wording = self.wording
        return error

    def __str__(self) -> str:
        return self.render(self.wording)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: _portable(value) for name, value in self.__dict__.items()}
        return _restored, (type(self), self.args), fields


def _advice(fix: TextPart) -> TextPart:
    """Return a fix as a phrase that says what to do."""
    if isinstance(fix, Use):
        return Text("use ", fix)
    return Text("run: ", fix) if isinstance(fix, Command | Convert) else fix


def _portable(value: Any) -> Any:
    """Return a field such that it can be pickled: what cannot is replaced by its looks."""
    try:
        pickle.dumps(value)
    except Exception:  # whatever an object of a user's raises
        if isinstance(value, Text):
            return Text(*map(_portable, value.parts))
        if isinstance(value, Given | Use):
            return type(value)(value.option, _portable(value.value))
        if isinstance(value, tuple | list):
            return type(value)(map(_portable, value))
        return Shown(repr(value))
    return value


def _restored(kind: type[PenstockError], args: tuple[Any, ...]) -> PenstockError:
    """Make an error anew, whose fields come as its state."""
    return kind(*args)


class UsageError(PenstockError, ValueError):
    """An argument or option has a value that cannot work."""


class UnknownOptionError(UsageError):
    """An option's value is not one of its valid names."""

    @classmethod
    def of(cls, option: str, value: object, valid: Iterable[str], **fields: Any) -> Self:
        """Build the error from the option's name, the value given, and the names it takes."""
        names = sorted(valid)
        choices = f"choose one of: {', '.join(names)}{nearest(str(value), names)}"
        return cls("is not known", option=option, value=value, fixes=[choices], **fields)


class BudgetError(UsageError):
    """The memory budget is too small for the work asked of it."""


class MissingExtraError(UsageError, ImportError):
    """An optional dependency is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> Self:
        """Build the error from the package missing, the extra that brings it, and what it is for."""
        remedy = Command(("pip", "install", f"penstock[{extra}]"))
        return cls(f"{purpose} needs {package}, which is not installed", fixes=[remedy])


class NoLengthError(UsageError, TypeError):
    """How much there will be cannot be said beforehand."""


class BlockIndexError(UsageError, IndexError):
    """There is no block or row with this number."""


class NoMethodError(UsageError, AttributeError):
    """A method that an estimator has not with its solver, or a loader not at all; `hasattr` says so too, as tools ask it."""


class DatabaseInUseError(UsageError):
    """This process has the database open with other settings."""


class SQLSyntaxError(UsageError):
    """A statement of ours in a script of SQL cannot be read."""

    @classmethod
    def of(cls, reason: TextPart, script: str, at: int) -> Self:
        """Build the error from what is wrong, the script, and the offset in it; the line is shown with a caret."""
        line, column = line_and_column(script, at)
        first = at - column + 1
        whole = script[first:].split("\n", 1)[0].rstrip("\r")
        cut = max(0, column - 1 - _SHOWN // 2) if len(whole) > _SHOWN else 0
        shown = whole[cut : cut + _SHOWN]
        under = "".join("\t" if c == "\t" else " " for c in shown[: column - 1 - cut])
        return cls(reason, place=Location(line=line, character=column, excerpt=f"    {shown}\n    {under}^"))


class DataError(PenstockError, ValueError):
    """What stands in the data cannot be used."""


class ColumnError(DataError):
    """A column is missing, or of a kind that cannot be used as asked."""

    @classmethod
    def missing(cls, wanted: str, present: Iterable[str], *, place: str, role: str = "column") -> ColumnError:
        """Build the error for a column that is not there, naming those that are.

        Where the path in ``place`` has a folder such as ``label=0``, the message says when folder names are columns.
        """
        names = list(present)
        fixes = []
        if folder := re.search(rf"(?:^|[/\\])({re.escape(wanted)}=[^/\\]*)[/\\]", place):
            fixes.append(
                f"{wanted!r} stands in the folder names ({folder[1]!r}), which are columns of the folder above them: name that"
                " folder"
            )
        its, theirs = ("have", "they have") if _names_several(place) else ("has", "it has")
        reason = f" {its} no {role} {wanted!r}; {theirs}: {some_of(names)}{nearest(wanted, names)}"
        return cls(Location(place), reason, fixes=fixes)

    @classmethod
    def no_features(cls, present: Iterable[str], *, place: str) -> ColumnError:
        """Build the error for data of which no column is a feature."""
        its, theirs = ("have", "they have") if _names_several(place) else ("has", "it has")
        return cls(Location(place), f" {its} no feature columns; {theirs}: {some_of(present)}")


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


class ConnectError(SourceError, ConnectionError):
    """A server cannot be reached, or does not let us in."""


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


def _names_several(place: str) -> bool:
    """Whether a name of data is that of several files, as `penstock.blocks.storage.show_names` writes it."""
    return re.search(r" and \d+ more$", place) is not None


def some_of(names: Iterable[str], most: int = 20) -> str:
    """Return names for a message: the first ones, and how many there are where that is not all.

    Names that could be taken for an option with its value, or for two names, are quoted.

    Examples
    --------
    >>> some_of(["age", "size=3", "a, b"])
    "age, 'size=3', 'a, b'"
    """
    names = list(names)
    shown = [repr(name) if set("=,") & set(name) and name[0] not in "'\"" else name for name in names[:most]]
    return ", ".join(shown) + (f", … ({len(names)} in all)" if len(names) > most else "")


def nearest(wanted: str, names: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the name closest to the one wanted, or nothing."""
    close = difflib.get_close_matches(wanted, list(names), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
