"""The hyper-parameters of a factorisation: checked, saved as JSON, compared when a run is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from penstock.budget import Budget
from penstock.options import check_fields, default, require_same_options
from penstock.sgd import rates

LEARNING_RATE = 0.01
"""The first step size where none is given, or ``"auto"``."""
_EPOCHS, _WATCHED_EPOCHS, _PATIENCE = 20, 100, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorConfig:
    """Hyper-parameters of a factorisation.

    Where ``epochs`` and ``patience`` are left open and ratings are held out, training stops after 5 epochs without improvement, and
    after 100 in any case; after 20 where none are held out. Where it may stop early, the factors of the best epoch by the held-out
    loss are kept.

    Examples
    --------
    >>> FactorConfig(rank=8).schedule().at(epoch=0, step=0)
    0.01
    """

    rank: int = default("rank")
    learning_rate: float = LEARNING_RATE
    rate: str = default("rate", "factor")
    decay: float = default("decay")
    power: float = default("power")
    l2: float = default("l2", "factor")
    epochs: int | None = default("epochs")
    memory: str | int = default("memory", "factor")
    seed: int = default("seed")
    threads: int = default("threads")
    validation: float | None = default("validation")
    patience: int | None = default("patience")
    tolerance: float = default("tolerance")

    def __post_init__(self) -> None:
        check_fields(self, "factor")
        if self.learning_rate is None:
            object.__setattr__(self, "learning_rate", LEARNING_RATE)
        Budget.parse(self.memory)
        self.schedule()

    def epoch_limit(self, patience: int) -> int:
        """Return the number of epochs that was given, or else 100 where held-out ratings say when to stop, and 20 where not."""
        if self.epochs is not None:
            return self.epochs
        return _WATCHED_EPOCHS if patience else _EPOCHS

    def patience_for(self, share: float) -> int:
        """Return after how many epochs without improvement to stop where that share of the ratings is held out, 0 for never."""
        if self.patience is not None:
            return self.patience
        return _PATIENCE if share and self.epochs is None else 0

    def schedule(self) -> rates.Rate:
        """Return the learning rates."""
        return rates.make_rate(self.rate, self.learning_rate, decay=self.decay, power=self.power)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    def require_same(self, other: Mapping[str, Any]) -> None:
        """Raise unless another config, saved as JSON, trains alike; epochs, threads and memory may differ."""
        mine = self.to_dict()
        if self.validation is None and not other.get("validation"):
            mine["validation"] = other.get("validation")  # the checkpoint goes on with the rows that it has held out
        other = {"patience": 0, "tolerance": self.tolerance, **other}  # earlier versions never stopped early
        names = (f.name for f in fields(self) if f.name not in ("epochs", "threads", "memory"))
        require_same_options(mine, other, names)
