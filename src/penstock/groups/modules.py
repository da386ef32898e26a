"""Modules that were trained for groups: one to look into and ask, and those of many groups to predict rows by.

A model is a row of numbers, and the index tells which arrays these are. To ask one takes the code that it was made by, which
is in no file: whoever trained it, or gives the same `penstock.torch.TorchModel` to `GroupModels.open`, has it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.columns.recipe import Recipe
from penstock.errors import ModelFileError, UsageError
from penstock.groups.index import MEND
from penstock.groups.registry import Registry, by_model
from penstock.groups.scale import Scale
from penstock.linear import EncodedModel
from penstock.model import Description
from penstock.modelfile import read_model, write_model
from penstock.sgd.losses import LOSSES

SCALE = ("features/mean", "features/spread")
"""The arrays that features are brought to scale by before a module sees them, where they are."""
Arrays = dict[str, NDArray[Any]]
_KEPT_FIELDS = ("kind", "params", "config", "fingerprint", "metrics")
"""What a saved model says of itself, beside its arrays and its recipe."""
_KEPT = 256
"""Models whose numbers are kept apart, ready to be asked."""
_END = np.finfo(np.float32).max
"""Stands for what is infinite in a module, such as what masks are filled with: numbers are only kept if finite."""


@runtime_checkable
class Maker(Protocol):
    """Whoever has the code of modules, such as `penstock.torch.TorchModel`."""

    def module(self, config: Mapping[str, Any], arrays: Arrays, scale: tuple[Floats, Floats] | None) -> Any:
        """Return the module of a config with these numbers, which brings features to scale itself if there is one."""

    def scores(self, config: Mapping[str, Any], arrays: Arrays, x: Any) -> Floats:
        """Return the scores of rows, brought to scale already."""


def finite(values: NDArray[Any]) -> Floats:
    """Return numbers with the largest there are for those that are infinite."""
    clipped: Floats = np.clip(values, -_END, _END).astype(np.float32)
    return clipped


def config_arrays(layout: Sequence[Any], config: int, numbers: Floats) -> Arrays:
    """Part a model's row of numbers into the arrays of a config's layout.

    Examples
    --------
    >>> config_arrays([["weight", [1, 2], "float32"], ["steps", [], "int64"]], 0, np.array([1, 2, 7], np.float32))
    {'weight': array([[1., 2.]], dtype=float32), 'steps': array(7)}
    """
    if layout and isinstance(layout[0], Mapping):  # configs have different modules
        layout = next(each["arrays"] for each in layout if config in each["configs"])
    wanted = sum(math.prod(shape) for _, shape, _ in layout)
    if wanted > len(numbers):
        raise ModelFileError(f"a model has {len(numbers)} numbers, and its layout {wanted}; {MEND}")
    found, start = {}, 0
    for name, shape, dtype in layout:
        size = math.prod(shape)
        values = numbers[start : start + size].reshape(shape)
        values = np.where(np.abs(values) == _END, np.copysign(np.float32(np.inf), values), values)
        # NumPy has not all types that torch has; what it has not stays as it is kept.
        found[name] = values.astype(dtype) if dtype in np.sctypeDict else values
        start += size
    return found


@dataclass(frozen=True, slots=True)
class ModuleModel(EncodedModel):
    """A module of one group.

    The other attributes are those of `penstock.linear.LinearModel`.

    Attributes
    ----------
    arrays : dict
        All of its arrays.
    params : dict
        What was searched, which the module was made for.
    maker : Maker, optional
        Who has its code.
    """

    kind: str
    arrays: Arrays = field(repr=False)
    recipe: Recipe
    params: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    maker: Maker | None = None
    fingerprint: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    word: ClassVar[str] = "torch"

    @property
    def known_loss(self) -> bool:
        return self.config.get("loss") in LOSSES

    @property
    def scale(self) -> tuple[Floats, Floats] | None:
        """Mean and spread that features are brought to scale by first; None where they are taken as they are."""
        return (self.arrays[SCALE[0]], self.arrays[SCALE[1]]) if SCALE[0] in self.arrays else None

    def state_dict(self) -> Arrays:
        """Return the module's numbers by name, as its own ``state_dict`` does, in arrays."""
        return {name: values for name, values in self.arrays.items() if name not in SCALE}

    def module(self) -> Any:
        """Return the module, ready to be asked; the first thing in it brings features to scale, if that is needed."""
        return require_maker(self.maker).module(self.params, self.state_dict(), self.scale)

    def scores(self, batch: Batch) -> Floats:
        maker, x = require_maker(self.maker), batch.x
        if self.scale is not None:
            mean, spread = (array.astype(np.float64) for array in self.scale)
            x = Scale(mean, spread).rows(x)
        return maker.scores(self.params, self.state_dict(), x)

    def describe(self, *, most: int | None = None) -> Description:
        """Say what is in the model: its measures, and the shapes of its arrays."""
        shapes = {name: list(array.shape) for name, array in self.arrays.items()}
        numbers = sum(array.size for array in self.arrays.values())
        wide = max(map(len, (*shapes, "array")))
        shown = [f"{name:<{wide}}  {' × '.join(map(str, shape))}" for name, shape in islice(shapes.items(), most)]
        rest = [f"and {len(shapes) - len(shown):,} more"] if len(shown) < len(shapes) else []
        values = {"features": self.recipe.width, "params": self.params, "numbers": numbers, "arrays": shapes}
        lines = ("", f"{'array':<{wide}}  shape", *shown, *rest)
        return Description.of(self, f"a module of {numbers:,} numbers", values=values, lines=lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the arrays as a safetensors file, which ``safetensors.torch.load_file`` and `penstock.load` read."""
        kept = {name: getattr(self, name) for name in _KEPT_FIELDS}
        write_model(path, self.arrays, kept | {"encoder": self.recipe.to_dict()})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: Any = None) -> ModuleModel:
        """Read a model that `save` wrote; ``model`` is what it was trained by, without which it can only be looked into."""
        arrays, header = read_model(path)
        try:
            kept = {name: header.get(name, "") for name in _KEPT_FIELDS}
            return cls(
                arrays=arrays,
                recipe=Recipe.from_dict(header["encoder"]),
                maker=model if isinstance(model, Maker) else None,
                **kept,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{path} is not a module of a group: {error!r}; {MEND}") from error


class Modules:
    """The models of a folder, to look into or to score rows of many groups by."""

    takes_nan = False
    word = ModuleModel.word

    def __init__(self, registry: Registry, recipe: Recipe, maker: Any) -> None:
        self._registry, self._recipe = registry, recipe
        self._maker = maker if isinstance(maker, Maker) else None
        self._ask = lru_cache(_KEPT)(self.model)

    def model(self, row: int, config: Mapping[str, Any] | None = None, **told: Any) -> ModuleModel:
        index = self._registry.index
        number = int(self._registry.table["config"][row].as_py())
        arrays = config_arrays(index.layout, number, self._registry.weights(row))
        return ModuleModel(index.kind, arrays, self._recipe, index.configs[number], config or {}, self._maker, **told)

    def scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        return by_model(self._registry.index, batch, models, lambda model, rows: self._ask(model).scores(rows))

    def require(self) -> None:
        """Raise `UsageError` where there is nobody to ask modules of."""
        require_maker(self._maker)


def require_maker(maker: Maker | None) -> Maker:
    """Return who has the code of modules, or raise `UsageError` saying how to name it."""
    if maker is None:
        raise UsageError(
            "the code of these modules is not in their folder; give what they were trained by:"
            " GroupModels.open(folder, model=TorchModel(model_creator, optimizer_creator, …))"
        )
    return maker
