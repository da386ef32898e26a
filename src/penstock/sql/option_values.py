"""Options as they were written, read into what they mean: numbers, flags, sizes, columns of the query.

A value of the wrong kind is refused with the option's name as it was written, its place in the script, and what to
write. A column is found whatever the case of its letters, as SQL's users expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pyarrow as pa

from penstock.blocks.hashing import Hashed
from penstock.budget import Budget, parse_size
from penstock.config import Config
from penstock.errors import ColumnError, UnknownOptionError, UsageError, nearest
from penstock.messages import Given, Location, Text, TextPart, joined
from penstock.options import TABLE
from penstock.sgd.loop import EarlyStopping
from penstock.sql.engines.base import Reading
from penstock.sql.statements import OptionValue, StatementOptions

PLACE = "the query"
"""What messages call the rows that options are about."""
_READING = ("block_size", "nulls", "cache", "connections")


@dataclass(frozen=True, slots=True)
class OptionValues:
    """Options by what they mean, each of the type wanted, and the names they were written under."""

    values: dict[str, Any]
    written: dict[str, str]
    options: StatementOptions
    known: Mapping[str, str]
    schema: pa.Schema | None

    @classmethod
    def of(cls, options: StatementOptions, known: Mapping[str, str], schema: pa.Schema | None) -> OptionValues:
        """Read options; ``known`` has for each name the option of the table that it stands for."""
        found = cls({}, {}, options, known, schema)
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
                declared = TABLE[meaning]
                found.values[meaning] = declared.check(_READERS[declared.kind](found, name, option.value))
        return found

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
    if TABLE[options.known[name]].auto and isinstance(value, str) and value.lower() == "auto":
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
    option = TABLE[options.known[name]]
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
        specs.append(f"{options.column(name, column)}{each[len(column) :]}")
    return specs


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
    "class_weight": _class_weight,
    "cache": _cache,
    "choice": _choice,
}
