"""A session: a database, its models, and the statements run on them one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock.closing import Closing
from penstock.errors import UsageError
from penstock.events import Listener, Stream
from penstock.groups.results import GroupModels
from penstock.model_kinds import kind_of, open_model
from penstock.outputs import Replacement
from penstock.sql import statements as s
from penstock.sql.catalog import Catalog
from penstock.sql.engines.registry import open_engine
from penstock.sql.grammar import parse
from penstock.sql.model_functions import fill_calls
from penstock.sql.model_measures import evaluate_call
from penstock.sql.model_properties import show_model, show_versions
from penstock.sql.model_versions import ModelOrigin
from penstock.sql.options import pack_settings, wording_of
from penstock.sql.plan_tree import explain_training
from penstock.sql.result import Result
from penstock.sql.stored_files import Keeping
from penstock.sql.training_statement import run_training
from penstock.sql.wording import in_words_of


class Session(Closing):
    """Runs SQL on a database, with ``TRAIN BY`` and its kin beside what the engine knows.

    Parameters
    ----------
    db : path, address or connection
        A DuckDB file (made if it is not there), ``":memory:"``, an open DuckDB connection, or ``postgresql://…``.
    read_only : bool
        Open a DuckDB file for reading alone; models can then not be saved.
    listeners : sequence of callables
        Hear of progress, epochs and warnings.
    modules : sequence of str
        Code that torch modules of the database may run, as ``package:name``; what the session trains by may run anyway.

    Examples
    --------
    >>> with Session() as session:
    ...     session.sql("CREATE TABLE t AS SELECT i % 2 AS label, (i % 2) * 2.0 - 1 AS x FROM range(100) r(i)").status
    ...     history = session.sql("SELECT * FROM t TRAIN BY svm AS m WITH (epochs = 2)")
    ...     history.column("progressive_accuracy")[-1], session.sql("SHOW MODELS").column("name")
    'CREATE 100'
    (1.0, ['m'])
    """

    def __init__(
        self,
        db: Any = ":memory:",
        *,
        read_only: bool = False,
        listeners: Sequence[Listener] = (),
        modules: Sequence[str] = (),
    ) -> None:
        self.engine = open_engine(db, read_only=read_only)
        self.catalog = Catalog(self.engine, modules=modules)
        self._listening = Stream(list(listeners))
        self.stream = self._listening

    def execute(self, script: str) -> Iterator[Result]:
        """Run a script's statements one after another, and yield what each gives back.

        All of it is parsed before the first statement runs.
        """
        return map(self._run, parse(script, dialect=self.engine.dialect))

    def sql(self, script: str) -> Result:
        """Run a script, and return what its last statement gives back."""
        results = deque(self.execute(script), maxlen=1)
        return results[0] if results else Result()

    def run(self, statement: s.Statement) -> Result:
        """Run one statement."""
        match statement:
            case s.Plain():
                return self._rows(statement.text)
            case s.Train():
                return run_training(statement, self.engine, self.catalog, stream=self.stream)
            case s.Explain():
                return explain_training(statement, self.engine, stream=self.stream)
            case s.Embedded():
                with fill_calls(statement, self.engine, self.catalog, stream=self.stream) as text:
                    return self._rows(text)
            case s.Evaluate():
                return evaluate_call(statement, self.engine, self.catalog, stream=self.stream)
            case s.ShowModels():
                names = ("name", "version", "kind", "label", "features", "groups", "rows", "score", "created_at")
                return Result(
                    names, [tuple(getattr(entry, name) for name in names) for entry in self.catalog.entries()]
                )
            case s.ShowModel() | s.DescribeModel() | s.ShowTraining():
                return show_model(statement, self.catalog)
            case s.ShowVersions():
                return show_versions(statement.model, self.catalog)
            case s.SetDefaultVersion():
                self.catalog.set_default(statement.model, statement.number)
                return Result(status="ALTER MODEL")
            case s.RenameModel():
                self.catalog.rename(statement.model, statement.new)
                return Result(status="ALTER MODEL")
            case s.DropModel():
                self.catalog.drop(statement.model, missing=statement.missing)
                return Result(status="DROP MODEL")
            case s.ImportModel():
                return self._import(statement)
            case s.ExportModel():
                return self._export(statement)
            case s.Pack():
                return self._pack(statement)

    def _import(self, statement: s.ImportModel) -> Result:
        kind = kind_of(statement.path)
        with open_model(statement.path) as model:
            if isinstance(model, GroupModels):
                model = model.answering("null" if model.pooled is None else "pooled")
            # What may be larger than memory stays where it is.
            keeping = Keeping(Path(statement.path).resolve() if kind.on_disk else None)
            self.catalog.save(
                statement.model,
                model.linear or model,
                exists=statement.exists,
                keeping=keeping,
                origin=ModelOrigin(statement.text),
            )
        note = f"the model stays in {keeping.folder}, which the row in {self.engine.place} refers to"
        return Result(status="IMPORT MODEL", notes=(note,) if keeping.folder is not None else ())

    def _export(self, statement: s.ExportModel) -> Result:
        replacement = Replacement(statement.path)
        with self.catalog.load(statement.model) as model:
            model.save(statement.path)
        return Result(status="EXPORT MODEL", notes=(replacement.note,) if replacement.done else ())

    def _pack(self, statement: s.Pack) -> Result:
        if not self.engine.packs:
            title = self.engine.dialect.title
            raise UsageError(f"PACK is not supported on {title}; write the features into one column")
        query = s.Query(f"SELECT * FROM {statement.table}", s.TableSelection(statement.table))
        chosen = pack_settings(statement, self.engine.describe(query), keys=self.engine.keys(query))
        rows = self.engine.pack(statement.table, statement.into, chosen, stream=self.stream)
        return Result(status=f"PACK {rows}")

    def cancel(self) -> None:
        """Stop what the engine is doing; to be called from a signal handler or another thread."""
        self.engine.cancel()

    def close(self) -> None:
        """Close the database."""
        self.catalog.close()
        self.engine.close()

    def _run(self, statement: s.Statement) -> Result:
        wording = wording_of(statement)
        self.stream = self._listening.worded(wording)
        with in_words_of(wording):
            return self.run(statement)

    def _rows(self, text: str) -> Result:
        rows = self.engine.run(text)
        return Result(rows.columns, rows.rows, rows.status, tuple(rows.notices), types=rows.types)
