"""Single rows by just their bytes: what is read, from where, and what becomes of files that change."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.fields import Fields
from penstock.blocks.write import BlockWriter
from penstock.errors import CorruptFileError, DataChangedError
from penstock.loader import Loader, direct_reads, row_reader
from penstock.loader.decode import equal_runs
from penstock.loader.decode_records import LayoutDecoder, record_decoder
from penstock.loader.direct_reads import DirectFiles
from penstock.loader.row_reader import GAP, RowReader, distinct

WIDTH = 1000
HERE = Path(__file__).resolve().parents[2] / ".cache"


def table(rows: int, first: int = 0) -> pa.Table:
    number = np.arange(first, first + rows)
    return pa.table(
        {
            "x": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(number % 251, WIDTH).astype(np.uint8)), WIDTH),
            "n": number,
            "text": pa.array([str(i) * (i % 5) for i in number]),
        }
    )


def stored(path, data: pa.Table, *, block: int = 100) -> str:
    with BlockWriter(path, data.schema, rows_per_block=block) as writer:
        for batch in data.to_batches():
            writer.write(batch)
    return str(path)


def reader_of(source: ArrowSource, *columns: str) -> RowReader:
    fields = Fields.of(source.schema, columns, place=source.name, numbered=True)
    layout = source.row_layout(fields)
    return RowReader(source, fields, layout, DirectFiles(layout.fds, nbytes=0))


def places(source: ArrowSource, rows) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum(source.block_rows)
    owner = np.searchsorted(ends, rows, side="right")
    return owner, np.asarray(rows) - (ends - source.block_rows)[owner]


def test_numbers_without_repeats_and_runs_of_files():
    assert distinct(np.array([0, 0, 3, 3, 9])).tolist() == [0, 3, 9]
    assert distinct(np.array([], np.int64)).tolist() == []
    # Descriptors are whatever number was free: files come in their order, not in that of the numbers.
    assert list(equal_runs(np.array([9, 9, 4, 4, 4]))) == [(9, slice(0, 2)), (4, slice(2, 5))]


def test_far_rows_are_read_alone_and_near_ones_together(tmp_path):
    with ArrowSource(stored(tmp_path / "a.arrow", table(1000).select(["x", "n"]))) as source:
        reader = reader_of(source, "x")
        far = [0, 200, 999]
        assert reader.read(*places(source, far)).columns["x"][:, 0].tolist() == [i % 251 for i in far]
        assert reader.bytes_read == 3 * WIDTH
        near = [300, 302, 320, 320 + GAP // WIDTH + 2]
        assert reader.read(*places(source, near)).rows.tolist() == near
        assert reader.bytes_read == 3 * WIDTH + 21 * WIDTH + WIDTH


@pytest.mark.parametrize("columns", [("x", "n"), ("n", "x"), ("n",), ("text", "n"), ("n", "text", "x")])
def test_rows_of_several_files_and_many_threads(tmp_path, columns):
    paths = [stored(tmp_path / f"{k}.arrow", table(150, first=150 * k), block=17 + k) for k in range(3)]
    with ArrowSource(paths) as source:
        reader = reader_of(source, *columns)
        failures = []

        def work(seed):
            rng = np.random.default_rng(seed)
            for count in (1, 40, 450):
                rows = np.sort(rng.permutation(450)[:count])
                found = reader.read(*places(source, rows))
                if found.rows.tolist() != rows.tolist() or found.columns["n"].tolist() != rows.tolist():
                    failures.append(rows)
                if "text" in columns and list(found.columns["text"]) != [str(i) * (i % 5) for i in rows]:
                    failures.append(rows)
                if "x" in columns and found.columns["x"][:, -1].tolist() != (rows % 251).tolist():
                    failures.append(rows)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_rows_longer_than_one_read(tmp_path, monkeypatch):
    monkeypatch.setattr(row_reader, "ROOM", 300)  # less than a row
    with ArrowSource(stored(tmp_path / "a.arrow", table(60), block=7)) as source:
        reader = reader_of(source, "x", "text")
        found = reader.read(*places(source, np.arange(60)))
        assert (found.columns["x"] == (np.arange(60) % 251)[:, None]).all()
        assert list(found.columns["text"]) == [str(i) * (i % 5) for i in range(60)]


@pytest.mark.parametrize("columns", [("x", "n"), ("n", "text")])
def test_a_file_cut_short_or_replaced_is_told(tmp_path, columns):
    path = stored(tmp_path / "a.arrow", table(200), block=20)
    with ArrowSource(path) as source:
        decoder = record_decoder(source, Fields.of(source.schema, columns, place=source.name))
        assert isinstance(decoder, LayoutDecoder)
        decoder.pick(*places(source, [0, 199]))
        os.truncate(path, 150_000)
        with pytest.raises(DataChangedError, match=r"a.arrow"):
            decoder.pick(*places(source, [199]))
        if "text" not in columns:
            with pytest.raises(DataChangedError, match=r"a.arrow"):
                decoder.fill(
                    np.array([9]), np.zeros(1, np.int64), np.arange(20, dtype=np.uint32), decoder._form.empty(20)
                )
        # A system that does not tell that the file has changed still finds bytes missing.
        source.check = lambda: None
        with pytest.raises(CorruptFileError, match=r"a.arrow: 0 bytes at byte \d+ where \d+ should be"):
            decoder.pick(*places(source, [199]))
        if "text" not in columns:
            with pytest.raises(CorruptFileError, match=r"a.arrow: block 9 has 0 bytes where"):
                decoder.fill(
                    np.array([9]), np.zeros(1, np.int64), np.arange(20, dtype=np.uint32), decoder._form.empty(20)
                )


@pytest.fixture
def past_the_cache(monkeypatch):
    """Have small files read as if they were too large for the page cache."""
    monkeypatch.setattr(direct_reads, "LEAST", 1000)
    monkeypatch.setattr(direct_reads, "available_memory", lambda: 1000)
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HERE) as folder:
        yield Path(folder)


@pytest.mark.parametrize("columns", [("x", "n"), ("n",), ("text", "n")])
@pytest.mark.parametrize("order", ["global", "corgipile", "none"])
@pytest.mark.parametrize("kind", ["converted", "pieces", "files"])
def test_direct_reads_give_the_same_rows(past_the_cache, columns, order, kind):
    data = table(600)
    if kind == "pieces":
        with pa.ipc.new_file(past_the_cache / "a.arrow", data.schema) as writer:
            writer.write_table(data)
        source = ArrowSource(past_the_cache / "a.arrow", block_size=40_000)
    elif kind == "files":
        paths = [stored(past_the_cache / f"{k}.arrow", data.slice(200 * k, 200), block=33) for k in range(3)]
        source = ArrowSource(paths)
    else:
        source = ArrowSource(stored(past_the_cache / "a.arrow", data, block=37))
    with source:
        decoder = record_decoder(source, Fields.of(source.schema, columns))
        if decoder.cached:
            pytest.skip("this file system has no direct reads")
        decoder.close()
        with Loader(source, Fields.of(source.schema, columns, numbered=True), order, memory="1.2MB") as loader:
            seen = []
            with closing(loader.epoch(0)) as windows:
                for window in windows:
                    rows = window.batch.rows.copy()
                    seen.append(rows)
                    assert window.batch.columns["n"].tolist() == rows.tolist()
                    if "x" in columns:
                        assert (window.batch.columns["x"] == (rows % 251)[:, None]).all()
                    if "text" in columns:
                        assert list(window.batch.columns["text"]) == [str(i) * (i % 5) for i in rows]
            assert sorted(np.concatenate(seen).tolist()) == list(range(600))


def test_descriptors_for_direct_reads_are_closed_with_the_decoder(past_the_cache):
    with ArrowSource(stored(past_the_cache / "a.arrow", table(100))) as source:
        before = len(os.listdir("/proc/self/fd"))
        decoder = record_decoder(source, Fields.of(source.schema, ["n"]))
        if decoder.cached:
            pytest.skip("this file system has no direct reads")
        assert len(os.listdir("/proc/self/fd")) == before + 1
        decoder.close()
        decoder.close()
        assert len(os.listdir("/proc/self/fd")) == before
