"""Reads Penstock's clauses token by token: names, tables, options and their values, the query in between.

What is not as expected is told with its place. Nothing of a query is changed or understood, but for one thing: whether
it only names a table.
"""

from __future__ import annotations

import re

from penstock.errors import SQLSyntaxError, line_and_column, nearest
from penstock.messages import Location
from penstock.sql.model_types import model_names, model_words
from penstock.sql.statements import OptionValue, Query, StatementOption, TableSelection
from penstock.sql.tokens import StatementTokens, Token

_UNITS = ("%", "B", "K", "KB", "KIB", "M", "MB", "MIB", "G", "GB", "GIB", "T", "TB", "TIB")
_CLAUSES = ("AS", "BY", "FROM", "INTO", "ON", "OPTIONS", "SELECT", "TABLE", "TO", "USING", "WITH")
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
# Words that look like a column and are a value.
_NO_COLUMNS = (
    *("NULL", "TRUE", "FALSE", "DEFAULT", "ALL", "DISTINCT", "FROM", "USER", "CURRENT_CATALOG", "CURRENT_DATE"),
    *("CURRENT_ROLE", "CURRENT_SCHEMA", "CURRENT_TIME", "CURRENT_TIMESTAMP", "CURRENT_USER", "LOCALTIME"),
    *("LOCALTIMESTAMP", "SESSION_USER", "SYSTEM_USER"),
)


class TokenReader:
    """A place in a statement that moves forward as what is expected is found there."""

    def __init__(self, part: StatementTokens, at: int = 0) -> None:
        self.part = part
        self.at = at

    @property
    def token(self) -> Token | None:
        """The token that comes next; None at the end."""
        return self.part.tokens[self.at] if self.at < len(self.part.tokens) else None

    def accept(self, *words: str) -> bool:
        """Step over these words or symbols, where they come next."""
        present = self.part.says(self.at, *words)
        self.at += len(words) if present else 0
        return present

    def expect(self, *words: str, expected: str | None = None) -> None:
        """Step over these words or symbols, or raise."""
        if not self.accept(*words):
            raise self.missing(expected or " ".join(words))

    def end(self, expected: str = "the end of the statement") -> None:
        """Raise where anything is left."""
        if self.token is not None:
            raise self.missing(expected)

    def missing(self, expected: str) -> SQLSyntaxError:
        """Return the error that something else was expected here."""
        token = self.token
        shown = "the end" if token is None else self.part.script[token.start : token.stop]
        return self.wrong(f"expected {expected}, found {shown if len(shown) <= 40 else shown[:40] + '…'}")

    def wrong(self, reason: str, at: int | None = None) -> SQLSyntaxError:
        """Return an error that points at the token that comes next, or at another."""
        at, tokens = self.at if at is None else at, self.part.tokens
        place = tokens[at].start if at < len(tokens) else tokens[-1].stop if tokens else self.part.stop
        return SQLSyntaxError.of(reason, self.part.script, place)

    def name(self, expected: str = "a model's name") -> str:
        """Read a model's name: in lower case unless quoted; the parts of a dotted one stay together."""
        names = [self._name(expected)]
        while self.accept("."):
            names.append(self._name(expected))
        return ".".join(names)

    def model_name(self) -> str:
        """Read a model's name, with the number of a version where one is written right after it: ``m@2``."""
        name, tokens = self.name(), self.part.tokens[self.at - 1 : self.at + 2]
        together = len(tokens) == 3 and tokens[0].stop == tokens[1].start and tokens[1].stop == tokens[2].start
        if not (together and tokens[1].says("@") and tokens[2].kind == "number"):
            return name
        if not re.fullmatch("[1-9][0-9]*", tokens[2].text):
            raise self.wrong("versions are numbered 1, 2, 3, …", self.at + 1)
        self.at += 2
        return f"{name}@{tokens[2].text}"

    def version(self) -> int:
        """Read the number of a version."""
        token = self.token
        if token is None or not re.fullmatch("[1-9][0-9]*", token.text):
            raise self.missing("the number of a version, such as 2")
        self.at += 1
        return int(token.text)

    def _name(self, expected: str) -> str:
        token = self.token
        if token is None or token.says(*_CLAUSES):
            raise self.missing(expected)
        if token.says("`"):  # the warehouses' quotes, which are none to PostgreSQL
            rest = range(self.at + 1, len(self.part.tokens))
            close = next((at for at in rest if self.part.tokens[at].says("`")), None)
            if close is None:
                raise self.wrong("this quote is not closed")
            text = self.part.script[token.stop : self.part.tokens[close].start]
            self.at = close
        elif token.kind in ("word", "quoted"):
            text = token.text.lower() if token.kind == "word" else token.text
        else:
            raise self.missing(expected)
        if not text.strip():
            raise self.wrong("a name must not be empty")
        self.at += 1
        return text

    def table(self, expected: str = "a table's name") -> str:
        """Read the name of a table, as it is written."""
        parts: list[str] = []
        while not parts or (len(parts) < 3 and self.accept(".")):
            token = self.token
            if token is None or token.kind not in ("word", "quoted") or token.says(*_CLAUSES):
                raise self.missing(expected)
            parts.append(self.part.script[token.start : token.stop])
            self.at += 1
        return ".".join(parts)

    def string(self, expected: str) -> str:
        """Read a string."""
        token = self.token
        if token is None or token.kind != "string":
            raise self.missing(expected)
        self.at += 1
        return token.text

    def model(self) -> str:
        """Read which kind of model is to be learnt."""
        token = self.token
        if token is None or token.kind != "word":
            raise self.missing(f"a model: {', '.join(model_names())}")
        found = self.kind(token.text, self.at)
        self.at += 1
        return found

    def kind(self, word: OptionValue, at: int) -> str:
        """Return which of the models a word means; ``at`` is the token to point at."""
        known = str(word).lower()
        kinds = model_words()
        if known not in kinds:
            choices = ", ".join(model_names())
            raise self.wrong(f"{word} is not a model; choose one of: {choices}{nearest(known, kinds)}", at)
        return kinds[known]

    def query(self, first: int, stop: int, scope: tuple[str, ...] = ()) -> Query:
        """Return the query from the token ``first`` to before the token ``stop``."""
        if stop <= first or not self.part.begins_query(first):
            raise TokenReader(self.part, first).missing("a query, such as SELECT * FROM t")
        for at in range(first, stop):  # so that it can stand in parentheses elsewhere
            if self.part.tokens[at].says("(", ")") and not first <= self.part.partners.get(at, -1) < stop:
                raise self.wrong("this parenthesis has no partner in its query", at)
        tokens = self.part.tokens[first:stop]
        text = self.part.script[tokens[0].start : tokens[-1].stop]
        return Query(text, None if scope else _selected(self.part, first, stop), scope)

    def options(self, *, closed: bool = False) -> dict[str, StatementOption]:
        """Read ``(name = value, …)``; as in the paper the parentheses may be left out, unless ``closed``."""
        options: dict[str, StatementOption] = {}
        if closed and not self.part.says(self.at, "("):
            raise self.missing("( and the options")
        closed = self.accept("(")
        if closed and self.accept(")"):
            return options
        while True:
            token, at = self.token, self.at
            if token is None or token.kind != "word":
                raise self.missing("an option's name")
            name = token.text.lower()
            if name in options:
                raise self.wrong(f"{name} is given twice; leave one out")
            self.at += 1
            self.expect("=", expected=f"= and the value of {name}")
            line, column = line_and_column(self.part.script, self.part.tokens[at].start)
            options[name] = StatementOption(self.value(name), token.start, Location(line=line, character=column))
            if self.accept(","):
                continue
            if closed:
                self.expect(")", expected=f", or ) after the value of {name}")
            return options

    def value(self, name: str) -> OptionValue:
        """Read an option's value."""
        token = self.token
        if token is None:
            raise self.missing(f"the value of {name}")
        if self.accept("HPARAM_CANDIDATES", "("):  # BigQuery's word for a list of values to try
            found = self.value(name)
            self.expect(")", expected=f") after the values of {name}")
            return found
        for opening, closing in (("[", "]"), ("(", ")")):
            if self.accept(opening):
                return self._list(name, closing)
        return self._single(name, token)

    def _single(self, name: str, token: Token) -> OptionValue:
        if token.kind in ("string", "quoted"):
            self.at += 1
            return token.text
        if token.kind == "word":
            return self._word(token)
        return self._number(name)

    def _list(self, name: str, closing: str) -> list[OptionValue]:
        values: list[OptionValue] = []
        while not self.accept(closing):
            if values:
                self.expect(",", expected=f", or {closing} in the value of {name}")
            if self.token is None:
                raise self.missing(f"{closing} at the end of the value of {name}")
            if self.accept("STRUCT", "(") or self.accept("("):  # a pair; BigQuery writes STRUCT
                values.append(self._list(name, ")"))
            else:
                values.append(self._single(name, self.token))
        return values

    def _word(self, token: Token) -> OptionValue:
        """Read a word; one such as sliding-window needs no quotes."""
        self.at += 1
        if token.text.upper() in _CONSTANTS:
            return _CONSTANTS[token.text.upper()]
        stop = token.stop
        while self.part.says(self.at, "-") and self._joined(stop):
            following = self.part.tokens[self.at + 1] if self.at + 1 < len(self.part.tokens) else None
            if following is None or following.kind != "word" or following.start != stop + 1:
                break
            stop = following.stop
            self.at += 2
        return self.part.script[token.start : stop]

    def _joined(self, stop: int) -> bool:
        return self.token is not None and self.token.start == stop

    def _number(self, name: str) -> OptionValue:
        """Read a number or a size; ``10MB`` and ``10 %`` come as two tokens, ``.5`` and ``-1`` too."""
        expected = f"the value of {name}: a number, a word, a 'string' or a list"
        sign = "-" if self.accept("-") else ""
        if not sign:
            self.accept("+")
        point = "." if self.accept(".") else ""
        token = self.token
        if token is None or token.kind != "number":
            raise self.missing(expected)
        self.at += 1
        text = sign + point + token.text
        unit = self.token
        if unit is not None and unit.says(*_UNITS) and (unit.start == token.stop or unit.says("%") or unit.text[1:]):
            self.at += 1
            return text + unit.text
        try:
            return int(text) if text.lstrip("-").isdigit() else float(text)
        except ValueError:
            self.at -= 1
            raise self.missing(expected) from None


def _selected(part: StatementTokens, first: int, stop: int) -> TableSelection | None:
    """Return the table and columns where a query is ``SELECT a, b FROM t``, ``TABLE t`` or DuckDB's ``FROM t``."""
    reader = TokenReader(StatementTokens(part.script, part.dialect, part.tokens[first:stop], part.start, part.stop))
    columns: tuple[str, ...] | None = None
    try:
        if reader.accept("SELECT"):
            if not reader.accept("*"):
                columns = _columns(reader)
            reader.expect("FROM")
        elif not (reader.accept("TABLE") or (part.dialect.from_first and reader.accept("FROM"))):
            return None
        table = reader.table()
        reader.end()
    except SQLSyntaxError:
        return None
    return TableSelection(table, columns)


def _columns(reader: TokenReader) -> tuple[str, ...]:
    columns: list[str] = []
    folded = set()
    while not columns or reader.accept(","):
        token = reader.token
        if token is None or token.kind not in ("word", "quoted") or token.says(*_NO_COLUMNS):
            raise reader.missing("a column")
        columns.append(reader.part.script[token.start : token.stop])
        folded.add(token.text.lower())
        reader.at += 1
    if len(folded) < len(columns):
        raise reader.missing("a column once")
    return tuple(columns)
