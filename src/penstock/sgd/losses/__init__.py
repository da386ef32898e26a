"""The losses by name. To add one, write a file like `hinge`, and register it here or with ``LOSSES[loss.name] = loss``."""

from __future__ import annotations

from penstock.errors import UnknownOptionError, UsageError
from penstock.messages import Use
from penstock.sgd.losses.hinge import HINGE
from penstock.sgd.losses.logistic import LOGISTIC
from penstock.sgd.losses.record import Loss
from penstock.sgd.losses.softmax import SOFTMAX
from penstock.sgd.losses.squared import SQUARED

__all__ = [
    "HINGE",
    "LOGISTIC",
    "LOSSES",
    "SOFTMAX",
    "SQUARED",
    "Loss",
    "find_loss",
    "linear_models",
    "loss_of",
    "require_one_score",
]

LOSSES = {loss.name: loss for loss in (LOGISTIC, HINGE, SQUARED, SOFTMAX)}


def find_loss(name: str) -> Loss:
    """Return the loss of that name.

    Examples
    --------
    >>> find_loss("squared").metric
    'r2'
    """
    try:
        return LOSSES[name]
    except (KeyError, TypeError):
        raise UnknownOptionError.of("loss", name, LOSSES) from None


def linear_models() -> dict[str, Loss]:
    """Return the losses by the names of the linear models that minimize them."""
    return {loss.model: loss for loss in LOSSES.values()}


def loss_of(model: str) -> Loss:
    """Return the loss that a linear model of that name minimizes.

    Examples
    --------
    >>> loss_of("svm").name
    'hinge'
    """
    models = linear_models()
    try:
        return models[model]
    except (KeyError, TypeError):
        raise UnknownOptionError.of("model", model, models) from None


def require_one_score(loss: str | Loss) -> Loss:
    """Return the loss, or the one of that name, and refuse one that has a score for each class.

    Examples
    --------
    >>> require_one_score("squared").metric
    'r2'
    """
    found = find_loss(loss) if isinstance(loss, str) else loss
    if not isinstance(found, Loss):
        raise UnknownOptionError.of("loss", loss, LOSSES)
    if found.many:
        raise UsageError(
            "has a score for each class, and passes shared by many configs have one score for each",
            option="loss",
            value=found.name,
            fixes=[Use("solver", "sgd")],
        )
    return found
