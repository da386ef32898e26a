"""The options that several commands share, each written once: its name, its help, its place on the help page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

_COLUMNS = "Columns"
_LEARNING = "Learning"
_SHUFFLING = "Shuffling and memory"
_STOPPING = "Testing and stopping"
_ON_DISK = "Models on disk"
_OUTPUT = "Output"
_DATABASE = "Database"

Data = Annotated[
    str, typer.Argument(metavar="DATA", help="A file, folder, glob or address of rows.", show_default=False)
]
ModelFile = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model that [bold]train[/bold] saved: a file, or a model's directory.",
        show_default=False,
    ),
]


def _option(*names: str, panel: str, help: str, metavar: str = " ", **more: Any) -> Any:
    # A flag takes no value, and a blank says so better than the type that typer would name.
    return typer.Option(*names, rich_help_panel=panel, help=help, metavar=metavar, **more)


Label = Annotated[
    str | None,
    _option(
        "--label", panel=_COLUMNS, metavar="COL", help="The column to learn. Converted and LibSVM files name their own."
    ),
]
Weight = Annotated[str | None, _option("--weight", panel=_COLUMNS, metavar="COL", help="How much each row counts.")]
Features = Annotated[
    list[str] | None,
    _option("--features", panel=_COLUMNS, metavar="A,B,C", help="The columns to learn from; all others if not given."),
]
Exclude = Annotated[
    list[str] | None, _option("--exclude", panel=_COLUMNS, metavar="A,B,C", help="Columns to leave out.")
]
Hash = Annotated[
    list[str] | None,
    _option(
        "--hash",
        panel=_COLUMNS,
        metavar="COL[:2^20]",
        help="Hash a text column into so many features; [bold]COL:2^18:words[/bold] word by word. May be repeated.",
    ),
]
Keep = Annotated[
    list[str] | None, _option("--keep", panel=_COLUMNS, metavar="A,B,C", help="Columns to carry over as they are.")
]
Format = Annotated[
    str | None,
    _option(
        "--format",
        panel=_COLUMNS,
        metavar="NAME",
        help="parquet, arrow, npy, csv or libsvm, where the name does not tell.",
    ),
]
Header = Annotated[
    bool | None,
    _option(
        "--header/--no-header",
        panel=_COLUMNS,
        help="Whether CSV text begins with the columns' names; found out if not given.",
        show_default=False,
    ),
]
Delimiter = Annotated[
    str | None,
    _option(
        "--delimiter", panel=_COLUMNS, metavar="CHAR", help="What parts the fields of CSV text; found out if not given."
    ),
]

Model = Annotated[str, _option("--model", panel=_LEARNING, metavar="NAME", help="logistic, svm, linear or softmax.")]
AnyModel = Annotated[
    str,
    _option(
        "--model",
        panel=_LEARNING,
        metavar="NAME",
        help="logistic, svm, linear or softmax; factor, of ratings, with --model-dir.",
    ),
]
Epochs = Annotated[int, _option("--epochs", panel=_LEARNING, metavar="N", help="Passes over the data.")]
Solver = Annotated[
    str,
    _option(
        "--solver",
        panel=_LEARNING,
        metavar="NAME",
        help="sgd, or of logistic and linear lbfgs or gd: one step to an epoch, the order of rows makes no difference.",
    ),
]
BatchSize = Annotated[int, _option("--batch-size", panel=_LEARNING, metavar="N", help="Rows to an update.")]
LearningRate = Annotated[
    float | None,
    _option(
        "--learning-rate",
        panel=_LEARNING,
        metavar="X",
        help="The first step size. [dim]\\[default: 0.1; linear and factor 0.01; lbfgs and gd 1][/dim]",
    ),
]
Rate = Annotated[
    str,
    _option("--rate", panel=_LEARNING, metavar="NAME", help="How it falls: exponential, inverse-scaling or constant."),
]
Decay = Annotated[float, _option("--decay", panel=_LEARNING, metavar="X", help="Of exponential: the factor per epoch.")]
Power = Annotated[float, _option("--power", panel=_LEARNING, metavar="X", help="Of inverse-scaling: the exponent.")]
L1 = Annotated[float, _option("--l1", panel=_LEARNING, metavar="X", help="Penalty on the weights' sizes.")]
L2 = Annotated[float, _option("--l2", panel=_LEARNING, metavar="X", help="Penalty on the weights' squares.")]
NoIntercept = Annotated[bool, _option("--no-intercept", panel=_LEARNING, help="Learn no intercept.")]
Standardize = Annotated[
    bool | None,
    _option(
        "--standardize/--no-standardize",
        panel=_LEARNING,
        help="Bring features to mean 0 and spread 1, by one pass more; the linear model does unless told not to.",
    ),
]
Seed = Annotated[int, _option("--seed", panel=_LEARNING, metavar="N", help="Of all chance: same seed, same model.")]

Shuffle = Annotated[
    str,
    _option(
        "--shuffle",
        panel=_SHUFFLING,
        metavar="NAME",
        help="corgipile, global, none, once, epoch, sliding-window, mrs or block-only.",
    ),
]
Memory = Annotated[
    str,
    _option("--memory", panel=_SHUFFLING, metavar="SIZE", help="What the rows may occupy: 512MB, or 10% of the data."),
]
Scratch = Annotated[
    str | None,
    _option(
        "--scratch",
        panel=_SHUFFLING,
        metavar="DIR",
        help="Where once and epoch write their copy; beside the data if not given.",
    ),
]

Test = Annotated[
    str | None,
    _option("--test", panel=_STOPPING, metavar="DATA", help="Rows to measure the model on after every epoch."),
]
Validation = Annotated[
    float, _option("--validation", panel=_STOPPING, metavar="SHARE", help="Hold out such a share of the rows instead.")
]
Patience = Annotated[
    int | None,
    _option("--patience", panel=_STOPPING, metavar="N", help="Stop after so many epochs without improvement."),
]
Tolerance = Annotated[
    float,
    _option(
        "--tolerance",
        panel=_STOPPING,
        metavar="X",
        help="What counts as improvement of the loss; the slope at which lbfgs and gd are done.",
    ),
]

ModelDir = Annotated[
    str | None,
    _option(
        "--model-dir",
        panel=_ON_DISK,
        metavar="DIR",
        help="Keep the model there, in pages of which memory holds some: it may be larger than memory.",
    ),
]
ModelMemory = Annotated[
    str | None,
    _option(
        "--model-memory",
        panel=_ON_DISK,
        metavar="SIZE",
        help="What the model may occupy beside the rows: 1GB, or 25% of its own size. [dim]\\[default: 1GB][/dim]",
    ),
]
Threads = Annotated[
    int | None,
    _option(
        "--threads",
        panel=_ON_DISK,
        metavar="N",
        help="Threads that learn at once; with more than one, runs differ a little. [dim]\\[default: 1][/dim]",
    ),
]
Optimizer = Annotated[
    str | None,
    _option("--optimizer", panel=_ON_DISK, metavar="NAME", help="sgd or adagrad. [dim]\\[default: sgd][/dim]"),
]
Dimension = Annotated[
    int | None,
    _option(
        "--dimension",
        panel=_ON_DISK,
        metavar="N",
        help="How many features there may be; an index at or beyond it is refused. Any 64-bit index is taken if not given.",
        show_default=False,
    ),
]
User = Annotated[str | None, _option("--user", panel=_ON_DISK, metavar="COL", help="Of factor: who rated.")]
Item = Annotated[str | None, _option("--item", panel=_ON_DISK, metavar="COL", help="Of factor: what was rated.")]
Rating = Annotated[str | None, _option("--rating", panel=_ON_DISK, metavar="COL", help="Of factor: how it was rated.")]
Rank = Annotated[
    int | None,
    _option(
        "--rank",
        panel=_ON_DISK,
        metavar="N",
        help="Of factor: numbers to a user and to an item. [dim]\\[default: 100][/dim]",
    ),
]
ScoringMemory = Annotated[
    str | None,
    _option(
        "--memory",
        panel=_ON_DISK,
        metavar="SIZE",
        help="Of a model's directory: what rows and pages may occupy. [dim]\\[default: 512MB][/dim]",
    ),
]

Database = Annotated[
    str | None,
    _option(
        "--db",
        panel=_OUTPUT,
        metavar="DB",
        help="Take MODEL by its name from this database: a DuckDB file, or postgresql://user@host/db.",
    ),
]
SqlDatabase = Annotated[
    str,
    _option(
        "--db",
        panel=_DATABASE,
        metavar="DB",
        envvar="PENSTOCK_DB",
        help="A DuckDB file (made if it is not there), or postgresql://user@host/db.",
    ),
]
SqlFile = Annotated[
    str | None, _option("--file", "-f", panel=_DATABASE, metavar="FILE", help="Run the statements in a file.")
]
ReadOnly = Annotated[bool, _option("--read-only", panel=_DATABASE, help="Open a DuckDB file for reading alone.")]
MostRows = Annotated[
    int,
    _option("--rows", panel=_OUTPUT, metavar="N", min=0, help="Print at most so many rows of a result; 0 for all."),
]
Csv = Annotated[bool, _option("--csv", panel=_OUTPUT, help="Print rows as CSV, all of them.")]
Json = Annotated[
    bool, _option("--json", panel=_OUTPUT, help="Print one JSON object on stdout, and nothing else there.")
]


Resume = Annotated[bool, _option("--resume", panel=_OUTPUT, help="Go on from the last checkpoint of the same command.")]


def given(ctx: typer.Context) -> list[str]:
    """Return the parameters that were given on the command line, by their Python names, in the command's order."""
    found = []
    for name in ctx.params:
        where = ctx.get_parameter_source(name)
        if where is not None and where.name == "COMMANDLINE":
            found.append(name)
    return found


def names(given: Sequence[str] | None) -> list[str]:
    """Return the names of an option that takes ``a,b,c`` and may be repeated.

    Examples
    --------
    >>> names(["a,b", "c"])
    ['a', 'b', 'c']
    """
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]


def reading(header: bool | None, delimiter: str | None) -> dict[str, Any]:
    """Return what `penstock.open` is told of CSV text."""
    given = {"header": header, "delimiter": {"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter)}
    return {name: value for name, value in given.items() if value is not None}
