"""Training of models on disk, for ``penstock train --model-dir``: run the job, then say what lies in the directory.

Every epoch ends with a checkpoint in the directory itself, so there is nothing to save afterwards; ``--resume`` goes on
from the last one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from penstock.bigmodel.disk_learner import disk_job
from penstock.bigmodel.factor_learner import FactorConfig, factor_job, useless_factors
from penstock.bigmodel.model import Saved
from penstock.bigmodel.ratings import Roles
from penstock.bigmodel.storage import MemorySplit, Storage
from penstock.blocks.open import open as open_source
from penstock.budget import peak_memory, show_bytes, show_share
from penstock.cli import options as o
from penstock.cli.screen import Screen
from penstock.cli.train import job_of
from penstock.cli.wording import command_line
from penstock.errors import UsageError
from penstock.events import Epoch, Event, Started, Stream
from penstock.measure_lines import final_score, finished_lines, strict_json
from penstock.metric_names import useless_advice, useless_reason
from penstock.outputs import require_folder


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


def train_linear(params: Mapping[str, Any], given: Sequence[str]) -> None:
    """Train a linear model in its directory, and tell of it."""
    folder, resume = params["model_dir"], params["resume"]
    memory = o.memory_on_disk(params, given)
    asked = job_of(params, memory=memory.rows, solver="sgd" if params["solver"] == "auto" else params["solver"])
    require_folder(folder)
    clock = _Clock()
    with Screen(json=params["json"]) as screen, asked.sources() as (source, test):
        stream = Stream([lambda event: _note_memory(screen, event, memory), screen.listen, clock.listen])
        job = disk_job(
            source,
            folder,
            asked.config,
            Storage(model_memory=memory.model, threads=params["threads"]),
            asked.columns,
            test=test,
            test_share=asked.test_share,
            dimension=params["dimension"],
            memory=None if memory.total is None else str(memory.total),
            stream=stream,
        )
        trained = job.run(resume=resume)
        place, traffic = trained.folder, trained.traffic
        saved = Saved.read(place)
        history, layout = saved.header["history"], saved.layout
        touched = traffic["hits"] + traffic["misses"]
        _tell(
            screen,
            place,
            {
                "model": asked.config.model,
                "shuffle": asked.config.shuffle,
                "optimizer": saved.storage.optimizer,
                "data": source.name,
                "label": saved.header["encoder"]["label"],
                "features": layout.features,
                "dimension": layout.dimension,
                "hot_features": layout.hot,
                "epochs": history,
                **_scores(saved.header),
                **saved.header.get("metrics", {}),
                **clock.figures(history),
                "useless": useless_reason(saved.header.get("metrics", {})),
                "model_bytes": saved.storage.model_bytes(layout.features),
                "extra_disk_bytes": layout.rows_bytes + layout.map_bytes,
                "hit_rate": traffic["hits"] / touched if traffic["misses"] else None,
                "page_bytes_read": traffic["bytes_read"],
                "page_bytes_written": traffic["bytes_written"],
            },
            counted=f"{layout.features:,} features",
            idle=resume and not clock.epochs,
            keep_anyway=params["keep_anyway"],
        )


def train_factor(params: Mapping[str, Any], given: Sequence[str]) -> None:
    """Train a matrix factorization in its directory, and tell of it."""
    folder, resume = params["model_dir"], params["resume"]
    if params["solver"] not in ("auto", "sgd"):
        raise UsageError("--solver is not for a factor model: it learns by sgd; leave it out")
    values = {name: params[name] for name in FactorConfig.__dataclass_fields__ if name in given}
    if "model_memory" in given:
        values["memory"] = Storage(model_memory=params["model_memory"]).model_memory  # refused by this option's name
    config, roles = FactorConfig(**values), Roles(params["user"], params["item"], params["rating"])
    require_folder(folder)
    clock = _Clock()
    reading = {"format": params["format"], **o.reading(params["header"], params["delimiter"])}
    with ExitStack() as stack:
        screen = stack.enter_context(Screen(json=params["json"]))
        source = stack.enter_context(open_source(params["data"], **reading))
        test = None if params["test"] is None else stack.enter_context(open_source(params["test"], **reading))
        stream = Stream([screen.listen, clock.listen])
        model = factor_job(source, folder, config, roles, test=test, stream=stream).run(resume=resume)
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
                **_scores(model.header),
                **model.header.get("metrics", {}),
                **clock.figures(history),
                "useless": useless_factors(model.header),
                "model_bytes": layout.nbytes,
            },
            counted=f"{layout.users:,} users and {layout.items:,} items of rank {layout.rank}",
            idle=resume and not clock.epochs,
            keep_anyway=params["keep_anyway"],
        )


def _note_memory(screen: Screen, event: Event, memory: MemorySplit) -> None:
    """Say how one number for memory was split, once training starts."""
    if memory.total is not None and isinstance(event, Started) and event.task == "train":
        screen.note(str(memory))


def _scores(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the epoch is judged by whose weights the model has: the best, or the last."""
    history, best = header["history"], int(header.get("best_epoch", 0))
    row = history[(best or len(history)) - 1] if history else {}
    figures = {name: value for name, value in row.items() if name.startswith(("progressive_", "held_out_", "test_"))}
    return {"best_epoch": best or len(history), **figures}


def _tell(screen: Screen, place: Path, found: dict[str, Any], *, counted: str, idle: bool, keep_anyway: bool) -> None:
    disk = sum(file.stat().st_size for file in place.iterdir() if file.is_file())
    told = strict_json({**found, "disk_bytes": disk, "out": str(place)})
    screen.close()
    hits = "" if told.get("hit_rate") is None else f" hit rate {show_share(told['hit_rate'])},"
    done = f"nothing was left to do, {place} has had its {len(told['epochs'])} epochs" if idle else f"saved {place}"
    for line in finished_lines(told):
        screen.say(line)
    screen.say(
        f"{done}: {told['model']}, {counted}, {show_bytes(told['model_bytes'])} on disk, {final_score(told)},{hits}"
        f" {told['seconds']:.1f} s, peak memory {show_bytes(told['peak_memory_bytes'])}"
    )
    if told["useless"] is not None and not keep_anyway:
        screen.say(
            f"the model is useless: {told['useless']}; {useless_advice(told, told['label']).render(command_line())}, or accept it:"
            " --resume --keep-anyway"
        )
    screen.give(told)
    if told["useless"] is not None and not keep_anyway:
        raise typer.Exit(1)
