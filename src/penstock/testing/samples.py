"""What every format of samples must do, as tests: subclass `SampleFormatContract`, say how to write one, run pytest.

    class TestMyFormat(SampleFormatContract):
        format = "mine"

        def make(self, folder):
            write_my_files(folder, contents=CONTENTS, labels=LABELS)
            return folder

`columns` says what the columns of the contents and of the labels are called.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.blocks.conversion import convert
from penstock.blocks.open import open as open_source
from penstock.blocks.row_streams import RowStream, rows_of
from penstock.blocks.samples.formats import FORMATS, sample_format, sample_reader
from penstock.errors import CorruptFileError, SourceError, UsageError

ROWS = 40
CONTENTS = [bytes([number, 255 - number]) * (number % 7 + 3) for number in range(ROWS)]
"""The bytes of each sample, which stand for an image."""
LABELS = [number * 2 // ROWS for number in range(ROWS)]
"""The class of each sample, in rising order."""


class SampleFormatContract:
    """The suite; ``columns`` are the names of the contents and the labels."""

    format: str
    columns = ("image", "label")

    def make(self, folder: Path) -> Any:
        """Write samples of these contents and labels, in this order, in several files; return what a user would name."""
        raise NotImplementedError

    def damaged(self, folder: Path) -> Path:
        """Return the file that the tests damage: one that holds samples."""
        return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)

    @pytest.fixture
    def data(self, tmp_path: Path) -> Any:
        """What names the data set under test."""
        folder = tmp_path / "data"
        folder.mkdir()
        return self.make(folder)

    @pytest.fixture
    def rows(self, data: Any) -> Iterator[RowStream]:
        """The rows under test."""
        rows = sample_reader(self.format)(data)
        yield rows
        rows.close()

    def test_is_told_by_its_files(self, data: Any) -> None:
        assert self.format in FORMATS
        assert sample_format(data) == self.format

    def test_is_not_read_in_blocks(self, data: Any) -> None:
        with pytest.raises(SourceError, match="penstock convert"):
            open_source(data)

    def test_every_row_comes_once_in_order(self, rows: RowStream) -> None:
        with closing(rows.batches(None)) as batches:
            found = pa.Table.from_batches([batch for batch, _ in batches], rows.schema)
        contents, labels = self.columns
        assert found[contents].to_pylist() == CONTENTS
        assert found[labels].to_pylist() == LABELS

    def test_numbers_told_beforehand_are_right(self, rows: RowStream) -> None:
        with closing(rows.batches(None)) as batches:
            each = [(batch.num_rows, nbytes) for batch, nbytes in batches]
        assert all(count > 0 for count, _ in each)
        assert rows.count in (None, ROWS)
        assert sum(count for count, _ in each) == ROWS
        assert rows.nbytes is not None
        assert 0 < sum(nbytes for _, nbytes in each) <= rows.nbytes
        assert all(os.path.exists(file) for file in rows.files)

    def test_columns_are_chosen_and_ordered(self, rows: RowStream) -> None:
        names = list(reversed(rows.schema.names))[:2]
        with closing(rows.batches(names)) as batches:
            assert {tuple(batch.schema.names) for batch, _ in batches} == {tuple(names)}

    def test_reading_may_end_early(self, data: Any) -> None:
        before = _open_files()
        for begun in (False, True):
            rows = sample_reader(self.format)(data)
            batches = rows.batches(None)
            if begun:
                next(batches)
            batches.close()
            rows.close()
        assert _open_files() == before

    def test_the_format_may_be_named(self, data: Any) -> None:
        rows = rows_of(data, format=self.format)
        assert rows.schema.names
        rows.close()

    def test_a_split_that_is_not_there(self, data: Any) -> None:
        with pytest.raises((UsageError, SourceError), match="nowhere"):
            sample_reader(self.format)(data, split="nowhere")

    def test_a_file_without_its_bytes_is_an_error_that_names_it(self, data: Any, tmp_path: Path) -> None:
        file = self.damaged(tmp_path / "data")
        file.write_bytes(b"")
        with pytest.raises(CorruptFileError, match=file.name):
            convert(data, tmp_path / "out.arrow")
        assert not (tmp_path / "out.arrow").exists()

    def test_converted_rows_are_read_in_blocks(self, data: Any, tmp_path: Path) -> None:
        convert(data, tmp_path / "out.arrow", block_size=100)
        with open_source(tmp_path / "out.arrow") as source:
            read = pa.Table.from_batches([source.read(block) for block in range(len(source.block_rows))])
        assert read[self.columns[0]].to_pylist() == CONTENTS


def _open_files() -> set[str]:
    """Return the files that this process has open, where the system tells."""
    place = Path("/proc/self/fd")
    if not place.is_dir():
        return set()
    return {os.readlink(each) for each in place.iterdir() if each.is_symlink()}
