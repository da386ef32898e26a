"""The warehouses' names for a training's options (``OPTIONS``) and for a model's measures (``ML.EVALUATE``).

Most options are other words for ours. A few become one or two of ours; what cannot be done is refused, with what there
is instead. The measures are those of `penstock.evaluation`, and of a regression a median of errors and errors of logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.blocks.base import BlockSource
from penstock.errors import UnknownOptionError, UsageError
from penstock.measures import OnScores, weighted_sum
from penstock.model import Model
from penstock.sql.statements import OptionValue, StatementOption, StatementOptions

_EVAL_SHARE = 0.2
_SMALL, _MIDDLE, _EVAL_ROWS = 500, 50_000, 10_000


def plain_options(options: StatementOptions, *, name: str = "") -> tuple[dict[str, StatementOption], bool]:
    """Return options with the special ones as ours, and whether rows are to be split as the number of them asks.

    ``name`` is that of the model, which a warm start goes on from.

    Examples
    --------
    >>> found, automatic = plain_options({"input_label_cols": StatementOption(["y"]), "optimize_strategy": StatementOption("auto_strategy")})
    >>> found, automatic
    ({'label': StatementOption(value='y', at=0, place=None)}, True)
    """
    found = {name: option for name, option in options.items() if name not in SPECIAL}
    for special in (each for each in SPECIAL if each in options and options[each].value is not None):
        option = options[special]
        for ours, value in _READERS[special](special, option).items():
            if ours in found:
                raise UsageError(f"{special} and {ours} mean the same", place=option.place, fixes=["give one of them"])
            found[ours] = StatementOption(name if ours == "init" else value, option.at, option.place)
    if "min_rel_progress" in found and "early_stop" not in options:
        found.setdefault("patience", StatementOption(1, found["min_rel_progress"].at, found["min_rel_progress"].place))
    method, share_given = _method(options), options.get("data_split_eval_fraction")
    if method == "no_split" and share_given is not None:
        reason = "data_split_eval_fraction has no meaning with data_split_method='no_split'"
        raise UsageError(reason, place=share_given.place)
    if method == "no_split":
        asked = options["data_split_method"]
        found["data_split_eval_fraction"] = StatementOption(0.0, asked.at, asked.place)
    given = any(name in found for name in ("data_split_eval_fraction", "test_fraction"))
    if method == "random" and not given:
        asked = options["data_split_method"]
        found["data_split_eval_fraction"] = StatementOption(_EVAL_SHARE, asked.at, asked.place)
    return found, method in (None, "auto_split") and not given


def share(rows: int) -> float:
    """Return the share of rows that an automatic split sets aside to measure on.

    Examples
    --------
    >>> share(400), share(10_000), share(1_000_000)
    (0.0, 0.2, 0.01)
    """
    return 0.0 if rows < _SMALL else _EVAL_SHARE if rows <= _MIDDLE else _EVAL_ROWS / rows


def _method(options: StatementOptions) -> str | None:
    option = options.get("data_split_method")
    return None if option is None or option.value is None else _word("data_split_method", option)


def _word(name: str, option: StatementOption) -> str:
    if not isinstance(option.value, str):
        raise UsageError(f"{name} = {option.value!r} is not a word", place=option.place, fixes=[f"write {name}='…'"])
    return option.value.lower()


def _choice(name: str, option: StatementOption, valid: tuple[str, ...], told: str = "") -> str:
    word = _word(name, option)
    if word not in valid:
        error = UnknownOptionError.of(name, option.value, valid, place=option.place)
        raise error.replace(fixes=[f"{error.fixes[0]}{told}"])
    return word


def _flag(name: str, option: StatementOption) -> bool:
    if not isinstance(option.value, bool):
        raise UsageError(f"{name} = {option.value!r} is not true or false", place=option.place)
    return option.value


def _label(name: str, option: StatementOption) -> dict[str, OptionValue]:
    value = option.value
    if isinstance(value, list) and len(value) != 1:
        fix = f"write {name}=['label']"
        raise UsageError(f"{name} = {value!r}: a model has one label", place=option.place, fixes=[fix])
    return {"label": value[0] if isinstance(value, list) else value}


def _rate(name: str, option: StatementOption) -> dict[str, OptionValue]:
    if _word(name, option) == "line_search":
        fixes = ["leave it out", "write 'constant' with a learn_rate"]
        raise UsageError("learn_rate_strategy='line_search' is not supported", place=option.place, fixes=fixes)
    return {"rate": _choice(name, option, ("constant",))}


def _line_search(name: str, option: StatementOption) -> dict[str, OptionValue]:
    reason, fix = f"{name} is for a line search, which is not supported", f"write learn_rate={option.value!r}"
    raise UsageError(reason, place=option.place, fixes=[fix])


def _split(name: str, option: StatementOption) -> dict[str, OptionValue]:
    _choice(name, option, ("auto_split", "no_split", "random"), "; rows are set aside at random or not at all")
    return {}


def _stop(name: str, option: StatementOption) -> dict[str, OptionValue]:
    return {"patience": 1 if _flag(name, option) else None}


def _strategy(name: str, option: StatementOption) -> dict[str, OptionValue]:
    if _word(name, option) == "normal_equation":
        fix = "solver='lbfgs' comes to the same weights"
        raise UsageError(f"{name}='normal_equation' is not supported", place=option.place, fixes=[fix])
    word = _choice(name, option, ("auto_strategy", "batch_gradient_descent"))
    return {"solver": "gd"} if word == "batch_gradient_descent" else {}


def _balanced(name: str, option: StatementOption) -> dict[str, OptionValue]:
    return {"class_weight": "balanced"} if _flag(name, option) else {}


def _warm(name: str, option: StatementOption) -> dict[str, OptionValue]:
    """Go on from the model of the statement's own name."""
    return {"init": True} if _flag(name, option) else {}


_READERS = {
    "auto_class_weights": _balanced,
    "data_split_method": _split,
    "early_stop": _stop,
    "input_label_cols": _label,
    "learn_rate_strategy": _rate,
    "ls_init_learn_rate": _line_search,
    "optimize_strategy": _strategy,
    "warm_start": _warm,
}
SPECIAL = tuple(_READERS)
"""Options that become others."""


_MOST = 4_000_000
"""Rows whose errors are kept for the median."""
_CLASSES = {
    "precision": ("precision", "macro_precision"),
    "recall": ("recall", "macro_recall"),
    "accuracy": ("accuracy",),
    "f1_score": ("f1", "macro_f1"),
    "log_loss": ("log_loss",),
    "roc_auc": ("auc", "macro_auc"),
}


def measure_for_warehouse(
    model: Model,
    source: BlockSource,
    *,
    label: str | None = None,
    memory: str | int = "512MB",
    on_scores: OnScores | None = None,
) -> dict[str, float | None]:
    """Return the measures of a model on labelled rows, by the names that ``ML.EVALUATE`` has for them."""
    errors = _Errors() if model.classes is None else None
    found = model.evaluate(source, label=label, memory=memory, on_scores=on_scores if errors is None else errors.add)
    if errors is not None:
        return errors.figures(found)
    return {
        name: next((found[own] for own in names if found.get(own) is not None), None)
        for name, names in _CLASSES.items()
    }


@dataclass(slots=True)
class _Errors:
    """What the warehouses tell of a regression's errors beside R² and the means."""

    weight: float = 0.0
    error: float = 0.0
    squared: float = 0.0
    logged: float | None = 0.0
    label: float = 0.0
    label_squared: float = 0.0
    seen: int = 0
    step: int = 1
    kept: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any]) -> None:
        error = labels - scores
        self.weight += float(weights.sum())
        self.error += float(weighted_sum(weights, error))
        self.squared += float(weighted_sum(weights, error**2))
        self.label += float(weighted_sum(weights, labels))
        self.label_squared += float(weighted_sum(weights, labels**2))
        if self.logged is not None and len(labels):
            low = min(float(labels.min()), float(scores.min()))
            logs = weighted_sum(weights, (np.log1p(labels) - np.log1p(scores)) ** 2) if low > -1 else None
            self.logged = None if logs is None else self.logged + float(logs)
        first = -self.seen % self.step
        self.seen += len(error)
        self.kept.append(np.abs(error[first :: self.step]).astype(np.float32))
        if sum(map(len, self.kept)) > _MOST:
            self.step *= 2
            self.kept = [np.concatenate(self.kept)[::2].copy()]

    def figures(self, found: dict[str, Any]) -> dict[str, float | None]:
        weight = self.weight
        spread = self.label_squared - self.label**2 / weight
        unexplained = self.squared - self.error**2 / weight
        return {
            "mean_absolute_error": found["mae"],
            "mean_squared_error": found["rmse"] ** 2,
            "mean_squared_log_error": None if self.logged is None else self.logged / weight,
            "median_absolute_error": float(np.median(np.concatenate(self.kept))),
            "r2_score": found["r2"] if spread > 0 else None,
            "explained_variance": 1 - unexplained / spread if spread > 0 else None,
        }
