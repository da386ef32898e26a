"""``penstock train``: learn a model from data of any size, and save it.

A checkpoint is written beside the model after every epoch; ``--resume`` goes on from it, to the same weights as a
run without a break. With ``--model-dir`` the model itself lives on disk: `penstock.cli.ondisk` trains it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import options as o

if TYPE_CHECKING:
    from penstock.compare import TrainingRequest


@o.takes("train")
def train_command(ctx: typer.Context, **params: Any) -> None:
    """Learn a model from data of any size, in the memory you give it."""
    from penstock.cli.options import FACTOR, require_together
    from penstock.errors import UsageError
    from penstock.shuffle import order

    given = o.given(ctx)
    if params["epochs"] == 0:  # Python takes it for a model that has learned nothing; here it would replace a good one
        raise UsageError("is not a number of epochs", option="epochs", value=0, fixes=["choose 1 or more"])
    require_together(given, model=params["model"])
    if params["model"] != FACTOR:
        order(params["shuffle"])  # a misspelt one must not first cost a pass over the data
    if params["model_dir"] is None:
        _train_in_memory(
            job_of(params),
            params["out"],
            keep_anyway=params["keep_anyway"],
            resume=params["resume"],
            json=params["json"],
        )
        return
    from penstock.cli.ondisk import train_factor, train_linear

    train = train_factor if params["model"] == FACTOR else train_linear
    train(params, given)


def job_of(params: Mapping[str, Any], **settings: Any) -> TrainingRequest:
    """Return the job that the options of a command describe; ``settings`` are hyper-parameters of the command itself."""
    from penstock.compare import TrainingRequest
    from penstock.config import Config
    from penstock.training import Columns

    values = {name: params[name] for name in Config.__dataclass_fields__ if name in params} | settings
    return TrainingRequest(
        data=params["data"],
        config=Config(**values),
        columns=Columns(**o.column_arguments(params)),
        test=params["test"],
        test_share=params.get("test_share", 0.0),
        format=params["format"],
        scratch=params["scratch"],
        cache=params["cache"],
        options=o.reading(params["header"], params["delimiter"]),
    )


def _train_in_memory(job: TrainingRequest, out: str, *, keep_anyway: bool, resume: bool, json: bool) -> None:
    from penstock.budget import show_bytes
    from penstock.cli.screen import Screen
    from penstock.cli.wording import command_line
    from penstock.compare import run_figures
    from penstock.measure_lines import final_score, finished_lines
    from penstock.metric_names import useless_advice, useless_reason
    from penstock.outputs import only_writer, require_file, require_other, require_scratch

    began = time.perf_counter()
    target = require_file(out)
    if job.scratch is not None:
        require_scratch(job.scratch)
    checkpoint = Path(f"{target}.checkpoint")
    with (
        only_writer(target),
        Screen(json=json) as screen,
        job.opened(screen.stream, checkpoint=checkpoint) as training,
    ):
        require_other(target, training.source.name)
        screen.watch(target)
        found = training.run(resume=resume)
        useless = useless_reason(found.metrics)
        kept = useless is None or keep_anyway
        if kept:
            found.save(target)
            checkpoint.unlink(missing_ok=True)
        told = {
            **run_figures(training, found, seconds=time.perf_counter() - began),
            "out": str(target) if kept else None,
        }
        told["useless"] = useless
        screen.close()
        for line in finished_lines(told):
            screen.say(line)
        if not kept:
            advice = useless_advice(found.metrics, found.recipe.label).render(command_line())
            screen.say(f"not saved, the model is useless: {useless}; {advice}, or keep it: --resume --keep-anyway")
            screen.give(told)
            raise typer.Exit(1)
        screen.say(
            f"saved {target}: {found.kind}, {told['features']:,} features, {final_score(told)},"
            f" {told['seconds']:.1f} s, peak memory {show_bytes(told['peak_memory_bytes'])}"
        )
        screen.give(told)
