"""Is CorgiPile as good as a full shuffle for a deep network? A ResNet-18 on CIFAR-10, on a GPU.

As in section 7.3.2 of the paper: images sorted by class (figure 17) or by their first feature, the first pixel (figure 18), blocks of
100 images, and a buffer of a tenth of the images for every order that has one. CorgiPile also reads the blocks of 64 KB that `penstock
convert` writes, of which five times as many meet in the buffer. The network is the one for small images (a first
convolution of 3 × 3, no pooling after it), by SGD with momentum and a rate that falls as a cosine; every order gets the same.
`python -m benchmarks.gpu.accuracy` needs a GPU, torchvision, Pillow and the data set; runs share the GPU, for no time is claimed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import images
from benchmarks.harness import Claim, report, write_results

STORED = {"class": "sorted by class", "feature": "ordered by the first feature"}
BLOCK, SMALL_BLOCK = 100, 64 * 1024 // 3080
"""Images of a block: the paper's, and those of 64 KB, as files are converted."""
ORDERS = ("once", "corgipile", "sliding-window", "none")
BAR, FAR = 0.5, 20.0
"""Points that CorgiPile may stay below shuffle-once, and that the sliding window must, where images are sorted by class."""
BATCH, RATE = 256, 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """One training: how the images lie, in which order they are read, and what else is by chance."""

    stored: str
    order: str
    seed: int
    block: int = BLOCK


def write(folder: Path) -> None:
    """Decode CIFAR-10, and write it in both orders, as blocks of a hundred images."""
    found = images.cifar(folder, images.Setting())
    if found is None:
        raise SystemExit("CIFAR-10 cannot be decoded here; see benchmarks/images.py")
    (pixels, classes), test = found
    np.savez(folder / "test.npz", pixels=test[0], classes=test[1])
    by_feature = np.argsort(pixels[:, 0, 0, 0], kind="stable")
    by_class = np.arange(len(classes))
    for stored, order, block in (
        ("class", by_class, BLOCK),
        ("class", by_class, SMALL_BLOCK),
        ("feature", by_feature, BLOCK),
    ):
        images.write(folder / f"{stored}-{block}.arrow", (pixels[order], classes[order].astype(np.int64)), block=block)


def learn(run: Run, folder: Path, *, epochs: int) -> list[float]:
    """Train a network; return its test accuracy in points after each epoch."""
    import torch
    import torchvision

    from penstock.torch import DataLoader

    torch.manual_seed(run.seed)
    torch.set_num_threads(1)
    model: Any = torchvision.models.resnet18(num_classes=10)
    model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    test = np.load(folder / "test.npz")
    unseen, classes = torch.from_numpy(test["pixels"]).cuda(), torch.from_numpy(test["classes"]).cuda()

    def shaped(pixels: torch.Tensor) -> torch.Tensor:
        channels_first = pixels.view(-1, 32, 32, 3).permute(0, 3, 1, 2)
        return channels_first.float().div_(64).sub_(2).contiguous(memory_format=torch.channels_last)

    def varied(pixels: torch.Tensor) -> torch.Tensor:
        """Shift each batch by up to four pixels, and mirror half of its images."""
        down, right = torch.randint(0, 9, (2,)).tolist()
        padded = torch.nn.functional.pad(pixels, (4, 4, 4, 4))[:, :, down : down + 32, right : right + 32]
        mirror = (torch.rand(len(pixels), device=pixels.device) < 0.5)[:, None, None, None]
        return torch.where(mirror, padded.flip(3), padded).contiguous(memory_format=torch.channels_last)

    path = folder / f"{run.stored}-{run.block}.arrow"
    rows = 50_000
    buffered = run.order in ("corgipile", "sliding-window")
    memory = images.memory_for(path, run.order, int(images.BUFFER * rows), scratch=folder) if buffered else "50%"
    options: dict[str, Any] = {"shuffle": run.order, "memory": memory, "seed": run.seed, "scratch": folder}
    reached = []
    with DataLoader(str(path), BATCH, columns=("image", "label"), drop_last=True, **options) as loader:
        steps, step = epochs * (rows // BATCH), 0
        for _ in range(epochs):
            model.train()
            for pixels, labels in loader:
                warm = min(1.0, (step + 1) / (0.1 * steps))
                rate = RATE * warm * (1 + math.cos(math.pi * step / steps)) / 2
                for group in optimizer.param_groups:
                    group["lr"] = rate
                with torch.autocast("cuda", torch.bfloat16):
                    scores = model(varied(shaped(pixels.cuda())))
                    loss = torch.nn.functional.cross_entropy(scores, labels.cuda())
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                step += 1
            model.eval()
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                parts = zip(unseen.split(1000), classes.split(1000))
                right = sum(int((model(shaped(part)).argmax(1) == labels).sum()) for part, labels in parts)
            reached.append(100 * right / len(classes))
    return reached


def judge(curves: Mapping[Run, list[float]]) -> list[Claim]:
    """Compare the medians of the final accuracies over seeds."""
    claims = []
    for stored, words in STORED.items():
        final = {
            order: [
                curve[-1]
                for run, curve in curves.items()
                if (run.stored, run.order, run.block) == (stored, order, BLOCK)
            ]
            for order in ORDERS
        }
        small = [curve[-1] for run, curve in curves.items() if (run.stored, run.block) == (stored, SMALL_BLOCK)]
        middle = {order: statistics.median(each) for order, each in final.items() if each}
        if "once" not in middle:
            continue
        note = "; ".join(f"{order}: {', '.join(f'{one:.2f}' for one in final[order])}" for order in middle)
        start = f"ResNet-18 on CIFAR-10 {words}, points below `once`:"
        if "corgipile" in middle:
            below = round(middle["once"] - middle["corgipile"], 2)
            name = f"{start} `corgipile`, buffer 10 %, blocks of {BLOCK} images"
            claims.append(Claim.at_most(name, below, BAR, unit=" points", note=note))
        if small:
            below = round(middle["once"] - statistics.median(small), 2)
            name = f"{start} `corgipile`, buffer 10 %, blocks of 64 KB as converted"
            claims.append(
                Claim.at_most(name, below, BAR, unit=" points", note=", ".join(f"{one:.2f}" for one in small))
            )
        if stored == "class" and "sliding-window" in middle:
            below = round(middle["once"] - middle["sliding-window"], 2)
            claims.append(Claim.at_least(f"{start} `sliding-window`, buffer 10 %", below, FAR, unit=" points"))
    return claims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="for images sorted by class; the others have one")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--at-once", type=int, default=4, help="trainings that share the GPU")
    parser.add_argument("--part", choices=STORED, help="only images stored so")
    parser.add_argument("--out", type=Path, help="write claims and curves there, as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(learn(Run(**json.loads(given.child)), given.folder, epochs=given.epochs)), flush=True)
        return
    runs = [Run("class", order, seed) for seed in range(given.seeds) for order in ORDERS[: 3 if seed else 4]]
    runs += [Run("class", "corgipile", seed, SMALL_BLOCK) for seed in range(given.seeds)]
    runs += [Run("feature", order, 0) for order in ORDERS]
    runs = [run for run in runs if given.part is None or run.stored == given.part]
    curves: dict[Run, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)

        def turn(run: Run) -> None:
            command = [sys.executable, "-m", "benchmarks.gpu.accuracy", "--child", json.dumps(asdict(run))]
            command += ["--folder", str(folder), "--epochs", str(given.epochs)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{run} failed: {done.stderr[-1500:]}", flush=True)
                return
            curves[run] = json.loads(done.stdout.splitlines()[-1])
            print(run.stored, run.block, run.order, run.seed, *(f"{one:.1f}" for one in curves[run]), flush=True)
            if given.out:
                rows = [[each.stored, str(each.block), each.order, str(each.seed), *(f"{one:.2f}" for one in curve)] for each, curve in curves.items()]  # fmt: skip
                columns = [
                    "stored by",
                    "images of a block",
                    "order",
                    "seed",
                    *(f"epoch {epoch + 1}" for epoch in range(given.epochs)),
                ]
                table = {"title": "Test accuracy after each epoch", "columns": columns, "rows": rows}
                command = "python -m benchmarks.gpu.accuracy"
                write_results(given.out, judge(curves), quick=False, command=command, tables=[table])

        with ThreadPoolExecutor(given.at_once) as pool:
            list(pool.map(turn, runs))
    print(report(judge(curves), quick=False))


if __name__ == "__main__":
    main()
