"""The functions ``ML.…``: what each takes, and how its settings are read.

``STRUCT(0.6 AS threshold)`` holds settings by name; thresholds of a curve also come as ``GENERATE_ARRAY(first, last, step)``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.errors import line_and_column, nearest
from penstock.messages import Location
from penstock.sql import statements as s
from penstock.sql.token_reader import TokenReader

_MOST_THRESHOLDS = 100_000


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """What a function takes after the model.

    Attributes
    ----------
    make : callable
        Makes the call of the model's name, the query or None, and the settings.
    rows : str
        Whether rows may or must be given: ``none``, ``optional`` or ``required``.
    settings : tuple of str
        The names that may stand in STRUCT.
    thresholds : bool
        Whether an array of thresholds may be given.
    """

    make: Callable[[str, Any, s.StatementOptions], s.Call]
    rows: Literal["none", "optional", "required"] = "none"
    settings: tuple[str, ...] = ()
    thresholds: bool = False


FUNCTIONS = {
    "CONFUSION_MATRIX": FunctionSignature(s.ConfusionMatrix, "optional", ("threshold",)),
    "EVALUATE": FunctionSignature(
        lambda model, query, settings: s.Evaluate(model, query, settings, warehouse=True), "optional", ("threshold",)
    ),
    "EXPLAIN_PREDICT": FunctionSignature(s.ExplainPredict, "required", ("threshold", "top_k_features")),
    "FEATURE_INFO": FunctionSignature(lambda model, query, settings: s.FeatureInfo(model)),
    "PREDICT": FunctionSignature(
        lambda model, query, settings: s.Predict(model, query, warehouse=True, options=settings),
        "required",
        ("threshold",),
    ),
    "ROC_CURVE": FunctionSignature(s.RocCurve, "required", thresholds=True),
    "TRAINING_INFO": FunctionSignature(lambda model, query, settings: s.TrainingInfo(model)),
    "WEIGHTS": FunctionSignature(lambda model, query, settings: s.WeightsOf(model)),
}
"""What there is of ``ML.…``."""


def begins_settings(reader: TokenReader) -> bool:
    """Whether settings, and not rows, come next."""
    token = reader.token
    return token is not None and token.says("STRUCT", "GENERATE_ARRAY", "[")


def read_settings(reader: TokenReader, function: str) -> dict[str, s.StatementOption]:
    """Read ``STRUCT(value AS name, …)``, or the thresholds of a curve."""
    signature = FUNCTIONS[function]
    if not reader.accept("STRUCT"):
        return _thresholds(reader, function)
    reader.expect("(")
    found: dict[str, s.StatementOption] = {}
    while not found or reader.accept(","):
        value = reader.value("a setting")
        reader.expect("AS", expected="AS and the setting's name, such as STRUCT(0.6 AS threshold)")
        at = reader.at
        name = reader.name("a setting's name")
        if name not in signature.settings:
            known = ", ".join(signature.settings) or "none"
            close = nearest(name, signature.settings)
            raise reader.wrong(f"ML.{function} has no setting {name!r}; it has: {known}{close}", at)
        if name in found:
            raise reader.wrong(f"{name} is given twice; leave one out", at)
        found[name] = s.StatementOption(value, reader.part.tokens[at].start, _place(reader, at))
    reader.expect(")", expected=", or ) after the settings")
    return found


def _thresholds(reader: TokenReader, function: str) -> dict[str, s.StatementOption]:
    at = reader.at
    if not FUNCTIONS[function].thresholds:
        raise reader.missing("TABLE t, (SELECT …) or STRUCT(… AS …)")
    spread = reader.accept("GENERATE_ARRAY")
    if spread and not reader.part.says(reader.at, "("):
        raise reader.missing("(first, last, step)")
    values = reader.value("the thresholds")
    listed = values if isinstance(values, list) else [values]
    numbers = [float(each) for each in listed if isinstance(each, int | float) and not isinstance(each, bool)]
    if not numbers or len(numbers) < len(listed):
        raise reader.wrong("thresholds are numbers from 0 to 1, such as [0.25, 0.5]", at)
    if spread:
        numbers = _generated(reader, numbers, at)
    if not all(0 <= each <= 1 for each in numbers):
        raise reader.wrong("thresholds are probabilities, from 0 to 1", at)
    return {"thresholds": s.StatementOption([*numbers], reader.part.tokens[at].start, _place(reader, at))}


def _generated(reader: TokenReader, numbers: list[float], at: int) -> list[float]:
    """Return the numbers from the first to the last that GENERATE_ARRAY gives."""
    first, last, step = (*numbers, 1.0)[:3] if len(numbers) in (2, 3) else (0.0, 0.0, 0.0)
    if step <= 0 or last < first or (last - first) / step > _MOST_THRESHOLDS:
        raise reader.wrong("GENERATE_ARRAY takes (first, last, step) with a step above 0, such as (0, 1, 0.1)", at)
    count = int(np.floor((last - first) / step + 1e-9)) + 1
    return [round(first + step * number, 12) for number in range(count)]


def _place(reader: TokenReader, at: int) -> Location:
    line, column = line_and_column(reader.part.script, reader.part.tokens[at].start)
    return Location(line=line, character=column)
