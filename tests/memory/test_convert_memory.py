"""The converter's promise: samples of any size and number are converted in under 100 MB above the libraries'.

Each case is a process of its own, measured by its peak resident memory, less that of the same work on tiny data.
"""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

MOST = 100_000_000
ROW = 100_000
CONVERT = """
import sys
from penstock.blocks import convert
from penstock.budget import peak_memory
convert(sys.argv[1], sys.argv[2])
print(peak_memory())
"""
MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {"image": {"_type": "Image"}, "label": {"dtype": "int64", "_type": "Value"}}


def peak(source: Path, target: Path) -> int:
    done = subprocess.run([sys.executable, "-c", CONVERT, source, target], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def contents(rows: int) -> Iterator[bytes]:
    """Yield rows of about 100 KB, all different."""
    whole = np.random.default_rng(0).bytes(2 * ROW)
    return (whole[n % ROW : n % ROW + ROW] for n in range(rows))


def write_hf(folder: Path, rows: int) -> None:
    """Write a folder as `save_to_disk` does, a thousand rows to a record batch."""
    folder.mkdir()
    cells = [{"bytes": content, "path": f"{n}.jpg"} for n, content in enumerate(contents(min(rows, 1000)))]
    batch = pa.record_batch({"image": pa.array(cells, MEDIA), "label": pa.array(range(len(cells)), pa.int64())})
    noted = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    schema = batch.schema.with_metadata(noted)
    with pa.OSFile(str(folder / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(-(-rows // 1000)):
            writer.write_batch(batch.replace_schema_metadata(noted))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def write_growing(folder: Path, rows: int) -> None:
    """Write streams whose first thousands of rows are tiny and whose last are large."""
    folder.mkdir()
    schema = pa.schema({"a": pa.binary()})
    with pa.OSFile(str(folder / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(100):
            writer.write_batch(pa.record_batch([pa.array([b"tiny"] * 10_000, pa.binary())], schema=schema))
        for start in range(0, rows, 500):
            writer.write_batch(
                pa.record_batch([pa.array(contents(min(500, rows - start)), pa.binary())], schema=schema)
            )


def write_images(folder: Path, rows: int) -> None:
    for n, content in enumerate(contents(rows)):
        path = folder / f"class {n % 3}" / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write_tars(folder: Path, rows: int) -> None:
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as archive:
        for n, content in enumerate(contents(rows)):
            for extension, part in (("jpg", content), ("cls", str(n).encode())):
                info = tarfile.TarInfo(f"{n:06d}.{extension}")
                info.size = len(part)
                archive.addfile(info, io.BytesIO(part))


def write_mds(folder: Path, rows: int) -> None:
    """Write shards of about 64 MB, the format's default."""
    folder.mkdir()
    shards = []
    for start in range(0, rows, 600):
        samples = [struct.pack("<I", ROW) + content for content in contents(min(600, rows - start))]
        head = 4 + 4 * (len(samples) + 1)
        places = np.cumsum([head, *map(len, samples)]).astype("<u4").tobytes()
        raw = struct.pack("<I", len(samples)) + places + b"".join(samples)
        name = f"shard.{len(shards):05d}.mds"
        (folder / name).write_bytes(raw)
        shards.append(
            {
                "column_names": ["image"],
                "column_encodings": ["jpeg"],
                "column_sizes": [None],
                "format": "mds",
                "raw_data": {"basename": name, "bytes": len(raw)},
                "samples": len(samples),
                "version": 2,
            }
        )
    (folder / "index.json").write_text(json.dumps({"shards": shards}))


def write_json_lines(folder: Path, rows: int) -> None:
    folder.mkdir()
    with (folder / "a.jsonl").open("w") as file:
        for n, content in enumerate(contents(rows)):
            file.write(json.dumps({"n": n, "text": content.hex()[:ROW]}) + "\n")


@pytest.mark.parametrize("write", [write_json_lines, write_hf, write_growing, write_images, write_tars, write_mds])
def test_converting_samples_takes_under_a_hundred_megabytes(write: Callable[[Path, int], None], tmp_path: Path) -> None:
    write(tmp_path / "tiny", 10)
    write(tmp_path / "large", 3000)
    small, most = (peak(tmp_path / size, tmp_path / "out.arrow") for size in ("tiny", "large"))
    assert most - small <= MOST, (
        f"{(most - small) / 1e6:.0f} MB above the libraries' where {MOST / 1e6:.0f} are promised"
    )
