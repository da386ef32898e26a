"""A small CNN on a folder of images: converted once, then trained from in two orders.

Run `python examples/torch_images.py` for patterns that it draws itself, or `python examples/torch_images.py FOLDER` for
your own: a folder per class, as TorchVision's ImageFolder has it (the extra `images` brings the decoders). A folder is read
class by class, so the converted file is sorted by label: watch what that does to `shuffle="none"`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import penstock
from penstock.torch import DataLoader, Image

SIDE = 16
KINDS = ("checks", "columns", "rings", "rows")
COLUMNS = {"image": Image(crop="none", size=SIDE, normalize=([0.5] * 3, [0.5] * 3)), "label": None}


def draw(kind: str, chance: np.random.Generator) -> np.ndarray:
    """Return a grey image of a pattern, at a random place, under noise."""
    y, x = np.mgrid[:SIDE, :SIDE] + chance.integers(0, 4, (2, 1, 1))
    shape = {"columns": x, "rows": y, "checks": x // 2 + y // 2, "rings": np.hypot(x - 9, y - 9).astype(int)}[kind]
    noisy = np.where(shape // 2 % 2 == 0, 80, 170) + 40 * chance.standard_normal((SIDE, SIDE))
    return noisy.clip(0, 255).astype(np.uint8)


def write_folder(folder: Path, per_class: int, *, seed: int) -> None:
    """Write a folder of images for each kind of pattern."""
    chance = np.random.default_rng(seed)
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        for number in range(per_class):
            (folder / kind / f"{number:05}.pgm").write_bytes(b"P5 16 16 255\n" + draw(kind, chance).tobytes())


def make_model(classes: int) -> nn.Module:
    """Return two convolutions and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, classes)),
    )


def train(path: Path, classes: int, *, shuffle: str, memory: str, epochs: int) -> nn.Module:
    """Train a model on the images of a converted file."""
    torch.manual_seed(0)
    model = make_model(classes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with DataLoader(path, 32, shuffle=shuffle, memory=memory, columns=COLUMNS) as loader:
        for _ in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()
                optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, path: Path) -> float:
    """Return the share of images that the model names rightly."""
    with DataLoader(path, 256, shuffle="none", columns=COLUMNS) as loader:
        right = [(model(batch["image"]).argmax(1) == batch["label"]) for batch in loader]
    return torch.cat(right).float().mean().item()


def main(folder: Path | None = None, *, per_class: int = 500, epochs: int = 4) -> None:
    """Run the example in a folder of its own."""
    torch.set_num_threads(1)  # layers as small as these gain nothing from more
    with tempfile.TemporaryDirectory() as own:
        memory = "20%" if folder is None else "256MB"  # the patterns are too few for more to be a test
        if folder is None:
            folder = Path(own, "train")
            write_folder(folder, per_class, seed=1)
            write_folder(Path(own, "test"), per_class // 5, seed=2)
        packed = penstock.convert(folder, Path(own, "train.arrow"))
        print(f"{packed.rows:,} images in {packed.blocks} blocks, {packed.bytes / 1e6:.1f} MB")
        tested, of = Path(packed.path), "training"
        if Path(own, "test").exists():
            tested, of = Path(penstock.convert(Path(own, "test"), Path(own, "test.arrow")).path), "test"
        classes = sum(entry.is_dir() for entry in folder.iterdir())
        for shuffle in ("none", "corgipile"):
            model = train(Path(packed.path), classes, shuffle=shuffle, memory=memory, epochs=epochs)
            print(f"shuffle={shuffle:10} {of} accuracy {accuracy(model, tested):.3f}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
