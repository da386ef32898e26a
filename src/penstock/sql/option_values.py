"""Options as a statement has them: each by what it means, of the type wanted, or refused with its name, its place and what to write.

A column is found whatever the case of its letters, as SQL's users expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import pyarrow as pa

from penstock.budget import Budget, parse_size
from penstock.columns.hashing import Hashed
from penstock.config import Config
from penstock.errors import ColumnError, UnknownOptionError, UsageError, nearest
from penstock.messages import Given, Location, Text, TextPart, joined
from penstock.options import Option, default, options_of
from penstock.sgd.loop import EarlyStopping
from penstock.sgd.losses import linear_models
from penstock.sql.model_types import type_of
from penstock.sql.query_copy import PLACE, Reading
from penstock.sql.statements import OptionValue, StatementOptions, Train


def names_at(door: str) -> dict[str, str]:
    """Return the names that the options of a statement may have, each with the name in the table."""
    options = options_of(door)
    return {name: name for name in options} | {alias: name for name in options for alias in options[name].aliases}


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A model per group, settled: the columns to group by, what rows of other groups get, and how many processes train.

    Without columns it is one model, chosen among those that are tried.
    """

    by: tuple[str, ...]
    unseen: str = default("unseen", "query")
    workers: int | None = None


def label_by_name(schema: pa.Schema) -> str | None:
    """Return the column that is the label where none is named."""
    return next((name for name in schema.names if name.lower() == "label"), None)


_READING = ("block_size", "nulls", "cache", "connections")


@dataclass(frozen=True, slots=True)
class OptionValues:
    """Options by what they mean, each of the type wanted, and the names they were written under.

    ``declared`` has the options that the statement takes, ``search`` the values of those that were given several to try.
    """

    values: dict[str, Any]
    written: dict[str, str]
    options: StatementOptions
    known: Mapping[str, str]
    schema: pa.Schema | None
    declared: Mapping[str, Option]
    search: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def at(cls, door: str, options: StatementOptions, schema: pa.Schema | None) -> OptionValues:
        """Read the options of a statement that has a door of its own."""
        return cls.of(options, names_at(door), schema, options_of(door))

    @classmethod
    def of(
        cls,
        options: StatementOptions,
        known: Mapping[str, str],
        schema: pa.Schema | None,
        declared: Mapping[str, Option],
        *,
        searched: Sequence[str] = (),
    ) -> OptionValues:
        """Read options; ``known`` has for each name the option that it stands for, ``searched`` those to try several values of."""
        found = cls({}, {}, options, known, schema, declared)
        for name, option in options.items():
            if name not in known:
                raise UnknownOptionError(
                    f"there is no option {name!r}",
                    place=option.place,
                    fixes=[f"choose from: {', '.join(sorted(known))}{nearest(name, known)}"],
                )
            meaning = known[name]
            if meaning in found.written:
                found.fail(name, f"{name} and {found.written[meaning]} mean the same", "give one of them")
            found.written[meaning] = name
            if option.value is not None:  # null leaves what there is without the option
                kind, several = declared[meaning], isinstance(option.value, list) and meaning in searched
                values = option.value if several and isinstance(option.value, list) else [option.value]
                read = [kind.check(_READERS[kind.kind](found, name, value)) for value in values]
                if several:
                    found.search[meaning] = read
                else:
                    found.values[meaning] = read[0]
        return found

    def groups(self, train: Train) -> GroupSettings | None:
        """Return what GROUP BY, values to try or worker processes ask for; raise for an option of these where there are none."""
        kind = type_of(train)
        if not train.by:
            if "unseen" in self.written:
                self.fail(self.written["unseen"], "unseen is for models per group", "write GROUP BY, or leave it out")
            for meaning in () if self.search or kind.processes else ("workers", "search"):
                if meaning in self.written:
                    values = Text("give an option several values: ", self.write("l2", [1, 0.1]))
                    self.fail(self.written[meaning], f"{meaning} is for several values to try", values, "leave it out")
            settled = GroupSettings((), "null", self.values.get("workers"))
            return settled if self.search or kind.processes else None
        if not kind.grouped:
            if "model_dir" in self.written and train.model in linear_models():
                reason = "model_dir is the directory of one model, and GROUP BY learns one for each group"
                self.fail(self.written["model_dir"], reason, "leave out model_dir or GROUP BY")
            raise UsageError(f"a {train.model} model is not learned for each group", fixes=["leave out GROUP BY"])
        by = tuple(str(self.column("GROUP BY", name)) for name in train.by)
        twice = next((name for name in by if by.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"GROUP BY names the column {twice!r} twice; name each once")
        if train.transform:
            raise UsageError("TRANSFORM and GROUP BY do not go together; write the expressions into the query")
        unseen = self.values.get("unseen", default("unseen", "query"))
        if "unseen" in self.written and self.options[self.written["unseen"]].value is None:  # as the word null is read
            unseen = "null"
        return GroupSettings(by, unseen, self.values.get("workers"))

    def config(self, model: str) -> Config:
        """Return the hyper-parameters."""
        config = Config(
            model=model, **{name: self.values[name] for name in Config.__dataclass_fields__ if name in self.values}
        )
        if config.epochs == 0:  # a model that has learnt nothing may be wanted elsewhere; here it would be saved
            raise UsageError("is not a number of epochs", option="epochs", value=0, fixes=["choose 1 or more"])
        if config.patience:
            EarlyStopping(config.patience, config.tolerance)
        return config

    def floating_label(self) -> bool:
        """Whether the label is of a floating-point type, or a decimal with digits behind the point."""
        label = self.values.get("label") or (None if self.schema is None else label_by_name(self.schema))
        if self.schema is None or label not in self.schema.names:
            return False
        kind = self.schema.field(label).type
        return bool(pa.types.is_floating(kind) or (pa.types.is_decimal(kind) and kind.scale > 0))

    def common_config(self) -> Config:
        """Return the hyper-parameters that every model has."""
        names = ("memory", "seed", "validation")
        return Config(**{name: self.values[name] for name in names if name in self.values})

    def reading(self, memory: str | int) -> Reading:
        """Return how rows are fetched."""
        values = {name: self.values[name] for name in _READING if name in self.values}
        most, usual = Budget.parse(memory).bytes, Reading(folder=self.values.get("scratch"))
        return replace(usual, memory=usual.memory if most is None else min(most, usual.memory), **values)

    def column(self, name: str, wanted: str, *, fails: bool = True) -> str | None:
        """Return the query's column that an option names, whatever the case of its letters."""
        if self.schema is None:
            return wanted
        present = self.schema.names
        if wanted in present:
            return wanted
        alike = [each for each in present if each.lower() == wanted.lower()]
        if len(alike) == 1:
            return str(alike[0])
        if fails:
            missing = ColumnError.missing(wanted, present, place=PLACE, role=f"{name} column")
            raise missing.replace(place=self.place(name) or missing.place)
        return None

    def fail(self, name: str, reason: str, *fixes: TextPart) -> NoReturn:
        """Raise, with the place of an option."""
        raise UsageError(reason, place=self.place(name), fixes=fixes)

    def refuse(self, name: str, value: OptionValue, expected: str, *fixes: TextPart) -> NoReturn:
        """Raise for a value of the wrong kind."""
        raise UsageError(f"is not {expected}", option=self.known[name], value=value, fixes=fixes)

    def place(self, name: str) -> Location | None:
        """Return where an option stands."""
        return self.options[name].place if name in self.options else None

    def write(self, name: str, *values: OptionValue) -> Text:
        """Return the advice to write an option with one of these values."""
        return Text("write ", joined((Given(self.known[name], value) for value in values), last=" or "))


def _number(options: OptionValues, name: str, value: OptionValue) -> float | None:
    if options.declared[options.known[name]].auto and isinstance(value, str) and value.lower() == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        options.refuse(name, value, "a number", Text(options.write(name, 0.1), ", without quotes"))
    return float(value)


def _whole(options: OptionValues, name: str, value: OptionValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        options.refuse(name, value, "a whole number", Text(options.write(name, 10), ", without quotes"))
    return int(value)


def _flag(options: OptionValues, name: str, value: OptionValue) -> bool:
    known = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    found = value if isinstance(value, bool) else known.get(str(value).lower())
    if found is None:
        options.refuse(name, value, "true or false")
    return found


def _text(options: OptionValues, name: str, value: OptionValue) -> str:
    if not isinstance(value, str) or not value:
        options.refuse(name, value, "a word or a string", options.write(name, "…"))
    return value


def _word(options: OptionValues, name: str, value: OptionValue) -> str:
    return _text(options, name, value).lower().replace("_", "-")


def _choice(options: OptionValues, name: str, value: OptionValue) -> str:
    option = options.declared[options.known[name]]
    word = _text(options, name, value).lower()
    if word not in option.words:
        raise UnknownOptionError.of(option.name, value, option.words)
    return word


def _column(options: OptionValues, name: str, value: OptionValue) -> str:
    return str(options.column(name, _text(options, name, value)))


def _several(options: OptionValues, name: str, value: OptionValue) -> list[str]:
    """Read names in a list, or in one string with commas; a column with a comma in its own name goes first."""
    if isinstance(value, str):
        commas = options.column(name, value, fails=False) is None
        value = [part.strip() for part in value.split(",")] if commas else [value]
    if not isinstance(value, list) or not value:
        options.refuse(name, value, "a list of columns", options.write(name, ["a", "b"]))
    return [_text(options, name, each) for each in value]


def _column_list(options: OptionValues, name: str, value: OptionValue) -> list[str]:
    return list(dict.fromkeys(str(options.column(name, each)) for each in _several(options, name, value)))


def _hash(options: OptionValues, name: str, value: OptionValue) -> list[str]:
    specs = []
    for each in _several(options, name, value):
        column = Hashed.parse(each).column
        specs.append(each if each == "*" else f"{options.column(name, column)}{each[len(column) :]}")
    return specs


def _text_list(options: OptionValues, name: str, value: OptionValue) -> list[str]:
    """Read texts and numbers in a list, or in one string with commas."""
    found: Any = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if isinstance(found, int | float) and not isinstance(found, bool):
        found = [found]
    if not isinstance(found, list) or not all(isinstance(each, str | int | float) for each in found):
        options.refuse(name, value, "a list of values", options.write(name, ["?", "NA"]))
    return [str(each) for each in found]


def _memory(options: OptionValues, name: str, value: OptionValue) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        options.refuse(name, value, "an amount of memory", options.write(name, "512MB", "10%"))
    return value


def _size(options: OptionValues, name: str, value: OptionValue) -> int:
    return parse_size(_memory(options, name, value), option=options.known[name])


def _class_weight(options: OptionValues, name: str, value: OptionValue) -> str | dict[Any, Any]:
    """Read ``'balanced'``, ``'yes=5,no=1'``, or a list of pairs ``[('yes', 5), ('no', 1)]``."""
    if isinstance(value, str):
        return value
    pairs = value if isinstance(value, list) else []
    if not pairs or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        example = Given(options.known[name], {"yes": 5, "no": 1})
        options.refuse(name, value, "a choice of class weights", Text(options.write(name, "balanced"), " or ", example))
    found: dict[Any, Any] = {}
    for label, weight in (pair for pair in pairs if isinstance(pair, list)):
        if isinstance(label, list | None) or label in found:
            options.refuse(name, value, "a weight for each label, each given once")
        found[label] = weight
    return found


def _cache(options: OptionValues, name: str, value: OptionValue) -> bool | int:
    if isinstance(value, bool) or str(value).lower() in ("on", "off"):
        return _flag(options, name, value)
    return _size(options, name, value)


_READERS: dict[str, Callable[[OptionValues, str, OptionValue], Any]] = {
    "number": _number,
    "whole": _whole,
    "flag": _flag,
    "word": _word,
    "text": _text,
    "memory": _memory,
    "size": _size,
    "column": _column,
    "columns": _column_list,
    "hash": _hash,
    "texts": _text_list,
    "class_weight": _class_weight,
    "cache": _cache,
    "choice": _choice,
}
