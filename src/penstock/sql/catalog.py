"""Models in the database they were trained on: one row each of the table ``penstock.models``.

They are read and written in the session's transaction where one is open, so that a rollback takes back what was done to models, and
otherwise committed at once. `penstock.sql.model_versions` says which rows are versions of which model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from penstock.errors import DataError, ModelFileError, UsageError, nearest
from penstock.linear import LinearModel
from penstock.metric_names import headline, learned_rows
from penstock.model import Model
from penstock.sql.catalog_table import START, CatalogTable, overtaken
from penstock.sql.engines.base import CatalogRun, Engine
from penstock.sql.model_versions import (
    ModelOrigin,
    ModelVersion,
    header_of_version,
    next_number,
    number_of_header,
    origin_of_header,
    require_name,
    split_version,
    the_version,
    version_name,
    versions_of_rows,
)
from penstock.sql.module_code import NamedModules
from penstock.sql.prediction_query import StoredModel
from penstock.sql.statements import Exists
from penstock.sql.stored_files import SAVED, Keeping, SavedModels, directory_of
from penstock.sql.stored_models import FILES_FORMAT, header_of_row, model_of_row, row_of_model

_WRITTEN = ("name", "kind", "outputs", "width", "coef", "intercept", "header", "format", "penstock_version")
_ALL = "SELECT, INSERT, UPDATE, DELETE"
_UNKNOWN = ModelOrigin()


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in the catalogue, without its weights.

    ``groups`` is how many groups have a model of their own, ``rows`` from how many rows the finished model has learned, ``score`` the finished model's accuracy or R² (on rows held out, else on a sample
    of its training rows); None where the model does not say. ``version`` is the number that its row has.
    """

    name: str
    version: int | None
    kind: str
    label: str | None
    features: int | None
    groups: int | None
    rows: int | None
    score: float | None
    created_at: datetime
    origin: ModelOrigin = _UNKNOWN


class Catalog:
    """The models of a database.

    Parameters
    ----------
    engine : Engine
        The database. Nothing is made in it before the first model is saved.
    modules : iterable of str
        The code that torch modules may run, as ``package:name``.
    """

    def __init__(self, engine: Engine, *, modules: Iterable[str] = ()) -> None:
        self._engine = engine
        self._place = engine.place
        self._models = engine.models
        self._rows = CatalogTable(engine)
        self.table = engine.models.name
        self._saved = SavedModels(NamedModules(modules))

    def save(
        self,
        name: str,
        model: Model,
        *,
        exists: Exists = "error",
        origin: ModelOrigin = _UNKNOWN,
        keeping: Keeping | None = None,
    ) -> bool:
        """Write a model under a name; return whether it was written, which ``skip`` leaves undone where one is there.

        With ``replace`` the model that is there stays, as an earlier version.
        """
        require_name(name)
        if keeping is not None and "module" in keeping.options:  # code that the session has just run
            self._saved.modules.allow(keeping.options["module"])
        title, most = self._engine.dialect.title, self._models.most_weights
        values = row_of_model(name, model, keeping=keeping, most_weights=most, engine=title)
        content = values[_WRITTEN.index("header")]
        origin = replace(origin, owner=origin.owner or self._engine.user())

        types = {"coef": self._models.weights_type, "header": self._models.header_type}
        types["intercept"] = types["coef"]
        places = (
            f"CAST(${place} AS {types[column]})" if column in types else f"${place}"
            for place, column in enumerate(_WRITTEN, 1)
        )
        insertion = f"INSERT INTO {self.table} ({', '.join(_WRITTEN)}) VALUES ({', '.join(places)})"
        insertion += " ON CONFLICT (name) DO NOTHING RETURNING name"

        def write(run: CatalogRun) -> bool:
            rows = self._rows.version_rows(run, name)
            versions = versions_of_rows(name, rows)
            current = next((version for version in versions if version.is_default), None)
            if current is not None:
                if exists != "replace":
                    return False
                self._rows.move(run, current, version_name(name, current.number))
            number = next_number(versions, [row[0] for row in rows])
            header = header_of_version(content, {"number": number, **asdict(origin)})
            given = [header if column == "header" else value for column, value in zip(_WRITTEN, values, strict=True)]
            written = bool(run(insertion, given))
            if not written and exists == "replace":
                raise overtaken(name)
            return written

        written = self._rows.do(write, _ALL)
        if written is None:
            self._rows.create()
            written = self._rows.do(write, _ALL)
        if not written and exists == "error":
            raise DataError(
                f"there is a model {name!r} in {self._place} already; take another name, drop it (DROP MODEL), or"
                " replace it (CREATE OR REPLACE MODEL)"
            )
        return bool(written)

    def require_writable(self) -> None:
        """Raise where no model could be saved: better before a training than after it."""
        self._rows.create()
        columns = ", ".join(_WRITTEN)
        text = f"INSERT INTO {self.table} ({columns}) SELECT {columns} FROM {self.table} WHERE false"
        self._rows.do(lambda run: run(text), "INSERT, UPDATE")

    def load(self, name: str) -> Model:
        """Read a model, to be closed afterwards; its files are there until the catalogue is closed."""
        return self.find(name)[0]

    def load_linear(self, name: str, what: str) -> LinearModel:
        """Read a model that is one linear model, as other kinds have nothing that ``what`` could tell."""
        model = self.load(name)
        if isinstance(model, LinearModel):
            return model
        with model:
            if model.by:
                raise UsageError(
                    f"{what} is of one model, and {name!r} is a model per group of {', '.join(model.by)}; SHOW MODEL {name}"
                    f" lists them, and DESCRIBE MODEL {name} FOR (…) describes one"
                )
            raise UsageError(
                f"{what} is of linear models in a row of the catalogue, and {name!r} is a {model.word} model; DESCRIBE MODEL"
                f" {name} says what is known of it"
            )

    def find(self, name: str) -> tuple[Model, StoredModel]:
        """Read a model; return it and where it is, for `select_predictions` to refer to."""
        columns = f"name, {START}, {self._models.created}, format, kind, outputs, width, coef, intercept"
        text = f"SELECT {columns}, CAST(header AS text), penstock_version FROM {self.table} WHERE name = $1"
        found = self._rows.read(text, [name]) or self._rows.read(text, [self._row_of_version(name)])
        if not found:
            raise self._missing(name)
        row, start, made, *values = found[0]
        model = model_of_row(values, saved=self._saved, place=f"model {name!r} in {self._place}")
        number = number_of_header(start)
        later = None if number is None or split_version(row)[1] == number else version_name(row, number)
        return model, StoredModel(self.table, row, int(made), later=later)

    def directory(self, name: str) -> str | None:
        """Return the directory that a model lies in; None of models that are in the database, all of them."""
        text = f"SELECT CAST(header AS text), format FROM {self.table} WHERE name = $1"
        found = self._rows.read(text, [name]) or self._rows.read(text, [self._row_of_version(name)])
        kept = [header for header, version in found if version == FILES_FORMAT]
        return directory_of(header_of_row(kept[0])) if kept else None

    def close(self) -> None:
        """Remove what was unpacked of models; those that were read are of no more use."""
        self._saved.close()

    def drop(self, name: str, *, missing: Literal["error", "skip"] = "error") -> bool:
        """Remove a model with all of its versions, or one version of it; return whether it was there."""
        base, number = split_version(name)

        def remove(run: CatalogRun) -> bool:
            versions = versions_of_rows(name, self._rows.version_rows(run, name))
            if any(version.is_default for version in versions):
                return self._rows.delete(run, [version.row for version in versions])
            versions = versions_of_rows(base, self._rows.version_rows(run, base))
            dropped = next((version for version in versions if version.number == number), None)
            if dropped is None or number is None:
                return self._rows.delete(run, [name])  # called so before there were versions
            kept = [version for version in versions if version is not dropped]
            if dropped.is_default and kept:
                raise UsageError(
                    f"version {number} is the default one of model {base!r}; choose another first: ALTER MODEL {base} SET DEFAULT"
                    f" VERSION {kept[-1].number}; or drop all versions: DROP MODEL {base}"
                )
            if kept and dropped.last > max(version.last for version in kept):  # its number is not given again
                current = next(version for version in kept if version.is_default)
                self._rows.move(run, current, base, last=dropped.last)
            return self._rows.delete(run, [dropped.row])

        dropped = bool(self._rows.do(remove, _ALL))
        if not dropped and missing == "error":
            raise self._missing(name)
        return dropped

    def versions(self, name: str) -> list[tuple[ModelVersion, Entry]]:
        """Return a model's versions, without their weights."""
        found = versions_of_rows(name, self._rows.do(lambda run: self._rows.version_rows(run, name), "SELECT") or [])
        if not any(version.is_default for version in found):
            raise self._missing(name)
        rows = ", ".join(f"${place}" for place in range(1, len(found) + 1))
        entries = {
            entry.name: entry for entry in self._entries(f"WHERE name IN ({rows})", [each.row for each in found])
        }
        return [(version, entries[version.row]) for version in found if version.row in entries]

    def set_default(self, name: str, number: int) -> None:
        """Make a version the one that a model's name stands for."""

        def change(run: CatalogRun) -> bool:
            versions = versions_of_rows(name, self._rows.version_rows(run, name))
            current = next((version for version in versions if version.is_default), None)
            if current is None:
                return False
            wanted = the_version(versions, name, number)
            if wanted is not current:
                self._rows.move(run, current, version_name(name, current.number))
                self._rows.move(run, wanted, name)
            return True

        if not self._rows.do(change, _ALL):
            raise self._missing(name)

    def rename(self, name: str, new: str) -> None:
        """Call a model by another name, with all of its versions."""
        require_name(new)

        def change(run: CatalogRun) -> bool:
            versions = versions_of_rows(name, self._rows.version_rows(run, name))
            if not any(version.is_default for version in versions):
                return False
            if taken := self._rows.version_rows(run, new):
                raise DataError(
                    f"there is a model {taken[0][0]!r} in {self._place} already; take another name or drop it"
                )
            for version in versions:
                self._rows.move(run, version, new if version.is_default else version_name(new, version.number))
            return True

        if not self._rows.do(change, _ALL):
            raise self._missing(name)

    def entries(self) -> list[Entry]:
        """Return what models there are, by name, their default versions; weights are not read."""
        entries = ((entry, split_version(entry.name)[1]) for entry in self._entries())
        return [entry for entry, number in entries if number is None or number != entry.version]

    def __contains__(self, name: object) -> bool:
        text = f"SELECT name FROM {self.table} WHERE name = $1"
        return bool(self._rows.read(text, [name]) or self._rows.read(text, [self._row_of_version(str(name))]))

    def free_name(self, stem: str) -> str:
        """Return a name that no model has: the stem, or the stem and a number.

        Examples
        --------
        Beside ``t_svm`` and ``t_svm_2``, the stem ``t_svm`` gives ``t_svm_3``.
        """
        taken = set(self._names())
        names = (stem if number == 1 else f"{stem}_{number}" for number in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    def _entries(self, where: str = "", values: Sequence[Any] = ()) -> list[Entry]:
        columns = f"name, {START}, kind, width, CAST(header AS text), {self._models.created}"
        return [
            _entry(*row) for row in self._rows.read(f"SELECT {columns} FROM {self.table} {where} ORDER BY name", values)
        ]

    def _row_of_version(self, name: str) -> str:
        """Return the name of the row that has a version by its name, which is not in a row of that name."""
        base, number = split_version(name)
        rows = None if number is None else self._rows.do(lambda run: self._rows.version_rows(run, base), "SELECT")
        versions = versions_of_rows(base, rows or [])
        return next((version.row for version in versions if version.number == number), name)

    def _names(self) -> list[str]:
        return [row[0] for row in self._rows.read(f"SELECT name FROM {self.table}")]

    def _missing(self, name: str) -> ModelFileError:
        there = nearest(name, self._names())
        return ModelFileError(f"there is no model {name!r} in {self._place}{there}; SHOW MODELS lists them")


def _entry(name: str, start: str, kind: str, width: int, header: Any, made: int) -> Entry:
    version = number_of_header(start)
    created = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(made))
    try:
        content = header_of_row(header)
        score = headline(content["metrics"])
        value = None if score is None else score.value
        groups = content.get("groups", {}).get("count")
        label, rows = content["encoder"]["label"], learned_rows(content["metrics"], content["history"])
        features = content.get("features") if SAVED in content else width
        return Entry(name, version, kind, label, features, groups, rows, value, created, origin_of_header(content))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # `load` says what is wrong with it
        return Entry(name, version, kind, None, width, None, None, None, created)
