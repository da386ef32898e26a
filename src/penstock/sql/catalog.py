"""Models in the database they were trained on: one row each of the table ``penstock.models``.

They are read and written in the session's transaction where one is open, so that a rollback takes back what was done to models, and
otherwise committed at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from penstock.errors import DatabaseError, DataError, ModelFileError, UsageError, nearest
from penstock.linear import LinearModel
from penstock.metric_names import headline
from penstock.sql.engines.base import Engine
from penstock.sql.prediction_query import StoredModel
from penstock.sql.statements import Exists
from penstock.sql.stored_models import StoredKind, header_of_row, model_of_row, row_of_model

_T = TypeVar("_T")
_WRITTEN = ("name", "kind", "outputs", "width", "coef", "intercept", "header", "format", "penstock_version")
_ALL = "SELECT, INSERT, UPDATE, DELETE"
_WAITS = (0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A model in the catalogue, without its weights.

    ``groups`` is how many groups have a model of their own, ``rows`` how many rows it was trained on, ``score`` the finished model's accuracy or R² (on rows held out, else on a sample
    of its training rows); None where the model does not say.
    """

    name: str
    kind: str
    label: str | None
    features: int
    groups: int | None
    rows: int | None
    score: float | None
    created_at: datetime


class Catalog:
    """The models of a database.

    Parameters
    ----------
    engine : Engine
        The database. Nothing is made in it before the first model is saved.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._place = engine.place
        self._models = engine.models
        self.table = engine.models.name

    def save(self, name: str, model: StoredKind, *, exists: Exists = "error") -> bool:
        """Write a model under a name; return whether it was written, which ``skip`` leaves undone where one is there."""
        title = self._engine.dialect.title
        values = row_of_model(name, model, most_weights=self._models.most_weights, engine=title)
        weights = self._models.weights_type
        types = {"coef": weights, "intercept": weights, "header": self._models.header_type}
        places = ", ".join(
            f"CAST(${place} AS {types[column]})" if column in types else f"${place}"
            for place, column in enumerate(_WRITTEN, 1)
        )
        replaced = ", ".join(f"{column} = EXCLUDED.{column}" for column in (*_WRITTEN[1:], "created_at"))
        action = f"UPDATE SET {replaced}" if exists == "replace" else "NOTHING"
        text = f"INSERT INTO {self.table} ({', '.join(_WRITTEN)}) VALUES ({places})"
        text += f" ON CONFLICT (name) DO {action} RETURNING name"
        written = self._do(text, values, _ALL)
        if written is None:
            self._create()
            written = self._do(text, values, _ALL)
        if not written and exists == "error":
            raise DataError(
                f"there is a model {name!r} in {self._place} already; take another name, drop it (DROP MODEL), or"
                " replace it (CREATE OR REPLACE MODEL)"
            )
        return bool(written)

    def require_writable(self) -> None:
        """Raise where no model could be saved: better before a training than after it."""
        self._create()
        columns = ", ".join(_WRITTEN)
        text = f"INSERT INTO {self.table} ({columns}) SELECT {columns} FROM {self.table} WHERE false"
        self._do(text, [], "INSERT, UPDATE")

    def load(self, name: str) -> StoredKind:
        """Read a model."""
        return self.find(name)[0]

    def load_linear(self, name: str, what: str) -> LinearModel:
        """Read a model that is one model, and not one per group, which ``what`` cannot tell of."""
        model = self.load(name)
        if isinstance(model, LinearModel):
            return model
        raise UsageError(
            f"{what} is of one model, and {name!r} is a model per group of {', '.join(model.by)}; SHOW MODEL {name} lists them,"
            f" and DESCRIBE MODEL {name} FOR (…) describes one"
        )

    def find(self, name: str) -> tuple[StoredKind, StoredModel]:
        """Read a model; return it and where it is, for `select_predictions` to refer to."""
        columns = "format, kind, outputs, width, coef, intercept, CAST(header AS text), penstock_version"
        found = self._read(f"SELECT {columns}, {self._models.created} FROM {self.table} WHERE name = $1", [name])
        if not found:
            raise self._missing(name)
        *row, made = found[0]
        model = model_of_row(row, place=f"model {name!r} in {self._place}")
        return model, StoredModel(self.table, name, int(made))

    def drop(self, name: str, *, missing: Literal["error", "skip"] = "error") -> bool:
        """Remove a model; return whether it was there."""
        dropped = bool(self._do(f"DELETE FROM {self.table} WHERE name = $1 RETURNING name", [name], _ALL))
        if not dropped and missing == "error":
            raise self._missing(name)
        return dropped

    def entries(self) -> list[Entry]:
        """Return what models there are, by name; their weights are not read."""
        rows = self._read(
            f"SELECT name, kind, width, CAST(header AS text), {self._models.created} FROM {self.table} ORDER BY name"
        )
        return [_entry(*row) for row in rows]

    def __contains__(self, name: object) -> bool:
        return bool(self._read(f"SELECT name FROM {self.table} WHERE name = $1", [name]))

    def free_name(self, stem: str) -> str:
        """Return a name that no model has: the stem, or the stem and a number.

        Examples
        --------
        Beside ``t_svm`` and ``t_svm_2``, the stem ``t_svm`` gives ``t_svm_3``.
        """
        taken = set(self._names())
        names = (stem if number == 1 else f"{stem}_{number}" for number in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    def _create(self) -> None:
        """Make the table if it is not there; where another session does so too, both have it."""
        self._models.require_trusted()
        try:
            self._retry(lambda: None if self._models.exists() else self._models.create())
        except DatabaseError as error:
            self._refuse(error, None)
            raise

    def _read(self, text: str, values: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """Return rows of the table; none where it does not exist."""
        return self._do(text, values or [], "SELECT") or []

    def _do(self, text: str, values: list[Any], rights: str) -> list[tuple[Any, ...]] | None:
        """Run a statement on the table, and return its rows; None where there is no table."""
        self._models.require_trusted()
        if self._engine.in_transaction() and not self._models.exists():  # which an error would end
            return None
        try:
            return self._retry(lambda: self._engine.run_in_catalog(text, values))
        except DatabaseError as error:
            if not self._models.exists():
                return None
            if self._models.is_missing(error):  # another session has made it in this very moment
                return self._retry(lambda: self._engine.run_in_catalog(text, values))
            self._refuse(error, rights)
            raise

    def _refuse(self, error: DatabaseError, rights: str | None) -> None:
        refusal = self._models.refusal(error, rights)
        if refusal is not None:
            raise refusal from error

    def _retry(self, work: Callable[[], _T]) -> _T:
        """Do work again where another session did the same at the same time; not in a transaction, which that has ended."""
        for wait in () if self._engine.in_transaction() else _WAITS:
            try:
                return work()
            except DatabaseError as error:
                if not self._models.is_conflict(error):
                    raise
                time.sleep(wait)
        return work()

    def _names(self) -> list[str]:
        return [row[0] for row in self._read(f"SELECT name FROM {self.table}")]

    def _missing(self, name: str) -> ModelFileError:
        there = nearest(name, self._names())
        return ModelFileError(f"there is no model {name!r} in {self._place}{there}; SHOW MODELS lists them")


def _entry(name: str, kind: str, width: int, header: Any, made: int) -> Entry:
    created = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(made))
    try:
        content = header_of_row(header)
        last = content["history"][-1] if content["history"] else {}
        score = headline(content["metrics"])
        value = None if score is None else score.value
        groups = content.get("groups", {}).get("count")
        return Entry(name, kind, content["encoder"]["label"], width, groups, last.get("rows"), value, created)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # `load` says what is wrong with it
        return Entry(name, kind, None, width, None, None, None, created)
