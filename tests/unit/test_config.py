"""Hyper-parameters: checked when made, plain JSON, and compared by name on resume."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from penstock.config import Config
from penstock.errors import UnknownOptionError, UsageError
from penstock.sgd.losses import linear_models
from penstock.solvers import DataShape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "tree"}, "model='tree' is not known; choose one of: linear, logistic, softmax, svm"),
        ({"shuffle": "corgi"}, "shuffle='corgi' is not known.*did you mean 'corgipile'"),
        ({"rate": "cosine"}, "'cosine' is not known; choose one of: auto, constant, exponential, inverse-scaling"),
        ({"memory": "lots"}, "memory='lots' is not an amount of memory"),
        ({"epochs": -1}, "epochs=-1 is not a number of epochs"),
        ({"epochs": 1.5}, "epochs=1.5 is not a number of epochs"),
        ({"batch_size": 0}, "batch_size=0 must be a whole number from 1"),
        ({"learning_rate": 0}, "learning"),
        ({"learning_rate": float("nan")}, "learning"),
        ({"decay": 2}, "decay"),
        ({"l1": -1}, "l1=-1 must be zero or a positive number"),
        ({"l2": float("inf")}, "l2=inf must be zero or a positive number"),
        ({"validation": 1}, "validation=1 is not a share of the rows"),
        ({"validation": -0.1}, "validation=-0.1 is not a share"),
        ({"patience": -1}, "patience=-1 is not a number of epochs"),
        ({"seed": -1}, "seed=-1 must not be negative"),
        ({"solver": "newton"}, "solver='newton' is not known; choose one of: auto, exact, gd, lbfgs, sgd"),
        ({"solver": "exact", "model": "svm"}, "solver='exact' solves least squares.*use solver='lbfgs'"),
        ({"solver": "exact", "model": "linear", "l1": 0.1}, "solver='exact' solves least squares.*l1=0.1"),
        (
            {"solver": "lbfgs", "batch_size": 16},
            "batch_size=16 is for solver='sgd': solver='lbfgs' makes one step for each",
        ),
        ({"solver": "gd", "rate": "constant"}, "rate='constant' is for solver='sgd'.*leave rate out"),
        ({"solver": "lbfgs", "decay": 0.5}, "decay=0.5 is for solver='sgd'"),
        ({"solver": "lbfgs", "power": 0.5}, "power=0.5 is for solver='sgd'"),
        ({"solver": "lbfgs", "shuffle": "corgi"}, "shuffle='corgi' is not known"),
    ],
)
def test_what_cannot_be_is_refused_when_made(options, message):
    with pytest.raises((UsageError, UnknownOptionError), match=message):
        Config(**options)


def test_losses_follow_the_model():
    expected = {"logistic": "logistic", "svm": "hinge", "linear": "squared", "softmax": "softmax"}
    assert {name: Config(model=name).spec().loss for name in linear_models()} == expected
    assert Config(model="linear").spec().rate.at(0, 0) < Config().spec().rate.at(0, 0)
    assert Config(model="linear", learning_rate=0.5).spec().rate.at(0, 0) == 0.5


def test_solvers_of_full_passes_take_whole_steps_and_rows_as_they_are_stored():
    for solver in ("lbfgs", "gd"):
        for model in ("logistic", "linear"):
            config = Config(model=model, solver=solver, shuffle="once")
            assert config.first_rate == config.spec().rate.at(0, 0) == 1
            assert config.shuffle == "none"
            assert Config(**json.loads(json.dumps(config.to_dict()))) == config
    assert Config(solver="lbfgs", learning_rate=0.5).first_rate == 0.5
    assert Config().shuffle == "corgipile"


def test_features_are_standardised_unless_said_otherwise():
    for model in linear_models():
        assert Config(model=model).standardize is True
        assert Config(model=model, standardize=False).standardize is False


def test_auto_is_what_was_left_out():
    assert Config(learning_rate="auto", l2="auto", epochs="auto", validation="auto", patience="auto") == Config()


@pytest.mark.parametrize(
    ("model", "shape", "options", "solver", "epochs"),
    [
        ("linear", DataShape(1000, 10, in_memory=False), {}, "exact", 1),
        ("linear", DataShape(1000, 10, in_memory=True), {"l1": 0.1}, "lbfgs", 100),
        ("linear", DataShape(1000, 5000, in_memory=True), {}, "lbfgs", 100),
        ("linear", DataShape(1000, 500_000, in_memory=True), {}, "sgd", 300),
        ("logistic", DataShape(1000, 10, in_memory=True), {}, "lbfgs", 100),
        ("logistic", DataShape(1000, 10, in_memory=True), {"epochs": 1}, "sgd", 1),
        ("logistic", DataShape(1000, 10, in_memory=False), {}, "sgd", 300),
        ("logistic", DataShape(1000, 5000, in_memory=True), {}, "sgd", 300),
        ("logistic", DataShape(10, 5000, in_memory=True), {}, "sgd", 1000),
        ("logistic", DataShape(100_000, 5000, in_memory=True), {}, "sgd", 20),
        ("logistic", DataShape(1000, 10, in_memory=True), {"learning_rate": 0.1}, "sgd", 300),
        ("logistic", DataShape(1000, 10, in_memory=True), {"shuffle": "once"}, "sgd", 300),
        ("linear", DataShape(1000, 10, in_memory=True), {"batch_size": 8}, "sgd", 300),
    ],
)
def test_the_solver_fits_the_data_and_what_was_asked_for(model, shape, options, solver, epochs):
    found = Config(model=model, **options).resolve(shape)
    assert (found.solver, found.epochs) == (solver, epochs)
    assert found.l2 == (0 if options.get("l1") else 1 / shape.rows)


def test_many_sparse_features_are_penalized_less():
    shape = DataShape(100_000, 5000, in_memory=True, sparse=True)
    found = Config().resolve(shape, held_out=True)
    assert (found.optimizer, found.l2) == ("ftrl", 0.1 / shape.rows)
    assert Config(optimizer="sgd", solver="sgd").resolve(shape).l2 == 1 / shape.rows
    assert Config(l2=0.5).resolve(shape, held_out=True).l2 == 0.5


def test_a_penalty_that_is_given_stays():
    assert Config(l2=0).resolve(DataShape(1000, 10, in_memory=True)).l2 == 0


def test_too_many_features_for_an_exact_solution_are_refused():
    with pytest.raises(UsageError, match=r"solver='exact'.*3,000 features"):
        Config(model="linear", solver="exact").resolve(DataShape(10, 3000, in_memory=True))


def test_steps_are_bounded_unless_a_schedule_is_asked_for():
    assert Config().spec().rate.bounded
    for options in ({"learning_rate": 0.1}, {"rate": "exponential"}, {"decay": 0.5}):
        assert not Config(**options).spec().rate.bounded


def test_a_config_is_json_whatever_numbers_it_was_made_of():
    config = Config(epochs=np.int64(3), l2=np.float32(0.5), intercept=np.bool_(False), learning_rate=np.float64(0.1))
    again = json.loads(json.dumps(config.to_dict()))
    config.require_same(again)
    assert Config(**again) == config


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"l2": 0.1}, {"model": "svm"}, {"shuffle": "none"}, {"memory": "1GB"}]
)
def test_a_change_is_named_on_resume(changed):
    name, value = next(iter(changed.items()))
    saved = Config(**changed).to_dict()
    with pytest.raises(UsageError, match=rf"made with {name}={value!r}, this run has .*without resume=True"):
        Config().require_same(saved)


def test_a_default_learning_rate_may_be_named_on_resume():
    Config(learning_rate=1.0, solver="gd").require_same(Config(solver="gd").to_dict())
    Config(solver="gd").require_same(Config(learning_rate=1.0, solver="gd").to_dict())


def test_more_epochs_may_be_asked_for_on_resume():
    Config(epochs=30).require_same(Config(epochs=20).to_dict())


def test_an_older_files_missing_option_is_told():
    saved = Config().to_dict()
    del saved["tolerance"]
    with pytest.raises(UsageError, match="tolerance=None"):
        Config().require_same(saved)


def test_many_sparse_features_are_learned_by_ftrl_unless_steps_are_chosen():
    wide = DataShape(rows=1000, width=2**20, in_memory=True, sparse=True)
    assert Config().resolve(wide).optimizer == "ftrl"
    assert Config(optimizer="auto").resolve(wide).optimizer == "ftrl"
    for options in (
        {"optimizer": "sgd"},
        {"learning_rate": 0.1},
        {"rate": "constant"},
        {"batch_size": 8},
        {"model": "linear"},
    ):
        assert Config(**options).resolve(wide).optimizer == "sgd"
    assert Config(solver="sgd").resolve(replace(wide, sparse=False)).optimizer == "sgd"


def test_very_many_sparse_features_take_few_epochs_where_nothing_stops_them():
    wide = DataShape(rows=8000, width=2**20, in_memory=True, sparse=True)
    assert (Config().resolve(wide).optimizer, Config().resolve(wide).epochs) == ("ftrl", 5)
    assert Config().resolve(wide, held_out=True).epochs > 5
    assert Config(optimizer="ftrl").resolve(wide).epochs > 5
    assert Config(epochs=7).resolve(wide).epochs == 7
