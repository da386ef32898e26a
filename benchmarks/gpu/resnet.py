"""A ResNet on a GPU, fed by Penstock and by the stock DataLoader: samples a second and how busy the GPU was.

Two kinds of images, made here: ``jpeg``, files in class folders that are decoded, cropped and flipped (ResNet-50), and
``tensor``, decoded ones of 12 KB (ResNet-18), where reading and not decoding is the work. Each contestant trains in a
process of its own, after caches were dropped, in turns. Needs torchvision, and Pillow to make the files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.conditions import drop_caches, machine

CLASSES = 100


def make_jpeg(folder: Path, count: int) -> None:
    """Write images of 256 × 256 in class folders: smooth noise, about 25 KB each, as photographs are when small."""
    with ProcessPoolExecutor() as pool:
        list(pool.map(_some_files, [(str(folder), start, min(count, start + 500)) for start in range(0, count, 500)]))


def _some_files(task: tuple[str, int, int]) -> None:
    from PIL import Image

    folder, start, stop = task
    rng = np.random.default_rng(start)
    for number in range(start, stop):
        small = Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8))
        place = Path(folder) / f"class{number % CLASSES:03d}"
        place.mkdir(parents=True, exist_ok=True)
        small.resize((256, 256)).save(place / f"{number:07d}.jpg", quality=85)


def make_tensors(folder: Path, count: int) -> None:
    """Write rows of 3 × 64 × 64 bytes and a label, sorted by label, as an Arrow file and as one for a memory map."""
    import pyarrow as pa

    from penstock.blocks.write import BlockWriter

    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema({"image": pa.list_(pa.uint8(), 3 * 64 * 64), "label": pa.int64()})
    rng = np.random.default_rng(0)
    labels = np.sort(rng.integers(0, CLASSES, count))
    np.save(folder / "labels.npy", labels)
    flat = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (count, 3 * 64 * 64))
    with BlockWriter(folder / "data.arrow", schema, rows_per_block=21) as writer:
        for start in range(0, count, 4096):
            rows = rng.integers(0, 256, (min(4096, count - start), 3 * 64 * 64), np.uint8)
            flat[start : start + len(rows)] = rows
            images = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 3 * 64 * 64)
            writer.write(pa.record_batch([images, pa.array(labels[start : start + len(rows)])], schema=schema))
    flat.flush()


def decode(raw: bytes) -> Any:
    """Decode a JPEG, cut a random square out of it and flip it in half of the cases."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    image = decode_jpeg(torch.frombuffer(bytearray(raw), dtype=torch.uint8), ImageReadMode.RGB)
    chance = torch.rand(3).tolist()
    top, left = (int(c * (size - 223)) for c, size in zip(chance, image.shape[1:]))
    image = image[:, top : top + 224, left : left + 224]
    return image.flip(2) if chance[2] < 0.5 else image.contiguous()


class Files:
    """A map-style dataset over class folders, as TorchVision's ImageFolder is."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("class*/*.jpg"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        path = self.files[number]
        return decode(path.read_bytes()), int(path.parent.name[5:])


class Mapped:
    """A map-style dataset over a memory map."""

    def __init__(self, folder: Path) -> None:
        self.images = np.load(folder / "images.npy", mmap_mode="r")
        self.labels = np.load(folder / "labels.npy")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> Any:
        import torch

        return torch.from_numpy(self.images[number].copy()).view(3, 64, 64), int(self.labels[number])


def feed(contestant: str, kind: str, folder: Path, batch: int) -> Iterator[Any]:
    """Yield batches of (images, labels) for ever."""
    from torch.utils.data import DataLoader as Stock

    from penstock.torch import DataLoader, UnorderedDataLoader

    who, _, detail = contestant.partition(" ")
    loader: Any
    if who == "stock":
        workers = int(detail or 0)
        data: Any = Files(folder / "jpeg") if kind == "jpeg" else Mapped(folder / "tensor")
        loader = Stock(data, batch, shuffle=True, num_workers=workers, pin_memory=True, drop_last=True)
    elif who == "unordered":
        data = Files(folder / "jpeg") if kind == "jpeg" else Mapped(folder / "tensor")
        count, _, workers = detail.partition(" ")
        loader = UnorderedDataLoader(
            data, batch, shuffle=True, pin_memory=True, drop_last=True, num_workers=int(count), workers=workers
        )
    elif kind == "jpeg":
        loader = DataLoader(
            folder / "jpeg.arrow", batch, shuffle=detail, columns=("image", "label"), memory="1GB", pin_memory=True,
            drop_last=True, per_sample=True, transform=lambda row: (decode(row[0]), row[1]),
        )  # fmt: skip
    else:
        loader = DataLoader(
            folder / "tensor" / "data.arrow", batch, shuffle=detail, columns=("image", "label"), memory="1GB",
            pin_memory=True, drop_last=True,
        )  # fmt: skip
    while True:
        for images, labels in loader:
            yield images.view(len(images), 3, *((64, 64) if kind == "tensor" else images.shape[2:])), labels


def train(contestant: str, kind: str, folder: Path, seconds: float) -> dict[str, Any]:
    """Train for some seconds; return images a second, how busy the GPU was, and the wait for the first batch."""
    import torch
    import torchvision

    batch = 256 if kind == "jpeg" else 512
    model = (torchvision.models.resnet50 if kind == "jpeg" else torchvision.models.resnet18)(num_classes=CLASSES)
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    measure = torch.nn.CrossEntropyLoss()

    def step(images: Any, labels: Any) -> None:
        images = images.cuda(non_blocking=True).to(memory_format=torch.channels_last).float().div_(255)
        with torch.autocast("cuda", torch.bfloat16):
            loss = measure(model(images), labels.cuda(non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    side = 224 if kind == "jpeg" else 64
    still = torch.zeros(batch, 3, side, side, dtype=torch.uint8), torch.zeros(batch, dtype=torch.int64)
    for _ in range(20):  # the model's own warm-up
        step(*still)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(30):
        step(*still)
    torch.cuda.synchronize()
    alone = 30 * batch / (time.perf_counter() - began)
    began = time.perf_counter()
    stream = feed(contestant, kind, folder, batch)
    next(stream)
    first = time.perf_counter() - began
    busy: list[float] = []
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(busy, ended), daemon=True)
    watch.start()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        images, labels = next(stream)
        step(images, labels)
        count += len(images)
    torch.cuda.synchronize()
    took = time.perf_counter() - began
    ended.set()
    watch.join()
    return {
        "images_per_second": count / took,
        "gpu_busy_percent": statistics.mean(busy) if busy else None,
        "first_batch_seconds": first,
        "model_alone": alone,
    }


def _watch(busy: list[float], ended: threading.Event) -> None:
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    while not ended.wait(0.5):
        found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        busy.extend(float(f) for f in found[:1])


STOCK = ["stock 0", "stock 4", "stock 16"]
OURS = ["unordered 0 threads", "unordered 16 processes", "penstock global", "penstock corgipile"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["jpeg", "tensor"], action="append")
    parser.add_argument("--images", type=int, default=40_000)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, help="also write the figures there, as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(train(asked.child, asked.kind[0], asked.folder, asked.seconds)))
        # Loaders are in the middle of an epoch, and their data go with the process.
        sys.stdout.flush()
        os._exit(0)
    # Compiled once, as on any machine that has used Penstock before.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / "penstock-numba"))
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        found: dict[str, dict[str, list[Any]]] = {}
        for kind in asked.kind or ["jpeg", "tensor"]:
            _make(kind, folder, asked.images)
            found[kind] = _turns(kind, folder, asked)
            _print(kind, found[kind])
            if asked.out:
                asked.out.write_text(json.dumps({"machine": machine(), "figures": found}, indent=1))


def _make(kind: str, folder: Path, images: int) -> None:
    began = time.perf_counter()
    if kind == "tensor":
        make_tensors(folder / "tensor", 10 * images)
    else:
        import penstock

        make_jpeg(folder / "jpeg", images)
        penstock.convert(folder / "jpeg", folder / "jpeg.arrow")
    print(f"made {kind} in {time.perf_counter() - began:.0f} s", flush=True)


def _turns(kind: str, folder: Path, asked: argparse.Namespace) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in [*STOCK, *OURS]}
    for turn in range(asked.rounds):
        for name in list(found) if turn % 2 == 0 else reversed(list(found)):
            cold = drop_caches()
            command = [sys.executable, "-m", "benchmarks.gpu.resnet", "--child", name, "--kind", kind]
            command += ["--folder", str(folder), "--seconds", str(asked.seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{kind}, {name}: failed: {done.stderr[-400:]}", flush=True)
                continue
            figures = {**json.loads(done.stdout.splitlines()[-1]), "cold": cold}
            print(f"{kind}, {name}: {figures}", flush=True)
            found[name].append(figures)
    return found


def _print(kind: str, found: dict[str, list[Any]]) -> None:
    print(f"\n{kind}: medians\n{'contestant':24}{'images/s':>10}{'GPU busy':>10}{'first batch':>13}{'model alone':>13}")
    for name, runs in found.items():
        if runs:
            speed, busy, first, alone = (
                statistics.median(run[k] or 0 for run in runs)
                for k in ("images_per_second", "gpu_busy_percent", "first_batch_seconds", "model_alone")
            )
            print(f"{name:24}{speed:10,.0f}{busy:9.0f}%{first:12.2f}s{alone:13,.0f}")


if __name__ == "__main__":
    main()
