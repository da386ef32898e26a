"""What can stand after TRAIN BY: the types of models, the options that each takes, and what learns it.

`MODEL_TYPES` is the registration table: a new type is a line in it, and a function that makes a `QueryLearner` of a statement's
options. Linear models in memory, whose rows the engine may read or train on in ways of its own, have no learner but with GROUP BY.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from penstock.options import Option, options_of
from penstock.sgd.losses import linear_models
from penstock.sql.stored_files import Keeping

if TYPE_CHECKING:
    from penstock.blocks.base import BlockSource
    from penstock.events import Stream
    from penstock.explanation.explanation import Explanation
    from penstock.model import Model
    from penstock.sql.option_values import OptionValues
    from penstock.sql.options import Settings
    from penstock.sql.result import Result
    from penstock.sql.statements import OptionValue, Train


@dataclass(frozen=True, slots=True)
class LearnedModel:
    """What learning gave: the model, how the catalogue is to keep it, the rows to show of it, and why it is of no use, if it is."""

    model: Model
    result: Result
    keeping: Keeping = field(default_factory=Keeping)
    useless: str | None = None


class QueryLearner(Protocol):
    """Learns a model from the rows of a query, once the options of a statement are settled."""

    def learn(self, source: BlockSource, chosen: Settings, *, stream: Stream) -> AbstractContextManager[LearnedModel]:
        """Learn from all rows; the model is open inside the ``with``."""
        ...

    def explain(self, source: BlockSource, chosen: Settings) -> Explanation:
        """Say what learning will take, by a sample of the rows."""
        ...

    def trial(self) -> QueryLearner:
        """Return what learns the same, and leaves nothing behind."""
        ...


@dataclass(frozen=True, slots=True)
class ModelType:
    """A type of models that TRAIN BY knows.

    Attributes
    ----------
    doors : tuple of str
        The doors of the option table whose options it takes; where two have the same one, the first counts.
    learner : str or callable
        ``learner(options, train, config)`` returns a `QueryLearner`, or None for linear models in memory; a text, ``"module:name"``, is
        imported when it is needed.
    aliases : tuple of str
        Other words for it, such as those of the warehouses.
    preset : mapping
        Options that the word itself gives.
    grouped : bool
        Whether it can be learned for each group.
    processes : bool
        Whether worker processes learn it, also without groups.
    searched : tuple of str
        Options of which several values may be given, to be tried.
    label : str
        The option that names what is learned.
    """

    doors: tuple[str, ...]
    learner: str | Callable[..., QueryLearner | None]
    aliases: tuple[str, ...] = ()
    preset: Mapping[str, OptionValue] = field(default_factory=dict)
    grouped: bool = False
    processes: bool = False
    searched: tuple[str, ...] = ()
    label: str = "label"

    def make_learner(self, options: OptionValues, train: Train) -> QueryLearner | None:
        """Return what learns a statement's model."""
        make: Any = self.learner
        if isinstance(make, str):
            module, _, name = make.partition(":")
            make = getattr(importlib.import_module(module), name)
        learner: QueryLearner | None = make(options, train)
        return learner

    @property
    def options(self) -> dict[str, Option]:
        """The options that it takes, by name."""
        return {name: option for door in reversed(self.doors) for name, option in options_of(door).items()}

    def names(self, *, of_warehouse: bool = False) -> dict[str, str]:
        """Return the names that its options may have in a statement, each with the name in the option table."""
        options = self.options
        names = {name: name for name in options} | {a: name for name in options for a in options[name].aliases}
        if of_warehouse:
            names |= {alias: name for name in options for alias in options[name].warehouse}
        return names


LINEAR = ModelType(
    ("query",),
    "penstock.sql.group_training:linear_learner",
    grouped=True,
    searched=(*options_of("search"), "patience", "batch_size", "decay", "power"),
)
_BOOSTING = ModelType(
    ("boosting", "query-boosting"),
    "penstock.sql.group_training:boosting_learner",
    ("lightgbm", "boosted_tree_classifier"),
    grouped=True,
    processes=True,
    searched=tuple(name for name in options_of("boosting") if name != "patience"),
)
_ON_DISK = ModelType(("disk", "query-disk"), "penstock.sql.disk_training:disk_learner")
_FACTOR = ModelType(
    ("factor", "query-factor"), "penstock.sql.disk_training:factor_learner", ("matrix_factorization",), label="rating"
)
_TORCH = ModelType(
    ("query-torch",),
    "penstock.sql.group_training:torch_learner",
    grouped=True,
    processes=True,
    searched=("epochs", "batch_size", "patience", "tolerance"),
)

MODEL_TYPES: dict[str, ModelType] = {
    "boosting": _BOOSTING,
    "factor": _FACTOR,
    "torch": _TORCH,
    "boosted_tree_regressor": replace(_BOOSTING, aliases=(), preset={"objective": "regression"}),
}
"""The types of models beside linear ones, by the word after TRAIN BY."""


def type_of(train: Train) -> ModelType:
    """Return the type of the model that a statement asks for; a linear one that has a directory is of another type."""
    return MODEL_TYPES.get(train.model, _ON_DISK if "model_dir" in train.options else LINEAR)


def model_words() -> Mapping[str, str]:
    """Return every word that can stand after TRAIN BY, with the word that it stands for.

    Examples
    --------
    >>> words = model_words()
    >>> words["linear_reg"], words["lightgbm"], words["svm"]
    ('linear', 'boosting', 'svm')
    """
    known = [(name, loss.aliases) for name, loss in linear_models().items()]
    known += [(name, kind.aliases) for name, kind in MODEL_TYPES.items()]
    return {other: name for name, aliases in known for other in (name, *aliases)}


def model_names() -> list[str]:
    """Return the words for models that messages list, without those that only stand for others."""
    return [*linear_models(), *(name for name, kind in MODEL_TYPES.items() if not kind.preset)]
