"""No file is ever unpickled: pickles that would run code are offered to all that reads files, and run none."""

from __future__ import annotations

import ast
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import groups
from penstock.bigmodel import MatrixFactorization
from penstock.errors import PenstockError

ROOT = Path(penstock.__file__).parent
# These unpickle what the process that started them has sent, or what a worker has sent back: bytes of a pipe.
PIPES = {"groups/ray.py", "groups/worker_process.py", "torch/groups.py", "torch/deliver.py"}
LOADERS = {"load", "loads", "Unpickler", "read_pickle"}
MODULES = {"pickle", "cloudpickle", "_cloudpickle", "ForkingPickler", "dill", "joblib", "marshal", "shelve", "torch"}


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "went off"
    yield Bomb(mark)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # it would have


def npy(bomb: Bomb) -> str:
    np.save("x.npy", np.array([bomb], object), allow_pickle=True)
    return "x.npy"


def bare(bomb: Bomb) -> str:
    Path("x.penstock").write_bytes(pickle.dumps(bomb))
    return "x.penstock"


def torch_file(bomb: Bomb) -> str:
    torch = pytest.importorskip("torch")
    torch.save({"a": bomb}, "x.pt")
    return "x.pt"


def tar(bomb: Bomb) -> str:
    with tarfile.open("x.tar", "w") as archive:
        for name in ("0.pkl", "0.pyd", "0.pickle", "0.pth"):
            data = pickle.dumps(bomb)
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return "x.tar"


def mds(bomb: Bomb) -> str:
    Path("m").mkdir()
    data = pickle.dumps(bomb)
    row = struct.pack("<I", len(data)) + data
    raw = struct.pack("<III", 1, 12, 12 + len(row)) + row
    Path("m/shard.00000.mds").write_bytes(raw)
    shard = {"column_names": ["a"], "column_encodings": ["pkl"], "column_sizes": [None], "format": "mds", "samples": 1}
    shard |= {"raw_data": {"basename": "shard.00000.mds", "bytes": len(raw)}, "version": 2}
    Path("m/index.json").write_text(json.dumps({"shards": [shard]}))
    return "m"


def folder(bomb: Bomb) -> str:
    Path("d").mkdir()
    for name in ("index.json", "state.penstock", "models.parquet", "weights.safetensors", "users.arrow"):
        Path("d", name).write_bytes(pickle.dumps(bomb))
    return "d"


READERS: list[Callable[[str], Any]] = [
    penstock.open,
    lambda path: penstock.convert(path, "out.arrow"),
    penstock.load,
    groups.GroupModels.open,
    MatrixFactorization.load,
]


@pytest.mark.parametrize("make", [npy, bare, torch_file, tar, mds, folder])
def test_pickles_in_files_run_nothing(make: Callable[[Bomb], str], bomb: Bomb) -> None:
    path = make(bomb)
    refusals = 0
    for read in READERS:
        try:
            read(path)
        except PenstockError:
            refusals += 1
    assert refusals >= len(READERS) - 1  # tars are converted, with their members as bytes


def test_no_other_module_can_unpickle() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOADERS:
                owner = node.func.value.func if isinstance(node.func.value, ast.Call) else node.func.value
                if node.func.attr == "read_pickle" or (isinstance(owner, ast.Name) and owner.id in MODULES):
                    found.add(str(path.relative_to(ROOT)))
            if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "weights_only"):
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value == (node.arg == "weights_only"), path
    assert found == PIPES
