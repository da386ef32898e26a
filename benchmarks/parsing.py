"""Text to arrays: our parsers against pyarrow's CSV reader and scikit-learn's LibSVM reader, on the same bytes; tars to
members: ours against the standard library's.

Warm: all is read from memory, since the claim is about parsing. Each contestant is used as its users use it
(pyarrow with all its threads), and once more on a single thread; ours on one thread, and on two by blocks.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from benchmarks.harness import Claim, interleave, main
from penstock.blocks.csv import csv_format
from penstock.blocks.libsvm import libsvm_format
from penstock.blocks.samples.tar import members

FEATURES = 28
SHAPES = {
    "%.6f": lambda row: ",".join(f"{v:.6f}" for v in row),
    "%.7g": lambda row: ",".join(f"{v:.7g}" for v in row),
    "%.4f": lambda row: ",".join(f"{v:.4f}" for v in row),
    "float64 repr": lambda row: ",".join(map(repr, row)),
    "numpy.savetxt %.18e": lambda row: ",".join(f"{v:.18e}" for v in row),
    "integers": lambda row: ",".join(str(int(v * 100)) for v in row),
}


def csv_text(shape: str, nbytes: int) -> bytes:
    """Return a header and so many bytes of rows: a label and 28 normal features."""
    rng = np.random.default_rng(0)
    names = ",".join(["label", *(f"f{i}" for i in range(FEATURES))])
    rows = rng.standard_normal((4000, FEATURES)).tolist()
    body = "".join(f"{i % 2},{SHAPES[shape](row)}\n" for i, row in enumerate(rows)).encode()
    return names.encode() + b"\n" + body * max(1, nbytes // len(body))


def libsvm_text(nbytes: int) -> bytes:
    """Return so many bytes of rows with 39 of a million features, as in click logs."""
    rng = np.random.default_rng(0)
    lines = []
    for i in range(4000):
        indices = np.unique(rng.integers(0, 1_000_000, 39)).tolist()
        values = rng.standard_normal(len(indices)).tolist()
        lines.append(f"{i % 2} " + " ".join(f"{j}:{v:.6g}" for j, v in zip(indices, values, strict=True)) + "\n")
    body = "".join(lines).encode()
    return body * max(1, nbytes // len(body))


def cut(text: bytes, size: int = 1_000_000) -> list[memoryview]:
    """Cut text at line ends into blocks, as a source does."""
    blocks, start = [], 0
    while start < len(text):
        end = text.find(b"\n", min(start + size, len(text)) - 1) + 1 or len(text)
        blocks.append(memoryview(text)[start:end])
        start = end
    return blocks


def run(quick: bool = False) -> list[Claim]:
    """Measure all shapes of CSV, LibSVM, and tars."""
    nbytes, repeats = (4_000_000, 3) if quick else (32_000_000, 7)
    claims: list[Claim] = []
    with ThreadPoolExecutor(2) as pool:
        for shape in SHAPES:
            claims += _csv(shape, csv_text(shape, nbytes), pool, repeats)
        claims += _libsvm(libsvm_text(nbytes // 2), pool, repeats)
    return claims + [_tar(size, nbytes, repeats) for size in (1_000, 20_000, 110_000)]


def _tar(size: int, nbytes: int, repeats: int) -> Claim:
    """Read all members of a tar of images of this size with their labels; a stream for ours, a file that seeks for tarfile."""
    packed = io.BytesIO()
    image = np.random.default_rng(0).bytes(size)
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for number in range(nbytes // (size + 2048)):
            for name, content in (("cls", b"7"), ("jpg", image)):
                info = tarfile.TarInfo(f"train/{number:06d}.{name}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))

    def standard() -> int:
        read = 0
        with tarfile.open(fileobj=io.BytesIO(packed.getvalue()), mode="r:") as archive:
            for member in archive:
                file = archive.extractfile(member)
                read += 0 if file is None else len(file.read())
                archive.members = []  # it keeps all of them otherwise
        return read

    def ours() -> int:
        return sum(len(member.content) for member in members(io.BytesIO(packed.getvalue()), "bytes.tar"))

    assert ours() == standard()
    figures = interleave({"ours": lambda: [ours()], "tarfile": lambda: [standard()]}, repeats=repeats)
    note = f"{2 * (nbytes // (size + 2048)):,} members"
    ratio = figures.ratio("tarfile", "ours")
    return Claim.at_least(f"tar of images of {size:,} bytes: faster than tarfile", ratio, 1.5, note=note)


def _csv(shape: str, text: bytes, pool: ThreadPoolExecutor, repeats: int) -> list[Claim]:
    format = csv_format(text[:1_000_000], "bytes.csv", whole=False)
    blocks = cut(text[format.skip :])

    def arrow(threads: bool) -> Any:
        options = arrow_csv.ReadOptions(use_threads=threads)
        return arrow_csv.read_csv(pa.BufferReader(text), read_options=options)

    first = arrow(True).slice(0, 1000)
    np.testing.assert_array_equal(first["f3"].to_numpy(), format.parse(blocks[0])["f3"].to_numpy()[:1000])
    figures = interleave(
        {
            "ours": lambda: [format.parse(b) for b in blocks],
            "pyarrow": lambda: arrow(True),
            "ours, 2 threads": lambda: list(pool.map(format.parse, blocks)),
            "pyarrow, 1 thread": lambda: arrow(False),
        },
        repeats=repeats,
    )
    speeds = {name: len(text) / figures.median(name) / 1e9 for name in figures.figures}
    note = "warm; GB/s: " + ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
    cores = len(os.sched_getaffinity(0))
    return [
        Claim.at_least(f"CSV {shape}: 2 threads to pyarrow's default ({cores} cores)",
                       figures.ratio("pyarrow", "ours, 2 threads"), 3, note=note),
        Claim.at_least(f"CSV {shape}: 1 thread to pyarrow's 1", figures.ratio("pyarrow, 1 thread", "ours"), 3),
    ]  # fmt: skip


def _libsvm(text: bytes, pool: ThreadPoolExecutor, repeats: int) -> list[Claim]:
    from sklearn.datasets import load_svmlight_file

    format = libsvm_format("bytes.svm")
    blocks = cut(text)
    part = bytes(blocks[0])  # scikit-learn's reader is slow enough to be timed on a part
    peer, _ = load_svmlight_file(io.BytesIO(part), dtype=np.float32, zero_based=True)
    np.testing.assert_array_equal(peer.data, format.parse(part)["values"].flatten().to_numpy())
    figures = interleave(
        {
            "ours": lambda: len(text) / _seconds(lambda: [format.parse(b) for b in blocks]) / 1e9,
            "ours, 2 threads": lambda: len(text) / _seconds(lambda: list(pool.map(format.parse, blocks))) / 1e9,
            "scikit-learn": lambda: len(part) / _seconds(
                lambda: load_svmlight_file(io.BytesIO(part), dtype=np.float32, zero_based=True)) / 1e9,
        },
        repeats=repeats,
    )  # fmt: skip
    note = "warm; GB/s: " + ", ".join(f"{name} {figures.median(name):.3f}" for name in figures.figures)
    return [Claim.at_least("LibSVM: 1 thread to scikit-learn", figures.ratio("ours", "scikit-learn"), 10, note=note)]


def _seconds(work: Any) -> float:
    import time

    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main(run))
