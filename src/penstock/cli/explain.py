"""``penstock explain``: what training will cost and how random it will be, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli import options as o

if TYPE_CHECKING:
    from penstock.explanation import Explanation


@o.takes("explain")
def explain_command(ctx: typer.Context, **params: Any) -> None:
    """Say how the rows lie, how fast they can be read, and what an epoch of every strategy will take.

    Nothing is trained: a sample is read, and the storage is timed at several block sizes. With --model-dir, say instead
    what a model on disk will take: its size, what of it stays in memory, and the traffic of an epoch.
    """
    from penstock.cli.options import FACTOR, require_explained, require_together

    given = o.given(ctx)
    require_together(given, model=params["model"])
    reading = {"block_size": params["block_size"], "format": params["format"]}
    reading |= o.reading(params["header"], params["delimiter"])
    if params["model"] == FACTOR:
        show_explanation(lambda: _explain_factor(params, given, reading), json=params["json"])
        return
    require_explained(given)
    if params["model_dir"] is not None:
        show_explanation(lambda: _explain_on_disk(params, given, reading), json=params["json"])
        return
    from penstock.explanation import explain

    options = {name: params[name] for name in ("model", "memory", "seed")}
    options |= {"measure": params["storage"], **o.column_arguments(params), **reading}
    show_explanation(lambda: explain(params["data"], **options), json=params["json"])


def show_explanation(explain: Callable[[], Explanation], *, json: bool, **more: Any) -> None:
    """Print what is explained, for people or as JSON, in the words of the command line."""
    from penstock.budget import peak_memory
    from penstock.cli.screen import Screen
    from penstock.cli.wording import command_line

    with Screen(json=json, rows=False) as screen:
        explanation = explain()
        for line in explanation.lines(command_line()):
            screen.say(line)
        screen.give({**explanation.to_dict(command_line()), **more, "peak_memory_bytes": peak_memory()})


def _explain_on_disk(params: dict[str, Any], given: list[str], reading: dict[str, Any]) -> Explanation:
    from penstock.bigmodel.storage import Storage
    from penstock.blocks.open import open as open_source
    from penstock.explanation.model_on_disk import explain_model
    from penstock.training import Columns

    memory = o.memory_on_disk(params, given)
    with open_source(params["data"], **reading) as source:
        return explain_model(
            source,
            params["model_dir"],
            columns=Columns(**o.column_arguments(params)),
            storage=Storage(model_memory=memory.model, optimizer=params["optimizer"] or "sgd"),
            memory=memory.rows,
            **{name: params[name] for name in ("model", "dimension", "seed")},
        )


def _explain_factor(params: dict[str, Any], given: list[str], reading: dict[str, Any]) -> Explanation:
    from penstock.bigmodel.factor_learner import FactorConfig
    from penstock.bigmodel.ratings import Roles
    from penstock.blocks.open import open as open_source
    from penstock.errors import UsageError
    from penstock.explanation.factorization import explain_factor

    if "storage" in given:
        raise UsageError("--storage is not for a model on disk: its storage is not timed; leave it out")
    names = {"rank": "rank", "memory": "memory", "model_memory": "memory", "seed": "seed"}
    config = FactorConfig(**{name: params[option] for option, name in names.items() if option in given})
    with open_source(params["data"], **reading) as source:
        roles = Roles(params["user"], params["item"], params["rating"])
        return explain_factor(source, params["model_dir"], roles=roles, config=config)
