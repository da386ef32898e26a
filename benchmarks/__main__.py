"""Run every module of this folder that has ``run(quick) -> list[Claim]``, or those named, and print one table."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from functools import partial
from typing import Any

import benchmarks
from benchmarks.harness import Claim, Run, main


def _broken(error: Exception, **_: Any) -> list[Claim]:
    raise error


def find_runs() -> dict[str, Run]:
    """Return every benchmark by name; one that cannot be imported is kept, to be reported."""
    runs: dict[str, Run] = {}
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name in ("__main__", "harness", "conditions"):
            continue
        try:
            run = getattr(importlib.import_module(f"benchmarks.{module.name}"), "run", None)
        except Exception as error:
            run = partial(_broken, error)
        if run is not None:
            runs[module.name] = run
    return runs


if __name__ == "__main__":
    sys.exit(main(find_runs()))
