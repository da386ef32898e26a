"""A script's tokens, and the statements that they fall into.

A statement ends at a semicolon outside quotes, comments and parentheses, and outside the body of an SQL function
(``BEGIN ATOMIC … END``), as in the engines' own shells. Its text is kept character for character.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.sql.expressions.dialect import Dialect

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
