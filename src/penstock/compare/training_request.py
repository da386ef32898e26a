"""A training job on paths: what one process can hand to another, and the figures that come of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.blocks.open import open as open_source
from penstock.budget import parse_cache, peak_memory
from penstock.config import Config
from penstock.events import Stream
from penstock.linear import LinearModel
from penstock.measure_lines import strict_json
from penstock.memory_learner import LinearJob, linear_job
from penstock.training import Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """A training job on paths, which another process can be given.

    Examples
    --------
    >>> job = TrainingRequest(data="clicks.parquet", config=Config(epochs=2), columns=Columns(label="clicked"))
    >>> TrainingRequest.from_dict(job.to_dict()) == job
    True
    >>> round(job.run()["held_out_accuracy"], 1) >= 0.9
    True
    """

    data: str | list[str]
    config: Config
    columns: Columns = field(default_factory=Columns)
    test: str | None = None
    test_share: float = 0.0
    format: str | None = None
    scratch: str | None = None
    cache: bool | int | str = True
    options: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def opened(self, stream: Stream | None = None, **more: Any) -> Iterator[LinearJob]:
        """Open the data and give the training job; the files are closed afterwards."""
        with ExitStack() as stack:
            reading = {"format": self.format, "scratch": self.scratch, **self.options}
            source = stack.enter_context(open_source(self.data, **reading))
            test = None if self.test is None else stack.enter_context(open_source(self.test, **reading))
            yield linear_job(
                source,
                self.config,
                self.columns,
                test=test,
                test_share=self.test_share,
                scratch=self.scratch,
                cache=parse_cache(self.cache),
                stream=stream or Stream(),
                **more,
            )

    def run(self, stream: Stream | None = None) -> dict[str, Any]:
        """Train and return the figures; the model itself is let go."""
        began = time.perf_counter()
        with self.opened(stream) as training:
            return run_figures(training, training.run(), seconds=time.perf_counter() - began)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return asdict(self) | {"columns": self.columns.to_options()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> TrainingRequest:
        """Make the job again."""
        columns = Columns(**{name: value for name, value in plain["columns"].items() if value != []})
        return cls(**{**plain, "config": Config(**plain["config"]), "columns": columns})


def run_figures(training: LinearJob, model: LinearModel, *, seconds: float) -> dict[str, Any]:
    """Return what a finished run is judged by, as plain data; NaN and infinities are None."""
    spent = training.prepare_seconds + sum(row["seconds"] for row in model.history)
    figures: dict[str, Any] = {
        "model": model.kind,
        "shuffle": training.config.shuffle,
        "data": training.source.name,
        "label": model.recipe.label,
        "features": model.weights.width,
        "epochs": [dict(row) for row in model.history],
        **model.metrics,
        "seconds": seconds,
        "training_seconds": spent,
        "prepare_seconds": training.prepare_seconds,
        "scan_seconds": training.scan_seconds,
        "measure_seconds": training.measure_seconds,
        "extra_disk_bytes": training.extra_disk_bytes,
        "peak_memory_bytes": peak_memory(),
    }
    plain: dict[str, Any] = strict_json(figures)
    return plain
