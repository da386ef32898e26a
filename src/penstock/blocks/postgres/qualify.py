"""Statements that run in a user's session, with everything but tables' names qualified by pg_catalog.

There the user's search path decides what a table's name means. It would also decide what an unqualified function or operator
means: anyone who may create objects in one of its schemas could put a nearer match there than the server's own, and so have
code run with the user's rights. Where all of a connection's statements are our own, the path is set to `PINNED` instead.
"""

from __future__ import annotations

import re

_OPERATOR = re.compile(r"(?<= )(=|<>|<=|>=|<|>|\|\||\+|-|\*|/|~|!~)(?= )")
_TYPE = re.compile(r"::(?=[a-z]\w*(?!\w|\.))")
_CAST = re.compile(r"\bCAST\((?:[^()]|\((?:[^()]|\([^()]*\))*\))* AS (?=[a-z]\w*(?!\w|\.))")
_QUALIFIED = re.compile(r" AS pg_catalog\.\w")
_FUNCTION = re.compile(r"(?<![\w.\"])(?!(?:coalesce|greatest|least|nullif|extract)\b)(?=[a-z][a-z0-9_]*\()")
_BY_PATH = re.compile(r"\b(IN|LIKE|BETWEEN|CASE [a-z]\S* WHEN|DISTINCT FROM)\b")


def qualified(text: str) -> str:
    """Qualify the operators, functions and types of a statement of ours, which writes keywords in capitals.

    Examples
    --------
    >>> print(qualified("SELECT max(c.oid)::int8 FROM pg_catalog.pg_class AS c WHERE c.relname = 't'"))
    SELECT pg_catalog.max(c.oid)::pg_catalog.int8 FROM pg_catalog.pg_class AS c WHERE c.relname OPERATOR(pg_catalog.=) 't'
    """
    found = _BY_PATH.search(text)
    if found:
        raise ValueError(
            f"{found[0]} looks for its operator in the search path, and cannot be told where else; write = ANY"
        )
    text, casts = _TYPE.sub("::pg_catalog.", text), 1
    while casts:  # one in another is found once the outer one is qualified
        text, casts = _CAST.subn(r"\g<0>pg_catalog.", text)
    if text.count("CAST(") > len(_QUALIFIED.findall(text)):
        raise ValueError(f"{text!r} has a CAST whose type would be looked for in the search path; write ::type")
    text = _FUNCTION.sub("pg_catalog.", text)
    return _OPERATOR.sub(lambda match: f"OPERATOR(pg_catalog.{match[0]})", text)
