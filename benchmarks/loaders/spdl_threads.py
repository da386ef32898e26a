"""SPDL: a pipeline of threads that each take a random batch out of a memory map."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.loaders.contest import Batch, Contestant, Epochs, Job
from benchmarks.loaders.memory_mapped import FORMAT, RandomBatches, Samples, write


def load(folder: Path, job: Job, *, threads: int) -> Epochs:
    from spdl.pipeline import PipelineBuilder

    samples, sampler = Samples(folder, job.data), RandomBatches(job.data.rows, job)

    def epoch(number: int) -> Iterator[Batch]:
        sampler.epoch = number
        line = PipelineBuilder().add_source(sampler).pipe(samples.__getitem__, concurrency=threads)
        pipeline = line.add_sink(2 * threads).build(num_threads=threads)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return epoch


CONTESTANTS = tuple(
    Contestant(
        f"spdl over memmap, {threads} threads",
        FORMAT,
        write,
        partial(load, threads=threads),
        imports=("torch", "spdl.pipeline"),
        globally=True,
        mapped=True,
    )
    for threads in (4, 16)
)
