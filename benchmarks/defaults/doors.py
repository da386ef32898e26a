"""The doors of Penstock, each used by the shortest line that a person types; nothing is tuned.

A door is entered once for each table: it takes training rows, and returns its predictions for the test rows. Models of
three and more classes are asked for as ``logistic``; where that is refused, as ``softmax``, and the table says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.defaults.scores import Answer
from benchmarks.defaults.storage import KEY, ROW, load_duckdb, load_postgres, write_file, write_groups
from benchmarks.defaults.tables import LABEL, DefaultsTable, Part

Enter = Callable[[DefaultsTable, Part, Part], Answer]
"""Learn from the training rows, and predict the test rows."""
Door = Callable[[Path], AbstractContextManager[Enter]]
PROBABILITY = "probability_"


@contextmanager
def file_door(folder: Path, *, layout: str | None = None, **options: Any) -> Iterator[Enter]:
    """``LogisticRegression().fit("table.parquet", y="label")``, or ``LinearRegression()``."""

    def enter(table: DefaultsTable, train: Part, test: Part) -> Answer:
        import penstock
        from penstock.events import Warned

        stored = layout or table.layout
        paths = [
            str(write_file(part, folder / name, layout=stored)) for part, name in ((train, "train"), (test, "test"))
        ]
        label = None if train.sparse or stored == "arrow" else LABEL

        def learn(kind: str) -> Any:
            estimators = {
                "logistic": penstock.LogisticRegression,
                "softmax": penstock.SoftmaxRegression,
                "linear": penstock.LinearRegression,
            }
            return estimators[kind](**options).fit(paths[0], y=label, listeners=[warnings.append])

        warnings: list[Any] = []
        model, note = _learn(table, learn)
        if any(isinstance(event, Warned) and "window" in str(event) for event in warnings):
            note = "; ".join(filter(None, [note, "warned of few blocks"]))
        prediction = np.asarray(model.predict(paths[1]))
        if not table.classes:
            return Answer(prediction, note=note)
        return Answer(prediction, model.predict_proba(paths[1]), model.classes_, note)

    yield enter


@contextmanager
def cli_door(folder: Path) -> Iterator[Enter]:
    """``penstock train table.parquet --label label``, with ``--model linear`` where labels are numbers."""
    from benchmarks.faults.doors import command

    def enter(table: DefaultsTable, train: Part, test: Part) -> Answer:
        paths = [
            str(write_file(part, folder / name, layout=table.layout))
            for part, name in ((train, "train"), (test, "test"))
        ]
        label = () if train.sparse else ("--label", LABEL)
        model, scores = str(folder / "model.penstock"), str(folder / "scores.parquet")

        def learn(kind: str) -> None:
            Path(model).unlink(missing_ok=True)
            named = () if kind == "logistic" else ("--model", kind)
            command("train", paths[0], *label, *named, "--out", model)

        _, note = _learn(table, learn)
        command("predict", model, paths[1], "--out", scores)
        return _from_columns(table, pq.read_table(scores), note)

    yield enter


@contextmanager
def group_door(folder: Path) -> Iterator[Enter]:
    """``penstock groups train table.parquet --by one_group --label label``: all rows are one group."""
    from benchmarks.faults.doors import command

    def enter(table: DefaultsTable, train: Part, test: Part) -> Answer:
        paths = [str(write_groups(part, folder / name)) for part, name in ((train, "train"), (test, "test"))]
        models, scores = folder / "models", str(folder / "scores.parquet")

        def learn(kind: str) -> None:
            shutil.rmtree(models, ignore_errors=True)
            named = () if kind == "logistic" else ("--model", kind)
            command("groups", "train", paths[0], "--by", KEY, "--label", LABEL, *named, "--out", str(models))

        _, note = _learn(table, learn)
        command("groups", "predict", str(models), paths[1], "--out", scores)
        return _from_columns(table, pq.read_table(scores), note)

    yield enter


@contextmanager
def duckdb_door(folder: Path) -> Iterator[Enter]:
    """``SELECT * FROM t TRAIN BY logistic`` in a DuckDB file."""
    import duckdb

    path = folder / "defaults.duckdb"

    def load(train: Part, test: Part) -> None:
        with duckdb.connect(str(path)) as connection:
            load_duckdb(connection, "t", train)
            load_duckdb(connection, "t_test", test, numbered=True)

    yield _sql_enter(str(path), load)


@contextmanager
def postgres_door(folder: Path) -> Iterator[Enter]:
    """``SELECT * FROM t TRAIN BY logistic`` on a PostgreSQL that has nothing installed."""
    from tests.servers import Server

    with closing(Server()) as server, _session(server.address()) as session:

        def load(train: Part, test: Part) -> None:
            load_postgres(session, "t", train)
            load_postgres(session, "t_test", test, numbered=True)

        yield _sql_enter(server.address(), load)


@contextmanager
def extension_door(folder: Path) -> Iterator[Enter]:
    """``SELECT * FROM penstock.train('t', 'logistic')`` inside a PostgreSQL that has the extension.

    Functions of the extension predict from arrays of numbers; rows with text are predicted by ``PREDICT BY``, from the same
    table of models.
    """
    from tests.postgres_extension.extension import ExtensionServer, missing

    why = missing()
    if why:
        raise RuntimeError(why)
    with closing(ExtensionServer()) as server, _session(server.address()) as session:
        session.execute("CREATE EXTENSION penstock")

        def enter(table: DefaultsTable, train: Part, test: Part) -> Answer:
            load_postgres(session, "t", train)
            load_postgres(session, "t_test", test, numbered=True)

            def learn(kind: str) -> None:
                session.execute("SELECT * FROM penstock.train('t', %s, 'm', '{\"replace\": true}')", (kind,))

            _, note = _learn(table, learn)
            if table.whole:
                return _predict_by(table, server.address(), note)
            names = [f"c{i}" for i in range(train.width)]
            features = "features_k, features_v" if train.sparse else f"ARRAY[{', '.join(names)}]::real[]"
            if not table.classes:
                query = f"SELECT penstock.predict('m', {features}) FROM t_test ORDER BY {ROW}"
                return Answer(np.array([row[0] for row in session.execute(query).fetchall()]), note=note)
            query = (
                f"SELECT penstock.predict_class('m', {features}), penstock.predict_probabilities('m', {features})"
                f" FROM t_test ORDER BY {ROW}"
            )
            rows = session.execute(query).fetchall()
            header = session.execute("SELECT header FROM penstock.models WHERE name = 'm'").fetchone()[0]
            return Answer(
                np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), header["classes"], note
            )

        yield enter


def _session(address: str) -> AbstractContextManager[Any]:
    import psycopg

    return psycopg.connect(address, autocommit=True)


def _sql_enter(address: str, load: Callable[[Part, Part], None]) -> Enter:
    def enter(table: DefaultsTable, train: Part, test: Part) -> Answer:
        import penstock

        load(train, test)
        with penstock.connect(address) as session:

            def learn(kind: str) -> None:
                session.sql(f"SELECT * FROM t TRAIN BY {kind} AS m WITH (replace = true)")

            _, note = _learn(table, learn)
        return _predict_by(table, address, note)

    return enter


def _predict_by(table: DefaultsTable, address: str, note: str) -> Answer:
    import penstock

    with penstock.connect(address) as session:
        query = f"SELECT * FROM (SELECT * FROM t_test PREDICT BY m) AS scored ORDER BY {ROW}"
        return _from_columns(table, session.sql(query).to_arrow(), note)


def _learn(table: DefaultsTable, learn: Callable[[str], Any]) -> tuple[Any, str]:
    """Learn a model of the kind that a person names first; return it and what had to be asked for instead."""
    if not table.classes:
        return learn("linear"), ""
    try:
        return learn("logistic"), ""
    except Exception as error:
        if table.class_count < 3 or not str(error):
            raise
    return learn("softmax"), "asked for as softmax"


def _from_columns(table: DefaultsTable, data: pa.Table, note: str) -> Answer:
    """Read predictions and probabilities from the columns that files and statements return."""
    prediction = np.asarray(data["prediction"].to_pylist())
    names = [name for name in data.column_names if name.startswith(PROBABILITY)]
    if not table.classes or not names:
        return Answer(prediction, note=note)
    probability = np.column_stack([np.array(data[name].to_pylist(), np.float64) for name in names])
    return Answer(prediction, probability, _classes(names), note)


def _classes(names: Sequence[str]) -> list[str]:
    return [name.removeprefix(PROBABILITY) for name in names]


DOORS: dict[str, Door] = {
    "file": file_door,
    "cli": cli_door,
    "duckdb": duckdb_door,
    "postgres": postgres_door,
    "extension": extension_door,
    "groups": group_door,
}


def open_to_servers(folder: Path) -> None:
    """Let a server that runs as another user read the folder."""
    os.chmod(folder, 0o755)
