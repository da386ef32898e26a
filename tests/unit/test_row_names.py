"""Messages name a row by the file that it lies in, and by its number in that file."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from penstock.blocks.base import row_place
from penstock.blocks.open import open as open_source
from penstock.blocks.refined_source import with_row_counts
from penstock.config import Config
from penstock.errors import DataError
from penstock.loader.batches import Batches
from penstock.memory_learner import linear_job
from penstock.training import Columns

ROWS, BAD = 400, 137


def write(path, **changed):
    x = np.random.default_rng(0).standard_normal(ROWS)
    values = {"x": x.tolist(), "y": (x > 0).astype(int).tolist(), "w": [1.0] * ROWS}
    for name, value in changed.items():
        values[name][BAD] = value
    table = pa.table(values)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=150)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=150)


def two_files(folder, suffix, **changed):
    write(folder / f"a.{suffix}")
    write(folder / f"b.{suffix}", **changed)
    return str(folder / f"*.{suffix}")


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize(("column", "value"), [("x", None), ("x", float("nan")), ("y", None), ("w", -1.0)])
def test_a_row_that_cannot_be_learned_from_is_named_by_its_own_file(tmp_path, suffix, standardize, column, value):
    if suffix == "csv" and value is None:
        pytest.skip("text is refused when it is parsed, by its line")
    with open_source(two_files(tmp_path, suffix, **{column: value})) as source:
        config = Config(model="logistic", epochs=1, standardize=standardize, validation=0.0)
        with pytest.raises((DataError, ArithmeticError)) as caught:
            linear_job(source, config, Columns(label="y", weight="w", missing="refuse")).run()
    assert f"b.{suffix}" in str(caught.value)
    assert "1 more" not in str(caught.value)
    assert f"row {BAD}" in str(caught.value)


def test_a_null_in_a_stream_of_batches_is_named_by_its_own_file(tmp_path):
    with Batches(two_files(tmp_path, "parquet", x=None), 10) as batches, pytest.raises(DataError) as caught:
        list(batches)
    assert "b.parquet" in str(caught.value)
    assert f"row {BAD}" in str(caught.value)


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_rows_are_placed_alike_however_blocks_are_cut(tmp_path, suffix):
    with open_source(two_files(tmp_path, suffix), block_size=1000 if suffix == "csv" else None) as source:
        whole = with_row_counts(source)
        for cut in (whole, whole.refine(7, 7)):
            starts = np.cumsum(cut.block_rows) - cut.block_rows
            for number, name in ((0, "a"), (ROWS - 1, "a"), (ROWS, "b"), (ROWS + BAD, "b")):
                block = int(np.flatnonzero(starts <= number)[-1])
                found = row_place(cut, block, number - int(starts[block]))
                assert found == (str(tmp_path / f"{name}.{suffix}"), number % ROWS)
