"""A model per group as one row of the catalogue: all groups' weights in one array, the rest in the header.

One row is written by one statement, so that no group is ever missing. Of each group the chosen model is kept, with the figures of all
that were tried: a table as Parquet, or as lists where PostgreSQL's extension wrote it. Weights are laid out for SQL: a model after another,
the pooled one last; in it an output after another, each its features' weights and then the intercept. The values of keys are texts;
`KeyKind` says what engines compare them as.
"""

from __future__ import annotations

import base64
import datetime
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Literal, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.errors import UsageError
from penstock.groups.index import Index, Outcome, table_of
from penstock.groups.keys import Key, from_columns
from penstock.groups.registry import Registry
from penstock.groups.results import GroupModels
from penstock.groups.tables import figures, lines
from penstock.model import Model

KeyKind = Literal["text", "integer", "boolean", "date", "timestamp", "time", "float"]
"""What a group's value is compared as: text, a double, or else a whole number: of days, or of microseconds."""
KEYS = "keys"
"""The part of the header that has the values of the groups, column by column, in the order of their weights."""

_EPOCH = datetime.datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class GroupKeys:
    """By what rows find their model: the group columns with their kinds, and how many groups have a model."""

    columns: tuple[str, ...]
    kinds: tuple[KeyKind, ...]
    count: int


def key_kind(kind: pa.DataType) -> KeyKind:
    """Return what values of a type are compared as.

    Examples
    --------
    >>> key_kind(pa.string()), key_kind(pa.int16()), key_kind(pa.decimal128(9, 2)), key_kind(pa.timestamp("us"))
    ('text', 'integer', 'float', 'timestamp')
    """
    types = pa.types
    kinds: tuple[tuple[Any, KeyKind], ...] = (
        (types.is_boolean, "boolean"),
        (types.is_integer, "integer"),
        (types.is_floating, "float"),
        (types.is_decimal, "float"),
        (types.is_date, "date"),
        (types.is_timestamp, "timestamp"),
        (types.is_time, "time"),
    )
    return next((name for is_kind, name in kinds if is_kind(kind)), "text")


def key_text(value: Any) -> str | None:
    """Return a group's value as the catalogue has it.

    Examples
    --------
    >>> [key_text(value) for value in ("FR", 3, True, None, 0.5, datetime.date(1970, 1, 3), datetime.time(0, 0, 1))]
    ['FR', '3', '1', None, '0.5', '2', '1000000']
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return str(int(value))
    if isinstance(value, float | Decimal):
        return "NaN" if math.isnan(value) else repr(float(value))
    if isinstance(value, datetime.time):
        value = datetime.datetime.combine(_EPOCH, value)
    if isinstance(value, datetime.datetime):
        plain = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
        return str((plain - _EPOCH) // datetime.timedelta(microseconds=1))
    return str((value - _EPOCH.date()).days)


def is_linear(model: Model) -> TypeGuard[GroupModels]:
    """Whether a model is one per group, of weights alone."""
    return isinstance(model, GroupModels) and model.registry.index.family == "linear"


def group_header(result: GroupModels) -> tuple[dict[str, Any], Floats]:
    """Return the header and the weights of a row of the catalogue."""
    index, chosen = result.registry.index, result.chosen_rows
    if not len(chosen):
        reasons = [reason for reason in result.frame["reason"].to_pylist() if reason]
        raise UsageError("no group has a model", fixes=[f"the first reason: {reasons[0]}"] if reasons else [])
    columns = [result.chosen[index.key_columns[name]] for name in index.by]
    keys = [tuple(map(key_text, key)) for key in from_columns(columns)]
    if len(set(keys)) < len(keys):
        raise UsageError(
            "two groups have keys that the database cannot tell apart; round the columns of GROUP BY, or cast them to text"
        )
    told = {"index": asdict(replace(index, finished=True)), "table": _packed(result, chosen)}
    pooled, weights = result.pooled, result.registry.gather(chosen)
    groups: dict[str, Any] = {
        "by": list(index.by),
        "kinds": list(group_keys(result).kinds),
        KEYS: [list(column) for column in zip(*keys, strict=True)],
        "count": len(chosen),
        "unseen": result.unseen,
        **told,
    }
    if pooled is not None and len(pooled.chosen_rows):
        weights = np.concatenate([weights, pooled.registry.gather(pooled.chosen_rows)])
        groups["pooled"] = {"index": asdict(pooled.registry.index), "table": _packed(pooled, pooled.chosen_rows)}
    summary = figures(result)
    header = {
        "kind": index.kind,
        "encoder": result.recipe.to_dict(),
        "config": dict(result.config),
        "metrics": dict(index.held_out),
        "history": [{"rows": summary["rows"]}],
        "lines": list(lines(summary)),
        "groups": groups,
    }
    return header, _by_output(weights, index.outputs)


def groups_of_row(header: Mapping[str, Any], weights: Floats, *, place: str) -> GroupModels:
    """Return the models of a row that `group_header` made."""
    groups = header["groups"]
    index = _index(groups["index"])
    both = groups.get("pooled")
    rows = _by_feature(weights.reshape(groups["count"] + (both is not None), -1), index.outputs)
    pooled = None
    if both is not None:
        other = _index(both["index"])
        pooled = GroupModels(
            Registry.in_memory(other, _table(other, (), both["table"]), rows[groups["count"] :], place=place)
        )
    table = _table(index, groups["kinds"], groups["table"])
    registry = Registry.in_memory(index, table, rows[: groups["count"]], place=place)
    return GroupModels(registry, unseen=groups["unseen"], pooled=pooled)


def group_keys(result: GroupModels) -> GroupKeys:
    """Return by what rows find their model."""
    names = result.registry.index.key_columns
    kinds = [key_kind(result.frame.schema.field(names[column]).type) for column in result.by]
    return GroupKeys(tuple(result.by), tuple(kinds), len(result.chosen_rows))


def _index(told: Mapping[str, Any]) -> Index:
    return Index(**{**told, "by": tuple(told["by"]), "configs": tuple(told["configs"])})


def _packed(result: GroupModels, chosen: Any) -> str:
    """Return a table of results as text: Parquet, with the places of the chosen models and of no others."""
    table = result.registry.table
    places = np.full(len(table), -1)
    places[chosen] = np.arange(len(chosen))
    columns = {
        "generation": pa.array(np.where(places >= 0, 0, -1).astype(np.int32)),
        "place": pa.array(places),
        "traceback": pa.nulls(len(table), pa.string()),
    }
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(None), sink, compression="zstd")
    return base64.b64encode(sink.getvalue()).decode()


def _table(index: Index, kinds: Sequence[KeyKind], stored: Any) -> pa.Table:
    """Return a table of results: of Parquet as text, or of lists, an item for each group."""
    if isinstance(stored, str):
        return pq.read_table(io.BytesIO(base64.b64decode(stored)))
    count = len(stored["rows"])
    readers = [_VALUES[kind] for kind in kinds]
    columns = [
        [None if text is None else read(text) for text in column]
        for (read, _), column in zip(readers, stored["keys"], strict=True)
    ]
    keys: list[Key] = list(zip(*columns, strict=True)) if columns else [()] * count
    configs = len(index.configs)
    outcomes, places, judged = [], [], np.full((len(_JUDGED), count, configs), np.nan)
    models = 0
    for group, key in enumerate(keys):
        told = {name: stored[name][group] for name in (*_COUNTS, *_FIGURES, "epochs", "config", "reason")}
        figures: dict[str, Any] = {name: _numbers(told[name], configs) for name in _FIGURES}
        place = np.full(configs, -1)
        if told["config"] is not None:
            place[told["config"]], models = models, models + 1
            judged[:, group, told["config"]] = _numbers([stored[name][group] for name in _JUDGED], len(_JUDGED))
        places.append(place)
        outcomes.append(
            Outcome(
                group=group,
                key=key,
                epochs=told["epochs"] or 0,
                status=["done" if math.isfinite(loss) else "failed" for loss in figures["loss"]],
                reason=told["reason"] or "",
                **{name: told[name] for name in _COUNTS},
                **figures,
            )
        )
    schema = pa.schema([(name, kind) for name, (_, kind) in zip(index.by, readers, strict=True)])
    table = table_of(index, schema, outcomes, np.concatenate(places), generation=0)
    for name, values in zip(_JUDGED, judged.reshape(len(_JUDGED), -1), strict=True):
        column = name.replace("score", index.metric)
        table = table.set_column(table.column_names.index(column), column, pa.array(values, mask=np.isnan(values)))
    return table


_COUNTS = ("rows", "selection_rows", "held_out_rows")
_FIGURES = ("loss", "selection_loss", "selection_score")
_JUDGED = ("held_out_loss", "held_out_score", "pooled_loss", "pooled_score")
_VALUES: Mapping[str, tuple[Callable[[str], Any], pa.DataType]] = {
    "text": (str, pa.string()),
    "integer": (int, pa.int64()),
    "boolean": (lambda text: text == "1", pa.bool_()),
    "float": (float, pa.float64()),
    "date": (lambda text: _EPOCH.date() + datetime.timedelta(days=int(text)), pa.date32()),
    "timestamp": (lambda text: _EPOCH + datetime.timedelta(microseconds=int(text)), pa.timestamp("us")),
    "time": (lambda text: (_EPOCH + datetime.timedelta(microseconds=int(text))).time(), pa.time64("us")),
}
"""How the texts of keys are read, and the types that they have then; what `key_text` wrote."""


def _numbers(values: Sequence[float | None] | None, count: int) -> NDArray[np.float64]:
    """Return figures with NaN for those that are missing."""
    return np.array([None] * count if values is None else values, np.float64)


def _by_output(weights: Floats, outputs: int) -> Floats:
    """Return models, rows of the registry, as SQL wants them: an output after another."""
    return np.ascontiguousarray(weights.reshape(len(weights), -1, outputs).transpose(0, 2, 1)).reshape(len(weights), -1)


def _by_feature(weights: Floats, outputs: int) -> Floats:
    """Return what `_by_output` was given."""
    return np.ascontiguousarray(weights.reshape(len(weights), outputs, -1).transpose(0, 2, 1)).reshape(len(weights), -1)
