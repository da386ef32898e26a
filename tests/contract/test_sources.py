"""Every source passes the shipped conformance suite."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock
from penstock.blocks.arrow import ArrowSource
from penstock.blocks.memory import ArraySource, TableSource
from penstock.blocks.numpy import NpySource
from penstock.blocks.parquet import ParquetSource
from penstock.blocks.write import BlockWriter
from penstock.testing.sources import SourceContract


def write_arrow(table, path, rows, **options):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, **options) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write(batch)


class TestArrow(SourceContract):
    def make(self, folder):
        write_arrow(self.table(), folder / "a.arrow", 90)
        return lambda: ArrowSource(folder / "a.arrow")


class TestArrowPieces(SourceContract):
    def make(self, folder):
        write_arrow(self.table(), folder / "a.arrow", 700)
        return lambda: ArrowSource(folder / "a.arrow", 1000)


class TestArrowCompressed(SourceContract):
    def make(self, folder):
        write_arrow(self.table(), folder / "a.arrow", 90, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        return lambda: ArrowSource(folder / "a.arrow")


class TestArrowConverted(SourceContract):
    def make(self, folder):
        with BlockWriter(folder / "a.arrow", self.table().schema, rows_per_block=70) as writer:
            for batch in self.table().to_batches(max_chunksize=33):
                writer.write(batch)
        return lambda: ArrowSource(folder / "a.arrow")


class TestArrowDictionary(SourceContract):
    def table(self):
        return super().table().append_column("d", pa.array([f"v{i % 5}" for i in range(self.rows)]).dictionary_encode())

    def make(self, folder):
        write_arrow(self.table(), folder / "a.arrow", 90)
        return lambda: ArrowSource(folder / "a.arrow")


class TestArrowSeveral(SourceContract):
    def make(self, folder):
        write_arrow(self.table().slice(0, 400), folder / "0.arrow", 90)
        write_arrow(self.table().slice(400), folder / "1.arrow", 110)
        return lambda: ArrowSource(folder)


class TestArrowFolders(SourceContract):
    suffix = "arrow"

    def table(self):
        return super().table().append_column("day", pa.array([7] * 400 + [9] * (self.rows - 400), pa.int64()))

    def make(self, folder):
        for day, part in ((7, self.table().slice(0, 400)), (9, self.table().slice(400))):
            (folder / f"day={day}").mkdir()
            self.write(part.drop_columns("day"), folder / f"day={day}" / f"a.{self.suffix}")
        return lambda: penstock.open(folder)

    def write(self, table, path):
        write_arrow(table, path, 90)


class TestParquetFolders(TestArrowFolders):
    suffix = "parquet"

    def write(self, table, path):
        pq.write_table(table, path, row_group_size=130)


class TestParquet(SourceContract):
    def make(self, folder):
        pq.write_table(self.table(), folder / "a.parquet", row_group_size=130)
        return lambda: ParquetSource(folder / "a.parquet")


class TestParquetSubBlocks(SourceContract):
    def make(self, folder):
        pq.write_table(self.table(), folder / "a.parquet", row_group_size=300, data_page_size=256)
        return lambda: ParquetSource(folder / "a.parquet", 1000, max_open=2)


class TestParquetSeveral(SourceContract):
    def make(self, folder):
        pq.write_table(self.table().slice(0, 300), folder / "0.parquet", row_group_size=200)
        pq.write_table(self.table().slice(300), folder / "1.parquet", row_group_size=200)
        return lambda: ParquetSource(str(folder / "*.parquet"), 2000)


class TestNpy(SourceContract):
    def table(self):
        array = np.arange(3000.0).reshape(1000, 3)
        return pa.table({str(i): array[:, i] for i in range(3)})

    def make(self, folder):
        np.save(folder / "a.npy", np.arange(3000.0).reshape(1000, 3))
        return lambda: NpySource(folder / "a.npy", 1000)


class TestNpyStructured(SourceContract):
    def make(self, folder):
        table = self.table()
        array = np.empty(1000, [("a", ">f8"), ("b", "i8"), ("c", "f4")])
        for name in table.column_names:
            array[name] = table[name].to_numpy()
        np.save(folder / "a.npy", array)
        return lambda: NpySource(folder / "a.npy", 1000)


class TestTable(SourceContract):
    files = False

    def make(self, folder):
        return lambda: TableSource.of(self.table(), block_size=1000)


class TestArrays(SourceContract):
    files = False

    def table(self):
        x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
        features = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 4)
        return pa.table({"features": features, "label": np.arange(1000) % 2})

    def make(self, folder):
        x = np.arange(4000, dtype=np.float32).reshape(1000, 4)
        return lambda: ArraySource(x, np.arange(1000) % 2, block_size=1000)


class TestCsv(SourceContract):
    def make(self, folder):
        from penstock.blocks.csv import CsvSource

        lines = ["a,b,c"] + [f"{a},{b},{c}" for a, b, c in zip(*self.table().to_pydict().values(), strict=True)]
        (folder / "a.csv").write_text("\n".join(lines) + "\n")
        return lambda: CsvSource(str(folder / "a.csv"), block_size=1000)


class TestLibsvm(SourceContract):
    def table(self):
        at = np.arange(self.rows)
        offsets = pa.array(np.arange(0, 2 * self.rows + 1, 2, dtype=np.int32))
        indices = np.stack([at % 5, at % 5 + 3], 1).ravel()
        values = np.stack([at, at / 2], 1).ravel().astype(np.float32)
        return pa.table(
            {
                "label": (at % 2).astype(np.float64),
                "indices": pa.ListArray.from_arrays(offsets, pa.array(indices.astype(np.uint32))),
                "values": pa.ListArray.from_arrays(offsets, pa.array(values)),
            }
        )

    def make(self, folder):
        from penstock.blocks.libsvm import LibsvmSource

        rows = self.table().to_pylist()
        lines = [
            f"{r['label']} " + " ".join(f"{i}:{v}" for i, v in zip(r["indices"], r["values"], strict=True))
            for r in rows
        ]
        (folder / "a.libsvm").write_text("\n".join(lines) + "\n")
        return lambda: LibsvmSource(str(folder / "a.libsvm"), block_size=1000)
