"""Names and values as SQL text: the one place where either is quoted.

Values are bound wherever an engine can bind them; these are for what it cannot, such as the constants of a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import UsageError


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
