"""Tables of a PostgreSQL server as blocks: ranges of pages, read over several connections in one snapshot.

Nothing is installed on the server. `PostgresSource` is the source; it needs the extra ``postgres``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import MissingExtraError

if TYPE_CHECKING:
    from penstock.blocks.postgres.connect import Address
    from penstock.blocks.postgres.source import PostgresSource

_HOMES = {"Address": "connect", "PostgresSource": "source"}

__all__ = ["Address", "PostgresSource"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        try:
            import psycopg  # noqa: F401  # only to see whether it is there
        except ImportError:
            raise MissingExtraError.of("psycopg", "postgres", "reading from PostgreSQL") from None
        return getattr(import_module(f"penstock.blocks.postgres.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
