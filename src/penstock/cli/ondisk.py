"""Training of models on disk, for ``penstock train --model-dir``: run the job, then say what lies in the directory.

Every epoch ends with a checkpoint in the directory itself, so there is nothing to save afterwards; ``--resume`` goes on
from the last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.bigmodel.factor_training import FactorConfig, FactorTraining
from penstock.bigmodel.model import STATE, Saved
from penstock.bigmodel.ratings import Roles
from penstock.bigmodel.storage import Storage
from penstock.bigmodel.training import BigTraining
from penstock.blocks.base import BlockSource
from penstock.blocks.open import open as open_source
from penstock.budget import peak_memory, show_bytes, show_share
from penstock.cli.screen import Screen, final_score
from penstock.compare import finite
from penstock.config import Config
from penstock.events import Epoch, Event, Started, Stream
from penstock.training import Columns


@dataclass(frozen=True, slots=True)
class Inputs:
    """The data to train on and to test with, as they were named."""

    data: str
    test: str | None = None
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def opened(self) -> Iterator[tuple[BlockSource, BlockSource | None]]:
        """Open both; they are closed afterwards."""
        with ExitStack() as stack:
            found = [
                None if each is None else stack.enter_context(open_source(each, format=self.format, **self.options))
                for each in (self.data, self.test)
            ]
            assert found[0] is not None
            yield found[0], found[1]


@dataclass(slots=True)
class _Clock:
    """When the work began, when learning did, and how many epochs it had."""

    began: float = field(default_factory=time.perf_counter)
    learning: float | None = None
    epochs: int = 0

    def listen(self, event: Event) -> None:
        if isinstance(event, Started) and event.task == "train":
            self.learning = time.perf_counter()
        self.epochs += isinstance(event, Epoch)

    def figures(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        now = time.perf_counter()
        return {
            "seconds": now - self.began,
            "training_seconds": sum(row["seconds"] for row in history),
            "prepare_seconds": (self.learning or now) - self.began,
            "peak_memory_bytes": peak_memory(),
        }


def train_linear(
    inputs: Inputs,
    folder: str,
    *,
    config: Config,
    columns: Columns,
    storage: Storage,
    dimension: int | None,
    resume: bool,
    json: bool,
) -> None:
    """Train a linear model in its directory, and tell of it."""
    clock = _Clock()
    with Screen(json=json) as screen, inputs.opened() as (source, test):
        _say_if_new(screen, folder, resume)
        stream = Stream([screen.listen, clock.listen])
        job = BigTraining(source, folder, config, storage, columns, test=test, dimension=dimension, stream=stream)
        place = job.run(resume=resume)
        saved = Saved.read(place)
        history, layout = saved.header["history"], saved.layout
        touched = job.hits + job.misses
        _tell(
            screen,
            place,
            {
                "model": config.model,
                "shuffle": config.shuffle,
                "optimizer": storage.optimizer,
                "data": source.name,
                "label": saved.header["encoder"]["label"],
                "features": layout.features,
                "dimension": layout.dimension,
                "hot_features": layout.hot,
                "epochs": history,
                **_scores(history),
                **clock.figures(history),
                "model_bytes": saved.storage.model_bytes(layout.features),
                "extra_disk_bytes": layout.rows_bytes + layout.map_bytes,
                "hit_rate": job.hits / touched if job.misses else None,
                "page_bytes_read": job.page_bytes_read,
                "page_bytes_written": job.page_bytes_written,
            },
            counted=f"{layout.features:,} features",
            idle=resume and not clock.epochs,
        )


def train_factor(inputs: Inputs, folder: str, *, config: FactorConfig, roles: Roles, resume: bool, json: bool) -> None:
    """Train a matrix factorisation in its directory, and tell of it."""
    clock = _Clock()
    with Screen(json=json) as screen, inputs.opened() as (source, test):
        _say_if_new(screen, folder, resume)
        stream = Stream([screen.listen, clock.listen])
        model = FactorTraining(source, folder, config, roles, test=test, stream=stream).run(resume=resume)
        history, layout = list(model.header["history"]), model.layout
        _tell(
            screen,
            Path(folder),
            {
                "model": "factor",
                "data": source.name,
                "label": roles.rating,
                "users": layout.users,
                "items": layout.items,
                "rank": layout.rank,
                "epochs": history,
                **_scores(history),
                **clock.figures(history),
                "model_bytes": layout.nbytes,
            },
            counted=f"{layout.users:,} users and {layout.items:,} items of rank {layout.rank}",
            idle=resume and not clock.epochs,
        )


def _say_if_new(screen: Screen, folder: str, resume: bool) -> None:
    if resume and not (Path(folder) / STATE).exists():
        screen.note(f"there is no checkpoint in {folder}; training starts from the beginning")


def _scores(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the last epoch is judged by: the weights on disk are its."""
    last = history[-1] if history else {}
    kept = ("loss", "accuracy", "r2", "rmse")
    return {name: value for name, value in last.items() if name in kept or name.startswith("test_")}


def _tell(screen: Screen, place: Path, found: dict[str, Any], *, counted: str, idle: bool) -> None:
    disk = sum(file.stat().st_size for file in place.iterdir() if file.is_file())
    told = finite({**found, "disk_bytes": disk, "out": str(place)})
    screen.close()
    hits = "" if told.get("hit_rate") is None else f" hit rate {show_share(told['hit_rate'])},"
    done = f"nothing was left to do, {place} has had its {len(told['epochs'])} epochs" if idle else f"saved {place}"
    screen.say(
        f"{done}: {told['model']}, {counted}, {show_bytes(told['model_bytes'])} on disk, {final_score(told)},{hits}"
        f" {told['seconds']:.1f} s, peak memory {show_bytes(told['peak_memory_bytes'])}"
    )
    screen.give(told)
