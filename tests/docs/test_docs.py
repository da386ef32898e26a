"""Runs the documentation: every Python block and every ``penstock`` command of README.md and docs/*.md.

The blocks of a document run from top to bottom, in one namespace and one folder that holds the data of
the root's conftest.py, or nothing where a page makes its own. A block is left out only by ``<!-- not run: reason -->`` on the line before it.
A block after ``<!-- file: name.py -->`` is a program of its own: it is written down, and test_frameworks.py starts it.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.documents import PYTHON, SHELL, Block, blocks_of, commands_of
from tests.unit.test_blocks_mds import write as write_mds

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("README.md"), *(ROOT / "docs").glob("*.md")])
# These make all that they use, and run in an empty folder.
ALONE = {"columns.md", "frameworks.md", "groups.md", "migrating.md", "models-on-disk.md"}


def run_python(block: Block, names: dict[str, Any], place: str) -> None:
    if ">>> " in block.text:
        test = doctest.DocTestParser().get_doctest(block.text, names, place, place, block.line - 1)
        report: list[str] = []
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        runner = doctest.DocTestRunner(verbose=False, optionflags=flags)
        runner.run(test, out=report.append, clear_globs=False)
        names.update(test.globs)
        assert not report, "".join(report)
    else:
        # Blank lines in front make the line numbers of a traceback those of the document.
        exec(compile("\n" * (block.line - 1) + block.text, place, "exec"), names)


def run_shell(block: Block, desk: Path, place: str) -> None:
    for line, command in commands_of(block):
        done = run_command(command, desk)
        assert done.returncode == 0, (
            f"{place}:{line}: {command}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        )


def run_command(command: str, desk: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which has everything imported already; one that needs a shell in a shell."""
    from penstock.cli import app

    if not set("|&<>$`;*") & set(re.sub(r"'[^']*'|\"[^\"]*\"", "", command)):
        with contextlib.chdir(desk):
            found = CliRunner(env={"COLUMNS": "120"}).invoke(app, shlex.split(command)[1:])
        crash = found.exception if isinstance(found.exception, Exception) else None
        return subprocess.CompletedProcess(command, found.exit_code, found.stdout, f"{found.stderr}{crash or ''}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    settings = {**os.environ, "PATH": path, "COLUMNS": "120"}
    return subprocess.run(["bash", "-c", command], cwd=desk, env=settings, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_document_runs(document: Path, desk: Path) -> None:
    if document.name in ALONE:
        for file in desk.iterdir():
            file.unlink()
    if document.name == "migrating.md":  # which shows no writer of these, since none is installed
        x = np.random.default_rng(0).standard_normal((200, 3), np.float32)
        rows = {"x": [row.tobytes() for row in x], "label": [int(row[0] > 0).to_bytes(8, "little") for row in x]}
        write_mds(desk / "shards", {"x": "ndarray:float32:3", "label": "int"}, [rows], sizes={"x": 12})
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks_of(document.read_text()):
        if block.file is not None:
            compile(block.text, f"{document}:{block.file}", "exec")
            (desk / block.file).write_text(block.text)
        elif block.skipped is None and block.language in PYTHON:
            run_python(block, names, str(document))
        elif block.skipped is None and block.language in SHELL:
            run_shell(block, desk, str(document))


# What an example must have shown; those that are not here check themselves.
SAYS = {
    "train_groups.py": r"12 groups, 1 without a model.*\n(.*\n)*after the kill .*\n(.*\n)*one model for all: 0\.[67]\d*, a model for each: 0\.[89]",
    "train_on_disk.py": r"Hot: [\d,]+ features(.*\n)*killed; .*\n.*\nafter 4 epochs the weights are the same; .*\n.* 0\.9\d+\n",
    "factorise_ratings.py": r"epoch 15: progressive error 0\.1\d+, on held-out rows 0\.1\d+\n(.*\n)*user 7 would like .*\n.*\(3, 16\)",
    "torch_images.py": r"none +test accuracy 0\.[0-4].*\n.*corgipile +test accuracy (0\.9|1\.0)",
    "torch_tokens.py": r"epoch 0: .* loss [5-6]\..*\n(.*\n)*epoch 3: .* to 0\.[0-3]",
    "torch_ddp.py": r"pad: 2 processes, .* 5,003 different of 5,003.*\n.*drop: 2 processes, .* batches each",
    "torch_resume.py": r"killed by signal 9; .*\nresumed: 10,006 rows .*\n.* 3 workers: .* none seen before",
    "jax_batches.py": r"jax is not installed|none +test accuracy 0\.5.*\n.*corgipile +test accuracy (0\.9|1\.0)",
    "keras_torch.py": r"keras is not installed|test accuracy (0\.9|1\.0)",
}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, desk: Path) -> None:
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
    }  # threads that wait for a core by spinning keep it from the other tests
    done = subprocess.run(
        [sys.executable, str(example)], cwd=desk, capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    assert re.search(SAYS.get(example.name, ""), done.stdout), done.stdout


def test_every_example_is_listed_and_short() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    assert not [path.name for path in EXAMPLES if f"({path.name})" not in listed]
    assert not set(SAYS) - {path.name for path in EXAMPLES}
    most = {"own_engine.py": 240}  # a database has many things to say
    assert not [path.name for path in EXAMPLES if len(path.read_text().splitlines()) > most.get(path.name, 135)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", document.read_text())
    assert not [t for t in targets if not (document.parent / t).exists()]


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8_000


def test_every_page_is_in_the_menu_and_the_index() -> None:
    menu = set(re.findall(r"^  - .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert menu == pages
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert listed == pages - {"index.md"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_sections_lead_somewhere(document: Path) -> None:
    for target, section in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", document.read_text()):
        page = document.parent / target if target else document
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
        assert section in slugs, f"{document.name} links to {target}#{section}, which is not a heading"


def test_blocks_are_found_with_their_lines_and_reasons() -> None:
    text = "a\n```python\nx = 1\n```\n<!-- not run: makes 1 GB -->\n\n```console\n$ penstock demo\n```\n  ```\n  t\n  ```\n"
    assert blocks_of(text) == [
        Block("python", "x = 1\n", 3, None),
        Block("console", "$ penstock demo\n", 8, "makes 1 GB"),
        Block("", "t\n", 11, None),
    ]
    assert blocks_of("<!-- file: a.py -->\n```python\nx = 1\n```\n") == [Block("python", "x = 1\n", 3, file="a.py")]


def test_a_reason_is_needed_to_leave_a_block_out() -> None:
    assert blocks_of("<!-- not run: -->\n```python\n1\n```\n")[0].skipped is None


def test_commands_are_penstock_lines_joined() -> None:
    console = Block("console", "$ penstock train a \\\n>   --epochs 2\npenstock wrote it\n$ ls\n", 5, None)
    assert commands_of(console) == [(5, "penstock train a --epochs 2")]
    bash = Block("bash", "make test  # not ours\npenstock explain a\n", 5, None)
    assert commands_of(bash) == [(6, "penstock explain a")]


def test_a_wrong_example_fails_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        run_python(Block("python", "1 / 0\n", 3, None), {}, "a.md")
    with pytest.raises(AssertionError, match="Expected"):
        run_python(Block("python", ">>> 1 + 1\n3\n", 3, None), {}, "a.md")
    with pytest.raises(AssertionError, match=r"a\.md:3: penstock --nonsense"):
        run_shell(Block("bash", "penstock --nonsense\n", 3, None), tmp_path, "a.md")


def test_the_reference_has_every_command_and_option() -> None:
    from typer.main import get_command

    from penstock.cli import app

    text = (ROOT / "docs" / "reference.md").read_text()
    commands: dict[str, Any] = dict(get_command(app).commands)  # type: ignore[attr-defined]  # a group has them
    for name, command in list(commands.items()):
        commands |= {f"{name} {inner}": each for inner, each in getattr(command, "commands", {}).items()}
    wanted = {f"penstock {name}" for name in commands}
    for command in commands.values():
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        wanted |= {word for option in options for word in (*option.opts, *option.secondary_opts)}
    assert not sorted(word for word in wanted if word not in text)


def test_the_reference_draws_the_tree_of_errors_as_the_code_has_it() -> None:
    from penstock import errors

    tree = [line.strip() for line in (errors.__doc__ or "").splitlines() if "──" in line]
    text = (ROOT / "docs" / "reference.md").read_text()
    assert tree
    assert not [line for line in tree if line not in text]
