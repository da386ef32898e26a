"""Which configs to try for every group: a grid, or so many drawn by chance; from a dict, a TOML file or JSON.

A `Search` says names and values only. `Search.choices` holds them against what a model takes, and counts the configs
out as a numbered list, the same on every machine. It refuses names that no parameter has, values of another type or
out of range, values given twice, and searches too large to be meant.
"""

from __future__ import annotations

import itertools
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from penstock import seeds
from penstock.errors import SourceError, SourceNotFoundError, UnknownOptionError, UsageError
from penstock.messages import Given, Text, TextPart, Use
from penstock.options import Option, options_of

MOST = 10_000
"""More configs than this for each group are taken for a mistake."""
KINDS = ("grid", "random")
SCALES = ("int", "log", "log-int", "uniform")


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a parameter of a model may be.

    Attributes
    ----------
    kind : str
        number, int, bool, word, or any.
    least, most : float
        The range of a number.
    above : bool
        Whether ``least`` itself is too little.
    words : tuple of str
        The words there are; any if empty.

    Examples
    --------
    >>> Parameter("number", least=0).check("l2", 1)
    1.0
    >>> Parameter("number", least=0).check("l2", -1)
    Traceback (most recent call last):
    penstock.errors.UsageError: l2=-1 is out of range; choose a number of at least 0
    """

    kind: str = "any"
    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    words: tuple[str, ...] = ()

    @classmethod
    def of_option(cls, option: Option) -> Parameter:
        """Return what an option of the option table may be."""
        kind = {"whole": "int", "number": "number", "flag": "bool"}[option.kind]
        return cls(kind, least=option.least, most=option.most, above=option.above)

    @classmethod
    def of(cls, known: Any) -> Parameter:
        """Take a check as it is, or tell one from a default value: of its type, of any range."""
        if isinstance(known, Parameter):
            return known
        types = ((bool, "bool"), (int, "int"), (float, "number"), (str, "word"))
        return cls(next((kind for type_, kind in types if isinstance(known, type_)), "any"))

    def check(self, name: str, value: Any) -> Any:
        """Return a value as the parameter wants it, or raise `UsageError` saying what it should be."""
        value = json_value(name, value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "number": number,
            "int": number and float(value).is_integer(),
            "bool": isinstance(value, bool),
            "word": isinstance(value, str),
        }.get(self.kind, True)
        if not fits:
            raise UsageError("is of the wrong type", option=name, value=value, fixes=[f"choose {self._told()}"])
        if self.words and value not in self.words:
            raise UnknownOptionError.of(name, value, self.words)
        if number and (not self.least <= value <= self.most or (self.above and value == self.least)):
            raise UsageError("is out of range", option=name, value=value, fixes=[f"choose {self._told()}"])
        return {"number": float, "int": int}.get(self.kind, lambda same: same)(value)

    def _told(self) -> str:
        what = {"number": "a number", "int": "a whole number", "bool": "true or false", "word": "a word"}
        least = f"above {self.least:g}" if self.above else f"of at least {self.least:g}"
        limits = [least] if self.least > -math.inf else []
        limits += [f"{'and' if limits else 'of'} at most {self.most:g}"] if self.most < math.inf else []
        return " ".join([what.get(self.kind, "a value"), *limits])


LINEAR: Mapping[str, Parameter] = MappingProxyType(
    {name: Parameter.of_option(option) for name, option in options_of("search").items()}
)
"""What can be searched of the linear models."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One config: its number in the search, and its parameters."""

    number: int
    params: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = {name: f"{value:g}" if isinstance(value, float) else value for name, value in self.params.items()}
        return ", ".join(f"{name}={value}" for name, value in shown.items())


@dataclass(frozen=True, slots=True)
class Range:
    """Values between two ends, both of them possible: drawn evenly, evenly in their logarithm, or whole numbers."""

    scale: str
    low: float
    high: float

    @classmethod
    def read(cls, name: str, given: Any) -> Range | None:
        """Read ``("log", 0.001, 1)``; None for anything that is a list of values."""
        if isinstance(given, Range):
            return given
        if not isinstance(given, list | tuple) or len(given) != 3 or not isinstance(given[0], str):
            return None
        if any(isinstance(end, str | bool) for end in given[1:]):
            return None
        scale, low, high = given[0], json_value(name, given[1]), json_value(name, given[2])
        if scale not in SCALES:
            raise UnknownOptionError.of(f"the scale of {name}", scale, SCALES)
        if low >= high:
            raise UsageError(f"{name} goes from {low!r} to {high!r}, which is no range; give the lower end first")
        if scale.startswith("log") and low <= 0:
            raise UsageError(f"{name} goes from {low!r}, which has no logarithm; start above 0, or use 'uniform'")
        if scale.endswith("int") and not (float(low).is_integer() and float(high).is_integer()):
            raise UsageError(f"{name} goes from {low!r} to {high!r}; the ends of a range of whole numbers are whole")
        return cls(scale, low, high)

    @property
    def count(self) -> float:
        """How many values there are."""
        return self.high - self.low + 1 if self.scale.endswith("int") else math.inf

    def draw(self, rng: np.random.Generator) -> float | int:
        if self.scale == "int":
            return int(rng.integers(int(self.low), int(self.high), endpoint=True))
        if self.scale == "uniform":
            return float(min(max(rng.uniform(self.low, self.high), self.low), self.high))
        # Half a step out at both ends, so that the first and the last whole number have their share.
        out = 0.5 if self.scale == "log-int" else 0.0
        value = math.exp(rng.uniform(math.log(self.low - out), math.log(self.high + out)))
        value = float(min(max(value, self.low), self.high))
        return value if self.scale == "log" else round(value)


@dataclass(frozen=True, slots=True)
class Search:
    """The configs to try, before they are counted out.

    Attributes
    ----------
    kind : str
        grid or random.
    ranges : tuple of (name, values or Range)
        Each parameter with its values.
    count, seed : int
        Of a random search.

    Examples
    --------
    >>> search = Search.grid({"learning_rate": [1, 0.1], "l2": [0, 0.01]})
    >>> [str(choice) for choice in search.choices(LINEAR)][:3]
    ['learning_rate=1, l2=0', 'learning_rate=1, l2=0.01', 'learning_rate=0.1, l2=0']
    >>> some = Search.random({"l2": ("log", 1e-5, 1), "epochs": ("int", 5, 20)}, count=4).choices(LINEAR)
    >>> len(some), all(1e-5 <= choice.params["l2"] <= 1 for choice in some)
    (4, True)
    >>> Search.grid({"learning_rat": [1]}).choices(LINEAR)
    Traceback (most recent call last):
    penstock.errors.UnknownOptionError: search='learning_rat' is not known; choose one of: epochs, l1, l2, learning_rate,
    tolerance (did you mean 'learning_rate'?)
    """

    kind: str
    ranges: tuple[tuple[str, tuple[Any, ...] | Range], ...]
    count: int = 0
    seed: int = 0

    @classmethod
    def grid(cls, values: Mapping[str, Iterable[Any]]) -> Search:
        """Try every combination. Parameters vary in the order given, the last one fastest; none at all is one config."""
        for name, given in values.items():
            if Range.read(name, given) is not None:
                raise UsageError(
                    "is a range",
                    option=name,
                    value=given,
                    fixes=["a grid wants a list of values: use Search.random for it, or a table [random]"],
                )
        return cls("grid", tuple((name, _listed(name, given)) for name, given in values.items()))

    @classmethod
    def random(cls, ranges: Mapping[str, Any], *, count: int, seed: int = 0) -> Search:
        """Draw so many different configs.

        Parameters
        ----------
        ranges : mapping
            A list of values, or a scale with its two ends: ``("uniform", 0, 1)``, ``("log", 1e-3, 1)``,
            ``("int", 5, 20)``, ``("log-int", 1, 1000)``.
        count, seed : int
            How many, and of which chance. A longer search begins with the configs of a shorter one.
        """
        for option, value, least in (("count", count, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise UsageError(
                    f"of a random search must be a whole number of at least {least}", option=option, value=value
                )
        read = tuple((name, Range.read(name, given) or _listed(name, given)) for name, given in ranges.items())
        return cls("random", read, int(count), int(seed))

    @classmethod
    def of(cls, given: Any) -> Search:
        """Take a search, a dict of lists (a grid), what `to_dict` gave, the path of a TOML file, or None (one config)."""
        if isinstance(given, Search):
            return given
        if given is None:
            return cls.grid({})
        if isinstance(given, str | os.PathLike):
            return cls.from_toml(given)
        if not isinstance(given, Mapping):
            raise UsageError(
                "is not a search",
                option="search",
                value=given,
                fixes=["give a dict such as {'l2': [0.1, 0.01]}, a TOML file or a Search"],
            )
        if set(given) & set(KINDS) and all(isinstance(table, Mapping) for table in given.values()):
            return cls.from_dict(given)
        return cls.grid(given)

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any], *, place: str = "the search") -> Search:
        """Build a search from ``{"grid": {name: values}}`` or ``{"random": {"count": 20, "seed": 0, name: range}}``."""
        if len(tables) != 1 or next(iter(tables)) not in KINDS or not isinstance(next(iter(tables.values())), Mapping):
            raise UsageError(
                f"{place} has {', '.join(map(repr, tables)) or 'nothing'}; it needs one table, [grid] or [random]"
            )
        ((kind, table),) = tables.items()
        try:
            if kind == "grid":
                return cls.grid(table)
            if "count" not in table:
                raise UsageError("a random search needs a count of configs, such as count = 20")
            rest = {name: given for name, given in table.items() if name not in ("count", "seed")}
            if isinstance(rest.get("ranges"), Mapping):
                rest |= rest.pop("ranges")
            return cls.random(rest, count=table["count"], seed=table.get("seed", 0))
        except UsageError as error:
            raise error.replace(place=place) from None

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Search:
        """Read a TOML file that has a table [grid] of lists, or [random] with count, seed and ranges."""
        name = os.fspath(path)
        try:
            with open(path, "rb") as file:
                tables = tomllib.load(file)
        except FileNotFoundError:
            raise SourceNotFoundError(f"there is no search file at {name}; write one with a table [grid]") from None
        except OSError as error:
            raise SourceError(f"cannot read the search file {name}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{name} is not TOML: {error}; write lines such as l2 = [0.1, 0.01] under [grid]"
            ) from None
        return cls.from_dict(tables, place=name)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON, which `from_dict` and `of` read."""
        table = {
            name: [values.scale, values.low, values.high] if isinstance(values, Range) else list(values)
            for name, values in self.ranges
        }
        if self.kind == "grid":
            return {"grid": table}
        return {"random": {"count": self.count, "seed": self.seed, "ranges": table}}

    def choices(self, known: Mapping[str, Any] | None = None) -> list[Choice]:
        """Count the configs out.

        Parameters
        ----------
        known : mapping, optional
            What the model takes: each name with a `Parameter`, or with a default whose type its values have. Nothing
            is checked if not given.
        """
        ranges = self.ranges if known is None else self._checked(known)
        sizes = [values.count if isinstance(values, Range) else len(values) for _, values in ranges]
        there_are, wanted = math.prod(sizes), self.count if self.kind == "random" else math.prod(sizes)
        if wanted > MOST:
            asked: TextPart = Text(Given("count", self.count), " asks for")
            if self.kind == "grid":
                asked = " × ".join(f"{int(size):,} {name}" for size, (name, _) in zip(sizes, ranges)) + " are"
            raise UsageError(
                asked,
                f" {int(wanted):,} configs for each group, more than {MOST:,}",
                fixes=["give fewer values", "draw some of them with Search.random, or a table [random]"],
            )
        if wanted > there_are:
            raise UsageError(
                f", but there are only {int(there_are)} different configs",
                option="count",
                value=self.count,
                fixes=["ask for fewer", "use a grid"],
            )
        names = [name for name, _ in ranges]
        if self.kind == "grid":
            rows: Iterable[tuple[Any, ...]] = itertools.product(*(values for _, values in ranges))  # type: ignore[arg-type]  # a grid has no Range
        else:
            rows = self._drawn(ranges)
        return [Choice(number, dict(zip(names, row))) for number, row in enumerate(rows)]

    def _drawn(self, ranges: Sequence[tuple[str, tuple[Any, ...] | Range]]) -> Iterable[tuple[Any, ...]]:
        # A generator for each parameter: another parameter in the search leaves the values of these as they were.
        rngs = [seeds.generator(self.seed, "search", name) for name, _ in ranges]
        found: dict[tuple[Any, ...], None] = {}
        while len(found) < self.count:
            row = (
                values.draw(rng) if isinstance(values, Range) else values[int(rng.integers(len(values)))]
                for rng, (_, values) in zip(rngs, ranges)
            )
            found.setdefault(tuple(row))
        return found

    def _checked(self, known: Mapping[str, Any]) -> tuple[tuple[str, tuple[Any, ...] | Range], ...]:
        checked: list[tuple[str, tuple[Any, ...] | Range]] = []
        for name, values in self.ranges:
            if name not in known:
                raise UnknownOptionError.of("search", name, known)
            parameter = Parameter.of(known[name])
            if not isinstance(values, Range):
                checked.append((name, _distinct(name, [parameter.check(name, value) for value in values])))
                continue
            if parameter.kind == "int" and not values.scale.endswith("int"):
                raise UsageError(f"{name} is a whole number; draw it from ('int', {values.low:g}, {values.high:g})")
            checked.append((name, values))
            for end in (values.low, values.high):
                parameter.check(name, end)
        return tuple(checked)


def json_value(name: str, value: Any) -> Any:
    """Return a value as plain JSON can hold it; lists, nothing at all and what is not finite are refused."""
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, bool | int | float | str):
        raise UsageError(
            "is not one value of a parameter",
            option=name,
            value=value,
            fixes=["give numbers, words, or true and false"],
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError("is not a finite number", option=name, value=value, fixes=["leave it out"])
    return value


def _listed(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise UsageError(
            "is not a list of values", option=name, value=given, fixes=[Text("write ", Use(name, [given]))]
        )
    values = [json_value(name, value) for value in given]
    if not values:
        raise UsageError(f"{name} has no values to try; give at least one, or leave it out of the search")
    return _distinct(name, values)


def _distinct(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    seen: set[tuple[bool, Any]] = set()
    for value in values:
        if (isinstance(value, bool), value) in seen:
            raise UsageError(f"{name} lists {value!r} twice; give each value once")
        seen.add((isinstance(value, bool), value))
    return tuple(values)
