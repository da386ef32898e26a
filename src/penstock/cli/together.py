"""Which options of ``train`` and ``explain`` go together: what makes no sense is refused before anything is read."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import UsageError

FACTOR = "factor"

_ON_DISK = ("model_memory", "threads", "optimizer", "dimension")
_RATINGS = ("user", "item", "rating")
_OF_FACTOR = (*_RATINGS, "rank")
# What a model on disk has no use for, and why.
_NOT_ON_DISK = {
    "out": "the model is kept in --model-dir",
    "scratch": "shuffled copies are written to --model-dir",
}
# What a factorisation has no use for, and why.
_ITS_ORDER = "ratings are visited in an order of their own"
_ITS_COLUMNS = "it learns from --user, --item and --rating"
_NOT_OF_FACTOR = {
    **dict.fromkeys(("features", "exclude", "hash", "weight", "standardize"), _ITS_COLUMNS),
    "label": "what it learns is named by --rating",
    "batch_size": "it makes an update after every rating",
    "l1": "its penalty is --l2",
    "no_intercept": "it has the mean rating instead of an intercept",
    "shuffle": _ITS_ORDER,
    "memory": "--model-memory is for pages and ratings together",
    "optimizer": "it learns by sgd",
    "dimension": _ITS_COLUMNS,
    "patience": "it runs for all --epochs",
    "tolerance": "it runs for all --epochs",
}


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
    _require_model_dir(names)
    if "model_dir" in names:
        _refuse(names, _NOT_ON_DISK, "a model on disk")
    if model == FACTOR:
        _refuse(names, _NOT_OF_FACTOR, "a factor model")
        missing = [name for name in _RATINGS if name not in names]
        if missing:
            raise UsageError(
                f"a factor model learns from ratings; say which columns they are in: {_option(missing[0])} is missing"
                " (--user COL --item COL --rating COL)"
            )
        return
    for name in _OF_FACTOR:
        if name in names:
            raise UsageError(f"{_option(name)} is for --model {FACTOR} alone; leave it out of a {model} model")


def require_explained(given: Iterable[str]) -> None:
    """Raise `UsageError` where options of ``explain`` were given that make no sense together."""
    names = list(given)
    _require_model_dir(names)
    if "model_dir" in names:
        _refuse(names, {"storage": "its storage is not timed"}, "a model on disk")


def _require_model_dir(names: list[str]) -> None:
    for name in _ON_DISK:
        if name in names and "model_dir" not in names:
            raise UsageError(
                f"{_option(name)} is for models on disk; say where the model is to be with --model-dir DIR"
            )


def _refuse(names: list[str], refused: dict[str, str], what: str) -> None:
    for name in names:
        if name in refused:
            raise UsageError(f"{_option(name)} is not for {what}: {refused[name]}; leave it out")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
