"""The extension's packages: what the image installs, the sample data, and what PGXN and Debian are told.

Neither an image nor a Debian package is built here; the script that builds inside the image is run, by a server's own pg_config.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.postgres_extension.extension import DEBIAN, SCRIPTS, SOURCE, ExtensionServer, pg_config
from tests.servers import LATEST

CONTROL = (SOURCE / "penstock.control").read_text()
VERSION = re.findall(r"default_version = '(.*)'", CONTROL)[0]
SUPPORTED = range(14, 19)


def dockerfile() -> list[list[str]]:
    """Return the instructions of the image as lists of words."""
    lines = (SOURCE / "Dockerfile").read_text().splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def test_the_image_installs_what_a_server_needs(tmp_path: Path) -> None:
    instructions = dockerfile()
    command = next(words[1:] for words in instructions if words[0] == "RUN" and "install.sh" in " ".join(words))
    source, installed = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("*.o", "*.so", "penstock--*.sql"))
    places = {"/source": str(source), "/installed": str(installed), "pg_config": str(pg_config(LATEST))}
    command = [re.sub(r"^(/source|/installed|pg_config)\b", lambda found: places[found[1]], word) for word in command]
    subprocess.run(command, check=True, capture_output=True, text=True)
    found = {path.name for path in installed.rglob("*") if path.is_file()}
    assert {"penstock.so", "penstock.control", *SCRIPTS} <= found
    version = next(words[1].removeprefix("PG=") for words in instructions if words[0] == "ARG")
    assert int(version) in SUPPORTED


def test_what_the_image_copies_is_there() -> None:
    for words in dockerfile():
        assert words[0] in ("ARG", "FROM", "RUN", "COPY")
        if words[0] == "COPY" and not words[1].startswith("--from"):
            assert (SOURCE / words[1]).exists()


def test_the_services_are_those_of_the_readme() -> None:
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((SOURCE / "compose.yaml").read_text())["services"]
    assert list(services) == ["db"]
    assert services["db"]["build"] == "."
    assert services["db"]["ports"][0].startswith("127.0.0.1:"), "the password is known to all"
    readme = (SOURCE / "README.md").read_text()
    database = services["db"]["environment"]["POSTGRES_DB"]
    assert f"docker compose exec db psql -U postgres {database}" in readme


def test_the_sample_data_can_be_learned_from(extended: ExtensionServer) -> None:
    with extended.database() as address, psycopg.connect(address, autocommit=True) as session:
        session.execute((SOURCE / "docker" / "sample.sql").read_bytes())
        query = "SELECT * FROM penstock.train('visits', 'logistic', 'buyers', '{\"label\": \"bought\", \"exclude\": \"id\"}')"
        assert query in (SOURCE / "README.md").read_text()
        session.execute(query.encode())
        found: Any = session.execute("SELECT header->'metrics' FROM penstock.models").fetchone()
        share: Any = session.execute("SELECT avg(bought::int)::float8 FROM visits").fetchone()
        assert found[0]["held_out_accuracy"] > max(share[0], 1 - share[0]) + 0.1


def test_what_pgxn_is_told() -> None:
    meta = json.loads((SOURCE / "META.json").read_text())
    assert {"name", "abstract", "version", "maintainer", "license", "provides", "meta-spec"} <= set(meta)
    assert meta["meta-spec"]["version"] == "1.0.0"
    assert meta["license"] == "apache_2_0"
    assert meta["release_status"] in ("stable", "testing", "unstable")
    assert re.fullmatch(r"\d+\.\d+\.\d+", meta["version"])
    assert meta["prereqs"]["runtime"]["requires"] == {"PostgreSQL": f"{SUPPORTED[0]}.0.0"}
    assert list(meta["provides"]) == [meta["name"]]
    provided = meta["provides"][meta["name"]]
    assert provided["version"] == meta["version"] == VERSION
    for name in ("file", "docfile"):
        assert (SOURCE / provided[name]).exists()


def test_what_debian_is_told() -> None:
    folder = SOURCE / "debian"
    source, package = (folder / "control.in").read_text().split("\n\n")
    packages = [package.rstrip("\n").replace("PGVERSION", str(version)) for version in SUPPORTED]
    assert (folder / "control").read_text() == "\n\n".join([source, *packages]) + "\n"
    assert (folder / "pgversions").read_text() == f"{SUPPORTED[0]}+\n"
    assert (folder / "changelog").read_text().startswith(f"penstock ({VERSION}-1) ")
    assert (folder / "rules").stat().st_mode & 0o100
    if shutil.which("dpkg-parsechangelog"):
        shown = ["dpkg-parsechangelog", "--file", str(folder / "changelog"), "--show-field", "Version"]
        assert subprocess.run(shown, check=True, capture_output=True, text=True).stdout == f"{VERSION}-1\n"


@pytest.mark.skipif(
    shutil.which("pg_buildext") is None, reason="pg_buildext, of Debian's postgresql-common, is not there"
)
def test_pg_buildext_makes_the_same_list_of_packages(tmp_path: Path) -> None:
    shutil.copytree(SOURCE / "debian", tmp_path / "debian")
    (tmp_path / "debian" / "control").write_text("")
    versions = " ".join(map(str, SUPPORTED))
    environment = {"PG_SUPPORTED_VERSIONS": versions, "PATH": f"/usr/bin:/bin:{DEBIAN}"}
    subprocess.run(["pg_buildext", "updatecontrol"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    made = (tmp_path / "debian" / "control").read_text()
    assert made.split("\n\n") == (SOURCE / "debian" / "control").read_text().split("\n\n")
