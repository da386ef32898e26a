"""``penstock convert`` of data sets of samples, in-process."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in ("train/cat/a.png", "train/dog/b.png", "train/dog/notes.txt", "val/cat/c.png", "val/dog/d.png"):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "pictures"


def run(*args: object) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_a_split_of_a_folder_of_images(pictures, tmp_path):
    target = tmp_path / "a.arrow"
    result = run("convert", pictures, target, "--split", "train")
    assert result.exit_code == 0, result.stderr
    assert "2 rows" in result.output
    assert "passed over 1 files that are not images" in result.output
    found = json.loads(run("convert", pictures, target, "--split", "train", "--json").stdout)
    assert (found["rows"], found["skipped"]) == (2, 1)
    with penstock.open(target) as source:
        assert source.read(0, ["image"]).to_pydict() == {"image": [b"train/cat/a.png", b"train/dog/b.png"]}


def test_without_a_split_they_are_listed(pictures, tmp_path):
    result = run("convert", pictures, tmp_path / "a.arrow")
    assert result.exit_code != 0
    assert "several splits: train, val" in result.stderr.replace("\n", " ")


def test_columns_of_tars(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("a.jpg", "a.cls", "a.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(b"1"))
    result = run("convert", tmp_path / "a.tar", tmp_path / "a.arrow", "--extensions", "cls:string,jpg")
    assert result.exit_code == 0, result.stderr
    with pa.memory_map(str(tmp_path / "a.arrow")) as file:
        assert pa.ipc.open_file(file).read_all().to_pydict() == {"__key__": ["a"], "cls": ["1"], "jpg": [b"1"]}


def test_an_unknown_format_lists_all(tmp_path, pictures):
    result = run("convert", pictures, tmp_path / "a.arrow", "--format", "image")
    assert result.exit_code != 0
    told = " ".join(result.stderr.split())
    assert "choose one of: arrow, csv, duckdb, hf, images, jsonl, libsvm, mds, npy, parquet, webdataset" in told
    assert "did you mean 'images'" in told
