"""Rows sorted by label are learned as well as shuffled ones from every source, with a tenth and a fiftieth in memory.

Windows are of equal size and many blocks meet in each, however large the blocks are that a source stores; where they
cannot, there is a warning.
"""

from __future__ import annotations

import functools
import shutil
from contextlib import closing

import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from penstock.blocks import convert
from penstock.blocks.cached_source import CachedSource
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.blocks.postgres import PostgresSource
from penstock.config import Config
from penstock.events import Stream, Warned
from penstock.loader.block_cuts import LEAST
from penstock.loader.loader import Loader
from penstock.memory_learner import linear_job
from penstock.training import Columns

ROWS, WIDTH = 16_000, 48
NEAR = 0.03
"""How far below that of a full shuffle an accuracy may lie: steps are large, and no two runs alike."""


@functools.cache
def world() -> tuple[np.ndarray, np.ndarray]:
    """Return rows that a line tells apart but for some noise, sorted by label."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    y = (x @ rng.standard_normal(WIDTH) + rng.standard_normal(ROWS) > 0).astype(np.int64)
    by_label = np.argsort(y, kind="stable")
    return x[by_label], y[by_label]


def table() -> pa.Table:
    x, y = world()
    return pa.table({**{f"f{i}": x[:, i] for i in range(WIDTH)}, "label": y})


def accuracy(source, memory, seed=0, shuffle="corgipile", warned=None, cache=True):
    """Train on a source and return the share of all rows that the model is right about."""
    listen = [] if warned is None else [lambda event: warned.append(event) if isinstance(event, Warned) else None]
    config = Config(
        model="logistic", memory=memory, epochs=1, seed=seed, shuffle=shuffle, validation=0.0,
        rate="exponential", standardize=False, average=False,  # a mean over the epoch would hide the order
    )  # fmt: skip
    label = str(WIDTH) if source.schema.names[-1] == str(WIDTH) else "label"
    model = linear_job(source, config, Columns(label=label), stream=Stream(listen), cache=cache).run()
    x, y = world()
    coef = model.weights.coef.reshape(-1)[-WIDTH:]  # LibSVM counts features from 1
    return float(np.mean((x @ coef + model.weights.intercept.reshape(-1)[0] > 0) == (y == 1)))


@functools.cache
def shuffled() -> float:
    x, y = world()
    return accuracy(ArraySource(x, y), "100MB")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return what opens the rows in each format, written when first asked for."""
    folder = tmp_path_factory.mktemp("sorted")

    def arrow(path):
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table().schema) as writer:
            writer.write_table(table(), max_chunksize=ROWS // 4)

    def libsvm(path):
        x, y = world()
        lines = (
            " ".join([str(label), *(f"{i}:{v:.5g}" for i, v in enumerate(row, 1))])
            for row, label in zip(x.tolist(), y.tolist())
        )
        path.write_text("\n".join(lines) + "\n")

    def database(path):
        rows = table()  # noqa: F841  # named in the statement
        with duckdb.connect(str(path)) as connection:
            connection.execute("CREATE TABLE t AS SELECT * FROM rows")

    writers = {
        "a.arrow": arrow,
        "c.arrow": lambda path: convert(table(), path, label="label"),
        "a.npy": lambda path: np.save(path, np.column_stack(world()).astype(np.float32)),
        "a.csv": lambda path: pyarrow.csv.write_csv(table(), path),
        "a.svm": libsvm,
        "a.duckdb": database,
        "a.parquet": lambda path: pq.write_table(
            pa.table({"x": lists(), "label": world()[1]}), path, row_group_size=400
        ),
        "large.parquet": lambda path: pq.write_table(
            pa.table({"x": lists(), "label": world()[1]}), path, row_group_size=ROWS // 4
        ),
    }

    def open_(name):
        if name == "arrays":
            return ArraySource(*world())
        path = folder / name
        if not path.exists():
            writers[name](path)
        return open_source(path)

    return open_


def lists() -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(world()[0].ravel()), WIDTH)


@pytest.mark.parametrize("memory", ["10%", "2%"])
@pytest.mark.parametrize("name", ["arrays", "a.arrow", "c.arrow", "a.npy", "a.csv", "a.svm", "a.duckdb"])
def test_sorted_rows_are_learned_as_well_as_shuffled_ones(stored, name, memory, tmp_path):
    for seed in (0, 1) if memory == "10%" else (2,):
        warned: list[Warned] = []
        with stored(name) as source:
            found = accuracy(source, memory, seed, warned=warned, cache=tmp_path)  # small windows are slow to decode
        assert found > shuffled() - NEAR, (name, memory, seed)
        assert not warned


def test_sorted_rows_of_parquet_are_learned_where_row_groups_fit(stored):
    for seed in range(2):
        with stored("a.parquet") as source:
            assert accuracy(source, "25%", seed) > shuffled() - NEAR


@pytest.mark.parametrize("memory", ["10%", "2%"])
@pytest.mark.parametrize("name", ["a.parquet", "large.parquet"])
def test_sorted_rows_of_parquet_are_learned_however_large_row_groups_are(stored, name, memory):
    with stored(name) as source:
        recipe = Columns(label="label").recipe(source)
        with Loader(source, recipe, memory=1, stretch=True) as smallest:
            decoding = smallest.plan.memory  # a row group is decoded as a whole, whatever is given beside
        share = decoding + int(float(memory[:-1]) / 100 * ROWS * WIDTH * 4)
        warned: list[Warned] = []
        assert accuracy(source, share, warned=warned) > shuffled() - NEAR
        assert not warned


def test_row_groups_are_decoded_to_disk_once_and_the_disk_is_given_back(stored, tmp_path):
    with stored("large.parquet") as source:
        recipe = Columns(label="label").recipe(source)
        with Loader(source, recipe, memory="3.5MB", scratch=tmp_path) as loader:
            assert loader.plan.kept_bytes > ROWS * WIDTH * 4
            list(loader.epoch(0))
            prepared = loader.prepare_seconds
            assert prepared > 0
            list(loader.epoch(1))
            assert loader.prepare_seconds == prepared
            assert ROWS * WIDTH * 4 < loader.extra_disk_bytes <= loader.plan.kept_bytes
        assert not list(tmp_path.iterdir())
        assert sum(len(window.batch) for window in loader.epoch(2)) == ROWS  # a closed loader begins anew
        loader.close()


def test_without_disk_row_groups_are_decoded_anew_and_windows_are_the_same(stored, tmp_path, monkeypatch, caplog):
    found = []
    with stored("large.parquet") as source:
        recipe = Columns(label="label").recipe(source)
        for full in (False, True):
            if full:
                monkeypatch.setattr("shutil.disk_usage", lambda place: shutil._ntuple_diskusage(1000, 1000, 0))
            with Loader(source, recipe, memory="3.5MB", scratch=tmp_path) as loader:
                found.append([window.batch.x.copy() for window in loader.epoch(0)])
                assert bool(loader.extra_disk_bytes) != full
    assert len(caplog.records) == 1
    assert str(tmp_path) in caplog.text
    assert len(found[0]) > 1
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_sorted_rows_of_a_cached_source_are_learned():
    for memory in ("10%", "3%"):
        with CachedSource(ArraySource(*world(), block_size=40_000), ["features", "label"]) as source:
            for block in range(len(source.block_rows)):
                source.read(block)
            assert source.complete
            assert accuracy(source, memory) > shuffled() - NEAR


@pytest.fixture(scope="module")
def server(postgres):
    columns = ", ".join(f"f{i} float4" for i in range(WIDTH))
    with postgres.database() as address:
        with psycopg.connect(address) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE t ({columns}, label int8)")
            with cursor.copy("COPY t FROM STDIN") as copying:
                copying.write("\n".join("\t".join(map(str, row)) for row in zip(*table().to_pydict().values())) + "\n")
        yield address


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("memory", ["10%", "3%"])
def test_sorted_rows_of_a_server_are_learned(server, memory, exact):
    with PostgresSource(server, "t", exact=exact, block_size=500_000) as source:
        assert accuracy(source, memory) > shuffled() - NEAR


@pytest.mark.parametrize("engine", ["duckdb", "postgresql"])
def test_train_by_with_a_tenth_of_the_rows_learns_a_sorted_table(engine, stored, request, tmp_path):
    from penstock.sql import connect

    address = request.getfixturevalue("server") if engine == "postgresql" else ":memory:"
    with connect(address) as session:
        if engine == "duckdb":
            path = tmp_path / "a.parquet"
            pq.write_table(table(), path)
            session.sql(f"CREATE TABLE t AS SELECT * FROM '{path}'")
        for seed in range(2):
            options = f"buffer_size = 10%, max_epoch_num = 1, validation = 0, seed = {seed}, replace = true"
            model = session.sql(f"SELECT * FROM t TRAIN BY logistic AS m WITH (label = 'label', {options})").model
            x, y = world()
            right = (x @ model.weights.coef.reshape(-1) + model.weights.intercept.reshape(-1)[0] > 0) == (y == 1)
            assert right.mean() > shuffled() - NEAR


def test_few_blocks_in_a_window_are_warned_of_once(tmp_path):
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression="zstd")  # cannot be read in parts
        with pa.ipc.new_file(sink, table().schema, options=options) as writer:
            writer.write_table(table(), max_chunksize=ROWS // 20)
    warned: list[Warned] = []
    with open_source(tmp_path / "a.arrow") as source:
        accuracy(source, "50%", warned=warned)
        assert len(warned) == 1
        assert "blocks meet in a window" in warned[0].message
        assert "penstock convert" in warned[0].message
        with closing(Loader(source, Columns(label="label").recipe(source), memory="50%")) as loader:
            assert loader.plan.warning == warned[0].message
            assert loader.plan.blocks < 2 * LEAST


def test_held_out_rows_do_not_depend_on_the_memory(stored):
    from penstock.loader.holdout import SplitPart

    part = SplitPart(0.2, 3, held_out=True)
    for name in ("arrays", "a.csv", "a.svm", "a.duckdb"):
        found = []
        for memory in ("100MB", "3%"):
            with stored(name) as source:
                recipe = Columns(label="label").recipe(source)
                with closing(Loader(source, recipe, memory=memory, part=part)) as loader:
                    first = [window.batch.take(np.arange(len(window.batch))) for window in loader.epoch(0)]
            values = np.concatenate([b.x.values.reshape(-1, WIDTH) if hasattr(b.x, "values") else b.x for b in first])
            found.append(values[np.lexsort(values.T)])
        assert 0.15 * ROWS < len(found[0]) < 0.25 * ROWS
        assert np.array_equal(found[0], found[1])
