"""The warehouses' names for a training's options, which stand after ``OPTIONS``, and what they come to here.

Most are other words for ours. A few say how something is to be done, and become one or two of ours. What cannot be
done as asked is refused, with what there is instead.
"""

from __future__ import annotations

from penstock.errors import UnknownOptionError, UsageError
from penstock.options import TABLE
from penstock.sql.statements import OptionValue, StatementOption, StatementOptions

NAMES = {alias: name for name, option in TABLE.items() for alias in option.warehouse}
"""Other words for our options."""

_EVAL_SHARE = 0.2
_SMALL, _MIDDLE, _EVAL_ROWS = 500, 50_000, 10_000


def plain_options(options: StatementOptions) -> tuple[dict[str, StatementOption], bool]:
    """Return options with the special ones as ours, and whether rows are to be split as the number of them asks.

    Examples
    --------
    >>> found, automatic = plain_options({"input_label_cols": StatementOption(["y"]), "optimize_strategy": StatementOption("auto_strategy")})
    >>> found, automatic
    ({'label': StatementOption(value='y', at=0, place=None)}, True)
    """
    found = {name: option for name, option in options.items() if name not in SPECIAL}
    for name in (name for name in SPECIAL if name in options and options[name].value is not None):
        option = options[name]
        for ours, value in _READERS[name](name, option).items():
            if ours in found:
                raise UsageError(f"{name} and {ours} mean the same", place=option.place, fixes=["give one of them"])
            found[ours] = StatementOption(value, option.at, option.place)
    if "min_rel_progress" in found and "early_stop" not in options:
        found.setdefault("patience", StatementOption(1, found["min_rel_progress"].at, found["min_rel_progress"].place))
    method, share_given = _method(options), options.get("data_split_eval_fraction")
    if method == "no_split" and share_given is not None:
        raise UsageError(
            "data_split_eval_fraction has no meaning with data_split_method='no_split'", place=share_given.place
        )
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


def _label(name: str, option: StatementOption) -> dict[str, OptionValue]:
    value = option.value
    if isinstance(value, list):
        if len(value) != 1:
            raise UsageError(
                f"{name} = {value!r}: a model has one label", place=option.place, fixes=[f"write {name}=['label']"]
            )
        value = value[0]
    return {"label": value}


def _rate(name: str, option: StatementOption) -> dict[str, OptionValue]:
    if _word(name, option) == "line_search":
        raise UsageError(
            "learn_rate_strategy='line_search' is not supported",
            place=option.place,
            fixes=["leave it out", "write 'constant' with a learn_rate"],
        )
    return {"rate": _choice(name, option, ("constant",))}


def _line_search(name: str, option: StatementOption) -> dict[str, OptionValue]:
    raise UsageError(
        f"{name} is for a line search, which is not supported",
        place=option.place,
        fixes=[f"write learn_rate={option.value!r}"],
    )


def _split(name: str, option: StatementOption) -> dict[str, OptionValue]:
    _choice(name, option, ("auto_split", "no_split", "random"), "; rows are set aside at random or not at all")
    return {}


def _stop(name: str, option: StatementOption) -> dict[str, OptionValue]:
    if not isinstance(option.value, bool):
        raise UsageError(f"{name} = {option.value!r} is not true or false", place=option.place)
    return {"patience": 1 if option.value else None}


def _strategy(name: str, option: StatementOption) -> dict[str, OptionValue]:
    if _word(name, option) == "normal_equation":
        raise UsageError(
            f"{name}='normal_equation' is not supported",
            place=option.place,
            fixes=["solver='lbfgs' comes to the same weights"],
        )
    word = _choice(name, option, ("auto_strategy", "batch_gradient_descent"))
    return {"solver": "gd"} if word == "batch_gradient_descent" else {}


def _balanced(name: str, option: StatementOption) -> dict[str, OptionValue]:
    if not isinstance(option.value, bool):
        raise UsageError(f"{name} = {option.value!r} is not true or false", place=option.place)
    return {"class_weight": "balanced"} if option.value else {}


_READERS = {
    "auto_class_weights": _balanced,
    "data_split_method": _split,
    "early_stop": _stop,
    "input_label_cols": _label,
    "learn_rate_strategy": _rate,
    "ls_init_learn_rate": _line_search,
    "optimize_strategy": _strategy,
}
SPECIAL = tuple(_READERS)
"""Options that become others."""
