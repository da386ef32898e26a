"""The kinds of saved models: how each is recognized by its path, and what opens it.

`KINDS` is the registration table; a new kind is one line in it. `open_model` gives the `penstock.model.Model` at a path, and
`load` what users work with: the scikit-learn estimator of a model where there is one, else the model itself.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import UnknownOptionError, UsageError
from penstock.messages import LeaveOut, Name
from penstock.model import Model
from penstock.modelfile import is_group_folder, peek_header

_STATE = "state.penstock"
"""The file in a model's directory that says what is in it; `penstock.bigmodel.model` writes it."""


@dataclass(frozen=True, slots=True)
class ModelKind:
    """One kind of saved model.

    Attributes
    ----------
    noun : str
        What messages call such models, in the plural.
    matches : callable
        Whether a path is one of them.
    opener : str or callable
        ``opener(path, **options)`` returns the model. A text, ``"module:name"``, is imported when it is needed.
    options : tuple of str
        The options that the opener takes: ``memory`` (what pages and rows may occupy), ``model`` (what modules were trained
        by) or ``unseen`` (what rows get whose group has no model).
    estimator : str or callable, optional
        ``estimator(model, **options)`` returns what `load` gives to users in the model's place.
    training_files : tuple of str
        Files of a directory that only going on with its training needs, and a database does not keep.
    kept_options : callable
        ``kept_options(model)`` returns the options that a database is to open the model with again.
    """

    noun: str
    matches: Callable[[Path], bool]
    opener: str | Callable[..., Model]
    options: tuple[str, ...] = ()
    estimator: str | Callable[..., Any] | None = None
    training_files: tuple[str, ...] = ()
    kept_options: Callable[[Any], dict[str, Any]] = lambda model: {}

    @property
    def on_disk(self) -> bool:
        """Whether a model is a directory that its numbers stay in, and may be larger than memory."""
        return "memory" in self.options


def _directory_of(kind: str) -> Callable[[Path], bool]:
    return lambda path: peek_header(path / _STATE).get("bigmodel") == kind


def _is_lightgbm(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(5) in (b"tree\n", b"tree\r")


def _file_with(*names: str) -> Callable[[Path], bool]:
    return lambda path: set(names) <= peek_header(path).keys()


_LINEAR = ModelKind(
    "linear models in a file",
    _file_with("encoder", "features"),
    "penstock.linear:LinearModel.load",
    estimator="penstock.estimators.linear:fitted_estimator",
)
_DISK = ModelKind(
    "models on disk",
    _directory_of("linear"),
    "penstock.bigmodel.model:BigLinearModel",
    ("memory",),
    "penstock.bigmodel.estimators:estimator_of",
)
_FACTOR = ModelKind(
    "models on disk",
    _directory_of("factor"),
    "penstock.bigmodel.factor_model:FactorModel.load",
    ("memory",),
    "penstock.bigmodel.estimators:MatrixFactorization.of",
    training_files=("ratings.bin", "held.bin"),
)
_GROUPS = ModelKind(
    "folders of groups",
    is_group_folder,
    "penstock.groups.results:GroupModels.open",
    ("model", "unseen"),
    kept_options=lambda model: {"unseen": model.unseen},
)
_MODULE = ModelKind(
    "torch modules", _file_with("encoder", "params"), "penstock.groups.modules:ModuleModel.load", ("model",)
)

KINDS: dict[str, ModelKind] = {
    "linear": _LINEAR,
    "disk": _DISK,
    "factor": _FACTOR,
    "groups": _GROUPS,
    "trees": ModelKind("boosted trees", _is_lightgbm, "penstock.groups.families:TreeModel.load"),
    "module": _MODULE,
}
"""The kinds of saved models there are, by name."""


def kind_of(path: str | os.PathLike[str]) -> ModelKind:
    """Return the kind of model that lies at a path.

    What is of no kind is taken for a linear model or, if it is a folder, for a model on disk, whose opener says what is wrong.
    """
    place = Path(path)
    found = (kind for kind in KINDS.values() if kind.matches(place))
    return next(found, KINDS["disk" if place.is_dir() else "linear"])


def open_model(path: str | os.PathLike[str], *, kind: str | None = None, **options: Any) -> Model:
    """Open the model at a path.

    Parameters
    ----------
    path : path
        A file or a folder.
    kind : str, optional
        The kind it has to be, a name in `KINDS`; found out if not given.
    options
        See `ModelKind`; those that are None count as not given.

    Raises
    ------
    ModelFileError
        There is no such model, or it is damaged.
    UsageError
        An option is not for models of this kind.
    """
    if kind is not None and kind not in KINDS:
        raise UnknownOptionError.of("kind", kind, KINDS)
    found = kind_of(path) if kind is None else KINDS[kind]
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in found.options:
            takers = dict.fromkeys(each.noun for each in KINDS.values() if name in each.options)
            raise UsageError(
                Name(name),
                f" is for {' and '.join(takers)}; {path} is one of the {found.noun}",
                fixes=[LeaveOut(name)],
            )
    model: Model = _resolved(found.opener)(path, **given)
    return model


def load(path: str | os.PathLike[str], *, memory: str | int | None = None, model: Any = None) -> Any:
    """Open a saved model, whatever its kind.

    Parameters
    ----------
    path : path
        A file that ``save`` or ``penstock train`` wrote, a model's directory (``model_dir`` or ``--model-dir``), or a folder
        of the models of groups.
    memory : str or int, optional
        What measuring data may hold; of a directory, what rows and pages may hold when it predicts (``"1GB"`` if not
        given).
    model : TorchModel, optional
        Of torch modules: what they were trained by, since their code is in no file.

    Returns
    -------
    estimator, or `penstock.model.Model`
        Of linear models and factorizations the fitted estimator, whose ``model_`` is the model; its weights stay on disk if
        they lie in a directory. Of groups a `penstock.groups.GroupModels`; of trees and modules the model itself.

    Examples
    --------
    >>> import penstock
    >>> penstock.LinearSVM(epochs=2).fit("clicks.parquet", y="clicked").save("svm.penstock")
    >>> model = penstock.load("svm.penstock")
    >>> type(model).__name__, model.epochs, model.solver
    ('LinearSVM', 2, 'sgd')
    """
    kind = kind_of(path)
    if kind.estimator is None:
        return open_model(path, memory=memory, model=model)
    # An estimator in memory has a parameter of this name, though its model takes no such option.
    opened = open_model(path, memory=memory if "memory" in kind.options else None, model=model)
    return _resolved(kind.estimator)(opened, **({} if memory is None else {"memory": memory}))


def _resolved(named: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(named, str):
        return named
    module, _, name = named.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    resolved: Callable[..., Any] = found
    return resolved
