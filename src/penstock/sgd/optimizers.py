"""The optimizers by name. To add one, write a file like `adam`, a twin for its kernels, and register it here."""

from __future__ import annotations

from penstock.errors import UnknownOptionError
from penstock.sgd.adagrad import ADAGRAD
from penstock.sgd.adam import ADAM
from penstock.sgd.ftrl import FTRL
from penstock.sgd.optimizer import Optimizer

ADAPTIVE = {each.name: each for each in (ADAGRAD, ADAM, FTRL)}
"""Those that keep something beside each weight."""
OPTIMIZERS = ("sgd", *ADAPTIVE)


def adaptive(name: str) -> Optimizer | None:
    """Return the optimizer of that name; None for plain SGD.

    Examples
    --------
    >>> adaptive("ftrl").cells, adaptive("sgd")
    (2, None)
    """
    if name not in OPTIMIZERS:
        raise UnknownOptionError.of("optimizer", name, OPTIMIZERS)
    return ADAPTIVE.get(name)
