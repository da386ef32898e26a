"""``penstock groups``: a model for every group of rows. ``train`` searches and chooses, ``show`` tells, ``predict`` answers.

What cannot be meant is refused before any row is read: sorting rows by group may take long. Groups that are done are safe
in the folder of models; ``--resume`` trains the others.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from penstock.cli import options as o

_GROUPS = "Groups"
_LEARNING = "Learning"
_OUTPUT = "Output"

app = typer.Typer(
    name="groups",
    help="Train a model for every group of rows, with a search for each.",
    rich_markup_mode="rich",
    epilog="Example: [bold]penstock groups train clicks.parquet --by country --label clicked --try l2=1,0.1[/bold]",
)


def _option(*names: str, panel: str = _GROUPS, help: str, metavar: str = " ", **more: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=help, metavar=metavar, **more)


Models = Annotated[
    str,
    typer.Argument(
        metavar="MODELS", help="A folder of models that [bold]groups train[/bold] made.", show_default=False
    ),
]


@app.callback(invoke_without_command=True)
def groups(ctx: typer.Context) -> None:
    """Train a model for every group of rows, with a search over hyper-parameters for each."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command(
    "train",
    epilog="Example: [bold]penstock groups train clicks.parquet --by country,device --label clicked --try l2=1,0.1,0.01"
    " --out models[/bold]",
)
def train(
    ctx: typer.Context,
    data: o.Data,
    by: Annotated[list[str], _option("--by", metavar="A,B", help="The columns to group by.")],
    label: Annotated[
        str | None, _option("--label", panel="Columns", metavar="COL", help="The column to learn.")
    ] = None,
    features: o.Features = None,
    exclude: o.Exclude = None,
    hash: o.Hash = None,
    weight: o.Weight = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    grid: Annotated[
        str | None,
        _option(
            "--grid",
            metavar="FILE.toml",
            help="What to try for every group: a table [bold]\\[grid][/bold] or [bold]\\[random][/bold].",
        ),
    ] = None,
    tries: Annotated[
        list[str] | None,
        _option(
            "--try",
            metavar="NAME=A,B,C",
            help="Values to try of learning_rate, l1, l2, epochs or tolerance. May be repeated: every combination is tried.",
        ),
    ] = None,
    validation: Annotated[
        float,
        _option(
            "--validation",
            metavar="SHARE",
            help="The share of each group's rows that is held out, and that configs are compared on.",
        ),
    ] = 0.1,
    workers: Annotated[
        int | None, _option("--workers", metavar="N", help="Processes that train; as many as cores if not given.")
    ] = None,
    placement: Annotated[
        str,
        _option(
            "--placement", metavar="NAME", help="How rows are dealt to workers: spread, wrap-around or constrained."
        ),
    ] = "spread",
    rows: Annotated[
        str | None,
        _option(
            "--rows",
            metavar="DIR",
            help="Where rows by group are kept, to be used again; a temporary folder if not given.",
        ),
    ] = None,
    memory: Annotated[str, _option("--memory", metavar="SIZE", help="For sorting rows by group.")] = "512MB",
    model: Annotated[str, _option("--model", panel=_LEARNING, metavar="NAME", help="logistic or linear.")] = "logistic",
    solver: Annotated[
        str, _option("--solver", panel=_LEARNING, metavar="NAME", help="lbfgs, or gd (plain gradient descent).")
    ] = "lbfgs",
    epochs: Annotated[
        int, _option("--epochs", panel=_LEARNING, metavar="N", help="Most passes over a group's rows.")
    ] = 10,
    no_intercept: o.NoIntercept = False,
    standardize: Annotated[
        bool,
        typer.Option(
            "--standardize/--no-standardize",
            help="Bring features to mean 0 and spread 1 within each group.",
            rich_help_panel="Learning",
        ),
    ] = True,
    seed: o.Seed = 0,
    out: Annotated[str, _option("--out", panel=_OUTPUT, metavar="DIR", help="The folder for the models.")] = "models",
    resume: Annotated[
        bool, _option("--resume", panel=_OUTPUT, help="Train the groups that --out lacks, by the same command.")
    ] = False,
    json: o.Json = False,
) -> None:
    """Train every config of a search for every group, and choose for each by the rows held out."""
    from penstock.budget import parse_size
    from penstock.cli.grouptraining import require_known, require_new, require_own, run
    from penstock.cli.paths import require_folder
    from penstock.cli.trying import search_of
    from penstock.config import Config
    from penstock.errors import UsageError

    names = o.names(by)
    if not names:
        raise UsageError("--by names no column; write --by country, or --by country,device")
    require_known(model, solver)
    for option, value in (("epochs", epochs), ("workers", workers)):
        if value is not None and value < 1:
            raise UsageError(f"--{option} {value} is too few; choose 1 or more")
    parse_size(memory, option="memory")
    config = Config(
        model=model, solver=solver, epochs=epochs, intercept=not no_intercept, seed=seed, standardize=standardize
    )
    search = search_of(grid, tries or ())
    require_new(data, o.given(ctx), label)
    target = require_folder(out)
    if rows is not None and require_folder(rows).resolve() == target.resolve():
        raise UsageError(f"--rows and --out are both {out}; rows and models want a folder each")
    require_own(target, resume=resume)
    run(ctx.params, by=names, search=search, config=config)


@app.command("show", epilog="Example: [bold]penstock groups show models --group FR/ios[/bold]")
def show(
    models: Models,
    group: Annotated[
        str | None,
        _option("--group", metavar="KEY", help="All configs of one group, such as FR/ios.", show_default=False),
    ] = None,
    count: Annotated[
        int | None,
        _option("--lines", metavar="N", help="How many groups to list, the largest first; 20 on a terminal, else all."),
    ] = None,
    csv: Annotated[
        str | None,
        _option("--csv", panel=_OUTPUT, metavar="FILE", help="Write a row for each group and config instead."),
    ] = None,
    json: o.Json = False,
) -> None:
    """Show the config that was chosen for each group, or all configs of one, and how they did."""
    from penstock.cli.grouptables import best, figures, lines, of_group, table, write_csv
    from penstock.cli.paths import require_writable
    from penstock.cli.screen import Screen
    from penstock.compare import finite
    from penstock.errors import UsageError
    from penstock.groups.results import Result

    if count is not None and count < 0:
        raise UsageError(f"--lines {count} is not a number of lines; choose 0 or more")
    target = None if csv is None else require_writable(csv)
    result = Result.open(models)
    with Screen(json=json, rows=False) as screen:
        told: dict[str, Any] = {"models": models, "finished": result.registry.index.finished}
        if not told["finished"]:
            screen.note(_unfinished(models))
        if target is not None:
            written = write_csv(result, target, group=group)
            screen.say(f"saved {target}: {written:,} rows, one for each group and config")
            screen.give({**told, "rows": written, "out": str(target)})
        elif group is not None:
            found = of_group(result, group)
            for line in table(found, result, chosen=True):
                screen.say(line)
            screen.give(finite({**told, "group": group, "configs": found}))
        else:
            told |= figures(result)
            found = best(result)
            for line in lines(told):
                screen.say(line)
            screen.say()
            for line in table(found, result, most=count):
                screen.say(line)
            screen.give(finite({**told, "best": found}))


@app.command(
    "predict", epilog="Example: [bold]penstock groups predict models new.parquet --out predictions.parquet[/bold]"
)
def predict(
    models: Models,
    data: o.Data,
    out: Annotated[
        str, _option("--out", panel=_OUTPUT, metavar="FILE", help="The Parquet file to write.")
    ] = "predictions.parquet",
    unseen: Annotated[
        str,
        _option(
            "--unseen",
            metavar="NAME",
            help="What rows get whose group has no model: null, error, or largest (the largest group's model).",
        ),
    ] = "null",
    keep: o.Keep = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    json: o.Json = False,
) -> None:
    """Write the prediction of each row by its group's model to a Parquet file."""
    from contextlib import ExitStack

    from penstock.blocks.open import open as open_source
    from penstock.budget import peak_memory, show_bytes
    from penstock.cli.grouptables import unanswered
    from penstock.cli.paths import require_parquet
    from penstock.cli.screen import Screen
    from penstock.groups.results import Result

    began = time.perf_counter()
    target = require_parquet(out)
    result = Result.open(models)
    reading = o.reading(header, delimiter)
    with ExitStack() as stack:
        screen = stack.enter_context(Screen(json=json, rows=False))
        if not result.registry.index.finished:
            screen.note(_unfinished(models))
        given: Any = data
        if reading or format is not None:
            given = stack.enter_context(open_source(data, format=format, **reading))
        rows = result.predict(given, out=target, keep=o.names(keep), unseen=unseen, stream=screen.stream)
        without, peak, seconds = unanswered(target), peak_memory(), time.perf_counter() - began
        screen.close()
        gaps = f", {without:,} of them null (no model of their group)" if without else ""
        screen.say(f"saved {target}: {rows:,} predictions{gaps}, {seconds:.1f} s, peak memory {show_bytes(peak)}")
        screen.give(
            {
                "model": result.registry.index.kind,
                "models": models,
                "data": data,
                "rows": rows,
                "without_model": without,
                "unseen": unseen,
                "seconds": seconds,
                "peak_memory_bytes": peak,
                "out": str(target),
            }
        )


def _unfinished(models: str) -> str:
    return f"warning: the training of {models} was not finished, and groups may lack their models; go on with it by --resume"
