"""The code of torch modules: named as ``package:factory`` in a statement, and run again only where a session names it.

A model's row says which code its module was made by, but whoever writes a row must not choose what runs in the process of whoever
predicts: a session runs what it has trained by itself, or what it was opened with.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.batch import Floats
from penstock.errors import MissingExtraError, UsageError
from penstock.groups.modules import Maker
from penstock.groups.patterns.base import Trainable
from penstock.messages import Command, Text, Use


def module_trainable(name: str) -> Any:
    """Return the `penstock.torch.TorchModel` that ``package:factory`` names, or that the function of this name returns.

    Raises
    ------
    UsageError
        There is no such thing, or it is something else.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError.of("torch", "torch", "TRAIN BY torch")
    package, colon, attribute = name.partition(":")
    example = Text("write ", Use("module", "package:factory"))
    if not (package and colon and attribute):
        raise UsageError(
            "is not the name of a module and a function in it", option="module", value=name, fixes=[example]
        )
    try:
        found: Any = importlib.import_module(package)
    except ImportError as error:
        raise UsageError(
            f"cannot be imported ({error})", option="module", value=name, fixes=["put its folder on PYTHONPATH"]
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"names nothing: {package} has no {part!r}", option="module", value=name)
        found = getattr(found, part)
    made = found if _is_trainable(found) or not callable(found) else found()
    if not _is_trainable(made):
        raise UsageError(
            f"is of the type {type(made).__name__}, and no penstock.torch.TorchModel",
            option="module",
            value=name,
            fixes=["name a TorchModel, or a function without parameters that returns one"],
        )
    return made


def _is_trainable(found: Any) -> bool:
    return not isinstance(found, type) and isinstance(found, Trainable) and isinstance(found, Maker)


class NamedModules:
    """The code that a session may run, by name."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)

    def allow(self, name: str) -> None:
        """Let code run that the session itself has named."""
        self._names.add(name)

    def maker(self, name: str, *, place: str) -> Maker:
        """Return who makes modules by this code; where it may not run, the model can still be looked into."""
        if name not in self._names:
            return UnnamedCode(name, place)
        made: Maker = module_trainable(name)
        return made


@dataclass(frozen=True, slots=True)
class UnnamedCode:
    """Stands for code that is not run."""

    name: str
    place: str

    def module(self, config: Mapping[str, Any], arrays: Mapping[str, Any], scale: Any) -> NoReturn:
        """Refuse to make a module."""
        self._refuse()

    def scores(self, config: Mapping[str, Any], arrays: Mapping[str, Any], x: Any) -> Floats:
        """Refuse to score."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"{self.place} is a torch module made by the code of {self.name!r}, which a row of a database cannot have run",
            fixes=[
                Text(
                    f"if you trust it, name it: penstock.connect(…, modules=[{self.name!r}]), or ",
                    Command(("penstock", "sql"), {"module": self.name}),
                )
            ],
        )
