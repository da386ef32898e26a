"""A statement's wording of errors and warnings: ``memory='1GB'`` is ``WITH (memory = '1GB')`` here.

An option that was written under another of its names keeps that name, and an error about it gets its place in the script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.messages import PYTHON, UNSET, Location
from penstock.sql.statements import StatementOptions


@dataclass(frozen=True, slots=True)
class StatementWording:
    """Options as a statement has them; what is no option of statements is written as in Python.

    Attributes
    ----------
    known : frozenset of str
        The options that statements have, by their names in Python.
    written : mapping
        The names under which options were written, by their names in Python.
    places : mapping
        Where they were written.
    warehouse : bool
        Whether options stand after ``OPTIONS``, and not after ``WITH``.

    Examples
    --------
    >>> words = StatementWording(frozenset({"memory", "exclude", "standardize"}), written={"memory": "buffer_size"})
    >>> words.given("memory", "1kB"), words.use("exclude", ["a", "b"]), words.use("model", "linear")
    ("buffer_size = '1kB'", "WITH (exclude = ['a', 'b'])", 'TRAIN BY linear')
    >>> words.given("standardize", True), words.name("memory"), words.use("resume", True)
    ('standardize = true', 'buffer_size', 'resume=True')
    """

    known: frozenset[str]
    written: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Location] = field(default_factory=dict)
    warehouse: bool = False

    @classmethod
    def of(cls, options: StatementOptions, known: Mapping[str, str], *, warehouse: bool = False) -> StatementWording:
        """Return the wording of a statement with these options; ``known`` has for each name what it means."""
        meanings = {name: known.get(name, name) for name in options}
        places = {meanings[name]: option.place for name, option in options.items() if option.place is not None}
        written = {meaning: name for name, meaning in meanings.items()}
        return cls(frozenset(known.values()), written, places, warehouse)

    def given(self, option: str, value: object) -> str:
        """Return ``name = value``."""
        if option not in self.known:
            return PYTHON.given(option, value)
        return self.name(option) if value is UNSET else f"{self.name(option)} = {sql_value(value)}"

    def use(self, option: str, value: object) -> str:
        """Return the clause that sets the option."""
        if option == "model":
            return "TRAIN BY" if value is UNSET else f"TRAIN BY {value}"
        if option not in self.known:
            return PYTHON.use(option, value)
        assigned = f"{self.name(option)} = {'…' if value is UNSET else sql_value(value)}"
        return f"OPTIONS({assigned})" if self.warehouse else f"WITH ({assigned})"

    def name(self, option: str) -> str:
        """Return the name that was written, or the option's own."""
        return self.written.get(option, option)


def sql_value(value: object) -> str:
    """Write a value as a statement's options have it; a list of one may be written as that one.

    Examples
    --------
    >>> sql_value("it's"), sql_value(True), sql_value(None), sql_value({"yes": 5})
    ("'it''s'", 'true', 'null', "[('yes', 5)]")
    """
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, Mapping):
        return f"[{', '.join(f'({sql_value(key)}, {sql_value(each)})' for key, each in value.items())}]"
    if isinstance(value, list | tuple):
        return sql_value(value[0]) if len(value) == 1 else f"[{', '.join(map(sql_value, value))}]"
    return repr(value)


@contextmanager
def in_words_of(wording: StatementWording) -> Iterator[None]:
    """Let errors that leave the block speak in the words of a statement, with the place of the option they are about."""
    try:
        yield
    except PenstockError as error:
        if error.wording is PYTHON:
            error.wording = wording
            if error.place is None and error.option is not None:
                error.place = wording.places.get(error.option)
        raise
