"""The table of models as the catalogue uses it: statements as one transaction, again where another session was quicker, and in the words
of the rights that are missing; and what is done to rows of versions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from penstock.errors import DatabaseError
from penstock.sql.engines.base import CatalogRun, Engine
from penstock.sql.model_versions import LAST, VERSION, ModelVersion, header_of_version, version_name

START = "substr(CAST(header AS text), 1, 100)"
"""SQL for how a header begins, which has the number of the version."""
_T = TypeVar("_T")
_WAITS = (0.01, 0.03, 0.1, 0.3, 1.0)
_OVERTAKEN = "40001"
"""The SQLSTATE of what another session changed at the same time."""


class CatalogTable:
    """The table of models of an engine's database; nothing is made before `create`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._models = engine.models
        self.name = engine.models.name

    def create(self) -> None:
        """Make the table if it is not there; where another session does so too, both have it."""
        self._models.require_trusted()
        try:
            self._retry(lambda: None if self._models.exists() else self._models.create())
        except DatabaseError as error:
            self._refuse(error, None)
            raise

    def version_rows(self, run: CatalogRun, name: str) -> list[tuple[Any, ...]]:
        """Return the rows that may be versions of a model, for `versions_of_rows`."""
        start = version_name(name, 0)[:-1]
        text = f"SELECT name, {START}, {self._models.created} FROM {self.name} WHERE name = $1 OR substr(name, 1, {len(start)}) = $2"
        return run(text, [name, start])

    def move(self, run: CatalogRun, version: ModelVersion, row: str, *, last: int | None = None) -> None:
        """Give a version's row another name, with its number in the header; raise where it is no longer what it was."""
        text, values = "name = $2", [version.row, row]
        if last is not None or not version.numbered:
            found = run(f"SELECT CAST(header AS text) FROM {self.name} WHERE name = $1", [version.row])
            content = json.loads(found[0][0]) if found else {}
            content = content if isinstance(content, dict) else {}
            known = {**content.get(VERSION, {}), "number": version.number} | ({} if last is None else {LAST: last})
            text += f", header = CAST($3 AS {self._models.header_type})"
            values.append(header_of_version(content, known))
        same = f"name = $1 AND {self._models.created} = {version.made}"
        if not run(f"UPDATE {self.name} SET {text} WHERE {same} RETURNING name", values):
            raise overtaken(version.row)

    def delete(self, run: CatalogRun, rows: Sequence[str]) -> bool:
        """Remove rows by their names; return whether there were any."""
        places = ", ".join(f"${place}" for place in range(1, len(rows) + 1))
        return bool(run(f"DELETE FROM {self.name} WHERE name IN ({places}) RETURNING name", rows))

    def read(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return rows of the table; none where it does not exist."""
        return self.do(lambda run: run(text, values), "SELECT") or []

    def do(self, work: Callable[[CatalogRun], _T], rights: str) -> _T | None:
        """Run statements on the table as one transaction, and return what comes of them; None where there is no table."""
        self._models.require_trusted()
        within = self._engine.in_transaction()
        if within and not self._models.exists():  # an error would end the transaction
            return None
        try:
            return self._retry(lambda: self._run(work))
        except DatabaseError as error:
            if not within and not self._models.exists():
                return None
            if not within and self._models.is_missing(error):  # another session has made it in this very moment
                return self._retry(lambda: self._run(work))
            self._refuse(error, rights)
            raise

    def _run(self, work: Callable[[CatalogRun], _T]) -> _T:
        with self._engine.catalog_transaction() as run:
            return work(run)

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
                if error.code != _OVERTAKEN and not self._models.is_conflict(error):
                    raise
                time.sleep(wait)
        return work()


def overtaken(name: str) -> DatabaseError:
    """Return the error that another session changed a model at the same time."""
    error = DatabaseError(f"another session changed model {name!r} at the same time; run the statement again")
    error.code = _OVERTAKEN
    return error
