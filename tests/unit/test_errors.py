"""The error tree: as drawn, caught by the built-ins a user would try, and with a way out in every message."""

from __future__ import annotations

import inspect
import re

import pytest

from penstock import errors

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
