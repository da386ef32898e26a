"""What learns in `benchmarks.training`: on a GPU the paper's kind of models, on a CPU small ones or a simulated step.

On a GPU: a recipe of RoBERTa-base's size (12 layers, 768 wide) and a residual network of 50 layers, in bfloat16. On
a CPU, which would be busy with such a model and leave the loader nothing to do, an accelerator is simulated: a step
takes so long, two may be under way, and the caller waits for the one before. The real small models are run as well.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from benchmarks.training_data import CLASSES, LENGTH, Batch

AHEAD = 2
"""Steps that may be under way at once: a GPU is given its next step before it has finished one."""


class Learner(Protocol):
    """Takes one step for each batch."""

    def learn(self, batch: Batch) -> None: ...

    def finish(self) -> float:
        """Wait for all steps; return the seconds that they took."""


class Simulated:
    """An accelerator that takes so many seconds for a step, whatever the batch."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._ends, self._busy = seconds, [0.0] * AHEAD, 0.0

    def learn(self, batch: Batch) -> None:
        _sleep_until(self._ends.pop(0))
        self._ends.append(max(self._ends[-1], time.perf_counter()) + self.seconds)
        self._busy += self.seconds

    def finish(self) -> float:
        _sleep_until(self._ends[-1])
        return self._busy


def _sleep_until(moment: float) -> None:
    wait = moment - time.perf_counter()
    if wait > 0:
        time.sleep(wait)


class Real:
    """A model that learns, on the CPU or a GPU."""

    def __init__(self, task: str, device: str, *, words: int) -> None:
        torch.manual_seed(0)
        self.task, self.device, self.gpu = task, torch.device(device), device != "cpu"
        if task == "tokens":
            self.model: Any = Recipe.sized(words, large=self.gpu).to(self.device)
        else:
            self.model = (residual() if self.gpu else small()).to(self.device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._busy = 0.0
        self._events: list[tuple[Any, Any]] = []

    def learn(self, batch: Batch) -> None:
        began = time.perf_counter()
        inputs, targets = (part.to(self.device, non_blocking=True) for part in batch)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self.gpu else []
        if events:
            events[0].record()
        with torch.autocast("cuda", torch.bfloat16) if self.gpu else contextlib.nullcontext():
            loss = self._loss(inputs, targets)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if events:
            events[1].record()
            self._events.append((events[0], events[1]))
            if len(self._events) > AHEAD:  # as a loop that logs its loss, a little late
                self._events[-1 - AHEAD][1].synchronize()
        else:
            self._busy += time.perf_counter() - began

    def _loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.task == "images":
            return functional.cross_entropy(self.model(inputs.contiguous(memory_format=torch.channels_last)), targets)
        inputs, targets = inputs[:, : self.model.length], targets[:, : self.model.length]
        told = targets != -100
        return functional.cross_entropy(self.model(inputs, told), targets[told])

    def finish(self) -> float:
        if self.gpu:
            torch.cuda.synchronize()
            self._busy = sum(start.elapsed_time(end) for start, end in self._events) / 1000
        return self._busy


class Recipe(nn.Module):
    """A transformer's recipe that tells the tokens hidden from it."""

    def __init__(self, words: int, *, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.recipe = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, words)
        self.out.weight = self.words.weight  # as RoBERTa has it

    @classmethod
    def sized(cls, words: int, *, large: bool) -> Recipe:
        if large:
            return cls(words, width=768, heads=12, layers=12, length=LENGTH)
        return cls(words, width=32, heads=1, layers=1, length=64)  # of each row: two cores are no GPU

    def forward(self, tokens: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.out(self.recipe(hidden)[told])  # type: ignore[no-any-return]  # modules give back anything


def small() -> nn.Module:
    """Return a network that two cores can train at hundreds of images a second."""
    layers: list[nn.Module] = [nn.AvgPool2d(4)]
    for inner, outer in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inner, outer, 3, 2, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


class Bottleneck(nn.Module):
    """Three convolutions, narrow in the middle, beside a short cut."""

    def __init__(self, inner: int, narrow: int, stride: int) -> None:
        super().__init__()
        outer = 4 * narrow
        self.way = nn.Sequential(
            *_convolve(inner, narrow, 1, 1),
            nn.ReLU(inplace=True),
            *_convolve(narrow, narrow, 3, stride),
            nn.ReLU(inplace=True),
            *_convolve(narrow, outer, 1, 1),
        )
        same = inner == outer and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(*_convolve(inner, outer, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.way(x) + self.short(x))


def _convolve(inner: int, outer: int, size: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer)]


def residual(depths: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Module:
    """Return a residual network: of 50 layers, or with (3, 8, 36, 3) of the paper's 152."""
    layers: list[nn.Module] = [*_convolve(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for stage, depth in enumerate(depths):
        for block in range(depth):
            layers.append(Bottleneck(inner, 64 << stage, 2 if stage and not block else 1))
            inner = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, CLASSES))


def learner(task: str, *, device: str, words: int, step: float | None) -> Learner:
    """Return a simulated step of so many seconds, or the real model where there is none."""
    return Real(task, device, words=words) if step is None else Simulated(step)
