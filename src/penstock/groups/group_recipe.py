"""How the columns of grouped rows become features: one recipe for all groups, fitted in one pass over all rows.

Levels of categories, what stands for missing numbers and the classes of the label are those of all rows, so that models of groups
can be compared; features are scaled within each group, when a model is trained. Trees get numbers and codes as they are, with NaN
where a value is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock.blocks.base import BlockSource
from penstock.columns.base import FeatureColumn, column_of, is_text
from penstock.columns.category import Category
from penstock.columns.date import Date
from penstock.columns.fit import ColumnRequest, FitColumns, tally_of
from penstock.columns.hashing import Hashed
from penstock.columns.labels import LabelMap, LabelTally, missing_labels
from penstock.columns.number import Number
from penstock.columns.recipe import Recipe
from penstock.columns.tree import TreeColumn
from penstock.errors import ColumnError, DataError
from penstock.events import Advanced, Finished, Started, Stream, Warned
from penstock.loader.fit_columns import read_columns
from penstock.training import Columns

_TASK = "fit columns"
_MOST_BITS = 12
"""The power of two that text of many values is hashed to where nobody says: the models of all groups are in memory at the end."""


@dataclass(frozen=True, slots=True)
class GroupColumns:
    """The columns that rows are grouped by, and which of the others play which part.

    ``trees`` asks for features as trees take them: see `penstock.columns.tree`.
    """

    by: Sequence[str]
    label: str
    columns: Columns
    trees: bool = False

    def to_dict(self, source: BlockSource) -> dict[str, Any]:
        """Return as JSON what is asked of a source's columns, which are not looked at: of the same data, the same recipe comes.

        Raises
        ------
        ColumnError, UsageError, FeatureError
            The source has no such columns, or they cannot be used so.
        """
        named: list[str] = []

        def plan(requests: Sequence[ColumnRequest], policy: str) -> Mapping[str, tuple[FeatureColumn, ...] | str]:
            named.extend(sorted(request.field.name for request in requests if request.named))
            return {request.field.name: (_planned(request),) for request in requests}

        planned = {"encoder": self._choose(source, plan).to_dict()}
        return planned | ({"named": named} if named else {}) | ({"trees": True} if self.trees else {})

    def recipe(self, source: BlockSource, *, classes: bool, stream: Stream) -> Recipe:
        """Fit the recipe in one pass over a source's features and labels.

        Rows without a label are left out, unless missing values are to be refused; columns that number the rows are no features
        unless they are named.
        """
        fit = _FitPass(
            source, _LabelSearch(self.label, source.name, classes, drops=self.columns.missing != "refuse"), stream
        )
        recipe = self._choose(source, fit)
        fit.finish()
        if self.trees:
            recipe = _for_trees(recipe)
        return replace(recipe, labels=fit.labels.found, unlabelled=fit.labels.missing > 0)

    def notice(self, source: BlockSource, recipe: Recipe, stream: Stream) -> None:
        """Tell of the columns that nobody named and that are neither features nor to group by."""
        replace(self.columns, exclude=[*self.columns.exclude, *self.by]).notice(source, recipe, stream)
        if self.columns.missing == "drop":
            stream.emit(
                Warned(
                    f"{source.name}: rows that lack a feature are left out, also of the rows held out; a prediction fills what such rows lack"
                )
            )

    def _choose(self, source: BlockSource, fit: FitColumns) -> Recipe:
        """Choose the features; grouping columns are none unless they are named."""
        for name in self.by:
            if name not in source.schema.names:
                raise ColumnError.missing(name, source.schema.names, place=source.name, role="column to group by")
        chosen = replace(self.columns, label=self.label, exclude=excluded_columns(self.columns, self.by))
        return chosen.choose(source, fit=fit, fill=True)


def excluded_columns(columns: Columns, by: Sequence[str]) -> list[str]:
    """Return the columns that are no features: those left out, and those to group by but for the ones that are named.

    Examples
    --------
    >>> excluded_columns(Columns(exclude=["id"], features=["country"]), by=["country", "os"])
    ['id', 'os']
    """
    hashed = [Hashed.parse(each).column for each in columns.hash] if not isinstance(columns.hash, str) else []
    kinds = (columns.features or (), columns.category, columns.number, columns.date)
    named = {*hashed, *columns.exclude, *(name for names in kinds for name in names)}
    return [*columns.exclude, *(name for name in by if name not in named)]


class _LabelSearch:
    """The classes of the label, and how many rows have none."""

    def __init__(self, column: str, place: str, classes: bool, *, drops: bool) -> None:
        self.column, self.rows, self.missing = column, 0, 0
        self._place, self._drops = place, drops
        self._tally = LabelTally(column, place=place) if classes else None

    def add(self, array: pa.Array) -> None:
        """Take in a block."""
        missing = missing_labels(array)
        self.rows += len(array)
        if self._drops and missing.any():
            self.missing += int(missing.sum())
            array = array.filter(pa.array(~missing))
        if self._tally is not None and len(array):
            self._tally.add(array)

    @property
    def found(self) -> LabelMap | None:
        """The classes; None of a label that is a number."""
        return None if self._tally is None else self._tally.labels()

    def finish(self, stream: Stream) -> None:
        """Tell of the rows that are left out; raise where these are all."""
        if self.missing == self.rows:
            raise DataError(f"{self._place}: {self.column!r} is missing in every row, so there is nothing to learn")
        if self.missing:
            notice = f"{self.missing:,} rows have no {self.column!r}, the label, and are left out"
            stream.emit(Warned(f"{self._place}: {notice}"))


class _FitPass:
    """One pass over the data: columns as features, and labels."""

    def __init__(self, source: BlockSource, labels: _LabelSearch, stream: Stream) -> None:
        self.labels, self._source, self._stream = labels, source, stream

    def __call__(self, requests: Sequence[ColumnRequest], policy: str) -> Mapping[str, tuple[FeatureColumn, ...] | str]:
        tallies = {request.field.name: tally_of(request) for request in requests}
        source, label = self._source, self.labels.column
        self._stream.emit(Started(_TASK, int(source.block_rows.sum()), "rows"))
        with closing(read_columns(source, [*tallies, label])) as batches:
            for batch in batches:
                for name, tally in tallies.items():
                    tally.add(column_of(batch, name))
                self.labels.add(batch.column(label))
                self._stream.emit(Advanced(_TASK, len(batch)))
        self._stream.emit(Finished(_TASK))
        return {name: _narrowed(tally.result(policy)) for name, tally in tallies.items()}

    def finish(self) -> None:
        """Look at the labels, where no feature had to be looked at, and tell of missing ones."""
        if not self.labels.rows:
            self((), "auto")
        self.labels.finish(self._stream)


def _narrowed(result: tuple[FeatureColumn, ...] | str) -> tuple[FeatureColumn, ...] | str:
    """Return columns with fewer features where they are hashed: every group has a weight for each."""
    if isinstance(result, str):
        return result
    return tuple(replace(p, bits=min(p.bits, _MOST_BITS)) if isinstance(p, Hashed) else p for p in result)


def _planned(request: ColumnRequest) -> FeatureColumn:
    """Return what stands for a column whose values were not looked at."""
    name = request.field.name
    if request.kind == "number" and not is_text(request.field.type):
        return Number(name)
    return Category(name, (request.kind or "",), null_values=request.null_values)


def _for_trees(recipe: Recipe) -> Recipe:
    parts = [TreeColumn(part) if isinstance(part, (Number, Category, Date)) else part for part in recipe.parts]
    return replace(recipe, parts=tuple(sorted(parts, key=lambda part: part.sparse)))


def categorical_features(recipe: Recipe) -> list[int]:
    """Return the places of the features that are codes of categories, as trees take them."""
    found, at = [], 0
    for part in recipe.parts:
        if isinstance(part, TreeColumn) and part.categorical:
            found.append(at)
        at += part.width or 0
    return found


def made_for_trees(recipe: Recipe) -> bool:
    """Whether features may be NaN or codes, which only trees learn from."""
    return any(isinstance(part, TreeColumn) for part in recipe.parts)
