"""The scikit-learn faces: its own checks, its tools, and data that are not arrays."""

from __future__ import annotations

import copy
import os
import pickle

import joblib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import scipy.sparse as sp
from sklearn import linear_model
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from penstock import LinearRegression, LinearSVM, LogisticRegression, SoftmaxRegression, load
from penstock.blocks import convert
from penstock.blocks.memory import ArraySource
from penstock.blocks.open import open as open_source
from penstock.errors import ColumnError, LabelError, UsageError
from penstock.events import Epoch
from penstock.modelfile import read_model, write_model
from tests import kinds

CLASSIFIERS = (LogisticRegression, LinearSVM, SoftmaxRegression)
ALL = (*CLASSIFIERS, LinearRegression)
_STEPS = "stochastic steps: a weight of two is one step twice as long, not two steps in other places of the epoch"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": _STEPS,
    "check_sample_weight_equivalence_on_sparse_data": _STEPS,
}


_ROUNDING = "weights and repeated rows agree as far as float32 goes, not to the 1e-7 that is asked; see test_passes"
FULL = [each(solver=solver) for each in (LogisticRegression, LinearRegression) for solver in ("lbfgs", "gd")]


@parametrize_with_checks([each() for each in ALL], expected_failed_checks=lambda estimator: EXPECTED)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@parametrize_with_checks(
    [each for each in FULL if each.solver == "lbfgs"],
    expected_failed_checks=lambda estimator: dict.fromkeys(EXPECTED, _ROUNDING),
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_of_full_passes(estimator, check):
    check(estimator)


@pytest.mark.parametrize("model", FULL, ids=str)
def test_solvers_of_full_passes_have_no_partial_fit(model):
    x, y = data()
    assert not hasattr(model, "partial_fit")
    with pytest.raises(
        UsageError, match=f"partial_fit learns from some rows at a time, and solver='{model.solver}' needs"
    ):
        model.partial_fit(x, y)
    assert hasattr(clone(model).set_params(solver="sgd"), "partial_fit")
    assert "one array of rows" in type(model).partial_fit.__doc__


@pytest.mark.parametrize("model", FULL, ids=str)
def test_solvers_of_full_passes_learn_save_and_load(model, table, tmp_path):
    model = clone(model).set_params(learning_rate=0.3, epochs=60).fit(table, y="label")
    assert model.score(table, "label") > (0.5 if isinstance(model, LinearRegression) else 0.9)
    assert model.n_iter_ == len(model.history_) <= 60
    assert model.shuffle == "corgipile"  # a parameter stays as it was given
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert (again.solver, again.epochs, again.shuffle) == (model.solver, 60, "none")
    np.testing.assert_array_equal(again.predict(table), model.predict(table))
    np.testing.assert_array_equal(again.fit(table, y="label").coef_, model.coef_)


def test_a_model_saved_before_there_were_solvers_is_one_of_sgd(table, tmp_path):
    LogisticRegression(epochs=2).fit(table, y="label").save(tmp_path / "m")
    tensors, header = read_model(tmp_path / "m")
    del header["config"]["solver"]
    write_model(tmp_path / "m", tensors, header)
    again = load(tmp_path / "m")
    assert again.solver == "sgd"
    assert again.fit(*data()).partial_fit(*data()).score(*data()) > 0.9


def test_at_most_three_checks_are_expected_to_fail():
    assert len(EXPECTED) <= 3


def data(rows=600, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    y = np.sort(rng.integers(0, classes, rows))
    centres = np.random.default_rng(9).standard_normal((classes, 4)) * 2
    return (centres[y] + rng.standard_normal((rows, 4))).astype(np.float32), y


@pytest.fixture(scope="module")
def table():
    return kinds.table(*data())


@pytest.mark.parametrize("each", ALL)
def test_the_same_model_is_learnt_from_whatever_holds_the_rows(each, table, tmp_path):
    x, y = data()
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path)
    convert(path, tmp_path / "a.arrow", label="label")
    options = {"epochs": 3, "shuffle": "none", "validation": 0}
    by_array = each(**options).fit(x, y)
    ways = [
        each(**options).fit(x.astype(np.float64).tolist(), y.tolist()),
        each(**options).fit(str(path), y="label"),
        each(**options).fit(path, y="label"),
        each(**options).fit(table, y="label"),
        each(**options).fit(table.to_batches()[0], y="label"),
        each(**options).fit(tmp_path / "a.arrow"),  # which names its own label
        each(**options).fit(ArraySource(x, y), y="label"),
    ]
    with open_source(path) as source:
        ways.append(each(**options).fit(source, y="label"))
        assert len(source.read(0))  # a source that was handed in stays open
    for way in ways:
        np.testing.assert_allclose(way.coef_, by_array.coef_, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(way.intercept_, by_array.intercept_, rtol=1e-4, atol=1e-5)
        assert way.n_features_in_ == 4
    sparse = each(**options, standardize=False).fit(sp.csr_matrix(x), y)
    for other in (sp.csr_array, sp.coo_matrix, sp.csc_matrix):
        np.testing.assert_array_equal(each(**options, standardize=False).fit(other(x), y).coef_, sparse.coef_)
    np.testing.assert_allclose(sparse.coef_, each(**options, standardize=False).fit(x, y).coef_, rtol=1e-3, atol=1e-4)


def test_data_frames_are_taken_by_the_names_of_their_columns(table):
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    model = LogisticRegression(epochs=3).fit(frame, y="label")
    assert model.feature_names_in_.tolist() == ["f0", "f1", "f2", "f3"]
    mixed = frame[["label", "f3", "f1", "f0", "f2"]]
    np.testing.assert_array_equal(model.predict(mixed), model.predict(table))
    by_arrays = LogisticRegression(epochs=3).fit(frame[["f0", "f1", "f2", "f3"]], frame["label"])
    np.testing.assert_array_equal(by_arrays.predict(frame[["f0", "f1", "f2", "f3"]]), model.predict(table))
    assert isinstance(mixed, pandas.DataFrame)


def test_all_rows_in_memory_are_learned_from_and_some_of_a_path_are_held_out(table, tmp_path):
    x, y = data()
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path)
    frame = table.to_pandas()
    for rows in (
        (x, y),
        (sp.csr_matrix(x), y),
        (frame[["f0", "f1", "f2", "f3"]], y),
        (frame, "label"),
        (table, "label"),
    ):
        model = LogisticRegression(epochs=2).fit(*rows)
        assert [row["rows"] for row in model.history_] == [600, 600]
        assert "progressive_accuracy" in model.history_[-1]
        assert not {"accuracy", "loss", "held_out_accuracy"} & set(model.history_[-1])
        assert model.model_.metrics["training_accuracy"] == pytest.approx(model.score(*rows), abs=1e-6)
    with open_source(path) as source:
        for rows in (path, str(path), source):
            model = LogisticRegression(epochs=2).fit(rows, "label")
            held_out = model.model_.metrics["held_out_rows"]
            assert 30 < held_out < 90
            assert model.history_[-1]["rows"] == 600 - held_out
            assert model.history_[-1]["held_out_accuracy"] == model.model_.metrics["held_out_accuracy"]


def test_early_stopping_holds_out_rows_of_arrays_too():
    x, y = data()
    model = LogisticRegression(epochs=50, patience=2).fit(x, y)
    assert 30 < model.model_.metrics["held_out_rows"] < 90
    assert model.n_iter_ < 50


@pytest.mark.parametrize("each", ALL)
def test_stored_data_are_predicted_scored_and_streamed(each, table, tmp_path):
    x, y = data()
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, row_group_size=100)
    model = each(epochs=5, validation=0).fit(path, y="label")
    stored = model.predict(path)
    arrays = each(epochs=5).fit(x, y).predict(x)
    if each is LinearRegression:
        np.testing.assert_allclose(stored, arrays, rtol=1e-3, atol=1e-3)
    else:
        np.testing.assert_array_equal(stored, arrays)
        assert model.decision_function(path).shape == (600,)
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        if hasattr(model, method):
            with pytest.warns(UserWarning, match="does not have valid feature names"):
                expected = getattr(model, method)(x)
            np.testing.assert_allclose(getattr(model, method)(table), expected, rtol=1e-5, atol=1e-5)
    told = model.evaluate(path, "label")
    assert model.score(path, "label") == told["r2" if each is LinearRegression else "accuracy"]
    assert model.score(path, "label") == pytest.approx(each(epochs=5).fit(x, y).score(x, y), abs=1e-3)
    assert model.predict(path, out=tmp_path / "p.parquet", keep=["label"]) == 600
    written = parquet.read_table(tmp_path / "p.parquet")
    np.testing.assert_array_equal(written["prediction"], stored)
    np.testing.assert_array_equal(written["label"], y)
    with pytest.raises(UsageError, match="out= streams the predictions of a path, source or table"):
        each(epochs=1).fit(x, y).predict(x, out=tmp_path / "q.parquet")
    assert open_files(path) == 0


@pytest.mark.parametrize("solver", ["sgd", "lbfgs"])
def test_a_fit_goes_on_from_its_checkpoint_to_the_same_weights(solver, tmp_path):
    x, y = data()

    def stop(event):
        if isinstance(event, Epoch) and event.epoch == 2:
            raise KeyboardInterrupt

    model = LogisticRegression(solver=solver, epochs=4, tolerance=0.0)
    with pytest.raises(KeyboardInterrupt):
        clone(model).fit(x, y, checkpoint=tmp_path / "c", listeners=[stop])
    resumed, epochs = clone(model), []
    resumed.fit(x, y, checkpoint=tmp_path / "c", resume=True, listeners=[epochs.append])
    assert [event.epoch for event in epochs if isinstance(event, Epoch)] == [3, 4]
    np.testing.assert_array_equal(resumed.coef_, clone(model).fit(x, y).coef_)
    with pytest.raises(UsageError) as caught:
        clone(model).fit(x, y, resume=True)
    assert caught.value.option == "resume"


def open_files(path):
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.realpath(link) == os.path.realpath(path) for link in links)


def test_arguments_that_do_not_belong_together_are_refused(table):
    x, y = data()
    with pytest.raises(UsageError, match="give y and sample_weight as column names, not as arrays"):
        LogisticRegression().fit("t.parquet", y)
    with pytest.raises(ColumnError, match=r"no label column 'lable'.*did you mean 'label'"):
        LogisticRegression().fit(table, y="lable")
    with pytest.raises(LabelError, match="only one class"):
        LogisticRegression().fit(x, np.zeros(600))
    with pytest.raises(LabelError, match=r"Only binary classification is supported.*3 classes; use SoftmaxRegression"):
        LinearSVM().fit(*data(classes=3))


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [3, 9], [1.0, 2.0]])
@pytest.mark.parametrize("each", CLASSIFIERS)
def test_classes_keep_their_type(each, labels):
    x, y = data()
    given = np.array(labels)[y]
    model = each(epochs=5).fit(x, given)
    assert model.classes_.tolist() == labels
    assert model.predict(x).dtype == given.dtype
    assert model.score(x, given) > 0.9


@pytest.mark.parametrize("kind", ["array", "sparse"])
def test_shapes_are_scikit_learns(kind):
    for classes in (2, 3):
        x, y = data(classes=classes)
        x = sp.csr_matrix(x) if kind == "sparse" else x
        for each in (*CLASSIFIERS, LinearRegression) if classes == 2 else (SoftmaxRegression,):
            model = each(epochs=2, standardize=False).fit(x, y)
            if each is LinearRegression:
                assert (model.coef_.shape, np.shape(model.intercept_)) == ((4,), ())
                continue
            outputs = classes if each is SoftmaxRegression else 1
            assert model.coef_.shape == (outputs, 4)
            assert model.intercept_.shape == (outputs,)
            assert model.decision_function(x).shape == ((600,) if classes == 2 else (600, 3))
            if hasattr(model, "predict_proba"):
                assert model.predict_proba(x).shape == (600, classes)
            assert model.n_iter_ == len(model.history_) == 2


def test_another_fit_forgets_the_one_before(table, tmp_path):
    x, y = data()
    model = LogisticRegression(epochs=3).fit(x, np.array(["no", "yes"])[y])
    model.fit(table, y="label")
    assert model.classes_.tolist() == [0, 1]
    assert model.feature_names_in_.tolist() == ["f0", "f1", "f2", "f3"]
    model.fit(x[:, :3], np.array(["a", "b"])[y])
    assert model.classes_.tolist() == ["a", "b"]
    assert model.n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")
    again = LogisticRegression(epochs=3).fit(x[:, :3], np.array(["a", "b"])[y])
    np.testing.assert_array_equal(model.coef_, again.coef_)
    model.partial_fit(x[:, :3], np.array(["a", "b"])[y])
    model.fit(x[:, :3], np.array(["a", "b"])[y])
    np.testing.assert_array_equal(model.coef_, again.coef_)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("each", ALL)
def test_partial_fit_learns_bit_by_bit(each, sparse):
    x, y = data(rows=2000)
    mixed = np.random.default_rng(0).permutation(2000)
    x, y = x[mixed], y[mixed]
    x = sp.csr_matrix(x) if sparse else x
    model = each(standardize=False)
    for at in range(0, 2000, 100):
        first = {"classes": [0, 1]} if each is not LinearRegression and at == 0 else {}
        model.partial_fit(x[at : at + 100], y[at : at + 100], **first)
    assert len(model.history_) == 20
    assert model.score(x, y) > (0.5 if each is LinearRegression else 0.9)


@pytest.mark.parametrize("each", CLASSIFIERS)
def test_partial_fit_knows_classes_it_has_not_seen_yet(each):
    x, y = data()
    names = np.array(["a", "b"])[y]
    model = each().partial_fit(x[:100], names[:100], classes=["a", "b"])  # sorted: all of one class
    assert model.classes_.tolist() == ["a", "b"]
    model.partial_fit(x, names)
    with pytest.raises(UsageError, match="is not what the first call was given"):
        model.partial_fit(x, names, classes=["a", "c"])
    with pytest.raises(ValueError, match="class"):
        model.partial_fit(x, np.full(600, "z"))


@pytest.mark.parametrize("each", ALL)
def test_partial_fit_goes_on_from_a_fit(each):
    x, y = data()
    model = each(epochs=10, standardize=False, learning_rate=0.01).fit(x, y)
    before = model.coef_.copy()
    model.partial_fit(x[:1], 1 - y[:1])
    assert not np.array_equal(model.coef_, before)
    np.testing.assert_allclose(model.coef_, before, atol=0.3)
    assert len(model.history_) == 11


@pytest.mark.parametrize("each", ALL)
@pytest.mark.parametrize("partial", [False, True])
def test_copies_and_pickles_by_the_user_work(each, partial, tmp_path):
    x, y = data()
    model = each(epochs=2, standardize=False).fit(x, y)
    if partial:
        model.partial_fit(x, y)
    joblib.dump(model, tmp_path / "j")
    for again in (
        copy.copy(model),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "j"),
    ):
        np.testing.assert_array_equal(again.predict(x), model.predict(x))
    deep = copy.deepcopy(model).partial_fit(x, y)
    assert not np.array_equal(deep.coef_, model.coef_)
    np.testing.assert_array_equal(clone(model).fit(x, y).coef_, each(epochs=2, standardize=False).fit(x, y).coef_)


@pytest.mark.parametrize("each", ALL)
def test_a_saved_model_comes_back_as_the_estimator_it_was(each, tmp_path, table):
    x, y = data()
    for number, given in enumerate([(x, y), (table, "label")]):
        model = each(epochs=2, l2=0.01, seed=5).fit(*given)
        model.save(tmp_path / f"{number}.penstock")
        again = load(tmp_path / f"{number}.penstock")
        assert type(again) is each
        assert (again.l2, again.seed, again.epochs) == (0.01, 5, 2)
        np.testing.assert_array_equal(again.predict(given[0]), model.predict(given[0]))
        np.testing.assert_array_equal(again.coef_, model.coef_)
        assert again.n_features_in_ == 4
        assert hasattr(again, "feature_names_in_") == hasattr(model, "feature_names_in_") == bool(number)
        assert again.history_ == model.history_


def test_pipelines_and_searches_work(tmp_path):
    x, y = data()
    mixed = np.random.default_rng(0).permutation(600)
    x, y = x[mixed] * 50 + 7, y[mixed]
    pipe = make_pipeline(StandardScaler(), LogisticRegression(epochs=3))
    assert cross_val_score(pipe, x, y, cv=3).mean() > 0.9
    search = GridSearchCV(
        LogisticRegression(standardize=True), {"epochs": np.array([1, 4]), "l2": np.array([1e-3, 1.0])}, cv=3
    ).fit(x, y)
    assert search.best_score_ > 0.9
    search.best_estimator_.save(tmp_path / "best")  # NumPy's numbers in its parameters are no obstacle
    assert load(tmp_path / "best").epochs == search.best_params_["epochs"]


def test_sample_weights_are_an_array_or_a_column():
    x, y = data()
    weight = np.linspace(0.1, 2, 600)
    by_array = LogisticRegression(epochs=2, shuffle="none").fit(x, y, sample_weight=weight)
    with_column = kinds.table(x, y).append_column("w", pa.array(weight))
    by_column = LogisticRegression(epochs=2, shuffle="none").fit(with_column, y="label", sample_weight="w")
    np.testing.assert_allclose(by_array.coef_, by_column.coef_, rtol=1e-5)
    assert not np.allclose(by_array.coef_, LogisticRegression(epochs=2, shuffle="none").fit(x, y).coef_)


def test_events_and_a_test_set_can_be_listened_to(table, tmp_path):
    parquet.write_table(table, tmp_path / "test.parquet")
    heard = []
    model = LogisticRegression(epochs=3).fit(table, y="label", test=tmp_path / "test.parquet", listeners=[heard.append])
    epochs = [e for e in heard if isinstance(e, Epoch)]
    assert [e.row() for e in epochs] == model.history_
    assert all(row["test_accuracy"] > 0.8 for row in model.history_)
    assert open_files(tmp_path / "test.parquet") == 0


def test_features_can_be_chosen_left_out_and_hashed(table):
    colour = pa.array(np.random.default_rng(0).choice(["red", "blue"], 600).tolist())
    wide = table.append_column("colour", colour)
    assert LogisticRegression(epochs=1).fit(wide, y="label", features=["f2", "f0"]).n_features_in_ == 2
    assert LogisticRegression(epochs=1).fit(wide, y="label", exclude=["colour", "f1"]).n_features_in_ == 3
    assert LogisticRegression(epochs=1).fit(wide, y="label", hash=["colour:2^8"]).coef_.shape[1] == 4 + 256


@pytest.mark.parametrize("sparse", [False, True])
def test_the_solution_is_scikit_learns(sparse):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3000, 3)).astype(np.float32)
    y = (x @ [1.0, -2.0, 0.5] + 0.5 + rng.logistic(size=3000) > 0).astype(int)
    given = sp.csr_matrix(x) if sparse else x
    l2 = 0.01
    steps = {"epochs": 60, "learning_rate": 0.1, "decay": 0.9, "l2": l2, "batch_size": 8}
    exact = linear_model.LogisticRegression(C=1 / (l2 * 3000), tol=1e-8).fit(x, y)
    found = LogisticRegression(**steps).fit(given, y)
    np.testing.assert_allclose(found.coef_, exact.coef_, atol=0.02)
    np.testing.assert_allclose(found.intercept_, exact.intercept_, atol=0.02)
    numbers = x @ [1.0, -2.0, 0.5] + 0.5 + rng.standard_normal(3000)
    ridge = linear_model.Ridge(alpha=l2 * 3000).fit(x, numbers)
    line = LinearRegression(**{**steps, "learning_rate": 0.05}, standardize=False).fit(given, numbers)
    np.testing.assert_allclose(line.coef_, ridge.coef_, atol=0.02)
    np.testing.assert_allclose(line.intercept_, ridge.intercept_, atol=0.02)


@pytest.mark.parametrize("each", ALL)
def test_no_intercept_means_none(each):
    x, y = data()
    model = each(intercept=False, standardize=True, epochs=3).fit(x + 20, y)
    assert not np.any(model.intercept_)


@pytest.mark.parametrize("make", [LogisticRegression, LinearRegression, LinearSVM, SoftmaxRegression])
def test_columns_of_a_matrix_that_are_empty_are_features_too(make):
    x = sp.random(300, 20, density=0.3, random_state=0, format="csr", dtype=np.float32)
    x = sp.hstack([x, sp.csr_matrix((300, 3), dtype=np.float32)]).tocsr()
    y = (x.sum(axis=1).A1 > 3).astype(np.int64)
    fitted = make().fit(x, y)
    assert fitted.n_features_in_ == 23
    assert fitted.coef_.shape[-1] == 23
    assert len(fitted.predict(x)) == 300


def test_entries_of_a_matrix_at_one_place_count_together():
    rng = np.random.default_rng(0)
    apart = sp.csr_matrix(
        (np.ones(40_000, np.float32), rng.integers(0, 9, 40_000), np.arange(0, 40_001, 100)), (400, 3000)
    )
    together = apart.copy()
    together.sum_duplicates()
    y = together[:, 0].toarray()[:, 0]
    models = [LinearRegression(solver="sgd").fit(x, y) for x in (apart, together)]
    assert models[0].coef_.tolist() == models[1].coef_.tolist()
    assert models[0].score(together, y) > 0.9
    assert apart.nnz == 40_000  # the caller's matrix is as it was
