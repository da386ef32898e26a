"""What a search over groups gave: a table of results, the model chosen for each group, and predictions by group.

Of a group's configs the one with the least loss on the rows to choose by is chosen, by the training loss where there are
none, the first of equals; failed ones never are. How it does on rows that no choice has seen is told beside it. Predictions stream block by block in the data's own order, each row by
its group's model; what rows of other groups get is said beforehand.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.batch import Batch, Floats
from penstock.blocks.base import BlockSource, require_columns, row_place
from penstock.closing import Closing
from penstock.columns.base import UnseenValues
from penstock.columns.recipe import Recipe
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
from penstock.groups.evaluation import summarize
from penstock.groups.families import Family, family_of
from penstock.groups.index import INDEX, MEND, read_tables
from penstock.groups.keys import Key, coded, key_type, to_text
from penstock.groups.partitioned import open_partitioned
from penstock.groups.registry import POOLED, Registry
from penstock.groups.split import choose, numbers
from penstock.linear import EncodedModel, encoded, predicted
from penstock.lock import locked
from penstock.measures import OnScores
from penstock.messages import Text, Use
from penstock.model import Description, write_predictions
from penstock.outputs import atomic_path, require_file
from penstock.parallel import in_order
from penstock.sgd.losses import LOSSES

UNSEEN = ("null", "error", "largest", "pooled")
"""What rows get whose group has no model: no prediction, an error, or that of the largest group's model or of the pooled one."""
_INNER = ("generation", "place")


class GroupModels(Closing):
    """The models of all groups, with how they came out.

    Parameters
    ----------
    registry : Registry
        Where they are.
    owner : object, optional
        Whatever has to live as long, such as a temporary folder.
    model : Trainable, optional
        What was trained; modules cannot be rebuilt without.
    refits : bool
        Whether the pooled model is the one that has learned from all rows, as those of a registry are unless it was opened
        without; judging wants the others.
    unseen : str
        What rows get whose group has no model, because it was not there in training or failed: ``null``, no prediction;
        ``error``; ``largest``, the prediction of the largest group's model; ``pooled``, that of the model of all groups.
    pooled : GroupModels, optional
        The model that was trained on the rows of all groups, where it does not lie in the registry's folder.

    Examples
    --------
    >>> import tempfile
    >>> from penstock.columns.choose import choose_features
    >>> from penstock.groups.registry import Index, Outcome, Writer
    >>> rows = pa.table({"country": ["FR", "DE", "FR", "IT"], "x": [1.0, 2.0, 3.0, 4.0], "y": [0.0, 0.0, 0.0, 0.0]})
    >>> recipe = choose_features(rows.schema, label="y", exclude=["country"])
    >>> index = Index("linear", recipe.to_dict(), ("country",), ({"l2": 0.0},))
    >>> folder = tempfile.mkdtemp()
    >>> with Writer(folder, index, keys=rows.schema) as writer:
    ...     for group, key in enumerate(["DE", "FR"]):
    ...         weights = np.array([[10.0**group], [0.5]])
    ...         writer.add([Outcome(group=group, key=(key,), rows=2, loss=[0.1], weights=weights)])
    ...     writer.finish()
    >>> result = GroupModels.open(folder)
    >>> result.predict(rows)["prediction"].to_pylist()
    [10.5, 2.5, 30.5, None]
    >>> result.best("FR").weights.coef
    array([[10.]], dtype=float32)
    """

    linear: None = None
    """It is many models; `best` has each."""
    history: Sequence[Mapping[str, Any]] = ()

    def __init__(
        self,
        registry: Registry,
        *,
        owner: object = None,
        model: Any = None,
        unseen: str = "null",
        refits: bool = True,
        pooled: GroupModels | None = None,
    ) -> None:
        if unseen not in UNSEEN:
            raise UnknownOptionError.of("unseen", unseen, UNSEEN)
        self.registry = registry
        self.unseen = unseen
        self._owner = owner
        self._trainable = model
        self._refits = refits
        self._other = pooled

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, model: Any = None, unseen: str = "null") -> GroupModels:
        """Open a folder of models; see `Registry.open`."""
        return cls(Registry.open(folder), model=model, unseen=unseen)

    @property
    def kind(self) -> str:
        """The kind of the groups' models: logistic, svm, linear or softmax; of trees, what they were trained for."""
        return self.registry.index.kind

    @property
    def word(self) -> str:
        """What SQL calls such models after TRAIN BY."""
        return self._family.word or self.kind

    @property
    def label(self) -> str | None:
        """The column that they predict."""
        return self.registry.index.label

    @property
    def classes(self) -> NDArray[Any] | None:
        """The class labels in ascending order; None for a regression."""
        classes = self.registry.index.classes
        return None if classes is None else np.array(classes)

    @property
    def metric(self) -> str:
        """The accuracy of classes, the R² of a regression."""
        return self.registry.index.metric

    @property
    def by(self) -> tuple[str, ...]:
        """The columns that say which group a row is of."""
        return self.registry.index.by

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that predictions are made of: those of features, and those to group by."""
        return tuple(dict.fromkeys([*replace(self.recipe, label=None, weight=None).columns, *self.by]))

    @property
    def config(self) -> Mapping[str, Any]:
        """The hyper-parameters that all configs share."""
        return {"model": self.kind, **self.registry.index.fixed}

    @property
    def metrics(self) -> Mapping[str, Any]:
        """How the chosen models, and the pooled one, did on the held-out rows of all groups together."""
        return self.registry.index.held_out

    @property
    def fingerprint(self) -> str:
        """That of the data they were trained on."""
        return self.registry.index.fingerprint

    @property
    def finished(self) -> bool:
        """Whether training came to its end; if not, groups may lack their models."""
        return self.registry.index.finished

    @property
    def known_loss(self) -> bool:
        """Whether the loss is one of Penstock's, rather than a function of the user's."""
        index = self.registry.index
        return index.family != "modules" or index.fixed.get("loss") in LOSSES

    def __repr__(self) -> str:
        index = self.registry.index
        return (
            f"<GroupModels of {len(self.groups):,} groups by {', '.join(index.by)}, {len(index.configs)} configs:"
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

    @cached_property
    def pooled(self) -> GroupModels | None:
        """The model that was trained on the rows of all groups, as the only group of a result; None where there is none."""
        if self._other is not None:
            return self._other
        folder = self.registry.folder / POOLED
        if not (folder / INDEX).is_file() or not read_tables(folder)[0]:
            return None
        return GroupModels(Registry.open(folder, refit=self._refits), model=self._trainable)

    def summary(self) -> dict[str, Any]:
        """Return the figures of all groups together: plain values.

        Those of ``held_out`` are of rows that no choice has seen, each row counting by its weight whatever its group, and
        None while training is not finished or where nothing was held out; ``pooled`` has those of one model for all groups
        on the same rows. The others are means weighted by the rows they are of.
        """
        return summarize(self)

    def predict(
        self,
        data: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        keep: Sequence[str] = (),
        unseen: str | None = None,
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
        unseen : str, optional
            What rows get whose group has no model; that of the result if not given.

        Returns
        -------
        pyarrow.Table or int
            A row for each row of the data, in their order; or with ``out``, how many were written.
        """
        asked = self if unseen in (None, self.unseen) else self.answering(str(unseen))
        if out is not None:
            require_file(out)
        with ExitStack() as stack:
            source = stack.enter_context(open_partitioned(data, self.by))
            if out is not None:
                unseen_values = UnseenValues()
                count = write_predictions(asked.counting(unseen_values), source, out, keep=keep, stream=stream)
                unseen_values.warn(out)
                return count
            batches = list(stack.enter_context(closing(asked.predictions(source, keep=keep))))
        return pa.Table.from_batches(batches) if batches else pa.table({"prediction": pa.array([], pa.float32())})

    def counting(self, unseen: UnseenValues) -> GroupModels:
        """Return the same models, which count values that training did not see in the rows that they score."""
        models = copy.copy(self)
        models.recipe = replace(self.recipe, unseen=unseen)
        models.__dict__.pop("_family", None)  # it knows the recipe
        if self.unseen == "pooled" and self.pooled is not None:
            models._other = self.pooled.counting(unseen)
        return models

    def answering(self, unseen: str) -> GroupModels:
        """Return the same models with another answer to rows whose group has none; see ``unseen``."""
        return GroupModels(
            self.registry,
            owner=self._owner,
            model=self._trainable,
            unseen=unseen,
            refits=self._refits,
            pooled=self._other,
        )

    def predictions(self, source: BlockSource, *, keep: Sequence[str] = ()) -> Generator[pa.RecordBatch, None, None]:
        """Yield, block by block in stored order, the prediction of each row, after the columns to keep."""
        require_columns(source.schema, keep, place=source.name)
        recipe = self.recipe.for_schema(source.schema, place=source.name)
        with closing(self.scored(source, recipe, keep=keep, unseen=self.unseen)) as blocks:
            for rows, _, scores, models in blocks:
                yield predicted(self.kind, self.recipe, scores, rows, keep, missing=models < 0)

    def evaluate(
        self,
        data: Any,
        *,
        label: str | None = None,
        memory: str | int = "512MB",
        on_scores: OnScores | None = None,
    ) -> dict[str, Any]:
        """Measure the models on labelled rows, each by its group's model; see `penstock.groups.evaluation.evaluate_groups`.

        Values that training did not see are counted in the log, unless somebody else counts them.
        """
        from penstock.groups.evaluation import evaluate_groups

        unseen = UnseenValues()
        asked = self.counting(unseen) if self.recipe.unseen is None else self
        with open_partitioned(data, self.by) as source:
            found = evaluate_groups(asked, source, label=label, memory=memory, on_scores=on_scores)
            unseen.warn(source.name)
        return found

    def describe(self, *, most: int | None = None) -> Description:
        """Say how the models came out: figures of all groups, and the config chosen for each, the largest groups first."""
        from penstock.groups.tables import describe_groups

        return describe_groups(self, most=most)

    def score(self, data: Any, *, label: str | None = None) -> float:
        """Return the accuracy, or for regressions the R², over labelled rows, each answered by its group's model."""
        return float(self.evaluate(data, label=label)[self.registry.index.metric])

    def scored(
        self, source: BlockSource, recipe: Recipe, *, keep: Sequence[str] = (), unseen: str = "null"
    ) -> Generator[tuple[pa.RecordBatch, Batch, Floats, NDArray[np.int64]], None, None]:
        """Yield, block by block in stored order, the rows, encoded, their scores, and the models by which they have them.

        A model is a row of the registry's table, one behind the last for the pooled model, and -1 where there is none.
        """
        index, family = self.registry.index, self._family
        family.require()
        for column in index.by:
            if column not in source.schema.names:
                raise ColumnError.missing(column, source.schema.names, place=source.name, role="group column")
        kinds = [key_type(source.schema.field(c).type, column=c, place=source.name) for c in index.by]
        columns = list(dict.fromkeys([*recipe.columns, *index.by, *keep]))
        other = self._answer(unseen)
        chosen, met = self._models, dict[Key, int]()

        def number(key: Key) -> int:
            # Most keys come in many blocks, and their text takes time; those without a model may be endless.
            row = met.get(key)
            if row is None:
                row = chosen.get(to_text(key), -1)
                if row >= 0:
                    met[key] = row
            return row if row >= 0 else other

        def score(block: int) -> tuple[pa.RecordBatch, Batch, Floats, NDArray[np.int64]]:
            rows = source.read(block, columns)
            codes, keys = coded([rows.column(column) for column in index.by], kinds, rows=len(rows))
            models = np.array([number(key) for key in keys], np.int64)[codes]
            if unseen == "error" and len(models) and models.min() < 0:
                at = int(np.argmin(models))
                name, row = row_place(source, block, at)
                raise DataError(
                    f"row {row}: {self.missing(to_text(keys[codes[at]]))}",
                    place=name,
                    fixes=[Text(Use("unseen", "null"), " leaves such rows without a prediction")],
                )
            batch = encoded(recipe, source, block, rows, finite=False)
            if not family.takes_nan:
                asked = np.flatnonzero(models >= 0)
                if found := recipe.nonfinite(batch if len(asked) == len(batch) else batch.take(asked)):
                    name, row = row_place(source, block, int(asked[found[0]]))
                    raise FeatureError(
                        f"{name}: {found[1]!r} is not a finite number in row {row}; mend such values, or leave such rows out"
                    )
            return rows, batch, self.scores(batch, models), models

        return in_order(score, range(len(source.block_rows)), threads=source.threads)

    def scores(self, batch: Batch, models: NDArray[np.int64]) -> Floats:
        """Return the scores of each row by a model, as `scored` numbers models; zero where there is none."""
        pooled = np.flatnonzero(models == len(self.registry.table))
        if not len(pooled):
            return self._family.scores(batch, models)
        scores = self._family.scores(batch, np.where(models < len(self.registry.table), models, -1))
        assert self.pooled is not None
        own = np.full(len(pooled), self.pooled.chosen_rows[0], np.int64)
        scores[pooled] = self.pooled.scores(batch.take(pooled), own)
        return scores

    def close(self) -> None:
        """Let go of the weights that were read; they are read again when they are needed."""
        self.registry.close()

    @property
    def chosen_rows(self) -> NDArray[np.int64]:
        """The rows of the registry's table that were chosen, by group."""
        return self._chosen

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Copy the models to another folder, which `open` reads."""
        target = Path(folder)
        if target.resolve() == self.registry.folder.resolve():
            return
        with locked(target, marks=(INDEX,)):
            if (target / INDEX).exists():
                raise UsageError(f"{target} holds models already; choose another folder")
            if self.registry.held:
                if self.pooled is not None:
                    self.pooled.registry.write(target / POOLED)
                self.registry.write(target)
                return
            for path in self.registry.files():  # the index comes last: a copy cut short is no registry
                place = target / path.relative_to(self.registry.folder)
                place.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(place) as temporary:
                    shutil.copyfile(path, temporary)

    @cached_property
    def recipe(self) -> Recipe:
        """How columns become features."""
        folder = self.registry.folder
        try:
            recipe = Recipe.from_dict(dict(self.registry.index.recipe))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"the index in {folder} does not tell of features: {error!r}; {MEND}") from error
        if self.registry.index.family != "linear" or not len(self._chosen):
            return recipe
        width = len(self.registry.weights(int(self._chosen[0]))) // self.registry.index.outputs - 1
        if recipe.width not in (None, width):
            raise ModelFileError(
                f"the models in {folder} have {width} features, the index tells of {recipe.width}; {MEND}"
            )
        return recipe if recipe.width == width else recipe.with_width(width)

    @cached_property
    def _chosen(self) -> NDArray[np.int64]:
        """The rows of the table that are chosen, by group."""
        table = self.registry.table
        usable = self.registry.has_model() & ~pc.equal(table["status"], "failed").to_numpy()
        return choose(
            numbers(table["group"]),
            numbers(table["loss"]),
            selection_loss=numbers(table["selection_loss"]),
            usable=usable,
        )

    @cached_property
    def _models(self) -> dict[str, int]:
        """The chosen row of each group that has one, by the group's text."""
        texts = self.registry.table["text"].take(pa.array(self._chosen)).to_pylist()
        return dict(zip(texts, self._chosen.tolist()))

    def _answer(self, unseen: str) -> int:
        """Return the model of rows whose group has none, as `scored` numbers models."""
        if unseen == "largest":
            return self._largest()
        if unseen != "pooled":
            return -1
        if self.pooled is None or not len(self.pooled.chosen_rows):
            raise UsageError(
                f"there is no pooled model in {self.registry.folder}",
                option="unseen",
                value=unseen,
                fixes=[Text("choose ", Use("unseen", "null")), "train with a pooled model"],
            )
        return len(self.registry.table)

    def _largest(self) -> int:
        if not len(self._chosen):
            raise UsageError(f"no group in {self.registry.folder} has a model; see the reasons in the frame")
        return int(self._chosen[np.argmax(numbers(self.chosen["rows"]))])

    def _text(self, key: Any) -> str:
        return key if isinstance(key, str) else to_text(key if isinstance(key, tuple) else (key,))

    @cached_property
    def _family(self) -> Family:
        return family_of(self.registry, self.recipe, self._trainable)

    def _model(self, row: int) -> EncodedModel:
        index, table = self.registry.index, self.registry.table
        names = ("rows", "held_out_rows", "loss", "held_out_loss", index.score, "selection_loss", "epochs")
        figures = {name: table[name][row].as_py() for name in names}
        params = {"model": index.kind, **index.fixed, **index.configs[table["config"][row].as_py()]}
        metrics = {"group": table["text"][row].as_py(), **{k: v for k, v in figures.items() if v is not None}}
        return self._family.model(row, params, fingerprint=index.fingerprint, metrics=metrics)
