"""Options as they were written, read into what they mean: numbers, flags, sizes, columns of the query.

A value of the wrong kind is refused with the option's name as it was written, its place in the script, and what to
write. A column is found whatever the case of its letters, as SQL's users expect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pyarrow as pa

from penstock.blocks.hashing import Hashed
from penstock.budget import Budget, parse_size
from penstock.config import Config
from penstock.errors import ColumnError, UnknownOptionError, UsageError, nearest
from penstock.sgd.loop import EarlyStopping
from penstock.sql.engines.base import Reading
from penstock.sql.statements import Options, Value

PLACE = "the query"
"""What messages call the rows that options are about."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Options by what they mean, each of the type wanted, and the names they were written under."""

    values: dict[str, Any]
    written: dict[str, str]
    options: Options
    schema: pa.Schema | None

    @classmethod
    def of(cls, options: Options, known: Mapping[str, str], schema: pa.Schema | None) -> Asked:
        """Read options; ``known`` has for each name what it means."""
        asked = cls({}, {}, options, schema)
        for name, option in options.items():
            if name not in known:
                told = f"there is no option {name!r}; choose from: {', '.join(sorted(known))}{nearest(name, known)}"
                raise UnknownOptionError(asked.placed(name, told))
            meaning = known[name]
            if meaning in asked.written:
                asked.fail(name, f"{name} and {asked.written[meaning]} mean the same; give one of them")
            asked.written[meaning] = name
            if option.value is not None:  # null leaves what there is without the option
                asked.values[meaning] = READ[meaning](asked, name, option.value)
        return asked

    def config(self, model: str) -> Config:
        """Return the hyper-parameters."""
        given = {name: self.values[name] for name in _CONFIG if name in self.values}
        try:
            config = Config(model=model, **given)
            if config.epochs == 0:  # a model that has learnt nothing may be wanted elsewhere; here it would be saved
                raise UsageError("epochs=0 is not a number of epochs; choose 1 or more")
            if config.patience is not None:
                EarlyStopping(config.patience, config.tolerance)
        except UsageError as error:
            raise self._translated(error) from None
        return config

    def reading(self, memory: str | int) -> Reading:
        """Return how rows are fetched."""
        given = {name: self.values[name] for name in _READING if name in self.values}
        most = Budget.parse(memory).bytes
        usual = Reading()
        return replace(usual, memory=usual.memory if most is None else min(most, usual.memory), **given)

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
            told = ColumnError.missing(wanted, present, place=PLACE, role=f"{name} column")
            raise ColumnError(self.placed(name, str(told)))
        return None

    def fail(self, name: str, told: str) -> NoReturn:
        """Raise, with the place of an option."""
        raise UsageError(self.placed(name, told))

    def refuse(self, name: str, value: Value, expected: str) -> NoReturn:
        """Raise for a value of the wrong kind."""
        self.fail(name, f"{name} = {_shown(value)} is not {expected}")

    def placed(self, name: str, told: str) -> str:
        """Return a message with the place of an option before it."""
        place = self.options[name].place if name in self.options else ""
        return f"{place}: {told}" if place else told

    def _translated(self, error: UsageError) -> UsageError:
        """Return an error that names our argument such that it names the option written."""
        told = str(error)
        match = re.match(r"(\w+)=", told)
        if match is None or match[1] not in self.written:
            return error
        meaning, name = match[1], self.written[match[1]]
        told = re.sub(rf"\b{meaning}(?==)|(?<=leave ){meaning}(?= out)", name, told)
        return type(error)(self.placed(name, told))


def _shown(value: Value) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


def _number(asked: Asked, name: str, value: Value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        asked.refuse(name, value, f"a number; write {name} = 0.1, without quotes")
    return float(value)


def _whole(asked: Asked, name: str, value: Value) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        asked.refuse(name, value, f"a whole number; write {name} = 10, without quotes")
    return int(value)


def _flag(asked: Asked, name: str, value: Value) -> bool:
    known = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
    found = value if isinstance(value, bool) else known.get(str(value).lower())
    if found is None:
        asked.refuse(name, value, "true or false")
    return found


def _text(asked: Asked, name: str, value: Value) -> str:
    if not isinstance(value, str) or not value:
        asked.refuse(name, value, f"a word or a string; write {name} = '…'")
    return value


def _word(asked: Asked, name: str, value: Value) -> str:
    return _text(asked, name, value).lower().replace("_", "-")


def _one_of(*valid: str) -> Callable[[Asked, str, Value], str]:
    def read(asked: Asked, name: str, value: Value) -> str:
        word = _text(asked, name, value).lower()
        if word not in valid:
            raise UnknownOptionError(asked.placed(name, str(UnknownOptionError.of(name, value, valid))))
        return word

    return read


def _column(asked: Asked, name: str, value: Value) -> str:
    return str(asked.column(name, _text(asked, name, value)))


def _several(asked: Asked, name: str, value: Value) -> list[str]:
    """Read names in a list, or in one string with commas; a column with a comma in its own name goes first."""
    if isinstance(value, str):
        commas = asked.column(name, value, fails=False) is None
        value = [part.strip() for part in value.split(",")] if commas else [value]
    if not isinstance(value, list) or not value:
        asked.refuse(name, value, f"a list of columns; write {name} = ['a', 'b']")
    return [_text(asked, name, each) for each in value]


def _column_list(asked: Asked, name: str, value: Value) -> list[str]:
    return list(dict.fromkeys(str(asked.column(name, each)) for each in _several(asked, name, value)))


def _hash(asked: Asked, name: str, value: Value) -> list[str]:
    specs = []
    for each in _several(asked, name, value):
        try:
            column = Hashed.parse(each).column
        except UsageError as error:
            asked.fail(name, str(error))
        specs.append(f"{asked.column(name, column)}{each[len(column) :]}")
    return specs


def _memory(asked: Asked, name: str, value: Value) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        asked.refuse(name, value, f"an amount of memory; write {name} = '512MB' or {name} = '10%'")
    return value


def _size(asked: Asked, name: str, value: Value) -> int:
    amount = _memory(asked, name, value)
    try:
        return parse_size(amount, option=name)
    except UsageError as error:
        asked.fail(name, str(error))


def _cache(asked: Asked, name: str, value: Value) -> bool | int:
    if isinstance(value, bool) or str(value).lower() in ("on", "off"):
        return _flag(asked, name, value)
    return _size(asked, name, value)


def _connections(asked: Asked, name: str, value: Value) -> int:
    count = _whole(asked, name, value)
    if count < 1:
        asked.refuse(name, value, "a number of connections; choose 1 or more")
    return count


_CONFIG: dict[str, Callable[[Asked, str, Value], Any]] = {
    **dict.fromkeys(("learning_rate", "decay", "power", "l1", "l2", "validation", "tolerance"), _number),
    **dict.fromkeys(("epochs", "batch_size", "seed", "patience"), _whole),
    **dict.fromkeys(("intercept", "standardize"), _flag),
    **dict.fromkeys(("rate", "shuffle", "solver"), _word),
    "memory": _memory,
}
_READING: dict[str, Callable[[Asked, str, Value], Any]] = {
    "block_size": _size,
    "nulls": _one_of("error", "skip"),
    "cache": _cache,
    "connections": _connections,
    "folder": _text,
}
READ: dict[str, Callable[[Asked, str, Value], Any]] = {
    **_CONFIG,
    **_READING,
    **dict.fromkeys(("label", "weight"), _column),
    **dict.fromkeys(("features", "exclude"), _column_list),
    "hash": _hash,
    **dict.fromkeys(("replace", "extension"), _flag),
    "to": _one_of("bytea", "vector"),
}
"""How the value of each option is read."""
