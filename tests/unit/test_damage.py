"""Bytes that change under way: every file that Penstock writes notices, on every way of reading it."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from penstock.bigmodel import LogisticRegression as OnDiskLogistic
from penstock.bigmodel import MatrixFactorization
from penstock.bigmodel.factor_model import FactorModel
from penstock.bigmodel.model import BigLinearModel
from penstock.bigmodel.rewrite import prepared_rows
from penstock.blocks.arrow import ArrowSource
from penstock.blocks.conversion import convert
from penstock.blocks.ipc import read_footer, read_header
from penstock.blocks.open import open as open_source
from penstock.blocks.storage import LocalFile
from penstock.blocks.write import BlockWriter
from penstock.columns.choose import choose_features
from penstock.columns.schema_notes import layout_of
from penstock.errors import CorruptFileError, ModelFileError, PenstockError
from penstock.estimators import LogisticRegression
from penstock.events import Advanced, Warned
from penstock.groups import GroupBy
from penstock.groups.etl import group
from penstock.groups.grouped import Grouped
from penstock.groups.results import GroupModels
from penstock.loader import Loader
from penstock.loader.batches import batches
from penstock.sealed import read_note, read_sealed, seal, write_note

ROWS = 600


def flips(path: Path, count: int, seed: int = 0):
    """Yield the path with one bit changed at a time, spread over all of the file; it is whole again afterwards."""
    whole = path.read_bytes()
    rng = np.random.default_rng(seed)
    try:
        for place in np.linspace(0, len(whole) - 1, count).astype(int).tolist():
            changed = bytearray(whole)
            changed[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(changed)
            yield place
    finally:
        path.write_bytes(whole)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 5)).astype(np.float32)
    table = pa.table({**{f"f{n}": x[:, n] for n in range(5)}, "y": rng.integers(0, 2, ROWS)})
    path = tmp_path_factory.mktemp("dense") / "dense.arrow"
    convert(table, path, label="y", block_size="1KB")
    return path


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.choice(50, 4, replace=False)).astype(np.uint32) for _ in range(ROWS)]
    table = pa.table(
        {
            "indices": pa.array(rows, pa.list_(pa.uint32())),
            "values": pa.array([np.ones(4, np.float32)] * ROWS, pa.list_(pa.float32())),
            "label": rng.integers(0, 2, ROWS),
        }
    )
    path = tmp_path_factory.mktemp("sparse") / "sparse.arrow"
    convert(table, path, label="label", block_size="1KB")
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    number = np.arange(ROWS)
    table = pa.table({"n": number, "x": number.astype(np.float32), "text": [str(n) * (n % 4) for n in number]})
    path = tmp_path_factory.mktemp("plain") / "plain.arrow"
    convert(table, path, block_size="1KB")
    return path


def by_blocks(path: Path) -> None:
    with open_source(path) as source:
        for block in range(len(source.block_rows)):
            source.read(block)


def by_windows(shuffle: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        with ArrowSource(path) as source:
            recipe = choose_features(source.schema, label=source.schema.names[-1], place=source.name)
            with Loader(source, recipe, shuffle, memory="100KB", stretch=True) as loader:
                assert sum(len(window.batch) for window in loader.epoch(0)) == ROWS

    return read


def by_records(shuffle: str, *columns: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        with batches(path, 64, shuffle=shuffle, columns=list(columns), memory="600KB") as stream:
            assert sum(len(batch["n"]) for batch in stream) == ROWS

    return read


WAYS = [
    ("dense", by_blocks),
    ("dense", by_windows("corgipile")),
    ("sparse", by_windows("corgipile")),
    ("plain", by_blocks),
    ("plain", by_records("corgipile", "n", "x")),
    ("plain", by_records("global", "n", "x")),
    ("plain", by_records("global", "n", "text")),
]


@pytest.mark.parametrize(("name", "read"), WAYS)
def test_a_changed_bit_of_a_converted_file_is_noticed(request, tmp_path, name, read):
    path = shutil.copy(request.getfixturevalue(name), tmp_path / "a.arrow")
    read(path)
    for _ in flips(path, 40):
        with pytest.raises(CorruptFileError, match=r"a\.arrow"):
            read(path)
    read(path)


@pytest.mark.parametrize("read", [way for name, way in WAYS if name == "plain"])
def test_a_header_that_lists_too_few_columns_or_nulls_is_noticed(plain, tmp_path, read):
    path = Path(shutil.copy(plain, tmp_path / "a.arrow"))
    file = LocalFile(path)
    footer = read_footer(file)
    offset, meta, whole = int(footer.offset[1]), int(footer.meta[1]), bytearray(path.read_bytes())
    header = read_header(file, offset, meta)
    file.close()
    columns, buffers = len(header.null_counts), len(header.buffer_at)
    listed = [struct.pack("<I", count) for count in (columns, buffers)]
    nodes = struct.pack("<I2q", columns, header.rows, 0)
    places = [whole.index(each, offset, offset + meta) for each in listed] + [whole.index(nodes, offset) + 12]
    for place in places:
        changed = bytearray(whole)
        changed[place] = 1
        path.write_bytes(changed)
        with pytest.raises(CorruptFileError, match=r"a\.arrow"):
            read(path)


@pytest.mark.parametrize("name", ["dense", "sparse", "plain"])
def test_a_converted_file_cut_short_is_noticed(request, tmp_path, name):
    whole = request.getfixturevalue(name).read_bytes()
    path = tmp_path / "a.arrow"
    for share in (0.0, 0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(CorruptFileError, match=r"a\.arrow"):
            by_blocks(path)


def test_other_readers_open_a_file_with_checksums(dense):
    with pa.OSFile(os.fspath(dense)) as file, pa.ipc.open_file(file) as reader:
        assert reader.read_all().num_rows == ROWS


def test_a_file_that_another_program_wrote_anew_has_no_checksums_and_is_read(dense, tmp_path):
    with pa.OSFile(os.fspath(dense)) as file, pa.ipc.open_file(file) as reader:
        table = reader.read_all()
    with pa.OSFile(os.fspath(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    by_blocks(tmp_path / "a.arrow")


def test_a_changed_bit_in_any_page_of_a_parquet_file_with_checksums_is_noticed(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.random.default_rng(0).standard_normal(2000)})
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression="none")
    whole = path.read_bytes()
    for at in range(1000, 15_000, 1000):
        changed = bytearray(whole)
        changed[at] ^= 16
        path.write_bytes(changed)
        with pytest.raises(CorruptFileError):
            by_blocks(path)


def linear_on_disk(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = sp.random(400, 3000, density=0.004, format="csr", random_state=0, dtype=np.float32)
    model = OnDiskLogistic(folder, epochs=1, memory="1MB")
    model.fit(rows, rng.integers(0, 2, 400))
    model.close()


def factors_on_disk(folder: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "user": rng.integers(0, 90, 500),
            "item": [f"i{n}" for n in rng.integers(0, 60, 500)],
            "rating": rng.random(500).astype(np.float32),
        }
    )
    MatrixFactorization(folder, rank=3, epochs=1).fit(table).close()


def groups_of_linear(folder: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"g": rng.integers(0, 3, 300), "x": rng.standard_normal(300), "y": rng.integers(0, 2, 300)})
    GroupBy(table, by="g").fit(LogisticRegression(epochs=2), y="y", out=folder)


def rows_by_group(folder: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"g": rng.integers(0, 3, 300), "x": rng.standard_normal(300), "y": rng.integers(0, 2, 300)})
    group(table, "g", folder, label="y", memory="100MB").close()


def use_linear(folder: Path) -> object:
    with BigLinearModel(folder) as model:
        return model.weights(range(3000)).tolist()


def use_factors(folder: Path) -> object:
    model = FactorModel.load(folder, memory=1 << 20)
    return model.predict_pairs(np.arange(90), [f"i{n % 60}" for n in range(90)]).tolist()


def use_groups(folder: Path) -> object:
    result = GroupModels.open(folder)
    return [result.registry.weights(row).tolist() for row in range(len(result.registry.table))], (
        result.frame.to_pylist(),
        None if result.timeline is None else result.timeline.to_pylist(),
    )


def use_rows(folder: Path) -> object:
    with Grouped(folder) as grouped:
        return grouped.texts, [grouped.read(block).x.tolist() for block in range(len(grouped.block_rows))]


KEPT = [
    (
        groups_of_linear,
        use_groups,
        ("index.json", "groups.parquet", "weights-00000.safetensors", "timeline-00000.parquet"),
    ),
    (rows_by_group, use_rows, ("grouped.json", "groups.parquet", "blocks.parquet", "rows-00000.arrow")),
    (linear_on_disk, use_linear, ("state.penstock", "pages.a", "pages.b", "map.bin")),
    (factors_on_disk, use_factors, ("state.penstock", "pages.a", "pages.b", "users.arrow", "items.arrow")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "use", "names"), KEPT)
def test_a_changed_bit_in_a_folder_is_noticed_or_changes_nothing(tmp_path, make, use, names):
    """What is not noticed on opening is of no consequence: bytes between rows, white space, a side that is not good."""
    folder = tmp_path / "kept"
    make(folder)
    whole = use(folder)
    present = [name for name in names if (folder / name).exists()]
    assert len(present) >= 3
    noticed = 0
    for name in present:
        for _ in flips(folder / name, 25, seed=1) if (folder / name).stat().st_size else ():
            try:
                assert use(folder) == whole, name
            except PenstockError:
                noticed += 1
    assert noticed > 30
    assert use(folder) == whole


def test_a_model_on_disk_without_its_state_is_not_begun_anew_by_resuming(tmp_path):
    linear_on_disk(tmp_path / "m")
    (tmp_path / "m" / "state.penstock").unlink()
    rows = sp.random(400, 3000, density=0.004, format="csr", random_state=0, dtype=np.float32)
    y = np.random.default_rng(0).integers(0, 2, 400)
    with pytest.raises(ModelFileError, match=r"state\.penstock is gone.*without resume=True"):
        OnDiskLogistic(tmp_path / "m", epochs=2, memory="1MB").fit(rows, y, resume=True)
    with OnDiskLogistic(tmp_path / "m", epochs=2, memory="1MB") as model:
        model.fit(rows, y)


def test_a_training_that_ended_before_its_first_checkpoint_begins_again(tmp_path):
    rows = sp.random(400, 3000, density=0.004, format="csr", random_state=0, dtype=np.float32)
    y = np.random.default_rng(0).integers(0, 2, 400)

    def fail(event):
        if isinstance(event, Advanced) and event.task == "train":
            raise RuntimeError("killed")

    model = OnDiskLogistic(tmp_path / "m", epochs=2, memory="1MB")
    with pytest.raises(RuntimeError, match="killed"):
        model.fit(rows, y, listeners=[fail])
    assert not (tmp_path / "m" / "state.penstock").exists()
    told = []
    model.fit(rows, y, resume=True, listeners=[told.append])
    assert any("no checkpoint" in event.message for event in told if isinstance(event, Warned))
    assert not (tmp_path / "m" / "begun").exists()
    model.close()


def test_positions_past_the_end_of_the_model_are_refused(tmp_path):
    linear_on_disk(tmp_path / "m")
    with prepared_rows(tmp_path / "m")[0] as source:
        features, schema, batches = source.features, source.schema, [source.read(0), source.read(1)]
    indices = batches[0].column("indices")
    wrong = pa.ListArray.from_arrays(
        indices.offsets, pa.array(np.full(len(indices.values), features, np.uint32)), type=indices.type
    )
    batches[0] = batches[0].set_column(0, schema.field(0), wrong)
    noted = {
        name: value for name, value in layout_of(schema).items() if name in ("columns", "label", "sparse", "width")
    }
    with BlockWriter(
        tmp_path / "m" / "rows.arrow", schema, rows_per_block=batches[0].num_rows, metadata=noted
    ) as writer:
        writer.width = features
        for batch in batches:
            writer.write(batch)
    source, recipe = prepared_rows(tmp_path / "m", features=features)
    told = f"position {features}, and the model has {features}"
    with source, pytest.raises(CorruptFileError, match=told), Loader(source, recipe, "none", memory="1MB") as loader:
        list(loader.epoch(0))
    with pytest.raises(CorruptFileError, match="this one has 7"):
        prepared_rows(tmp_path / "m", features=7)


def test_notes_and_tables(tmp_path):
    write_note(tmp_path / "n", {"rows": 3, "name": "é"})
    assert read_note(tmp_path / "n") == {"rows": 3, "name": "é"}
    whole = (tmp_path / "n").read_bytes()
    (tmp_path / "n").write_bytes(whole.replace(b"3", b"2"))
    with pytest.raises(ValueError, match="checksum"):
        read_note(tmp_path / "n")
    (tmp_path / "n").write_text('{"rows": 3}')  # of an earlier version
    assert read_note(tmp_path / "n") == {"rows": 3}
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "t")
    assert pq.read_table(pa.BufferReader(read_sealed(tmp_path / "t"))).num_rows == 2
    seal(tmp_path / "t")
    assert pq.read_table(tmp_path / "t").num_rows == 2
    for _ in flips(tmp_path / "t", 200):
        with pytest.raises(ValueError, match=r"checksum|footer|end"):
            read_sealed(tmp_path / "t")
