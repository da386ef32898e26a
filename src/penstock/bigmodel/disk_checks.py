"""What a model on disk can be: kinds, options that it has not, and its declared dimension."""

from __future__ import annotations

from penstock.bigmodel.storage import Storage
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.config import Config
from penstock.errors import UsageError
from penstock.messages import Given, Name, Text, TextPart, Use
from penstock.training import Columns

KINDS = ("logistic", "svm", "linear")


def require_possible(config: Config, storage: Storage) -> None:
    """Raise for a kind or an option that models on disk do not have."""

    def refused(option: str, *reason: TextPart, fixes: list[TextPart]) -> UsageError:
        value = storage.threads if option == "threads" else getattr(config, option)
        return UsageError(*reason, option=option, value=value, fixes=fixes)

    if config.model not in KINDS:
        fix = Text("leave out ", Name("model_dir"), " to train it in memory")
        reason = f"a {config.model} model cannot live on disk"
        raise UsageError(reason, fixes=[f"choose one of: {', '.join(KINDS)}", fix])
    if config.full_passes:
        reason = "is not there for models on disk, which learn by sgd or adagrad"
        raise refused("solver", reason, fixes=["leave it out", "train in memory"])
    if config.l1 > 0:
        raise refused("l1", "is not there for models on disk", fixes=[Text("use ", Name("l2")), "train in memory"])
    if storage.optimizer == "adagrad" and config.batch_size != 1:
        raise refused("batch_size", ": AdaGrad makes an update after every row", fixes=["use 1"])
    if storage.threads > 1 and config.batch_size != 1:
        reason = ": several threads learn where every row is an update"
        given = Given("batch_size", config.batch_size)
        raise refused("threads", "with ", given, reason, fixes=[Use("batch_size", 1), Use("threads", 1)])


def encoder_of_dimension(columns: Columns, source: BlockSource, dimension: int | None) -> Encoder:
    """Return what is to be made of the columns, of the dimension declared.

    Raises
    ------
    UsageError
        The columns make another number of features.
    """
    encoder = columns.labelled_encoder(source, wide=True)
    if dimension is None:
        return encoder
    fixed = sum(part.width or 0 for part in encoder.parts if part.kind != "pairs")
    if encoder.parts[-1].kind != "pairs" and dimension != fixed:
        reason = f": these columns make {fixed} features"
        raise UsageError(reason, option="dimension", value=dimension, fixes=["leave it out"])
    if dimension <= fixed:
        reason = f"is too few: other columns make {fixed} features" if fixed else "is not a number of features"
        raise UsageError(reason, option="dimension", value=dimension, fixes=[f"choose {fixed + 1} or more"])
    return encoder.with_width(dimension)
