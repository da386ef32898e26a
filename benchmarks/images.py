"""Is CorgiPile as good as a full shuffle for a neural network? A small CNN on images stored class by class.

As in section 7.3.2 and figure 17 of the paper: CIFAR-10 sorted by class, blocks of 100 images, a buffer of a tenth of
the images, batches of 128. The paper's VGG19 and ResNet18 need a GPU; here three convolutions with batch normalisation
do, by SGD with momentum and a rate that falls as a cosine from epoch to epoch, the same for every order. The JPEGs are
decoded once, by Pillow in this interpreter or in ``.venv-peers``; where neither has it, Fashion-MNIST is learned.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import lzma
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import harness
from benchmarks.harness import ROOT, Claim
from benchmarks.real import FOLDER
from penstock.blocks.write import BlockWriter
from penstock.loader.batches import Batches

PEERS = ROOT / ".venv-peers" / "bin" / "python"
BAR = 1.0
"""Points of accuracy that CorgiPile may stay below shuffle-once."""
FAR = 20.0
"""Points that the sliding window must stay below it at least (the paper: more than 50)."""
BUFFER = 0.1
"""The buffer of every order that has one, as a share of the images."""
ORDERS = ("once", "corgipile", "sliding-window", "mrs", "block-only", "epoch", "none")
STRICT = "corgipile, all in 10 %"
"""Two windows and what reading holds in a tenth of the data: a smaller buffer than the paper's."""
SEVERAL = ("once", "corgipile")
"""Orders that the bar compares, which are run with several seeds; the others lie too far off to need them."""

Images = tuple[np.ndarray, np.ndarray]
"""Pixels (n, height, width, channels) as bytes, and classes, sorted by class."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How much is learned, and how."""

    per_class: int = 5000
    block: int = 100
    epochs: int = 10
    seeds: int = 3
    batch: int = 128
    rate: float = 0.1
    width: int = 16

    def rate_of(self, epoch: int) -> float:
        return self.rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2


# As many blocks in the buffer as with all images, so that the shuffle is as good.
QUICK = Setting(per_class=600, block=12, epochs=3, seeds=1)


def decode(target: str, per_class: int) -> None:
    """Write the CIFAR-10 images as arrays; runs wherever Pillow is."""
    from PIL import Image

    found: dict[str, dict[str, list[np.ndarray]]] = {"train": {}, "test": {}}
    with tarfile.open(FOLDER / "cifar10_jpeg" / "cifar10_jpeg.tar.xz", "r|xz") as tar:
        for entry in tar:
            split, *kind = Path(entry.name).parts[:-1] or ("",)
            held = found.get(split, {}).setdefault(kind[0], []) if kind and entry.name.endswith(".jpg") else None
            if held is None or (split == "train" and len(held) == per_class):
                continue
            file = tar.extractfile(entry)
            assert file is not None
            held.append(np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB")))
    arrays = {}
    for split, classes in found.items():
        arrays[split] = np.stack([image for name in sorted(classes) for image in classes[name]])
        arrays[f"{split}_classes"] = np.repeat(
            np.arange(len(classes)), [len(classes[name]) for name in sorted(classes)]
        )
    np.savez(target, **arrays)


def cifar(folder: Path, setting: Setting) -> tuple[Images, Images] | None:
    """Return training and test images of CIFAR-10; None where nothing can decode them."""
    target = folder / "decoded.npz"
    here = importlib.util.find_spec("PIL") is not None
    python = sys.executable if here else str(PEERS)
    if not Path(python).exists():
        return None
    code = f"from benchmarks.images import decode; decode({str(target)!r}, {setting.per_class})"
    done = subprocess.run(
        [python, "-c", code],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
    )
    if done.returncode:
        print(f"  the JPEGs cannot be decoded: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    arrays = np.load(target)
    target.unlink()
    return (arrays["train"], arrays["train_classes"]), (arrays["test"], arrays["test_classes"])


def fashion(setting: Setting) -> tuple[Images, Images]:
    """Return training and test images of Fashion-MNIST, sorted by class."""

    def read(name: str) -> np.ndarray:
        raw = FOLDER / "fashion_mnist" / f"{name}-ubyte.xz"
        content = lzma.decompress(raw.read_bytes())
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        return np.frombuffer(content, np.uint8)

    def part(name: str, most: int) -> Images:
        images, classes = read(f"{name}-images-idx3")[16:].reshape(-1, 28, 28, 1), read(f"{name}-labels-idx1")[8:]
        picks = np.concatenate([np.flatnonzero(classes == kind)[:most] for kind in range(10)])
        return images[picks], classes[picks].astype(np.int64)

    return part("train", setting.per_class), part("t10k", 10_000)


def write(path: Path, images: Images, *, block: int) -> None:
    """Write images, in the order they have, as blocks of so many."""
    pixels, classes = images
    width = int(np.prod(pixels.shape[1:]))
    schema = pa.schema(
        [
            pa.field("image", pa.list_(pa.field("item", pa.uint8(), nullable=False), width), nullable=False),
            pa.field("label", pa.int64(), nullable=False),
        ]
    )
    with BlockWriter(path, schema, rows_per_block=block) as writer:
        for start in range(0, len(classes), block):
            values = pa.array(pixels[start : start + block].reshape(-1))
            column = pa.FixedSizeListArray.from_arrays(values, type=schema.field(0).type)
            labels = pa.array(classes[start : start + block])
            writer.write(pa.RecordBatch.from_arrays([column, labels], schema=schema))


def memory_for(path: Path, order: str, rows: int, *, scratch: Path) -> int:
    """Return the least memory whose buffer holds so many rows; a part of the memory is for reading."""

    def held(memory: int) -> int:
        with Batches(str(path), 1, shuffle=order, memory=memory, scratch=scratch) as stream:
            return int(stream.plan.held_rows)

    high = 8 * path.stat().st_size
    low = high // 100
    while high - low > high // 500:
        middle = (low + high) // 2
        try:
            enough = held(middle) >= rows
        except MemoryError:  # too little for anything
            enough = False
        low, high = (low, middle) if enough else (middle, high)
    return high


def network(channels: int, width: int) -> Any:
    """Return a CNN of three convolutions."""
    from torch import nn

    def convolve(inner: int, outer: int, size: int, stride: int) -> list[Any]:
        return [nn.Conv2d(inner, outer, size, stride, size // 2, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]

    return nn.Sequential(
        *convolve(channels, width, 5, 2),
        *convolve(width, 2 * width, 3, 1),
        nn.MaxPool2d(2),
        *convolve(2 * width, 4 * width, 3, 1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * width, 10),
    )


def prepare(pixels: Any, shape: tuple[int, ...]) -> Any:
    """Return pixels as the network takes them: channels before the sides, around 0."""
    return pixels.view(-1, *shape).permute(0, 3, 1, 2).float().div_(64).sub_(2)


def learn(
    path: Path, test: Images, *, order: str, memory: str | int, seed: int, setting: Setting, scratch: Path
) -> list[float]:
    """Train a network; return its test accuracy in points after each epoch."""
    import torch

    from penstock.torch import DataLoader

    torch.manual_seed(seed)
    shape = test[0].shape[1:]
    unseen, classes = torch.from_numpy(test[0]), torch.from_numpy(test[1])
    model = network(shape[-1], setting.width).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.rate, momentum=0.9, weight_decay=5e-4)
    reached = []
    with DataLoader(
        str(path),
        setting.batch,
        shuffle=order,
        memory=memory,
        columns=("image", "label"),
        seed=seed,
        drop_last=True,
        scratch=scratch,
    ) as loader:
        for epoch in range(setting.epochs):
            for group in optimizer.param_groups:
                group["lr"] = setting.rate_of(epoch)
            model.train()
            for images, labels in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(prepare(images, shape)), labels).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                right = sum(
                    int((model(prepare(x, shape)).argmax(1) == y).sum())
                    for x, y in zip(unseen.split(1000), classes.split(1000))
                )
            reached.append(100 * right / len(classes))
    return reached


@dataclass(frozen=True, slots=True)
class Entry:
    """An order with its memory, the share of the images that its buffer holds, and what was reached with it."""

    name: str
    order: str
    memory: str | int
    buffer: float
    share: float
    curves: list[list[float]] = field(default_factory=list)

    @property
    def final(self) -> float:
        return statistics.median(curve[-1] for curve in self.curves)


def enter(path: Path, rows: int, *, scratch: Path) -> list[Entry]:
    """Return every order with memory for the same buffer, and CorgiPile again with a tenth for everything."""
    found = []
    for name in (*ORDERS, STRICT):
        order = "corgipile" if name == STRICT else name
        equal = name in ("corgipile", "mrs", "sliding-window")
        memory = memory_for(path, order, int(BUFFER * rows), scratch=scratch) if equal else "10%"
        with Batches(str(path), 1, shuffle=order, memory=memory, scratch=scratch) as stream:
            plan = stream.plan
        found.append(Entry(name, order, memory, plan.held_rows / rows, plan.memory / plan.data_bytes))
    return found


def table(entries: list[Entry]) -> str:
    """Return one line per order: its buffer, all its memory, and the accuracy reached."""
    width = max(len(entry.name) for entry in entries)
    lines = [f"{'order':<{width}}  {'buffer':>6}  {'memory':>6}  {'accuracy':>8}  below once  of each seed"]
    once = next(entry.final for entry in entries if entry.name == "once")
    for entry in entries:
        each = " ".join(f"{curve[-1]:.2f}" for curve in entry.curves)
        buffer = f"{entry.buffer:.1%}" if entry.order in ("corgipile", "mrs", "sliding-window") else "-"
        lines.append(
            f"{entry.name:<{width}}  {buffer:>6}  {entry.share:>6.1%}  {entry.final:>8.2f}  {once - entry.final:>10.2f}  {each}"
        )
    return "\n".join(lines)


def run(quick: bool) -> list[Claim]:
    names = (f"≤ {BAR:g} points", f"≥ {FAR:g} points")
    missing = "torch is not installed: pip install penstock[torch]" if importlib.util.find_spec("torch") is None else ""
    if missing or not FOLDER.is_dir():
        why = missing or f"there are no data in {FOLDER}"
        return [Claim.not_measured("CNN on images sorted by class", " and ".join(names), why)]
    import torch

    torch.set_num_threads(1)
    setting = QUICK if quick else Setting()
    home = ROOT / ".cache"  # on the disk of this checkout, whatever /tmp is
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="images-", dir=home) as made:
        folder = Path(made)
        found = cifar(folder, setting)
        name = "CIFAR-10" if found else "Fashion-MNIST (no Pillow here: pip install pillow)"
        training, test = found or fashion(setting)
        path = folder / "images.arrow"
        write(path, training, block=setting.block)
        rows = len(training[1])
        title = f"{rows:,} images of {name} sorted by class, blocks of {setting.block}, batches of {setting.batch}"
        print(f"{title}, {setting.epochs} epochs; test accuracy after each", file=sys.stderr, flush=True)
        entries = enter(path, rows, scratch=folder)
        for seed in range(setting.seeds):
            for entry in entries:
                if seed and entry.name not in SEVERAL:
                    continue
                began = time.perf_counter()
                entry.curves.append(
                    learn(
                        path, test, order=entry.order, memory=entry.memory, seed=seed, setting=setting, scratch=folder
                    )
                )
                curve = " ".join(f"{reached:.1f}" for reached in entry.curves[-1])
                seconds = time.perf_counter() - began
                print(f"  {entry.name}, seed {seed}: {curve} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        print(f"\n{title}\n{table(entries)}\n")
    return judge({entry.name: entry.final for entry in entries}, name.split()[0])


def judge(final: dict[str, float], name: str) -> list[Claim]:
    below = {label: final["once"] - reached for label, reached in final.items()}
    note = ", ".join(f"{label} {reached:.2f}" for label, reached in final.items() if label != STRICT)
    start = f"points below shuffle-once, CNN, {name} sorted by class:"
    return [
        Claim.at_most(f"{start} corgipile, buffer 10 %", below["corgipile"], BAR, unit=" points", note=note),
        Claim.at_most(f"{start} corgipile, all memory 10 %", below[STRICT], BAR, unit=" points"),
        Claim.at_least(f"{start} sliding-window, buffer 10 %", below["sliding-window"], FAR, unit=" points"),
    ]


if __name__ == "__main__":
    sys.exit(harness.main(run))
