"""Public names: each has one meaning, each documented one can be imported, and importing changes nothing else."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import penstock

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])
# Functions and tables of the PostgreSQL extension, whose schema has the package's name.
IN_SQL = {
    "penstock.models",
    "penstock.train",
    "penstock.predict",
    "penstock.sgd",
    "penstock.least_squares",
    "penstock.progress",
}
BLOCK = re.compile(r"^( *)```(?:python|py|pycon)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"`([^`\n]+)`")
DOTTED = re.compile(r"(?<![\w./:-])penstock(?:\.[A-Za-z_]\w*)+")


# The same model in memory and on disk: users exchange one import for the other, so the estimators have the same names.
IN_MEMORY_AND_ON_DISK = {"LinearRegression", "LinearSVM", "LogisticRegression"}


def modules() -> list[str]:
    found = pkgutil.walk_packages(penstock.__path__, "penstock.")
    return ["penstock", *(module.name for module in found if not module.name.endswith("__main__"))]


def names_in_code(code: str) -> Iterator[str]:
    """Yield what a block imports from Penstock and the dotted names that it uses."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def documented_names() -> dict[str, str]:
    """Find every dotted name of Penstock in the documentation, with a page that has it."""
    found: dict[str, str] = {}
    for path in DOCUMENTS:
        text = path.read_text()
        names = [name for block in BLOCK.finditer(text) for name in names_in_code(block[2].replace(">>> ", ""))]
        names += [name for quoted in QUOTED.finditer(BLOCK.sub("", text)) for name in DOTTED.findall(quoted[1])]
        found |= {name: path.name for name in names if DOTTED.fullmatch(name) and name not in IN_SQL}
    return found


def resolve(name: str) -> object:
    """Import the longest prefix that is a module, then follow the dots as ``import a.b; a.b.name`` does."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            importlib.import_module(".".join(parts[:end]))
            break
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("penstock"):
                raise
    value: object = penstock
    for part in parts[1:]:
        value = getattr(value, part)
    return value


def test_documentation_names_are_found() -> None:
    assert {"penstock.connect", "penstock.torch.DataLoader", "penstock.groups.GroupBy"} <= documented_names().keys()
    assert list(names_in_code("import penstock.sql\nfrom penstock import load\npenstock.open(1)")) == [
        "penstock.sql",
        "penstock.load",
        "penstock.open",
    ]


@pytest.mark.parametrize("name", sorted(documented_names()))
def test_every_documented_name_can_be_imported(name: str) -> None:
    assert resolve(name) is not None


def test_no_name_is_both_a_module_and_something_else() -> None:
    for name in modules():
        importlib.import_module(name)
        assert isinstance(resolve(name), ModuleType), f"{name} is a module, and the package has something else there"


@pytest.mark.parametrize("package", ["bigmodel", "blocks", "estimators", "groups", "loader", "shuffle", "sql", "torch"])
def test_all_of_a_public_package_is_exactly_its_public_names(package: str) -> None:
    module = importlib.import_module(f"penstock.{package}")
    tree = ast.parse(Path(str(module.__file__)).read_text())
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"penstock.{package}")
        for alias in node.names
    }
    constants = {name for name in vars(module) if name.isupper()}
    public = {name for name in own | imported | constants if not name.startswith("_")}
    assert public - {"TYPE_CHECKING"} == set(module.__all__)
    assert list(module.__all__) == sorted(module.__all__, key=lambda name: (not name.isupper(), name))
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_no_public_name_is_defined_in_two_files() -> None:
    files: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src" / "penstock").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                files.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    allowed = IN_MEMORY_AND_ON_DISK
    twice = {name: paths for name, paths in files.items() if len(set(paths)) > 1 and name not in allowed}
    assert not twice, "one noun per idea: rename all but the definition in the lowest room"


SIDE_EFFECTS = """
import atexit, importlib, json, locale, logging, os, signal, sys, threading, warnings

names, cache = json.loads(sys.argv[1]), os.environ["NUMBA_CACHE_DIR"]
for name in names:  # other libraries do as they please; they are imported here
    importlib.import_module(name)
for name in [name for name in sys.modules if name.split(".")[0] == "penstock"]:
    del sys.modules[name]

def state():
    return {
        "threads": [thread.name for thread in threading.enumerate()],
        "warnings": [repr(each) for each in warnings.filters],
        "signals": [repr(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": list(sys.path),
        "hooks": [repr(sys.excepthook), repr(threading.excepthook), atexit._ncallbacks()],
        "locale": locale.setlocale(locale.LC_ALL),
        "log": [logging.root.level, len(logging.root.handlers)],
    }

written = []
def audit(event, values):
    if event == "open" and (set(str(values[1])) & set("wax+") or values[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
        if not str(values[0]).startswith(cache):  # where Numba keeps compiled code; it tries to write there
            written.append([event, str(values[0])])
    elif event in ("os.rename", "os.remove", "os.fork", "os.system", "subprocess.Popen", "socket.connect", "socket.bind"):
        written.append([event, repr(values)])

sys.dont_write_bytecode = True
before = state()
sys.addaudithook(audit)
for name in names:
    importlib.import_module(name)
after = state()
print(json.dumps({"written": written, "changed": [key for key in before if before[key] != after[key]]}))
"""


@pytest.mark.slow
def test_importing_writes_nothing_and_changes_no_global_state(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIDE_EFFECTS, json.dumps(modules())],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"written": [], "changed": []}
