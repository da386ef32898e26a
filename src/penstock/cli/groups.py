"""``penstock groups``: a model for every group of rows.

``explain`` says what training will take, ``train`` searches and chooses, ``show`` and ``report`` tell of it, ``evaluate``
measures and ``predict`` answers. What cannot be meant is refused before any row is read: sorting rows by group may take long. Groups that are done
are safe in the folder of models; ``--resume`` trains the others.
"""

from __future__ import annotations

from typing import Any

import typer

from penstock.cli import options as o
from penstock.cli.evaluate import evaluate_command
from penstock.cli.predict import predict_command
from penstock.cli.show import show_command

app = typer.Typer(
    name="groups",
    help="Train a model for every group of rows, with a search for each.",
    rich_markup_mode="rich",
    epilog="Example: [bold]penstock groups train clicks.parquet --by country --label clicked --try l2=1,0.1[/bold]",
)


@app.callback(invoke_without_command=True)
def groups_command(ctx: typer.Context) -> None:
    """Train a model for every group of rows, with a search over hyper-parameters for each."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command(
    "train",
    epilog="Example: [bold]penstock groups train clicks.parquet --by country,device --label clicked --try l2=1,0.1,0.01"
    " --out models[/bold]",
)
@o.takes("groups-train")
def groups_train_command(ctx: typer.Context, **params: Any) -> None:
    """Train every config of a search for every group, choose for each, and judge the chosen ones on unseen rows."""
    from penstock.cli.group_jobs import require_new, require_own, run, search_of, trainable_of
    from penstock.errors import UsageError
    from penstock.outputs import require_file, require_folder

    names = _names(params, "epochs", "workers", "patience")
    if params["budget"] is not None and params["halving"] is None:
        raise UsageError(f"--budget {params['budget']:g} is of --halving; add --halving 3, or leave it out")
    what = trainable_of(params)
    search = search_of(params["grid"], params["tries"] or (), known=what.known)
    require_new(params["data"], o.given(ctx), params["label"])
    target = require_folder(params["out"])
    if params["rows"] is not None and require_folder(params["rows"]).resolve() == target.resolve():
        raise UsageError(f"--rows and --out are both {params['out']}; rows and models want a folder each")
    require_own(target, resume=params["resume"])
    if params["report"] is not None:
        require_file(params["report"])
    run(params, by=names, search=search, what=what)


@app.command(
    "explain",
    epilog="Example: [bold]penstock groups explain clicks.parquet --by country --label clicked --try l2=1,0.1 --workers"
    " 4,16[/bold]",
)
@o.takes("groups-explain")
def groups_explain_command(ctx: typer.Context, **params: Any) -> None:
    """Say what training would take, without training: time, waiting and traffic, for Penstock's approach and others.

    Groups are counted, some rows are trained in a pilot run of a few seconds, and every approach is played through for so
    many workers. DATA may also be a folder of rows by group, which --rows of groups train has kept.
    """
    from penstock.cli.group_jobs import require_new, run_explain, search_of, trainable_of

    names = _names(params, "epochs", "patience")
    what = trainable_of(params)
    search = search_of(params["grid"], params["tries"] or (), known=what.known)
    require_new(params["data"], o.given(ctx), params["label"])
    run_explain(params, by=names, search=search, what=what)


# What is asked of one model is asked of those of groups by the same commands.
app.command("show", epilog="Example: [bold]penstock groups show models --group FR/ios[/bold]")(show_command)
app.command("evaluate", epilog="Example: [bold]penstock groups evaluate models test.parquet[/bold]")(evaluate_command)
app.command(
    "predict", epilog="Example: [bold]penstock groups predict models new.parquet --out predictions.parquet[/bold]"
)(predict_command)


@app.command("report", epilog="Example: [bold]penstock groups report models --out report.html[/bold]")
@o.takes("groups-report")
def groups_report_command(*, models: str, out: str, json: bool) -> None:
    """Write a page about the models: how well groups are learnt, what was chosen, who worked when, what failed."""
    from penstock.cli.group_jobs import write_group_page
    from penstock.cli.models import warn_unfinished
    from penstock.cli.screen import Screen
    from penstock.groups.results import GroupModels
    from penstock.outputs import require_file

    target = require_file(out)
    with Screen(json=json, rows=False) as screen, GroupModels.open(models) as result:
        warn_unfinished(result, models, screen.stream)
        screen.watch(target)
        told = write_group_page(result, target, title=models)
        for sentence in told["findings"]:
            screen.say(sentence)
        screen.say(f"wrote {target}")
        screen.give({"models": models, "finished": result.finished, **told, "out": str(target)})


def _names(params: dict[str, Any], *counts: str) -> list[str]:
    """Return the grouping columns, and refuse counts of nothing."""
    from penstock.errors import UsageError

    names = o.names(params["by"])
    if not names:
        raise UsageError("--by names no column; write --by country, or --by country,device")
    for name in counts:
        if params[name] is not None and params[name] < 1:
            raise UsageError(f"--{name} {params[name]} is too few; choose 1 or more")
    return names
