"""Names and values as SQL text: the one place where either is quoted.

Values are bound wherever an engine can bind them; these are for what it cannot, such as the constants of a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.errors import UsageError

POSTGRES, DUCKDB = "postgresql", "duckdb"


def quote(name: str) -> str:
    """Write a name as an identifier.

    Examples
    --------
    >>> print(quote('say "x"'))
    "say ""x"\""
    """
    if "\0" in name:
        raise UsageError(f"{name!r} cannot be a name: it holds a zero byte")
    return '"' + name.replace('"', '""') + '"'


def literal(value: Any, engine: str) -> str:
    """Write a value as a constant of its own type.

    Examples
    --------
    >>> literal("it's", "duckdb"), literal(3, "duckdb"), literal(0.1, "postgresql"), literal(None, "duckdb")
    ("'it''s'", "'3'::bigint", "'0.1'::float8", 'NULL')
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return f"'{value}'::{'bigint' if -(2**63) <= value < 2**63 else 'numeric' if engine == POSTGRES else 'hugeint'}"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple)):
        inner = ", ".join(literal(each, engine) for each in value)
        return f"ARRAY[{inner}]" if engine == POSTGRES else f"[{inner}]"
    return _text(str(value), engine)


def number(value: float) -> str:
    """Write a number as a double, to the last bit."""
    return f"'{float(value)!r}'::float8"


def array(values: Iterable[float], engine: str) -> str:
    """Write numbers as an array of doubles: one constant, however many they are."""
    inner = ",".join(map(repr, values))
    return f"'{{{inner}}}'::float8[]" if engine == POSTGRES else f"'[{inner}]'::float8[]"


def total(terms: Sequence[str]) -> str:
    """Write a sum whose brackets nest evenly, so that thousands of terms are no deeper than a dozen.

    Examples
    --------
    >>> total(["a", "b", "c"])
    '(a + (b + c))'
    """
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return f"({total(terms[:half])} + {total(terms[half:])})"


def _text(value: str, engine: str) -> str:
    if engine != POSTGRES:
        return "'" + value.replace("'", "''") + "'"
    if "\0" in value:
        raise UsageError(f"{value!r} holds a zero byte, which no text in PostgreSQL can")
    # Whether a backslash escapes depends on a server's settings, unless the constant says so itself.
    escaped = value.replace("'", "''").replace("\\", "\\\\")
    return f"E'{escaped}'" if "\\" in value else f"'{escaped}'"
