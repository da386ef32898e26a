"""A training job: resumed to the bit, stopped in time, and clear about data that cannot be learned from."""

from __future__ import annotations

import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp

from penstock.batch import Batch
from penstock.blocks import convert
from penstock.blocks.memory import ArraySource, TableSource
from penstock.blocks.open import open as open_source
from penstock.config import Config
from penstock.errors import (
    BudgetError,
    ColumnError,
    CorruptFileError,
    DataChangedError,
    DataError,
    DivergedError,
    FeatureError,
    LabelError,
    ModelFileError,
    UsageError,
)
from penstock.evaluation import evaluate
from penstock.events import Advanced, Epoch, Finished, Started, Stream, Warned
from penstock.linear import LinearModel
from penstock.memory_learner import linear_job
from penstock.shuffle import ORDERS
from penstock.training import Columns, default_label
from tests import kinds
from tests.unit.test_loader_plan import smallest_named

LABEL = Columns(label="label")


def blobs(rows=600, width=5, classes=2, seed=0):
    """Return rows about as many centres as there are classes, sorted by class."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.integers(0, classes, rows))
    return (2 * rng.standard_normal((classes, width))[y] + rng.standard_normal((rows, width))).astype(np.float32), y


def train(source, *, columns=LABEL, checkpoint=None, resume=False, test=None, scratch=None, listeners=(), **options):
    config = Config(**{"epochs": 3, "memory": "10MB", **options})
    job = linear_job(
        source, config, columns, test=test, checkpoint=checkpoint, scratch=scratch, stream=Stream(list(listeners))
    )
    return job.run(resume=resume)


class KilledError(Exception):
    pass


def kill_after(epochs):
    def listen(event):
        if isinstance(event, Epoch) and event.epoch == epochs + 1:
            raise KilledError

    return listen


CONFIGS = {
    "logistic": {},
    "svm with a small budget": {"model": "svm", "memory": "12kB"},
    "linear": {"model": "linear", "solver": "sgd"},
    "softmax": {"model": "softmax", "l2": 1e-3},
    "standardised": {"standardize": True, "batch_size": 16, "l1": 1e-3},
    "stopping early": {"validation": 0.2, "patience": 2, "epochs": 12, "learning_rate": 0.5},
    "inverse scaling": {"rate": "inverse-scaling", "batch_size": 7},
    **{f"by {order}": {"shuffle": order, "memory": "30kB"} for order in ORDERS},
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_resumed_equals_uninterrupted_to_the_bit(name, sparse, tmp_path):
    options = {"epochs": 5, **CONFIGS[name]}
    x, y = blobs(classes=3 if options.get("model") == "softmax" else 2)
    if sparse:
        x = sp.csr_matrix(np.where(np.abs(x) > 1, x, 0))
        options |= {"l1": 1e-3, "l2": 1e-3}
    make = lambda: ArraySource(x, y, block_size=800)  # noqa: E731
    whole = train(make(), scratch=tmp_path, **options)
    checkpoint = tmp_path / "c.penstock"
    for after in (0, 2):
        with pytest.raises(KilledError):
            train(
                make(), checkpoint=checkpoint, scratch=tmp_path, listeners=[kill_after(after)], resume=True, **options
            )
    assert os.path.exists(checkpoint)
    resumed = train(make(), checkpoint=checkpoint, scratch=tmp_path, resume=True, **options)
    for found in (resumed, train(make(), checkpoint=checkpoint, scratch=tmp_path, resume=True, **options)):
        np.testing.assert_array_equal(found.weights.coef, whole.weights.coef)
        np.testing.assert_array_equal(found.weights.intercept, whole.weights.intercept)
        timed = ("seconds", "rows_per_second", "mb_per_second", "prepare_seconds", "bytes")
        rows = [[{k: v for k, v in row.items() if k not in timed} for row in m.history] for m in (found, whole)]
        assert rows[0] == rows[1]
        assert found.metrics == whole.metrics
    assert os.listdir(tmp_path) == ["c.penstock"]


def test_resume_goes_on_for_more_epochs_and_starts_where_there_is_nothing(tmp_path):
    source = ArraySource(*blobs())
    whole = train(source, epochs=6)
    train(source, epochs=2, checkpoint=tmp_path / "c", resume=True)
    further = train(source, epochs=6, checkpoint=tmp_path / "c", resume=True)
    np.testing.assert_array_equal(further.weights.coef, whole.weights.coef)
    assert [row["epoch"] for row in further.history] == [1, 2, 3, 4, 5, 6]


def test_resume_refuses_other_data_and_other_configs_by_name(tmp_path):
    x, y = blobs()
    checkpoint = tmp_path / "c.penstock"
    train(ArraySource(x, y), checkpoint=checkpoint)
    with pytest.raises(UsageError, match=r"made with l2=None, this run has 0.5; .*without resume=True"):
        train(ArraySource(x, y), checkpoint=checkpoint, resume=True, l2=0.5)
    with pytest.raises(
        DataChangedError, match=r"arrays is not the data that .*c\.penstock was made from; .*resume=True"
    ):
        train(ArraySource(x + 1, y), checkpoint=checkpoint, resume=True)
    model = tmp_path / "model.penstock"
    train(ArraySource(x, y)).save(model)
    with pytest.raises(ModelFileError, match=r"model\.penstock is a finished model, not a checkpoint"):
        train(ArraySource(x, y), checkpoint=model, resume=True)
    checkpoint.write_bytes(checkpoint.read_bytes()[:200])
    with pytest.raises(ModelFileError, match="not a whole model file"):
        train(ArraySource(x, y), checkpoint=checkpoint, resume=True)


@pytest.mark.parametrize("name", ["data.csv", "data.parquet", "data.arrow"])
def test_resume_knows_data_by_their_content(tmp_path, name):
    x, y = blobs()
    table, path = pa.table({"a": x[:, 0], "b": x[:, 1], "label": y}), tmp_path / name

    def write(values):
        if name.endswith("csv"):
            path.write_text("a,b,label\n" + "".join(f"{a:.6e},{b:.6e},{c}\n" for a, b, c in values))
        elif name.endswith("parquet"):
            pq.write_table(pa.table({n: [v[k] for v in values] for k, n in enumerate(table.column_names)}), path)
        else:
            convert(
                pa.table({n: [v[k] for v in values] for k, n in enumerate(table.column_names)}), path, label="label"
            )

    values = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    write(values)
    before = path.stat()
    with open_source(path) as source:
        train(source, checkpoint=tmp_path / "c", epochs=2)
    write(values)
    os.utime(path, ns=(1, 1))  # restored, so of another time
    with open_source(path) as source:
        train(source, checkpoint=tmp_path / "c", epochs=3, resume=True)
    a, b, c = values[300]
    values[300] = (b, a, c)
    write(values)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size or name.endswith("parquet")
    with open_source(path) as source, pytest.raises(DataChangedError, match=name):
        train(source, checkpoint=tmp_path / "c", epochs=4, resume=True)


def test_two_trainings_with_one_checkpoint(tmp_path):
    source = ArraySource(*blobs())

    def begin_another(event):
        if isinstance(event, Epoch):
            train(source, checkpoint=tmp_path / "c")

    with pytest.raises(UsageError, match="being written by another process"):
        train(source, checkpoint=tmp_path / "c", listeners=[begin_another])


def test_a_file_that_changes_while_it_is_learned_from_is_noticed(tmp_path):
    with kinds.store("packed", tmp_path, *kinds.rows()) as source:

        def touch(event):
            if isinstance(event, Epoch):
                os.utime(source.name, ns=(1, 1))

        with pytest.raises(DataChangedError, match=r"packed\.arrow was changed while it was in use"):
            train(source, listeners=[touch], memory="20kB")


@pytest.mark.parametrize("measured", ["validation", "unsaid", "test", "nothing"])
def test_early_stopping_keeps_the_best_weights(measured):
    x, y = blobs(rows=150, width=60, seed=5)
    y = np.where(np.random.default_rng(1).random(len(y)) < 0.2, 1 - y, y)  # there is something to overfit
    options = {"epochs": 40, "learning_rate": 0.5, "decay": 1.0, "patience": 4, "tolerance": 0.02, "standardize": True}
    test = ArraySource(*blobs(rows=200, width=60, seed=5)) if measured == "test" else None
    share = {"validation": 0.3, "test": 0.0, "nothing": 0.0}.get(measured)
    options["validation"] = share
    model = train(ArraySource(x, y), test=test, **options)
    name = {"nothing": "progressive_loss", "test": "test_loss"}.get(measured, "held_out_loss")
    losses = [row[name] for row in model.history]
    if measured != "nothing":
        assert len(losses) < 40
    best = int(np.argmin(losses))
    shorter = train(ArraySource(x, y), test=test, **{**options, "epochs": best + 1})
    np.testing.assert_array_equal(model.weights.coef, shorter.weights.coef)
    if measured != "nothing":
        assert model.metrics[name] == losses[best]
    else:  # the best weights themselves, on the rows they were learned from
        assert model.metrics["training_loss"] == pytest.approx(evaluate(model, ArraySource(x, y))["loss"], rel=1e-4)


def test_validation_measures_rows_that_were_not_learned_from():
    x, y = blobs(rows=1000)
    model = train(ArraySource(x, y), validation=0.25, epochs=2)
    assert [row["rows"] for row in model.history] == [model.history[0]["rows"]] * 2
    assert 680 < model.history[0]["rows"] < 820
    assert 0.5 < model.metrics["held_out_accuracy"] <= 1
    assert model.metrics["held_out_rows"] == 1000 - model.history[0]["rows"]


@pytest.mark.parametrize(("rows", "low", "high"), [(499, 0, 0), (500, 25, 80), (3000, 220, 380)])
def test_a_tenth_of_the_rows_is_held_out_unless_there_are_few(rows, low, high):
    model = train(ArraySource(*blobs(rows=rows)), epochs=2)
    held_out = model.metrics.get("held_out_rows", 0)
    assert low <= held_out <= high
    assert model.history[-1]["rows"] == rows - held_out


def test_no_more_than_about_ten_thousand_rows_are_held_out():
    model = train(ArraySource(*blobs(rows=200_000, width=2)), epochs=1, memory="100MB")
    assert 9_500 < model.metrics["held_out_rows"] < 10_500


def test_a_test_set_leaves_all_rows_to_learn_from():
    model = train(ArraySource(*blobs(rows=1000)), test=ArraySource(*blobs(rows=300)))
    assert model.history[-1]["rows"] == 1000
    assert not any(name.startswith("held_out") for name in model.metrics)


def test_where_nothing_is_held_out_the_finished_model_is_measured_on_training_rows():
    x, y = blobs(rows=30_000, width=3)
    source = ArraySource(x, y)
    model = train(source, validation=0)
    assert model.history[-1]["rows"] == 30_000
    assert not {"loss", "accuracy", "progressive_accuracy"} & set(model.metrics)
    assert 9_500 < model.metrics["training_rows"] < 10_500
    measured = evaluate(model, source)
    assert model.metrics["training_accuracy"] == pytest.approx(measured["accuracy"], abs=0.02)
    assert model.metrics["training_loss"] == pytest.approx(measured["loss"], rel=0.1)


@pytest.mark.parametrize("shuffle", ["none", "once", "global", "corgipile"])
def test_the_headline_of_sorted_rows_is_that_of_rows_never_seen(shuffle, tmp_path):
    # In stored order each row is scored after others of its class: the progressive accuracy is near 1, the model's is not.
    rng = np.random.default_rng(1)
    y = np.arange(28_000) // 14_000
    x = (rng.standard_normal((28_000, 4)) + 0.3 * (2 * y[:, None] - 1)).astype(np.float32)
    unseen = rng.random(len(y)) < 0.7
    test = ArraySource(x[unseen], y[unseen])
    x, y = x[~unseen], y[~unseen]
    path = tmp_path / "sorted.arrow"
    convert(pa.table({"label": y, **{f"x{j}": x[:, j] for j in range(4)}}), path, label="label", block_size="4KB")
    with open_source(path) as source:
        model = train(source, shuffle=shuffle, memory="60kB", scratch=tmp_path)
    truth = evaluate(model, test)["accuracy"]
    assert model.metrics["held_out_accuracy"] == pytest.approx(truth, abs=0.04)
    if shuffle == "none":
        assert model.history[-1]["progressive_accuracy"] > truth + 0.1


@pytest.mark.parametrize("shuffle", ORDERS)
def test_holding_rows_out_needs_no_more_memory_than_learning(shuffle, tmp_path):
    x, y = blobs(rows=3_000)
    make = lambda: ArraySource(x, y, block_size=2_000)  # noqa: E731
    with pytest.raises(BudgetError) as refused:
        train(make(), shuffle=shuffle, memory=100, validation=0, scratch=tmp_path)
    least, _ = smallest_named(refused)
    test = ArraySource(*blobs(rows=500), block_size=2_000)
    for options in ({}, {"validation": 0.3}, {"validation": 0.3, "test": test}):
        model = train(make(), shuffle=shuffle, memory=least, scratch=tmp_path, **options)
        assert 0 < model.metrics["held_out_rows"] < 1_200
        if shuffle != "mrs":  # which learns from some rows twice
            assert model.metrics["held_out_rows"] + model.history[0]["rows"] == 3_000


def test_a_share_that_holds_out_no_row_is_refused():
    with pytest.raises(DataError):
        train(ArraySource(*blobs(rows=20)), validation=0.001)


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_full_passes_go_on_with_the_rows_held_out_once_these_are_measured(model):
    x, y = blobs(rows=1000)
    found, whole, apart = (
        train(ArraySource(x, y), model=model, epochs=100, tolerance=1e-7, validation=share) for share in (None, 0, 0.1)
    )
    np.testing.assert_allclose(found.weights.coef, whole.weights.coef, rtol=1e-3)
    assert np.abs(apart.weights.coef - whole.weights.coef).max() > 1e-3
    assert found.metrics["held_out_loss"] == apart.metrics["held_out_loss"]  # of weights that have not seen these rows


@pytest.mark.parametrize("resumed", [False, True])
def test_sgd_begins_anew_with_the_rows_held_out_once_these_are_measured(resumed, tmp_path):
    x, y = blobs(rows=1000)
    y = np.where(np.random.default_rng(0).random(1000) < 0.2, 1 - y, y)
    checkpoint = tmp_path / "half.penstock" if resumed else None
    found = train(ArraySource(x, y), solver="sgd", epochs=None, checkpoint=checkpoint)
    if resumed:
        found = train(ArraySource(x, y), solver="sgd", epochs=None, checkpoint=checkpoint, resume=True)
    best = 1 + [row["held_out_loss"] for row in found.history].index(found.metrics["held_out_loss"])
    whole = train(ArraySource(x, y), solver="sgd", epochs=best, validation=0)
    np.testing.assert_array_equal(found.weights.coef, whole.weights.coef)


def test_held_out_rows_that_are_few_do_not_end_training_by_chance():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((600, 20)).astype(np.float32)
    y = x @ rng.standard_normal(20) + 2 * rng.standard_normal(600)
    options = {"model": "linear", "solver": "sgd", "epochs": None}
    losses = [row["held_out_loss"] for row in train(ArraySource(x, y), **options).history]
    given = [row["held_out_loss"] for row in train(ArraySource(x, y), patience=5, **options).history]
    assert len(losses) > 2 * len(given)
    assert len(losses) < 500


def test_weights_are_averaged_over_the_epochs_unless_told_otherwise():
    x, y = blobs(rows=1000)
    y = np.where(np.random.default_rng(0).random(1000) < 0.3, 1 - y, y)
    options = {"solver": "sgd", "learning_rate": 0.5, "epochs": 3, "validation": 0}
    best = train(ArraySource(x, y), epochs=100, l2=0, validation=0).weights.coef
    apart = [
        np.abs(train(ArraySource(x, y), average=average, l2=0, **options).weights.coef - best).max()
        for average in (True, False)
    ]
    assert 2 * apart[0] < apart[1]


@pytest.mark.parametrize("model", ["logistic", "svm", "linear", "softmax"])
def test_no_feature_is_too_large_for_the_steps(model):
    x, y = blobs(rows=2000, classes=3 if model == "softmax" else 2)
    small = train(ArraySource(x, y), model=model, solver="sgd", epochs=5, validation=0)
    large = train(ArraySource(1e4 * x + 1e6, y), model=model, solver="sgd", epochs=5, validation=0)
    raw = train(ArraySource(1e4 * x, y), model=model, solver="sgd", epochs=5, validation=0, standardize=False)
    name = "training_r2" if model == "linear" else "training_accuracy"
    assert large.metrics[name] == pytest.approx(small.metrics[name], abs=0.02)
    assert raw.metrics[name] > 0.5  # not scaled, but no step overshoots


def test_the_share_of_a_checkpoint_outlives_what_is_asked_for_later(tmp_path):
    x, y = blobs(rows=1000)
    checkpoint = tmp_path / "c.penstock"
    first = train(ArraySource(x, y), epochs=1, checkpoint=checkpoint)
    further = train(ArraySource(x, y), epochs=3, checkpoint=checkpoint, resume=True)
    assert further.history[-1]["rows"] == first.history[0]["rows"] < 1000
    with pytest.raises(UsageError, match="validation"):
        train(ArraySource(x, y), epochs=3, checkpoint=checkpoint, resume=True, validation=0.5)


def test_a_test_set_is_measured_and_equals_evaluation():
    x, y = blobs(rows=1000)
    test = ArraySource(*blobs(rows=300, seed=0), block_size=500)
    model = train(ArraySource(x, y), test=test, validation=0.1)
    measured = evaluate(model, test)
    assert measured["rows"] == 300
    assert model.metrics["test_accuracy"] == pytest.approx(measured["accuracy"], abs=0.01)
    assert model.metrics["test_loss"] == pytest.approx(measured["loss"], rel=1e-3)


def test_events_tell_the_story():
    heard = []
    train(ArraySource(*blobs(), block_size=800), listeners=[heard.append], epochs=2, memory="1MB", validation=0)
    assert [type(e) for e in heard if not isinstance(e, Advanced)] == [
        Started, Finished, Started, Epoch, Epoch, Finished,
    ]  # fmt: skip
    assert sum(e.amount for e in heard if isinstance(e, Advanced) and e.task == "train") == 1200
    epochs = [e for e in heard if isinstance(e, Epoch)]
    assert [(e.epoch, e.rows, e.metric) for e in epochs] == [(1, 600, "accuracy"), (2, 600, "accuracy")]
    assert epochs[0].bytes > 0


@pytest.mark.parametrize("shuffle", ["corgipile", "none", "once"])
def test_divergence_names_the_epoch_and_the_remedy(shuffle, tmp_path):
    x, y = blobs()
    options = {"model": "linear", "standardize": False, "learning_rate": 10.0, "shuffle": shuffle}
    with pytest.raises(
        DivergedError,
        match=r"diverged in epoch 1 at learning rate 10: .*leave learning_rate out, .*\(try 0\.1\) or standardize=True",
    ):
        train(ArraySource(100 * x, y), scratch=tmp_path, **options)
    # Steps a little over twice the largest that converges: the error grows by half in an epoch.
    slow = {"model": "linear", "standardize": False, "intercept": False, "learning_rate": 2.02, "decay": 1.0, "l2": 0}
    with pytest.raises(
        DivergedError, match=r"diverged in epoch [1-3][0-9] at learning rate 2.02: the loss is .*rising"
    ):
        train(ArraySource(np.ones((20, 1)), np.ones(20)), shuffle=shuffle, epochs=100, scratch=tmp_path, **slow)
    assert not [t for t in threading.enumerate() if t.name.startswith("penstock")]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("shuffle", ORDERS)
@pytest.mark.parametrize("memory", ["small", "large"])
@pytest.mark.parametrize("kind", ["packed", "arrow", "parquet", "npy", "csv", "libsvm", "packed-sparse"])
def test_a_feature_that_is_not_finite_is_named_by_its_row_and_column_in_the_file(kind, shuffle, memory, tmp_path):
    x, y = kinds.rows(800)
    x[:, 0] /= 1000
    x[611, 2] = np.inf
    with kinds.store(kind, tmp_path, x, y) as source:
        recipe = kinds.recipe(source)
        if shuffle == "global" and memory == "small" and kind not in kinds.EXACT:
            return
        name = "feature 2" if recipe.sparse else recipe.names[2]
        size = "10MB" if memory == "large" else kinds.small_memory(source, recipe, shuffle)
        columns = Columns(label=recipe.label)
        # MRS leaves rows out of an epoch; this one is visited in some epoch.
        with pytest.raises(FeatureError, match=r"row 611\b") as error:
            train(source, columns=columns, shuffle=shuffle, memory=size, scratch=tmp_path, epochs=8)
        assert name in str(error.value)
        assert source.name in str(error.value)
        assert len(str(error.value)) < 300


def test_a_bad_row_of_the_test_set_is_not_called_one_of_the_training_set(tmp_path):
    x, y = kinds.rows(400)
    x[:, 0] /= 1000
    with kinds.store("packed", tmp_path, x, y) as source:
        other = tmp_path / "test"
        other.mkdir()
        x[123, 1] = np.nan
        with kinds.store("csv", other, x, y) as test:
            with pytest.raises(FeatureError, match=r"row 123 of .*test/csv\.csv has nan in f1"):
                train(source, test=test)
            model = train(source)
            with pytest.raises(FeatureError, match=r"row 123 of .*test/csv\.csv has nan in f1"):
                evaluate(model, test)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["ham", "spam"], ["ham", "spam"]),
        ([7, -3], [-3, 7]),
        ([True, False], [False, True]),
        ([0.5, 1.5], [0.5, 1.5]),
        ([2**60, 2**60 + 1], [2**60, 2**60 + 1]),
    ],
)
@pytest.mark.parametrize("model", ["logistic", "softmax"])
def test_labels_of_any_kind_come_back_as_they_were(labels, classes, model, tmp_path):
    x, y = blobs()
    given = pa.array([labels[i] for i in y])
    table = kinds.table(x, y).set_column(5, "label", given)
    made = train(TableSource.of(table), model=model, epochs=5)
    made.save(tmp_path / "m")
    for each in (made, LinearModel.load(tmp_path / "m")):
        assert each.classes.tolist() == classes
        told = [b.column("prediction").to_pylist() for b in each.predictions(TableSource.of(table))]
        found = [v for part in told for v in part]
        assert np.mean([a == b for a, b in zip(found, given.to_pylist(), strict=True)]) > 0.9
        assert all(type(v) is type(classes[0]) for v in found)


@pytest.mark.parametrize("model", ["logistic", "svm", "softmax"])
def test_a_single_class_is_refused(model):
    with pytest.raises(LabelError, match=r"'label' has .*(single class|1 classes) \(4\)"):
        train(ArraySource(blobs()[0], np.full(600, 4)), model=model)


def test_a_logistic_model_of_three_classes_is_softmax_and_that_is_told(caplog):
    x, y = blobs(classes=3)
    model = train(ArraySource(x, y))
    assert (model.kind, model.weights.outputs) == ("softmax", 3)
    assert "'label' has 3 classes, so the model is softmax" in caplog.text
    assert evaluate(model, ArraySource(x, y))["accuracy"] > 0.9


def test_too_many_classes_are_refused_with_the_way_out():
    x, y = blobs(classes=3)
    with pytest.raises(LabelError, match=r"'label' has 3 classes \(0, 1, 2\) where two are needed; use softmax"):
        train(ArraySource(x, y), model="svm")
    many = np.arange(20_000.0)
    with pytest.raises(LabelError, match=r"over 10000 different values; .*model='linear'"):
        train(ArraySource(many[:, None], many), model="softmax")


def test_columns_that_are_not_there_are_named_with_the_nearest():
    source = TableSource.of(kinds.table(*kinds.rows(50)), name="t")
    with pytest.raises(ColumnError, match=r"has no label column 'lable'; it has: f0, .*did you mean 'label'"):
        train(source, columns=Columns(label="lable"))
    with pytest.raises(UsageError, match=r"say which column of t is the label; it has: f0, f1, f2, f3, label"):
        train(TableSource.of(kinds.table(*kinds.rows(50)), name="t"), columns=Columns())


def test_converted_files_and_libsvm_name_their_own_label(tmp_path):
    for kind, expected in (("packed", "label"), ("libsvm", "label"), ("npy", None), ("csv", None)):
        with kinds.store(kind, tmp_path, *kinds.rows(100)) as source:
            assert default_label(source) == expected


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("sparse", [False, True])
def test_standardising_smuggles_no_intercept_in(intercept, sparse):
    x, y = blobs()
    x += 10
    made = train(ArraySource(sp.csr_matrix(x) if sparse else x, y), standardize=True, intercept=intercept, epochs=5)
    assert (made.weights.intercept[0] != 0) == intercept
    zero = np.zeros((1, 5), np.float32)
    assert (float(made.scores(Batch(zero))[0]) == 0) == (not intercept)


@pytest.mark.parametrize(("sparse", "intercept"), [(False, True), (False, False), (True, True), (True, False)])
def test_a_constant_feature_does_not_ruin_a_standardised_model(sparse, intercept):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 4)).astype(np.float32)
    y = (x[:, 0] - x[:, 1] > 0).astype(np.int64)
    x[:, 2], x[:, 3] = 2013, np.float32(1e-4) + rng.choice([0, 7e-12], 2000)  # the second one varies by rounding only
    source = ArraySource(sp.csr_matrix(x) if sparse else x, y)
    made = train(source, standardize=True, intercept=intercept, epochs=5)
    assert ((made.scores(Batch(x)) > 0) == (y > 0)).mean() > 0.95
    if intercept and not sparse:
        assert (made.weights.coef[0, 2:] == 0).all()


def test_a_model_is_in_the_features_own_units():
    x, y = blobs()
    scaled = train(ArraySource(x * 1000 + 5, y), standardize=True, epochs=10)
    plain = train(ArraySource(x, y), standardize=True, epochs=10)
    np.testing.assert_allclose(scaled.weights.coef * 1000, plain.weights.coef, rtol=1e-2)


def test_weights_count_as_repeated_rows_do():
    x, y = blobs(rows=300)
    weight = np.where(y == 0, 3.0, 1.0)
    table = kinds.table(x, y).append_column("w", pa.array(weight))
    by_weight = train(TableSource.of(table), columns=Columns(label="label", weight="w"), epochs=20)
    repeat = np.repeat(np.arange(300), weight.astype(int))
    by_rows = train(TableSource.of(kinds.table(x[repeat], y[repeat])), epochs=20)
    found, expected = (m.scores(Batch(x)) for m in (by_weight, by_rows))
    assert np.mean((found > 0) == (expected > 0)) > 0.97


def test_the_smallest_budget_named_is_for_training_and_measuring_together():
    source = ArraySource(*blobs(rows=5000), block_size=4000)
    for options in ({}, {"validation": 0.2}, {"validation": 0.2, "shuffle": "sliding-window"}):
        with pytest.raises(BudgetError) as error:
            train(source, memory="1kB", **options)
        size, _ = smallest_named(error)
        assert train(source, memory=size, epochs=1, **options).history


def test_a_source_that_cannot_be_read_keeps_its_error(tmp_path):
    with kinds.store("packed", tmp_path, *kinds.rows(3000)) as source:
        os.truncate(source.name, os.path.getsize(source.name) // 2)
        with pytest.raises((CorruptFileError, DataChangedError), match=r"packed\.arrow"):
            train(source, memory="30kB")


def test_no_epochs_make_a_model_that_knows_nothing():
    made = train(ArraySource(*blobs()), epochs=0)
    assert not made.weights.coef.any()
    assert made.history == []


def test_text_columns_can_be_hashed():
    rng = np.random.default_rng(0)
    city = rng.choice(["rome", "oslo", "lima"], 500)
    table = pa.table({"city": city, "age": rng.random(500), "label": (city == "oslo").astype(int)})
    assert train(TableSource.of(table)).recipe.names == ("city=lima", "city=oslo", "city=rome", "age")
    made = train(TableSource.of(table), columns=Columns(label="label", hash=["city:2^10"]), epochs=5)
    assert evaluate(made, TableSource.of(table))["accuracy"] == 1
    assert made.weights.width == 1025


def test_a_model_learnt_on_a_converted_file_scores_the_unconverted_one_and_the_reverse(tmp_path):
    x, y = blobs()
    table = kinds.table(x, y)
    shuffled = table.select(["label", "f3", "f1", "f0", "f2", "f4"])
    convert(table, tmp_path / "a.arrow", label="label")
    with open_source(tmp_path / "a.arrow") as packed:
        plain = TableSource.of(shuffled)
        for learnt, others in ((packed, (plain, packed)), (TableSource.of(table), (plain, packed))):
            made = train(learnt, epochs=5)
            made.save(tmp_path / "m")
            for model in (made, LinearModel.load(tmp_path / "m")):
                assert model.recipe.names == ("f0", "f1", "f2", "f3", "f4")
                told = [
                    np.concatenate([b.column("prediction").to_numpy() for b in model.predictions(source)])
                    for source in others
                ]
                np.testing.assert_array_equal(told[0], told[1])
                assert evaluate(model, others[0])["accuracy"] > 0.9


def test_of_a_wide_file_without_a_label_only_some_columns_are_listed(tmp_path):
    np.save(tmp_path / "wide.npy", np.zeros((4, 785), np.float32))
    with pytest.raises(UsageError, match=r"is the label; it has: 0, 1, .*, 19, … \(785 in all\)"):
        train(open_source(tmp_path / "wide.npy"), columns=Columns())


def test_steps_too_large_for_the_features_are_warned_of():
    x, y = blobs()
    heard = []
    train(ArraySource(100 * x, y), learning_rate=1.0, standardize=False, listeners=[heard.append])
    (warning,) = [event for event in heard if isinstance(event, Warned)]
    assert "worse than a guess" in warning.message
    assert "smaller learning rate" in warning.message
    heard.clear()
    train(
        ArraySource(1.5 * x, y), learning_rate=1.0, standardize=False, epochs=1, listeners=[heard.append]
    )  # right in most rows all the same
    (epoch,) = [event for event in heard if isinstance(event, Epoch)]
    assert (epoch.progressive_loss > 0.7, epoch.progressive_score > 0.75) == (True, True)
    (warning,) = [event for event in heard if isinstance(event, Warned)]
    assert "predicted probabilities are of no use" in warning.message
    heard.clear()
    train(ArraySource(x, y), learning_rate=0.01, listeners=[heard.append])
    assert not [event for event in heard if isinstance(event, Warned)]


def test_epochs_added_to_a_run_that_kept_its_best_weights_count(tmp_path):
    source = ArraySource(*blobs(3000))
    options = {
        "solver": "sgd",
        "learning_rate": 1e-4,
        "rate": "constant",
        "validation": 0.2,
        "checkpoint": tmp_path / "c",
    }
    with pytest.raises(KilledError):
        train(source, epochs=None, listeners=[kill_after(3)], **options)
    model = train(source, epochs=9, resume=True, **options)
    losses = [row["held_out_loss"] for row in model.history]
    assert len(losses) == 9
    assert model.metrics["held_out_loss"] == min(losses) < losses[2]


def test_test_rows_that_are_the_training_rows_are_warned_of():
    rows, heard = ArraySource(*blobs()), []
    train(rows, test=rows, epochs=1, listeners=[heard.append])
    assert [e for e in heard if isinstance(e, Warned) and "the test rows are the training rows" in str(e.message)]


def test_a_label_that_is_not_named_is_asked_for_before_features_are_looked_at():
    rows = TableSource.of(pa.table({"x": [1.0, 2.0], "kind": ["a", "b"]}))
    with pytest.raises(UsageError, match="say which column of table is the label; it has: x, kind"):
        train(rows, columns=Columns())
