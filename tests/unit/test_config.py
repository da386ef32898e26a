"""Hyper-parameters: checked when made, plain JSON, and compared by name on resume."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock.config import LOSSES, Config
from penstock.errors import UnknownOptionError, UsageError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "tree"}, "model='tree' is not known; choose one of: linear, logistic, softmax, svm"),
        ({"shuffle": "corgi"}, "shuffle='corgi' is not known.*did you mean 'corgipile'"),
        ({"rate": "cosine"}, "'cosine' is not known; choose one of: constant, exponential, inverse-scaling"),
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
        ({"patience": 0}, "patience=0 is not a number of epochs"),
        ({"seed": -1}, "seed=-1 must not be negative"),
        ({"solver": "newton"}, "solver='newton' is not known; choose one of: gd, lbfgs, sgd"),
        (
            {"solver": "lbfgs", "model": "svm"},
            "solver='lbfgs' is for logistic and linear models; use solver='sgd' for svm",
        ),
        ({"solver": "gd", "model": "softmax"}, "solver='gd' is for logistic and linear models"),
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
    assert {name: Config(model=name).spec().loss for name in LOSSES} == LOSSES
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
    assert (Config().first_rate, Config(model="linear").first_rate, Config().shuffle) == (0.1, 0.01, "corgipile")


def test_features_are_standardised_where_it_is_needed_unless_said_otherwise():
    assert Config(model="linear").standardize is True
    assert Config(model="linear", standardize=False).standardize is False
    assert Config(model="svm").standardize is False
    assert Config(model="svm", standardize=True).standardize is True


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
    with pytest.raises(UsageError, match=rf"made with {name}={value!r}, this run has .*without --resume"):
        Config().require_same(saved)


def test_what_was_saved_before_there_were_solvers_is_sgd():
    saved = Config(learning_rate=0.1).to_dict()
    del saved["solver"]
    Config().require_same(saved)
    assert Config(**saved).solver == "sgd"
    with pytest.raises(UsageError, match="made with solver='sgd', this run has 'lbfgs'"):
        Config(solver="lbfgs", shuffle="none").require_same(saved)


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
