"""A few blocks that stand for a table: the plan made of them is the plan of the table, whatever its size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.memory import TableSource
from penstock.blocks.sampled_source import SampledSource, TableSize
from penstock.config import Config
from penstock.explanation.advice import plan_for
from penstock.explanation.forecast import forecast_training
from penstock.training import Columns

ROWS, BLOCK = 64_000, 1_000


def table(rows: int = ROWS, classes: int = 2) -> pa.Table:
    rng = np.random.default_rng(1)
    y = np.arange(rows) % classes
    return pa.table({"x": (rng.normal(size=rows) + 2 * y).astype(np.float32), "z": rng.normal(size=rows), "y": y})


def blocks_of(rows: pa.Table) -> TableSource:
    return TableSource.of(rows, block_size=BLOCK * rows.nbytes // len(rows))


def few_of(rows: pa.Table, size: TableSize) -> SampledSource:
    return SampledSource(blocks_of(rows.slice(0, 4 * BLOCK)), size)


@pytest.mark.parametrize("memory", ["100%", "10%", "64kB", "1GB"])
@pytest.mark.parametrize("shuffle", ["corgipile", "none"])
def test_the_plan_of_a_few_blocks_is_that_of_the_table(memory: str, shuffle: str) -> None:
    rows = table()
    source = blocks_of(rows)
    size = TableSize(ROWS, len(source.block_rows), int(source.block_bytes.sum()))
    recipe = Columns("y").recipe(source)
    whole, few = (plan_for(each, recipe, shuffle, memory) for each in (source, few_of(rows, size)))
    assert few.resident == whole.resident
    assert few.memory == whole.memory
    assert few.held_rows == pytest.approx(whole.held_rows, rel=0.1)
    assert few.blocks == pytest.approx(whole.blocks, rel=0.1)


def test_a_plan_of_a_terabyte_reads_no_more() -> None:
    asked: list[int] = []

    class Counted(TableSource):
        def read(self, block: int, columns: object = None) -> pa.RecordBatch:
            asked.append(block)
            return super().read(block, columns)  # type: ignore[arg-type]  # passed on

    few = table(4 * BLOCK)
    reads = []
    for rows in (10**5, 10**10):
        asked.clear()
        source = Counted(few.to_batches(), schema=few.schema, block_size=20_000)
        found = forecast_training(
            source, TableSize(rows, rows // BLOCK, 20 * rows), Columns("y"), Config(learning_rate=0.1, memory="64MB")
        )
        assert found.cost is not None
        assert found.scan_seconds > 0
        reads.append(len(asked))

    assert reads[1] <= reads[0] + 64
    assert found.plan.blocks > 10**4


def test_the_model_and_solver_are_those_of_a_training() -> None:
    size = TableSize(ROWS, 64, 20 * ROWS)
    for classes, model in ((2, "logistic"), (3, "softmax")):
        source = blocks_of(table(4 * BLOCK, classes))
        found = forecast_training(source, size, Columns("y"), Config(memory="1GB"))
        assert (found.config.model, found.config.solver) == (model, "lbfgs")
        assert found.fit is not None
        assert found.fit.score > found.fit.constant


def test_rows_of_one_class_have_no_fit_but_a_price() -> None:
    rows = table(4 * BLOCK).set_column(2, "y", pa.array(np.zeros(4 * BLOCK, np.int64)))
    found = forecast_training(blocks_of(rows), TableSize(ROWS, 64, 20 * ROWS), Columns("y"), Config())
    assert found.fit is None
    assert found.cost is not None


def test_no_row_is_read_through_a_planned_layout(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import penstock

    path = tmp_path / "few.arrow"
    penstock.convert(table(4 * BLOCK), path, label="y")
    with ArrowSource(str(path)) as few:
        layout = SampledSource(few, TableSize(ROWS, 64, 20 * ROWS)).packed("features", "y", None)
        assert layout is not None
        assert layout.fd == -1
