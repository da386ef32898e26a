"""``penstock show``: what is in a saved model: how it was trained, how good it is, and its coefficients or groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli import options as o

if TYPE_CHECKING:
    from penstock.cli.screen import Screen
    from penstock.groups.results import GroupModels

_LINES = 20


@o.takes("show")
def show_command(
    *, model_file: str, lines: int | None, group: str | None, csv: str | None, db: str | None, json: bool
) -> None:
    """Show a model: its measures, and its coefficients by name, the most important first; of groups how each came out."""
    from penstock.cli.models import opened_model
    from penstock.cli.screen import Screen
    from penstock.errors import UsageError
    from penstock.outputs import require_file

    if lines is not None and lines < 0:
        raise UsageError(f"--lines {lines} is not a number of lines; choose 0 or more")
    if csv is not None:
        require_file(csv)
    with Screen(json=json, rows=False) as screen, opened_model(model_file, db=db, stream=screen.stream) as known:
        if group is not None or csv is not None:
            from penstock.groups.results import GroupModels

            if not isinstance(known, GroupModels):
                raise UsageError(
                    f"--group and --csv are for folders of groups, and {model_file} is a single model; leave them out"
                )
            _show_groups(screen, known, group=group, csv=csv)
            return
        few = lines is None and not json and not known.by
        description = known.describe(most=_LINES if few else lines)
        for line in description.lines:
            screen.say(line)
        screen.give({"model_file": model_file, **description.values})


def _show_groups(screen: Screen, result: GroupModels, *, group: str | None, csv: str | None) -> None:
    """Show all configs of one group, or write those of one or of all groups to a file."""
    from pathlib import Path

    from penstock.groups.tables import of_group, table, write_csv

    told = {"models": str(result.registry.folder), "finished": result.finished}
    if csv is not None:
        screen.watch(Path(csv))
        written = write_csv(result, Path(csv), group=group)
        screen.say(f"saved {csv}: {written:,} rows, one for each group and config")
        screen.give({**told, "rows": written, "out": csv})
        return
    assert group is not None
    found = of_group(result, group)
    for line in table(found, result, chosen=True):
        screen.say(line)
    if found[0]["traceback"]:
        screen.say()
        screen.say(found[0]["traceback"])
    screen.give({**told, "group": group, "configs": found})
