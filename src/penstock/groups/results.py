"""What a search over groups gave: a table of results, the model chosen for each group, and predictions by group.

Of a group's configs the one with the least loss on rows held out is chosen, by the training loss where nothing was held
out, the first of equals; failed ones never are. Predictions stream block by block in the data's own order, each row by
its group's model; what rows of other groups get is said beforehand.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Batch, Csr, Floats
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder
from penstock.blocks.open import open as open_source
from penstock.blocks.reading import require_columns
from penstock.errors import (
    ColumnError,
    DataError,
    FeatureError,
    ModelFileError,
    UnknownOptionError,
    UsageError,
    nearest,
    some_of,
)
from penstock.events import Stream
from penstock.groups import timeline
from penstock.groups.index import INDEX, MEND
from penstock.groups.keys import Key, coded, kind_of, to_text
from penstock.groups.modules import ModuleModel, Modules
from penstock.groups.partitioned import partitioned
from penstock.groups.reading import encoded
from penstock.groups.registry import Registry
from penstock.groups.trees import Forest, TreeModel
from penstock.linear import LinearModel, decide, probabilities, write_predictions
from penstock.loader.decode import row_number
from penstock.lock import locked
from penstock.modelfile import atomic_path
from penstock.parallel import in_order
from penstock.sgd.model import Weights

UNSEEN = ("null", "error", "largest")
"""What rows get whose group has no model: no prediction, an error, or that of the model of the largest group."""
FAMILIES = ("linear", "trees", "modules")
_INNER = ("generation", "place")
_GATHERED = 32 << 20
"""Bytes of weights brought together at a time to score dense rows."""


class Result:
    """The models of all groups, with how they came out.

    Parameters
    ----------
    registry : Registry
        Where they are.
    owner : object, optional
        Whatever has to live as long, such as a temporary folder.
    model : Trainable, optional
        What was trained; modules cannot be rebuilt without.

    Examples
    --------
    >>> import tempfile
    >>> from penstock.blocks.features import choose
    >>> from penstock.groups.registry import Index, Outcome, Writer
    >>> rows = pa.table({"country": ["FR", "DE", "FR", "IT"], "x": [1.0, 2.0, 3.0, 4.0], "y": [0.0, 0.0, 0.0, 0.0]})
    >>> encoder = choose(rows.schema, label="y", exclude=["country"])
    >>> index = Index("linear", encoder.to_dict(), ("country",), ({"l2": 0.0},))
    >>> folder = tempfile.mkdtemp()
    >>> with Writer(folder, index, keys=rows.schema) as writer:
    ...     for group, key in enumerate(["DE", "FR"]):
    ...         weights = np.array([[10.0**group], [0.5]])
    ...         writer.add([Outcome(group=group, key=(key,), rows=2, loss=[0.1], weights=weights)])
    ...     writer.finish()
    >>> result = Result.open(folder)
    >>> result.predict(rows)["prediction"].to_pylist()
    [10.5, 2.5, 30.5, None]
    >>> result.best("FR").weights.coef
    array([[10.]], dtype=float32)
    """

    def __init__(self, registry: Registry, *, owner: object = None, model: Any = None) -> None:
        self.registry = registry
        self._owner = owner
        self._trainable = model

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, model: Any = None) -> Result:
        """Open a folder of models; see `Registry.open`."""
        return cls(Registry.open(folder), model=model)

    def __repr__(self) -> str:
        index = self.registry.index
        return (
            f"<Result of {len(self.groups):,} groups by {', '.join(index.by)}, {len(index.configs)} configs:"
            f" {len(self._chosen):,} groups with a model>"
        )

    @property
    def frame(self) -> pa.Table:
        """A row for each group × config: key, sizes, parameters, metrics, seconds, status. ``to_pandas()`` works."""
        return self.registry.table.drop_columns(list(_INNER))

    @property
    def timeline(self) -> pa.Table | None:
        """What workers did when: run, worker, begin, end, group, groups, what. None where nothing is known of it."""
        return timeline.read(self.registry.folder)

    @property
    def failed(self) -> pa.Table:
        """The rows of the frame that failed, with the reason."""
        return self.frame.filter(pc.equal(self.frame["status"], "failed"))

    @property
    def chosen(self) -> pa.Table:
        """The rows of the frame that were chosen, one for each group that has a model."""
        return self.frame.take(pa.array(self._chosen))

    @cached_property
    def groups(self) -> list[str]:
        """The text of every group's key, those without a model among them."""
        return list(dict.fromkeys(self.registry.table["text"].to_pylist()))

    def best(self, key: Any) -> Any:
        """Return the model chosen for a group, named by its text, ``"FR/ios"``, or its values, ``("FR", "ios")``."""
        text = self._text(key)
        if text not in self._models:
            raise UsageError(self.missing(text))
        return self._model(self._models[text])

    def model(self, key: Any, config: int) -> Any:
        """Return the model of any one config of a group."""
        text, table = self._text(key), self.registry.table
        if text not in self.groups:
            raise UsageError(self.missing(text))
        rows = np.flatnonzero(
            pc.and_(pc.equal(table["text"], text), pc.equal(table["config"], config)).to_numpy(zero_copy_only=False)
        )
        if not len(rows):
            raise UsageError(f"group {text} was not trained with config {config}; see the frame's column config")
        return self._model(int(rows[0]))

    def missing(self, text: str) -> str:
        """Say why a group has no model: it failed, or there is no such group."""
        table = self.registry.table
        reasons = table["reason"].filter(pc.equal(table["text"], text)).to_pylist()
        if reasons:
            why = next((reason for reason in reasons if reason), "none was kept")
            return f"group {text} has no model: {why}"
        return f"there is no group {text!r}; there are: {some_of(self.groups, 5)}{nearest(text, self.groups)}"

    def summary(self) -> dict[str, Any]:
        """Return the figures of all groups together: plain values, means weighted by the rows they are of."""
        frame, chosen, index = self.frame, self.chosen, self.registry.index
        told: dict[str, Any] = {
            "model": index.kind,
            "by": list(index.by),
            "finished": index.finished,
            "groups": len(self.groups),
            "groups_without_model": len(self.groups) - len(self._chosen),
            "configs": len(index.configs),
            "failed": len(self.failed),
            "rows": int(np.sum(_numbers(frame["rows"])[_firsts(_numbers(frame["group"]))])),
            "seconds": float(np.nansum(_numbers(frame["seconds"]))),
        }
        for name, weight in (("loss", "rows"), ("held_loss", "held_rows"), (index.score, "held_rows")):
            values, weights = _numbers(chosen[name]), _numbers(chosen[weight])
            there = np.isfinite(values) & (weights > 0)
            told[name] = float(np.average(values[there], weights=weights[there])) if there.any() else None
        counts = Counter(chosen["config"].to_pylist())
        told["chosen"] = [
            {"config": config, "params": dict(index.configs[config]), "groups": groups}
            for config, groups in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        ]
        return told

    def predict(
        self,
        data: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        keep: Sequence[str] = (),
        unseen: str = "null",
        stream: Stream | None = None,
    ) -> pa.Table | int:
        """Predict each row by the model of its group.

        Parameters
        ----------
        data : path, address, table or source
            Rows with the group columns and the features; group columns may stand in the path, ``country=FR/``.
        out : path, optional
            A Parquet file to write the predictions to as they are made.
        keep : list of str
            Columns to keep beside the predictions.
        unseen : str
            What rows get whose group has no model, because it was not there in training or failed: ``null``, no
            prediction; ``error``; ``largest``, the prediction of the largest group's model.

        Returns
        -------
        pyarrow.Table or int
            A row for each row of the data, in their order; or with ``out``, how many were written.
        """
        if unseen not in UNSEEN:
            raise UnknownOptionError.of("unseen", unseen, UNSEEN)
        with ExitStack() as stack:
            source: BlockSource = partitioned(data, self.registry.index.by) or open_source(data)
            if source is not data:
                stack.enter_context(source)
            make = partial(self.predictions, source, keep=keep, unseen=unseen)
            if out is not None:
                return write_predictions(make, source, out, stream=stream or Stream())
            batches = list(stack.enter_context(closing(make())))
        return pa.Table.from_batches(batches) if batches else pa.table({"prediction": pa.array([], pa.float32())})

    def predictions(
        self, source: BlockSource, *, keep: Sequence[str] = (), unseen: str = "null"
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield, block by block in stored order, the prediction of each row (and columns to keep beside it)."""
        self._require_known()
        index = self.registry.index
        if index.family == "modules":
            self._modules.require()
        for column in index.by:
            if column not in source.schema.names:
                raise ColumnError.missing(column, source.schema.names, place=source.name, role="group column")
        require_columns(source.schema, keep, place=source.name)
        kinds = [kind_of(source.schema.field(c).type, column=c, place=source.name) for c in index.by]
        encoder = self.encoder.for_schema(source.schema, place=source.name)
        columns = list(dict.fromkeys([*encoder.columns, *index.by, *keep]))
        other = self._largest() if unseen == "largest" else -1
        chosen, met = self._models, dict[Key, int]()

        def number(key: Key) -> int:
            # Most keys come in many blocks, and their text takes time; those without a model may be endless.
            row = met.get(key)
            if row is None:
                row = chosen.get(to_text(key), -1)
                if row >= 0:
                    met[key] = row
            return row if row >= 0 else other

        def score(block: int) -> pa.RecordBatch:
            rows = source.read(block, columns)
            codes, keys = coded([rows.column(column) for column in index.by], kinds)
            models = np.array([number(key) for key in keys], np.int64)[codes]
            if unseen == "error" and len(models) and models.min() < 0:
                at = int(np.argmin(models))
                raise DataError(
                    f"{source.name}: row {row_number(source, block, at)}: {self.missing(to_text(keys[codes[at]]))};"
                    " unseen='null' leaves such rows without a prediction"
                )
            batch = encoded(encoder, source, block, rows)
            if index.family == "trees":  # which know what to do with a NaN
                scores = self._forest.scores(batch, models)
            else:
                asked = np.flatnonzero(models >= 0)
                if found := encoder.nonfinite(batch if len(asked) == len(batch) else batch.take(asked)):
                    at = row_number(source, block, int(asked[found[0]]))
                    raise FeatureError(
                        f"{source.name}: {found[1]!r} is not a finite number in row {at}; fill such values"
                    )
                scores = (self._modules.scores if index.family == "modules" else self._scores)(batch, models)
            return self._predicted(scores, models < 0, rows, keep)

        return in_order(score, range(len(source.block_rows)), threads=source.threads)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Copy the models to another folder, which `open` reads."""
        target = Path(folder)
        if target.resolve() == self.registry.folder.resolve():
            return
        with locked(target, marks=(INDEX,)):
            if (target / INDEX).exists():
                raise UsageError(f"{target} holds models already; choose another folder")
            for path in self.registry.files():  # the index comes last: a copy cut short is no registry
                place = target / path.relative_to(self.registry.folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(place) as temporary:
                    shutil.copyfile(path, temporary)

    @cached_property
    def encoder(self) -> Encoder:
        """How columns become features."""
        folder = self.registry.folder
        try:
            encoder = Encoder.from_dict(dict(self.registry.index.encoder))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"the index in {folder} does not tell of features: {error!r}; {MEND}") from error
        if self.registry.index.family != "linear" or not len(self._chosen):
            return encoder
        width = len(self.registry.weights(int(self._chosen[0]))) - 1
        if encoder.width not in (None, width):
            raise ModelFileError(
                f"the models in {folder} have {width} features, the index tells of {encoder.width}; {MEND}"
            )
        return encoder if encoder.width == width else encoder.with_width(width)

    @cached_property
    def _chosen(self) -> NDArray[np.int64]:
        """The rows of the table that are chosen, by group."""
        table = self.registry.table
        usable = self.registry.has_model() & ~pc.equal(table["status"], "failed").to_numpy()
        return choose(
            _numbers(table["group"]), _numbers(table["loss"]), held_loss=_numbers(table["held_loss"]), usable=usable
        )

    @cached_property
    def _models(self) -> dict[str, int]:
        """The chosen row of each group that has one, by the group's text."""
        texts = self.registry.table["text"].take(pa.array(self._chosen)).to_pylist()
        return dict(zip(texts, self._chosen.tolist()))

    def _largest(self) -> int:
        if not len(self._chosen):
            raise UsageError(f"no group in {self.registry.folder} has a model; see the reasons in the frame")
        return int(self._chosen[np.argmax(_numbers(self.chosen["rows"]))])

    def _text(self, key: Any) -> str:
        return key if isinstance(key, str) else to_text(key if isinstance(key, tuple) else (key,))

    @cached_property
    def _forest(self) -> Forest:
        return Forest(self.registry)

    @cached_property
    def _modules(self) -> Modules:
        return Modules(self.registry, self.encoder, self._trainable)

    def _require_known(self) -> None:
        family = self.registry.index.family
        if family not in FAMILIES:
            raise UsageError(
                f"the models in {self.registry.folder} are {family}, which this version does not know; upgrade with:"
                " pip install -U penstock"
            )

    def _model(self, row: int) -> LinearModel | TreeModel | ModuleModel:
        self._require_known()
        index, table = self.registry.index, self.registry.table
        names = ("rows", "held_rows", "loss", "held_loss", index.score, "epochs")
        figures = {name: table[name][row].as_py() for name in names}
        params = {"model": index.kind, **index.fixed, **index.configs[table["config"][row].as_py()]}
        metrics = {"group": table["text"][row].as_py(), **{k: v for k, v in figures.items() if v is not None}}
        told: dict[str, Any] = {"fingerprint": index.fingerprint, "metrics": metrics}
        if index.family == "trees":
            return TreeModel(index.kind, self.registry.trees(row), self.encoder, params, **told)
        if index.family == "modules":
            return self._modules.model(row, params, **told)
        weights = np.array(self.registry.weights(row), np.float32)
        split = Weights(weights[None, :-1].copy(), weights[-1:].copy())
        return LinearModel(index.kind, split, self.encoder, params, **told)

    def _scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        """Return the score of each row by the model at its row of the table; zero where there is none."""
        out = np.zeros(len(batch), np.float32)
        seen = np.flatnonzero(models >= 0)
        if not len(seen):
            return out
        known, place = np.unique(models[seen], return_inverse=True)
        if isinstance(batch.x, Csr):
            rows = batch.x.take(seen)
            owner = np.repeat(np.arange(len(seen)), np.diff(rows.indptr).astype(np.int64))
            products = rows.values * self.registry.pick(models[seen][owner], rows.indices)
            last = np.full(len(seen), rows.width)
            sums = np.bincount(owner, products, len(seen)) + self.registry.pick(models[seen], last)
            out[seen] = sums
            return out
        step = max(1, _GATHERED // (4 * batch.width + 4))
        for first in range(0, len(known), step):
            here = np.flatnonzero((place >= first) & (place < first + step))
            weights = self.registry.gather(known[first : first + step])[place[here] - first]
            x = batch.x[seen[here]]
            out[seen[here]] = np.einsum("ij,ij->i", x, weights[:, :-1]) + weights[:, -1]
        return out

    def _predicted(
        self, scores: Floats, missing: NDArray[np.bool_], rows: pa.RecordBatch, keep: Sequence[str]
    ) -> pa.RecordBatch:
        kind, labels = self.registry.index.kind, self.encoder.labels
        made = {name: rows.column(name) for name in keep}
        made["prediction"] = pa.array(decide(kind, self.encoder, scores), mask=missing)
        chances = probabilities(kind, scores)
        if chances is not None and labels is not None:
            for place, name in enumerate(labels.classes):
                made[f"probability_{name}"] = pa.array(np.ascontiguousarray(chances[:, place]), mask=missing)
        return pa.record_batch(made)


def choose(
    group: NDArray[Any], loss: NDArray[Any], *, held_loss: NDArray[Any], usable: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the row chosen of each group, by group; rows are by group and config.

    Examples
    --------
    >>> loss, held = np.array([0.3, 0.2, 0.1, 0.5]), np.array([0.4, 0.4, np.nan, np.nan])
    >>> choose(np.array([0, 0, 0, 1]), loss, held_loss=held, usable=np.ones(4, bool)).tolist()
    [0, 3]
    """
    if not len(group):
        return np.empty(0, np.int64)
    firsts = _firsts(group)
    number = np.cumsum(np.isin(np.arange(len(group)), firsts)) - 1
    held_out = np.logical_or.reduceat(usable & np.isfinite(held_loss), firsts)[number]
    value = np.where(held_out, held_loss, loss)
    rows = np.flatnonzero(usable & np.isfinite(value))
    order = rows[np.lexsort([rows, value[rows], number[rows]])]
    return order[_firsts(number[order])]


def _firsts(group: NDArray[Any]) -> NDArray[np.int64]:
    """Return where each run of equal values begins."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(group)), bool), group[1:] != group[:-1]]))


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return a column of numbers, with NaN for what is missing."""
    numbers: NDArray[Any] = column.to_numpy()
    return numbers
