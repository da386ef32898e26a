"""A training job on paths: what one process can hand to another, and the figures that come of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from penstock.blocks.open import open as open_source
from penstock.budget import peak_memory
from penstock.config import Config
from penstock.events import Stream
from penstock.linear import LinearModel
from penstock.training import Columns, Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job on paths, which another process can be given.

    Examples
    --------
    >>> job = Job(data="clicks.parquet", config=Config(epochs=2), columns=Columns(label="clicked"))
    >>> Job.from_dict(job.to_dict()) == job
    True
    >>> round(job.run()["accuracy"], 1) >= 0.9
    True
    """

    data: str
    config: Config
    columns: Columns = field(default_factory=Columns)
    test: str | None = None
    format: str | None = None
    scratch: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def opened(self, stream: Stream | None = None, **more: Any) -> Iterator[Training]:
        """Open the data and give the training job; the files are closed afterwards."""
        with ExitStack() as stack:
            source = stack.enter_context(open_source(self.data, format=self.format, **self.options))
            test = None
            if self.test is not None:
                test = stack.enter_context(open_source(self.test, format=self.format, **self.options))
            yield Training(
                source, self.config, self.columns, test=test, scratch=self.scratch, stream=stream or Stream(), **more
            )

    def run(self, stream: Stream | None = None) -> dict[str, Any]:
        """Train and return the figures; the model itself is let go."""
        began = time.perf_counter()
        with self.opened(stream) as training:
            return figures(training, training.run(), seconds=time.perf_counter() - began)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Job:
        """Make the job again."""
        return cls(**{**given, "config": Config(**given["config"]), "columns": Columns(**given["columns"])})


def figures(training: Training, model: LinearModel, *, seconds: float) -> dict[str, Any]:
    """Return what a finished run is judged by, as plain data; NaN and infinities are None."""
    spent = training.prepare_seconds + sum(row["seconds"] for row in model.history)
    found: dict[str, Any] = {
        "model": model.kind,
        "shuffle": training.config.shuffle,
        "data": training.source.name,
        "label": model.encoder.label,
        "features": model.weights.width,
        "epochs": [dict(row) for row in model.history],
        **model.metrics,
        "seconds": seconds,
        "training_seconds": spent,
        "prepare_seconds": training.prepare_seconds,
        "extra_disk_bytes": training.extra_disk_bytes,
        "peak_memory_bytes": peak_memory(),
    }
    plain: dict[str, Any] = finite(found)
    return plain


def finite(value: Any) -> Any:
    """Return a value as strict JSON has it: no NaN, no infinity, no NumPy scalars.

    Examples
    --------
    >>> finite({"loss": float("nan"), "rows": np.int64(3)})
    {'loss': None, 'rows': 3}
    """
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
