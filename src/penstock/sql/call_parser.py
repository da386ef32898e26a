"""Finds Penstock's calls in a statement of the engine's: queries that end with PREDICT BY, and ML.PREDICT and its like.

The statement becomes text with gaps for the calls. A query in parentheses takes these with it into the gap. A call inside another
call's query is refused; WITH clauses around a call go along with its query, which may use their names.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import SQLSyntaxError, nearest
from penstock.sql.function_signatures import FUNCTIONS, begins_settings, read_settings
from penstock.sql.statements import Call, Embedded, Predict, Query, StatementOption, TableSelection
from penstock.sql.token_reader import TokenReader
from penstock.sql.tokens import StatementTokens

# What may follow a table and is not another name for it.
_AFTER_TABLE = (
    *("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "FETCH", "FOR", "UNION", "INTERSECT", "EXCEPT"),
    *("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ON", "USING", "ASOF", "POSITIONAL", "SEMI"),
    *("ANTI", "WINDOW", "QUALIFY", "SAMPLE", "TABLESAMPLE", "PIVOT", "UNPIVOT", "RETURNING", "SELECT"),
)
_BEFORE_TABLE = ("FROM", "JOIN", "LATERAL", "USING")
# What keeps a statement for later; a temporary table would be gone by then.
_STORED = ("VIEW", "MACRO", "FUNCTION", "PROCEDURE", "RULE", "TRIGGER")


@dataclass(frozen=True, slots=True)
class PlacedCall:
    """A call, and the tokens from ``first`` to before ``stop`` that it takes up; ``alias`` where a table needs a name."""

    call: Call
    first: int
    stop: int
    alias: bool = False


@dataclass(frozen=True, slots=True)
class _Named:
    """A query named in a WITH clause."""

    name: str
    first: int
    last: int
    recursive: bool


def parse_embedded(part: StatementTokens) -> Embedded | None:
    """Return a statement as text with gaps for its calls; None where it has no call."""
    calls = find_calls(part)
    if not calls:
        return None
    texts, start = [""], part.start
    for number, each in enumerate(calls, 1):
        texts[-1] += part.script[start : part.tokens[each.first].start]
        start = part.tokens[each.stop - 1].stop
        texts.append("")
        if each.alias:  # PostgreSQL before 16 wants every table named
            texts[-1] = f" AS ml_{number}" + (" " if part.script[start : start + 1].isalpha() else "")
    texts[-1] += part.script[start : part.stop]
    return Embedded(tuple(texts), tuple(each.call for each in calls), view=_is_stored(part))


@dataclass(frozen=True, slots=True)
class _Search:
    """How far a statement has been searched: its calls, and by open parenthesis the queries named in WITH clauses."""

    part: StatementTokens
    calls: list[PlacedCall] = field(default_factory=list)
    named: list[list[_Named]] = field(default_factory=lambda: [[]])


def find_calls(part: StatementTokens) -> list[PlacedCall]:
    """Return the calls in a statement, in order."""
    search = _Search(part)
    calls, named = search.calls, search.named
    opened: list[int] = [-1]
    at = 0
    while at < len(part.tokens):
        token = part.tokens[at]
        if token.says("("):
            opened.append(at)
            named.append([])
        elif token.says(")") and len(opened) > 1:
            opened.pop()
            named.pop()
        elif token.says("WITH"):
            named[-1] += _named(part, at)
        elif token.says("PREDICT") and part.is_clause(at, "PREDICT"):
            calls.append(_predict(search, at, opened[-1]))
            at = calls[-1].stop
            if calls[-1].first == opened[-1]:  # the parentheses around it went along
                opened.pop()
                named.pop()
            continue
        elif is_model_function(part, at):
            calls.append(_function(search, at))
            at = calls[-1].stop
            continue
        at += 1
    return calls


def is_model_function(part: StatementTokens, at: int) -> bool:
    """Whether ``ML.NAME(MODEL m`` stands here; ``ml.predict(model)`` is a function of the engine's."""
    if not part.says(at, "ML", ".") or not part.says(at + 3, "(", "MODEL") or part.says(at - 1, "."):
        return False
    after = part.tokens[at + 5] if at + 5 < len(part.tokens) else None
    return after is not None and (after.kind in ("word", "quoted") or after.says("`"))


def _predict(search: _Search, at: int, opened: int) -> PlacedCall:
    part = search.part
    first, verb = _begin(part, opened + 1, at)
    reader = TokenReader(part, at + 2)
    name = reader.model_name()
    inside = next((each for each in search.calls if each.first >= first), None)
    if inside is not None:
        raise _nested(part, inside.first)
    stop = reader.at
    closed = opened >= 0 and reader.accept(")")
    following = reader.token
    if not closed and following is not None:
        if not _goes_on(reader, verb):
            raise _trailing(reader, name, opened)
    elif not closed and opened >= 0:
        raise reader.missing(")")
    query = reader.query(first, at, _scope(search, first, at))
    if closed and first == opened + 1:
        return PlacedCall(Predict(name, query), opened, stop + 1)
    return PlacedCall(Predict(name, query), first, stop)


def _begin(part: StatementTokens, first: int, at: int) -> tuple[int, str]:
    """Return where the query begins that PREDICT BY at ``at`` ends, and the verb of the statement around it."""
    level = list(part.level(first, at))
    if part.says(first, "EXPLAIN"):
        level = [n for n in level if not part.tokens[n].says("EXPLAIN", "ANALYZE", "ANALYSE", "VERBOSE")]
        if level and part.says(level[0], "(") and not part.begins_query(level[0] + 1):
            level = [n for n in level if n > part.partners.get(level[0], level[0])]
    inserts = [n for n in level if part.says(n, "INSERT") and (n == level[0] or part.says(level[0], "WITH"))]
    if inserts:
        into = next((n + 1 for n in level if n > inserts[0] and part.says(n, "INTO")), at)
        while into + 1 < at and part.says(into + 1, "."):
            into += 2
        for n in level:
            if n > into and part.begins_query(n) and (not part.says(n, "(") or part.begins_query(n + 1)):
                return n, "INSERT"
    elif level and part.begins_query(level[0]):
        return level[0], ""
    for n in level:
        if part.says(n, "AS") or part.says(n, "FOR"):
            # A table macro of DuckDB's: AS TABLE SELECT …
            start = n + 2 if part.says(n + 1, "TABLE") and part.begins_query(n + 2) else n + 1
            if start < at and part.begins_query(start):
                return start, part.tokens[first].text.upper()
    raise TokenReader(part, at).wrong("PREDICT BY follows a query, such as SELECT * FROM t PREDICT BY m")


def _goes_on(reader: TokenReader, verb: str) -> bool:
    """Whether what follows belongs to the statement around the query: ``INSERT … ON CONFLICT``, ``… WITH NO DATA``."""
    part, at = reader.part, reader.at
    if verb == "INSERT":
        return part.tokens[at].says("ON", "RETURNING")
    return verb == "CREATE" and part.says(at, "WITH") and not part.says(at + 1, "(")


def _trailing(reader: TokenReader, name: str, opened: int) -> SQLSyntaxError:
    part, at = reader.part, reader.at
    stop = part.partners.get(opened, len(part.tokens)) if opened >= 0 else len(part.tokens)
    rest = part.script[part.tokens[at].start : part.tokens[max(at, stop - 1)].stop]
    rest = " ".join(rest.split())
    rest = rest if len(rest) <= 60 else rest[:60] + "…"
    return reader.wrong(
        f"PREDICT BY ends its query; what follows goes around it: SELECT * FROM (… PREDICT BY {name}) AS p {rest}"
    )


def _function(search: _Search, at: int) -> PlacedCall:
    part = search.part
    word = part.tokens[at + 2].text.upper()
    reader = TokenReader(part, at + 5)
    if word not in FUNCTIONS:
        known = [f"ML.{name}" for name in FUNCTIONS]
        raise reader.wrong(
            f"ML.{word} is not known; choose one of: {', '.join(known)}{nearest(f'ML.{word}', known)}", at + 2
        )
    before = part.tokens[at - 1] if at else None
    if before is None or (before.kind == "word" and not before.says(*_BEFORE_TABLE)):
        raise reader.wrong(f"ML.{word} stands where a table does: SELECT * FROM ML.{word}(MODEL …)", at)
    name, signature = reader.model_name(), FUNCTIONS[word]
    query: Query | None = None
    settings: dict[str, StatementOption] = {}
    while not settings and reader.accept(","):
        if begins_settings(reader):
            settings = read_settings(reader, word)
        elif signature.rows == "none" or query is not None:
            raise reader.missing(")" if query is None else ") or STRUCT(… AS …)")
        else:
            query = _argument(reader, search)
    if signature.rows == "required" and query is None:
        raise reader.missing(", and the rows: TABLE t or (SELECT …)")
    reader.expect(")")
    after = reader.token
    unnamed = after is None or after.kind not in ("word", "quoted") or after.says(*_AFTER_TABLE)
    return PlacedCall(signature.make(name, query, settings), at, reader.at, unnamed)


def _argument(reader: TokenReader, search: _Search) -> Query:
    part = reader.part
    if reader.accept("TABLE"):
        first = reader.at
        table = reader.table()
        scope = _scope(search, first, reader.at)
        return Query(f"SELECT * FROM {table}", None if scope else TableSelection(table), scope)
    opened = reader.at
    reader.expect("(", expected="TABLE t or (SELECT …)")
    close = part.partners.get(opened)
    if close is None:
        raise reader.wrong("this parenthesis is not closed", opened)
    for at in range(opened, close):
        if part.is_clause(at, "PREDICT") or is_model_function(part, at):
            raise _nested(part, at)
    reader.at = close + 1
    return reader.query(opened + 1, close, _scope(search, opened, close))


def _nested(part: StatementTokens, at: int) -> SQLSyntaxError:
    return TokenReader(part, at).wrong(
        "predictions of predictions are not supported in one statement; store these first: CREATE TABLE p AS SELECT …"
        " PREDICT BY m"
    )


def _named(part: StatementTokens, at: int) -> list[_Named]:
    """Return the queries that a WITH clause names, if it is one."""
    tokens, partners, found = part.tokens, part.partners, []
    recursive = part.says(at + 1, "RECURSIVE")
    first = at + 2 if recursive else at + 1
    while first < len(tokens) and tokens[first].kind in ("word", "quoted"):
        body = first + 1
        if part.says(body, "("):
            body = partners.get(body, len(tokens)) + 1
        if not part.says(body, "AS"):
            break
        body += 1
        while body < len(tokens) and tokens[body].says("NOT", "MATERIALIZED"):
            body += 1
        last = partners.get(body)
        if last is None or not part.says(body, "("):
            break
        name = tokens[first].text
        found.append(_Named(name.lower() if tokens[first].kind == "word" else name, first, last, recursive))
        if not part.says(last + 1, ","):
            break
        first = last + 2
    return found


def _scope(search: _Search, first: int, stop: int) -> tuple[str, ...]:
    """Return the WITH clauses around a query, without what has calls of ours in it; raise where that is used."""
    part, clauses, predicted = search.part, [], set()
    for level in search.named:
        visible = [each for each in level if each.last < first]
        texts = []
        for each in visible:
            if any(each.first <= call.first <= each.last for call in search.calls):
                predicted.add(each.name)
            else:
                texts.append(part.script[part.tokens[each.first].start : part.tokens[each.last].stop])
        if texts:
            clauses.append(f"WITH {'RECURSIVE ' if visible[0].recursive else ''}{', '.join(texts)}")
    for at in range(first, stop):
        token = part.tokens[at]
        name = token.text.lower() if token.kind == "word" else token.text
        if name in predicted and at and part.tokens[at - 1].says("FROM", "JOIN", "TABLE"):
            raise _nested(part, at)
    return tuple(clauses)


def _is_stored(part: StatementTokens) -> bool:
    made = (token for token in part.tokens[1:6] if token.says("TABLE", *_STORED))
    return part.says(0, "PREPARE") or (
        part.says(0, "CREATE") and not next(made, part.tokens[0]).says("TABLE", "CREATE")
    )
