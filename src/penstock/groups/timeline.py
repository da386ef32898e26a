"""What workers did when, kept beside the models: a table for each run, which the report draws."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import ModelFileError
from penstock.groups.drivers.base import Span
from penstock.outputs import atomic_path
from penstock.sealed import read_sealed_parquet, seal

SCHEMA = pa.schema(
    {
        "run": pa.int32(),
        "worker": pa.int32(),
        "begin": pa.float64(),
        "end": pa.float64(),
        "group": pa.int64(),
        "groups": pa.int32(),
        "what": pa.string(),
    }
)
"""``begin`` and ``end`` are seconds since the run began; ``group`` is -1 where a message had several."""
_NAME = re.compile(r"timeline-(\d{5,})\.parquet")


@dataclass(slots=True)
class Timeline:
    """Takes down what workers do in one run."""

    spans: list[Span] = field(default_factory=list)

    def rounds(self) -> Callable[[Span], None]:
        """Return what takes down the next round of a run, whose spans count from its own beginning."""
        after = max((span.end for span in self.spans), default=0.0)
        return lambda span: self.spans.append(span._replace(begin=after + span.begin, end=after + span.end))

    def write(self, folder: Path) -> None:
        """Add a table to those of a folder; none where nothing was done."""
        if not self.spans:
            return
        run = max(_files(folder), default=-1) + 1
        columns = [pa.array([run] * len(self.spans)), *map(pa.array, zip(*self.spans, strict=True))]
        table = pa.table(columns, names=SCHEMA.names).cast(SCHEMA)
        with atomic_path(folder / f"timeline-{run:05d}.parquet") as temporary:
            pq.write_table(table, temporary, write_page_checksum=True)
            seal(temporary)


def read(folder: Path) -> pa.Table | None:
    """Return what workers did in all runs; None where nothing is known of it.

    Raises
    ------
    ModelFileError
        A table is damaged; it is named.
    """
    tables = [_read(path) for _, path in sorted(_files(folder).items())]
    return pa.concat_tables(tables) if tables else None


def _read(path: Path) -> pa.Table:
    try:
        return read_sealed_parquet(path).cast(SCHEMA)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ModelFileError(
            f"{path} is not a whole table of what workers did: {error}; restore it from a copy, or remove it: models do not"
            " need it"
        ) from error


def _files(folder: Path) -> dict[int, Path]:
    return {int(match[1]): path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}
