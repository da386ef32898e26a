"""``penstock groups``: a model for every group of rows.

``explain`` says what training will take, ``train`` searches and chooses, ``show`` and ``report`` tell of it, ``predict``
answers. What cannot be meant is refused before any row is read: sorting rows by group may take long. Groups that are done
are safe in the folder of models; ``--resume`` trains the others.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from penstock.cli import groupoptions as g
from penstock.cli import options as o
from penstock.cli.groupoptions import option

app = typer.Typer(
    name="groups",
    help="Train a model for every group of rows, with a search for each.",
    rich_markup_mode="rich",
    epilog="Example: [bold]penstock groups train clicks.parquet --by country --label clicked --try l2=1,0.1[/bold]",
)


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
    by: g.By,
    label: g.Label = None,
    features: o.Features = None,
    exclude: o.Exclude = None,
    hash: o.Hash = None,
    weight: o.Weight = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    grid: g.Grid = None,
    tries: g.Tries = None,
    validation: g.HeldOut = 0.1,
    halving: Annotated[
        int | None,
        option(
            "--halving",
            metavar="ETA",
            help="Of sgd: train in rounds, and let one config in ETA of each group go on after each.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        option(
            "--budget", metavar="PASSES", help="Of --halving: what all may take, in passes of one config over all rows."
        ),
    ] = None,
    workers: Annotated[
        int | None, option("--workers", metavar="N", help="Processes that train; as many as cores if not given.")
    ] = None,
    executor: Annotated[
        str, option("--executor", metavar="NAME", help="local (processes of this machine) or ray.")
    ] = "local",
    address: Annotated[
        str | None,
        option("--address", metavar="HOST:PORT", help="Of ray: the cluster; one is started here if not given."),
    ] = None,
    placement: Annotated[
        str | None,
        option(
            "--placement",
            metavar="NAME",
            help="How rows are dealt to workers: spread, sequential, wrap-around or constrained; what suits the model if not"
            " given.",
        ),
    ] = None,
    approach: Annotated[
        str,
        option(
            "--approach",
            metavar="NAME",
            help="grouped, or what it is measured against: group-task, model-task, data-parallel or switching.",
        ),
    ] = "grouped",
    rows: Annotated[
        str | None,
        option(
            "--rows",
            metavar="DIR",
            help="Where rows by group are kept, to be used again; a temporary folder if not given.",
        ),
    ] = None,
    memory: Annotated[str, option("--memory", metavar="SIZE", help="For sorting rows by group.")] = "512MB",
    model: g.Model = "logistic",
    solver: g.Solver = None,
    epochs: g.Epochs = None,
    patience: g.Patience = None,
    no_intercept: o.NoIntercept = False,
    standardize: g.Standardize = True,
    seed: o.Seed = 0,
    out: Annotated[str, option("--out", panel=g.OUTPUT, metavar="DIR", help="The folder for the models.")] = "models",
    resume: Annotated[
        bool, option("--resume", panel=g.OUTPUT, help="Train the groups that --out lacks, by the same command.")
    ] = False,
    report: Annotated[
        str | None,
        option(
            "--report", panel=g.OUTPUT, metavar="FILE", help="Write a page about the models, as groups report does."
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Train every config of a search for every group, and choose for each by the rows held out."""
    from penstock.budget import parse_size
    from penstock.cli.grouptraining import require_new, require_own, run, trainable_of
    from penstock.cli.paths import require_folder, require_writable
    from penstock.cli.trying import search_of
    from penstock.errors import UsageError

    names = _names(by, epochs=epochs, workers=workers, patience=patience)
    parse_size(memory, option="memory")
    if budget is not None and halving is None:
        raise UsageError(f"--budget {budget:g} is of --halving; add --halving 3, or leave it out")
    what = trainable_of(ctx.params)
    search = search_of(grid, tries or (), known=what.known)
    require_new(data, o.given(ctx), label)
    target = require_folder(out)
    if rows is not None and require_folder(rows).resolve() == target.resolve():
        raise UsageError(f"--rows and --out are both {out}; rows and models want a folder each")
    require_own(target, resume=resume)
    if report is not None:
        require_writable(report)
    run(ctx.params, by=names, search=search, what=what)


@app.command(
    "explain",
    epilog="Example: [bold]penstock groups explain clicks.parquet --by country --label clicked --try l2=1,0.1 --workers"
    " 4,16[/bold]",
)
def explain(
    ctx: typer.Context,
    data: o.Data,
    by: g.By,
    label: g.Label = None,
    features: o.Features = None,
    exclude: o.Exclude = None,
    hash: o.Hash = None,
    weight: o.Weight = None,
    format: o.Format = None,
    header: o.Header = None,
    delimiter: o.Delimiter = None,
    grid: g.Grid = None,
    tries: g.Tries = None,
    validation: g.HeldOut = 0.1,
    workers: Annotated[
        list[str] | None,
        option(
            "--workers",
            metavar="A,B,C",
            help="Numbers of workers to predict for; this machine's cores, 4 and 16 if not given.",
        ),
    ] = None,
    model: g.Model = "logistic",
    solver: g.Solver = None,
    epochs: g.Epochs = None,
    patience: g.Patience = None,
    no_intercept: o.NoIntercept = False,
    standardize: g.Standardize = True,
    seed: o.Seed = 0,
    json: o.Json = False,
) -> None:
    """Say what training would take, without training: time, waiting and traffic, for Penstock's approach and others.

    Groups are counted, some rows are trained in a pilot run of a few seconds, and every approach is played through for so
    many workers. DATA may also be a folder of rows by group, which --rows of groups train has kept.
    """
    from penstock.cli.groupexplain import run
    from penstock.cli.grouptraining import require_new, trainable_of
    from penstock.cli.trying import search_of

    names = _names(by, epochs=epochs, patience=patience)
    what = trainable_of(ctx.params)
    search = search_of(grid, tries or (), known=what.known)
    require_new(data, o.given(ctx), label)
    run(ctx.params, by=names, search=search, what=what)


@app.command("show", epilog="Example: [bold]penstock groups show models --group FR/ios[/bold]")
def show(
    models: g.Models,
    group: Annotated[
        str | None,
        option("--group", metavar="KEY", help="All configs of one group, such as FR/ios.", show_default=False),
    ] = None,
    count: Annotated[
        int | None,
        option("--lines", metavar="N", help="How many groups to list, the largest first; 20 on a terminal, else all."),
    ] = None,
    csv: Annotated[
        str | None,
        option("--csv", panel=g.OUTPUT, metavar="FILE", help="Write a row for each group and config instead."),
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


@app.command("report", epilog="Example: [bold]penstock groups report models --out report.html[/bold]")
def report(
    models: g.Models,
    out: Annotated[
        str, option("--out", panel=g.OUTPUT, metavar="FILE", help="The page to write.")
    ] = "penstock-groups.html",
    json: o.Json = False,
) -> None:
    """Write a page about the models: how well groups are learnt, what was chosen, who worked when, what failed."""
    from penstock.cli.groupreport import write_page
    from penstock.cli.paths import require_writable
    from penstock.cli.screen import Screen
    from penstock.groups.results import Result

    target = require_writable(out)
    result = Result.open(models)
    with Screen(json=json, rows=False) as screen:
        if not result.registry.index.finished:
            screen.note(_unfinished(models))
        told = write_page(result, target, title=models)
        for sentence in told["findings"]:
            screen.say(sentence)
        screen.say(f"wrote {target}")
        screen.give({"models": models, "finished": result.registry.index.finished, **told, "out": str(target)})


@app.command(
    "predict", epilog="Example: [bold]penstock groups predict models new.parquet --out predictions.parquet[/bold]"
)
def predict(
    models: g.Models,
    data: o.Data,
    out: Annotated[
        str, option("--out", panel=g.OUTPUT, metavar="FILE", help="The Parquet file to write.")
    ] = "predictions.parquet",
    unseen: Annotated[
        str,
        option(
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
    from penstock.blocks.open import without_password
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
                "data": without_password(data),
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


def _names(by: list[str], **counts: int | None) -> list[str]:
    """Return the grouping columns, and refuse counts of nothing."""
    from penstock.errors import UsageError

    names = o.names(by)
    if not names:
        raise UsageError("--by names no column; write --by country, or --by country,device")
    for name, value in counts.items():
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value} is too few; choose 1 or more")
    return names
