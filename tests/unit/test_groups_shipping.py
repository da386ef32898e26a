"""A folder's way to machines that do not see it; how it goes through Ray is in tests/contract/test_executors_ray.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.groups import cluster
from penstock.groups.cluster import Copy, look, pieces
from penstock.testing.executors import await_that


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "rows"
    (made / "deep").mkdir(parents=True)
    (made / "note.json").write_text("{}")
    (made / "deep" / "rows-é").write_bytes(bytes(range(256)) * 10)
    (made / "empty").touch()
    return made


def test_a_copy_is_what_it_was_made_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PIECE", 1000)
    sent = list(pieces(str(folder)))
    assert [(name, at, len(data)) for name, at, data in sent] == [
        ("deep/rows-é", 0, 1000),
        ("deep/rows-é", 1000, 1000),
        ("deep/rows-é", 2000, 560),
        ("empty", 0, 0),
        ("note.json", 0, 2),
    ]
    copy = Copy()
    for piece in sent:
        copy.write(*piece)
    try:
        assert copy.path() != str(folder)
        assert copy.look() == look(str(folder)) != ""
        assert Path(copy.folder, "deep/rows-é").read_bytes() == (folder / "deep/rows-é").read_bytes()
    finally:
        copy.remove()
    assert not os.path.exists(copy.folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "note.json").write_text("[]"),
        lambda folder: (folder / "more").touch(),
        lambda folder: (folder / "empty").rename(folder / "void"),
        lambda folder: (folder / "empty").unlink(),
    ],
)
def test_folders_are_told_from_one_another(folder: Path, change: object) -> None:
    before = look(str(folder))
    assert look(str(folder)) == before
    change(folder)  # type: ignore[operator]
    assert look(str(folder)) != before


def test_a_large_file_is_known_by_its_length(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_SMALL", 100)
    before = look(str(folder))
    large = folder / "deep" / "rows-é"
    large.write_bytes(bytes(2560))
    assert look(str(folder)) == before
    large.write_bytes(bytes(2561))
    assert look(str(folder)) != before


def test_a_folder_that_is_not_there_is_like_no_other(tmp_path: Path) -> None:
    assert look(str(tmp_path / "nowhere")) == ""
    assert look(str(tmp_path)) != ""


def test_pieces_are_written_in_any_order() -> None:
    copy = Copy()
    copy.write("a", 3, np.frombuffer(b"def", np.uint8))
    copy.write("a", 0, np.frombuffer(b"abc", np.uint8))
    assert Path(copy.folder, "a").read_bytes() == b"abcdef"
    copy.remove()


def test_a_copy_goes_with_a_keeper_that_is_killed() -> None:
    script = """
import time
import numpy as np
from penstock.groups.cluster import Copy
copy = Copy()
copy.write("a", 0, np.zeros(9, np.uint8))
print(copy.path(), flush=True)
time.sleep(600)
"""
    keeper = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert keeper.stdout is not None
    folder = keeper.stdout.readline().strip()
    assert os.path.exists(os.path.join(folder, "a"))
    keeper.kill()
    keeper.wait()
    keeper.stdout.close()
    await_that(lambda: not os.path.exists(folder), "the copy outlives its keeper")
