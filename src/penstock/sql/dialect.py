"""An engine's SQL: what the front has to know of it, and names and values as text, quoted here alone.

Values are bound wherever an engine can bind them; literals are for what it cannot, such as the constants of a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.sql.prediction_query import FeatureTerm, Formula


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
class AttributionTerm:
    """A term of a column, and what it adds to the score of a row of means."""

    term: FeatureTerm
    mean: float


@dataclass(frozen=True, slots=True)
class AttributionFormula:
    """A model of one score, the terms of each column that contributes, the score of a row of means, and how many to list."""

    formula: Formula
    columns: Mapping[str, Sequence[AttributionTerm]]
    baseline: float
    most: int


class AttributionWriter(Protocol):
    """Writes what columns contribute to predictions."""

    def select(self, explained: AttributionFormula, query: str, names: Sequence[str], *, present: Sequence[str]) -> str:
        """Return a SELECT of the query's columns, which are ``present``, and of the explained predictions under these names."""
        ...

    def pairs(self, features: str, attributions: str) -> str:
        """Write two lists, of names and of numbers, as one list of pairs."""
        ...


def _json_pairs(pairs: Sequence[tuple[str, str]]) -> str:
    """Write classes with their probabilities as JSON's functions do in most databases."""
    each = ", ".join(f"json_object('label', {name}, 'prob', {share})" for name, share in pairs)
    return f"json_array({each})"


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
    attributions : AttributionWriter or None
        Writes what explains predictions; None where that is not supported.
    class_pairs : callable
        Writes classes with their probabilities as one value, as ML.PREDICT gives them.
    identifier_quotes : tuple of str
        What names can be quoted with.
    from_first : bool
        Whether ``FROM t`` is a query.
    case_sensitive : bool
        Whether quoted names that differ in case are different names.
    longest_name, most_columns : int or None
        Bytes of a name that are kept, and columns of a result.
    own : callable
        Writes an expression of ours so that no function, operator or type in it is looked for in a user's schemas.
    """

    title: str
    tokenizer: str
    literal: Callable[[Any], str]
    predictions: PredictionWriter | None = None
    attributions: AttributionWriter | None = None
    class_pairs: Callable[[Sequence[tuple[str, str]]], str] = _json_pairs
    identifier_quotes: tuple[str, ...] = ('"',)
    from_first: bool = False
    case_sensitive: bool = True
    longest_name: int | None = None
    most_columns: int | None = None
    own: Callable[[str], str] = str

    def fold(self, name: str) -> str:
        """Return a name such that equal results are equal names to the engine."""
        return name if self.case_sensitive else name.lower()

    def shorten(self, name: str, ending: str = "") -> str:
        """Return a name with an ending, cut before the ending to what the engine keeps."""
        if self.longest_name is not None:
            name = name.encode()[: self.longest_name - len(ending)].decode(errors="ignore")
        return name + ending


def quote_identifier(name: str) -> str:
    """Write a name as an identifier.

    Examples
    --------
    >>> print(quote_identifier('say "x"'))
    "say ""x"\""
    """
    if "\0" in name:
        raise UsageError(f"{name!r} cannot be a name: it holds a zero byte")
    return '"' + name.replace('"', '""') + '"'


def standard_text(value: str) -> str:
    """Write a text as standard SQL does."""
    return "'" + value.replace("'", "''") + "'"


def typed_literal(value: Any, *, wide: str, list_form: str = "[{}]", text: Callable[[str], str] = standard_text) -> str:
    """Write a value as a constant of its own type; ``wide`` is the type of integers beyond 64 bits.

    Examples
    --------
    >>> [typed_literal(value, wide="numeric") for value in ("it's", 3, 0.1, None, [True])]
    ["'it''s'", "'3'::bigint", "'0.1'::float8", 'NULL', '[TRUE]']
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return f"'{value}'::{'bigint' if -(2**63) <= value < 2**63 else wide}"
    if isinstance(value, float):
        return double_literal(value)
    if isinstance(value, (list, tuple)):
        return list_form.format(
            ", ".join(typed_literal(each, wide=wide, list_form=list_form, text=text) for each in value)
        )
    return text(str(value))


def double_literal(value: float) -> str:
    """Write a number as a double, to the last bit."""
    return f"'{float(value)!r}'::float8"


def nested_sum(terms: Sequence[str]) -> str:
    """Write a sum whose brackets nest evenly, so that thousands of terms are no deeper than a dozen.

    Examples
    --------
    >>> nested_sum(["a", "b", "c"])
    '(a + (b + c))'
    """
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return f"({nested_sum(terms[:half])} + {nested_sum(terms[half:])})"
