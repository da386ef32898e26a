"""Gradient-boosted trees for every group: which of LightGBM's parameters there are, and what may be searched of them.

Names are LightGBM's own; those that it goes by in scikit-learn are understood as well. What is not known is refused here,
before any row is read: LightGBM itself would pass over it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock.columns.recipe import Recipe
from penstock.errors import MissingExtraError, UnknownOptionError, UsageError
from penstock.groups.grouped import Grouped
from penstock.groups.patterns.sampling import Boosted
from penstock.groups.search_space import Parameter
from penstock.messages import Text, Use
from penstock.options import options_of

OBJECTIVES = {"binary": "logistic", "multiclass": "softmax", "regression": "linear"}
"""What can be minimised, and how labels become targets for it."""
_OWN = {
    name: Parameter.of_option(option) for name, option in options_of("boosting").items() if name not in ("patience",)
}
_ALSO = {alias: name for name in _OWN for alias in options_of("boosting")[name].aliases}
KNOWN: Mapping[str, Parameter] = MappingProxyType(_OWN | {name: _OWN[own] for name, own in _ALSO.items()})
"""What can be searched of boosted trees."""


class Boosting:
    """Gradient-boosted trees by LightGBM, for `GroupBy.fit`; needs ``pip install 'penstock[ray]'``.

    Parameters
    ----------
    objective : str, optional
        ``binary``, ``multiclass`` or ``regression``; classes, as many as the label has, if not given.
    rounds : int
        The trees of a model, or of each class of it.
    patience : int, optional
        Stop a config after so many rounds without a lower loss on the group's rows held out, and keep the trees up to
        its best round.
    seed : int
        Of the rows held out, and of what LightGBM draws.
    **params
        LightGBM's parameters for all configs; a search goes before them. A ``bagging_fraction`` without a
        ``bagging_freq`` draws rows anew in every round.

    Examples
    --------
    >>> Boosting("regression", rounds=50, num_leaves=15)
    Boosting('regression', rounds=50, num_leaves=15)
    >>> Boosting(num_leafs=15)
    Traceback (most recent call last):
    penstock.errors.UnknownOptionError: parameter='num_leafs' is not known; choose one of: bagging_fraction, ...
    """

    family = "trees"
    known = KNOWN

    def __init__(
        self,
        objective: str | None = None,
        *,
        rounds: int = 100,
        patience: int | None = None,
        seed: int = 0,
        **params: Any,
    ) -> None:
        if objective is not None and objective not in OBJECTIVES:
            raise UnknownOptionError.of("objective", objective, OBJECTIVES)
        for name in params:
            if name not in KNOWN:
                raise UnknownOptionError.of("parameter", name, KNOWN)
            if _ALSO.get(name) == "rounds":
                raise UsageError(
                    "is called rounds here",
                    option=name,
                    value=params[name],
                    fixes=[Text("write ", Use("rounds", params[name]))],
                )
        whole = Parameter("int", least=1)
        self.objective = objective
        self.rounds: int = whole.check("rounds", rounds)
        self.patience: int | None = None if patience is None else whole.check("patience", patience)
        self.seed: int = Parameter("int", least=0).check("seed", seed)
        self.params = {name: KNOWN[name].check(name, value) for name, value in params.items()}
        _named(params)

    def __repr__(self) -> str:
        told = {"rounds": self.rounds, "patience": self.patience, "seed": self.seed} | self.params
        shown = [f"{name}={value!r}" for name, value in told.items() if (name, value) not in _DEFAULTS.items()]
        return f"Boosting({', '.join([repr(self.objective)] * bool(self.objective) + shown)})"

    @property
    def kind(self) -> str:
        """How labels become targets: as classes of any number, unless an objective says otherwise."""
        return "softmax" if self.objective is None else OBJECTIVES[self.objective]

    def fixed(self) -> dict[str, Any]:
        """Return what all configs share, as plain JSON."""
        told = {"objective": self.objective, "rounds": self.rounds, "patience": self.patience, "seed": self.seed}
        return told | self.params

    def job(self, grouped: Grouped, choices: Sequence[Mapping[str, Any]], *, validation: float) -> Boosted:
        """Check what is to be learnt of grouped rows, and make a job of it."""
        if importlib.util.find_spec("lightgbm") is None:
            raise MissingExtraError.of("lightgbm", "ray", "Boosting")
        if self.patience is not None and not validation:
            raise UsageError(
                "needs rows held out to look at",
                option="patience",
                value=self.patience,
                fixes=["choose a validation above 0"],
            )
        own = {"rounds": self.rounds, **_named(self.params)}
        settings = [_drawn({**own, **_named(choice)}) for choice in choices]
        labels = grouped.recipe.labels
        return Boosted(
            str(grouped.folder),
            objective=self._objective(grouped.recipe),
            classes=0 if labels is None else len(labels.classes),
            epochs=np.array([each.pop("rounds") for each in settings], np.int64),
            settings=tuple(settings),
            patience=self.patience,
            validation=validation,
            seed=self.seed,
        )

    def _objective(self, recipe: Recipe) -> str:
        """Return what is minimised, given what the label is."""
        classes = 0 if recipe.labels is None else len(recipe.labels.classes)
        found = {0: "regression", 2: "binary"}.get(classes, "multiclass")
        fits = {None: ("binary", "multiclass"), "multiclass": ("binary", "multiclass")}
        if found not in fits.get(self.objective, (self.objective,)):
            told = f"{classes} classes" if classes else "numbers"
            raise UsageError(
                f"does not fit the label {recipe.label!r}, which was taken as {told}",
                option="objective",
                value=self.objective,
                fixes=[Use("objective", found), "group the data anew"],
            )
        return self.objective or found


_DEFAULTS = {"rounds": 100, "patience": None, "seed": 0}


def _named(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by LightGBM's own names."""
    found: dict[str, Any] = {}
    for name, value in params.items():
        own = _ALSO.get(name, name)
        if own in found:
            raise UsageError(
                f"is {own}, which is {found[own]!r} already", option=name, value=value, fixes=["give one of the two"]
            )
        found[own] = value
    return found


def _drawn(params: dict[str, Any]) -> dict[str, Any]:
    """See to it that rows are drawn where a share of them is asked for; LightGBM has its own mind of this."""
    if params.get("bagging_fraction", 1.0) < 1:
        params.setdefault("bagging_freq", 1)
    return params
