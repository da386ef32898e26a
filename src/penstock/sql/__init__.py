"""Training inside the database: one SQL front on DuckDB and on any PostgreSQL.

``SELECT … TRAIN BY``, ``… PREDICT BY``, ``CREATE MODEL``, ``ML.PREDICT`` and their kin are taken out of a script; the
rest goes to the engine word for word.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.events import Listener
    from penstock.sql.result import Result as Result
    from penstock.sql.session import Session as Session

__all__ = ["Result", "Session", "connect"]


def connect(
    db: Any = ":memory:", *, read_only: bool = False, listeners: Sequence[Listener] = (), modules: Sequence[str] = ()
) -> Session:
    """Open a session on a database. Its ``sql`` runs statements, ``TRAIN BY`` and its kin among them.

    Parameters
    ----------
    db : path, address or connection
        A DuckDB file, ``":memory:"``, an open DuckDB connection, or an address such as ``postgresql://user@host/db``.
    read_only : bool
        Open a DuckDB file for reading alone.
    listeners : sequence of callables
        Hear of progress, epochs and warnings; see `penstock.events`.
    modules : sequence of str
        Code that torch modules of the database may run, as ``package:name``; what the session trains by may run anyway.

    Examples
    --------
    >>> import penstock
    >>> with penstock.connect("shop.duckdb") as session:
    ...     _ = session.sql("CREATE TABLE t AS SELECT i % 2 AS label, i % 2 - 0.5 AS x FROM range(100) r(i)")
    ...     history = session.sql("SELECT * FROM t TRAIN BY logistic AS m WITH (epochs = 3)")
    ...     scores = session.sql("SELECT count(*) FROM ML.PREDICT(MODEL m, TABLE t) WHERE predicted_label = label")
    >>> history.column("epoch"), scores.rows
    ([1, 2, 3], [(100,)])
    """
    from penstock.sql.session import Session

    return Session(db, read_only=read_only, listeners=listeners, modules=modules)


def __getattr__(name: str) -> Any:
    if name in ("Result", "Session"):
        return getattr(import_module(f"penstock.sql.{name.lower()}"), name)
    raise AttributeError(f"module 'penstock.sql' has no attribute {name!r}; it has: {', '.join(__all__)}")
