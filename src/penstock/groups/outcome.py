"""What came of a group, and how the results of many become the rows of a table and files of weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.checksum import checksum
from penstock.errors import UsageError
from penstock.groups.index import JUDGED, Index
from penstock.groups.keys import Key, key_type, to_columns, to_text

STATUSES = ("done", "stopped", "failed")
"""How a config of a group came out: trained, given up by halving, or failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one group: a value for each of its configs.

    Attributes
    ----------
    group, key, rows, selection_rows, held_out_rows
        Its number, its key, its rows, and how many of these are to choose by, and to judge by.
    loss, selection_loss, selection_score : array
        Mean losses in training and on the rows to choose by, and the accuracy or R² there; NaN where there is none.
    seconds : float or array
        One number is the group's, and is shared out evenly among its configs.
    epochs : array of int
        Passes made.
    status, reason : sequence of str
        done, stopped or failed; and why.
    weights : float32 array (features + 1, configs), optional
        The models, the intercept last; a column of NaN is one that is not kept.
    trees : sequence of str or None, optional
        Models of trees as text.
    traceback : str
        Of the exception that ended the training of the group.
    configs : array of int, optional
        The configs' numbers; all of them, from 0, if not given.
    """

    group: int
    key: Key
    rows: int
    selection_rows: int = 0
    held_out_rows: int = 0
    loss: Any
    selection_loss: Any = math.nan
    selection_score: Any = math.nan
    seconds: Any = 0.0
    epochs: Any = 0
    status: Sequence[str] | str = "done"
    reason: Sequence[str] | str = ""
    weights: NDArray[Any] | None = None
    trees: Sequence[str | None] | None = None
    traceback: str = ""
    configs: Any = None

    @classmethod
    def failure(cls, group: int, key: Key, *, rows: int, configs: int, reason: str) -> Outcome:
        """Return what to record of a group that cannot be trained at all, such as one of a single class."""
        return cls(group=group, key=key, rows=rows, loss=np.full(configs, math.nan), status="failed", reason=reason)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The configs' numbers."""
        count = np.size(self.loss)
        return np.arange(count) if self.configs is None else np.asarray(self.configs, np.int64)

    def require(self, index: Index) -> None:
        """Raise `UsageError` unless the values fit together and the configs are those of an index."""
        numbers, place = self.numbers, f"group {to_text(self.key)}"
        if len(self.key) != len(index.by):
            raise UsageError(f"{place} has {len(self.key)} values for {len(index.by)} group columns")
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(index.configs):
            raise UsageError(f"{place} tells of config {numbers.max()}, but there are {len(index.configs)} configs")
        for status in {self.status} if isinstance(self.status, str) else set(self.status):
            if status not in STATUSES:
                raise UsageError(f"{place} has the status {status!r}; choose one of: {', '.join(STATUSES)}")
        if self.weights is not None and (self.weights.ndim != 2 or self.weights.shape[1:] != numbers.shape):
            raise UsageError(f"{place} has weights of shape {self.weights.shape} for {len(numbers)} configs")
        for name in ("selection_loss", "selection_score", "seconds", "epochs", "status", "reason", "trees"):
            values: Any = getattr(self, name)
            if isinstance(values, list | tuple | np.ndarray) and np.size(values) not in (1, len(numbers)):
                raise UsageError(f"{place} has {np.size(values)} values of {name} for {len(numbers)} configs")


def gathered(outcomes: Sequence[Outcome]) -> tuple[Floats, NDArray[np.int64]]:
    """Return the models that are kept, a row each, and for each group × config its row or -1; trees have 0."""
    kept, places, count = [], [], 0
    for outcome in outcomes:
        at = np.full(len(outcome.numbers), -1, np.int64)
        if outcome.weights is not None:
            rows = np.ascontiguousarray(outcome.weights.T, np.float32)
            here = np.flatnonzero(np.isfinite(rows).all(axis=1))
            at[here] = count + np.arange(len(here))
            count += len(here)
            kept.append(rows[here])
        elif outcome.trees is not None:
            at[:] = [-1 if text is None else text_checksum(text) for text in outcome.trees]
        places.append(at)
    weights = np.concatenate(kept) if kept else np.empty((0, 0), np.float32)
    return weights, np.concatenate(places) if places else np.empty(0, np.int64)


def text_checksum(text: str) -> int:
    """Return the checksum of a model that is text, as a place in the table: 63 bits."""
    return checksum(text.encode()) >> 1


def table_of(
    index: Index, keys: pa.Schema, outcomes: Sequence[Outcome], places: NDArray[np.int64], *, generation: int
) -> pa.Table:
    """Return a row for each group × config; ``places`` says where each has its model in the generation's file."""
    counts = [len(outcome.numbers) for outcome in outcomes]
    configs = np.concatenate([np.empty(0, np.int64), *(outcome.numbers for outcome in outcomes)]).astype(np.int32)
    owner = pa.array(np.repeat(np.arange(len(outcomes)), counts))
    kinds = [key_type(keys.field(column).type, column=column) for column in index.by]
    columns = dict(zip(index.key_columns.values(), to_columns([outcome.key for outcome in outcomes], kinds)))
    columns["text"] = pa.array([to_text(outcome.key) for outcome in outcomes], pa.string())
    for name in ("group", "rows", "selection_rows", "held_out_rows"):
        columns[name] = pa.array([getattr(outcome, name) for outcome in outcomes], pa.int64())
    columns["traceback"] = pa.array([outcome.traceback or None for outcome in outcomes], pa.string())
    columns = {name: values.take(owner) for name, values in columns.items()}
    columns["config"] = pa.array(configs)
    for name, column in index.param_columns.items():
        columns[column] = _param([config.get(name) for config in index.configs]).take(pa.array(configs))
    seconds = [np.divide(o.seconds, n) if np.ndim(o.seconds) == 0 else o.seconds for o, n in zip(outcomes, counts)]
    figures: dict[str, list[Any]] = {
        name: [getattr(outcome, name) for outcome in outcomes] for name in ("loss", "selection_loss", "selection_score")
    }
    figures[index.selection_score] = figures.pop("selection_score")
    # What is known once all groups are there: see `penstock.groups.held_out_scores`.
    figures |= {name: [math.nan] * len(outcomes) for name in JUDGED if name in index.columns}
    for name, values in (figures | {"seconds": seconds}).items():
        spread = _spread(values, counts, np.float64)
        columns[name] = pa.array(spread, mask=~np.isfinite(spread))
    columns["epochs"] = pa.array(_spread([outcome.epochs for outcome in outcomes], counts, np.int32))
    for name in ("status", "reason"):
        columns[name] = pa.array(_words([getattr(outcome, name) for outcome in outcomes], counts), pa.string())
    columns["generation"] = pa.array(np.where(places >= 0, generation, -1).astype(np.int32))
    columns["place"] = pa.array(places)
    return pa.table(columns).select(index.columns)


def _param(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # words here and numbers there
        return pa.array([None if value is None else str(value) for value in values])


def _spread(values: Sequence[Any], counts: Sequence[int], kind: Any) -> NDArray[Any]:
    parts = [np.broadcast_to(np.asarray(value, kind), count) for value, count in zip(values, counts)]
    return np.concatenate([np.empty(0, kind), *parts])


def _words(values: Sequence[Any], counts: Sequence[int]) -> list[str]:
    each = ([value] * count if isinstance(value, str) else value for value, count in zip(values, counts))
    return [word for words in each for word in words]
