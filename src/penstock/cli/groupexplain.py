"""The work of ``penstock groups explain``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from penstock.blocks.open import open as open_source
from penstock.cli import options as o
from penstock.cli.explain import show_explanation
from penstock.errors import UsageError
from penstock.explanation.explanation import Explanation
from penstock.explanation.group_training import explain_groups
from penstock.groups.patterns.base import Trainable
from penstock.groups.search_space import Search


def workers_of(given: Sequence[str] | None) -> list[int]:
    """Read ``--workers 1,2,4``.

    Examples
    --------
    >>> workers_of(["4,1", "16"])
    [1, 4, 16]
    """
    counts = set()
    for text in o.names(given):
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"--workers {text} is not a number of workers; write --workers 1,4,16")
        counts.add(int(text))
    if counts and max(counts) > 1_000:
        raise UsageError(f"--workers {max(counts)} is more than can be played through; choose at most 1000")
    return sorted(counts)


def run_explain(params: dict[str, Any], *, by: list[str], search: Search, what: Trainable) -> None:
    """Explain as the options of ``groups explain`` say."""
    workers = workers_of(params["workers"])
    reading = o.reading(params["header"], params["delimiter"])
    columns: dict[str, Any] = {name: o.names(params[name]) for name in ("exclude", "hash")}
    columns |= {"features": o.names(params["features"]) or None, "weight": params["weight"]}
    name = f"{params['model']} by {params['solver']}" if params["solver"] else str(params["model"])

    def explain() -> Explanation:
        with ExitStack() as stack:
            data: Any = params["data"]
            if reading or params["format"] is not None:
                data = stack.enter_context(open_source(data, format=params["format"], **reading))
            return explain_groups(
                data,
                by,
                model=what,
                choices=[choice.params for choice in search.choices(what.known)],
                workers=workers,
                label=params["label"],
                validation=params["validation"],
                seed=params["seed"],
                columns=columns,
                name=name,
            )

    show_explanation(explain, json=params["json"], model=params["model"], told=name)
