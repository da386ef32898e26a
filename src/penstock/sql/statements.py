"""The statements of a parsed script: Penstock's own as plain values, and everything else as the text it was.

`Embedded` is a statement of the engine's with our calls in it: text with holes, each filled with SQL that stands for the
call's rows, so that predictions can be joined, filtered, counted and stored like any other rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.messages import Location

OptionValue: TypeAlias = "str | int | float | bool | list[OptionValue] | None"
"""What an option may be given: words and sizes such as ``10MB`` are strings, quoted or not."""

Exists = Literal["error", "replace", "skip"]
"""What to do where a model of that name is there already."""


@dataclass(frozen=True, slots=True)
class StatementOption:
    """An option's value, and where in the script its name stands: the offset, and the place for messages."""

    value: OptionValue
    at: int = 0
    place: Location | None = None


StatementOptions = Mapping[str, StatementOption]
"""Options by name, in lower case."""


@dataclass(frozen=True, slots=True)
class TableSelection:
    """A query that reads a table or view as it stands: its name, and the columns or None for all, as they were written."""

    table: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the engine's, word for word; ``selected`` where it only names a table.

    ``scope`` has the WITH clauses around it whose names it may use, outermost first.

    Examples
    --------
    >>> Query("SELECT * FROM a", scope=("WITH a AS (SELECT 1 AS x)",)).alone
    'WITH a AS (SELECT 1 AS x) SELECT * FROM (SELECT * FROM a) AS q'
    """

    text: str
    selected: TableSelection | None = None
    scope: tuple[str, ...] = ()

    @property
    def alone(self) -> str:
        """The query such that it can be run apart from the statement that it stands in."""
        text = self.text
        for clause in reversed(self.scope):
            text = f"{clause} SELECT * FROM ({text}) AS q"
        return text


@dataclass(frozen=True, slots=True)
class TransformItem:
    """An expression of TRANSFORM and its column's name as they were written; without a name ``*``, but for some columns."""

    text: str
    name: str | None
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Train:
    """``SELECT … TRAIN BY``, or ``CREATE MODEL``: learn a model from a query's rows.

    ``model`` is logistic, svm, linear, softmax, or a name of `penstock.sql.model_types.MODEL_TYPES`. ``name`` is None where none was given. ``warehouse`` says whether
    the options have the warehouses' names (``OPTIONS``). ``transform`` makes the columns to learn from of those of the query.
    ``by`` has the columns of GROUP BY: a model is learned for each of their values. ``text`` is the whole statement, to be kept with
    the model.
    """

    query: Query
    model: str
    name: str | None = None
    options: StatementOptions = field(default_factory=dict)
    exists: Exists = "error"
    warehouse: bool = False
    transform: tuple[TransformItem, ...] = ()
    by: tuple[str, ...] = ()
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Explain:
    """``EXPLAIN [ANALYZE]`` of a training."""

    train: Train
    analyze: bool = False


@dataclass(frozen=True, slots=True)
class Predict:
    """Rows of a query with a model's predictions beside them; ``warehouse`` names the columns as ML.PREDICT does."""

    model: str
    query: Query
    warehouse: bool = False
    options: StatementOptions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """How good a model is on a query's rows, or on its own held-out ones where there is no query.

    ``warehouse`` names the measures as ML.EVALUATE does.
    """

    model: str
    query: Query | None
    options: StatementOptions = field(default_factory=dict)
    warehouse: bool = False


@dataclass(frozen=True, slots=True)
class TrainingInfo:
    """``ML.TRAINING_INFO(MODEL m)``: a row per epoch."""

    model: str


@dataclass(frozen=True, slots=True)
class WeightsOf:
    """``ML.WEIGHTS(MODEL m)``: a row per feature."""

    model: str


@dataclass(frozen=True, slots=True)
class FeatureInfo:
    """``ML.FEATURE_INFO(MODEL m)``: a row per column that the model reads."""

    model: str


@dataclass(frozen=True, slots=True)
class ConfusionMatrix:
    """``ML.CONFUSION_MATRIX(MODEL m, (query))``: a row per class, with its rows by predicted class."""

    model: str
    query: Query | None
    options: StatementOptions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RocCurve:
    """``ML.ROC_CURVE(MODEL m, (query))``: a row per threshold, with the right and wrong predictions that it makes."""

    model: str
    query: Query
    options: StatementOptions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExplainPredict:
    """``ML.EXPLAIN_PREDICT(MODEL m, (query))``: predictions, and what each column of the row contributed to them."""

    model: str
    query: Query
    options: StatementOptions = field(default_factory=dict)


Call: TypeAlias = (
    Predict | Evaluate | TrainingInfo | WeightsOf | FeatureInfo | ConfusionMatrix | RocCurve | ExplainPredict
)


@dataclass(frozen=True, slots=True)
class Embedded:
    """A statement of the engine's with calls of ours in it.

    ``texts`` has one piece more than there are calls: the call ``k`` stands between pieces ``k`` and ``k + 1``, where a
    parenthesised query could. ``view`` says whether it makes a view, which must not depend on anything but the engine.
    """

    texts: tuple[str, ...]
    calls: tuple[Call, ...]
    view: bool = False


@dataclass(frozen=True, slots=True)
class ShowModels:
    """``SHOW MODELS``."""


@dataclass(frozen=True, slots=True)
class ShowModel:
    """``SHOW MODEL name``: of a model per group a row per group, of others what DESCRIBE MODEL says."""

    model: str


@dataclass(frozen=True, slots=True)
class ShowTraining:
    """``SHOW TRAINING name``: a row for everything that was tried, or for each epoch."""

    model: str


@dataclass(frozen=True, slots=True)
class DescribeModel:
    """``DESCRIBE MODEL name [FOR (value, …)]``; ``group`` has the values of one group's key."""

    model: str
    group: tuple[OptionValue, ...] | None = None


@dataclass(frozen=True, slots=True)
class ShowVersions:
    """``SHOW VERSIONS name``: a row for each version, the earliest first."""

    model: str


@dataclass(frozen=True, slots=True)
class SetDefaultVersion:
    """``ALTER MODEL name SET DEFAULT VERSION number``: what the name stands for from now on."""

    model: str
    number: int


@dataclass(frozen=True, slots=True)
class RenameModel:
    """``ALTER MODEL name RENAME TO new``, with all versions."""

    model: str
    new: str


@dataclass(frozen=True, slots=True)
class DropModel:
    """``DROP MODEL [IF EXISTS] name``, all versions of it, or one: ``m@2``."""

    model: str
    missing: Literal["error", "skip"] = "error"


@dataclass(frozen=True, slots=True)
class ImportModel:
    """``IMPORT [OR REPLACE] MODEL name FROM 'file'``."""

    model: str
    path: str
    exists: Exists = "error"
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ExportModel:
    """``EXPORT MODEL name TO 'file'``."""

    model: str
    path: str


@dataclass(frozen=True, slots=True)
class Pack:
    """``PACK [TABLE] t INTO u WITH (…)``: copy a table with its features as one packed column."""

    table: str
    into: str
    options: StatementOptions = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plain:
    """Anything else: the engine's own, word for word."""

    text: str


ModelStatement: TypeAlias = (
    ShowModels
    | ShowModel
    | ShowTraining
    | ShowVersions
    | DescribeModel
    | SetDefaultVersion
    | RenameModel
    | DropModel
    | ImportModel
    | ExportModel
)
Statement: TypeAlias = Train | Explain | Evaluate | Embedded | ModelStatement | Pack | Plain
