"""Which expressions TRANSFORM takes: those over the values of one row, with functions that compute and do nothing else.

A model may come from another user or from a file, and its expressions run with the rights of whoever predicts by it. So they may
call only the functions listed here, cast only to types of the engine's own, and hold no query. They are checked when a model is
created and again whenever it is used. What sees other rows, such as an aggregate, would differ between training and prediction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from penstock.errors import SQLSyntaxError
from penstock.sql.dialect import Dialect
from penstock.sql.token_reader import TokenReader
from penstock.sql.tokens import StatementTokens, split_statements, tokenize

FUNCTIONS = frozenset(
    [
        "abs",
        "acos",
        "asin",
        "atan",
        "atan2",
        "cbrt",
        "ceil",
        "ceiling",
        "cos",
        "cosh",
        "cot",
        "degrees",
        "div",
        "exp",
        "floor",
        "greatest",
        "isfinite",
        "isinf",
        "isnan",
        "least",
        "ln",
        "log",
        "log10",
        "log2",
        "mod",
        "pi",
        "pow",
        "power",
        "radians",
        "round",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "tan",
        "tanh",
        "trunc",
        "width_bucket",
        "ascii",
        "btrim",
        "char_length",
        "concat",
        "concat_ws",
        "contains",
        "initcap",
        "left",
        "length",
        "lower",
        "lpad",
        "ltrim",
        "md5",
        "octet_length",
        "position",
        "regexp_replace",
        "replace",
        "reverse",
        "right",
        "rpad",
        "rtrim",
        "split_part",
        "starts_with",
        "strpos",
        "substr",
        "substring",
        "translate",
        "trim",
        "upper",
        "age",
        "century",
        "date_diff",
        "date_part",
        "date_trunc",
        "datediff",
        "day",
        "dayofweek",
        "dayofyear",
        "decade",
        "epoch",
        "extract",
        "hour",
        "isodow",
        "make_date",
        "minute",
        "month",
        "quarter",
        "second",
        "strftime",
        "strptime",
        "to_char",
        "to_date",
        "to_number",
        "to_timestamp",
        "week",
        "weekday",
        "year",
        "array_length",
        "cardinality",
        "cast",
        "coalesce",
        "if",
        "ifnull",
        "len",
        "list_avg",
        "list_max",
        "list_min",
        "list_sum",
        "nullif",
        "struct_extract",
        "try_cast",
    ]
)
TYPES = frozenset(
    [
        "bigint",
        "bool",
        "boolean",
        "bpchar",
        "char",
        "character",
        "date",
        "decimal",
        "double",
        "float",
        "float4",
        "float8",
        "hugeint",
        "int",
        "int2",
        "int4",
        "int8",
        "integer",
        "interval",
        "numeric",
        "real",
        "smallint",
        "string",
        "text",
        "time",
        "timestamp",
        "timestamptz",
        "tinyint",
        "varchar",
    ]
)
_KEYWORDS = ("AND", "OR", "NOT", "IN", "CASE", "WHEN", "THEN", "ELSE", "BETWEEN", "LIKE", "ILIKE", "IS", "FROM", "FOR")
"""What may stand before a parenthesis and is no function."""
_BEFORE_TEXT = (
    *_KEYWORDS,
    *("DATE", "TIME", "TIMESTAMP", "TIMESTAMPTZ", "INTERVAL", "ZONE", "TO", "ESCAPE", "BOTH", "LEADING", "TRAILING"),
)
"""What may stand before a text and is no type that reads it."""
_OPERATORS = re.compile(r"(\|\||<=|>=|<>|!=|::|//|[-+*/%^<>=])[-+]*")
_SIGNS = frozenset("+-*/%^<>=!|:~@#&?.`$;{}\\")
_PREPROCESSING = {
    **dict.fromkeys(
        ("STANDARD_SCALER", "MIN_MAX_SCALER", "MAX_ABS_SCALER", "ROBUST_SCALER", "NORMALIZER"),
        "name the column alone, as numbers are brought to one scale in training",
    ),
    "IMPUTER": "name the column alone, as missing values are filled in training",
    **dict.fromkeys(
        ("ONE_HOT_ENCODER", "LABEL_ENCODER", "MULTI_HOT_ENCODER"), "name the column alone, as text becomes categories"
    ),
    **dict.fromkeys(
        ("BUCKETIZE", "QUANTILE_BUCKETIZE"), "write the limits: CASE WHEN x < 10 THEN 'low' ELSE 'high' END AS x_range"
    ),
    "POLYNOMIAL_EXPAND": "write the products: a * b AS a_b",
    "FEATURE_CROSS": "write the pair as one text: a || '_' || b AS a_b",
    "HASH_BUCKETIZE": "name the column alone, and hash it: OPTIONS(hash=['x'])",
}


def require_row_expression(part: StatementTokens, first: int, stop: int) -> str:
    """Return an expression's text without comments; raise where it is more than an expression over a row's values."""
    for at in range(first, stop):
        if part.says(at, "ML", ".") and part.says(at + 3, "("):
            word = part.tokens[at + 2].text.upper()
            fix = _PREPROCESSING.get(word, "write it in SQL")
            raise TokenReader(part, at).wrong(f"ML.{word} is not supported in TRANSFORM; {fix}")
        if part.says(at, "OVER", "("):
            reason = "a window function sees other rows in a prediction than in the training; compute it in the query"
            raise TokenReader(part, at).wrong(f"{reason}, or write its result as a constant")
    for at in range(first, stop):
        _require_plain(part, at)
    text, end = "", part.tokens[first].start
    for token in part.tokens[first:stop]:
        gap = part.script[end : token.start]
        text += (gap if not gap.strip() else " ") + part.script[token.start : token.stop]
        end = token.stop
    return text


def commas_between(part: StatementTokens, first: int, stop: int) -> Iterator[int]:
    """Yield the commas that stand outside of parentheses, brackets and braces."""
    depth = 0
    for at in part.level(first, stop):
        token = part.tokens[at]
        depth += token.says("[", "{") - token.says("]", "}")
        if token.says(",") and not depth:
            yield at


def checked_expression(text: str, dialect: Dialect) -> str:
    """Return an expression of a saved model; raise where it is not one that `require_row_expression` lets pass."""
    try:
        parts, _ = split_statements(text, dialect, tokenize(text, dialect))
        if len(parts) != 1 or parts[0].text != text or list(commas_between(parts[0], 0, len(parts[0].tokens))):
            raise SQLSyntaxError.of("expected one expression", text, 0)
        part = parts[0]
        for at in range(len(part.tokens)):
            if part.tokens[at].says("(", ")") and at not in part.partners:
                raise TokenReader(part, at).wrong("this parenthesis has no partner")
        plain = require_row_expression(part, 0, len(part.tokens))
    except SQLSyntaxError as error:
        raise error.replace(fixes=["drop the model, which is not one that CREATE MODEL made"]) from None
    if plain != text:
        raise SQLSyntaxError.of("a saved expression holds a comment", text, 0)
    return text


def _require_plain(part: StatementTokens, at: int) -> None:
    """Raise where a token makes an expression do more than compute."""
    reader, token = TokenReader(part, at), part.tokens[at]
    called = part.says(at + 1, "(")
    if token.says("SELECT") or (token.says("(") and part.begins_query(at + 1) and not part.says(at + 1, "(")):
        raise reader.wrong(
            "TRANSFORM takes expressions over the columns of a row, not queries; join what is needed in the query"
        )
    if token.kind == "string" and "\\" in part.script[token.start : token.stop]:
        raise reader.wrong("a text in TRANSFORM must hold no backslash, which engines read in different ways")
    if token.kind in ("word", "quoted") and (part.says(at - 1, "AS") or part.says(at - 2, ":", ":")):
        if token.kind == "quoted" or token.text.lower() not in TYPES:
            raise reader.wrong(f"TRANSFORM casts to the engine's own types alone, not to {token.text}")
    elif called and (token.kind == "quoted" or token.kind == "word"):
        if token.kind == "quoted" or not (token.text.lower() in FUNCTIONS or token.says(*_KEYWORDS)):
            shown = part.script[token.start : token.stop]
            reason = f"TRANSFORM takes no function {shown}(…), only those over the values of a row, such as abs, ln, upper or date_trunc"
            raise reader.wrong(f"{reason}; compute it in the query")
    elif token.kind == "word" and at + 1 < len(part.tokens) and part.tokens[at + 1].kind == "string":
        if not token.says(*_BEFORE_TEXT):
            raise reader.wrong(f"TRANSFORM takes no constant of type {token.text}; cast the text: '…'::text")
    elif token.kind == "symbol" and not token.says("(", ")", ",", "[", "]"):
        _require_operator(part, at)


def _require_operator(part: StatementTokens, at: int) -> None:
    """Raise where a sign is part of an operator that is not one of SQL's own."""
    first = at
    while first and part.tokens[first - 1].text in _SIGNS and part.tokens[first - 1].stop == part.tokens[first].start:
        first -= 1
    last = at
    while last + 1 < len(part.tokens) and part.tokens[last + 1].text in _SIGNS:
        if part.tokens[last + 1].start != part.tokens[last].stop:
            break
        last += 1
    signs = part.script[part.tokens[first].start : part.tokens[last].stop]
    if not _OPERATORS.fullmatch(signs):
        what = (
            "names columns without their table, and members by struct_extract"
            if "." in signs
            else "takes SQL's own operators"
        )
        raise TokenReader(part, first).wrong(
            f"TRANSFORM {what}; {signs} is none" if "." not in signs else f"TRANSFORM {what}"
        )
