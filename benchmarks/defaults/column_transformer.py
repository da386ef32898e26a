"""What scikit-learn is given of a table with text, dates and nulls: the ColumnTransformer that a careful user writes.

Numbers: missing ones are the mean, an indicator tells of them, all are scaled. Text: missing is a value, each value is a
feature, one that training rows do not have is none. Dates: elapsed days as a number; month, day of the week and hour as text. Text
that reads as numbers or dates is those; `?` and the empty text are missing; text that names the row is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd

MISSING = ("", "?")
NAMES_ROW = 0.8
"""The share of rows with a text of their own from which on a column names the row."""


@dataclass(frozen=True, slots=True)
class ColumnKinds:
    """What each column of a table holds; others are left out."""

    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    dates: tuple[str, ...]


def find_kinds(data: pa.Table) -> ColumnKinds:
    """Look at the training rows, and say what each column holds."""
    kinds: dict[str, list[str]] = {"number": [], "text": [], "date": []}
    for field in data.schema:
        kind = _kind(data[field.name])
        if kind is not None:
            kinds[kind].append(field.name)
    return ColumnKinds(tuple(kinds["number"]), tuple(kinds["text"]), tuple(kinds["date"]))


def _kind(column: pa.ChunkedArray) -> str | None:
    present = _texts(column).dropna() if _is_text(column.type) else None
    if column.null_count == len(column) or (present is not None and not len(present)):
        return None
    if pa.types.is_temporal(column.type):
        return "date"
    if present is None:
        return "number"
    if _reads_as(present, _to_numbers):
        return "number"
    if _reads_as(present, _to_dates):
        return "date"
    return None if present.nunique() > NAMES_ROW * len(present) else "text"


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)


def _texts(column: pa.ChunkedArray) -> pd.Series:
    """Return text with NaN for what is missing."""
    series = column.to_pandas().astype(object)
    return series.where(series.notna() & ~series.isin(MISSING), np.nan)


def _to_numbers(series: pd.Series) -> pd.Series:
    import pandas as pd

    return pd.to_numeric(series).astype(np.float64)


def _to_dates(series: pd.Series) -> pd.Series:
    import pandas as pd

    return pd.to_datetime(series, format="ISO8601")


def _reads_as(series: pd.Series, read: Callable[[pd.Series], pd.Series]) -> bool:
    try:
        read(series)
    except (ValueError, TypeError):
        return False
    return True


def to_frame(data: pa.Table, kinds: ColumnKinds) -> tuple[pd.DataFrame, list[str], list[str]]:
    """Return a frame of numbers and text, and the names of both; a date gives columns of both."""
    import pandas as pd

    numbers: dict[str, Any] = {}
    texts: dict[str, Any] = {}
    for name in kinds.numbers:
        column = data[name]
        numbers[name] = _to_numbers(_texts(column) if _is_text(column.type) else column.to_pandas().astype(object))
    for name in kinds.texts:
        texts[name] = _texts(data[name])
    for name in kinds.dates:
        column = data[name]
        dates = _to_dates(_texts(column) if _is_text(column.type) else column.to_pandas())
        numbers[f"{name}, days"] = (dates - pd.Timestamp(0)) / pd.Timedelta(days=1)
        for part in ("month", "day_of_week", "hour"):
            values = getattr(dates.dt, part)
            texts[f"{name}, {part}"] = values.astype("Int64").astype(object).where(values.notna(), np.nan).map(_name)
    return pd.DataFrame({**numbers, **texts}), list(numbers), list(texts)


def _name(part: Any) -> Any:
    return part if part != part else str(part)  # NaN stays missing


def careful_features(train: pa.Table, test: pa.Table) -> tuple[Any, Any]:
    """Return the features of the training rows and of the test rows, fitted to the training rows alone."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    kinds = find_kinds(train)
    frame, numbers, texts = to_frame(train, kinds)
    transformer = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), numbers),
            (
                "texts",
                make_pipeline(
                    SimpleImputer(strategy="constant", fill_value="missing"), OneHotEncoder(handle_unknown="ignore")
                ),
                texts,
            ),
        ]
    )
    return transformer.fit_transform(frame), transformer.transform(to_frame(test, kinds)[0])
