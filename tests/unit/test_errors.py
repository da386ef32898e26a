"""The error tree: as drawn, caught by the built-ins a user would try, and with a way out in every message."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock import errors
from penstock.blocks.file_formats import FILE_FORMATS
from penstock.config import Config
from penstock.loader import Loader
from penstock.messages import START_ANEW, Command, LeaveOut, Location, Text, Use
from penstock.sql.session import Session
from penstock.training import Columns

CLASSES = {name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, Exception)}


def test_the_tree_is_as_drawn():
    drawn = dict(re.findall(r"[├└]── (\w+)(?: \((\w+)\))?", errors.__doc__))
    assert {"PenstockError", *drawn} == set(CLASSES)
    for name, builtin in drawn.items():
        assert issubclass(CLASSES[name], errors.PenstockError)
        if builtin:
            assert issubclass(CLASSES[name], getattr(__builtins__, builtin, None) or __builtins__[builtin])


def test_parents_are_those_of_the_drawing():
    stack = ["PenstockError"]
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│ ]*)[├└]── (\w+)", line)
        if found:
            depth = len(found[1]) // 4 + 1
            del stack[depth:]
            assert issubclass(CLASSES[found[2]], CLASSES[stack[-1]]), found[2]
            stack.append(found[2])


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_error_says_what_it_is_in_a_sentence(name):
    assert CLASSES[name].__doc__.strip().split("\n")[0].endswith(".")


def test_an_unknown_option_lists_the_valid_ones_and_the_nearest():
    told = str(errors.UnknownOptionError.of("shuffle", "corgipil", ["none", "corgipile"]))
    assert told == "shuffle='corgipil' is not known; choose one of: corgipile, none (did you mean 'corgipile'?)"
    assert "did you mean" not in str(errors.UnknownOptionError.of("shuffle", "xyz", ["none"]))


def test_a_missing_extra_prints_the_line_that_installs_it():
    told = errors.MissingExtraError.of("torch", "torch", "the torch loader")
    assert str(told).endswith("run: pip install 'penstock[torch]'")
    assert told.fixes == (Command(("pip", "install", "penstock[torch]")),)
    assert isinstance(told, ImportError)


def test_a_missing_column_names_those_there_are():
    told = str(errors.ColumnError.missing("clickd", ["age", "clicked"], place="a.csv", role="label column"))
    assert told == "a.csv has no label column 'clickd'; it has: age, clicked (did you mean 'clicked'?)"
    many = str(errors.ColumnError.missing("x", [f"f{i}" for i in range(30)], place="a.csv"))
    assert "… (30 in all)" in many
    assert "f25" not in many


def test_of_many_names_some_are_shown():
    assert errors.some_of(["a", "b"]) == "a, b"
    assert errors.some_of(map(str, range(785)), most=3) == "0, 1, 2, … (785 in all)"


def unknown_shuffle():
    Config(shuffle="corgipil")


def little_memory():
    rows = pa.table({"x": np.arange(50_000.0), "y": np.arange(50_000) % 2})
    Loader(penstock.open(rows), Columns(label="y").recipe(penstock.open(rows)), memory=100)


def list_column():
    Columns(label="y").recipe(penstock.open(pa.table({"prices": [[1.0], [2.0, 3.0]], "y": [0, 1]})))


def missing_column():
    Columns(label="z").recipe(penstock.open(pa.table({"x": [0.0], "y": [0]})))


def bad_line():
    Path("a.csv").write_text("x,y\n1,0\n2\n")
    penstock.open("a.csv").read(0)


def several_formats():
    Path("a.bin").write_bytes(b"nothing known")
    penstock.open("a.bin")


def wrong_statement():
    with Session() as session:
        session.sql("SELECT 1 AS label\nTRAIN BY nothing")


def other_config():
    Config(seed=1).require_same(Config(seed=2).to_dict())


@pytest.mark.parametrize(
    ("cause", "kind", "fields"),
    [
        (
            lambda: Config(epochs=-1),
            errors.UsageError,
            {"option": "epochs", "value": -1, "fixes": ("choose 1 or more",)},
        ),
        (unknown_shuffle, errors.UnknownOptionError, {"option": "shuffle", "value": "corgipil", "place": None}),
        (
            lambda: Config(model="linear", class_weight="balanced"),
            errors.UsageError,
            {"option": "class_weight", "fixes": (LeaveOut("class_weight"), "weigh rows by a column")},
        ),
        (
            other_config,
            errors.UsageError,
            {"option": "seed", "value": 1, "fixes": ("resume with the same value", START_ANEW)},
        ),
        (little_memory, errors.BudgetError, {"option": "memory", "value": 100}),
        (
            list_column,
            errors.FeatureError,
            {
                "place": Location("table"),
                "fixes": ("make it a fixed-size list", "give sparse rows as two columns named 'indices' and 'values'"),
            },
        ),
        (missing_column, errors.ColumnError, {"place": Location("table"), "option": None}),
        (bad_line, errors.ParseError, {"place": Location("a.csv", line=3)}),
        (
            several_formats,
            errors.UsageError,
            {"fixes": (Text("name it with ", Use("format"), f", one of: {', '.join(sorted(FILE_FORMATS))}"),)},
        ),
        (
            wrong_statement,
            errors.SQLSyntaxError,
            {"place": Location(line=2, character=10, excerpt="    TRAIN BY nothing\n             ^")},
        ),
    ],
)
def test_errors_carry_what_they_are_about(cause, kind, fields, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind) as caught:
        cause()
    assert type(caught.value) is kind
    assert {name: getattr(caught.value, name) for name in fields} == fields
