"""Compiles and loads the loops that a job will need, on a few of its rows, before any clock is started.

A machine's first run compiles for seconds, and every process loads what was compiled; neither is a strategy's doing.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import replace

import pyarrow as pa

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.base import BlockSource
from penstock.blocks.conversion import convert
from penstock.blocks.memory import TableSource
from penstock.blocks.open import open as open_source
from penstock.compare.training_request import TrainingRequest
from penstock.errors import PenstockError
from penstock.loader import Loader
from penstock.memory_learner import linear_job
from penstock.shuffle import order

_ROWS = 100


def warm_up(job: TrainingRequest) -> None:
    """Train on the first and last few rows; what is wrong with the data is left for the job itself to tell."""
    with contextlib.suppress(PenstockError), tempfile.TemporaryDirectory() as folder, job.opened() as training:
        few = _few_rows(training.source, folder)
        config = replace(job.config, epochs=1, memory="1GB", validation=0.0, patience=0)
        model = linear_job(few, config, job.columns, test=few, scratch=folder).run()
        # So few rows are simply kept in memory; the job's are probably read in windows.
        reads = job.config.shuffle if order(job.config.shuffle).facts.copy == "never" else "none"
        with Loader(few, model.encoder, reads, memory=1, stretch=True) as loader:
            for _ in loader.epoch(0):
                pass


def _few_rows(source: BlockSource, folder: str) -> BlockSource:
    """Return rows from both ends of the data, where stored order puts different labels, in the data's own layout."""
    first, last = source.read(0), source.read(len(source.block_rows) - 1)
    rows = pa.Table.from_batches([first.slice(0, _ROWS), last.slice(max(0, len(last) - _ROWS))])
    if not isinstance(source, ArrowSource):
        return TableSource.of(rows)
    path = os.path.join(folder, "few.arrow")
    convert(rows.replace_schema_metadata(source.schema.metadata), path)
    return open_source(path)
