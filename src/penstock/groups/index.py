"""What the models of a folder have in common, and the tables that tell where each of them is.

A folder of models has one table of all generations of results, or one for each generation while training goes on. The
merged table says how many generations are in it; tables of those are leftovers of a writer that was killed. An `Outcome` is
the result of a group; many become rows of a table and files of weights.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from penstock.batch import Floats
from penstock.checksum import checksum
from penstock.errors import ModelFileError, UsageError
from penstock.groups.keys import Key, key_type, to_columns, to_text
from penstock.outputs import atomic_path
from penstock.sealed import read_note, read_sealed_parquet, seal, write_note
from penstock.sgd.losses import loss_of

FORMAT = "penstock-groups"
VERSION = 2
INDEX, TABLE = "index.json", "groups.parquet"
MEND = "restore the folder from a copy, or train anew"
JUDGED = tuple(f"{who}_{what}" for who in ("held_out", "pooled") for what in ("loss", "accuracy", "r2"))
"""Of the chosen configs, on rows that no choice has seen; by the group's own model and by the pooled one."""
OWN = (
    *("text", "group", "rows", "selection_rows", "held_out_rows", "config", "loss"),
    *("selection_loss", "selection_accuracy", "selection_r2", *JUDGED),
    *("seconds", "epochs", "status", "reason", "traceback", "generation", "place"),
)
"""The table's columns beside the groups' keys and the parameters; a table has the accuracies or the R²."""
_PART = re.compile(r"groups-(\d{5,})\.parquet")


@dataclass(frozen=True, slots=True)
class Index:
    """What the models of a folder have in common.

    Attributes
    ----------
    kind : str
        logistic, svm, linear or softmax; for trees, what they were trained for.
    recipe : dict
        How columns become features, as `Recipe.to_dict` tells it.
    by : tuple of str
        The group columns.
    configs : tuple of dict
        The parameters of each config, by number.
    fixed : dict
        The parameters that all configs share.
    fingerprint : str
        Of the data.
    family : str
        linear, trees or modules.
    layout : sequence
        Of modules: the name, shape and type of each array in a model's row of numbers.
    finished : bool
        Whether training came to its end.
    held_out : dict
        How the chosen models, and the pooled one, did on the held-out rows of all groups together.
    """

    kind: str
    recipe: Mapping[str, Any]
    by: tuple[str, ...]
    configs: tuple[Mapping[str, Any], ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    family: str = "linear"
    layout: Sequence[Any] = ()
    finished: bool = False
    held_out: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str | None:
        """The label column."""
        label: str | None = self.recipe.get("label")
        return label

    @property
    def classes(self) -> list[Any] | None:
        """The classes, in ascending order; None for a regression."""
        labels = self.recipe.get("labels")
        return None if labels is None else list(labels["classes"])

    @property
    def outputs(self) -> int:
        """The scores that a linear model has for a row: one, or for softmax one a class."""
        return loss_of(self.kind).outputs(len(self.classes or ()))

    @property
    def metric(self) -> str:
        """The score there is: the accuracy of classes, the R² of a regression."""
        return "r2" if self.classes is None else "accuracy"

    @property
    def score(self) -> str:
        """The column of the score on held-out rows."""
        return f"held_out_{self.metric}"

    @property
    def selection_score(self) -> str:
        """The column of the score on the rows that configs were compared on."""
        return f"selection_{self.metric}"

    @property
    def columns(self) -> list[str]:
        """The columns of the table, in order."""
        other = "_accuracy" if self.metric == "r2" else "_r2"
        names = [name for name in OWN if not name.endswith(other)]
        at = names.index("config") + 1
        return [*self.key_columns.values(), *names[:at], *self.param_columns.values(), *names[at:]]

    @property
    def key_columns(self) -> dict[str, str]:
        """The name that each group column has in the table: its own, unless the table has one of that name."""
        taken = {*OWN, *self.param_columns.values()}
        names: dict[str, str] = {}
        for column in self.by:
            name = column
            while name in taken:
                name = f"by_{name}"
            taken.add(name)
            names[column] = name
        return names

    @property
    def param_columns(self) -> dict[str, str]:
        """The name that each parameter has in the table."""
        return {name: f"param_{name}" for config in self.configs for name in config}

    def write(self, folder: Path) -> None:
        told = {"format": FORMAT, "version": VERSION} | {f.name: getattr(self, f.name) for f in fields(self)}
        told |= {"label": self.label, "classes": self.classes}
        write_note(folder / INDEX, told)

    @classmethod
    def read(cls, folder: Path) -> Index:
        path = folder / INDEX
        if not path.is_file():
            raise ModelFileError(
                f"there are no models of groups in {folder}: it has no {INDEX}; name the folder they are in"
            )
        try:
            told = read_note(path)
            if told["format"] != FORMAT:
                raise KeyError("format")
            version = int(told["version"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{path} is not an index of models: {error!r}; {MEND}") from error
        if version < VERSION:
            raise ModelFileError(f"{path} was written by an older Penstock (format {version}); train anew")
        if version > VERSION:
            raise ModelFileError(f"{path} was written by a newer Penstock; upgrade with: pip install -U penstock")
        try:
            told |= {"by": tuple(told["by"]), "configs": tuple(told["configs"])}
            return cls(**{f.name: told[f.name] for f in fields(cls) if f.name != "layout" or f.name in told})
        except (KeyError, TypeError) as error:
            raise ModelFileError(f"{path} lacks {error}; {MEND}") from error

    def require_same(self, saved: Index, folder: Path) -> None:
        """Raise `UsageError` unless training that was begun in a folder is this one."""
        for f in sorted(fields(self), key=lambda each: each.name == "recipe"):  # which is fitted to the data
            mine, other = (json.loads(json.dumps(getattr(each, f.name))) for each in (self, saved))
            if f.name not in ("finished", "held_out") and mine != other:
                name = f.name
                if name == "fixed":  # one of many: name that one
                    name = next(key for key in {**mine, **other} if mine.get(key) != other.get(key))
                    mine, other = mine.get(name), other.get(name)
                what = (
                    "the data have changed"
                    if name == "fingerprint"
                    else f"{name} was {_short(other)}, and is now {_short(mine)}"
                )
                raise UsageError(
                    f"{folder} holds models of another training: {what}; go on with the same, or choose another folder"
                )


def part_name(generation: int) -> str:
    """Return the name of the table of a generation."""
    return f"groups-{generation:05d}.parquet"


def parts(folder: Path) -> dict[int, Path]:
    """Return the tables of single generations, in their order."""
    found = {int(match[1]): path for path in folder.iterdir() if (match := _PART.fullmatch(path.name))}
    return dict(sorted(found.items()))


def read_tables(folder: Path) -> tuple[pa.Table | None, int]:
    """Return the rows of all generations, None where there are none, and how many generations are merged."""
    try:
        merged, tables = 0, []
        if (folder / TABLE).exists():
            tables.append(_read(folder / TABLE))
            merged = _generations(tables[0], folder / TABLE)
        tables += [_read(path) for number, path in parts(folder).items() if number >= merged]
    except FileNotFoundError:  # a writer has just merged them
        return read_tables(folder)
    plain = [table.replace_schema_metadata(None) for table in tables]
    for table in plain:
        if table.schema != plain[0].schema:
            raise ModelFileError(f"the tables in {folder} have different columns; {MEND}")
    return (pa.concat_tables(plain) if plain else None), merged


def sort_table(table: pa.Table) -> pa.Table:
    """Return a table by group and config."""
    order = np.lexsort([table["config"].to_numpy(), table["group"].to_numpy()])
    return table.combine_chunks() if (np.diff(order) == 1).all() else table.take(pa.array(order)).combine_chunks()


def write_table(table: pa.Table, path: Path, *, generations: int | None = None) -> None:
    """Write a table of results; a merged one tells how many generations are in it."""
    noted = table if generations is None else table.replace_schema_metadata({"generations": str(generations)})
    with atomic_path(path) as temporary:
        pq.write_table(noted, temporary, write_page_checksum=True)
        seal(temporary)


def _read(path: Path) -> pa.Table:
    try:
        return read_sealed_parquet(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ModelFileError(f"{path} is not a whole table of models: {error}; {MEND}") from error


def _generations(table: pa.Table, path: Path) -> int:
    try:
        return int((table.schema.metadata or {})[b"generations"])
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"{path} does not tell how many generations it holds; {MEND}") from error


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


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
