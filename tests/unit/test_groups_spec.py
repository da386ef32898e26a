"""Which configs are tried: grids, draws, files, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from penstock.errors import SourceError, SourceNotFoundError, UnknownOptionError, UsageError
from penstock.groups.search_space import LINEAR, MOST, Choice, Parameter, Search

RANGES = {"learning_rate": ("log", 1e-3, 1), "l2": [0, 0.1, 0.01], "epochs": ("int", 5, 20), "l1": ("uniform", 0, 2)}


def params(search, known=LINEAR):
    return [choice.params for choice in search.choices(known)]


def test_a_grid_is_every_combination_the_last_name_fastest():
    choices = Search.grid({"l2": [0.1, 0], "learning_rate": (1, 0.5, 0.1)}).choices(LINEAR)
    assert [choice.number for choice in choices] == list(range(6))
    pairs = [(choice.params["l2"], choice.params["learning_rate"]) for choice in choices]
    assert pairs == [(0.1, 1), (0.1, 0.5), (0.1, 0.1), (0, 1), (0, 0.5), (0, 0.1)]
    assert list(choices[0].params) == ["l2", "learning_rate"]


def test_nothing_to_search_is_one_config():
    assert Search.of(None).choices(LINEAR) == [Choice(0, {})] == Search.of({}).choices(LINEAR)


def test_values_take_the_type_of_their_parameter():
    (first,) = params(Search.grid({"l2": np.array([1]), "epochs": [np.float64(7)]}))
    assert first == {"l2": 1.0, "epochs": 7}
    assert [type(value) for value in first.values()] == [float, int]


def test_defaults_tell_types():
    known = {"epochs": 20, "l2": 0.0, "intercept": True, "rate": "constant", "patience": None}
    search = Search.grid({"epochs": [3], "l2": [1], "intercept": [False], "rate": ["x"], "patience": [2]})
    assert params(search, known) == [{"epochs": 3, "l2": 1.0, "intercept": False, "rate": "x", "patience": 2}]
    for name, value in (("epochs", 2.5), ("l2", "a"), ("l2", True), ("intercept", 1), ("rate", 3)):
        with pytest.raises(UsageError, match=f"{name}={value!r} is of the wrong type; choose "):
            Search.grid({name: [value]}).choices(known)


def test_random_draws_keep_to_their_ranges():
    drawn = params(Search.random(RANGES, count=300, seed=3))
    assert len(drawn) == 300 == len({tuple(row.values()) for row in drawn})
    rates = np.array([row["learning_rate"] for row in drawn])
    assert rates.min() >= 1e-3
    assert rates.max() <= 1
    assert 0.25 < np.mean(rates < 1e-2) < 0.42  # a third of the way in the logarithm
    assert {row["epochs"] for row in drawn} == set(range(5, 21))
    assert {row["l2"] for row in drawn} == {0, 0.1, 0.01}
    assert 0.4 < np.mean([row["l1"] < 1 for row in drawn]) < 0.6
    assert all(type(row["epochs"]) is int and type(row["learning_rate"]) is float for row in drawn)


def test_whole_numbers_on_a_logarithm():
    drawn = [row["epochs"] for row in params(Search.random({"epochs": ("log-int", 1, 1000)}, count=60))]
    assert set(drawn) <= set(range(1, 1001))
    assert np.median(drawn) < 150


def test_a_seed_settles_the_draws_and_a_longer_search_begins_alike():
    short, long = (params(Search.random(RANGES, count=count, seed=5)) for count in (10, 40))
    assert long[:10] == short == params(Search.random(RANGES, count=10, seed=5))
    assert params(Search.random(RANGES, count=10, seed=6)) != short
    alone = params(Search.random({"learning_rate": ("log", 1e-3, 1)}, count=10, seed=5))
    assert [row["learning_rate"] for row in alone] == [row["learning_rate"] for row in short]


def test_draws_are_different_even_where_few_can_be():
    drawn = params(Search.random({"l1": [1, 2, 3], "epochs": ("int", 1, 2)}, count=6))
    assert len({tuple(row.values()) for row in drawn}) == 6
    with pytest.raises(UsageError, match=r"count=7, but there are only 6 different configs"):
        Search.random({"l1": [1, 2, 3], "epochs": ("int", 1, 2)}, count=7).choices(LINEAR)


@pytest.mark.parametrize(
    "search", [Search.grid({"l2": [1, 0.5], "rate": ["a"]}), Search.random(RANGES, count=9, seed=4)]
)
def test_json_round_trip(search):
    again = Search.of(json.loads(json.dumps(search.to_dict())))
    assert again == search
    assert again.choices() == search.choices()


def test_a_search_passes_through():
    search = Search.grid({"l2": [1]})
    assert Search.of(search) is search


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[grid]\nlearning_rate = [1, 0.5]\nl2 = [0.1]", Search.grid({"learning_rate": [1, 0.5], "l2": [0.1]})),
        (
            '[random]\ncount = 5\nseed = 2\nl2 = ["log", 1e-3, 1]\nl1 = [0, 1]',
            Search.random({"l2": ("log", 1e-3, 1), "l1": [0, 1]}, count=5, seed=2),
        ),
        (
            '[random]\ncount = 5\n[random.ranges]\nl2 = ["uniform", 0, 1]',
            Search.random({"l2": ("uniform", 0, 1)}, count=5),
        ),
    ],
)
def test_toml(tmp_path, text, expected):
    path = tmp_path / "search.toml"
    path.write_text(text)
    assert Search.from_toml(path) == expected == Search.of(str(path)) == Search.of(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[grid]\nl2 = [1", r"search\.toml is not TOML"),
        ("", r"search\.toml has nothing; it needs one table, \[grid\] or \[random\]"),
        ("l2 = [1]", r"search\.toml has 'l2'; it needs one table"),
        ("[grid]\nl2=[1]\n[random]\ncount=1", r"search\.toml has 'grid', 'random'; it needs one table"),
        ("[random]\nl2=[1]", r"search\.toml: a random search needs a count"),
        ("[random]\ncount=0\nl2=[1]", r"search\.toml: count=0 of a random search"),
        ("[grid]\nl2=1", r"search\.toml: l2=1 is not a list of values; write l2=\[1\]"),
        ("[grid]\nl2=[[1]]", r"search\.toml: l2=\[1\] is not one value"),
        ("[grid]\nl2=[nan]", r"search\.toml: l2=nan is not a finite number"),
    ],
)
def test_files_that_are_no_search_are_named(tmp_path, text, told):
    path = tmp_path / "search.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        Search.from_toml(path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"there is no search file at .*none\.toml"):
        Search.of(tmp_path / "none.toml")
    with pytest.raises(SourceError, match="cannot read the search file"):
        Search.of(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="is not TOML"):
        Search.of(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Search.grid({"lerning_rate": [1]}), r"search='lerning_rate' .*did you mean 'learning_rate'\?"),
        (lambda: Search.grid({"l2": [0.1, -1]}), r"l2=-1 is out of range; choose a number of at least 0"),
        (lambda: Search.grid({"learning_rate": [0]}), r"learning_rate=0 is out of range; choose a number above 0"),
        (
            lambda: Search.grid({"epochs": [1.5]}),
            r"epochs=1.5 is of the wrong type; choose a whole number of at least 1",
        ),
        (lambda: Search.grid({"l2": [1, 2, 1.0]}), r"l2 lists 1.0 twice"),
        (lambda: Search.grid({"l2": []}), r"l2 has no values to try"),
        (lambda: Search.grid({"l2": "abc"}), r"l2='abc' is not a list of values"),
        (lambda: Search.grid({"l2": ("log", 1, 2)}), r"is a range; .*use Search\.random"),
        (lambda: Search.of({"l2": ["log", 1, 2]}), r"is a range; .*use Search\.random"),
        (lambda: Search.of(3), r"search=3 is not a search; give a dict"),
        (lambda: Search.grid({"l2": [None]}), r"l2=None is not one value"),
        (lambda: Search.random({"l2": ("lag", 1, 2)}, count=2), r"the scale of l2='lag' .*did you mean 'log'\?"),
        (lambda: Search.random({"l2": ("log", 0, 2)}, count=2), r"which has no logarithm; start above 0"),
        (lambda: Search.random({"l2": ("uniform", 2, 1)}, count=2), r"which is no range; give the lower end first"),
        (lambda: Search.random({"l2": ("uniform", -1, 1)}, count=2), r"l2=-1 is out of range"),
        (lambda: Search.random({"epochs": ("log", 1, 9)}, count=2), r"draw it from \('int', 1, 9\)"),
        (lambda: Search.random({"epochs": ("int", 1.5, 9)}, count=2), r"ends of a range of whole numbers are whole"),
        (lambda: Search.random({"l2": [1, 2]}, count=True), r"count=True of a random search must be a whole number"),
        (lambda: Search.random({"l2": [1, 2]}, count=1, seed=-1), r"seed=-1 of a random search"),
    ],
)
def test_mistakes_say_what_is_wrong_and_what_to_do(make, told):
    with pytest.raises(UsageError, match=told):
        make().choices(LINEAR)


def test_too_many_configs_are_counted_not_made():
    search = Search.grid({"l2": range(1000), "l1": range(1000), "learning_rate": range(1, 1000)})
    with pytest.raises(UsageError, match=r"1,000 l2 × 1,000 l1 × 999 learning_rate are 999,000,000 configs"):
        search.choices(LINEAR)
    with pytest.raises(UsageError, match=f"count={MOST + 1} asks for {MOST + 1:,} configs"):
        Search.random({"l2": ("uniform", 0, 1)}, count=MOST + 1).choices(LINEAR)
    assert len(Search.random({"l2": ("uniform", 0, 1)}, count=MOST).choices(LINEAR)) == MOST


def test_words_and_ends_of_a_parameter():
    known = {"rate": Parameter("word", words=("constant", "exponential")), "share": Parameter("number", most=1)}
    with pytest.raises(UnknownOptionError, match="did you mean 'constant'"):
        Search.grid({"rate": ["constnt"]}).choices(known)
    with pytest.raises(UsageError, match="share=2 is out of range; choose a number of at most 1"):
        Search.grid({"share": [2]}).choices(known)


def test_a_config_tells_itself():
    assert str(Choice(0, {"learning_rate": 0.5, "epochs": 3, "rate": "constant"})) == (
        "learning_rate=0.5, epochs=3, rate=constant"
    )
