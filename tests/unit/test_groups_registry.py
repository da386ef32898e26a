"""A folder of models: what is written is read again, whatever happens in between."""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from penstock.errors import ModelFileError, UsageError
from penstock.groups import registry as room
from penstock.groups.registry import Index, Outcome, Registry, Writer
from penstock.sealed import read_note, write_note

CONFIGS = ({"l2": 0.1, "epochs": 5}, {"l2": 0.0, "epochs": 7})
KEYS = pa.schema({"country": pa.string(), "device": pa.dictionary(pa.int32(), pa.string())})
ENCODER = {"parts": [], "label": "y", "labels": {"classes": ["no", "yes"], "binary": True, "column": "y"}}
INDEX = Index("logistic", ENCODER, ("country", "device"), CONFIGS, {"solver": "lbfgs"}, "print")


def outcome(group, key=None, **changes):
    weights = np.arange(6, dtype=np.float64).reshape(3, 2) + 10 * group
    given = {"loss": [0.5, 0.4], "selection_loss": [0.6, 0.7], "selection_score": [0.9, 0.8], "weights": weights}
    given |= {"selection_rows": 2, "held_out_rows": 3, "seconds": 3.0, "epochs": [4, 6]}
    return Outcome(group=group, key=key or ("FR", str(group)), rows=10 + group, **(given | changes))


def write(folder, *generations, index=INDEX, keys=KEYS, finish=True, resume=False):
    with Writer(folder, index, keys=keys, resume=resume) as writer:
        for outcomes in generations:
            writer.add(outcomes)
            writer.commit()
        if finish:
            writer.finish()


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_what_is_written_is_read(tmp_path):
    write(tmp_path, [outcome(1), outcome(0, status=["done", "failed"], reason=["", "diverged"])])
    found = Registry.open(tmp_path)
    assert found.table.column_names[:7] == [
        "country",
        "device",
        "text",
        "group",
        "rows",
        "selection_rows",
        "held_out_rows",
    ]
    assert found.table.drop_columns(["generation", "place"]).to_pylist()[1] == {
        "country": "FR",
        "device": "0",
        "text": "FR/0",
        "group": 0,
        "rows": 10,
        "selection_rows": 2,
        "held_out_rows": 3,
        "config": 1,
        "param_l2": 0.0,
        "param_epochs": 7,
        "loss": 0.4,
        "selection_loss": 0.7,
        "selection_accuracy": 0.8,
        "held_out_loss": None,
        "held_out_accuracy": None,
        "pooled_loss": None,
        "pooled_accuracy": None,
        "seconds": 1.5,
        "epochs": 6,
        "status": "failed",
        "reason": "diverged",
        "traceback": None,
    }
    assert found.weights(0).tolist() == [0, 2, 4]
    assert found.weights(3).tolist() == [11, 13, 15]
    assert found.gather(np.array([3, 0])).tolist() == [[11, 13, 15], [0, 2, 4]]
    assert found.pick(np.array([3, 0, 0]), np.array([0, 1, 2])).tolist() == [11, 2, 4]
    told = found.index
    assert (told.kind, told.by, told.label, told.classes) == ("logistic", ("country", "device"), "y", ["no", "yes"])
    assert (told.configs, told.fixed, told.fingerprint, told.finished) == (CONFIGS, {"solver": "lbfgs"}, "print", True)


def test_a_regression_has_another_score(tmp_path):
    write(tmp_path, [outcome(0)], index=Index("linear", {"parts": [], "label": "y"}, INDEX.by, CONFIGS))
    assert Registry.open(tmp_path).table["selection_r2"].to_pylist() == [0.9, 0.8]


def test_files_are_many_models_each_and_of_an_open_format(tmp_path):
    write(tmp_path, [outcome(0), outcome(1)], [outcome(2)])
    assert names(tmp_path) == [
        "groups.parquet",
        "index.json",
        "lock",
        "weights-00000.safetensors",
        "weights-00001.safetensors",
    ]
    stored = load_file(tmp_path / "weights-00000.safetensors")["weights"]
    assert stored.dtype == np.float32
    assert stored.shape == (4, 3)
    assert pq.read_table(tmp_path / "groups.parquet")["text"].to_pylist() == 2 * ["FR/0"] + 2 * ["FR/1"] + 2 * ["FR/2"]


def test_weights_are_mapped_when_asked_for(tmp_path):
    write(tmp_path, [outcome(0)], [outcome(1)])
    (tmp_path / "weights-00001.safetensors").unlink()
    found = Registry.open(tmp_path)
    view = found.weights(0)
    while view.base is not None and not isinstance(view, np.memmap):
        view = view.base
    assert isinstance(view, np.memmap)
    with pytest.raises(ModelFileError, match=r"weights-00001\.safetensors is not a whole file .*; restore the folder"):
        found.weights(2)


KEY_KINDS = {
    "who": (pa.string(), ["a/b", "100%", "Zürich ☃", None]),
    "number": (pa.int16(), [-3, 0, None, 7]),
    "day": (pa.date32(), [datetime.date(2024, 2, 29), None, datetime.date(1970, 1, 1), datetime.date(2000, 1, 1)]),
    "flag": (pa.bool_(), [True, False, None]),
    "share": (pa.float64(), [0.5, 1.0, None, -0.0]),
}


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_keys_keep_their_type(tmp_path, kind):
    type_, values = KEY_KINDS[kind]
    index = Index("linear", {"parts": []}, (kind,), CONFIGS)
    write(
        tmp_path, [outcome(i, (value,)) for i, value in enumerate(values)], index=index, keys=pa.schema({kind: type_})
    )
    table = Registry.open(tmp_path).table
    assert table.schema.field(kind).type == type_
    assert table[kind].to_pylist()[::2] == values
    assert len(set(table["text"].to_pylist())) == len(values)


def test_group_columns_may_be_called_like_those_of_the_table(tmp_path):
    by = ("rows", "text", "param_l2", "by_rows")
    keys = pa.schema(dict.fromkeys(by, pa.string()))
    write(tmp_path, [outcome(0, ("a", "b", "c", "d"))], index=Index("linear", {"parts": []}, by, CONFIGS), keys=keys)
    table = Registry.open(tmp_path).table
    assert table.column_names[:4] == ["by_rows", "by_text", "by_param_l2", "by_by_rows"]
    assert table.select(range(4)).to_pylist()[0] == {
        "by_rows": "a",
        "by_text": "b",
        "by_param_l2": "c",
        "by_by_rows": "d",
    }
    assert table["rows"].to_pylist() == [10, 10]


def test_figures_that_are_not_numbers_are_missing_and_models_that_are_not_are_not_kept(tmp_path):
    weights = np.array([[1.0, np.nan], [1.0, 2.0]])
    write(
        tmp_path,
        [
            outcome(0, loss=[0.5, np.inf], selection_loss=np.nan, selection_score=np.nan, weights=weights),
            Outcome.failure(1, ("IT", None), rows=1, configs=2, reason="one class only"),
        ],
    )
    found = Registry.open(tmp_path)
    assert found.table["loss"].to_pylist() == [0.5, None, None, None]
    assert found.table["selection_loss"].null_count == 4
    assert found.has_model().tolist() == [True, False, False, False]
    assert found.table["reason"].to_pylist()[2:] == ["one class only"] * 2
    with pytest.raises(ModelFileError, match="no model is kept of config 1 of group FR/0; only its figures are"):
        found.weights(1)


def test_some_configs_of_a_group(tmp_path):
    write(
        tmp_path,
        [outcome(0, loss=[0.3], configs=[1], selection_loss=0.1, selection_score=1, epochs=2, weights=np.ones((3, 1)))],
    )
    table = Registry.open(tmp_path).table
    assert (table["config"].to_pylist(), table["param_l2"].to_pylist()) == ([1], [0.0])


def test_parameters_of_several_kinds(tmp_path):
    index = Index("linear", {"parts": []}, INDEX.by, ({"l2": 1, "rate": "constant"}, {"l2": 0.5, "x": 1}, {"x": "no"}))
    write(tmp_path, [outcome(0)], index=index)
    table = Registry.open(tmp_path).table
    assert table["param_l2"].to_pylist() == [1, 0.5]
    assert table["param_rate"].to_pylist() == ["constant", None]
    assert table["param_x"].to_pylist() == [None, "1"]


def test_a_folder_can_be_read_while_it_is_written(tmp_path):
    with Writer(tmp_path, INDEX, keys=KEYS) as writer:
        with pytest.raises(ModelFileError, match="holds no finished group yet; go on with its training: resume=True"):
            Registry.open(tmp_path)
        writer.add([outcome(3)])
        writer.commit()
        assert Registry.open(tmp_path).table["group"].to_pylist() == [3, 3]
        writer.add([outcome(1)])
        writer.commit()
        writer.commit()
        found = Registry.open(tmp_path)
        assert found.table["group"].to_pylist() == [1, 1, 3, 3]
        assert found.weights(2)[0] == 30
        assert not found.index.finished
        writer.finish()
        assert found.weights(0)[0] == 10  # its files are where they were
    assert not [name for name in names(tmp_path) if name.startswith("groups-")]


def test_no_groups_at_all(tmp_path):
    write(tmp_path)
    assert len(Registry.open(tmp_path).table) == 0


def test_many_waiting_models_are_written_by_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "COMMIT", 60)
    with Writer(tmp_path, INDEX, keys=KEYS) as writer:
        writer.add([outcome(number) for number in range(7)])
        assert Registry.open(tmp_path).table["group"].to_pylist() == sorted(2 * list(range(6)))


@pytest.mark.parametrize("killed", ["between", "weights", "merging"])
def test_after_kill_9_all_that_was_committed_is_there(tmp_path, killed):
    program = """
        import os, signal, sys
        sys.path.insert(0, sys.argv[2])
        from tests.unit.test_groups_registry import *

        def die(*_, **__):
            os.kill(os.getpid(), signal.SIGKILL)

        with Writer(sys.argv[1], INDEX, keys=KEYS) as writer:
            for number in range(3):
                writer.add([outcome(2 * number), outcome(2 * number + 1)])
                writer.commit()
            writer.add([outcome(6)])
            if sys.argv[3] == "weights":
                room.write_table = die
                writer.commit()
            if sys.argv[3] == "merging":
                writer.commit()
                Path.unlink = die  # first called when the merged table is in place
                writer.finish()
            die()
    """
    root = Path(__file__).parents[2]
    arguments = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), str(root), killed]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    there = list(range(7 if killed == "merging" else 6))
    assert Registry.open(tmp_path).table["group"].to_pylist() == sorted(2 * there)
    with Writer(tmp_path, INDEX, keys=KEYS, resume=True) as writer:
        assert writer.finished == set(there)
        assert not list(tmp_path.glob(".*.tmp"))
        writer.add([outcome(number) for number in range(8) if number not in writer.finished])
        writer.finish()
    found = Registry.open(tmp_path)
    assert found.table["group"].to_pylist() == sorted(2 * list(range(8)))
    assert [found.weights(2 * number)[0] for number in range(8)] == [10 * number for number in range(8)]


def test_resuming_a_finished_folder_adds_to_it(tmp_path):
    write(tmp_path, [outcome(0)])
    write(tmp_path, [outcome(1)], resume=True)
    found = Registry.open(tmp_path)
    assert [found.weights(row)[0] for row in range(4)] == [0, 1, 10, 11]


def test_one_writer_at_a_time(tmp_path):
    first = Writer(tmp_path, INDEX, keys=KEYS)
    with pytest.raises(UsageError, match="is in use: another training is writing there"):
        Writer(tmp_path, INDEX, keys=KEYS, resume=True)
    first.close()
    Writer(tmp_path, INDEX, keys=KEYS, resume=True).close()


def test_a_refused_writer_lets_go_of_the_folder(tmp_path):
    write(tmp_path, [outcome(0)])
    with pytest.raises(UsageError, match="holds models already; go on with resume=True, or choose another folder"):
        Writer(tmp_path, INDEX, keys=KEYS)
    Writer(tmp_path, INDEX, keys=KEYS, resume=True).close()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"fingerprint": "other"}, "the data have changed; go on with the same"),
        ({"by": ("country",)}, r"by was \['country', 'device'\], and is now \['country'\]"),
        ({"configs": CONFIGS[:1]}, "configs was .* and is now"),
        ({"kind": "svm"}, "kind was 'logistic', and is now 'svm'"),
    ],
)
def test_another_training_is_not_resumed(tmp_path, changes, told):
    write(tmp_path, [outcome(0)], finish=False)
    given = {name: getattr(INDEX, name) for name in ("kind", "recipe", "by", "configs", "fixed", "fingerprint")}
    with pytest.raises(UsageError, match=told):
        Writer(tmp_path, Index(**(given | changes)), keys=KEYS, resume=True)


def test_tables_without_an_index_are_not_written_to(tmp_path):
    write(tmp_path, [outcome(0)])
    (tmp_path / "index.json").unlink()
    with pytest.raises(ModelFileError, match=r"holds tables of models but no index\.json"):
        Writer(tmp_path, INDEX, keys=KEYS)


def test_trees_are_kept_as_text(tmp_path):
    index = Index("logistic", ENCODER, INDEX.by, CONFIGS, family="trees")
    write(tmp_path, [outcome(1234, weights=None, trees=["tree\nü", None])], index=index)
    found = Registry.open(tmp_path)
    assert found.has_model().tolist() == [True, False]
    assert found.trees(0) == "tree\nü"
    assert (tmp_path / "trees" / "00001" / "00001234-00000.txt") in found.files()
    with pytest.raises(ModelFileError, match=r"cannot read the model .*00001234-00001\.txt"):
        found.trees(1)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: outcome(0), "group FR/0 is in .* already; a group's results are added once"),
        (lambda: outcome(1, configs=[0, 2]), "group FR/1 tells of config 2, but there are 2 configs"),
        (lambda: outcome(1, status="won"), "has the status 'won'; choose one of: done, stopped, failed"),
        (lambda: outcome(1, weights=np.ones((3, 5))), r"has weights of shape \(3, 5\) for 2 configs"),
        (lambda: outcome(1, weights=np.ones((4, 2))), "has 4 weights a model, the others have 3"),
        (lambda: outcome(1, key=("FR",)), "group FR has 1 values for 2 group columns"),
        (lambda: outcome(1, epochs=[1, 2, 3]), "has 3 values of epochs for 2 configs"),
    ],
)
def test_results_that_do_not_fit_are_refused(tmp_path, made, told):
    with Writer(tmp_path, INDEX, keys=KEYS) as writer:
        writer.add([outcome(0)])
        with pytest.raises(UsageError, match=told):
            writer.add([made()])


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def cut_a_little(path):
    os.truncate(path, path.stat().st_size - 4)


def retell(path, **changes):
    write_note(path, read_note(path) | changes)


DAMAGE = [
    ("index.json", Path.unlink, r"there are no models of groups in .*: it has no index\.json"),
    ("index.json", cut, r"index\.json is not an index of models: .*; restore the folder from a copy, or train anew"),
    ("index.json", lambda path: path.write_text("[]"), r"index\.json is not an index of models"),
    ("index.json", lambda path: retell(path, format="other"), r"index\.json is not an index of models"),
    ("index.json", lambda path: retell(path, version=99), r"written by a newer Penstock; upgrade with"),
    (
        "index.json",
        lambda path: path.write_text('{"format": "penstock-groups", "version": 2}'),
        r"index\.json lacks 'by'",
    ),
    ("index.json", lambda path: retell(path, by=["planet"]), r"the tables in .* lack planet"),
    ("groups.parquet", cut, r"groups\.parquet is not a whole table of models"),
    ("groups.parquet", lambda path: path.write_bytes(b""), r"groups\.parquet is not a whole table of models"),
    ("groups.parquet", lambda path: pq.write_table(pa.table({"a": [1]}), path), r"does not tell how many generations"),
    ("weights-00000.safetensors", cut, r"weights-00000\.safetensors is not a whole file of weights: it has \d+ bytes"),
    (
        "weights-00000.safetensors",
        cut_a_little,
        r"is not a whole file of weights: it has \d+ bytes where \d+ should be",
    ),
    (
        "weights-00000.safetensors",
        lambda path: path.write_bytes(b""),
        r"weights-00000\.safetensors is not a whole file",
    ),
    ("weights-00000.safetensors", lambda path: path.write_bytes(b"\x80\x04pickled by someone"), r"is not a whole file"),
]


@pytest.mark.parametrize(("name", "damage", "told"), DAMAGE)
def test_damaged_files_are_named_with_what_to_do(tmp_path, name, damage, told):
    write(tmp_path, [outcome(0)])
    damage(tmp_path / name)
    with pytest.raises(ModelFileError, match=told):
        Registry.open(tmp_path).weights(0)


def test_a_file_of_fewer_models_is_named(tmp_path):
    write(tmp_path / "a", [outcome(0), outcome(1)])
    write(tmp_path / "b", [outcome(0)])
    (tmp_path / "b" / "weights-00000.safetensors").replace(tmp_path / "a" / "weights-00000.safetensors")
    found = Registry.open(tmp_path / "a")
    for read in (lambda: found.weights(3), lambda: found.gather(np.arange(4))):
        with pytest.raises(ModelFileError, match=r"weights-00000\.safetensors has 2 models, and none at 3"):
            read()


def test_tables_that_differ_are_refused(tmp_path):
    write(tmp_path, [outcome(0)], finish=False)
    pq.write_table(pa.table({"group": [1]}), tmp_path / "groups-00001.parquet")
    with pytest.raises(ModelFileError, match="have different columns"):
        Registry.open(tmp_path)
