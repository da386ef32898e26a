"""Rows encoded once: the same training bit for bit, no second decoding, and a file that never outlives its use."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.batch import Batch, Csr
from penstock.blocks.open import open as open_source
from penstock.columns.choose import choose_features
from penstock.config import Config
from penstock.errors import UsageError
from penstock.linear import LinearModel
from penstock.loader import encoded_copy
from penstock.loader.decode import BlockDecoder
from penstock.loader.loader import Loader
from penstock.loader.row_forms import FeatureForm, Scaling
from penstock.loader.rows_file import RowsFile
from penstock.loader.windows import Feed
from penstock.memory_learner import linear_job
from penstock.training import Columns

ROWS = 20_000
MEMORY = "60%"


@pytest.fixture(autouse=True)
def on_disk(tmp_path: Path) -> None:
    if encoded_copy.in_memory(tmp_path):
        pytest.skip("temporary files are kept in memory here, where no rows are copied to")


def numbers(rows: int = ROWS) -> pa.Table:
    """Return rows of numbers, some missing, some without a label, with weights."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6))
    label = (x.sum(axis=1) + rng.normal(size=rows) > 0).astype(int)
    columns: dict[str, Any] = {f"x{j}": pa.array(x[:, j], mask=rng.random(rows) < 0.05) for j in range(6)}
    columns["label"] = pa.array(label, mask=rng.random(rows) < 0.02)
    return pa.table({**columns, "weight": rng.integers(0, 4, rows).astype(float)})


def words(rows: int = ROWS) -> pa.Table:
    """Return rows of text and numbers, which are encoded as sparse ones."""
    rng = np.random.default_rng(1)
    city, kind = rng.integers(0, 60, rows), rng.integers(0, 40, rows)
    label = (city % 3 + kind % 2 + rng.random(rows) > 2).astype(int)
    text = {"city": [f"city {c}" for c in city], "kind": [f"kind {k}" for k in kind]}
    return pa.table({**text, "x": rng.normal(size=rows), "label": label, "weight": np.ones(rows)})


def stored(folder: Path, rows: pa.Table, kind: str) -> str:
    path = str(folder / f"rows.{kind}")
    if kind == "csv":
        pyarrow.csv.write_csv(rows, path)
    else:
        pq.write_table(rows, path, compression="zstd", row_group_size=500)
    return path


def trained(path: str, cache: bool | int, **settings: Any) -> tuple[LinearModel, int]:
    with open_source(path) as source:
        config = Config(epochs=3, memory=MEMORY, **settings)
        job = linear_job(source, config, Columns(label="label", weight="weight"), cache=cache)
        return job.run(), job.extra_disk_bytes


@pytest.mark.parametrize("make", [numbers, words])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
@pytest.mark.parametrize("settings", [{"solver": "sgd"}, {"solver": "sgd", "shuffle": "mrs"}, {"solver": "lbfgs"}])
def test_training_is_the_same_bit_for_bit(
    tmp_path: Path,
    make: Callable[[], pa.Table],
    kind: str,
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = stored(tmp_path, make(), kind)
    plain, _ = trained(path, False, **settings)
    kept, disk = trained(path, True, **settings)
    assert disk > 0
    assert not [record for record in caplog.records if "no longer kept" in record.getMessage()]
    assert kept.weights.coef.tobytes() == plain.weights.coef.tobytes()
    assert kept.weights.intercept.tobytes() == plain.weights.intercept.tobytes()
    figures = [{k: v for k, v in row.items() if "loss" in k} for m in (kept, plain) for row in m.history]
    assert figures[:3] == figures[3:]


def test_files_in_folders_that_are_columns_are_encoded_once_too(tmp_path: Path) -> None:
    for country in ("FR", "NO"):
        folder = tmp_path / "data" / f"country={country}"
        folder.mkdir(parents=True)
        stored(folder, numbers(ROWS // 2), "parquet")
    kept, disk = trained(str(tmp_path / "data"), True, solver="sgd")
    plain, _ = trained(str(tmp_path / "data"), False, solver="sgd")
    assert disk > 0
    assert kept.weights.coef.tobytes() == plain.weights.coef.tobytes()


def test_a_global_shuffle_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    path = stored(tmp_path, numbers(), "parquet")
    plain, _ = trained(path, False, solver="sgd", shuffle="global")
    kept, disk = trained(path, True, solver="sgd", shuffle="global")
    assert disk > 0
    assert kept.weights.coef.tobytes() == plain.weights.coef.tobytes()


def test_nothing_is_kept_for_one_epoch_or_for_rows_that_fit_or_by_a_smaller_size(tmp_path: Path) -> None:
    path = stored(tmp_path, numbers(), "parquet")
    with open_source(path) as source:
        for epochs, memory, cache in ((1, MEMORY, True), (3, "1GB", True), (3, MEMORY, 10_000)):
            config = Config(epochs=epochs, memory=memory, solver="sgd", shuffle="none")
            job = linear_job(source, config, Columns(label="label"), cache=cache)
            job.run()
            assert job.extra_disk_bytes == 0


def loader_of(path: str, folder: Path, **more: Any) -> Loader[Batch]:
    source = open_source(path)
    recipe = choose_features(source.schema, label="label", exclude=["weight"], place=path)
    return Loader(source, recipe, "none", memory=MEMORY, scratch=folder, cache=True, **more)


def read(loader: Loader[Batch], epoch: int) -> list[bytes]:
    """Return an epoch's rows as bytes."""
    found = []
    for window in loader.epoch(epoch):
        x, y = window.batch.x, window.batch.y
        assert not isinstance(x, Csr)
        assert y is not None
        found += [x.tobytes(), y.tobytes()]
    return found


def plain_numbers() -> pa.Table:
    rng = np.random.default_rng(2)
    columns = {f"x{j}": rng.normal(size=ROWS) for j in range(5)}
    return pa.table({**columns, "label": rng.integers(0, 2, ROWS), "weight": np.ones(ROWS)})


def copy_file(folder: Path) -> Path | None:
    """Return the file that encoded rows are in, by the descriptor that is open on it."""
    for each in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(each)
        except OSError:
            continue
        if target.startswith(f"{folder}/") and target.endswith("(deleted)"):
            return each
    return None


@pytest.fixture
def path(tmp_path: Path) -> str:
    return stored(tmp_path, plain_numbers(), "parquet")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def count_reads(loader: Loader[Batch], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    reads: list[int] = []
    read_many = loader.source.read_many

    def counted(blocks: Any, columns: Any = None) -> Any:
        reads.extend(blocks)
        return read_many(blocks, columns)

    monkeypatch.setattr(loader.source, "read_many", counted)
    return reads


def test_each_block_is_decoded_once(path: str, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loader_of(path, scratch) as loader:
        reads = count_reads(loader, monkeypatch)
        first = read(loader, 0)
        assert sorted(reads) == list(range(len(loader.source.block_rows)))
        reads.clear()
        assert read(loader, 1) == first
        assert reads == []


def test_a_full_disk_is_told_once_and_rows_come_from_the_data(
    path: str, scratch: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write, written = encoded_copy.write_at, []

    def full(fd: int, view: memoryview, at: int) -> None:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(at)
        write(fd, view, at)

    monkeypatch.setattr(encoded_copy, "write_at", full)
    with loader_of(path, scratch) as loader:
        first = read(loader, 0)
        assert read(loader, 1) == first
        file = copy_file(scratch)
        assert file is not None
        assert file.stat().st_size == 0
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "No space left" in told[0]


@pytest.mark.parametrize("damage", ["a byte", "cut short"])
def test_damage_is_noticed_and_rows_come_from_the_data(
    path: str, scratch: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    with loader_of(path, scratch) as loader:
        first = read(loader, 0)
        file = copy_file(scratch)
        assert file is not None
        with open(file, "r+b", buffering=0) as raw:
            if damage == "a byte":
                os.pwrite(raw.fileno(), bytes([os.pread(raw.fileno(), 1, 1000)[0] ^ 1]), 1000)
            else:
                os.ftruncate(raw.fileno(), 1000)
        assert read(loader, 1) == first
        assert read(loader, 2) == first
    assert ["damaged" in record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [True]


def test_the_file_has_no_name_and_is_gone_when_the_loader_is_closed(path: str, scratch: Path) -> None:
    with loader_of(path, scratch) as loader:
        read(loader, 0)
        assert copy_file(scratch) is not None
        assert list(scratch.iterdir()) == []
        assert loader.extra_disk_bytes > 0
    assert copy_file(scratch) is None
    assert loader.extra_disk_bytes > 0


def test_nothing_is_left_by_a_process_that_is_killed(path: str, scratch: Path) -> None:
    code = f"""
        import os, signal, sys
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from tests.unit.test_encoded_copy import copy_file, loader_of, read
        loader = loader_of({path!r}, Path({str(scratch)!r}))
        read(loader, 0)
        assert copy_file(Path({str(scratch)!r})) is not None
        os.kill(os.getpid(), signal.SIGKILL)
    """
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=root, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(scratch.iterdir()) == []


def test_a_forked_process_reads_the_file_and_does_not_write_to_it(path: str, scratch: Path) -> None:
    with loader_of(path, scratch) as loader:
        windows = loader.epoch(0)
        next(windows)
        windows.close()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if read(loader, 0) == read(loader, 1) else 1)
        first = read(loader, 0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert read(loader, 1) == first


def test_threads_that_want_one_block_write_it_once_and_a_copy_that_outgrows_its_limit_is_given_up(
    path: str, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_source(path) as source:
        recipe = choose_features(source.schema, label="label", exclude=["weight"], place=path)
        feed = Feed.of(source, recipe, Scaling.none())
        form, decoder = FeatureForm(recipe, Scaling.none()), BlockDecoder(source, recipe, Scaling.none())
        expected = feed.decoder.decode(0)
        for limit in (10**9, expected.nbytes - 1):
            file = RowsFile(scratch, None, columns=0, blocks=0)
            copy = encoded_copy.EncodedCopy(source, decoder, form, file=file, limit=limit, nbytes=10**6)
            with closing(copy), ThreadPoolExecutor(8) as pool:
                for batch in pool.map(copy.decode, [0] * 32):
                    assert np.array_equal(np.asarray(batch.x), np.asarray(expected.x))
                assert copy.nbytes == (-(-expected.nbytes // 64) * 64 if limit > expected.nbytes else 0)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "room" in told[0]


def test_an_estimator_takes_a_switch_or_a_size(path: str) -> None:
    model = penstock.LogisticRegression(memory=MEMORY, epochs=2, solver="sgd")
    coefficients = [model.fit(path, y="label", cache=cache).coef_.tobytes() for cache in (True, "off", "1GB")]
    assert len(set(coefficients)) == 1
    with pytest.raises(UsageError) as raised:
        model.fit(path, y="label", cache="maybe")
    assert raised.value.option == "cache"


@pytest.mark.parametrize("make", [plain_numbers, words])
def test_a_file_that_is_read_past_the_page_cache_gives_the_same_rows(
    tmp_path: Path, make: Callable[[], pa.Table], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = []

    def direct(fd: int, *, nbytes: int) -> int:  # which only files of half the machine's memory are otherwise
        try:
            opened.append(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT))
        except OSError:
            pytest.skip("there are no direct reads here")
        return opened[-1]

    monkeypatch.setattr(encoded_copy, "open_direct", direct)
    path = stored(tmp_path, make(), "parquet")
    plain, _ = trained(path, False, solver="sgd")
    kept, disk = trained(path, True, solver="sgd")
    assert opened
    assert disk > 0
    assert kept.weights.coef.tobytes() == plain.weights.coef.tobytes()
    assert not [record for record in caplog.records if "no longer kept" in record.getMessage()]
