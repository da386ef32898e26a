"""From a script to statements: ours are read by a small parser, everything else is passed on as it was written.

Tokens come from sqlglot's tokenizers, so that nothing in a quote, a dollar quote or a comment is taken for a clause.
Their keywords are left out: only ours matter, and sqlglot's own would swallow what follows EXPLAIN whole. sqlglot is
imported here alone, and only when used.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from itertools import count
from typing import Any

from penstock.errors import MissingExtraError, SQLSyntaxError
from penstock.sgd.losses import linear_models
from penstock.sql.expressions.dialect import Dialect
from penstock.sql.statement_parser import parse_statement
from penstock.sql.statements import Statement
from penstock.sql.tokens import Token, TokenKind, split_statements

_KINDS: dict[str, TokenKind] = {
    "IDENTIFIER": "quoted",
    "STRING": "string",
    "BYTE_STRING": "string",
    "NATIONAL_STRING": "string",
    "UNICODE_STRING": "string",
    "HEREDOC_STRING": "string",
    "NUMBER": "number",
    "VAR": "word",
}
# A dollar that opens no dollar quote: of a parameter, such as $1. sqlglot would take ``$1,$`` for such a quote.
_LOOSE = re.compile(r"(?<![\w$])\$(?!(?:[^\W\d]\w*)?\$)")
# A comment that opens right where another did, which sqlglot does not count.
_TWICE = re.compile(r"/\*(?=/\*)")
_BETWEEN = re.compile(r"(?:\s+|--[^\n]*)*")


def parse(script: str, *, dialect: Dialect) -> list[Statement]:
    """Read a script.

    Parameters
    ----------
    script : str
        Statements with semicolons between them.
    dialect : Dialect
        The engine's SQL.

    Raises
    ------
    SQLSyntaxError
        Where a statement of ours is wrong, or a quote or comment is not closed.

    Examples
    --------
    >>> from penstock.sql.engines.duckdb.predictions import DUCKDB
    >>> train, other = parse("SELECT * FROM t TRAIN BY svm AS m; VACUUM", dialect=DUCKDB)
    >>> train.query.text, train.model, train.name, other
    ('SELECT * FROM t', 'svm', 'm', Plain(text='VACUUM'))
    """
    script = script.removeprefix("\ufeff")  # which some editors put at the start of a file
    parts, _ = split_statements(script, dialect, _tokens(script, dialect))
    return [parse_statement(part) for part in parts]


def is_complete(text: str, *, dialect: Dialect) -> bool:
    """Whether a prompt can run what was typed: nothing is left open, and the last statement ends with a semicolon.

    Examples
    --------
    >>> from penstock.sql.engines.duckdb.predictions import DUCKDB
    >>> [is_complete(text, dialect=DUCKDB) for text in ("SELECT 1", "SELECT 1;", "SELECT ';")]
    [False, True, False]
    """
    try:
        tokens = _tokens(text, dialect)
    except SQLSyntaxError:
        return False
    return split_statements(text, dialect, tokens)[1]


def keywords() -> tuple[str, ...]:
    """Return the words that our statements are made of, for completion.

    Examples
    --------
    >>> keywords()[:3]
    ('CREATE MODEL', 'CREATE OR REPLACE MODEL', 'DESCRIBE MODEL')
    """
    return (
        *("CREATE MODEL", "CREATE OR REPLACE MODEL", "DESCRIBE MODEL", "DROP MODEL", "EVALUATE MODEL"),
        *("EXPLAIN ANALYZE", "EXPORT MODEL", "IF EXISTS", "IF NOT EXISTS", "IMPORT MODEL", "ML.EVALUATE(MODEL"),
        *("ML.PREDICT(MODEL", "ML.TRAINING_INFO(MODEL", "ML.WEIGHTS(MODEL", "OPTIONS(model_type=", "PACK TABLE"),
        *("PREDICT BY", "SHOW MODELS", "TRAIN BY", "USING", "WITH (", *linear_models()),
    )


def _tokens(script: str, dialect: Dialect) -> list[Token]:
    """Return a script's tokens, with their offsets in it."""
    make = _tokenizer(dialect)
    from sqlglot.errors import TokenError

    dollar, space = _unused(script)
    loose = _LOOSE.sub(dollar, script)
    inserted = [match.end() + n for n, match in enumerate(_TWICE.finditer(loose))]
    text = _TWICE.sub("/*" + space, loose)
    tokenizer = make()
    try:
        found = tokenizer.tokenize(text)
    except TokenError:
        done = tokenizer.tokens[-1].end + 1 if tokenizer.tokens else 0
        at = _BETWEEN.match(text, done).end()  # type: ignore[union-attr]  # it matches the empty text too
        told = f"{'the comment' if text.startswith('/*', at) else 'the quote'} that opens here is not closed"
        raise SQLSyntaxError.of(told, script, at - bisect_left(inserted, at)) from None
    tokens = []
    for each in found:
        start, stop = each.start - bisect_left(inserted, each.start), each.end + 1 - bisect_left(inserted, each.end + 1)
        value = each.text.replace(dollar, "$").replace(space, "")
        kind = _KINDS.get(each.token_type.name, "symbol")
        if kind == "word" and not (value[:1].isalpha() or value[:1] == "_"):
            kind = "symbol"
        tokens.append(Token(kind, value, start, stop))
    return tokens


def _unused(script: str) -> tuple[str, str]:
    """Return two characters that the script does not have."""
    free = (chr(code) for code in count(0xE000) if chr(code) not in script)
    return next(free), next(free)


@functools.cache
def _tokenizer(wanted: Dialect) -> Any:
    """Return what makes a tokenizer of the dialect, without its keywords and templates."""
    try:
        from sqlglot.dialects.dialect import Dialect as SqlglotDialect
    except ImportError:
        raise MissingExtraError.of("sqlglot", "sql", "the SQL front") from None
    dialect = SqlglotDialect.get_or_raise(wanted.tokenizer)
    changes: dict[str, Any] = {"KEYWORDS": {}, "COMMANDS": set(), "BIT_STRINGS": [], "HEX_STRINGS": []}
    changes["IDENTIFIERS"] = list(wanted.identifier_quotes)
    made: Any = type("Tokens", (type(dialect).tokenizer_class,), changes)
    made._COMMENTS.pop("{#", None)
    return functools.partial(made, dialect=dialect)
