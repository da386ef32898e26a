"""Folders of a process's own do not outlive it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MAKE = (
    "from penstock.outputs import own_folder; own_folder('.penstock-own-', '.', what='rows', remedy='another folder')"
)
ENDS = {
    "interrupted": "raise KeyboardInterrupt",
    "in another folder": "import os; os.chdir('/')",
    "after a process was forked off": """
import os, sys
from pathlib import Path
if not os.fork():
    sys.exit()
os.wait()
assert list(Path().glob(".penstock-own-*"))
""",
}


@pytest.mark.parametrize("ends", ENDS)
def test_a_folder_is_gone_when_its_process_has_ended(ends: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{MAKE}\n{ENDS[ends]}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "Error" not in ended.stderr
    assert ("KeyboardInterrupt" in ended.stderr) == (ends == "interrupted"), ended.stderr
    assert not list(tmp_path.iterdir())
