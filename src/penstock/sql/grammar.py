"""From a script to statements: ours are parsed, everything else is passed on as it was written.

A statement that begins with Penstock's own words must be right; all else is the engine's, with or without PREDICT BY or
``ML.…`` in it.
"""

from __future__ import annotations

from penstock.errors import SQLSyntaxError
from penstock.sql import statements as s
from penstock.sql.call_parser import find_calls, parse_embedded
from penstock.sql.dialect import Dialect
from penstock.sql.function_signatures import FUNCTIONS
from penstock.sql.model_types import model_names
from penstock.sql.token_reader import TokenReader
from penstock.sql.tokens import StatementTokens, split_statements, tokenize
from penstock.sql.transform import read_transform


def parse(script: str, *, dialect: Dialect) -> list[s.Statement]:
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
    parts, _ = split_statements(script, dialect, tokenize(script, dialect))
    return [_parse_statement(part) for part in parts]


def is_complete(text: str, *, dialect: Dialect) -> bool:
    """Whether a prompt can run what was typed: nothing is left open, and the last statement ends with a semicolon.

    Examples
    --------
    >>> from penstock.sql.engines.duckdb.predictions import DUCKDB
    >>> [is_complete(text, dialect=DUCKDB) for text in ("SELECT 1", "SELECT 1;", "SELECT ';")]
    [False, True, False]
    """
    try:
        tokens = tokenize(text, dialect)
    except SQLSyntaxError:
        return False
    return split_statements(text, dialect, tokens)[1]


def keywords() -> tuple[str, ...]:
    """Return the words that our statements are made of, for completion.

    Examples
    --------
    >>> keywords()[:3]
    ('ALTER MODEL', 'CREATE MODEL', 'CREATE OR REPLACE MODEL')
    """
    return (
        *("ALTER MODEL", "CREATE MODEL", "CREATE OR REPLACE MODEL", "DESCRIBE MODEL", "DROP MODEL", "EVALUATE MODEL"),
        *("EXPLAIN ANALYZE", "EXPORT MODEL", "IF EXISTS", "IF NOT EXISTS", "IMPORT MODEL"),
        *(f"ML.{name}(MODEL" for name in FUNCTIONS),
        *("OPTIONS(model_type=", "PACK TABLE"),
        *(
            "PREDICT BY",
            "RENAME TO",
            "SET DEFAULT VERSION",
            "SHOW MODEL",
            "SHOW MODELS",
            "SHOW TRAINING",
            "SHOW VERSIONS",
            "TRAIN BY",
            "TRANSFORM (",
            "USING",
            "WITH (",
            *model_names(),
        ),
    )


def _parse_statement(part: StatementTokens) -> s.Statement:
    """Read one statement."""
    reader = TokenReader(part)
    if reader.accept("EXPLAIN"):
        return _explain(reader)
    statement = _own(reader)
    if statement is not None:
        return statement
    if part.clauses("TRAIN"):
        return _train(reader)
    return parse_embedded(part) or s.Plain(part.text)


def _own(reader: TokenReader) -> s.Statement | None:
    """Read a statement that begins with words of ours; None where it does not."""
    if _creates(reader):
        return _create(reader)
    if reader.accept("EVALUATE"):
        return _evaluate(reader)
    if reader.accept("PACK"):
        return _pack(reader)
    statement = _about_models(reader)
    if statement is not None:
        reader.end()
    return statement


def _about_models(reader: TokenReader) -> s.ModelStatement | None:
    part = reader.part
    if reader.accept("SHOW", "MODELS"):
        return s.ShowModels()
    if part.says(1, "MODEL") and (part.says(0, "DESCRIBE") or part.says(0, "DESC")):
        if len(part.tokens) == 2 or part.says(2, "."):  # a table of that name, or in a schema of that name
            return None
        reader.at = 2
        name = reader.model_name()
        return s.DescribeModel(name, _group_key(reader) if reader.accept("FOR") else None)
    if reader.accept("SHOW", "TRAINING"):
        return s.ShowTraining(reader.model_name())
    if part.says(0, "SHOW", "MODEL") and len(part.tokens) > 2:
        reader.at = 2
        return s.ShowModel(reader.model_name())
    if part.says(0, "SHOW", "VERSIONS") and len(part.tokens) > 2:
        reader.at = 2
        return s.ShowVersions(reader.name())
    if reader.accept("ALTER", "MODEL"):
        return _alter(reader)
    if reader.accept("DROP", "MODEL"):
        skip = reader.accept("IF", "EXISTS")
        return s.DropModel(reader.model_name(), "skip" if skip else "error")
    replaces = reader.accept("IMPORT", "OR", "REPLACE", "MODEL")
    if replaces or reader.accept("IMPORT", "MODEL"):
        name = reader.model_name()
        reader.expect("FROM", expected="FROM 'file'")
        path = reader.string("the file's path in quotes")
        return s.ImportModel(name, path, "replace" if replaces else "error", text=part.text)
    if reader.accept("EXPORT", "MODEL"):
        name = reader.model_name()
        reader.expect("TO", expected="TO 'file'")
        return s.ExportModel(name, reader.string("the file's path in quotes"))
    return None


def _alter(reader: TokenReader) -> s.SetDefaultVersion | s.RenameModel:
    """Read what comes after ``ALTER MODEL``."""
    name = reader.name()
    if reader.accept("RENAME", "TO"):
        return s.RenameModel(name, reader.name("the new name"))
    reader.expect("SET", "DEFAULT", "VERSION", expected="SET DEFAULT VERSION and its number, or RENAME TO and a name")
    return s.SetDefaultVersion(name, reader.version())


def _group_key(reader: TokenReader) -> tuple[s.OptionValue, ...]:
    """Read the values of a group's key: ``('FR', 'ios')``, or one without parentheses."""
    values = reader.value("the group, such as ('FR', 'ios')")
    return tuple(values) if isinstance(values, list) else (values,)


def _group_columns(reader: TokenReader) -> tuple[str, ...]:
    """Read ``GROUP BY a, b``; nothing where it does not come next."""
    columns: list[str] = []
    if reader.accept("GROUP", "BY"):
        while not columns or reader.accept(","):
            columns.append(reader.name("a column to group by"))
    return tuple(columns)


def _pack(reader: TokenReader) -> s.Pack:
    reader.accept("TABLE")
    table = reader.table()
    reader.expect("INTO", expected="INTO and the new table's name")
    into = reader.table()
    options = reader.options() if reader.accept("WITH") else {}
    reader.end("WITH (…), or the end of the statement" if not options else "the end of the statement")
    return s.Pack(table, into, options)


def _evaluate(reader: TokenReader) -> s.Evaluate:
    part = reader.part
    reader.expect("MODEL")
    name = reader.model_name()
    query, options, stop = None, {}, len(part.tokens)
    asked = [at for at in part.level(reader.at, stop) if part.says(at, "WITH", "(")]
    if asked:
        options_reader = TokenReader(part, asked[-1] + 1)
        options = options_reader.options()
        options_reader.end()
        stop = asked[-1]
    if reader.at < stop:
        reader.expect("ON", expected="ON and a query, such as ON SELECT * FROM t")
        query = _plain_query(reader, reader.at, stop, "evaluating")
    return s.Evaluate(name, query, options)


def _explain(reader: TokenReader) -> s.Statement:
    part = reader.part
    opened = reader.at
    listed = part.says(opened, "(") and not part.begins_query(opened + 1)
    plain_list = part.says(opened, "(", "ANALYZE", ")")
    analyze = plain_list or reader.accept("ANALYZE") or reader.accept("ANALYSE")
    if listed:
        reader.at = part.partners.get(opened, len(part.tokens) - 1) + 1
    creates = _creates(reader)
    if not (creates or part.clauses("TRAIN")):
        return parse_embedded(part) or s.Plain(part.text)
    if listed and not plain_list:
        raise reader.wrong("EXPLAIN of a training takes (ANALYZE) and nothing else", opened)
    if creates:
        return s.Explain(_create(reader), analyze)
    if not part.begins_query(reader.at):
        raise reader.missing("ANALYZE or a query")
    return s.Explain(_train(reader), analyze)


def _train(reader: TokenReader) -> s.Train:
    """Read ``query TRAIN BY model [AS name] [WITH (…)] [GROUP BY columns]``."""
    part, first = reader.part, reader.at
    clause = part.clauses("TRAIN")[0]
    if not part.begins_query(first) or clause not in part.level(first, len(part.tokens)):
        raise reader.wrong("TRAIN BY ends a statement of its own: SELECT * FROM t TRAIN BY svm AS m", clause)
    query = _plain_query(reader, first, clause, "training")
    reader.at = clause + 2
    model = reader.model()
    name = reader.model_name() if reader.accept("AS") else None
    options = reader.options() if reader.accept("WITH") else {}
    by = _group_columns(reader)
    left = [] if options or by else ["WITH (…)"] if name else ["AS name", "WITH (…)"]
    reader.end(", ".join([*left, "or the end of the statement"]) if left else "the end of the statement")
    return s.Train(query, model, name, options, by=by, text=part.text)


def _creates(reader: TokenReader) -> bool:
    part, at = reader.part, reader.at
    return part.says(at, "CREATE", "MODEL") or part.says(at, "CREATE", "OR", "REPLACE", "MODEL")


def _create(reader: TokenReader) -> s.Train:
    """Read ``CREATE [OR REPLACE] MODEL [IF NOT EXISTS] name [TRANSFORM (…)] USING model [WITH (…)] | OPTIONS(…) [GROUP BY columns] AS query``."""
    part = reader.part
    reader.expect("CREATE")
    exists: s.Exists = "replace" if reader.accept("OR", "REPLACE") else "error"
    reader.expect("MODEL")
    if part.says(reader.at, "IF", "NOT", "EXISTS"):
        if exists == "replace":
            raise reader.wrong("OR REPLACE and IF NOT EXISTS exclude one another; leave one out")
        reader.at += 3
        exists = "skip"
    name = reader.model_name()
    transform = read_transform(reader) if part.says(reader.at, "TRANSFORM") else ()
    options: dict[str, s.StatementOption] = {}
    usual = reader.accept("USING")
    if usual:
        model = reader.model()
        if reader.accept("WITH"):
            options = reader.options(closed=True)
    else:
        at = reader.at
        reader.expect("OPTIONS", expected="OPTIONS(model_type='logistic_reg', …) or USING and a model")
        options = reader.options(closed=True)
        kind = options.pop("model_type", None)
        if kind is None:
            raise reader.wrong("OPTIONS must say the model_type, such as model_type='logistic_reg'", at)
        at = next(n for n in range(at, reader.at) if part.tokens[n].start == kind.at)
        model = reader.kind(kind.value, at + 2)
    by = _group_columns(reader)
    reader.expect("AS", expected="AS and a query" if options or by or not usual else "WITH (…) or AS and a query")
    query = _plain_query(reader, reader.at, len(part.tokens), "training")
    return s.Train(query, model, name, options, exists, warehouse=not usual, transform=transform, by=by, text=part.text)


def _plain_query(reader: TokenReader, first: int, stop: int, work: str) -> s.Query:
    """Return a query that is the engine's alone; raise where it has a clause or call of ours in it."""
    part = reader.part
    query = reader.query(first, stop)
    again = [at for at in part.clauses("TRAIN") if first <= at < stop]
    if again:
        raise reader.wrong("TRAIN BY cannot stand inside another statement of ours", again[0])
    calls = find_calls(_between(part, first, stop))
    if calls:
        raise reader.wrong(
            f"{work} on predictions is not supported in one statement; store them first: CREATE TABLE p AS SELECT …"
            " PREDICT BY m",
            first + calls[0].first,
        )
    return query


def _between(part: StatementTokens, first: int, stop: int) -> StatementTokens:
    inside = {a - first: b - first for a, b in part.partners.items() if first <= a < stop and first <= b < stop}
    return StatementTokens(part.script, part.dialect, part.tokens[first:stop], part.start, part.stop, inside)
