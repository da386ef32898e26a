"""Addresses of PostgreSQL servers, connections to them, and what their errors mean.

An address is a URI or ``key=value`` words, as libpq reads them; what it leaves out comes from the environment, ``~/.pgpass``
and service files, as ever. A password is never shown: not in a source's name, not in an error. Servers before 14 cannot
read a range of pages and are refused.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.errors import ConnectError, DataChangedError, MissingExtraError, SourceError, UsageError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]
else:
    Connection = Any

LEAST_VERSION = 14
PINNED = "pg_catalog, pg_temp"
"""The search path of statements that are all our own: nobody's functions or operators come before the server's."""
# For a server that is gone without a word: found out after a minute rather than after hours.
_DEFAULTS = {
    "connect_timeout": "15",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "fallback_application_name": "penstock",
}
_HINT = (
    "write it as postgresql://user@host:port/database, with other characters than letters, digits and -._~ in a password as"
    " %XX; or leave the password to ~/.pgpass or PGPASSWORD"
)


def driver() -> Any:
    """Return psycopg, or raise the error that says how to install it."""
    try:
        import psycopg
    except ImportError:
        raise MissingExtraError.of("psycopg", "postgres", "reading from PostgreSQL") from None
    return psycopg


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is, and as whom to connect; it shows without its password.

    Examples
    --------
    >>> print(Address.parse("postgresql://ann:secret@db.example/shop?sslmode=require"))
    postgresql://ann@db.example/shop
    """

    settings: dict[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read an address."""
        psycopg = driver()
        try:
            found = psycopg.conninfo.conninfo_to_dict(text)
        except psycopg.Error:  # its message would quote from the address
            raise UsageError(f"the address of the PostgreSQL database cannot be read; {_HINT}") from None
        port, host = str(found.get("port") or ""), str(found.get("host") or "")
        if not re.fullmatch(r"[0-9,]*", port) or "@" in host.removeprefix("@"):  # a password cut in two
            raise UsageError(f"the address of the PostgreSQL database cannot be read; {_HINT}")
        return cls(found)

    def __str__(self) -> str:
        settings = self.settings
        user, host, port = (settings.get(key) for key in ("user", "host", "port"))
        place = str(host or settings.get("hostaddr") or "")
        place = f"[{place}]" if ":" in place else place
        return (
            "postgresql://"
            + (f"{user}@" if user else "")
            + place
            + (f":{port}" if port else "")
            + f"/{settings.get('dbname') or ''}"
        )

    def hide(self, message: str) -> str:
        """Return a message without the password, should it be in it."""
        secrets = [self.settings.get("password"), self.settings.get("sslpassword"), os.environ.get("PGPASSWORD")]
        for secret in filter(None, secrets):
            message = message.replace(secret, "***")
        return message

    def connect(self, **more: Any) -> Connection:
        """Open a connection, each statement of which is committed at once.

        Values travel as parameters of unnamed statements: nothing is left behind on the server, or in a pooler between.
        """
        psycopg = driver()
        settings = {key: value for key, value in _DEFAULTS.items() if key not in self.settings}
        if "PGCONNECT_TIMEOUT" in os.environ:
            settings.pop("connect_timeout", None)
        try:
            connection: Connection = psycopg.connect(
                **{**settings, **self.settings, "client_encoding": "UTF8", **more},
                autocommit=True,
                prepare_threshold=None,
            )
        except psycopg.Error as error:
            told = self.hide(" ".join(str(error).split()))
            raise ConnectError(f"{self} cannot be reached: {told}") from None
        try:
            require_version(server_version(connection), place=str(self))
        except BaseException:
            connection.close()
            raise
        return connection


def server_version(connection: Connection) -> int:
    """Return the server's version as one number: 180004 for 18.4."""
    return connection.info.server_version


def require_version(version: int, *, place: str) -> None:
    """Raise for servers that cannot read ranges of pages."""
    if version < LEAST_VERSION * 10_000:
        major, minor = divmod(version, 10_000)
        shown = f"{major}.{minor}" if major > 9 else f"{major}.{minor // 100}.{minor % 100}"
        raise SourceError(
            f"{place} is PostgreSQL {shown}; reading in blocks needs {LEAST_VERSION} or later (it scans ranges of row"
            " identifiers): upgrade the server, or copy the table to a file and train from that"
        )


def is_lost(error: BaseException) -> bool:
    """Whether an error means that the connection, or the snapshot it held, is gone, and not that a query is wrong."""
    if isinstance(error, ConnectError):
        return True
    psycopg = driver()
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:  # it was not the server who said it
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    # A standby that replays what we still want to read cancels us with a failure to serialise.
    return state.startswith(("08", "57P")) or state in ("25P03", "25P04", "40001")


def explained(error: BaseException, *, place: str) -> Exception:
    """Return what a server's error means to a user: no right to read, changed under the reader, or in its own words."""
    errors = driver().errors
    diag = getattr(error, "diag", None)
    told = " ".join(str(getattr(diag, "message_primary", None) or error).split())
    if isinstance(error, errors.InsufficientPrivilege):
        return SourceError(f"{place} may not be read: {told}; ask its owner to GRANT SELECT on it to this user")
    if isinstance(
        error, (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName, errors.UndefinedObject)
    ):
        return DataChangedError(f"{place} is no longer as it was opened: {told}; open it again and start afresh")
    return SourceError(f"{place}: the server says: {told}")
