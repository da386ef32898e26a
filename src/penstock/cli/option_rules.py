"""Which options of ``train`` and ``explain`` go together: what makes no sense is refused before anything is read."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cli.options import flag_of, with_flags
from penstock.errors import UsageError
from penstock.options import TABLE

FACTOR = "factor"
_RATINGS = ("user", "item", "rating")
_WORDS = {"disk": "a model on disk", "factor": "a factor model"}


def require_together(given: Iterable[str], *, model: str) -> None:
    """Raise `UsageError` where options of ``train`` were given that make no sense together, or one is missing.

    Examples
    --------
    >>> require_together(["data", "threads"], model="logistic")
    Traceback (most recent call last):
    penstock.errors.UsageError: --threads is for models on disk; say where the model is to be with --model-dir DIR
    """
    names = list(given)
    if model == FACTOR and "model_dir" not in names:
        raise UsageError("a factor model lives on disk; say where it is to be with --model-dir DIR")
    _require_needed(names)
    _refuse(names, "disk")
    if model == FACTOR:
        _refuse(names, FACTOR)
        missing = [name for name in _RATINGS if name not in names]
        if missing:
            raise UsageError(
                f"a factor model learns from ratings; say which columns they are in: {flag_of(missing[0])} is missing"
                " (--user COL --item COL --rating COL)"
            )
        return
    for name in (*_RATINGS, "rank"):
        if name in names:
            raise UsageError(f"{flag_of(name)} is for --model {FACTOR} alone; leave it out of a {model} model")


def require_explained(given: Iterable[str]) -> None:
    """Raise `UsageError` where options of ``explain`` were given that make no sense together."""
    names = list(given)
    if "optimizer" in names:  # which changes nothing of the cost of a model in memory
        _require_model_dir("optimizer", names)


def _require_needed(names: list[str]) -> None:
    for name in names:
        if TABLE[name].needs == "model_dir":
            _require_model_dir(name, names)


def _require_model_dir(name: str, names: list[str]) -> None:
    if "model_dir" not in names:
        raise UsageError(f"{flag_of(name)} is for models on disk; say where the model is to be with --model-dir DIR")


def _refuse(names: list[str], model: str) -> None:
    for name in names if "model_dir" in names else ():
        if model in TABLE[name].refused:
            flag = "--no-intercept" if name == "intercept" else flag_of(name)
            reason = with_flags(TABLE[name].refused[model])
            raise UsageError(f"{flag} is not for {_WORDS[model]}: {reason}; leave it out")
