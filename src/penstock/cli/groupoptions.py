"""The options that several commands of ``penstock groups`` share, each written once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

GROUPS, LEARNING, OUTPUT = "Groups", "Learning", "Output"
"""The panels of the help page."""


def option(*names: str, panel: str = GROUPS, help: str, metavar: str = " ", **more: Any) -> Any:
    """Describe an option; a flag takes no value, and a blank says so best."""
    return typer.Option(*names, rich_help_panel=panel, help=help, metavar=metavar, **more)


Models = Annotated[
    str,
    typer.Argument(
        metavar="MODELS", help="A folder of models that [bold]groups train[/bold] made.", show_default=False
    ),
]
By = Annotated[list[str], option("--by", metavar="A,B", help="The columns to group by.")]
Label = Annotated[str | None, option("--label", panel="Columns", metavar="COL", help="The column to learn.")]
Grid = Annotated[
    str | None,
    option(
        "--grid",
        metavar="FILE.toml",
        help="What to try for every group: a table [bold]\\[grid][/bold] or [bold]\\[random][/bold].",
    ),
]
Tries = Annotated[
    list[str] | None,
    option(
        "--try",
        metavar="NAME=A,B,C",
        help="Values to try, of learning_rate, l1, l2, epochs …, or num_leaves … of lightgbm. May be repeated: every"
        " combination is tried.",
    ),
]
HeldOut = Annotated[
    float,
    option(
        "--validation",
        metavar="SHARE",
        help="The share of each group's rows that is held out, and that configs are compared on.",
    ),
]
Model = Annotated[
    str, option("--model", panel=LEARNING, metavar="NAME", help="logistic, svm, linear, or lightgbm (trees).")
]
Solver = Annotated[
    str | None,
    option(
        "--solver",
        panel=LEARNING,
        metavar="NAME",
        help="Of linear models: lbfgs, gd (plain gradient descent) or sgd; lbfgs if not given, sgd for svm.",
    ),
]
Epochs = Annotated[
    int | None,
    option(
        "--epochs",
        panel=LEARNING,
        metavar="N",
        help="Most passes over a group's rows, 10 if not given; of lightgbm the trees, 100.",
    ),
]
Patience = Annotated[
    int | None,
    option(
        "--patience",
        panel=LEARNING,
        metavar="N",
        help="Of sgd and lightgbm: stop a config when its loss on rows held out has not fallen for so many epochs.",
    ),
]
Standardize = Annotated[
    bool,
    typer.Option(
        "--standardize/--no-standardize",
        help="Bring features to mean 0 and spread 1 within each group.",
        rich_help_panel="Learning",
    ),
]
