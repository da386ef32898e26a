"""The models of thousands of groups in one folder: an index, a table of results, and files of many models each.

    index.json                  what was trained on what: kind, recipe, group columns, configs, fingerprint
    groups.parquet              a row for each group × config: size, metrics, status, where its model is
    groups-00007.parquet        rows of a generation not merged yet, written while training goes on
    weights-00007.safetensors   the linear models of a generation: float32 rows, the intercept last, each weight once a class
    trees/…                     models of trees as the text that LightGBM reads
    refit/                      the same again, of each group's chosen config, trained on all of its rows
    pooled/                     the same again, of one model for the rows of all groups

A generation is there once its table is, which is renamed into place last: after kill -9 the folder holds all that was
committed. One writer at a time. Weights are verified and mapped when first asked for; nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.closing import Closing
from penstock.errors import ModelFileError, UsageError
from penstock.groups.index import (
    INDEX,
    MEND,
    TABLE,
    Index,
    Outcome,
    gathered,
    part_name,
    parts,
    read_tables,
    sort_table,
    table_of,
    text_checksum,
    write_table,
)
from penstock.groups.keys import to_text
from penstock.lock import locked
from penstock.messages import Text, Use
from penstock.modelfile import verify, write_model
from penstock.outputs import atomic_path, remove_stale
from penstock.sgd.losses import loss_of

__all__ = ["Index", "Outcome", "Registry", "Writer", "by_model"]

POOLED, REFIT = "pooled", "refit"
"""The folders of the model that was trained on the rows of all groups, and of the chosen configs, trained on all rows."""
COMMIT = 64 << 20
"""Bytes of weights that are written without waiting for `Writer.commit`."""


class Writer(Closing):
    """Writes models as they are trained.

    Parameters
    ----------
    folder : path
        Made if need be, and held against other writers.
    index : Index
        What is trained.
    keys : pyarrow.Schema
        The group columns with their types.
    resume : bool
        Go on with what is there, if anything is; otherwise a folder that holds models is refused.

    Attributes
    ----------
    finished : set of int
        The groups that are in the folder.

    Examples
    --------
    >>> import tempfile
    >>> index = Index("linear", {"parts": []}, ("country",), ({"l2": 0.1}, {"l2": 0.0}))
    >>> folder = tempfile.mkdtemp()
    >>> with Writer(folder, index, keys=pa.schema({"country": pa.string()})) as writer:
    ...     weights = np.ones((3, 2), np.float32)
    ...     writer.add([Outcome(group=0, key=("FR",), rows=10, loss=[0.5, 0.4], weights=weights)])
    ...     writer.finish()
    >>> Registry.open(folder).table.select(["country", "rows", "config", "param_l2", "loss"]).to_pylist()[1]
    {'country': 'FR', 'rows': 10, 'config': 1, 'param_l2': 0.0, 'loss': 0.4}
    """

    def __init__(self, folder: str | os.PathLike[str], index: Index, *, keys: pa.Schema, resume: bool = False) -> None:
        self.folder = Path(folder)
        self.index = index
        self.keys = keys
        self._waiting: list[Outcome] = []
        self._bytes = self._width = 0
        with ExitStack() as stack:
            stack.enter_context(locked(self.folder, marks=(INDEX,)))
            self.finished = self._begin(resume)
            self._held = stack.pop_all()

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Take in results; they are safe after `commit`, which happens by itself when many are waiting."""
        for outcome in outcomes:
            self._check(outcome)
            self._waiting.append(outcome)
            self.finished.add(outcome.group)
            self._bytes += 0 if outcome.weights is None else 4 * outcome.weights.size
            if self._bytes >= COMMIT:
                self.commit()

    def commit(self) -> None:
        """Write what was added as a generation of its own."""
        if not self._waiting:
            return
        number = self._generation
        weights, places = gathered(self._waiting)
        if len(weights):
            write_model(self.folder / _weights_name(number), {"weights": weights}, {"family": self.index.family})
        self._write_trees()
        table = table_of(self.index, self.keys, self._waiting, places, generation=number)
        write_table(table, self.folder / part_name(number))
        self._generation += 1
        self._waiting, self._bytes = [], 0

    def merge(self) -> None:
        """Commit, and merge the tables into one."""
        self.commit()
        table, _ = read_tables(self.folder)
        if table is None:
            table = table_of(self.index, self.keys, [], np.empty(0, np.int64), generation=0)
        write_table(sort_table(table), self.folder / TABLE, generations=self._generation)
        for path in parts(self.folder).values():
            path.unlink()

    def finish(
        self, columns: Mapping[str, NDArray[np.float64]] | None = None, held_out: Mapping[str, Any] | None = None
    ) -> None:
        """Merge the tables, and say in the index that training came to its end.

        Parameters
        ----------
        columns : dict, optional
            Of the table in its order, by group and config: how the models did on held-out rows.
        held_out : dict, optional
            The same of all groups together, for the index.
        """
        self.merge()
        if columns:
            table, merged = read_tables(self.folder)
            assert table is not None
            for name, values in columns.items():
                place = table.column_names.index(name)
                table = table.set_column(place, name, pa.array(values, mask=~np.isfinite(values)))
            write_table(table, self.folder / TABLE, generations=merged)
        replace(self.index, finished=True, held_out=dict(held_out or {})).write(self.folder)

    def close(self) -> None:
        """Let go of the folder; what was added and not committed is given up."""
        self._waiting = []
        self._held.close()

    def _begin(self, resume: bool) -> set[int]:
        if (self.folder / INDEX).exists():
            saved = Index.read(self.folder)
            if not resume:
                raise UsageError(
                    f"{self.folder} holds models already",
                    fixes=[Text("go on with ", Use("resume", True)), "choose another folder"],
                )
            self.index.require_same(saved, self.folder)
        elif parts(self.folder) or (self.folder / TABLE).exists():
            raise ModelFileError(f"{self.folder} holds tables of models but no {INDEX}; {MEND} in another folder")
        for folder in [self.folder, *self.folder.glob("trees/*/")]:
            remove_stale(folder)
        replace(self.index, finished=False).write(self.folder)
        table, merged = read_tables(self.folder)
        there = parts(self.folder)
        for number, path in there.items():
            if number < merged:  # of one that was killed while it merged them
                path.unlink()
        self._generation = max([merged, *(number + 1 for number in there)])
        return set() if table is None else set(table["group"].to_pylist())

    def _check(self, outcome: Outcome) -> None:
        outcome.require(self.index)
        place = f"group {to_text(outcome.key)}"
        if outcome.group in self.finished:
            raise UsageError(
                f"{place} is in {self.folder} already; a group's results are added once, all configs together"
            )
        if outcome.weights is not None:
            width = len(outcome.weights)
            self._width = self._width or width
            if width != self._width:
                raise UsageError(f"{place} has {width} weights a model, the others have {self._width}")

    def _write_trees(self) -> None:
        for outcome in self._waiting:
            for config, text in zip(outcome.numbers, outcome.trees or ()):
                if text is not None:
                    path = self.folder / _tree_name(outcome.group, int(config))
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with atomic_path(path, sweep=False) as temporary:
                        temporary.write_bytes(text.encode())


class Registry:
    """The models of a folder, to read.

    Attributes
    ----------
    folder : Path
        Where they are.
    index : Index
        What they have in common.
    table : pyarrow.Table
        A row for each group × config, by group and config.
    refit : Registry, optional
        The chosen configs, trained on all rows of their groups: these models are given out for theirs.
    """

    def __init__(self, folder: Path, index: Index, table: pa.Table, *, refit: Registry | None = None) -> None:
        self.folder, self.index, self.table, self.refit = folder, index, table, refit
        self._refits = np.full(len(table), -1) if refit is None else _places(table, refit)
        self._maps: dict[int, Floats] = {}
        self._held: Floats | None = None
        self._lock = threading.Lock()
        self._generations = table["generation"].to_numpy()
        self._places = table["place"].to_numpy()

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, refit: bool = True) -> Registry:
        """Open a folder, whether its training is finished or not; no weights are read.

        Without ``refit`` models are those that the figures are of, which have not learned from the rows held out.

        Raises
        ------
        ModelFileError
            There are no models, or a file is damaged; it is named.
        """
        place = Path(folder)
        index = Index.read(place)
        table, _ = read_tables(place)
        if table is None:
            raise ModelFileError(
                f"{place} holds no finished group yet", fixes=[Text("go on with its training: ", Use("resume", True))]
            )
        missing = [name for name in index.columns if name not in table.column_names]
        if missing:
            raise ModelFileError(f"the tables in {place} lack {', '.join(missing)}; {MEND}")
        again = place / REFIT
        there = refit and (again / INDEX).is_file() and read_tables(again)[0] is not None
        return cls(place, index, sort_table(table), refit=cls.open(again, refit=False) if there else None)

    @classmethod
    def in_memory(cls, index: Index, table: pa.Table, weights: Floats, *, place: str) -> Registry:
        """Return models that lie in no folder: the rows of ``weights`` are the places in the table; ``place`` is for messages."""
        registry = cls(Path(place), index, table)
        registry._held = weights
        return registry

    @property
    def held(self) -> bool:
        """Whether the models are in memory, and not in the folder."""
        return self._held is not None

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write models that are in memory as a folder; it is one once the index is there, which comes last."""
        assert self._held is not None
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_model(path / _weights_name(0), {"weights": self._held}, {"family": self.index.family})
        write_table(self.table, path / TABLE, generations=1)
        self.index.write(path)

    def has_model(self) -> NDArray[np.bool_]:
        """Say of which rows of the table there is a model."""
        there: NDArray[np.bool_] = self._generations >= 0
        return there

    @property
    def refitted(self) -> NDArray[np.bool_]:
        """The rows of the table whose model has learned from all rows of its group."""
        there: NDArray[np.bool_] = self._refits >= 0
        return there

    def weights(self, row: int) -> Floats:
        """Return the weights of the model of a row of the table, the intercept last, as a view of its file."""
        if self.refit is not None and self._refits[row] >= 0:
            return self.refit.weights(int(self._refits[row]))
        at = self._at(row)
        weights: Floats = self._map(int(self._generations[row]))[at]
        return weights

    def gather(self, rows: NDArray[np.int64]) -> Floats:
        """Return the weights of several rows' models, a row each."""
        width = len(self.weights(int(rows[0]))) if len(rows) else 0
        out = np.empty((len(rows), width), np.float32)
        for weights, here, places in self._by_file(rows):
            out[here] = weights[places]
        return out

    def pick(self, rows: NDArray[np.int64], features: NDArray[Any]) -> Floats:
        """Return one weight of the model of each of several rows, reading no more of their files than that."""
        out = np.empty(len(rows), np.float32)
        for weights, here, places in self._by_file(rows):
            out[here] = weights[places, features[here]]
        return out

    def trees(self, row: int) -> str:
        if self.refit is not None and self._refits[row] >= 0:
            return self.refit.trees(int(self._refits[row]))
        group, config = (self.table[name][row].as_py() for name in ("group", "config"))
        path = self.folder / _tree_name(group, config)
        try:
            text = path.read_bytes().decode()
            if self._places[row] not in (0, text_checksum(text)):  # 0 in folders of an earlier version
                raise ValueError("its checksum is not that of its content")
        except (OSError, ValueError) as error:
            raise ModelFileError(f"cannot read the model {path}: {error}; {MEND}") from error
        return text

    def files(self) -> list[Path]:
        """Return every file that belongs to the models, the index last."""
        weights = sorted({_weights_name(int(g)) for g in self._generations[self.has_model()]})
        found = [self.folder / name for name in weights if self.index.family != "trees"]
        found += sorted(self.folder.glob("timeline-*.parquet"))
        found += sorted((self.folder / "trees").rglob("*.txt"))
        found += [path for path in [self.folder / TABLE] if path.exists()]
        if self.refit is not None:
            found = [*self.refit.files(), *found]
        if (self.folder / POOLED / INDEX).exists():
            found = [*Registry.open(self.folder / POOLED).files(), *found]
        return [*found, *parts(self.folder).values(), self.folder / INDEX]

    def close(self) -> None:
        """Let go of the files of weights; they are mapped again when they are needed."""
        with self._lock:
            self._maps.clear()

    def _at(self, row: int) -> int:
        generation, at = int(self._generations[row]), int(self._places[row])
        if generation < 0:
            group, config = self.table["text"][row].as_py(), self.table["config"][row].as_py()
            raise ModelFileError(f"no model is kept of config {config} of group {group}; only its figures are")
        if not 0 <= at < len(self._map(generation)):
            path = self.folder / _weights_name(generation)
            raise ModelFileError(f"{path} has {len(self._map(generation))} models, and none at {at}; {MEND}")
        return at

    def _by_file(self, rows: NDArray[np.int64]) -> Iterator[tuple[Floats, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield each file's weights, which of the rows have their models there, and where in it these are."""
        own = np.arange(len(rows))
        if self.refit is not None:
            other = np.flatnonzero(self._refits[rows] >= 0)
            for weights, here, at in self.refit._by_file(self._refits[rows[other]]):
                yield weights, other[here], at
            own = np.flatnonzero(self._refits[rows] < 0)
        generations, places = self._generations[rows], self._places[rows]
        for generation in np.unique(generations[own]):
            here = own[generations[own] == generation]
            self._at(int(rows[here[np.argmax(places[here])]]))  # the last of them is there, then all are
            yield self._map(int(generation)), here, places[here]

    def _map(self, generation: int) -> Floats:
        if self._held is not None:
            return self._held
        with self._lock:
            if generation not in self._maps:
                self._maps[generation] = _mapped(self.folder / _weights_name(generation))
            return self._maps[generation]


def _places(table: pa.Table, refit: Registry) -> NDArray[np.int64]:
    """Return for each row of a table the row of the same group and config in a refit's, -1 where that has no model."""
    configs = len(refit.index.configs)
    own, others = (each["group"].to_numpy() * configs + each["config"].to_numpy() for each in (table, refit.table))
    there = np.flatnonzero(refit.has_model() & np.isin(others, own))
    places = np.full(len(table), -1)
    places[np.searchsorted(own, others[there])] = there
    return places


def _weights_name(generation: int) -> str:
    return f"weights-{generation:05d}.safetensors"


def _tree_name(group: int, config: int) -> str:
    return f"trees/{group // 1000:05d}/{group:08d}-{config:05d}.txt"


def _mapped(path: Path) -> Floats:
    """Map the one tensor of a file of weights."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= size - 8:
                raise ValueError(f"it has {size} bytes")
            told = json.loads(file.read(length))["weights"]
        (rows, width), (first, last) = told["shape"], told["data_offsets"]
        if told["dtype"] != "F32" or last - first != 4 * rows * width or 8 + length + last != size:
            raise ValueError(f"it has {size} bytes where {8 + length + last} should be")
        verify(path)
        mapped: Floats = np.memmap(path, np.float32, mode="r", offset=8 + length + first, shape=(rows, width))
        return mapped.view(np.ndarray)  # slices of a memmap are slow
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path} is not a whole file of weights: {error}; {MEND}") from error


def by_model(index: Index, batch: Batch, models: NDArray[np.int64], score: Callable[[int, Batch], Floats]) -> Floats:
    """Return the scores of each row by the model at its row of the table; zero where there is none."""
    shape = (len(batch), index.outputs) if loss_of(index.kind).many else (len(batch),)
    out = np.zeros(shape, np.float32)
    order = np.argsort(models, kind="stable")
    known, firsts = np.unique(models[order], return_index=True)
    for model, here in zip(known.tolist(), np.split(order, firsts[1:])):
        if model >= 0:
            out[here] = score(model, batch if len(known) == 1 else batch.take(here))
    return out
