"""Prepare data for a model on disk: give every feature that occurs a position, and copy the rows with positions.

Stands in for the index map of section 5 of the paper, which is asked for every index in every epoch. Pass 1 deals
features to buckets on disk, `places` numbers them, pass 2 reads the data again and writes `rows.arrow`; `map.bin` keeps
the way from feature to position. Memory is bounded: nothing is held by feature or by row. Hot features come first, in
an order that can be given; the others follow in the order of the data, so neighbouring rows use neighbouring pages.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.bigmodel import buckets
from penstock.bigmodel.data_passes import DataPasses
from penstock.bigmodel.feature_positions import FeaturePositions, OrderHot
from penstock.bigmodel.index_map import NAME as MAP
from penstock.bigmodel.index_map import MapWriter
from penstock.bigmodel.layout import FeatureLayout as FeatureLayout
from penstock.bigmodel.scratch_file import ScratchFile
from penstock.blocks.arrow import ArrowSource, layout_of
from penstock.blocks.base import BlockSource
from penstock.blocks.features import Encoder, choose_features
from penstock.budget import give_back
from penstock.errors import CorruptFileError, DataError, WriteError
from penstock.events import Stream
from penstock.seeds import key as seed_key

ROWS = "rows.arrow"
TEMPORARY = "prepare.tmp"


def rewrite(
    source: BlockSource,
    encoder: Encoder,
    folder: str | os.PathLike[str],
    *,
    memory: int,
    hot: int | Callable[[int], int],
    seed: int = 0,
    order_hot: OrderHot | None = None,
    on_ready: Callable[[], object] = lambda: None,
    stream: Stream | None = None,
) -> FeatureLayout:
    """Write ``rows.arrow`` and ``map.bin`` into a folder.

    Parameters
    ----------
    source : BlockSource
        The data.
    encoder : Encoder
        How its columns become features and a target; complete but for the width, which need not be known.
    folder : path
        Where to write. Both files appear when they are whole; a failure leaves neither.
    memory : int
        Bytes to do it in, beside some 30 MB.
    hot : int or callable
        At most so many features, the most frequent, get the first positions; or what gives that number from the number
        of features that occur. One that occurs once is never hot.
    seed : int
        Decides how features fall to buckets, and thereby the order of cold features within a stretch of the data.
    order_hot : callable, optional
        Is given hot features and their counts by falling count, and returns their numbers in the order wanted. Where
        they are more than memory allows to sort, those that come after go by classes of falling counts.
    on_ready : callable
        Is called when both files are whole, before they take the place of others.
    stream : Stream, optional
        Hears how far it is.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa
    >>> from penstock.bigmodel.index_map import IndexMap
    >>> from penstock.blocks.memory import TableSource
    >>> table = pa.table({"y": [1.0, 2.0], "indices": [[2**40, 7], [7]], "values": [[0.5, 1.0], [2.0]]})
    >>> encoder = choose_features(table.schema, label="y", wide=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     layout = rewrite(TableSource.of(table), encoder, folder, memory=10**7, hot=1)
    ...     with IndexMap.open(folder) as index, prepared_rows(folder)[0] as rows:
    ...         index.positions(np.array([7, 8, 2**40])).tolist()
    ...         rows.read(0, ["indices"]).to_pydict()
    [0, 4294967295, 1]
    {'indices': [[1, 0], [0]]}
    """
    clock = _Clock()
    stream = stream or Stream()
    if not len(source.block_rows) or not int(source.block_rows.sum()):
        raise DataError(f"{source.name} has no rows; there is nothing to train on")
    with ExitStack() as stack:
        work = stack.enter_context(_scratch(Path(folder) / TEMPORARY))
        job = DataPasses(source, encoder, np.uint64(seed_key(seed, "features")), memory, stream)
        job.estimate()
        clock.lap("estimate")
        dealt, numbers, found = (
            stack.enter_context(closing(ScratchFile(work / name))) for name in ("dealt", "numbers", "found")
        )
        parts = job.deal(dealt)
        give_back()
        clock.lap("read")
        places = FeaturePositions(job.split, parts, dealt, numbers, found, stream)
        places.count()
        dealt.drop()
        clock.lap("count")
        most = hot(int(places.sizes.sum())) if callable(hot) else hot
        count = places.choose(hot=most, memory=memory, order=order_hot)
        give_back()
        clock.lap("choose")
        index = stack.enter_context(closing(MapWriter(work / MAP, key=job.split.key, sizes=places.sizes)))
        places.assign(index)
        found.drop()
        map_bytes = index.finish()
        give_back()
        clock.lap("place")
        rows_bytes = job.write(work / ROWS, parts, numbers, features=int(places.sizes.sum()))
        on_ready()
        for name in (MAP, ROWS):
            os.replace(work / name, Path(folder) / name)
        clock.lap("write")
    entries = sum(part.entries for part in parts)
    return FeatureLayout(
        rows=sum(part.rows for part in parts),
        entries=entries,
        features=int(places.sizes.sum()),
        hot=count,
        dimension=encoder.width if encoder.width is not None else max(part.largest for part in parts) + 1,
        singles=int(places.features[1]),
        hot_share=int(places.entries[places.line.hot :].sum()) / entries,
        tally=_by_octave(places),
        map_bytes=map_bytes,
        rows_bytes=rows_bytes,
        seconds=sum(clock.laps.values()),
        phases=clock.laps,
    )


class PositionSource(ArrowSource):
    """Rows by positions, each of which must be one of the model's."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self.features = int(layout_of(self.schema).get("width") or 0)

    def read(self, block: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Read one block; a position past the end of the model is refused, where an encoder would leave it out."""
        batch = super().read(block, columns)
        for name in set(batch.schema.names) & {"indices"}:
            most = pc.max(batch.column(name).flatten()).as_py()
            if most is not None and most >= self.features:
                raise CorruptFileError(
                    f"{self.name} is damaged: block {block} names position {most}, and the model has {self.features};"
                    " remove the file and train anew"
                )
        return batch


def prepared_rows(folder: str | os.PathLike[str], *, features: int | None = None) -> tuple[ArrowSource, Encoder]:
    """Open the rows that `rewrite` wrote, for a model of so many features; the encoder's label is the target itself."""
    source = PositionSource(Path(folder) / ROWS)
    if features not in (None, source.features):
        source.close()
        raise CorruptFileError(
            f"{source.name} is of a model of {source.features} features, and this one has {features}; restore the directory"
            " from a copy, or train anew"
        )
    noted = layout_of(source.schema)
    encoder = choose_features(source.schema, label=noted.get("label"), weight=noted.get("weight"), place=source.name)
    return source, encoder


class _Clock:
    """How long each phase took."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = now - self._last
        self._last = now


def _by_octave(places: FeaturePositions) -> list[list[int]]:
    sums: dict[int, list[int]] = {}
    for number in np.flatnonzero(places.features).tolist():
        least = 1 << (buckets.least_of(number).bit_length() - 1)
        row = sums.setdefault(least, [least, 0, 0])
        row[1] += int(places.features[number])
        row[2] += int(places.entries[number])
    return list(sums.values())


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    """Make a folder for what is kept on the way, without what an earlier run that was killed left there."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise WriteError(f"{path} cannot be made: {error.strerror or error}; choose a folder that can be") from error
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
