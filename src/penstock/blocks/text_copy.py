"""JSON lines and compressed text as a source: one pass writes the rows to a temporary Arrow file, which is read in blocks.

Such files can only be read from their start, and training reads rows in many orders. The copy is removed when the source is
closed or the process ends; one that a killed process left is removed by the next.
"""

from __future__ import annotations

import os
import shutil
import weakref
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.blocks.arrow import ArrowSource
from penstock.blocks.write import BlockWriter
from penstock.budget import show_bytes
from penstock.errors import WriteError
from penstock.events import log
from penstock.messages import Text, Use
from penstock.outputs import own_folder

if TYPE_CHECKING:
    from penstock.blocks.row_streams import RowStream

_PREFIX = ".penstock-text-"
BLOCK_SIZE = 64 * 1024
LEAST_BLOCK = 4 * 1024
BLOCKS_WANTED = 256
_LARGEST = 4 << 20


class TextCopy(ArrowSource):
    """The rows of text files in a temporary Arrow file, removed when closed.

    Attributes
    ----------
    notice : str
        What was copied where, for the user.
    """

    def __init__(self, folder: Path, *, name: str) -> None:
        path = folder / "rows.arrow"
        super().__init__(path)
        self.name = name
        self.notice = (
            f"{name} cannot be read in blocks, and was copied to {folder.parent} ({show_bytes(path.stat().st_size)}) until this"
            " run ends; convert it once to save that"
        )
        self._remove = weakref.finalize(self, _remove, folder, os.getpid())

    def file_of(self, block: int) -> tuple[str, int]:
        """Return what messages call the data, and the first block."""
        return self.name, 0

    def close(self) -> None:
        """Close the file and remove it."""
        super().close()
        if hasattr(self, "_remove"):  # it was opened
            self._remove()


def copy_text(
    data: Any,
    *,
    name: str,
    format: str | None,
    block_size: int | None,
    folder: str | os.PathLike[str] | None,
    **options: Any,
) -> TextCopy:
    """Copy the rows of JSON lines or compressed text to a temporary file, in the folder given or the system's.

    Raises
    ------
    WriteError
        There is no room for it.
    """
    from penstock.blocks.row_streams import rows_of  # which opens data

    remedy = Text("choose another folder: ", Use("scratch"))
    work = own_folder(_PREFIX, folder, what=f"a copy of {name}", remedy=remedy)
    try:
        with closing(rows_of(data, format=format, **options)) as rows:
            _write(rows, work / "rows.arrow", block_size)
        source = TextCopy(work, name=name)
    except BaseException as error:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, WriteError):
            reason = str(error).split(": ", 1)[-1]
            raise WriteError(f"{name} cannot be copied to {work.parent}: {reason}", fixes=[remedy]) from error
        raise
    log.info(source.notice)
    return source


def _write(rows: RowStream, path: Path, block_size: int | None) -> None:
    """Write rows as they are, in blocks of the size given, or small ones where the first rows are all there are."""
    with closing(rows.batches(None)) as batches:
        first = next(batches, (pa.RecordBatch.from_pylist([], schema=rows.schema), 0))[0]
        size = block_size or max(LEAST_BLOCK, min(BLOCK_SIZE, first.nbytes // BLOCKS_WANTED))
        per_block = max(1, int(size * first.num_rows / max(first.nbytes, 1)))
        with BlockWriter(path, rows.schema, rows_per_block=per_block, most_bytes=max(2 * size, _LARGEST)) as writer:
            writer.write(first)
            for batch, _ in batches:
                writer.write(batch)


def _remove(folder: Path, process: int) -> None:
    if process == os.getpid():  # a forked process leaves it to the one that wrote it
        shutil.rmtree(folder, ignore_errors=True)
