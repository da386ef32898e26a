"""How an engine writes SQL: what the parser has to know of it, and how values and predictions are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.sql.expressions.formula import Formula


class PredictionWriter(Protocol):
    """Writes a model's predictions for a query's rows as a query."""

    def __call__(
        self, formula: Formula, query: str, names: Sequence[str], *, warehouse: bool, present: Sequence[str]
    ) -> str | None:
        """Return a SELECT of the query's columns, which are ``present``, and of the predictions under these names.

        With ``warehouse`` all probabilities are one column. None stands for a model that cannot be written.
        """
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL of an engine.

    Attributes
    ----------
    title : str
        What messages call the engine.
    tokenizer : str
        The dialect of sqlglot whose tokens the engine's SQL has.
    literal : callable
        Writes a Python value (None, bool, int, float, str or a list of them) as a constant.
    predictions : PredictionWriter or None
        Writes predictions; None where these are always computed outside and brought back as a temporary table.
    identifier_quotes : tuple of str
        What names can be quoted with.
    from_first : bool
        Whether ``FROM t`` is a query.
    case_sensitive : bool
        Whether quoted names that differ in case are different names.
    longest_name, most_columns : int or None
        Bytes of a name that are kept, and columns of a result.
    """

    title: str
    tokenizer: str
    literal: Callable[[Any], str]
    predictions: PredictionWriter | None = None
    identifier_quotes: tuple[str, ...] = ('"',)
    from_first: bool = False
    case_sensitive: bool = True
    longest_name: int | None = None
    most_columns: int | None = None

    def fold(self, name: str) -> str:
        """Return a name such that equal results are equal names to the engine."""
        return name if self.case_sensitive else name.lower()

    def shorten(self, name: str, ending: str = "") -> str:
        """Return a name with an ending, cut before the ending to what the engine keeps."""
        if self.longest_name is not None:
            name = name.encode()[: self.longest_name - len(ending)].decode(errors="ignore")
        return name + ending
