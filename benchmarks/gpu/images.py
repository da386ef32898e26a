"""JPEG to batches: Penstock's images against the stock `DataLoader` at equal cores, alone and before a ResNet-50.

`python -m benchmarks.gpu.images` makes photograph-like JPEGs (375 × 500, about 70 KB), as files in class folders and as a
converted file, and gives both loaders 1, 4, 8 and 16 cores; the stock one has a worker for each, TorchVision's `ImageFolder`
and its usual transforms. Contestants run in turns, each in a process of its own. Needs a GPU, torchvision, Pillow, simplejpeg.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Claim, report, write_results

CLASSES, BATCH = 100, 256
REPEATED = 6
"""Times that each image comes in an epoch: epochs are as long as those of real data sets, and making them is not."""
CORES = (1, 4, 8, 16)
BAR, GPU_BAR, FED, FED_BY_GPU = 1.89, 2.0, 0.97, 0.90


@dataclass(frozen=True, slots=True)
class Contestant:
    """A loader on some of the cores: bytes or normalized floats, decoded by processors or the GPU, alone or training."""

    who: str
    cores: int
    form: str = "float32"
    device: str = "cpu"
    train: bool = False

    @property
    def name(self) -> str:
        form = self.form if self.device == "cpu" else f"{self.form} by GPU"
        return f"{'ResNet-50, ' if self.train else ''}{self.who}, {self.cores} cores, {form}"


def photograph(chance: np.random.Generator, height: int = 375, width: int = 500) -> bytes:
    """Return a JPEG of noise on four scales, mostly grey, as photographs are."""
    from PIL import Image

    pixels = np.full((height, width, 3), 128, np.float32)
    for side, strength in ((4, 60), (16, 40), (64, 24), (192, 14)):
        noise = strength * chance.standard_normal((side * height // width + 1, side, 3)).astype(np.float32)
        noise = 0.4 * noise + 0.9 * noise.mean(2, keepdims=True)
        for color in range(3):
            layer = Image.fromarray(noise[..., color]).resize((width, height), Image.Resampling.BICUBIC)
            pixels[..., color] += np.asarray(layer)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=94)
    return file.getvalue()


def _some_files(task: tuple[str, int, int]) -> None:
    folder, start, stop = task
    chance = np.random.default_rng(start)
    for number in range(start, stop):
        place = Path(folder, f"class{number % CLASSES:03d}")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:07d}.jpg").write_bytes(photograph(chance))


def make(folder: Path, count: int) -> int:
    """Write the images and the converted file; return the bytes of an image."""
    import pyarrow as pa

    import penstock

    with ProcessPoolExecutor() as pool:
        list(pool.map(_some_files, [(str(folder / "jpeg"), n, min(count, n + 64)) for n in range(0, count, 64)]))
    files = sorted((folder / "jpeg").glob("*/*.jpg"))
    schema = pa.schema({"image": pa.binary(), "label": pa.int64()})

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(REPEATED):
            for start in range(0, len(files), 256):
                some = files[start : start + 256]
                columns = [[file.read_bytes() for file in some], [int(file.parent.name[5:]) for file in some]]
                yield pa.record_batch([pa.array(each, kind.type) for each, kind in zip(columns, schema)], schema=schema)

    penstock.convert(pa.RecordBatchReader.from_batches(schema, batches()), folder / "jpeg.arrow")
    return sum(file.stat().st_size for file in files) // len(files)


def feed(contestant: Contestant, folder: Path) -> Iterator[tuple[Any, Any]]:
    """Yield batches of (images, labels) for ever."""
    if contestant.who == "stock":
        from torch.utils.data import DataLoader as Stock
        from torchvision import transforms
        from torchvision.datasets import ImageFolder

        last = [transforms.PILToTensor()]
        if contestant.form == "float32":
            last = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
        data = ImageFolder(str(folder / "jpeg"), transforms.Compose(crop + last))
        data.samples = data.samples * REPEATED
        loader: Any = Stock(
            data,
            BATCH,
            shuffle=True,
            num_workers=contestant.cores,
            pin_memory=True,
            drop_last=True,
            persistent_workers=True,
        )
        while True:
            yield from loader
    from penstock.torch import DataLoader, Image

    normalize = "imagenet" if contestant.form == "float32" else None
    image = Image(crop="random-resized", size=224, flip=True, normalize=normalize, device=contestant.device)
    columns = {"image": image, "label": None}
    loader = DataLoader(folder / "jpeg.arrow", BATCH, columns=columns, memory="1GB", pin_memory=True, drop_last=True)
    while True:
        for batch in loader:
            yield batch["image"], batch["label"]


def load(contestant: Contestant, folder: Path, seconds: float) -> dict[str, float]:
    """Take batches for some seconds; return images a second, and how many cores this process used."""
    import torch

    stream = feed(contestant, folder)
    began = time.perf_counter()
    for _ in stream:
        if time.perf_counter() - began > seconds / 2:
            break
    began, worked, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        count += len(next(stream)[0])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    took = time.perf_counter() - began
    return {"images_per_second": count / took, "cores_used": (time.process_time() - worked) / took}


def train(contestant: Contestant, folder: Path, seconds: float) -> dict[str, float]:
    """Train for some seconds; return images a second, and those of the model alone in the same process."""
    import torch
    import torchvision

    model = torchvision.models.resnet50(num_classes=CLASSES).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    mean = torch.tensor([123.675, 116.28, 103.53], device="cuda").view(1, 3, 1, 1)
    deviation = torch.tensor([58.395, 57.12, 57.375], device="cuda").view(1, 3, 1, 1)

    def step(images: Any, labels: Any) -> None:
        images = images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
        images = (images.float() - mean) / deviation
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels.cuda(non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    still = torch.zeros(BATCH, 3, 224, 224, dtype=torch.uint8, device="cuda"), torch.zeros(BATCH, dtype=torch.int64)

    def steps(batches: Iterator[Any], seconds: float) -> float:
        torch.cuda.synchronize()
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            for images, labels in itertools.islice(batches, 4):
                step(images, labels)
                count += len(images)
            torch.cuda.current_stream().synchronize()  # or launches run ahead of what was done
        return count / (time.perf_counter() - began)

    steps(itertools.repeat(still), seconds / 2)
    alone = steps(itertools.repeat(still), seconds / 2)
    stream = feed(contestant, folder)
    steps(stream, seconds / 2)
    worked, began = time.process_time(), time.perf_counter()
    speed = steps(stream, seconds)
    cores = (time.process_time() - worked) / (time.perf_counter() - began)
    after = steps(itertools.repeat(still), seconds / 4)
    memory = torch.cuda.max_memory_allocated() / 1e9
    return {
        "images_per_second": speed,
        "cores_used": cores,
        "model_alone": alone,
        "model_alone_after": after,
        "gpu_gigabytes": memory,
    }


def contestants(parts: list[str], cores: int) -> list[Contestant]:
    """Return who takes part on a machine with so many cores."""
    chosen = []
    counts = [count for count in CORES if count <= cores]
    if "loaders" in parts:
        chosen += [Contestant(who, count) for count in counts for who in ("stock", "penstock")]
        chosen += [Contestant(who, count, "uint8") for count in counts for who in ("stock", "penstock")]
    if "gpu" in parts:
        chosen += [Contestant("penstock", count, device="cuda") for count in counts if count in (4, 16)]
    if "training" in parts:
        fed = [(who, count) for count in counts if count in (4, 16) for who in ("stock", "penstock")]
        chosen += [Contestant(who, count, "uint8", train=True) for who, count in fed]
        chosen += [Contestant("penstock", 2, "uint8", "cuda", train=True)]
    return chosen


def judge(speeds: dict[Contestant, list[dict[str, float]]]) -> list[Claim]:
    """Return every claim of which both sides were measured."""
    medians = {
        each: statistics.median(run["images_per_second"] for run in runs) for each, runs in speeds.items() if runs
    }
    claims = []

    def claim(name: str, ours: Contestant, other: Contestant, bar: float) -> None:
        if ours in medians and other in medians:
            note = f"{medians[ours]:,.0f} and {medians[other]:,.0f} images/s"
            claims.append(Claim.at_least(name, round(medians[ours] / medians[other], 3), bar, note=note))

    for form, what in (("float32", "normalized floats"), ("uint8", "bytes")):
        for count in CORES:
            name = f"JPEG to batches of {what}, {count} core{'s' * (count > 1)}: over the stock `DataLoader` with as many workers"
            claim(name, Contestant("penstock", count, form), Contestant("stock", count, form), BAR)
    for count in (4, 16):
        name = f"The same, decoded by the GPU, {count} cores: over the stock `DataLoader` with 16 workers"
        claim(name, Contestant("penstock", count, device="cuda"), Contestant("stock", 16), GPU_BAR)
    ours, stock = (Contestant(who, 4, "uint8", train=True) for who in ("penstock", "stock"))
    claim("ResNet-50 (bf16) fed from JPEG, 4 cores: over the stock `DataLoader` with 4 workers", ours, stock, BAR)
    for who, bar in ((replace(ours, cores=16), FED), (replace(ours, cores=2, device="cuda"), FED_BY_GPU)):
        if runs := speeds.get(who):
            share = statistics.median(
                run["images_per_second"] / statistics.mean((run["model_alone"], run["model_alone_after"]))
                for run in runs
            )
            note = (
                f"{medians[who]:,.0f} images/s; {statistics.median(run['cores_used'] for run in runs):.1f} cores used"
            )
            by = "decoded by the GPU" if who.device == "cuda" else "decoded by processors"
            name = f"ResNet-50 (bf16) fed from JPEG, {who.cores} cores, {by}: share of the model's speed alone"
            claims.append(Claim.at_least(name, round(100 * share, 1), 100 * bar, unit=" %", note=note))
    return claims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["loaders", "gpu", "training"], action="append")
    parser.add_argument("--images", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the images are made; kept, and used again")
    parser.add_argument("--out", type=Path, help="write claims and figures there, as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        contestant = Contestant(**json.loads(given.child))
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: contestant.cores])
        print(json.dumps((train if contestant.train else load)(contestant, given.folder, given.seconds)))
        sys.stdout.flush()
        os._exit(0)  # loaders are in the middle of an epoch, and their data go with the process
    # Compiled once, as on any machine that has used Penstock before.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir()) / "penstock-numba"))
    with tempfile.TemporaryDirectory() as name:
        folder = given.folder or Path(name)
        began = time.perf_counter()
        if not (folder / "jpeg.arrow").exists():
            size = make(folder, given.images)
            print(
                f"made {given.images} images of {size / 1e3:.1f} KB in {time.perf_counter() - began:.0f} s", flush=True
            )
        everyone = contestants(given.part or ["loaders", "gpu", "training"], len(os.sched_getaffinity(0)))
        speeds: dict[Contestant, list[dict[str, float]]] = {each: [] for each in everyone}
        for turn in range(given.rounds):
            for each in everyone if turn % 2 == 0 else reversed(everyone):
                command = [sys.executable, "-m", "benchmarks.gpu.images", "--child", json.dumps(asdict(each))]
                command += ["--folder", str(folder), "--seconds", str(given.seconds)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"{each.name}: failed: {done.stderr[-1500:]}", flush=True)
                    continue
                speeds[each].append(json.loads(done.stdout.splitlines()[-1]))
                print(each.name, {key: round(value, 2) for key, value in speeds[each][-1].items()}, flush=True)
            write(given.out, speeds, rounds=turn + 1)
    print(report(judge(speeds), quick=False))


def write(out: Path | None, speeds: dict[Contestant, list[dict[str, float]]], *, rounds: int) -> None:
    """Write what was measured so far."""
    if out is None:
        return
    keys = ("images_per_second", "cores_used", "model_alone", "gpu_gigabytes")
    rows = [
        [each.name, *(f"{statistics.median(run[key] for run in runs):,.{0 if key in keys[::2] else 1}f}" if key in runs[0] else "" for key in keys)]
        for each, runs in speeds.items()
        if runs
    ]  # fmt: skip
    table = {"title": f"Medians of {rounds} turns", "columns": ["contestant", "images/s", "cores used by the main process", "model alone", "GPU GB"], "rows": rows}  # fmt: skip
    write_results(out, judge(speeds), quick=False, command="python -m benchmarks.gpu.images", tables=[table])


if __name__ == "__main__":
    main()
