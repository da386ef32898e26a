"""A saved model by its path, whatever its kind: a file, which is read whole, or a directory whose pages stay on disk."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import ModelFileError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.bigmodel.factor_model import FactorModel
    from penstock.blocks.base import BlockSource
    from penstock.linear import LinearModel

MEMORY = "512MB"
"""What rows, and the pages of a model on disk, may occupy where nothing else is said."""


@dataclass(frozen=True, slots=True)
class OpenModel:
    """What ``predict`` and ``evaluate`` ask of a model.

    Attributes
    ----------
    kind : str
        logistic, svm, linear, softmax or factor.
    shuffle : str or None
        The order in which it was learnt.
    history : sequence of mappings
        A row for each epoch.
    predict_to : callable
        Takes a source, a path, ``keep`` and ``stream``; writes a Parquet file and returns its rows.
    evaluate : callable
        Takes a source and ``label``; returns the scores.
    """

    kind: str
    shuffle: str | None
    history: Sequence[Mapping[str, Any]]
    predict_to: Callable[..., int]
    evaluate: Callable[..., dict[str, float]]


@contextmanager
def opened(path: str, *, memory: str | None = None, db: str | None = None) -> Iterator[OpenModel]:
    """Open a model, to be closed afterwards; ``memory`` is for rows and for the pages of a model on disk.

    With a database, ``path`` is the name of a model in its catalogue.

    Raises
    ------
    ModelFileError
        There is no model.
    """
    if db is not None:
        yield _in_memory(_from_database(path, db), memory or MEMORY)
        return
    if not Path(path).exists():
        raise ModelFileError(f"there is no model file at {path}; check the path, or train a model: penstock train")
    if not Path(path).is_dir():
        from penstock.linear import LinearModel

        yield _in_memory(LinearModel.load(path), memory or MEMORY)
        return
    from penstock.bigmodel.model import BigLinearModel, read_state

    if read_state(path)[1].get("bigmodel") == "factor":
        from penstock.bigmodel.factor_model import FactorModel

        yield _factor(FactorModel.load(path), memory or MEMORY)
        return
    with BigLinearModel(path, memory=memory or MEMORY) as big:
        yield OpenModel(big.kind, big.config.get("shuffle"), big.history, big.predict_to, big.evaluate)


def refuse_memory(path: str, memory: str | None) -> None:
    """Raise `UsageError` where memory is given for predictions of a model that is no directory."""
    if memory is not None and not Path(path).is_dir():
        raise UsageError(
            f"--memory is for models on disk; {path} is a file that is read whole, and rows are scored block by block:"
            " leave it out"
        )


def _from_database(name: str, db: str) -> LinearModel:
    from penstock.sql.session import Session, is_server

    with Session(db, read_only=not is_server(db)) as session:
        return session.catalog.load(name)


def _in_memory(model: LinearModel, memory: str) -> OpenModel:
    from penstock.evaluation import evaluate

    measure = partial(evaluate, model, memory=memory)
    return OpenModel(model.kind, model.config.get("shuffle"), model.history, model.predict_to, measure)


def _factor(model: FactorModel, memory: str) -> OpenModel:
    from penstock.budget import Budget
    from penstock.linear import write_predictions

    total = Budget.parse(memory).resolve(model.layout.nbytes)

    def predict_to(source: BlockSource, path: Path, *, keep: Sequence[str], stream: Any) -> int:
        return write_predictions(partial(_ratings, model, source, keep, total), source, path, stream=stream)

    def evaluate(source: BlockSource, *, label: str | None) -> dict[str, float]:
        roles = replace(model.roles, rating=label or model.roles.rating)
        found = model.evaluate(source, memory=total, roles=roles)
        return {"loss": found["rmse"] ** 2 / 2, **found}

    return OpenModel("factor", None, model.header["history"], predict_to, evaluate)


def _ratings(
    model: FactorModel, source: BlockSource, keep: Sequence[str], memory: int
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the ratings expected, in stored order, with the columns to keep beside them."""
    import pyarrow as pa

    from penstock.blocks.reading import require_columns

    require_columns(source.schema, keep, place=source.name)
    blocks = iter(range(len(source.block_rows) if keep else 0))
    held: list[pa.RecordBatch] = []
    with closing(model.predictions(source, memory=memory)) as found:  # type: ignore[type-var]  # it is a generator
        for scores in found:
            out: dict[str, Any] = {}
            if keep:
                while sum(map(len, held)) < len(scores):
                    held.append(source.read(next(blocks), list(keep)))
                rows = pa.concat_batches(held)
                held = [rows.slice(len(scores))]
                out = {name: rows.column(name).slice(0, len(scores)) for name in keep}
            yield pa.record_batch({**out, "prediction": pa.array(scores)})
