"""Losses of a stack's scores: their sums for each config, and their slopes by each score.

Scores are ``(configs, rows)``, or ``(configs, rows, outputs)`` where a row has several. The mean of a batch is over its
rows, so that a row of weight 2 counts twice and one of weight 0 not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from penstock.errors import DataError, UnknownOptionError, UsageError
from penstock.messages import Text, Use
from penstock.sgd.losses import LOSSES

Doubles = NDArray[np.float64]
LossFunction = Callable[[Tensor, Tensor], Tensor]
KINDS = {name: LOSSES[name].model for name in ("logistic", "softmax", "squared")}
"""The losses there are by name, and what they make of labels."""
JUDGED = {kind: name for name, kind in KINDS.items()}
"""By which of the losses of `penstock.sgd.losses` the answers of each kind are judged."""


@dataclass(frozen=True, slots=True)
class ModuleLoss:
    """What is made small, and what labels are.

    Attributes
    ----------
    loss : str or callable
        logistic, softmax, squared (half of it), or a function of outputs and targets that returns their mean.
    kind : str
        logistic: targets are -1 and +1, and a row has one score; softmax: the number of a class, with a score for each;
        linear: numbers.

    Examples
    --------
    >>> loss = ModuleLoss.of("squared")
    >>> sums, slopes = loss(torch.tensor([[1.0, 2.0]]), torch.tensor([0.0, 2.0]), None)
    >>> sums, slopes
    (array([0.5]), tensor([[0.5000, 0.0000]]))
    """

    loss: str | LossFunction
    kind: str

    @classmethod
    def of(cls, loss: str | LossFunction, kind: str | None = None) -> ModuleLoss:
        """Check a loss; ``kind`` is for functions, which take numbers for targets unless it says otherwise."""
        if isinstance(loss, str):
            if loss not in KINDS:
                raise UnknownOptionError.of("loss", loss, KINDS)
            return cls(loss, KINDS[loss])
        if not callable(loss):
            raise UsageError(
                "is not a loss",
                option="loss",
                value=loss,
                fixes=[f"choose one of: {', '.join(KINDS)}", "give a function loss(output, y)"],
            )
        return cls(loss, kind or "linear")

    def targets(self, y: NDArray[np.float32]) -> Tensor:
        """Return targets as the loss takes them."""
        return torch.from_numpy(y.astype(np.int64) if self.kind == "softmax" else np.require(y, requirements="W"))

    def formed(self, outputs: Tensor) -> Tensor:
        """Return a stack of a module's outputs as scores: one a row where there is one."""
        return outputs.squeeze(2) if outputs.dim() == 3 and outputs.shape[2] == 1 else outputs

    def require(self, shape: tuple[int, ...], rows: int) -> None:
        """Raise `UsageError` unless the outputs that a module has for some rows are what the loss wants."""
        outputs = shape[1:] if shape[:1] == (rows,) else None
        single = outputs in ((), (1,))
        if outputs is None or (self.kind == "softmax" and (single or len(outputs) != 1)):
            wanted = "a score for each class, (rows, classes)" if self.kind == "softmax" else "one output for each row"
        elif isinstance(self.loss, str) and self.kind != "softmax" and not single:
            wanted = "one score for each row, (rows, 1)"
        else:
            return
        raise UsageError(
            f"of {rows} rows the module makes {shape}", fixes=[Text(Use("loss", self.loss), f" wants {wanted}")]
        )

    def __call__(self, scores: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Doubles, Tensor]:
        """Return the sum of the losses for each config, and the slope of the mean by each score."""
        rows = len(y)
        if not isinstance(self.loss, str):
            return self._own(scores, y, weight)
        share: Any = 1 / rows if weight is None else weight / rows
        if self.loss == "logistic":
            against = scores * -y
            losses, slopes = F.softplus(against), torch.sigmoid(against).mul_(-y * share)
        elif self.loss == "squared":
            slopes = scores - y
            losses = slopes.square().mul_(0.5)
            slopes = slopes.mul_(share)
        else:
            _require_classes(y, scores.shape[2])
            logs = F.log_softmax(scores, 2)
            at = y.expand(len(scores), -1).unsqueeze(2)
            losses = logs.gather(2, at).squeeze(2).neg_()
            slopes = logs.exp_().scatter_add_(2, at, torch.full((1, 1, 1), -1.0).expand(at.shape))
            slopes = slopes.mul_(share if weight is None else share.unsqueeze(1))
        if weight is not None:
            losses = losses * weight
        return losses.sum(1, dtype=torch.float64).numpy(), slopes

    def values(self, scores: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Doubles, Doubles]:
        """Return for each config the sum of the losses, and of right answers or of squared errors."""
        sums, _ = self(scores, y, weight)
        if self.kind == "softmax":
            right = (scores.argmax(2) == y).double()
        elif scores.dim() == 3:  # of several numbers a row there is no one error
            return sums, np.full(len(scores), np.nan)
        else:
            right = ((scores > 0) == (y > 0)).double() if self.kind == "logistic" else (scores - y).double().square()
        return sums, (right if weight is None else right * weight).sum(1).numpy()

    def _own(self, scores: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Doubles, Tensor]:
        assert not isinstance(self.loss, str)
        with torch.enable_grad():
            leaf = scores.detach().requires_grad_()
            means = [self._mean(output, y, weight) for output in leaf.unbind()]
            (slopes,) = torch.autograd.grad(means, [leaf], [torch.ones_like(mean) for mean in means])
        return torch.stack([mean.detach().double() for mean in means]).numpy() * len(y), slopes

    def _mean(self, output: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        assert not isinstance(self.loss, str)
        if weight is None:
            mean = self.loss(output, y)
        else:
            # A mean knows no weights; those of single rows can be weighed.
            one = torch.vmap(lambda row, target: self.loss(row.unsqueeze(0), target.unsqueeze(0)))  # type: ignore[operator]  # no word here
            mean = (one(output, y) * weight).sum() / len(y)
        if not isinstance(mean, Tensor) or mean.shape != ():
            raise UsageError(f"the loss returned {mean!r}; it has to return the mean over rows, one number as a tensor")
        if not mean.requires_grad:
            raise UsageError("the loss does not hang on the outputs, or not so that torch could follow it")
        return mean


def _require_classes(y: Tensor, outputs: int) -> None:
    least, most = int(y.min()), int(y.max())
    if least < 0 or most >= outputs:
        raise DataError(
            f"there is a class number {most if most >= outputs else least}, and the module has {outputs} outputs"
        )
