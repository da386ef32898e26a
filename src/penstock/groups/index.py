"""What the models of a folder have in common, and the tables that tell where each of them is.

A folder of models has one table of all generations of results, or one for each generation while training goes on. The
merged table says how many generations are in it; tables of those are leftovers of a writer that was killed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import ModelFileError, UsageError
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
    encoder : dict
        How columns become features, as `Encoder.to_dict` tells it.
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
    encoder: Mapping[str, Any]
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
        label: str | None = self.encoder.get("label")
        return label

    @property
    def classes(self) -> list[Any] | None:
        """The classes, in ascending order; None for a regression."""
        labels = self.encoder.get("labels")
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
        """Write the index."""
        told = {"format": FORMAT, "version": VERSION} | {f.name: getattr(self, f.name) for f in fields(self)}
        told |= {"label": self.label, "classes": self.classes}
        write_note(folder / INDEX, told)

    @classmethod
    def read(cls, folder: Path) -> Index:
        """Read the index of a folder."""
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
        for f in fields(self):
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
