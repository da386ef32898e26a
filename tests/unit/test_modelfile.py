"""Model files: whole or not there, plain safetensors and JSON, and clear about whatever else is found."""

from __future__ import annotations

import json
import math
import os
import pickle

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from penstock.errors import CorruptFileError, ModelFileError, WriteError
from penstock.linear import LinearModel
from penstock.modelfile import read_model, write_model
from penstock.outputs import atomic_path

TENSORS = {"coef": np.arange(6, dtype=np.float32).reshape(2, 3), "clock": np.array([1.0, math.inf])}
HEADER = {"kind": "logistic", "history": [{"loss": 0.5}], "watch": [math.inf, 0], "name": "número"}


@pytest.fixture
def path(tmp_path):
    write_model(tmp_path / "a.penstock", TENSORS, HEADER)
    return tmp_path / "a.penstock"


def test_what_was_written_is_read(path):
    tensors, header = read_model(path)
    assert header == HEADER
    assert set(tensors) == set(TENSORS)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], array)
        assert tensors[name].dtype == array.dtype


def test_any_safetensors_reader_opens_it(path):
    with safe_open(path, framework="np") as file:
        assert file.metadata()["format"] == "penstock"
        assert json.loads(file.metadata()["header"])["kind"] == "logistic"


def test_arrays_in_any_order_and_empty_ones_are_kept(tmp_path):
    arrays = {"f": np.asfortranarray(TENSORS["coef"]), "part": TENSORS["coef"][:, 1], "none": np.empty((0, 3))}
    write_model(tmp_path / "a", arrays, {})
    tensors, _ = read_model(tmp_path / "a")
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name], array)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_told(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ModelFileError, match=r"a\.penstock is not a whole model file.*truncated or of another program"):
        read_model(path)


def test_a_changed_bit_anywhere_is_told(path):
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(ModelFileError, match=r"a\.penstock"):
            read_model(path)


def test_a_file_without_a_checksum_is_read_with_a_warning(tmp_path, caplog):
    metadata = {"format": "penstock", "version": "1", "header": '{"kind": "old"}'}
    save_file({"coef": TENSORS["coef"]}, tmp_path / "old", metadata=metadata)
    tensors, header = read_model(tmp_path / "old")
    assert header == {"kind": "old"}
    np.testing.assert_array_equal(tensors["coef"], TENSORS["coef"])
    assert "before model files had checksums" in caplog.text
    save_file({"coef": TENSORS["coef"]}, tmp_path / "lost", metadata={**metadata, "version": "2"})
    with pytest.raises(ModelFileError, match="lost its checksum"):
        read_model(tmp_path / "lost")


def test_foreign_files_are_told(tmp_path):
    save_file({"coef": TENSORS["coef"]}, tmp_path / "foreign.safetensors")
    with pytest.raises(ModelFileError, match="is a safetensors file but not a Penstock model; train one with"):
        read_model(tmp_path / "foreign.safetensors")
    save_file({"coef": TENSORS["coef"]}, tmp_path / "other", metadata={"format": "pt"})
    with pytest.raises(ModelFileError, match="not a Penstock model"):
        read_model(tmp_path / "other")
    (tmp_path / "text").write_text("label,a,b\n1,2,3\n")
    with pytest.raises(ModelFileError, match="is not a whole model file"):
        read_model(tmp_path / "text")
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(ModelFileError, match="there is no model file at"):
            read_model(missing)


def test_a_newer_version_says_to_upgrade(tmp_path):
    metadata = {"format": "penstock", "version": "99", "header": "{}"}
    save_file({"coef": TENSORS["coef"]}, tmp_path / "newer", metadata=metadata)
    with pytest.raises(ModelFileError, match=r"newer Penstock \(format 99, .*pip install -U penstock"):
        read_model(tmp_path / "newer")


@pytest.mark.parametrize(
    "metadata", [{"version": "x", "header": "{}"}, {"version": "1"}, {"version": "1", "header": "["}]
)
def test_a_header_that_makes_no_sense_is_told(tmp_path, metadata):
    save_file({"coef": TENSORS["coef"]}, tmp_path / "odd", metadata={"format": "penstock", **metadata})
    with pytest.raises(ModelFileError, match="is not a whole model file"):
        read_model(tmp_path / "odd")


class Trap:
    """What a pickle would run when opened."""

    def __reduce__(self):
        return (os.abort, ())


def test_nothing_is_unpickled(tmp_path):
    (tmp_path / "trap").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelFileError):
        read_model(tmp_path / "trap")
    np.save(tmp_path / "trap.npy", np.array([Trap()], object), allow_pickle=True)
    with pytest.raises(ModelFileError):
        LinearModel.load(tmp_path / "trap.npy")


@pytest.mark.parametrize("header", [{}, {"kind": "logistic"}, {"kind": "tree", "encoder": {}}, {"checkpoint": True}])
def test_what_is_no_linear_model_is_told(tmp_path, header):
    write_model(tmp_path / "a", {"coef": TENSORS["coef"], "intercept": np.zeros(2, np.float32)}, header)
    with pytest.raises(ModelFileError, match=r"is a Penstock file but not a linear model.*resume=True"):
        LinearModel.load(tmp_path / "a")


@pytest.mark.parametrize("coef", [np.zeros(3, np.float32), np.zeros((0, 0), np.float32), np.zeros((1, 3), np.int64)])
def test_weights_of_a_wrong_shape_are_told(tmp_path, coef):
    write_model(tmp_path / "a", {"coef": coef, "intercept": np.zeros(2, np.float32)}, {})
    with pytest.raises(ModelFileError):
        LinearModel.load(tmp_path / "a")


def test_a_failure_leaves_what_was_there(path):
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write_model(path, TENSORS, {"bad": object()})

    def fail_halfway():
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_halfway()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_full_disk_leaves_nothing_and_names_the_file(path):
    before = path.read_bytes()
    with (
        pytest.raises(WriteError, match=r"cannot write .*a\.penstock: the disk is full .*nothing was left"),
        atomic_path(path),
    ):
        raise OSError(28, "No space left on device")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_source_that_fails_while_its_predictions_are_written_keeps_its_error(path):
    with pytest.raises(CorruptFileError, match="block 3 is damaged"), atomic_path(path):
        raise CorruptFileError("block 3 is damaged")


def test_an_unwritable_folder_is_named(tmp_path):
    with pytest.raises(WriteError, match=r"cannot write .*missing/a: there is no folder .*missing; make it first"):
        write_model(tmp_path / "missing" / "a", TENSORS, {})


def test_files_have_the_usual_permissions(path):
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
