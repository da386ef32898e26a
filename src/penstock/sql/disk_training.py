"""``TRAIN BY`` of models whose numbers are in a directory: linear ones with ``model_dir``, and factorizations.

The work is that of `penstock.bigmodel`, over the rows as the engine gives them. With ``model_dir`` the model stays there, and the
catalogue refers to it; a factorization without is made in a temporary directory, and kept as its files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from penstock.bigmodel.disk_learner import disk_job
from penstock.bigmodel.factor_learner import FactorConfig, factor_job, useless_factors
from penstock.bigmodel.model import BigLinearModel
from penstock.bigmodel.ratings import Roles
from penstock.bigmodel.storage import MemorySplit, Storage
from penstock.blocks.base import BlockSource
from penstock.config import Config
from penstock.errors import UsageError
from penstock.events import Stream
from penstock.explanation.explanation import Explanation
from penstock.explanation.factorization import explain_factor
from penstock.explanation.model_on_disk import explain_model
from penstock.messages import Given, Text, joined
from penstock.metric_names import useless_reason
from penstock.model import Model
from penstock.model_kinds import open_model
from penstock.options import default
from penstock.outputs import require_folder
from penstock.sql.model_types import LearnedModel
from penstock.sql.option_values import OptionValues
from penstock.sql.options import Settings
from penstock.sql.result import Result
from penstock.sql.statements import Train
from penstock.sql.stored_files import Keeping


@dataclass(frozen=True, slots=True)
class DiskQueryLearner:
    """Learns a linear model whose weights are in pages of a directory.

    Attributes
    ----------
    folder : Path or None
        The directory; a temporary one, which goes, if None.
    memory : MemorySplit
        What rows and pages may occupy.
    """

    folder: Path | None
    config: Config
    storage: Storage
    memory: MemorySplit
    dimension: int | None = None

    @contextmanager
    def learn(self, source: BlockSource, chosen: Settings, *, stream: Stream) -> Iterator[LearnedModel]:
        """Learn in the directory from all rows."""
        with _directory(self.folder, chosen) as folder:
            disk_job(
                source,
                folder,
                self.config,
                self.storage,
                chosen.columns,
                dimension=self.dimension,
                memory=None if self.memory.total is None else str(self.memory.total),
                stream=stream,
            ).run()
            keeping = Keeping(folder, {} if self.memory.total is None else {"memory": self.memory.total})
            with BigLinearModel(folder, **keeping.options) as model:
                useless = None if self.config.class_weight else useless_reason(model.metrics)
                yield LearnedModel(model, epoch_figures(model), keeping, useless)

    def explain(self, source: BlockSource, chosen: Settings) -> Explanation:
        """Say what learning will take, by a sample of the rows."""
        return explain_model(
            source,
            self.folder or "a temporary directory",
            columns=chosen.columns,
            storage=self.storage,
            memory=self.memory.rows,
            model=self.config.model,
            dimension=self.dimension,
            seed=self.config.seed,
        )

    def trial(self) -> Self:
        """Return what learns the same in a temporary directory."""
        return replace(self, folder=None)


@dataclass(frozen=True, slots=True)
class FactorQueryLearner:
    """Learns a factorization of ratings; ``folder`` is the model's directory, or None to keep it in the catalogue."""

    folder: Path | None
    config: FactorConfig
    roles: Roles

    @contextmanager
    def learn(self, source: BlockSource, chosen: Settings, *, stream: Stream) -> Iterator[LearnedModel]:
        """Learn from all ratings."""
        with _directory(self.folder, chosen) as folder:
            learned = factor_job(source, folder, self.config, self.roles, stream=stream).run()
            useless = useless_factors(learned.header)
            with open_model(folder, kind="factor") as model:
                yield LearnedModel(model, epoch_figures(model), Keeping(self.folder), useless)

    def explain(self, source: BlockSource, chosen: Settings) -> Explanation:
        """Say what learning will take, by a sample of the ratings."""
        return explain_factor(source, self.folder or "a temporary directory", roles=self.roles, config=self.config)

    def trial(self) -> Self:
        """Return what learns the same in a temporary directory."""
        return replace(self, folder=None)


def disk_learner(options: OptionValues, train: Train) -> DiskQueryLearner:
    """Return what learns a linear model in a directory."""
    values = options.values
    usual = values.get("memory", default("memory", "disk"))
    if "model_memory" in values:
        memory = MemorySplit(values.get("memory", default("memory")), values["model_memory"])
    else:
        memory = MemorySplit.of(usual)
    config = replace(options.config(train.model), solver="sgd", memory=memory.rows)
    own = {name: values[name] for name in ("threads", "keep") if name in values}
    storage = Storage(model_memory=memory.model, optimizer=config.optimizer or "sgd", **own)
    return DiskQueryLearner(_folder(values), config, storage, memory, values.get("dimension"))


def factor_learner(options: OptionValues, train: Train) -> FactorQueryLearner:
    """Return what learns a factorization."""
    values = options.values
    missing = [name for name in ("user", "item", "rating") if name not in values]
    if missing:
        wanted = joined((Given(name, f"the column of {name}s") for name in missing), last=" and ")
        raise UsageError("a factorization learns from users, items and ratings", fixes=[Text("say ", wanted)])
    names = (each.name for each in fields(FactorConfig))
    config = FactorConfig(**{name: values[name] for name in names if name in values})
    return FactorQueryLearner(_folder(values), config, Roles(values["user"], values["item"], values["rating"]))


def epoch_figures(model: Model) -> Result:
    """Return a row of figures for each epoch of a model of any kind."""
    history = [{"epoch": at, **row} for at, row in enumerate(model.history, 1)]
    names = list(dict.fromkeys(["epoch", *(name for row in history for name in row)]))
    rows = [tuple(row.get(name) for name in names) for row in history]
    return Result(tuple(names), rows, status=f"TRAIN {history[-1].get('rows', 0) if history else 0}", steps=True)


def _folder(values: dict[str, Any]) -> Path | None:
    return require_folder(values["model_dir"]).absolute() if "model_dir" in values else None


@contextmanager
def _directory(folder: Path | None, chosen: Settings) -> Iterator[Path]:
    """Give the directory to learn in: that of the model, or a temporary one."""
    with ExitStack() as stack:
        if folder is None:
            place = chosen.reading.folder
            made = tempfile.TemporaryDirectory(
                prefix="penstock-model-", dir=None if place is None else os.fspath(place)
            )
            folder = Path(stack.enter_context(made), "model")
        yield folder
