"""The pass before training: classes, width, means and spreads, equal to NumPy's, and what it refuses."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.memory import ArraySource, TableSource
from penstock.blocks.open import open as open_source
from penstock.columns.choose import choose_features
from penstock.errors import DataError, FeatureError, LabelError
from penstock.events import Finished, Started, Stream, Warned
from penstock.loader import Loader
from penstock.loader.moment_kernels import (
    add_dense_moments,
    add_dense_moments_reference,
    add_moments,
    add_moments_reference,
    inverse_sizes,
    inverse_sizes_reference,
)
from penstock.loader.scan import in_order, scan
from tests import kinds


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_means_and_spreads_equal_numpys(kind, tmp_path):
    x, y = kinds.rows()
    x[:, 1] = 1e4 + x[:, 1]  # a large mean costs no digits
    x[:, 2] = 7  # a constant becomes 0; of sparse rows, which are not centered, 1
    with kinds.store(kind, tmp_path, x, y) as source:
        recipe = kinds.recipe(source)
        found = scan(source, recipe, classes=True, standardize=True)
        assert found.rows == len(x)
        assert found.recipe.labels.classes == (0, 1)
        sparse = kinds.sparse(x).toarray() if recipe.sparse else x
        spread = sparse.std(axis=0, dtype=np.float64)
        if recipe.sparse:
            spread = np.sqrt((sparse.astype(np.float64) ** 2).mean(axis=0))
        expected = np.divide(1, spread, out=np.zeros(4), where=spread > 0)
        np.testing.assert_allclose(found.scaling.scale, expected, rtol=2e-3 if kind == "csv" else 1e-4)
        if recipe.sparse:
            assert len(found.scaling.shift) == 0
        else:
            np.testing.assert_allclose(found.scaling.shift, x.mean(axis=0), rtol=1e-5, atol=1e-5)
        for order in ("corgipile", "global", "once", "sliding-window"):
            with Loader(source, found.recipe, order, memory="50MB", scaling=found.scaling, scratch=tmp_path) as loader:
                rows = [w.batch for w in loader.epoch(0)]
                y_found = np.concatenate([b.y for b in rows])
                all_rows = np.concatenate([b.x.to_dense() if recipe.sparse else b.x for b in rows])
            shift = found.scaling.shift if len(found.scaling.shift) else np.zeros(4, np.float32)
            number = np.rint(all_rows[:, 0] / found.scaling.scale[0] + shift[0]).astype(int)
            np.testing.assert_allclose(all_rows, (sparse[number] - shift) * found.scaling.scale, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(y_found, 2 * y[number] - 1)


def test_the_width_of_sparse_rows_is_found(tmp_path):
    x, y = kinds.rows(200)
    with kinds.store("libsvm", tmp_path, x, y) as source:
        recipe = choose_features(source.schema, label="label")
        assert recipe.width is None
        assert scan(source, recipe, classes=False).recipe.width == 4


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["b", "a", "c", "a"], ("a", "b", "c")),
        ([True, False, True, True], (False, True)),
        ([3, -1, 3, 7], (-1, 3, 7)),
        ([0.5, 1.5, 0.5, 0.5], (0.5, 1.5)),
    ],
)
def test_classes_of_any_kind_are_collected(labels, classes):
    source = TableSource.of(pa.table({"a": [1.0, 2.0, 3.0, 4.0], "label": labels}), block_size=20)
    assert len(source.block_rows) > 1
    found = scan(source, choose_features(source.schema, label="label"), classes=True)
    assert found.recipe.labels.classes == classes


def test_only_what_is_needed_is_read(tmp_path):
    with kinds.store("arrow", tmp_path, *kinds.rows()) as source:
        asked = []
        real = source.read
        source.read = lambda block, columns=None: asked.append(columns) or real(block, columns)
        recipe = kinds.recipe(source)
        scan(source, recipe, classes=False)
        assert asked == []
        scan(source, recipe, classes=True)
        assert set(map(tuple, asked)) == {("label",)}
        assert len(asked) == len(source.block_rows)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_feature_that_is_not_finite_is_named(kind, value, tmp_path):
    if kind.startswith("packed") and np.isnan(value):
        pytest.skip("a file is converted with missing numbers filled")
    x, y = kinds.rows(500)
    x[444, 0] = value
    with kinds.store(kind, tmp_path, x, y) as source:
        recipe = kinds.recipe(source)
        name = "feature 0" if recipe.sparse else recipe.names[0].replace("[", r"\[")
        with pytest.raises(FeatureError, match=rf"'{name}' is not a finite number in row 444;"):
            scan(source, recipe, classes=True, standardize=True)


def test_a_missing_label_is_named_by_row():
    source = TableSource.of(pa.table({"a": np.arange(90.0), "label": [0, 1] * 44 + [None, 0]}), block_size=200)
    with pytest.raises(LabelError, match=r"'label' is missing \(null\) in row 88"):
        scan(source, choose_features(source.schema, label="label"), classes=True)


def test_no_rows_are_refused():
    source = ArraySource(np.empty((0, 3), np.float32), np.empty(0, np.int8), name="nothing.arrow")
    with pytest.raises(DataError, match=r"nothing.arrow has no rows; there is nothing to train on"):
        scan(source, kinds.recipe(source), classes=True)


def test_progress_is_told():
    heard = []
    source = ArraySource(*kinds.rows(), block_size=800)
    scan(source, kinds.recipe(source), classes=True, stream=Stream([heard.append]))
    assert heard[0] == Started("scan", len(source.block_rows), "blocks")
    assert sum(event.amount for event in heard[1:-1]) == len(source.block_rows)
    assert heard[-1] == Finished("scan")


def test_results_come_in_order_and_few_ahead():
    begun = []
    gate = threading.Event()

    def work(item):
        begun.append(item)
        if item == 0:
            gate.wait(5)
        return 10 * item

    results = in_order(work, range(100), threads=2)
    threading.Timer(0.2, gate.set).start()
    assert next(results) == 0
    assert len(begun) <= 8
    assert list(results) == [10 * i for i in range(1, 100)]


def test_a_failure_of_the_work_is_raised_and_the_rest_is_dropped():
    done = []

    def work(item):
        if item == 5:
            raise KeyError("five")
        done.append(item)
        return item

    found = []
    with pytest.raises(KeyError, match="five"):
        found.extend(in_order(work, range(1000), threads=2))
    assert found == [0, 1, 2, 3, 4]
    assert len(done) < 50
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock")]


def test_a_missing_class_is_told_with_its_file():
    rows = pa.record_batch({"x": [1.0, 2.0, 3.0], "y": ["a", None, "b"]})
    source = TableSource([rows], schema=rows.schema, name="clicks.parquet")
    with pytest.raises(LabelError, match=r"clicks.parquet: 'y' is missing \(null\) in row 1"):
        scan(source, choose_features(source.schema, label="y"), classes=True)


@pytest.mark.parametrize(("first", "rows"), [(0, 0.0), (3, 0.0), (2, 50.0)])
def test_moments_of_sparse_features_equal_their_twins(first, rows):
    rng = np.random.default_rng(1)
    indices, values = rng.integers(0, 20, 300).astype(np.uint32), rng.normal(size=300).astype(np.float32)
    values[::7] = 0
    sums = [(np.zeros(24), np.zeros(24)) for _ in range(2)]
    add_moments(indices, values, first, *sums[0])
    add_moments_reference(indices, values, first, *sums[1])
    for ours, plain in zip(*sums, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-12)
    scales = np.empty((2, 24), np.float32)
    inverse_sizes(sums[0][1], sums[0][0], rows, scales[0])
    inverse_sizes_reference(sums[0][1], sums[0][0], rows, scales[1])
    np.testing.assert_allclose(scales[0], scales[1], rtol=1e-6)
    assert not scales[0][20:].any()  # features that do not occur


@pytest.mark.parametrize("width", [1, 3, 28])
def test_moments_of_dense_features_equal_their_twin(width):
    rng = np.random.default_rng(2)
    x = rng.normal(1e4, 1, (50, width)).astype(np.float32)
    x[::7, 0] = np.nan
    origin = x[1].astype(np.float64)
    sums = [[np.zeros(width) for _ in range(3)] for _ in range(2)]
    add_dense_moments(x, origin, *sums[0])
    add_dense_moments_reference(x, origin, *sums[1])
    for ours, plain in zip(*sums, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-9, atol=1e-9)
    assert sums[0][0][0] == 8


def test_each_block_is_read_once(tmp_path):
    path = tmp_path / "rows.svm"
    path.write_text("1 1:0.5 7:2\n0 2:1\n" * 50)
    with open_source(path) as source:
        reads = []
        read = source.read
        source.read = lambda block, columns=None: reads.append(block) or read(block, columns)
        scan(source, choose_features(source.schema, label="label"), classes=True, standardize=True)
        assert reads == list(range(len(source.block_rows)))


def test_columns_far_from_zero_beside_their_spread_are_told():
    rng = np.random.default_rng(0)
    columns = {
        "near": rng.normal(1e4, 1, 500),
        "stamp": rng.normal(1.7e9, 1e3, 500),
        "lost": rng.normal(1.7e12, 10, 500),
    }
    table = pa.table({**columns, "year": np.full(500, 2024.0), "y": rng.integers(0, 2, 500)})
    source, told = TableSource.of(table), []
    scan(source, choose_features(table.schema, label="y"), classes=True, standardize=True, stream=Stream([told.append]))
    warnings = [str(event.message) for event in told if isinstance(event, Warned)]
    assert len(warnings) == 1
    assert "stamp" in warnings[0]
    assert "lost" in warnings[0]
    assert "near" not in warnings[0]
    assert "year" not in warnings[0]
