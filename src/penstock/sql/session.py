"""A session: a database, its models, and the statements run on them one after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import singledispatchmethod
from typing import Any

from penstock.closing import Closing
from penstock.errors import ModelFileError, UsageError
from penstock.events import Listener, Stream
from penstock.messages import Command
from penstock.model_kinds import open_model
from penstock.modelfile import refuse_groups
from penstock.outputs import atomic_path
from penstock.sql import model_functions as filling
from penstock.sql import plan_tree as tree
from penstock.sql import training_statement as learning
from penstock.sql.catalog import Catalog
from penstock.sql.engines.registry import open_engine
from penstock.sql.grammar import parse
from penstock.sql.options import pack_settings, wording_of
from penstock.sql.result import Result
from penstock.sql.statements import (
    DescribeModel,
    DropModel,
    Embedded,
    Evaluate,
    Explain,
    ExportModel,
    ImportModel,
    Pack,
    Plain,
    Query,
    ShowModels,
    Statement,
    TableSelection,
    Train,
)
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

    Examples
    --------
    >>> with Session() as session:
    ...     session.sql("CREATE TABLE t AS SELECT i % 2 AS label, (i % 2) * 2.0 - 1 AS x FROM range(100) r(i)").status
    ...     found = session.sql("SELECT * FROM t TRAIN BY svm AS m WITH (epochs = 2)")
    ...     found.column("progressive_accuracy")[-1], session.sql("SHOW MODELS").column("name")
    'CREATE 100'
    (1.0, ['m'])
    """

    def __init__(self, db: Any = ":memory:", *, read_only: bool = False, listeners: Sequence[Listener] = ()) -> None:
        self.engine = open_engine(db, read_only=read_only)
        self.catalog = Catalog(self.engine)
        self._listening = Stream(list(listeners))
        self.stream = self._listening

    def execute(self, script: str) -> Iterator[Result]:
        """Run a script's statements one after another, and yield what each gives back.

        All of it is parsed before the first statement runs.
        """
        statements = parse(script, dialect=self.engine.dialect)
        return map(self._run, statements)

    def sql(self, script: str) -> Result:
        """Run a script, and return what its last statement gives back."""
        found = deque(self.execute(script), maxlen=1)
        return found[0] if found else Result(None)

    @singledispatchmethod
    def run(self, statement: Statement) -> Result:
        """Run one statement."""
        raise UsageError(f"{type(statement).__name__} is not a statement")

    @run.register
    def _(self, statement: Plain) -> Result:
        return self._rows(statement.text)

    @run.register
    def _(self, statement: Train) -> Result:
        return learning.run_training(statement, self.engine, self.catalog, stream=self.stream)

    @run.register
    def _(self, statement: Explain) -> Result:
        return tree.explain_training(statement, self.engine, stream=self.stream)

    @run.register
    def _(self, statement: Embedded) -> Result:
        with filling.fill_calls(statement, self.engine, self.catalog, stream=self.stream) as text:
            return self._rows(text)

    @run.register
    def _(self, statement: Evaluate) -> Result:
        return filling.evaluate_call(statement, self.engine, self.catalog, stream=self.stream)

    @run.register
    def _(self, statement: ShowModels) -> Result:
        names = ("name", "kind", "label", "features", "rows", "score", "created_at")
        rows = [tuple(getattr(entry, name) for name in names) for entry in self.catalog.entries()]
        return Result(names, rows)

    @run.register
    def _(self, statement: DescribeModel) -> Result:
        return filling.model_properties(self.catalog.load(statement.model), statement.model)

    @run.register
    def _(self, statement: DropModel) -> Result:
        self.catalog.drop(statement.model, missing=statement.missing)
        return Result(None, status="DROP MODEL")

    @run.register
    def _(self, statement: ImportModel) -> Result:
        refuse_groups(statement.path)
        with open_model(statement.path) as model:
            if model.linear is None:
                raise ModelFileError(
                    f"{statement.path} is a {model.kind} model that has no linear form in memory, and stays where it is: ",
                    Command(("penstock", "predict", statement.path, "DATA")),
                )
            self.catalog.save(statement.model, model.linear, exists=statement.exists)
        return Result(None, status="IMPORT MODEL")

    @run.register
    def _(self, statement: ExportModel) -> Result:
        with atomic_path(statement.path) as temporary:
            self.catalog.load(statement.model).save(temporary)
        return Result(None, status="EXPORT MODEL")

    @run.register
    def _(self, statement: Pack) -> Result:
        if not self.engine.packs:
            raise UsageError(
                f"PACK is not supported on {self.engine.dialect.title}; write the features into one column"
            )
        query = Query(f"SELECT * FROM {statement.table}", TableSelection(statement.table))
        chosen = pack_settings(statement, self.engine.describe(query), keys=self.engine.keys(query))
        rows = self.engine.pack(statement.table, statement.into, chosen, stream=self.stream)
        return Result(None, status=f"PACK {rows}")

    def cancel(self) -> None:
        """Stop what the engine is doing; to be called from a signal handler or another thread."""
        self.engine.cancel()

    def close(self) -> None:
        """Close the database."""
        self.engine.close()

    def _run(self, statement: Statement) -> Result:
        wording = wording_of(statement)
        self.stream = self._listening.worded(wording)
        with in_words_of(wording):
            return self.run(statement)

    def _rows(self, text: str) -> Result:
        found = self.engine.run(text)
        return Result(found.columns, found.rows, found.status, tuple(found.notices))
