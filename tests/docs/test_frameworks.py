"""The programs of docs/frameworks.md: two processes, stopped in their second epoch and started again, learn from every row once an epoch."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import Block, blocks_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
ROWS, EPOCHS, PROCESSES = 192, 3, 2
# Gloo's threads abort the interpreter's exit now and then, without Penstock too, and torchrun then kills what the others still write.
LEAVE = """
import atexit, os, sys

def fail(*error):
    global code
    code = 1
    sys.__excepthook__(*error)

def leave():
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

code = 0
if "TORCHELASTIC_RUN_ID" in os.environ:  # a process that torchrun has started
    sys.excepthook = fail
    atexit.register(leave)
"""
NEEDS = {
    "torchrun": "torch",
    "Accelerate": "accelerate",
    "Hugging Face's Trainer": "transformers",
    "Lightning": "pytorch_lightning",
    "Ray Train": "ray",
    "JAX": "jax",
    "Keras": "keras",
}


def sections() -> dict[str, list[Block]]:
    """Return the blocks of each section of the page."""
    _, *parts = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    return {title: blocks_of(text) for title, text in zip(parts[::2], parts[1::2], strict=True)}


def run(command: str, folder: Path) -> None:
    """Run a line of the page; a program that was given up leaves no process behind."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "leave").mkdir(exist_ok=True)
    (folder / "leave" / "sitecustomize.py").write_text(LEAVE)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder / "leave"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PATH": paths,
        "OMP_NUM_THREADS": "1",
        "COORDINATOR": f"127.0.0.1:{port}",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (folder / "log").open("w") as log:
        shell = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            shell.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, (folder / "log").read_text()[-8000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("framework", NEEDS)
def test_every_row_comes_once_an_epoch_over_two_processes_also_after_a_resume(framework, tmp_path):
    if importlib.util.find_spec(NEEDS[framework]) is None:
        pytest.skip(f"{NEEDS[framework]} is not installed")
    made = sections()
    for block in made["What the programs share"] + made[framework]:
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text)
        elif block.language == "python":
            with contextlib.chdir(tmp_path):
                exec(compile(block.text, str(PAGE), "exec"), {})
    commands = next(block.text for block in made[framework] if block.language == "bash").splitlines()
    assert len(commands) == 2, "one that stops, and one that goes on"
    learned = []
    for command in commands:
        run(command, tmp_path)
        learned.append(seen(tmp_path))
    steps = ROWS // PROCESSES * 3 // 2
    assert [len(rows) for rows in learned[0]] == [steps] * PROCESSES, "it ends in the middle of its second epoch"
    share = ROWS // PROCESSES
    assert [len(rows) for rows in learned[1]] == [share * EPOCHS] * PROCESSES, (tmp_path / "log").read_text()[-8000:]
    for epoch in range(EPOCHS):
        together = [row for rows in learned[1] for row in rows[epoch * share : (epoch + 1) * share]]
        assert sorted(together) == list(range(ROWS)), f"epoch {epoch}"


def seen(folder: Path) -> list[list[int]]:
    """Return the rows that each process has noted, in all its runs."""
    return [[int(row) for row in (folder / f"seen-{rank}.txt").read_text().split()] for rank in range(PROCESSES)]


def test_every_framework_of_the_page_is_run():
    programs = {title for title, blocks in sections().items() if any(block.file for block in blocks)}
    assert programs - {"What the programs share"} == set(NEEDS)
