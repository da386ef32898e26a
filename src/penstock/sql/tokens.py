"""A script's tokens, and the statements that they fall into.

Tokens come from sqlglot's tokenizers, so that nothing in a quote, a dollar quote or a comment is taken for a clause.
Their keywords are left out: only ours matter, and sqlglot's own would swallow what follows EXPLAIN whole. sqlglot is
imported here alone, and only when used. A statement ends at a semicolon outside quotes, comments and parentheses, and
outside the body of an SQL function (``BEGIN ATOMIC … END``), as in the engines' own shells. Its text is kept
character for character.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from penstock.errors import MissingExtraError, SQLSyntaxError
from penstock.sql.dialect import Dialect

TokenKind = Literal["word", "quoted", "string", "number", "symbol"]

QUERY = ("SELECT", "WITH", "FROM", "TABLE", "VALUES", "PIVOT", "UNPIVOT", "(")
"""What a query may begin with."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a quoted name, a string, a number or a symbol; ``text`` is what it stands for, without its quotes."""

    kind: TokenKind
    text: str
    start: int
    stop: int

    def says(self, *texts: str) -> bool:
        """Whether it is one of these words, given in upper case, or symbols."""
        # Other letters than ASCII's may become ASCII in upper case: the dotless i of TRAIN is none of ours.
        return self.kind in ("word", "symbol") and self.text.isascii() and self.text.upper() in texts


@dataclass(frozen=True, slots=True)
class StatementTokens:
    """One statement of a script: its tokens, and where its text starts and stops.

    ``partners`` has for the index of each parenthesis that of the other one.
    """

    script: str
    dialect: Dialect
    tokens: Sequence[Token]
    start: int
    stop: int
    partners: dict[int, int] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The statement, word for word."""
        return self.script[self.start : self.stop]

    def says(self, at: int, *words: str) -> bool:
        """Whether these words or symbols stand from the token ``at`` on."""
        tokens = self.tokens[at : at + len(words)] if at >= 0 else ()
        return len(tokens) == len(words) and all(token.says(word) for token, word in zip(tokens, words))

    def begins_query(self, at: int) -> bool:
        """Whether a query may begin with the token ``at``."""
        return 0 <= at < len(self.tokens) and self.tokens[at].says(*QUERY)

    def level(self, first: int, stop: int) -> Iterator[int]:
        """Yield the tokens from ``first`` to before ``stop`` that are in no parentheses opened among them."""
        at = first
        while at < stop:
            yield at
            at = self.partners.get(at, at) + 1 if self.tokens[at].says("(") else at + 1

    def clauses(self, word: str) -> list[int]:
        """Return where ``TRAIN BY`` or ``PREDICT BY`` stands.

        ``INSERT INTO train BY NAME SELECT …`` is DuckDB's own: a table of that name is no clause.
        """
        return [at for at, token in enumerate(self.tokens) if token.says(word) and self.is_clause(at, word)]

    def is_clause(self, at: int, word: str) -> bool:
        """Whether the token ``at`` begins the clause."""
        if not self.says(at, word, "BY"):
            return False
        first = at
        while first >= 2 and self.tokens[first - 1].says("."):
            first -= 2
        return not self.says(first - 1, "INTO")


def split_statements(script: str, dialect: Dialect, tokens: Sequence[Token]) -> tuple[list[StatementTokens], bool]:
    """Cut a script at its semicolons; say also whether the last statement ends with one, or there is none."""
    parts, first, start, opened, blocks = [], 0, 0, 0, 0
    for at, token in enumerate(tokens):
        if token.says("("):
            opened += 1
        elif token.says(")"):
            opened = max(0, opened - 1)
        elif token.says("BEGIN") and at + 1 < len(tokens) and tokens[at + 1].says("ATOMIC"):
            blocks += 1
        elif blocks and token.says("CASE", "END"):
            blocks += 1 if token.says("CASE") else -1
        elif token.says(";") and not opened and not blocks:
            if at > first:
                parts.append(_part(script, dialect, tokens[first:at], start, token.start))
            first, start = at + 1, token.stop
    if first < len(tokens):
        parts.append(_part(script, dialect, tokens[first:], start, len(script)))
    return parts, first == len(tokens)


def _part(script: str, dialect: Dialect, tokens: Sequence[Token], start: int, stop: int) -> StatementTokens:
    text = script[start:stop]
    start += len(text) - len(text.lstrip())
    opened: list[int] = []
    partners: dict[int, int] = {}
    for at, token in enumerate(tokens):
        if token.says("("):
            opened.append(at)
        elif token.says(")") and opened:
            partners[at] = opened.pop()
            partners[partners[at]] = at
    return StatementTokens(script, dialect, tokens, start, start + len(text.strip()), partners)


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


def tokenize(script: str, dialect: Dialect) -> list[Token]:
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
