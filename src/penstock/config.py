"""One choice of hyper-parameters for a linear model: a config.

It is checked when made, travels into model files and checkpoints as plain JSON, and says which of its values
may differ when training is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from penstock.budget import Budget
from penstock.class_weights import checked_class_weight
from penstock.errors import UnknownOptionError, UsageError
from penstock.messages import Given, LeaveOut, Use
from penstock.options import check_fields, default, require_same_options
from penstock.sgd import rates
from penstock.sgd.loop import Spec
from penstock.sgd.losses import loss_of
from penstock.sgd.optimizer import Optimizer
from penstock.sgd.optimizers import adaptive
from penstock.shuffle import order
from penstock.solvers import FULL_PASS_SOLVERS, SOLVERS, WIDEST, DataShape, choose_optimizer, choose_solver

# What steps of SGD alone have, with the values that mean nothing was asked for.
_OF_SGD = {name: default(name) for name in ("optimizer", "batch_size", "rate", "decay", "power", "average")}
_SCHEDULE = ("rate", "decay", "power")


_SGD_EPOCHS, _FULL_EPOCHS = 20, 100
# A few epochs over few rows are too few steps to converge, and further ones cost nothing.
_SGD_STEPS, _MOST_SGD_EPOCHS = 300_000, 1000
# FTRL-proximal learns very many sparse features in a few epochs, and soon by heart where no held-out rows stop it.
_UNWATCHED_FTRL_EPOCHS = 5
_PATIENCE = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Hyper-parameters.

    None, or the word "auto", leaves a choice to Penstock; `resolve` makes it once the data are known. ``solver="auto"``
    is SGD where an option of SGD is given, else as `penstock.solvers.choose_solver` says. ``optimizer`` is how SGD turns gradients
    into steps, "sgd" for plain ones or one of `penstock.sgd.optimizers`, which have a learning rate of their own; None leaves it to
    `penstock.solvers.choose_optimizer`. ``l2=None`` is 1 / rows, which is
    scikit-learn's ``C=1``, or a tenth of that by FTRL-proximal; with an L1 penalty it is 0. ``validation`` is the share of rows held out, 0 for none; None
    leaves it to `penstock.loader.holdout.automatic_share`. ``patience`` is after how many epochs without improvement
    training stops, 0 for never; None is 5 of SGD where rows are held out and ``epochs`` is left open. Open ``epochs`` are 20 of SGD,
    more of few rows. ``class_weight`` is how much rows count by their class: ``"balanced"`` or a weight for each label; see
    `penstock.class_weights`. A solver of full passes reads rows as they are stored: ``shuffle`` becomes ``"none"``.

    Examples
    --------
    >>> Config(model="svm", epochs=5).spec().loss
    'hinge'
    >>> Config(solver="lbfgs").shuffle
    'none'
    """

    model: str = default("model")
    solver: str = default("solver")
    optimizer: str | None = default("optimizer")
    learning_rate: float | None = default("learning_rate")
    rate: str = default("rate")
    decay: float = default("decay")
    power: float = default("power")
    epochs: int | None = default("epochs")
    batch_size: int = default("batch_size")
    l1: float = default("l1")
    l2: float | None = default("l2")
    average: bool = default("average")
    class_weight: str | Mapping[Any, float] | None = default("class_weight")
    intercept: bool = default("intercept")
    shuffle: str = default("shuffle")
    memory: str | int = default("memory")
    seed: int = default("seed")
    standardize: bool = default("standardize")
    validation: float | None = default("validation")
    patience: int | None = default("patience")
    tolerance: float = default("tolerance")

    def __post_init__(self) -> None:
        check_fields(self, "estimator")
        if self.standardize is None:
            object.__setattr__(self, "standardize", True)
        loss = loss_of(self.model)
        object.__setattr__(self, "class_weight", checked_class_weight(self.class_weight))
        if self.class_weight is not None and not loss.classifies:
            raise UsageError(
                "is for labels that are classes, and ",
                Given("model", self.model),
                " predicts a number",
                option="class_weight",
                value=self.class_weight,
                fixes=[LeaveOut("class_weight"), "weigh rows by a column"],
            )
        if self.solver not in SOLVERS:
            raise UnknownOptionError.of("solver", self.solver, SOLVERS)
        self._require_schedule()
        order(self.shuffle)
        Budget.parse(self.memory)
        self.spec()
        if self.full_passes:
            self._require_full_passes()
            object.__setattr__(self, "shuffle", "none")

    def _require_schedule(self) -> None:
        optimizer = adaptive(self.optimizer or "sgd")
        if optimizer is None or optimizer.scheduled:
            return
        for name in _SCHEDULE:
            value = getattr(self, name)
            if value != _OF_SGD[name] and value != "constant":
                raise UsageError(
                    "is not for ",
                    Given("optimizer", self.optimizer),
                    ", whose rates fall by themselves",
                    option=name,
                    value=value,
                    fixes=[LeaveOut(name)],
                )

    def _require_full_passes(self) -> None:
        exact = loss_of(self.model).exact
        if self.solver == "exact" and (not exact or self.l1):
            what = Given("l1", self.l1) if exact else Given("model", self.model)
            raise UsageError(
                "solves least squares without an L1 penalty, not ",
                what,
                option="solver",
                value="exact",
                fixes=[Use("solver", "lbfgs")],
            )
        for name in _OF_SGD:
            if self._is_given(name):
                raise UsageError(
                    "is for ",
                    Given("solver", "sgd"),
                    ": ",
                    Given("solver", self.solver),
                    " makes one step for each pass over all rows",
                    option=name,
                    value=getattr(self, name),
                    fixes=[LeaveOut(name)],
                )

    @property
    def full_passes(self) -> bool:
        """Whether each step is made from sums over all rows."""
        return self.solver in FULL_PASS_SOLVERS

    @property
    def asks_for_sgd(self) -> bool:
        """Whether an option was given that only SGD has."""
        return self._is_given(*_OF_SGD) or self.learning_rate is not None or self.shuffle != "corgipile"

    @property
    def epoch_limit(self) -> int:
        """The number of epochs that was given, or the solver's own: SGD's, or the most that full passes may take."""
        if self.epochs is not None:
            return self.epochs
        return {"exact": 1, "lbfgs": _FULL_EPOCHS, "gd": _FULL_EPOCHS}.get(self.solver, _SGD_EPOCHS)

    def resolve(self, shape: DataShape, *, held_out: bool = False) -> Config:
        """Return the config with nothing left open, for data of that shape, with or without held-out rows."""
        solver = self.solver
        if solver == "auto":
            few_passes = self.epochs is not None and self.epochs <= _SGD_EPOCHS
            exact = loss_of(self.model).exact
            solver = (
                "sgd" if self.asks_for_sgd else choose_solver(shape, exact=exact, l1=self.l1, few_passes=few_passes)
            )
        if solver == "exact" and shape.width > WIDEST:
            raise UsageError(
                f"solves equations in {shape.width:,} features at once, and takes {WIDEST:,} at most",
                option="solver",
                value="exact",
                fixes=[Use("solver", "lbfgs")],
            )
        watched = solver == "sgd" and self.epochs is None and held_out
        patience = self.patience if self.patience is not None else _PATIENCE if watched else 0
        optimizer = self.optimizer
        if optimizer is None and solver == "sgd":
            plain = self.learning_rate is not None or self._is_given(*_SCHEDULE, "batch_size")
            optimizer = "sgd" if plain else choose_optimizer(self.model, shape)
        resolved = replace(self, solver=solver, optimizer=optimizer, patience=patience)
        resolved = replace(resolved, l2=resolved.penalty(shape.rows))
        epochs = resolved.epoch_limit
        if solver == "sgd" and self.epochs is None and self.optimizer is None and optimizer == "ftrl" and not held_out:
            epochs = _UNWATCHED_FTRL_EPOCHS
        elif solver == "sgd" and self.epochs is None:
            epochs = min(max(epochs, _SGD_STEPS // max(shape.rows, 1)), _MOST_SGD_EPOCHS)
        return replace(resolved, epochs=epochs)

    def penalty(self, rows: int) -> float:
        """Return the L2 penalty that was given, or the solver's own for so many rows."""
        if self.l2 is not None:
            return self.l2
        optimizer = adaptive(self.optimizer or "sgd") if self.solver == "sgd" else None
        return 0.0 if self.l1 else (1.0 if optimizer is None else optimizer.penalty) / max(rows, 1)

    @property
    def first_rate(self) -> float:
        """The learning rate that was given, or the model's and solver's own."""
        return self.spec().rate.at(0, 0)

    def spec(self) -> Spec:
        """Return the part that SGD itself needs; a penalty that is left open is none here."""
        optimizer = adaptive(self.optimizer or "sgd")
        return Spec(
            loss=loss_of(self.model).name,
            rate=self._plain_rate() if optimizer is None else self._rate_of(optimizer),
            batch_size=self.batch_size,
            l1=self.l1,
            l2=self.l2 or 0.0,
            intercept=self.intercept,
            average=self.average and not (optimizer is not None and self.l1),  # a mean has no true zeros
            optimizer=self.optimizer or "sgd",
            scaled=self.standardize,
            chosen_rate=self.learning_rate is not None,
        )

    def _plain_rate(self) -> rates.Rate:
        plain = self.learning_rate is not None or self._is_given("decay", "power")
        bounded = self.rate == "auto" and not plain and not self.full_passes
        first = self.learning_rate
        if first is None and self.full_passes:
            first = 1.0
        elif first is None:
            loss = loss_of(self.model)
            first = loss.bounded_rate if bounded else loss.plain_rate
        return rates.make_rate(self.rate, first, bounded=bounded, decay=self.decay, power=self.power)

    def _rate_of(self, optimizer: Optimizer) -> rates.Rate:
        first = self.learning_rate if self.learning_rate is not None else optimizer.learning_rate
        if self._is_given(*_SCHEDULE):
            return rates.make_rate(self.rate, first, decay=self.decay, power=self.power)
        return rates.falling(first, optimizer.power, bounded=self.learning_rate is None)

    def _is_given(self, *names: str) -> bool:
        """Whether one of these options of SGD differs from what it is by default."""
        values = {name: getattr(self, name) for name in names}
        if values.get("optimizer") == "sgd":  # plain steps ask for nothing
            values["optimizer"] = None
        return any(value != _OF_SGD[name] for name, value in values.items())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def require_same(self, other: dict[str, Any]) -> None:
        """Raise unless another config, saved as JSON, trains alike; the number of epochs may differ."""
        mine, other = self.to_dict(), {"optimizer": "sgd", **other}  # which old checkpoints do not name
        if mine["optimizer"] is None and other["optimizer"] == "sgd":
            mine["optimizer"] = "sgd"  # the checkpoint goes on with the steps that it has made
        for each in (mine, other):
            if self.full_passes and each.get("learning_rate") is None:
                each["learning_rate"] = replace(self, learning_rate=None).first_rate
        if mine["validation"] is None and not other.get("validation"):
            mine["validation"] = other.get("validation")  # the checkpoint goes on with the rows that it has held out
        require_same_options(mine, other, (f.name for f in fields(self) if f.name != "epochs"))
