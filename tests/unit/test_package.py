"""The package's face: what it exports, and that importing it costs nothing."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

HEAVY = ("numba", "numpy", "pyarrow", "sklearn", "scipy", "safetensors", "rich", "typer", "torch")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    seen = json.loads(python("import json, sys, penstock; print(json.dumps(sorted(sys.modules)))"))
    assert not [name for name in HEAVY if name in seen]


def test_all_is_exactly_the_public_names() -> None:
    assert set(penstock.__all__) == {*penstock._HOMES, "__version__"}
    assert dir(penstock) == sorted(penstock.__all__)


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(penstock.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    typed = {a.asname: n.module for n in block.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert typed == penstock._HOMES


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(penstock, name)
    assert isinstance(value, str) if name == "__version__" else callable(value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'fit'; it has: .*LogisticRegression"):
        penstock.fit  # noqa: B018


def test_version_is_a_version_and_what_is_installed() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", penstock.__version__)
    assert f"## {penstock.__version__}" in (Path(__file__).parents[2] / "CHANGELOG.md").read_text()


def test_types_are_shipped() -> None:
    spec = importlib.util.find_spec("penstock")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").exists()


@pytest.mark.parametrize("name", penstock._PACKAGES)
def test_packages_that_the_documentation_names_need_no_import_of_their_own(name: str) -> None:
    assert python(f"import penstock; print(penstock.{name}.__name__)").strip() == f"penstock.{name}"
