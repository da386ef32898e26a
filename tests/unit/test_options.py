"""The option table against every door: names, defaults and help are the table's, and the reference page names them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

import penstock
from benchmarks.reference import with_tables
from penstock import bigmodel
from penstock.bigmodel.factor_learner import FactorConfig
from penstock.bigmodel.storage import Storage
from penstock.cli.application import app
from penstock.cli.options import flag_of, with_flags
from penstock.config import Config
from penstock.errors import UsageError
from penstock.groups import GroupBy
from penstock.groups.search_space import LINEAR
from penstock.options import ARGUMENT, REQUIRED, TABLE, options_of
from penstock.sgd.losses import linear_models
from penstock.sgd.optimizers import OPTIMIZERS
from penstock.shuffle import ORDERS
from penstock.solvers import SOLVERS
from penstock.sql.options import option_names

DOCS = Path(__file__).resolve().parents[2] / "docs"
REFERENCE, REFERENCE_SQL = (DOCS / "reference.md").read_text(), DOCS / "database.md"
COMMANDS = ("explain", "train", "evaluate", "show", "predict", "convert", "compare", "sql", "demo")
GROUP_COMMANDS = ("groups-train", "groups-explain", "groups-report")


def parameters(door: str) -> dict[str, Any]:
    """Return the parameters of a command as the command line has them."""
    command: Any = typer.main.get_command(app)
    for word in door.split("-"):
        command = command.commands[word]
    return {each.name: each for each in command.params if each.name != "help"}


def plain(text: str) -> str:
    return re.sub(r"\s*\[dim\].*\[/dim\]", "", text)


@pytest.mark.parametrize("door", [*COMMANDS, *GROUP_COMMANDS])
def test_commands_have_the_options_of_the_table(door: str) -> None:
    options, found = options_of(door), parameters(door)
    assert list(found) == list(options)
    for name, option in options.items():
        assert plain(found[name].help) == with_flags(option.help)
        assert found[name].required == (option.default is REQUIRED)
        if option.default is not REQUIRED:
            assert found[name].default == option.default
        if option.panel != ARGUMENT:
            assert flag_of(name) in found[name].opts
            assert found[name].metavar == option.metavar


def test_the_reference_has_the_tables_of_today() -> None:
    assert with_tables(REFERENCE) == REFERENCE, "run python -m benchmarks.reference docs/reference.md"


@pytest.mark.parametrize(
    ("door", "estimator"),
    [
        *(("estimator", each) for each in (penstock.LogisticRegression, penstock.LinearSVM, penstock.LinearRegression)),
        ("disk", bigmodel.LogisticRegression),
        ("factor", bigmodel.MatrixFactorization),
    ],
)
def test_estimators_have_the_options_of_the_table(door: str, estimator: type) -> None:
    options, found = options_of(door), inspect.signature(estimator).parameters
    assert set(found) == set(options)
    for name, option in options.items():
        if option.default is REQUIRED:
            assert found[name].default is inspect.Parameter.empty
        else:
            assert option.check(found[name].default) == option.default, name


@pytest.mark.parametrize("door", ["estimator", "disk", "factor"])
def test_the_reference_names_every_parameter(door: str) -> None:
    assert [name for name in options_of(door) if not re.search(rf"`{name}[`(=]|[( ]{name}=", REFERENCE)] == []


def test_configs_have_the_defaults_of_the_table() -> None:
    for config, door in ((Config(), "estimator"), (FactorConfig(), "factor"), (Storage(), "disk")):
        names = [name for name in options_of(door) if name in config.__dataclass_fields__ and name != "learning_rate"]
        assert {name: getattr(config, name) for name in names} == {
            name: options_of(door)[name].default for name in names
        }
    assert set(Config.__dataclass_fields__) == set(options_of("estimator")) - {"warm_start"} | {"model"}
    assert set(FactorConfig.__dataclass_fields__) == set(options_of("factor")) - {"model_dir"}


def test_statements_have_the_options_of_the_table_and_their_aliases() -> None:
    options = options_of("query")
    aliases = {alias for option in options.values() for alias in option.aliases}
    assert set(option_names()) == {*options, *aliases}
    assert {"max_epoch_num", "buffer_size", "test_fraction", "folder"} == aliases
    assert set(option_names(of_warehouse=True)) > {"max_iterations", "learn_rate", "l1_reg", "l2_reg", *option_names()}
    database = REFERENCE_SQL.read_text()
    assert [name for name in options if f"`{name}`" not in database and f"`{name} " not in database] == []


def test_groups_search_what_the_table_says() -> None:
    assert set(LINEAR) == set(options_of("search"))
    assert {name: (each.least, each.above) for name, each in LINEAR.items()} == {
        name: (option.least, option.above) for name, option in options_of("search").items()
    }
    assert GroupBy.__dataclass_fields__["memory"].default == TABLE["memory"].default


def test_words_in_help_are_those_that_there_are() -> None:
    for name, words in (
        ("shuffle", ORDERS),
        ("solver", SOLVERS),
        ("optimizer", OPTIMIZERS),
        ("model", linear_models()),
    ):
        assert [word for word in words if not re.search(rf"\b{word}\b", TABLE[name].help)] == []


def test_variants_are_of_doors_that_the_option_has() -> None:
    for name, option in TABLE.items():
        assert set(option.variants) <= set(option.doors), name
        assert {
            other for text in (option.help, option.default_text) for other in re.findall(r"\{(\w+)\}", text)
        } <= set(TABLE)


def test_numbers_are_held_to_their_range() -> None:
    assert TABLE["learning_rate"].check("auto") is None
    assert TABLE["rate"].check("auto") == "auto"
    for name, value in (("epochs", -1), ("validation", 1.0), ("threads", 0), ("l2", float("nan")), ("seed", True)):
        with pytest.raises(UsageError) as refused:
            TABLE[name].check(value)
        assert refused.value.option == name
