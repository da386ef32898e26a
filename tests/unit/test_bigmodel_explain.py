"""What is told of a model on disk beforehand, against what training then measures."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.bigmodel.disk_learner import disk_job
from penstock.bigmodel.factor_learner import FactorConfig, factor_job
from penstock.bigmodel.model import Saved
from penstock.bigmodel.storage import Storage
from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.errors import BudgetError, DataError, UnknownOptionError, UsageError
from penstock.explanation import Explanation, feature_counts
from penstock.explanation.feature_counts import FeatureCounts, company, count_features, growth_estimate
from penstock.explanation.model_on_disk import explain_model
from penstock.explanation.page_traffic import expected_traffic
from penstock.training import Columns

COLUMNS = Columns("clicked")
ROWS, NNZ = 8_000, 24


def sparse(rows: int = ROWS, *, dimension: int, zipf: bool, seed: int = 0) -> pa.Table:
    """Make rows whose features occur by Zipf's law or all alike, their indices spread over 40 bits."""
    chance = np.random.default_rng(seed)
    drawn = dimension ** chance.random((rows, NNZ)) if zipf else dimension * chance.random((rows, NNZ))
    indices = drawn.astype(np.uint64) * np.uint64(2654435761) % np.uint64(1 << 40)
    offsets = pa.array(np.arange(0, rows * NNZ + 1, NNZ, dtype=np.int32))
    lists = [pa.ListArray.from_arrays(offsets, pa.array(each.reshape(-1))) for each in (indices, np.ones((rows, NNZ)))]
    return pa.table({"indices": lists[0], "values": lists[1], "clicked": (drawn[:, 0] % 2 < 1).astype(np.int8)})


def written(table: pa.Table, folder: Path) -> Path:
    path = folder / "clicks.parquet"
    pq.write_table(table, path, row_group_size=100)
    return path


DATA = {
    "zipf": {"dimension": 10**8, "zipf": True},
    "few": {"dimension": 10**5, "zipf": True},
    "uniform": {"dimension": 10**9, "zipf": False},
    "shared": {"dimension": 60_000, "zipf": False},
}


def within(found: float, measured: float, times: float = 2.0) -> bool:
    return measured / times <= found <= measured * times


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "memory", "model_memory"),
    [
        ("zipf", "64MB", "150kB"),
        ("zipf", "500kB", "150kB"),
        ("few", "64MB", "150kB"),
        ("uniform", "500kB", "150kB"),
        ("shared", "64MB", "150kB"),
        ("shared", "500kB", "240kB"),  # nearly all of it fits: few features more or less decide
    ],
)
def test_features_hit_rate_and_bytes_are_foretold_within_a_factor_of_two(
    name: str, memory: str, model_memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = sparse(**DATA[name])  # type: ignore[arg-type]  # both kinds of argument are in there
    folder = tmp_path / "ctr.model"
    storage = Storage(model_memory=model_memory, optimizer="adagrad" if name == "few" else "sgd")
    with open_source(written(table, tmp_path)) as source:

        def told() -> Explanation:
            return explain_model(source, folder, columns=COLUMNS, storage=storage, memory=memory)

        counted = told()
        with monkeypatch.context() as patch:
            patch.setattr(feature_counts, "MOST_BYTES", int(source.block_bytes.sum()) // 8)
            sampled = told()
        config = Config(epochs=2, memory=memory, standardize=False, optimizer=storage.optimizer)
        traffic = disk_job(source, folder, config, storage, COLUMNS).run().traffic
        prepared = told()
    saved = Saved.read(folder)
    features, epoch = saved.layout.features, saved.header["history"][-1]["bytes"]
    assert traffic["misses"] > 0
    assert counted.exact
    assert not counted.prepared
    assert prepared.prepared
    assert prepared.features == counted.features == features
    assert not sampled.exact
    assert sampled.rows == ROWS
    assert within(sampled.features, features)
    if model_memory == "150kB":
        assert bool(sampled.warnings) == bool(counted.warnings) == (name == "shared")
    for found in (counted, sampled, prepared):
        assert within(found.hit_rate, traffic["hits"] / (traffic["hits"] + traffic["misses"]))
        assert within(found.epoch["rows_read_bytes"] + found.epoch["pages_read_bytes"], epoch)
        assert within(found.epoch["pages_written_bytes"], traffic["bytes_written"] / 2)
        assert within(found.model_bytes, storage.model_bytes(features))
        assert within(found.disk["rows_bytes"], saved.layout.rows_bytes)
        assert within(found.disk["map_bytes"], saved.layout.map_bytes)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1.2 * counted.disk["bytes"]


def test_features_alike_that_rows_share_are_warned_of_and_others_are_not(tmp_path: Path) -> None:
    said = {}
    for name, given in DATA.items():
        with open_source(written(sparse(**given), tmp_path)) as source:  # type: ignore[arg-type]  # as above
            storage = Storage(model_memory="150kB")
            said[name] = explain_model(source, tmp_path / "m", columns=COLUMNS, storage=storage).warnings
    assert [name for name, warnings in said.items() if warnings] == ["shared"]
    (text,) = said["shared"]
    assert "no layout will help" in text
    assert "model_memory=" in text
    assert "hash=" not in text
    assert "hash the indices to fewer features" in text


def rows_of(indices: np.ndarray) -> pa.Table:
    values = np.ones(indices.shape, np.float32)
    clicked = np.arange(len(indices)) % 2
    return pa.table({"indices": list(indices.astype(np.uint64)), "values": list(values), "clicked": clicked})


def drawn(kind: str) -> np.ndarray:
    """Draw the features of 20,000 rows: alike, by Zipf's law, or alike but always in the same company."""
    chance = np.random.default_rng(0)
    if kind == "zipf":
        return (5_000_000 ** chance.random((20_000, 20))).astype(np.int64)
    if kind == "company":
        return chance.permutation(200_000)[10 * chance.integers(0, 20_000, 20_000)[:, None] + np.arange(10)]
    return chance.integers(0, 200_000, (20_000, 10))


@pytest.mark.parametrize("memory", ["512MB", "500kB"])
@pytest.mark.parametrize("kind", ["uniform", "zipf", "company"])
def test_uniform_features_that_mostly_occur_once_or_twice_are_warned_of(
    kind: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_source(written(rows_of(drawn(kind)), tmp_path)) as source:
        plain = Storage(model_memory="250kB" if kind == "uniform" else "49%")

        def told(storage: Storage = plain) -> Explanation:
            return explain_model(source, tmp_path / "m", columns=COLUMNS, storage=storage, memory=memory)

        found = told()
        assert found.model_memory_bytes == pytest.approx(0.49 * found.model_bytes, rel=0.02)
        assert found.hit_rate < 1
        assert bool(found.warnings) == (kind == "uniform")
        with monkeypatch.context() as patch:
            patch.setattr(feature_counts, "MOST_BYTES", int(source.block_bytes.sum()) // 4)
            assert bool(told().warnings) == (kind == "uniform")
        if kind != "uniform":
            return
        (text,) = found.warnings
        assert f"Expected hit rate: {found.hit_rate:.0%}" in text
        assert "in no company" in text
        enough = text.split("model_memory='")[1].split("'")[0]
        whole = told(Storage(model_memory=enough))
        assert whole.hot_bytes == whole.model_bytes
        assert not whole.warnings
        power = int(text.split("(2^")[1].split(" ")[0])
        assert plain.pool_memory(1 << power) >= plain.model_bytes(1 << power)
        assert plain.pool_memory(2 << power) < plain.model_bytes(2 << power)


def test_company_is_told_from_chance() -> None:
    chance = np.random.default_rng(0)
    pairs = chance.permutation(1000).reshape(-1, 2)
    for rows, low, high in (
        (pairs[chance.integers(0, 500, 4000)], 0.95, 1.0),
        (chance.integers(0, 1000, (4000, 2)), 0.0, 0.05),
        (np.arange(2000).reshape(-1, 2), 0.0, 0.0),
    ):
        with open_source(rows_of(rows)) as source:
            assert low <= company(source, COLUMNS.recipe(source, wide=True)) <= high


def test_the_memory_that_is_named_in_the_warning_holds_the_model_and_hashing_to_fewer_is_named(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    words = [" ".join(map(str, row)) for row in chance.integers(0, 60_000, (ROWS, NNZ))]
    with open_source(pa.table({"text": words, "clicked": chance.integers(0, 2, ROWS)})) as source:
        columns = Columns("clicked", hash=["text:2^26:words"])

        def told(memory: str) -> Explanation:
            return explain_model(source, tmp_path, columns=columns, storage=Storage(model_memory=memory))

        (text,) = told("150kB").warnings
        assert "hash=['COLUMN:2^14'] fits in this memory" in text
        enough = text.split("model_memory='")[1].split("'")[0]
        found = told(enough)
    assert found.hot_bytes == found.model_bytes
    assert not found.warnings
    assert found.dimension == 1 << 26
    assert found.full_model_bytes == 4 << 26


def test_a_model_that_fits_reads_no_pages(tmp_path: Path) -> None:
    with open_source(sparse(500, dimension=1000, zipf=True)) as source:
        found = explain_model(source, tmp_path, columns=COLUMNS)
    assert found.hot_bytes == found.model_bytes
    assert found.hit_rate == 1
    assert found.epoch["pages_read_bytes"] == 0
    assert found.hot_features == found.features
    assert found.hot_bytes == found.model_bytes == found.epoch["pages_written_bytes"]
    assert "hit rate 100%" in str(found)


def test_adagrad_takes_twice_the_bytes(tmp_path: Path) -> None:
    with open_source(sparse(500, dimension=10**6, zipf=True)) as source:
        sgd, adagrad = (
            explain_model(source, tmp_path, columns=COLUMNS, storage=Storage(optimizer=name))
            for name in ("sgd", "adagrad")
        )
    assert adagrad.full_model_bytes == 2 * sgd.full_model_bytes
    assert within(adagrad.model_bytes, 2 * sgd.model_bytes, 1.2)
    assert "AdaGrad" in str(adagrad)


def test_a_directory_prepared_for_other_data_or_columns_is_not_believed_and_told_of(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    with open_source(written(sparse(300, dimension=1000, zipf=True), tmp_path)) as source:
        disk_job(source, folder, Config(epochs=1, standardize=False), columns=COLUMNS).run()
        known = explain_model(source, folder, columns=COLUMNS)
        assert known.prepared
        assert not known.warnings
        for asked, words in (
            ({"columns": Columns()}, "was prepared with the label 'clicked', where this has None"),
            ({"columns": COLUMNS, "dimension": 1 << 50}, f"dimension of any, where this is {1 << 50:,}"),
        ):
            found = explain_model(source, folder, **asked)  # type: ignore[arg-type]  # two kinds of argument
            assert not found.prepared
            (text,) = found.warnings
            assert words in text
            assert "prepares it anew and gives up the model that it holds" in text
        note = json.loads((folder / "layout.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    with open_source(written(sparse(400, dimension=1000, zipf=True), other)) as source:
        found = explain_model(source, folder, columns=COLUMNS)
        assert not found.prepared
        assert found.rows == 400
        (text,) = found.warnings
        assert (
            f"{folder} holds a model of other data ({tmp_path / 'clicks.parquet'}, where this is {source.name})" in text
        )
        assert "training there will be refused; choose another directory" in text
        assert f"warning: {text}" in str(found)
        (folder / "state.penstock").unlink()
        (text,) = explain_model(source, folder, columns=COLUMNS).warnings
        assert text.endswith(f"was prepared for other data than {source.name}; training there prepares it anew")
        note["fingerprint"] = source.fingerprint
        (folder / "layout.json").write_text(json.dumps(note)[:-20])
        broken = explain_model(source, folder, columns=COLUMNS)
        assert not broken.prepared
        assert "layout.json is not whole; training there prepares it anew" in broken.warnings[0]


def test_a_directory_that_holds_something_else_is_told_of(tmp_path: Path) -> None:
    with open_source(sparse(300, dimension=1000, zipf=True)) as source:

        def told(folder: Path) -> str:
            (text,) = explain_model(source, folder, columns=COLUMNS).warnings
            return text

        factors, notes, file = tmp_path / "mf", tmp_path / "notes", tmp_path / "file"
        ratings = pa.table({"user": [1, 2, 1], "item": [1, 1, 2], "rating": [1.0, 2.0, 3.0]})
        with open_source(ratings) as rated:
            factor_job(rated, factors, FactorConfig(rank=2, epochs=1)).run()
        assert "holds a factorisation, and training there will be refused" in told(factors)
        notes.mkdir()
        assert not explain_model(source, notes, columns=COLUMNS).warnings
        (notes / "lock").touch()
        assert not explain_model(source, notes, columns=COLUMNS).warnings
        (notes / "lock").unlink()
        (notes / "letter.txt").touch()
        assert "other files (letter.txt), and training there will be refused" in told(notes)
        (notes / "state.penstock").write_text("nonsense")
        assert "holds no whole model, and training there will be refused" in told(notes)
        file.touch()
        assert "file is a file, and training there will be refused" in told(file)


def test_a_dimension_counts_and_an_index_beyond_it_is_refused(tmp_path: Path) -> None:
    with open_source(sparse(300, dimension=1000, zipf=True)) as source:
        found = explain_model(source, tmp_path / "m", columns=COLUMNS, dimension=1 << 45)
        assert found.dimension == 1 << 45
        assert found.full_model_bytes == 4 << 45
        with pytest.raises(DataError, match="1000"):
            explain_model(source, tmp_path / "m", columns=COLUMNS, dimension=1000)
        with pytest.raises(UsageError, match="dimension=0 is too few"):
            explain_model(source, tmp_path / "m", columns=COLUMNS, dimension=0)


def test_it_is_plain_json_and_writes_nothing(tmp_path: Path) -> None:
    with open_source(sparse(500, dimension=10**6, zipf=True)) as source:
        found = explain_model(source, tmp_path / "m", columns=COLUMNS, storage=Storage(model_memory="200kB"))
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["features"] == found.features
    assert told["exact"] is True
    assert told["epoch"]["bytes"] == found.epoch["bytes"]
    assert told["disk"]["bytes"] == found.disk["bytes"]
    assert not (tmp_path / "m").exists()


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with open_source(pa.table({"x": [1.0, 2.0], "y": [0, 1]})) as dense:
        with pytest.raises(UsageError, match="without model_dir"):
            explain_model(dense, tmp_path, columns=Columns("y"))
        with pytest.raises(UsageError, match="cannot live on disk"):
            explain_model(dense, tmp_path, columns=Columns("y"), model="softmax")
        with pytest.raises(UnknownOptionError, match="forest"):
            explain_model(dense, tmp_path, columns=Columns("y"), model="forest")
    with open_source(sparse(500, dimension=10**6, zipf=True)) as source, pytest.raises(BudgetError, match="too little"):
        explain_model(source, tmp_path, columns=COLUMNS, storage=Storage(model_memory="1kB"))
    empty = {"indices": pa.array([[]], pa.list_(pa.int64())), "values": pa.array([[]], pa.list_(pa.float32()))}
    with open_source(pa.table(empty)) as source, pytest.raises(DataError, match="no features"):
        explain_model(source, tmp_path)
    with open_source(pa.table(empty).slice(0, 0)) as source, pytest.raises(DataError, match="no rows"):
        explain_model(source, tmp_path)


def test_the_survey_counts_what_it_has_seen_whole(tmp_path: Path) -> None:
    table = sparse(300, dimension=5000, zipf=True)
    with open_source(table) as source:
        found = count_features(source, COLUMNS.recipe(source))
    values, counts = np.unique(table["indices"].combine_chunks().flatten().to_numpy(), return_counts=True)
    assert found.exact
    assert (found.rows, found.entries, found.features) == (300, 300 * NNZ, len(values))
    assert found.dimension == int(values.max()) + 1
    assert sum(features for features, _ in found.classes) == len(values)
    assert sum(entries for _, entries in found.classes) == counts.sum()


@pytest.mark.parametrize("times", [3.0, 30.0, 300.0])
@pytest.mark.parametrize(("exponent", "dimension"), [(0.0, 10**6), (0.8, 10**8), (1.0, 10**9), (1.2, 10**9)])
def test_the_number_of_features_is_extrapolated(exponent: float, dimension: int, times: float) -> None:
    edges = np.unique(np.logspace(0, np.log10(dimension), 3000).astype(np.int64))
    ranks, many = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    chances = ranks**-exponent / (many * ranks**-exponent).sum()

    def different(entries: float) -> float:
        return float((many * -np.expm1(-entries * chances)).sum())

    found, singles = growth_estimate([different(n) for n in (250_000, 500_000, 1e6)], times)
    assert within(found, different(times * 1e6))
    assert 0 <= singles <= 1


def test_more_memory_never_reads_more() -> None:
    classes = tuple((float(2**i), 2.0**22 / 8) for i in range(17))
    counts = FeatureCounts(100_000, 17 << 19, 2**17 - 1, 10**9, classes, 8 * (17 << 19), 12 << 17, 1.0)
    read = [expected_traffic(counts, Storage(model_memory=f"{n}kB"), memory=10**7) for n in range(150, 700, 25)]
    assert all(b.hit_rate >= a.hit_rate - 0.02 for a, b in pairwise(read))
    assert read[-1].pages_read < read[0].pages_read
