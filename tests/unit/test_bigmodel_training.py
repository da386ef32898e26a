"""A linear model on disk, from rows to predictions: equal to one in memory, resumable, and clear about what it refuses."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import penstock
from penstock.bigmodel import LinearRegression, LinearSVM, LogisticRegression
from penstock.bigmodel.model import BigLinearModel
from penstock.blocks.memory import TableSource
from penstock.config import Config
from penstock.errors import (
    BudgetError,
    CorruptFileError,
    DataChangedError,
    FeatureError,
    ModelFileError,
    PenstockError,
    UnknownOptionError,
    UsageError,
)
from penstock.events import Epoch
from penstock.lock import locked
from penstock.memory_learner import linear_job
from penstock.training import Columns

SMALL = "1.2MB"
"""For rows and a model; two thirds of the pages of `wide_table` fit."""


def table(rows=400, *, nnz=12, seed=0, dimension=5000, shift=0):
    """Rows whose features are mostly low numbers; some of them decide the label."""
    rng = np.random.default_rng(seed)
    indices = [np.unique((dimension ** rng.random(nnz)).astype(np.int64)) + shift for _ in range(rows)]
    values = [rng.normal(size=len(i)).astype(np.float32) for i in indices]
    label = [int(v[i % 3 == 0].sum() > 0) for i, v in zip(indices, values, strict=True)]
    return pa.table(
        {
            "indices": pa.array([i.tolist() for i in indices], pa.list_(pa.int64())),
            "values": pa.array([v.tolist() for v in values], pa.list_(pa.float32())),
            "y": label,
        }
    )


def wide_table(rows=3000, *, nnz=150, seed=0):
    """Some 400,000 features, most of which occur once."""
    return table(rows, nnz=nnz, seed=seed, dimension=10**12)


def learnt(folder, data, *, kind=LogisticRegression, **options):
    options = {"epochs": 3, "memory": "60MB", "learning_rate": 0.05, **options}
    return kind(folder, **options).fit(data, y="y")


@pytest.mark.parametrize(("kind", "name"), [(LogisticRegression, "logistic"), (LinearSVM, "svm")])
@pytest.mark.parametrize("l2", [0.0, 1e-3])
def test_the_weights_are_those_of_a_model_in_memory(tmp_path, kind, name, l2):
    data = table()
    with closing(learnt(tmp_path / "m", data, kind=kind, l2=l2, shuffle="none", standardize=False)) as big:
        config = Config(
            model=name,
            epochs=3,
            learning_rate=0.05,
            l2=l2,
            shuffle="none",
            validation=0,
            standardize=False,
            average=False,
        )
        small = linear_job(TableSource.of(data), config, Columns("y")).run()
        asked = np.arange(small.weights.width)
        check = np.testing.assert_array_equal if l2 == 0 else np.testing.assert_allclose
        check(big.weights(asked), small.weights.coef[0], **({} if l2 == 0 else {"rtol": 1e-4, "atol": 1e-6}))
        assert big.intercept_[0] == pytest.approx(float(small.weights.intercept[0]), rel=1e-6)
        assert [row["progressive_loss"] for row in big.history_] == pytest.approx(
            [row["progressive_loss"] for row in small.history]
        )
        assert (
            big.predict(data) == np.concatenate([b["prediction"] for b in small.predictions(TableSource.of(data))])
        ).all()


@pytest.mark.slow
def test_too_little_memory_for_all_pages_changes_nothing(tmp_path):
    # In stored order: how large windows are depends on the memory too, so shuffled rows would come in another order.
    data = wide_table()
    with (
        closing(learnt(tmp_path / "a", data, shuffle="none")) as whole,
        closing(learnt(tmp_path / "b", data, memory=SMALL, shuffle="none")) as part,
    ):
        assert part.traffic_["misses"] > 100
        assert whole.traffic_["misses"] == 0
        for column in ("progressive_loss", "progressive_accuracy"):
            assert [row[column] for row in part.history_] == pytest.approx(
                [row[column] for row in whole.history_], rel=1e-12
            )
        asked = np.unique(np.concatenate(data["indices"].to_pylist()))
        np.testing.assert_array_equal(whole.weights(asked), part.weights(asked))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_the_same_seed_gives_the_same_bytes(tmp_path, optimizer):
    data = wide_table()
    found = []
    for name in ("a", "b"):
        with closing(learnt(tmp_path / name, data, memory=SMALL, optimizer=optimizer)) as model:
            found.append(model.weights(np.unique(np.concatenate(data["indices"].to_pylist()))))
    np.testing.assert_array_equal(*found)


def test_64_bit_features_and_those_that_never_occurred(tmp_path):
    data = table(shift=2**50)
    with closing(learnt(tmp_path / "m", data)) as model:
        assert (model.weights([3, 2**50 + 10**6, 2**62]) == 0).all()
        assert np.abs(model.weights([2**50 + 1, 2**50 + 3])).sum() > 0
        unknown = pa.table({"indices": [[7]], "values": [[100.0]], "y": [0]})
        assert model.decision_function(unknown)[0] == pytest.approx(model.intercept_[0])


@pytest.mark.slow
def test_resumed_is_as_if_there_had_been_no_break(tmp_path):
    data = wide_table()
    asked = np.unique(np.concatenate(data["indices"].to_pylist()))
    with closing(learnt(tmp_path / "a", data, memory=SMALL, epochs=4)) as whole:
        learnt(tmp_path / "b", data, memory=SMALL, epochs=2).close()
        with closing(LogisticRegression(tmp_path / "b", memory=SMALL, epochs=4, learning_rate=0.05)) as model:
            model.fit(data, y="y", resume=True)
            np.testing.assert_array_equal(model.weights(asked), whole.weights(asked))
            losses = [[row["progressive_loss"] for row in m.history_] for m in (model, whole)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-12)


@pytest.mark.slow
def test_an_interrupted_epoch_is_done_again(tmp_path):
    data = wide_table()
    asked = np.unique(np.concatenate(data["indices"].to_pylist()))

    def stop(event):
        if isinstance(event, Epoch) and event.epoch == 2:
            raise KeyboardInterrupt

    model = LogisticRegression(tmp_path / "b", memory=SMALL, epochs=4, learning_rate=0.05)
    with pytest.raises(KeyboardInterrupt):
        model.fit(data, y="y", listeners=[stop])
    with (
        closing(model.fit(data, y="y", resume=True)),
        closing(learnt(tmp_path / "a", data, memory=SMALL, epochs=4)) as whole,
    ):
        np.testing.assert_array_equal(model.weights(asked), whole.weights(asked))


def test_what_was_prepared_is_used_again(tmp_path):
    data = table()
    learnt(tmp_path / "m", data).close()
    written = (tmp_path / "m" / "rows.arrow").stat().st_mtime_ns
    learnt(tmp_path / "m", data, learning_rate=0.01).close()
    assert (tmp_path / "m" / "rows.arrow").stat().st_mtime_ns == written
    learnt(tmp_path / "m", data, seed=5).close()
    assert (tmp_path / "m" / "rows.arrow").stat().st_mtime_ns != written


def test_held_out_rows_and_test_sets_are_measured(tmp_path):
    data, more = table(800), table(300, seed=1)
    model = LogisticRegression(tmp_path / "m", memory="60MB", epochs=4, learning_rate=0.05, validation=0.25)
    with closing(model.fit(data, y="y")):
        assert 0.5 < model.history_[-1]["held_out_accuracy"] <= 1
        assert model.history_[0]["rows"] == pytest.approx(600, abs=60)
    model = LogisticRegression(tmp_path / "n", memory="60MB", epochs=4, learning_rate=0.05)
    with closing(model.fit(data, y="y", test=more)):
        assert model.history_[-1]["test_loss"] == pytest.approx(model.evaluate(more)["loss"], rel=1e-6)
        assert model.score(more) == pytest.approx(model.history_[-1]["test_accuracy"])


def test_patience_ends_training(tmp_path):
    model = LogisticRegression(
        tmp_path / "m", memory="60MB", epochs=50, learning_rate=0.05, validation=0.3, patience=2, tolerance=0.05
    )
    with closing(model.fit(table(), y="y")):
        assert len(model.history_) < 50


def test_predictions_stream_to_a_file_with_columns_kept(tmp_path):
    data = table()
    with closing(learnt(tmp_path / "m", data)) as model:
        assert model.predict(data, out=tmp_path / "p.parquet", keep=["y"]) == 400
        told = parquet.read_table(tmp_path / "p.parquet")
        assert told.column_names == ["y", "prediction", "probability_0", "probability_1"]
        np.testing.assert_allclose(model.predict_proba(data)[:, 1], told["probability_1"].to_numpy(), rtol=1e-6)


def test_regression_weights_and_sample_weights(tmp_path):
    data = table()
    target = pa.array([float(v[0]) for v in data["values"].to_pylist()])
    data = data.set_column(2, "y", target).append_column("w", pa.array([1.0, 0.0] * 200))
    with closing(
        LinearRegression(tmp_path / "m", memory="60MB", epochs=2).fit(data, y="y", sample_weight="w")
    ) as model:
        assert model.history_[0]["rows"] == 400
        assert model.predict(data).dtype == np.float32


def test_a_sparse_matrix_and_libsvm_text(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random(200, 1000, 0.02, "csr", random_state=np.random.default_rng(0))
    y = (np.asarray(x.sum(axis=1)).ravel() > 10).astype(int)
    with closing(LogisticRegression(tmp_path / "m", memory="60MB", epochs=2).fit(x, y)) as model:
        assert model.predict(x).shape == (200,)
        assert model.score(x, y) == (model.predict(x) == y).mean()
        assert repr(model).startswith("LogisticRegression(")
    lines = [f"{label} " + " ".join(f"{i}:{v:.3f}" for i, v in zip(row.indices, row.data)) for label, row in zip(y, x)]
    (tmp_path / "a.svm").write_text("\n".join(lines) + "\n")
    with closing(LogisticRegression(tmp_path / "n", memory="60MB", epochs=2).fit(tmp_path / "a.svm")) as model:
        assert model.predict(tmp_path / "a.svm").shape == (200,)


def test_hashed_text_into_more_features_than_32_bits_can_number(tmp_path):
    words = ["red apple", "green apple", "red pear", "green pear"] * 50
    data = pa.table({"text": words, "y": [int("red" in w) for w in words]})
    model = LogisticRegression(tmp_path / "m", memory="60MB", epochs=5)
    with closing(model.fit(data, y="y", hash=["text:2^40:words"])):
        assert model.score(data) == 1.0
        assert model.model_.layout.dimension == 2**40


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"indices": [[-5, 3]]}, FeatureError, r"row 400 .*-5"),
        ({"indices": [[6000, 3]]}, FeatureError, r"row 400 .*6000.*5000"),
        ({"values": [[float("nan"), 1.0]]}, FeatureError, r"not a finite number in row 400"),
    ],
)
def test_what_cannot_be_learnt_from_is_named_by_row_and_value(tmp_path, change, error, match):
    data = table()
    bad = {"indices": [[1, 2]], "values": [[1.0, 1.0]], "y": [0], **change}
    data = pa.concat_tables([data, pa.table(bad, schema=data.schema)])
    with pytest.raises(error, match=match):
        learnt(tmp_path / "m", data, dimension=5000)
    assert not (tmp_path / "m" / "state.penstock").exists()
    assert not (tmp_path / "m" / "prepare.tmp").exists()


def test_the_directory_of_another_data_set_is_not_written_over(tmp_path):
    learnt(tmp_path / "m", table(seed=1)).close()
    with pytest.raises(UsageError, match=r"holds a model of other data.*choose\s+another directory"):
        learnt(tmp_path / "m", table(seed=2))
    with pytest.raises(DataChangedError, match="another directory"):
        LogisticRegression(tmp_path / "m", memory="60MB", epochs=3).fit(table(seed=2), y="y", resume=True)


def test_two_trainings_in_one_directory(tmp_path):
    with locked(tmp_path / "m"), pytest.raises(UsageError, match="in use"):
        learnt(tmp_path / "m", table())


def test_resuming_with_other_parameters_is_refused(tmp_path):
    learnt(tmp_path / "m", table()).close()
    for change, match in (
        ({"learning_rate": 0.5}, "learning_rate=0.05"),
        ({"optimizer": "adagrad"}, "optimizer='sgd'"),
    ):
        options = {"memory": "60MB", "epochs": 5, "learning_rate": 0.05, **change}
        with pytest.raises(UsageError, match=match):
            LogisticRegression(tmp_path / "m", **options).fit(table(), y="y", resume=True)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"l1": 0.1}, UsageError, "l1"),
        ({"optimizer": "adam"}, UsageError, "optimizer='adam' is for models in memory; .* adagrad, sgd"),
        ({"optimizer": "ftrl"}, UsageError, "optimizer='ftrl' is for models in memory; .* adagrad, sgd"),
        ({"optimizer": "adamw"}, UnknownOptionError, "adagrad, adam, ftrl, sgd"),
        ({"threads": 0}, UsageError, "threads=0"),
        ({"optimizer": "adagrad", "batch_size": 5}, UsageError, "batch_size=5"),
        ({"memory": "60kB"}, BudgetError, "smallest that works"),
    ],
)
def test_options_that_cannot_work(tmp_path, options, error, match):
    with pytest.raises(error, match=match):
        learnt(tmp_path / "m", table(), **options)


def test_dense_rows_have_a_small_model(tmp_path):
    data = pa.table({"a": [1.0, 2.0], "b": [0.5, 0.1], "y": [0, 1]})
    with pytest.raises(UsageError, match="fits in memory"):
        learnt(tmp_path / "m", data)


def test_directories_that_hold_no_model(tmp_path):
    with pytest.raises(ModelFileError, match="no model in"):
        LogisticRegression.load(tmp_path)
    learnt(tmp_path / "m", table()).close()
    with pytest.raises(UsageError, match="holds a logistic model"):
        LinearSVM.load(tmp_path / "m")
    with pytest.raises(UsageError, match="not fitted"):
        LogisticRegression(tmp_path / "x").weights([1])


def test_a_damaged_page_is_found_when_scoring(tmp_path):
    data = wide_table()
    learnt(tmp_path / "m", data).close()
    for name in ("pages.a", "pages.b"):
        path = tmp_path / "m" / name
        content = bytearray(path.read_bytes())
        if content:
            content[5000] ^= 1
            path.write_bytes(content)
    with pytest.raises(CorruptFileError, match="page 1 of"), closing(LogisticRegression.load(tmp_path / "m")) as model:
        model.predict(data)


def test_a_model_is_read_without_its_rows(tmp_path):
    data = table()
    with closing(learnt(tmp_path / "m", data)) as model:
        before = model.predict_proba(data)
    (tmp_path / "m" / "rows.arrow").unlink()
    with closing(LogisticRegression.load(tmp_path / "m")) as model:
        np.testing.assert_array_equal(model.predict_proba(data), before)


def test_a_damaged_map_is_prepared_anew(tmp_path):
    data = table()
    learnt(tmp_path / "m", data).close()
    path = tmp_path / "m" / "map.bin"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with closing(learnt(tmp_path / "m", data)) as model:
        assert model.score(data, "y") > 0.5


def test_damaged_rows_are_told(tmp_path):
    data = wide_table()
    learnt(tmp_path / "m", data, memory=SMALL).close()
    path = tmp_path / "m" / "rows.arrow"
    content = bytearray(path.read_bytes())
    with penstock.open(path) as source:
        start = int(source.block_bytes[0])
    for place in range(start, len(content) - 5000, 997):
        content[place] ^= 0x40
    path.write_bytes(content)
    model = LogisticRegression(tmp_path / "m", memory=SMALL, epochs=5, learning_rate=0.05)
    with pytest.raises(PenstockError):
        model.fit(data, y="y", resume=True)


def test_a_refused_fit_leaves_the_model_that_was_there(tmp_path):
    data = table(seed=1)
    with closing(learnt(tmp_path / "m", data)) as model:
        with pytest.raises(UsageError, match="other data"):
            model.fit(table(seed=2), y="y")
        assert model.predict(data).shape == (400,)


def test_columns_to_hash_are_a_list(tmp_path):
    data = pa.table({"text": ["a", "b"], "y": [0, 1]})
    for wrong in ("text:2^20", {"text": 20}):
        with pytest.raises(UsageError, match="not a list of columns"):
            LogisticRegression(tmp_path / "m").fit(data, y="y", hash=wrong)


def test_resuming_without_the_rows_is_refused(tmp_path):
    data = table()
    learnt(tmp_path / "m", data).close()
    (tmp_path / "m" / "rows.arrow").unlink()
    with pytest.raises(ModelFileError, match=r"rows\.arrow is gone"):
        LogisticRegression(tmp_path / "m", memory="60MB", epochs=5, learning_rate=0.05).fit(data, y="y", resume=True)


def test_weights_are_asked_for_by_index(tmp_path):
    with closing(learnt(tmp_path / "m", table())) as model:
        with pytest.raises(UsageError, match="negative"):
            model.weights([-1])
        with pytest.raises(UsageError, match="whole numbers"):
            model.weights([0.5])


def test_parameters_are_seen_and_set(tmp_path):
    model = LogisticRegression(tmp_path, threads=2)
    assert model.get_params()["threads"] == 2
    assert model.set_params(epochs=3).epochs == 3
    with pytest.raises(UsageError, match="no parameter 'depth'"):
        model.set_params(depth=3)


@pytest.mark.slow
def test_two_threads_come_to_about_the_same_loss(tmp_path):
    data = wide_table()
    with (
        closing(learnt(tmp_path / "a", data, threads=1)) as one,
        closing(learnt(tmp_path / "b", data, threads=2)) as two,
    ):
        assert two.history_[-1]["progressive_loss"] == pytest.approx(one.history_[-1]["progressive_loss"], rel=0.1)


def test_a_model_on_disk_is_scored_within_little_memory(tmp_path):
    data = wide_table()
    learnt(tmp_path / "m", data).close()
    with BigLinearModel(tmp_path / "m", memory="1MB") as few, BigLinearModel(tmp_path / "m") as many:
        source = penstock.open(data)
        np.testing.assert_allclose(
            np.concatenate(list(few.block_scores(source))),
            np.concatenate(list(many.block_scores(source))),
            rtol=1e-4,
            atol=1e-5,
        )


def test_threads_and_batches_are_refused_together(tmp_path):
    table = pa.table({"indices": [[1, 2], [3]] * 20, "values": [[1.0, 1.0], [1.0]] * 20, "y": [0, 1] * 20})
    with pytest.raises(UsageError, match=r"threads=2 with batch_size=16.*batch_size=1, or use threads=1"):
        LogisticRegression(tmp_path / "m", threads=2, batch_size=16).fit(table, y="y")
    assert not (tmp_path / "m" / "state.penstock").exists()
