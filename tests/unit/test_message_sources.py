"""What the package may say and raise, read from its source: no flags outside ``cli/``, and one tree of errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock import errors
from penstock.cli.wording import command_line

ROOT = Path(penstock.__file__).parent
FILES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
FLAG = re.compile(r"(?<!\w)--[a-z]")
# A style sheet: its variables begin with two dashes.
NO_FLAGS = {"report/style.py"}
# It shows the line of Python that opens modules, which no other door does.
CODE = {"groups/modules.py"}
# Raised and caught within the package; what a user sees is made of them.
INSIDE = {
    "CrowdedError",
    "RemoteTraceback",
    "ValueOfRowError",
    "WireError",
    "_MissingNumberError",
    "_MixedError",
    "_Other",
}


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the strings of a file but for docstrings."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts that errors and warnings are made of, with a hole for each value."""
    for call in ast.walk(tree):
        name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        if not (name in vars(errors) or name in ("Text", "Warned")):
            continue
        for node in ast.walk(call):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                yield node.lineno, "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.lineno, node.value


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith("cli/") and file not in NO_FLAGS])
def test_only_the_command_line_speaks_of_flags(file: str) -> None:
    assert [f"{file}:{node.lineno}: {node.value}" for node in strings(FILES[file]) if FLAG.search(node.value)] == []


@pytest.mark.parametrize("file", [file for file in FILES if not file.startswith(("cli/", "sql/")) and file not in CODE])
def test_options_are_parts_of_messages_and_not_text(file: str) -> None:
    options = {flag.removeprefix("--").removeprefix("no-").replace("-", "_") for flag in command_line().flags}
    spelled = re.compile(rf"(?:(?<=[\s(])|^)(?:{'|'.join(sorted(options))})=")
    found = [f"{file}:{line}: {text}" for line, text in messages(FILES[file]) if spelled.search(text)]
    assert found == []


def test_every_error_that_reaches_a_user_is_in_the_tree() -> None:
    raised = {
        node.name: file
        for file, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any("Error" in ast.unparse(b) or "Exception" in ast.unparse(b) for b in node.bases)
    }
    assert {name for name, file in raised.items() if file != "errors.py"} == INSIDE
    drawn = {"PenstockError", *re.findall(r"[├└]── (\w+)", errors.__doc__ or "")}
    assert {name for name, file in raised.items() if file == "errors.py"} == drawn
