"""How models on disk meet mistakes and odd wishes: what they say, what they leave behind, what they take as the same."""

from __future__ import annotations

import fcntl
import os

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.bigmodel import LinearRegression, LinearSVM, LogisticRegression, MatrixFactorization
from penstock.cli.wording import command_line
from penstock.errors import BudgetError, LabelError, ModelFileError, UsageError
from penstock.events import Warned
from penstock.lock import locked

KINDS = (LinearRegression, LinearSVM, LogisticRegression, MatrixFactorization)


def table(rows=200, *, classes=2):
    rng = np.random.default_rng(0)
    indices = [np.unique((5000 ** rng.random(8)).astype(np.int64)).tolist() for _ in range(rows)]
    label = np.arange(rows) % classes
    return pa.table({"indices": indices, "values": [[1.0] * len(row) for row in indices], "y": label})


def rated():
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 300, 3000), rng.integers(0, 200, 3000)
    return pa.table({"user": user, "item": item, "rating": 3 + user / 300 - item / 200})


def learnt(folder, *, data=None, resume=False, listeners=(), **options):
    options = {"epochs": 1, "memory": "60MB", **options}
    found = LogisticRegression(folder, **options)
    return found.fit(data or table(), y="y", resume=resume, listeners=listeners)


def rated_in(folder, **options):
    return MatrixFactorization(folder, **{"rank": 100, "epochs": 1, "memory": "10MB", **options})


class TestRefused:
    def test_more_than_two_classes_are_sent_to_a_model_in_memory(self, tmp_path):
        with pytest.raises(LabelError, match="'y' has 3 classes, and models on disk are for two") as caught:
            learnt(tmp_path / "m", data=table(classes=3))
        for words in ("model='linear'", "softmax in memory: leave out model_dir", "penstock.SoftmaxRegression"):
            assert words in str(caught.value)
        assert not (tmp_path / "m").exists()

    @pytest.mark.parametrize("estimator", [LogisticRegression, MatrixFactorization])
    def test_a_directory_of_other_files_is_not_written_to(self, tmp_path, estimator):
        (tmp_path / "rows.arrow").write_text("mine")
        with pytest.raises(UsageError, match=r"other files \(.*rows\.arrow.*choose a new or an empty directory"):
            estimator(tmp_path).fit(*((rated(),) if estimator is MatrixFactorization else (table(), "y")))
        assert os.listdir(tmp_path) == ["rows.arrow"]
        assert (tmp_path / "rows.arrow").read_text() == "mine"

    def test_dense_rows_in_the_words_of_both_doors(self, tmp_path):
        x = np.random.default_rng(0).random((20, 3))
        with pytest.raises(UsageError, match="with the estimators of penstock itself or without model_dir"):
            LogisticRegression(tmp_path / "a" / "m").fit(x, np.arange(20) % 2)
        assert not (tmp_path / "a").exists()  # nor the folder that was made on the way

    @pytest.mark.parametrize("dimension", [0, -3])
    def test_a_dimension_that_is_none(self, tmp_path, dimension):
        with pytest.raises(UsageError) as caught:
            learnt(tmp_path / "m", dimension=dimension)
        expected = f"--dimension {dimension} is not a number of features; choose 1 or more"
        assert caught.value.render(command_line()) == expected

    def test_a_dimension_beside_columns_that_are_hashed(self, tmp_path):
        data = pa.table({"text": ["a", "b"] * 20, "y": [0, 1] * 20})
        with pytest.raises(UsageError, match="dimension=5: these columns make 1024 features; leave it out"):
            LogisticRegression(tmp_path / "m", dimension=5).fit(data, y="y", hash=["text:2^10"])
        data = table(40).append_column("text", pa.array(["a", "b"] * 20))
        with pytest.raises(UsageError, match=r"dimension=5 is too few: .* 1024 features; choose 1025 or more"):
            LogisticRegression(tmp_path / "m", dimension=5).fit(data, y="y", hash=["text:2^10"])

    def test_too_little_memory_for_a_factorisation_names_what_is_enough(self, tmp_path):
        with pytest.raises(BudgetError, match=r"15.0 kB of memory .* of rank 100 in pages") as caught:
            rated_in(tmp_path / "m", memory="15kB").fit(rated())
        assert not (tmp_path / "m").exists()
        enough = str(caught.value).rsplit(" ", 1)[1]
        with pytest.raises(BudgetError):
            rated_in(tmp_path / "m", memory=f"{float(enough[:-2]) - 1}kB").fit(rated())
        assert len(rated_in(tmp_path / "m", memory=enough).fit(rated()).history_) == 1

    def test_little_memory_that_holds_all_of_a_small_model(self, tmp_path):
        assert len(rated_in(tmp_path / "m", memory="20kB").fit(rated().slice(0, 6)).history_) == 1


class TestLeftBehind:
    @pytest.mark.parametrize("options", [{"memory": "40kB"}, {"test": pa.table({"other": [1.0], "y": [1]})}])
    def test_a_refused_run_leaves_the_model_that_is_there(self, tmp_path, options):
        learnt(tmp_path / "m").close()
        before = {name: (tmp_path / "m" / name).read_bytes() for name in ("state.penstock", "layout.json")}
        model = LogisticRegression(tmp_path / "m", epochs=1, memory=options.get("memory", "60MB"))
        with pytest.raises((BudgetError, penstock.errors.DataError)):
            model.fit(table(), y="y", test=options.get("test"))
        assert before == {name: (tmp_path / "m" / name).read_bytes() for name in before}

    def test_a_run_that_fails_takes_away_what_it_made_alone(self, tmp_path):
        for there in ([], ["m"], ["m", "m/lock"]):
            for name in there:
                (tmp_path / name).touch() if name.endswith("lock") else (tmp_path / name).mkdir(exist_ok=True)
            with pytest.raises(RuntimeError), locked(tmp_path / "m"):
                raise RuntimeError
            assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == there

    def test_a_run_that_has_come_somewhere_keeps_its_directory(self, tmp_path):
        def work(place):
            (place / "rows.arrow").touch()
            raise RuntimeError

        with pytest.raises(RuntimeError), locked(tmp_path / "m") as place:
            work(place)
        assert sorted(os.listdir(tmp_path / "m")) == ["lock", "rows.arrow"]
        with locked(tmp_path / "m"):
            pass
        assert sorted(os.listdir(tmp_path / "m")) == ["lock", "rows.arrow"]

    def test_the_lock_of_another_is_left_to_it(self, tmp_path):
        with locked(tmp_path / "m"), pytest.raises(UsageError, match="in use"), locked(tmp_path / "m"):
            pass
        assert (tmp_path / "m" / "lock").exists()

    def test_a_lock_that_was_taken_away_meanwhile_keeps_nobody_out(self, tmp_path, monkeypatch):
        taken, lock = [], fcntl.flock

        def flock(descriptor, how):
            if not taken:  # another training fails between our opening of the file and our lock on it
                (tmp_path / "m" / "lock").unlink()
                (tmp_path / "m").rmdir()
            taken.append(how)
            lock(descriptor, how)

        monkeypatch.setattr(fcntl, "flock", flock)
        with locked(tmp_path / "m"), pytest.raises(UsageError, match="in use"), locked(tmp_path / "m"):
            pass
        assert len(taken) == 3


class TestResuming:
    def test_another_learning_rate_is_refused(self, tmp_path):
        learnt(tmp_path / "m", learning_rate=0.1).close()
        with learnt(tmp_path / "m", epochs=2, learning_rate=0.1, memory=60_000_000, resume=True) as model:
            assert len(model.history_) == 2
        with pytest.raises(UsageError, match=r"made with learning_rate=0.1, this run has 0.05; resume"):
            learnt(tmp_path / "m", epochs=4, learning_rate=0.05, resume=True)

    def test_other_memory_is_named_as_it_was_given(self, tmp_path):
        learnt(tmp_path / "m").close()
        with pytest.raises(UsageError, match="made with memory='60MB', this run has '70MB'; resume"):
            learnt(tmp_path / "m", memory="70MB", epochs=2, resume=True)

    def test_large_steps_are_remedied_in_the_words_of_both_doors(self, tmp_path):
        events = []
        learnt(tmp_path / "a", learning_rate=50.0, listeners=[events.append]).close()
        learnt(tmp_path / "b", learning_rate=50.0, optimizer="adagrad", listeners=[events.append]).close()
        sgd, adagrad = [event.message for event in events if isinstance(event, Warned)]
        assert sgd.endswith("; use a smaller learning rate, or the optimizer adagrad")
        assert adagrad.endswith("; use a smaller learning rate")


class TestDirectories:
    @pytest.mark.parametrize("kind", KINDS)
    def test_no_model_there(self, tmp_path, kind):
        (tmp_path / "file").touch()
        (tmp_path / "other").mkdir()
        for name, why in (("nowhere", "it does not exist"), ("file", "it is a file"), ("other", "it has no state")):
            with pytest.raises(
                ModelFileError, match=f"no model in .*{name}: {why}.*; name the directory that was given"
            ):
                kind.load(tmp_path / name)

    def test_a_damaged_checkpoint(self, tmp_path):
        learnt(tmp_path / "m").close()
        state = tmp_path / "m" / "state.penstock"
        state.write_bytes(state.read_bytes()[:100])
        for resume in (False, True):
            with pytest.raises(
                ModelFileError, match=r"state\.penstock is not .*; restore .*m from a copy, or remove it"
            ):
                learnt(tmp_path / "m", resume=resume)
        with pytest.raises(ModelFileError, match="or remove it and train anew"):
            LogisticRegression.load(tmp_path / "m")

    def test_a_model_of_another_kind_or_a_newer_version(self, tmp_path):
        rated_in(tmp_path / "f").fit(rated())
        with pytest.raises(ModelFileError, match="holds a factor model, not a linear one; choose another directory"):
            learnt(tmp_path / "f")
        learnt(tmp_path / "m").close()
        with pytest.raises(ModelFileError, match="holds a logistic model, not a factor one; choose another directory"):
            rated_in(tmp_path / "m").fit(rated())
        from penstock.modelfile import read_model, write_model

        arrays, header = read_model(tmp_path / "m" / "state.penstock")
        write_model(tmp_path / "m" / "state.penstock", arrays, {**header, "format": 99})
        with pytest.raises(ModelFileError, match=r"newer Penstock; upgrade with: pip install -U penstock$"):
            LogisticRegression.load(tmp_path / "m")


class TestEstimators:
    @pytest.mark.parametrize("kind", KINDS)
    def test_parameters_go_round(self, tmp_path, kind):
        model = kind(tmp_path / "m", threads=2, l2=0.5)
        params = model.get_params()
        assert (params["model_dir"], params["threads"], params["l2"]) == (tmp_path / "m", 2, 0.5)
        assert kind(**params).get_params() == params
        assert kind("elsewhere").set_params(**params).get_params() == params
        assert repr(model) == f"{kind.__name__}({str(tmp_path / 'm')!r}, memory='1GB')"
        with pytest.raises(UsageError, match=f"{kind.__name__} has no parameter 'depth'; it has: model_dir"):
            model.set_params(depth=3)

    def test_a_with_block_closes_the_files(self, tmp_path):
        before = len(os.listdir("/proc/self/fd"))
        with learnt(tmp_path / "m") as model:
            assert model.predict(table()).shape == (200,)
            assert len(os.listdir("/proc/self/fd")) > before
        assert len(os.listdir("/proc/self/fd")) == before
        with penstock.load(tmp_path / "m") as model:
            assert model.score(table(), y="y") > 0

    def test_a_factorisation_is_used_in_a_with_block_too(self, tmp_path):
        before = len(os.listdir("/proc/self/fd"))
        with rated_in(tmp_path / "m").fit(rated()) as model:
            assert len(os.listdir("/proc/self/fd")) == before  # it holds nothing open
            assert model.predict(([1], [1])).shape == (1,)

    def test_a_factorisation_is_scored_by_its_r2(self, tmp_path):
        model, data = rated_in(tmp_path / "m", rank=4, epochs=5, learning_rate=0.05).fit(rated()), rated()
        stars = data["rating"].to_numpy()
        r2 = 1 - ((model.predict(data) - stars) ** 2).sum() / ((stars - stars.mean()) ** 2).sum()
        assert 0.2 < r2 < 1
        assert model.score(data) == pytest.approx(r2, rel=1e-5)
        renamed = data.rename_columns(["user", "item", "stars"])
        assert model.score(renamed, rating="stars") == model.score(data)
        alike = data.set_column(2, "rating", pa.array(np.full(len(data), 2.0)))
        assert model.score(alike) == 0  # as of a regression in memory: nothing to explain, and errors

    def test_the_weights_of_no_features(self, tmp_path):
        with learnt(tmp_path / "m") as model:
            for none in ([], np.zeros(0, np.int64)):
                found = model.weights(none)
                assert (found.shape, found.dtype) == ((0,), np.float32)
